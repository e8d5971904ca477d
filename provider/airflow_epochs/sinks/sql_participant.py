"""What a SQL sink does in an epoch: the participant of the two-phase commit that ``SqlSink`` describes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_epochs.environment import Connection, Environment
from airflow_epochs.errors import Corrupt, NotApplied, OutcomeUnknown, Refused
from airflow_epochs.model import JsonDict, Marker, Receipt, Staged, StagedClaim, TransactionId, Vote, VoteKind
from airflow_epochs.sinks import delta_checks
from airflow_epochs.sinks.base import SinkAttempt
from airflow_epochs.sinks.delta_log import Staging
from airflow_epochs.sinks.sql_database import Database, Session, database_of
from airflow_epochs.sinks.sql_load import Load
from airflow_epochs.sinks.sql_marker import MarkerTable, Row, marker_of
from airflow_epochs.sinks.sql_table import SqlTable, columns_for, key_columns, suggestion
from airflow_epochs.sinks.staged_table import StagedTable, staging_root
from airflow_epochs.storage import storage_options

if TYPE_CHECKING:
    from airflow_epochs.sinks.sql import SqlSink


@dataclass(frozen=True)
class SqlParticipant:
    """The operations of ``sinks.base.Sink`` for one SQL sink, in one task's environment."""

    sink: SqlSink
    env: Environment

    # -- stage ---------------------------------------------------------------------------------------------------

    def place(self, attempt: SinkAttempt, nonce: str) -> str:
        return self._area().place(attempt, nonce)

    def plan_stage(self, attempt: SinkAttempt, nonce: str) -> JsonDict:
        return self._area().plan(attempt, nonce)

    def has_leftovers(self, attempt: SinkAttempt, place: str) -> bool:
        return self._area().has_leftovers(attempt, place)

    def discard(self, attempt: SinkAttempt, place: str) -> None:
        self._area().discard(attempt, place)

    # -- vote ----------------------------------------------------------------------------------------------------

    def vote(self, attempt: SinkAttempt, claim: StagedClaim) -> Vote:
        """Look at the staged rows, and rehearse the commit; what is refused is a VOTE_ABORT with its reason."""
        if claim.problem:
            return Vote(vote=VoteKind.VOTE_ABORT, reason=claim.problem)
        try:
            staging, staged = self._area().checked(attempt, claim)
            self._rehearse(attempt, staging, staged)
        except (Refused, Corrupt) as refused:
            return Vote(vote=VoteKind.VOTE_ABORT, reason=f"{refused.what} What to do: {refused.remedy}")
        return Vote(vote=VoteKind.VOTE_COMMIT, staged=staged)

    def _rehearse(self, attempt: SinkAttempt, staging: Staging, staged: Staged) -> None:
        """The commit's transaction, which is then rolled back; without the rows where they are not to be rehearsed.

        Its statements run all the same: they find rights that are missing, and what the table does not allow at all.
        """
        with self._session(attempt.txn.pipeline) as session:
            load = self._load(session, self._table(session, staging), staging)
            marker = self._marker(session, attempt.txn.pipeline)
            self._require_previous(attempt, marker.lock())
            if not self.sink.rehearse:
                load.look(lambda: self._area().rows(attempt, staged), staged.rows)
            read = (lambda: self._area().rows(attempt, staged)) if self.sink.rehearse else tuple
            load.run(read, staged.rows if self.sink.rehearse else 0)
            marker.write(attempt.txn, staged.rows)
            session.settle()

    def _table(self, session: Session, staging: Staging) -> SqlTable:
        table = session.table(*self.sink.table_name)
        if table is None:
            fields, kind = staging.shape.schema["fields"], self._database
            raise Refused(
                f"There is no table {self.sink.table} in {session.name}, or its user may not see it.",
                remedy=f"Create it, for example {suggestion(self.sink.table, fields, self.sink.keys, kind.type_for)}, "
                "and clear the stage task.",
            )
        if table.problem:
            raise Refused(
                f"{self.sink.table} cannot be the table of a sink: {table.problem}.",
                remedy="Give the sink an ordinary table that the connection's user may write to.",
            )
        return table

    def _load(self, session: Session, table: SqlTable, staging: Staging) -> Load:
        fields = staging.shape.schema["fields"]
        columns = columns_for(table, fields, self._database.takes)
        keys = key_columns(table, self.sink.keys, columns) if self.sink.keys else []
        return Load(session=session, table=table, fields=fields, columns=columns, keys=keys)

    # -- commit --------------------------------------------------------------------------------------------------

    def commit(self, attempt: SinkAttempt, staged: Staged) -> Receipt:
        """Show the epoch: rows and marker in one transaction. A repeat finds the marker and does nothing."""
        try:
            row = self._committed(attempt, staged)
        except Refused:
            raise
        except NotApplied as error:
            raise OutcomeUnknown(
                f"The sink cannot be asked now: {error.what}", remedy=error.remedy, sink=self.sink.name
            ) from error
        return self._receipt(attempt, staged, row)

    def _committed(self, attempt: SinkAttempt, staged: Staged) -> Row:
        txn = attempt.txn
        with self._session(txn.pipeline) as session:
            marker = self._marker(session, txn.pipeline)
            found = marker.lock()
            if found and found.txn == txn:
                session.commit()  # of the marker's lock: it waits for the standby that the first one may not have got
                return found
            self._require_previous(attempt, found)
            self.env.reached("sql.locked")
            with self._promised(txn):
                return self._write(session, marker, attempt, staged)

    def _write(self, session: Session, marker: MarkerTable, attempt: SinkAttempt, staged: Staged) -> Row:
        staging = self._area().promised(attempt, staged)
        load = self._load(session, self._table(session, staging), staging)
        load.run(lambda: self._area().rows(attempt, staged), staged.rows)
        self.env.reached("sql.copied")
        row = marker.write(attempt.txn, staged.rows)
        self.env.reached("sql.commit.before")
        session.commit()
        self.env.reached("sql.commit.after")
        return row

    @contextmanager
    def _promised(self, txn: TransactionId) -> Iterator[None]:
        """The vote found that the database takes the rows. If it does not now, somebody has changed it."""
        try:
            yield
        except Refused as refused:
            raise Corrupt(
                f"Table {self.sink.table} does not take the rows of {txn} any more: {refused.what}",
                remedy="The database was changed after the vote: undo that and clear the commit task, or waive this "
                "sink for this epoch (`airflow epochs waive`). Nothing was written.",
                sink=self.sink.name,
            ) from refused

    def _require_previous(self, attempt: SinkAttempt, found: Row | None) -> None:
        """The table shows the sink's previous epoch, no other."""
        shown = found.txn if found else None
        if shown == attempt.previous:
            return
        raise Corrupt(
            f"The last epoch in table {self.sink.table} is {delta_checks.describe_txn(shown)}; the ledger expects "
            f"{delta_checks.describe_txn(attempt.previous)} before {attempt.txn}.",
            remedy="Do not clear anything yet. Find out whether the database or the ledger was restored, or another "
            "pipeline has the same name. See docs/sql.md, 'The marker'. Nothing was written.",
            sink=self.sink.name,
        )

    def _receipt(self, attempt: SinkAttempt, staged: Staged, row: Row) -> Receipt:
        """Only from what the marker and the decision say, so that a repeat returns the same."""
        return Receipt(
            txn_id=str(attempt.txn),
            sink=self.sink.name,
            rows=row.rows,
            files=staged.files,
            bytes=staged.bytes,
            version=None,
            committed_at=row.committed_at,
            detail={"table": self.sink.table, "mode": self.sink.mode},
        )

    def last_committed(self, pipeline: str) -> Marker | None:
        """The marker in the database now."""
        with self._session(pipeline) as session:
            return marker_of(self._marker(session, pipeline).read())

    # -- where ---------------------------------------------------------------------------------------------------

    def _area(self) -> StagedTable:
        conn_id = self.sink.storage_conn_id
        return StagedTable(
            root=staging_root(self.sink.staging, self.sink.name),
            sink=self.sink.name,
            target=f"table {self.sink.table}",
            options=storage_options(self.env.connection(conn_id) if conn_id else None),
        )

    @cached_property
    def _connection(self) -> Connection:
        return self.env.connection(self.sink.conn_id)

    @cached_property
    def _database(self) -> Database:
        return database_of(self._connection)

    @contextmanager
    def _session(self, pipeline: str) -> Iterator[Session]:
        with self._database.connect(self._connection, f"airflow_epochs {pipeline}.{self.sink.name}") as session:
            yield session

    def _marker(self, session: Session, pipeline: str) -> MarkerTable:
        return MarkerTable(
            session=session,
            schema=session.schema_of(*self.sink.table_name),
            name=self.sink.marker_table,
            pipeline=pipeline,
            sink=self.sink.name,
        )
