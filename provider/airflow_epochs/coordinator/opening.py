"""Opens an attempt: with new ranges for a new epoch, or with the same ranges again after an abort."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import (
    Explaining,
    LeavingOut,
    Limits,
    Pacing,
    Past,
    PlannedEpoch,
    Position,
    Preparing,
    Renewing,
    Sink,
    Stateful,
    Watching,
)
from airflow_epochs.coordinator import agreement, code_changes, preflight, schemas, sink_calls, sink_specs, state_tables
from airflow_epochs.coordinator.backfills.backfill import with_backfill
from airflow_epochs.coordinator.former_names import renamed_pipeline
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, EpochError, NoNewData, Refused, located
from airflow_epochs.event_time import next_watermarks
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import (
    STORED,
    CompleteRecord,
    OpenRecord,
    PipelineRecord,
    Run,
    SinkPlan,
    TransactionId,
    Watermarks,
    empty_at_ends,
    seed_of,
)
from airflow_epochs.spark.driver.event_times import instant
from airflow_epochs.transforms import closing

log = secrecy.logger(__name__)


def open_first(task: TaskTry, epoch: int, identity: PipelineRecord, run: Run, limits: Limits) -> OpenRecord:
    """Open attempt 1 of a new epoch, with new ranges.

    Raises NoNewData if the source has none; Fenced if another run opened the epoch at the same moment; Refused if the
    code has changed and must be acknowledged first, or a sink is not ready.
    """
    return _open_planned(task, epoch, identity.ledger_id, run, limits, None)


def _open_planned(
    task: TaskTry, epoch: int, ledger_id: str, run: Run, limits: Limits, order: OpenRecord | None
) -> OpenRecord:
    """Open an attempt with new ranges. ``order``: the attempt before, if it holds a command, which this one obeys."""
    if order and (command := order.command):
        log.info("epoch %s obeys `%s` of %s: %s", epoch, command.name, command.who, command.why)
    before = task.ledger.complete_record(epoch - 1)
    code = code_changes.of_attempt(task, epoch, before, order.restored_to if order else 0)
    adopted = order.adopted if order else {}
    if order:
        _require_all_restored(task, epoch, order)
    sinks = sink_plans(task, before, adopted)
    planned, now, watermarks = _input(task, before, order, limits)
    renamed_pipeline.require_new_input(task, epoch, planned, order, limits.starting)
    attempt, moved = (order.txn_id.attempt + 1, order.moved) if order else (1, False)
    sinks = with_backfill(task, sinks, epoch, planned, known=known(before, adopted), moved=moved)
    state_tables.require_whole(task, before, adopted)
    preflight.require_ready(task, sinks)
    record = OpenRecord(
        txn_id=TransactionId(task.pipeline.name, epoch, attempt, task.draw_id()),
        ledger_id=ledger_id,
        ranges=planned.ranges,
        source=task.pipeline.source.spec(),
        source_state=planned.state,
        transform=str(task.pipeline.transform),
        code=code,
        sinks=sinks,
        dag_id=run.dag_id,
        run_id=run.run_id,
        now=now,
        seed=seed_of(task.pipeline.name, epoch, ledger_id),
        opened_at=now,
        writer=task.writer,
        ledger=task.ledger.root,
        watermarks=watermarks,
        backlog=planned.backlog,
    )
    return _put_open(task, _with_facts(task, _obeying(record, order), before), run)


def _input(
    task: TaskTry, before: CompleteRecord | None, order: OpenRecord | None, limits: Limits
) -> tuple[PlannedEpoch, str, Watermarks]:
    """The attempt's input, when it was planned, and its watermarks. Raises NoNewData if the source has none."""
    if order and order.restored_to:
        return _restored_input(task, order)
    return next_input(task, before, Position.after(order or before), limits)


def _obeying(record: OpenRecord, order: OpenRecord | None) -> OpenRecord:
    """The record of an attempt that obeys a command: what the command says of input and sinks is on record again."""
    if order is None:
        return record
    return replace(
        record,
        obeys=order.obeys,
        moved=order.moved,
        adopted=order.adopted,
        restored_to=order.restored_to,
        restores=order.restores,
    )


def _with_facts(task: TaskTry, record: OpenRecord, before: CompleteRecord | None) -> OpenRecord:
    """The record with what is asked for last: changes by others, versions of states, and the schemas of the input."""
    return replace(
        record,
        warnings=changes_by_others(task, before, record.adopted),
        state=state_tables.pins(task, before, record.adopted),
        schemas=None if record.restored_to else schemas.asked(task),
    )


def _restored_input(task: TaskTry, order: OpenRecord) -> tuple[PlannedEpoch, str, Watermarks]:
    """No input, and the watermarks of the epoch that comes back: the next epoch goes on as the one after that did."""
    record = task.ledger.complete_record(order.restored_to)
    assert record, "complete.json of an epoch is never deleted"
    return PlannedEpoch(ranges=order.ranges, state=order.source_state), task.now(), record.watermarks


def next_input(
    task: TaskTry, before: CompleteRecord | None, position: Position | None, limits: Limits
) -> tuple[PlannedEpoch, str, Watermarks]:
    """The input of a new epoch, when it was planned, and its watermarks. Raises NoNewData if the source has none."""
    source = task.pipeline.source
    if isinstance(source, Preparing):
        writes = {destination for sink in task.pipeline.sinks if (destination := sink.destination())}
        source.prepare(task.pipeline.name, writes, position, task.env)
    planned, waits = _planned(task, before, position, limits)
    now = task.now()
    watermarks = next_watermarks(task.pipeline.event_time, _of_topics_read(task, before), now)
    planned = planned or _tick(task, before, position, watermarks)
    if planned is None:
        raise waits or _no_new_data(task)
    return planned, now, watermarks


def _planned(
    task: TaskTry, before: CompleteRecord | None, position: Position | None, limits: Limits
) -> tuple[PlannedEpoch | None, NoNewData | None]:
    """What the source plans: None if it has no data, or waits for more; then the second value says so."""
    source = task.pipeline.source
    if not isinstance(source, Pacing):
        return source.plan(position, limits, task.env), None
    try:
        return source.plan_paced(position, limits, _past(task, before), task.env), None
    except NoNewData as waits:
        if waits.code is codes.INTERVAL_COVERED:
            raise  # the run's epoch is there already: no epoch for a tick in its place
        return None, waits


def _past(task: TaskTry, before: CompleteRecord | None) -> Past:
    def newest_first() -> Iterator[CompleteRecord]:
        record = before
        while record:
            yield record
            record = task.ledger.complete_record(record.txn_id.epoch - 1)

    return Past(epochs=newest_first, clock=task.clock, interval=task.interval())


def _of_topics_read(task: TaskTry, before: CompleteRecord | None) -> CompleteRecord | None:
    """``before`` without the event times of topics that are no longer read: they would hold the watermark for good."""
    source = task.pipeline.source
    if before is None or not isinstance(source, LeavingOut):
        return before
    read = {topic: times for topic, times in before.event_times.items() if not source.leaves_out(topic)}
    return replace(before, event_times=read)


def _tick(
    task: TaskTry, before: CompleteRecord | None, position: Position | None, watermarks: Watermarks
) -> PlannedEpoch | None:
    """An epoch without input, if that moves a watermark: the windows up to it can close. Else None."""
    event_time = task.pipeline.event_time
    if event_time is None or not event_time.tick or before is None or position is None:
        return None
    earlier = (*before.watermarks, *[None] * event_time.depth)
    moves = watermarks[: event_time.depth] != earlier[: event_time.depth]
    if not moves and not _closes_on(task, before, event_time.depth):
        return None
    return PlannedEpoch(ranges=empty_at_ends(position.ranges), state=position.state)


def _closes_on(task: TaskTry, before: CompleteRecord, depth: int) -> bool:
    """Whether an operator that has moved, or waits for one that has, may close more without new data.

    If the last epoch closed nothing, another one will not either, unless the places have changed since.
    """
    newest, closed = before.watermarks[:1], _closed(task, before)
    if not newest or all(closing.least(*newest, *marks) == newest[0] for marks in closed.values()):
        return False
    changed = closed != _closed(task, task.ledger.complete_record(before.txn_id.epoch - 1))
    return changed or len(before.watermarks) - 1 != depth


def _closed(task: TaskTry, complete: CompleteRecord | None) -> dict[str, Watermarks]:
    """State table of today's DAG -> up to where it was closed after an epoch."""
    names = {sink.name for sink in task.pipeline.sinks if isinstance(sink, Stateful)}
    return {name: closed for name, closed in state_tables.closed_in(complete).items() if name in names}


def _no_new_data(task: TaskTry) -> NoNewData:
    source, name = task.pipeline.source, task.pipeline.name
    if isinstance(source, Explaining) and (why := source.why_nothing(task.env)):
        return NoNewData(
            f"The source has no new data that may be read: {why}.",
            code=codes.NO_NEW_DATA,
            remedy="Do nothing if the producer is still at work: the next run looks again. If the producer is gone, "
            f"run `airflow epochs in-doubt {name}`: it lists the open transactions, and how to end them.",
            pipeline=name,
        )
    return NoNewData("The source has no new data.", code=codes.NO_NEW_DATA, pipeline=name)


def reopen(task: TaskTry, view: EpochView, run: Run, limits: Limits | None = None) -> OpenRecord:
    """Open the next attempt of an aborted epoch: with the same ranges, ``now`` and ``seed``, today's code and sinks.

    The source may move the start of a partition that no epoch has read (``Renewing.again``). After a command, the
    attempt is planned anew from where the command says.

    Raises:
        Fenced: Another run opened the attempt at the same moment.
        Corrupt: A sink disagrees with the ledger, or planned records are gone. Nothing was opened.
        NoNewData: After a command: the source has no data there yet.
        Refused: The code has changed, and must be acknowledged first, or a sink is not ready. Nothing was opened.
    """
    last = view.opened
    if last.command:
        return _open_planned(task, view.number, last.ledger_id, run, limits or Limits(), last)
    before = task.ledger.complete_record(view.number - 1)
    code = code_changes.of_attempt(task, view.number, before, last.restored_to)
    _require_all_restored(task, view.number, last)
    sinks = sink_plans(task, before, last.adopted)
    planned = planned_again(task, last)
    renamed_pipeline.require_new_input(task, view.number, planned, last)
    sinks = with_backfill(task, sinks, view.number, planned, known=known(before, last.adopted), moved=last.moved)
    state_tables.require_whole(task, before, last.adopted)
    preflight.require_ready(task, sinks)
    task.ledger.put_run(last.run, view.number)
    again = TransactionId(task.pipeline.name, view.number, last.txn_id.attempt + 1, task.draw_id())
    return _put_open(
        task,
        replace(
            last,
            txn_id=again,
            ranges=planned.ranges,
            source_state=planned.state,
            source=task.pipeline.source.spec(),
            transform=str(task.pipeline.transform),
            code=code,
            sinks=sinks,
            dag_id=run.dag_id,
            run_id=run.run_id,
            opened_at=task.now(),
            writer=task.writer,
            ledger=task.ledger.root,
            warnings=changes_by_others(task, before, last.adopted),
            state=state_tables.pins(task, before, last.adopted, last.state),
            schemas=schemas.again(task, last),
        ),
        run,
    )


def known(before: CompleteRecord | None, adopted: Mapping[str, TransactionId | None]) -> frozenset[str]:
    """The sinks that have shown an epoch of the pipeline, or were waived in all and that a command takes as they are.

    ``adopt-sink --new-table`` may also name a sink that no epoch had: it says that a new state may begin, no more.
    """
    return frozenset(before.markers).union(adopted.keys() & set(before.waived)) if before else frozenset()


def _require_all_restored(task: TaskTry, epoch: int, last: OpenRecord) -> None:
    """Raise Refused if the DAG lacks a sink whose table goes back: the sink would get its rows twice later."""
    lacking = sorted(last.restores.keys() - {sink.name for sink in task.pipeline.sinks})
    if not lacking:
        return
    commands = ", ".join(f"`airflow epochs adopt-sink {task.pipeline.name} {name} --why …`" for name in lacking)
    raise Refused(
        f"The epoch brings the tables of epoch {last.restored_to} back, and the DAG has no sink {', '.join(lacking)}, "
        "whose table goes back too. Either all these tables go back, or no table does. Nothing was opened.",
        code=codes.RESTORE_LACKS_SINK,
        remedy="Put the sink back into the DAG, and clear the failed task. When the epoch is complete, you may remove "
        f"the sink. But if the table of a sink is gone, type its command: {commands}. The other tables go back without "
        "it. Then clear the failed task.",
        pipeline=task.pipeline.name,
        epoch=epoch,
    )


def planned_again(task: TaskTry, last: OpenRecord) -> PlannedEpoch:
    """The input of an aborted attempt, for the next one. Raises Corrupt if planned records are gone.

    An attempt that only brings tables back reads nothing, so the source is not asked.
    """
    source = task.pipeline.source
    if last.restored_to:
        return PlannedEpoch(ranges=last.ranges, state=last.source_state)
    if isinstance(source, Renewing):
        return source.again(last.ranges, last.source_state, task.env)
    source.check(last.ranges, last.source_state, task.env)
    return PlannedEpoch(ranges=last.ranges, state=last.source_state)


def _put_open(task: TaskTry, record: OpenRecord, run: Run) -> OpenRecord:
    task.env.reached("open.put")
    standing = task.ledger.put(record)
    if standing.writer != record.writer:
        raise task.fenced(standing, run)
    task.env.reached("open.landed")
    task.ledger.put_run(run, record.txn_id.epoch)
    log.info("epoch %s: VOTE_REQUEST %s", record.txn_id.epoch, record.txn_id)
    if record.watermarks and record.watermarks[0] is not None:
        log.info("epoch %s: the watermark is %s", record.txn_id.epoch, instant(record.watermarks[0]).isoformat())
    return standing


def sink_plans(
    task: TaskTry, before: CompleteRecord | None, adopted: Mapping[str, TransactionId | None]
) -> dict[str, SinkPlan]:
    """A plan for each sink of today's DAG, with its previous transaction. Raises Corrupt unless the sink shows that.

    ``adopted``: as in ``OpenRecord``. If several sinks do not, it raises for the first, and logs the errors of the
    others, so one look shows all of them.
    """
    plans: dict[str, SinkPlan] = {}
    errors: list[EpochError] = []
    for sink in task.pipeline.sinks:
        try:
            with located(task.pipeline.name, sink=sink.name):
                plans[sink.name] = sink_plan(task, sink, before, adopted)
        except EpochError as error:
            if not errors and not isinstance(error, Corrupt):
                raise
            errors.append(error)
    for other in errors[1:]:
        log.error("another sink cannot be opened either: %s", other)
    if errors:
        raise errors[0]
    return plans


def sink_plan(
    task: TaskTry, sink: Sink, before: CompleteRecord | None, adopted: Mapping[str, TransactionId | None]
) -> SinkPlan:
    """The plan for one sink of today's DAG: as ``sink_plans``."""
    known = sink.name not in adopted
    previous = previous_of(task, sink, before) if known else adopted[sink.name]
    if known:
        receipt = before.receipts.get(sink.name) if before else None
        agreement.require_marker(sink, previous, task.pipeline.name, task.env, receipt)
        agreement.require_own_place(sink, before, task.pipeline.sinks, task.env)
    else:
        agreement.require_adopted(sink, previous, task.pipeline.name, task.env)
    spec = sink_specs.readable_spec(sink, task.pipeline, is_new=previous is None)
    if previous is None:
        sink_specs.require_kind(sink)
    return SinkPlan(spec=spec, previous=previous, stored=_stored(task, sink.name, previous))


def _stored(task: TaskTry, sink: str, previous: TransactionId | None) -> tuple[str, ...]:
    """The columns that the sink stored in its previous epoch; empty if no receipt tells."""
    record = task.ledger.complete_record(previous.epoch) if previous else None
    receipt = record.receipts.get(sink) if record else None
    known = receipt is not None and receipt.txn_id == previous
    return tuple(receipt.detail.get(STORED, ())) if receipt and known else ()


def changes_by_others(
    task: TaskTry, before: CompleteRecord | None, adopted: Mapping[str, TransactionId | None]
) -> tuple[str, ...]:
    """Changes by other writers to rows of complete epochs, one sentence each, without those in an earlier record.

    A sink in ``adopted`` was taken as it is, so its changes are known.
    """
    if before is None:
        return ()
    opened = task.ledger.open_record(before.txn_id.epoch, before.txn_id.attempt)
    told, adopted_then = (opened.warnings, opened.adopted) if opened else ((), {})
    earlier = task.ledger.complete_record(before.txn_id.epoch - 1) if before.txn_id.epoch > 1 else None
    found: list[str] = []
    for sink in (sink for sink in task.pipeline.sinks if sink.name not in adopted):
        # Since the epoch before ``before``: changes during ``before`` came too late for its own open record. Unless
        # the sink was adopted in ``before``: an earlier receipt may be of another table.
        known = earlier.receipts.get(sink.name) if earlier and sink.name not in adopted_then else None
        receipt = known or before.receipts.get(sink.name)
        if receipt and isinstance(sink, Watching):
            found += sink.foreign_changes(receipt, task.pipeline.name, told, task.env)
    for change in found:
        log.warning("another writer changed rows of complete epochs: %s", change)
    return tuple(map(secrecy.scrubbed, found))


def previous_of(task: TaskTry, sink: Sink, before: CompleteRecord | None) -> TransactionId | None:
    """The transaction that the sink should show. A waived sink may have lost its table, or committed late.

    Or it shows a fence.
    """
    if before and sink.name in before.waived:
        found = sink_calls.marker_of(sink, task.pipeline.name, task.env)
        if found is None:
            return None
        if late := agreement.waived_in(found, before.may_show(sink.name)):
            return late
    return before.markers.get(sink.name) if before else None
