"""Commit through Spark: for tables that others write through Spark, for those that deltalake refuses, for changes.

Spark's own writer appends the staged rows once more, or merges them, or overwrites, signed with ``txnAppId`` and
``txnVersion``. It skips a repeat silently, so the transaction id found in the table afterwards says whose rows it has.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_epochs import codes
from airflow_epochs.contracts import Ends, Environment, SparkJob, waive_command
from airflow_epochs.delta.log import USER_METADATA_KEY
from airflow_epochs.delta.table import App, FoundCommit
from airflow_epochs.errors import Corrupt, NotApplied, OutcomeUnknown, Refused
from airflow_epochs.model import JsonDict, Marker, TransactionId, attempt_fields
from airflow_epochs.spark import reports
from airflow_epochs.spark.driver.delta.jobs import compact_json
from airflow_epochs.spark.driver.delta.layout import FileLayout
from airflow_epochs.spark.driver.delta.plans import (
    Change,
    ChangePlan,
    CommitPlan,
    Committed,
    Described,
    DescribedTable,
    DescribePlan,
    FencePlan,
    ForgetPlan,
    Forgotten,
    FoundMarker,
    MarkerPlan,
    Optimized,
    OptimizePlan,
    SeenTable,
    ThinnedNotes,
    ThinNotesPlan,
)
from airflow_epochs.spark.driver.delta.spelling import identifier
from airflow_epochs.spark.driver.failures import ONE_ROW
from airflow_epochs.spark.driver.plans import JobPlan
from airflow_epochs.spark.driver.wire import Dataclass, as_json
from airflow_epochs.staged.staging import Staging
from airflow_epochs.transforms.conditions import quoted

R = TypeVar("R", bound=Dataclass)
_CHECK = re.compile(r"CHECK constraint (\S+) \(")
"""How Delta names a constraint that a row breaks."""
_NOT_READ = "[FAILED_READ_FILE"
"""How Spark says that it cannot read a file. The caller finds out whether a file of the table is gone or cut off."""
_NO_FOLDER = "Mkdirs failed to create"
"""How Hadoop says that a disk has not made a folder; it does not know why."""
_CONCURRENT = "[DELTA_CONCURRENT"
"""How Delta says that another commit came first. It has then written nothing."""
_NOT_UTF8 = "unmappable characters"
"""How Java says that its locale cannot encode a file's name."""


@dataclass(frozen=True, kw_only=True)
class Insertion:
    """All of one commit through Spark."""

    target: str
    place: str
    app: App
    txn: TransactionId
    previous: TransactionId | None
    staging: Staging
    properties: dict[str, str]
    layout: FileLayout
    ends: Ends = field(default_factory=dict)
    event_time: JsonDict = field(default_factory=dict)
    change: Change | None = None
    """What the commit does in a mode other than append."""

    @property
    def plan(self) -> CommitPlan:
        note = {
            "app": self.app.epoch,
            "txn": str(self.txn),
            "committer": "spark",
            "place": self.staging.place,
            "table_id": self.staging.user_metadata.get("table_id"),
            "ends": self.ends,
            **({"event_time": self.event_time} if self.event_time else {}),
        }
        append = CommitPlan(
            target=self.target,
            place=self.place,
            app=self.app.epoch,
            epoch=self.txn.epoch,
            previous=str(self.previous) if self.previous else None,
            previous_epoch=self.previous.epoch if self.previous else None,
            table_id=self.staging.user_metadata.get("table_id"),
            partition_by=self.staging.shape.partition_by,
            properties=self.properties,
            layout=self.layout,
            user_metadata=compact_json({USER_METADATA_KEY: note}),
        )
        return append if self.change is None else ChangePlan.of(append, self.change)


def _asked(env: Environment, plan: JobPlan, report: type[R], description: str) -> R:
    """Run one of Delta's jobs, and return its report."""
    told = env.spark.run(SparkJob(kind=plan.JOB, args=as_json(plan), description=description))
    return reports.understood(report, told, plan.JOB)


def insert(this: Insertion, env: Environment) -> SeenTable:
    """Bring the staged rows into the table through Spark, once. Returns what Spark sees of the commit.

    Raises:
        OutcomeUnknown: Spark's answer did not arrive, or cannot be read.
        Corrupt: The table is not the one that the vote checked, or has another transaction's rows for this epoch.
    """
    env.reached("delta.commit.before")
    try:
        report = _asked(env, this.plan, Committed, f"commit {this.txn} into {this.target}")
    except Refused as error:
        _require_nothing_landed(this, error, env)
        raise Corrupt(
            f"Spark refuses to insert the rows of {this.txn} into {this.target}: {error.what}",
            code=codes.DELTA_COMMIT_REFUSED,
            remedy=_remedy_of_refused(this, error),
            **attempt_fields(this.txn),
            sink=this.app.sink,
        ) from error
    except NotApplied as error:
        lost = "" if _NOT_READ in error.what else "Nothing is lost. "
        raise OutcomeUnknown(
            f"Spark did not confirm the commit into {this.target}, so its outcome is unknown. {lost}Spark's error: "
            f"{error.what}",
            code=codes.DELTA_COMMIT_UNKNOWN,
            remedy=_remedy_of_unconfirmed(this, error),
            **attempt_fields(this.txn),
            sink=this.app.sink,
        ) from error
    env.reached("delta.commit.after")
    _require_ours(this, report)
    return report


def _remedy_of_refused(this: Insertion, error: Refused) -> str:
    waive = f"`{waive_command(this.txn, this.app.sink)}`"
    if ONE_ROW in error.what:
        return (
            "Let the transform return each key once, in the type that the table has: the next epochs need it. The rows "
            "of this epoch stay as they are, so no retry helps. Complete it without this sink's rows: "
            f"{waive}. Then clear the commit task."
        )
    return (
        f"{_remedy(this.target, error)} If the table was changed after the vote, undo that change. If `stage` warned "
        "of changed settings of Spark, set them in `session_conf` of SparkConnect, or in `conf` of SparkSubmit. Then "
        f"clear the commit task. Or complete the epoch without this sink's rows: {waive}."
    )


def _remedy(target: str, error: Refused) -> str:
    """The remedy that lets the table take the staged rows. A change of the transform does not change these rows."""
    if error.code is codes.DELTA_ROWS_UNFIT:
        named = _CHECK.search(error.what)
        change = f"DROP CONSTRAINT {quoted(named[1])}" if named else "…"
        return (
            f"Remove the rule from the table (ALTER TABLE {identifier(target)} {change} in Spark), or correct the row "
            "of the table whose values break it together with the new ones."
        )
    if error.code is codes.SPARK_PLAN_REFUSED:
        return "The message names what the table lacks, or what it has in another form."
    if error.remedy == codes.SPARK_VALUE_INVALID.remedy:
        return "Correct the row of the table whose values Spark cannot merge with the new ones, or widen its column."
    return error.remedy


def _remedy_of_unconfirmed(this: Insertion, error: NotApplied) -> str:
    """The remedy that lets the next try of the commit succeed. The vote cannot check computed values."""
    if _NO_FOLDER in error.what:
        return (
            "Look at the partition's folder in Spark's error. If its name is longer than 255 bytes, or has a NUL "
            "character (which may look like a blank), run "
            f"`ALTER TABLE {identifier(this.target)} SET TBLPROPERTIES ('delta.randomizeFilePrefixes' = 'true')` in "
            "Spark: no folder is then named after a value. If neither is so, let Spark's user make folders there. Then "
            "clear the commit task. If there is no table yet whose property could be set, complete the epoch without "
            f"this sink's rows: `{waive_command(this.txn, this.app.sink)}`."
        )
    if _CONCURRENT in error.what:
        return (
            "Let Airflow retry the commit task, or clear it: another program changed the same files of the table at "
            "that moment, so Delta wrote nothing. The next try looks at the table anew."
        )
    if _NOT_UTF8 in error.what:
        return (
            "Start Spark's server and executors with LC_ALL=C.UTF-8 in their environment: their locale of today cannot "
            "name the partition's folder. Then clear the commit task."
        )
    if _NOT_READ in error.what:
        return (
            "Clear the commit task: it looks at the table before it writes, and a store may fail for a moment. If the "
            "same error comes again, the file that it names is damaged inside: do what docs/delta.md, 'Power cuts, and "
            "damaged files', says of it."
        )
    return (
        "Clear the commit task: it looks at the table before it writes. If the message names a column, the table was "
        "changed after the vote: first undo that change."
    )


def _require_ours(this: Insertion, report: Committed) -> None:
    """Raise Corrupt unless the table now has this transaction's rows."""
    if report.refused:
        raise Corrupt(
            f"Spark cannot insert the rows of {this.txn} into {this.target}: {report.refused}.",
            code=codes.DELTA_COMMIT_REFUSED,
            remedy="Put the table back as it was, and clear the commit task. Or complete the epoch without this "
            f"sink's rows: `{waive_command(this.txn, this.app.sink)}`.",
            **attempt_fields(this.txn),
            sink=this.app.sink,
        )
    found = report.marker
    if found == FoundMarker(epoch=this.txn.epoch):
        raise _forgotten(this)
    if found.txn != this.txn:
        raise Corrupt(
            f"{this.target} has epoch {found.epoch} of transaction {found.txn}, not of {this.txn}. Two ledgers "
            "with one pipeline name write to the table, or a ledger was restored and ran the epoch again.",
            code=codes.TWO_LEDGERS,
            remedy=f"Find the ledger that has the table's transaction: `airflow epochs show {this.txn.pipeline} "
            f"{this.txn.epoch}` prints the `txn_id` of a ledger. Let only that ledger continue, in place of this one. "
            f"If both must continue, complete this epoch without this sink's rows: "
            f"`{waive_command(this.txn, this.app.sink)}`. Then give this pipeline's sink another name. See "
            "docs/failures.md#the-ledger-is-behind.",
            **attempt_fields(this.txn),
            sink=this.app.sink,
        )


def _forgotten(this: Insertion) -> Corrupt:
    """The error for a table that shows the epoch, but no longer tells which transaction's rows."""
    return Corrupt(
        f"{this.target} has epoch {this.txn.epoch}, but a clean-up of its log has removed the commit, so the table no "
        f"longer tells whether transaction {this.txn} committed it. Nothing was written now.",
        code=codes.DELTA_COMMIT_FORGOTTEN,
        remedy=f"Find out whether the table has the rows that are staged at {this.place}. If it has them, an earlier "
        f"try of the commit landed: run `{waive_command(this.txn, this.app.sink)}`, and clear the failed task. The "
        "sink then goes on with the next epoch. Do not rename the sink, and do not backfill it: its rows would come "
        "twice. If the table does not have them, another ledger with this pipeline's name has written the epoch: see "
        "docs/failures.md#the-ledger-is-behind.",
        **attempt_fields(this.txn),
        sink=this.app.sink,
    )


def _require_nothing_landed(this: Insertion, refused: Refused, env: Environment) -> None:
    """Raise OutcomeUnknown unless the table shows that Spark refused before it committed, and not after."""
    try:
        landed = look(this.target, this.app, env).marker.txn == this.txn
    except NotApplied as error:
        raise OutcomeUnknown(
            f"Spark did not confirm the commit into {this.target}, so its outcome is unknown. Nothing is lost. Spark's "
            f"error: {refused.what} Then the provider could not look at the table: {error.what}",
            code=codes.DELTA_COMMIT_UNKNOWN,
            remedy=f"Clear the commit task when Spark answers: it looks at the table before it writes. {error.remedy}",
            **attempt_fields(this.txn),
            sink=this.app.sink,
        ) from refused
    if landed:
        raise OutcomeUnknown(
            f"Spark committed {this.txn} into {this.target}, and failed afterwards. Nothing is lost. Spark's error: "
            f"{refused.what}",
            code=codes.DELTA_COMMIT_UNKNOWN,
            remedy="Clear the commit task: it finds the commit in the table.",
            **attempt_fields(this.txn),
            sink=this.app.sink,
        ) from refused


def forget(this: ForgetPlan, txn: TransactionId, sink: str, env: Environment) -> Forgotten:
    """Delete rows that a commit has brought although another sink had noted a later deletion of their key.

    Raises:
        OutcomeUnknown: Spark did not do it, or its answer did not arrive. The commit itself has landed.
    """
    try:
        return _asked(env, this, Forgotten, f"forget keys in {this.target} that were deleted during {txn}")
    except (Refused, NotApplied) as error:
        clear = f"{error.remedy} Then clear" if isinstance(error, Refused) else "Clear"
        raise OutcomeUnknown(
            f"Spark committed {txn} into {this.target}, and failed when it removed rows whose keys another sink had "
            f"deleted meanwhile. Nothing is lost. Spark's error: {error.what}",
            code=codes.DELTA_COMMIT_UNKNOWN,
            remedy=f"{clear} the commit task: it finds the commit in the table, and removes these rows.",
            **attempt_fields(txn),
            sink=sink,
        ) from error


def fence(
    target: str, app: App, over: Collection[TransactionId | None], by: TransactionId, note: str, env: Environment
) -> SeenTable:
    """Let ``app`` sign a commit without rows as ``by`` if its marker is one of ``over``. Returns what is seen then."""
    shown = tuple(str(each) if each else None for each in over)
    plan = FencePlan(target=target, app=app.epoch, epoch=by.epoch, over=shown, user_metadata=note)
    return _asked(env, plan, SeenTable, f"fence {by} in {target}")


def describe(target: str, env: Environment) -> Described:
    """What Spark knows of a table."""
    return _asked(env, DescribePlan(target=target), Described, f"describe {target}")


def look(target: str, app: App, env: Environment) -> SeenTable:
    """What Spark sees: the table, and the marker of ``app`` in it."""
    return _asked(env, MarkerPlan(target=target, app=app.epoch), SeenTable, f"marker of {app.epoch} in {target}")


def marker_in(seen: SeenTable) -> Marker | None:
    """The marker that Spark has seen."""
    found = seen.marker
    if found.epoch is None:
        return None
    return Marker(found.epoch, TransactionId.parse(found.txn).token if found.txn else None)


def commit_in(seen: SeenTable, txn: TransactionId) -> FoundCommit | None:
    """The commit of ``txn``; None if the marker is another."""
    return found_in(seen) if seen.marker.txn == txn else None


def found_in(seen: SeenTable) -> FoundCommit:
    """The commit of the marker that Spark has seen.

    That Spark was asked does not mean that Spark committed: who did stands in the commit's user metadata.
    """
    found = seen.marker
    note = {
        "txn": found.txn,
        "committer": found.committer,
        "place": found.place,
        "deletions": found.deletions,
        "ends": found.ends,
        "event_time": found.event_time,
    }
    return FoundCommit(found.version, found.timestamp_ms or 0, note)


def optimize(target: str, layout: FileLayout, env: Environment) -> Optimized:
    """Compact small files with Spark's OPTIMIZE."""
    return _asked(env, OptimizePlan(target=target, layout=layout), Optimized, f"optimize {target}")


def thin_notes(places: list[str], env: Environment) -> ThinnedNotes:
    """Upkeep of the notes about deleted keys."""
    return _asked(env, ThinNotesPlan(places=tuple(places)), ThinnedNotes, "thin out notes")


def require_table(about: Described, target: str) -> DescribedTable:
    """The table that Spark has described."""
    if about.table is None:
        kind = f"it is a table of format {about.format}" if about.format else "there is no such table"
        raise Refused(
            f"{target} is not a Delta table: {kind}.",
            code=codes.DELTA_NOT_A_TABLE,
            remedy="Create the Delta table first, because the sink creates no table that is named in a catalog. Or "
            "correct the name of the table in the sink. Then clear the failed task.",
        )
    return about.table
