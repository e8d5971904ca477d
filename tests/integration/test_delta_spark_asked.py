"""How often Spark is asked about a table: each job is a Connect session, or a spark-submit, of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.coordinator.sink_calls import plan_of
from airflow_epochs.model import Marker
from airflow_epochs.sinks.delta.sink import DeltaSink
from tests.support.delta_modes_world import create, shown, values
from tests.support.delta_world import SparkOn, attempt_of, fill_with_spark, promised, transaction
from tests.support.environment import Environment

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(240)]

PATH, NAMED, UNREADABLE = "on a path", "in the catalog", "that deltalake cannot open"
MODES: dict[str, dict[str, Any]] = {
    "append": {"commit": "spark"},
    "upsert": {"mode": "upsert", "keys": ["id"], "sequence_by": "p", "delete_when": "id < 0"},
    "merge": {"mode": "merge", "keys": ["id"], "merge": "WHEN NOT MATCHED THEN INSERT *"},
}

Asked = tuple[list[str], int]
"""The jobs that Spark is given, and how often these describe a table."""


class Watched:
    """A session that notes which statements describe a table."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.described: list[str] = []

    def sql(self, statement: str, *args: Any, **kwargs: Any) -> Any:
        self.described += [statement] if statement.startswith("DESCRIBE DETAIL") else []
        return self.session.sql(statement, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


@contextmanager
def asked(world: Environment, told: dict[str, Asked], step: str) -> Iterator[None]:
    """Note under ``step`` which jobs it has Spark do, and how often these describe a table."""
    watched = world.spark.session = Watched(world.spark.session)
    before = len(world.spark.jobs)
    try:
        yield
    finally:
        world.spark.session = watched.session
        told[step] = [job.kind for job in world.spark.jobs[before:]], len(watched.described)


@pytest.fixture
def target(kind: str, session: Any, table: str, request: pytest.FixtureRequest) -> str:
    """An empty table with the columns ``id`` and ``p``; in the catalog it has two rows."""
    if kind == NAMED:
        name: str = request.getfixturevalue("named")
        return name
    features = "TBLPROPERTIES ('delta.feature.geospatial' = 'supported')" if kind == UNREADABLE else ""
    create(session, table, "id BIGINT, p STRING", features)
    return table


def epoch(sink: DeltaSink, world: Environment, attempt: SinkAttempt) -> dict[str, Asked]:
    """One epoch of one row, step by step as the coordinator takes them."""
    told: dict[str, Asked] = {}
    try_id = uuid.uuid4().hex
    with asked(world, told, "stage"):
        place = sink.place(attempt, try_id, world)
        assert sink.is_own_place(attempt, place, world)
        assert sink.table_of(attempt, place, world)
        plan = plan_of(sink, attempt, try_id, place, world)
    session, row = world.spark.session, f"({attempt.txn.epoch}L, 'a')"
    claim = fill_with_spark(session, plan, values(session, "id, p", row))
    with asked(world, told, "vote"):
        staged = promised(sink.vote(attempt, claim, world))
    with asked(world, told, "commit"):
        receipt = sink.commit(attempt, staged, world)
    with asked(world, told, "repeat"):
        assert sink.commit(attempt, staged, world) == receipt
    return told


NOTHING: Asked = ([], 0)
COMMITTED: Asked = (["delta_change"], 1)
LOOKED: Asked = (["delta_marker"], 1)
EXPECTED: dict[str, dict[str, Asked]] = {
    PATH: {"stage": NOTHING, "vote": NOTHING, "commit": COMMITTED, "repeat": NOTHING},
    NAMED: {"stage": (["delta_describe"], 1), "vote": NOTHING, "commit": COMMITTED, "repeat": NOTHING},
    UNREADABLE: {
        "stage": NOTHING,
        "vote": LOOKED,
        "commit": (["delta_marker", "delta_change"], 2),
        "repeat": LOOKED,
    },
}


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        (PATH, "append"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in [(PATH, "merge"), (NAMED, "upsert"), (UNREADABLE, "upsert")]
        ),
    ],
)
def test_a_table_is_described_once_per_look(session: Any, target: str, kind: str, mode: str) -> None:
    world, previous = Environment(spark=SparkOn(session)), None
    sink = DeltaSink("silver", target, **MODES[mode])
    change = "delta_change" if mode != "append" else "delta_commit"
    for number in (1, 2):
        attempt = attempt_of(transaction(number), previous)
        assert epoch(sink, world, attempt) == {
            step: ([job.replace("delta_change", change) for job in jobs], described)
            for step, (jobs, described) in EXPECTED[kind].items()
        }
        previous = attempt.txn
    assert sink.last_committed("orders", world) == Marker.of(attempt.txn)
    assert {(1, "a"), (2, "a")} <= set(shown(session, target))
