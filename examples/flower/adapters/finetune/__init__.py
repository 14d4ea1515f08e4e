"""An app that fine-tunes adapters: copy it, and put your own model and texts into task.py."""
