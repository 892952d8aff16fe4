"""docs/notifications.md: what it says to write can be written, and its recipes deliver what they get."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import Loopback, Reply

from orchestrator.config import load_config
from orchestrator.message import Kind, Message
from orchestrator.notify.command import as_json, run_command
from orchestrator.notify.result import Delivered, TryAgain

PAGE = (Path(__file__).parents[2] / "docs" / "notifications.md").read_text()
MESSAGE = Message(key="a/0/3/held", kind=Kind.HELD, at=5.0, tag="a", headline='a is held: "<5 & more"',
                  lines=("`orch release a`",))


def blocks(title: str) -> list[str]:
    """The YAML below this heading, without its indentation in a list."""
    section = PAGE.partition(f"# {title}\n")[2].partition("\n#")[0]
    return [re.sub(r"(?m)^" + indent, "", text) for indent, text in re.findall(r"(?sm)^( *)```yaml\n(.*?)```", section)]


def command(folder: Path, title: str) -> tuple[str, ...]:
    block, = blocks(title)
    (folder / "orch.yaml").write_text(f"profiles: {{a: {{}}}}\n{block}")
    return load_config(folder).notify.command


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home with programs of its own before all others."""
    if shutil.which("jq") is None or shutil.which("curl") is None:
        pytest.skip("the recipes need jq and curl")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    (tmp_path / "bin").mkdir()
    (tmp_path / ".config/orch").mkdir(parents=True)
    yield tmp_path


def recorder(home: Path, name: str) -> None:
    program = home / "bin" / name
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {home}/{name}.words\ncat > {home}/{name}.text\n')
    program.chmod(0o755)


def test_the_two_minutes(tmp_path: Path) -> None:
    block, = blocks("Discord, in two minutes")
    (tmp_path / "orch.yaml").write_text(f"profiles: {{a: {{}}}}\n{block}")
    assert load_config(tmp_path).notify.webhook_file == Path.home() / ".config/orch/discord-webhook"


def test_every_kind_is_named() -> None:
    assert {f"`{kind}`" for kind in Kind if kind != Kind.PROGRESS} <= set(re.findall(r"`[a-z-]+`", PAGE))


def test_the_json_on_the_page_has_the_keys_that_are_sent() -> None:
    shown = json.loads(re.findall(r"(?s)```json\n(.*?)```", PAGE)[0])
    assert list(shown) == list(json.loads(as_json(MESSAGE, "vision")))


@pytest.mark.parametrize(("title", "file"), [("ntfy", "ntfy.curl"), ("Slack", "slack.curl")])
def test_recipes_with_curl(home: Path, title: str, file: str) -> None:
    with Loopback() as server:
        server.replies = [Reply(200, "ok"), Reply(500, "")]
        (home / ".config/orch" / file).write_text(f'url = "{server.url}"\n')
        assert run_command(command(home, title), as_json(MESSAGE, "vision"), home, limit_s=10) == Delivered()
        body = server.arrived[0].body
        if title == "Slack":
            assert body == {"text": 'a is held: "&lt;5 &amp; more"\n`orch release a`'}
        else:
            assert body == {"raw": 'a is held: "<5 & more"\n`orch release a`\n'}
        assert isinstance(run_command(command(home, title), "{}\n", home, limit_s=10), TryAgain)


def test_apprise(home: Path) -> None:
    recorder(home, "apprise")
    assert run_command(command(home, "apprise"), as_json(MESSAGE, "vision"), home, limit_s=10) == Delivered()
    assert (home / "apprise.text").read_text() == 'a is held: "<5 & more"\n`orch release a`\n'
    assert (home / "apprise.words").read_text().split() == ["--config", f"{home}/.config/apprise.yml", "--title", "orch"]


def test_mail(home: Path) -> None:
    recorder(home, "mail")
    assert run_command(command(home, "Mail"), as_json(MESSAGE, "vision"), home, limit_s=10) == Delivered()
    assert (home / "mail.words").read_text() == '-s\na is held: "<5 & more"\nyou@example.org\n'
    assert (home / "mail.text").read_text().startswith("a is held")
