"""``orch plan run`` and ``orch reliability`` on runs that lie on the disk, without a Slurm."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from conftest import Orch

from orchestrator.model import Profile, RunSpec

H = 3600.0
Story = Sequence[tuple[float, str, str]]  # hours, ending, nodes


def make_run(repository: Path, tag: str, story: Story, *, nodes: int = 1, saves: Sequence[dict[str, Any]] = ()) -> Path:
    """A run whose attempts followed each other without a gap and ended a moment ago."""
    spec = RunSpec(tag=tag, repository=str(repository), python=sys.executable, script_sha256="0",
                   profile=Profile(name="p", nodes=nodes, time_s=24 * H, lead_s=60), slurm=os.environ["SLURM_CONF"])
    at = time.time() - sum(hours for hours, _, _ in story) * H
    lines: list[dict[str, Any]] = [{"event": "submit", "t": at, "schema": 1, "spec": asdict(spec)}]
    for number, (hours, ending, names) in enumerate(story, 1):
        common = {"t": at, "number": number, "submission_id": f"s{number}"}
        lines += [{"event": "queueing", **common}, {"event": "queued", **common, "job_id": str(number)},
                  {"event": "started", **common, "job_id": str(number), "restart_count": 0, "epoch": number, "host": names,
                   "started_at": at}]
        at += hours * H
        lines += [{"event": "ended", "t": at, "epoch": number, "number": number, "ended_at": at, "ending": ending}]
    lines.append({"event": "held", "t": at, "by": "user", "reason": "for the test"})
    folder = repository / "runs" / tag
    attempt = folder / "attempts" / f"{len(story):04d}"
    attempt.mkdir(parents=True)
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (attempt / "trainer.jsonl").write_text("".join(json.dumps({"t": at, **line}) + "\n" for line in saves))
    return folder


SAVES = [*({"event": "saved", "step": n, "stall_s": 4.0, "write_s": 60.0, "durable_s": 64.0, "size_bytes": 10**11}
           for n in range(5)), {"event": "progress", "step": 9, "steps_per_s": 2.0}]


def test_a_run_that_has_measured_all(orch: Orch, repository: Path) -> None:
    story = [(50, "crash", "n1"), (50, "node-failure", "n2"), (20, "limit-saved", "n1")]
    make_run(repository, "a", story, nodes=4, saves=SAVES)
    found = orch("plan", "run", "a", "--json").json
    inputs = {name: (value["value"], value["source"]) for name, value in found["inputs"].items()}
    assert inputs["stall_s"] == (4.0, "measured") and inputs["write_s"] == (60.0, "measured")
    assert inputs["step_s"] == (0.5, "measured") and inputs["size_bytes"] == (10**11, "measured")
    assert inputs["nodes"] == (4, "given") and inputs["limit_s"] == (24 * H, "given")
    assert inputs["restart_s"] == (900.0, "assumed") and inputs["mtbi_s"][1] == "measured"
    mtbi_s = inputs["mtbi_s"][0]
    assert found["interval"]["interval_s"] == pytest.approx((2 * 4 * mtbi_s) ** 0.5)
    assert found["interval"]["interval_steps"] == round(found["interval"]["interval_s"] / 0.5)
    assert found["storage"]["required_throughput_bytes_per_s"] == pytest.approx(10**11 / 60)
    assert found["storage"]["cheapest"] in found["storage"]["choices"]
    assert found["replication"]["allowed_factors"] == [1, 2, 4] and found["levels"]["cheapest"]["capacity_gib"] > 0
    assert found["framework"]["frameworks"][0]["framework"] == "Megatron-LM" and found["tradeoff"] is None
    words = orch("plan", "run", "a").out
    for piece in ("measured", "given", "assumed", "median of 5 saves", "with a prior of 1.32 interruptions' weight: 1 own in",
                  "1 of the platform in 480 node-hours", "93.1G to 93.1G", "warning: the lead of 1m"):
        assert piece in words, words


def test_every_command_names_the_same_m(orch: Orch, repository: Path) -> None:
    """Node failures under other runs count for this one, their crashes do not."""
    make_run(repository, "other", [(10, "node-failure", f"n{n}") for n in range(1, 9)] + [(10, "crash", "n9")] * 9)
    make_run(repository, "a", [(50, "crash", "n[1-4]"), (20, "limit-saved", "n[1-4]")], nodes=4, saves=SAVES)
    by_run = orch("plan", "run", "a", "--json").json["inputs"]["mtbi_s"]["value"] / H
    status, whole = orch("status", "a", "--json").json["reliability"], orch("reliability", "--json").json
    of_all = next(run for run in whole["runs"] if run["tag"] == "a")
    assert by_run == pytest.approx(of_all["mtbi_h"]) == pytest.approx(status["mtbi_h"], rel=1e-4)
    assert status["mtbi95_h"] == pytest.approx(of_all["mtbi95_h"], rel=1e-4)
    assert status["platform"]["interruptions"] == 8 and status["own"]["interruptions"] == 1
    low, high = of_all["mtbi95_h"]
    m = f"M {by_run:.3g} h (95 %: {low:.3g} h to {high:.3g} h): 1 interruption of its own in"
    for line in (("status", "a"), ("explain", "a", "--interval")):
        assert m in orch(*line).out
    (repository / "runs" / "other" / "journal.jsonl").rename(repository / "gone")
    alone = orch("status", "a", "--json").json["reliability"]
    assert alone["platform"]["interruptions"] == 0 and alone["mtbi_h"] > by_run


def test_what_is_given_goes_before_what_was_measured(orch: Orch, repository: Path) -> None:
    make_run(repository, "a", [(50, "crash", "n1")], saves=SAVES)
    found = orch("plan", "run", "a", "--stall", "9s", "--mtbi", "100h", "--gpu-hourly-usd", "20", "--json").json
    assert found["inputs"]["stall_s"] == {"value": 9.0, "source": "given", "detail": "on the line"}
    assert found["interval"]["interval_s"] == pytest.approx((2 * 9 * 100 * H) ** 0.5)
    assert found["tradeoff"]["optimum"]["total_usd"] > 0 and found["levels"] is None and found["replication"] is None


def test_a_write_that_slows_training_is_part_of_what_a_save_costs(orch: Orch, repository: Path) -> None:
    """As in the T* that the running trainer is told: C + sigma (t - C)."""
    make_run(repository, "a", [(50, "crash", "n1")], saves=[{**line, "background": True, "slowdown": 0.1} for line in SAVES])
    found = orch("plan", "run", "a", "--mtbi", "100h", "--json").json
    assert found["inputs"]["slowdown"]["value"] == pytest.approx(0.1) and found["inputs"]["slowdown"]["source"] == "measured"
    assert found["interval"]["interval_s"] == pytest.approx((2 * (4 + 0.1 * 60) * 100 * H) ** 0.5)
    assert "slower meanwhile" in orch("plan", "run", "a").out


def test_a_run_that_has_measured_nothing(orch: Orch, repository: Path) -> None:
    make_run(repository, "a", [(1, "limit-saved", "n1")])
    found = orch("plan", "run", "a", "--json").json
    assert found["inputs"]["stall_s"]["source"] == "assumed" and found["inputs"]["mtbi_s"]["source"] == "assumed"
    assert "100 % of the rate is a prior of 1.32 interruptions' weight" in found["inputs"]["mtbi_s"]["detail"]
    assert found["storage"] is None and found["framework"] is None and found["interval"]["interval_s"] > 0
    assert "--size" in orch("plan", "run", "a").out
    assert orch("plan", "run", "a", "--size", "100G", "--json").json["size"]["size_bytes"] == 100 * 2**30


def test_writes_that_are_longer_than_the_optimum_bind(orch: Orch, repository: Path) -> None:
    slow = [{"event": "saved", "step": 1, "stall_s": 1.0, "write_s": 7200.0, "durable_s": 7200.0, "size_bytes": 10**12}]
    make_run(repository, "a", [(50, "crash", "n1")], saves=slow)
    found = orch("plan", "run", "a", "--mtbi", "100h", "--json").json
    assert found["interval"]["interval_s"] == pytest.approx(7200) and not found["interval"]["overlap"]
    words = orch("plan", "run", "a", "--mtbi", "100h").out
    assert "checkpoint every 2h   C + write, so that no write meets the next" in words and "as given" not in words


def test_an_interval_in_force_that_is_shorter_than_the_write_is_said(orch: Orch, repository: Path) -> None:
    folder = make_run(repository, "a", [(50, "crash", "n1")], saves=SAVES)
    with (folder / "journal.jsonl").open("a") as journal:
        journal.write(json.dumps({"event": "interval", "t": time.time(), "interval_s": 30.0}) + "\n")
    found = orch("plan", "run", "a").out
    assert "in force: every 30s, while the save before is still being written; `orch explain a --interval`" in found
    assert orch("plan", "run", "a", "--json").json["in_force"]["overlap"] is True


def test_no_such_run(orch: Orch, repository: Path) -> None:
    answer = orch("plan", "run", "x")
    assert answer.code == 3 and 'no run "x"' in answer.err


# --- orch reliability -----------------------------------------------------------------------------------------------------

GOOD, BAD = "n1", "n7"


def several(repository: Path) -> None:
    """Node n7 breaks what runs on it; n1 to n3 do not."""
    make_run(repository, "small", [(40, "limit-saved", "n1"), (40, "limit-saved", "n2"), (40, "limit-saved", "n3"),
                                   (60, "out-of-memory", "n1"), *[(2, "node-failure", "n7")] * 6])
    make_run(repository, "wide", [(20, "limit-saved", "n[1-3]"), (30, "crash", "n[1-3]"), (1, "setup-failure", "n[1-3]")],
             nodes=3)


def test_the_record_of_all_runs(orch: Orch, repository: Path) -> None:
    several(repository)
    found = orch("reliability", "--json").json
    assert found["attempts"] == 12 and found["interruptions"] == 8
    assert found["exposure_h"] == pytest.approx(242) and found["exposure_node_h"] == pytest.approx(192 + 150)
    assert found["endings"]["node-failure"] == 6 and "setup-failure" not in found["endings"]
    assert found["platform"] == {"interruptions": 6, "node_hours": pytest.approx(342)}
    assert [(n["nodes"], n["interruptions"]) for n in found["by_nodes"]] == [(1, 7), (3, 1)]
    runs = {r["tag"]: r for r in found["runs"]}
    assert (runs["small"]["interruptions_own"], runs["wide"]["interruptions_own"]) == (1, 1)
    assert runs["wide"]["mtbi_h"] < runs["small"]["mtbi_h"]  # three times the platform's rate
    low, high = runs["small"]["mtbi95_h"]
    assert low < runs["small"]["mtbi_h"] < high
    assert [n["node"] for n in found["nodes"] if n["worse"]] == [BAD]


def test_the_record_as_text_and_as_a_page(orch: Orch, repository: Path) -> None:
    several(repository)
    answer = orch("reliability", "-o", "reliability.html")
    assert answer.code == 0, answer
    for piece in ("8 interruptions in 242 h", "node-failure", "worse than chance", "change of the rate", "Weibull"):
        assert piece in answer.out, answer.out
    page = (repository / "reliability.html").read_text()
    assert page.count("<svg") == 2 and "<script" not in page and "worse than chance" in page
    assert "nan" not in answer.out.replace("finance", "") and "inf" not in answer.out


def test_one_interruption_is_one(orch: Orch, repository: Path) -> None:
    make_run(repository, "a", [(5, "crash", "n1")])
    assert orch("reliability", "-o", "one.html").out.startswith("1 interruption in 5 h")
    assert "interruption in 1 attempt<" in (repository / "one.html").read_text()


def test_nothing_has_run(orch: Orch, repository: Path) -> None:
    assert orch("reliability").out == "nothing has run yet\n"
    assert orch("reliability", "--json").json == {"attempts": 0, "exposure_h": 0.0, "interruptions": 0}
