"""What became of the trial's run: attempt 1, which was told of its limit, and attempt 2, which was queued behind it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from try_here import delays
from try_jobs import Queued
from try_report import Result, fine, judged, untried, wrong

from orchestrator.attempt.commands import run
from orchestrator.attempt_files import read_record
from orchestrator.core.script import comment, dependency_jobs
from orchestrator.folders import attempt_dir
from orchestrator.model import RunSpec
from orchestrator.records import EndRecord, StartRecord
from orchestrator.slurm.fields import gres_counts

GAP_S = 5.0
LISTENER = """\
#!/bin/bash
# Written by ops/try-on-your-cluster: one listener on each node; where no step can be made, at least here.
if [ {nodes} -gt 1 ]; then
    srun --overlap -N{nodes} -n{nodes} --ntasks-per-node=1 --mem=0 --mpi=none --cpu-bind=none --input=none {listener}
    code=$?
    if [ $code -eq 0 ] || [ $code -eq 75 ]; then exit $code; fi
fi
exec {listener}
"""


@dataclass(frozen=True)
class Attempt:
    """What its supervisor and its listeners left."""

    start: StartRecord | None
    end: EndRecord | None
    events: list[dict[str, Any]]
    listeners: list[dict[str, Any]]
    last_words: str


def read_attempt(run_folder: Path, number: int) -> Attempt:
    folder = attempt_dir(run_folder, number)
    end = read_record(folder / "end.json", EndRecord)
    return Attempt(
        start=read_record(folder / "start.json", StartRecord), end=None if end is None or end.provisional else end,
        events=_objects(_lines(folder / "supervisor.jsonl")),
        listeners=_objects(line for path in sorted(folder.glob("listener-*.json")) for line in _lines(path)),
        last_words=next((line for line in reversed(_lines(folder / "out.log")) if line.strip()), "")[:200])


def _objects(lines: Iterable[str]) -> list[dict[str, Any]]:
    """JSON objects, a line each; one that is just being written is left for the next look."""
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


# --- what Slurm made of the submissions ---------------------------------------------------------------------------------

def queued_ahead(successor: Queued) -> Result:
    check = "a successor queued ahead"
    if successor.refused:
        return wrong(check, f"refused, beside two other jobs of this trial: {successor.refused}",
                     "set `successors_ahead: 0` in orch.yaml: the daemon then queues each attempt when the one before has "
                     "ended. (For one run a limit of two jobs is enough.)", needed=False)
    return fine(check, "accepted: afterany, singleton, kill-on-invalid-dep=no, no-requeue")


def kept(spec: RunSpec, first: Queued, successor: Queued, plugins: str) -> list[Result]:
    """Whether submit plugins left alone what orch relies on, read back right after sbatch."""
    attempts = [attempt for attempt in (first, successor) if attempt.job is not None]
    if not attempts:
        return [untried("comment, gres and dependency kept", first.refused or "Slurm does not know the job")]
    suspects = f" (JobSubmitPlugins={plugins})" if plugins not in ("", "(null)") else ""
    results = []
    lost = [a.job.comment for a in attempts if a.job and a.job.comment != comment(spec, a.number, a.submission_id)]
    results.append(judged("comment kept", not lost, f"it became {lost[0]!r}{suspects}" if lost else "as submitted", (
        "after a crash between sbatch and its answer orch finds its job by the comment alone: ask for it to be left alone")))
    if spec.profile.gres:
        wanted = gres_counts(spec.profile.gres)
        less = [a.job.gres for a in attempts if a.job and any(
            gres_counts(a.job.gres).get(name, 0) < count for name, count in wanted.items())]
        found = f"{spec.profile.gres} became {less[0] or 'nothing'}{suspects}" if less else spec.profile.gres
        results.append(judged("gres kept", not less, found, "orch cancels such a job and holds the run: name the partition "
                              "or account that has GPUs"))
    if successor.job is not None and successor.job.state == "PENDING":
        waits = set(successor.behind) <= dependency_jobs(successor.job.dependency)
        results.append(judged("dependency kept", waits, successor.job.dependency or f"none{suspects}",
                              "two attempts of a run would start beside each other; the second stands down: "
                              "set `successors_ahead: 0`"))
    return [*results, _requeue(first)]


def _requeue(first: Queued) -> Result:
    _, output, _ = run(["scontrol", "-o", "show", "job", first.job.job_id if first.job else ""], 10.0)
    fields = dict(word.split("=", 1) for word in output.split() if "=" in word)
    if "Requeue" not in fields:
        return untried("no-requeue kept", "Slurm does not say", needed=False)
    return judged("no-requeue kept", fields["Requeue"] == "0", f"Requeue={fields['Requeue']}", needed=False, means=(
        "the site requeues jobs itself: orch takes such a start for a new attempt, two minutes later than a successor"))


# --- the notice ---------------------------------------------------------------------------------------------------------

def slurms_notice(attempt: Attempt, why: str) -> Result:
    check = "--signal=B:TERM"
    if attempt.start is None or attempt.start.deadline is None:
        return untried(check, why or attempt.last_words or "attempt 1 left no start record", needed=False)
    heard = [event["t"] for event in attempt.events if event["event"] == "heard" and "by" not in event]
    if not heard and not any(event["event"] == "notice" for event in attempt.events):
        return untried(check, why or attempt.last_words or "the attempt was not there long enough", needed=False)
    if not heard:
        return wrong(check, "the batch process did not hear it; orch's own timer gave the notice", needed=False,
                     means="none for limits, since orch has its timer; a site's own early signals are not heard")
    return fine(check, f"the batch process heard it {attempt.start.deadline - heard[0]:.0f} s before the limit")


def notice_on_nodes(attempt: Attempt, nodes: int, why: str) -> Result:
    check = "the notice of a limit on every node"
    told = [listener for listener in attempt.listeners if listener["heard_at"] is not None]
    ended = f"the attempt ended: {attempt.last_words}" if attempt.end is not None else why or attempt.last_words
    if not attempt.listeners:
        return untried(check, ended or "attempt 1 did not start")
    step = next((event["error"] for event in attempt.events if event["event"] == "notice_step" and "error" in event), "")
    if len(told) < nodes:
        return wrong(check, f"{len(told)} of {nodes} nodes" + (f"; {step or ended}" if step or ended else ""), (
            "trainers on other nodes would not save before the limit: give the training one node, or ask for "
            "`srun --overlap` inside jobs"))
    left = [listener["left_s"] for listener in told if listener["left_s"] is not None]
    times = [listener["heard_at"] for listener in told]
    found = f"{len(told)} of {nodes} nodes, {min(left):.0f} s before the limit" if left else f"{len(told)} of {nodes} nodes"
    return fine(check, found + (f", the last {max(times) - min(times):.1f} s after the first" if nodes > 1 else ""))


# --- the successor ------------------------------------------------------------------------------------------------------

def gap(first: Attempt, second: Attempt | None, run_folder: Path, config: Mapping[str, str], why: str) -> Result:
    """``second`` None: no successor was accepted."""
    check = "from the end to the successor's start"
    if second is None:
        return untried(check, "no successor was accepted", needed=False)
    if first.end is None or second.start is None:
        stood = next(iter(attempt_dir(run_folder, 2).glob("stood-down-*.json")), None)
        if first.end is not None and first.end.notice == "limit" and stood is not None:
            reason = json.loads(stood.read_text())["reason"]
            return wrong(check, f"it stood down: {reason}", "the daemon would queue the next attempt, or hold the run")
        return untried(check, why or first.last_words or second.last_words or "attempt 2 left no start record")
    gap_s = second.start.started_at - first.end.ended_at
    why_late = delays(config)
    return judged(check, gap_s < GAP_S, f"{gap_s:.1f} s, and it went on", needed=False, means=(
        "the GPU is idle for so long after each attempt" + (f"; what may delay it: {why_late}" if why_late else "")))


def environment(attempts: list[Attempt], why: str) -> Result:
    check = "environment of the attempts"
    notes = [note for attempt in attempts for note in attempt.listeners]
    if not all(attempt.listeners for attempt in attempts):
        return untried(check, why or "not all attempts have run")
    if any(note["leaked"] for note in notes):
        return wrong(check, "a variable that was not recorded reached a job", "secrets of the submitting shell would reach "
                     "jobs: look for what hands it on (a prolog, SPANK)")
    same = all(note["as_recorded"] for note in notes)
    found = "as recorded, and nothing else of this shell" if same else "PATH or a recorded variable differs"
    return judged(check, same, found, "a prolog changes it on the node: set what matters in job.sh", needed=False)
