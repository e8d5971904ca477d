"""Do the sinks show what the ledger says? Asked before an attempt is opened, decided, aborted or completed."""

from __future__ import annotations

from collections.abc import Collection

from airflow_epochs import codes
from airflow_epochs.contracts import Diagnosing, Disagreement, Environment, Sink
from airflow_epochs.coordinator.recorded_sinks import sink_of
from airflow_epochs.errors import Corrupt, tolerated
from airflow_epochs.ledger.keys import epoch_folder
from airflow_epochs.model import Marker, OpenRecord, Receipt, Shown, TransactionId, agree, compare


def require_marker(
    sink: Sink,
    expected: TransactionId | None,
    pipeline: str,
    env: Environment,
    receipt: Receipt | None = None,
    in_doubt: TransactionId | None = None,
) -> None:
    """Raise Corrupt unless the sink shows exactly ``expected`` (None: no epoch of this pipeline).

    ``receipt``: that of ``expected``, if it is at hand: it tells which table or topic the sink wrote to.
    ``in_doubt``: the transaction of the epoch that cannot be completed otherwise.
    """
    found = sink.last_committed(pipeline, env)
    if not agree(found, expected):
        seen = Disagreement(pipeline=pipeline, found=found, expected=expected, receipt=receipt, in_doubt=in_doubt)
        raise _told(sink, seen, env)


def _diagnosed(sink: Sink, seen: Disagreement, env: Environment) -> Corrupt | None:
    """What the sink itself makes of it; None if it makes nothing of it."""
    error = sink.diagnose(seen, env) if isinstance(sink, Diagnosing) else None
    if error is not None:
        error.pipeline, error.sink = seen.pipeline, sink.name
    return error


def shows(
    sink: Sink, txn: TransactionId, previous: TransactionId | None, env: Environment, receipt: Receipt | None = None
) -> bool:
    """Whether the sink shows ``txn``, in doubt, by now; False if still ``previous``, whose ``receipt`` may be given.

    Raises:
        Corrupt: It shows neither.
    """
    found = sink.last_committed(txn.pipeline, env)
    stands = compare(found, previous, txn)
    if stands in (Shown.ALREADY, Shown.NAMELESS, Shown.EXPECTED):
        return stands is not Shown.EXPECTED
    seen = Disagreement(pipeline=txn.pipeline, found=found, expected=previous, receipt=receipt, in_doubt=txn)
    raise _told(sink, seen, env)


def sinks_without(opened: OpenRecord, today: Collection[Sink], env: Environment) -> frozenset[str]:
    """The sinks that show the epoch before, of an attempt without GLOBAL_COMMIT; one that cannot be asked is left out.

    Raises:
        Corrupt: A sink shows the epoch or a later one: the ledger is an old copy, and the attempt was decided.
    """
    confirmed = set()
    for name, plan in opened.sinks.items():
        asked = False
        with tolerated(f"asking sink {name} for its marker"):
            found = sink_of(opened, name, today).last_committed(opened.txn.pipeline, env)
            asked = True
        if asked and found and compare(found, opened.txn) is not Shown.BEHIND:
            raise Corrupt(
                f"The sink shows {_describe(found)}, but in this ledger {opened.txn} is not decided: the ledger is an "
                "old copy, and the original has gone on since.",
                code=codes.ATTEMPT_UNDECIDED,
                remedy="Restore the newest copy of the ledger. If this is a copy on purpose, with tables of its own, "
                f"or other tables were restored with it, delete the folder {opened.txn.pipeline}/"
                f"{epoch_folder(opened.txn.epoch)} in it: the next run reads that epoch's input again, into the sinks "
                "of the DAG. See docs/failures.md#the-ledger-is-behind. Nothing was read or written.",
                pipeline=opened.txn.pipeline,
                sink=name,
            )
        if asked and agree(found, TransactionId.parse(plan.previous) if plan.previous else None):
            confirmed.add(name)
    return frozenset(confirmed)


def _told(sink: Sink, seen: Disagreement, env: Environment) -> Corrupt:
    """The error for a disagreement: the sink's own diagnosis, or what the two markers tell."""
    error = _diagnosed(sink, seen, env) or _by_the_markers(sink, seen)
    error.remedy += seen.while_in_doubt(sink.name)
    return error


def _by_the_markers(sink: Sink, seen: Disagreement) -> Corrupt:
    found, expected = seen.found, seen.expected
    stands = compare(found, expected)
    if stands is Shown.AHEAD:
        return Corrupt(
            f"The ledger is behind the sink: the sink shows {_describe(found)}, but the ledger expects "
            f"{_describe(expected)}. Its newest records are lost, it was restored from an older copy, or it is a new "
            "one.",
            code=codes.LEDGER_BEHIND,
            remedy="Restore the newest copy of the ledger. If there is none, go on under a new pipeline name with "
            "`starting` at the end offsets that the sink stored with its last epoch, or those of the pipeline's "
            "consumer group. See docs/failures.md#the-ledger-is-behind. Nothing was read or written.",
            pipeline=seen.pipeline,
            sink=sink.name,
        )
    if found is None:
        return Corrupt(
            f"The sink shows no epoch of this pipeline, but the ledger expects {_describe(expected)}: what it wrote "
            "to is gone, was replaced, or the sink points elsewhere now.",
            code=codes.SINK_EMPTY,
            remedy="Put back what was dropped, or point the sink back. If that cannot be, give the sink another name "
            'and backfill={"<the new name>": <epoch>} with the first epoch that it lacks. See '
            "docs/failures.md#the-table-is-gone. Nothing was read or written.",
            pipeline=seen.pipeline,
            sink=sink.name,
        )
    if stands is Shown.ANOTHER:
        return Corrupt(
            f"The sink shows {_describe(found)}, but the ledger expects {_describe(expected)}: two ledgers of one "
            "pipeline name have written to it, or one was restored and ran the epoch again.",
            code=codes.TWO_LEDGERS,
            remedy="Let only the ledger go on that has the sink's transaction; if both are to go on, give this "
            "pipeline's sink another name. See docs/failures.md#the-ledger-is-behind. Nothing was read or written.",
            pipeline=seen.pipeline,
            sink=sink.name,
        )
    return Corrupt(
        f"The sink is behind the ledger: it shows {_describe(found)}, but the ledger expects {_describe(expected)}. It "
        "was put back from an older copy.",
        code=codes.SINK_BEHIND,
        remedy="Put the newest copy back. If there is none, give the sink another name and "
        f'backfill={{"<the new name>": {found.epoch + 1}}}: the missing epochs are read again. See '
        "docs/failures.md#the-table-is-behind. Nothing was read or written.",
        pipeline=seen.pipeline,
        sink=sink.name,
    )


def _describe(marker: Marker | TransactionId | None) -> str:
    match marker:
        case None:
            return "no epoch of this pipeline"
        case Marker(epoch, token):
            return f"epoch {epoch} (transaction token {token})"
        case TransactionId():
            return f"epoch {marker.epoch} ({marker}, token {marker.token})"
