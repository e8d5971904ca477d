"""The Delta sink's modes on a real Spark: changes that come late or are cut off, and the upkeep of their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_epochs.errors import OutcomeUnknown
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver.delta import merge as delta_merge
from airflow_epochs.spark.driver.delta.jobs import seen
from airflow_epochs.spark.driver.delta.plans import ChangePlan
from airflow_epochs.spark.driver.wire import from_json
from tests.support.delta_modes_world import (
    COUNTER,
    UPSERT,
    Epochs,
    create,
    shown,
    shown_by_others,
    values,
    vote_on,
)
from tests.support.delta_world import attempt_of, promised, seen_by_duckdb, spark_epoch, transaction
from tests.support.environment import Environment

pytestmark = [pytest.mark.jvm, pytest.mark.long]

DELETING: dict[str, Any] = {**UPSERT, "delete_when": "name IS NULL"}


def notes_of(table: str) -> Path:
    (found,) = Path(table, "_epochs").glob("*/deleted-*")
    return found


def cut_off_merge(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the next MERGE not begin; what is filled once it did not."""
    cut: list[str] = []
    merge = delta_merge._merge_into

    def once(*args: Any) -> None:
        if cut:
            merge(*args)
        else:
            cut.append("cut off")
            raise RuntimeError("the driver is gone")

    monkeypatch.setattr(delta_merge, "_merge_into", once)
    return cut


# -- comes late --------------------------------------------------------------------------------------------------


def require_late_is_skipped(
    session: Any, world: Environment, sink: DeltaSink, table: str, columns: str, *rows: str
) -> None:
    """Commit an epoch for each row; the first one's change, made again by who looked before, changes nothing."""
    previous = None
    for number, row in enumerate(rows, start=1):
        attempt = attempt_of(transaction(number), previous)
        sink.commit(attempt, promised(vote_on(sink, attempt, values(session, columns, row), world)), world)
        previous = attempt.txn
    first = next(job for job in world.spark.jobs if job.kind == "delta_change")
    source = f"delta.`file://{table}`" if "/" in table else table
    history = session.sql(f"DESCRIBE HISTORY {source}").select("version")
    before = shown(session, table), history.collect()
    plan = from_json(ChangePlan, first.args)
    table_now = seen(session, plan.target, plan.app).about.table
    delta_merge._CHANGES[plan.change.how.mode](session, plan, table_now)
    again = session.sql(f"DESCRIBE HISTORY {source}").select("version")
    assert (shown(session, table), again.collect()) == before


@pytest.mark.parametrize(
    "options",
    [
        UPSERT,
        {"mode": "upsert", "keys": ["id"]},
        COUNTER,
        {"mode": "overwrite"},
        {"mode": "overwrite_partitions"},
        {"mode": "append", "schema_evolution": "add_columns", "commit": "spark"},
    ],
    ids=["upsert", "upsert without sequence", "merge", "overwrite", "partitions", "append"],
)
def test_a_change_that_comes_late_although_it_looked_early_is_skipped(
    session: Any, world: Environment, table: str, options: dict[str, Any]
) -> None:
    create(session, table, "id BIGINT, v BIGINT, n BIGINT", "PARTITIONED BY (id)")
    sink = DeltaSink("silver", table, **options)
    require_late_is_skipped(session, world, sink, table, "id, v, n", "(1L, 5L, 1L)", "(1L, 5L, 2L)")


@pytest.mark.parametrize("mode", ["overwrite", "overwrite_partitions"])
def test_a_table_in_the_catalog_is_not_overwritten_late_either(
    session: Any, world: Environment, named: str, mode: str
) -> None:
    sink = DeltaSink("silver", named, mode=mode)
    require_late_is_skipped(session, world, sink, named, "id, p", "(1L, 'a')", "(2L, 'a')")


# -- is cut off --------------------------------------------------------------------------------------------------


def test_deletions_are_noted_and_flushed_before_the_table_forgets_the_keys(
    session: Any, world: Environment, table: str, synced: set[str | int], monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = Epochs(DeltaSink("silver", table, **DELETING), world)
    epochs.run(values(session, "id, v, name", "(1L, 1L, 'a')", "(2L, 1L, 'b')"))
    attempt = attempt_of(transaction(2), epochs.previous)
    frame = values(session, "id, v, name", "(1L, 5L, CAST(NULL AS STRING))")
    staged = promised(vote_on(epochs.sink, attempt, frame, world))
    cut = cut_off_merge(monkeypatch)
    synced.clear()
    with pytest.raises(OutcomeUnknown, match="Spark did not confirm the commit"):
        epochs.sink.commit(attempt, staged, world)
    assert cut and shown(session, table) == [(1, 1, "a"), (2, 1, "b")]
    noted = {str(path) for path in notes_of(table).rglob("*") if path.suffix in (".parquet", ".json")}
    assert len(noted) >= 2 and noted <= synced and str(notes_of(table)) in synced
    synced.clear()
    epochs.sink.commit(attempt, staged, world)
    assert noted <= synced, "who died before may not have come to it"
    epochs.previous = attempt.txn
    epochs.run(values(session, "id, v, name", "(1L, 4L, 'too late')"))
    assert shown(session, table) == shown_by_others(table) == [(2, 1, "b")]


@pytest.mark.parametrize("noted_before", [True, False])
def test_notes_of_a_waived_epoch_are_taken_back_as_the_page_says(
    session: Any, world: Environment, table: str, monkeypatch: pytest.MonkeyPatch, noted_before: bool
) -> None:
    epochs = Epochs(DeltaSink("silver", table, **DELETING), world)
    deleted = "({}L, {}L, CAST(NULL AS STRING))"
    others = [deleted.format(2, 10)] if noted_before else []
    epochs.run(values(session, "id, v, name", "(1L, 10L, 'a')", *others))
    waived = attempt_of(transaction(2), epochs.previous)
    staged = promised(vote_on(epochs.sink, waived, values(session, "id, v, name", deleted.format(1, 20)), world))
    assert cut_off_merge(monkeypatch) == []
    with pytest.raises(OutcomeUnknown, match="Spark did not confirm the commit"):
        epochs.sink.commit(waived, staged, world)
    history = DeltaTable(str(notes_of(table))).history()
    ours = [each["version"] for each in history if f'"txn":"{waived.txn}"' in each["userMetadata"]]
    notes, first = f"delta.`file://{notes_of(table)}`", min(ours)
    assert noted_before is (first > 0)
    session.sql(f"RESTORE TABLE {notes} TO VERSION AS OF {first - 1}" if first else f"DELETE FROM {notes}").collect()
    late = values(session, "id, v, name", "(1L, 15L, 'newer than its row')", "(2L, 9L, 'older than its deletion')")
    spark_epoch(epochs.sink, transaction(3), epochs.previous, late, world)
    without_notes = [] if noted_before else [(2, 9, "older than its deletion")]
    assert shown_by_others(table) == [(1, 15, "newer than its row"), *without_notes]


def test_deleted_keys_stay_deleted_in_a_folder_whose_name_is_like_a_pattern(
    session: Any, world: Environment, tmp_path: Path
) -> None:
    table = str(tmp_path / "orders [1] {a} *")
    epochs = Epochs(DeltaSink("silver", table, **DELETING), world)
    for row in ("(1L, 1L, 'a')", "(1L, 5L, CAST(NULL AS STRING))", "(1L, 4L, 'too late')"):
        epochs.run(values(session, "id, v, name", row))
    assert shown(session, table) == shown_by_others(table) == []


@pytest.mark.parametrize("options", [COUNTER, {"mode": "upsert", "keys": ["id"]}], ids=["merge", "upsert"])
def test_a_table_that_was_created_for_a_merge_that_was_cut_off_gets_its_rows_once(
    session: Any, world: Environment, table: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    sink, attempt = DeltaSink("silver", table, **options), attempt_of(transaction(1))
    staged = promised(vote_on(sink, attempt, values(session, "id, n", "(1L, 1L)"), world))
    cut_off_merge(monkeypatch)
    with pytest.raises(OutcomeUnknown):
        sink.commit(attempt, staged, world)
    assert shown(session, table) == []
    for _ in range(2):
        sink.commit(attempt, staged, world)
    assert shown(session, table) == shown_by_others(table) == [(1, 1)]


# -- upkeep ------------------------------------------------------------------------------------------------------


def test_notes_are_thinned_out_and_deleted_keys_stay_deleted(session: Any, world: Environment, table: str) -> None:
    epochs = Epochs(DeltaSink("silver", table, **DELETING, compact_every=3), world)
    for sequence in (5, 7):
        nothing = "CAST(NULL AS STRING)"
        epochs.run(values(session, "id, v, name", f"(1L, {sequence}L, {nothing})", f"(2L, 3L, {nothing})"))
    epochs.run(values(session, "id, v, name", "(3L, 1L, 'c')"))
    assert epochs.sink.maintain("orders", 3, world)["notes_removed"] == 2
    assert shown(session, str(notes_of(table))) == [(1, 7), (2, 3)], "one per key, also of equal ones"
    assert epochs.sink.maintain("orders", 3, world)["notes_removed"] == 0
    epochs.run(values(session, "id, v, name", "(1L, 6L, 'too late')", "(2L, 2L, 'too late')"))
    assert shown(session, table) == [(3, 1, "c")]
    session.sql(f"DELETE FROM delta.`file://{notes_of(table)}` WHERE v < 5").collect()
    epochs.run(values(session, "id, v, name", "(1L, 6L, 'too late')", "(2L, 2L, 'forgotten')"))
    assert shown(session, table) == shown_by_others(table) == [(2, 2, "forgotten"), (3, 1, "c")]


def test_upkeep_of_a_table_with_deletion_vectors_keeps_its_rows_and_its_notes(
    session: Any, world: Environment, table: str, synced: set[str | int]
) -> None:
    create(session, table, "id BIGINT, v BIGINT, name STRING", "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    session.sql(f"INSERT INTO delta.`file://{table}` SELECT id, 0, 'old' FROM range(0, 10000, 1, 1)").collect()
    epochs = Epochs(DeltaSink("silver", table, **DELETING, compact_every=2), world)
    for number in (1, 2):
        synced.clear()
        epochs.run(values(session, "id, v, name", f"({number}L, 2L, CAST(NULL AS STRING))", f"(5L, {number}L, 'new')"))
        assert {str(path) for path in Path(table).glob("deletion_vector_*.bin")} & synced
    expected = [number for number in range(10_000) if number not in (1, 2)]
    assert seen_by_duckdb(table) == expected
    epochs.sink.maintain("orders", 2, world)
    session.sql(f"VACUUM delta.`file://{table}` RETAIN 0 HOURS").collect()
    assert not list(Path(table).glob("deletion_vector_*.bin")), "OPTIMIZE has applied them"
    assert seen_by_duckdb(table) == expected
    epochs.run(values(session, "id, v, name", "(1L, 1L, 'too late')", "(5L, 9L, 'newer')"))
    assert seen_by_duckdb(table) == expected
