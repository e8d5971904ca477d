"""The Delta sink: an epoch's rows get into a table exactly once.

Spark stages the rows in a private Delta table *inside* the target's folder. The vote checks it. The commit of an append
adds the staged files to the target where they lie, in one log entry together with the marker; upserts and overwrites
are one transaction of Spark, signed with the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow_epochs.errors import Refused
from airflow_epochs.names import is_template, normalised, resolved, validated_name
from airflow_epochs.sinks.delta.modes import Mode
from airflow_epochs.sinks.logins import require_no_login

if TYPE_CHECKING:
    from airflow_epochs.contracts import Disagreement, Environment, SinkAttempt
    from airflow_epochs.errors import Corrupt
    from airflow_epochs.model import JsonDict, Marker, Receipt, Staged, StagedClaim, Vote
    from airflow_epochs.sinks.delta.participant import DeltaParticipant

_COMMITTERS = (None, "deltalake", "spark")
_CATALOG_NAME = re.compile(r"[A-Za-z0-9_]\w*(\.\w+){1,2}")


class DeltaSink:
    """Brings rows into a Delta table, exactly once per epoch.

    Args:
        name: The sink's name in the pipeline; the key under which the transform returns its rows.
        table: An absolute path, ``file://``, ``s3://`` (or another object store), or ``catalog.schema.table``. A table
            on a path is created by the first commit if it does not exist.
        partition_by: Partition columns of a table that is created; of one that exists they must agree.
        mode: ``append``; ``upsert``: the newest row per key stays; ``merge``: clauses of your own; ``overwrite``: the
            epoch's rows replace all others; ``overwrite_partitions``: they replace those of their partitions. Every
            mode but ``append`` is committed by Spark.
        keys: For ``upsert`` and ``merge``: the columns that tell one row from another. Never NULL.
        sequence_by: For ``upsert``: the column that says which of two rows with one key is newer. Without, a key may
            appear once per epoch, and the row of the later epoch is the newer one.
        delete_when: For ``upsert``: a SQL condition on a staged row, which must not depend on the time; a key whose
            newest row meets it goes.
        merge: For ``merge``: the clauses of MERGE from the first WHEN on; ``t`` is the table, ``s`` a staged row.
        on: For ``merge``: a condition in addition to the equality of the keys, such as one that prunes partitions.
        schema_evolution: ``add_columns``: columns that the table lacks are added to it, else they are a VOTE_ABORT.
        empty: For ``overwrite``: what an epoch without rows does, ``keep`` or ``truncate`` the table.
        replaces_others: For ``overwrite`` and ``overwrite_partitions``: whether rows that other pipelines have brought
            into the table since this sink's last epoch may go. If not, they are a VOTE_ABORT.
        commit: Who commits: ``deltalake`` (metadata only: milliseconds) or ``spark`` (rows are written once more).
            Left out: deltalake, and Spark for catalog names and for tables that deltalake refuses. Where anybody else
            writes or optimizes the table through Spark, it must be ``spark``.
        storage_conn_id: Connection with the credentials of the table's store; without, the environment's count.
        properties: Table properties of a table that is created.
        compact_every: Compact small files after every so many epochs, and sooner when many have come; 0: never.
        checkpoint_every: Checkpoint the table's log after every so many versions; 0: never.
        on_foreign_change: What ``open`` does if others have taken rows of whole epochs away (RESTORE to an earlier
            version, CREATE OR REPLACE, overwrite): ``warn`` in log, ledger and XCom, or ``stop``.
    """

    template_fields: Sequence[str] = ("table", "storage_conn_id", "partition_by", "properties")

    def __init__(
        self,
        name: str,
        table: str,
        *,
        partition_by: Sequence[str] = (),
        mode: str = "append",
        keys: Sequence[str] = (),
        sequence_by: str | None = None,
        delete_when: str | None = None,
        merge: str | None = None,
        on: str | None = None,
        schema_evolution: str | None = None,
        empty: str = "keep",
        replaces_others: bool = False,
        commit: str | None = None,
        storage_conn_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        compact_every: int = 50,
        checkpoint_every: int = 10,
        on_foreign_change: str = "warn",
    ) -> None:
        self.name = validated_name("sink", name)
        if isinstance(partition_by, str):
            raise ValueError(f"partition_by of sink {name!r} is a list of columns, like [{partition_by!r}]")
        if commit not in _COMMITTERS:
            raise ValueError(f"commit {commit!r} of sink {name!r} is not known: 'deltalake', 'spark' or None")
        if compact_every < 0 or checkpoint_every < 0:
            raise ValueError(f"compact_every and checkpoint_every of sink {name!r} must not be negative")
        if on_foreign_change not in ("warn", "stop"):
            raise ValueError(f"on_foreign_change of sink {name!r} is 'warn' or 'stop', not {on_foreign_change!r}")
        try:
            self.how = Mode.of(
                mode=mode,
                keys=keys,
                sequence_by=sequence_by,
                delete_when=delete_when,
                merge=merge,
                on=on,
                schema_evolution=schema_evolution,
                empty=empty,
                replaces_others=replaces_others,
            )
            self.commit_by = self.how.require_committer(commit, properties or {})
        except ValueError as error:
            raise ValueError(f"sink {name!r}: {error}") from error
        self.table = table
        self.partition_by = list(partition_by)
        self.storage_conn_id = storage_conn_id
        self.properties = dict(properties or {})
        self.compact_every = compact_every
        self.checkpoint_every = checkpoint_every
        self.on_foreign_change = on_foreign_change

    def __repr__(self) -> str:
        return f"DeltaSink({self.name!r}, {self.table!r})"

    def asset_uri(self, pipeline: str) -> str:
        """The table's URL; for one in a catalog, or one whose place is a template, a name of the sink."""
        target = normalised(self.table.strip())
        if "{{" in target or _CATALOG_NAME.fullmatch(target):
            return f"epochs://{pipeline}/{self.name}"
        return f"file://{quote(target)}" if target.startswith("/") else target

    def destination(self) -> str | None:
        """The table, links followed.

        Raises:
            Refused: It is neither an absolute place nor a name in a catalog, or it holds a login.
        """
        if is_template(self.table):
            return None
        require_no_login("table", self.target, self.name)
        return resolved(self.target)

    def table_of(self, attempt: SinkAttempt, place: str, env: Environment) -> str:
        """Its location, in which all its staging places lie."""
        table, *_ = place.rsplit("/", 3)
        return resolved(table)

    def spec(self) -> JsonDict:
        return {
            "kind": "delta",
            "name": self.name,
            "table": self.target,
            "partition_by": list(self.partition_by),
            **self.how.spec(),
            "commit": self.commit_by,
            "storage_conn_id": self.storage_conn_id,
            "properties": dict(self.properties),
            "compact_every": self.compact_every,
            "checkpoint_every": self.checkpoint_every,
            **({} if self.on_foreign_change == "warn" else {"on_foreign_change": self.on_foreign_change}),
        }

    @classmethod
    def from_spec(cls, spec: JsonDict) -> DeltaSink:
        return cls(**{key: value for key, value in spec.items() if key != "kind"})

    @property
    def target(self) -> str:
        """The table in its one spelling.

        Raises:
            Refused: It is neither an absolute place nor a name in a catalog.
        """
        table = normalised(self.table.strip())
        if table.startswith("/") or "://" in table or _CATALOG_NAME.fullmatch(table):
            return table
        raise Refused(
            f"{self.table!r} is no place for a Delta table.",
            remedy="Give an absolute path, a URL such as s3://bucket/folder, or catalog.schema.table.",
            sink=self.name,
        )

    @property
    def in_catalog(self) -> bool:
        return "/" not in self.target

    # -- what it does in an epoch --------------------------------------------------------------------------------

    def place(self, attempt: SinkAttempt, nonce: str, env: Environment) -> str:
        return self._participant(env).place(attempt, nonce)

    def plan_stage(self, attempt: SinkAttempt, nonce: str, env: Environment) -> JsonDict:
        return self.plan_stage_at(attempt, self.place(attempt, nonce, env), env)

    def plan_stage_at(self, attempt: SinkAttempt, place: str, env: Environment) -> JsonDict:
        return self._participant(env).plan_stage_at(attempt, place)

    def vote(self, attempt: SinkAttempt, claim: StagedClaim, env: Environment) -> Vote:
        return self._participant(env).vote(attempt, claim)

    def commit(self, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
        return self._participant(env).commit(attempt, staged)

    def is_own_place(self, attempt: SinkAttempt, place: str, env: Environment) -> bool:
        return self._participant(env).root_of(place, attempt) is not None

    def has_leftovers(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> bool:
        return self._participant(env).has_leftovers(attempt, place, published=published)

    def discard(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> None:
        self._participant(env).discard(attempt, place, published=published)

    def last_committed(self, pipeline: str, env: Environment) -> Marker | None:
        return self._participant(env).last_committed(pipeline)

    def diagnose(self, disagreement: Disagreement, env: Environment) -> Corrupt | None:
        return self._participant(env).diagnose(disagreement)

    def has_lost_rows(self, receipt: Receipt, env: Environment) -> bool:
        return self._participant(env).has_lost_rows(receipt)

    def foreign_changes(self, since: Receipt, pipeline: str, told: Collection[str], env: Environment) -> list[str]:
        return self._participant(env).foreign_changes(since, pipeline, told)

    def maintain(self, pipeline: str, epoch: int, env: Environment) -> JsonDict:
        return self._participant(env).maintain(pipeline, epoch)

    def _participant(self, env: Environment) -> DeltaParticipant:
        # Imported here: a DAG file, parsed in every task, needs only the sink's description.
        from airflow_epochs.sinks.delta.participant import DeltaParticipant

        return DeltaParticipant(self, env)
