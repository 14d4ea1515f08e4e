"""Local training: one client, many small ones as one, chains of linear layers in C."""
