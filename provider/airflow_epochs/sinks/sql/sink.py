"""The SQL sink: rows are copied into a database table, exactly once per epoch, in one transaction with the marker.

Spark stages the rows in a private Delta table. The vote rehearses the commit: the very transaction, rolled back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_epochs.errors import Refused
from airflow_epochs.names import is_template, validated_name
from airflow_epochs.sinks.logins import require_no_login

if TYPE_CHECKING:
    from airflow_epochs.contracts import Disagreement, Environment, SinkAttempt
    from airflow_epochs.errors import Corrupt
    from airflow_epochs.model import JsonDict, Marker, Receipt, Staged, StagedClaim, Vote
    from airflow_epochs.sinks.sql.participant import SqlParticipant

_MODES = ("append", "upsert")
_PART = r'(?:[^\W\d][\w$]*|"(?:[^"]|"")+")'
_TABLE = re.compile(rf"(?:({_PART})\.)?({_PART})")
_MARKER_TABLE = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class SqlSink:
    """Copies rows into a table of PostgreSQL or SQLite, exactly once per epoch.

    Args:
        name: The sink's name in the pipeline; the key under which the transform returns its rows.
        conn_id: Connection of type ``postgres`` or ``sqlite``.
        table: The table, spelled as in SQL: ``orders``, ``sales.orders``, ``"Sales"."Orders"``. It must exist.
        staging: Where rows are staged: an absolute path or a URL that Spark and the workers share.
        mode: ``append``, or ``upsert``: a row takes the place of the one with the same ``keys``.
        keys: Columns of a unique index. Only for ``upsert``.
        storage_conn_id: Connection with the credentials of the staging store; without, the environment's count.
        marker_table: Name of the table of markers, in the schema of ``table``. Created if it is missing.
        rehearse: Whether the vote writes all rows and rolls them back, to know that the commit can keep the promise.
            Costs a second write; without it, a constraint that rows break stops the pipeline after the decision.
    """

    template_fields: Sequence[str] = ("conn_id", "table", "staging", "storage_conn_id")
    recorded: Sequence[str] = ("claims",)
    """What a specification has that is no argument."""

    def __init__(
        self,
        name: str,
        conn_id: str,
        table: str,
        *,
        staging: str,
        mode: str = "append",
        keys: Sequence[str] = (),
        storage_conn_id: str | None = None,
        marker_table: str = "epoch_markers",
        rehearse: bool = True,
    ) -> None:
        self.name = validated_name("sink", name)
        if mode not in _MODES:
            raise ValueError(f"mode {mode!r} of sink {name!r} is not known: 'append' or 'upsert'")
        if isinstance(keys, str):
            raise ValueError(f"keys of sink {name!r} is a list of columns, like [{keys!r}]")
        if (mode == "upsert") != bool(keys):
            raise ValueError(f"sink {name!r}: mode 'upsert' needs keys, and only that mode has any")
        if not _MARKER_TABLE.fullmatch(marker_table):
            raise ValueError(f"marker_table {marker_table!r} of sink {name!r} is not a plain lower-case name")
        self.conn_id = conn_id
        self.table = table
        self.staging = staging
        self.mode = mode
        self.keys = list(keys)
        self.storage_conn_id = storage_conn_id
        self.marker_table = marker_table
        self.rehearse = rehearse
        self.reserves = True
        """Whether the vote on a first epoch leaves a reservation, without which the commit writes nothing. False for an
        attempt that version 0.1 has opened."""

    def __repr__(self) -> str:
        return f"SqlSink({self.name!r}, {self.conn_id!r}, {self.table!r})"

    def asset_uri(self, pipeline: str) -> str:
        """A name of the sink: where the table is, only the connection knows."""
        return f"epochs://{pipeline}/{self.name}"

    def destination(self) -> str | None:
        """Connection and table. Raises Refused if the table is not spelled as in SQL, or `staging` holds a login."""
        require_no_login("staging", self.staging, self.name)
        if is_template([self.conn_id, self.table]):
            return None
        schema, table = self.table_name
        return f"sql:{self.conn_id}/{schema or ''}.{table}"

    def spec(self) -> JsonDict:
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
        }

    @classmethod
    def from_spec(cls, spec: JsonDict) -> SqlSink:
        """The inverse of ``spec``."""
        sink = cls(**{key: value for key, value in spec.items() if key not in ("kind", *cls.recorded)})
        sink.reserves = bool(spec.get("claims", False))
        return sink

    @property
    def table_name(self) -> tuple[str | None, str]:
        """Schema and table, as the database has them: in lower case where they are not quoted.

        Raises:
            Refused: It is not spelled as in SQL.
        """
        spelling = self.table.strip()
        found = _TABLE.fullmatch(spelling)
        if found:
            schema, table = found.groups()
            return (_plain(schema) if schema else None), _plain(table)
        raise Refused(
            f"{spelling!r} is no name of a table.",
            remedy='Spell it as in SQL: orders, sales.orders, or "Sales"."Orders" for names with capitals.',
            sink=self.name,
        )

    # -- what it does in an epoch --------------------------------------------------------------------------------

    def place(self, attempt: SinkAttempt, nonce: str, env: Environment) -> str:
        return self._participant(env).place(attempt, nonce)

    def plan_stage(self, attempt: SinkAttempt, nonce: str, env: Environment) -> JsonDict:
        return self._participant(env).plan_stage(attempt, nonce)

    def table_of(self, attempt: SinkAttempt, place: str, env: Environment) -> str:
        """What the database says: connections and schemas may have many names for one table."""
        return self._participant(env).table_of(attempt.txn.pipeline)

    def vote(self, attempt: SinkAttempt, claim: StagedClaim, env: Environment) -> Vote:
        return self.vote_together([(self, attempt, claim)], env)[self.name]

    def commit(self, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
        return self.commit_together([(self, attempt, staged)], env)[self.name]

    def joint(self) -> str | None:
        """Sinks of one connection are in one database, and so in one transaction."""
        return f"sql:{self.conn_id}"

    def vote_together(
        self, those: Sequence[tuple[SqlSink, SinkAttempt, StagedClaim]], env: Environment
    ) -> dict[str, Vote]:
        from airflow_epochs.sinks.sql import joint as sql_joint

        return sql_joint.vote(
            [sql_joint.Voter(sink._participant(env), attempt, claim) for sink, attempt, claim in those]
        )

    def commit_together(
        self, those: Sequence[tuple[SqlSink, SinkAttempt, Staged]], env: Environment
    ) -> dict[str, Receipt]:
        from airflow_epochs.sinks.sql import joint as sql_joint

        return sql_joint.commit(
            [sql_joint.Committer(sink._participant(env), attempt, staged) for sink, attempt, staged in those]
        )

    def has_leftovers(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> bool:
        return self._participant(env).has_leftovers(attempt, place)

    def discard(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> None:
        """The rows were copied, so nothing of the place is needed, ``published`` or not."""
        self._participant(env).discard(attempt, place)

    def last_committed(self, pipeline: str, env: Environment) -> Marker | None:
        return self._participant(env).last_committed(pipeline)

    def diagnose(self, disagreement: Disagreement, env: Environment) -> Corrupt | None:
        return self._participant(env).diagnose(disagreement)

    def _participant(self, env: Environment) -> SqlParticipant:
        # Imported here: a DAG file, parsed in every task, needs only the sink's description.
        from airflow_epochs.sinks.sql.participant import SqlParticipant

        return SqlParticipant(self, env)


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
