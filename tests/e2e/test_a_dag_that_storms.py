"""A continuous DAG whose runs fail at once does not storm, says so, and goes on by itself when the cause is cured."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.running_stack import DEADLINE_S, RunningStack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]
DAG, OPEN, TOPIC = "storms", "storms.open", "orders-copied"


def log_of(running: RunningStack, run_id: str, attempt: int = 1) -> str:
    """Empty before the task begins."""
    folder = running.stack.airflow.folder / "logs" / f"dag_id={DAG}" / f"run_id={run_id}" / f"task_id={OPEN}"
    log = folder / f"attempt={attempt}.log"
    return log.read_text() if log.exists() else ""


def seconds_of(task: dict[str, Any]) -> timedelta:
    return datetime.fromisoformat(task["end_date"]) - datetime.fromisoformat(task["start_date"])


def copies(bootstrap: str) -> int:
    """How many records a stranger reads, of committed transactions only."""
    config = {"bootstrap.servers": bootstrap, "group.id": "stranger", "isolation.level": "read_committed"}
    consumer = Consumer({**config, "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    seen = 0
    try:
        while (message := consumer.poll(10)) is not None and message.error() is None:
            seen += 1
    finally:
        consumer.close()
    return seen


def test_runs_that_fail_at_once_come_ever_more_slowly_until_the_cause_is_cured(running: RunningStack) -> None:
    running.unpause(DAG)
    wait_until(lambda: len(running.api.runs(DAG, "failed")) == 2, DEADLINE_S)
    wait_until(lambda: bool(running.api.runs(DAG, "running")), DEADLINE_S)
    (waits,) = running.api.runs(DAG, "running")
    wait_until(
        lambda: (
            "2 runs of this DAG failed one after another. This run waits 10 s" in log_of(running, waits["dag_run_id"])
        ),
        DEADLINE_S,
    )
    wait_until(lambda: len(running.api.runs(DAG, "failed")) == 3, DEADLINE_S)
    first, second, third = sorted(running.api.runs(DAG, "failed"), key=lambda run: run["run_after"])
    took = [seconds_of(running.api.task(DAG, run["dag_run_id"], OPEN)) for run in (first, second, third)]
    assert timedelta(seconds=5) <= took[1] and timedelta(seconds=10) <= took[2]
    told = [log_of(running, run["dag_run_id"]) for run in (first, second, third)]
    assert "This run waits" not in told[0] and "This run waits 5 s" in told[1] and "This run waits 10 s" in told[2]
    assert "EPOCHS-TOPIC-MISSING" in log_of(running, third["dag_run_id"])
    admin = AdminClient({"bootstrap.servers": running.stack.state.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
    wait_until(lambda: bool(running.api.runs(DAG, "running")), DEADLINE_S)
    (fourth,) = running.api.runs(DAG, "running")
    wait_until(lambda: "This run waits 20 s" in log_of(running, fourth["dag_run_id"]), DEADLINE_S)
    running.api.clear(DAG, fourth["dag_run_id"], [OPEN])
    assert running.wait_ended(DAG, fourth["dag_run_id"]) == "success"
    running.api.pause(DAG)  # Airflow goes on with no run of a paused DAG: one that has just begun stays as it is
    assert running.api.task(DAG, fourth["dag_run_id"], OPEN)["try_number"] == 2
    assert "This run waits" not in log_of(running, fourth["dag_run_id"], attempt=2), "a cleared task does not wait"
    assert copies(running.stack.state.bootstrap) == len(running.places)
