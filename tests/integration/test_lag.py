"""How far a pipeline is behind its topic, over a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

from airflow_epochs.coordinator.inspection.lag import Lag, lag_of
from airflow_epochs.errors import Corrupt
from tests.support.environment import connected
from tests.support.remedies import ordered
from tests.support.topic_world import TopicWorld

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(120)]


@pytest.fixture
def world(topic_world: Callable[..., TopicWorld]) -> TopicWorld:
    return topic_world()


def lag(world: TopicWorld) -> Lag:
    found = lag_of(world.ledger, connected(world.kafka))
    assert found
    return found


def now_ms() -> int:
    return int(time.time() * 1000)


def test_before_the_first_complete_epoch_the_lag_is_not_known(world: TopicWorld) -> None:
    world.produce("ab")
    assert lag_of(world.ledger, connected(world.kafka)) is None


def test_the_lag_counts_what_no_epoch_has_read_and_how_long_its_first_record_has_waited(world: TopicWorld) -> None:
    world.produce("ab")
    assert world.run(1) is None
    assert (lag(world).records, lag(world).seconds(now_ms())) == (0, 0.0)
    world.produce("c", at=datetime.now(timezone.utc) - timedelta(minutes=5))
    world.produce("def")
    assert lag(world).records == 4
    assert lag(world).seconds(now_ms()) == pytest.approx(300, abs=30)
    assert [(each.partition, each.end - each.start) for each in lag(world).partitions] == [(0, 3), (1, 1)]
    assert world.run(2) is None
    assert lag(world).records == 0


def test_the_records_of_an_open_epoch_count_and_so_do_those_of_a_new_partition(world: TopicWorld) -> None:
    world.produce("ab")
    assert world.run(1) is None
    world.produce("cd")
    world.opened(2)
    world.add_partition()
    world.produce("e", partitions=[2])
    assert lag(world).records == 3


def test_records_that_are_gone_are_told(world: TopicWorld) -> None:
    world.produce("ab")
    assert world.run(1) is None
    world.produce("cdef")
    world.delete_before(0, 2)
    with pytest.raises(Corrupt, match="no longer has records"):
        lag(world)


def test_the_command_prints_the_lag_per_partition_as_numbers(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA", json.dumps({"conn_type": "kafka", "extra": dict(world.kafka.extra)}))
    world.produce("ab")
    assert world.run(1) is None
    world.produce("c")
    rows = json.loads(ordered(world.ledger_root, "epochs", "lag", "orders", "--output", "json"))
    assert [(row["topic"], row["partition"], row["position"], row["end"], row["offsets"]) for row in rows] == [
        (world.topic(), 0, 1, 2, 1),
        (world.topic(), 1, 1, 1, 0),
    ]
    assert 0 <= rows[0]["waits_s"] < 60 and rows[1]["waits_s"] is None
