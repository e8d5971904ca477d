"""How far the operators of a transform have closed their states, so that an operator may move.

An operator closes what lies in (P, W]. Operators that stand one behind another have watermarks of different epochs
(``EpochContext.chained``): its place tells an operator which. If it moves, because another one was put in front of it
or taken away, W of its old place and P of its new one are not the same: what lies between would be closed twice, or
never. So each state tells how far its operator has closed it. This is P, wherever the operator stands now.

An operator may show rows with times after its P. So W of the operators behind it is at most this P.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Mark = int | None
"""An instant in microseconds since 1970 (UTC); None: there is no watermark yet, so nothing is closed."""
Marks = tuple[Mark, ...]
"""One mark; empty if it is not known."""
_CLOSING = "_epochs_closing"
"""The attribute of a state's DataFrame that tells how far the state is closed."""


@dataclass
class Operators:
    """The operators that a transform has called in an epoch: their places, and their P."""

    called: list[tuple[int, Mark]] = field(default_factory=list)

    def in_front_of(self, place: int) -> list[Mark]:
        """P of each operator that stands in front of a place."""
        return [before for at, before in self.called if at < place]


@dataclass
class Closing:
    """How far a state is closed.

    Attributes:
        name: The state's name.
        operators: The operators of the epoch.
        before: How far the epoch before had closed the state.
        then: How far this epoch had closed it, if it is replayed.
        now: How far this epoch has closed it, once the operator was called.
        place: The operator's place, once it was called.
    """

    name: str
    operators: Operators
    before: Marks = ()
    then: Marks = ()
    now: Marks = ()
    place: int | None = None

    def close(self, to: Mark, place: int) -> None:
        """Note what an operator closes. Raises Refused if an operator at another place has the state, too."""
        if self.place not in (None, place):
            raise Refused(
                f"The state {self.name!r} was given to two operators, one behind {self.place} others and one behind "
                f"{place}: each would close it up to another time. Nothing was written.",
                code=codes.OPERATOR_ARGUMENT,
                remedy="Give each operator a state table of its own. Then clear the failed task.",
            )
        self.place = place
        self.now = (max([to, *self.before], key=_order),)


def told(state: DataFrame, closing: Closing) -> DataFrame:
    """The state as a transform gets it. It tells how far it is closed."""
    setattr(state, _CLOSING, closing)
    return state


def of(state: DataFrame) -> Closing | None:
    """How far a state is closed. None for a DataFrame derived from a state, which does not tell it."""
    known: Closing | None = vars(state).get(_CLOSING)
    return known


def settled(watermark: Mark, previous: Mark, place: int, states: Sequence[DataFrame]) -> tuple[Mark, Mark]:
    """W and P of an operator that is called with these states.

    Args:
        watermark: W of its place.
        previous: P of its place. It holds if no state tells anything else, as a new one.
        place: How many operators stand in front of it.
        states: Its states.

    Raises:
        Refused: An operator at another place has one of the states, too.
    """
    known = [closing for state in states if (closing := of(state))]
    if not known:
        return watermark, previous
    operators, told_before = known[0].operators, [mark for closing in known for mark in closing.before]
    before = min(told_before, key=_order) if told_before else previous
    then = [mark for closing in known for mark in closing.then]
    now = min(then or [watermark, *operators.in_front_of(place)], key=_order)
    now = max(now, before, key=_order)
    for closing in known:
        closing.close(now, place)
    operators.called.append((place, before))
    return now, before


def least(*marks: Mark) -> Mark:
    """The earliest of some marks. None is earlier than all instants."""
    return min(marks, key=_order)


def _order(mark: Mark) -> tuple[bool, int]:
    return mark is not None, mark or 0
