"""The Delta sink on real tables, staged with deltalake's writer: plan, vote, commit, discard, marker."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from airflow_epochs.errors import Corrupt
from airflow_epochs.model import Marker, Staged, StagedClaim, VoteKind
from airflow_epochs.sinks import from_spec
from airflow_epochs.sinks.delta.sink import DeltaSink
from tests.support.delta_world import (
    attempt_of,
    ids_in,
    log_of,
    promised,
    rows,
    run_epoch,
    stage,
    stage_with_deltalake,
    transaction,
)
from tests.support.environment import Environment

APP = "airflow_epochs/orders/bronze"


@pytest.fixture
def table_path(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "orders"


def existing(table: Path, **options: Any) -> None:
    table.parent.mkdir(parents=True, exist_ok=True)
    write_deltalake(str(table), rows(0), **options)


def test_the_first_commit_creates_the_table_with_its_rows_and_its_marker(
    sink: DeltaSink, table_path: Path, world: Environment
) -> None:
    txn = transaction(1)
    _, receipt = run_epoch(sink, txn, None, rows(1, 2, 3), world)
    assert ids_in(table_path) == [1, 2, 3]
    assert (receipt.version, receipt.rows, receipt.txn_id) == (0, 3, str(txn))
    assert sink.last_committed("orders", world) == Marker.of(txn)


def test_a_try_for_a_table_comes_with_the_checksum_of_its_version_0_and_planned_again_stays_as_it_is(
    sink: DeltaSink, table_path: Path, world: Environment
) -> None:
    existing(table_path)
    attempt = attempt_of(transaction(1))
    log = Path(sink.plan_stage(attempt, "a" * 32, world)["place"], "_delta_log")
    [_, protocol, metadata] = map(json.loads, (log / f"{0:020}.json").read_text().splitlines())
    checksum = json.loads((log / f"{0:020}.crc").read_text())
    assert (checksum["protocol"], checksum["metadata"]) == (protocol["protocol"], metadata["metaData"])
    assert [checksum[name] for name in ("numFiles", "tableSizeBytes", "allFiles", "setTransactions")] == [0, 0, [], []]
    before = {path.name: path.read_bytes() for path in log.iterdir()}
    sink.plan_stage(attempt, "a" * 32, world)
    assert {path.name: path.read_bytes() for path in log.iterdir()} == before


def test_nobody_sees_staged_rows_before_the_commit(sink: DeltaSink, table_path: Path, world: Environment) -> None:
    existing(table_path)
    attempt = attempt_of(transaction(1))
    claim = stage(sink, attempt, rows(1), world)
    assert sink.vote(attempt, claim, world).vote is VoteKind.VOTE_COMMIT
    assert ids_in(table_path) == [0]
    assert sink.last_committed("orders", world) is None


def test_a_table_is_not_created_by_an_attempt_that_is_aborted(
    sink: DeltaSink, table_path: Path, world: Environment
) -> None:
    attempt = attempt_of(transaction(1))
    claim = stage(sink, attempt, rows(1), world)
    sink.vote(attempt, claim, world)
    sink.discard(attempt, claim.place, world, published=False)
    assert not DeltaTable.is_deltatable(str(table_path))
    assert not Path(claim.place).exists()


def test_epochs_follow_one_another(sink: DeltaSink, table_path: Path, world: Environment) -> None:
    existing(table_path)
    first, second = transaction(1), transaction(2)
    run_epoch(sink, first, None, rows(1), world)
    _, receipt = run_epoch(sink, second, first, rows(2), world)
    assert ids_in(table_path) == [0, 1, 2]
    assert receipt.version == 2
    assert sink.last_committed("orders", world) == Marker.of(second)


def test_a_repeated_commit_returns_the_same_receipt_and_writes_nothing(
    sink: DeltaSink, table_path: Path, world: Environment
) -> None:
    txn = transaction(1)
    staged, receipt = run_epoch(sink, txn, None, rows(1), world)
    before = log_of(table_path)
    assert sink.commit(attempt_of(txn), staged, world) == receipt
    assert log_of(table_path) == before


def test_a_repeated_commit_finds_its_receipt_after_clean_up_and_other_commits(
    sink: DeltaSink, table_path: Path, world: Environment
) -> None:
    txn = transaction(1)
    staged, receipt = run_epoch(sink, txn, None, rows(1), world)
    sink.discard(attempt_of(txn), staged.place, world, published=True)
    write_deltalake(str(table_path), rows(7), mode="append")
    assert sink.commit(attempt_of(txn), staged, world) == receipt


def test_an_epoch_without_rows_moves_only_the_marker(sink: DeltaSink, table_path: Path, world: Environment) -> None:
    existing(table_path)
    txn = transaction(1)
    _, receipt = run_epoch(sink, txn, None, rows(), world)
    assert (receipt.rows, receipt.files) == (0, 0)
    assert ids_in(table_path) == [0]
    assert sink.last_committed("orders", world) == Marker.of(txn)


def test_an_epoch_without_rows_creates_an_empty_table(sink: DeltaSink, table_path: Path, world: Environment) -> None:
    txn = transaction(1)
    run_epoch(sink, txn, None, rows(), world)
    assert ids_in(table_path) == []
    assert [field.name for field in DeltaTable(str(table_path)).schema().fields] == ["id"]
    assert sink.last_committed("orders", world) == Marker.of(txn)


def test_the_commit_is_a_blind_append_that_carries_the_transaction_id(
    sink: DeltaSink, table_path: Path, world: Environment
) -> None:
    existing(table_path)
    txn = transaction(1)
    run_epoch(sink, txn, None, rows(1), world)
    [info] = DeltaTable(str(table_path)).history(1)
    assert info["isBlindAppend"] is True
    assert json.loads(info["userMetadata"])["airflow_epochs"]["txn"] == str(txn)
    signed = {a["txn"]["appId"]: a["txn"] for a in log_of(table_path)[-1] if "txn" in a}
    assert signed[APP]["version"] == 1
    assert signed[f"{APP}.txn"]["version"] == txn.token
    assert all(entry["lastUpdated"] > 0 for entry in signed.values())


def test_discard_after_publishing_keeps_the_files_that_are_now_the_tables(
    sink: DeltaSink, table_path: Path, world: Environment
) -> None:
    txn = transaction(1)
    staged, _ = run_epoch(sink, txn, None, rows(1, 2), world)
    sink.discard(attempt_of(txn), staged.place, world, published=True)
    sink.discard(attempt_of(txn), staged.place, world, published=True)
    assert ids_in(table_path) == [1, 2]
    assert not Path(staged.place, "_delta_log").exists()


def test_discard_refuses_any_place_outside_the_sinks_own_folder(
    sink: DeltaSink, table_path: Path, world: Environment
) -> None:
    existing(table_path)
    attempt = attempt_of(transaction(1))
    place = sink.plan_stage(attempt, "abc", world)["place"]
    for wrong in (
        str(table_path),
        place.replace("0f1e2d3c", "another"),
        place.replace(".bronze", ".silver"),
        f"{place}/..",
        place.replace("orders/epochs", "other/epochs"),
        f"{table_path}/epochs/0f1e2d3c.bronze/",
    ):
        with pytest.raises(Exception, match="not a staging place"):
            sink.discard(attempt, wrong, world, published=False)
    assert ids_in(table_path) == [0]


def test_a_later_attempts_rows_for_an_epoch_that_is_committed_are_refused(
    sink: DeltaSink, table_path: Path, world: Environment
) -> None:
    existing(table_path)
    first, other = transaction(1), transaction(1, attempt=2)
    attempt = attempt_of(other)
    staged = promised(sink.vote(attempt, stage(sink, attempt, rows(2), world), world))
    run_epoch(sink, first, None, rows(1), world)
    before = log_of(table_path)
    with pytest.raises(Corrupt, match="shows epoch 1"):
        sink.commit(attempt, staged, world)
    assert log_of(table_path) == before


@pytest.mark.parametrize("ahead", [1, 5])
def test_a_marker_that_is_behind_or_ahead_stops_the_commit(
    sink: DeltaSink, table_path: Path, world: Environment, ahead: int
) -> None:
    existing(table_path)
    first = transaction(1)
    run_epoch(sink, first, None, rows(1), world)
    attempt = attempt_of(transaction(3), previous=transaction(2))
    claim = stage(sink, attempt, rows(3), world)
    vote = sink.vote(attempt, claim, world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "shows epoch 1" in (vote.reason or "")
    if ahead == 5:
        sign(table_path, epoch=5)
    with pytest.raises(Corrupt, match="shows epoch"):
        sink.commit(attempt, staged_of(sink, claim.place), world)


def test_the_previous_epoch_of_another_transaction_stops_vote_and_commit(
    sink: DeltaSink, table_path: Path, world: Environment
) -> None:
    existing(table_path)
    run_epoch(sink, transaction(1), None, rows(1), world)
    attempt = attempt_of(transaction(2), previous=transaction(1))
    claim = stage(sink, attempt, rows(2), world)
    assert "shows epoch 1" in (sink.vote(attempt, claim, world).reason or "")
    with pytest.raises(Corrupt, match="shows epoch 1"):
        sink.commit(attempt, staged_of(sink, claim.place), world)
    assert ids_in(table_path) == [0, 1]


def sign(table: Path, epoch: int) -> None:
    write_deltalake(
        str(table),
        rows(),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(APP, epoch, 1)]),
    )


def staged_of(sink: DeltaSink, place: str) -> Staged:
    """What a vote would have promised, had its marker check passed."""
    from airflow_epochs.staged import digest
    from airflow_epochs.staged.staging import read_staging
    from airflow_epochs.storage.files import open_files

    staging = read_staging(open_files(sink.target), place.removeprefix(f"{sink.target}/"))
    assert staging is not None
    return digest.staged_of(StagedClaim(place=place), staging)


def test_a_specification_and_its_sink_are_inverse(table_path: Path) -> None:
    sink = DeltaSink(
        "bronze",
        f"file://{table_path}/",
        partition_by=["day"],
        commit="deltalake",
        storage_conn_id="s3",
        properties={"delta.appendOnly": "true"},
        compact_every=3,
        checkpoint_every=4,
    )
    spec = sink.spec()
    assert json.loads(json.dumps(spec)) == spec
    assert from_spec(spec).spec() == spec
    assert spec["table"] == str(table_path)


def test_rows_that_vanish_after_the_vote_are_not_committed(
    sink: DeltaSink, table_path: Path, world: Environment
) -> None:
    existing(table_path)
    attempt = attempt_of(transaction(1))
    staged = promised(sink.vote(attempt, stage(sink, attempt, rows(1), world), world))
    next(Path(staged.place).glob("*.parquet")).unlink()
    with pytest.raises(Corrupt, match="is gone"):
        sink.commit(attempt, staged, world)
    shutil.rmtree(staged.place)
    with pytest.raises(Corrupt, match="staging table is gone"):
        sink.commit(attempt, staged, world)
    assert ids_in(table_path) == [0]


def test_planning_a_try_twice_leaves_what_spark_has_staged(
    sink: DeltaSink, table_path: Path, world: Environment
) -> None:
    existing(table_path)
    attempt = attempt_of(transaction(1))
    plan = sink.plan_stage(attempt, "n1", world)
    claim = stage_with_deltalake(plan, rows(1))
    assert sink.plan_stage(attempt, "n1", world)["place"] == claim.place
    assert promised(sink.vote(attempt, claim, world)).rows == 1
