"""Why a database does not show the epoch that the ledger expects: what can be seen, and what helps.

Each cause has a section of its own in docs/sql.md. Nothing is written here; a remedy that puts a row back is a
statement that a person runs after having looked at the table. Callers fill in the place of each error.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.contracts import (
    FIRST_AGAIN,
    Disagreement,
    SinkAttempt,
    backfill_from,
    rebuild_remedy,
    rename_in_doubt,
    waive_command,
)
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import JsonDict, Receipt, Shown, TransactionId, compare
from airflow_epochs.sinks.sql.database import Session
from airflow_epochs.sinks.sql.marker import MarkerRow, MarkerTable, Reservation, marker_of, txn_of
from airflow_epochs.sinks.sql.sink import folded, in_sqlite, stored_name
from airflow_epochs.sinks.sql.table import SqlTable, quoted

if TYPE_CHECKING:
    from airflow_epochs.sinks.sql.sink import SqlSink


def diagnosed(sink: SqlSink, seen: Disagreement, session: Session, marker: MarkerTable) -> Corrupt | None:
    """The error for a marker that is not the expected one, asked for before anything is opened or completed."""
    found, recorded = marker.look(), seen.receipt.detail if seen.receipt else {}
    if _is_elsewhere(recorded, session):
        return _elsewhere(sink, recorded, session, _rest_of(found, seen.expected))
    if error := astray(sink, recorded, session):
        return error
    if compare(txn_of(found), seen.expected) is Shown.EXPECTED:  # a second look found the expected marker
        return None
    if found is not None:
        return _disagrees(sink, found, seen.expected, marker, seen.in_doubt, seen.in_doubt)
    assert seen.expected
    error = _gone(sink, seen.expected, seen, session, marker)
    error.remedy += _of_notes(sink)
    return error


def _disagrees(
    sink: SqlSink,
    found: MarkerRow | Reservation,
    expected: TransactionId | None,
    marker: MarkerTable,
    next_one: TransactionId | None,
    in_doubt: TransactionId | None,
) -> Corrupt:
    """The error for another marker. ``next_one``: the transaction after ``expected``, if the ledger has one."""
    stands = compare(txn_of(found), expected)
    if isinstance(found, MarkerRow) and stands is Shown.AHEAD:
        if next_one and found.txn.epoch == next_one.epoch:
            return _another(sink, found, next_one, in_doubt)
        return _ahead(sink, found, expected, marker, in_doubt)
    assert expected
    if isinstance(found, MarkerRow):
        return (_behind if stands is Shown.BEHIND else _another)(sink, found, expected)
    return _emptied(sink, expected)


def _is_elsewhere(recorded: JsonDict, session: Session) -> bool:
    then, now = recorded.get("database") or {}, session.identity()
    if then and not then.keys() & now.keys():
        return True  # they are different kinds: PostgreSQL and SQLite
    return any(then.get(key) not in (None, value) for key, value in now.items() if value is not None)


def _named(database: JsonDict) -> str:
    return ", ".join(f"{k} {v}" for k, v in database.items())


def _rest_of(found: MarkerRow | Reservation | None, expected: TransactionId | None) -> str:
    """How to get the epochs that another database lacks, if it shows an earlier one. A sentence, after a blank."""
    if not isinstance(found, MarkerRow) or compare(found.txn, expected) is not Shown.BEHIND:
        return ""
    return (
        f" The database of the connection shows epoch {found.txn.epoch}. To go on there without a gap, give the sink "
        f"another name in the DAG, {_with_the_epochs_after(found)}"
    )


def _with_the_epochs_after(found: MarkerRow) -> str:
    """How a sink under another name gets the epochs that a database with this marker lacks."""
    return f"with {backfill_from(found.txn.epoch + 1)}: it reads the missing epochs from the source again."


def _leads_elsewhere(sink: SqlSink, session: Session, recorded: JsonDict, *, than: str, of: str) -> str:
    return (
        f"Connection {sink.conn_id!r} of table {sink.table} leads to another database than {than}. Database of the "
        f"connection: {_named(session.identity())}. Database of {of}: {_named(recorded['database'])}. Nothing was "
        "written."
    )


def _elsewhere(sink: SqlSink, recorded: JsonDict, session: Session, rest: str) -> Corrupt:
    """The error for a connection that leads to another database. ``rest``: a sentence for the remedy (``_rest_of``)."""
    return Corrupt(
        _leads_elsewhere(sink, session, recorded, than="the last epoch was committed to", of="the last epoch"),
        code=codes.TABLE_ELSEWHERE,
        remedy="Point the connection to the database of the last epoch again. If you moved the database on purpose by "
        f"dump and restore, restore the marker table there too.{rest} See docs/sql.md, 'The connection leads to "
        "another database'.",
    )


def astray(sink: SqlSink, then: JsonDict, session: Session) -> Corrupt | None:
    """The error if the connection's search path leads to another table than ``then`` says.

    None, too, if it leads to no table, and the earlier table is gone. ``then``: which table the sink found, as
    ``place_of`` or a receipt says. In another database, the table may be in another schema. The receipt may be of a
    sink of another kind: a receipt of a Delta table has an id, and no schema.
    """
    schema, name = sink.table_name
    if schema is not None or not (then.get("table_id") and then.get("schema")) or _is_elsewhere(then, session):
        return None
    table = session.table(None, name)
    here = table.schema if table else session.schema_of(None, name)
    if here == then["schema"] or (table and table.id == then["table_id"]):
        return None
    if table is None and name not in session.names(then["schema"], name):
        return None
    now = f"schema {here}, where the table has id {table.id}" if table else "no such table"
    return Corrupt(
        f"`table` of the sink is {sink.table}, without a schema. The search path of connection {sink.conn_id!r} leads "
        f"to {now}, but the table with the sink's rows is in schema {then['schema']}, with id {then['table_id']}. "
        "Nothing was written.",
        code=codes.TABLE_ELSEWHERE,
        remedy=f"Let the search path begin with schema {quoted(then['schema'])} again: set it in `options` of the "
        "connection's extra, for the role, or for the database. Then clear the failed task. If no epoch is in doubt, "
        f"you may name the schema in the DAG instead: table='{quoted(then['schema'])}.{sink.table.strip()}'. If you "
        "moved table and marker to another schema on purpose, name that one. See docs/sql.md, 'The connection leads "
        "to another database'.",
    )


def is_of(then: JsonDict, table: SqlTable, session: Session) -> bool:
    """Whether a receipt is of this table. ``then``: its detail, perhaps of a sink of another kind."""
    if then.get("database") is None or _is_elsewhere(then, session):
        return False
    if table.id and then.get("table_id"):
        return bool(table.id == then["table_id"])
    return in_sqlite(str(then.get("table"))) == folded(table.name)


def place_of(sink: SqlSink, table: SqlTable, session: Session) -> JsonDict:
    """The database's identity, for ``elsewhere_since_vote``; and the table's, for ``astray``.

    Without the table's if the DAG names its schema, or if the database has no ids of tables.
    """
    named = {} if table.id is None or sink.table_name[0] else {"schema": table.schema, "table_id": table.id}
    return {"database": session.identity(), **named}


def _behind(sink: SqlSink, found: MarkerRow, expected: TransactionId) -> Corrupt:
    return Corrupt(
        f"The last epoch in table {sink.table} is {found.txn.epoch}, but the ledger says {expected.epoch}. The "
        "database was restored to an earlier state, a standby without the last commits became the primary server, or "
        f"the connection leads to another database.{_at(found)} Nothing was written.",
        code=codes.SINK_BEHIND,
        remedy="Correct the connection if it leads to another database than before. Else restore the database to the "
        "later state, if you have a backup of it. If not, give the sink another name in the DAG, "
        f"{_with_the_epochs_after(found)} See docs/sql.md, 'The database is behind the ledger'.",
    )


def _ahead(
    sink: SqlSink,
    found: MarkerRow,
    expected: TransactionId | None,
    marker: MarkerTable,
    in_doubt: TransactionId | None,
) -> Corrupt:
    known = f"the ledger ends at epoch {expected.epoch}" if expected else "the ledger has no epoch of this sink"
    if other := other_table(sink, marker, found):
        whose = (
            f"Look whose rows table {other!r} in schema {marker.schema} has: the rows of epoch {found.txn.epoch} "
            f"went there, and this sink has table {sink.table}. If they are not this pipeline's, the marker is another "
            f"pipeline's: {_another_name(sink, in_doubt)}. If they are, point the sink back to that table, unless "
            "somebody renamed it. Then mend the ledger:"
        )
    else:
        whose = (
            f"Check that table {sink.table} has the rows of epoch {found.txn.epoch}. If it does not, the marker is "
            f"another pipeline's: {_another_name(sink, in_doubt)}. If it does, mend the ledger:"
        )
    return Corrupt(
        f"The marker of sink {sink.name} in {marker.schema}.{marker.name} says that its last epoch is "
        f"{found.txn.epoch} ({found.txn}), but {known}. The ledger lost its newest records, it was restored from an "
        "older copy, the connection leads to another ledger, or another pipeline with these names of pipeline and "
        f"sink has its marker in the same table.{_at(found)} Nothing was written.",
        code=codes.LEDGER_BEHIND,
        remedy=f"{whose} " + rebuild_remedy(found.txn.pipeline, "docs/sql.md, 'The ledger is behind the database'"),
    )


def other_table(sink: SqlSink, marker: MarkerTable, found: MarkerRow) -> str | None:
    """The table that got the marker's rows, if the marker names another table than the sink's; else None."""
    session = marker.session
    if found.target is None:
        return None
    same = session.whereabouts(marker.schema, found.target) == session.whereabouts(*sink.table_name)
    return None if same else found.target


def _another_name(sink: SqlSink, in_doubt: TransactionId | None) -> str:
    """What to do about a marker that another pipeline has written."""
    if in_doubt:
        return rename_in_doubt(in_doubt, sink.name)
    return "give this sink another name, or a `marker_table` of its own"


def _another(
    sink: SqlSink, found: MarkerRow, expected: TransactionId, in_doubt: TransactionId | None = None
) -> Corrupt:
    """The error for another transaction of the same epoch. ``in_doubt``: ``expected``, if it is in doubt."""
    renaming = ""
    if in_doubt:
        renaming = (
            f" If table {sink.table} lacks the rows of {found.txn}, only the marker is the other pipeline's: "
            f"{rename_in_doubt(in_doubt, sink.name)}."
        )
    return Corrupt(
        f"Table {sink.table} and the ledger have different transactions of epoch {expected.epoch}: {found.txn} in the "
        f"table, {expected} in the ledger. Two ledgers have a pipeline of this name, or the ledger was restored and "
        f"then committed other data.{_at(found)} Nothing was written.",
        code=codes.TWO_LEDGERS,
        remedy="Find the other ledger, and give one of the two pipelines another name. See docs/sql.md, 'Two ledgers "
        f"write under one name'.{renaming}",
    )


def _emptied(sink: SqlSink, expected: TransactionId) -> Corrupt:
    return Corrupt(
        f"The marker of table {sink.table} shows no epoch, only the reservation of the first epoch, but the ledger has "
        f"epoch {expected.epoch} of this sink. The database was restored to a state before its first epoch. Nothing "
        "was written.",
        code=codes.SINK_EMPTY,
        remedy="Restore the database to the later state, if you have a backup of it. If not, give the sink another "
        f"name in the DAG, with {backfill_from('<its first epoch>')}. See docs/sql.md, "
        "'The database is behind the ledger'.",
    )


def _gone(sink: SqlSink, expected: TransactionId, seen: Disagreement, session: Session, marker: MarkerTable) -> Corrupt:
    """The error for a missing marker: it is gone together with the table, with the table of markers, or alone."""
    table, recorded = session.table(*sink.table_name), seen.receipt.detail if seen.receipt else {}
    put_back = marker.putting_back(expected, seen.receipt.rows if seen.receipt else 0)
    if seen.receipt and (place := _of_another_kind(seen.receipt)):
        return _changed_kind(sink, expected, place)
    if table is None:
        return Corrupt(
            f"{_not_there(sink, session)} or `table` or the connection of the sink is wrong. Nothing was written.",
            code=codes.TABLE_GONE,
            remedy=f"{_OLD_NAMES}, or correct the sink. To fill a new table, create it and give the sink another name "
            f"in the DAG, with {backfill_from(FIRST_AGAIN)}. See docs/sql.md, 'The table is gone'.",
        )
    has_moved = recorded.get("schema") not in (None, table.schema)
    if recorded.get("table_id") and recorded["table_id"] != table.id:
        if has_moved or _is_renamed(sink, recorded.get("table")):
            return _another_table(sink, expected, recorded, table, put_back)
        return Corrupt(
            f"Somebody dropped table {sink.table} and created it again, and its marker is gone: the table has id "
            f"{table.id} now, and epoch {expected.epoch} was committed to id {recorded['table_id']}. Nothing was "
            "written.",
            code=codes.TABLE_REPLACED,
            remedy=f"Put the marker back if the table has the rows of a dump that ends with epoch {expected.epoch}: "
            f"{put_back} To fill a new table instead, give the sink another name in the DAG, with "
            f"{backfill_from(FIRST_AGAIN)}. See docs/sql.md, "
            "'The table is gone'.",
        )
    moved_from = recorded["schema"] if has_moved and recorded.get("table_id") else None
    return _lost_marker(sink, expected, marker, table, put_back, moved_from)


def _not_there(sink: SqlSink, session: Session) -> str:
    """The beginning of a sentence about a table that does not exist; the caller completes it."""
    return (
        f"Table {sink.table} and its marker do not exist in {session.name}: somebody dropped them, or renamed them or "
        "their schema,"
    )


_OLD_NAMES = (
    "Give table and marker table, or their schema, their old names back; or restore the table and its marker from one "
    "backup"
)


def _is_renamed(sink: SqlSink, recorded: str | None) -> bool:
    """Whether the sink's table has another name than in the receipt, however the two are spelled."""
    then = stored_name(recorded) if recorded else None
    return then is not None and then[1] != sink.table_name[1]


def _lost_marker(
    sink: SqlSink, expected: TransactionId, marker: MarkerTable, table: SqlTable, put_back: str, moved_from: str | None
) -> Corrupt:
    """The error for a marker that is gone, while the table is there. ``moved_from``: its former schema, if it moved."""
    what = "The marker table" if marker.table is None else "The marker of this sink in the table"
    still = "still exists"
    if moved_from:
        still = f"was moved from schema {moved_from} to schema {table.schema}, perhaps without it"
    return Corrupt(
        f"{what} {marker.schema}.{marker.name} is gone. Table {sink.table} {still}, and according to the ledger its "
        f"last epoch is {expected.epoch}. Nothing was written.",
        code=codes.MARKERS_GONE,
        remedy=f"Check that table {sink.table} has the rows of epoch {expected.epoch}. If it has them, put the marker "
        f"back: {put_back} See docs/sql.md, 'The marker or its table is gone'.",
    )


def _of_another_kind(last: Receipt) -> str | None:
    """The place of the last epoch's rows if it is not a table in a database; else None."""
    if topic := last.detail.get("topic"):
        return f"topic {topic}"
    return f"a Delta table, as its version {last.version}" if last.version is not None else None


def _changed_kind(sink: SqlSink, expected: TransactionId, place: str) -> Corrupt:
    return Corrupt(
        f"Epoch {expected.epoch} of sink {sink.name} was committed to {place}. The sink is a SqlSink with table "
        f"{sink.table} now, which has no epoch of it. Nothing was written.",
        code=codes.TABLE_ELSEWHERE,
        remedy="Give the sink its old kind back in the DAG if it is not to change. If it is to write to the "
        f"table from now on, give it another name in the DAG, with {backfill_from(FIRST_AGAIN)}. See docs/sql.md, "
        "'The table is gone'.",
    )


def _another_table(sink: SqlSink, expected: TransactionId, then: JsonDict, now: SqlTable, put_back: str) -> Corrupt:
    return Corrupt(
        f"Epoch {expected.epoch} was committed to table {then.get('table')} in schema {then.get('schema')}, with id "
        f"{then['table_id']}. The sink has table {sink.table} in schema {now.schema} now, with id {now.id} and without "
        "a marker: the DAG points the sink to another table, or somebody copied the table there without its marker. "
        "Nothing was written.",
        code=codes.TABLE_ELSEWHERE,
        remedy="Correct `table` if the DAG points the sink to a wrong table. If the table is a copy that has the rows "
        f"of epoch {expected.epoch}, put the marker back: {put_back} To fill a new table instead, give the sink "
        f"another name in the DAG, with {backfill_from(FIRST_AGAIN)}. See docs/sql.md, "
        "'The table is gone'.",
    )


def _of_notes(sink: SqlSink) -> str:
    """A sentence about notes of deletions if a table was restored or moved: no check finds that they are missing."""
    if sink.sequence_by is None:
        return ""
    notes = f"{sink.table_name[1]}_deleted_<8 hex digits>"
    return (
        f" If you restored or moved the table, do the same with its notes of deletions, {notes}: without them, older "
        "rows may bring deleted keys back."
    )


def _at(found: MarkerRow) -> str:
    return f" The table ends at {json.dumps(found.ends)}." if found.ends else ""


# -- at the commit ----------------------------------------------------------------------------------------------------


def elsewhere_since_vote(
    sink: SqlSink, attempt: SinkAttempt, voted: JsonDict, session: Session, found: MarkerRow | Reservation | None
) -> Corrupt | None:
    """The error for a connection that leads to another database than at the vote; None if it does not.

    Ask only if the marker is not the expected one: a database that was moved with its marker is the same. ``voted``:
    what the vote saw. Earlier versions did not note the database. ``found``: the marker in that database.
    """
    if not _is_elsewhere(voted, session):
        return None
    return Corrupt(
        _leads_elsewhere(sink, session, voted, than="at the vote", of="the vote"),
        code=codes.TABLE_ELSEWHERE,
        remedy="Point the connection to the database of the vote again. If you moved the database on purpose by dump "
        "and restore, restore the marker table there too. Then clear the commit task. If the database of the vote is "
        f"gone for good, complete the epoch without this sink's rows: `{waive_command(attempt.txn, sink.name)}`. Clear "
        f"the commit task. {_going_on_there(attempt, found)} See docs/sql.md, 'The connection leads to another "
        "database'.",
    )


def _going_on_there(attempt: SinkAttempt, found: MarkerRow | Reservation | None) -> str:
    """How the sink goes on in the connection's database after its epoch was waived."""
    if not isinstance(found, MarkerRow):
        return "With the next epoch, the sink begins in the database of the connection."
    shows = f"The marker in the database of the connection shows {found.txn}. Give the sink another name in the DAG"
    if compare(found.txn, attempt.previous) is Shown.BEHIND:
        return f"{shows}, {_with_the_epochs_after(found)}"
    return f"{shows}: it begins there with the next epoch."


def unclaimed(
    sink: SqlSink, attempt: SinkAttempt, marker: MarkerTable, found: MarkerRow | Reservation | None, rows: int
) -> Corrupt:
    """The error if the first epoch's commit finds neither its reservation nor a marker."""
    if isinstance(found, Reservation):
        error = _to_put_back(
            f"Another pipeline of this name has reserved table {sink.table} after the vote. The marker table has "
            f"{found.text!r} instead of {Reservation.of(attempt).text!r}.",
            marker.putting_reservation_back(attempt),
            sink=sink,
            attempt=attempt,
            marker=marker,
            rows=rows,
        )
        error.code = codes.TWO_LEDGERS
        error.remedy = (
            f"Find the other ledger, and pause its pipeline. {error.remedy} Before the other pipeline goes on, give "
            "its sink another name, or a `marker_table` of its own. See also 'Two ledgers write under one name'."
        )
        return error
    if _is_gone(sink, marker):
        return _gone_since_vote(sink, attempt, marker.session)
    return _to_put_back(
        f"{marker.schema}.{marker.name} has neither the reservation nor the marker of this sink: somebody deleted the "
        f"row or the table after the vote. So the provider does not know whether {attempt.txn} was committed.",
        marker.putting_reservation_back(attempt),
        sink=sink,
        attempt=attempt,
        marker=marker,
        rows=rows,
    )


def not_previous(
    sink: SqlSink,
    attempt: SinkAttempt,
    marker: MarkerTable,
    found: MarkerRow | Reservation | None,
    rows: int,
    *,
    decided: bool,
) -> Corrupt:
    """The error for a marker that is neither the previous epoch's nor this one's."""
    if found is None and _is_gone(sink, marker):
        return _gone_since_vote(sink, attempt, marker.session)
    if found is None and attempt.previous:
        return _to_put_back(
            f"The marker of this sink in {marker.schema}.{marker.name} is gone: somebody deleted the row or the table "
            f"after epoch {attempt.previous.epoch}. So the provider does not know whether {attempt.txn} was committed.",
            marker.putting_back(attempt.previous, 0),
            sink=sink,
            attempt=attempt,
            marker=marker,
            rows=rows,
        )
    assert found
    in_doubt = attempt.txn if decided else None
    error = _disagrees(sink, found, attempt.previous, marker, attempt.txn, in_doubt)
    seen = Disagreement(
        pipeline=attempt.txn.pipeline, found=marker_of(found), expected=attempt.previous, in_doubt=in_doubt
    )
    error.remedy += seen.while_in_doubt(sink.name)
    return error


def _is_gone(sink: SqlSink, marker: MarkerTable) -> bool:
    return marker.session.table(*sink.table_name) is None


def _gone_since_vote(sink: SqlSink, attempt: SinkAttempt, session: Session) -> Corrupt:
    """The error if the table is gone since the vote. Without it, no statement can put a marker back."""
    return Corrupt(
        f"{_not_there(sink, session)} after the vote, or the connection leads to another database. So the provider "
        f"does not know whether {attempt.txn} was committed. Nothing was written.",
        code=codes.TABLE_GONE,
        remedy=f"{_OLD_NAMES}, or point the connection back. Then clear the commit task. If that is impossible, "
        f"complete the epoch without this sink's rows: `{waive_command(attempt.txn, sink.name)}`. Clear the commit "
        "task. Then create a new table, and give the sink another name in the DAG, with "
        f"{backfill_from(FIRST_AGAIN)}. See docs/sql.md, 'The table is gone'.",
    )


def _to_put_back(
    what: str, without: str, *, sink: SqlSink, attempt: SinkAttempt, marker: MarkerTable, rows: int
) -> Corrupt:
    return Corrupt(
        f"{what} The connection leads to {marker.session.name}. Nothing was written.",
        code=codes.MARKERS_GONE,
        remedy="Point the connection back if it leads to another database than before. Else check whether table "
        f"{sink.table} has the {rows} rows of epoch {attempt.txn.epoch}. If it has them: "
        f"{marker.putting_back(attempt.txn, rows)} If it does not: {without} Then clear the commit task. See "
        "docs/sql.md, 'The marker or its table is gone'.",
    )
