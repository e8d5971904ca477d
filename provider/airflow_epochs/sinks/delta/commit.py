"""One commit of a Delta sink: by metadata only if staged for it and the table still allows it, else through Spark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import SinkAttempt, waive_command
from airflow_epochs.delta.table import CannotOpen, FoundCommit, TableLocation
from airflow_epochs.errors import Corrupt, NotApplied, OutcomeUnknown, Refused, RowsGone
from airflow_epochs.event_time import packed
from airflow_epochs.model import JsonDict, Receipt, Staged, TransactionId, attempt_fields
from airflow_epochs.sinks.delta import damaged_files, flush, lost_files, publish, spark_commit
from airflow_epochs.sinks.delta.state import remedies
from airflow_epochs.sinks.delta.target import Target
from airflow_epochs.sinks.delta.whereabouts import SPARK, Whereabouts
from airflow_epochs.spark.driver.delta.plans import Change, ForgetPlan
from airflow_epochs.staged.promised import require_promised, staging_left
from airflow_epochs.staged.staging import Staging

if TYPE_CHECKING:
    from airflow_epochs.sinks.delta.sink import DeltaSink

log = secrecy.logger(__name__)


@dataclass(frozen=True)
class Commit:
    """One sink's commit: what the vote promised, and what is still staged of it: after a commit, maybe nothing."""

    at: Whereabouts
    attempt: SinkAttempt
    staged: Staged
    location: TableLocation
    staging: Staging | None

    @classmethod
    def of(cls, at: Whereabouts, attempt: SinkAttempt, staged: Staged) -> Commit:
        location = at.location_of(staged.place, attempt)
        return cls(at, attempt, staged, location, staging_left(location, staged))

    def run(self) -> Receipt:
        """Make the epoch visible, once. A repeat finds it, and returns the same."""
        return self._receipt(self._by_metadata() or self._through_spark())

    def _by_metadata(self) -> FoundCommit | None:
        """Add the staged files where they lie; None if deltalake must not commit to the table, or not any more."""
        if self.staging is None or self.staging.user_metadata["committer"] == SPARK:
            return None
        this = publish.DeltaCommit(
            location=self.location,
            app=self.at.app(self.attempt.txn.pipeline),
            txn=self.attempt.txn,
            previous=self.attempt.previous,
            staging=self.staging,
            staged=self.staged,
            properties=self.at.sink.properties,
            ends=self.attempt.ends,
            event_time=self._event_time(),
        )
        publish.renew_if_old(this)
        try:
            return publish.publish(this, self.at.env)
        except (publish.Altered, CannotOpen) as altered:
            if this.restore is not None:
                raise self._not_restored(altered) from altered
            if this.state is not None:
                raise self._altered_state(altered, self.staging) from altered
            log.warning("%s was altered after the decision (%s): inserting through Spark", self.location.name, altered)
            return None

    def _not_restored(self, altered: Exception) -> Corrupt:
        """The error for a table that cannot go back: Spark would not do it in one step with the marker."""
        return Corrupt(
            f"{self.location.name} was altered after the decision to bring an earlier version back: {altered}.",
            code=codes.DELTA_NOT_RESTORABLE_NOW,
            remedy="Undo the change that the message names, and clear the commit task. Or complete the epoch without "
            f"this sink: `{waive_command(self.attempt.txn, self.at.sink.name)}`. Its table then stays as it is, and "
            "the rows that are read again come twice in it.",
            **attempt_fields(self.attempt.txn),
            sink=self.at.sink.name,
        )

    def _altered_state(self, altered: Exception, staging: Staging) -> Corrupt:
        """The error for a state table to which only Spark could append: it would take nothing away."""
        return Corrupt(
            f"The state table {self.location.name} was altered after the decision: {altered}.",
            code=codes.STATE_CHANGED,
            remedy=remedies.in_doubt(self.location, staging, self.attempt.txn, self.at.sink.name),
            **attempt_fields(self.attempt.txn),
            sink=self.at.sink.name,
        )

    # -- through Spark -------------------------------------------------------------------------------------------

    def _through_spark(self) -> FoundCommit:
        target = self._look()
        found = target.commit_of(self.attempt.txn)
        noted: dict[str, int] = {}
        if found is None:  # otherwise the task of that commit may have died before it looked for new notes
            noted = self._noted_by_others()
            found = self._inserted(target)
        lost_files.require_there(self.location, found, target.app, self.attempt.txn)
        self._forget_deleted(noted)
        if found.version is not None:
            previous = self.attempt.previous
            flush.flush_after(self.location, target.app, previous.epoch if previous else None, found.version)
        return found

    def _noted_by_others(self) -> dict[str, int]:
        return self.at.notes_of_others(self.location, self.attempt) if self.at.sink.how.reads_notes else {}

    def _forget_deleted(self, noted: dict[str, int]) -> None:
        """Remove the rows of this commit that are older than deletions which others have noted since ``noted``.

        Others note a deletion before they make it. A sink that notes one later finds the rows, and deletes them itself.
        """
        now = self._noted_by_others()
        places = tuple(place for place, version in now.items() if noted.get(place) != version)
        if not places or self.staging is None:
            return
        sink = self.at.sink
        plan = ForgetPlan(
            target=sink.target, place=self.staged.place, how=sink.how.plan(), notes=places, layout=sink.layout
        )
        rows = spark_commit.forget(plan, self.attempt.txn, sink.name, self.at.env).rows_deleted
        log.info("%s: removed %s rows whose keys other sinks had deleted meanwhile", self.attempt.txn, rows)

    def _event_time(self) -> JsonDict:
        """What a later epoch must know of the watermark, if the ledger is lost. Empty without event time."""
        watermarks = self.attempt.watermarks
        return packed(watermarks, self.attempt.event_times) if watermarks else {}

    def _look(self) -> Target:
        return self.at.look(self.location, self.attempt.txn.pipeline)

    def _inserted(self, target: Target) -> FoundCommit:
        """The commit that Spark has made. ``target``: the look that did not find it."""
        self._require_notes_left(target)
        try:
            report = spark_commit.insert(self._insertion(target), self.at.env)
        except OutcomeUnknown as unknown:
            damage = self._damage(unknown)
            if damage is None:
                raise
            raise damaged_files.damaged(self.location, damage, self.attempt.txn, self.at.sink) from unknown
        after = self._look()
        # Where deltalake can read the log, a repeat will read the receipt there: so read it there now.
        found = after.commit_of(self.attempt.txn) if after.problem is None else None
        return found or spark_commit.found_in(report)

    def _damage(self, unknown: OutcomeUnknown) -> damaged_files.Damage | None:
        """The damaged file behind Spark's error; None if no file is damaged, or if the table cannot be looked at."""
        try:
            return damaged_files.damage_told(self.location, unknown.what)
        except NotApplied as error:
            log.warning("the provider could not look at the file that Spark names: %s", error)
            return None

    def _insertion(self, target: Target) -> spark_commit.Insertion:
        return spark_commit.Insertion(
            target=self.at.sink.target,
            place=self.staged.place,
            app=target.app,
            txn=self.attempt.txn,
            previous=self.attempt.previous,
            staging=self._promised(target),
            properties=self.at.sink.properties,
            layout=self.at.sink.layout,
            ends=self.attempt.ends,
            event_time=self._event_time(),
            change=self._change(),
        )

    def _require_notes_left(self, target: Target) -> None:
        try:
            self.at.require_notes(target, self.attempt)
        except Refused as refused:
            raise Corrupt(
                f"The provider did not commit the rows of {self.attempt.txn}. {refused.what}",
                code=codes.DELTA_COMMIT_REFUSED,
                remedy=refused.remedy,
                **attempt_fields(self.attempt.txn),
                sink=self.at.sink.name,
            ) from refused

    def _promised(self, target: Target) -> Staging:
        """What the decision names. Gone, it is to be staged again unless the table shows another epoch than before.

        Of a table without our markers the caller can tell more: it has the receipt of the epoch before.
        """
        txn = self.attempt.txn
        try:
            return require_promised(target.location, self.staging, self.staged, txn, target.app.sink)
        except RowsGone:
            if target.marker is not None:
                publish.require_previous(target, target.marker, self.attempt.previous, txn)
            raise

    def _change(self) -> Change | None:
        """What the commit does beside appending; None if it only appends."""
        how = self.at.sink.how
        if how.is_plain_append:
            return None
        notes = f"{self.location.url}/{self.at.notes_folder(self.attempt)}"
        all_notes = self.at.notes_in(self.location, "") if how.reads_notes else []
        return Change(how=how.plan(), rows=self.staged.rows, notes=notes, all_notes=tuple(all_notes))

    # -- what is returned ----------------------------------------------------------------------------------------

    def _receipt(self, found: FoundCommit) -> Receipt:
        """The receipt, made only from the log and the decision, so that a repeat returns the same receipt."""
        known = receipt_of(self.at.sink, found, self.attempt.txn, self.location.url)
        return replace(known, rows=self.staged.rows, files=self.staged.files, bytes=self.staged.bytes)


def receipt_of(sink: DeltaSink, found: FoundCommit, txn_id: TransactionId, url: str) -> Receipt:
    """The receipt of a commit as far as the log tells it: without the numbers of rows, files and bytes.

    The place is the one that the log names: another committer's, perhaps, with the same digest.
    """
    at = datetime.fromtimestamp(found.timestamp_ms / 1000, timezone.utc) if found.timestamp_ms else None
    ours = found.user_metadata or {}
    return Receipt(
        txn_id=txn_id,
        sink=sink.name,
        rows=0,
        files=0,
        bytes=0,
        version=found.version,
        place=f"{url}/{ours['place']}" if ours.get("place") and url else None,
        committed_at=at.isoformat() if at else "unknown",
        detail={
            "table": sink.target,
            "committer": ours.get("committer") or "unknown",
            **({"table_id": ours["table_id"]} if ours.get("table_id") else {}),
            **({"state": ours["state"]} if ours.get("state") else {}),
        },
    )
