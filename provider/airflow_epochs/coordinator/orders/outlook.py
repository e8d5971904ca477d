"""What each sink will have of the input if the next epoch obeys one more command. Reads the ledger only.

It is counted from what a sink shows when that epoch opens, and from where reading goes on then. Where an earlier
command of the epoch has put the position does not count: no run has read from there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, reduce

from airflow_epochs.contracts import Before, LeavingOut, Move, Position
from airflow_epochs.coordinator.orders.earlier_ends import ends_at
from airflow_epochs.coordinator.orders.orders import Adoption, BetweenEpochs, Restoration, ordered_restoration
from airflow_epochs.coordinator.orders.read_before import left_by, read_in_rows
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import orders_of
from airflow_epochs.model import (
    Command,
    CompleteRecord,
    OffsetRange,
    Ranges,
    Spans,
    TransactionId,
    added,
    ends_of,
    in_two,
)

Partition = tuple[str, int]

_LAST = 2**63
"""A number larger than every offset and version."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What becomes of one sink's rows. Half-open offsets.

    Attributes:
        lost: It will never get them.
        again: It shows them, and gets them once more, also those that an earlier epoch's command lets be read again.
        new: It does not show them, although the pipeline has been behind them, and gets them now.
        left: Where its rows of a topic end whose place another topic takes, as empty ranges.
    """

    lost: Ranges = field(default_factory=dict)
    again: Ranges = field(default_factory=dict)
    new: Ranges = field(default_factory=dict)
    left: Ranges = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What the next epoch does if it obeys one more command.

    Attributes:
        move: The command's move, with what really is ``lost`` and read ``again`` in the partitions that it moves. If it
            changes which tables go back: with what is lost in all partitions.
        elsewhere: Whether the epoch begins elsewhere than without commands.
        restoration: The tables that go back then.
        again: What is read again in all partitions.
        fresh: What of it no epoch has read yet.
        unread: The topics that are no longer read. If they go back, then in case they are read again.
        sinks: What each sink gets.
    """

    move: Move
    elsewhere: bool
    restoration: Restoration
    again: Ranges
    fresh: Ranges
    unread: tuple[str, ...]
    sinks: Mapping[str, Outcome]

    def read(self, ranges: Ranges) -> Ranges:
        """``ranges`` without the topics that are no longer read."""
        return {topic: of for topic, of in ranges.items() if topic not in self.unread}


def outlook(
    ledger: Ledger,
    at: BetweenEpochs,
    source: Before,
    move: Move,
    *,
    restoration: Restoration | None = None,
    adoption: Adoption | None = None,
) -> Outlook:
    """As ``Outlook``. ``restoration``, ``adoption``: as in ``orders.put``."""
    counting = _Counting.of(ledger, at, source, move)
    back = restoration or ordered_restoration(at, adoption)
    adopted = adoption.onto(at.adopted) if adoption else at.adopted
    names = sorted(at.newest.sinks.keys() | back.points.keys())
    sinks = {
        name: counting.outcome(_last_shown(at, name, back, adopted), name) if _goes_on(at, name, adopted) else Outcome()
        for name in names
    }
    reading, again, moved = counting.outcome(at.epoch - 1), counting.again(), counting.moved_from(at.position(source))
    lost = reduce(added, (each.lost for each in sinks.values()), reading.lost)
    if back.points == ordered_restoration(at).points:
        lost = added(_only(lost, moved), move.cut)
    return Outlook(
        move=replace(move, lost=lost, again=_only(again, moved)),
        elsewhere=bool(back.points) or counting.is_elsewhere(),
        restoration=back,
        again=again,
        fresh=reading.new,
        unread=_left_out(source, move.position),
        sinks=sinks,
    )


def _left_out(source: object, position: Position) -> tuple[str, ...]:
    """The topics of the position that the source no longer reads."""
    return tuple(filter(source.leaves_out, position.ranges)) if isinstance(source, LeavingOut) else ()


def _goes_on(at: BetweenEpochs, name: str, adopted: Mapping[str, TransactionId | None]) -> bool:
    """Whether the sink goes on. One that a command lets begin anew lacks no rows, and gets no row twice."""
    return name not in adopted or at.has_had(name)


def _last_shown(at: BetweenEpochs, name: str, back: Restoration, adopted: Mapping[str, TransactionId | None]) -> int:
    """The newest epoch whose rows the sink shows when the next one opens; 0: it shows no epoch."""
    if name in back.points:
        return back.epoch
    if name not in adopted:
        return at.epoch - 1
    shown = adopted[name]
    return shown.epoch if shown else 0


@dataclass(frozen=True, kw_only=True)
class _Counting:
    """What the outcomes of all sinks are counted from.

    Attributes:
        move: It leads to where the next epoch begins.
        base: Where it would begin without commands.
        anew: Where the waiting commands put partitions whose offsets stand for other records than in ``base``.
        anew_now: The same, with the command that is asked about.
        left: The topics that all these commands leave.
        complete, ends: ``ledger.complete_record``, and ``ends_at`` an epoch, both asked once: all sinks need the same.
    """

    ledger: Ledger
    at: BetweenEpochs
    move: Move
    base: Position
    anew: Mapping[Partition, int]
    anew_now: Mapping[Partition, int]
    left: frozenset[str]
    complete: Callable[[int], CompleteRecord | None]
    ends: Callable[[int], Mapping[Partition, int]]

    @classmethod
    def of(cls, ledger: Ledger, at: BetweenEpochs, source: Before, move: Move) -> _Counting:
        """Look at the commands that wait, one after another."""
        before = at.without_commands(source)
        base = Position(ranges=before.named_as_in(move.position), state=before.state)
        orders = orders_of(ledger, at.order) if at.order else []
        anew, was = dict[Partition, int](), ends_of(base.ranges)
        for order in orders:
            ends = ends_of(Position.of(order).named_as_in(move.position))
            anew |= _put_anew(base, was, ends, order.command) if order.command else {}
            was = ends
        now = _put_anew(base, was, ends_of(move.position.ranges), move)
        left = left_by([order.command for order in orders if order.command]) | move.left.keys()
        return cls(
            ledger=ledger,
            at=at,
            move=move,
            base=base,
            anew=anew,
            anew_now={**anew, **now},
            left=frozenset(left),
            complete=cache(ledger.complete_record),
            ends=cache(lambda upto: ends_at(ledger, at, upto, base)),
        )

    def outcome(self, upto: int, sink: str | None = None) -> Outcome:
        """What becomes of the rows of a sink that shows epochs up to ``upto``.

        ``sink`` None: as if no table had ever been restored.
        """
        ends = {**self._ends_at(upto), **self.anew}
        spans = [
            self._cut(each)
            for each in read_in_rows(self.ledger, self.at, self._to, self.left, upto, sink, complete=self.complete)
        ]
        behind, before = self._split({**ends, **self.anew_now})
        return Outcome(
            lost=added(in_two(behind, spans)[0], self.move.cut),
            again=in_two(_as_ranges({key: (start, _LAST) for key, start in self._starts.items()}), spans)[1],
            new=in_two(before, spans)[0],
            left=self._left(ends),
        )

    def again(self) -> Ranges:
        """What the next epochs read before the place where the epochs so far have ended."""
        return self._split({**ends_of(self.base.ranges), **self.anew_now})[1]

    def moved_from(self, position: Position) -> set[Partition]:
        """The partitions that begin elsewhere than at ``position``."""
        was = ends_of(position.named_as_in(self._to))
        return {key for key, to in self._starts.items() if was.get(key) != to}

    def is_elsewhere(self) -> bool:
        """Whether the next epoch begins elsewhere than without commands."""
        return bool(self.left or self.anew_now or self.moved_from(self.base))

    @property
    def _to(self) -> Position:
        return self.move.position

    @property
    def _starts(self) -> dict[Partition, int]:
        return ends_of(self._to.ranges)

    def _ends_at(self, upto: int) -> dict[Partition, int]:
        ends = ends_of(self.base.ranges)
        return ends if upto == self.at.epoch - 1 else {**ends, **self.ends(upto)}

    def _split(self, ends: Mapping[Partition, int]) -> tuple[Ranges, Ranges]:
        """What reading skips behind the ends, and what it reads once more before the ends."""
        return (
            _as_ranges({key: (ends.get(key, 0), start) for key, start in self._starts.items()}),
            _as_ranges({key: (start, ends.get(key, 0)) for key, start in self._starts.items()}),
        )

    def _cut(self, spans: Spans) -> Spans:
        """``spans`` without the offsets that stand for other records now."""
        return {key: r._replace(end=min(r.end, self.anew_now.get(key, r.end))) for key, r in spans.items()}

    def _left(self, ends: Mapping[Partition, int]) -> Ranges:
        return _as_ranges({key: (end, end) for key, end in ends.items() if key[0] in self.move.left}, empty=True)


def _put_anew(
    base: Position, was: Mapping[Partition, int], ends: Mapping[Partition, int], by: Move | Command
) -> dict[Partition, int]:
    """The partitions whose offsets stand for other records from ``ends`` on.

    Their topic took another one's place, perhaps under another name; or the log was cut and written anew: it goes
    back, and nothing comes again.
    """
    behind, again = ends_of(base.ranges), ends_of(by.again).keys()
    known = {topic for topic, _ in (*was, *behind)}
    return {
        key: end
        for key, end in ends.items()
        if key[0] in by.left
        or key[0] not in known
        or (end < min(was.get(key, end), behind.get(key, end)) and key not in again)
    }


def _as_ranges(of: Mapping[Partition, tuple[int, int]], *, empty: bool = False) -> Ranges:
    """The spans as ranges. ``empty``: also those that begin where they end."""
    found: Ranges = {}
    for (topic, partition), (start, end) in sorted(of.items()):
        if start < end or (empty and start == end):
            found[topic] = (*found.get(topic, ()), OffsetRange(partition, start, end))
    return found


def _only(ranges: Ranges, partitions: Container[Partition]) -> Ranges:
    found = {topic: tuple(r for r in of if (topic, r.partition) in partitions) for topic, of in ranges.items()}
    return {topic: of for topic, of in found.items() if of}
