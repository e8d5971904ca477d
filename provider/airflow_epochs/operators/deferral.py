"""How long tasks wait, and where: in the triggerer, or here, in their worker slot. ``Wait``: how ``open`` waits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_epochs.contracts import Limits
    from airflow_epochs.model import JsonDict

TRIGGER_FAILED = "__fail__"
"""Airflow's name for the method with which it resumes a task whose trigger failed, or fired nothing in time."""
GRACE_S = 60.0
"""How long after the end of the wait Airflow resumes the task if no event has come."""
WORTH_DEFERRING_S = 1.0
"""A shorter wait costs less in the worker than in the triggerer."""
QUIET_S_MAX = 60.0
REST_S = 60.0
"""How long a run of a paused ``@continuous`` DAG waits before it is skipped."""
LOOK_AGAIN_S = 3600.0
"""After this time without an event, a deferred ``stage`` looks itself whether its application has ended."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """How a task waits.

    Attributes:
        end: When the wait is over; None: it has not begun.
        looks: How often something woke this task, and there was not enough data.
        here: Whether the task waits for the rest in its worker slot.
    """

    end: datetime | None = None
    looks: int = 0
    here: bool = False

    @classmethod
    def after(cls, event: JsonDict | None, *, until: str | None = None, looks: int = 0) -> Wait:
        """The wait after an event. Only the task's own clock says that the time is over: until then it waits here.

        ``DAG.test`` of Airflow 3.3 forgets all arguments but the event.
        """
        over = not event or event.get("why") == "over"
        end = datetime.fromisoformat(until) if until else _now() if over else None
        return cls(end=end, looks=looks, here=over)

    @classmethod
    def after_failure(cls, told: JsonDict) -> Wait:
        """After a trigger that failed, or fired nothing in time. Airflow has forgotten when the wait began."""
        return cls(end=_now() if is_timeout(told) else None, here=True)

    def at_most(self, seconds: float) -> Wait:
        """The same wait; if it begins now, it lasts this long at most."""
        return replace(self, end=self.end or _now() + timedelta(seconds=seconds))

    @property
    def until(self) -> datetime:
        """The end of a wait that has begun."""
        assert self.end
        return self.end

    @property
    def left_s(self) -> float:
        """Seconds that are left, by this machine's clock."""
        return (self.until - _now()).total_seconds()

    @property
    def quiet_s(self) -> float:
        """For how long nothing should wake the task: it doubles with each look that was in vain."""
        return min(2.0**self.looks / 2, QUIET_S_MAX) if self.looks else 0.0

    def to_kwargs(self) -> dict[str, Any]:
        """For ``after``, when the task has been woken once more."""
        return {"until": self.until.isoformat(), "looks": min(self.looks + 1, 10)}

    def here_within(self, limits: Limits) -> Limits:
        """The limits, with what is left of the wait."""
        return replace(limits, max_wait=max(self.left_s, 0.0)) if self.end else limits


def is_timeout(told: JsonDict) -> bool:
    """Whether Airflow resumes a task because nothing has fired in time; else its trigger has failed."""
    return "timeout" in str(told.get("error")).lower()


def _now() -> datetime:
    return datetime.now(timezone.utc)
