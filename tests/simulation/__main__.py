"""``python -m simulation``: see ``simulation.run``."""

import sys

from simulation.run import main

if __name__ == "__main__":
    sys.exit(main())
