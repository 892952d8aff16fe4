"""Every error that orch raises on purpose, and the exit code of each.

    OrchError                    message + hint + exit code
    ├─ UserError                 2    the command line or a file is wrong   (names file:line, field, value, remedy)
    │   ├─ ConfigError
    │   └─ UnknownTag            3
    ├─ Refused                   4    understood, not done: finished already, plan does not fit, run is held
    ├─ SlurmError
    │   ├─ SlurmUnreachable      5    try again; the daemon backs off and says so once
    │   ├─ NoAccounting          5    this Slurm keeps no accounts; an ending that it has forgotten is read from the record
    │   └─ SubmissionRejected    6    Slurm said no; its words are shown as they are
    │       └─ NoRoom            6    no for now: a limit on the number of jobs is reached
    ├─ StorageError              7    not enough space, not writable, checkpoint unreadable
    ├─ JournalError              8    damaged beyond the last line, newer schema
    │   └─ RunLocked             8    another process holds the run's lock; a pass leaves the run for the next one
    └─ TimedOut                  9    a wait whose time ran out

Only ``cli.main`` turns one of these into text and an exit code; the daemon's loop catches it for one run and goes on
with the others. Programming mistakes are assertions and are never caught.
"""


class OrchError(Exception):
    """Something went wrong in a way that can be said in one sentence, with a hint what to do about it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UserError(OrchError):
    """The command line or a file is wrong; the message names where and what to write instead."""

    exit_code = 2


class ConfigError(UserError):
    """A file of the user's (orch.yaml, job.yaml, job.sh) is wrong."""


class UnknownTag(UserError):
    """No run and no job folder of this name."""

    exit_code = 3


class Refused(OrchError):
    """Understood, and not done: finished already, held, does not fit."""

    exit_code = 4


class SlurmError(OrchError):
    """Slurm could not do what was asked."""

    exit_code = 5


class SlurmUnreachable(SlurmError):
    """Slurm did not answer. Never evidence about a job."""

    exit_code = 5


class NoAccounting(SlurmError):
    """This Slurm keeps no accounts, so that nobody can be asked about a job that slurmctld has forgotten."""

    exit_code = 5


class SubmissionRejected(SlurmError):
    """Slurm answered and said no; its own words are the message."""

    exit_code = 6


class NoRoom(SubmissionRejected):
    """Slurm said no for now: as many jobs are submitted as may be. There is room again when one of them has ended."""


class StorageError(OrchError):
    """Not enough space, not writable, no locks, a checkpoint that cannot be read."""

    exit_code = 7


def storage_error(error: OSError) -> StorageError:
    """What the operating system said of a file, as one of ours."""
    where = f"{error.filename}: " if error.filename else ""
    return StorageError(f"{where}{error.strerror or error}")


class JournalError(OrchError):
    """A journal damaged beyond its last line, of a newer schema, or locked by another process."""

    exit_code = 8


class RunLocked(JournalError):
    """Another orch process holds the run's lock. A pass leaves the run for the next one."""


class TimedOut(OrchError):
    """A wait whose time ran out before what was waited for came true."""

    exit_code = 9
