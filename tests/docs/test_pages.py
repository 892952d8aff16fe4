"""Pages hold together: links lead somewhere, and every command that a page names is one that the program knows."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
from test_docs import command_at

from orchestrator.cli.main import orch
from orchestrator.control.scaffold import AGENTS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|mailto:)([^)\s]+)\)", page.read_text()):
        name, _, heading = target.partition("#")
        linked = (page.parent / name) if name else page
        assert linked.exists(), f"{page.name} links to {target}"
        if heading:
            titles = [re.sub(r"[^\w\- ]", "", line.lstrip("# ")).lower().replace(" ", "-")
                      for line in linked.read_text().splitlines() if line.startswith("#")]
            assert heading in titles, f"{page.name} links to {target}"


def named(text: str) -> list[str]:
    """Every `orch ...` in code: inline, and typed behind a prompt."""
    inline = re.findall(r"`(orch [^`\n]+)`", text)
    typed = re.findall(r"^\$ (orch [^\n#&|>]*)", text, re.MULTILINE)
    return [words for words in inline + typed if "COMMAND" not in words]


@pytest.mark.parametrize("page", [*PAGES, None], ids=lambda page: page.name if page else "agents")
def test_commands_that_a_page_names_exist_with_their_options(page: Path | None) -> None:
    for text in named(page.read_text() if page is not None else AGENTS):
        first = re.split(r"\s(?:&&|\|\||[|>&]|#)\s?", text.replace("\\|", "|"))[0]
        words = shlex.split(re.sub(r"[][|]", " ", first))
        if "," in text or "..." in text or "=" in words[1:2]:
            continue                     # a list of commands, not one
        known = command_at([word for word in words[1:] if not word.startswith("-")][:2])
        assert known is not orch or len(words) == 1 or words[1].startswith("-"), f"{text}: no such command"
        options = {option for parameter in known.params for option in (*parameter.opts, *parameter.secondary_opts)}
        options |= {"--help", "-h", "--version"}
        for word in words[1:]:
            if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word) and not isinstance(known, click.Group):
                assert word.partition("=")[0] in options, f"{text}: {known.name} has no {word}"


def test_the_structure_names_every_module() -> None:
    """docs/architecture.md's table: modules of the package itself, and those of packages that it lists one by one."""
    table = (ROOT / "docs" / "architecture.md").read_text().partition("| package |")[2].partition("\n\n")[0]
    words = set(re.findall(r"[a-z_]+\*?", " ".join(re.findall(r"`([^`]+)`", table))))
    listed = ["core", "slurm", "notify", "control", "views"]
    for folder in ["", *listed]:
        for path in sorted((ROOT / "orchestrator" / folder).iterdir()):
            name = path.stem
            if name.startswith("__") or (path.is_dir() and folder):
                continue
            assert name in words or any(w.endswith("*") and name.startswith(w[:-1]) for w in words), f"{folder}/{name}"


def test_the_matrix_takes_no_option_for_a_release_of_debian() -> None:
    asked, wrong = (subprocess.run([ROOT / "ops" / "matrix", option], capture_output=True, text=True, check=False)
                    for option in ("--help", "--jobs"))
    assert (asked.returncode, asked.stderr) == (0, "") and "ops/matrix forky" in asked.stdout
    assert (wrong.returncode, wrong.stdout) == (2, "") and "--jobs is no release" in wrong.stderr
