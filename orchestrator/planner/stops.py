"""Planned stops: a time limit or an announced preemption with the state saved in time. They lose no work, so they do not
enter M and do not move T*; each costs its final save, which nothing hides, and its restart (docs/planning.md 4).

A launch with the limit L trains for L - C_p at most and has its state durable at L; the next launch has a limit anew.
"""

from __future__ import annotations

import math

# Between the end of the final save and the kill: the processes end, and their exit codes arrive.
EXIT_MARGIN_S = 10.0


def final_save_s(stall_s: float, write_s: float) -> float:
    """C_p: a save before exit must be durable before the exit, so that even an asynchronous one is waited for: C + S/W."""
    return stall_s + write_s


def lead_needed_s(*, step_s: float, stall_s: float, write_s: float, margin_s: float = EXIT_MARGIN_S) -> float:
    """The smallest notice that a final save fits into: the longest training step, C + S/W, and the exit (docs/planning.md
    4)."""
    return step_s + final_save_s(stall_s, write_s) + margin_s


def stops_per_s(running_s: float, mtbi_s: float) -> float:
    """lambda_p, planned stops per running second where every launch trains for at most ``running_s`` = L - C_p:
    1 / [ M (exp((L - C_p)/M) - 1) ], about 1/L (docs/planning.md 4)."""
    return 1 / (mtbi_s * math.expm1(min(running_s / mtbi_s, 700.0)))


def planned_waste(*, limit_s: float, mtbi_s: float, final_save_s: float, restart_s: float) -> float:
    """lambda_p (C_p + R_p), the first-order share that planned stops cost."""
    return stops_per_s(limit_s - final_save_s, mtbi_s) * (final_save_s + restart_s)


def frequent_stops_waste(
    interval_s: float, *, stall_s: float, mtbi_s: float, durable_s: float, restart_s: float, limit_s: float,
    final_save_s: float,
) -> float:
    """The ratio form for stops that come often (docs/planning.md 4):
    1 - [1 - C/T - lambda_u (T/2 + t)] / [1 + lambda_u R_u + lambda_p (C_p + R_p)]."""
    useful = 1 - stall_s / interval_s - (interval_s / 2 + durable_s) / mtbi_s
    wall = 1 + restart_s / mtbi_s + planned_waste(
        limit_s=limit_s, mtbi_s=mtbi_s, final_save_s=final_save_s, restart_s=restart_s)
    return 1 - useful / wall


def exact_waste_with_limit(
    interval_s: float, *, stall_s: float, mtbi_s: float, write_s: float, restart_s: float, limit_s: float, final_save_s:
    float,
) -> float:
    """The exact waste of launches that end after l = L - C_p seconds of running with a save, or before by an exponential
    interruption.

    Ours: a launch that is interrupted at Y < l keeps the saves with nT + t_a <= Y, one that reaches l keeps all of its
    training. With N = floor((l - t_a) / T):

        E[training kept] = (T - C) sum_{n=1..N} [exp(-lambda (nT + t_a)) - exp(-lambda l)] + exp(-lambda l) U
        E[wall] = (1 - exp(-lambda l)) (M + R) + exp(-lambda l) (C_p + R),   U = l less the stalls in it

    Interruptions strike neither during the restart nor during the final save, which begins at l.
    """
    assert limit_s > final_save_s
    running_s = limit_s - final_save_s
    reached = math.exp(-running_s / mtbi_s)
    saves = max(0, math.floor((running_s - write_s) / interval_s))
    step = math.exp(-interval_s / mtbi_s)
    durable = math.exp(-write_s / mtbi_s) * step * _geometric(step, saves) - saves * reached
    whole, rest_s = divmod(running_s, interval_s)
    trained_s = whole * (interval_s - stall_s) + min(rest_s, interval_s - stall_s)
    kept_s = (interval_s - stall_s) * durable + reached * trained_s
    wall_s = (1 - reached) * (mtbi_s + restart_s) + reached * (final_save_s + restart_s)
    return 1 - kept_s / wall_s


def _geometric(factor: float, terms: int) -> float:
    """1 + q + ... + q^(n-1)."""
    if factor == 1:
        return float(terms)
    return math.expm1(terms * math.log(factor)) / (factor - 1) if factor > 0 else float(terms > 0)
