"""What the commands of ``orch plan`` take, numbers with units, each refused in one line; and how they answer.

Nothing here computes. Bounds keep every formula far from overflow, so that nothing can print nan or inf.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orchestrator.errors import UserError
from orchestrator.units import format_duration, parse_duration_s

if TYPE_CHECKING:
    from orchestrator.planner.size import Size

F = TypeVar("F", bound=Callable[..., Any])

SECONDS_AT_MOST = 1e11                 # three thousand years
PARAMS_AT_MOST = 1e14
NODES_AT_MOST = 1_000_000


class _Quantity(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no such arguments
    """A text that becomes a number, or one line that says what to write instead."""

    def parse(self, text: str) -> float:
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not isinstance(value, str):
            return float(value)
        try:
            return self.parse(value.strip())
        except ValueError as error:
            raise UserError(f"{param.opts[0] if param else 'value'}: {error}") from None


class Duration(_Quantity):
    """Seconds from ``5s``, ``20m``, ``1h30m``."""

    name = "duration"

    def parse(self, text: str) -> float:
        if text.startswith("-"):
            positive = text.lstrip("-")
            raise ValueError(f'"{text}" is negative (write {positive if re.search("[a-z]", positive) else "for example 5s"})')
        seconds = parse_duration_s(text)
        if seconds <= 0:
            raise ValueError(f'"{text}" is no time at all (write for example 5s or 20m)')
        if not 1e-6 <= seconds <= SECONDS_AT_MOST:
            raise ValueError(f'"{text}" is not between a microsecond and 3,000 years (write for example 5s or 200h)')
        return seconds


_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class Number(_Quantity):
    """A number above 0, ``124.45e9`` or ``124.45B``, up to a bound; or 0 where none is an answer."""

    name = "number"

    def __init__(self, what: str, at_most: float, example: str, *, or_none: bool = False) -> None:
        self.what, self.at_most, self.example, self.or_none = what, at_most, example, or_none

    def parse(self, text: str) -> float:
        match = re.fullmatch(r"([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([KMBTkmbt]?)", text.replace(",", "").replace("_", ""))
        if match is None:
            raise ValueError(f'"{text}" is not a number (write {self.example})')
        value = float(match.group(1)) * _SUFFIXES[match.group(2).upper()]
        if value < 0 or (value == 0 and not self.or_none):
            raise ValueError(f"{text} is not more than nothing (write {self.example})")
        if value > self.at_most or not math.isfinite(value):
            raise ValueError(f"{text} is more {self.what} than there can be, at most {self.at_most:g} (write {self.example})")
        return value


class Count(_Quantity):
    """A whole number from a least to a most."""

    name = "count"

    def __init__(self, what: str, at_least: int, at_most: int, why: str = "") -> None:
        self.what, self.at_least, self.at_most, self.why = what, at_least, at_most, why

    def parse(self, text: str) -> float:
        if not re.fullmatch(r"[-+]?\d+", text):
            raise ValueError(f'"{text}" is not a whole number of {self.what} (write for example {self.at_least + 2})')
        value = int(text) if len(text) < 20 else self.at_most + 1
        if value < self.at_least:
            raise ValueError(f"{text} is too few{self.why} (write {self.at_least} or more)")
        if value > self.at_most:
            raise ValueError(f"{text} is more {self.what} than there can be (write {self.at_most} or less)")
        return value

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return int(super().convert(value, param, ctx))


class Share(_Quantity):
    """``0.05`` or ``5%``, above 0 and below 1 (or up to it)."""

    name = "share"

    def __init__(self, *, whole: bool = False) -> None:
        self.whole = whole

    def parse(self, text: str) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(%?)", text)
        if match is None:
            raise ValueError(f'"{text}" is not a share (write 0.05 or 5%)')
        value = float(match.group(1)) / (100 if match.group(2) else 1)
        if not 0 < value <= 1 or (value == 1 and not self.whole):
            raise ValueError(f"{text} is not above 0 and {'at most' if self.whole else 'below'} 100 % (write 0.05 or 5%)")
        return value


class Range(_Quantity):
    """Two durations, ``30s:20m``."""

    name = "range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse_range(value)
        except ValueError as error:
            raise UserError(f"{param.opts[0] if param else 'value'}: {error}") from None

    def parse_range(self, text: str) -> tuple[float, float]:
        low, colon, high = text.partition(":")
        if not colon:
            raise ValueError(f'"{text}" is not a range (write 30s:20m)')
        ends = Duration().parse(low.strip()), Duration().parse(high.strip())
        if ends[0] >= ends[1]:
            raise ValueError(f'"{text}" does not rise (write 30s:20m, the shorter one first)')
        return ends


DURATION = Duration()
RANGE = Range()
PARAMS = Number("parameters", PARAMS_AT_MOST, "124.45e9 or 7B")
FROZEN_PARAMS = Number("parameters", PARAMS_AT_MOST, "1e9, or 0 for none", or_none=True)
NODES = Count("nodes", 1, NODES_AT_MOST)
KEEP = Count("generations", 2, 100_000, ": the newest may be half-written when the older one goes")

json_option = click.option("--json", "as_json", is_flag=True, help="Print an object.")
catalog_option = click.option("--catalog", type=click.Path(path_type=Path), metavar="FILE",
                              help="Your own storage catalogue, in place of FSx for Lustre's.")
keep_option = click.option("--keep", type=KEEP, default=4, show_default=True, metavar="N",
                           help="Generations that stay, the one being written among them.")
nodes_option = click.option("--nodes", type=NODES, required=True, metavar="N", help="Nodes of the training.")
mtbi_option = click.option("--mtbi", "mtbi_s", type=DURATION, required=True, metavar="200h",
                           help="M, the mean time between unplanned interruptions of this training.")
mode_option = click.option("--mode", type=click.Choice(["async", "sync"]), default="async", show_default=True,
                           help="Whether training goes on while a save is written.")


def all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in this order in the help."""
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function
    return decorate


FORMATS = ["fp32", "bf16", "fp16", "fp8", "int8", "none"]
size_options = all_of(
    click.option("--params", type=PARAMS, required=True, metavar="N", help="Parameters, as 124.45e9 or 7B."),
    click.option("--bytes-per-param", type=Number("bytes", 1000, "14"), metavar="B",
                 help="Bytes that a checkpoint holds of each; without it they follow from the formats below."),
    click.option("--weights", type=click.Choice(FORMATS[:-1]), help="Format of the weights.", show_default="bf16"),
    click.option("--master", type=click.Choice(FORMATS), help="Format of a second, exact copy of them.", show_default="fp32"),
    click.option("--moments", type=click.Choice(FORMATS), help="Format of Adam's two moments.", show_default="fp32"),
    click.option("--frozen-params", type=FROZEN_PARAMS, metavar="N",
                 help="Of them, those not trained: weights alone are kept."))


def size_of(
    params: float, bytes_per_param: float | None, weights: str | None, master: str | None, moments: str | None,
    frozen_params: float | None, nodes: int,
) -> Size:
    """The size that those options mean. Raises UserError for ones that contradict each other."""
    from orchestrator.planner import size
    from orchestrator.views.plan import people_count

    frozen = frozen_params or 0.0
    if frozen > params:
        raise UserError(f"--frozen-params: {people_count(frozen)} are more than --params, {people_count(params)}",
                        hint="frozen ones are a part of them")
    if bytes_per_param is None:
        layout = size.layout(weights=weights or "bf16", master=master or "fp32", moments=moments or "fp32")
        return size.size_of_layout(params, layout, nodes=nodes, frozen_params=frozen)
    if master is not None or moments is not None or (weights is not None and not frozen):
        raise UserError("--bytes-per-param: the formats say that already",
                        hint="write either it or --weights, --master and --moments")
    return size.size_of_bytes_per_param(params, bytes_per_param, nodes=nodes, frozen_params=frozen,
                                        frozen_bytes=size.BYTES_OF[weights or "bf16"])


def require_m_above_c(mtbi_s: float, stall_s: float, stall_option: str = "--stall") -> None:
    from orchestrator.views.plan import hours

    if mtbi_s < stall_s:
        raise UserError(f"--mtbi: {hours(mtbi_s)} is below {stall_option} {format_duration(stall_s)}, so hardly "
                        "any save would ever be complete",
                        hint="write M of the whole training, for example 200h; `orch plan mtbi` rescales a published one")


def require_write_within(interval_s: float, write_s: float, remedy: str, option: str = "--write") -> None:
    if write_s > interval_s:
        raise UserError(f"{option}: {format_duration(write_s)} is longer than the interval of {format_duration(interval_s)}, "
                        "so writes would pile up", hint=remedy)


def write_of(mode: str, stall_s: float | None, write_s: float | None) -> tuple[float | None, float]:
    """(stall of an asynchronous save or None, time for the write). A synchronous save stands still for as long as it
    writes."""
    if mode == "async":
        if write_s is None:
            raise UserError("--write is missing", hint="how long a save may take to be written, for example --write 5m")
        return stall_s if stall_s is not None else 5.0, write_s
    both = {value for value in (stall_s, write_s) if value is not None}
    if len(both) != 1:
        problem = "--write is missing" if not both else "--stall: a synchronous save stands still for as long as it writes"
        raise UserError(problem, hint="write --mode sync --write 60s, or --mode async with both")
    return None, both.pop()


def write_page(output: Path, text: str) -> None:
    """Replace the file. Raises UserError where its folder is missing, OSError for a disk that refuses."""
    from orchestrator.folders import replace_file

    path = output.absolute()
    if not path.parent.is_dir():
        raise UserError(f"-o: there is no folder {path.parent}", hint="make it first, or write the page elsewhere")
    replace_file(path, text)


def answer(data: dict[str, Any], lines: Iterable[str], as_json: bool) -> None:
    """Print the one or the other. A number that is not finite is our mistake and never printed."""
    text = json.dumps(data, allow_nan=False)
    click.echo(text if as_json else "\n".join(lines))
