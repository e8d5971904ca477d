"""Whether sequences have the numbers that the commit of a group of sinks will draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.sql.database import Numbers, Session, part_of
from airflow_epochs.sinks.sql.table import SqlTable, quoted


@dataclass(frozen=True)
class Draw:
    """A number of ``rows`` that have these columns of the table. The other columns get their defaults."""

    table: SqlTable
    columns: Sequence[str]
    rows: int


def shortages(session: Session, draws: Mapping[str, Draw]) -> dict[str, Refused]:
    """The sinks that may not get all numbers, each with the reason. Sinks may share a sequence.

    To be asked after the last rehearsal: the numbers that a rehearsal draws do not come back.
    """
    found, unknown = _asked(session, draws)
    needed: Counter[str] = Counter()
    for name, numbers in found.items():
        needed.update(dict.fromkeys({each.sequence for each in numbers}, draws[name].rows))
    return unknown | {
        name: _refused(draws[name].table, each, needed[each.sequence])
        for name, numbers in found.items()
        for each in numbers
        if each.left < needed[each.sequence]
    }


def _asked(session: Session, draws: Mapping[str, Draw]) -> tuple[dict[str, list[Numbers]], dict[str, Refused]]:
    """The sequences from which each sink draws numbers; and the sinks whose sequences the database does not tell."""
    found: dict[str, list[Numbers]] = {}
    unknown: dict[str, Refused] = {}
    for name, draw in draws.items():
        try:
            with part_of(session):
                found[name] = session.numbers_left(draw.table, draw.columns)
        except Refused as refused:
            unknown[name] = refused
    return found, unknown


def _refused(table: SqlTable, numbers: Numbers, needed: int) -> Refused:
    return Refused(
        f"Sequence {numbers.sequence} of column {numbers.column!r} of table {table.name} has {numbers.left} numbers "
        f"left, and the epoch needs {needed}.",
        code=codes.SQL_SEQUENCE_EXHAUSTED,
        remedy=f"{_raised(table, numbers)} The rehearsal uses as many numbers as the commit. Then clear the failed "
        "task.",
    )


def _raised(table: SqlTable, numbers: Numbers) -> str:
    if numbers.too_small:
        return (
            f"Change the type of the column, which is {numbers.too_small} and takes no further numbers: "
            f"`ALTER TABLE {table.spelled} ALTER COLUMN {quoted(numbers.column)} TYPE bigint`."
        )
    return (
        f"Raise the limit of the sequence: `ALTER SEQUENCE {numbers.sequence} NO MAXVALUE`. If the sequence counts "
        "down, write NO MINVALUE. If its type is too small, change the sequence and the column to bigint."
    )
