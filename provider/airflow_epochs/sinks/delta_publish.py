"""Commit through deltalake: one log entry adds the staged files where they lie and moves the marker.

An exception from deltalake never says that nothing was committed, and a success can be lost where another kind of
writer replaces log entries. So every round starts by looking at the table, and the log has the last word.
"""

from __future__ import annotations

import json
import logging
import random
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_epochs.environment import Environment
from airflow_epochs.errors import Corrupt, OutcomeUnknown, Refused
from airflow_epochs.model import JsonDict, Marker, TransactionId
from airflow_epochs.sinks.delta_checks import describe, describe_txn, is_previous
from airflow_epochs.sinks.delta_log import NOTE, Staging, log_entry
from airflow_epochs.sinks.delta_shape import RANDOM_PREFIXES, TableShape
from airflow_epochs.sinks.delta_table import (
    App,
    CannotOpen,
    FoundCommit,
    Where,
    commit_in,
    find_commit,
    first_line,
    open_table,
    read_marker,
)
from airflow_epochs.spark.delta_jobs import compact_json
from airflow_epochs.storage import Files

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction, Transaction

log = logging.getLogger(__name__)

ROUNDS_MAX = 40
PAUSE_S_MAX = 0.5
FAULTS_MAX = 5
RETRIES_OF_DELTALAKE = 15


class Altered(Exception):
    """The table is no longer one to which the staged files can be added as they are. Nothing was written."""


@dataclass(frozen=True, kw_only=True)
class Publication:
    """All of one commit: which rows, into which table, under which names."""

    where: Where
    app: App
    txn: TransactionId
    previous: TransactionId | None
    staging: Staging
    properties: dict[str, str]

    @property
    def note(self) -> str:
        return compact_json({NOTE: {"app": self.app.epoch, "txn": str(self.txn), "committer": "deltalake"}})

    def signatures(self) -> list[tuple[str, int]]:
        return [
            (self.app.epoch, self.txn.epoch),
            (self.app.token, self.txn.token),
            (self.app.token_epoch, self.txn.epoch),
        ]


def publish(this: Publication, env: Environment) -> FoundCommit | None:
    """Make the staged rows visible, once. A repeat finds the first commit and writes nothing.

    Returns:
        The log entry that did it; None if it did, but clean-up has removed the entry since.

    Raises:
        Altered: The table was changed since the vote.
        Corrupt: The marker is neither the previous nor this transaction, or the table is another one.
        Refused: What lies there is no Delta table.
        OutcomeUnknown: No round came to an end.
    """
    files = this.where.files
    faults: list[BaseException] = []
    for round_ in range(ROUNDS_MAX):
        if round_:
            time.sleep(random.uniform(0, min(PAUSE_S_MAX, 0.01 * 2**round_)))
        try:
            found = _round(this, files, env)
        except BaseException as error:
            if not _says_nothing(error):
                raise
            faults += [] if _is_lost_race(error) else [error]
            log.warning("%s: round %d into %s: %s", this.txn, round_ + 1, this.where.name, first_line(error))
        else:
            if found is not _NOT_YET:
                return made_durable(found, files)
        if len(faults) >= FAULTS_MAX:
            break
    raise OutcomeUnknown(
        f"Committing into {this.where.name} came to no end: "
        f"{first_line(faults[-1]) if faults else 'other writers were always faster'}",
        remedy="Nothing is lost: clear the commit task once the store answers and fewer others write to the table.",
    ) from (faults[-1] if faults else None)


def _says_nothing(error: BaseException) -> bool:
    """Whether an error leaves open what happened, so that the table must be looked at.

    deltalake's panics are no ``Exception``; what stops the task (SIGTERM, a timeout) is none either.
    """
    if isinstance(error, (Altered, Corrupt, Refused, CannotOpen)):
        return False
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _is_lost_race(error: BaseException) -> bool:
    from deltalake.exceptions import CommitFailedError

    return isinstance(error, CommitFailedError)


_NOT_YET = FoundCommit(-1, 0, None)


def _round(this: Publication, files: Files, env: Environment) -> FoundCommit | None:
    """Look, and commit if there is nothing yet; ``_NOT_YET`` if it must be looked again."""
    table = open_table(this.where)
    marker = read_marker(table, this.app, files) if table is not None else None
    if table is not None and marker == Marker.of(this.txn):
        return find_commit(files, this.app, this.txn.epoch, table.version())
    _require_previous(this, marker)
    if table is None:
        return _create(this, files, env)
    _require_same_table(this, TableShape.of_table(table))
    env.reached("delta.commit.before")
    _append(this, table)
    env.reached("delta.commit.after")
    return _landed(this, files, table.version())


def _require_previous(this: Publication, marker: Marker | None) -> None:
    if is_previous(marker, this.previous):
        return
    raise Corrupt(
        f"{this.where.name} shows {describe(marker)}; the ledger expects {describe_txn(this.previous)} "
        f"before {this.txn}.",
        remedy="Do not clear anything yet. Look at the table's history and at the ledger: one of them was restored, or "
        "another pipeline uses the same name. See docs/delta.md, 'The marker is not the expected one'.",
    )


def _require_same_table(this: Publication, shape: TableShape) -> None:
    promised = this.staging.note.get("table_id")
    if promised is not None and shape.id != promised:
        raise Corrupt(
            f"{this.where.name} was replaced after the decision: its id is {shape.id}, promised was {promised}.",
            remedy="Put the old table back, or waive this sink for this epoch with the provider's command.",
        )
    if shape.refused_features:
        raise Altered(f"it now has {', '.join(shape.refused_features)}, which deltalake does not support")
    if difference := shape.difference_for(this.staging.shape):
        raise Altered(difference)


def _append(this: Publication, table: DeltaTable) -> None:
    """Commit on the handle whose markers were read: deltalake then refuses if anybody moved them since."""
    from deltalake import PostCommitHookProperties

    table.create_write_transaction(
        _adds(this),
        "append",
        table.schema(),
        partition_by=table.metadata().partition_columns,
        commit_properties=_commit_properties(this),
        # Checkpoints and log clean-up can fail after the commit has landed; `complete` does them.
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
    )


def _adds(this: Publication) -> list[AddAction]:
    from deltalake.transaction import AddAction

    place = this.staging.place
    return [
        AddAction(
            path=f"{place}/{file.path}",
            size=file.size,
            partition_values=file.partition_values,
            modification_time=file.modified_ms,
            data_change=True,
            stats=file.stats,
        )
        for file in this.staging.files
    ]


def _commit_properties(this: Publication) -> CommitProperties:
    from deltalake import CommitProperties
    from deltalake.transaction import Transaction

    # Spark forgets a transaction without a time as soon as the table has a retention for them.
    now = now_ms()
    signatures: list[Transaction] = [Transaction(app, version, now) for app, version in this.signatures()]
    return CommitProperties(
        custom_metadata={"isBlindAppend": True, "userMetadata": this.note},
        max_commit_retries=RETRIES_OF_DELTALAKE,
        app_transactions=signatures,
    )


def _landed(this: Publication, files: Files, base: int) -> FoundCommit | None:
    """The entry just written, read back: the first one of this epoch after version ``base``."""
    version = base
    while (entry := files.read(log_entry(version := version + 1))) is not None:
        if found := commit_in(entry, this.app, this.txn.epoch, version):
            return found if found.note and found.note.get("txn") == str(this.txn) else _NOT_YET
    return _NOT_YET


def _create(this: Publication, files: Files, env: Environment) -> FoundCommit | None:
    """Version 0 of a table that does not exist: protocol and metadata as staged, rows and marker in one entry.

    Written with put-if-absent as any other version; whoever loses the race appends to the winner's table.
    """
    if this.staging.note.get("table_id") is not None:
        raise Corrupt(
            f"{this.where.name} is gone: it was there when its rows were staged.",
            remedy="Put the table back, or waive this sink for this epoch with the provider's command.",
        )
    env.reached("delta.commit.before")
    files.write_new(log_entry(0), _version_0(this))
    env.reached("delta.commit.after")
    return _landed(this, files, -1)


def _version_0(this: Publication) -> bytes:
    from urllib.parse import quote

    now = now_ms()
    staged = this.staging
    info = {
        "timestamp": now,
        "operation": "CREATE TABLE AS SELECT",
        "operationParameters": {"partitionBy": json.dumps(list(staged.shape.partition_by))},
        "isBlindAppend": True,
        "userMetadata": this.note,
        "engineInfo": "airflow-provider-epochs",
    }
    actions: list[JsonDict] = [
        {"commitInfo": info},
        *shape_of_new_table(staged.shape, this.properties).actions(str(uuid.uuid4()), now),
        *({"txn": {"appId": app, "version": v, "lastUpdated": now}} for app, v in this.signatures()),
        *(
            {
                "add": {
                    "path": quote(f"{staged.place}/{file.path}"),
                    "partitionValues": file.partition_values,
                    "size": file.size,
                    "modificationTime": file.modified_ms,
                    "dataChange": True,
                    "stats": file.stats,
                }
            }
            for file in staged.files
        ),
    ]
    return "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode()


def shape_of_new_table(staged: TableShape, properties: dict[str, str]) -> TableShape:
    """The staging table's shape without what only staging needs."""
    kept = {k: v for k, v in staged.properties.items() if k != RANDOM_PREFIXES or k in properties}
    return TableShape(**{**staged.__dict__, "properties": kept})


def made_durable(found: FoundCommit | None, files: Files) -> FoundCommit | None:
    # Also for a commit found rather than made: who made it may have died before this line.
    if found is not None:
        files.sync([log_entry(found.version)])
    return found


def now_ms() -> int:
    return int(time.time() * 1000)
