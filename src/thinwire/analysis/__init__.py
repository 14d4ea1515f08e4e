"""Looking, not training: what a run will send, what goes with what, all that can be written, and what a run did."""
