"""The few hot loops, each with a plain reference beside it."""
