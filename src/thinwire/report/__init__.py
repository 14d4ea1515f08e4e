"""What a person is shown: tables, plots, and what a command says of the exception that ended it."""
