"""A preview: runs today's code on the next records of the source, and shows what each sink would get.

Nothing is opened, decided or committed, so the next attempt takes the same records: the records of an aborted attempt,
or those after the newest complete epoch, or from where a command has moved the pipeline.
The rows are staged as ``coordinator.inspection.unpublished`` says. The sinks' tables and topics need not exist yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from airflow_epochs import codes
from airflow_epochs.contracts import (
    Limits,
    PlannedEpoch,
    Position,
    Sampling,
    SinkAttempt,
    StagedSample,
    Versioned,
    is_by_interval,
)
from airflow_epochs.coordinator import opening, schemas, sink_specs, state_tables
from airflow_epochs.coordinator.inspection.unpublished import clear_away, staged
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import NoNewData, NotApplied, Refused
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import (
    CompleteRecord,
    OpenRecord,
    Ranges,
    SinkPlan,
    StageReport,
    TransactionId,
    Watermarks,
    seed_of,
)
from airflow_epochs.names import DRY_RUN
from airflow_epochs.protocol import State


@dataclass(frozen=True, kw_only=True)
class SinkPreview:
    """What one sink would get.

    Attributes:
        rows: How many rows were staged; None if that is not known.
        sample: Their columns, and some of the rows; None if there are no rows to show.
        problem: Why the sink would vote against these rows; None if nothing was found without asking it.
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
        Refused: The transform, or the pipeline's definition, is wrong; or an epoch is open or in doubt, only brings
            tables back, or has the data interval of its run.
        NotApplied: Spark failed, or the source does not answer.
    """
    clear_away(task)
    view = task.ledger.view_of_next()
    played = _played(task, view, records)
    with staged(task, played) as report:
        return Preview(
            pipeline=task.pipeline.name,
            epoch=played.txn_id.epoch,
            ranges=played.ranges,
            sinks=tuple(_of(task, played, report, name, sample) for name in sorted(played.sinks)),
            warnings=(*_unbounded(task, view), *report.warnings),
        )


def _played(task: TaskTry, view: EpochView, records: int) -> OpenRecord:
    """The attempt that the next run opens, but for its ids: it belongs to no ledger."""
    _require_to_come(task, view)
    name, ledger_id = task.pipeline.name, f"{DRY_RUN}{task.draw_id()}"
    before, again = task.ledger.complete_record(view.number - 1), _same_input(view)
    planned, now, watermarks = _input_again(task, again) if again else _next_input(task, view, before, records)
    pins = state_tables.pins(task, before, view.open.adopted if view.open else {}, again.state if again else None)
    return OpenRecord(
        txn_id=TransactionId(name, view.number, 1, task.draw_id()),
        ledger_id=ledger_id,
        ranges=planned.ranges,
        source=task.pipeline.source.spec(),
        source_state=planned.state,
        transform=str(task.pipeline.transform),
        code=task.pipeline.transform.digest,
        sinks={
            sink.name: SinkPlan(spec=sink_specs.readable_spec(sink, task.pipeline), previous=None)
            for sink in task.pipeline.sinks
        },
        dag_id=task.pipeline.dag_id,
        run_id="preview",
        now=now,
        seed=again.seed if again else seed_of(name, view.number, ledger_id),
        opened_at=task.now(),
        writer=task.writer,
        ledger=task.ledger.root,
        watermarks=watermarks,
        state={sink: replace(pin, fold=False) for sink, pin in pins.items()},
        schemas=schemas.again(task, again, on_record=False) if again else schemas.asked(task, on_record=False),
    )


def _same_input(view: EpochView) -> OpenRecord | None:
    """The aborted attempt whose input the next one takes again; None: the next one is planned anew."""
    return view.open if view.open and not view.open.command else None


def _input_again(task: TaskTry, last: OpenRecord) -> tuple[PlannedEpoch, str, Watermarks]:
    return opening.planned_again(task, last), last.now, last.watermarks


def _next_input(
    task: TaskTry, view: EpochView, before: CompleteRecord | None, records: int
) -> tuple[PlannedEpoch, str, Watermarks]:
    """The input of a new epoch, of at most ``records`` records if the source counts them."""
    source, name = task.pipeline.source, task.pipeline.name
    if is_by_interval(source):
        raise _has_no_interval(task, view.number)
    of_versions = isinstance(source, Versioned)
    limits = Limits(wait_at_most=0) if of_versions else Limits(max_records=records, min_records=1, wait_at_most=0)
    try:
        return opening.next_input(task, before, Position.after(view.open or before), limits)
    except NoNewData as nothing:
        nothing.remedy = (
            f"Send records to the source. Or play a complete epoch: `airflow epochs dry-run {name} --epoch N`."
        )
        raise


def _unbounded(task: TaskTry, view: EpochView) -> tuple[str, ...]:
    """Why the preview may have read more records than it was asked for."""
    if _same_input(view):
        return (f"Epoch {view.number} was aborted. These are all of its records, whatever --records says.",)
    if isinstance(task.pipeline.source, Versioned):
        return ("The source has versions, and no records to count. These are an epoch's, whatever --records says.",)
    return ()


# -- what cannot be shown ---------------------------------------------------------------------------------------------


def _require_to_come(task: TaskTry, view: EpochView) -> None:
    """Raise Refused unless today's code can run on the input of the next attempt."""
    if view.state in (State.OPEN, State.IN_DOUBT):
        raise _not_to_come(task, view)
    if view.open and view.open.restored_to:
        raise _brings_back(view.open)


_TO_FINISH = (
    "Type `airflow epochs retry PIPELINE --why …`, or start a run: the epoch is then completed. Then type the command "
    "again."
)
_TO_LOOK_FIRST = (  # a run would publish what the user wants to see before
    "Type `airflow epochs pause PIPELINE --why …`, so that no other run takes the records. If a run is at work, mark "
    "it as failed in Airflow. If the epoch is still open then, type `airflow epochs abort PIPELINE --why …`: the next "
    "attempt takes the same records. Then type the command again. `airflow epochs unpause PIPELINE --why …` ends the "
    "pause."
)


def _not_to_come(task: TaskTry, view: EpochView) -> Refused:
    return Refused(
        f"Epoch {view.number} is {view.state.value}: {view.opened.run} has taken its records. A preview shows records "
        "that no run has taken.",
        code=codes.DRY_RUN_UNFINISHED,
        remedy=_TO_FINISH if view.state is State.IN_DOUBT else _TO_LOOK_FIRST,
        pipeline=task.pipeline.name,
        epoch=view.number,
    )


def _has_no_interval(task: TaskTry, epoch: int) -> Refused:
    name = task.pipeline.name
    return Refused(
        "The epochs of the source have the data intervals of their runs, and a preview has no run. So there is nothing "
        "to preview.",
        code=codes.DRY_RUN_UNSUITABLE,
        remedy=f"Let a run complete an epoch, and play that: `airflow epochs dry-run {name} --epoch N`. To see rows "
        "before the first run, call the transform in a test: see docs/testing.md.",
        pipeline=name,
        epoch=epoch,
    )


def _brings_back(order: OpenRecord) -> Refused:
    return Refused(
        f"The next epoch brings the tables of epoch {order.restored_to} back, and reads no input. So there is nothing "
        "to preview.",
        code=codes.DRY_RUN_UNSUITABLE,
        remedy="Let a run obey the command: start one. When that epoch is complete, type the command again.",
        pipeline=order.txn_id.pipeline,
        epoch=order.txn_id.epoch,
    )


# -- what is shown ----------------------------------------------------------------------------------------------------


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
    sink, attempt = task.sink_of(played, name), SinkAttempt.of(played, name)
    if claim.problem or not isinstance(sink, Sampling):
        return found
    try:
        seen = sink.sample(attempt, claim.place, most, task.env)
    except NotApplied as no:
        return replace(found, problem=found.problem or no.reason)
    return replace(found, rows=seen.count, sample=seen, problem=found.problem or seen.problem)
