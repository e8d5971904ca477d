"""What an operator orders for the next epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_epochs.model.ranges import Ranges
from airflow_epochs.model.record import JsonDict

REWIND = "rewind"
"""The name of the command that alone brings tables back."""
ADOPT_CHECKPOINT, ADOPT_GROUP = "adopt-checkpoint", "adopt-group"
"""The names of the commands that say where a new pipeline begins. Each takes the place of all before it."""
ACKNOWLEDGE_CODE = "acknowledge-code"
"""The name of the command that is no attempt: it may come while an epoch is open, and changes no position."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """What an operator ordered for the next epoch. ``who``, ``host``, ``login``: as in ``TakeoverRecord``.

    Attributes:
        name: The command, as typed after ``airflow epochs``.
        lost: The offsets whose records some sink will never get, half-open. If a log was truncated, other records may
            have these offsets now.
        again: The offsets before the end of the last epoch that the next epochs read once more, half-open. No epoch has
            read those that lie before the first epoch's beginning, or that a command has skipped.
        left: Where the pipeline left a topic whose place another topic has taken, as empty ranges.
        lacks: Sink -> the epochs ``(first, last)`` that it lacks from now on.
        restores: Sink -> the version of its table that comes back.
        back_to: The time that the input goes back to, in ISO 8601: epochs of data intervals that ended by then are not
            read again. "": it is not known by a time, or an older version has written the command.
    """

    name: str
    who: str
    why: str
    at: str
    host: str = ""
    login: str = ""
    lost: Ranges = field(default_factory=dict)
    again: Ranges = field(default_factory=dict)
    left: Ranges = field(default_factory=dict)
    lacks: dict[str, tuple[int, int]] = field(default_factory=dict)
    restores: dict[str, int] = field(default_factory=dict)
    back_to: str = ""


@dataclass(frozen=True, kw_only=True)
class RestorePoint:
    """The version of a sink's table that comes back by a command.

    Attributes:
        epoch: The epoch that the version shows: the last one of the sink, as of the epoch that the command names.
        version: The version of the table.
        state: Of a state table: what the receipt of ``epoch`` says of it.
    """

    epoch: int
    version: int
    state: JsonDict = field(default_factory=dict)
