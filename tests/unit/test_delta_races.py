"""The Delta sink beside others and under crashes: whatever happens, an epoch's rows are there once or not at all."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from airflow_epochs.contracts import SinkAttempt, SparkJob
from airflow_epochs.errors import Corrupt, OutcomeUnknown, Refused, RowsGone
from airflow_epochs.model import JsonDict, Marker, Staged
from airflow_epochs.sinks.delta import publish as delta_publish
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver.wire import as_json
from airflow_epochs.staged import footers
from airflow_epochs.staged.footers import completed
from airflow_epochs.staged.staging import Staging
from airflow_epochs.storage.files import Files
from tests.support.delta_world import (
    attempt_of,
    commit_and_die,
    feed,
    ids_in,
    in_process,
    log_of,
    promised,
    rows,
    run_epoch,
    seen,
    stage,
    transaction,
)
from tests.support.environment import Environment, NoSpark, once


class PanicException(BaseException):
    """What deltalake's native code raises when it panics; known by its name only."""


class SparkRefuses(NoSpark):
    """Refuses the commit, and finds no commit of ours when it looks at the table."""

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        if job.kind == "delta_commit":
            raise Refused("A schema mismatch detected.", remedy="Correct it.")
        return as_json(seen())


@pytest.fixture
def ready(sink: DeltaSink, table: str, world: Environment) -> tuple[SinkAttempt, Staged]:
    """Ids 1 and 2, staged and promised, for a table that has id 0."""
    write_deltalake(table, rows(0))
    return prepared(sink, world)


def prepared(sink: DeltaSink, world: Environment) -> tuple[SinkAttempt, Staged]:
    attempt = attempt_of(transaction(1))
    return attempt, promised(sink.vote(attempt, stage(sink, attempt, rows(1, 2), world), world))


@pytest.mark.parametrize("error", [OSError("timed out"), RuntimeError("a bug"), PanicException("panic")])
def test_an_error_after_the_commit_landed_does_not_commit_twice(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged], error: BaseException
) -> None:
    def fail() -> None:
        raise error

    once(world, "delta.commit.after", fail)
    assert sink.commit(*ready, world).version == 1
    assert ids_in(table) == [0, 1, 2]


def test_an_error_before_the_commit_is_tried_again(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged]
) -> None:
    def fail() -> None:
        raise OSError("no answer")

    once(world, "delta.commit.before", fail)
    assert sink.commit(*ready, world).version == 1
    assert ids_in(table) == [0, 1, 2]


def test_a_task_that_is_told_to_stop_stops_and_its_next_try_finds_the_commit(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged]
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    once(world, "delta.commit.after", stop)
    with pytest.raises(KeyboardInterrupt):
        sink.commit(*ready, world)
    before = log_of(table)
    assert sink.commit(*ready, world).version == 1
    assert log_of(table) == before


def test_a_store_that_never_answers_ends_in_outcome_unknown(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged]
) -> None:
    def fail() -> None:
        raise OSError("no answer")

    world.at["delta.commit.before"] = fail
    with pytest.raises(OutcomeUnknown, match="no answer"):
        sink.commit(*ready, world)
    assert world.phases.count("delta.commit.before") == delta_publish.FAULTS_MAX
    assert ids_in(table) == [0]


def test_a_commit_that_others_always_forestall_is_unknown_and_its_repeat_shows_the_rows_once(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_publish, "ROUNDS_MAX", 3)
    world.at["delta.commit.before"] = lambda: write_deltalake(table, rows(8), mode="append")
    with pytest.raises(OutcomeUnknown, match="other writers were always faster"):
        sink.commit(*ready, world)
    assert ids_in(table) == [0, 8, 8, 8]
    del world.at["delta.commit.before"]
    sink.commit(*ready, world)
    assert ids_in(table) == [0, 1, 2, 8, 8, 8]


def test_two_tasks_that_commit_the_same_transaction_at_once_commit_it_once(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged]
) -> None:
    receipts = []
    once(world, "delta.commit.before", lambda: receipts.append(sink.commit(*ready, Environment())))
    receipts.append(sink.commit(*ready, world))
    assert receipts[0] == receipts[1]
    assert ids_in(table) == [0, 1, 2]
    assert len(log_of(table)) == 2


def test_a_zombie_that_wakes_after_another_attempts_commit_changes_nothing(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged]
) -> None:
    winner = transaction(1, attempt=2)
    once(world, "delta.commit.before", lambda: run_epoch(sink, winner, None, rows(7), Environment()))
    with pytest.raises(Corrupt):
        sink.commit(*ready, world)
    assert ids_in(table) == [0, 7]
    assert sink.last_committed("orders", world) == Marker.of(winner)


def test_appends_of_other_writers_between_look_and_commit_are_no_conflict(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged]
) -> None:
    once(world, "delta.commit.before", lambda: write_deltalake(table, rows(8), mode="append"))
    assert sink.commit(*ready, world).version == 2
    assert ids_in(table) == [0, 1, 2, 8]


@pytest.mark.proof
def test_a_commit_that_others_forestall_reads_the_staged_files_only_once(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def counted(files: Files, staging: Staging) -> Staging:
        reads.append(staging.place)
        return completed(files, staging)

    monkeypatch.setattr(footers, "completed", counted)
    world.at["delta.commit.before"] = lambda: (
        write_deltalake(table, rows(8), mode="append") if len(log_of(table)) < 4 else None
    )
    assert sink.commit(*ready, world).version == 4
    assert ids_in(table) == [0, 1, 2, 8, 8, 8]
    assert len(reads) == 1


def test_staged_files_that_vanish_between_two_rounds_of_a_commit_are_missed(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged]
) -> None:
    def forestall() -> None:
        write_deltalake(table, rows(8), mode="append")
        for path in Path(ready[1].place).rglob("*.parquet"):
            path.unlink()

    once(world, "delta.commit.before", forestall)
    with pytest.raises(RowsGone, match="is gone"):
        sink.commit(*ready, world)
    assert ids_in(table) == [0, 8]


def test_files_removed_by_others_between_look_and_commit_only_cost_a_round(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged]
) -> None:
    once(world, "delta.commit.before", lambda: DeltaTable(table).delete("id = 0"))
    sink.commit(*ready, world)
    assert ids_in(table) == [1, 2]


def test_a_property_set_between_look_and_commit_only_costs_a_round(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged]
) -> None:
    change = {"delta.appendOnly": "true"}
    once(world, "delta.commit.before", lambda: DeltaTable(table).alter.set_table_properties(change))
    sink.commit(*ready, world)
    assert ids_in(table) == [0, 1, 2]


def test_a_table_created_by_somebody_else_meanwhile_gets_the_rows(
    sink: DeltaSink, table: str, world: Environment
) -> None:
    ready = prepared(sink, world)
    once(world, "delta.commit.before", lambda: write_deltalake(table, rows(9)))
    assert sink.commit(*ready, world).version == 1
    assert ids_in(table) == [1, 2, 9]


def test_a_table_of_another_schema_created_meanwhile_stops_the_commit(
    sink: DeltaSink, table: str, world: Environment
) -> None:
    ready = prepared(sink, world)
    once(world, "delta.commit.before", lambda: write_deltalake(table, rows(9).rename_columns(["key"])))
    world.spark = SparkRefuses()
    with pytest.raises(Corrupt, match="schema mismatch"):
        sink.commit(*ready, world)
    assert len(log_of(table)) == 1


def test_two_pipelines_that_create_one_table_at_once_both_get_their_rows(table: str, world: Environment) -> None:
    ours, theirs = DeltaSink("ours", table), DeltaSink("theirs", table)
    other = transaction(1, pipeline="returns")
    ready = prepared(ours, world)
    once(world, "delta.commit.before", lambda: run_epoch(theirs, other, None, rows(5), Environment()))
    ours.commit(*ready, world)
    assert ids_in(table) == [1, 2, 5]
    assert theirs.last_committed("returns", world) == Marker.of(other)


def test_a_table_dropped_or_replaced_after_the_promise_stops_the_commit(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged]
) -> None:
    for path in Path(table).glob("*.parquet"):
        path.unlink()
    shutil.rmtree(Path(table, "_delta_log"))
    with pytest.raises(Corrupt, match="is gone"):
        sink.commit(*ready, world)
    write_deltalake(table, rows(4))
    with pytest.raises(Corrupt, match="was replaced"):
        sink.commit(*ready, world)
    assert ids_in(table) == [4]


def test_a_commit_entry_that_another_kind_of_writer_replaced_is_written_again(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged]
) -> None:
    entry = Path(table, "_delta_log", f"{1:020}.json")

    def replace() -> None:
        entry.write_text('{"commitInfo":{"timestamp":1,"operation":"WRITE"}}')

    once(world, "delta.commit.after", replace)
    assert sink.commit(*ready, world).version == 2
    assert ids_in(table) == [0, 1, 2]


@pytest.mark.proof
@pytest.mark.parametrize("phase", ["delta.commit.before", "delta.commit.after"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_task_killed_around_the_commit_leaves_it_once_or_not_at_all(
    sink: DeltaSink, table: str, world: Environment, phase: str, exists: bool
) -> None:
    if exists:
        write_deltalake(table, rows())
    attempt, staged = prepared(sink, world)
    victim = in_process(commit_and_die, sink.spec(), str(attempt.txn), staged.place, None, phase)
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    receipt = sink.commit(attempt, staged, world)
    assert receipt.version == (1 if exists else 0)
    assert ids_in(table) == [1, 2]
    assert len(log_of(table)) == receipt.version + 1


@pytest.mark.proof
def test_processes_that_feed_one_table_through_sinks_of_their_own_lose_and_double_nothing(table: str) -> None:
    write_deltalake(table, rows())
    sinks = [DeltaSink(f"s{number}", table) for number in range(3)]
    workers = [in_process(feed, sink.spec(), 1000 * number, 8) for number, sink in enumerate(sinks)]
    for epoch in range(1, 9):
        write_deltalake(table, rows(5000 + epoch), mode="append")
    for worker in workers:
        worker.join(100)
        assert worker.exitcode == 0
    assert ids_in(table) == [1000 * base + epoch for base in (0, 1, 2, 5) for epoch in range(1, 9)]


def test_what_a_receipt_stands_on_has_been_fsynced(
    sink: DeltaSink, table: str, world: Environment, synced: set[str | int]
) -> None:
    _, staged = prepared(sink, world)
    data = {str(path) for path in Path(staged.place).rglob("*") if ".tmp" not in path.name}
    assert data <= synced
    assert {table, str(Path(table).parent), f"{table}/epochs"} <= synced
    attempt = attempt_of(transaction(1))
    staged = promised(sink.vote(attempt, stage(sink, attempt, rows(1), world), world))
    for _ in ("made", "found by a repeat, whose first try may have died before it synced"):
        synced.clear()
        sink.commit(attempt, staged, world)
        assert {os.stat(f"{table}/_delta_log/{0:020}.json").st_ino, f"{table}/_delta_log"} <= synced


def test_a_marker_of_unknown_origin_is_not_taken_for_this_transaction(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged]
) -> None:
    signed = CommitProperties(app_transactions=[Transaction("airflow_epochs/orders/bronze", 1, 1)])
    write_deltalake(table, rows(3), mode="append", commit_properties=signed)
    assert sink.last_committed("orders", world) == Marker(1, None)
    with pytest.raises(Corrupt, match="shows epoch 1"):
        sink.commit(*ready, world)
    assert ids_in(table) == [0, 3]
