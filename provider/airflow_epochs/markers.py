"""Do the sinks show what the ledger says? Asked before an attempt is opened, decided, aborted or completed."""

from __future__ import annotations

from airflow_epochs.environment import Environment
from airflow_epochs.errors import Corrupt, tolerated
from airflow_epochs.model import Marker, OpenRecord, Receipt, TransactionId, agree
from airflow_epochs.sinks import from_spec
from airflow_epochs.sinks.base import Disagreement, Sink


def require_marker(
    sink: Sink, expected: TransactionId | None, pipeline: str, env: Environment, receipt: Receipt | None = None
) -> None:
    """Raise Corrupt unless the sink shows exactly ``expected`` (None: no epoch of this pipeline).

    ``receipt``: that of ``expected``, if it is at hand: it tells which table or topic the sink wrote to.
    """
    found = sink.last_committed(pipeline, env)
    if not agree(found, expected):
        seen = Disagreement(pipeline=pipeline, found=found, expected=expected, receipt=receipt)
        raise _diagnosed(sink, seen, env) or _disagreement(sink, found, _describe(expected), pipeline)


def _diagnosed(sink: Sink, seen: Disagreement, env: Environment) -> Corrupt | None:
    """What the sink itself makes of it; None if it makes nothing of it."""
    diagnose = getattr(sink, "diagnose", None)
    error: Corrupt | None = diagnose(seen, env) if diagnose else None
    if error is not None:
        error.pipeline, error.sink = seen.pipeline, sink.name
    return error


def shows(sink: Sink, txn: TransactionId, previous: TransactionId | None, env: Environment) -> bool:
    """Whether the sink shows ``txn`` by now; False if still ``previous``. Raises Corrupt if it is neither."""
    found = sink.last_committed(txn.pipeline, env)
    if agree(found, txn) or agree(found, previous):
        return agree(found, txn)
    raise _disagreement(sink, found, f"{_describe(previous)} or {_describe(txn)}", txn.pipeline)


def sinks_without(opened: OpenRecord, env: Environment) -> frozenset[str]:
    """The sinks that show the epoch before, of an attempt without GLOBAL_COMMIT; one that cannot be asked is left out.

    Raises:
        Corrupt: A sink shows the epoch or a later one: the ledger is an old copy, and the attempt was decided.
    """
    confirmed = set()
    for name, plan in opened.sinks.items():
        asked = False
        with tolerated(f"asking sink {name} for its marker"):
            sink = from_spec(plan.spec)
            found = sink.last_committed(opened.txn.pipeline, env)
            asked = True
        if asked and found and found.epoch >= opened.txn.epoch:
            expected = f"an epoch before {opened.txn.epoch}, which is not decided"
            raise _disagreement(sink, found, expected, opened.txn.pipeline)
        if asked and agree(found, TransactionId.parse(plan.previous) if plan.previous else None):
            confirmed.add(name)
    return frozenset(confirmed)


def _disagreement(sink: Sink, found: Marker | None, expected: str, pipeline: str) -> Corrupt:
    return Corrupt(
        f"The sink shows {_describe(found)}, but the ledger expects {expected}.",
        remedy="if the ledger or the table was restored from a backup, restore the other one to the same "
        "epoch; if the ledger was lost, give the pipeline a new name and `starting` offsets. "
        "Nothing was read or written.",
        pipeline=pipeline,
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
