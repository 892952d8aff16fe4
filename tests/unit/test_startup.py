"""What starts orch by itself: units and lines that mean the same to systemd, cron and a shell as to us."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import OrchError
from orchestrator.startup import Startup, daemon_unit, short_path, tick_crontab, tick_scrontab

START = Startup(repository=Path("/data/50% of $HOME"), key="of-home-1234abcd", orch=Path("/opt/$x/orch"),
                environment={"PATH": "/opt/bin:/usr/bin"}, watchdog_s=700.0, credential="hook")


def value_of(text: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in text.splitlines() if line.partition("=")[0] == key]


def test_the_unit_says_what_systemd_must_know() -> None:
    text = daemon_unit(START)
    assert value_of(text, "Type") == ["notify"] and value_of(text, "Restart") == ["always"]
    assert value_of(text, "ExecStart") == ['"/opt/$$x/orch" daemon']
    assert value_of(text, "WorkingDirectory") == ["/data/50%% of $HOME"]
    assert value_of(text, "Environment") == ['"PATH=/opt/bin:/usr/bin"']
    assert value_of(text, "WatchdogSec") == ["700"]
    assert value_of(text, "ExecReload") == ["/bin/kill -HUP $MAINPID"]
    assert value_of(text, "KillMode") == ["mixed"], "a sbatch under way must not be killed with the daemon"
    assert value_of(text, "#LoadCredential") == ["hook:%h/.config/orch/hook"]
    assert "orch-of-home-1234abcd.service" in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "orch"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "orch-try.service"
    text = daemon_unit(replace(START, repository=tmp_path, orch=program))
    unit.write_text(text.replace("#LoadCredential", "LoadCredential"))
    ran = subprocess.run(["systemd-analyze", "verify", "--user", unit], capture_output=True, text=True, check=False,
                         env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)})
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


@pytest.fixture
def spoken(tmp_path: Path) -> Startup:
    """A repository and a program with all that a shell, cron and #SCRON treat in ways of their own."""
    orch, repository = tmp_path / "50% it's" / "orch", tmp_path / "my %d repo"
    orch.parent.mkdir()
    orch.write_text('#!/bin/sh\necho "$PWD" "$@" "$SLURM_CONF" "$PATH"\n')
    orch.chmod(0o755)
    (repository / "ops").mkdir(parents=True)
    return replace(START, repository=repository, orch=orch,
                   environment={"PATH": "/a b:/usr/bin:/bin", "SLURM_CONF": "/c d/slurm.conf"})


def run_by_shell(command: str, start: Startup) -> str:
    subprocess.run(["/bin/sh", "-c", command], check=True, cwd="/", env={"SLURM_CONF": "/of/the/job"})
    return (start.repository / "ops" / "tick.log").read_text().strip()


def test_the_line_for_cron_is_run_as_meant(spoken: Startup) -> None:
    comment, line = tick_crontab(spoken).splitlines()
    assert comment.startswith("#")
    command = line.removeprefix("* * * * * ")
    assert not re.search(r"(?<!\\)%", command), "cron takes a bare % for the end of the command"
    said = run_by_shell(command.replace(r"\%", "%"), spoken)
    assert said == f"{spoken.repository} tick /c d/slurm.conf /a b:/usr/bin:/bin"


def test_a_line_that_cron_would_refuse_is_not_printed() -> None:
    with pytest.raises(OrchError, match="too long"):
        tick_crontab(replace(START, environment={"PATH": "/x" * 500}))


def test_the_entry_for_scrontab_is_run_as_meant(spoken: Startup) -> None:
    *options, line = tick_scrontab(spoken).splitlines()[1:]
    for option in options:
        assert re.fullmatch(r"#SCRON --[a-z-]+=[^ \"'\\]+", option), "#SCRON knows neither blanks nor quotes in a value"
    command = line.removeprefix("*/5 * * * * ")
    assert run_by_shell(command, spoken) == f"{spoken.repository} tick /c d/slurm.conf /a b:/usr/bin:/bin"


def test_a_jobs_own_slurm_conf_does_not_count(spoken: Startup) -> None:
    line = tick_scrontab(replace(spoken, environment={"PATH": "/usr/bin:/bin"})).splitlines()[-1]
    assert run_by_shell(line.removeprefix("*/5 * * * * "), spoken) == f"{spoken.repository} tick  /usr/bin:/bin"


def test_path_has_what_is_needed_once() -> None:
    programs = [Path("/opt/slurm/bin/sbatch"), Path("/usr/bin/slurmctld")]
    assert short_path(Path("/opt/orch/bin/orch"), programs) == "/opt/orch/bin:/opt/slurm/bin:/usr/bin:/usr/local/bin:/bin"
