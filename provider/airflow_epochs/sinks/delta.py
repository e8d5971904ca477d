"""The Delta sink: rows are appended to a table exactly once per epoch, by a commit that only moves metadata.

Spark stages the rows in a private Delta table *inside* the target's folder. The vote checks it. The commit adds the
staged files to the target where they lie, in one log entry together with the marker.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from urllib.parse import quote

from airflow_epochs.environment import Environment
from airflow_epochs.errors import NotApplied, OutcomeUnknown, Refused
from airflow_epochs.model import JsonDict, Marker, Receipt, Staged, StagedClaim, Vote, VoteKind, validated_name
from airflow_epochs.sinks import delta_checks, delta_maintenance, delta_publish, delta_spark
from airflow_epochs.sinks.base import SinkAttempt
from airflow_epochs.sinks.delta_log import NOTE, Staging, log_entry, read_staging, rows_of
from airflow_epochs.sinks.delta_shape import TableShape
from airflow_epochs.sinks.delta_table import STAGING_FOLDER, App, CannotOpen, FoundCommit, Where
from airflow_epochs.sinks.delta_target import Target
from airflow_epochs.spark.delta_jobs import compact_json
from airflow_epochs.storage import normalised, storage_options

log = logging.getLogger(__name__)

DELTALAKE, SPARK = "deltalake", "spark"
_CATALOG_NAME = re.compile(r"[A-Za-z0-9_]\w*(\.\w+){1,2}")
_TRY = re.compile(r"[0-9]+-[0-9]+-[0-9a-zA-Z]+")


class DeltaSink:
    """Appends rows to a Delta table, exactly once per epoch.

    Args:
        name: The sink's name in the pipeline; the key under which the transform returns its rows.
        table: An absolute path, ``file://``, ``s3://`` (or another object store), or ``catalog.schema.table``. A table
            on a path is created by the first commit if it does not exist.
        partition_by: Partition columns of a table that is created; of one that exists they must agree.
        mode: Only ``append``.
        commit: Who commits: ``deltalake`` (metadata only: milliseconds) or ``spark`` (rows are written once more).
            Left out: deltalake, and Spark for catalog names and for tables that deltalake refuses. Where anybody else
            writes or optimizes the table through Spark, it must be ``spark``.
        storage_conn_id: Connection with the credentials of the table's store; without, the environment's count.
        properties: Table properties of a table that is created.
        compact_every: Compact small files after every so many epochs; 0: never.
        checkpoint_every: Checkpoint the table's log after every so many versions; 0: never.
    """

    template_fields: Sequence[str] = ("table", "storage_conn_id", "partition_by", "properties")

    def __init__(
        self,
        name: str,
        table: str,
        *,
        partition_by: Sequence[str] = (),
        mode: str = "append",
        commit: str | None = None,
        storage_conn_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        compact_every: int = 50,
        checkpoint_every: int = 10,
    ) -> None:
        self.name = validated_name("sink", name)
        if isinstance(partition_by, str):
            raise ValueError(f"partition_by of sink {name!r} is a list of columns, like [{partition_by!r}]")
        if mode != "append":
            raise ValueError(f"mode {mode!r} of sink {name!r} is not known: only 'append'")
        if commit not in (None, DELTALAKE, SPARK):
            raise ValueError(f"commit {commit!r} of sink {name!r} is not known: 'deltalake', 'spark' or None")
        if compact_every < 0 or checkpoint_every < 0:
            raise ValueError(f"compact_every and checkpoint_every of sink {name!r} must not be negative")
        self.table = table
        self.partition_by = list(partition_by)
        self.mode = mode
        self.commit_by = commit
        self.storage_conn_id = storage_conn_id
        self.properties = dict(properties or {})
        self.compact_every = compact_every
        self.checkpoint_every = checkpoint_every

    def __repr__(self) -> str:
        return f"DeltaSink({self.name!r}, {self.table!r})"

    def asset_uri(self, pipeline: str) -> str:
        """The table's URL; for one in a catalog, or one whose place is a template, a name of the sink."""
        target = normalised(self.table.strip())
        if "{{" in target or _CATALOG_NAME.fullmatch(target):
            return f"epochs://{pipeline}/{self.name}"
        return f"file://{quote(target)}" if target.startswith("/") else target

    def spec(self) -> JsonDict:
        return {
            "kind": "delta",
            "name": self.name,
            "table": self.target,
            "partition_by": list(self.partition_by),
            "mode": self.mode,
            "commit": self.commit_by,
            "storage_conn_id": self.storage_conn_id,
            "properties": dict(self.properties),
            "compact_every": self.compact_every,
            "checkpoint_every": self.checkpoint_every,
        }

    @classmethod
    def from_spec(cls, spec: JsonDict) -> DeltaSink:
        return cls(**{key: value for key, value in spec.items() if key != "kind"})

    @property
    def target(self) -> str:
        """The table in its one spelling: two sinks are on one table if and only if this is equal.

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
    def _in_catalog(self) -> bool:
        return "/" not in self.target

    # -- stage and vote ------------------------------------------------------------------------------------------

    def place(self, attempt: SinkAttempt, nonce: str, env: Environment) -> str:
        """In a visible folder of the table: VACUUM ignores hidden ones, and the files in them would leak."""
        return f"{self._where(env).url}/{self._folder(attempt)}/{attempt.txn.epoch}-{attempt.txn.attempt}-{nonce}"

    def plan_stage(self, attempt: SinkAttempt, nonce: str, env: Environment) -> JsonDict:
        """Describe the try to Spark; for tables of deltalake also write the staging table's version 0."""
        target = self._target(self._where(env), env)
        shape, where, app = target.opened_shape(), target.where, self._app(attempt)
        committer = self._committer(target, shape)
        self._require_partitioning(where, shape)
        place = self.place(attempt, nonce, env)
        if committer == DELTALAKE and shape is not None:
            delta_checks.require_committable(shape, where.name)
            _write_version_0(where, place, shape)
        note: JsonDict = {
            "app": app.epoch,
            "txn": str(attempt.txn),
            "committer": committer,
            "table_id": shape.id if shape else None,
            "anchor": target.anchor(app),
        }
        return {
            "kind": "delta",
            "committer": committer,
            "place": place,
            "target": self.target,
            "app": app.epoch,
            "epoch": attempt.txn.epoch,
            "has_version_0": committer == DELTALAKE and shape is not None,
            "schema": shape.schema if shape else None,
            "partition_by": list(shape.partition_by) if shape else list(self.partition_by),
            "properties": dict(self.properties),
            "user_metadata": compact_json({NOTE: note}),
        }

    def _committer(self, target: Target, shape: TableShape | None) -> str:
        if self.commit_by is not None:
            return self.commit_by
        if self._in_catalog:
            return SPARK
        reason = target.problem or ", ".join(shape.refused_features if shape else [])
        if reason:
            log.warning(
                "%s is committed through Spark, which writes its rows twice: deltalake does not support %s. "
                'Give the sink commit="spark" to say that you know.',
                target.where.name,
                reason,
            )
        return SPARK if reason else DELTALAKE

    def _require_partitioning(self, where: Where, shape: TableShape | None) -> None:
        if shape and self.partition_by and list(shape.partition_by) != list(self.partition_by):
            raise Refused(
                f"{where.name} is partitioned by {list(shape.partition_by)}, the sink says {list(self.partition_by)}.",
                remedy="Correct partition_by, or leave it out for a table that exists.",
                sink=self.name,
            )

    def vote(self, attempt: SinkAttempt, claim: StagedClaim, env: Environment) -> Vote:
        """Look at the staged rows and at the target; a check that fails is a VOTE_ABORT with its reason."""
        if claim.problem:
            return Vote(vote=VoteKind.VOTE_ABORT, reason=claim.problem)
        try:
            staged = self._checked(attempt, claim.place, env)
        except Refused as refused:
            return Vote(vote=VoteKind.VOTE_ABORT, reason=f"{refused.what} What to do: {refused.remedy}")
        return Vote(vote=VoteKind.VOTE_COMMIT, staged=staged)

    def _checked(self, attempt: SinkAttempt, place: str, env: Environment) -> Staged:
        where = self._where_of(place, attempt, env)
        files, relative = where.files, where.relative(place)
        staging = delta_checks.require_own(read_staging(files, relative), attempt, self._app(attempt).epoch, relative)
        delta_checks.require_sound_actions(staging)
        delta_checks.require_files(files, staging)
        self._require_promisable(self._target(where, env), attempt, staging)
        delta_checks.require_store(files, self._folder(attempt))
        files.sync([*staging.log_files, *(f"{staging.place}/{file.path}" for file in staging.files)])
        return _staged(place, staging)

    def _require_promisable(self, target: Target, attempt: SinkAttempt, staging: Staging) -> None:
        """The checks of commit on the target, made early."""
        name, shape = target.where.name, target.shape()
        delta_checks.require_same_table(shape, staging, name)
        if staging.note["committer"] == SPARK:
            delta_checks.require_insertable(shape, staging, name)
        else:
            delta_checks.require_addable(shape, staging, name)
        if shape is not None:
            delta_checks.require_lasting_marker(shape, name)
        delta_checks.require_marker(target.marker(self._app(attempt)), attempt.previous, name)

    # -- commit --------------------------------------------------------------------------------------------------

    def commit(self, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
        """Show the epoch: by metadata only if staged for it and the table still allows it, else through Spark."""
        try:
            return self._committed(attempt, staged, env)
        except Refused:
            raise
        except NotApplied as error:
            raise OutcomeUnknown(
                f"The sink cannot be asked now: {error.what}", remedy=error.remedy, sink=self.name
            ) from error

    def _committed(self, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
        where = self._where_of(staged.place, attempt, env)
        staging = _staging_left(where, staged)
        if staging is None or staging.note["committer"] == SPARK:
            return self._through_spark(where, attempt, staged, staging, env)
        this = delta_publish.Publication(
            where=where,
            app=self._app(attempt),
            txn=attempt.txn,
            previous=attempt.previous,
            staging=staging,
            staged=staged,
            properties=self.properties,
        )
        try:
            found = delta_publish.publish(this, env)
        except (delta_publish.Altered, CannotOpen) as altered:
            log.warning("%s was altered after the decision (%s): inserting through Spark", where.name, altered)
            return self._through_spark(where, attempt, staged, staging, env)
        return _receipt(attempt, self, staged, found)

    def _through_spark(
        self, where: Where, attempt: SinkAttempt, staged: Staged, staging: Staging | None, env: Environment
    ) -> Receipt:
        """Look first: after a commit, nothing of the staging table need be left."""
        app = self._app(attempt)
        found = self._target(where, env).commit_of(attempt.txn, app)
        if found is None:
            this = delta_spark.Insertion(
                target=self.target,
                place=staged.place,
                app=app,
                txn=attempt.txn,
                previous=attempt.previous,
                staging=delta_publish.require_promised(where, staging, staged),
                properties=self.properties,
            )
            report = delta_spark.insert(this, env)
            # Where deltalake can read the log, a repeat will read the receipt there: so read it there now.
            found = self._target(where, env).commit_of(attempt.txn, app) or delta_spark.found_in(report)
        return _receipt(attempt, self, staged, delta_publish.made_durable(found, where.files))

    # -- clean-up and upkeep -------------------------------------------------------------------------------------

    def discard(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> None:
        """Delete a try's place. Published by metadata only, its Parquet files are the table's: only its log goes."""
        where = self._where_of(place, attempt, env)
        relative = where.relative(place)
        if published and not self._copied(where, attempt, relative, env):
            where.files.delete(f"{relative}/_delta_log")
        else:
            where.files.delete(relative)

    def _copied(self, where: Where, attempt: SinkAttempt, relative: str, env: Environment) -> bool:
        """Whether the target is known not to use the files at this place: there are none, or Spark copied the rows."""
        staging = read_staging(where.files, relative)
        if staging is None:
            return False
        if not staging.files or staging.note["committer"] == SPARK:
            return True
        found = self._target(where, env).commit_of(attempt.txn, self._app(attempt))
        return bool(found and found.note and found.note.get("committer") == SPARK)

    def last_committed(self, pipeline: str, env: Environment) -> Marker | None:
        """The marker in the table now."""
        app = App.of(pipeline, self.name)
        if self._in_catalog:
            return delta_spark.marker(self.target, app, env)
        return self._target(self._where(env), env).marker(app)

    def maintain(self, pipeline: str, epoch: int, env: Environment) -> JsonDict:
        """Compact small files and checkpoint the log where it is due."""
        compact = self.compact_every > 0 and epoch % self.compact_every == 0
        if self._in_catalog or self.commit_by == SPARK:
            return delta_spark.optimize(self.target, env) if compact else {}
        where = self._where(env)
        target = self._target(where, env)
        shape = target.opened_shape()
        if target.problem or (shape and shape.refused_features):
            return delta_spark.optimize(self.target, env) if compact else {}
        if target.table is None:
            return {}
        done = delta_maintenance.compact(target.table) if compact else {}
        if self.checkpoint_every:
            done |= delta_maintenance.checkpoint_if_due(target.table, where, self.checkpoint_every)
        return done

    # -- where ---------------------------------------------------------------------------------------------------

    def _app(self, attempt: SinkAttempt) -> App:
        return App.of(attempt.txn.pipeline, self.name)

    def _folder(self, attempt: SinkAttempt) -> str:
        return f"{STAGING_FOLDER}/{attempt.ledger_id}.{self.name}"

    def _target(self, where: Where, env: Environment) -> Target:
        return Target.seen(where, env, deltalake_only=self.commit_by == DELTALAKE)

    def _options(self, env: Environment) -> dict[str, str]:
        return storage_options(env.connection(self.storage_conn_id) if self.storage_conn_id else None)

    def _where(self, env: Environment) -> Where:
        url = self.target
        if self._in_catalog:
            about = delta_spark.describe(self.target, env)
            delta_spark.require_table(about, self.target)
            url = normalised(about["location"])
        return Where(self.target, url, self._options(env))

    def _where_of(self, place: str, attempt: SinkAttempt, env: Environment) -> Where:
        """The table's place, from one of its staging places.

        Raises:
            Refused: ``place`` is not in this sink's own folder of this table.
        """
        root, _, rest = place.partition(f"/{self._folder(attempt)}/")
        if not _TRY.fullmatch(rest) or not (self._in_catalog or root == self.target):
            raise Refused(
                f"{place!r} is no staging place of sink {self.name!r} in {self.target}.",
                remedy="Finish the epoch with the table it was opened with: was the sink pointed elsewhere since?",
                sink=self.name,
            )
        return Where(self.target, root, self._options(env))


def _write_version_0(where: Where, place: str, shape: TableShape) -> None:
    now = delta_publish.now_ms()
    info = {"timestamp": now, "operation": "CREATE TABLE", "operationParameters": {}}
    actions = [{"commitInfo": info}, *shape.for_staging().actions(str(uuid.uuid4()), now)]
    # False: this try was planned before, and Spark may have appended already.
    where.files.write_new(log_entry(0, where.relative(place)), "\n".join(map(compact_json, actions)).encode())


def _staging_left(where: Where, staged: Staged) -> Staging | None:
    """The staging table; None if there is no usable one left, as after clean-up."""
    try:
        return read_staging(where.files, where.relative(staged.place))
    except Refused as refused:
        log.warning("%s", refused.what)
        return None


def _staged(place: str, staging: Staging) -> Staged:
    return Staged(
        place=place,
        version=staging.version,
        files=len(staging.files),
        rows=sum(rows_of(file) for file in staging.files),
        bytes=sum(file.size for file in staging.files),
        digest=staging.digest,
    )


def _receipt(attempt: SinkAttempt, sink: DeltaSink, staged: Staged, found: FoundCommit) -> Receipt:
    """Only from what the log and the decision say, so that a repeat returns the same."""
    at = datetime.fromtimestamp(found.timestamp_ms / 1000, timezone.utc) if found.timestamp_ms else None
    return Receipt(
        txn_id=str(attempt.txn),
        sink=sink.name,
        rows=staged.rows,
        files=staged.files,
        bytes=staged.bytes,
        version=found.version,
        committed_at=at.isoformat() if at else "unknown",
        detail={"table": sink.target, "committer": (found.note or {}).get("committer", DELTALAKE)},
    )
