"""Whatever the ledger says of a place, the sink deletes no file that a readable version of its table has."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.delta.table import App, TableLocation
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.model import TransactionId
from airflow_epochs.sinks.delta import references
from airflow_epochs.sinks.delta.references import referenced
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.staged.owner import OWNER
from airflow_epochs.staged.table import StagedTable
from tests.support.delta_world import attempt_of, ids_in, rows, run_epoch, seen_by_duckdb, stage, transaction
from tests.support.environment import Environment


def nothing(table: str) -> None:
    """The newest version has it."""


def compacted(table: str) -> None:
    DeltaTable(table).optimize.compact()


def deleted(table: str) -> None:
    DeltaTable(table).delete()


def overwritten(table: str) -> None:
    write_deltalake(table, rows(9), mode="overwrite")


def restored(table: str) -> None:
    """Gone from one version, and back in the next."""
    version = DeltaTable(table).version()
    DeltaTable(table).delete()
    DeltaTable(table).restore(version)


def cleaned_up(table: str) -> None:
    """The log begins after the commit: only a checkpoint has the file."""
    DeltaTable(table).create_checkpoint()
    newest = DeltaTable(table).version()
    write_deltalake(table, rows(7), mode="append")
    for version in range(newest + 1):
        Path(table, "_delta_log", f"{version:020}.json").unlink()


@pytest.mark.parametrize("then", [nothing, compacted, deleted, overwritten, restored, cleaned_up])
def test_a_file_that_a_readable_version_has_is_kept_though_the_ledger_calls_it_unpublished(
    sink: DeltaSink, table: str, world: Environment, then: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = transaction(1), transaction(2)
    run_epoch(sink, first, None, rows(1), world)
    staged, receipt = run_epoch(sink, second, first, rows(2), world)
    then(table)
    before = set(Path(staged.place).rglob("*.parquet"))
    with caplog.at_level(logging.WARNING):
        sink.discard(attempt_of(second, first), staged.place, world, published=False)
    assert before and set(Path(staged.place).rglob("*.parquet")) == before
    assert "is not deleted" in caplog.text
    assert ids_in(table) == seen_by_duckdb(table)
    if then is not cleaned_up:
        assert DeltaTable(table, version=receipt.version).to_pyarrow_table()["id"].to_pylist() == [2, 1]


def test_the_log_is_read_no_further_back_than_the_epoch_before(sink: DeltaSink, table: str, world: Environment) -> None:
    previous = None
    for epoch in range(1, 8):
        txn = transaction(epoch)
        run_epoch(sink, txn, previous, rows(epoch), world)
        previous = txn
    newest = DeltaTable(table).file_uris()
    for version in range(5):
        Path(table, "_delta_log", f"{version:020}.json").write_text("not to be read")
    (seventh,) = [Path(uri).relative_to(table) for uri in newest if "/7-1-" in uri]
    location, app = TableLocation(table, table, {}), App.of("orders", "bronze")
    assert referenced(location, app, 7, str(seventh.parent)) == {str(seventh)}


@pytest.mark.parametrize("same_log", [True, False])
def test_the_log_is_read_no_further_back_than_the_entry_that_was_the_newest_when_the_rows_were_staged(
    sink: DeltaSink, table: str, world: Environment, same_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "ENTRIES_MAX", 2)
    first, previous = transaction(1), None
    for txn in (first, transaction(2), transaction(3), transaction(4)):
        run_epoch(sink, txn, previous, rows(txn.epoch), world)
        previous = txn
    played_again = attempt_of(first)
    place = stage(sink, played_again, rows(1), world).place
    write_deltalake(table, rows(9), mode="append")
    if same_log:
        sink.discard(played_again, place, world, published=False)
        assert not Path(place).exists()
        return
    with Path(table, "_delta_log", f"{3:020}.json").open("a") as entry:
        entry.write("\n")
    with pytest.raises(NotApplied, match="more than 2 entries of the table's log"):
        sink.discard(played_again, place, world, published=False)
    assert list(Path(place).rglob("*.parquet"))


# -- whose a staging folder is ---------------------------------------------------------------------------------------


def folder_of(place: str) -> Path:
    return Path(place).parent


def test_a_staging_folder_says_which_ledger_pipeline_and_sink_it_belongs_to(
    sink: DeltaSink, world: Environment
) -> None:
    txn = transaction(1)
    attempt = SinkAttempt(txn=txn, ledger_id="0f1e2d3c", previous=None, ledger="s3://lake/ledger")
    claim = stage(sink, attempt, rows(1), world)
    said = json.loads((folder_of(claim.place) / OWNER).read_text())
    assert {key: said[key] for key in ("ledger", "ledger_id", "pipeline", "sink")} == {
        "ledger": "s3://lake/ledger",
        "ledger_id": "0f1e2d3c",
        "pipeline": "orders",
        "sink": "bronze",
    }


@pytest.mark.parametrize("said", ['{"ledger_id": "0f1e2d3c", "pipeline": "others", "sink": "bronze"}', "{}", "\xff"])
def test_a_folder_that_is_somebody_elses_is_left_alone(sink: DeltaSink, world: Environment, said: str) -> None:
    attempt = attempt_of(transaction(1))
    claim = stage(sink, attempt, rows(1), world)
    (folder_of(claim.place) / OWNER).write_text(said)
    with pytest.raises(Refused, match=r"does not belong to this sink\. Its file _owner\.json says"):
        sink.discard(attempt, claim.place, world, published=False)
    assert Path(claim.place).exists()


def test_a_folder_of_version_01_says_nothing_and_is_cleared_away_all_the_same(
    sink: DeltaSink, world: Environment
) -> None:
    attempt = attempt_of(transaction(1))
    claim = stage(sink, attempt, rows(1), world)
    (folder_of(claim.place) / OWNER).unlink()
    sink.discard(attempt, claim.place, world, published=False)
    assert not Path(claim.place).exists()


def test_rows_staged_for_a_topic_or_a_database_are_as_safe(tmp_path: Path) -> None:
    area = StagedTable(root=str(tmp_path), sink="topic", target="topic t", options={})
    attempt = attempt_of(transaction(1))
    place = Path(area.plan(attempt, "a")["place"])
    place.mkdir(parents=True)
    (place / "rows.parquet").write_text("rows")
    (place.parent / OWNER).write_text("{}")
    with pytest.raises(Refused, match="does not belong to this sink"):
        area.discard(attempt, str(place))
    assert (place / "rows.parquet").exists()


@pytest.mark.parametrize("wrong", ["2-1-abc", "1-2-abc", "1-1", "1-1-a/b"])
def test_a_place_that_the_attempt_would_not_make_is_refused(sink: DeltaSink, world: Environment, wrong: str) -> None:
    attempt = attempt_of(TransactionId("orders", 1, 1, "0" * 32))
    place = sink.place(attempt, "abc", world)
    with pytest.raises(Refused, match="not a staging place"):
        sink.discard(attempt, place.replace("1-1-abc", wrong), world, published=False)


def test_a_place_that_was_made_for_a_table_that_was_replaced_since_is_left_alone(
    sink: DeltaSink, table: str, world: Environment, tmp_path: Path
) -> None:
    first = transaction(1)
    run_epoch(sink, first, None, rows(1), world)
    attempt = attempt_of(transaction(2), first)
    claim = stage(sink, attempt, rows(2), world)
    Path(table, "_delta_log").rename(tmp_path / "old")
    write_deltalake(table, rows(5))
    with pytest.raises(Refused, match="is not the table that the rows were staged for"):
        sink.discard(attempt, claim.place, world, published=False)
    assert Path(claim.place).exists()
