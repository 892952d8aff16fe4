"""The table of ops/matrix: a column for a version of Slurm, a row for a file of tests, from pytest's junit files.

    python3 ops/matrix_table.py VERSION.xml ...

Exit code 1 when something failed or nothing ran. Standard library only.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

Cell = Counter[str]


def read(path: Path) -> dict[str, Cell]:
    """Outcomes and seconds for each file of tests."""
    cells: dict[str, Cell] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        cell = cells.setdefault(str(case.get("classname")).removeprefix("tests."), Counter())
        outcome = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        cell["failed" if outcome in ("failure", "error") else outcome] += 1
        cell["ms"] += round(float(case.get("time") or 0) * 1000)
    return cells


def words(cell: Cell) -> str:
    counts = [f"{cell[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped") if cell[outcome]]
    return f"{', '.join(counts)} in {cell['ms'] / 1000:.0f} s" if counts else "-"


def main() -> int:
    columns = {path.stem: read(path) for path in map(Path, sys.argv[1:])}
    rows = sorted({row for cells in columns.values() for row in cells})
    total = {name: sum(cells.values(), Counter()) for name, cells in columns.items()}
    table = [["", *columns], *([row, *(words(cells.get(row, Counter())) for cells in columns.values())] for row in rows),
             ["all", *map(words, total.values())]]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 1 if any(cell["failed"] or not cell["passed"] for cell in total.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
