"""Requires that sinks write to different tables, and that no new table or ledger lies in a table's folder or around it.

A ``VACUUM`` deletes what lies in a table's folder and is not in the table's log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations

from airflow_epochs import codes, secrecy
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused, located
from airflow_epochs.model import OpenRecord, attempt_fields
from airflow_epochs.names import resolved
from airflow_epochs.storage.vacuum import endangers

log = secrecy.logger(__name__)


def require_apart(
    task: TaskTry,
    opened: OpenRecord,
    tables: Mapping[str, str],
    folders: Mapping[str, str],
    around: Iterable[tuple[str, str, str]],
) -> None:
    """Raise Refused if sinks of an attempt share a table, or if a new one brings a folder into danger.

    The DAG may name a table in two ways, by a link or by a catalog for example, so only the sinks can tell.
    Where all sinks in question have epochs already, a nested folder is only warned of, so that their pipeline goes on.

    Args:
        task: The task that stages.
        opened: The attempt.
        tables: Sink name -> table, as the sinks tell them.
        folders: Sink name -> the table's folder, of the sinks whose table is one.
        around: Sink name, a table whose folder contains the sink's table, and the sink's folder in it; of the sinks
            without an epoch.
    """
    with located(**attempt_fields(opened.txn_id)):
        _require_own_tables(tables)
        if opened.txn_id.epoch == 1:
            _require_ledger_outside(task)
        sinks = {folder: name for name, folder in folders.items()}
        nested = [*_tables_in_tables(sinks), *_ledger_in_tables(task, sinks), *_in_other_tables(around)]
        before = task.ledger.complete_record(opened.txn_id.epoch - 1) if nested else None
        known = before.markers.keys() if before else set()
        for names, problem in nested:
            if not names <= known:
                raise problem
            log.warning("%s Run no VACUUM there. See docs/operations.md.", problem.what)


def _require_ledger_outside(task: TaskTry) -> None:
    for outer, folder in task.ledger.tables_around():
        raise Refused(
            f"The ledger of this pipeline, {folder}, lies inside the Delta table {outer}. A VACUUM of the table may "
            "delete the ledger.",
            code=codes.LEDGER_IN_TABLE,
        )


def _require_own_tables(tables: Mapping[str, str]) -> None:
    sinks: dict[str, str] = {}
    for name, table in tables.items():
        if sinks.setdefault(table, name) != name:
            raise Refused(
                f"The sinks {sinks[table]!r} and {name!r} write to the same place: {table}.",
                code=codes.SINKS_COLLIDE,
            )


def _tables_in_tables(sinks: Mapping[str, str]) -> Iterator[tuple[set[str], Refused]]:
    """The two sinks of each table that lies inside another one, and what is wrong with it."""
    for outer, inner in permutations(sinks, 2):
        if endangers(outer, inner):
            problem = Refused(
                f"The table of the sink {sinks[inner]!r}, {inner}, lies inside the table of the sink {sinks[outer]!r}, "
                f"{outer}. A VACUUM of the outer table may delete the files of the inner one.",
                code=codes.TABLE_IN_TABLE,
            )
            yield {sinks[outer], sinks[inner]}, problem


def _in_other_tables(around: Iterable[tuple[str, str, str]]) -> Iterator[tuple[set[str], Refused]]:
    """The sink of each table that lies inside one of others, and what is wrong with it."""
    for sink, outer, inner in around:
        problem = Refused(
            f"The table of the sink {sink!r}, {inner}, lies inside another Delta table, {outer}. A VACUUM of the outer "
            "table may delete the files of the inner one.",
            code=codes.TABLE_IN_TABLE,
        )
        yield {sink}, problem


def _ledger_in_tables(task: TaskTry, sinks: Mapping[str, str]) -> Iterator[tuple[set[str], Refused]]:
    """The sink of each table in which the pipeline's ledger lies, and what is wrong with it."""
    if not task.ledger.root:
        return
    folder = f"{resolved(task.ledger.root).rstrip('/')}/{task.pipeline.name}"
    for table, sink in sinks.items():
        if endangers(table, folder):
            problem = Refused(
                f"The ledger of this pipeline, {folder}, lies inside the table of the sink {sink!r}, {table}. A VACUUM "
                "of the table may delete the ledger.",
                code=codes.LEDGER_IN_TABLE,
            )
            yield {sink}, problem
