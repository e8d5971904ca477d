"""How a command moves the place at which the next epoch begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.contracts.position import Position
from airflow_epochs.model import JsonDict, Ranges


@dataclass(frozen=True, kw_only=True)
class Move:
    """Another place for the next epoch to begin at, by an operator's command.

    Attributes:
        position: Where the next epoch begins, as empty ranges.
        lost, again, left: As in ``model.Command``.
        cut: What the source no longer has of an aborted epoch's input, although the next epoch does not begin behind
            it: the log was truncated, and may have new records there.
        ahead: What can be read now in the partitions that were moved.
        stay: The topics that stay where they are, because they are no longer read, and cannot go back.
        back_to: As in ``model.Command``.
    """

    position: Position
    lost: Ranges = field(default_factory=dict)
    again: Ranges = field(default_factory=dict)
    left: Ranges = field(default_factory=dict)
    cut: Ranges = field(default_factory=dict)
    ahead: Ranges = field(default_factory=dict)
    stay: tuple[str, ...] = ()
    back_to: str = ""

    @property
    def moves(self) -> bool:
        """Whether the next epoch begins elsewhere than without the command."""
        return bool(self.ahead or self.left)


@runtime_checkable
class LeavingOut(Protocol):
    """A source that keeps the position of topics that it no longer reads."""

    def leaves_out(self, topic: str) -> bool:
        """Whether it no longer reads a topic of the position. Needs no connection."""
        ...


@runtime_checkable
class Before(Protocol):
    """A source that knows where an epoch began that was aborted."""

    def before(self, base: Position | None, ranges: Ranges, state: JsonDict) -> Position:
        """The position at which an aborted epoch began: ``base``, and what the epoch was the first to read.

        ``ranges`` and ``state``: those that were planned. Needs no connection.
        """
        ...


@runtime_checkable
class Movable(Before, Protocol):
    """A source whose position a command can move. Each method reads only.

    Raises:
        Refused: The pipeline cannot go on there.
        Corrupt: The source has been replaced.
    """

    def past_losses(self, position: Position, topics: Sequence[str], env: Environment) -> Move:
        """Go on with what the source has after losses in ``topics``; empty: in all topics."""
        ...

    def to_offsets(self, position: Position, offsets: Mapping[str, Mapping[int, int]], env: Environment) -> Move:
        """Go on at these offsets."""
        ...

    def to_another(self, position: Position, topics: Sequence[str], starting: object, env: Environment) -> Move:
        """Go on in what has these names now; empty: in all topics. ``starting``: as the source's option, or offsets."""
        ...


@runtime_checkable
class Truncatable(Protocol):
    """A source that may lose its newest records, and give their offsets to others. It reads only."""

    def cut_off(self, ranges: Ranges, state: JsonDict, env: Environment) -> Ranges:
        """What it has lost in this way of an aborted epoch's planned ``ranges``. Raises as ``Movable``."""
        ...


@runtime_checkable
class ByTime(Protocol):
    """A source that knows which of its records came at or after a time. It reads only."""

    def to_time(self, position: Position, time: str, env: Environment) -> Move:
        """Go back to the first records at or after a time with its zone. Raises as ``Movable``."""
        ...
