"""What starts orch by itself: a systemd user unit, a line for cron, an entry for scrontab. Texts alone; pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import OrchError

CRON_LINE_MAX = 950                # cron refuses a command of 1000 characters, and with it the whole crontab
WATCHDOG_AT_LEAST_S = 600.0        # the passes' own limits end whatever hangs long before

# No namespaces (ProtectSystem= and its kin): to a user's service they make every other owner nobody, munge's too.
HARDENING = (
    "# harmless to Slurm's commands; without NoNewPrivileges where `notify: {command: ...}` sends mail by a setgid sendmail",
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "SystemCallArchitectures=native",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """A repository, the command that makes passes over it, and what neither systemd nor cron has of this shell."""

    repository: Path
    key: str                       # the repository in names of units and jobs
    orch: Path
    environment: Mapping[str, str]
    watchdog_s: float = WATCHDOG_AT_LEAST_S
    credential: str = ""           # of the webhook

    @property
    def unit(self) -> str:
        return f"orch-{self.key}.service"


def daemon_unit(start: Startup) -> str:
    """The systemd user unit of the daemon. A stop reaches the daemon alone, so that a sbatch under way ends by itself."""
    where = f"~/.config/systemd/user/{start.unit}"
    lines = [
        "# The orch daemon of one repository as a systemd user unit.",
        f"#   mkdir -p ~/.config/systemd/user && orch daemon --print-unit > {where}",
        f"#   systemctl --user daemon-reload && systemctl --user enable --now {start.unit}",
        "#   loginctl enable-linger      (or it ends when you log out)",
        "[Unit]",
        f"Description=orch daemon of {percent(str(start.repository))}",
        "",
        "[Service]",
        *daemon_lines(start.watchdog_s),
        f"WorkingDirectory={percent(str(start.repository))}",
        *environment_lines(start.environment),
        f"ExecStart={quoted(percent(str(start.orch), '$$'))} daemon",
        "KillMode=mixed",
        "TimeoutStopSec=120",
        "# the Discord webhook, where orch.yaml says `notify: {discord: {}}`:",
        f"#LoadCredential={start.credential}:%h/.config/orch/{start.credential}",
        *HARDENING,
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def daemon_lines(watchdog_s: float = WATCHDOG_AT_LEAST_S) -> list[str]:
    """What a daemon needs of its unit, whatever else that starts. The watchdog's SIGABRT prints where the daemon stood; what
    does not end by it gets SIGKILL."""
    return ["Type=notify", "ExecReload=/bin/kill -HUP $MAINPID", "Restart=always", "RestartSec=10",
            f"WatchdogSec={watchdog_s:.0f}", "TimeoutAbortSec=10", "LimitCORE=0"]


def tick_crontab(start: Startup) -> str:
    """The line for cron."""
    line = cron_line("* * * * *", start.repository, start.environment, f"{shlex.quote(str(start.orch))} tick",
                     start.repository / "ops" / "tick.log")
    return f"# one pass a minute over {start.repository}\n{line}\n"


def tick_scrontab(start: Startup) -> str:
    """The entry for scrontab: each pass a job of a few seconds. #SCRON knows no quotes, so paths stand in the command, which
    a shell gets as it is. A job's own SLURM_CONF may be another path to the same cluster, so it does not count."""
    options = {"job-name": f"orch-tick@{start.key}", "time": "00:10:00", "ntasks": "1", "cpus-per-task": "1", "mem": "500M",
               "output": "/dev/null"}
    words = " ".join(shlex.quote(f"{name}={value}") for name, value in start.environment.items())
    return "\n".join([
        f"# a pass every five minutes over {start.repository}, as a job; add #SCRON --partition=... or --account=...",
        *(f"#SCRON --{name}={value}" for name, value in options.items()),
        f"*/5 * * * * cd {shlex.quote(str(start.repository))} && exec env -u SLURM_CONF {words} "
        f"{shlex.quote(str(start.orch))} tick >> ops/tick.log 2>&1"]) + "\n"


def cron_line(when: str, directory: Path, environment: Mapping[str, str], command: str, log: Path) -> str:
    """A line for cron, which takes a bare % for the end of it. Raises OrchError where cron would refuse it."""
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    script = f"export {exports}; cd {shlex.quote(str(directory))} && {{ {command}; }} >> {shlex.quote(str(log))} 2>&1"
    line = f"{when} {script.replace('%', chr(92) + '%')}"
    if len(line) > CRON_LINE_MAX:
        raise OrchError(f"the line for cron would be too long: {line}", hint="write it into a script, and that into cron")
    return line


def environment_lines(environment: Mapping[str, str]) -> list[str]:
    return [f"Environment={quoted(percent(f'{name}={value}'))}" for name, value in environment.items()]


def percent(text: str, dollar: str = "$") -> str:
    """systemd expands % everywhere, and $ in commands."""
    return text.replace("%", "%%").replace("$", dollar)


def quoted(text: str) -> str:
    """A word of a unit's line."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def short_path(orch: Path, programs: list[Path]) -> str:
    """The folders of orch and of these programs, and the system's own; short, for cron's sake."""
    folders = [str(orch.parent), *(str(program.parent) for program in programs), "/usr/local/bin", "/usr/bin", "/bin"]
    return ":".join(dict.fromkeys(folders))
