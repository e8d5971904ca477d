"""The orders DAG on a real scheduler, broker, Spark and Delta tables: epochs, clears, one row per record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from orders_demo.feed import Feed
from orders_demo.verify import Verdict, verify
from orders_demo.watch import DAG, PIPELINE, Watch
from stack.jars import Jars
from stack.whole import Stack

pytestmark = [pytest.mark.jvm, pytest.mark.e2e, pytest.mark.timeout(600)]

ORDERS = 9_000
EPOCH_RECORDS_MAX = 4_000
STEPS = ("open", "stage", "vote", "commit.orders", "commit.rejected", "abort", "complete")
DEADLINE_S = 180.0


@dataclass
class Running:
    """A running stack and all orders produced so far."""

    stack: Stack
    watch: Watch
    places: list[tuple[int, int]]

    def produce(self, total: int, seed: int) -> None:
        feed = Feed(self.stack.broker.bootstrap, total=total, at_once=total, per_s=total, seed=seed)
        feed.start()
        feed.finish()
        self.places += feed.places

    def verdict(self) -> Verdict:
        places = self.stack.folder / "produced.csv"
        places.write_text("partition,offset\n" + "".join(f"{p},{o}\n" for p, o in self.places))
        return verify(self.stack.lake, places)

    def tasks(self, run_id: str) -> dict[str, str]:
        found = self.watch.get(f"dags/{DAG}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {task["task_id"].removeprefix(f"{PIPELINE}."): task["state"] for task in found}

    def run_state(self, run_id: str) -> str:
        return str(self.watch.get(f"dags/{DAG}/dagRuns/{run_id}")["state"])

    def clear(self, run_id: str, *steps: str) -> None:
        """Clear tasks as a user does, and wait for the run to end again."""
        body: dict[str, Any] = {"dry_run": False, "dag_run_id": run_id, "only_failed": False, "reset_dag_runs": True}
        body["task_ids"] = [f"{PIPELINE}.{step}" for step in steps]
        assert self.watch.post(f"dags/{DAG}/clearTaskInstances", body)["total_entries"] == len(steps)
        wait_for(lambda: self.run_state(run_id) in ("success", "failed"))


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE_S:.0f} s"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, jars: Jars) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("stack")
    # a cleared run waits for the active one, which waits for new orders
    settings = {"ORDERS_MAX_RECORDS": str(EPOCH_RECORDS_MAX), "ORDERS_MAX_WAIT": "1"}
    with Stack(folder, jars, env=settings) as stack:
        state = stack.state
        running = Running(stack, Watch(state.airflow, state.bootstrap, state.ledger), [])
        running.produce(ORDERS, seed=1)
        wait_for(running.watch.consumed)
        yield running


def finished_run(running: Running) -> str:
    """The run of the newest complete epoch, after its end."""
    newest = running.watch.ledger.complete_record(running.watch.ledger.newest_complete())
    assert newest is not None
    wait_for(lambda: running.run_state(newest.opened_by.run_id) == "success")
    return newest.opened_by.run_id


def test_every_order_is_in_exactly_one_row_after_several_epochs(running: Running) -> None:
    verdict = running.verdict()
    assert verdict.exactly_once, str(verdict)
    assert 0 < verdict.rejected < ORDERS / 10
    assert running.watch.ledger.newest_complete() >= ORDERS // EPOCH_RECORDS_MAX + 1


def test_tasks_of_a_finished_run_end_as_they_should(running: Running) -> None:
    states = running.tasks(finished_run(running))
    assert states == {step: "skipped" if step == "abort" else "success" for step in STEPS}


@pytest.mark.parametrize("step", STEPS)
def test_clearing_any_single_task_of_a_finished_run_changes_no_row(running: Running, step: str) -> None:
    run_id, epochs, before = finished_run(running), running.watch.ledger.newest_complete(), running.verdict()
    running.clear(run_id, step)
    assert running.run_state(run_id) == "success", running.tasks(run_id)
    assert (running.verdict(), running.watch.ledger.newest_complete()) == (before, epochs)


def test_clearing_a_whole_finished_run_changes_no_row_and_new_orders_are_still_taken(running: Running) -> None:
    run_id, epochs = finished_run(running), running.watch.ledger.newest_complete()
    running.clear(run_id, *STEPS)
    assert running.run_state(run_id) == "success", running.tasks(run_id)
    assert running.watch.ledger.newest_complete() == epochs
    running.produce(500, seed=2)
    wait_for(running.watch.consumed)
    verdict = running.verdict()
    assert verdict.exactly_once and verdict.produced == ORDERS + 500, str(verdict)


def test_a_dag_scheduled_on_the_table_runs_with_epoch_rows_and_version(running: Running) -> None:
    def reported() -> list[dict[str, Any]]:
        runs = running.watch.get("dags/orders_report/dagRuns")["dag_runs"]
        done = [run["dag_run_id"] for run in runs if run["state"] == "success"]
        path = "dags/orders_report/dagRuns/{}/taskInstances/report/xcomEntries/return_value"
        return [event for run in done for event in running.watch.get(path.format(run))["value"]]

    wait_for(lambda: bool(reported()))
    for event in reported():
        record = running.watch.ledger.complete_record(event["epoch"])
        assert record and event["rows"] == record.receipts["orders"].rows
        assert event["version"] == record.receipts["orders"].version


def test_the_same_orders_go_through_spark_submit_exactly_once(running: Running) -> None:
    dag, run_id = "orders_submit", "by_hand"
    running.watch.post(f"dags/{dag}/dagRuns", {"dag_run_id": run_id, "logical_date": None})
    wait_for(lambda: running.watch.get(f"dags/{dag}/dagRuns/{run_id}")["state"] in ("success", "failed"))
    tasks = running.watch.get(f"dags/{dag}/dagRuns/{run_id}/taskInstances")["task_instances"]
    states = {task["task_id"].removeprefix(f"{dag}."): task["state"] for task in tasks}
    assert states == {step: "skipped" if step == "abort" else "success" for step in STEPS}
    verdict = verify(running.stack.lake / "submit", running.stack.folder / "produced.csv")
    assert verdict.exactly_once, str(verdict)
