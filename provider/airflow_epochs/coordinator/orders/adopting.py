"""Where a new pipeline begins, by an operator's command: at the offsets of the reader whose work it takes over.

The command is attempt 1 of epoch 1, as ``orders`` puts commands of later epochs. So it competes with the ``open`` of a
first run for one record: the run obeys the command, or the command is refused.
"""

from __future__ import annotations

from airflow_epochs import codes
from airflow_epochs.contracts import Move
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.opening import sink_plans
from airflow_epochs.coordinator.orders import orders
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.model import OpenRecord, PipelineRecord, TransactionId, seed_of
from airflow_epochs.protocol import State

FIRST = 1


def require_new(task: TaskTry) -> int:
    """The newest attempt of epoch 1, which holds such a command; 0: there is none. Reads only.

    Raises:
        Refused: The pipeline has opened an epoch, or belongs to another DAG.
        Corrupt: A sink shows an epoch of this pipeline, so the ledger was lost.
    """
    view, identity = task.ledger.view_of_next(), task.ledger.identity()
    if identity:
        task.ledger.require_owned_by(task.pipeline.dag_id, identity)
    task.ledger.require_no_gap(view.number)
    if view.number != FIRST or not (view.state is State.NEW or view.opened.command):
        raise Refused(
            f"The pipeline has opened epoch {view.number if view.open else view.number - 1}. The command says where a "
            "new pipeline begins. Nothing was changed.",
            code=codes.PIPELINE_NOT_NEW,
            pipeline=task.pipeline.name,
        )
    sink_plans(task, None, {})
    return view.epoch.attempt


def adopt(task: TaskTry, attempt: int, name: str, by: Account, move: Move) -> OpenRecord:
    """Record where the pipeline begins. ``attempt``: as ``require_new`` told before the operator was asked.

    A command that was killed before its last put has registered the pipeline at most, and can be typed again.

    Raises:
        Refused: A run, or another command, was first. Nothing was changed.
    """
    identity = task.ledger.register(task.pipeline.dag_id, at=by.at, writer=task.writer)
    task.env.reached("adopt.put")
    at = orders.BetweenEpochs(
        epoch=FIRST, attempt=attempt, newest=_of_today(task, identity, by), before=None, order=None
    )
    return orders.put(task.ledger, at, name, by, move)


def _of_today(task: TaskTry, identity: PipelineRecord, by: Account) -> OpenRecord:
    """The pipeline as its DAG defines it, in the form of an attempt that was never opened."""
    name = task.pipeline.name
    return OpenRecord(
        txn_id=TransactionId(name, FIRST, 1, task.draw_id()),
        ledger_id=identity.ledger_id,
        ranges={},
        source=task.pipeline.source.spec(),
        source_state={},
        transform=str(task.pipeline.transform),
        sinks=sink_plans(task, None, {}),
        dag_id=task.pipeline.dag_id,
        run_id="",
        now=by.at,
        seed=seed_of(name, FIRST, identity.ledger_id),
        opened_at=by.at,
        writer=task.writer,
    )
