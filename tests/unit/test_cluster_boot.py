"""What starts a private cluster with the machine: texts as pure functions, and a stand-in that keeps crontab's contract."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cluster import boot as at
from orchestrator.cluster.boot import Boot
from orchestrator.errors import OrchError

BOOT = Boot(folder=Path("/data/my repo/.orch/cluster"), repository=Path("/data/my repo"), orch=Path("/opt/50% off/orch"),
            path="/opt/bin:/usr/bin")
OTHER = replace(BOOT, folder=Path("/data/other/.orch/cluster"))

CRONTAB = """\
#!/bin/sh
# what crontab(1) promises: -l prints or says that there is none, - takes the new one from its input
[ -e "{refuses}" ] && {{ echo "you are not allowed to use this program" >&2; exit 1; }}
case $1 in
-l) [ -e "{kept}" ] || {{ echo "no crontab for ada" >&2; exit 1; }}; cat "{kept}" ;;
-) cat > "{kept}" ;;
*) exit 2 ;;
esac
"""


def value_of(text: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in text.splitlines() if line.partition("=")[0] == key]


def test_the_unit_starts_the_cluster_and_becomes_the_daemon() -> None:
    text = at.unit_text(BOOT)
    assert value_of(text, "ExecStart") == [
        r'"/bin/sh" "-c" "\"$$0\" cluster up --folder \"$$1\" && exec \"$$0\" daemon" "/opt/50%% off/orch" '
        '"/data/my repo/.orch/cluster"']
    assert value_of(text, "Type") == ["notify"] and value_of(text, "WatchdogSec"), "the shell becomes the daemon, which tells"
    assert value_of(text, "WorkingDirectory") == ["/data/my repo"]
    assert value_of(text, "Environment") == ['"PATH=/opt/bin:/usr/bin"']
    assert value_of(text, "KillMode") == ["process"], "stopping the daemon leaves Slurm and its jobs alone"
    assert value_of(text, "WantedBy") == ["default.target"]


def test_without_a_repository_the_unit_starts_the_cluster_alone() -> None:
    text = at.unit_text(replace(BOOT, repository=None))
    assert value_of(text, "Type") == ["oneshot"]
    assert value_of(text, "RemainAfterExit") == ["yes"]
    assert "daemon" not in value_of(text, "ExecStart")[0]


def test_where_orch_would_not_find_the_cluster_it_is_told() -> None:
    elsewhere = replace(BOOT, slurm_conf=Path("/elsewhere/etc/slurm.conf"))
    assert '"SLURM_CONF=/elsewhere/etc/slurm.conf"' in value_of(at.unit_text(elsewhere), "Environment")
    assert "SLURM_CONF=/elsewhere/etc/slurm.conf;" in at.crontab_line(elsewhere)


def test_the_crontab_line_is_one_line_that_a_shell_runs_as_meant(tmp_path: Path) -> None:
    orch = tmp_path / "50% it's" / "orch"
    orch.parent.mkdir()
    orch.write_text(f'#!/bin/sh\necho "$PWD" "$@" >> {tmp_path}/said\n')
    orch.chmod(0o755)
    repository = tmp_path / "my repo"
    folder = repository / ".orch" / "cluster"
    (folder / "log").mkdir(parents=True)
    line = at.crontab_line(replace(BOOT, orch=orch, repository=repository, folder=folder))
    assert "\n" not in line
    assert line.replace(r"\%", "").count("%") == 0, "cron takes a bare % for the end of the command"
    command = line.removeprefix("@reboot ").replace(r"\%", "%")
    subprocess.run(["/bin/sh", "-c", command], check=True)
    said = (tmp_path / "said").read_text().splitlines()
    assert said == [f"{repository} cluster up --folder {folder}", f"{repository} daemon"]


@pytest.mark.parametrize("before", ["", "# mine\n5 * * * * backup\n", "@reboot true # another-at-boot\n"])
def test_the_line_comes_once_and_goes_without_a_trace(before: str) -> None:
    once = at.with_line(before, BOOT)
    assert once.startswith(before)
    assert at.with_line(once, BOOT) == once
    assert at.without_line(once, BOOT) == before


def test_each_cluster_has_a_line_of_its_own() -> None:
    both = at.with_line(at.with_line("", BOOT), OTHER)
    assert at.without_line(both, BOOT) == at.with_line("", OTHER)


@pytest.fixture
def cron(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without systemd and with a crontab program that keeps its crontab in the file returned."""
    kept, programs = tmp_path / "kept", tmp_path / "bin"
    programs.mkdir()
    (programs / "crontab").write_text(CRONTAB.format(kept=kept, refuses=tmp_path / "refuses"))
    (programs / "crontab").chmod(0o755)
    (programs / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return kept


def test_crontab_is_written_once_and_what_was_there_stays(cron: Path) -> None:
    cron.write_text("5 * * * * backup\n")
    said = at.at_boot(BOOT)
    assert at.crontab_line(BOOT) in said[0] and "--no-at-boot" in said[1]
    at.at_boot(BOOT)
    assert cron.read_text() == f"5 * * * * backup\n{at.crontab_line(BOOT)}\n"
    assert at.not_at_boot(BOOT) == ["at boot: removed the line from your crontab"]
    assert cron.read_text() == "5 * * * * backup\n"
    assert at.not_at_boot(BOOT) == ["at boot: there was nothing to remove"]


def test_a_crontab_that_cannot_be_read_is_not_replaced(cron: Path, tmp_path: Path) -> None:
    cron.write_text("5 * * * * backup\n")
    (tmp_path / "refuses").touch()
    with pytest.raises(OrchError, match="not allowed"):
        at.at_boot(BOOT)
    assert cron.read_text() == "5 * * * * backup\n"


def test_a_line_that_cron_would_refuse_is_not_written(cron: Path) -> None:
    with pytest.raises(OrchError, match="too long"):
        at.at_boot(replace(BOOT, path="/x" * 500))
    assert not cron.exists()


def test_a_first_crontab_is_made(cron: Path) -> None:
    at.at_boot(BOOT)
    assert cron.read_text() == f"{at.crontab_line(BOOT)}\n"


SYSTEMCTL = """\
#!/bin/sh
echo "$0 $*" | /bin/sed 's,.*/,,' >> "{log}"
case "$0" in *loginctl) echo "Access denied" >&2; exit 1 ;; esac
"""


def test_where_systemd_runs_the_unit_is_written_and_enabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, programs = tmp_path / "log", tmp_path / "bin"
    programs.mkdir()
    for name in ("systemctl", "loginctl"):
        (programs / name).write_text(SYSTEMCTL.format(log=log))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    said = at.at_boot(BOOT)
    unit = tmp_path / "config" / "systemd" / "user" / f"{BOOT.name}.service"
    assert unit.read_text() == at.unit_text(BOOT)
    assert f"systemctl --user enable {unit.name}" in log.read_text().splitlines()
    assert "loginctl enable-linger" in log.read_text()
    assert "sudo loginctl enable-linger" in said[1], "where lingering is refused, that is said"
    at.not_at_boot(BOOT)
    assert not unit.exists()
    assert f"systemctl --user disable {unit.name}" in log.read_text().splitlines()


def test_where_neither_is_there_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OrchError, match="neither systemd"):
        at.at_boot(BOOT)
