"""Whether an epoch's receipts still hold, and the record that completes it."""

from __future__ import annotations

from collections.abc import Collection

from airflow_epochs import secrecy
from airflow_epochs.contracts import Perishable, Sink, SinkAttempt
from airflow_epochs.coordinator import agreement, code_changes, sink_calls
from airflow_epochs.coordinator.restaging import Promise, event_times
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt
from airflow_epochs.ledger.queries import commands_obeyed
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import (
    CompleteRecord,
    JsonDict,
    Marker,
    OpenRecord,
    Receipt,
    Run,
    TransactionId,
    adopted_in,
    agree,
    moved_in,
)

log = secrecy.logger(__name__)


def receipts_that_hold(task: TaskTry, view: EpochView) -> dict[str, Receipt]:
    """The receipts, after every sink was asked again. A sink that has lost its commit since commits again.

    After a failover to a late replica, or a restore from a copy, a sink shows the epoch before. After a VACUUM that
    overlapped the commit, a sink shows the epoch without its rows. In both cases the promise stands. The receipt of
    a waived sink that shows neither epoch is left out.

    Raises:
        Corrupt: A sink shows neither this epoch nor the one before.
    """
    holding = {}
    for name, receipt in view.receipts.items():
        try:
            with task.unless_overtaken(view):
                holding[name] = _shown_again(task, view, name, receipt)
        except Corrupt:
            if not task.ledger.waiver(view.number, name):
                raise
    return holding


def _shown_again(task: TaskTry, view: EpochView, name: str, receipt: Receipt) -> Receipt:
    opened, sink = view.opened, task.sink_of(view.opened, name)
    found = sink_calls.marker_of(sink, task.pipeline.name, task.env)
    lost = _lost_since(task, receipt, found, sink, opened)
    if lost and not task.ledger.waiver(view.number, name):
        log.warning("epoch %s: sink %s has lost %s since its receipt: committing again", view.number, name, lost)
        return Promise(task, view, name).keep()
    if not agree(found, opened.txn_id):
        agreement.require_marker(sink, opened.txn_id, task.pipeline.name, task.env, receipt, in_doubt=opened.txn_id)
    return receipt


def _lost_since(task: TaskTry, receipt: Receipt, found: Marker | None, sink: Sink, opened: OpenRecord) -> str | None:
    """What the sink, which shows ``found``, has lost since its receipt: "its commit", "rows", or None.

    None also if it shows neither this epoch nor the one before: that is for ``require_marker`` to explain.
    """
    if not agree(found, opened.txn_id):
        return "its commit" if agree(found, SinkAttempt.of(opened, sink.name).previous) else None
    return "rows" if isinstance(sink, Perishable) and sink.has_lost_rows(receipt, task.env) else None


def completion(
    task: TaskTry, view: EpochView, receipts: dict[str, Receipt], run: Run, metrics: JsonDict
) -> CompleteRecord:
    """The record that completes the epoch, with these receipts; other sinks that take part are waived."""
    opened = view.opened
    before = task.ledger.complete_record(view.number - 1) if view.number > 1 else None
    waived_ids = _waived_ids(before, view, receipts)
    code = (view.decision and view.decision.code) or opened.code
    return CompleteRecord(
        txn_id=opened.txn_id,
        ranges=opened.ranges,
        source_state=opened.source_state,
        receipts=receipts,
        markers={**(before.markers if before else {}), **dict.fromkeys(receipts, opened.txn_id)},
        opened_by=opened.run,
        completed_by=run,
        metrics={**(view.decision.metrics if view.decision else {}), **metrics},
        completed_at=task.now(),
        writer=task.writer,
        waived=tuple(waived_ids),
        waived_ids=waived_ids,
        watermarks=opened.watermarks,
        event_times=event_times(task.ledger, view),
        moved_in=moved_in(opened, before),
        # kept here, because the open records may be pruned
        commands=(
            *commands_obeyed(task.ledger, opened),
            *code_changes.obeyed(task.ledger, opened, code, before),
        ),
        adopted_in=adopted_in(opened, before, receipts),
        code=code,
        backlog=opened.backlog,
    )


def _waived_ids(
    before: CompleteRecord | None, view: EpochView, receipts: Collection[str]
) -> dict[str, tuple[TransactionId, ...]]:
    """``CompleteRecord.waived_ids``, sorted: of the epoch before and of this one, for sinks without a receipt."""
    waived = view.opened.sinks.keys() - set(receipts)  # every sink has a receipt or a waiver by now
    earlier = {sink: before.may_show(sink) for sink in before.waived} if before else {}
    return {
        sink: (*reversed(earlier.get(sink, [])), *([view.opened.txn_id] if sink in waived else []))
        for sink in sorted({*earlier, *waived} - set(receipts))
    }
