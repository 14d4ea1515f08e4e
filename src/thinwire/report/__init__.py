"""Tables, plots and the page: what a person is shown of runs."""
