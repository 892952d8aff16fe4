"""The console script. What a shell trainer calls after every step goes straight to the library: nothing else is imported."""

from __future__ import annotations

import sys
from typing import NoReturn

OF_THE_LIBRARY = frozenset({"should-stop", "should-save", "notify-save"})


def main() -> NoReturn:
    words = sys.argv[1:]
    if words and words[0] in OF_THE_LIBRARY and not {"-h", "--help"} & set(words):
        from orch_trainer.shell import main as shell
        sys.exit(shell(words))
    from orchestrator.cli.main import main as whole
    whole()
