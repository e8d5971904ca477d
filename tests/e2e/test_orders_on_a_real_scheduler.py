"""The orders DAG on a real scheduler, broker, Spark and Delta tables: epochs, clears, one row per record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from deltalake import DeltaTable

from orders_demo.watch import DAG
from tests.support.lanes import long_but
from tests.support.running_stack import DEADLINE_S, EPOCH_RECORDS_MAX, ORDERS, STEPS, RunningStack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def taking_orders(running: RunningStack) -> Iterator[None]:
    with running.taking_orders():
        yield


@pytest.fixture(autouse=True)
def consumed(running: RunningStack) -> None:
    """The pipeline has taken all orders, those of other modules too; so no epoch begins while a test compares."""
    wait_until(running.watch.consumed, DEADLINE_S)


def finished_run(running: RunningStack) -> str:
    """The run of the newest complete epoch, after its end."""
    newest = running.watch.ledger.complete_record(running.watch.ledger.newest_complete())
    assert newest is not None
    wait_until(lambda: running.run_state(DAG, newest.opened_by.run_id) == "success", DEADLINE_S)
    return newest.opened_by.run_id


def test_every_order_is_in_exactly_one_row_after_several_epochs(running: RunningStack) -> None:
    verdict = running.verdict()
    assert verdict.exactly_once, str(verdict)
    assert 0 < verdict.rejected < ORDERS / 10
    assert running.watch.ledger.newest_complete() >= ORDERS // EPOCH_RECORDS_MAX + 1


def test_tasks_of_a_finished_run_end_as_they_should(running: RunningStack) -> None:
    states = running.tasks(DAG, finished_run(running))
    assert states == {step: "skipped" if step == "abort" else "success" for step in STEPS}


def test_a_statsd_server_gets_what_the_tables_and_the_ledger_have(running: RunningStack) -> None:
    def differences() -> dict[str, tuple[float | None, float]]:
        told, verdict, newest = running.statsd.told(), running.verdict(), running.watch.ledger.newest_complete()
        expected = {
            "completed": newest,
            "last_complete.epoch": newest,
            "rows.orders": verdict.produced - verdict.rejected,
            "rows.rejected": verdict.rejected,
            "lag.records": 0,
            "in_doubt.count": 0,
        }
        found = {name: told.get(f"orders.{name}") for name in expected}
        return {name: (found[name], value) for name, value in expected.items() if found[name] != value}

    with suppress(AssertionError):
        wait_until(lambda: not differences(), DEADLINE_S)
    assert differences() == {}
    assert running.statsd.told()["orders.phase.duration.stage.all"] > 0


def test_openlineage_tells_each_offset_once_and_the_version_and_rows_that_the_table_has(running: RunningStack) -> None:
    newest = running.watch.ledger.newest_complete()
    wait_until(
        lambda: running.lineage.completed("orders.commit.orders").keys() >= set(range(1, newest + 1)), DEADLINE_S
    )
    events = running.lineage.completed("orders.commit.orders")
    read = [
        (part["partition"], offset)
        for epoch in range(1, newest + 1)
        for source in events[epoch]["inputs"]
        for part in source["inputFacets"]["epochs_ranges"]["ranges"]
        for offset in range(part["start"], part["end"])
    ]
    assert sorted(read) == sorted(running.places)
    place = running.stack.lake / "silver" / "orders"

    def rows_at(version: int) -> int:
        return int(DeltaTable(place, version=version).to_pyarrow_dataset().count_rows()) if version >= 0 else 0

    for event in (events[epoch] for epoch in range(1, newest + 1)):
        [shown] = event["outputs"]
        version = int(shown["facets"]["version"]["datasetVersion"])
        assert (shown["namespace"], shown["name"]) == ("file", str(place))
        assert shown["outputFacets"]["outputStatistics"]["rowCount"] == rows_at(version) - rows_at(version - 1)


def test_a_run_has_a_note_that_says_what_it_did(running: RunningStack) -> None:
    note = running.api.get(f"dags/{DAG}/dagRuns/{finished_run(running)}")["note"]
    assert re.fullmatch(r"epoch \d+: [\d,]+ rows, orders@\d+, rejected@\d+", note or ""), note


def test_every_task_has_buttons_that_lead_to_its_epoch_its_records_and_its_sinks(running: RunningStack) -> None:
    run_id = finished_run(running)
    epoch = running.watch.ledger.newest_complete()
    for step in (step for step in STEPS if step != "abort"):
        links = running.api.get(f"dags/{DAG}/dagRuns/{run_id}/taskInstances/{DAG}.{step}/links")["extra_links"]
        assert links["Epoch"].endswith(f"/epochs/pipelines/epochs_default/orders/epochs/{epoch}"), step
        assert links["Ledger records"] == f"{links['Epoch']}/records", step
        sink = step.removeprefix("commit.")
        assert links["Sinks"] == f"{links['Epoch']}#{'sinks' if sink == step else f'sink-{sink}'}", step


def test_the_test_button_of_a_connection_creates_a_folder_only_if_it_is_told_to(running: RunningStack) -> None:
    root = running.own / "another ledger"

    def tested(**more: object) -> dict[str, Any]:
        extra = json.dumps({"ledger_root": str(root), **more})
        body = {"connection_id": "epochs_new", "conn_type": "epochs", "password": "k" * 40, "extra": extra}
        told: dict[str, Any] = running.api.post("connections/test", body)
        return told

    missing = tested()
    assert not missing["status"] and "does not exist on this machine" in missing["message"] and not root.exists()
    fine = tested(create=True)
    assert fine["status"] and "a probe was written, read back and removed" in fine["message"]
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("step", long_but(["vote", "commit.orders"], STEPS))
def test_clearing_any_single_task_of_a_finished_run_changes_no_row(running: RunningStack, step: str) -> None:
    run_id, epochs, before = finished_run(running), running.watch.ledger.newest_complete(), running.verdict()
    assert running.clear(DAG, run_id, step) == "success", running.tasks(DAG, run_id)
    assert (running.verdict(), running.watch.ledger.newest_complete()) == (before, epochs)


@pytest.mark.long
def test_clearing_a_whole_finished_run_changes_no_row_and_new_orders_are_still_taken(running: RunningStack) -> None:
    run_id, epochs = finished_run(running), running.watch.ledger.newest_complete()
    assert running.clear(DAG, run_id, *STEPS) == "success", running.tasks(DAG, run_id)
    assert running.watch.ledger.newest_complete() == epochs
    produced = running.verdict().produced
    running.produce(500, seed=2)
    wait_until(running.watch.consumed, DEADLINE_S)
    verdict = running.verdict()
    assert verdict.exactly_once and verdict.produced == produced + 500, str(verdict)


def test_a_dag_scheduled_on_the_table_runs_with_epoch_rows_and_version(running: RunningStack) -> None:
    def reported() -> list[dict[str, Any]]:
        runs = running.api.runs("orders_report")
        done = [run["dag_run_id"] for run in runs if run["state"] == "success"]
        path = "dags/orders_report/dagRuns/{}/taskInstances/report/xcomEntries/return_value"
        return [event for run in done for event in running.api.get(path.format(run))["value"]]

    wait_until(lambda: bool(reported()), DEADLINE_S)
    for event in reported():
        record = running.watch.ledger.complete_record(event["epoch"])
        assert record and event["rows"] == record.receipts["orders"].rows
        assert event["version"] == record.receipts["orders"].version


@pytest.mark.long
def test_the_same_orders_go_through_spark_submit_exactly_once(running: RunningStack) -> None:
    dag, run_id = "orders_submit", "by_hand"
    assert running.trigger(dag, run_id) == "success"
    assert running.tasks(dag, run_id) == {step: "skipped" if step == "abort" else "success" for step in STEPS}
    verdict = running.verdict(running.stack.lake / "submit")
    assert verdict.exactly_once, str(verdict)
