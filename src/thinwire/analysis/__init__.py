"""Looking, not training: what a run will send, what goes with what, and all that can be written."""
