"""What a Delta sink does in an epoch: the participant of the two-phase commit that ``DeltaSink`` describes.

One module for each part: ``ready``, ``stage``, ``vote``, ``commit``, ``cleanup``, ``upkeep``.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from airflow_epochs.contracts import Disagreement, LastEpoch, SinkAttempt, StagedSample
from airflow_epochs.delta.shape import CONSTRAINTS
from airflow_epochs.delta.table import FoundCommit, TableLocation
from airflow_epochs.errors import Corrupt, Refused, located
from airflow_epochs.event_time import unpacked
from airflow_epochs.model import JsonDict, Marker, Receipt, RestorePoint, Staged, StagedClaim, TransactionId, Vote
from airflow_epochs.sinks.delta import (
    cleanup,
    fence,
    folder_names,
    ready,
    restore,
    spark_commit,
    stage,
    told_rows,
    upkeep,
    vote,
)
from airflow_epochs.sinks.delta.commit import Commit, receipt_of
from airflow_epochs.sinks.delta.diagnosis import Suspect
from airflow_epochs.sinks.delta.foreign_changes import foreign_changes
from airflow_epochs.sinks.delta.modes import MERGE
from airflow_epochs.sinks.delta.target import Target
from airflow_epochs.sinks.delta.whereabouts import Whereabouts
from airflow_epochs.sinks.participant import unknown_without_answer, vote_on
from airflow_epochs.spark.driver.plans import Fit


class DeltaParticipant(Whereabouts):
    """The operations of ``contracts.Sink`` for one Delta sink, in one task's environment."""

    def require_ready(self, pipeline: str) -> None:
        """Raise Refused if no rows would fit the table, whatever they are."""
        with located(pipeline, sink=self.sink.name):
            ready.require_ready(self, pipeline)

    def require_writable(self) -> None:
        ready.require_writable(self)

    def plan_stage_at(self, attempt: SinkAttempt, place: str) -> JsonDict:
        if attempt.restore:
            stage.write_empty(self, attempt, place)
            return {}
        return stage.plan(self, attempt, place)

    def vote(self, attempt: SinkAttempt, claim: StagedClaim) -> Vote:
        """Look at the staged rows and at the target; a check that fails is a VOTE_ABORT with its reason."""
        return vote_on(claim, partial(vote.checked, self, attempt, claim))

    def commit(self, attempt: SinkAttempt, staged: Staged) -> Receipt:
        with unknown_without_answer(self.sink.name):
            return Commit.of(self, attempt, staged).run()

    def fence(self, pipeline: str, over: Collection[TransactionId | None], by: TransactionId) -> bool:
        with located(pipeline, sink=self.sink.name):
            return fence.fence(self, pipeline, over, by)

    def fit(self, pipeline: str) -> Fit:
        """What the table takes of a row, as it is now. Text that is not UTF-8 would keep every reader but Spark out.

        So would dates and partitions of years that others do not know.

        The rows of a MERGE need not look like the table's. Rows that delete a key bring no values.
        """
        seen = self._seen(pipeline)
        how, shape, folders = self.sink.how, seen.shape, folder_names.will_be_values(self.sink, seen)
        keys = (*how.keys, *((how.sequence_by,) if how.sequence_by else ()))
        partition_by = shape.partition_by if shape else tuple(self.sink.partition_by)
        if how.mode == MERGE:
            return Fit(dates=True, required=keys, partition_by=partition_by, folders=folders)
        rules = shape.properties if shape else self.sink.properties
        return Fit(
            dates=True,
            required=(*(shape.required if shape else ()), *keys),
            conditions=tuple(
                (f"the CHECK constraint {key.removeprefix(CONSTRAINTS)} ({value})", value)
                for key, value in sorted(rules.items())
                if key.startswith(CONSTRAINTS)
            ),
            partition_by=partition_by,
            folders=folders,
            unless=how.delete_when,
            keys=keys,
        )

    def require_restorable(self, point: RestorePoint, pipeline: str) -> None:
        restore.require_restorable(self, self._seen(pipeline), point)

    def has_leftovers(self, attempt: SinkAttempt, place: str, *, published: bool) -> bool:
        return cleanup.has_leftovers(self, attempt, place, published=published)

    def discard(self, attempt: SinkAttempt, place: str, *, published: bool) -> None:
        cleanup.discard(self, attempt, place, published=published)

    def sample(self, attempt: SinkAttempt, place: str, most: int) -> StagedSample:
        """The staged rows, as Spark wrote them."""
        return told_rows.sample(self, attempt, place, most)

    def last_committed(self, pipeline: str) -> Marker | None:
        """The marker in the table now."""
        if self.sink.in_catalog:
            return spark_commit.marker_in(spark_commit.look(self.sink.target, self.app(pipeline), self.env))
        return self.look(self.location(), pipeline).marker

    def last_epoch(self, pipeline: str) -> LastEpoch | None:
        """What the commit of the marker's epoch says."""
        if self.sink.in_catalog:
            told = spark_commit.look(self.sink.target, self.app(pipeline), self.env)
            commit = spark_commit.found_in(told) if told.marker.txn else None
            return self._as_told(spark_commit.marker_in(told), commit, "")
        target = self.look(self.location(), pipeline)
        return self._as_told(target.marker, target.newest_commit, target.location.url)

    def _as_told(self, marker: Marker | None, commit: FoundCommit | None, url: str) -> LastEpoch | None:
        if marker is None:
            return None
        ours = (commit.user_metadata if commit else None) or {}
        if commit is None or commit.txn is None:
            return LastEpoch(marker=marker)
        receipt = receipt_of(self.sink, commit, commit.txn, url)
        watermarks, times = unpacked(ours["event_time"]) if ours.get("event_time") else ((), {})
        return LastEpoch(
            marker=marker,
            txn=commit.txn,
            ends=ours.get("ends") or None,
            receipt=receipt,
            watermarks=watermarks,
            event_times=times,
        )

    def is_taken_back(self, pipeline: str) -> bool:
        """Whether the table is empty, or the last change of all its rows is a RESTORE to before the newest commit.

        False for a table of a catalog. An overwrite may have kept the rows.
        """
        if self.sink.in_catalog:
            return False
        target = self.look(self.location(), pipeline)
        commit = target.newest_commit
        if commit is None or commit.version is None:
            return False
        if target.table is not None and not target.table.file_uris():
            return True
        changes = foreign_changes(target.location.files, target.app, commit.version)
        return bool(changes) and changes[-1].back_to is not None

    def diagnose(self, seen: Disagreement) -> Corrupt | None:
        """Why the marker is not the expected one."""
        recorded = seen.receipt.detail if seen.receipt else {}
        return Suspect(target=self._seen(seen.pipeline), seen=seen, recorded=recorded).diagnosis()

    def how_to_vacate(self, first: TransactionId) -> str | None:
        """The remedy that moves the table's log away; None if more came than ``first``.

        None, too, for a table of a catalog, which knows its tables itself, for a table that only Spark opens, and after
        a commit by Spark, whose files would be left where a new table begins.
        """
        if self.sink.in_catalog:
            return None
        target = self.look(self.location(), first.pipeline)
        commit = target.commit_of(first) if target.problem is None and target.version == 0 else None
        if commit is None or commit.version != 0 or (commit.user_metadata or {}).get("committer") != "deltalake":
            return None
        return (
            f"Take the folder {target.location.name}/_delta_log out of the table: move it to another place. It has "
            "nothing but that commit, and this epoch brings all its rows again. Then clear the failed task."
        )

    def _seen(self, pipeline: str) -> Target:
        """The table as it is now. A table that the catalog no longer has counts as missing."""
        try:
            location = self.location()
        except Refused:
            nowhere = TableLocation(self.sink.target, self.sink.target, {})
            return Target(nowhere, self.app(pipeline), None, None, self.env)
        return self.look(location, pipeline)

    def has_lost_rows(self, receipt: Receipt) -> bool:
        return upkeep.has_lost_rows(self, receipt)

    def foreign_changes(self, since: Receipt, pipeline: str, told: Collection[str]) -> list[str]:
        return upkeep.changes_since(self, since, pipeline, told)

    def maintain(self, pipeline: str, epoch: int) -> JsonDict:
        return upkeep.maintain(self, pipeline, epoch)
