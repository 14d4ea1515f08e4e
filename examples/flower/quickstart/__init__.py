"""An app for a Flower deployment: copy it, and put your own model and data into task.py."""
