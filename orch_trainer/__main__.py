"""`python -m orch_trainer should-save` and its kin, as with `orch`, where only the library is there."""

import sys

from orch_trainer.shell import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
