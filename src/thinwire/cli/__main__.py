"""``python -m thinwire.cli`` is ``thinwire``, as ``torchrun -m thinwire.cli`` needs it."""

from . import main

if __name__ == "__main__":
    main()
