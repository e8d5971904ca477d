"""Files of a commit that vanish while it lands: noticed before the receipt, staged again, and put back once."""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from airflow_epochs import codes
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.delta.log import entry_of, log_entry
from airflow_epochs.delta.table import App, FoundCommit, TableLocation
from airflow_epochs.errors import Corrupt, RowsGone, RowsLost
from airflow_epochs.model import JsonDict, Marker, Staged
from airflow_epochs.sinks.delta import publish as delta_publish
from airflow_epochs.sinks.delta.lost_files import loss_of
from airflow_epochs.sinks.delta.lost_files import lost as lost_error
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.storage.local import LocalFiles
from tests.support.deletion_vectors import delete_by_vector
from tests.support.delta_history import commits_of
from tests.support.delta_world import (
    attempt_of,
    ids_in,
    log_of,
    promised,
    rows,
    run_epoch,
    seen_by_duckdb,
    stage,
    transaction,
)
from tests.support.environment import Environment, once
from tests.support.remedies import taken_back

BY_DAY = rows(1, 2, 3, 4, p=["a", "a", "b", "c"])


@pytest.fixture
def sink(table: str) -> DeltaSink:
    return DeltaSink("bronze", table, partition_by=["p"])


@pytest.fixture(params=["new table", "existing table"])
def ready(request: pytest.FixtureRequest, sink: DeltaSink, world: Environment) -> tuple[SinkAttempt, Staged]:
    """Four rows in three files, promised."""
    previous = None
    if request.param == "existing table":
        previous = transaction(1)
        run_epoch(sink, previous, None, rows(0, p=["a"]), world)
    attempt = attempt_of(transaction(2 if previous else 1), previous)
    return attempt, staged(sink, attempt, world)


def staged(sink: DeltaSink, attempt: SinkAttempt, world: Environment) -> Staged:
    return promised(sink.vote(attempt, stage(sink, attempt, BY_DAY, world), world))


def take(what: Staged, *, most: int = 10, log: bool = False) -> None:
    """What Spark's VACUUM at 0 hours does, which leaves no entry in the table's log; deltalake's takes logs, too."""
    for path in sorted(Path(what.place).rglob("*.parquet"))[:most]:
        path.unlink()
    if log:
        shutil.rmtree(Path(what.place, "_delta_log"))


def lost(
    sink: DeltaSink, world: Environment, attempt: SinkAttempt, what: Staged, phase: str = "before", **how: Any
) -> None:
    once(world, f"delta.commit.{phase}", partial(take, what, **how))
    with pytest.raises(RowsLost, match=r"files that version \d of .* added"):
        sink.commit(attempt, what, world)
    assert sink.last_committed("orders", world) == Marker.of(attempt.txn)


@pytest.fixture
def bereft(sink: DeltaSink, world: Environment, ready: tuple[SinkAttempt, Staged]) -> SinkAttempt:
    """An attempt that the table shows, but whose files were taken while its commit landed."""
    lost(sink, world, *ready)
    return ready[0]


@pytest.mark.proof
@pytest.mark.few(8)
@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("log", [False, True], ids=["", "and the staging table's log"])
@pytest.mark.parametrize("most", [1, 10], ids=["one file", "all files"])
def test_rows_that_vanish_while_their_commit_lands_are_put_back_once(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged], phase: str, log: bool, most: int
) -> None:
    attempt, first = ready
    before = [0] if attempt.previous else []
    lost(sink, world, attempt, first, phase, log=log, most=most)
    with pytest.raises(RowsLost):
        sink.commit(attempt, first, world)
    again = staged(sink, attempt, world)
    assert again.digest == first.digest
    receipt = sink.commit(attempt, again, world)
    assert receipt.place == again.place
    assert sink.commit(attempt, first, world) == sink.commit(attempt, again, world) == receipt
    assert ids_in(table) == seen_by_duckdb(table) == [*before, 1, 2, 3, 4]
    markers = commits_of(Path(table), sink._participant(world).app(attempt.txn.pipeline))
    assert markers.count(Marker.of(attempt.txn)) == 1, "signed once"
    sink.discard(attempt, first.place, world, published=False)
    sink.discard(attempt, again.place, world, published=True)
    assert ids_in(table) == [*before, 1, 2, 3, 4]


def test_the_next_epoch_follows_rows_that_were_put_back(
    sink: DeltaSink, table: str, world: Environment, bereft: SinkAttempt
) -> None:
    sink.commit(bereft, staged(sink, bereft, world), world)
    run_epoch(sink, transaction(bereft.txn.epoch + 1), bereft.txn, rows(9, p=["z"]), world)
    assert [id_ for id_ in seen_by_duckdb(table) if id_] == [1, 2, 3, 4, 9]


@pytest.mark.proof
def test_of_two_that_put_rows_back_at_once_one_does(
    sink: DeltaSink, table: str, world: Environment, bereft: SinkAttempt
) -> None:
    mine, theirs = staged(sink, bereft, world), staged(sink, bereft, world)
    receipts = []
    once(world, "delta.put_back.before", lambda: receipts.append(sink.commit(bereft, theirs, Environment())))
    receipts.append(sink.commit(bereft, mine, world))
    assert receipts[0] == receipts[1]
    assert receipts[0].place == theirs.place
    assert [id_ for id_ in seen_by_duckdb(table) if id_] == [1, 2, 3, 4]


@pytest.mark.proof
def test_an_append_meanwhile_only_costs_a_round_and_an_overwrite_wins(
    sink: DeltaSink, table: str, world: Environment, bereft: SinkAttempt
) -> None:
    again = staged(sink, bereft, world)
    once(world, "delta.put_back.before", lambda: write_deltalake(table, rows(7, p=["a"]), mode="append"))
    late = DeltaTable(table)
    sink.commit(bereft, again, world)
    with pytest.raises(CommitFailedError):
        write_deltalake(late, rows(8, p=["a"]), mode="overwrite")
    assert [id_ for id_ in seen_by_duckdb(table) if id_] == [1, 2, 3, 4, 7]
    write_deltalake(table, rows(8, p=["a"]), mode="overwrite")
    assert sink.commit(bereft, again, world).place == again.place
    assert seen_by_duckdb(table) == [8]


@pytest.mark.proof
def test_rows_that_vanish_again_are_put_back_again(
    sink: DeltaSink, table: str, world: Environment, bereft: SinkAttempt
) -> None:
    second = staged(sink, bereft, world)
    once(world, "delta.put_back.before", lambda: take(second))
    with pytest.raises(RowsLost):
        sink.commit(bereft, second, world)
    third = staged(sink, bereft, world)
    assert sink.commit(bereft, third, world).place == third.place
    assert [id_ for id_ in seen_by_duckdb(table) if id_] == [1, 2, 3, 4]


def test_files_that_others_removed_from_the_table_and_deleted_are_not_lost(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged]
) -> None:
    attempt, first = ready

    def stop() -> None:
        raise KeyboardInterrupt

    once(world, "delta.commit.after", stop)
    with pytest.raises(KeyboardInterrupt):
        sink.commit(attempt, first, world)
    write_deltalake(table, rows(8, p=["a"]), mode="overwrite")
    take(first)
    assert sink.commit(attempt, first, world).rows == 4
    assert seen_by_duckdb(table) == [8]


def vector(name: str) -> JsonDict:
    """A deletion vector that lies in a file, after Delta's protocol."""
    return {"storageType": "u", "pathOrInlineDv": f"{name}^-aqEH.-t@S}}K{{vb[*k^", "offset": 4, "sizeInBytes": 1}


def test_a_deletion_vector_that_vanishes_while_its_commit_lands_is_lost_unless_a_newer_one_came(tmp_path: Path) -> None:
    files, found = LocalFiles(tmp_path), FoundCommit(1, 0, None)
    plain: JsonDict = {"path": "a.parquet", "partitionValues": {}, "size": 1}
    first, second = plain | {"deletionVector": vector("ab")}, plain | {"deletionVector": vector("cd")}
    files.write_new("a.parquet", b"x")
    files.write_new(log_entry(1), entry_of([{"remove": plain}, {"add": first}]))
    loss = loss_of(found, files)
    assert loss and loss.gone == {"ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"} and not loss.removed
    told = lost_error(TableLocation("orders", str(tmp_path), {}), found, loss, App.of("p", "bronze"), transaction(1))
    assert told.code is codes.DELTA_FILES_LOST and "1 of 2 files" in told.what
    files.write_new(log_entry(2), entry_of([{"remove": first}, {"add": second}]))
    assert loss_of(found, files) is None
    (tmp_path / "a.parquet").unlink()
    loss = loss_of(found, files)
    assert loss and loss.gone == {"a.parquet"}, "the newer vector is of this file"
    assert len(loss.removed) == 1, "the file with the older vector is no file of the table any more"


def test_rows_deleted_by_a_deletion_vector_while_lost_ones_are_put_back_do_not_come_back(
    sink: DeltaSink, table: str, world: Environment, bereft: SinkAttempt
) -> None:
    again, entries = staged(sink, bereft, world), len(log_of(table))
    of_b = next(path for path in DeltaTable(table).file_uris() if "/p=b/" in path)
    once(world, "delta.put_back.before", lambda: delete_by_vector(table, str(Path(of_b).relative_to(table)), 0))
    with pytest.raises(Corrupt) as caught:
        sink.commit(bereft, again, world)
    assert caught.value.code is codes.DELTA_FILES_LOST
    assert len(log_of(table)) == entries + 1, "the DELETE"


@pytest.mark.proof
def test_where_some_files_were_removed_and_others_are_lost_nothing_is_guessed(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged]
) -> None:
    attempt, first = ready

    def remove_and_take() -> None:
        DeltaTable(table).delete("id = 4")
        take(first)

    once(world, "delta.commit.after", remove_and_take)
    entries = len(log_of(table)) + 2 if attempt.previous else 2
    with pytest.raises(Corrupt, match="are gone") as caught:
        sink.commit(attempt, first, world)
    assert not isinstance(caught.value, RowsGone)
    assert len(log_of(table)) == entries
    taken_back(caught.value)
    assert seen_by_duckdb(table) == ([0] if attempt.previous else [])
    assert sink.last_committed("orders", world) == Marker.of(attempt.txn)


@pytest.mark.proof
@pytest.mark.parametrize("most", [0, 10], ids=["another file", "all files"])
def test_rows_deleted_by_a_deletion_vector_do_not_come_back_in_the_place_of_lost_ones(
    sink: DeltaSink, table: str, world: Environment, ready: tuple[SinkAttempt, Staged], most: int
) -> None:
    attempt, first = ready

    def delete_and_take() -> None:
        (of_a,) = Path(first.place).glob("p=a/*.parquet")
        delete_by_vector(table, str(of_a.relative_to(table)), 0)
        before = [0] if attempt.previous else []
        assert seen_by_duckdb(table) == [*before, 2, 3, 4], "the first row of this file is deleted"
        take(first, most=most)
        for of_c in Path(first.place).glob("p=c/*.parquet"):
            of_c.unlink()

    once(world, "delta.commit.after", delete_and_take)
    caught = []
    for what in (first, staged(sink, attempt, world)):
        with pytest.raises(Corrupt, match="are gone") as raised:
            sink.commit(attempt, what, world)
        caught.append(raised.value)
    assert [error.code for error in caught] == [codes.DELTA_FILES_LOST] * 2
    assert len(log_of(table)) == (3 if attempt.previous else 2), "nothing was put back"
    taken_back(caught[1])
    assert seen_by_duckdb(table) == ([0] if attempt.previous else [])
    assert sink.last_committed("orders", world) == Marker.of(attempt.txn)


def test_other_rows_do_not_pass_for_the_lost_ones(
    sink: DeltaSink, table: str, world: Environment, bereft: SinkAttempt
) -> None:
    again = staged(sink, bereft, world)
    other = promised(sink.vote(bereft, stage(sink, bereft, rows(5, p=["a"]), world), world))
    shutil.rmtree(again.place)
    shutil.copytree(other.place, again.place)
    before = len(log_of(table))
    with pytest.raises(Corrupt, match="the staging table was changed"):
        sink.commit(bereft, again, world)
    assert len(log_of(table)) == before


@pytest.mark.parametrize(("retention", "renewed"), [(None, True), ("interval 30 days", False)])
def test_staged_files_that_vacuum_would_take_soon_are_made_young_before_the_commit(
    table: str, world: Environment, monkeypatch: pytest.MonkeyPatch, retention: str | None, renewed: bool
) -> None:
    sink = DeltaSink("bronze", table, properties={"delta.deletedFileRetentionDuration": retention} if retention else {})
    attempt = attempt_of(transaction(1))
    what = promised(sink.vote(attempt, stage(sink, attempt, rows(1, 2), world), world))
    now, six_days = time.time(), 6 * 86_400
    for path in Path(what.place).rglob("*.parquet"):
        os.utime(path, (now - six_days, now - six_days))
    monkeypatch.setattr(delta_publish, "now_ms", lambda: int((now + six_days) * 1000))
    sink.commit(attempt, what, world)
    young = [path.stat().st_mtime > now - 60 for path in Path(what.place).rglob("*.parquet")]
    assert young == [renewed]
    assert seen_by_duckdb(table) == [1, 2]


def test_a_vacuum_of_strangers_spares_old_staged_files_from_their_renewal_on(
    sink: DeltaSink, table: str, world: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_epoch(sink, first := transaction(1), None, rows(0, p=["a"]), world)
    attempt = attempt_of(transaction(2), first)
    what = staged(sink, attempt, world)
    now, six_days = time.time(), 6 * 86_400
    # the checksum only saves work to Spark's append, which is done
    files = [path for path in Path(what.place).rglob("*") if path.is_file() and path.suffix != ".crc"]
    of_place = {str(path.relative_to(table)) for path in files}
    for path in of_place:
        os.utime(Path(table, path), (now - six_days, now - six_days))
    monkeypatch.setattr(delta_publish, "now_ms", lambda: int((now + six_days) * 1000))

    def vacuum(*, dry_run: bool = False) -> set[str]:
        return set(DeltaTable(table).vacuum(120, dry_run=dry_run, enforce_retention_duration=False, full=True))

    def vacuum_and_stop() -> None:
        assert not of_place & vacuum()
        raise KeyboardInterrupt

    assert of_place <= vacuum(dry_run=True)
    once(world, "delta.commit.before", vacuum_and_stop)
    with pytest.raises(KeyboardInterrupt):
        sink.commit(attempt, what, world)
    assert sink.commit(attempt, what, world).place == what.place
    vacuum()
    assert seen_by_duckdb(table) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("interval", "hours"),
    [("interval 1 week", 168), ("INTERVAL 36 hours", 36), ("interval 1 day 12 hours", 36), ("7 moons", 0), ("", 0)],
)
def test_a_retention_is_understood_as_spark_writes_it(interval: str, hours: float) -> None:
    assert delta_publish._milliseconds(interval) == hours * 3_600_000


def test_rows_are_put_back_into_partitions_whose_values_need_encoding(table: str, world: Environment) -> None:
    sink = DeltaSink("bronze", table, partition_by=["p"])
    data = rows(1, 2, 3, p=["ü", "a b%", None])
    attempt = attempt_of(transaction(1))
    first = promised(sink.vote(attempt, stage(sink, attempt, data, world), world))
    lost(sink, world, attempt, first)
    again = promised(sink.vote(attempt, stage(sink, attempt, data, world), world))
    sink.commit(attempt, again, world)
    assert seen_by_duckdb(table) == [1, 2, 3]
