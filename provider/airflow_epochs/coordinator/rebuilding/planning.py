"""Makes the plan of a rebuilding: asks sinks and ledger, lets what they tell be judged, and changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from airflow_epochs.contracts import LastEpoch, Stateful
from airflow_epochs.coordinator.rebuilding.evidence import Told, is_behind, last_epochs, newest_without_gap
from airflow_epochs.coordinator.rebuilding.newest_input import NewestInput, newest_input
from airflow_epochs.coordinator.rebuilding.requirements import (
    require_fitting,
    require_own,
    require_read,
    require_recoverable,
)
from airflow_epochs.coordinator.rebuilding.transaction import (
    common_transaction,
    require_all_at_newest,
    require_can_be_left_out,
)
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import located
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import TransactionId, adopted_in


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the command will record.

    Attributes:
        number: The number of the record, the next one.
        is_new: Whether the ledger does not have the pipeline: it is registered anew.
        newest: The newest epoch that the ledger has complete, without a gap before it; 0 if there is none.
        txn: The transaction that all sinks of ``shown`` show.
        shown: The sinks that the plan rests on.
        without: The sinks that are left out, with what they show.
        anew: The state tables in ``without`` that have no rows: they begin anew.
        told: What an operator said because no sink knows it.
        input: The input of the epoch that the sinks show.
        carried: The markers of sinks that today's DAG does not have, as far as the ledger knows them.
        adopted_in: As in ``CompleteRecord``, as far as the ledger knows it.
    """

    pipeline: str
    dag_id: str
    number: int
    is_new: bool
    newest: int
    txn: TransactionId
    shown: Mapping[str, LastEpoch]
    without: Mapping[str, LastEpoch | None]
    anew: frozenset[str]
    told: Told
    input: NewestInput
    carried: Mapping[str, TransactionId]
    adopted_in: Mapping[str, int] = field(default_factory=dict)


def plan(task: TaskTry, without: Collection[str] = (), told: Told | None = None) -> Plan | None:
    """What there is to record; None if no sink shows a later epoch than the ledger has. Changes nothing.

    Args:
        task: It has today's pipeline.
        without: The sinks that the rebuilding shall not rest on.
        told: What an operator says. Counts only where no sink stored it.

    Raises:
        Refused: The sinks do not show one transaction, or what they show is not enough; or the ledger has records that
            do not fit.
        Corrupt: The marker of a sink is of rows in another place.
    """
    with located(task.pipeline.name):
        return _plan(task, frozenset(without), told or Told())


def _plan(task: TaskTry, without: frozenset[str], told: Told) -> Plan | None:
    ledger, identity = task.ledger, task.ledger.identity()
    if identity:
        ledger.require_owned_by(task.pipeline.dag_id, identity)
    completed = ledger.epochs_completed()
    newest, shows = newest_without_gap(completed, ledger.rebuilt_to), last_epochs(task, without)
    if not is_behind(ledger, newest, shows):
        return None
    require_can_be_left_out(task.pipeline, without, shows)
    shown = {name: each for name, each in shows.items() if name not in without and each}
    require_own(shown)
    require_all_at_newest(task.pipeline, without, shows)
    txn = common_transaction(task.pipeline, shown)
    told = told.where_unknown(shown)
    require_read(task.pipeline.source, told.ends)
    require_recoverable(task, shown, newest, told)
    require_fitting(ledger, txn, frozenset(shown), has_identity=identity is not None)
    anew = without & {sink.name for sink in task.pipeline.sinks if isinstance(sink, Stateful)}
    ends = next((each.ends for each in shown.values() if each.ends), told.ends)
    return Plan(
        pipeline=task.pipeline.name,
        dag_id=task.pipeline.dag_id,
        number=ledger.rebuildings() + 1,
        is_new=identity is None,
        newest=newest,
        txn=txn,
        shown=shown,
        without={name: shows[name] for name in sorted(without)},
        anew=anew,
        told=told,
        input=newest_input(task, completed, txn, ends, {name: shows[name] for name in without - anew}),
        carried=_carried(ledger, newest, frozenset(shows)),
        adopted_in=_adopted_in(ledger, newest, txn),
    )


def _carried(ledger: Ledger, newest: int, today: frozenset[str]) -> dict[str, TransactionId]:
    before = ledger.complete_record(newest)
    return {name: txn for name, txn in before.markers.items() if name not in today} if before else {}


def _adopted_in(ledger: Ledger, newest: int, txn: TransactionId) -> dict[str, int]:
    """What the newest completion record tells, and what commands asked of the transaction's own attempt."""
    before, opened = ledger.complete_record(newest), ledger.open_record(txn.epoch, txn.attempt)
    if opened and opened.txn_id == txn:
        return adopted_in(opened, before, opened.adopted)
    return dict(before.adopted_in) if before else {}
