"""The SQL sink: copies rows and the marker into a database in one transaction, exactly once per epoch.

Spark stages the rows in a private Delta table. The vote rehearses the commit: it runs the same transaction and rolls it
back.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.config import require_name
from airflow_epochs.errors import BadArgument, Refused
from airflow_epochs.names import call_of, is_template
from airflow_epochs.sinks.locations import require_usable

if TYPE_CHECKING:
    from airflow_epochs.contracts import Dataset, Disagreement, Environment, LastEpoch, SinkAttempt, StagedSample
    from airflow_epochs.errors import Corrupt
    from airflow_epochs.model import JsonDict, Marker, Receipt, Staged, StagedClaim, TransactionId, Vote
    from airflow_epochs.sinks.sql.participant import SqlParticipant

_MODES = ("append", "upsert")
_OF_CHANGES = ("sequence_by", "delete_when")
"""Options that a sink's specification has only where they are given: earlier versions do not know them."""
_WORD = r"[^\W\d][\w$]*"
_PART = rf'(?:{_WORD}|"(?:[^"]|"")+")'
_TABLE = re.compile(rf"(?:({_PART})\.)?({_PART})")
_FOLDED = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
"""Both kinds of database fold only these letters of a name without quotes: Ä stays as it is."""
_MARKER_TABLE = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def _flaw_of(
    mode: str, keys: Sequence[str], sequence_by: str | None, delete_when: str | None, marker_table: str
) -> str | None:
    """What is wrong with these arguments of a sink; None if nothing is."""
    if mode not in _MODES:
        return f"`mode` is {mode!r}. It must be 'append' or 'upsert'."
    if isinstance(keys, str):
        return f"`keys` is the text {keys!r}. It must be a list of columns, like [{keys!r}]."
    if (mode == "upsert") != bool(keys):
        return f"`mode` is {mode!r} and `keys` is {list(keys)}. Mode 'upsert' needs keys; mode 'append' takes none."
    for option, value in (("sequence_by", sequence_by), ("delete_when", delete_when)):
        if value is not None and mode != "upsert":
            return f"`{option}` is {value!r}, and `mode` is {mode!r}. `{option}` is valid only with mode 'upsert'."
        if value is not None and not value.strip():
            return f"`{option}` is {value!r}. It must not be empty; leave it out instead."
    if sequence_by is not None and sequence_by.lower() in {key.lower() for key in keys}:
        return f"`sequence_by` is {sequence_by!r}, which is one of the keys. It must be another column."
    if not _MARKER_TABLE.fullmatch(marker_table):
        return (
            f"`marker_table` is {marker_table!r}. It must have 1 to 63 lower-case letters, digits and '_', and must "
            "not begin with a digit."
        )
    return None


class SqlSink:
    """Copies rows into a table of PostgreSQL or SQLite, exactly once per epoch.

    Args:
        name: The sink's name in the pipeline. The transform returns the sink's rows under it.
        conn_id: A connection of type ``postgres`` or ``sqlite``.
        table: The table, spelled as in SQL: ``orders``, ``sales.orders``, ``"Sales"."Orders"``. It must exist.
        staging: Where rows are staged: an absolute path or a URL that Spark and the workers share.
        mode: ``append`` adds rows; ``upsert`` replaces a row that has the same ``keys``.
        keys: For ``upsert``: exactly the columns of a unique index.
        sequence_by: For ``upsert``: of two rows with one key, the one with the larger value in this column is newer.
            Without it, a key may appear once per epoch, and the row of the later epoch is newer.
        delete_when: For ``upsert``: a SQL condition of Spark's on a row. If a key's newest row meets it, the key is
            deleted. The table need not have columns that only this condition uses.
        storage_conn_id: The connection with the credentials of the staging store. By default the worker's environment
            provides them.
        marker_table: The name of the table of markers, in the schema of ``table``. It is created if it is missing.
        rehearse: Whether the vote writes all rows and rolls them back. Every row is then written twice. Without a
            rehearsal, rows that violate a constraint stop the pipeline after the decision.
    """

    template_fields: Sequence[str] = ("conn_id", "table", "staging", "storage_conn_id")
    recorded: Sequence[str] = ("claims",)
    """Fields of the specification that are no arguments."""

    def __init__(
        self,
        name: str,
        conn_id: str,
        table: str,
        *,
        staging: str,
        mode: str = "append",
        keys: Sequence[str] = (),
        sequence_by: str | None = None,
        delete_when: str | None = None,
        storage_conn_id: str | None = None,
        marker_table: str = "epoch_markers",
        rehearse: bool = True,
    ) -> None:
        self.name = require_name("sink", name)
        if flaw := _flaw_of(mode, keys, sequence_by, delete_when, marker_table):
            raise BadArgument(f"Sink {name!r}: {flaw}", code=codes.SQL_SINK_ARGUMENT)
        self.conn_id = conn_id
        self.table = table
        self.staging = staging
        self.mode = mode
        self.keys = list(keys)
        self.sequence_by = sequence_by
        self.delete_when = delete_when
        self.storage_conn_id = storage_conn_id
        self.marker_table = marker_table
        self.rehearse = rehearse
        self.reserves = True
        """Whether the vote on a first epoch leaves a reservation, and the commit writes nothing without one. False for
        an attempt that version 0.1 opened."""

    def __repr__(self) -> str:
        changes = {name: getattr(self, name) for name in _OF_CHANGES}
        return call_of("SqlSink", self.name, self.conn_id, self.table, mode=self.mode, keys=self.keys, **changes)

    def asset_uri(self, pipeline: str) -> str:
        """``epochs://<pipeline>/<sink>``. Only the connection knows where the table is."""
        return f"epochs://{pipeline}/{self.name}"

    def destination(self) -> str | None:
        """Connection and table; None for a template. Raises Refused if the table or ``staging`` is not usable."""
        require_usable("staging", self.staging, self.name)
        if is_template([self.conn_id, self.table]):
            return None
        return f"sql:{self.conn_id}/{'.'.join(_spelled(part) for part in self.table_name if part is not None)}"

    def spec(self) -> JsonDict:
        """The sink's options, as the ledger records them."""
        return {
            "kind": "sql",
            "name": self.name,
            "conn_id": self.conn_id,
            "table": self.table,
            "staging": self.staging,
            "mode": self.mode,
            "keys": list(self.keys),
            "storage_conn_id": self.storage_conn_id,
            "marker_table": self.marker_table,
            "rehearse": self.rehearse,
            "claims": self.reserves,
            **{name: value for name in _OF_CHANGES if (value := getattr(self, name)) is not None},
        }

    def require_ready(self, pipeline: str, previous: TransactionId | None, env: Environment) -> None:
        """Look at the table, its key columns and its index, and at the user's rights on it and on the marker table."""
        self._participant(env).require_ready(pipeline, previous)

    def require_writable(self, env: Environment) -> None:
        """Write a probe into the folder ``staging``, and remove it."""
        self._participant(env).staged.require_writable()

    def fit(self, pipeline: str, env: Environment) -> JsonDict:
        """What the database's table takes of a row."""
        from airflow_epochs.spark.driver.wire import as_json

        return as_json(self._participant(env).fit(pipeline))

    def replaces_by(self) -> tuple[str, ...]:
        """The keys of an upsert, with ``sequence_by``."""
        return (*self.keys, self.sequence_by) if self.sequence_by else tuple(self.keys)

    @classmethod
    def from_spec(cls, spec: JsonDict) -> SqlSink:
        """The sink that ``spec`` describes. It is checked like a new one."""
        sink = cls(**{key: value for key, value in spec.items() if key not in ("kind", *cls.recorded)})
        sink.reserves = bool(spec.get("claims", False))
        return sink

    @property
    def table_name(self) -> tuple[str | None, str]:
        """Schema and table as the database stores them: in lower case unless they are quoted.

        Raises:
            Refused: ``table`` is not spelled as in SQL.
        """
        if found := stored_name(self.table):
            return found
        raise Refused(
            f"`table` of the sink is {self.table.strip()!r}, which is not the name of a table in SQL.",
            code=codes.SINK_MISCONFIGURED,
            remedy='Write `table` as in SQL: orders, sales.orders, or "Sales"."Orders" for names with capitals. Then '
            "clear the failed task.",
            sink=self.name,
        )

    # -- what it does in an epoch --------------------------------------------------------------------------------

    def place(self, attempt: SinkAttempt, try_id: str, env: Environment) -> str:
        """A folder of its own below ``staging``."""
        return self._participant(env).staged.place(attempt, try_id)

    def plan_stage(self, attempt: SinkAttempt, try_id: str, env: Environment) -> JsonDict:
        """Describe the staging table to Spark, and sign the sink's staging folder."""
        return self._participant(env).plan_stage(attempt, try_id)

    def table_of(self, attempt: SinkAttempt, place: str, env: Environment) -> str:
        """The database names the table: several connections and schemas may lead to the same one."""
        return self._participant(env).table_of(attempt.txn.pipeline)

    def vote(self, attempt: SinkAttempt, claim: StagedClaim, env: Environment) -> Vote:
        """Check the staged rows and rehearse the commit. A first epoch gets its reservation."""
        return self.vote_together([(self, attempt, claim)], env)[self.name]

    def commit(self, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
        """Write rows and marker in one database transaction."""
        return self.commit_together([(self, attempt, staged)], env)[self.name]

    def joint(self) -> str | None:
        """The connection: its sinks are in one database, and so can share one transaction."""
        return f"sql:{self.conn_id}"

    def vote_together(
        self, those: Sequence[tuple[SqlSink, SinkAttempt, StagedClaim]], env: Environment
    ) -> dict[str, Vote]:
        """Rehearse all sinks in one transaction, in the DAG's order, because their rows may refer to each other."""
        from airflow_epochs.sinks.sql import joint as sql_joint

        return sql_joint.vote(
            [sql_joint.Voter(sink._participant(env), attempt, claim) for sink, attempt, claim in those]
        )

    def commit_together(
        self, those: Sequence[tuple[SqlSink, SinkAttempt, Staged]], env: Environment
    ) -> dict[str, Receipt]:
        """Write all sinks' rows and markers in one transaction, after all markers have been locked."""
        from airflow_epochs.sinks.sql import joint as sql_joint

        return sql_joint.commit(
            [sql_joint.Committer(sink._participant(env), attempt, staged) for sink, attempt, staged in those]
        )

    def has_leftovers(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> bool:
        """Whether any file is left at the place."""
        return self._participant(env).staged.has_leftovers(attempt, place)

    def discard(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> None:
        """Delete the place, ``published`` or not: the table has copies of its rows."""
        self._participant(env).staged.discard(attempt, place)

    def sample(self, attempt: SinkAttempt, place: str, most: int, env: Environment) -> StagedSample:
        """The staged rows, as Spark wrote them."""
        return self._participant(env).sample(attempt, place, most)

    def dataset(self, receipt: Receipt, env: Environment) -> Dataset:
        """The table, in the schema in which the commit found it."""
        from airflow_epochs.sinks.sql.database import database_of

        connection, (schema, table) = env.connection(self.conn_id), self.table_name
        return database_of(connection).dataset(connection, schema or receipt.detail.get("schema"), table)

    def in_place_of(self, own: Receipt, others: Sequence[Receipt], env: Environment) -> Receipt | None:
        """The one of ``others`` for this sink's table, in the same database, if the sink had another table before.

        A table's id tells, which stays if somebody renames the table. SQLite has no ids: there, the names tell.

        Raises:
            Corrupt: The DAG names no schema, and the connection's search path leads to another table now.
        """
        then = own.detail
        if then.get("table_id") and then.get("schema") and self.table_name[0] is None:
            self._participant(env).require_own_table(own)
        if then.get("table") == self.table or then.get("database") is None:
            return None
        there = [other for other in others if other.detail.get("database") == then["database"]]
        if not there:
            return None
        by = "table_id" if then.get("table_id") else "table"
        if by == "table":
            now = in_sqlite(self.table)
            same = (each for each in (own, *there) if in_sqlite(str(each.detail.get(by))) == now)
            other = next(same, own)
            return None if other is own else other
        now_id = self._participant(env).place_now(own.txn_id.pipeline)[by]
        if now_id in (None, then.get(by)):
            return None
        return next((other for other in there if other.detail.get(by) == now_id), None)

    def may_hold(self, receipt: Receipt, env: Environment) -> bool:
        """Whether the receipt is of this table, which is not empty. In SQLite, which has no ids, the names tell."""
        return self._participant(env).may_hold(receipt)

    def last_committed(self, pipeline: str, env: Environment) -> Marker | None:
        """The sink's row in the table of markers."""
        return self._participant(env).last_committed(pipeline)

    def last_epoch(self, pipeline: str, env: Environment) -> LastEpoch | None:
        """What the sink's row in the table of markers says."""
        return self._participant(env).last_epoch(pipeline)

    def diagnose(self, disagreement: Disagreement, env: Environment) -> Corrupt | None:
        """Explain the marker from the database's and the table's identity."""
        return self._participant(env).diagnose(disagreement)

    def fence(self, pipeline: str, over: Collection[TransactionId | None], by: TransactionId, env: Environment) -> bool:
        """Let the sink's marker name ``by``."""
        return self._participant(env).fence(pipeline, over, by)

    def _participant(self, env: Environment) -> SqlParticipant:
        # Imported here: every task parses its DAG file, which needs only the sink's options.
        from airflow_epochs.sinks.sql.participant import SqlParticipant

        return SqlParticipant(self, env)


def stored_name(spelling: str) -> tuple[str | None, str] | None:
    """Schema and table, as ``SqlSink.table_name``; None if it is not spelled as in SQL."""
    found = _TABLE.fullmatch(spelling.strip())
    if found is None:
        return None
    schema, table = found.groups()
    return (_plain(schema) if schema else None), _plain(table)


def in_sqlite(spelling: str) -> str:
    """A table's name as SQLite compares it: the only schema is ``main``, and quotes keep no capitals."""
    found = stored_name(spelling)
    return folded(found[1]) if found else spelling


def folded(name: str) -> str:
    """A name with its ASCII letters in lower case: as SQL takes it without quotes, and SQLite also with them."""
    return name.translate(_FOLDED)


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else folded(name)


def _spelled(name: str) -> str:
    """A stored name as SQL spells it: in quotes unless it is the same without them. The inverse of ``_plain``."""
    if re.fullmatch(_WORD, name) and folded(name) == name:
        return name
    return '"' + name.replace('"', '""') + '"'
