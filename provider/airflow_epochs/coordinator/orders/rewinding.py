"""Go back to where an epoch ended: what the command ``rewind`` and the page share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_epochs import codes
from airflow_epochs.contracts import (
    ByInterval,
    ByTime,
    Environment,
    LeavingOut,
    Movable,
    Move,
    Position,
    is_by_interval,
)
from airflow_epochs.coordinator.inspection.lag import source_in
from airflow_epochs.coordinator.orders import earlier_ends
from airflow_epochs.coordinator.orders.orders import BetweenEpochs, Restoration
from airflow_epochs.coordinator.runs import rereading
from airflow_epochs.errors import Refused, filled
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import newest_opened
from airflow_epochs.model import ends_of

_NEXT = "The next run obeys. Start one, or, if the last one failed, type `airflow epochs retry PIPELINE --why …`."
_NEXT_INTERVAL = (
    "The next run of a data interval obeys. The schedule starts it, or a backfill (see "
    "docs/intervals.md#process-history-again); a run by hand has no interval. If the last run of an interval failed, "
    "type `airflow epochs retry PIPELINE --why …`."
)
_RESTORES = (
    "The next run brings the tables back, and reads nothing; the run after it reads on. Start them. If the last run "
    "failed, type `airflow epochs retry PIPELINE --why …` in place of starting the first one."
)
_RESTORES_BY_INTERVALS = (
    "The next run brings the tables back, and reads nothing. Start one by hand, or, if the last run failed, type "
    "`airflow epochs retry PIPELINE --why …`. Once that run is green, clear the runs of the intervals since then, with "
    "all tasks, one after another, the oldest first: each reads its interval once more. Clear the run that brought the "
    "tables back, too, if it is one of them. A backfill does the same: see docs/intervals.md#process-history-again."
)


def to_epoch(ledger: Ledger, at: BetweenEpochs, source: Movable, number: int, env: Environment) -> Move:
    """Where the next epoch begins if it goes back to the end of a complete epoch. Asks the source; reads only.

    The source is asked only for what moves: what stays, such as a topic that is no longer read, may be gone.
    """
    position = at.position(source)
    moving = _moving(position, earlier_ends.ends_after(ledger, at, number))
    stay = [topic for topic in moving if _cannot_go_back(source, position, topic, moving[topic], env)]
    back = {topic: of for topic, of in moving.items() if topic not in stay}
    move = source.to_offsets(position, back, env) if back else Move(position=position)
    return replace(move, stay=tuple(stay), back_to=_end_of(ledger, source, number))


def to_time(source: Movable, position: Position, time: str, env: Environment) -> Move:
    """Where the next epoch begins if it goes back to the first records of a time. Raises Refused if none can tell."""
    if isinstance(source, ByTime):
        return source.to_time(position, time, env)
    raise Refused(
        f"A {type(source).__name__} does not go back to a time. Nothing was changed.",
        code=codes.SOURCE_NOT_MOVABLE,
        remedy="Use --to-epoch, --to-savepoint, or --offsets FILE, whose offsets are versions. DESCRIBE HISTORY in "
        "Spark shows the time of each version.",
    )


def may_go_to_a_time(ledger: Ledger) -> bool:
    """Whether ``to_time`` may be asked of the source on record, which then says what is wrong. Needs no connection."""
    newest = newest_opened(ledger)
    try:
        source = source_in(newest.source) if newest else None
    except Refused:
        return True
    return source is None or isinstance(source, ByTime)


def _end_of(ledger: Ledger, source: Movable, number: int) -> str:
    """The time that the pipeline had read up to after the epoch, if that is known by data intervals; otherwise ""."""
    record = ledger.complete_record(number)
    until = rereading.read_up_to(source, record) if record and isinstance(source, ByInterval) else None
    return until.isoformat() if until else ""


def _moving(position: Position, offsets: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]]:
    """``offsets`` without the partitions that are there already."""
    now = ends_of(position.ranges)
    found = {topic: {p: to for p, to in of.items() if now.get((topic, p)) != to} for topic, of in offsets.items()}
    return {topic: of for topic, of in found.items() if of}


def _cannot_go_back(
    source: Movable, position: Position, topic: str, offsets: Mapping[int, int], env: Environment
) -> bool:
    """Whether the topic is no longer read, and does not have these offsets any more. It need not go back then."""
    if not _leaves_out(source, topic):
        return False
    try:
        source.to_offsets(position, {topic: offsets}, env)
    except Refused as error:
        if error.code not in (codes.TOPIC_REPLACED, codes.OFFSETS_UNUSABLE):
            raise
        return True
    return False


def _leaves_out(source: Movable, topic: str) -> bool:
    return isinstance(source, LeavingOut) and source.leaves_out(topic)


def is_nothing(at: BetweenEpochs, move: Move, restoration: Restoration | None) -> bool:
    """Whether the command changes nothing: neither where reading goes on, nor which tables go back."""
    ordered = at.order.restores if at.order else {}
    return not move.moves and (restoration is None or restoration.points == ordered)


def next_step(pipeline: str, source: object, restoration: Restoration | None = None) -> str:
    """What the operator has to do after the command. ``source``: what the next runs read."""
    by_intervals = is_by_interval(source)
    if not (restoration and restoration.points):
        return filled(_NEXT_INTERVAL if by_intervals else _NEXT, PIPELINE=pipeline)
    return filled(_RESTORES_BY_INTERVALS if by_intervals else _RESTORES, PIPELINE=pipeline)
