"""Checks that a sink's notes of deletions name its keys of today: users rename columns, and choose other keys."""

from __future__ import annotations

from airflow_epochs import codes
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.delta.replay import newest_schema
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta.modes import Mode
from airflow_epochs.sinks.delta.target import Target
from airflow_epochs.sinks.delta.whereabouts import Whereabouts
from airflow_epochs.spark.driver.delta import deletions
from airflow_epochs.spark.driver.delta.schema import sql_type, told_type
from airflow_epochs.spark.driver.delta.spelling import identifier
from airflow_epochs.transforms.conditions import quoted

_MAPPED = " TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"


def require_notes_of_keys(at: Whereabouts, target: Target, attempt: SinkAttempt, rows: JsonDict) -> None:
    """Require notes about the sink's keys of today, if its last commit says that it has notes.

    The commit does not read notes about other keys. So without this check, an older row would bring a deleted key back.
    """
    last, how = at.last_notes(target, attempt), at.sink.how
    if last is None:
        return
    folder, _, name = last.rpartition("/")
    types = _types(how, rows)
    if name == _name_of(types):
        return
    columns = _columns_of(at, target, last)
    if not columns or _is_about(columns, how):
        return
    others = (_columns_of(at, target, f"{folder}/{other}") for other in target.location.files.names(folder))
    if not any(_is_about(each, how) for each in others if each):
        raise _of_other_keys(target, last, columns, types)


def _types(how: Mode, rows: JsonDict) -> JsonDict:
    """The keys and the sequence, in this order, each with its type."""
    given = {field["name"].lower(): field["type"] for field in rows["fields"]}
    return {name: given[name.lower()] for name in (*how.keys, how.sequence_by) if name}


def _name_of(types: JsonDict) -> str:
    """The name that Spark gives the notes, unless there are nested types."""
    return deletions.named([(column.lower(), told_type(kind)) for column, kind in types.items()])


def _columns_of(at: Whereabouts, target: Target, place: str) -> list[str]:
    """The columns of the notes; empty if their log does not tell."""
    schema = newest_schema(at.other(f"{target.location.url}/{place}").files)
    return [field["name"] for field in schema["fields"]] if schema else []


def _is_about(columns: list[str], how: Mode) -> bool:
    return deletions.is_about(columns, how.keys, how.sequence_by)


def _pairs(old: list[str], new: list[str]) -> list[tuple[str, str]]:
    """Pairs of an old and a new column name: the same name if both have it, the rest in their order."""
    same = {name.lower(): name for name in old}
    given = {name.lower() for name in new}
    left = iter([name for name in old if name.lower() not in given])
    return [(same.get(name.lower()) or next(left), name) for name in new]


def _of_other_keys(target: Target, last: str, columns: list[str], types: JsonDict) -> Refused:
    """The refusal, with the commands that make notes of today's columns."""
    place = f"{target.location.url}/{last}"
    made = identifier(f"{place}-{_name_of(types)[-8:]}")
    using = f"USING delta{_MAPPED if deletions.needs_mapping(types) else ''}"
    empty = ", ".join(f"{quoted(name)} {sql_type(kind)}" for name, kind in types.items())
    make = f"CREATE TABLE {made} ({empty}) {using}"
    if_none_is_late = "if no row can come that is older than the deletion of its key"
    remedy = f"Make notes of these keys without rows in Spark, {if_none_is_late}: {make}. Then clear the failed task."
    if len(columns) == len(types):
        copied = ", ".join(f"{quoted(old)} AS {quoted(new)}" for old, new in _pairs(columns, list(types)))
        remedy = (
            "Copy the notes under the new names of the columns in Spark: "
            f"CREATE TABLE {made} {using} AS SELECT {copied} FROM {identifier(place)}. Or make notes without rows, "
            f"{if_none_is_late}: {make}. Then clear the failed task."
        )
    return Refused(
        f"The notes about keys that the sink deleted from {target.location.name} have the columns {columns}, but its "
        f"keys and `sequence_by` are {list(types)} now: {place}. Without notes, a row that is older than the deletion "
        "of its key would bring the key back.",
        code=codes.DELTA_DELETIONS_GONE,
        remedy=remedy,
    )
