"""VACUUM, OPTIMIZE, appends and ALTER of Spark while an epoch is under way (F19); commits through Spark cut short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_epochs.errors import Refused
from airflow_epochs.testing import Crash
from tests.support.cells import fired
from tests.support.delta_world import SparkOn, log_of
from tests.support.faults_history import finished
from tests.support.faults_steps import STEPS
from tests.support.faults_world import DiskWorld, crash, rows_in

pytestmark = pytest.mark.jvm
FOREIGN = "somebody else"


def table_of(world: DiskWorld) -> str:
    return f"delta.`file://{world.table('orders')}`"


def append(session: Any, table: str) -> None:
    session.sql(f"INSERT INTO {table} VALUES ('{FOREIGN}', 0, 0, 'x')").collect()


def optimize(session: Any, table: str) -> None:
    append(session, table)
    assert session.sql(f"OPTIMIZE {table}").collect()[0].metrics.numFilesRemoved >= 2


def vacuum(session: Any, table: str) -> None:
    append(session, table)
    session.sql(f"VACUUM {table} RETAIN 0 HOURS").collect()


@pytest.mark.few(1)
@pytest.mark.parametrize("interfere", [optimize, vacuum])
def test_what_spark_does_to_the_table_after_the_decision_neither_loses_nor_doubles_a_row(
    world: DiskWorld, session: Any, interfere: Callable[[Any, str], None]
) -> None:
    table = table_of(world)
    assert world.run(2, world.coordinator({"decision.landed": lambda: interfere(session, table)})) is None
    left = world.left(2)
    assert len(rows_in(world.table("orders"), FOREIGN)) == 1
    fired("F19", STEPS["decision.landed"], finished(world, left))


@pytest.mark.few(1)
@pytest.mark.parametrize("phase", ["decision.landed", "delta.commit.before#1", "delta.commit.after#1", "complete.put"])
def test_a_vacuum_of_spark_at_0_hours_that_overlaps_the_commit_loses_no_row(
    world: DiskWorld, session: Any, phase: str
) -> None:
    def vacuum_only() -> None:
        session.sql(f"VACUUM {table_of(world)} RETAIN 0 HOURS").collect()

    assert world.run(2, world.coordinator({phase: vacuum_only})) is None
    left = world.left(2)
    seen = session.sql(f"SELECT partition, offset, payload FROM {table_of(world)}").collect()
    assert sorted(map(tuple, seen)) == world.source.all_rows()
    fired("F19", STEPS[phase], finished(world, left))


@pytest.mark.long
def test_a_vacuum_of_spark_before_the_vote_is_a_vote_abort(world: DiskWorld, session: Any) -> None:
    table = table_of(world)
    assert isinstance(world.run(2, world.coordinator({"stage.done": lambda: vacuum(session, table)})), Refused)
    left = world.left()
    assert world.run(2) is None
    fired("F19", STEPS["stage.done"], finished(world, left))


def test_a_constraint_added_after_the_decision_is_kept_by_inserting_through_spark(
    world: DiskWorld, session: Any
) -> None:
    left = world.crash_at("decision.landed")
    session.sql(f"ALTER TABLE {table_of(world)} ADD CONSTRAINT positive CHECK (offset >= 0)").collect()
    spark: Any = SparkOn(session)
    assert world.run(2, world.coordinator(spark=spark)) is None
    assert committers(world)[-1] == "spark"
    fired("F14", STEPS["decision.landed"], finished(world, left))


def committers(world: DiskWorld) -> list[str]:
    """Who committed each version of the first table, by the engine that signed it."""
    infos = [
        action["commitInfo"] for entry in log_of(world.table("orders")) for action in entry if "commitInfo" in action
    ]
    return ["spark" if "Spark" in info.get("engineInfo", "") else "deltalake" for info in infos]


@pytest.mark.few(1)
@pytest.mark.parametrize("phase", ["delta.commit.before#1", "delta.commit.after#1"])
def test_a_commit_through_spark_that_is_cut_is_found_and_not_repeated(
    world: DiskWorld, session: Any, phase: str
) -> None:
    through_spark = replace(world, sink_options={"commit": "spark"})
    spark: Any = SparkOn(session)
    with pytest.raises(Crash):
        through_spark.run(2, through_spark.coordinator({phase: crash}, spark=spark))
    left = world.left()
    assert through_spark.run(3, through_spark.coordinator(spark=spark)) is None
    fired("F1", STEPS[phase], finished(world, left))
