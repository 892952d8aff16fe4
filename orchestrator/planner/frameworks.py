"""A checkpoint interval as the settings of training frameworks, and what their own defaults would cost instead.

Option names and defaults as their documentation and sources had them in 2026-10.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.planner.interval import excess_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """What can be set, and what holds when nothing is."""

    name: str
    settings: Callable[[int, bool], tuple[str, ...]]  # of an interval in steps, asynchronous or not
    default_steps: int | None          # None: no interval by default, see ``default``
    default: str
    default_async: str
    note: str


def _megatron_lm(steps: int, asynchronous: bool) -> tuple[str, ...]:
    base = ("--save CHECKPOINT_DIR", f"--save-interval {steps}", "--ckpt-format torch_dist", "--exit-signal-handler",
            "--exit-duration-in-mins $ORCH_STOP_AFTER_MIN")
    return (*base, "--async-save", "--use-persistent-ckpt-worker") if asynchronous else base


def _megatron_bridge(steps: int, asynchronous: bool) -> tuple[str, ...]:
    base = ("checkpoint.save=CHECKPOINT_DIR", f"checkpoint.save_interval={steps}", "checkpoint.ckpt_format=torch_dist",
            "train.exit_signal_handler=true", "train.exit_duration_in_mins=$ORCH_STOP_AFTER_MIN")
    return (*base, "checkpoint.async_save=true") if asynchronous else base


def _torchtitan(steps: int, asynchronous: bool) -> tuple[str, ...]:
    base = ("--checkpoint.enable", f"--checkpoint.interval {steps}")
    return (*base, "--checkpoint.async_mode async") if asynchronous else base


def _hf_trainer(steps: int, asynchronous: bool) -> tuple[str, ...]:
    return ('save_strategy="steps"', f"save_steps={steps}", "save_total_limit=3")


def _lightning(steps: int, asynchronous: bool) -> tuple[str, ...]:
    base = (f"callbacks=[ModelCheckpoint(every_n_train_steps={steps}, save_top_k=1)]",)
    return (*base, "plugins=[AsyncCheckpointIO()]") if asynchronous else base


FRAMEWORKS = (
    Framework(
        name="Megatron-LM", settings=_megatron_lm, default_steps=None,
        default="none: without --save-interval nothing is saved", default_async="off",
        note="a save that is due while one is being written begins all the same, so writes pile up; --async-save without "
             "--use-persistent-ckpt-worker is switched off with a warning"),
    Framework(
        name="Megatron Bridge", settings=_megatron_bridge, default_steps=None,
        default="none: without save_interval nothing is saved", default_async="off",
        note="asynchronous saves need the torch_dist format; writes pile up as in Megatron-LM"),
    Framework(
        name="TorchTitan", settings=_torchtitan, default_steps=500,
        default="500 steps, once checkpoint.enable is set (it is not)", default_async="off",
        note="a save that is due while one is being written waits for it, and training stands still"),
    Framework(
        name="HF Trainer", settings=_hf_trainer, default_steps=500, default="500 steps", default_async="not available",
        note="saves are synchronous: plan with the whole save as the stall"),
    Framework(
        name="Lightning", settings=_lightning, default_steps=None, default="at the end of every epoch", default_async="off",
        note="every_n_train_steps counts optimizer steps; train_time_interval=timedelta(...) takes a time instead"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One framework's settings for this interval, and what its default costs."""

    framework: Framework
    settings: tuple[str, ...]
    default_interval_s: float | None
    excess: float | None               # of the waste that the interval decides, at the default; None: there is none


def steps_of(interval_s: float, step_s: float) -> int:
    """Whole steps, at least one; the optimum is so flat that rounding is free."""
    return max(1, round(interval_s / step_s))


def settings_for(interval_s: float, step_s: float, *, asynchronous: bool) -> list[Setting]:
    """Of every framework. That interval is taken for the optimum, so a default off by a factor r costs (r + 1/r)/2 - 1."""
    steps = steps_of(interval_s, step_s)
    found: list[Setting] = []
    for framework in FRAMEWORKS:
        default_s = framework.default_steps * step_s if framework.default_steps is not None else None
        found.append(Setting(
            framework=framework, settings=framework.settings(steps, asynchronous), default_interval_s=default_s,
            excess=excess_of(default_s / interval_s) if default_s is not None else None))
    return found


def tolerable_s(interval_s: float, excess: float) -> tuple[float, float]:
    """The intervals that cost at most this much more than the optimum: T (1 + e -+ sqrt((1 + e)^2 - 1))."""
    wide = 1 + excess
    half = math.sqrt(wide * wide - 1)
    return interval_s * (wide - half), interval_s * (wide + half)
