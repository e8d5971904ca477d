"""The example with one task for many epochs, on a real scheduler: its task is killed, and then stopped by a person."""

from __future__ import annotations

import psutil
import pytest

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import open_store
from airflow_epochs.protocol import State
from tests.support.running_stack import DEADLINE_S, RunningStack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]
DAG = "orders_continuous"
TASK = f"{DAG}.epochs"


class OneTask:
    """The pipeline ``orders_continuous`` of a running stack."""

    def __init__(self, running: RunningStack) -> None:
        self.running, self.api = running, running.api
        self.ledger = Ledger(open_store(str(running.stack.ledger)), DAG, checked=False)

    def produce_and_wait_for_work(self, total: int, seed: int) -> int:
        """The number of the epoch that takes the new orders, as soon as it is open and while it is undecided."""
        epoch = self.ledger.newest_complete() + 1
        self.running.produce(total, seed)
        wait_until(lambda: self.ledger.view(epoch).state is State.OPEN, DEADLINE_S, "it works on the new orders")
        return epoch

    def shows_all(self) -> bool:
        verdict = self.running.verdict(self.running.stack.lake / "continuous")
        return verdict.exactly_once

    @property
    def run_id(self) -> str:
        (run,) = self.api.runs(DAG, "running")
        return str(run["dag_run_id"])


@pytest.fixture(scope="module")
def one_task(running: RunningStack) -> OneTask:
    """At work: it has completed an epoch."""
    one_task = OneTask(running)
    running.unpause(DAG)
    wait_until(lambda: one_task.ledger.newest_complete() >= 1, DEADLINE_S)
    return one_task


def test_a_task_that_is_killed_in_an_epoch_is_retried_and_takes_each_order_once(one_task: OneTask) -> None:
    api, ledger = one_task.api, one_task.ledger
    epoch = one_task.produce_and_wait_for_work(2_000, seed=21)
    run = one_task.run_id
    psutil.Process(api.task(DAG, run, TASK)["pid"]).kill()
    wait_until(lambda: ledger.newest_complete() >= epoch, DEADLINE_S, "a retry has finished the epoch")
    assert api.task(DAG, run, TASK)["try_number"] == 2
    assert one_task.shows_all()


def test_after_a_run_that_a_person_stopped_the_next_run_takes_each_order_once(one_task: OneTask) -> None:
    epoch = one_task.produce_and_wait_for_work(2_000, seed=22)
    stopped = one_task.run_id
    one_task.api.mark_failed(DAG, stopped)
    one_task.running.read_again(DAG)
    wait_until(lambda: one_task.ledger.newest_complete() >= epoch, DEADLINE_S, "the next run has taken them")
    assert one_task.run_id != stopped
    assert one_task.shows_all()
    one_task.api.pause(DAG)
