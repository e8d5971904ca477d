"""A preview: runs today's code on the next records of the source, and shows what each sink would get.

Nothing is opened, decided or committed, so the next epoch takes the same records, from where a command has moved it.
The rows are staged as ``coordinator.unpublished`` says. The sinks' tables and topics need not exist yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from airflow_epochs import codes
from airflow_epochs.contracts import Limits, Position, Sampling, SinkAttempt, StagedSample
from airflow_epochs.coordinator import opening, schemas, state_tables
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.coordinator.unpublished import clear_away, staged
from airflow_epochs.errors import NoNewData, NotApplied, Refused
from airflow_epochs.ledger.queries import order_in_force
from airflow_epochs.model import OpenRecord, Ranges, SinkPlan, StageReport, TransactionId, seed_of
from airflow_epochs.names import DRY_RUN


@dataclass(frozen=True, kw_only=True)
class SinkPreview:
    """What one sink would get.

    Attributes:
        rows: How many rows were staged; None if that is not known.
        sample: Their columns, and some of them; None if there are none to show.
        problem: Why the sink would vote against these rows; None if nothing speaks against them.
        broken: Condition of an expectation -> how many rows break it.
        dead_letters: How many rows became dead letters.
    """

    sink: str
    rows: int | None
    sample: StagedSample | None
    problem: str | None
    broken: Mapping[str, int] = field(default_factory=dict)
    dead_letters: int = 0


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What came of a preview. ``ranges``: the input, half-open."""

    pipeline: str
    epoch: int
    ranges: Ranges
    sinks: tuple[SinkPreview, ...]
    warnings: tuple[str, ...]


def preview(task: TaskTry, records: int, sample: int) -> Preview:
    """Stage the next records, at most ``records``, and show at most ``sample`` rows of each sink. Publishes nothing.

    Raises:
        NoNewData: The source has no record that no epoch has read.
        Refused: The transform, or the pipeline's definition, is wrong; or the next epoch only brings tables back.
        NotApplied: Spark failed, or the source does not answer.
    """
    clear_away(task)
    played = _played(task, records)
    with staged(task, played) as report:
        return Preview(
            pipeline=task.pipeline.name,
            epoch=played.txn.epoch,
            ranges=played.ranges,
            sinks=tuple(_of(task, played, report, name, sample) for name in sorted(played.sinks)),
            warnings=report.warnings,
        )


def _played(task: TaskTry, records: int) -> OpenRecord:
    """An attempt at the next epoch, which belongs to no ledger."""
    name, view = task.pipeline.name, task.ledger.view_of_next()
    before, order = task.ledger.complete_record(view.number - 1), order_in_force(task.ledger, view)
    if order and order.restored_to:
        raise _brings_back(order)
    limits = Limits(max_records=records, min_records=1, wait_at_most=0)
    try:
        planned, now, watermarks = opening.next_input(task, before, Position.after(order or before), limits)
    except NoNewData as nothing:
        nothing.remedy = (
            f"Send records to the source. Or play a complete epoch: `airflow epochs dry-run {name} --epoch N`."
        )
        raise
    ledger_id = f"{DRY_RUN}{task.draw_id()}"
    pins = state_tables.pins(task, before, order.adopted if order else {})
    return OpenRecord(
        txn_id=str(TransactionId(name, view.number, 1, task.draw_id())),
        ledger_id=ledger_id,
        ranges=planned.ranges,
        source=task.pipeline.source.spec(),
        source_state=planned.state,
        transform=str(task.pipeline.transform),
        code=task.pipeline.transform.digest,
        sinks={sink.name: SinkPlan(spec=sink.spec(), previous=None) for sink in task.pipeline.sinks},
        dag_id=task.pipeline.dag_id,
        run_id="preview",
        now=now,
        seed=seed_of(name, view.number, ledger_id),
        opened_at=now,
        writer=task.writer,
        ledger=task.ledger.root,
        watermarks=watermarks,
        state={sink: replace(pin, fold=False) for sink, pin in pins.items()},
        schemas=schemas.asked(task),
    )


def _brings_back(order: OpenRecord) -> Refused:
    return Refused(
        f"The next epoch brings the tables of epoch {order.restored_to} back, and reads no input. So there is nothing "
        "to preview.",
        code=codes.DRY_RUN_UNSUITABLE,
        remedy="Let a run obey the command: start one. When that epoch is complete, type the command again.",
        pipeline=order.txn.pipeline,
        epoch=order.txn.epoch,
    )


def _of(task: TaskTry, played: OpenRecord, report: StageReport, name: str, most: int) -> SinkPreview:
    claim = report.claims[name]
    found = SinkPreview(
        sink=name,
        rows=int(claim.content["rows"]) if claim.content else None,
        sample=None,
        problem=claim.problem or claim.unmet,
        broken=report.metrics.get("broken", {}).get(name, {}),
        dead_letters=report.metrics.get("dead_letters", {}).get(name, 0),
    )
    sink = task.sink_of(played, name)
    if claim.problem or not isinstance(sink, Sampling):
        return found
    try:
        seen = sink.sample(SinkAttempt.of(played, name), claim.place, most, task.env)
    except NotApplied as no:
        return replace(found, problem=found.problem or no.reason)
    return replace(found, rows=seen.count, sample=seen)
