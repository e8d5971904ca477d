"""Which epoch read a record, and which one made a version of a table."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_epochs import codes
from airflow_epochs.commands import finding
from airflow_epochs.coordinator.admin import admin
from airflow_epochs.coordinator.admin.actions import Abort
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.rebuilding import planning, recording
from airflow_epochs.ledger import run_ids
from airflow_epochs.ledger.finding import epochs_that_made, epochs_that_read
from airflow_epochs.ledger.keys import epoch_folder, run_key
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import newest_opened
from airflow_epochs.ledger.run_ids import nth
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import JsonDict, Run
from airflow_epochs.testing import MemoryWorld, memory_coordinator, memory_pipeline, run_epoch
from orders_demo.duck import duck
from tests.support.faults_disk import TOPIC
from tests.support.faults_world import DiskWorld, start
from tests.support.page_lab import Ledgers
from tests.support.remedies import restored

pytestmark = pytest.mark.proof

EPOCHS = 40


@pytest.fixture
def ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledgers:
    connection = {"conn_type": "epochs", "extra": {"ledger_root": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(connection))
    return Ledgers(tmp_path)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ledger of 40 epochs: epoch n reads n records of one partition, and from epoch 10 on three of another one."""
    connection = {"conn_type": "epochs", "extra": {"ledger_root": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(connection))
    world = MemoryWorld()
    pipeline = memory_pipeline(world, ("gold", "audit"))
    for number in range(1, EPOCHS + 1):
        world.produce("orders", 0, ["row"] * number)
        if number >= 10:
            world.produce("orders", 1, ["row"] * 3)
        run_epoch(memory_coordinator(world, pipeline, store=LocalStore(tmp_path)), Run("dag", f"r{number}"))
    return tmp_path


def reading(root: Path, partition: int, offset: int) -> list[int]:
    ledger = Ledger(LocalStore(root), "orders")
    return [record.txn_id.epoch for record in epochs_that_read(ledger, "orders", partition, offset)]


def test_every_record_is_found_in_the_one_epoch_that_read_it(root: Path) -> None:
    expected = [number for number in range(1, EPOCHS + 1) for _ in range(number)]
    assert [reading(root, 0, offset) for offset in range(len(expected))] == [[number] for number in expected]
    later = [number for number in range(10, EPOCHS + 1) for _ in range(3)]
    assert [reading(root, 1, offset) for offset in range(len(later))] == [[number] for number in later]


@pytest.mark.parametrize(("partition", "offset"), [(0, EPOCHS * (EPOCHS + 1) // 2), (1, 93), (2, 0), (0, -1)])
def test_what_no_epoch_has_read_is_not_found(root: Path, partition: int, offset: int) -> None:
    assert reading(root, partition, offset) == []


def test_after_a_move_back_a_record_is_found_in_every_epoch_that_read_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(LocalStore(root), "orders")
    real = ledger.complete_record

    def moved(number: int) -> object:
        """As if epoch 39 had begun at epoch 38's beginning, by a command."""
        record, before = real(number), real(38)
        if number < 39 or record is None or before is None:
            return record
        return replace(record, moved_in=39, ranges=before.ranges if number == 39 else record.ranges)

    monkeypatch.setattr(ledger, "complete_record", moved)
    offset = sum(range(38))
    assert [record.txn_id.epoch for record in epochs_that_read(ledger, "orders", 0, offset)] == [39, 38]


def test_after_a_rebuilding_every_record_is_found_whose_epoch_the_ledger_has(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger came back as of epoch 11, and was rebuilt up to epoch 30."""
    ledger = Ledger(LocalStore(root), "orders")
    real = ledger.complete_record
    monkeypatch.setattr(Ledger, "rebuilt_to", 30)
    monkeypatch.setattr(ledger, "complete_record", lambda number: None if 11 < number < 30 else real(number))
    for epoch in range(1, EPOCHS + 1):
        for offset in (sum(range(epoch)), sum(range(epoch + 1)) - 1):
            found = [record.txn_id.epoch for record in epochs_that_read(ledger, "orders", 0, offset)]
            assert found == ([] if 11 < epoch < 30 else [epoch])


def test_a_version_of_a_table_leads_to_the_epoch_that_made_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(LocalStore(root), "orders")
    real = newest_opened(ledger)
    assert real
    # a sink in memory has no path of its own
    named = replace(real, sinks={"gold": replace(real.sinks["gold"], spec={"table": f"{root}/gold"})})
    monkeypatch.setattr("airflow_epochs.ledger.finding.newest_opened", lambda ledger: named)
    for version in (0, 7, EPOCHS - 1):
        [(sink, record)] = epochs_that_made(ledger, f"file://{root}/gold/", version)
        assert (sink, record.txn_id.epoch) == ("gold", version + 1)
    assert list(epochs_that_made(ledger, f"{root}/gold", EPOCHS)) == [], "of a compaction"
    assert list(epochs_that_made(ledger, f"{root}/silver", 0)) == []


def test_a_version_leads_to_its_epoch_after_its_sink_left_the_dag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = start(DiskWorld(tmp_path))
    connection = {"conn_type": "epochs", "extra": {"ledger_root": str(world.ledger_root)}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(connection))
    first = world.ledger.complete_record(1)
    assert first
    replace(world, sinks=("orders",)).one_more_epoch(2)
    finding.find(typed(table=str(world.table("audit")), version=first.receipts["audit"].version))
    [row] = json.loads(capsys.readouterr().out)
    assert (row["sink"], row["epoch"]) == ("audit", 1)


def typed(**given: object) -> Namespace:
    names = ("run_id", "dag_id", "topic", "partition", "offset", "table", "version", "row_file")
    return Namespace(**{**dict.fromkeys(names), "ledger_conn_id": "epochs_default", "output": "json", **given})


def test_the_command_prints_the_epoch_and_its_run(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finding.find(typed(topic="orders", partition=0, offset=5))
    [row] = json.loads(capsys.readouterr().out)
    assert (row["pipeline"], row["epoch"], row["run"], row["sink"]) == ("orders", 3, "r3", None)


def test_the_command_says_which_sinks_do_not_show_a_record_also_while_its_epoch_is_not_complete(
    ledgers: Ledgers, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(offset: int, pipeline: str = "orders") -> tuple[int, str, list[str], bool]:
        finding.find(typed(topic="orders", partition=0, offset=offset))
        [row] = [row for row in json.loads(capsys.readouterr().out) if row["pipeline"] == pipeline]
        return row["epoch"], row["state"], row["not_shown_by"], bool(row["completed_at"])

    ledgers.epoch("orders", "a")
    assert found(0) == (1, "complete", [], True)
    ledgers.unfinished(decided=False)
    assert found(1) == (2, "open", ["audit", "orders"], False)
    Abort.of(ledgers.ledger(), "orders").do(ledgers.ledger(), Account(who="ana", why="it hangs"))
    assert found(1) == (2, "aborted", ["audit", "orders"], False)
    ledgers.epoch("orders", "d")
    assert found(1) == (2, "complete", [], True)
    ledgers.unfinished(decided=True, pipeline="users")
    assert found(0, "users") == (1, "in doubt", ["audit", "orders"], False)
    admin.waive(ledgers.ledger("users"), 1, "audit", by=Account(who="ana", why="no backup"))
    ledgers.epoch("users", "e")
    assert found(0, "users") == (1, "complete", ["audit"], True)


def epochs_of_run(capsys: pytest.CaptureFixture[str], run: Run) -> list[JsonDict]:
    finding.find(typed(run_id=run.run_id, dag_id=run.dag_id))
    rows: list[JsonDict] = json.loads(capsys.readouterr().out)
    return rows


def test_a_run_leads_to_its_epoch_and_to_the_runs_that_had_it_later(
    ledgers: Ledgers, capsys: pytest.CaptureFixture[str]
) -> None:
    red = ledgers.epoch(against="no")
    [row] = epochs_of_run(capsys, red)
    assert (row["epoch"], row["state"], row["completed_by"], row["attempts_by"]) == (1, "aborted", None, [red.run_id])
    next_run = ledgers.epoch()
    for run in (red, next_run):
        [row] = epochs_of_run(capsys, run)
        assert (row["pipeline"], row["epoch"], row["state"], row["run"]) == ("orders", 1, "complete", next_run.run_id)
        assert (row["attempts_by"], row["completed_by"]) == ([red.run_id, next_run.run_id], next_run.run_id)


def test_a_run_that_completed_the_epoch_of_another_run_leads_to_that_epoch(
    ledgers: Ledgers, capsys: pytest.CaptureFixture[str]
) -> None:
    red, next_run = ledgers.unfinished(decided=True), ledgers.epoch()
    [row] = epochs_of_run(capsys, next_run)
    assert (row["epoch"], row["attempts_by"], row["completed_by"]) == (1, [red.run_id], next_run.run_id)


def test_a_run_leads_to_all_its_epochs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = MemoryWorld()
    task = memory_coordinator(world, memory_pipeline(world, name="series"), store=LocalStore(root))
    for number in (1, 2, 3):
        world.produce("orders", 0, ["row"])
        run_epoch(task, nth(Run("dag", "r1"), number))
    rows = epochs_of_run(capsys, Run("dag", "r1"))
    assert [(row["pipeline"], row["epoch"], *row["attempts_by"], row["completed_by"]) for row in rows] == [
        ("orders", 1, "r1", "r1"),
        *(("series", number, "r1", "r1") for number in (1, 2, 3)),
    ]


def test_a_run_that_died_before_it_wrote_its_index_leads_to_its_epoch(
    ledgers: Ledgers, capsys: pytest.CaptureFixture[str]
) -> None:
    red = ledgers.unfinished(decided=False)
    (ledgers.root / "orders" / run_key(red)).unlink()
    assert [row["epoch"] for row in epochs_of_run(capsys, red)] == [1]
    next_run = ledgers.epoch()
    [row] = epochs_of_run(capsys, red)
    assert (row["epoch"], row["attempts_by"]) == (1, [red.run_id, next_run.run_id])


def test_a_run_whose_epoch_an_older_copy_of_the_ledger_lacks_leads_to_no_epoch(
    ledgers: Ledgers, capsys: pytest.CaptureFixture[str]
) -> None:
    first, lost = ledgers.epoch(), ledgers.epoch()
    shutil.rmtree(ledgers.root / "orders" / epoch_folder(2))
    with pytest.raises(SystemExit, match=codes.RUN_WITHOUT_EPOCH.name):
        epochs_of_run(capsys, lost)
    assert [row["epoch"] for row in epochs_of_run(capsys, first)] == [1]


def test_an_epoch_that_was_unfinished_before_a_rebuilding_is_not_said_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = start(DiskWorld(tmp_path))
    connection = {"conn_type": "epochs", "extra": {"ledger_root": str(world.ledger_root)}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(connection))
    world.crash_at("decision.landed")
    backup = shutil.copytree(world.ledger_root, tmp_path / "backup")
    [row] = epochs_of_run(capsys, world.run_of(2))
    assert (row["epoch"], row["state"], row["not_shown_by"]) == (2, "in doubt", sorted(world.sinks))
    assert world.run(2) is None
    world.one_more_epoch(3)
    restored(world.ledger_root, backup)
    task = world.coordinator().task
    plan = planning.plan(task)
    assert plan and plan.txn.epoch == 3
    recording.carry_out(task, plan, by=Account(who="ana", why="the disk is gone"))
    [row] = epochs_of_run(capsys, world.run_of(2))
    assert (row["epoch"], row["state"], row["not_shown_by"]) == (2, "unfinished before a rebuilding", None)


def test_a_run_that_had_many_attempts_of_an_epoch_is_named_once_and_only_the_newest_attempts_are_read(
    ledgers: Ledgers, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_ids, "_LOOKED_AT", 3)
    for _ in range(3):
        ledgers.epoch(against="no")
    again = Run("orders_dag", f"manual__{ledgers.runs}")
    ledgers.runs -= 1
    assert ledgers.epoch(against="no") == again
    last = ledgers.epoch()
    read: list[int] = []
    real = Ledger.open_record

    def counted(self: Ledger, epoch: int, attempt: int) -> object:
        read.append(attempt)
        return real(self, epoch, attempt)

    monkeypatch.setattr(Ledger, "open_record", counted)
    [row] = epochs_of_run(capsys, last)
    assert (row["epoch"], row["attempts_by"], read) == (1, [again.run_id, last.run_id], [3, 4, 5])


def test_without_its_dag_a_run_id_is_looked_for_in_every_dag_that_has_owned_a_pipeline(
    ledgers: Ledgers, capsys: pytest.CaptureFixture[str]
) -> None:
    for pipeline in ("orders", "users"):
        ledgers.unfinished(decided=True, pipeline=pipeline)
    ledgers.epoch("users")
    ana = Account(who="ana", why="renamed")
    admin.take_over(ledgers.ledger("users"), "users", "new_dag", owner="users_dag", by=ana)
    finding.find(typed(run_id="vanished"))
    rows = json.loads(capsys.readouterr().out)
    assert [(row["pipeline"], row["dag"], row["state"]) for row in rows] == [
        ("orders", "orders_dag", "in doubt"),
        ("users", "users_dag", "complete"),
    ]


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "orders", "partition": 0, "offset": 10**9}, "EPOCHS-NOTHING-FOUND"),
        ({"row_file": "/lake/orders/part-0.parquet"}, "EPOCHS-NOTHING-FOUND"),
        ({"topic": "orders", "partition": 0}, "EPOCHS-COMMAND-OPTIONS"),
        ({"table": "/t", "version": 1, "row_file": "/t/a.parquet"}, "EPOCHS-COMMAND-OPTIONS"),
        ({"topic": "orders", "partition": 0, "offset": 1, "table": "/t", "version": 1}, "EPOCHS-COMMAND-OPTIONS"),
        ({}, "EPOCHS-COMMAND-OPTIONS"),
        ({"run_id": "r99"}, "EPOCHS-RUN-WITHOUT-EPOCH"),
        ({"run_id": "r1", "dag_id": "other"}, "EPOCHS-RUN-WITHOUT-EPOCH"),
        ({"dag_id": "dag"}, "EPOCHS-COMMAND-OPTIONS"),
        ({"run_id": "r1", "row_file": "/t/a.parquet"}, "EPOCHS-COMMAND-OPTIONS"),
    ],
)
def test_a_question_that_has_no_answer_is_refused_with_what_to_do(
    root: Path, given: dict[str, object], said: str
) -> None:
    with pytest.raises(SystemExit, match=rf"{said}: .*(.|\n)*What to do:"):
        finding.find(typed(**given))


def test_the_file_that_duckdb_tells_for_a_row_leads_to_the_epoch_that_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = start(DiskWorld(tmp_path))
    for number in range(2, 5):
        world.one_more_epoch(number)
    connection = {"conn_type": "epochs", "extra": {"ledger_root": str(world.ledger_root)}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(connection))
    asked: list[int] = []
    real = Ledger.complete_record

    def counted(self: Ledger, number: int) -> object:
        asked.append(number)
        return real(self, number)

    monkeypatch.setattr(Ledger, "complete_record", counted)
    for file, partition, offset in rows_with_files(world.table("audit")):
        asked.clear()
        finding.find(typed(row_file=file))
        [row] = json.loads(capsys.readouterr().out)
        assert row["sink"] == "audit" and asked == [row["epoch"]], "the path has the epoch's number"
        record = world.ledger.complete_record(row["epoch"])
        assert record and any(r.partition == partition and r.start <= offset < r.end for r in record.ranges[TOPIC])
    DeltaTable(str(world.table("audit"))).optimize.compact()
    with pytest.raises(SystemExit, match="EPOCHS-NOTHING-FOUND"):
        finding.find(typed(row_file=rows_with_files(world.table("audit"))[0][0]))


@pytest.mark.parametrize("folder", ["mine-3", f"7-3-{'0' * 32}"])
def test_a_file_is_found_also_in_a_folder_whose_name_does_not_begin_with_the_epoch(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    """As a sink of the user's own may name it."""
    real = Ledger.complete_record

    def placed(self: Ledger, number: int) -> object:
        record = real(self, number)
        if number != 3 or record is None:
            return record
        return replace(
            record, receipts={"gold": replace(record.receipts["gold"], place=f"/lake/epochs/x.gold/{folder}")}
        )

    monkeypatch.setattr(Ledger, "complete_record", placed)
    finding.find(typed(row_file=f"/lake/epochs/x.gold/{folder}/part-0.parquet"))
    [row] = json.loads(capsys.readouterr().out)
    assert (row["sink"], row["epoch"]) == ("gold", 3)


def rows_with_files(table: Path) -> list[tuple[str, int, int]]:
    with duck() as database:
        query = 'SELECT filename, "partition", "offset" FROM delta_scan(?, filename = true)'
        return database.execute(query, [str(table)]).fetchall()
