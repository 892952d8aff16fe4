"""``orch notify test`` through the real entry point, to a server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Orch
from loopback import NO_WEBHOOK, TOKEN, Loopback


@pytest.fixture
def discord() -> Iterator[Loopback]:
    with Loopback() as server:
        yield server


def configure(repository: Path, text: str) -> None:
    with (repository / "orch.yaml").open("a") as file:
        file.write(text + "\n")


def hook(repository: Path, discord: Loopback, mode: int = 0o600) -> None:
    (repository / "hook").write_text(discord.url)
    (repository / "hook").chmod(mode)
    configure(repository, "notify: {discord: {webhook_file: hook}, command: [sh, -c, 'cat > told.json']}")


def test_no_channel(orch: Orch, repository: Path) -> None:
    answer = orch("notify", "test")
    assert answer.code == 2 and "orch.yaml names no channel" in answer.err and "webhook_file" in answer.err


def test_every_channel_gets_one_message(orch: Orch, repository: Path, discord: Loopback) -> None:
    hook(repository, discord)
    answer = orch("notify", "test")
    assert answer.code == 0 and answer.out == "discord: delivered (message 1000)\ncommand: delivered\n"
    assert discord.contents() == [f"a test from {repository.name}".replace("_", "\\_")]
    assert (repository / "told.json").exists()


def test_a_channel_that_does_not_take_it(orch: Orch, repository: Path, discord: Loopback) -> None:
    hook(repository, discord)
    discord.usual = NO_WEBHOOK
    answer = orch("notify", "test")
    assert answer.code == 4 and "command: delivered" in answer.out
    assert 'discord: 404: {"message": "Unknown Webhook"' in answer.err
    as_json = orch("notify", "test", "--json")
    assert as_json.code == 4 and as_json.json["channels"]["command"] == {"delivered": True, "why": ""}
    assert as_json.json["channels"]["discord"]["why"].startswith("404: ")
    assert TOKEN not in answer.out + answer.err + as_json.out


def test_a_webhooks_file_that_others_can_read(orch: Orch, repository: Path, discord: Loopback) -> None:
    hook(repository, discord, mode=0o644)
    answer = orch("notify", "test")
    assert answer.code == 2 and "orch.yaml:" in answer.err and "chmod 600" in answer.err and discord.arrived == []


def test_a_tick_says_what_is_wrong_with_telling_and_goes_on(orch: Orch, repository: Path, discord: Loopback) -> None:
    hook(repository, discord, mode=0o644)
    answer = orch("tick")
    assert answer.code == 0 and "notify: discord: " in answer.err and "chmod 600" in answer.err
    assert orch("tick").err == ""      # once
