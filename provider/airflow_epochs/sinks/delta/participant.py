"""What a Delta sink does in an epoch: the participant of the two-phase commit that ``DeltaSink`` describes."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from airflow_epochs import secrecy
from airflow_epochs.contracts import Disagreement, Environment, SinkAttempt
from airflow_epochs.delta.log import NOTE, entry_of, log_entry, rows_of
from airflow_epochs.delta.shape import TableShape
from airflow_epochs.delta.table import (
    NOTES_FOLDER,
    PUTS_BACK,
    STAGING_FOLDER,
    App,
    CannotOpen,
    FoundCommit,
    TableLocation,
)
from airflow_epochs.errors import Corrupt, Refused, RowsGone
from airflow_epochs.model import JsonDict, Marker, Receipt, Staged, StagedClaim, Vote
from airflow_epochs.names import normalised
from airflow_epochs.sinks.delta import (
    checks,
    compaction,
    flush,
    log_checkpoint,
    lost_files,
    other_pipelines,
    publish,
    references,
    spark_commit,
)
from airflow_epochs.sinks.delta.diagnosis import Suspect
from airflow_epochs.sinks.delta.due import is_due
from airflow_epochs.sinks.delta.foreign_changes import ForeignChange, foreign_changes
from airflow_epochs.sinks.delta.modes import ADD_COLUMNS, MERGE
from airflow_epochs.sinks.delta.target import Target
from airflow_epochs.sinks.participant import unknown_without_answer, vote_on
from airflow_epochs.spark.driver.delta.jobs import OPTIMIZE_WRITE, compact_json
from airflow_epochs.staged import checks as staged_checks
from airflow_epochs.staged import owner as staging_owner
from airflow_epochs.staged.digest import staged_of
from airflow_epochs.staged.promised import require_promised, staging_left
from airflow_epochs.staged.staging import Staging, read_staging
from airflow_epochs.storage.files import is_local
from airflow_epochs.storage.options import storage_options

if TYPE_CHECKING:
    from airflow_epochs.sinks.delta.sink import DeltaSink

log = secrecy.logger(__name__)

DELTALAKE, SPARK = "deltalake", "spark"
_NONCE = re.compile(r"[0-9a-zA-Z]+")


@dataclass(frozen=True)
class DeltaParticipant:
    """The operations of ``contracts.Sink`` for one Delta sink, in one task's environment."""

    sink: DeltaSink
    env: Environment

    # -- stage and vote ------------------------------------------------------------------------------------------

    def place(self, attempt: SinkAttempt, nonce: str) -> str:
        """In a visible folder of the table: VACUUM ignores hidden ones, and the files in them would leak."""
        return f"{self._where().url}/{self._folder(attempt)}/{attempt.txn.epoch}-{attempt.txn.attempt}-{nonce}"

    def plan_stage(self, attempt: SinkAttempt, nonce: str) -> JsonDict:
        """Describe the try to Spark; for tables of deltalake also write the staging table's version 0."""
        target = self._target(self._where())
        shape, location, app = target.opened_shape(), target.location, self._app(attempt)
        committer = self._committer(target, shape)
        self._require_partitioning(location, shape)
        place = self.place(attempt, nonce)
        staging_owner.sign(location.files, self._folder(attempt), attempt, self.sink.name)
        if committer == DELTALAKE and shape is not None:
            checks.require_committable(shape, location.name)
            _write_version_0(location, place, shape)
        promised = shape is not None and not self._has_created(target, attempt)
        note: JsonDict = {
            "app": app.epoch,
            "txn": str(attempt.txn),
            "committer": committer,
            "table_id": shape.id if shape and promised else None,
            "anchor": target.log_position(app),
        }
        return {
            "kind": "delta",
            "committer": committer,
            "place": place,
            "target": self.sink.target,
            "app": app.epoch,
            "epoch": attempt.txn.epoch,
            "has_version_0": committer == DELTALAKE and shape is not None,
            "schema": shape.schema if shape else None,
            "partition_by": list(shape.partition_by) if shape else list(self.sink.partition_by),
            "properties": dict(self.sink.properties),
            "optimize_write": _optimize_write(shape.properties if shape else self.sink.properties),
            "user_metadata": compact_json({NOTE: note}),
            **({} if self.sink.how.is_plain_append else {"kind": "delta_change", "how": self.sink.how.plan()}),
        }

    def _has_created(self, target: Target, attempt: SinkAttempt) -> bool:
        """Whether this very transaction has created the table, so that its rows were staged for none."""
        if attempt.previous is not None or target.table is None:
            return False
        found = target.commit_of(attempt.txn, self._app(attempt))
        return found is not None and (found.note or {}).get(PUTS_BACK, found.version) == 0

    def _committer(self, target: Target, shape: TableShape | None) -> str:
        if self.sink.commit_by is not None:
            return self.sink.commit_by
        if self.sink.in_catalog:
            return SPARK
        if target.problem:
            checks.require_not_spoilt(target.location)
        reason = target.problem or ", ".join(shape.refused_features if shape else [])
        if reason:
            log.warning(
                "%s is committed through Spark, which writes its rows twice: deltalake does not support %s. "
                'Give the sink commit="spark" to say that you know.',
                target.location.name,
                reason,
            )
        return SPARK if reason else DELTALAKE

    def _require_partitioning(self, location: TableLocation, shape: TableShape | None) -> None:
        wanted = list(self.sink.partition_by)
        if shape and wanted and list(shape.partition_by) != wanted:
            raise Refused(
                f"{location.name} is partitioned by {list(shape.partition_by)}, the sink says {wanted}.",
                remedy="Correct partition_by, or leave it out for a table that exists.",
                sink=self.sink.name,
            )

    def vote(self, attempt: SinkAttempt, claim: StagedClaim) -> Vote:
        """Look at the staged rows and at the target; a check that fails is a VOTE_ABORT with its reason."""
        return vote_on(claim, partial(self._checked, attempt, claim))

    def _checked(self, attempt: SinkAttempt, claim: StagedClaim) -> Staged:
        place = claim.place
        location = self._where_of(place, attempt)
        files, relative = location.files, location.relative(place)
        staging = staged_checks.require_own(read_staging(files, relative), attempt, self._app(attempt).epoch, relative)
        staged_checks.require_sound_actions(staging)
        staged_checks.require_rows(staging)
        staged_checks.require_files(files, staging)
        self._require_promisable(self._target(location), attempt, staging)
        checks.require_store(files, self._folder(attempt))
        files.sync([*staging.log_files, *(f"{staging.place}/{file.path}" for file in staging.files)])
        return staged_of(claim, staging)

    def _require_promisable(self, target: Target, attempt: SinkAttempt, staging: Staging) -> None:
        """The checks of commit on the target, made early."""
        name, shape, how = target.location.name, target.shape(), self.sink.how
        checks.require_same_table(shape, staging, name)
        if shape is None or how.schema_evolution == ADD_COLUMNS:
            checks.require_readable(staging.shape, name)
        if staging.note["committer"] == SPARK:
            checks.require_known(shape, staging, name)
            if how.mode != MERGE:  # whose rows need not look like the table's
                add_columns = how.schema_evolution == ADD_COLUMNS
                checks.require_insertable(shape, staging, name, add_columns=add_columns)
            checks.require_changeable(how, shape or staging.shape, staging, name)
            checks.require_keys(how, staging)
        else:
            checks.require_addable(shape, staging, name)
        checks.require_lasting_marker(shape or staging.shape.with_properties(self.sink.properties), name)
        found = target.marker(self._app(attempt))
        if found != Marker.of(attempt.txn):  # which it shows if rows of it were lost and are to be put back
            checks.require_marker(found, attempt.previous, name)
        self._require_notes(target, attempt)
        if shape and not attempt.promised and how.spares_others(sum(map(rows_of, staging.files))):
            touches = other_pipelines.touched_by(how, shape, staging)
            other_pipelines.require_none(target.location, self._app(attempt), target.version(), touches, how)

    # -- commit --------------------------------------------------------------------------------------------------

    def commit(self, attempt: SinkAttempt, staged: Staged) -> Receipt:
        """Show the epoch: by metadata only if staged for it and the table still allows it, else through Spark."""
        with unknown_without_answer(self.sink.name):
            return self._committed(attempt, staged)

    def _committed(self, attempt: SinkAttempt, staged: Staged) -> Receipt:
        location = self._where_of(staged.place, attempt)
        staging = staging_left(location, staged)
        if staging is None or staging.note["committer"] == SPARK:
            return self._through_spark(location, attempt, staged, staging)
        this = publish.TableCommit(
            location=location,
            app=self._app(attempt),
            txn=attempt.txn,
            previous=attempt.previous,
            staging=staging,
            staged=staged,
            properties=self.sink.properties,
            ends=attempt.ends,
        )
        publish.renew_if_old(this)
        try:
            found = publish.publish(this, self.env)
        except (publish.Altered, CannotOpen) as altered:
            log.warning("%s was altered after the decision (%s): inserting through Spark", location.name, altered)
            return self._through_spark(location, attempt, staged, staging)
        return self._receipt(location, attempt, staged, found)

    def _through_spark(
        self, location: TableLocation, attempt: SinkAttempt, staged: Staged, staging: Staging | None
    ) -> Receipt:
        """Look first: after a commit, nothing of the staging table need be left."""
        app, target = self._app(attempt), self._target(location)
        found = target.commit_of(attempt.txn, app)
        if found is None:
            self._require_notes_left(target, attempt)
            this = spark_commit.Insertion(
                target=self.sink.target,
                place=staged.place,
                app=app,
                txn=attempt.txn,
                previous=attempt.previous,
                staging=self._promised(target, attempt, staged, staging),
                properties=self.sink.properties,
                ends=attempt.ends,
                change=self._change(location, attempt, staged),
            )
            report = spark_commit.insert(this, self.env)
            # Where deltalake can read the log, a repeat will read the receipt there: so read it there now.
            found = self._target(location).commit_of(attempt.txn, app) or spark_commit.found_in(report)
        lost_files.require_there(location, found, app, attempt.txn)
        if found.version is not None and is_local(location.url):
            flush.flush_commit(location.files, found.version)
        return self._receipt(location, attempt, staged, found)

    def _require_notes_left(self, target: Target, attempt: SinkAttempt) -> None:
        try:
            self._require_notes(target, attempt)
        except Refused as refused:
            raise Corrupt(
                f"The rows of {attempt.txn} are not brought in. {refused.what}",
                remedy=refused.remedy,
                sink=self.sink.name,
            ) from refused

    def _require_notes(self, target: Target, attempt: SinkAttempt) -> None:
        """The notes about deleted keys are there if the sink's last commit says that there are any."""
        if attempt.previous is None or not self.sink.how.notes_deletions:
            return
        found = target.commit_of(attempt.previous, self._app(attempt))
        if name := (found.note or {}).get("deletions") if found else None:
            checks.require_notes(target.location, f"{self._notes_folder(attempt)}/{name}")

    def _promised(self, target: Target, attempt: SinkAttempt, staged: Staged, staging: Staging | None) -> Staging:
        """What the decision names. Gone, it is to be staged again unless the table shows another epoch than before.

        Of a table without our markers the caller can tell more: it has the receipt of the epoch before.
        """
        app = self._app(attempt)
        try:
            return require_promised(target.location, staging, staged, attempt.txn, app.sink)
        except RowsGone:
            if (found := target.marker(app)) is not None:
                publish.require_previous(target, app, found, attempt.previous, attempt.txn)
            raise

    def _change(self, location: TableLocation, attempt: SinkAttempt, staged: Staged) -> JsonDict | None:
        """What the commit does beside appending; None if it only appends."""
        if self.sink.how.is_plain_append:
            return None
        own = self._notes_folder(attempt)
        others = (
            set(self._notes_in(location, "")) - set(self._notes_in(location, own))
            if self.sink.how.notes_deletions
            else ()
        )
        notes = {"notes": f"{location.url}/{own}", "notes_of_others": sorted(others)}
        return {"how": self.sink.how.plan(), "rows": staged.rows, **notes}

    def _receipt(self, location: TableLocation, attempt: SinkAttempt, staged: Staged, found: FoundCommit) -> Receipt:
        """Only from what the log and the decision say, so that a repeat returns the same.

        The place is the one that the log names: another committer's, perhaps, with the same digest.
        """
        at = datetime.fromtimestamp(found.timestamp_ms / 1000, timezone.utc) if found.timestamp_ms else None
        note = found.note or {}
        return Receipt(
            txn_id=str(attempt.txn),
            sink=self.sink.name,
            rows=staged.rows,
            files=staged.files,
            bytes=staged.bytes,
            version=found.version,
            place=f"{location.url}/{note['place']}" if note.get("place") else None,
            committed_at=at.isoformat() if at else "unknown",
            detail={
                "table": self.sink.target,
                "committer": note.get("committer") or "unknown",
                **({"table_id": note["table_id"]} if note.get("table_id") else {}),
            },
        )

    # -- clean-up and upkeep -------------------------------------------------------------------------------------

    def has_leftovers(self, attempt: SinkAttempt, place: str, *, published: bool) -> bool:
        """Whether there is a file, of a published place a log, at the place."""
        location = self._where_of(place, attempt)
        relative = location.relative(place)
        left = location.files.names(relative)
        return "_delta_log" in left if published else bool(left)

    def discard(self, attempt: SinkAttempt, place: str, *, published: bool) -> None:
        """Delete a try's place. Published by metadata only, its Parquet files are the table's: only its log goes.

        Files to which the table refers are never deleted, whatever the ledger says of the place.

        Raises:
            Refused: The place is not this attempt's, or was made for another table.
            NotApplied: Whether the table refers to the files cannot be told.
        """
        if not self.has_leftovers(attempt, place, published=published):
            return
        location = self._where_of(place, attempt)
        relative = location.relative(place)
        staging_owner.require_owner(location.files, self._folder(attempt), attempt, self.sink.name)
        if published and not self._copied(location, attempt, relative):
            location.files.delete(f"{relative}/_delta_log")
            return
        self._require_made_for_it(location, attempt, relative)
        kept = references.referenced(location, self._app(attempt), attempt.txn.epoch, relative)
        if kept & location.files.sizes(relative).keys():
            log.warning(
                "%s is left alone: %s refers to its files, though the ledger says otherwise", place, location.name
            )
        else:
            location.files.delete(relative)

    def _require_made_for_it(self, location: TableLocation, attempt: SinkAttempt, relative: str) -> None:
        """What was staged there was staged by this transaction, and for the table that is there."""
        try:
            staging = read_staging(location.files, relative)
        except Refused:  # damaged, so that it says nothing; what the table refers to is kept all the same
            return
        if staging is None:
            return
        staged_checks.require_own(staging, attempt, self._app(attempt).epoch, relative)
        if staging.note["table_id"] is not None:
            checks.require_same_table(self._target(location).shape(), staging, location.name)

    def _copied(self, location: TableLocation, attempt: SinkAttempt, relative: str) -> bool:
        """Whether the target is known not to use the files at this place: there are none, or Spark copied the rows."""
        staging = read_staging(location.files, relative)
        if staging is None:
            return False
        if not staging.files or staging.note["committer"] == SPARK:
            return True
        found = self._target(location).commit_of(attempt.txn, self._app(attempt))
        return bool(found and found.note and found.note.get("committer") == SPARK)

    def last_committed(self, pipeline: str) -> Marker | None:
        """The marker in the table now."""
        app = App.of(pipeline, self.sink.name)
        if self.sink.in_catalog:
            return spark_commit.marker(self.sink.target, app, self.env)
        return self._target(self._where()).marker(app)

    def diagnose(self, seen: Disagreement) -> Corrupt:
        """Why the marker is not the expected one."""
        recorded = seen.receipt.detail if seen.receipt else {}
        app = App.of(seen.pipeline, self.sink.name)
        return Suspect(target=self._seen(), app=app, seen=seen, recorded=recorded).diagnosis()

    def _seen(self) -> Target:
        """The table as it is; one that the catalog does not have any more is none."""
        try:
            location = self._where()
        except Refused:
            return Target(TableLocation(self.sink.target, self.sink.target, {}), None, None, self.env)
        return self._target(location)

    def has_lost_rows(self, receipt: Receipt) -> bool:
        """Whether files of a commit are gone to which the table refers; of a table in a catalog nobody looks."""
        if self.sink.in_catalog or receipt.version is None:
            return False
        commit = FoundCommit(receipt.version, 0, None)
        return lost_files.loss_of(commit, self._where().files) is not None

    def foreign_changes(self, since: Receipt, pipeline: str, told: Collection[str]) -> list[str]:
        """What others have done since a commit that takes rows of epochs away, and was not told before.

        Raises:
            Corrupt: There is such a change, and the sink is to stop at one.
        """
        if since.version is None or since.detail.get("table") != self.sink.target:
            return []
        location = self._where()
        found = foreign_changes(location.files, App.of(pipeline, self.sink.name), since.version)
        new = {text: change for change in found if (text := self._sentence(change, location)) not in told}
        if new and self.sink.on_foreign_change == "stop":
            first = next(iter(new.values()))
            back = f"Put the rows back (RESTORE TABLE … TO VERSION AS OF {first.version - 1}), or " * (
                not first.built_on
            )
            raise Corrupt(
                f"Rows of complete epochs were taken away by others: {'; '.join(new)}.",
                remedy=f"{back}set on_foreign_change='warn' until the next epoch is complete, if that was meant to be. "
                "Nothing was opened.",
                sink=self.sink.name,
            )
        return list(new)

    def _sentence(self, change: ForeignChange, location: TableLocation) -> str:
        return f"sink {self.sink.name}: {location.name} has lost rows of complete epochs in {change}"

    def maintain(self, pipeline: str, epoch: int) -> JsonDict:
        """Compact small files and checkpoint the log where it is due."""
        every = self.sink.compact_every
        after_epoch = every > 0 and epoch % every == 0
        if self.sink.in_catalog or self.sink.commit_by == SPARK:
            return self._optimized(after_epoch)
        target = self._target(self._where())
        shape, files = target.opened_shape(), target.location.files
        if target.problem or (shape and shape.refused_features):
            return self._optimized(after_epoch)
        if target.table is None or shape is None:
            return {}
        done = log_checkpoint.write_if_due(target.table, files, self.sink.checkpoint_every)
        due = is_due(files, target.table.version(), App.of(pipeline, self.sink.name), epoch, every)
        if due and compaction.rewritable(shape):
            return done | compaction.compact(target.table, files)
        return done | self._optimized(due)

    def _optimized(self, due: bool) -> JsonDict:
        if not due:
            return {}
        done = spark_commit.optimize(self.sink.target, self.env)
        return done | (spark_commit.thin_notes(self._notes_left(), self.env) if self.sink.how.notes_deletions else {})

    def _notes_left(self) -> list[str]:
        """Where notes about keys that sinks of this name have deleted from the table lie."""
        return self._notes_in(self._where(), f".{self.sink.name}")

    def _notes_in(self, location: TableLocation, ending: str) -> list[str]:
        """The notes in all folders that end so, whosever they are."""
        folders = [f"{NOTES_FOLDER}/{name}" for name in sorted(location.files.names(NOTES_FOLDER))]
        own = [folder for folder in folders if folder.endswith(ending)]
        return [f"{location.url}/{folder}/{name}" for folder in own for name in sorted(location.files.names(folder))]

    # -- where ---------------------------------------------------------------------------------------------------

    def _app(self, attempt: SinkAttempt) -> App:
        return App.of(attempt.txn.pipeline, self.sink.name)

    def _folder(self, attempt: SinkAttempt) -> str:
        return f"{STAGING_FOLDER}/{attempt.ledger_id}.{self.sink.name}"

    def _notes_folder(self, attempt: SinkAttempt) -> str:
        """Hidden: the files there are not the table's, and VACUUM must not take them."""
        return f"{NOTES_FOLDER}/{attempt.ledger_id}.{self.sink.name}"

    def _target(self, location: TableLocation) -> Target:
        return Target.seen(location, self.env, deltalake_only=self.sink.commit_by == DELTALAKE)

    def _options(self) -> dict[str, str]:
        return storage_options(self.env.connection(self.sink.storage_conn_id) if self.sink.storage_conn_id else None)

    def _where(self) -> TableLocation:
        url = self.sink.target
        if self.sink.in_catalog:
            about = spark_commit.describe(self.sink.target, self.env)
            spark_commit.require_table(about, self.sink.target)
            url = normalised(about["location"])
        return TableLocation(self.sink.target, url, self._options())

    def _where_of(self, place: str, attempt: SinkAttempt) -> TableLocation:
        """The table's place, from one of its staging places.

        Raises:
            Refused: ``place`` is none of this attempt's in this sink's own folder of this table.
        """
        root = self.root_of(place, attempt)
        if root is None:
            raise Refused(
                f"{place!r} is no staging place of sink {self.sink.name!r} in {self.sink.target}.",
                remedy="Finish the epoch with the table it was opened with: was the sink pointed elsewhere since?",
                sink=self.sink.name,
            )
        return TableLocation(self.sink.target, root, self._options())

    def root_of(self, place: str, attempt: SinkAttempt) -> str | None:
        """The table's location, from one of its staging places; None if this attempt can have none there.

        Where a table of a catalog lies is for the catalog to say: of the place, only what is below that is compared.
        """
        root, _, nonce = place.partition(f"/{self._folder(attempt)}/{attempt.txn.epoch}-{attempt.txn.attempt}-")
        is_own = _NONCE.fullmatch(nonce) and (self.sink.in_catalog or root == self.sink.target)
        return root if is_own else None


def _optimize_write(properties: Mapping[str, str]) -> bool | None:
    """What the table's owner says of shuffling before a write; None if nothing."""
    said = properties.get(OPTIMIZE_WRITE)
    return None if said is None else said.lower() == "true"


def _write_version_0(location: TableLocation, place: str, shape: TableShape) -> None:
    now = publish.now_ms()
    info = {"timestamp": now, "operation": "CREATE TABLE", "operationParameters": {}}
    actions = [{"commitInfo": info}, *shape.for_staging().actions(str(uuid.uuid4()), now)]
    # False: this try was planned before, and Spark may have appended already.
    location.files.write_new(log_entry(0, location.relative(place)), entry_of(actions))
