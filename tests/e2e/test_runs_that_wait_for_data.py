"""Runs that wait for data in a real triggerer, and runs that waiting data starts, on a real scheduler."""

from __future__ import annotations

import pytest

from tests.support.running_stack import DEADLINE_S, ENOUGH, STEPS, RunningStack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]
DONE = {step: "skipped" if step == "abort" else "success" for step in STEPS}


def assert_once(running: RunningStack, folder: str) -> None:
    """Every order that was produced is in exactly one row there."""
    verdict = running.verdict(running.stack.lake / folder)
    assert verdict.exactly_once, str(verdict)


def test_a_run_waits_in_the_triggerer_for_enough_orders_and_then_takes_each_once(running: RunningStack) -> None:
    dag = "waits"
    assert running.trigger(dag, "enough_is_there") == "success"
    running.api.trigger(dag, "too_few")
    running.wait_state(dag, "too_few", "open", "deferred")
    running.produce(ENOUGH - 1, seed=11)
    running.produce(1, seed=12)
    assert running.wait_ended(dag, "too_few") == "success"
    assert running.tasks(dag, "too_few") == DONE
    assert_once(running, dag)


def test_enough_waiting_orders_start_a_run_which_takes_each_once(running: RunningStack) -> None:
    dag, lake = "orders_as_they_come", "as_they_come"

    def successes() -> int:
        return len(running.api.runs(dag, "success"))

    running.unpause(dag)
    wait_until(lambda: successes() == 1, DEADLINE_S)
    running.produce(ENOUGH, seed=13)
    wait_until(lambda: successes() == 2, DEADLINE_S)
    assert {run["run_type"] for run in running.api.runs(dag)} == {"asset_triggered"}
    assert_once(running, lake)
    running.api.pause(dag)  # its runs would take what other tests produce
