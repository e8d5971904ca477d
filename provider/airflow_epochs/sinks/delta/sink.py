"""The Delta sink: it brings an epoch's rows into a table exactly once.

Spark stages the rows in a private Delta table *inside* the target's folder, and the vote checks them. To commit an
append, the sink adds the staged files to the target where they are, in one log entry together with the marker. Upserts
and overwrites are one Spark transaction that carries the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow_epochs import codes
from airflow_epochs.config import require_name
from airflow_epochs.errors import BadArgument, Refused
from airflow_epochs.names import call_of, is_template, normalised, resolved, settings
from airflow_epochs.sinks.delta.modes import Mode
from airflow_epochs.sinks.locations import require_usable
from airflow_epochs.spark.driver.delta.layout import (
    CODECS,
    DEFAULT,
    FILE_BYTES_MAX,
    FILE_BYTES_MIN,
    MB,
    FileLayout,
    file_bytes,
)

if TYPE_CHECKING:
    from airflow_epochs.contracts import Dataset, Disagreement, Environment, LastEpoch, Row, SinkAttempt, StagedSample
    from airflow_epochs.delta.shape import TableShape
    from airflow_epochs.errors import Corrupt
    from airflow_epochs.model import (
        JsonDict,
        Marker,
        Receipt,
        RestorePoint,
        Staged,
        StagedClaim,
        TransactionId,
        Vote,
    )
    from airflow_epochs.sinks.delta.participant import DeltaParticipant
    from airflow_epochs.spark.driver.delta.plans import DeltaStaging

FILE_SIZE = f"{DEFAULT.file_bytes // MB} MB"
_COMMITTERS = (None, "deltalake", "spark")
_CATALOG_NAME = re.compile(r"[A-Za-z0-9_]\w*(\.\w+){1,2}")


class DeltaSink:
    """Writes rows into a Delta table, exactly once per epoch.

    Args:
        name: The sink's name in the pipeline. The transform returns the sink's rows under it.
        table: An absolute path, a URL (``file://``, ``s3://`` or another object store), or ``catalog.schema.table``.
            A table at a path or URL that does not exist is created by the first commit.
        partition_by: Partition columns for a table that the sink creates. An existing table must have the same.
        mode: ``append`` adds rows; ``upsert`` keeps the newest row per key; ``merge`` runs your own clauses;
            ``overwrite`` replaces all rows; ``overwrite_partitions`` replaces the rows of the partitions that the
            epoch has rows for. Spark commits every mode but ``append``.
        keys: For ``upsert`` and ``merge``: the columns that identify a row. They must not be NULL.
        sequence_by: For ``upsert``: of two rows with one key, the one with the larger value in this column is newer.
            Without it, a key may appear once per epoch, and the row of the later epoch is newer.
        delete_when: For ``upsert``: a SQL condition on a staged row. If a key's newest row meets it, the key is
            deleted. The condition must not depend on the time.
        merge: For ``merge``: the clauses of MERGE from the first WHEN on. ``t`` is the table, ``s`` a staged row.
        on: For ``merge``: a condition besides the equality of the keys, for example one that prunes partitions.
        schema_evolution: ``add_columns`` adds columns that the table lacks. By default such a column is a VOTE_ABORT.
        empty: For ``overwrite``: whether an epoch without rows leaves the table alone (``keep``) or empties it
            (``truncate``).
        replaces_others: For ``overwrite`` and ``overwrite_partitions``: whether the sink may replace rows that other
            pipelines have written since its own last epoch. By default such rows are a VOTE_ABORT.
        commit: ``deltalake`` commits metadata only, in milliseconds; ``spark`` writes the rows a second time. By
            default deltalake commits, and Spark for catalog names and for tables that deltalake refuses. Use ``spark``
            if others write or optimize the table through Spark.
        storage_conn_id: The connection with the credentials of the table's store. By default the worker's environment
            provides them.
        properties: Table properties for a table that the sink creates.
        compact_every: Compact small files after this many epochs, and sooner if many have come; 0: never.
        checkpoint_every: Checkpoint the table's log after this many versions; 0: never.
        on_foreign_change: What ``open`` does if others have removed whole epochs' rows (RESTORE to an earlier version,
            CREATE OR REPLACE, overwrite): ``warn`` in log, ledger and XCom, or ``stop``.
        target_file_size: How large the table's files should become: bytes, or text such as ``"128 MB"``. The table's
            own ``delta.targetFileSize`` overrides it.
        compression: ``zstd``, ``snappy``, ``gzip``, ``lz4_raw`` or ``uncompressed``. The table's own
            ``delta.parquet.compression.codec`` overrides it.
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
        target_file_size: int | str = FILE_SIZE,
        compression: str = DEFAULT.codec,
    ) -> None:
        self.name = require_name("sink", name)
        try:
            _require_partition_columns(partition_by)
            _require_one_of("commit", commit, _COMMITTERS)
            _require_count("compact_every", compact_every)
            _require_count("checkpoint_every", checkpoint_every)
            _require_one_of("on_foreign_change", on_foreign_change, ("warn", "stop"))
            _require_one_of("compression", compression, CODECS)
            self.layout = FileLayout(file_bytes=_required_file_bytes(target_file_size), codec=compression)
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
            self.commit_by = self.how.require_committer(commit, settings(properties))
        except BadArgument as error:
            raise BadArgument(f"Sink {name!r}: {error.what}", code=codes.DELTA_SINK_ARGUMENT) from None
        self.table = table
        self.partition_by = list(partition_by)
        self.storage_conn_id = storage_conn_id
        self.properties = settings(properties)
        self.compact_every = compact_every
        self.checkpoint_every = checkpoint_every
        self.on_foreign_change = on_foreign_change
        self.target_file_size = target_file_size

    def __repr__(self) -> str:
        return call_of(
            "DeltaSink",
            self.name,
            self.table,
            mode=self.how.mode,
            keys=list(self.how.keys),
            partition_by=self.partition_by,
            commit=self.commit_by,
            storage_conn_id=self.storage_conn_id,
        )

    def asset_uri(self, pipeline: str) -> str:
        """The table's URL; for a catalog table or a template, ``epochs://<pipeline>/<sink>``."""
        target = normalised(self.table.strip())
        if "{{" in target or _CATALOG_NAME.fullmatch(target):
            return f"epochs://{pipeline}/{self.name}"
        return f"file://{quote(target)}" if target.startswith("/") else target

    def destination(self) -> str | None:
        """The table with symbolic links resolved; None while it is a template.

        Raises:
            Refused: ``table`` is neither an absolute path, nor a URL, nor a catalog name, or its URL is not usable.
        """
        if is_template(self.table):
            return None
        target = self.target
        require_usable("table", self.table.strip(), self.name)
        return resolved(target)

    def table_of(self, attempt: SinkAttempt, place: str, env: Environment) -> str:
        """The table's location: no two tables have the same one."""
        return self.folder_of(place)

    def folder_of(self, place: str) -> str:
        """The table's location, which contains all its staging places."""
        return resolved(_table_around(place))

    def tables_around(self, place: str, env: Environment) -> Iterator[tuple[str, str]]:
        """Folders that have a log, from the table's own up to the root of its disk or bucket."""
        return self._participant(env).tables_around(_table_around(place))

    def spec(self) -> JsonDict:
        """The sink's options, as the ledger records them."""
        return {
            "kind": "delta",
            "name": self.name,
            "table": self.target,
            "partition_by": list(self.partition_by),
            **self.how.spec(),
            "commit": self.commit_by,
            "storage_conn_id": self.storage_conn_id,
            "properties": settings(self.properties),
            "compact_every": self.compact_every,
            "checkpoint_every": self.checkpoint_every,
            **({} if self.on_foreign_change == "warn" else {"on_foreign_change": self.on_foreign_change}),
            **({} if self.target_file_size == FILE_SIZE else {"target_file_size": self.target_file_size}),
            **({} if self.layout.codec == DEFAULT.codec else {"compression": self.layout.codec}),
        }

    @classmethod
    def from_spec(cls, spec: JsonDict) -> DeltaSink:
        """The sink that ``spec`` describes. It is checked like a new one."""
        return cls(**{key: value for key, value in spec.items() if key != "kind"})

    @property
    def target(self) -> str:
        """The table in its normal spelling, so that equal tables compare equal.

        Raises:
            Refused: ``table`` is neither an absolute path, nor a URL, nor a catalog name.
        """
        table = normalised(self.table.strip())
        if table.startswith("/") or "://" in table or _CATALOG_NAME.fullmatch(table):
            return table
        raise Refused(
            f"`table` of the sink is {self.table!r}, which is neither an absolute path, nor a URL, nor the name of a "
            "table in a catalog.",
            code=codes.SINK_MISCONFIGURED,
            remedy="Give `table` an absolute path, a URL such as s3://bucket/folder, or catalog.schema.table.",
            sink=self.name,
        )

    @property
    def in_catalog(self) -> bool:
        """Whether ``table`` is a catalog name rather than a path or URL."""
        return "/" not in self.target

    # -- what it does in an epoch --------------------------------------------------------------------------------

    def place(self, attempt: SinkAttempt, try_id: str, env: Environment) -> str:
        """The try's folder inside the table. It is visible: VACUUM ignores hidden folders."""
        return self._participant(env).place(attempt, try_id)

    def plan_stage(self, attempt: SinkAttempt, try_id: str, env: Environment) -> JsonDict:
        """Describe the staging table to Spark. If deltalake commits, also write that table's version 0."""
        return self.plan_stage_at(attempt, self.place(attempt, try_id, env), env)

    def plan_stage_at(self, attempt: SinkAttempt, place: str, env: Environment) -> JsonDict:
        """Do what ``plan_stage`` does, for a place that ``place`` has made: the target is looked at once."""
        return self._participant(env).plan_stage_at(attempt, place)

    def staging(self, append: DeltaStaging, attempt: SinkAttempt) -> DeltaStaging:
        """Spark's plan for staging, made from ``append``, the plan of a plain append."""
        from airflow_epochs.spark.driver.delta.plans import DeltaChangeStaging

        return append if self.how.is_plain_append else DeltaChangeStaging.of(append, self.how.plan())

    def replaces_by(self) -> tuple[str, ...] | None:
        """The keys of an upsert, with ``sequence_by``; None for the modes that write each epoch anew."""
        return self.how.replaces_by()

    def left_if_waived(self) -> str | None:
        """What a waived commit may leave behind: the notes of deletions, which it makes before its MERGE."""
        if not self.how.notes_deletions:
            return None
        return (
            f"If a commit of the epoch has begun, the keys that it deletes may be noted beside {self.table} already: "
            "later rows that are older than these deletions would be dropped. docs/delta.md, 'Notes of an epoch that "
            "was waived', says how to see that, and how to take the notes back."
        )

    def adds_columns_to(self, shape: TableShape | None) -> bool:
        """Whether the rows have columns that the table lacks, and the sink's own commit adds these."""
        return False

    def user_metadata(self, attempt: SinkAttempt) -> JsonDict:
        """What the staging table's commit says of the attempt besides what it says for every sink."""
        return {"restore": asdict(attempt.restore)} if attempt.restore else {}

    def vote(self, attempt: SinkAttempt, claim: StagedClaim, env: Environment) -> Vote:
        """Check the staged files, the target and its store, and fsync the files on a local disk."""
        return self._participant(env).vote(attempt, claim)

    def commit(self, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
        """Commit the staged files by metadata alone if the table still allows it, else through Spark."""
        return self._participant(env).commit(attempt, staged)

    def is_own_place(self, attempt: SinkAttempt, place: str, env: Environment) -> bool:
        """Compare the place with the table's location; of a catalog table, only the part below that."""
        return self._participant(env).root_of(place, attempt) is not None

    def has_leftovers(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> bool:
        """Whether files are left at the place; at a published place, whether its log is."""
        return self._participant(env).has_leftovers(attempt, place, published=published)

    def discard(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> None:
        """Delete the place. Files that a readable version of the table refers to are kept."""
        self._participant(env).discard(attempt, place, published=published)

    def require_ready(self, pipeline: str, previous: TransactionId | None, env: Environment) -> None:
        """Look at partitions, key columns, features and properties of a table that deltalake can open."""
        self._participant(env).require_ready(pipeline)

    def require_writable(self, env: Environment) -> None:
        """Write a probe into the table's folder, and remove it. For a catalog table, Spark says where that is."""
        self._participant(env).require_writable()

    def fit(self, pipeline: str, env: Environment) -> JsonDict:
        """What the table takes of a row."""
        from airflow_epochs.spark.driver.wire import as_json

        return as_json(self._participant(env).fit(pipeline))

    def rows_of(self, receipt: Receipt, pipeline: str, env: Environment) -> Iterator[Row]:
        """The rows of the files that the commit's version has added."""
        from airflow_epochs.sinks.delta import told_rows

        return told_rows.of_commit(self._participant(env), receipt)

    def rows_staged(self, attempt: SinkAttempt, place: str, env: Environment) -> Iterator[Row]:
        """The rows of the staged files."""
        from airflow_epochs.sinks.delta import told_rows

        return told_rows.of_place(self._participant(env), attempt, place)

    def require_restorable(self, point: RestorePoint, pipeline: str, env: Environment) -> None:
        """Raise Refused unless the log still tells the version's files, all are there, and no other pipeline wrote."""
        self._participant(env).require_restorable(point, pipeline)

    def sample(self, attempt: SinkAttempt, place: str, most: int, env: Environment) -> StagedSample:
        """The staged rows, as Spark wrote them."""
        return self._participant(env).sample(attempt, place, most)

    def dataset(self, receipt: Receipt, env: Environment) -> Dataset:
        """The table's location. For a catalog table, it follows from the place of the staged rows."""
        from airflow_epochs.contracts import Dataset

        if not self.in_catalog:
            return Dataset.at(self.target)
        if receipt.place:
            return Dataset.at(_table_around(receipt.place))
        return Dataset.at(self.asset_uri(receipt.txn_id.pipeline))

    def may_hold(self, receipt: Receipt, env: Environment) -> bool:
        """Always True: rows and marker are in one log, so the marker alone tells."""
        return True

    def last_committed(self, pipeline: str, env: Environment) -> Marker | None:
        """The marker in the table's log; for a catalog table, Spark is asked."""
        return self._participant(env).last_committed(pipeline)

    def last_epoch(self, pipeline: str, env: Environment) -> LastEpoch | None:
        """What the commit of the marker's epoch says, in the table's log; for a catalog table, Spark is asked."""
        return self._participant(env).last_epoch(pipeline)

    def is_taken_back(self, pipeline: str, env: Environment) -> bool:
        """Whether the table is empty, or a RESTORE has led it back to before the marker's commit."""
        return self._participant(env).is_taken_back(pipeline)

    def diagnose(self, disagreement: Disagreement, env: Environment) -> Corrupt | None:
        """Explain the marker from the table's identity, history and log."""
        return self._participant(env).diagnose(disagreement)

    def how_to_vacate(self, first: TransactionId, env: Environment) -> str | None:
        """Move the log away, if it has nothing but the commit of ``first``."""
        return self._participant(env).how_to_vacate(first)

    def has_lost_rows(self, receipt: Receipt, env: Environment) -> bool:
        """Whether Parquet files of that commit are missing. Always False for a catalog table."""
        return self._participant(env).has_lost_rows(receipt)

    def foreign_changes(self, since: Receipt, pipeline: str, told: Collection[str], env: Environment) -> list[str]:
        """RESTORE, REPLACE or overwrite by others since that commit, found in the table's log."""
        return self._participant(env).foreign_changes(since, pipeline, told)

    def maintain(self, pipeline: str, epoch: int, env: Environment) -> JsonDict:
        """Compact small files and checkpoint the log, as ``compact_every`` and ``checkpoint_every`` say."""
        return self._participant(env).maintain(pipeline, epoch)

    def fence(self, pipeline: str, over: Collection[TransactionId | None], by: TransactionId, env: Environment) -> bool:
        """Sign a commit without rows as ``by``. A table that does not exist gets no commit."""
        return self._participant(env).fence(pipeline, over, by)

    def _participant(self, env: Environment) -> DeltaParticipant:
        # Imported here: every task parses its DAG file, which needs only the sink's options.
        from airflow_epochs.sinks.delta.participant import DeltaParticipant

        return DeltaParticipant(self, env)


def _table_around(place: str) -> str:
    """The location of the table that has this staging place."""
    return place.rsplit("/", 3)[0]


def _require_partition_columns(value: Sequence[str]) -> None:
    if isinstance(value, str):
        raise BadArgument(
            f"`partition_by` is the text {value!r}. It must be a list of columns, like [{value!r}].",
            code=codes.DELTA_SINK_ARGUMENT,
        )


def _require_one_of(name: str, value: str | None, allowed: Sequence[str | None]) -> None:
    if value not in allowed:
        raise BadArgument(
            f"`{name}` is {value!r}. It must be {' or '.join(map(repr, allowed))}.", code=codes.DELTA_SINK_ARGUMENT
        )


def _required_file_bytes(size: int | str) -> int:
    told = file_bytes(size)
    if told is None:
        raise BadArgument(
            f"`target_file_size` is {size!r}. It must be a number of bytes, or text such as {FILE_SIZE!r}, from "
            f"{FILE_BYTES_MIN // MB} MB to {FILE_BYTES_MAX // MB} MB.",
            code=codes.DELTA_SINK_ARGUMENT,
        )
    return told


def _require_count(name: str, value: int) -> None:
    if value < 0:
        raise BadArgument(f"`{name}` is {value}. It must be 0 or larger.", code=codes.DELTA_SINK_ARGUMENT)
