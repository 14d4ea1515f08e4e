"""``python -m thinwire``: the command line."""

from .cli import main

main()
