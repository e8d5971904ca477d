"""What the SQL sink needs of a database: one transaction on one connection. A module each for PostgreSQL and SQLite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from airflow_epochs.contracts import Connection
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import JsonDict

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_epochs.sinks.row_flaws import Check
    from airflow_epochs.sinks.sql.table import SqlColumn, SqlTable


class RowRefused(Refused):
    """The database does not take a row of a load.

    ``row``, its batch and number there, or ``line``, the line of the rows' CSV from 1, say which, if anything does.
    """

    row: tuple[pa.RecordBatch, int] | None = None
    line: int = 0


class Session(Protocol):
    """A transaction, rolled back unless ``commit`` returns.

    Every method raises Refused for what the database says no to (data, rights, names), and NotApplied where it does
    not answer, or not in time; then nothing of the transaction has happened.
    """

    name: str
    """The database, for messages."""
    mark: ClassVar[str]
    """The placeholder of a value in a statement."""
    row_lock: ClassVar[str]
    """What locks the rows of a SELECT."""
    instant: ClassVar[str]
    """The type of a column for points in time."""
    json: ClassVar[str]
    """The type of a column for JSON."""
    temporary: ClassVar[str]
    """The schema of this session's own temporary tables."""

    def quoted(self, name: str) -> str:
        """A name of a column, table or schema as part of a statement."""
        ...

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Execute a statement; how many rows the database says that it inserted, updated or deleted."""
        ...

    def identity(self) -> JsonDict:
        """What tells this database from others: what a copy or another server does not share."""
        ...

    def whereabouts(self, schema: str | None, name: str) -> str:
        """Which table it is that ``schema.name`` means: told alike by every connection to it, be it there or not.

        Holds for now: a server may tell otherwise once it was restarted.
        """
        ...

    def check(self, column: SqlColumn, kind: Any) -> Check:
        """Finds values of Delta's ``kind`` for which the column has no form, or would keep only a part."""
        ...

    def table(self, schema: str | None, name: str) -> SqlTable | None:
        """The table that an unquoted ``schema.name`` means, and its columns; None if there is none."""
        ...

    def schema_of(self, schema: str | None, name: str) -> str:
        """The schema of the table; if it does not exist, the one in which it would be created."""
        ...

    def exists(self, schema: str, name: str) -> bool:
        """Whether there is a table of exactly that name."""
        ...

    def numbers_left(self, table: SqlTable, given: Sequence[str]) -> list[tuple[str, int]]:
        """The sequences that number rows of ``table`` with these columns, and how many numbers each has left."""
        ...

    def hurry(self) -> None:
        """From now on wait for locks no more than a moment."""
        ...

    def serialise(self, what: str) -> None:
        """Wait until nobody else is in a transaction that has serialised on ``what``."""
        ...

    def load(self, into: SqlTable, columns: Sequence[str], fields: Sequence[JsonDict], batches: Batches) -> int:
        """Insert all rows, batch by batch. ``fields`` and ``columns`` stand in one order.

        Returns:
            How many rows the database says that it has inserted.

        Raises:
            RowRefused: It does not take one.
        """
        ...

    def settle(self) -> None:
        """Check now what the database would check when committing: nothing else may go wrong then."""
        ...

    def commit(self) -> None:
        """Commit.

        Raises:
            OutcomeUnknown: The answer did not arrive in time, or says nothing about the outcome; or the commit stands
                on fewer servers than it must.
        """
        ...


if TYPE_CHECKING:
    Batches = Iterable[pa.RecordBatch]


class Database(Protocol):
    """One kind of database."""

    def connect(self, connection: Connection, who: Sequence[str]) -> AbstractContextManager[Session]:
        """A transaction in the database that an Airflow connection names, of sinks that its administrator can see."""
        ...

    def takes(self, column: SqlColumn, kind: Any) -> bool:
        """Whether the column takes Delta's ``kind`` as it is."""
        ...

    def type_for(self, kind: Any) -> str | None:
        """The type of a column to create for Delta's ``kind``; None if there is none."""
        ...


def database_of(connection: Connection) -> Database:
    """The kind of database that the connection is for.

    Raises:
        Refused: It is for none that the sink knows.
    """
    # Imported here: whoever uses one database need not have the other's driver.
    if connection.conn_type in ("postgres", "postgresql"):
        from airflow_epochs.sinks.sql.postgres import Postgres

        return Postgres()
    if connection.conn_type == "sqlite":
        from airflow_epochs.sinks.sql.sqlite import Sqlite

        return Sqlite()
    raise Refused(
        f"Connection {connection.conn_id!r} is of type {connection.conn_type!r}, no database of a SqlSink.",
        remedy="Give a connection of type postgres or sqlite.",
    )


@contextmanager
def part_of(session: Session) -> Iterator[None]:
    """What happens within is undone if it raises, and the session's transaction goes on."""
    session.execute("SAVEPOINT airflow_epochs")
    try:
        yield
    except (Refused, Corrupt):
        session.execute("ROLLBACK TO SAVEPOINT airflow_epochs")
        raise
    session.execute("RELEASE SAVEPOINT airflow_epochs")
