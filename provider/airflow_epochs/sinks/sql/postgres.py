"""PostgreSQL through psycopg. Rows go in by COPY, in constant memory. No session waits for ever, if the server works.

A task may be stopped, or its host may vanish, in the middle of a commit, with the marker's row locked. So the server
ends a session that is idle in its transaction or has lost its client, and a session that waits too long for the lock
gives up; its task tries again. No timeout of the server ends a client that is stopped in the middle of its COPY. The
session that gives up waiting ends that one.
"""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timezone
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Connection, Dataset
from airflow_epochs.errors import NotApplied, OutcomeUnknown, Refused, first_line, tolerated
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.sql.database import Session, part_of
from airflow_epochs.sinks.sql.placeholders import for_psycopg
from airflow_epochs.sinks.sql.postgres_catalog import PostgresCatalog, regclass
from airflow_epochs.sinks.sql.postgres_errors import said, translated
from airflow_epochs.sinks.sql.postgres_read_only import why
from airflow_epochs.sinks.sql.table import SqlColumn, SqlTable, qualified, quoted
from airflow_epochs.sinks.sql.types import (
    is_postgres_text,
    longest_text,
    postgres_retyped,
    postgres_sorts,
    postgres_takes,
    postgres_type,
)
from airflow_epochs.sinks.sql.values import csv_of, postgres_check

if TYPE_CHECKING:
    import psycopg

    from airflow_epochs.sinks.row_flaws import Check
    from airflow_epochs.sinks.sql.database import Batches

log = secrecy.logger(__name__)

CLIENT = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    # A standby would show an old marker. With several hosts, this chooses the one that takes writes.
    "target_session_attrs": "read-write",
}
"""Parameters for libpq. The connection's extra overrides them."""

PORT = 5432
"""The port of a connection that names no port."""
SERVER = {
    "lock_timeout": "30s",
    "statement_timeout": "1h",
    "idle_in_transaction_session_timeout": "5min",
    "tcp_keepalives_idle": "60",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "6",
}
"""Set in every transaction, unless the connection's ``options``, the role or the database has set them."""
_OWN = {"client_min_messages": "warning", "datestyle": "ISO", "quote_all_identifiers": "off"}
"""Set in every transaction, whatever the connection, the role or the database has set: this module relies on them.
Without the first, a COMMIT whose wait for a standby was cancelled looks like any other. psycopg reads a time with its
zone in no other style. The third would quote the names of types, by which ``types`` compares columns."""
_SETTINGS = """
    SELECT pg_catalog.set_config(ours.name, ours.value, true)
    FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])) AS ours(name, value)
    JOIN pg_catalog.pg_settings AS s ON s.name = ours.name
    WHERE s.source NOT IN ('client', 'user', 'database', 'database user')
    UNION ALL SELECT pg_catalog.set_config(own.name, own.value, true)
    FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])) AS own(name, value)
    UNION ALL SELECT pg_catalog.set_config('synchronous_commit', 'on', true)
    WHERE pg_catalog.current_setting('synchronous_commit') IN ('off', 'local')
"""
"""A commit that the server acknowledges must survive a crash: the receipt says that the rows are there."""
COMMIT_S = 120.0
"""Seconds to wait for the answer to a COMMIT. The server's timeouts do not apply while it waits for a standby that may
be gone. The connection's extra ``commit_timeout`` overrides this."""

_PRESENCE = """
    SELECT pg_catalog.pg_advisory_xact_lock_shared(pg_catalog.hashtextextended(name, 0))
    FROM pg_catalog.unnest(%s::text[]) AS name
"""
"""A shared lock that every session of a sink that may wait holds to its end. It only shows that the session exists."""
_BYTES_OF_UTF_8 = ("UTF8", "SQL_ASCII")
"""Encodings of databases in which a text has the bytes that it has in UTF-8."""
_COPYING_SINCE = 140_000
"""The first server version that reports the progress of COPY."""
_AWAITING_CLIENT = """
    SELECT c.pid, c.bytes_processed
    FROM pg_catalog.pg_stat_progress_copy c
    JOIN pg_catalog.pg_stat_activity a ON a.pid = c.pid AND a.wait_event = 'ClientRead'
    JOIN pg_catalog.pg_locks l ON l.pid = c.pid AND l.locktype = 'advisory' AND l.database = c.datid AND l.objsubid = 1
    WHERE (l.classid::bigint << 32) | l.objid::bigint
          IN (SELECT pg_catalog.hashtextextended(name, 0) FROM pg_catalog.unnest(%s::text[]) AS name)
"""
_AWAITING_STANDBY = """
    SELECT a.pid FROM pg_catalog.pg_stat_activity a
    JOIN pg_catalog.pg_locks l ON l.pid = a.pid AND l.locktype = 'advisory' AND l.objsubid = 1
    JOIN pg_catalog.pg_database d ON d.oid = l.database AND d.datname = pg_catalog.current_database()
    WHERE a.wait_event = 'SyncRep'
          AND (l.classid::bigint << 32) | l.objid::bigint
              IN (SELECT pg_catalog.hashtextextended(name, 0) FROM pg_catalog.unnest(%s::text[]) AS name)
"""
_DATABASE = "SELECT oid::bigint, datname FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()"
_SERVER = """
    SELECT oid::bigint, datname, pg_catalog.pg_postmaster_start_time()
    FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()
"""
"""Every user may read when a server started, to the microsecond. A copy of it has its system id, but not its start."""
_SYSTEM = "SELECT system_identifier::text FROM pg_catalog.pg_control_system()"


class Postgres:
    """``database.Database`` for PostgreSQL."""

    stores_nul = False

    def takes(self, column: SqlColumn, kind: Any) -> bool:
        """Whether the column can store Delta's ``kind`` without a change: ``types.postgres_takes``."""
        return postgres_takes(column.kind, kind, column.parts)

    def longest(self, column: SqlColumn) -> int | None:
        """How many characters of a text the column takes: ``types.longest_text``."""
        return longest_text(column.kind)

    def sorts(self, column: SqlColumn, kind: Any) -> bool:
        """Whether the column orders values of ``kind`` as Spark does: ``types.postgres_sorts``."""
        return postgres_sorts(column.kind, kind)

    def type_for(self, kind: Any) -> str | None:
        """The column type to create for ``kind``: ``types.postgres_type``."""
        return postgres_type(kind)

    def dataset(self, connection: Connection, schema: str | None, table: str) -> Dataset:
        """The table's name by OpenLineage's rules, with the first of several hosts."""
        extra = connection.extra
        host = str(connection.host or extra.get("host") or "localhost").partition(",")[0]
        port = str(connection.port or extra.get("port") or PORT).partition(",")[0]
        database = connection.schema or extra.get("dbname") or connection.login
        return Dataset(f"postgres://{host}:{port}", f"{database}.{schema or 'public'}.{table}")

    @contextmanager
    def connect(self, connection: Connection, who: Sequence[str]) -> Iterator[Session]:
        """One transaction. If a lock makes it fail, end those sessions of its sinks that are stopped in their COPY."""
        psycopg, commit_s = _driver(), _commit_s(connection)
        name = f"PostgreSQL at {connection.host or 'localhost'}, database {connection.schema or connection.login}"
        parameters = _parameters(connection, ", ".join(who))
        try:
            opened = psycopg.connect(**parameters)
        except psycopg.Error as error:
            # not from the driver's exception, which may contain the password
            raise _unreachable(name, connection.conn_id, error, parameters) from None
        session = PostgresSession(name, opened, who, commit_s)
        try:
            session.begin()
            yield session
        except NotApplied as error:
            if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                with tolerated(f"looking for a stopped session of {', '.join(who)}"):
                    error.what += session.end_stopped()
            raise
        finally:
            opened.close()  # rolls back what is not committed


class PostgresSession(PostgresCatalog):
    """``database.Session`` for PostgreSQL."""

    mark: ClassVar[str] = "%s"
    row_lock: ClassVar[str] = "FOR UPDATE"
    instant: ClassVar[str] = "timestamp with time zone"
    json: ClassVar[str] = "jsonb"
    temporary: ClassVar[str] = "pg_temp"

    def __init__(
        self, name: str, connection: psycopg.Connection[tuple[Any, ...]], who: Sequence[str], commit_s: float
    ) -> None:
        self.name = name
        self._connection = connection
        self._who = list(who)
        self._commit_s = commit_s
        self._awaiting_before: dict[int, int] = {}
        self._warnings: list[str] = []

    def begin(self) -> None:
        """Set isolation, timeouts and other settings."""
        import psycopg

        self._connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        self.execute(_SETTINGS, (list(SERVER), list(SERVER.values()), list(_OWN), list(_OWN.values())))

    @property
    def ended(self) -> bool:
        """Never: PostgreSQL ends a transaction only together with the session, which then answers nothing."""
        return False

    def expect_wait(self) -> None:
        """Note which of the sinks' sessions are in their COPY, and make this one visible to the others."""
        self._awaiting_before = self._awaiting_client()
        self.execute(_PRESENCE, (self._who,))

    @property
    def server_version(self) -> int:
        """The version of the PostgreSQL server."""
        return self._connection.info.server_version

    def _awaiting_client(self) -> dict[int, int]:
        """This sink's sessions whose COPY waits for the client, each with the bytes that it has received."""
        if self.server_version < _COPYING_SINCE:
            return {}
        return dict(self.execute(_AWAITING_CLIENT, (self._who,)))

    def end_stopped(self) -> str:
        """End this sink's sessions whose COPY has received no byte since this session expected to wait.

        Their transactions are rolled back; a stopped client finds its connection closed when it goes on. Returns a
        sentence about sessions that hold the lock and must not be ended: their COMMIT waits for a standby.
        """
        self._connection.rollback()  # within a transaction the statistics would not change
        for pid, _ in self._awaiting_before.items() & self._awaiting_client().items():
            log.warning("%s: ending the session of process %s, which is stopped in its COPY", self.name, pid)
            self.execute("SELECT pg_catalog.pg_terminate_backend(%s)", (pid,))
        waiting = ", ".join(str(pid) for (pid,) in self.execute(_AWAITING_STANDBY, (self._who,)))
        return (
            f" An earlier COMMIT of this sink (process {waiting}) waits for a synchronous standby." if waiting else ""
        )

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute, and translate psycopg's errors."""
        with self._answers():
            cursor = self._connection.execute(for_psycopg(statement), tuple(values))
            return cursor.fetchall() if cursor.description else []

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Execute, and return psycopg's ``rowcount``."""
        with self._answers():
            return self._connection.execute(for_psycopg(statement), tuple(values)).rowcount

    def identity(self) -> JsonDict:
        """The server's system identifier, and the database's oid and name."""
        ((oid, name),) = self.execute(_DATABASE)
        try:
            with part_of(self):
                ((system,),) = self.execute(_SYSTEM)
        except Refused:  # some hosting providers do not allow this query
            system = None
        return {"system": system, "oid": oid, "name": name}

    def whereabouts(self, schema: str | None, name: str) -> str:
        """Schema and table, database, and when the server started."""
        ((oid, database, began),) = self.execute(_SERVER)
        found = self.table(schema, name)
        its_schema, its_name = (found.schema, found.name) if found else (self.schema_of(schema, name), name)
        began_at = began.astimezone(timezone.utc).isoformat()
        return (
            f"table {regclass(its_schema, its_name)} of database {database!r} (oid {oid}) on the PostgreSQL server "
            f"that has run since {began_at}"
        )

    def bytewise(self, value: str, column: SqlColumn) -> str:
        """The collation ``C``, which compares bytes; outside of UTF-8, the bytes that the text has there."""
        if not is_postgres_text(column.kind):
            return value
        if self._connection.info.parameter_status("server_encoding") in _BYTES_OF_UTF_8:
            return f'{value} COLLATE "C"'
        return f"pg_catalog.convert_to({value}, 'UTF8')"

    def nullable(self, column: SqlColumn) -> str:
        """The column with its base type: a domain may be NOT NULL. The target takes values of the base type."""
        return f"CAST({quoted(column.name)} AS {column.kind})"

    def make_unique(self, schema: str, table: str, columns: str) -> None:
        """Create the index, named by the server, and an identity for updates.

        In a publication, a table without a primary key needs one: here, the whole row.
        """
        spelled = qualified(schema, table)
        self.execute(f"CREATE UNIQUE INDEX ON {spelled} ({columns})")
        self.execute(f"ALTER TABLE {spelled} REPLICA IDENTITY FULL")

    def check(self, column: SqlColumn, kind: Any) -> Check:
        """A check for values that the column cannot store: ``values.postgres_check``."""
        return postgres_check(column.kind, kind)

    def folded(self, name: str) -> str:
        """The name itself: in quotes, PostgreSQL takes each as another."""
        return name

    def retyped(self, was: SqlColumn, now: SqlColumn) -> str | None:
        """Column ``was`` for a comparison with ``now``: ``types.postgres_retyped``."""
        return postgres_retyped(quoted(was.name), was.kind, now.kind)

    def index(self, temporary: str, keys: Sequence[str]) -> None:
        """Nothing: PostgreSQL hashes the rows."""

    def stored_otherwise(self, value: str, column: SqlColumn, kind: Any) -> str | None:
        """None: a column has one type."""
        return None

    def hurry(self) -> None:
        """Set ``lock_timeout`` to one second."""
        self.execute("SELECT pg_catalog.set_config('lock_timeout', '1s', true)")

    def serialise(self, what: str) -> None:
        """Take an advisory lock, which the server releases at the end of the transaction."""
        self.execute("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(%s, 0))", (what,))

    def load(self, into: SqlTable, columns: Sequence[str], fields: Sequence[JsonDict], batches: Batches) -> int:
        """One COPY in CSV format."""
        statement = f"COPY {into.spelled} ({', '.join(map(quoted, columns))}) FROM STDIN (FORMAT csv)"
        cursor = self._connection.cursor()
        with self._answers(), cursor.copy(statement.encode()) as copy:
            for batch in batches:
                copy.write(csv_of(batch, fields))
        return cursor.rowcount

    def settle(self) -> None:
        """Check deferred constraints now."""
        self.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def commit(self) -> None:
        """Commit. A warning during COMMIT means that the wait for a standby was cancelled: OutcomeUnknown."""
        import psycopg

        self._connection.add_notice_handler(self._noted)
        try:
            self._committed()
        except (psycopg.Error, TimeoutError) as error:
            if isinstance(error, psycopg.Error) and error.diag.severity_nonlocalized == "ERROR":
                raise translated(self.name, error) from error
            raise OutcomeUnknown(
                f"{self.name} did not confirm the COMMIT, so its result is unknown: {first_line(error)}",
                code=codes.SQL_COMMIT_UNKNOWN,
                remedy="Clear the failed task when the server, or its synchronous standby, is up again: the task reads "
                "the marker before it writes.",
            ) from error
        if self._warnings:
            raise OutcomeUnknown(
                f"{self.name} committed, but warned that a synchronous standby may not have the rows: "
                f"{' '.join(self._warnings)}",
                code=codes.SQL_COMMIT_UNKNOWN,
                remedy="Start a synchronous standby, or remove it from synchronous_standby_names. Then clear the "
                "failed task: it waits until the standby has the rows.",
            )

    def _noted(self, said: psycopg.errors.Diagnostic) -> None:
        if said.severity_nonlocalized == "WARNING":
            self._warnings.append(" ".join(part for part in (said.message_primary, said.message_detail) if part))

    def _committed(self) -> None:
        """Send COMMIT and wait for the answer, for ``commit_timeout`` seconds at most.

        psycopg itself would wait for ever. Cancelling the statement would show the rows without a standby having them.
        """
        connection, until = self._connection.pgconn, time.monotonic() + self._commit_s
        connection.send_query(b"COMMIT")
        with selectors.DefaultSelector() as selector:
            selector.register(connection.socket, selectors.EVENT_READ)
            while not self._answered():
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise TimeoutError(f"no answer within {self._commit_s:g} s.")
                connection.consume_input()

    def _answered(self) -> bool:
        """Whether the whole answer to COMMIT has arrived. Raises the error that it reports."""
        import psycopg

        connection = self._connection.pgconn
        connection.flush()
        while not connection.is_busy():
            result = connection.get_result()
            if result is None:
                return True
            if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(result)
            if result.command_status != b"COMMIT":
                raise psycopg.errors.InFailedSqlTransaction(f"the answer is {result.command_status!r}")
        return False

    @contextmanager
    def _answers(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            raise translated(self.name, error) from error


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as missing:
        raise Refused(
            "The PostgreSQL driver psycopg is not installed on this worker.",
            code=codes.SQL_DRIVER_MISSING,
        ) from missing
    return psycopg


def _unreachable(name: str, conn_id: str, error: psycopg.Error, parameters: dict[str, Any]) -> NotApplied:
    cause, remedy = why(error, parameters, conn_id) or (
        "",
        f"Check that the server is up and that connection {conn_id!r} is correct. Then clear the failed task.",
    )
    return NotApplied(
        f"The provider could not connect to {name}: {said(error)} {cause}".rstrip(),
        code=codes.SQL_UNREACHABLE,
        remedy=remedy,
    )


def _commit_s(connection: Connection) -> float:
    given = connection.extra.get("commit_timeout") or COMMIT_S
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise Refused(
            f"`commit_timeout` in the extra of connection {connection.conn_id!r} is {given!r}. It must be a number of "
            "seconds greater than 0.",
            code=codes.SQL_CONNECTION,
            remedy='Write it without a unit, for five minutes as {"commit_timeout": 300}. Then clear the failed task.',
        )
    return seconds


def _parameters(connection: Connection, who: str) -> dict[str, Any]:
    """Parameters for ``psycopg.connect``: the connection's fields, and those keys of its extra that libpq knows."""
    from psycopg import pq

    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    fields = {
        "host": connection.host,
        "port": connection.port,
        "user": connection.login,
        "password": connection.password,
        "dbname": connection.schema,
    }
    extra = {key: str(value) for key, value in connection.extra.items() if key in known and value is not None}
    given = {key: value for key, value in fields.items() if value}
    # Behind a pooler, the next server would not know the statements that psycopg prepares by itself.
    own = {"client_encoding": "utf8", "prepare_threshold": None}
    return {**CLIENT, "application_name": who, **extra, **given, **own}
