"""``notify:`` in orch.yaml and the webhook's file: every mistake is named, and the URL never is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from loopback import ID, TOKEN

from orchestrator.config import load_config
from orchestrator.config.notify import Notify, read_webhook
from orchestrator.errors import ConfigError

URL = f"https://discord.com/api/webhooks/{ID}/{TOKEN}"


def notify(folder: Path, text: str) -> Notify:
    (folder / "orch.yaml").write_text(f"profiles: {{a: {{}}}}\n{text}")
    return load_config(folder).notify


def webhook_file(folder: Path, content: str = URL, mode: int = 0o600) -> Path:
    path = folder / "discord-webhook"
    path.write_text(content)
    path.chmod(mode)
    return path


def with_file(folder: Path, content: str = URL, mode: int = 0o600) -> Notify:
    webhook_file(folder, content, mode)
    return notify(folder, "notify: {discord: {webhook_file: discord-webhook}}")


def test_nobody_is_told_unless_it_is_said(tmp_path: Path) -> None:
    assert notify(tmp_path, "").channels == ()


def test_all_keys(tmp_path: Path) -> None:
    read = notify(tmp_path, "daemon: {every: 5s}\nnotify:\n  discord: {webhook_file: ~/hook}\n"
                            "  command: [./tell.sh, --all]\n  slurm_silent_after: 20m\n")
    assert read.channels == ("discord", "command") and read.command == ("./tell.sh", "--all")
    assert read.webhook_file == Path.home() / "hook" and read.slurm_silent_after_s == 1200 and read.settle_s == 10
    assert read.where == f"{tmp_path}/orch.yaml:4: notify.discord.webhook_file"


@pytest.mark.parametrize(("text", "words"), [
    ("notify: {command: []}", "orch.yaml:2: notify.command: is empty"),
    ("notify: {command: tell.sh}", "orch.yaml:2: notify.command: must be a list or nothing, not text"),
    ("notify: {slurm_silent_after: 10}", "orch.yaml:2: notify.slurm_silent_after: "),
    ("notify:\n  disco: {}", 'orch.yaml:3: notify.disco: unknown key "disco"'),
    (f"notify:\n  discord: {{webhook_file: '{URL}'}}", "orch.yaml:3: notify.discord.webhook_file: is the URL itself"),
    (f"notify:\n  discord: {{webhook_file: '{URL[8:]}'}}", "is the URL itself"),
    (f"notify:\n  discord: {{webhook_file: '{URL[20:]}'}}", "is the URL itself"),
    (f"notify:\n  discord: {{webhook_file: 'HTTPS{URL[5:]}'}}", "is the URL itself"),
    (f"notify:\n  discord: {{webhook_file: <{URL}>}}", "is the URL itself"),
    (f"notify:\n  discord: {{webhook_file: ' https://relay.example.org/{TOKEN}'}}", "is the URL itself"),
    (f"notify:\n  discord: '{URL}'", "orch.yaml:3: notify.discord: must be keys and values or nothing, not text"),
    (f"notify:\n  discord: {{webhook: '{URL}'}}", 'unknown key "webhook"')])
def test_mistakes_in_orch_yaml(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        notify(tmp_path, text)
    assert words in caught.value.message
    assert TOKEN not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("name", ["httpd/hook", "webhooks/discord", "~/.config/webhooks/orch"])
def test_a_file_whose_name_only_resembles_a_url(tmp_path: Path, name: str) -> None:
    read = notify(tmp_path, f"notify: {{discord: {{webhook_file: {name}}}}}")
    assert read.webhook_file == tmp_path / Path(name).expanduser()


@pytest.mark.parametrize(("written", "used"), [
    (URL, f"https://discord.com/api/v10/webhooks/{ID}/{TOKEN}"),  # without a version it answers in milliseconds
    (f"  {URL}/\n", f"https://discord.com/api/v10/webhooks/{ID}/{TOKEN}"),
    (f"https://discordapp.com/api/v6/webhooks/{ID}/{TOKEN}?thread_id=5",
     f"https://discord.com/api/v10/webhooks/{ID}/{TOKEN}?thread_id=5"),
    ("https://relay.example.org/hook/x", "https://relay.example.org/hook/x"),
    ("http://127.0.0.1:8080/hook", "http://127.0.0.1:8080/hook"), ("http://[::1]:8080/hook", "http://[::1]:8080/hook")])
def test_the_webhooks_url(tmp_path: Path, written: str, used: str) -> None:
    found = read_webhook(with_file(tmp_path, written))
    assert found.url == used and TOKEN not in repr(found)


@pytest.mark.parametrize(("written", "words"), [
    ("", "has 0 words"), (f"{URL} {URL}", "has 2 words"), (f"http://discord.com/api/webhooks/{ID}/{TOKEN}", "in the clear"),
    (f"http://127.0.0.1.example.org/{TOKEN}", "in the clear"), (f"discord.com/api/webhooks/{ID}/{TOKEN}", "no webhook's URL"),
    (f"https://me:{TOKEN}@example.org/", "no webhook's URL"), (f"https://discord.com/api/webhooks/{ID}", "not all of it"),
    (f"{URL}/slack", "not all of it"), (f"https://[{TOKEN}/", "is no URL"), (f"https://example.org:{TOKEN}/", "is no URL")])
def test_what_is_no_webhook_is_refused_without_repeating_it(tmp_path: Path, written: str, words: str) -> None:
    configured = with_file(tmp_path, written)
    with pytest.raises(ConfigError) as caught:
        read_webhook(configured)
    said = caught.value.message + caught.value.hint
    assert words in said and f"{tmp_path}/orch.yaml:2: notify.discord.webhook_file" in said
    assert TOKEN not in said
    assert caught.value.__context__ is None or caught.value.__suppress_context__  # nor would a traceback


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o620])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    configured = with_file(tmp_path, mode=mode)
    with pytest.raises(ConfigError, match=f"has mode {mode:04o}") as caught:
        read_webhook(configured)
    assert f"`chmod 600 {tmp_path}/discord-webhook`" in caught.value.hint
    webhook_file(tmp_path, mode=0o400)
    assert read_webhook(configured).url.endswith(TOKEN)


def test_a_missing_file_stops_messages_and_not_orch(tmp_path: Path) -> None:
    configured = notify(tmp_path, "notify: {discord: {webhook_file: nowhere}}")
    with pytest.raises(ConfigError, match="nowhere: No such file or directory"):
        read_webhook(configured)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    configured = with_file(tmp_path)
    os.chown(tmp_path / "discord-webhook", 12345, -1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        read_webhook(configured)


@pytest.mark.parametrize("text", ["notify: {discord: {}}", "notify:\n  discord:\n"])
def test_a_systemd_credential(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = notify(tmp_path, text)
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(ConfigError, match="neither webhook_file nor a systemd credential discord-webhook"):
        read_webhook(configured)
    webhook_file(tmp_path, mode=0o440)  # as systemd gives it, with the unit's user in an access list
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_webhook(configured).url.endswith(TOKEN)


def test_a_file_written_anew_is_another_version(tmp_path: Path) -> None:
    configured = with_file(tmp_path)
    first = read_webhook(configured).version
    assert read_webhook(configured).version == first
    os.utime(tmp_path / "discord-webhook", ns=(1, 1))
    assert read_webhook(configured).version != first
