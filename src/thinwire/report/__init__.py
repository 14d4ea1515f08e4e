"""Tables, plots and the progress line."""
