"""``orch plan``: the keys that programs rely on, published figures, mistakes in one line, never nan or inf."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Orch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

H = 3600.0
MODEL = ("--params", "124.45e9", "--bytes-per-param", "14", "--nodes", "32")
CHOICE = {"class", "efa", "capacity_gib", "baseline_bytes_per_s", "monthly_usd", "set_by", "waste", "restart_s",
          "client_limited"}
ROW = {"stall_s", "write_s", "stopped_gpu_hours", "stopped_usd", "storage_usd", "lost_work_usd", "total_usd"}


def test_interval(orch: Orch) -> None:
    found = orch("plan", "interval", "--stall", "5s", "--mtbi", "200h", "--write", "5m", "--restart", "15m", "--json").json
    assert set(found) == {"interval_s", "interval_steps", "interval_daly_s", "waste", "waste_exact", "waste_parts",
                          "lost_work_mean_s", "lost_work_max_s", "overlap", "lead_needed_s", "warnings"}
    assert set(found["waste_parts"]) == {"stall", "rework", "not_yet_durable", "restart", "planned"}
    assert found["interval_s"] == pytest.approx(2683.28, abs=0.01)
    assert found["interval_daly_s"] == pytest.approx(2684.95, abs=0.01)
    assert 100 * found["waste"] == pytest.approx(0.54004, abs=1e-5)
    assert 100 * found["waste_exact"] == pytest.approx(0.5380, abs=1e-4)
    assert found["lost_work_max_s"] == pytest.approx(2988, abs=0.5) and found["lead_needed_s"] == 315
    assert found["interval_steps"] is None and found["overlap"] is False and found["warnings"] == []
    assert sum(found["waste_parts"].values()) == pytest.approx(found["waste"])
    steps = orch("plan", "interval", "--stall", "5s", "--mtbi", "200h", "--step-time", "1.2s", "--json").json
    assert steps["interval_steps"] == 2236


def test_interval_with_a_limit_a_shape_and_today(orch: Orch) -> None:
    found = orch("plan", "interval", "--stall", "5s", "--mtbi", "200h", "--write", "5m", "--limit", "24h", "--lead", "6m",
                 "--weibull-shape", "0.7", "--json").json
    assert 100 * found["waste_exact"] == pytest.approx(1.829, abs=2e-3) and found["waste_parts"]["planned"] > 0.01
    assert found["weibull"]["interruptions_to_tell"] == 38 and 0 < found["weibull"]["gain"] < 2e-4
    today = orch("plan", "interval", "--stall", "5s", "--mtbi", "200h", "--interval", "10m", "--json").json
    assert today["interval_s"] == 600 and today["waste_exact"] > found["weibull"]["waste_fixed"]
    near = orch("plan", "interval", "--stall", "5s", "--mtbi", "1h", "--write", "188s", "--json").json
    assert near["overlap"] is True and "C + write = 193 s" in near["warnings"][0]


def test_size_and_mtbi(orch: Orch) -> None:
    found = orch("plan", "size", *MODEL, "--json").json
    assert found == {"size_bytes": 1.7423e12, "size_per_node_bytes": 54446875000.0, "bytes_per_param": 14.0,
                     "components": {"trained": 1.7423e12}}
    parts = orch("plan", "size", "--params", "124.45B", "--weights", "bf16", "--master", "fp32", "--moments", "fp32",
                 "--frozen-params", "1e9", "--json").json
    assert set(parts["components"]) == {"weights", "master", "moments", "frozen_weights"}
    record = orch("plan", "mtbi", "--period", "54d", "--interruptions", "466", "--nodes", "2048", "--to-nodes", "32",
                  "--json").json
    assert set(record) == {"mtbi_h", "interval95_h"} and record["mtbi_h"] == pytest.approx(178, abs=0.51)
    low, high = record["interval95_h"]
    assert low < 178 < high < 200
    bare = orch("plan", "mtbi", "--mtbi", "7.9h", "--nodes", "128", "--to-nodes", "32", "--json").json
    assert bare["mtbi_h"] == pytest.approx(31.6) and bare["interval95_h"][0] < 31.6 < bare["interval95_h"][1]
    counted = orch("plan", "mtbi", "--mtbi", "7.9h", "--interruptions", "100", "--nodes", "128", "--to-nodes", "32",
                   "--json").json
    assert counted["interval95_h"][1] < bare["interval95_h"][1]


def test_storage(orch: Orch) -> None:
    found = orch("plan", "storage", *MODEL, "--mode", "async", "--stall", "5s", "--write", "5m", "--mtbi", "200h",
                 "--json").json
    assert set(found) == {"required_throughput_bytes_per_s", "choices", "cheapest"} and len(found["choices"]) == 8
    assert all(set(choice) == CHOICE for choice in found["choices"])
    assert found["cheapest"] == {"class": 500, "efa": False, "capacity_gib": 12000, "baseline_bytes_per_s": 6e9,
                                 "monthly_usd": pytest.approx(4080), "set_by": "throughput", "client_limited": False,
                                 "waste": pytest.approx(0.005387, abs=1e-6), "restart_s": pytest.approx(890.4, abs=0.1)}
    sync = orch("plan", "storage", *MODEL, "--mode", "sync", "--write", "60s", "--mtbi", "200h", "--keep", "4", "--json").json
    assert sync["cheapest"]["efa"] and sync["cheapest"]["capacity_gib"] == 33600 and all(c["efa"] for c in sync["choices"])
    one = orch("plan", "storage", *MODEL, "--write", "5m", "--mtbi", "200h", "--class", "250", "--json").json
    assert {choice["class"] for choice in one["choices"]} == {250}


def test_tradeoff(orch: Orch) -> None:
    found = orch("plan", "tradeoff", *MODEL, "--mtbi", "200h", "--keep", "4", "--mode", "sync", "--gpu-hourly-usd", "142.416",
                 "--gpus-per-price", "8", "--write-range", "30s:20m", "--json").json
    assert set(found) == {"rows", "optimum", "optimum_stop_only", "flat_region"} and all(set(r) == ROW for r in found["rows"])
    by_stall = {row["stall_s"]: row for row in found["rows"]}
    assert {30, 60, 120, 300} <= set(by_stall) and by_stall[60]["stopped_gpu_hours"] == pytest.approx(14476, abs=1)
    assert by_stall[60]["stopped_usd"] + by_stall[60]["storage_usd"] == pytest.approx(499_616, abs=1)
    for name, stall_s, total_usd in (("optimum", 51.85, 760_069), ("optimum_stop_only", 90.74, 455_155)):
        assert (found[name]["stall_s"], found[name]["total_usd"]) == pytest.approx((stall_s, total_usd), abs=0.5)
    low, high = found["flat_region"]
    assert low <= found["optimum"]["write_s"] <= high
    per_gpu = orch("plan", "tradeoff", *MODEL, "--mtbi", "200h", "--gpu-hourly-usd", "17.802", "--gpus-per-price", "1",
                   "--json").json
    per_node = orch("plan", "tradeoff", *MODEL, "--mtbi", "200h", "--gpu-hourly-usd", "142.416", "--json").json
    assert per_gpu["optimum"]["total_usd"] == pytest.approx(per_node["optimum"]["total_usd"])


def test_replication_levels_and_frameworks(orch: Orch) -> None:
    found = orch("plan", "replication", "--nodes", "32", "--factor", "2", "--node-mtbi", "6400h", "--rebuild", "1h",
                 "--ranks", "256", "--jump", "8", "--json").json
    assert found == {"loss_fixed_group": 1.5625e-4, "loss_random_exact": pytest.approx(0.004832415, abs=1e-9),
                     "loss_random_approx": 0.00484375, "allowed_factors": [1, 2, 4, 8, 16, 32]}
    two = orch("plan", "levels", *MODEL, "--mtbi", "200h", "--json").json
    assert two["local_interval_s"] == pytest.approx(2753, abs=0.5) and 100 * two["waste"] == pytest.approx(0.4481, abs=1e-4)
    assert two["cheapest"]["monthly_usd"] == pytest.approx(1044) and two["waste_shared_only"] > two["waste"]
    rich = orch("plan", "levels", *MODEL, "--mtbi", "200h", "--gpu-hourly-usd", "100000", "--json").json
    assert rich["waste"] < two["waste"]
    settings_ = orch("plan", "framework", "--interval", "45m", "--step-time", "1.2s", "--json").json
    assert settings_["interval_steps"] == 2250 and [f["framework"] for f in settings_["frameworks"]] == [
        "Megatron-LM", "Megatron Bridge", "TorchTitan", "HF Trainer", "Lightning"]


def test_simulate(orch: Orch) -> None:
    line = ("plan", "simulate", "--policy", "young,daly,weibull,fixed:30m", "--distribution", "weibull:0.7", "--mtbi", "200h",
            "--trials", "20000", "--seed", "3", "--json")
    found, again = orch(*line), orch(*line)
    assert found.out == again.out
    policies = found.json["policies"]
    assert [p["policy"] for p in policies] == ["young", "daly", "weibull", "fixed:30m"]
    assert all(abs(p["waste"] - p["exact"]) < 5 * p["standard_error"] for p in policies)
    text = orch("plan", "simulate", "--mtbi", "200h", "--trials", "1000", "--limit", "24h").out
    assert "1,000 launches" in text and "least" in text


def test_the_words_fit_the_numbers(orch: Orch) -> None:
    """One step is no steps, Daly's terms are of the T* that is printed, and what binds is said of the cheapest too."""
    long = orch("plan", "interval", "--stall", "5s", "--mtbi", "200h", "--step-time", "1h").out
    assert "44m43s = 1 step " in long and "a step of 3600 s is longer than the interval" in long
    assert "C is 10 % of M" in orch("plan", "interval", "--stall", "5s", "--mtbi", "50s").out
    far = orch("plan", "interval", "--stall", "30m", "--mtbi", "2h").out
    assert "with Daly's terms 1h36m " in far and "exactly 1h36m   M [1 + C/M + W0" in far
    stretched = orch("plan", "interval", "--stall", "5s", "--mtbi", "200h", "--stretch", "100%").out
    assert "25m50s   T* (1 + x/3 + x^2/9)" in stretched and "Lambert" not in stretched
    shape = (*INTERVAL, "--weibull-shape", "0.7")
    assert orch("plan", *shape).out.count("planned stops") == 0
    assert "gained, planned stops aside" in orch("plan", *shape, "--limit", "8h").out
    all_trained = orch("plan", "size", *MODEL, "--frozen-params", "0", "--json").json
    assert all_trained == orch("plan", "size", *MODEL, "--json").json
    usual = orch("plan", "storage", *MODEL, "--mtbi", "200h", "--write", "5m").out
    assert "a node writes 1.45 Gbit/s   8 S / (N t_w); to the cheapest it can write 25 Gbit/s" in usual
    hasty = orch("plan", "storage", *MODEL, "--mtbi", "200h", "--write", "1ms").out
    assert "cheapest, one node cannot write so fast" in hasty
    limited = orch("plan", "tradeoff", *MODEL, "--mtbi", "200h", "--gpu-hourly-usd", "99", "--limit", "24h").out
    assert "and planned stops of the GPUs' price" in limited and "within 2 %:" in limited


# --- catalogues and reports ---------------------------------------------------------------------------------------------

OWN = """
name: Ceph
region: here
price_date: "2026-12"
efa_above_gb_per_s: 100
classes:
  - class: 50
    without_efa: {unit_gib: 100, usd_per_gib_month: 0.02}
client:
  without_efa: {gbps: 25}
  with_efa: {gbps: 25}
"""


def test_a_catalogue_of_ones_own(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    found = orch("plan", "storage", *MODEL, "--write", "5m", "--mtbi", "200h", "--catalog", "own.yaml", "--json").json
    assert [(c["class"], c["capacity_gib"]) for c in found["choices"]] == [(50, 116200)]
    text = orch("plan", "storage", *MODEL, "--write", "5m", "--mtbi", "200h", "--catalog", "own.yaml").out
    assert "Ceph; here, prices of 2026-12" in text
    too_fast = orch("plan", "storage", *MODEL, "--write", "10s", "--mtbi", "200h", "--catalog", "own.yaml")
    assert too_fast.code == 2 and "without EFA" in too_fast.err and "write --write 18s or longer" in too_fast.err
    line = ("plan", "tradeoff", *MODEL, "--mtbi", "200h", "--gpu-hourly-usd", "99", "--catalog", "own.yaml")
    hasty = orch(*line, "--write-range", "5s:20m")
    assert hasty.code == 2 and "--write-range: 5s: no file system" in hasty.err and "begin it with 18s" in hasty.err
    assert orch(*line).code == 0
    (tmp_path / "plan.yaml").write_text(f"{PLAN}catalog: own.yaml\nwrite_range: 5s:20m\n")
    page = orch("plan", "report", "plan.yaml", "-o", "plan.html")
    assert page.code == 2 and "plan.yaml:10: write_range: 5s takes EFA" in page.err and "18s" in page.err


@pytest.mark.parametrize(("old", "new", "problem"), [
    ("class: 50", "clas: 50", 'own.yaml:7: classes[0].clas: unknown key "clas"'),
    ("unit_gib: 100", "unit_gib: 0", "unit_gib"),
    ("0.02}", "0.02, price: guessed}", '"guessed" is not known'), ("class: 50", "class: -1", "classes[0].class: -1"),
    ("class: 50", "class: .inf", "classes[0].class: inf"), ("class: 50", "class: .nan", "classes[0].class: nan"),
    ("gbps: 25}", "gbps: 25, gbps_per_server: -5}", "client.without_efa.gbps_per_server: -5"),
    ("gbps: 25}", "gbps: 25, server_gib: 0}", "client.without_efa.server_gib: 0"),
    ("client:", "instances: {big: {gbps: 10, efa_gbps: -1}}\nclient:", "instances.big.efa_gbps: -1"),
    ("client:", "connections: {default: .nan}\nclient:", "connections.default: nan"),
    (OWN, "- 50", "own.yaml:1: must be keys"),
    ("    without_efa: {unit_gib: 100, usd_per_gib_month: 0.02}\n", "", "offers nothing"),
    ("gbps: 25", "gbps: fast", "gbps")])
def test_a_catalogue_that_is_wrong(orch: Orch, tmp_path: Path, old: str, new: str, problem: str) -> None:
    (tmp_path / "own.yaml").write_text(OWN.replace(old, new))
    answer = orch("plan", "storage", *MODEL, "--write", "5m", "--mtbi", "200h", "--catalog", "own.yaml")
    assert answer.code == 2 and "own.yaml:" in answer.err and problem in answer.err and answer.out == "", answer
    assert "Traceback" not in answer.err


PLAN = """params: 124.45e9
bytes_per_param: 14
nodes: 32
mtbi: 200h
stall: 5s
write: 20m
interval: 25m
gpu_hourly_usd: 142.416
"""


def test_report(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    found = orch("plan", "report", "plan.yaml", "-o", "plan.html", "--json").json
    assert found["optimum"]["total_usd"] == pytest.approx(261_001, abs=1) and found["page"] == "plan.html"
    page = (tmp_path / "plan.html").read_text()
    assert page.count("<svg") == 4 and "today 25m" in page and "<script" not in page
    assert "plan.html" in orch("plan", "report", "plan.yaml", "-o", "plan.html").out
    nowhere = orch("plan", "report", "plan.yaml", "-o", "no/such/plan.html")
    assert nowhere.code == 2 and nowhere.err.startswith("orch: -o: there is no folder ") and nowhere.out == ""


@pytest.mark.parametrize(("old", "new", "problem"), [
    ("mtbi: 200h", "mtbi: 200", 'plan.yaml:4: mtbi: "200" is not a duration (add a unit'),
    ("nodes: 32", "nodes: 0", "nodes: 0 is not"),
    ("params: 124.45e9", "params: 1e30", "more parameters than there can be"),
    ("stall: 5s", "stal: 5s", 'did you mean "stall"?'),
    ("mtbi: 200h", "mtbi: 1s", "below the stall"), ("stall: 5s", "stall: 5s\nkeep: 1", "keep: 1 is not"),
    ("stall: 5s", "stall: 5s\nmode: sync", "leave stall out"), ("stall: 5s", "stall: 5s\nmode: asink", "async or sync"),
    ("stall: 5s", "stall: 5s\nwrite_range: 5m", "not a range"),
    ("stall: 5s", "stall: 5s\nlimit: 10m", "no room for a final save"),
    ("interval: 25m", "interval: 15m", "interval: 15m is no longer than a save of 20m"),
    ("interval: 25m\n", "interval: 4s\n", "interval: 4s is no longer than a save"),
    ("stall: 5s", "stall: 5s\nmaster: fp33", "is no format"), ("142.416", "-3", "not possible"),
    ("bytes_per_param: 14", "bytes_per_param: 14\nmaster: fp32", "say that already")])
def test_a_plan_that_is_wrong(orch: Orch, tmp_path: Path, old: str, new: str, problem: str) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN.replace(old, new))
    answer = orch("plan", "report", "plan.yaml", "-o", "plan.html")
    assert answer.code == 2 and "plan.yaml" in answer.err and problem in answer.err, answer
    assert not (tmp_path / "plan.html").exists() and "Traceback" not in answer.err


# --- mistakes -----------------------------------------------------------------------------------------------------------

INTERVAL = ("interval", "--stall", "5s", "--mtbi", "200h")
SIZE = ("size", "--params", "1e9")
STORAGE = ("storage", "--params", "1e9", "--nodes", "4", "--write", "5m", "--mtbi", "200h")
TRADEOFF = ("tradeoff", *STORAGE[1:5], "--mtbi", "200h")
COPIES = ("replication", "--nodes", "32", "--node-mtbi", "6400h", "--rebuild", "1h")


@pytest.mark.parametrize(("line", "problem", "remedy"), [
    (("interval", "--stall", "-5s", "--mtbi", "200h"), '--stall: "-5s" is negative', "write 5s"),
    (("interval", "--stall", "0s", "--mtbi", "200h"), '--stall: "0s" is no time at all', "write for example"),
    (("interval", "--stall", "5", "--mtbi", "200h"), '--stall: "5" is not a duration', "add a unit: 5s, 5m or 5h"),
    (("interval", "--stall", "nan", "--mtbi", "200h"), "--stall", "write 90s"),
    (("interval", "--stall", "5s", "--mtbi", "inf"), "--mtbi", "write 90s"),
    (("interval", "--stall", "-5s", "--mtbi", "200h"), '--stall: "-5s" is negative', "(write 5s)"),
    (("interval", "--stall", "-5", "--mtbi", "200h"), '--stall: "-5" is negative', "(write for example 5s)"),
    (("interval", "--stall", "5s", "--mtbi", "9" * 400 + "h"), "3,000 years", "write for example"),
    (("interval", "--stall", "5s", "--mtbi", "2s"), "--mtbi: 2s is below --stall 5s", "200h"),
    (("interval", "--stall", "5s", "--mtbi", "1h", "--write", "30m"), "than the interval of 3m10s", "--interval 30m05s"),
    ((*INTERVAL, "--interval", "3s"), "no longer than --stall", "44m43s"),
    ((*INTERVAL, "--limit", "10s"), "no room for a final save", "longer limit"),
    ((*INTERVAL, "--lead", "5m"), "no --limit", "--limit 8h"),
    ((*INTERVAL, "--limit", "8h", "--lead", "9h"), "not shorter than --limit", ""),
    ((*INTERVAL, "--stretch", "0.5", "--write", "5m"), "--stretch", "leave --write"),
    ((*INTERVAL, "--slowdown", "5%"), "--slowdown", "--write"), ((*INTERVAL, "--slowdown", "100%"), "below 100 %", "5%"),
    ((*INTERVAL, "--stretch", "101%"), "at most 100 %", "5%"), ((*INTERVAL, "--weibull-shape", "0.01"), "below any", "0.5"),
    (("size", "--params", "1e30"), "--params: 1e30 is more parameters than there can be", "124.45e9"),
    (("size", "--params", "-1e9"), "not more than nothing", "124.45e9"),
    ((*SIZE, "--bytes-per-param", "nan"), "not a number", "14"),
    ((*SIZE, "--frozen-params", "2e9"), "2 billion are more than --params, 1 billion", "part"),
    ((*SIZE, "--nodes", "0"), "too few", "1 or more"),
    ((*SIZE, "--nodes", "1.5"), "not a whole number", ""),
    ((*SIZE, "--bytes-per-param", "14", "--master", "fp32"), "already", "either"),
    ((*STORAGE, "--keep", "1"), "--keep: 1 is too few", "2 or more"),
    ((*STORAGE, "--class", "333"), "no throughput class 333", "125, 250"),
    ((*STORAGE, "--instance", "p6-b300.48xlarg"), "knows no", 'did you mean "p6-b300.48xlarge"?'),
    ((*STORAGE, "--mode", "sync", "--stall", "5s"), "stands still", "--mode sync --write 60s"),
    ((*STORAGE, "--catalog", "gone.yaml"), "gone.yaml: No such file", ""),
    (STORAGE[:5] + STORAGE[7:], "--write is missing", "--write 5m"),
    ((*STORAGE, "--write", "1h"), "--write: 1h is longer than the interval of 44m43s", "write --write 44m43s or less"),
    ((*TRADEOFF, "--gpu-hourly-usd", "100", "--write-range", "20m:30s"), "does not rise", "30s:20m"),
    ((*TRADEOFF, "--gpu-hourly-usd", "100", "--write-range", "5m"), "not a range", "30s:20m"),
    ((*TRADEOFF, "--gpu-hourly-usd", "0"), "not more than nothing", "142.416"),
    (("tradeoff", *STORAGE[1:5], "--mtbi", "10m", "--mode", "sync", "--gpu-hourly-usd", "9"), "--write-range's end", ""),
    ((*TRADEOFF, "--gpu-hourly-usd", "9", "--limit", "15m"), "no room", "ends earlier"),
    ((*COPIES, "--factor", "3", "--ranks", "256", "--jump", "8"), "256 ranks do not divide by jump 8 x", "1, 2, 4, 8"),
    ((*COPIES, "--factor", "2", "--ranks", "250", "--jump", "8"), "250 ranks do not divide", "--jump 8 either"),
    ((*COPIES, "--factor", "33"), "do not fit", "one copy"), ((*COPIES, "--factor", "0"), "too few", ""),
    (("mtbi", "--nodes", "3", "--to-nodes", "4"), "either --mtbi or --period", ""),
    (("mtbi", "--period", "54d", "--nodes", "3", "--to-nodes", "4"), "--interruptions is missing", ""),
    (("mtbi", "--period", "54d", "--interruptions", "0", "--nodes", "3", "--to-nodes", "3"), "longer than 432.6 h", "bound"),
    (("mtbi", "--period", "54d", "--interruptions", "0", "--nodes", "2048", "--to-nodes", "1"),
     "than 885,996 h on 1 node (", ""),
    (("interval", "--stall", "300h", "--mtbi", "200h"), "--mtbi: 200 h is below --stall", ""),
    (("framework", "--interval", "1s", "--step-time", "2s"), "longer than --interval", "between two steps"),
    (("levels", "--params", "1e9", "--nodes", "4", "--mtbi", "200h", "--shared-share", "0"), "not above 0", "5%"),
    (("simulate", "--mtbi", "200h", "--policy", "old"), '"old" is not known', "young"),
    (("simulate", "--mtbi", "200h", "--policy", "weibull:0"), "is not known", "write weibull:0.7 with"),
    (("simulate", "--mtbi", "200h", "--policy", "fixed:3"), "fixed:", "add a unit"),
    (("simulate", "--mtbi", "200h", "--policy", "fixed:3s"), "no longer than the stall", ""),
    (("simulate", "--mtbi", "200h", "--distribution", "weibull:nan"), "is not known", "weibull:0.7"),
    (("simulate", "--mtbi", "200h", "--trials", "1"), "too few", "100"), (("simulate", "--mtbi", "1s"), "below --stall", ""),
    (("levels", "--params", "1e9", "--nodes", "4", "--mtbi", "200h", "--local-write", "1h"), "1h is longer than", "30s"),
    (("simulate", "--mtbi", "200h", "--limit", "4s"), "no room", "24h"),
    (("simulate", "--mtbi", "200h", "--write", "1h"), "longer than the interval of 44m43s", "policy young"),
    (("simulate", "--mtbi", "200h", "--write", "5m", "--policy", "exact,fixed:4m"), "interval of 4m", "--policy fixed:5m05s"),
    (("interval", "--stall", "5s"), "Missing option '--mtbi'", "`orch plan interval --help`"),
    (("interval", "--stal", "5s"), "No such option", "`orch plan interval --help`"),
    ((*SIZE, "--moments", "fp33"), "'fp33' is not one of", "`orch plan size --help`"),
    (("intervall",), "No such command", "`orch plan --help`"),
])
def test_mistakes_are_one_clear_line(orch: Orch, line: tuple[str, ...], problem: str, remedy: str) -> None:
    answer = orch("plan", *line)
    assert answer.code == 2 and problem in answer.err and remedy in answer.err and answer.out == "", answer
    assert len(answer.err.splitlines()) <= 2 and answer.err.startswith("orch: ") and "Traceback" not in answer.err


def test_a_lead_that_is_too_short_is_refused(orch: Orch) -> None:
    answer = orch("plan", *INTERVAL, "--write", "5m", "--limit", "8h", "--lead", "2m", "--json")
    assert answer.code == 4 and answer.json["error"] == "Refused" and "5m15s" in answer.json["message"]


def finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(finite(v) for v in value.values())
    if isinstance(value, list):
        return all(finite(v) for v in value)
    return not isinstance(value, float) or math.isfinite(value)


SECONDS = st.floats(-6, 11).map(lambda e: f"{10**e:.9f}s")


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stall=SECONDS, mtbi=SECONDS, write=st.none() | SECONDS, restart=st.none() | SECONDS, limit=st.none() | SECONDS,
       step=st.none() | SECONDS, shape=st.none() | st.floats(0.1, 10), interval=st.none() | SECONDS)
def test_whatever_is_asked_is_answered_with_numbers_or_refused(
    orch: Orch, stall: str, mtbi: str, write: str | None, restart: str | None, limit: str | None, step: str | None,
    shape: float | None, interval: str | None,
) -> None:
    options = {"--write": write, "--restart": restart, "--limit": limit, "--step-time": step, "--interval": interval,
               "--weibull-shape": f"{shape:.6f}" if shape else None}
    line = [word for option, value in options.items() if value is not None for word in (option, value)]
    answer = orch("plan", "interval", "--stall", stall, "--mtbi", mtbi, *line, "--json")
    assert answer.code in (0, 2), answer
    data = json.loads(answer.out, parse_constant=lambda name: pytest.fail(name))
    assert finite(data) and (answer.code == 2 or -1e-9 <= data["waste_exact"] <= 1)
    text = orch("plan", "interval", "--stall", stall, "--mtbi", mtbi, *line)
    assert not {"nan", "inf", "nan%", "inf%"} & set(text.out.lower().replace(",", " ").split())


def number(low: float, high: float) -> st.SearchStrategy[str]:
    return st.floats(low, high).map(lambda exponent: f"{10**exponent:.6g}")


def count(high: float) -> st.SearchStrategy[str]:
    return st.floats(0, high).map(lambda exponent: str(int(10**exponent)))


MODELS = {"--params": number(0, 14), "--bytes-per-param": number(-2, 3), "--nodes": count(6), "--mtbi": SECONDS,
          "--keep": count(5)}
COMMANDS = {
    "storage": MODELS | {"--mode": st.sampled_from(["async", "sync"]), "--write": SECONDS},
    "tradeoff": MODELS | {"--mode": st.sampled_from(["async", "sync"]), "--gpu-hourly-usd": number(-3, 9)},
    "levels": MODELS | {"--stall": SECONDS, "--local-write": SECONDS, "--shared-stall": SECONDS,
                        "--shared-share": number(-6, 0)},
    "replication": {"--nodes": count(6), "--factor": count(2), "--node-mtbi": SECONDS, "--rebuild": SECONDS},
    "mtbi": {"--mtbi": SECONDS, "--interruptions": count(8), "--nodes": count(6), "--to-nodes": count(6)},
    "framework": {"--interval": SECONDS, "--step-time": SECONDS}}


@pytest.mark.slow
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(COMMANDS)))
def test_every_command_answers_with_numbers_or_refuses(orch: Orch, data: st.DataObject, name: str) -> None:
    line = [word for option, value in COMMANDS[name].items() for word in (option, data.draw(value, label=option))]
    answer = orch("plan", name, *line, "--json")
    assert answer.code in (0, 2), answer
    assert finite(json.loads(answer.out, parse_constant=lambda word: pytest.fail(word)))
    text = orch("plan", name, *line)
    assert text.code == answer.code and len(text.err.splitlines()) <= 2 and "Traceback" not in text.err
    assert not {"nan", "inf", "nan%", "inf%"} & set(text.out.lower().replace(",", " ").split())


def test_small_models_and_huge_clusters(orch: Orch) -> None:
    """The smallest file system may be faster than anybody needs; coefficients and powers of many copies fit no float."""
    two = orch("plan", "levels", "--params", "1e6", "--nodes", "3", "--mtbi", "20h", "--json").json
    assert two["cheapest"]["capacity_gib"] == 2400 and 0 < two["waste"] < 1
    assert orch("plan", "levels", "--params", "1e14", "--nodes", "3", "--mtbi", "20h", "--keep", "99999").code == 0
    copies = ("plan", "replication", "--nodes", "100000", "--node-mtbi", "85277s", "--rebuild", "311s")
    one, more = (orch(*copies, "--factor", factor, "--json").json for factor in ("1", "250"))
    assert one["loss_random_exact"] == 1 and one["loss_fixed_group"] == 1
    assert 0.9 < more["loss_random_exact"] <= 1 and more["loss_random_approx"] == 1


# --- cost of asking -----------------------------------------------------------------------------------------------------


def test_a_plan_needs_nothing_heavy() -> None:
    code = ("import sys; sys.argv = ['orch', 'plan', 'interval', '--stall', '5s', '--mtbi', '200h']\n"
            "from orchestrator.cli.main import main\n"
            "try: main()\nexcept SystemExit: print(*sys.modules, file=sys.stderr)")
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split())
    assert not loaded & {"yaml", "msgspec", "requests", "rich", "numpy", "orchestrator.control", "orchestrator.config"}
