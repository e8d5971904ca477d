"""The names of a state's columns: Delta does not take every one, and takes two that differ only by case for the same.

A state's files are read without Delta, by names as they are written. So a name must be written in one way everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_epochs import codes, secrecy
from airflow_epochs.delta.shape import physical_name, renamed
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.delta.state.columns import columns_of, types_of
from airflow_epochs.spark.driver.delta.plans import EPOCH
from airflow_epochs.spark.driver.delta.schema import places_to_map, without_mapping
from airflow_epochs.spark.driver.delta.spelling import identifier
from airflow_epochs.transforms.changes import DELETED
from airflow_epochs.transforms.conditions import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_epochs.model import JsonDict
    from airflow_epochs.sinks.delta.state.table import StateTable

log = secrecy.logger(__name__)

_EVERYWHERE = "in the arguments of the state table, and in the transform"


def require_different(state: StateTable) -> None:
    """Raise Refused if two columns of a state have the same name to Delta.

    Not when the state is made: records have such states, and must be read.
    """
    known = {name.lower(): name for name in (EPOCH, DELETED)}
    for name in columns_of(state.schema):
        if other := known.get(name.lower()):
            raise Refused(
                f"The state {state.name!r} cannot have both columns {other!r} and {name!r}: Delta takes names that "
                f"differ only by case for the same.{_ours(other)}",
                code=codes.STATE_SCHEMA,
                remedy=f"Give {name!r} another name, {_EVERYWHERE}. Then clear the failed task.",
                sink=state.name,
            )
        known[name.lower()] = name


def _ours(name: str) -> str:
    return f" The state table adds {name!r} itself." if name in (EPOCH, DELETED) else ""


def require_spelling(state: StateTable, place: str, table: JsonDict) -> None:
    """Raise Refused if the state's table has a column of ``schema`` with other capital letters.

    A commit would add the column once more, and nobody could open the table any more.
    """
    if wrong := _spelt_otherwise([*columns_of(state.schema), EPOCH, DELETED], table):
        raise Refused(
            f"The state {state.name!r} cannot have {_told(wrong)} in its table {place}. Delta takes names that differ "
            "only by case for the same, and no table can have both.",
            code=codes.STATE_SCHEMA,
            remedy=f"Write {_listed(wrong.values())} as in the table, {_EVERYWHERE}. Then clear the failed task.",
            sink=state.name,
        )


def require_spelling_of_initial(state: StateTable, place: str, table: JsonDict) -> None:
    """Raise Refused if the table in ``initial`` has a column of ``schema`` with other capital letters."""
    if wrong := _spelt_otherwise(columns_of(state.schema), table):
        raise Refused(
            f"The state {state.name!r} cannot have {_told(wrong)} in the table {place}, which `initial` names: its "
            "rows would have NULL there.",
            code=codes.STATE_SCHEMA,
            remedy=f"Write {_listed(wrong.values())} as in the table, {_EVERYWHERE}. Or write its rows to another "
            "Delta table, with the names that `schema` has, and name that in `initial`. Then clear the failed task.",
            sink=state.name,
        )


def require_columns_of_initial(state: StateTable, place: str, table: JsonDict) -> None:
    """Raise Refused if the table in ``initial`` lacks a column, and has one that nobody reads.

    A column that it merely lacks is new in the state, and NULL there: the log says so.
    """
    there, ours = [field["name"] for field in table["fields"]], [*columns_of(state.schema), EPOCH, DELETED]
    lacks = lacking(state, table)
    more = [name for name in there if name not in ours]
    if lacks and more:
        raise Refused(
            f"The state {state.name!r} would begin with NULL in {_listed(lacks)}: the table {place}, which `initial` "
            f"names, has no such column. Nothing reads its {_listed(more)}, which `schema` does not have.",
            code=codes.STATE_SCHEMA,
            remedy="Write its rows to another Delta table, with the names that `schema` has, or without "
            f"{_listed(more)}, and name that in `initial`. Then clear the failed task.",
            sink=state.name,
        )
    if lacks:
        log.warning(
            "The state %r begins with NULL in %s: the table %s, which `initial` names, has no such column.",
            state.name,
            _listed(lacks),
            place,
        )


def lacking(state: StateTable, table: JsonDict) -> list[str]:
    """The columns of ``schema`` that a table lacks."""
    there = {field["name"] for field in table["fields"]}
    return [name for name in columns_of(state.schema) if name not in there]


def renamed_back(state: StateTable, place: str, table: JsonDict) -> str | None:
    """What to do about columns that somebody has renamed in its table; None if their old names cannot come back.

    The files have these, unless the table was created with column mapping.
    """
    renamed_columns = {
        each["name"]: physical_name(each) for each in table["fields"] if physical_name(each) != each["name"]
    }
    there, ours = {field["name"].lower() for field in table["fields"]}, {*columns_of(state.schema), EPOCH, DELETED}
    lost = any(old not in ours or old.lower() in there for old in renamed_columns.values())
    lacks = {*lacking(state, table)} - {*renamed_columns.values()}
    if not renamed_columns or lost or lacks or len(renamed(table)) > len(renamed_columns):
        return None
    renames = "; ".join(
        f"ALTER TABLE {identifier(place)} RENAME COLUMN {quoted(new)} TO {quoted(old)}"
        for new, old in renamed_columns.items()
    )
    return f"Give the columns of the table their old names again, in Spark: {renames}. Then clear the failed task."


def _spelt_otherwise(columns: Iterable[str], table: JsonDict) -> dict[str, str]:
    """Each column that the table spells with other capital letters -> the table's spelling."""
    names = [field["name"] for field in table["fields"]]
    alike = {name.lower(): name for name in names}
    return {name: alike[name.lower()] for name in columns if name not in names and name.lower() in alike}


def _told(wrong: Mapping[str, str]) -> str:
    return ", ".join(f"the column {ours!r}, which is {theirs!r}" for ours, theirs in wrong.items())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def require_unmapped(state: StateTable, there: Sequence[JsonDict]) -> None:
    """Raise Refused if Spark cannot add a column with its name to a table without column mapping.

    Not when the state is made: records have such states, and must be read. ``there``: the table's columns, which
    another program can have made.
    """
    types, known = types_of(state.schema), {field["name"].lower() for field in there}
    new = [name for name in columns_of(state.schema) if name.lower() not in known]
    fields = [{"name": name, "type": types.get(name)} for name in new]
    place = next(places_to_map({"fields": fields}), None)
    if place is None:
        return
    told, now = ".".join(place), without_mapping(place[-1])
    call = f", by .withColumnRenamed({told!r}, {now!r})" if len(place) == 1 else ""
    initial = ", and in the table that `initial` names" if state.initial else ""
    raise Refused(
        f"The state {state.name!r} cannot have the {'field' if place[1:] else 'column'} {told!r}: Spark makes a column "
        "whose name has a blank, a tab, a line break or one of ,;{}()= only with column mapping, which a state "
        "table cannot have.",
        code=codes.STATE_SCHEMA,
        remedy=f"Name it {now!r} in the arguments of the state table, and in the transform{call}{initial}. Then clear "
        "the failed task.",
        sink=state.name,
    )
