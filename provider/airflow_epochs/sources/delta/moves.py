"""Where the next epoch begins after an operator's command. No I/O.

A move changes nothing by itself. It becomes part of a ledger record, which the next epoch obeys.
"""

from __future__ import annotations

from airflow_epochs.contracts import TABLE_ID, Move, Position
from airflow_epochs.model import JsonDict, OffsetRange, Ranges, empty_at_ends

DIGEST = "digest"
"""A key of the source's state, beside ``TABLE_ID``: the digest of the log entry of the last version that was read."""
WHOLE = "whole"
"""A key of the state of a position at version 0: whether the next epoch reads the whole table despite ``starting``."""


def of_versions(table: str, start: int, end: int) -> Ranges:
    """The ranges that stand for versions ``[start, end)`` of a table."""
    return {table: (OffsetRange(0, start, end),)}


def versions_in(ranges: Ranges) -> tuple[int, int]:
    """The inverse of ``of_versions``."""
    ((only,),) = ranges.values()
    return only.start, only.end


def before(base: Position | None, ranges: Ranges, state: JsonDict) -> Position:
    """The position at which an aborted epoch began. ``ranges`` and ``state``: those that were planned."""
    if base is not None:
        return Position(ranges=empty_at_ends(base.ranges), state=base.state)
    begun = {table: tuple(r._replace(end=r.start) for r in of) for table, of in ranges.items()}
    return Position(ranges=begun, state={TABLE_ID: state.get(TABLE_ID)})


def moved(position: Position, table: str, table_id: str, to: int, newest: int) -> Move:
    """Go on at a version of the same table."""
    _, was = versions_in(position.ranges)
    return Move(
        position=_position(table, table_id, to, whole=to == was and is_whole(position)),
        lost=of_versions(table, was, to) if was < to else {},
        again=of_versions(table, to, was) if to < was else {},
        ahead=_ahead(table, to, newest) if to != was else {},
    )


def to_another(position: Position, table: str, table_id: str, to: int, newest: int, *, whole: bool = False) -> Move:
    """Go on at a version of another table, or of one that was put in the place of the old one. ``whole``: ``WHOLE``."""
    return Move(
        position=_position(table, table_id, to, whole=whole),
        left=empty_at_ends(position.ranges),
        ahead=_ahead(table, to, newest),
    )


def is_whole(position: Position | None) -> bool:
    """Whether a command lets the next epoch read the whole table."""
    return position is not None and bool(position.state.get(WHOLE))


def _position(table: str, table_id: str, to: int, *, whole: bool) -> Position:
    state: JsonDict = {TABLE_ID: table_id, **({WHOLE: True} if whole else {})}
    return Position(ranges=of_versions(table, to, to), state=state)


def _ahead(table: str, start: int, newest: int) -> Ranges:
    return of_versions(table, start, max(start, newest + 1))
