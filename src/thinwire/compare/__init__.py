"""Several methods on one problem: a study is a folder, and the table and plots are made from what is in it."""
