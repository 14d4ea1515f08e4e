"""An app that learns nothing, with what Flower brings alone."""
