"""The error tree, split by what is known about the effect.

EpochError
 ├── NotApplied      nothing happened: safe to retry and safe to clean up
 │    ├── Refused    … and a retry will not help: the configuration or the data must change first
 │    └── NoNewData  … because there is nothing to do
 ├── OutcomeUnknown  it may or may not have happened: look before anything else, never clean up
 ├── Fenced          a newer attempt, or another run, owns this epoch: stop
 └── Corrupt         ledger and sink disagree, or data is gone: a human must look; nothing was written
      └── RowsGone   … namely staged rows that a sink voted for: they can be staged again
           └── RowsLost  … although the sink shows their epoch: staged again, they are put back

The split follows pyiceberg's ``CommitFailedException`` / ``CommitStateUnknownException``.

BadArgument is no EpochError: it is raised while a DAG file is loaded, before there is an epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_epochs import secrecy

log = secrecy.logger(__name__)

RAISED_BY_USERS = Exception, SystemExit
"""What code of the user's may raise. ``sys.exit`` there is a failure like any other: Airflow would retry the task, and
say nothing of the cause. KeyboardInterrupt and Airflow's timeout are from outside: they end the task.
"""

_REMEDY = "What to do: "
"""Begins an error's last line. Version 0.1 put it into the middle of one line."""


_OF_TASK = re.compile(r"(?:^|(?<=\. ))(?:then )?(?:clear the|let airflow retry)\b.*?(?:\.(?= )|$)", re.I)
"""A remedy's sentence for a task that has failed."""

_COMMAND = re.compile(r"`airflow epochs [^`]*`")


def filled(text: str, **place: object) -> str:
    """``text`` with the known names in place of words like PIPELINE, so that its commands can be pasted."""

    def with_place(command: re.Match[str]) -> str:
        return re.sub(r"\b(PIPELINE|EPOCH|SINK)\b", lambda word: str(place.get(word[0]) or word[0]), command[0])

    return _COMMAND.sub(with_place, text)


@dataclass(frozen=True)
class Code:
    """One kind of failure, by a name that one can search for. ``codes`` declares the codes of this package.

    Attributes:
        name: ``EPOCHS-…``; begins the text of the error, and names its section in docs/failures.md.
        kind: The class of the errors that carry it: what is known about the effect.
        happened: What has gone wrong, in general. The error itself says where and with what.
        remedy: What to do, in general. The error itself may say it with names and numbers.
    """

    name: str
    kind: type[Exception]
    happened: str
    remedy: str


class EpochError(Exception):
    """Root of all errors of this package. No secret that the process knows stands in its text.

    The text has a line each for cause, place and remedy; see ``__str__``.

    Attributes:
        what: What went wrong, one sentence.
        remedy: What the reader should do next, one sentence. Default: the code's.
        code: What kind of failure it is; None for an error of a sink or source of the user's own.
        pipeline, epoch, attempt, sink: The place, as far as known.
    """

    def __init__(
        self,
        what: str,
        *,
        remedy: str | None = None,
        code: Code | None = None,
        pipeline: str | None = None,
        epoch: int | None = None,
        attempt: int | None = None,
        sink: str | None = None,
    ) -> None:
        if remedy is None and code is None:
            raise TypeError("an error needs a remedy, or a code that has one")
        self.code = code
        self.what = secrecy.scrubbed(what)
        self.remedy = secrecy.scrubbed(code.remedy if code and remedy is None else remedy or "")
        self.pipeline, self.epoch, self.attempt, self.sink = pipeline, epoch, attempt, sink
        super().__init__(str(self))

    def __str__(self) -> str:
        place = {"pipeline": self.pipeline, "epoch": self.epoch, "attempt": self.attempt, "sink": self.sink}
        known = ", ".join(f"{key} {value}" for key, value in place.items() if value is not None)
        where = f"Where: {known}\n" if known else ""
        return secrecy.scrubbed(f"{self.cause}\n{where}{_REMEDY}{self.filled_remedy}")

    @property
    def filled_remedy(self) -> str:
        """The remedy with the known pipeline, epoch and sink in its commands, so that they can be pasted."""
        return filled(self.remedy, PIPELINE=self.pipeline, EPOCH=self.epoch, SINK=self.sink)

    @property
    def cause(self) -> str:
        """The code, if there is one, and what went wrong."""
        return f"{self.code.name}: {self.what}" if self.code else self.what

    @property
    def reason(self) -> str:
        """Cause and remedy without the place: what a VOTE_ABORT says. ``cause_and_remedy`` takes it apart."""
        return with_remedy(self.cause, self.remedy)


def with_remedy(cause: str, remedy: str) -> str:
    """Cause and remedy, a line each; also for what is told without an error."""
    return f"{cause}\n{_REMEDY}{remedy}"


def cause_and_remedy(reason: str) -> tuple[str, str]:
    """The two parts of a VOTE_ABORT's reason, also of one that version 0.1 recorded. No remedy: the second is empty."""
    cause, *remedy = re.split(rf"\s+{_REMEDY}", reason, maxsplit=1)
    return cause, remedy[0] if remedy else ""


def with_more(reason: str, cause: str, remedy: str = "") -> str:
    """A VOTE_ABORT's reason with further sentences at the end of its cause, and of its remedy."""
    told, does = cause_and_remedy(reason)
    told, does = f"{told} {cause}", f"{does} {remedy}".strip()
    return with_remedy(told, does) if does else told


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
    """Ledger and sink disagree, or data that a sink voted for is gone. Nothing was written; a human must look."""


class RowsGone(Corrupt):
    """Rows that a sink voted for are gone, and it does not show their epoch. The coordinator stages them again."""


class RowsLost(RowsGone):
    """The sink shows an epoch, and some of its rows have vanished since. The coordinator stages the epoch's rows again.

    Attributes:
        undo: How to take back what the sink still shows of the epoch, for rows that cannot be staged again.
    """

    undo: str = ""


class BadArgument(ValueError):
    """An argument in a DAG file is not valid. Airflow shows the text as the DAG's import error.

    Attributes:
        what: Which argument is wrong, what its value is, and which values are valid. Whole sentences.
        code: What kind of mistake it is.
    """

    def __init__(self, what: str, *, code: Code) -> None:
        self.what, self.code = secrecy.scrubbed(what), code
        super().__init__(self.what)

    def __str__(self) -> str:
        return f"{self.code.name}: {self.what}"


def without_code(error: BaseException) -> str:
    """The text of ``error`` without its code, for another error that quotes it: a text has one code."""
    return error.what if isinstance(error, BadArgument) else str(error)


@contextmanager
def located(
    pipeline: str, epoch: int | None = None, attempt: int | None = None, sink: str | None = None
) -> Iterator[None]:
    """Add this place to each error that the block raises. Parts that the error names itself stay."""
    try:
        yield
    except EpochError as error:
        error.pipeline, error.sink = error.pipeline or pipeline, error.sink or sink
        if error.epoch is None:
            error.epoch, error.attempt = epoch, attempt
        raise


@contextmanager
def tolerated(
    what: str, then: str = "it will be tried again with a later epoch", *, remedied: bool = False
) -> Iterator[None]:
    """For work that is never needed for correctness: a failure is logged, and a later epoch tries again.

    An EpochError is one line.

    Args:
        what: What is done.
        then: What becomes of it if it fails.
        remedied: Whether the line has the remedy, but for what it says of a failed task: for work that a person must
            look at, or it fails in every epoch. Most remedies are wrong beside a task that has not failed.
    """
    try:
        yield
    except EpochError as error:
        remedy = _OF_TASK.sub("", " ".join(error.filled_remedy.split())).strip() if remedied else ""
        told = with_remedy(error.cause, remedy) if remedy else error.cause
        log.warning("%s failed; %s: %s", what, then, " ".join(told.split()))
        log.debug("the traceback of the failure above", exc_info=True)
    except RAISED_BY_USERS:
        log.warning("%s failed; %s", what, then, exc_info=True)


def first_line(error: BaseException) -> str:
    """The first line of an error's message that is not empty; the error's class if there is none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
