"""What the SQL sink needs from a database: a transaction on one connection. PostgreSQL and SQLite have modules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from airflow_epochs import codes
from airflow_epochs.contracts import Connection, Dataset
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import JsonDict

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_epochs.sinks.row_flaws import Check
    from airflow_epochs.sinks.sql.table import SqlColumn, SqlTable


class RowRefused(Refused):
    """The database refused a row of a load.

    Attributes:
        row: The row's batch, and its number there; None if unknown.
        line: The row's last line in the CSV of all rows, from 1, as COPY counts; 0 if unknown.
        table: Schema and name of the table whose constraint the row breaks; None if the database names no table.
        refers: Whether this constraint is a foreign key. Then the row may also be a row of the table that the key
            refers to.
    """

    row: tuple[pa.RecordBatch, int] | None = None
    line: int = 0
    table: tuple[str, str] | None = None
    refers: bool = False


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """A sequence from which rows get the values of a column.

    Attributes:
        sequence: Its name, as a statement needs it.
        column: The column.
        left: How many more numbers there are for the column.
        too_small: The type of the column, if it ends before the sequence; None if it does not.
    """

    sequence: str
    column: str
    left: int
    too_small: str | None


class Session(Protocol):
    """A transaction. It is rolled back unless ``commit`` returns.

    Every method raises Refused if the database refuses (data, rights, names), and NotApplied if it does not answer in
    time. In both cases nothing of the transaction has happened.
    """

    name: str
    """The database, for messages."""
    mark: ClassVar[str]
    """The placeholder for a value in a statement. Within a name or a text in quotes it stands for itself."""
    row_lock: ClassVar[str]
    """The clause that locks the rows of a SELECT."""
    instant: ClassVar[str]
    """The column type for points in time."""
    json: ClassVar[str]
    """The column type for JSON."""
    temporary: ClassVar[str]
    """The schema of this session's temporary tables."""

    @property
    def ended(self) -> bool:
        """Whether the database has ended the transaction because of an error. Then every further method refuses."""
        ...

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute a statement. Returns its rows, if it has any."""
        ...

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Execute a statement. Returns how many rows the database says it inserted, updated or deleted."""
        ...

    def identity(self) -> JsonDict:
        """What distinguishes this database from others, as far as a copy or another server can differ."""
        ...

    def whereabouts(self, schema: str | None, name: str) -> str:
        """A text that identifies the table ``schema.name``, whether it exists or not: the same on every connection.

        It may change when the server restarts.
        """
        ...

    def bytewise(self, value: str, column: SqlColumn) -> str:
        """An expression for ``value``, of this column, that compares texts by their bytes in UTF-8, as Spark does."""
        ...

    def nullable(self, column: SqlColumn) -> str:
        """The column, quoted, for a temporary table whose rows may have NULL there whatever its type says."""
        ...

    def make_unique(self, schema: str, table: str, columns: str) -> None:
        """Create a unique index. ``columns``: as a statement lists them."""
        ...

    def check(self, column: SqlColumn, kind: Any) -> Check:
        """A check that finds values of Delta's ``kind`` that the column cannot store, or would store only in part."""
        ...

    def table(self, schema: str | None, name: str, *, keyed: bool = False) -> SqlTable | None:
        """The table that an unquoted ``schema.name`` means; None if there is none.

        ``keyed``: with its unique indexes and deferrable constraints, which may take two more queries.
        """
        ...

    def has_triggers(self, table: SqlTable) -> bool:
        """Whether users have made triggers on the table, or on a partition of it."""
        ...

    def lacks(self, table: SqlTable, *rights: str) -> list[str]:
        """The rights that the connection's user has on no column of the table, among ``rights``."""
        ...

    def lacks_of(self, table: SqlTable, right: str, columns: Sequence[str]) -> list[str]:
        """The columns on which the connection's user does not have the right, among ``columns``."""
        ...

    def rights_on(self, schema: str, name: str, *rights: str) -> Mapping[str, Collection[str]] | None:
        """Each column -> which of ``rights`` the connection's user has on it; None if there is no such table.

        Takes one statement, where ``table`` and ``lacks_of`` take seven.
        """
        ...

    def owns(self, table: SqlTable) -> bool:
        """Whether the connection's user may alter the table."""
        ...

    def may_create_in(self, schema: str) -> bool:
        """Whether the connection's user may create a table in the schema."""
        ...

    def lacks_temporary(self) -> str | None:
        """The database's name if the connection's user may not make temporary tables in it; None if the user may."""
        ...

    def schema_of(self, schema: str | None, name: str) -> str:
        """The schema of the table; if the table does not exist, the schema in which it would be created."""
        ...

    def has_schema(self, name: str) -> bool:
        """Whether the database has a schema of exactly this name."""
        ...

    def exists(self, schema: str, name: str) -> bool:
        """Whether a table of exactly this name exists."""
        ...

    def names(self, schema: str, prefix: str) -> list[str]:
        """The names of the schema's tables that begin with ``prefix``, in order."""
        ...

    def folded(self, name: str) -> str:
        """The name as the database compares it: two names with the same result are one column or table."""
        ...

    def retyped(self, was: SqlColumn, now: SqlColumn) -> str | None:
        """An expression for ``was`` that can be compared with ``now``, the same column after a change of type.

        None if such values may not be compared.
        """
        ...

    def index(self, temporary: str, keys: Sequence[str]) -> None:
        """Make an index by which a DELETE finds rows of a temporary table by these keys, if the database needs one."""
        ...

    def stored_otherwise(self, value: str, column: SqlColumn, kind: Any) -> str | None:
        """The condition that ``value``, of this column, was stored from rows of another type than ``kind``.

        None if the database compares the values of a column whatever rows they come from.
        """
        ...

    def numbers_left(self, table: SqlTable, given: Sequence[str]) -> list[Numbers]:
        """The sequences from which rows that have only the columns ``given`` will draw numbers."""
        ...

    def hurry(self) -> None:
        """Wait only a moment for locks from now on."""
        ...

    def expect_wait(self) -> None:
        """Prepare to wait for another session of these sinks. Call it before their markers are locked."""
        ...

    def serialise(self, what: str) -> None:
        """Wait until no other transaction has serialised on ``what``. Lasts until this transaction ends."""
        ...

    def load(self, into: SqlTable, columns: Sequence[str], fields: Sequence[JsonDict], batches: Batches) -> int:
        """Insert all rows, batch by batch. ``fields`` and ``columns`` have the same order.

        Returns:
            How many rows the database says it inserted.

        Raises:
            RowRefused: The database refused a row.
        """
        ...

    def settle(self) -> None:
        """Run now the checks that the database would run at COMMIT, so that nothing else can fail there."""
        ...

    def commit(self) -> None:
        """Commit.

        Raises:
            OutcomeUnknown: No answer came in time, the answer does not tell the outcome, or the commit reached fewer
                servers than it must.
        """
        ...


if TYPE_CHECKING:
    Batches = Iterable[pa.RecordBatch]


class Database(Protocol):
    """One kind of database."""

    def connect(self, connection: Connection, who: Sequence[str]) -> AbstractContextManager[Session]:
        """A transaction in the connection's database. Its administrator can see the sinks' names, ``who``."""
        ...

    def dataset(self, connection: Connection, schema: str | None, table: str) -> Dataset:
        """What OpenLineage calls a table of the connection's database. ``schema``: as far as it is known."""
        ...

    @property
    def stores_nul(self) -> bool:
        """Whether a text may have the character NUL."""
        ...

    def takes(self, column: SqlColumn, kind: Any) -> bool:
        """Whether the column can store Delta's ``kind`` without a change."""
        ...

    def longest(self, column: SqlColumn) -> int | None:
        """How many characters of a text the column takes; None if it has no limit."""
        ...

    def sorts(self, column: SqlColumn, kind: Any) -> bool:
        """Whether the column's values have the order of Delta's ``kind``, texts byte by byte."""
        ...

    def type_for(self, kind: Any) -> str | None:
        """The column type to create for Delta's ``kind``; None if there is none."""
        ...


def database_of(connection: Connection) -> Database:
    """The kind of database that the connection is for.

    Raises:
        Refused: The sink does not support it.
    """
    # Imported here: a user of one database need not install the driver of the other.
    if connection.conn_type in ("postgres", "postgresql"):
        from airflow_epochs.sinks.sql.postgres import Postgres

        return Postgres()
    if connection.conn_type == "sqlite":
        from airflow_epochs.sinks.sql.sqlite import Sqlite

        return Sqlite()
    raise Refused(
        f"Connection {connection.conn_id!r} has the type {connection.conn_type!r}. A SqlSink supports postgres and "
        "sqlite.",
        code=codes.SQL_CONNECTION,
        remedy="Give the sink a connection of type postgres or sqlite. If Airflow does not offer this type, type `pip "
        "install apache-airflow-providers-postgres` (or `…-sqlite`), or set the environment variable "
        f"AIRFLOW_CONN_{connection.conn_id.upper()}, which takes any type. Then clear the failed task.",
    )


@contextmanager
def part_of(session: Session) -> Iterator[None]:
    """A savepoint: if the block raises Refused or Corrupt, only its statements are undone.

    If the database has undone the whole transaction, the savepoint is gone, too.
    """
    session.execute("SAVEPOINT airflow_epochs")
    try:
        yield
    except (Refused, Corrupt):
        if not session.ended:
            session.execute("ROLLBACK TO SAVEPOINT airflow_epochs")
        raise
    session.execute("RELEASE SAVEPOINT airflow_epochs")
