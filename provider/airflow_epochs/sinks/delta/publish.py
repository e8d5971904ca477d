"""Commit by metadata only: one log entry adds the staged files where they lie and moves the marker.

deltalake reads the table; the entry is ours, written with put-if-absent at exactly the version after the one that
was looked at. Whoever loses looks again, so there are no conflicts to reason about: what was checked is what the
entry follows. (deltalake's own commit retries across versions that nobody has checked, and lists the whole log twice
more: at version 10,000 of a local table that takes three times as long.)

No answer ever counts as "not committed": every round starts by looking at the table, and the log has the last word.
"""

from __future__ import annotations

import json
import random
import re
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Disagreement, Ends, Environment, waive_command
from airflow_epochs.delta.log import USER_METADATA_KEY, StagedFile, entry_of, log_entry, rows_of
from airflow_epochs.delta.shape import RANDOM_PREFIXES, TableShape, metadata_of
from airflow_epochs.delta.snapshot import LogPosition, Snapshot, commit_of, read_snapshot, snapshot_from
from airflow_epochs.delta.table import (
    PUTS_BACK,
    RESTORED,
    App,
    CannotOpen,
    FoundCommit,
    TableLocation,
    commit_in,
    newest_checkpoint,
    open_table,
)
from airflow_epochs.errors import Corrupt, NotApplied, OutcomeUnknown, Refused, RowsLost
from airflow_epochs.model import (
    JsonDict,
    Marker,
    RestorePoint,
    Shown,
    Staged,
    TransactionId,
    agree,
    attempt_fields,
    compare,
)
from airflow_epochs.sinks.delta import lost_files, restore
from airflow_epochs.sinks.delta.diagnosis import Suspect
from airflow_epochs.sinks.delta.flush import flush_since
from airflow_epochs.sinks.delta.lost_files import Loss
from airflow_epochs.sinks.delta.state import remedies, table_log
from airflow_epochs.sinks.delta.state.table_log import StateFacts
from airflow_epochs.sinks.delta.target import Target
from airflow_epochs.spark.driver.delta.jobs import compact_json
from airflow_epochs.staged.promised import require_promised, require_still_there
from airflow_epochs.staged.staging import Staging
from airflow_epochs.storage.answers import remedy_of, told
from airflow_epochs.storage.files import Files

log = secrecy.logger(__name__)

ROUNDS_MAX = 100
PAUSE_S_MAX = 0.2
FAULTS_MAX = 5
_RETENTION, _RETENTION_DEFAULT = "delta.deletedFileRetentionDuration", "interval 1 week"
_UNITS_MS = {"week": 604_800_000, "day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1_000}


class Altered(Exception):
    """The table is no longer one to which the staged files can be added as they are. Nothing was written."""


@dataclass(frozen=True, kw_only=True)
class DeltaCommit:
    """All of one commit: which rows, into which table, under which names.

    ``looked_at``: whether the staged files were read, and are the files that the sink voted for.
    """

    location: TableLocation
    app: App
    txn: TransactionId
    previous: TransactionId | None
    staging: Staging
    staged: Staged
    properties: dict[str, str]
    ends: Ends = field(default_factory=dict)
    event_time: JsonDict = field(default_factory=dict)
    looked_at: bool = False

    def compared(self, seen: Snapshot) -> Shown:
        """Whether the table shows this epoch, the one before, or another."""
        return compare(seen.marker, self.previous, self.txn)

    def user_metadata(self, table_id: str | None, **facts: object) -> str:
        """The ``userMetadata`` of the commit, as JSON. ``facts``: more members of our part."""
        ours = {
            "app": self.app.epoch,
            "txn": str(self.txn),
            "committer": "deltalake",
            "place": self.staging.place,
            "table_id": table_id,
            "ends": self.ends,
        }
        state = {"state": self._state_after(self.state)} if self.state else {}
        back = {RESTORED: self.restore.version} if self.restore else {}
        times = {"event_time": self.event_time} if self.event_time else {}
        return compact_json({USER_METADATA_KEY: ours | state | back | times | facts})

    def _state_after(self, facts: StateFacts) -> JsonDict:
        """What the next epoch must know of a state table."""
        if self.restore is None:
            return facts.after(self.staged.bytes)
        return table_log.facts_of_version(self.restore, self.txn.epoch)

    def add_action(self, file: StagedFile) -> JsonDict:
        add = {
            "path": f"{self.staging.place}/{file.logged_path}",
            "partitionValues": file.partition_values,
            "size": file.size,
            "modificationTime": file.modified_ms,
            "dataChange": True,
            "stats": file.stats,
        }
        return {"add": add}

    @property
    def state(self) -> StateFacts | None:
        """What a state table's commit must know; None for other sinks."""
        facts = self.staging.user_metadata.get("state")
        return StateFacts.told(facts) if facts else None

    @property
    def restore(self) -> RestorePoint | None:
        """The version that the commit brings back; None for any other commit."""
        point = self.staging.user_metadata.get("restore")
        return RestorePoint(**point) if point else None


def publish(this: DeltaCommit, env: Environment) -> FoundCommit:
    """Make the staged rows visible, once. A repeat finds the first commit and writes nothing.

    Raises:
        Altered: The table was changed since the vote.
        RowsGone: The table shows the previous epoch, and staged rows are gone.
        RowsLost: The table shows this epoch, and files of it are gone.
        Corrupt: The marker is neither the previous nor this transaction, or the table is another one.
        Refused: Something other than a Delta table is at the location.
        OutcomeUnknown: No round came to an end.
    """
    faults: list[BaseException] = []
    seen: Snapshot | None = None
    known = LogPosition.from_json(this.staging.user_metadata.get("anchor"))
    for round_ in range(ROUNDS_MAX):
        if round_:
            time.sleep(random.uniform(0, min(PAUSE_S_MAX, 0.01 * 2**round_)))
        try:
            seen = _snapshot(this, seen.position if seen else known)
            this = _ready(this, seen, env)
            found = _round(this, seen, env)
        except BaseException as error:
            if not _says_nothing(error):
                raise
            faults.append(error)
            log.warning(
                "%s: round %d of the commit to %s has no clear outcome: %s",
                this.txn,
                round_ + 1,
                this.location.name,
                told(error),
            )
        else:
            if found is not None:
                return found
        if len(faults) >= FAULTS_MAX:
            break
    last = faults[-1] if faults else None
    said = remedy_of(last, this.location.conn_id, "the path", "Then clear the commit task.")
    raise OutcomeUnknown(
        f"The commit into {this.location.name} did not finish, and its outcome is unknown. Nothing is lost. The cause: "
        f"{told(last) if last else 'other writers were always faster'}",
        code=codes.DELTA_COMMIT_UNKNOWN,
        remedy=said
        or "Clear the commit task when the store answers and has free space, and fewer other programs write to "
        "the table.",
        **attempt_fields(this.txn),
        sink=this.app.sink,
    ) from last


def _snapshot(this: DeltaCommit, known: LogPosition | None) -> Snapshot:
    if known is not None and (seen := snapshot_from(known, this.app, this.location.files)):
        if this.compared(seen) in (Shown.ALREADY, Shown.EXPECTED):
            return seen
    return read_snapshot(this.location, this.app)


def _says_nothing(error: BaseException) -> bool:
    """Whether an error leaves open what happened, so that the table must be looked at.

    deltalake's panics are no ``Exception``; nor is an error that stops the task (SIGTERM, a timeout).
    """
    if isinstance(error, (Altered, Corrupt, Refused, CannotOpen)):
        return False
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _ready(this: DeltaCommit, seen: Snapshot, env: Environment) -> DeltaCommit:
    """The commit with its staged rows checked, unless the table shows them already."""
    stands = this.compared(seen)
    if stands is Shown.ALREADY:
        return this
    if stands is not Shown.EXPECTED:
        target, table_id = Target.seen(this.location, this.app, env), this.staging.user_metadata.get("table_id")
        require_previous(target, seen.marker, this.previous, this.txn, table_id=table_id)
    return _promised(this)


def _round(this: DeltaCommit, seen: Snapshot, env: Environment) -> FoundCommit | None:
    """Commit unless ``seen`` shows that it has been done; None if the caller must look again."""
    files = this.location.files
    if this.compared(seen) is Shown.ALREADY:
        return _kept(this, made_durable(commit_of(seen, this.app, files), files), env)
    if seen.version < 0:
        _require_never_there(this)
    if seen.shape is not None:
        _require_same_table(this, seen.shape)
    if this.restore is not None:
        _require_still_restorable(this, this.restore, env)
    _flush_others(this, seen.version)
    version = seen.version + 1
    entry = _entry(this, version)
    env.reached("delta.commit.before")
    files.write_new(log_entry(version), entry)
    env.reached("delta.commit.after")
    landed = _landed(this, version, entry, files)
    return landed and _kept(this, landed, env)


def _flush_others(this: DeltaCommit, newest: int) -> None:
    """Flush what others have written: the entry that follows makes the names of their files durable.

    Before the vote, the same was done with all that the table had by then.
    """
    known = LogPosition.from_json(this.staging.user_metadata.get("anchor"))
    flushed = known.version if known else None
    if newest > (-1 if flushed is None else flushed):
        flush_since(this.location, flushed)


def _promised(this: DeltaCommit) -> DeltaCommit:
    """The commit with its staged rows checked: they are as they were at the vote.

    Their files are read once: nobody changes a staged file, but a VACUUM may delete it. So later rounds only list them,
    or else faster writers could win every round while the files of a large epoch are read.
    """
    if this.looked_at:
        require_still_there(this.location, this.staging, this.staged, this.txn, this.app.sink)
        return this
    staging = require_promised(this.location, this.staging, this.staged, this.txn, this.app.sink)
    return replace(this, staging=staging, looked_at=True)


def _kept(this: DeltaCommit, found: FoundCommit, env: Environment) -> FoundCommit | None:
    """The commit, if all its files are there; None if lost files have been replaced, so the caller must look again.

    Raises:
        RowsLost: Files are lost, and the files staged here cannot replace them.
    """
    loss = lost_files.loss_of(found, this.location.files)
    if loss is None:
        return found
    error = lost_files.lost(this.location, found, loss, this.app, this.txn)
    if not isinstance(error, RowsLost) or (found.user_metadata or {}).get("place") == this.staging.place:
        raise error
    _put_back(this, found, loss, env)
    return None


def _put_back(this: DeltaCommit, found: FoundCommit, loss: Loss, env: Environment) -> None:
    """Replace the files of a commit that has lost some by files staged again, unless the table has changed since."""
    this = _promised(this)
    table = open_table(this.location)
    if table is None or table.version() != loss.version:
        return
    _require_same_table(this, TableShape.of_table(table))
    log.warning(
        "%s: files of version %s are lost: putting back %s", this.location.name, found.version, this.staging.place
    )
    table_id = this.staging.user_metadata.get("table_id")
    info = _commit_info(this, loss.version + 1, now_ms(), table_id, **{PUTS_BACK: found.version})
    adds = [this.add_action(file) for file in this.staging.files]
    env.reached("delta.put_back.before")
    flush_since(this.location, found.version)
    entry = entry_of(lost_files.replacement(loss, adds, info, table))
    this.location.files.write_new(log_entry(loss.version + 1), entry)
    env.reached("delta.put_back.after")


def renew_if_old(this: DeltaCommit) -> None:
    """Renew the modification times of old staged files: a usual VACUUM deletes unused files by their age.

    The staging table's log is renewed as well: deltalake's VACUUM would delete it. If the times cannot be renewed, the
    files are committed as they are: waiting would only make them older. A VACUUM that has listed the files already
    deletes them all the same; the commit task looks for that afterwards.
    """
    age_ms = now_ms() - min((file.modified_ms for file in this.staging.files), default=now_ms())
    retention = this.staging.shape.properties.get(_RETENTION, _RETENTION_DEFAULT)
    if age_ms > _milliseconds(retention) / 2:
        rows = [f"{this.staging.place}/{file.path}" for file in this.staging.files]
        try:
            this.location.files.renew([*rows, *this.staging.log_files])
        except (NotApplied, OutcomeUnknown) as error:
            log.warning(
                "%s: the modification times of its staged files could not be renewed, so a VACUUM may delete them: %s",
                this.txn,
                error.what,
            )


def _milliseconds(interval: str) -> float:
    """The length of an interval, written as in table properties, in ms; 0 if it cannot be parsed."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s+([a-z]+?)s?\b", interval.lower())
    return sum(float(number) * _UNITS_MS.get(unit, 0) for number, unit in parts)


def _landed(this: DeltaCommit, version: int, entry: bytes, files: Files) -> FoundCommit | None:
    """The entry just written, read back; None if another entry has this version.

    Where the log was cleaned up past ``version`` since the table was opened, the entry would lie where no reader
    looks: then only a fresh look at the table tells.
    """
    if files.read(log_entry(version)) != entry or newest_checkpoint(files) > version:
        return None
    return commit_in(entry, this.app, this.txn.epoch, version)


def require_previous(
    target: Target, marker: Marker | None, previous: TransactionId | None, txn: TransactionId, **recorded: Any
) -> None:
    """Require that the table shows the epoch before ``txn``. Raises Corrupt, with what happened, if it does not.

    ``recorded``: what the ledger records of the table, such as its ``table_id``.
    """
    if not agree(marker, previous):
        seen = Disagreement(pipeline=txn.pipeline, found=marker, expected=previous, in_doubt=txn)
        error = Suspect(target=target, seen=seen, recorded=recorded).diagnosis()
        error.remedy += seen.while_in_doubt(target.app.sink)
        raise error


def _require_same_table(this: DeltaCommit, shape: TableShape) -> None:
    promised = this.staging.user_metadata.get("table_id")
    if promised is not None and shape.id != promised:
        raise Corrupt(
            f"{this.location.name} was replaced after the decision: its id was {promised}, and is {shape.id} now.",
            code=codes.DELTA_TABLE_REPLACED,
            remedy="Put the old table back, and clear the commit task. Or complete the epoch without this sink's "
            f"rows: `{waive_command(this.txn, this.app.sink)}`.",
            **attempt_fields(this.txn),
            sink=this.app.sink,
        )
    if refused := shape.refused_to_states if this.state else shape.refused_features:
        raise Altered(f"it now has {', '.join(refused)}, which deltalake does not support")
    staged = this.staging.shape
    if this.state:
        difference = shape.widened_for(staged).difference_for_state(staged)
    else:
        difference = shape.difference_for(staged)
    if difference:
        raise Altered(difference)


def _require_still_restorable(this: DeltaCommit, point: RestorePoint, env: Environment) -> None:
    target = Target.seen(this.location, this.app, env)
    try:
        restore.require_no_others(target, point)
    except Refused as refused:
        raise Altered(refused.what) from refused


def _require_never_there(this: DeltaCommit) -> None:
    if this.staging.user_metadata.get("table_id") is not None:
        raise Corrupt(
            f"The table {this.location.name} is gone. It existed when its rows were staged.",
            code=codes.DELTA_TABLE_REPLACED,
            remedy="Put the old table back, and clear the commit task. Or complete the epoch without this sink's "
            f"rows: `{waive_command(this.txn, this.app.sink)}`.",
            **attempt_fields(this.txn),
            sink=this.app.sink,
        )


def _entry(this: DeltaCommit, version: int) -> bytes:
    """The log entry: rows and markers, for a new table also its protocol and metadata."""
    now = now_ms()
    new_id = str(uuid.uuid4())
    metadata = _added_columns(this) if version else _shape_of_new_table(this).actions(new_id, now)
    table_id = this.staging.user_metadata.get("table_id") if version else new_id
    # Spark forgets a transaction without a time as soon as the table has a retention for them.
    signatures = [{"txn": {"appId": app, "version": n, "lastUpdated": now}} for app, n in this.app.signatures(this.txn)]
    actions = [
        _commit_info(this, version, now, table_id),
        *metadata,
        *signatures,
        *map(this.add_action, this.staging.files),
        *_changes(this, version - 1, now),
    ]
    return entry_of(actions)


def _changes(this: DeltaCommit, newest: int, now: int) -> list[JsonDict]:
    """What the commit does to files that the table had or has. ``newest``: the version before it."""
    if this.restore is not None:
        try:
            return restore.actions(this.location, this.restore, newest, now)
        except Refused as refused:
            raise Altered(refused.what) from refused
    if this.state is None:
        return []
    lost = remedies.without_it(this.location, this.staging, this.txn, this.app.sink)
    return table_log.removes(this.location, this.state, newest, now, lost)


def _added_columns(this: DeltaCommit) -> list[JsonDict]:
    """The table's metadata with the columns that the staged changes of a state add; empty if they add no column."""
    table = open_table(this.location) if this.state else None
    if table is None:
        return []
    shape = TableShape.of_table(table)
    wide = shape.widened_for(this.staging.shape)
    if wide == shape:
        return []
    metadata = metadata_of(table)
    metadata["metaData"]["schemaString"] = json.dumps(wide.schema, separators=(",", ":"))
    return [metadata]


def _commit_info(this: DeltaCommit, version: int, now: int, table_id: str | None, **facts: int | None) -> JsonDict:
    files = this.staging.files
    metrics = {
        "numFiles": len(files),
        "numOutputRows": sum(map(rows_of, files)),
        "numOutputBytes": sum(file.size for file in files),
    }
    append = {"mode": "Append", "partitionBy": json.dumps(this.staging.shape.partition_by)}
    back = this.restore
    info = {
        "timestamp": now,
        "operation": "RESTORE" if back else "WRITE" if version else "CREATE TABLE AS SELECT",
        "operationParameters": {"version": str(back.version)} if back else append,
        # Without it, Spark takes the commit for one that may depend on what it read, and sees conflicts.
        "isBlindAppend": not facts and this.state is None and back is None,
        "operationMetrics": {name: str(value) for name, value in metrics.items()},
        "userMetadata": this.user_metadata(table_id, **facts),
        "engineInfo": "airflow-provider-epochs",
    }
    return {"commitInfo": info | ({"readVersion": version - 1} if version else {})}


def _shape_of_new_table(this: DeltaCommit) -> TableShape:
    """The staging table's shape without what only staging needs."""
    staged = this.staging.shape
    return staged.without(() if RANDOM_PREFIXES in this.properties else (RANDOM_PREFIXES,))


def made_durable(found: FoundCommit, files: Files) -> FoundCommit:
    """Make a commit that was found durable: the task that made it may have died before it did so."""
    if found.version is not None:
        files.sync([log_entry(found.version)])
    return found


def now_ms() -> int:
    return int(time.time() * 1000)
