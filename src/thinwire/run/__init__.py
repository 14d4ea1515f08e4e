"""What every run shares, of whatever kind: its folder, ranks, what makes it itself, and progress."""
