"""Starting a private cluster, and its repository's daemon, when the machine starts: a systemd user unit or a line for cron.

The texts are pure functions. Writing them twice is the same as once, and touches no unit and no crontab line but this
cluster's own: both are known by a name that is made from the cluster's folder.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from orchestrator import startup
from orchestrator.cluster.daemons import replace
from orchestrator.cluster.spec import layout_of
from orchestrator.errors import OrchError

_COMMAND_S = 15.0
_START_S = 300                   # what the cluster may take to come up


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """What is to be started: the cluster in ``folder``, then the daemon where there is a repository."""

    folder: Path
    repository: Path | None
    orch: Path                       # the command, absolute: neither systemd nor cron has this shell's PATH
    path: str                        # PATH, for Slurm's programs; short, for cron's sake
    slurm_conf: Path | None = None   # where orch would not find this cluster by itself

    @property
    def name(self) -> str:
        return f"{layout_of(self.folder).tag}-at-boot"

    @property
    def directory(self) -> Path:
        return self.repository or self.folder

    @property
    def log(self) -> Path:
        return self.folder / "log" / "at-boot.log"

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": self.path} | ({"SLURM_CONF": str(self.slurm_conf)} if self.slurm_conf else {})


def unit_text(boot: Boot) -> str:
    """The systemd user unit. One service, whose main process is the daemon: stopping it leaves the cluster and its jobs alone
    (KillMode), and nothing is started by ExecStartPre, whose children systemd would kill."""
    directory = startup.percent(str(boot.directory))
    then = 'exec "$$0" daemon' if boot.repository else "true"
    script = f'"$$0" cluster up --folder "$$1" && {then}'
    words = ["/bin/sh", "-c", script, startup.percent(str(boot.orch), "$$"), startup.percent(str(boot.folder), "$$")]
    lines = [
        "# written by orch cluster up --at-boot; orch cluster up --no-at-boot takes it away",
        "[Unit]",
        f"Description=orch: private Slurm{' and daemon' if boot.repository else ''} of {directory}",
        "",
        "[Service]",
        *(startup.daemon_lines() if boot.repository else ["Type=oneshot", "RemainAfterExit=yes"]),
        f"TimeoutStartSec={_START_S}",
        f"WorkingDirectory={directory}",
        *startup.environment_lines(boot.environment),
        f"ExecStart={' '.join(map(startup.quoted, words))}",
        "KillMode=process",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def crontab_line(boot: Boot) -> str:
    """The line for cron. Its comment is what it is known by. Raises OrchError where cron would refuse it."""
    orch = shlex.quote(str(boot.orch))
    then = f" && exec {orch} daemon" if boot.repository else ""
    command = f"{orch} cluster up --folder {shlex.quote(str(boot.folder))}{then}"
    return f"{startup.cron_line('@reboot', boot.directory, boot.environment, command, boot.log)} {_mark(boot)}"


def _mark(boot: Boot) -> str:
    return f"# {boot.name}"


def with_line(crontab: str, boot: Boot) -> str:
    """The crontab with this line, once; every other line as it was."""
    return without_line(crontab, boot) + crontab_line(boot) + "\n"


def without_line(crontab: str, boot: Boot) -> str:
    kept = [line for line in crontab.splitlines() if not (line.startswith("@reboot ") and line.endswith(_mark(boot)))]
    return "".join(f"{line}\n" for line in kept)


# --- doing it ---------------------------------------------------------------------------------------------------------


def at_boot(boot: Boot) -> list[str]:
    """Write the unit where systemd runs for this user, else the line for cron; in words, what was done and how to undo it."""
    undo = f"undo: orch cluster up --folder {shlex.quote(str(boot.folder))} --no-at-boot"
    if _systemd_runs():
        unit = _unit_path(boot)
        unit.parent.mkdir(parents=True, exist_ok=True)
        replace(unit, unit_text(boot))
        _run("systemctl", "--user", "daemon-reload")
        _run("systemctl", "--user", "enable", unit.name)
        said = [f"at boot: wrote and enabled {unit}"]
        lingers = _answer("loginctl", "enable-linger")
        if lingers.returncode != 0:
            said.append("at boot: it starts when you log in only; for a start without: sudo loginctl enable-linger $USER "
                        f"({lingers.stderr.strip()})")
        return [*said, undo]
    if shutil.which("crontab"):
        before = _crontab()
        if before != with_line(before, boot):
            _write_crontab(with_line(before, boot))
        return [f"at boot: this line is in your crontab: {crontab_line(boot)}", undo]
    raise OrchError("neither systemd (for this user) nor crontab is here: nothing can start the cluster at boot",
                    hint="install cron, or run `orch cluster up` and `orch daemon` from what starts your machine's services")


def not_at_boot(boot: Boot) -> list[str]:
    """Take away what ``at_boot`` wrote, in either place. The account's lingering stays: others may rely on it."""
    said = []
    unit = _unit_path(boot)
    if unit.exists():
        if _systemd_runs():
            _run("systemctl", "--user", "disable", unit.name)
        unit.unlink()
        if _systemd_runs():
            _run("systemctl", "--user", "daemon-reload")
        said.append(f"at boot: removed {unit}")
    if shutil.which("crontab"):
        before = _crontab()
        if before != without_line(before, boot):
            _write_crontab(without_line(before, boot))
            said.append("at boot: removed the line from your crontab")
    return said or ["at boot: there was nothing to remove"]


def _unit_path(boot: Boot) -> Path:
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return config / "systemd" / "user" / f"{boot.name}.service"


def _systemd_runs() -> bool:
    return shutil.which("systemctl") is not None and _answer("systemctl", "--user", "show-environment").returncode == 0


def _crontab() -> str:
    """This user's crontab, '' if there is none. One that cannot be read must not be taken for empty: it would be lost."""
    answer = _answer("crontab", "-l")
    if answer.returncode == 0:
        return answer.stdout
    if "no crontab" in answer.stderr.lower():
        return ""
    raise OrchError(f"crontab -l: {answer.stderr.strip() or answer.returncode}")


def _write_crontab(text: str) -> None:
    _run("crontab", "-", given=text)


def _run(*command: str, given: str = "") -> None:
    answer = _answer(*command, given=given)
    if answer.returncode != 0:
        raise OrchError(f"{' '.join(command)}: {(answer.stderr or answer.stdout).strip()}")


def _answer(*command: str, given: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
