"""Upkeep of a Delta table, and a look at what others have done to it, between epochs."""

from __future__ import annotations

from collections.abc import Collection

from airflow_epochs import codes, secrecy
from airflow_epochs.delta.table import FoundCommit, TableLocation
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import JsonDict, Receipt
from airflow_epochs.sinks.delta import compaction, log_checkpoint, lost_files, spark_commit
from airflow_epochs.sinks.delta.due import is_due
from airflow_epochs.sinks.delta.flush import flush_after
from airflow_epochs.sinks.delta.foreign_changes import ForeignChange, foreign_changes
from airflow_epochs.sinks.delta.other_pipelines import ledger_of
from airflow_epochs.sinks.delta.state.table import StateTable
from airflow_epochs.sinks.delta.whereabouts import SPARK, Whereabouts
from airflow_epochs.spark.driver.wire import as_json

log = secrecy.logger(__name__)

_LOST, _TOLD_BEFORE = " may have lost rows of complete epochs ", " has lost rows of complete epochs "
"""The text about a change if the log tells only its operation; and the same in records of earlier versions."""


def maintain(at: Whereabouts, pipeline: str, epoch: int) -> JsonDict:
    """Compact small files and checkpoint the log where it is due."""
    sink, every = at.sink, at.sink.compact_every
    after_epoch = every > 0 and epoch % every == 0
    if sink.in_catalog or sink.commit_by == SPARK:
        return _optimized(at, pipeline, epoch) if after_epoch else {}
    target = at.look(at.location(), pipeline)
    shape, files = target.opened_shape, target.location.files
    is_state = isinstance(sink, StateTable)
    if target.problem or (shape and (shape.refused_to_states if is_state else shape.refused_features)):
        return _optimized(at, pipeline, epoch) if after_epoch else {}
    if target.table is None or shape is None:
        return {}
    flush_after(target.location, target.app, epoch, target.version)
    layout = sink.layout.of(shape.properties)
    due = is_due(files, target.version, target.app, epoch, every, layout)
    if due and not compaction.rewritable(shape):  # Spark must not commit where deltalake does
        due = False
        log.info(
            "%s is not compacted, because only Spark can rewrite its files, and deltalake commits to it. Give the "
            'sink commit="spark", or run OPTIMIZE while no epoch is under way.',
            target.location.name,
        )
    try:
        done = compaction.compact(target.table, files, layout) if due else {}
    finally:  # write a checkpoint also if the compaction fails: a long log makes every epoch slower
        # Last, so that it counts the compaction's own entry: repeating the upkeep then changes nothing.
        checkpoint = log_checkpoint.write_if_due(target.table, files, sink.checkpoint_every)
    return done | checkpoint


def _optimized(at: Whereabouts, pipeline: str, epoch: int) -> JsonDict:
    done = as_json(spark_commit.optimize(at.sink.target, at.sink.layout, at.env))
    flush_after(at.location(), at.app(pipeline), epoch)
    notes = _notes_left(at) if at.sink.how.notes_deletions else []
    return done | (as_json(spark_commit.thin_notes(notes, at.env)) if notes else {})


def _notes_left(at: Whereabouts) -> list[str]:
    """The places of the notes about keys that sinks of this name have deleted from the table."""
    return at.notes_in(at.location(), f".{at.sink.name}")


def has_lost_rows(at: Whereabouts, receipt: Receipt) -> bool:
    """Whether files of a commit are gone, but the table refers to them. Always False for a table in a catalog."""
    if at.sink.in_catalog or receipt.version is None:
        return False
    return lost_files.loss_of(FoundCommit(receipt.version, 0, None), at.location().files) is not None


def changes_since(at: Whereabouts, since: Receipt, pipeline: str, told: Collection[str]) -> list[str]:
    """Changes by others since a commit that remove rows of epochs, and that the ledger does not name yet.

    Raises:
        Corrupt: There is such a change, and the sink is to stop at one.
    """
    if since.version is None or since.detail.get("table") != at.sink.target:
        return []
    location = at.location()
    found = foreign_changes(location.files, at.app(pipeline), since.version, ledger_of(since.place))
    known = {text.replace(_TOLD_BEFORE, _LOST) for text in told}
    new = {text: change for change in found if (text := _sentence(at, change, location)) not in known}
    if new and at.sink.on_foreign_change == "stop":
        raise _stopped(at, new)
    return list(new)


def _stopped(at: Whereabouts, new: dict[str, ForeignChange]) -> Corrupt:
    first = next(iter(new.values()))
    before = first.version - 1
    back = f"If rows are missing, put them back: RESTORE TABLE … TO VERSION AS OF {before}. Otherwise, or if"
    accept = f"{'If' if first.built_on else back} the change was intended, set on_foreign_change='warn' on the sink"
    return Corrupt(
        f"Another program may have removed rows of complete epochs: {'; '.join(new)}. No epoch was opened.",
        code=codes.DELTA_FOREIGN_CHANGE,
        remedy=f"Compare the rows with the rows of version {before}. {accept} until the next epoch is complete. Then "
        "clear the open task.",
        sink=at.sink.name,
    )


def _sentence(at: Whereabouts, change: ForeignChange, location: TableLocation) -> str:
    return f"sink {at.sink.name}: {location.name}{_LOST}in {change}"
