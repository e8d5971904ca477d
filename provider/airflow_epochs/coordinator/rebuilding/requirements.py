"""What must be true, besides one transaction in all sinks, so that the pipeline can go on. Each function checks one."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_epochs import codes
from airflow_epochs.contracts import Ends, LastEpoch, LeavingOut, Source, Stateful
from airflow_epochs.coordinator.rebuilding.evidence import Told, is_fence
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import TransactionId


def require_own(shown: Mapping[str, LastEpoch]) -> None:
    """Raise Corrupt if a marker is another pipeline's: with its offsets, this pipeline would skip records."""
    for name, each in shown.items():
        if each.elsewhere:
            found = each.elsewhere
            renamed = f" {found.renamed}" if found.renamed else ""
            own = "give this sink another name, or a `marker_table` or `marker_topic` of its own"
            anothers = f"{own}, and do not rebuild from this marker"
            if not all(other.elsewhere for other in shown.values()):
                anothers = f"type the command again with `--without {name}`, and then {own}"
            raise Corrupt(
                f"The marker of sink {name} is of epoch {each.marker.epoch}, whose rows went to {found.there}. But the "
                f"sink in the DAG has {found.here}. Another pipeline with these names of pipeline and sink keeps its "
                "marker in the same place, or the DAG points the sink to a wrong place. Nothing was changed.",
                code=codes.TABLE_ELSEWHERE,
                remedy=f"Look whose rows {found.there} has. If they are this pipeline's, point the sink back to it, "
                f"and type the command again.{renamed} If they are another pipeline's, {anothers}.",
                sink=name,
            )


def require_read(source: Source, told: Ends) -> None:
    """Raise Refused if the file names a topic that is not read: the one that is meant would be read from its start."""
    if isinstance(source, LeavingOut) and (others := [topic for topic in told if source.leaves_out(topic)]):
        raise Refused(
            f"The file names {', '.join(sorted(others))}, which the source in the DAG does not read. Nothing was "
            "changed.",
            code=codes.OFFSETS_UNUSABLE,
            remedy="Correct the names of the topics in the file. It must name all that the pipeline has read.",
        )


def require_recoverable(task: TaskTry, shown: Mapping[str, LastEpoch], newest: int, told: Told) -> None:
    """Raise Refused if the next epoch needs what nobody tells: offsets, the version of a state, a watermark."""
    _require_ends(shown, told)
    _require_one_end(shown)
    _require_watermark(task, shown, newest, told)
    _require_states(task, shown)


def _require_ends(shown: Mapping[str, LastEpoch], told: Told) -> None:
    if not told.ends and not any(each.ends for each in shown.values()):
        raise Refused(
            "No sink knows the offsets where its last epoch ended: version 0.1 committed it, somebody put its marker "
            "back by hand, or the table's log no longer has the commit. Nothing was changed.",
            code=codes.ENDS_UNKNOWN,
        )


def _require_one_end(shown: Mapping[str, LastEpoch]) -> None:
    """Raise Refused if fences of one epoch came after different epochs. All other sinks that show one end as one."""
    name, last = next(iter(shown.items()))
    if other := next((other for other, each in shown.items() if is_fence(each) and each.ends != last.ends), None):
        raise Refused(
            f"Sinks {name} and {other} show the fence of epoch {last.marker.epoch}, which was waived. The epochs that "
            "they have rows of ended at different offsets. Nothing was changed.",
            code=codes.SINKS_DISAGREE,
            remedy="Take one of them out of the DAG, and type the command again. Later give it another name.",
            sink=other,
        )


def _require_watermark(task: TaskTry, shown: Mapping[str, LastEpoch], newest: int, told: Told) -> None:
    before = task.ledger.complete_record(newest)
    has_watermark = told.watermark is not None or any(each.watermarks for each in shown.values())
    if (task.pipeline.event_time or (before and before.watermarks)) and not has_watermark:
        raise Refused(
            "The pipeline has an event time, and no sink knows the watermark of its last epoch: only Delta tables "
            "store it, as long as their logs have the commit. Nothing was changed.",
            code=codes.WATERMARK_UNKNOWN,
        )


def _require_states(task: TaskTry, shown: Mapping[str, LastEpoch]) -> None:
    for sink in task.pipeline.sinks:
        receipt = shown[sink.name].receipt if sink.name in shown else None
        if isinstance(sink, Stateful) and sink.name in shown and (receipt is None or receipt.version is None):
            raise Refused(
                f"The log of the state table {sink.name} no longer has the commit of its last epoch. So it is "
                "not known which of its versions the next epoch must read. Nothing was changed.",
                code=codes.STATE_COMMIT_GONE,
                sink=sink.name,
            )


def require_fitting(ledger: Ledger, txn: TransactionId, sinks: frozenset[str], *, has_identity: bool) -> None:
    """Raise Refused if the ledger has records that contradict the sinks."""
    epochs = ledger.epochs_known()
    if epochs and not has_identity:
        raise _in_parts("The pipeline's folder in the ledger has records of epochs, but no pipeline.json.")
    done = ledger.complete_record(txn.epoch)
    if done and done.txn_id != txn:
        raise _in_parts(f"The ledger completed epoch {txn.epoch} with {done.txn_id}, and the sinks show {txn}.")
    later = max(epochs, default=0)
    opened = ledger.open_record(later, 1) if later == txn.epoch + 1 else None
    if later > txn.epoch and (
        opened is None
        or any(
            plan.previous != txn
            for name, plan in opened.sinks.items()
            if name in sinks and not opened.command  # a command has the plans of the epoch before
        )
    ):
        raise _in_parts(f"The ledger has records of epoch {later}, and the sinks show nothing after epoch {txn.epoch}.")


def _in_parts(why: str) -> Refused:
    return Refused(f"{why} Nothing was changed.", code=codes.LEDGER_IN_PARTS)
