"""Looking at a run: what it did, and what of it can be drawn."""
