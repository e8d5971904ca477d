"""The error tree, split by what is known about the effect.

EpochError
 ├── NotApplied      nothing happened: safe to retry and safe to clean up
 │    ├── Refused    … and a retry will not help: the configuration or the data must change first
 │    └── NoNewData  … because there is nothing to do
 ├── OutcomeUnknown  it may or may not have happened: look before anything else, never clean up
 ├── Fenced          a newer attempt, or another run, owns this epoch: stop
 └── Corrupt         ledger and sink disagree, or data is gone: a human must look; nothing was written
      └── RowsGone   … namely staged rows that were promised: they can be staged again
           └── RowsLost  … although the sink shows their epoch: staged again, they are put back

The split follows pyiceberg's ``CommitFailedException`` / ``CommitStateUnknownException``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_epochs import secrecy

log = secrecy.logger(__name__)

REMEDY = " What to do: "
"""What stands between cause and remedy, in the text of an error as in the reason of a VOTE_ABORT."""


class EpochError(Exception):
    """Root of all errors of this package. No secret that the process knows stands in its text.

    Attributes:
        what: What went wrong, one sentence.
        remedy: What the reader should do next, one sentence.
        pipeline, epoch, attempt, sink: Where, as far as known.
    """

    def __init__(
        self,
        what: str,
        *,
        remedy: str,
        pipeline: str | None = None,
        epoch: int | None = None,
        attempt: int | None = None,
        sink: str | None = None,
    ) -> None:
        self.what, self.remedy = secrecy.scrubbed(what), secrecy.scrubbed(remedy)
        self.pipeline, self.epoch, self.attempt, self.sink = pipeline, epoch, attempt, sink
        super().__init__(str(self))

    def __str__(self) -> str:
        where = [
            f"{key} {value}"
            for key, value in (
                ("pipeline", self.pipeline),
                ("epoch", self.epoch),
                ("attempt", self.attempt),
                ("sink", self.sink),
            )
            if value is not None
        ]
        prefix = f"[{', '.join(where)}] " if where else ""
        return secrecy.scrubbed(f"{prefix}{self.what}{REMEDY}{self.remedy}")


class NotApplied(EpochError):
    """The effect did not happen. Retrying and cleaning up are both safe."""


class Refused(NotApplied):
    """The effect did not happen and will not until something is changed: do not retry by machine."""


class NoNewData(NotApplied):
    """There is nothing to do."""


class OutcomeUnknown(EpochError):
    """The effect may have happened. Look at ledger and sink before anything else; never clean up."""


class Fenced(EpochError):
    """A newer attempt or another run owns this epoch. The caller changed nothing and must stop."""


class Corrupt(EpochError):
    """Ledger and sink disagree, or promised data is gone. Nothing was written; a human must look."""


class RowsGone(Corrupt):
    """Staged rows were promised and are gone, and the sink does not show their epoch. The coordinator stages again."""


class RowsLost(RowsGone):
    """The sink shows an epoch of which rows have vanished since. Staged again, they take the place of those.

    Attributes:
        undo: How to take back what the sink still shows of the epoch, for rows that cannot be staged again.
    """

    undo: str = ""


@contextmanager
def tolerated(what: str) -> Iterator[None]:
    """For work that is never needed for correctness: a failure is logged, and a later epoch tries again."""
    try:
        yield
    except Exception:
        log.warning("%s failed; it will be tried again with a later epoch", what, exc_info=True)
