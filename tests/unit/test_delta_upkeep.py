"""Upkeep of Delta tables: compaction and checkpoints keep rows and marker, and keep commits fast."""

from __future__ import annotations

import json
import logging
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, PostCommitHookProperties, write_deltalake

from airflow_epochs.model import JsonDict, Marker, TransactionId
from airflow_epochs.sinks.delta import compaction as delta_compaction
from airflow_epochs.sinks.delta import due as delta_due
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.delta.state.table import StateTable
from tests.support.delta_world import ids_in, rows, run_epoch, seen_by_duckdb, transaction
from tests.support.environment import Environment
from tests.support.state_written import SCHEMA, WrittenState

pytestmark = pytest.mark.proof


def feed(sink: DeltaSink, world: Environment, epochs: int, previous: TransactionId | None = None) -> TransactionId:
    start = previous.epoch if previous else 0
    for epoch in range(start + 1, start + epochs + 1):
        txn = transaction(epoch)
        run_epoch(sink, txn, previous, rows(epoch, p=[f"ü {epoch % 2}"]), world)
        sink.maintain("orders", epoch, world)
        previous = txn
    assert previous is not None
    return previous


def test_upkeep_keeps_every_row_and_the_marker(table_path: Path, world: Environment) -> None:
    sink = DeltaSink("bronze", str(table_path), partition_by=["p"], compact_every=5, checkpoint_every=4)
    last = feed(sink, world, 12)
    assert ids_in(table_path) == list(range(1, 13))
    assert sink.last_committed("orders", world) == Marker.of(last)
    assert len(DeltaTable(str(table_path)).file_uris()) < 12
    assert list((table_path / "_delta_log").glob("*.checkpoint.parquet"))


def test_the_marker_survives_when_checkpoints_are_all_that_is_left_of_the_log(
    table_path: Path, world: Environment
) -> None:
    sink = DeltaSink("bronze", str(table_path), checkpoint_every=1)
    last = feed(sink, world, 3)
    for entry in sorted((table_path / "_delta_log").glob("0*.json"))[:-1]:
        entry.unlink()
    assert sink.last_committed("orders", world) == Marker.of(last)
    feed(sink, world, 1, last)
    assert ids_in(table_path) == [1, 2, 3, 4]


def test_nothing_is_done_before_it_is_due(table_path: Path, world: Environment) -> None:
    sink = DeltaSink("bronze", str(table_path), compact_every=100, checkpoint_every=3)
    assert sink.maintain("orders", 1, world) == {}
    previous = None
    done = []
    for epoch in range(1, 9):
        txn = transaction(epoch)
        run_epoch(sink, txn, previous, rows(epoch), world)
        done.append(sink.maintain("orders", epoch, world))
        previous = txn
    assert done == [{}, {}, {}, {"checkpoint": 3}, {}, {}, {"checkpoint": 6}, {}]


def test_a_checkpoint_counts_the_entry_of_the_compaction_so_that_repeated_upkeep_changes_nothing(
    table_path: Path, world: Environment
) -> None:
    sink, previous = DeltaSink("bronze", str(table_path), compact_every=4, checkpoint_every=4), None
    for epoch in range(1, 5):
        txn = transaction(epoch)
        run_epoch(sink, txn, previous, rows(epoch), world)
        previous = txn
    assert sink.maintain("orders", 4, world)["checkpoint"] == 4  # the entries 0 to 3 are epochs
    before = sorted(path.name for path in (table_path / "_delta_log").iterdir())
    sink.maintain("orders", 4, world)
    assert sorted(path.name for path in (table_path / "_delta_log").iterdir()) == before


def test_the_log_is_checkpointed_although_every_compaction_fails(
    table_path: Path, world: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*asked: object) -> JsonDict:
        raise OSError("no space left")

    sink, previous = DeltaSink("bronze", str(table_path), compact_every=1, checkpoint_every=1), None
    for epoch in range(1, 3):
        txn = transaction(epoch)
        run_epoch(sink, txn, previous, rows(epoch), world)
        previous = txn
    monkeypatch.setattr(delta_compaction, "compact", failing)
    with pytest.raises(OSError, match="no space left"):
        sink.maintain("orders", 2, world)
    assert list((table_path / "_delta_log").glob("*.checkpoint.parquet"))


def test_many_small_files_are_compacted_without_waiting_for_the_epoch_that_is_due(
    table_path: Path, world: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_due, "FILES_DUE", 12)
    sink = DeltaSink("bronze", str(table_path), partition_by=["p"], compact_every=10, checkpoint_every=0)
    previous, removed = None, []
    for epoch in range(1, 11):
        txn = transaction(epoch)
        run_epoch(sink, txn, previous, rows(*range(5), p=list("abcde")), world)
        removed.append(sink.maintain("orders", epoch, world).get("files_removed"))
        previous = txn
    assert removed == [None, None, 0, None, 25, None, None, 20, None, 0]
    assert len(ids_in(table_path)) == 50


def test_compaction_writes_such_files_as_the_sink_wants_and_leaves_alone_what_is_large_enough_for_it(
    table_path: Path, world: Environment
) -> None:
    layout: JsonDict = {"compression": "gzip", "target_file_size": "1 MB"}
    sink, previous = DeltaSink("bronze", str(table_path), compact_every=6, checkpoint_every=0, **layout), None
    text = [str(uuid.uuid4()) for _ in range(20_000)]  # at least 16 bytes each, however compressed
    for epoch in range(1, 7):
        txn = transaction(epoch)
        some = text if epoch == 6 else text[:4_000]
        run_epoch(sink, txn, previous, rows(*range(len(some)), s=some), world)
        previous = txn
    done = sink.maintain("orders", 6, world)
    assert (done["files_removed"], done["files_added"]) == (5, 1), "the sixth is half a megabyte at least"
    written = [path for path in DeltaTable(str(table_path)).file_uris() if path.endswith(".gzip.parquet")]
    assert [pq.ParquetFile(path).metadata.row_group(0).column(0).compression for path in written] == ["GZIP"]
    assert len(ids_in(table_path)) == 40_000


def test_no_spark_commits_beside_deltalake_to_a_table_that_only_spark_can_compact(
    table_path: Path, world: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    DeltaTable.create(table_path, schema=rows(0).schema, configuration={"delta.columnMapping.mode": "name"})
    sink = DeltaSink("bronze", str(table_path), compact_every=1, checkpoint_every=0)
    with caplog.at_level(logging.INFO):
        assert sink.maintain("orders", 1, world) == {}, "nobody is asked: the world has no Spark"
    assert f"{table_path} is not compacted, because only Spark can rewrite its files" in caplog.text


def test_partitions_with_few_files_are_not_looked_at_after_every_epoch(
    table_path: Path, world: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_due, "FILES_DUE", 3)
    looked: list[int] = []

    def noting(table: DeltaTable, *asked: object) -> JsonDict:
        looked.append(table.version())
        return {}

    monkeypatch.setattr(delta_compaction, "compact", noting)
    sink = DeltaSink("bronze", str(table_path), compact_every=100, checkpoint_every=0)
    feed(sink, world, 8)
    assert looked == [2, 5]


def test_upkeep_can_be_switched_off(table_path: Path, world: Environment) -> None:
    sink = DeltaSink("bronze", str(table_path), compact_every=0, checkpoint_every=0)
    feed(sink, world, 12)
    assert DeltaTable(str(table_path)).version() == 11
    assert not list((table_path / "_delta_log").glob("*.checkpoint.parquet"))


def test_a_damaged_hint_about_the_newest_checkpoint_costs_a_checkpoint_only(
    table_path: Path, world: Environment
) -> None:
    sink = DeltaSink("bronze", str(table_path), checkpoint_every=2)
    last = feed(sink, world, 4)
    (table_path / "_delta_log" / "_last_checkpoint").write_text("{")
    feed(sink, world, 3, last)
    assert ids_in(table_path) == list(range(1, 8))


def opens_from_its_newest_checkpoint(table: Path) -> int:
    """Take away all that is older than the checkpoint that the hint names; how many commits come after it."""
    log = table / "_delta_log"
    newest = int(json.loads((log / "_last_checkpoint").read_text())["version"])
    commits = sorted(int(path.stem) for path in log.glob("0*.json"))
    for version in (version for version in commits if version <= newest):
        (log / f"{version:020}.json").unlink()
    return commits[-1] - newest


def test_a_table_of_more_than_100_commits_is_opened_from_a_checkpoint_and_fewer_than_10_commits(
    table_path: Path, world: Environment
) -> None:
    sink = DeltaSink("bronze", str(table_path), compact_every=0)
    first = feed(sink, world, 1)
    for number in range(2, 109):  # epochs would take seconds
        no_checkpoint = PostCommitHookProperties(create_checkpoint=False)
        write_deltalake(table_path, rows(number, p=["x"]), mode="append", post_commithook_properties=no_checkpoint)
        sink.maintain("orders", number, world)
    assert opens_from_its_newest_checkpoint(table_path) < 10
    assert seen_by_duckdb(str(table_path)) == ids_in(table_path) == list(range(1, 109))
    assert sink.last_committed("orders", world) == Marker.of(first)


def test_the_log_of_a_state_table_of_more_than_100_epochs_is_checkpointed_too(
    tmp_path: Path, world: Environment
) -> None:
    written = WrittenState(tmp_path)
    state = StateTable(written.name, written.place, schema=SCHEMA, keys=["page"], expires="until")
    for number in range(1, 113):  # what writes these commits checkpoints at 100, too
        written.epoch((f"page {number}", None, 1))
        state.maintain("p", number, world)
    assert opens_from_its_newest_checkpoint(written.table) < 10
    assert len(written.delta().to_pyarrow_table()) == 112
