"""PostgreSQL through psycopg. Rows go in by COPY, in constant memory, and no session waits for ever.

A task may be stopped, or its host may vanish, in the middle of a commit, with the marker's row locked. So the server
ends a session that is idle in its transaction or has lost its client, and a session that waits too long for the lock
gives up; its task tries again. No timeout of the server ends a client that is stopped in the middle of its COPY. The
session that gives up waiting ends that one.
"""

from __future__ import annotations

import math
import re
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
from airflow_epochs.sinks.sql.database import Numbers, RowRefused, Session, part_of
from airflow_epochs.sinks.sql.table import Comparison, SqlColumn, SqlTable
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
"""Of a connection that names none."""
SERVER = {
    "lock_timeout": "30s",
    "statement_timeout": "1h",
    "idle_in_transaction_session_timeout": "5min",
    "tcp_keepalives_idle": "60",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "6",
}
"""Set in every transaction, unless the connection's ``options``, the role or the database has set them."""
_SETTINGS = """
    SELECT pg_catalog.set_config(ours.name, ours.value, true)
    FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])) AS ours(name, value)
    JOIN pg_catalog.pg_settings AS s ON s.name = ours.name
    WHERE s.source NOT IN ('client', 'user', 'database', 'database user')
"""
_OWN_SETTINGS = """
    SELECT pg_catalog.set_config('client_min_messages', 'warning', true),
           pg_catalog.set_config('datestyle', 'ISO', true),
           pg_catalog.set_config('quote_all_identifiers', 'off', true)
"""
"""Set in every transaction, whatever the connection, the role or the database has set: this module relies on them.
Without the first, a COMMIT whose wait for a standby was cancelled looks like any other. psycopg reads a time with its
zone in no other style. The third would quote the names of types, by which ``types`` compares columns."""
COMMIT_S = 120.0
"""Seconds to wait for the answer to a COMMIT. The server's timeouts do not apply while it waits for a standby that may
be gone. The connection's extra ``commit_timeout`` overrides this."""

_MAY_PASS = ("08", "40", "53", "55006", "55P03", "57", "58", "25006")
"""Prefixes of SQLSTATE that blame neither rows nor rights: connections, conflicts, resources, locks, shutdown, and a
server that has become a standby."""
_LONGER = {
    "55P03": "lock_timeout=5min",
    "25P03": "idle_in_transaction_session_timeout=30min",
    "25P04": "transaction_timeout=3h",
}
"""By SQLSTATE, the setting that gives more time: to wait for a lock, to be idle in a transaction, to end one (since
PostgreSQL 17). For all others it is ``statement_timeout``."""
_FOREIGN_KEY_BROKEN = "23503"
_LENGTH_MAX = 600

_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
_PERMANENT = "p"
"""Of ``relpersistence``: neither UNLOGGED nor temporary."""
_PARTS = """
    WITH RECURSIVE part(oid) AS (
        SELECT %s::oid UNION SELECT i.inhrelid FROM part JOIN pg_catalog.pg_inherits i ON i.inhparent = part.oid
    )
"""
"""Begins a statement: the table and all of its partitions."""
_LEAVES = f"""{_PARTS}
    SELECT n.nspname, c.relname, c.relkind, c.relpersistence
    FROM part JOIN pg_catalog.pg_class c USING (oid) JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relispartition AND c.relkind <> 'p' ORDER BY c.relname
"""
_TRIGGERS = f"""{_PARTS}
    SELECT EXISTS (SELECT 1 FROM part JOIN pg_catalog.pg_trigger t ON t.tgrelid = part.oid WHERE NOT t.tgisinternal)
"""
_TABLE = """
    SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, has_any_column_privilege(c.oid, 'INSERT'),
           pg_catalog.row_security_active(c.oid)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = pg_catalog.to_regclass(%s) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""
_COLUMNS = """
    SELECT a.attname,
           (WITH RECURSIVE base(typ, mod) AS (
               SELECT a.atttypid, a.atttypmod
               UNION ALL
               SELECT d.typbasetype, d.typtypmod
               FROM base JOIN pg_catalog.pg_type d ON d.oid = base.typ AND d.typtype = 'd'
           ) SELECT pg_catalog.format_type(typ, mod) FROM base JOIN pg_catalog.pg_type b ON b.oid = base.typ
           WHERE b.typtype <> 'd'),
           a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND t.typdefault IS NULL,
           a.attgenerated <> '' OR a.attidentity = 'a',
           ARRAY(WITH RECURSIVE part(typ, mod) AS (
               SELECT a.atttypid, a.atttypmod
               UNION
               SELECT inner_part.typ, inner_part.mod
               FROM part JOIN pg_catalog.pg_type p ON p.oid = part.typ, LATERAL (
                   SELECT p.typbasetype, p.typtypmod WHERE p.typtype = 'd'
                   UNION ALL SELECT p.typelem, part.mod WHERE p.typcategory = 'A'
                   UNION ALL SELECT f.atttypid, f.atttypmod FROM pg_catalog.pg_attribute f
                             WHERE p.typtype = 'c' AND f.attrelid = p.typrelid AND f.attnum > 0 AND NOT f.attisdropped
                   UNION ALL SELECT r.rngsubtype, -1 FROM pg_catalog.pg_range r WHERE p.oid IN ({ranges})
               ) AS inner_part(typ, mod)
           ) SELECT pg_catalog.format_type(typ, mod) FROM part),
           a.attnotnull OR t.typnotnull
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_RANGES = "r.rngtypid"
_MULTIRANGES = "r.rngmultitypid"
_MULTIRANGES_SINCE = 140_000
"""The first server version that has multiranges."""
_NAMES = """
    SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relkind IN ('r', 'p')
          AND pg_catalog.left(c.relname::text, pg_catalog.length(%s::text)) = %s::text
    ORDER BY c.relname
"""
_UNIQUE = """
    SELECT i.indexrelid::bigint, a.attname, op_in.nspname, op.oprname, coll_in.nspname, coll.collname
    FROM pg_catalog.pg_index i
    CROSS JOIN LATERAL ROWS FROM (
        pg_catalog.unnest(i.indkey::int2[]), pg_catalog.unnest(i.indclass::oid[]),
        pg_catalog.unnest(i.indcollation::oid[])
    ) WITH ORDINALITY AS k(num, class, collates, n)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.num
    JOIN pg_catalog.pg_opclass c ON c.oid = k.class
    JOIN pg_catalog.pg_amop m ON m.amopfamily = c.opcfamily AND m.amopstrategy = 3
         AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
    JOIN pg_catalog.pg_operator op ON op.oid = m.amopopr
    JOIN pg_catalog.pg_namespace op_in ON op_in.oid = op.oprnamespace
    LEFT JOIN pg_catalog.pg_collation coll ON coll.oid = k.collates
    LEFT JOIN pg_catalog.pg_namespace coll_in ON coll_in.oid = coll.collnamespace
    WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid
          AND i.indpred IS NULL AND i.indexprs IS NULL AND k.n <= i.indnkeyatts
    ORDER BY pg_catalog.bool_and(coalesce(coll.collisdeterministic, true)) OVER (PARTITION BY i.indexrelid) DESC,
             i.indexrelid, k.n
"""
"""Strategy 3 is equality. An index whose collation takes different texts as equal comes last: of several on the same
columns, it decides which rows ON CONFLICT finds."""
_DEFERRABLE = """
    WITH RECURSIVE up(columns, oid, parent) AS (
        SELECT ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
                     WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)), c.oid, c.conparentid
        FROM pg_catalog.pg_constraint c WHERE c.conrelid = %s AND c.contype IN ('p', 'u') AND c.condeferrable
        UNION ALL
        SELECT up.columns, c.oid, c.conparentid FROM up JOIN pg_catalog.pg_constraint c ON c.oid = up.parent
    )
    SELECT up.columns, n.nspname, t.relname, c.conname
    FROM up JOIN pg_catalog.pg_constraint c USING (oid) JOIN pg_catalog.pg_class t ON t.oid = c.conrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace WHERE up.parent = 0 ORDER BY c.conname
"""
"""What a partition has from its partitioned table can be dropped only there."""
_PRESENCE = """
    SELECT pg_catalog.pg_advisory_xact_lock_shared(pg_catalog.hashtextextended(name, 0))
    FROM pg_catalog.unnest(%s::text[]) AS name
"""
"""A shared lock that every session of a sink holds to its end. It only shows that the session exists."""
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
_SEQUENCES = """
    WITH numbering(oid, attname, is_number) AS (
        SELECT d.refobjid, a.attname, pg_catalog.pg_get_expr(f.adbin, f.adrelid) LIKE 'nextval(''%%''::regclass)'
        FROM pg_catalog.pg_attrdef f
        JOIN pg_catalog.pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
        JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::regclass AND d.objid = f.oid
        WHERE f.adrelid = %s AND a.attname = ANY (%s)
              AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjsubid = 0
        UNION
        SELECT d.objid, a.attname, true FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
        WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.refclassid = d.classid AND d.deptype = 'i'
              AND d.refobjid = %s AND a.attname = ANY (%s)
    )
    SELECT c.oid::regclass::text, pg_catalog.has_sequence_privilege(c.oid, 'SELECT'),
           pg_catalog.pg_sequence_last_value(c.oid), s.seqincrement, n.attname, n.is_number,
           CASE WHEN s.seqincrement > 0 THEN s.seqmax ELSE s.seqmin END, s.seqcycle
    FROM numbering n JOIN pg_catalog.pg_class c USING (oid) JOIN pg_catalog.pg_sequence s ON s.seqrelid = c.oid
    WHERE CASE WHEN c.relkind = 'S' THEN pg_catalog.has_sequence_privilege(c.oid, 'SELECT, USAGE') ELSE false END
"""
"""A number is a column's value as it is drawn, and not part of what a default computes. The function fails for what is
no sequence, and only CASE keeps the server from asking it before the joins. The last value is NULL until a number has
been drawn, from the beginning or since a RESTART."""
_WIDTHS = {"smallint": 2**15, "integer": 2**31}
"""The types of columns that may end before the sequence does: how many negative numbers each has."""
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
        """As ``types.postgres_takes`` says."""
        return postgres_takes(column.kind, kind, column.parts)

    def longest(self, column: SqlColumn) -> int | None:
        """As ``types.longest_text`` says."""
        return longest_text(column.kind)

    def sorts(self, column: SqlColumn, kind: Any) -> bool:
        """As ``types.postgres_sorts`` says."""
        return postgres_sorts(column.kind, kind)

    def type_for(self, kind: Any) -> str | None:
        """As ``types.postgres_type`` says."""
        return postgres_type(kind)

    def dataset(self, connection: Connection, schema: str | None, table: str) -> Dataset:
        """As OpenLineage's rules say; of several hosts, the first."""
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
        try:
            opened = psycopg.connect(**_parameters(connection, ", ".join(who)))
        except psycopg.Error as error:
            raise NotApplied(
                f"The provider could not connect to {name}: {_said(error)}",
                code=codes.SQL_UNREACHABLE,
                remedy=f"Check that the server is up and that connection {connection.conn_id!r} is correct. Then clear "
                "the failed task.",
            ) from None  # the driver's exception may contain the password
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


class PostgresSession:
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
        """Set isolation, timeouts and other settings, and make the session visible to other sessions of its sinks."""
        import psycopg

        self._connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        self.execute(_SETTINGS, (list(SERVER), list(SERVER.values())))
        self.execute(_OWN_SETTINGS)
        # A commit that the server acknowledges must survive a crash: the receipt says that the rows are there.
        self.execute(
            "SELECT pg_catalog.set_config('synchronous_commit', 'on', true)"
            " WHERE pg_catalog.current_setting('synchronous_commit') IN ('off', 'local')"
        )
        self._awaiting_before = self._awaiting_client()
        self.execute(_PRESENCE, (self._who,))

    def _awaiting_client(self) -> dict[int, int]:
        """This sink's sessions whose COPY waits for the client, each with the bytes that it has received."""
        if self._connection.info.server_version < _COPYING_SINCE:
            return {}
        return dict(self.execute(_AWAITING_CLIENT, (self._who,)))

    def end_stopped(self) -> str:
        """End this sink's sessions whose COPY has received no byte since this session began.

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

    def quoted(self, name: str) -> str:
        """In double quotes, with ``%`` doubled for psycopg."""
        return _identifier(name).replace("%", "%%")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute, and translate psycopg's errors."""
        with self._answers():
            cursor = self._connection.execute(statement.encode(), tuple(values))
            return cursor.fetchall() if cursor.description else []

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Execute, and return psycopg's ``rowcount``."""
        with self._answers():
            return self._connection.execute(statement.encode(), tuple(values)).rowcount

    def identity(self) -> JsonDict:
        """The server's system identifier, and the database's oid and name."""
        ((oid, name),) = self.execute(_DATABASE)
        try:
            with part_of(self):
                ((system,),) = self.execute(_SYSTEM)
        except Refused:  # some hosting providers do not allow the question
            system = None
        return {"system": system, "oid": oid, "name": name}

    def whereabouts(self, schema: str | None, name: str) -> str:
        """Schema and table, database, and when the server started."""
        ((oid, database, began),) = self.execute(_SERVER)
        found = self.table(schema, name)
        its_schema, its_name = (found.schema, found.name) if found else (self.schema_of(schema, name), name)
        began_at = began.astimezone(timezone.utc).isoformat()
        return (
            f"table {_regclass(its_schema, its_name)} of database {database!r} (oid {oid}) on the PostgreSQL server "
            f"that has run since {began_at}"
        )

    def bytewise(self, column: SqlColumn) -> str:
        """The collation ``C``."""
        return 'COLLATE "C"' if is_postgres_text(column.kind) else ""

    def nullable(self, column: SqlColumn) -> str:
        """Of the base type: a domain may be NOT NULL. The target takes the value as its domain all the same."""
        kind = column.kind.replace("%", "%%")
        return f"CAST({self.quoted(column.name)} AS {kind})"

    def make_unique(self, schema: str, table: str, columns: str) -> None:
        """The server names the index. In a publication, a table without a primary key needs an identity for updates."""
        spelled = f"{self.quoted(schema)}.{self.quoted(table)}"
        self.execute(f"CREATE UNIQUE INDEX ON {spelled} ({columns})")
        self.execute(f"ALTER TABLE {spelled} REPLICA IDENTITY FULL")

    def check(self, column: SqlColumn, kind: Any) -> Check:
        """As ``values.postgres_check`` says."""
        return postgres_check(column.kind, kind)

    def table(self, schema: str | None, name: str) -> SqlTable | None:
        """Looked up with ``to_regclass``, so along the search path if ``schema`` is None."""
        found = self.execute(_TABLE, (_regclass(schema, name),))
        if not found:
            return None
        ((oid, its_schema, its_name, kind, persistence, writable, hides),) = found
        partitions = self.execute(_LEAVES, (oid,))
        return SqlTable(
            schema=its_schema,
            name=its_name,
            columns=tuple(
                SqlColumn(
                    name=column,
                    kind=spelled,
                    required=required,
                    generated=generated,
                    parts=tuple(parts),
                    not_null=not_null,
                )
                for column, spelled, required, generated, parts, not_null in self._columns(oid)
            ),
            unique=self._unique(oid),
            deferrable=self._deferrable(oid),
            problem=_problem(kind, persistence, writable) or _problem_of(partitions),
            hides=hides,
            id=str(oid),
            lasts=_text(persistence) == _PERMANENT,
            partitions=frozenset((schema, leaf) for schema, leaf, *_ in partitions),
        )

    def _columns(self, oid: int) -> list[tuple[Any, ...]]:
        has_multiranges = self._connection.info.server_version >= _MULTIRANGES_SINCE
        ranges = f"{_RANGES}, {_MULTIRANGES}" if has_multiranges else _RANGES
        return self.execute(_COLUMNS.format(ranges=ranges), (oid,))

    def _unique(self, oid: int) -> dict[frozenset[str], dict[str, Comparison]]:
        found: dict[int, dict[str, Comparison]] = {}
        for index, column, schema, operator, *collation in self.execute(_UNIQUE, (oid,)):
            # With its schema: along the search path, PostgreSQL may find the operator of another type.
            equals = f"OPERATOR({self.quoted(schema)}.{operator.replace('%', '%%')})"
            spelled = ".".join(map(self.quoted, collation)) if collation[0] else None
            found.setdefault(index, {})[column] = Comparison(equals=equals, collation=spelled)
        return {frozenset(columns): columns for columns in found.values()}

    def _deferrable(self, oid: int) -> dict[frozenset[str], list[str]]:
        drops: dict[frozenset[str], list[str]] = {}
        for columns, schema, table, constraint in self.execute(_DEFERRABLE, (oid,)):
            drop = f"ALTER TABLE {_regclass(schema, table)} DROP CONSTRAINT {_identifier(constraint)}"
            drops.setdefault(frozenset(columns), []).append(drop)
        return drops

    def has_triggers(self, table: SqlTable) -> bool:
        """Asks the catalog. The triggers of foreign keys are the server's own."""
        return bool(self.execute(_TRIGGERS, (table.id,))[0][0])

    def lacks(self, table: SqlTable, *rights: str) -> list[str]:
        """Asks ``has_any_column_privilege``, which is true of rights on the whole table too. DELETE has no columns."""
        asked = (
            "SELECT r FROM pg_catalog.unnest(%s::text[]) AS r WHERE NOT CASE r WHEN 'DELETE' THEN "
            "has_table_privilege(%s::oid, r) ELSE has_any_column_privilege(%s::oid, r) END"
        )
        return [right for (right,) in self.execute(asked, (list(rights), table.id, table.id))]

    def lacks_of(self, table: SqlTable, right: str, columns: Sequence[str]) -> list[str]:
        """Asks ``has_column_privilege``, which is true of rights on the whole table too."""
        asked = "SELECT c FROM pg_catalog.unnest(%s::text[]) AS c WHERE NOT has_column_privilege(%s::oid, c, %s)"
        return [column for (column,) in self.execute(asked, (list(columns), table.id, right))]

    def owns(self, table: SqlTable) -> bool:
        """Asks whether the user has the rights of the owner, as a member of its role has."""
        asked = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_catalog.pg_class WHERE oid = %s::oid"
        return self.execute(asked, (table.id,)) == [(True,)]

    def may_create_in(self, schema: str) -> bool:
        """Asks ``has_schema_privilege``."""
        return bool(self.execute("SELECT has_schema_privilege(%s, 'CREATE')", (schema,))[0][0])

    def lacks_temporary(self) -> str | None:
        """Asks ``has_database_privilege``."""
        asked = "SELECT current_database(), has_database_privilege(current_database(), 'TEMPORARY')"
        ((name, may),) = self.execute(asked)
        return None if may else str(name)

    def schema_of(self, schema: str | None, name: str) -> str:
        """``schema`` if it is given; else the table's own, or the one where CREATE TABLE would put it."""
        if schema is not None:
            return schema
        statement = (
            "SELECT coalesce((SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
            " ON n.oid = c.relnamespace WHERE c.oid = pg_catalog.to_regclass(%s)), pg_catalog.current_schema())"
        )
        return str(self.execute(statement, (_regclass(None, name),))[0][0])

    def has_schema(self, name: str) -> bool:
        """Asks ``to_regnamespace`` for the quoted name."""
        return bool(self.execute("SELECT pg_catalog.to_regnamespace(%s) IS NOT NULL", (_identifier(name),))[0][0])

    def exists(self, schema: str, name: str) -> bool:
        """Asks ``to_regclass`` for the quoted name."""
        found = self.execute("SELECT pg_catalog.to_regclass(%s) IS NOT NULL", (_regclass(schema, name),))
        return bool(found[0][0])

    def names(self, schema: str, prefix: str) -> list[str]:
        """Asks the catalog, without regard to rights."""
        return [name for (name,) in self.execute(_NAMES, (schema, prefix, prefix))]

    def folded(self, name: str) -> str:
        """The name itself: in quotes, PostgreSQL takes each as another."""
        return name

    def retyped(self, was: SqlColumn, now: SqlColumn) -> str | None:
        """As ``types.postgres_retyped`` says."""
        return postgres_retyped(self.quoted(was.name), was.kind, now.kind)

    def numbers_left(self, table: SqlTable, given: Sequence[str]) -> list[Numbers]:
        """Sequences of the columns that are not ``given``; without those that cycle or that the user may not read."""
        kinds = {column.name: column.kind for column in table.columns if column.name not in given}
        drawn = []
        for name, reads, last, step, column, *rest in self.execute(_SEQUENCES, (table.id, list(kinds)) * 2):
            before = self._before_first(name, step, reads=reads) if last is None else last
            drawn.append(_drawn(kinds[column], column, name, before, step, *rest))
        return [numbers for numbers in drawn if numbers]

    def _before_first(self, sequence: str, step: int, *, reads: bool) -> int:
        """What comes before the next number of a sequence from which none was drawn since it began or was restarted.

        Only the sequence itself says where it was restarted. A user who has USAGE, but not SELECT, may not read it, but
        may draw a number, which is then gone.
        """
        if not reads:
            return int(self.execute("SELECT pg_catalog.nextval(%s::regclass)", (sequence,))[0][0])
        ((last, drawn),) = self.execute(f"SELECT last_value, is_called FROM {sequence.replace('%', '%%')}")
        return int(last) if drawn else int(last) - step

    def hurry(self) -> None:
        """Set ``lock_timeout`` to one second."""
        self.execute("SELECT pg_catalog.set_config('lock_timeout', '1s', true)")

    def serialise(self, what: str) -> None:
        """Take an advisory lock, which the server releases at the end of the transaction."""
        self.execute("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(%s, 0))", (what,))

    def load(self, into: SqlTable, columns: Sequence[str], fields: Sequence[JsonDict], batches: Batches) -> int:
        """One COPY in CSV format."""
        name = f"{_identifier(into.schema)}.{_identifier(into.name)}"
        statement = f"COPY {name} ({', '.join(map(_identifier, columns))}) FROM STDIN (FORMAT csv)"
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
                raise self._translated(error) from error
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
            raise self._translated(error) from error

    def _translated(self, error: psycopg.Error) -> NotApplied:
        state = error.sqlstate or ""
        session_ended = error.diag.severity_nonlocalized != "ERROR"  # connection lost, or FATAL: timeout, administrator
        if session_ended or state.startswith(_MAY_PASS):
            longer = _LONGER.get(state, "statement_timeout=3h")
            return NotApplied(
                f"{self.name} did not complete a statement: {_said(error)}",
                code=codes.SQL_UNREACHABLE,
                remedy="Check that the server is up, and which sessions hold locks for a long time (pg_stat_activity). "
                "If the task needs more time than the timeout allows, set a longer one in the connection's extra: "
                f'{{"options": "-c {longer}"}}. Then clear the failed task.',
            )
        refused = RowRefused(
            f"{self.name} refused a row or a statement: {_said(error)}",
            code=codes.SQL_ROW_REFUSED,
        )
        refused.line, refused.table = _line(error), _place(error)
        refused.refers = state == _FOREIGN_KEY_BROKEN
        return refused


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as missing:
        raise Refused(
            "The PostgreSQL driver psycopg is not installed on this worker.",
            code=codes.SQL_DRIVER_MISSING,
        ) from missing
    return psycopg


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


def _drawn(
    kind: str, column: str, sequence: str, last: int, step: int, is_number: bool, end: int, cycles: bool
) -> Numbers | None:
    """What a column draws from a sequence; None if it never ends. ``kind``: the column's type."""
    width = _WIDTHS.get(kind) if is_number else None
    greatest = end if width is None else min(end, width - 1) if step > 0 else max(end, -width)
    if cycles and greatest == end:
        return None
    left = max(0, (greatest - last) // step)
    return Numbers(sequence=sequence, column=column, left=left, too_small=kind if greatest != end else None)


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _regclass(schema: str | None, name: str) -> str:
    return ".".join(_identifier(part) for part in (schema, name) if part is not None)


def _text(value: str | bytes) -> str:
    """A value of the catalog's type "char", which comes as text or bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _problem(kind: str | bytes, persistence: str | bytes, writable: bool) -> str | None:
    """Why a relation cannot be a sink's table; None if it can."""
    if _text(kind) in _KINDS:
        return f"it is {_KINDS[_text(kind)]}"
    if _text(persistence) != _PERMANENT:
        return "it is UNLOGGED or temporary, so it would lose its rows in a crash of the server"
    if not writable:
        return "the connection's user may not INSERT into it"
    return None


def _problem_of(partitions: Sequence[tuple[Any, ...]]) -> str | None:
    """Why one of the partitions, as ``_LEAVES`` lists them, makes a table unusable; None if none does."""
    for _, name, kind, persistence in partitions:
        if problem := _problem(kind, persistence, writable=True):
            return f"its partition {name!r} is not usable: {problem}"
    return None


_LINE = re.compile(r"^COPY .*?, \D*(\d+)", re.MULTILINE)


def _line(error: psycopg.Error) -> int:
    """The line of the COPY that the error names, 0 if none. Works in every language of the server's messages."""
    found = _LINE.search(error.diag.context or "")
    return int(found[1]) if found else 0


def _place(error: psycopg.Error) -> tuple[str, str] | None:
    """Schema and name of the table that the error is about; of a foreign key, the one that refers."""
    schema, name = error.diag.schema_name, error.diag.table_name
    return (schema, name) if schema and name else None


def _said(error: psycopg.Error) -> str:
    """The server's message, with the row or key that it names."""
    diag = error.diag
    context = (diag.context or "").splitlines()[:1]
    parts = [diag.message_primary or str(error) or type(error).__name__, diag.message_detail, *context]
    return secrecy.scrubbed(" ".join(" ".join(part.split()) for part in parts if part))[:_LENGTH_MAX]
