"""Accounting for a private Slurm: MariaDB, munged and slurmdbd in a folder of their own, never the system's services.

The database listens on a socket in that folder alone, which is closed to others, so that it needs no accounts. slurmdbd has
to be there before a slurmctld that has kept nothing yet, hence a munged of its own with the cluster's key.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.cluster.daemons import until
from orchestrator.cluster.machine import clean_environment, free_ports, program, search_path
from orchestrator.cluster.spec import layout_of

NEEDED = ("mariadbd", "slurmdbd")


def missing() -> list[str]:
    return [name for name in NEEDED if not shutil.which(name, path=search_path())]


@dataclass
class Accounting:
    """``begin``, then start a cluster in ``cluster_folder`` with ``extra_conf``; ``end`` after that cluster's end."""

    folder: Path
    cluster_folder: Path
    port: int = 0
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def extra_conf(self) -> str:
        return ("AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
                f"AccountingStoragePort={self.port}\nAccountingStoragePass={layout_of(self.cluster_folder).munge_socket}\n")

    def begin(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        layout = layout_of(self.cluster_folder)
        self.port = free_ports(["slurmdbd"], layout_of(self.folder))["slurmdbd"]
        self._key(layout.folder / "munge" / "key")
        self._start("munged", "--foreground", "--force", f"--key-file={layout.folder / 'munge' / 'key'}",
                    *(f"--{name}={self.folder / file}" for name, file in (
                        ("socket", "munge.socket"), ("pid-file", "munged.pid"), ("seed-file", "munged.seed"),
                        ("log-file", "munged.log"))))
        (self.folder / "data").mkdir(exist_ok=True)
        self._start("mariadbd", "--no-defaults", *(["--user=root"] if os.getuid() == 0 else []), "--skip-networking",
                    "--skip-grant-tables", "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0",
                    *(f"--{name}={self.folder / file}" for name, file in (
                        ("datadir", "data"), ("socket", "sql"), ("pid-file", "mariadbd.pid"), ("tmpdir", "data"))))
        assert until((self.folder / "sql").is_socket, 30), self.said("mariadbd")
        self.start_slurmdbd()

    def _key(self, key: Path) -> None:
        """The cluster takes the key that it finds."""
        key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(secrets.token_bytes(128))

    def start_slurmdbd(self) -> None:
        conf = self.folder / "slurmdbd.conf"
        conf.touch(mode=0o600)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        conf.write_text("\n".join([
            "AuthType=auth/munge", f"AuthInfo=socket={self.folder / 'munge.socket'}", "DbdHost=localhost",
            "DbdAddr=127.0.0.1", f"DbdPort={self.port}", f"SlurmUser={user}", "DebugLevel=info",
            f"LogFile={self.folder / 'slurmdbd.log'}", f"PidFile={self.folder / 'slurmdbd.pid'}",
            "StorageType=accounting_storage/mysql", "StorageHost=localhost", "StorageLoc=slurm", f"StorageUser={user}",
            ""]))
        self._start("slurmdbd", "-D", environment={
            "SLURM_CONF": str(self.folder / "slurm.conf"), "MYSQL_UNIX_PORT": str(self.folder / "sql")})
        assert until(self._listens, 30), self.said("slurmdbd")

    def stop_slurmdbd(self) -> None:
        self._stop("slurmdbd")

    def end(self) -> None:
        for name in list(reversed(self.running)):
            self._stop(name)

    def said(self, name: str) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in (
            self.folder / f"{name}.out", self.folder / f"{name}.log") if path.exists())

    def _listens(self) -> bool:
        """slurmdbd takes connections once its tables are made; another process of this user has the socket then."""
        assert self.running["slurmdbd"].poll() is None, self.said("slurmdbd")
        wanted = f"0100007F:{self.port:04X} 00000000:0000 0A"
        anywhere = f"00000000:{self.port:04X} 00000000:0000 0A"
        table = Path("/proc/net/tcp").read_text()
        return wanted in table or anywhere in table

    def _start(self, name: str, *options: str, environment: Mapping[str, str] | None = None) -> None:
        with (self.folder / f"{name}.out").open("wb") as log:
            self.running[name] = subprocess.Popen(
                [program(name), *options], env=clean_environment() | dict(environment or {}), cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _stop(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
