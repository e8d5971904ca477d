"""Carries a plan out: two records. A command that was killed has changed nothing that counts, and can be typed again.

``RebuiltRecord`` comes first. The completion record of the newest epoch, from which the next one goes on, comes last
and puts the other one in force.
"""

from __future__ import annotations

from airflow_epochs import codes
from airflow_epochs.config import Pipeline
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.rebuilding import planning
from airflow_epochs.coordinator.rebuilding.evidence import Told
from airflow_epochs.coordinator.rebuilding.planning import Plan
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused, located
from airflow_epochs.model import CompleteRecord, RebuiltRecord, Run, Watermarks

COMMAND = "airflow epochs rebuild"
"""Stands for the run in the completion record that the command puts."""


def carry_out(task: TaskTry, planned: Plan, *, by: Account) -> RebuiltRecord:
    """Record what was planned. A repeat after a crash records the same again, and nothing that counts twice.

    ``task`` is not the one that made the plan, so that it reads everything anew.

    Raises:
        Refused: The ledger or a sink has changed since. Nothing that counts was put.
    """
    with located(task.pipeline.name):
        if planning.plan(task, planned.without, planned.told) != planned:
            raise _changed(planned)
        task.ledger.register(planned.dag_id, at=by.at, writer=task.writer)
        task.env.reached("rebuild.put")
        record = _record(planned, task.pipeline, task.writer, by)
        if task.ledger.put(record).writer != task.writer:
            raise _changed(planned)
        task.env.reached("rebuild.complete.put")
        if task.ledger.put(_completion(planned, task.writer, by)).txn_id != planned.txn:
            raise _changed(planned)
        return record


def _changed(planned: Plan) -> Refused:
    return Refused(
        "The ledger or a sink has changed while the command was at work: a run of the pipeline, or another such "
        "command. Nothing that counts was recorded.",
        code=codes.LEDGER_CHANGED,
        pipeline=planned.pipeline,
    )


def _record(planned: Plan, today: Pipeline, writer: str, by: Account) -> RebuiltRecord:
    return RebuiltRecord(
        pipeline=planned.pipeline,
        number=planned.number,
        txn_id=planned.txn,
        backfill_from=planned.input.backfill_from,
        dag_id=planned.dag_id,
        source=today.source.spec(),
        transform=str(today.transform),
        sinks={sink.name: sink.spec() for sink in today.sinks if sink.name in planned.shown},
        without={name: left.marker.epoch if left else 0 for name, left in planned.without.items()},
        writer=writer,
        **by.fields,
    )


def _as_watermarks(told: Told) -> Watermarks:
    return () if told.watermark is None else (told.watermark,)


def _completion(planned: Plan, writer: str, by: Account) -> CompleteRecord:
    """The completion record of the newest epoch: as much as the sinks tell."""
    run = Run(planned.dag_id, COMMAND)
    timed = next((each for each in planned.shown.values() if each.watermarks), None)
    return CompleteRecord(
        txn_id=planned.txn,
        ranges=planned.input.ranges,
        source_state=planned.input.source_state,
        receipts={name: each.receipt for name, each in planned.shown.items() if each.receipt},
        markers={**planned.carried, **dict.fromkeys(planned.shown, planned.txn)},
        opened_by=run,
        completed_by=run,
        metrics={},
        completed_at=by.at,
        writer=writer,
        watermarks=timed.watermarks if timed else _as_watermarks(planned.told),
        event_times=timed.event_times if timed else {},
        moved_in=planned.input.moved_in,
        adopted_in=dict(planned.adopted_in),
    )
