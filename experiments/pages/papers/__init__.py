"""The claims of each paper, a file a paper: what two rows of its trainings are to show, by the paper and here."""
