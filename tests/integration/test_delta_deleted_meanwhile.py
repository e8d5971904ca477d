"""Two sinks upsert into one table on a real Spark, and one deletes a key while the other commits an older row of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import OutcomeUnknown
from airflow_epochs.model import Staged
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver.delta import deletions
from airflow_epochs.spark.driver.delta import merge as delta_merge
from tests.support.delta_modes_world import (
    BERLIN,
    FIRST,
    LOCAL_TEXT,
    SECOND,
    UPSERT,
    UTC,
    Epochs,
    create,
    hours_seen,
    shown,
    shown_by_others,
    values,
    vote_on,
)
from tests.support.delta_world import SparkOn, attempt_of, log_of, promised, transaction
from tests.support.environment import Environment
from tests.support.spark_world import settings

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


def delete_of(theirs: Epochs, hour: int) -> None:
    """Delete the same key from a table that is partitioned by hours."""
    session = theirs.world.spark.session
    with settings(session, UTC):
        theirs.run(values(session, "id, v, name, hour", f"{DELETION[:-1]}, timestamp_seconds({hour}))"))


def before_the_next(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, step: Callable[[], object]) -> None:
    """Do ``step`` right before the next call of a function."""
    function, steps = getattr(module, name), [step]

    def once(*args: Any, **options: Any) -> Any:
        if steps:
            steps.pop()()
        return function(*args, **options)

    monkeypatch.setattr(module, name, once)


@pytest.fixture
def die_after_hour(
    session: Any, world: Environment, table: str, theirs: Epochs, monkeypatch: pytest.MonkeyPatch
) -> Callable[[DeltaSink, int], tuple[SinkAttempt, Staged]]:
    """Commits late rows of an hour, of which the other sink deletes one meanwhile, and dies before the second look."""

    def run(sink: DeltaSink, hour: int) -> tuple[SinkAttempt, Staged]:
        create(session, table, "id BIGINT, v BIGINT, name STRING, hour TIMESTAMP", "PARTITIONED BY (hour)")
        before_the_next(monkeypatch, delta_merge, "_merge_into", lambda: delete_of(theirs, hour))
        rows = [f"{row[:-1]}, timestamp_seconds({hour}))" for row in LATE]
        attempt = attempt_of(transaction(1))
        with settings(session, UTC):
            staged = promised(vote_on(sink, attempt, values(session, "id, v, name, hour", *rows), world))
            world.at["delta.commit.after"] = die
            with pytest.raises(Dead):
                sink.commit(attempt, staged, world)
        world.at.clear()
        assert hours_seen(table) == [(1, hour), (2, hour)]
        return attempt, staged

    return run


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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_rows_beside_one_that_is_removed_after_a_commit_are_written_as_any_commit_writes_them(
    session: Any, world: Environment, table: str, die_after_hour: Callable[[DeltaSink, int], tuple[SinkAttempt, Staged]]
) -> None:
    sink, before_clocks_change = DeltaSink("silver", table, **UPSERT, compression="snappy"), FIRST - 7200
    attempt, staged = die_after_hour(sink, before_clocks_change)
    with settings(session, BERLIN | LOCAL_TEXT | {"spark.sql.parquet.compression.codec": "gzip"}):
        sink.commit(attempt, staged, world)
    assert hours_seen(table) == [(2, before_clocks_change)]
    added = [action["add"]["path"] for action in log_of(table)[-1] if "add" in action]
    assert [pq.read_metadata(f"{table}/{unquote(path)}").row_group(0).column(0).compression for path in added] == [
        "SNAPPY"
    ]


@pytest.mark.long
def test_a_row_is_not_removed_after_a_commit_while_rows_beside_it_would_move_to_another_hour(
    session: Any, world: Environment, table: str, die_after_hour: Callable[[DeltaSink, int], tuple[SinkAttempt, Staged]]
) -> None:
    sink = DeltaSink("silver", table, **UPSERT)
    attempt, staged = die_after_hour(sink, SECOND)
    with settings(session, BERLIN), pytest.raises(OutcomeUnknown) as told:
        sink.commit(attempt, staged, world)
    assert "partition column hour is ambiguous in the session's time zone" in told.value.what
    assert told.value.remedy.startswith("Set spark.sql.session.timeZone=UTC")
    assert "Then clear the commit task" in told.value.remedy
    assert hours_seen(table) == [(1, SECOND), (2, SECOND)]
    with settings(session, UTC):
        sink.commit(attempt, staged, world)
    assert hours_seen(table) == [(2, SECOND)]


@pytest.mark.long
def test_a_table_that_another_sink_creates_during_a_first_commit_has_each_key_once(
    session: Any, world: Environment, table: str, theirs: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Epochs(DeltaSink("silver", table, **UPSERT), world)
    given = values(theirs.world.spark.session, "id, v, name", "(1L, 3L, 'older')", "(2L, 3L, 'newer')")
    before_the_next(monkeypatch, delta_merge, "append", lambda: theirs.run(given))
    ours.run(values(session, "id, v, name", *LATE))
    assert shown(session, table) == shown_by_others(table) == [(1, 4, "too late"), (2, 3, "newer")]
