"""Imports run one way, pure parts reach nothing, functions and files stay short. Read from the source, never from imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(p for name in ("orchestrator", "orch_trainer") for p in (ROOT / name).rglob("*.py"))

WORDS = frozenset({"units", "states", "model", "errors", "events", "records", "startup", "message", "sightings"})
EDGES = frozenset({
    "attempt_files", "journal", "config", "layouts", "checkpoints", "rollback", "trainer_control", "trainer_lines", "notify",
    "slurm", "host", "sd_notify"})
# The types that core and the edges speak in; core's thinking is not for edges.
CORE_TYPES = frozenset({"orchestrator.core.observation"})

# layer -> what it may import of ours, beside itself
ALLOWED: dict[str, frozenset[str]] = {
    **dict.fromkeys(WORDS, WORDS),
    "planner": WORDS,
    "catalog": frozenset(),
    "core": WORDS | {"planner"},
    "folders": WORDS,
    "layouts": frozenset(),
    **{edge: WORDS | {"folders"} for edge in EDGES},
    "checkpoints": WORDS | {"folders", "layouts"},
    "rollback": WORDS | {"folders", "checkpoints", "layouts"},
    "attempt": WORDS | {"core", "folders", "attempt_files", "journal", "checkpoints", "trainer_control",
                        "trainer_lines", "host"},
    "cluster": WORDS | {"slurm"},
    "views": WORDS | {"core", "planner", "checkpoints"},
    "control": WORDS | {"planner", "core", "folders", "views", "orch_trainer"} | EDGES,
    "cli": WORDS | {"folders", "planner", "catalog", "control", "views", "cluster", "orch_trainer"} | EDGES,
}

PURE = (
    "orchestrator/core/", "orchestrator/planner/", "orchestrator/views/", "orchestrator/units.py", "orchestrator/states.py",
    "orchestrator/model.py", "orchestrator/records.py", "orchestrator/errors.py", "orchestrator/startup.py",
    "orchestrator/message.py", "orchestrator/sightings.py", "orchestrator/slurm/fields.py", "orchestrator/notify/discord.py",
    "orchestrator/notify/result.py")
REACHES = frozenset({
    "time", "os", "subprocess", "socket", "random", "secrets", "shutil", "tempfile", "threading", "signal", "io",
    "glob", "fcntl",
    "urllib", "http", "requests", "asyncio", "multiprocessing", "uuid", "platform", "getpass", "logging", "sys"})
PATH_METHODS = frozenset({
    "exists", "is_file", "is_dir", "is_symlink", "read_text", "read_bytes", "write_text", "write_bytes", "open",
    "stat", "lstat",
    "mkdir", "unlink", "rename", "iterdir", "glob", "rglob", "touch", "resolve", "absolute", "cwd", "home",
    "expanduser", "chmod",
    "samefile"})
CLOCK = frozenset({"now", "utcnow", "today"})

MAY_SLEEP = ("orchestrator/cli/", "orchestrator/attempt/", "orchestrator/cluster/", "orchestrator/journal.py")
FUNCTION_LINES_AT_MOST = 60
FILE_LINES_AT_MOST = 400


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def layer_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0] if parts[0] != "orchestrator" else parts[1].removesuffix(".py")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), name_of(path))


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported anywhere in the file, those for type checkers alone left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports alone"
            assert node.module is not None
            if node.module in ("orchestrator", "orchestrator.core", "orchestrator.control", "orchestrator.attempt"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module
        else:
            yield from imports(node)


def layer_named(module: str) -> str | None:
    """The layer of one of our modules, None for anybody else's."""
    head, _, rest = module.partition(".")
    if head == "orch_trainer":
        return "orch_trainer"
    return rest.partition(".")[0] if head == "orchestrator" and rest else None


ids = {"ids": name_of}


def test_every_layer_is_known() -> None:
    unknown = {layer_of(path) for path in FILES} - set(ALLOWED) - {"__init__", "__main__", "orch_trainer"}
    assert not unknown, f"say in test_layering.py what these may import: {unknown}"


@pytest.mark.parametrize("path", [p for p in FILES if layer_of(p) in ALLOWED], **ids)
def test_imports_run_one_way(path: Path) -> None:
    layer = layer_of(path)
    for module in imports(tree_of(path)):
        other = layer_named(module)
        if other is None or other == layer or other in ALLOWED[layer]:
            continue
        assert layer in EDGES and module in CORE_TYPES, f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", [p for p in FILES if layer_of(p) == "orch_trainer"], **ids)
def test_the_trainer_library_imports_the_standard_library_alone(path: Path) -> None:
    guarded = {"hf.py": {"torch", "transformers"}, "lightning.py": {"torch", "lightning"}}
    for module in imports(tree_of(path)):
        head = module.partition(".")[0]
        assert head in sys.stdlib_module_names or head in {"orch_trainer", "torch"} | guarded.get(path.name, set()), module


@pytest.mark.parametrize("path", [p for p in FILES if layer_of(p) == "orch_trainer"], **ids)
def test_torch_is_never_imported_as_a_module_loads(path: Path) -> None:
    for node in tree_of(path).body:
        if path.name not in ("hf.py", "lightning.py"):
            assert not (isinstance(node, ast.Import | ast.ImportFrom) and "torch" in {
                m.partition(".")[0] for m in imports(ast.Module([node], []))})


@pytest.mark.parametrize("path", [p for p in FILES if layer_of(p) in ("attempt", "core", *WORDS)], **ids)
def test_the_supervisors_reach_is_the_standard_library(path: Path) -> None:
    for module in imports(tree_of(path)):
        assert module.partition(".")[0] in sys.stdlib_module_names or layer_named(module), f"{name_of(path)} imports {module}"


def test_the_supervisor_loads_where_nothing_is_installed() -> None:
    modules = [name_of(p).removesuffix(".py").replace("/", ".") for p in FILES if layer_of(p) == "attempt"
               and p.name not in ("__init__.py", "__main__.py")]
    if not modules:
        pytest.skip("orchestrator/attempt is empty")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + "".join(f"import {m}\n" for m in modules) + \
        "print(*sorted(m for m in sys.modules if '.' not in m))"
    # -S: no site-packages; -I: no PYTHONPATH, no current folder
    ran = subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    strangers = set(ran.stdout.split()) - set(sys.stdlib_module_names) - {"orchestrator", "orch_trainer", "__main__"}
    assert not strangers


@pytest.mark.parametrize("path", [p for p in FILES if name_of(p).startswith(PURE)], **ids)
def test_pure_parts_reach_nothing(path: Path) -> None:
    tree = tree_of(path)
    for module in imports(tree):
        assert module.partition(".")[0] not in REACHES, f"{name_of(path)} imports {module}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        what = ast.unparse(node.func)
        where = f"{name_of(path)}:{node.lineno}: {what}()"
        assert what not in ("open", "print", "input", "eval", "exec", "__import__"), where
        if isinstance(node.func, ast.Attribute):
            assert node.func.attr not in PATH_METHODS | CLOCK, where


@pytest.mark.parametrize("path", [p for p in FILES if layer_of(p) != "orch_trainer" and not name_of(p).startswith(MAY_SLEEP)],
                         **ids)
def test_nobody_sleeps(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        assert called not in ("time.sleep", "sleep_for"), f"{name_of(path)}:{getattr(node, 'lineno', 0)} sleeps"


@pytest.mark.parametrize("path", FILES, **ids)
def test_functions_and_files_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES_AT_MOST
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1
            assert lines <= FUNCTION_LINES_AT_MOST, f"{name_of(path)}:{node.lineno}: {node.name} has {lines} lines"


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by name alone and refuses the second, but only where both are collected in one run."""
    names = Counter(p.name for p in (ROOT / "tests").rglob("*.py") if p.name not in ("conftest.py", "__init__.py"))
    assert not [name for name, count in names.items() if count > 1]


def test_nothing_is_called_utils() -> None:
    assert not [name_of(p) for p in FILES if p.stem in ("utils", "util", "helpers", "misc", "common")]


@pytest.mark.parametrize("path", [p for p in FILES if layer_of(p) not in ("slurm", "cluster", "attempt")], **ids)
def test_slurms_commands_are_started_in_slurm_alone(path: Path) -> None:
    """`attempt` and `cluster` have a Slurm of their own to speak to, without the one that orch.yaml names."""
    commands = {"sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct", "srun"}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            first = node.args[0] if node.args else None
            words = first.elts if isinstance(first, ast.List | ast.Tuple) else node.args
            called = {w.value for w in words[:1] if isinstance(w, ast.Constant)}
            assert not (called & commands), f"{name_of(path)}:{node.lineno}"
