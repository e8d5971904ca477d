"""Runs checks that depend on one another. A check that fails stops only those that depend on it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from airflow_epochs import secrecy
from airflow_epochs.errors import RAISED_BY_USERS, EpochError, Fenced, located


class CheckResult(Enum):
    """What came of a check."""

    OK = "ok"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One check and its result.

    Attributes:
        about: The part of the pipeline that was checked: ``LEDGER``, …, or "sink" and its name.
        check: What was looked at.
        where: The connection, the file or the destination that was asked.
        details: What was found; or why it was not checked.
        error: Why it failed; else None.
    """

    about: str
    check: str
    where: str
    result: CheckResult
    details: str = ""
    error: EpochError | None = None


CheckKey = tuple[str, str]
"""What identifies a check within a pipeline: ``about`` and ``check``."""


class NotChecked(Exception):
    """A look that cannot be made, although nothing is wrong. Its text is a sentence."""


@dataclass(frozen=True, kw_only=True)
class PlannedCheck:
    """A check that is to be made.

    Attributes:
        ask: Looks, and says what it has found. Raises an error if that is not as it must be.
        after: The checks that it rests on.
    """

    about: str
    check: str
    where: str
    ask: Callable[[], str]
    after: tuple[CheckKey, ...] = ()

    @property
    def key(self) -> CheckKey:
        """The check by name."""
        return self.about, self.check


def made(pipeline: str, looks: Collection[PlannedCheck]) -> Iterator[Checked]:
    """Make the checks, one after another, and tell of each one when it is made."""
    without: dict[CheckKey, CheckKey] = {}  # what did not succeed -> the check that is to blame
    for look in looks:
        blame = next((without[key] for key in look.after if key in without), None)
        told = _because(look, blame) if blame else _made(pipeline, look)
        if told.result is not CheckResult.OK:
            without[look.key] = blame or look.key
        yield told


def _because(look: PlannedCheck, blame: CheckKey) -> Checked:
    return _checked(
        look, CheckResult.NOT_CHECKED, f"It rests on another check, which did not succeed: {', '.join(blame)}."
    )


def _made(pipeline: str, look: PlannedCheck) -> Checked:
    try:
        with located(pipeline):
            return _checked(look, CheckResult.OK, look.ask())
    except NotChecked as why:
        return _checked(look, CheckResult.NOT_CHECKED, str(why))
    except Fenced as moved:
        return _checked(look, CheckResult.NOT_CHECKED, f"The pipeline went on meanwhile. {moved.what}")
    except EpochError as error:
        return replace(_checked(look, CheckResult.FAILED, ""), error=error)
    except RAISED_BY_USERS as error:  # of a library, or of a sink of the user's own: a run would show it as it is
        return _checked(look, CheckResult.FAILED, f"{type(error).__name__}: {error}")


def _checked(look: PlannedCheck, result: CheckResult, details: str) -> Checked:
    return Checked(
        about=look.about, check=look.check, where=look.where, result=result, details=secrecy.scrubbed(details)
    )
