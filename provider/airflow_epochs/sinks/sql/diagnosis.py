"""Why a database does not show the epoch that the ledger expects: what can be seen, and what helps.

Each cause has a section of its own in docs/sql.md. Nothing is written here; a remedy that puts a row back is a
statement that a person runs after having looked at the table.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.contracts import Disagreement, SinkAttempt
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import JsonDict, Shown, TransactionId, compare, described_transaction
from airflow_epochs.sinks.sql.database import Session
from airflow_epochs.sinks.sql.marker import MarkerRow, MarkerTable, Reservation, txn_of

if TYPE_CHECKING:
    from airflow_epochs.sinks.sql.sink import SqlSink


def diagnosed(sink: SqlSink, seen: Disagreement, session: Session, marker: MarkerTable) -> Corrupt | None:
    """The error for a marker that is not the expected one, asked for before anything is opened or completed."""
    found, recorded = marker.look(), seen.receipt.detail if seen.receipt else {}
    if _is_elsewhere(recorded, session):
        return _elsewhere(sink, recorded, session)
    stands = compare(txn_of(found), seen.expected)
    if stands is Shown.EXPECTED:  # asked again, they agree
        return None
    if isinstance(found, MarkerRow) and stands is Shown.AHEAD:
        return _ahead(sink, found, seen.expected)
    assert seen.expected
    if isinstance(found, MarkerRow):
        return (_behind if stands is Shown.BEHIND else _another)(sink, found, seen.expected)
    if isinstance(found, Reservation):
        return _emptied(sink, seen.expected)
    return _gone(sink, seen.expected, seen, session, marker)


def _is_elsewhere(recorded: JsonDict, session: Session) -> bool:
    then, now = recorded.get("database") or {}, session.identity()
    return any(then.get(key) not in (None, value) for key, value in now.items() if value is not None)


def _elsewhere(sink: SqlSink, recorded: JsonDict, session: Session) -> Corrupt:
    then, now = (
        ", ".join(f"{k} {v}" for k, v in found.items()) for found in (recorded["database"], session.identity())
    )
    return Corrupt(
        f"Connection {sink.conn_id!r} of table {sink.table} leads to another database than the last epoch went to: "
        f"to {now}; "
        f"it was {then}.",
        code=codes.TABLE_ELSEWHERE,
        remedy="Point the connection at that database again. If the database was moved on purpose by dump and "
        "restore, its "
        "marker must have come along. See docs/sql.md, 'The connection leads to another database'. Nothing was "
        "written.",
        sink=sink.name,
    )


def _behind(sink: SqlSink, found: MarkerRow, expected: TransactionId) -> Corrupt:
    return Corrupt(
        f"Table {sink.table} shows epoch {found.txn.epoch}, and the ledger has had epoch {expected.epoch} of it: the "
        "database "
        f"was restored to an earlier state, or a standby that lacked the last commits took over.{_at(found)}",
        code=codes.SINK_BEHIND,
        remedy="Restore the database to the later state if you have it. Else give the sink another name in the DAG, "
        "with "
        f"backfill={{<the new name>: {found.txn.epoch + 1}}}: it takes the epochs that are missing from Kafka again. "
        f"See "
        "docs/sql.md, 'The database is behind the ledger'. Nothing was written.",
        sink=sink.name,
    )


def _ahead(sink: SqlSink, found: MarkerRow, expected: TransactionId | None) -> Corrupt:
    known = f"the last one that it knows is epoch {expected.epoch}" if expected else "it knows none of this sink"
    return Corrupt(
        f"Table {sink.table} shows epoch {found.txn.epoch} ({found.txn}), and the ledger is behind: {known}. Its "
        "newest records "
        f"are gone, it was restored from an older copy, or it is another ledger.{_at(found)}",
        code=codes.LEDGER_BEHIND,
        remedy="Put the ledger's missing records back, or point `ledger_conn_id` at the right ledger. If they are "
        f"lost, give the pipeline another name and start it where the table ends: starting={_ends(found)}. If the "
        "pipeline has more sinks, see first where each ends. See docs/sql.md, 'The ledger is behind the database'. "
        "Nothing was written.",
        sink=sink.name,
    )


def _another(sink: SqlSink, found: MarkerRow, expected: TransactionId) -> Corrupt:
    return Corrupt(
        f"Table {sink.table} shows another transaction of epoch {expected.epoch} than the ledger: {found.txn}, not "
        f"{expected}. "
        f"Two ledgers have a pipeline of this name, or one was restored and went on with other data.{_at(found)}",
        code=codes.TWO_LEDGERS,
        remedy="Find the other ledger, and give one of the two pipelines another name. See docs/sql.md, 'Two ledgers "
        "write "
        "under one name'. Nothing was written.",
        sink=sink.name,
    )


def _emptied(sink: SqlSink, expected: TransactionId) -> Corrupt:
    return Corrupt(
        f"Table {sink.table} shows no epoch yet, only the reservation of the first one, and the ledger has had epoch "
        f"{expected.epoch} "
        "of it: the database was restored to a state before its first epoch.",
        code=codes.SINK_EMPTY,
        remedy="Restore the database to the later state if you have it. Else give the sink another name in the DAG, "
        "with "
        "backfill={<the new name>: <its first epoch>}. See docs/sql.md, 'The database is behind the ledger'. Nothing "
        "was "
        "written.",
        sink=sink.name,
    )


def _gone(sink: SqlSink, expected: TransactionId, seen: Disagreement, session: Session, marker: MarkerTable) -> Corrupt:
    """No marker: with the table, with the table of markers, or alone."""
    table, recorded = session.table(*sink.table_name), seen.receipt.detail if seen.receipt else {}
    put_back = marker.putting_back(expected, seen.receipt.rows if seen.receipt else 0)
    if table is None:
        return Corrupt(
            f"There is no table {sink.table} in {session.name}, and no marker: they were dropped, or `table` or the "
            "connection "
            "leads to another place.",
            code=codes.TABLE_GONE,
            remedy="Restore table and marker, or correct the sink. To fill a new table, create it and give the sink "
            "another "
            "name in the DAG, with backfill={<the new name>: <the first epoch to take again>}. See docs/sql.md, 'The "
            "table is "
            "gone'. Nothing was written.",
            sink=sink.name,
        )
    if recorded.get("table_id") and recorded["table_id"] != table.id:
        return Corrupt(
            f"Table {sink.table} was dropped and created again, and its marker is gone: it is table {table.id}, the "
            "last epoch "
            f"went into {recorded['table_id']}.",
            code=codes.TABLE_REPLACED,
            remedy="If the rows were loaded again from a dump that ends with that epoch, put the marker back: "
            f"{put_back} To fill a new table, give the sink another name in the DAG, with "
            f"backfill={{<the new name>: <the "
            "first epoch to take again>}. See docs/sql.md, 'The table is gone'. Nothing was written.",
            sink=sink.name,
        )
    what = "The table of markers" if marker.table is None else "The marker of this sink in the table"
    return Corrupt(
        f"{what} {marker.schema}.{marker.name} is gone; table {sink.table} is still there, and the last epoch in it is "
        f"{expected.epoch}, says the ledger.",
        code=codes.MARKERS_GONE,
        remedy=f"See that the rows of that epoch are in the table, then put the marker back: {put_back} See "
        "docs/sql.md, 'The "
        "marker or its table is gone'. Nothing was written.",
        sink=sink.name,
    )


def _at(found: MarkerRow) -> str:
    return f" The table ends at {_ends(found)}." if found.ends else ""


def _ends(found: MarkerRow) -> str:
    unknown = "{…} (the offsets of the pipeline's consumer group: this marker has none)"
    return json.dumps(found.ends) if found.ends else unknown


# -- at the commit ----------------------------------------------------------------------------------------------------


def unclaimed(
    sink: SqlSink, attempt: SinkAttempt, marker: MarkerTable, found: MarkerRow | Reservation | None, rows: int
) -> Corrupt:
    """The first epoch's commit finds neither its reservation nor a marker."""
    if isinstance(found, Reservation):
        return Corrupt(
            f"Another pipeline of this name has claimed {sink.table} meanwhile: {found.text}, not "
            f"{Reservation.of(attempt).text}.",
            code=codes.TWO_LEDGERS,
            remedy="Find the other ledger, and give one of the two pipelines another name. See docs/sql.md, 'Two "
            "ledgers write under one name'. Nothing was written.",
            sink=sink.name,
        )
    return _to_put_back(
        f"Neither the reservation of this sink nor its marker is in {marker.schema}.{marker.name}: somebody has "
        f"deleted the row or the table since the vote, so nobody can say whether {attempt.txn} went in.",
        marker.putting_reservation_back(attempt),
        sink=sink,
        attempt=attempt,
        marker=marker,
        rows=rows,
    )


def not_previous(
    sink: SqlSink, attempt: SinkAttempt, marker: MarkerTable, found: MarkerRow | Reservation | None, rows: int
) -> Corrupt:
    """The marker is neither the previous epoch's nor this one's."""
    if found is None and attempt.previous:
        return _to_put_back(
            f"The marker of this sink is not in {marker.schema}.{marker.name} any more: somebody has deleted the row "
            "or "
            f"the table since epoch {attempt.previous.epoch}, so nobody can say whether {attempt.txn} went in.",
            marker.putting_back(attempt.previous, 0),
            sink=sink,
            attempt=attempt,
            marker=marker,
            rows=rows,
        )
    return Corrupt(
        f"The last epoch in table {sink.table} is {described_transaction(txn_of(found))}; the ledger expects "
        f"{described_transaction(attempt.previous)} before {attempt.txn}.",
        code=codes.TWO_LEDGERS,
        remedy="Do not clear anything yet. Find out whether the database or the ledger was restored, or another "
        "pipeline has the same name. See docs/sql.md, 'The marker'. Nothing was written.",
        sink=sink.name,
    )


def _to_put_back(
    what: str, without: str, *, sink: SqlSink, attempt: SinkAttempt, marker: MarkerTable, rows: int
) -> Corrupt:
    return Corrupt(
        what,
        code=codes.MARKERS_GONE,
        remedy=f"Look whether the {rows} rows of epoch {attempt.txn.epoch} are in {sink.table}. If they are: "
        f"{marker.putting_back(attempt.txn, rows)} If they are not: {without} Then clear the commit task. See "
        "docs/sql.md, 'The marker or its table is gone'. Nothing was written.",
        sink=sink.name,
    )
