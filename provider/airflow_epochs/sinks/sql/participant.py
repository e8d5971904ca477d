"""What a SQL sink does in an epoch: the participant of the two-phase commit that ``SqlSink`` describes.

Vote and commit of all sinks of one connection share a transaction (``sql_joint``); here is what each does in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import (
    FIRST_AGAIN,
    Connection,
    Disagreement,
    Elsewhere,
    Environment,
    LastEpoch,
    SinkAttempt,
    StagedSample,
    backfill_from,
    waive_command,
)
from airflow_epochs.errors import Corrupt, Refused, located
from airflow_epochs.model import (
    STORED,
    JsonDict,
    Marker,
    Receipt,
    Shown,
    Staged,
    StagedClaim,
    TransactionId,
    compare,
    described_transaction,
)
from airflow_epochs.sinks.sql import diagnosis
from airflow_epochs.sinks.sql.database import Database, Session, database_of
from airflow_epochs.sinks.sql.deletions import Deletions
from airflow_epochs.sinks.sql.forms import OtherForm
from airflow_epochs.sinks.sql.load import Load
from airflow_epochs.sinks.sql.marker import MarkerRow, MarkerTable, Reservation, marker_of, txn_of
from airflow_epochs.sinks.sql.rights import lacking
from airflow_epochs.sinks.sql.sequences import Draw
from airflow_epochs.sinks.sql.table import (
    SqlTable,
    columns_for,
    key_columns,
    quoted,
    require_all_seen,
    require_kept,
    require_keys,
    require_sequence,
    require_usable,
    sequence_column,
    suggestion,
    written,
)
from airflow_epochs.sinks.sql.upsert import By
from airflow_epochs.spark.driver.delta.keys import DELETED
from airflow_epochs.spark.driver.delta.plans import How
from airflow_epochs.spark.driver.plans import Fit
from airflow_epochs.staged.sampling import rows_in, sample_of
from airflow_epochs.staged.staging import Staging
from airflow_epochs.staged.table import StagedTable

if TYPE_CHECKING:
    from airflow_epochs.sinks.sql.database import Batches
    from airflow_epochs.sinks.sql.sink import SqlSink

log = secrecy.logger(__name__)


@dataclass(frozen=True)
class Rehearsed:
    """The result of a rehearsal.

    Attributes:
        draw: The rows for which the commit will draw numbers.
        takes_columns: Whether the table of markers is of an earlier version, without all columns, and can get them.
        detail: What else the vote saw, as in ``Staged``: the columns that the commit will store, if the sink may leave
            out some; the database; the table, if only the search path leads to it.
    """

    draw: Draw
    takes_columns: bool
    detail: JsonDict


@dataclass(frozen=True)
class SqlParticipant:
    """The operations of ``contracts.Sink`` for one SQL sink, in one task's environment."""

    sink: SqlSink
    env: Environment

    @cached_property
    def staged(self) -> StagedTable:
        return StagedTable.of(self.sink, f"table {self.sink.table}", self.env)

    # -- stage ---------------------------------------------------------------------------------------------------

    def plan_stage(self, attempt: SinkAttempt, try_id: str) -> JsonDict:
        return self.staged.plan(attempt, try_id, self._newest())

    def _newest(self) -> How | None:
        """How Spark finds each key's newest row; None if the sink has neither ``sequence_by`` nor ``delete_when``."""
        if self.sink.sequence_by is None and self.sink.delete_when is None:
            return None
        keys, sequence_by, delete_when = tuple(self.sink.keys), self.sink.sequence_by, self.sink.delete_when
        return How(mode=self.sink.mode, keys=keys, sequence_by=sequence_by, delete_when=delete_when)

    # -- open ----------------------------------------------------------------------------------------------------

    def require_ready(self, pipeline: str, previous: TransactionId | None) -> None:
        """Check what needs no rows: the table, its keys, and the rights on it and on the marker table."""
        with located(pipeline, sink=self.sink.name), self.session([self.who(pipeline)]) as session:
            table = self._found(session)
            if table is None:
                raise self._missing(
                    session,
                    previous,
                    "Create the table, with the columns that the transform returns. Unless epochs have data intervals, "
                    f"`airflow epochs preview {pipeline}` prints a CREATE TABLE to start from",
                )
            self._require_usable(table)
            require_kept(table, self.sink.table)
            self._warn_of_heirs(table)
            if self.sink.keys:
                keys = require_keys(table, self.sink.keys, self.sink.table)
                self._require_rights(session, table, self._kept(table, keys))
                self._require_temporary(session)
                self._require_notes(session, table, keys)
            self.marker(session, pipeline).require_writable()

    def _require_usable(self, table: SqlTable) -> None:
        """Require a usable table, and that no policy hides rows, except for an upsert without deletions.

        Such an upsert loses no row to a policy: the database refuses a row whose key the policy hides.
        """
        require_usable(table, self.sink.table)
        if not self.sink.keys or self.sink.delete_when:
            require_all_seen(table, self.sink.table)

    def _warn_of_heirs(self, table: SqlTable) -> None:
        """Warn of rows in inheriting tables that an upsert may not find. A trigger or TimescaleDB may find them."""
        if self.sink.keys and table.heirs:
            log.warning(
                "Other tables inherit from table %s: %s. Its unique index does not know their keys. If a row has such "
                "a key, readers of the table see the key twice, unless a trigger or an extension of the database puts "
                "the row in the other table.",
                self.sink.table,
                ", ".join(table.heirs),
            )

    def _kept(self, table: SqlTable, keys: Sequence[str]) -> list[str]:
        """The columns that an upsert's rows surely have, by the sink's options."""
        sequence = self.sink.sequence_by
        return [*keys, *([require_sequence(table, sequence).name] if sequence else ())]

    def _require_rights(self, session: Session, table: SqlTable, columns: Sequence[str]) -> None:
        """Raise Refused if the user lacks rights. ``columns``: the columns of the rows, as far as they are known."""
        if missing := lacking(session, table, self._needed(table, columns)):
            raise Refused(
                f"An {self.sink.mode} needs more rights on table {self.sink.table}: the connection's user lacks "
                f"{', '.join(missing)}.",
                code=codes.SQL_TABLE_UNUSABLE,
                remedy=f"Grant them: `GRANT {', '.join(missing)} ON {table.spelled} TO <the user>`. Then clear the "
                "failed task.",
            )

    def _needed(self, table: SqlTable, columns: Sequence[str]) -> dict[str, Sequence[str]]:
        """Each right -> the columns that need it. An upsert also reads the rows that it changes."""
        if not self.sink.keys:
            return {"INSERT": columns}
        keys = [column.name for key in self.sink.keys if (column := table.column_of(key))]
        changed = [name for name in columns if name not in keys]
        deletes: dict[str, Sequence[str]] = {"DELETE": ()} if self.sink.delete_when else {}
        return {"SELECT": columns, "INSERT": columns, "UPDATE": changed, **deletes}

    def _require_temporary(self, session: Session) -> None:
        """Require the right to make temporary tables: an upsert copies its rows into one first."""
        if name := session.lacks_temporary():
            raise Refused(
                f"An upsert into table {self.sink.table} makes a temporary table, and the connection's user lacks the "
                f"right TEMPORARY on database {quoted(name)}.",
                code=codes.SQL_TABLE_UNUSABLE,
                remedy=f"Grant it: `GRANT TEMPORARY ON DATABASE {quoted(name)} TO <the user>`. Then clear the failed "
                "task.",
            )

    def _require_notes(self, session: Session, table: SqlTable, keys: Sequence[str]) -> None:
        if self.sink.sequence_by is None:
            return
        sequence = require_sequence(table, self.sink.sequence_by).name
        notes = Deletions(session=session, table=table, keys=keys, sequence=sequence)
        notes.require_rights(deletes=self.sink.delete_when is not None)

    # -- vote ----------------------------------------------------------------------------------------------------

    def rehearse(self, session: Session, attempt: SinkAttempt, staging: Staging, staged: Staged) -> Rehearsed:
        """Do what the commit will do in its transaction; without the rows if the sink does not rehearse them.

        The statements run in any case: they find missing rights, and what the table does not allow at all.

        Raises:
            Refused, RowsGone: The sink cannot promise the epoch.
            Corrupt: A person must look at the marker.
        """
        table = self._table(session, staging, attempt.previous)
        require_kept(table, self.sink.table)
        load = replace(self._load(session, table, staging, attempt.stored), rehearses=True)
        self._require_rights(session, table, load.columns)
        marker = self.marker(session, attempt.txn.pipeline)
        self._require_unchanged(attempt, marker, marker.make())
        if self.sink.rehearse:
            load.run(self._reader(staging), staged.rows)
        else:
            load.look(self._reader(staging), staged.rows)
            load.run(tuple, 0)
        marker.write(attempt, staged.rows, table.name)
        stored = {STORED: [field["name"] for field in load.fields]} if self.sink.delete_when else {}
        seen = stored | diagnosis.place_of(self.sink, table, session)
        return Rehearsed(Draw(table, load.columns, staged.rows), marker.takes_columns, seen)

    def _table(self, session: Session, staging: Staging, previous: TransactionId | None) -> SqlTable:
        table = self._found(session)
        if table is None:
            statement = self._creating(session, staging.shape.schema["fields"])
            raise self._missing(session, previous, f"Create the table, for example: `{statement}`")
        self._require_usable(table)
        return table

    def _found(self, session: Session) -> SqlTable | None:
        """The sink's table, with its keys if the sink has some; None if it is not there."""
        return session.table(*self.sink.table_name, keyed=bool(self.sink.keys))

    def _missing(self, session: Session, previous: TransactionId | None, creating: str) -> Refused:
        """The error for a table that does not exist. ``creating``: how to make one before the first epoch."""
        if previous:
            return Refused(
                f"Table {self.sink.table} does not exist any more in {session.name}, although epoch "
                f"{previous.epoch} was committed to it: somebody dropped or renamed it, or the connection leads "
                "to another database, or its user cannot see the table now.",
                code=codes.SQL_TABLE_MISSING,
                remedy="Restore the table with its rows, or correct the connection, or grant the table's rights to the "
                "user. Then clear the failed task. To fill a new table instead, create it and give the sink another "
                "name in the DAG, with "
                f"{backfill_from(FIRST_AGAIN)}. See docs/sql.md, "
                "'The table is gone'.",
            )
        return Refused(
            f"Table {self.sink.table} does not exist in {session.name}, or the connection's user cannot see it.",
            code=codes.SQL_TABLE_MISSING,
            remedy=f"{creating}. Then clear the failed task.",
        )

    def _load(self, session: Session, table: SqlTable, staging: Staging, stored: Sequence[str]) -> Load:
        """The load into the table. ``stored``: columns that the table must have, because epochs have stored them."""
        staged = staging.shape.schema["fields"]
        fields = written(table, staged, self.sink.delete_when, kept=(*self.sink.keys, self.sink.sequence_by))
        self._require_stored([field["name"] for field in staged if field not in fields], stored)
        columns = columns_for(table, fields, self.database.takes, self.database.type_for)
        by = self._by(table, staged, fields, columns) if self.sink.keys else None
        return Load(session=session, table=table, fields=fields, columns=columns, by=by)

    def _require_stored(self, left_out: Sequence[str], stored: Sequence[str]) -> None:
        """Raise Refused if columns are left out that have been stored before: they may have another name now."""
        known = {name.lower() for name in stored}
        if gone := [name for name in left_out if name.lower() in known]:
            raise Refused(
                f"Table {self.sink.table} has no column {', '.join(map(repr, gone))} any more, which the sink stored "
                "before: somebody dropped or renamed it.",
                code=codes.SQL_ROWS_UNFIT,
                remedy="Put the column back into the table, under its old name. Or, if the table is to have no such "
                "column from now on, give it another name in the transform's rows and in `delete_when` of the sink. "
                "Then clear the stage task.",
            )

    def _by(
        self, table: SqlTable, staged: Sequence[JsonDict], fields: Sequence[JsonDict], columns: Sequence[str]
    ) -> By:
        keys = key_columns(table, self.sink.keys, columns, self.sink.table)
        sequence = self.sink.sequence_by
        return By(
            keys=keys,
            sequence=sequence_column(table, sequence, fields, self.database.sorts) if sequence else None,
            deleted=DELETED if any(field["name"] == DELETED for field in staged) else None,
        )

    def _reader(self, staging: Staging) -> Callable[[], Batches]:
        return partial(self.staged.batches, staging)

    def _require_unchanged(
        self, attempt: SinkAttempt, marker: MarkerTable, found: MarkerRow | Reservation | None
    ) -> None:
        """Require that the table shows the sink's previous epoch, as it did when the epoch was opened.

        Nothing is promised yet, so only this attempt is aborted. The next ``open`` compares again. It stops before it
        opens anything, and its error has the remedy. The statements of ``diagnosis`` for a commit would be wrong here:
        one of them sets the marker of this epoch, which is not decided.
        """
        if compare(txn_of(found), attempt.previous) is not Shown.EXPECTED:
            raise Refused(
                f"The last epoch in table {self.sink.table} is {described_transaction(txn_of(found))}, but the ledger "
                f"expects {described_transaction(attempt.previous)}. After the epoch was opened, "
                f"somebody changed the marker in {marker.schema}.{marker.name}, or edited the connection, which leads "
                f"to {marker.session.name}. Nothing was written.",
                code=codes.SQL_MARKER_CHANGED,
            )

    def reserve(self, session: Session, attempt: SinkAttempt) -> None:
        """Leave the reservation for a first epoch, before its commit."""
        marker = self.marker(session, attempt.txn.pipeline)
        found = marker.make()
        self._require_previous(attempt, marker, found, decided=False)
        if found != Reservation.of(attempt):
            marker.reserve(attempt)

    # -- commit --------------------------------------------------------------------------------------------------

    def locked(self, session: Session, attempt: SinkAttempt, staged: Staged) -> MarkerRow | None:
        """The marker if it is this transaction's; None if it is the sink's turn.

        Raises:
            Corrupt: The sink shows neither the previous epoch nor this one, or nobody can say. Or the table or database
                is not the one that the vote found.
        """
        if error := diagnosis.astray(self.sink, staged.detail, session):
            raise error
        marker = self.marker(session, attempt.txn.pipeline)
        with self.promised(attempt.txn):
            found = marker.lock() if self.sink.reserves or attempt.previous else marker.make()
        stands = compare(txn_of(found), attempt.previous, attempt.txn)
        if isinstance(found, MarkerRow) and stands is Shown.ALREADY:
            return found
        is_first = self.sink.reserves and not attempt.previous and not isinstance(found, MarkerRow)
        is_unclaimed = is_first and found != Reservation.of(attempt)
        if (is_unclaimed or stands is not Shown.EXPECTED) and (
            error := diagnosis.elsewhere_since_vote(self.sink, attempt, staged.detail, session, found)
        ):
            raise error
        if is_unclaimed:
            raise diagnosis.unclaimed(self.sink, attempt, marker, found, staged.rows)
        self._require_previous(attempt, marker, found, staged.rows, decided=True)
        return None

    def write(self, session: Session, attempt: SinkAttempt, staged: Staged) -> MarkerRow:
        """Write rows and marker. The session's transaction must have locked the marker."""
        staging = self.staged.promised(attempt, staged)
        table = self._table(session, staging, attempt.previous)
        load = self._load(session, table, staging, (*attempt.stored, *staged.detail.get(STORED, ())))
        load.run(self._reader(staging), staged.rows)
        self.env.reached("sql.copied")
        return self.marker(session, attempt.txn.pipeline).write(attempt, staged.rows, table.name)

    @contextmanager
    def promised(self, txn: TransactionId) -> Iterator[None]:
        """Turn a refusal into Corrupt: the database took the rows at the vote, so somebody has changed it since."""
        try:
            yield
        except Refused as refused:
            raise Corrupt(
                f"Table {self.sink.table} refuses the rows of {txn}, which the sink promised in its vote. Nothing was "
                f"written. The reason: {refused.what}",
                code=codes.SQL_COMMIT_REFUSED,
                remedy=f"{_mend(refused)}. Then clear the commit task. If that is impossible, complete the epoch "
                f"without this sink's rows: `{waive_command(txn, self.sink.name)}`.",
            ) from refused

    def _require_previous(
        self,
        attempt: SinkAttempt,
        marker: MarkerTable,
        found: MarkerRow | Reservation | None,
        rows: int = 0,
        *,
        decided: bool,
    ) -> None:
        """Require that the table shows the sink's previous epoch, and no other."""
        if compare(txn_of(found), attempt.previous) is not Shown.EXPECTED:
            raise diagnosis.not_previous(self.sink, attempt, marker, found, rows, decided=decided)

    def detail(self, session: Session) -> JsonDict:
        """The identity of the table and its database, for the receipt: an error about another table names both."""
        table = session.table(*self.sink.table_name)
        return {
            "table": self.sink.table,
            "schema": table.schema if table else None,
            "mode": self.sink.mode,
            "table_id": table.id if table else None,
            "database": session.identity(),
        }

    def require_own_table(self, own: Receipt) -> None:
        """Raise Corrupt if the search path does not lead to the table that got the rows of ``own``."""
        pipeline = own.txn_id.pipeline
        with located(pipeline, sink=self.sink.name), self.session([self.who(pipeline)]) as session:
            if error := diagnosis.astray(self.sink, own.detail, session):
                raise error

    def place_now(self, pipeline: str) -> JsonDict:
        """``detail``, read in a session of its own."""
        with located(pipeline, sink=self.sink.name), self.session([self.who(pipeline)]) as session:
            return self.detail(session)

    def may_hold(self, receipt: Receipt) -> bool:
        """Whether the receipt is of the sink's table, which is not empty, as far as the user may see that."""
        if receipt.detail.get("database") is None:
            return False  # for example, the receipt is of a sink of another kind
        pipeline = receipt.txn_id.pipeline
        with located(pipeline, sink=self.sink.name), self.session([self.who(pipeline)]) as session:
            table = session.table(*self.sink.table_name)
            if table is None or not diagnosis.is_of(receipt.detail, table, session):
                return False
            unseen = session.lacks(table, "SELECT")
            return bool(unseen or session.execute(f"SELECT 1 FROM {table.spelled} LIMIT 1"))

    def receipt(self, attempt: SinkAttempt, staged: Staged, row: MarkerRow, detail: JsonDict) -> Receipt:
        """The receipt, made only from the marker, the decision and the database, so that a repeat returns the same."""
        stored = {STORED: staged.detail[STORED]} if STORED in staged.detail else {}
        return Receipt(
            txn_id=attempt.txn,
            sink=self.sink.name,
            rows=row.rows,
            files=staged.files,
            bytes=staged.bytes,
            version=None,
            committed_at=row.committed_at,
            detail=detail | stored,
        )

    def fence(self, pipeline: str, over: Collection[TransactionId | None], by: TransactionId) -> bool:
        """Set the marker to ``by``. A commit that has locked the marker ends first: the fence waits for it."""
        with located(pipeline, sink=self.sink.name), self.session([self.who(pipeline)]) as session:
            marker = self.marker(session, pipeline)
            found = marker.lock() if self.sink.reserves or None not in over else marker.make()
            if txn_of(found) not in over or (found is None and self.sink.reserves):
                return txn_of(found) == by
            marker.fence(by)
            session.commit()
            return True

    # -- between epochs ------------------------------------------------------------------------------------------

    def sample(self, attempt: SinkAttempt, place: str, most: int) -> StagedSample:
        """The staged rows, as Spark wrote them; with a statement that creates the table, if it does not exist."""
        staging, staged = self.staged.checked(attempt, StagedClaim(place=place))
        with self.session([self.who(attempt.txn.pipeline)]) as session:
            table = self._found(session)
            problem = self._unfit(session, table, staging, staged.rows, attempt.stored) if table else None
            creates = None if table else self._creating(session, staging.shape.schema["fields"])
        seen = sample_of(staging, rows_in(self.staged.batches(staging)), most)
        return replace(seen, problem=problem, creates=creates)

    def _unfit(
        self, session: Session, table: SqlTable, staging: Staging, rows: int, stored: Sequence[str]
    ) -> str | None:
        """Why the rows do not fit the table, as far as that shows without writing them; None if nothing was found."""
        try:
            self._require_usable(table)
            require_kept(table, self.sink.table)
            load = self._load(session, table, staging, stored)
            self._require_rights(session, table, load.columns)
            load.look(self._reader(staging), rows)
        except Refused as no:
            return no.reason
        return None

    def _creating(self, session: Session, fields: Sequence[JsonDict]) -> str:
        """A statement that creates the table; with one before it that creates its schema, if the database lacks it."""
        stored = [field for field in fields if field["name"] != DELETED]
        table = suggestion(self.sink.table, stored, self.sink.keys, self.database.type_for)
        schema, _ = self.sink.table_name
        if schema is None or session.has_schema(schema):
            return table
        return f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}; {table}"

    def last_committed(self, pipeline: str) -> Marker | None:
        """The marker in the database now."""
        with located(pipeline, sink=self.sink.name), self.session([self.who(pipeline)]) as session:
            return marker_of(self.marker(session, pipeline).read())

    def last_epoch(self, pipeline: str) -> LastEpoch | None:
        """The epoch of the marker, with all that the marker says."""
        with located(pipeline, sink=self.sink.name), self.session([self.who(pipeline)]) as session:
            marker = self.marker(session, pipeline)
            found = marker.read()
            detail = self.detail(session) if found else {}
            elsewhere = self._elsewhere(marker, found) if found else None
        if found is None:
            return None
        receipt = Receipt(
            txn_id=found.txn,
            sink=self.sink.name,
            rows=found.rows,
            files=0,
            bytes=0,
            version=None,
            committed_at=found.committed_at,
            detail=detail,
        )
        return LastEpoch(
            marker=Marker.of(found.txn), txn=found.txn, ends=found.ends or None, receipt=receipt, elsewhere=elsewhere
        )

    def _elsewhere(self, marker: MarkerTable, found: MarkerRow) -> Elsewhere | None:
        """The table that got the marker's rows, if the marker names another table than the sink's."""
        other = diagnosis.other_table(self.sink, marker, found)
        if other is None:
            return None
        return Elsewhere(
            there=f"table {other!r} in schema {marker.schema}",
            here=f"table {self.sink.table}",
            renamed=f"If it is the same table, which somebody renamed, run `{marker.forgetting_target}`, and type the "
            "command again.",
        )

    def diagnose(self, disagreement: Disagreement) -> Corrupt | None:
        pipeline = disagreement.pipeline
        with located(pipeline, sink=self.sink.name), self.session([self.who(pipeline)]) as session:
            return diagnosis.diagnosed(self.sink, disagreement, session, self.marker(session, pipeline))

    # -- where ---------------------------------------------------------------------------------------------------

    def fit(self, pipeline: str) -> Fit:
        """What the table takes of a row now; nothing is known of a table that does not exist."""
        with self.session([self.who(pipeline)]) as session:
            table = session.table(*self.sink.table_name)
        columns, keys = table.columns if table else (), self.sink.replaces_by()
        return Fit(
            nul=self.database.stores_nul,
            calendar=True,
            json=True,
            longest={c.name: size for c in columns if (size := self.database.longest(c)) is not None},
            required=(*(c.name for c in columns if c.not_null and not c.generated), *keys),
            unless=self.sink.delete_when,
            keys=keys,
        )

    def table_of(self, pipeline: str) -> str:
        with self.session([self.who(pipeline)]) as session:
            return session.whereabouts(*self.sink.table_name)

    @cached_property
    def _connection(self) -> Connection:
        return self.env.connection(self.sink.conn_id)

    @cached_property
    def database(self) -> Database:
        return database_of(self._connection)

    def who(self, pipeline: str) -> str:
        """The session's name, which the database's administrator and other sessions of this sink see."""
        return f"airflow_epochs {pipeline}.{self.sink.name}"

    def session(self, who: Sequence[str]) -> AbstractContextManager[Session]:
        return self.database.connect(self._connection, who)

    def marker(self, session: Session, pipeline: str) -> MarkerTable:
        return MarkerTable(
            session=session,
            schema=session.schema_of(*self.sink.table_name),
            name=self.sink.marker_table,
            pipeline=pipeline,
            sink=self.sink.name,
        )


def _mend(refused: Refused) -> str:
    """The remedy that lets the table take rows after the decision. A change of the transform does not change them."""
    if isinstance(refused, OtherForm):
        return f"While no task runs, {refused.rewrite}"
    return (
        "Undo what was changed in the database after the vote, remove what conflicts with the rows, or point the "
        "connection back if it leads to another database than at the vote"
    )
