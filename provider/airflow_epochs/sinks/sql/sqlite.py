"""SQLite, through Python's own driver: for small data on one host. A commit locks the whole database."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_epochs import codes
from airflow_epochs.contracts import Connection, Dataset
from airflow_epochs.errors import NotApplied, OutcomeUnknown, Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.row_flaws import Check, sound
from airflow_epochs.sinks.sql.database import Numbers, RowRefused, Session
from airflow_epochs.sinks.sql.sink import folded
from airflow_epochs.sinks.sql.table import Comparison, SqlColumn, SqlTable, qualified, quoted
from airflow_epochs.sinks.sql.types import (
    family,
    sqlite_affinity,
    sqlite_retyped,
    sqlite_sorts,
    sqlite_stored_otherwise,
    sqlite_takes,
    sqlite_type,
)
from airflow_epochs.sinks.sql.values import tuples_of

if TYPE_CHECKING:
    from airflow_epochs.sinks.sql.database import Batches

WAIT_S = 30.0
"""Seconds to wait for another writer, or for a reader."""
_MAIN = "main"
_UTF_8 = "UTF-8"
_MAY_PASS = ("locked", "busy", "unable to open", "disk i/o error", "is full", "readonly")
"""Words in SQLite's errors that blame neither the rows nor the statement."""
_HELD = ("locked", "busy")
"""The words among them that mean that another process holds the database."""
_LET_GO = (
    "Check that no other process writes to the file, or reads from it, for a long time. Or run `PRAGMA journal_mode = "
    "WAL` in it once, while nobody uses it: then a commit waits for no reader. Then clear the failed task."
)
_STORE = "Check that the file exists and may be written, and that its disk has free space. Then clear the failed task."
_NOT_DONE = ("locked", "busy", "constraint")
"""Words in SQLite's errors after which a COMMIT has certainly not happened."""
_STRICT_SINCE = (3, 37)
"""The first version of SQLite that has STRICT tables, and says which are."""
_NO_CLAUSE = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^]]*\] | --[^\n]* | /\*.*?(?:\*/|\Z)""",
    re.DOTALL | re.VERBOSE,
)
"""Texts and names in quotes, and comments, in a table's definition: they can have no clause."""
_CONFLICT_CLAUSE = re.compile(r"\bon\s+conflict\b", re.IGNORECASE)
"""In a table's definition, IGNORE drops a new row in silence, REPLACE an old one. INSERT OR ABORT overrides both."""


class Sqlite:
    """``database.Database`` for SQLite. A column's declared type only says what SQLite makes of texts and numbers."""

    stores_nul = True

    def takes(self, column: SqlColumn, kind: Any) -> bool:
        """Whether the column can store Delta's ``kind`` without a change: ``types.sqlite_takes``."""
        return sqlite_takes(column.affinity, kind)

    def longest(self, column: SqlColumn) -> int | None:
        """None: SQLite ignores the number in VARCHAR(n)."""
        return None

    def sorts(self, column: SqlColumn, kind: Any) -> bool:
        """Whether the column orders values of ``kind`` as Spark does: ``types.sqlite_sorts``.

        SQLite compares the bytes of a text, which in UTF-16 have another order.
        """
        return sqlite_sorts(column.affinity, kind) and (column.encoding == _UTF_8 or family(kind) != "string")

    def type_for(self, kind: Any) -> str | None:
        """The column type to create for ``kind``: ``types.sqlite_type``."""
        return sqlite_type(kind)

    def dataset(self, connection: Connection, schema: str | None, table: str) -> Dataset:
        """The table in the file. OpenLineage has no rule for SQLite."""
        return Dataset(f"sqlite://{connection.host or connection.schema}", table)

    @contextmanager
    def connect(self, connection: Connection, who: Sequence[str]) -> Iterator[Session]:
        """One transaction, with the whole file locked for writing. A missing file is an error: no file is created."""
        path = Path(connection.host or connection.schema or "")
        if not path.is_absolute():
            raise Refused(
                f"Connection {connection.conn_id!r} does not have the absolute path of a SQLite file.",
                code=codes.SQL_CONNECTION,
                remedy="Set the host of the connection to the absolute path of the file. Then clear the failed task.",
            )
        session = SqliteSession(f"SQLite file {path}")
        with session.answers():
            # mode=rw: raise if the file is missing, and do not create it.
            opened = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=WAIT_S, isolation_level=None)
        with closing(opened):
            session.begin(opened)
            yield session


class SqliteSession:
    """``database.Session`` for SQLite."""

    mark: ClassVar[str] = "?"
    row_lock: ClassVar[str] = ""
    instant: ClassVar[str] = "TEXT"
    json: ClassVar[str] = "TEXT"
    temporary: ClassVar[str] = "temp"

    def __init__(self, name: str) -> None:
        self.name = name
        self._connection: sqlite3.Connection

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin a transaction that locks the file for writing at once."""
        self._connection = connection
        with self.answers():
            connection.execute("PRAGMA synchronous = EXTRA")  # the receipt promises that a commit survives a power cut
            connection.execute("BEGIN IMMEDIATE")

    @property
    def ended(self) -> bool:
        """Whether an error has rolled all of it back: RAISE(ROLLBACK), ON CONFLICT ROLLBACK and full disks do so."""
        return not self._connection.in_transaction

    def _require_open(self) -> None:
        """Raise Refused if the transaction has ended: a further statement would be one of its own, and stay."""
        if self.ended:
            raise Refused(
                f"{self.name} executes nothing more in this transaction: a statement failed, and the file rolled back "
                "the whole transaction, as RAISE(ROLLBACK) and ON CONFLICT ROLLBACK do.",
                code=codes.SQL_ROW_REFUSED,
                remedy="Correct what the other sink's vote names. To get a vote of each sink on its own rows, write "
                "ABORT instead of ROLLBACK in the triggers and tables of the file. Then clear the failed task.",
            )

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute, and translate sqlite3's errors."""
        with self._answers_within():
            return self._connection.execute(statement, tuple(values)).fetchall()

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Execute, and return sqlite3's ``rowcount``."""
        with self._answers_within():
            return self._connection.execute(statement, tuple(values)).rowcount

    def identity(self) -> JsonDict:
        """The file's path, as SQLite knows it."""
        return {"file": self.execute("SELECT file FROM pragma_database_list WHERE name = 'main'")[0][0]}

    def whereabouts(self, schema: str | None, name: str) -> str:
        """The table, and the file's inode and device."""
        file = os.stat(self.identity()["file"])
        found = self.table(schema, name)
        its_name = found.name if found else self.folded(name)
        return f"table {its_name} of the SQLite file {file.st_ino} on device {file.st_dev}"

    def bytewise(self, value: str, column: SqlColumn) -> str:
        """The collation ``BINARY``: any column may hold texts. ``Sqlite.sorts`` says where it has Spark's order."""
        return f"{value} COLLATE BINARY"

    def nullable(self, column: SqlColumn) -> str:
        """The column itself: SQLite has no domains."""
        return quoted(column.name)

    def make_unique(self, schema: str, table: str, columns: str) -> None:
        """The index is in the table's schema, and cannot name it again."""
        index = qualified(schema, f"{table}_key")
        self.execute(f"CREATE UNIQUE INDEX {index} ON {quoted(table)} ({columns})")

    def check(self, column: SqlColumn, kind: Any) -> Check:
        """A check for the values that SQLite cannot keep: only texts and times have some."""
        return sound(kind)

    def table(self, schema: str | None, name: str, *, keyed: bool = False) -> SqlTable | None:
        """The table, looked up without regard to case, as SQLite does."""
        schema = self.schema_of(schema, name)
        statement = f"SELECT name, type, sql, rootpage FROM {quoted(schema)}.sqlite_master WHERE lower(name) = lower(?)"
        found = [row for row in self.execute(statement, (name,)) if row[1] in ("table", "view")]
        if not found:
            return None
        ((its_name, kind, definition, page),) = found
        columns = self.execute(
            'SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?)', (its_name,)
        )
        strict = self._is_strict(its_name)
        ((encoding,),) = self.execute("PRAGMA encoding")
        return SqlTable(
            schema=schema,
            name=its_name,
            columns=tuple(
                SqlColumn(
                    name=column,
                    kind=spelled,
                    required=bool(notnull) and default is None and not hidden and not pk,  # SQLite fills INTEGER keys
                    generated=bool(hidden),
                    not_null=bool(notnull),
                    affinity=sqlite_affinity(spelled, strict=strict),
                    encoding=encoding,
                )
                for column, spelled, notnull, default, pk, hidden in columns
            ),
            unique=self._unique(its_name, [row[0] for row in columns if row[4]]) if keyed else {},
            problem="it is a view" if kind == "view" else None,
            virtual=kind == "table" and not page,  # it has no pages of its own
            insert="INSERT OR ABORT" if _CONFLICT_CLAUSE.search(_NO_CLAUSE.sub(" ", definition)) else "INSERT",
        )

    def _is_strict(self, table: str) -> bool:
        if sqlite3.sqlite_version_info < _STRICT_SINCE:
            return False
        found = self.execute("SELECT strict FROM pragma_table_list(?) WHERE schema = ?", (table, _MAIN))
        return any(strict for (strict,) in found)

    def _unique(self, table: str, primary: Sequence[str]) -> dict[frozenset[str], dict[str, Comparison]]:
        """Columns of each unique index -> how it compares them. ON CONFLICT uses the first on the same columns."""
        unique: dict[frozenset[str], dict[str, Comparison]] = {}
        indexes = self.execute(
            'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial ORDER BY seq', (table,)
        )
        for (index,) in indexes:
            columns = self.execute("SELECT name, coll FROM pragma_index_xinfo(?) WHERE key", (index,))
            if all(name is not None for name, _ in columns):  # an expression has no name
                unique.setdefault(frozenset(name for name, _ in columns), self._comparisons(columns))
        unique.setdefault(frozenset(primary), self._comparisons((name, "BINARY") for name in primary))  # of numbers
        return unique

    def _comparisons(self, collations: Iterable[tuple[Any, ...]]) -> dict[str, Comparison]:
        return {name: Comparison(collation=quoted(collation)) for name, collation in collations}

    def has_triggers(self, table: SqlTable) -> bool:
        """Asks the schema table."""
        statement = (
            f"SELECT 1 FROM {quoted(table.schema)}.sqlite_master WHERE type = 'trigger'"
            " AND lower(tbl_name) = lower(?) LIMIT 1"
        )
        return bool(self.execute(statement, (table.name,)))

    def lacks(self, table: SqlTable, *rights: str) -> list[str]:
        """Empty: who may open the file for writing, as the transaction has, may do everything."""
        return []

    def lacks_of(self, table: SqlTable, right: str, columns: Sequence[str]) -> list[str]:
        """Empty: who may open the file for writing may do everything."""
        return []

    def rights_on(self, schema: str, name: str, *rights: str) -> Mapping[str, Collection[str]] | None:
        """All of them: who may open the file for writing may do everything."""
        table = self.table(schema, name)
        return {column.name: rights for column in table.columns} if table else None

    def owns(self, table: SqlTable) -> bool:
        """True: who may open the file for writing may do everything."""
        return True

    def may_create_in(self, schema: str) -> bool:
        """True: who may open the file for writing may do everything."""
        return True

    def lacks_temporary(self) -> str | None:
        """None: who may open the file for writing may do everything."""
        return None

    def schema_of(self, schema: str | None, name: str) -> str:
        """Always ``main``: a SQLite file has no other."""
        if schema not in (None, _MAIN):
            raise Refused(
                f"SQLite has no schema {schema!r}.",
                code=codes.SQL_CONNECTION,
                remedy="Write `table` of the sink without a schema: the connection names the file. Then clear the "
                "failed task.",
            )
        return _MAIN

    def has_schema(self, name: str) -> bool:
        """A file has its one schema; ``schema_of`` refuses others."""
        return True

    def exists(self, schema: str, name: str) -> bool:
        """Whether there is a table or view of this name, in any case."""
        return self.table(schema, name) is not None

    def names(self, schema: str, prefix: str) -> list[str]:
        """Asks the schema table, without regard to case."""
        statement = (
            f"SELECT name FROM {quoted(schema)}.sqlite_master WHERE type = 'table'"
            " AND lower(substr(name, 1, length(?))) = lower(?) ORDER BY name"
        )
        return [name for (name,) in self.execute(statement, (prefix, prefix))]

    def folded(self, name: str) -> str:
        """The name in lower case, but for letters that are not ASCII."""
        return folded(name)

    def retyped(self, was: SqlColumn, now: SqlColumn) -> str | None:
        """Column ``was`` for a comparison with ``now``: ``types.sqlite_retyped``."""
        return sqlite_retyped(quoted(was.name), was.affinity, now.affinity)

    def index(self, temporary: str, keys: Sequence[str]) -> None:
        """Without it, SQLite would read the whole temporary table for each row of the other one."""
        self.execute(f"CREATE INDEX temp.{temporary}_keys ON {temporary} ({', '.join(keys)})")

    def stored_otherwise(self, value: str, column: SqlColumn, kind: Any) -> str | None:
        """The condition that rows of another type left ``value``: ``types.sqlite_stored_otherwise``."""
        return sqlite_stored_otherwise(value, column.affinity, kind)

    def numbers_left(self, table: SqlTable, given: Sequence[str]) -> list[Numbers]:
        """Empty: SQLite has no sequences, and more numbers than rows fit into a file."""
        return []

    def hurry(self) -> None:
        """Does nothing: once the transaction has begun, it waits for no lock."""

    def expect_wait(self) -> None:
        """Nothing to do: one session writes at a time, and ends with its process."""

    def serialise(self, what: str) -> None:
        """Does nothing: BEGIN IMMEDIATE allows one writer at a time."""

    def load(self, into: SqlTable, columns: Sequence[str], fields: Sequence[JsonDict], batches: Batches) -> int:
        """One ``executemany`` per batch. If a row is refused, the error knows which."""
        name = into.spelled
        names, marks = ", ".join(map(quoted, columns)), ", ".join("?" * len(columns))
        statement, taken = f"{into.insert} INTO {name} ({names}) VALUES ({marks})", 0
        for batch in batches:
            rows = _Drawn(tuples_of(batch, fields))
            try:
                with self._answers_within():
                    taken += self._connection.executemany(statement, rows).rowcount
            except RowRefused as refused:
                refused.row = batch, rows.count - 1
                raise
        return taken

    def settle(self) -> None:
        """Look only whether the transaction goes on: SQLite defers only foreign keys, which it does not enforce."""
        self._require_open()

    def commit(self) -> None:
        """Commit. An error that does not exclude the commit is OutcomeUnknown."""
        self._require_open()
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if any(word in str(error).lower() for word in _NOT_DONE):
                raise self._translated(error) from error
            raise OutcomeUnknown(
                f"{self.name} did not confirm the COMMIT, so its result is unknown: {error}",
                code=codes.SQL_COMMIT_UNKNOWN,
                remedy="Check that its disk works and has free space. Then clear the failed task: it reads the marker "
                "before it writes.",
            ) from error

    @contextmanager
    def _answers_within(self) -> Iterator[None]:
        """Translate errors as ``answers`` does, for a statement inside the transaction."""
        self._require_open()
        with self.answers():
            yield

    @contextmanager
    def answers(self) -> Iterator[None]:
        """Translate sqlite3's errors."""
        try:
            yield
        except (sqlite3.Error, OverflowError) as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> NotApplied:
        about_a_row = isinstance(error, sqlite3.IntegrityError)  # its text has names, and what a trigger says
        text = str(error).lower()
        if not about_a_row and any(word in text for word in _MAY_PASS):
            return NotApplied(
                f"{self.name} did not complete a statement: {error}",
                code=codes.SQL_UNREACHABLE,
                remedy=_LET_GO if any(word in text for word in _HELD) else _STORE,
            )
        return RowRefused(
            f"{self.name} refused a row or a statement: {error}",
            code=codes.SQL_ROW_REFUSED,
        )


class _Drawn:
    """Rows, and how many of them the driver has fetched."""

    def __init__(self, rows: Iterator[tuple[Any, ...]]) -> None:
        self._rows = rows
        self.count = 0

    def __iter__(self) -> _Drawn:
        return self

    def __next__(self) -> tuple[Any, ...]:
        row = next(self._rows)
        self.count += 1
        return row
