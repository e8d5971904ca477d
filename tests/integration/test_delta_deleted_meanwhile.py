"""Two sinks upsert into one table on a real Spark, and one deletes a key while the other commits an older row of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_epochs.errors import OutcomeUnknown
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver.delta import deletions
from airflow_epochs.spark.driver.delta import merge as delta_merge
from tests.support.delta_modes_world import UPSERT, Epochs, create, shown, shown_by_others, values, vote_on
from tests.support.delta_world import SparkOn, attempt_of, log_of, promised, transaction
from tests.support.environment import Environment

pytestmark = pytest.mark.jvm

DELETING: dict[str, Any] = {**UPSERT, "delete_when": "name IS NULL"}
DELETION = "(1L, 5L, CAST(NULL AS STRING))"
LATE = ("(1L, 4L, 'too late')", "(2L, 1L, 'b')")


class Dead(Exception):
    """The task or Spark's driver is gone."""


def die() -> None:
    raise Dead


@pytest.fixture
def theirs(other_session: Any, table: str) -> Epochs:
    """A sink that deletes keys, with a session of its own."""
    world = Environment(spark=SparkOn(other_session))
    return Epochs(DeltaSink("gold", table, **DELETING), world, "corrections")


def delete(theirs: Epochs) -> None:
    theirs.run(values(theirs.world.spark.session, "id, v, name", DELETION))


def before_the_next(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, step: Callable[[], object]) -> None:
    """Do ``step`` right before the next call of a function."""
    function, steps = getattr(module, name), [step]

    def once(*args: Any, **options: Any) -> Any:
        if steps:
            steps.pop()()
        return function(*args, **options)

    monkeypatch.setattr(module, name, once)


@pytest.mark.parametrize("options", [UPSERT, pytest.param(DELETING, marks=pytest.mark.long)], ids=["keeps", "deletes"])
def test_a_key_that_another_sink_deletes_during_a_commit_stays_deleted(
    session: Any,
    world: Environment,
    table: str,
    theirs: Epochs,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    create(session, table, "id BIGINT, v BIGINT, name STRING")
    ours = Epochs(DeltaSink("silver", table, **options), world)
    before_the_next(monkeypatch, delta_merge, "_merge_into", lambda: delete(theirs))
    attempt, staged, receipt = ours.run(values(session, "id, v, name", *LATE))
    assert shown(session, table) == shown_by_others(table) == [(2, 1, "b")]
    assert ours.sink.commit(attempt, staged, world) == receipt


def test_a_commit_that_died_before_it_looked_for_deletions_again_looks_when_it_is_repeated(
    session: Any,
    world: Environment,
    table: str,
    theirs: Epochs,
    synced: set[str | int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create(session, table, "id BIGINT, v BIGINT, name STRING")
    sink, attempt = DeltaSink("silver", table, **UPSERT), attempt_of(transaction(1))
    staged = promised(vote_on(sink, attempt, values(session, "id, v, name", *LATE), world))
    before_the_next(monkeypatch, delta_merge, "_merge_into", lambda: delete(theirs))
    world.at["delta.commit.after"] = die
    with pytest.raises(Dead):
        sink.commit(attempt, staged, world)
    assert shown(session, table) == [(1, 4, "too late"), (2, 1, "b")]
    world.at.clear()
    synced.clear()
    sink.commit(attempt, staged, world)
    assert shown(session, table) == shown_by_others(table) == [(2, 1, "b")]
    added = [action["add"]["path"] for entry in log_of(table) for action in entry if "add" in action]
    assert {f"{table}/{path}" for path in added} <= synced


def test_a_commit_whose_second_look_fails_is_tried_again_and_a_newer_row_stays(
    session: Any, world: Environment, table: str, theirs: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(session, table, "id BIGINT, v BIGINT, name STRING")
    sink, attempt = DeltaSink("silver", table, **UPSERT), attempt_of(transaction(1))
    staged = promised(vote_on(sink, attempt, values(session, "id, v, name", *LATE), world))
    before_the_next(monkeypatch, delta_merge, "_merge_into", lambda: delete(theirs))
    before_the_next(monkeypatch, deletions, "older", die)
    with pytest.raises(OutcomeUnknown, match="failed when it removed rows whose keys another sink had deleted") as told:
        sink.commit(attempt, staged, world)
    assert told.value.remedy.startswith("Clear the commit task")
    theirs.run(values(theirs.world.spark.session, "id, v, name", "(1L, 6L, 'again')"))
    sink.commit(attempt, staged, world)
    assert shown(session, table) == shown_by_others(table) == [(1, 6, "again"), (2, 1, "b")]


def test_a_table_that_another_sink_creates_during_a_first_commit_has_each_key_once(
    session: Any, world: Environment, table: str, theirs: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Epochs(DeltaSink("silver", table, **UPSERT), world)
    given = values(theirs.world.spark.session, "id, v, name", "(1L, 3L, 'older')", "(2L, 3L, 'newer')")
    before_the_next(monkeypatch, delta_merge, "append", lambda: theirs.run(given))
    ours.run(values(session, "id, v, name", *LATE))
    assert shown(session, table) == shown_by_others(table) == [(1, 4, "too late"), (2, 3, "newer")]
