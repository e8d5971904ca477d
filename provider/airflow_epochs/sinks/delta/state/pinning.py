"""Which version of a state table an epoch reads, and what it stages for it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.delta.table import TableLocation, open_table
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.names import flaw_of_file, normalised
from airflow_epochs.secrecy import has_login, shown
from airflow_epochs.sinks.delta.state import column_names, remedies, table_log
from airflow_epochs.sinks.delta.state.columns import types_of, without_notes
from airflow_epochs.sinks.delta.state.table_log import StateFacts
from airflow_epochs.spark.driver.delta.plans import EPOCH, DeltaStaging, StateStaging
from airflow_epochs.spark.driver.delta.schema import (
    COLUMN_MAPPING,
    maps_columns,
    retyped,
    told_by_spark,
)
from airflow_epochs.spark.driver.plans import StateRead
from airflow_epochs.transforms.changes import DELETED
from airflow_epochs.transforms.closing import least

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_epochs.contracts import SinkAttempt
    from airflow_epochs.model import JsonDict, Receipt, StatePin, Watermarks
    from airflow_epochs.sinks.delta.state.table import StateTable
    from airflow_epochs.sinks.delta.target import Target
    from airflow_epochs.sinks.delta.whereabouts import Whereabouts

FOLD_EPOCHS_MIN, FOLD_EPOCHS_MAX = 4, 200
"""The least and the most epochs between two folds: few changes are cheap to read, many files are not."""


def pin(at: Whereabouts, state: StateTable, receipt: Receipt | None, pipeline: str) -> StatePin:
    """``StateTable.pin``."""
    from airflow_epochs.model import StatePin

    location = at.location()
    target = at.look(location, pipeline)
    _require_plain_files(state, target)
    column_names.require_different(state)
    if not (target.shape and maps_columns(target.shape.properties)):
        column_names.require_unmapped(state, target.shape.schema["fields"] if target.shape else ())
    if target.shape:
        column_names.require_spelling(state, location.name, target.shape.schema)
        _require_same_types(state, location.name, target.shape.schema)
    if receipt is None:
        if target.table is not None and target.table.file_uris():
            raise _not_empty(state, location)
        initial = _version_of(at, state, state.initial) if state.initial else None
        return StatePin(version=None, initial=initial, fold=initial is not None)
    _require_no_new_columns(state, target)
    if receipt.version is None:
        raise _unknown(state, location)
    _require_unchanged(state, location, receipt.version, target.version)
    known = receipt.detail.get("state", {})
    _require_same_rules(state, known)
    if "epochs" not in known:  # the commit's log entry is gone: only a fold makes the rows known again
        return StatePin(version=target.version, fold=True)
    facts = {name: int(known[name]) for name in ("base", "changes", "epochs")}
    folded_in = receipt.txn_id.epoch - facts["epochs"]
    closed = tuple(known.get("closed", ()))
    return StatePin(version=target.version, fold=_is_due(state, **facts), folded_in=folded_in, closed=closed, **facts)


def _require_plain_files(state: StateTable, target: Target) -> None:
    """Raise Refused if files lack columns, or name them differently: read without Delta, these would be NULL."""
    shape, back = target.shape, None
    if shape is None and maps_columns(state.properties):
        why = f"its `properties` set {COLUMN_MAPPING}={state.properties[COLUMN_MAPPING]}"
    elif shape and shape.partition_by:
        why = f"its table {target.location.name} is partitioned by {', '.join(shape.partition_by)}"
    elif shape and maps_columns(shape.properties) and shape.renamed:
        why = (
            f"its table {target.location.name} has column mapping, and its files have other names for "
            f"{', '.join(shape.renamed)}"
        )
        back = column_names.renamed_back(state, target.location.name, shape.schema)
    else:
        return
    raise Refused(
        f"The state {state.name!r} cannot be kept with column mapping or partitions: {why}.",
        code=codes.STATE_SCHEMA,
        remedy=back
        or f"Point `table` to a path where no table is, and set no {COLUMN_MAPPING} in `properties`. If epochs "
        "have written to the state, their rows were read as NULL: run `airflow epochs adopt-sink PIPELINE "
        f"{state.name} --new-table --why …`, and the state begins anew there. To keep rows that are right, write them "
        f"to another Delta table first ({remedies.HOW}), and name that in `initial`. Then clear the failed task.",
        sink=state.name,
    )


def _require_no_new_columns(state: StateTable, target: Target) -> None:
    """Raise Refused if a state with column mapping would get more columns: they would be staged without a mapping."""
    shape = target.shape
    new = column_names.lacking(state, shape.schema) if shape and maps_columns(shape.properties) else []
    if new:
        raise Refused(
            f"The state {state.name!r} cannot get the columns {', '.join(new)}: its table {target.location.name} has "
            "column mapping.",
            code=codes.STATE_SCHEMA,
            remedy=f"Take {', '.join(new)} out of `schema` again. Or let the state begin anew, in a table without "
            f"column mapping. {remedies.with_its_rows(state.name)}",
            sink=state.name,
        )


def _require_same_types(state: StateTable, place: str, table: JsonDict) -> None:
    """Raise Refused if ``schema`` gives a column of the table another type. Spark does so, but only after its start."""
    if wrong := retyped(place, without_notes(told_by_spark(table)), types_of(state.schema)):
        raise Refused(wrong, code=codes.STATE_SCHEMA, sink=state.name)


def _require_same_rules(state: StateTable, known: JsonDict) -> None:
    """Raise Refused if rows were stored under other keys, or expire by another column."""
    rules = {"keys": list(state.keys), "expires": state.expires}
    for name, today in rules.items():
        if name in known and known[name] != today:
            raise Refused(
                f"`{name}` of the state {state.name!r} is {today!r}, and its rows were stored with {known[name]!r}.",
                code=codes.STATE_SCHEMA,
                sink=state.name,
            )


def _is_due(state: StateTable, base: int = 0, changes: int = 0, epochs: int = 0) -> bool:
    """Whether a fold is due: a function of records, so that every attempt of the epoch stages the same."""
    return epochs >= FOLD_EPOCHS_MAX or (epochs >= FOLD_EPOCHS_MIN and changes >= state.fold_at * base)


def _not_empty(state: StateTable, location: TableLocation) -> Refused:
    return Refused(
        f"The state {state.name!r} begins with this epoch, and its table {location.name} has rows already.",
        code=codes.STATE_NOT_EMPTY,
        sink=state.name,
    )


def _require_unchanged(state: StateTable, location: TableLocation, since: int, newest: int) -> None:
    """Raise Corrupt unless the table has the rows of the epoch before.

    A clean-up of the log takes the version of that epoch if others commit after a pipeline that stands still for long,
    as OPTIMIZE does. The rows are all there then; only nobody can tell any more that no other program has changed some.
    """
    anew = (
        f"{remedies.with_its_rows(state.name)} This accepts what other programs have changed in the table since "
        f"version {since}."
    )
    try:
        table_log.require_unchanged(location, since, newest, f"the state must begin anew. {anew}")
    except Corrupt as error:
        error.sink = state.name
        if error.code is codes.STATE_GONE and since < newest:
            error.remedy = (
                f"If its files or log entries are in a backup, restore them, and clear the failed task. {anew}"
            )
        raise


def _unknown(state: StateTable, location: TableLocation) -> Corrupt:
    return table_log.gone(
        location,
        None,
        "the log had lost the entry of the epoch before when its receipt was written, so nobody knows the version",
        remedies.with_its_rows(state.name),
    )


def _version_of(at: Whereabouts, state: StateTable, initial: str) -> int:
    written = shown(initial.strip()) if has_login(initial.strip()) else initial.strip()
    if file := flaw_of_file(written):
        raise Refused(
            f"`initial` is {written}, which names {file.flaw}.",
            code=codes.STATE_INITIAL_MISSING,
            remedy=f"Set `initial` to file://{file.meant} if the state is to begin with the table there, else to "
            f"{file.wanted}. Then clear the failed task.",
            sink=at.sink.name,
        )
    location = at.other(normalised(initial.strip()))
    table = open_table(location)
    if table is None:
        raise Refused(
            f"There is no Delta table {initial}, which `initial` names.",
            code=codes.STATE_INITIAL_MISSING,
            sink=at.sink.name,
        )
    if {EPOCH, DELETED} <= {column.name for column in table.schema().fields}:
        raise Refused(
            f"`initial` names {initial}, which is the table of another state: a log, with old and deleted rows.",
            code=codes.STATE_INITIAL_LOG,
            sink=at.sink.name,
        )
    schema = json.loads(table.schema().to_json())
    column_names.require_spelling_of_initial(state, initial, schema)
    _require_same_types(state, initial, schema)
    column_names.require_columns_of_initial(state, initial, schema)
    return int(table.version())


def readable(at: Whereabouts, state: StateTable, pin: StatePin, watermarks: Watermarks) -> StateRead:
    """``StateTable.plan_read``, after a check that the files are there."""
    files, stored = (None, None) if pin.version is None else _files_and_schema(at.location(), pin.version)
    return StateRead(
        location=state.target,
        files=files,
        stored=stored,
        schema=state.schema,
        keys=tuple(state.keys),
        expires=state.expires,
        hidden_to=least(watermarks[-1], *pin.closed) if watermarks else None,
        closed=pin.closed,
        folded_in=pin.folded_in,
        initial=normalised(state.initial.strip()) if state.initial and pin.initial is not None else None,
        initial_version=pin.initial,
    )


def _files_and_schema(location: TableLocation, version: int) -> tuple[dict[str, tuple[int, ...]], JsonDict]:
    """The files of a version, each with the first and the last epoch of its rows, and the version's schema.

    Raises:
        Corrupt: A VACUUM has deleted some of the files: it keeps the files of the newest version only.
    """
    table = table_log.table_at(location, version)
    files = {file["path"]: table_log.epochs_of(file) for file in table_log.files_of(table)}
    if missing := sorted(location.files.missing(path for path in files if ":/" not in path)):
        raise table_log.gone(location, version, f"{len(missing)} of its files are gone, for example {missing[0]}")
    return files, json.loads(table.schema().to_json())


def staging(append: DeltaStaging, attempt: SinkAttempt) -> StateStaging:
    """``StateTable.staging``."""
    assert attempt.state is not None
    return StateStaging.of(append, fold=attempt.state.fold, expired_to=expired_to(attempt.watermarks))


def facts(state: StateTable, attempt: SinkAttempt) -> JsonDict:
    """``StateTable.user_metadata``."""
    pin = attempt.state
    assert pin is not None
    return asdict(
        StateFacts(
            of=pin.version,
            fold=pin.fold,
            keys=tuple(state.keys),
            expires=state.expires,
            expired_to=expired_to(attempt.watermarks),
            base=pin.base,
            changes=pin.changes,
            epochs=pin.epochs,
        )
    )


def expired_to(watermarks: Watermarks, closed: Iterable[int | None] = ()) -> int | None:
    """The instant up to which the next epoch hides rows: its watermarks are moved by one.

    ``closed``: as in ``StateFacts``.
    """
    return least(watermarks[-2], *closed) if len(watermarks) > 1 else None
