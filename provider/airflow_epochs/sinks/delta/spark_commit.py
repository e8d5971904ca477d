"""Commit through Spark: for tables that others write through Spark, for those that deltalake refuses, for changes.

Spark's own writer appends the staged rows once more, or merges them, or overwrites, signed with ``txnAppId`` and
``txnVersion``. It skips a repeat silently, so the transaction id found in the table afterwards says whose rows it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_epochs import codes
from airflow_epochs.contracts import Environment, SparkJob, waive_command
from airflow_epochs.delta.log import NOTE
from airflow_epochs.delta.table import App, FoundCommit
from airflow_epochs.errors import Corrupt, NotApplied, OutcomeUnknown, Refused
from airflow_epochs.model import JsonDict, Marker, TransactionId
from airflow_epochs.spark.driver.delta.jobs import compact_json
from airflow_epochs.staged.staging import Staging


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
    ends: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    change: JsonDict | None = None
    """What the commit does in a mode other than append: arguments of ``spark.driver.delta.merge.delta_change``."""

    @property
    def job(self) -> SparkJob:
        kind = "delta_commit" if self.change is None else "delta_change"
        args = self.args() | (self.change or {})
        return SparkJob(kind=kind, args=args, description=f"commit {self.txn} into {self.target}")

    def args(self) -> JsonDict:
        note = {
            "app": self.app.epoch,
            "txn": str(self.txn),
            "committer": "spark",
            "place": self.staging.place,
            "table_id": self.staging.note.get("table_id"),
            "ends": self.ends,
        }
        return {
            "target": self.target,
            "place": self.place,
            "app": self.app.epoch,
            "epoch": self.txn.epoch,
            "previous": str(self.previous) if self.previous else None,
            "previous_epoch": self.previous.epoch if self.previous else None,
            "table_id": self.staging.note.get("table_id"),
            "partition_by": list(self.staging.shape.partition_by),
            "properties": self.properties,
            "user_metadata": compact_json({NOTE: note}),
        }


def insert(this: Insertion, env: Environment) -> JsonDict:
    """Bring the staged rows into the table through Spark, once; what ``delta_marker`` says of the commit.

    Raises:
        OutcomeUnknown: Spark's answer did not arrive.
        Corrupt: The table is not the promised one, or has another transaction's rows for this epoch.
    """
    env.reached("delta.commit.before")
    try:
        report = env.spark.run(this.job)
    except Refused as error:
        _require_nothing_landed(this, error, env)
        raise Corrupt(
            f"Spark refuses to insert the rows of {this.txn} into {this.target}: {error.what}",
            code=codes.DELTA_COMMIT_REFUSED,
            remedy=f"{error.remedy} If the table was changed after the vote, undo that change. Then clear the commit "
            f"task. Or complete the epoch without this sink's rows: `{waive_command(this.txn, this.app.sink)}`.",
            pipeline=this.txn.pipeline,
            epoch=this.txn.epoch,
            attempt=this.txn.attempt,
            sink=this.app.sink,
        ) from error
    except NotApplied as error:
        raise OutcomeUnknown(
            f"Spark did not confirm the commit into {this.target}, so its outcome is unknown. Nothing is lost. Spark's "
            f"error: {error.what}",
            code=codes.DELTA_COMMIT_UNKNOWN,
            remedy="Clear the commit task: it looks at the table before it writes. If the message names a column or a "
            "constraint, the table was changed after the vote: first undo that change.",
            pipeline=this.txn.pipeline,
            epoch=this.txn.epoch,
            attempt=this.txn.attempt,
            sink=this.app.sink,
        ) from error
    env.reached("delta.commit.after")
    if report["refused"]:
        raise Corrupt(
            f"Spark cannot insert the rows of {this.txn} into {this.target}: {report['refused']}.",
            code=codes.DELTA_COMMIT_REFUSED,
            remedy="Put the table back as it was, and clear the commit task. Or complete the epoch without this "
            f"sink's rows: `{waive_command(this.txn, this.app.sink)}`.",
            pipeline=this.txn.pipeline,
            epoch=this.txn.epoch,
            attempt=this.txn.attempt,
            sink=this.app.sink,
        )
    if report["txn"] != str(this.txn):
        raise Corrupt(
            f"{this.target} has epoch {report['epoch']} of transaction {report['txn']}, not of {this.txn}. Two ledgers "
            "with one pipeline name write to the table, or a ledger was restored and ran the epoch again.",
            code=codes.TWO_LEDGERS,
            remedy=f"Find the ledger that has the table's transaction: `airflow epochs show {this.txn.pipeline} "
            f"{this.txn.epoch}` prints the `txn_id` of a ledger. Let only that ledger continue, in place of this one. "
            f"If both must continue, complete this epoch without this sink's rows: "
            f"`{waive_command(this.txn, this.app.sink)}`. Then give this pipeline's sink another name. See "
            "docs/failures.md#the-ledger-is-behind.",
            pipeline=this.txn.pipeline,
            epoch=this.txn.epoch,
            attempt=this.txn.attempt,
            sink=this.app.sink,
        )
    return report


def _require_nothing_landed(this: Insertion, refused: Refused, env: Environment) -> None:
    """Raise OutcomeUnknown unless the table shows that Spark refused before it committed, and not after."""
    try:
        landed = look(this.target, this.app, env)["txn"] == str(this.txn)
    except NotApplied as error:
        raise OutcomeUnknown(
            f"Spark did not confirm the commit into {this.target}, so its outcome is unknown. Nothing is lost. Spark's "
            f"error: {refused.what} Then the provider could not look at the table: {error.what}",
            code=codes.DELTA_COMMIT_UNKNOWN,
            remedy=f"Clear the commit task when Spark answers: it looks at the table before it writes. {error.remedy}",
            pipeline=this.txn.pipeline,
            epoch=this.txn.epoch,
            attempt=this.txn.attempt,
            sink=this.app.sink,
        ) from refused
    if landed:
        raise OutcomeUnknown(
            f"Spark committed {this.txn} into {this.target}, and failed afterwards. Nothing is lost. Spark's error: "
            f"{refused.what}",
            code=codes.DELTA_COMMIT_UNKNOWN,
            remedy="Clear the commit task: it finds the commit in the table.",
            pipeline=this.txn.pipeline,
            epoch=this.txn.epoch,
            attempt=this.txn.attempt,
            sink=this.app.sink,
        ) from refused


def describe(target: str, env: Environment) -> JsonDict:
    """What Spark knows of a table."""
    return env.spark.run(SparkJob(kind="delta_describe", args={"target": target}, description=f"describe {target}"))


def look(target: str, app: App, env: Environment) -> JsonDict:
    """What Spark sees: the table, and the marker of ``app`` in it."""
    args = {"target": target, "app": app.epoch}
    return env.spark.run(SparkJob(kind="delta_marker", args=args, description=f"marker of {app.epoch} in {target}"))


def marker_in(report: JsonDict) -> Marker | None:
    """The marker of which a report of ``delta_marker`` tells."""
    if report["epoch"] is None:
        return None
    return Marker(report["epoch"], TransactionId.parse(report["txn"]).token if report["txn"] else None)


def commit_in(report: JsonDict, txn: TransactionId) -> FoundCommit | None:
    """The commit of ``txn``; None if the marker is another."""
    return found_in(report) if report["txn"] == str(txn) else None


def found_in(report: JsonDict) -> FoundCommit:
    """What a report of ``delta_marker`` or ``delta_commit`` says of the commit.

    That Spark was asked does not mean that Spark committed: who did stands in the commit's own note.
    """
    note = {name: report[name] for name in ("txn", "committer", "place", "deletions")}
    return FoundCommit(report["version"], report["timestamp_ms"] or 0, note)


def optimize(target: str, env: Environment) -> JsonDict:
    """Compact small files with Spark's OPTIMIZE."""
    return env.spark.run(SparkJob(kind="delta_optimize", args={"target": target}, description=f"optimize {target}"))


def thin_notes(places: list[str], env: Environment) -> JsonDict:
    """Upkeep of the notes about deleted keys."""
    if not places:
        return {}
    return env.spark.run(SparkJob(kind="delta_thin_notes", args={"places": places}, description="thin out notes"))


def require_table(about: JsonDict, target: str) -> None:
    if not about["exists"]:
        kind = f"it is a table of format {about['format']}" if about.get("format") else "there is no such table"
        raise Refused(
            f"{target} is not a Delta table: {kind}.",
            code=codes.DELTA_NOT_A_TABLE,
            remedy="Create the Delta table first, because the sink creates no table that is named in a catalog. Or "
            "correct the name of the table in the sink. Then clear the failed task.",
        )
