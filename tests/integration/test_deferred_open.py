"""``open`` waits for data in Airflow's triggerer: whatever becomes of events, each record is shown exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack.broker import Broker
from tests.support.deferred_world import Deferred, deferred, event_of, fail, submit, time_out
from tests.support.sql_world import new_sqlite
from tests.support.topic_world import TopicWorld

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.jvm, pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]


@pytest.fixture
def world(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> TopicWorld:
    """An empty topic of two partitions."""
    it = TopicWorld(folder=tmp_path, broker=broker, db=new_sqlite(tmp_path), id=f"{abs(hash(request.node.nodeid)):x}")
    it.create_topic()
    return it


@pytest.fixture
def lab(world: TopicWorld, monkeypatch: pytest.MonkeyPatch) -> Deferred:
    return Deferred(world, monkeypatch)


def waiting(lab: Deferred) -> int:
    """The id of the trigger that the run waits for."""
    task = deferred(lab.harness.dag.dag_id)
    assert task and task.task_id == "orders.open"
    return int(task.trigger_id)


def test_a_run_that_finds_too_few_records_waits_in_the_triggerer_and_takes_all_when_enough_are_there(
    lab: Deferred,
) -> None:
    lab.world.produce("ab")

    def triggerer() -> None:
        lab.world.produce("c")
        event = event_of(waiting(lab))
        assert event.payload == {"why": "enough"}
        submit(waiting(lab), event)

    assert lab.run("r1", triggerer) == "success, open success"
    assert lab.world.shown("lake") == "abc"
