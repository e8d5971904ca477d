"""Another run's young attempt is left alone for a while: runs that meet get on, and a dead one holds nobody up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import EpochError
from airflow_epochs.model import Run
from airflow_epochs.protocol import State
from airflow_epochs.testing import MemorySpark, Row
from airflow_epochs.testing.stores import DictStore
from tests.support.scenario import Scenario, in_doubt, nested, run, staged
from tests.support.virtual_time import BEGIN, VirtualTime

WAIT_S = 60.0


class Met(Scenario):
    """A scenario in virtual time."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        super().__init__()
        self.time, self.wait_s, self.random = VirtualTime(), wait_s, Random(1)

    def task(self, stage_s: float = 0.0, meanwhile: Callable[[], None] = lambda: None) -> Coordinator:
        """A task process. ``meanwhile`` happens each time it sleeps."""

        def transform(batch: list[Row], epoch: object) -> list[Row]:
            self.time.sleep(stage_s)
            return batch

        def sleep(seconds: float) -> None:
            meanwhile()
            self.time.sleep(seconds)

        coordinator = self.coordinator(spark=MemorySpark(transform))
        coordinator.task.pipeline = replace(coordinator.task.pipeline, wait_for_others=self.wait_s)
        coordinator.task.clock, coordinator.task.sleep, coordinator.task.jitter = (
            self.time.clock,
            sleep,
            self.random.random,
        )
        return coordinator

    def left_open(self, by: Run) -> None:
        self.task().open(by)

    def runner(self, name: str, stage_s: float, until_s: float, epochs: int = 3) -> Callable[[], None]:
        """One run after the other, as fast as they come; one that fails is over, and the next follows in 10 s."""

        def work() -> None:
            number = 0
            self.time.sleep({"one": 0, "two": 13, "three": 26}[name])
            while self.time.seconds < until_s and self.ledger.newest_complete() < epochs:
                number += 1
                task = self.task(stage_s)
                if self.airflow_run(Run("dag", f"{name}-{number}"), task) is None and name == "one":
                    self.produce(2)
                self.time.sleep(10 + self.random.random())

        return work

    def attempts(self, epoch: int) -> int:
        number = 0
        while self.ledger.open_record(epoch, number + 1):
            number += 1
        return number


@pytest.mark.proof
def test_without_waiting_three_runners_of_one_pipeline_abort_each_other_for_as_long_as_there_are_three() -> None:
    met = Met(wait_s=0)
    met.time.run(*(met.runner(name, stage_s=30, until_s=360) for name in ("one", "two", "three")))
    assert met.attempts(1) > 20
    first = met.ledger.complete_record(1)
    assert first is None or first.completed_at > (BEGIN + timedelta(seconds=360)).isoformat()


@pytest.mark.proof
@pytest.mark.parametrize("stage_s", [1, 30, 55, 200, 700])
def test_three_runners_of_one_pipeline_get_on_however_long_they_stage(stage_s: float) -> None:
    met = Met()
    met.time.run(*(met.runner(name, stage_s, until_s=4 * 3600) for name in ("one", "two", "three")))
    assert met.ledger.newest_complete() >= 3
    most = 1 if stage_s < WAIT_S else 5
    assert [met.attempts(epoch) <= most for epoch in (1, 2, 3)] == [True] * 3
    met.settle()
    met.check_every_row()


def test_an_attempt_that_its_run_completes_meanwhile_is_not_aborted_and_the_next_epoch_is_opened(
    caplog: pytest.LogCaptureFixture,
) -> None:
    met = Met()
    report = staged(met, met.task())

    def goes_on() -> None:
        if met.time.seconds > 20 and met.ledger.newest_complete() == 0:
            first = met.coordinator()
            first.vote(run(1), report)
            first.commit(run(1), "orders")
            first.complete(run(1))

    met.produce(2)
    caplog.set_level("INFO")
    assert met.task(meanwhile=nested(met, goes_on)).open(run(2)).txn_id.epoch == 2
    assert 20 < met.time.seconds < 25
    assert "run run 1 of DAG dag (process " in caplog.text
    assert "waiting up to 60 s for it before it is aborted" in caplog.text


def test_a_run_that_has_decided_gets_time_to_complete_its_epoch_itself() -> None:
    met = Met()
    report = staged(met, met.task())

    def goes_on() -> None:
        first = met.coordinator()
        if met.time.seconds > 40 and met.ledger.view(1).state is State.OPEN:
            first.vote(run(1), report)
        if met.time.seconds > 70 and met.ledger.view(1).state is State.IN_DOUBT:
            first.commit(run(1), "orders")
            first.complete(run(1))

    met.produce(2)
    assert met.task(meanwhile=nested(met, goes_on)).open(run(2)).txn_id.epoch == 2
    record = met.ledger.complete_record(1)
    assert record and record.completed_by == run(1)


def test_an_attempt_of_a_run_that_is_dead_is_aborted_once_the_time_is_up() -> None:
    met = Met()
    met.left_open(run(1))
    met.time.sleep(45)
    again = met.task().open(run(2))
    assert (again.txn_id.epoch, again.txn_id.attempt) == (1, 2)
    assert 60 <= met.time.seconds <= 45 + 15 * 1.5 + 1
    decision = met.ledger.decision_record(1, 1)
    assert decision and "found undecided by run run 2 of DAG dag (process " in decision.reason


@pytest.mark.parametrize("age_s", [60, 61, 100_000])
def test_an_attempt_that_is_not_young_is_aborted_at_once(age_s: float) -> None:
    met = Met()
    met.left_open(run(1))
    met.time.sleep(age_s)
    assert met.task().open(run(2)).txn_id.attempt == 2
    assert met.time.seconds == age_s


def test_a_try_of_stage_is_a_sign_of_life() -> None:
    met = Met()
    met.left_open(run(1))
    met.time.sleep(50)
    met.task().stage(run(1))
    met.time.sleep(50)
    met.task().open(run(2))
    assert met.time.seconds >= 110


def test_a_cleared_run_does_not_wait_for_its_own_attempt() -> None:
    met = Met()
    met.left_open(run(1))
    assert met.task().open(run(1)).txn_id.attempt == 2
    assert met.time.seconds == 0


def test_an_epoch_found_in_doubt_is_rolled_forward_at_once() -> None:
    met = Met()
    in_doubt(met)
    assert met.task().open(run(2)).txn_id.epoch == 1
    assert met.time.seconds == 0


@pytest.mark.parametrize("skew_s", [-86_400, 86_400])
def test_a_clock_that_is_a_day_wrong_makes_the_wait_neither_endless_nor_unsafe(skew_s: float) -> None:
    met = Met()
    met.left_open(run(1))
    late = met.task()
    clock = late.task.clock
    late.task.clock = lambda: clock() + timedelta(seconds=skew_s)
    assert late.open(run(2)).txn_id.attempt == 2
    assert met.time.seconds <= WAIT_S * 1.5 + 1
    met.settle()
    met.check_every_row()


def test_a_ledger_that_does_not_answer_while_it_is_waited_leaves_the_attempt_alone() -> None:
    met = Met()
    met.left_open(run(1))

    class Away(DictStore):
        def get(self, key: str) -> bytes | None:
            self._answer()
            return super().get(key)

        def exists(self, key: str) -> bool:
            self._answer()
            return super().exists(key)

        def _answer(self) -> None:
            if met.time.seconds > 10:
                raise ConnectionError("reset by peer")

    met.world.store.__class__ = Away
    with pytest.raises(EpochError, match="cannot read"):
        met.task().open(run(2))
    met.world.store.__class__ = DictStore
    assert met.ledger.view(1).state is State.OPEN
