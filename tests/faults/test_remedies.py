"""Each error's remedy, followed to the letter, ends in a running pipeline that shows what the remedy promised."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.ledger.codec import decode, encode
from airflow_epochs.model import JsonDict, WaivedRecord
from tests.support.deletion_vectors import delete_by_vector
from tests.support.faults_history import require_exactly_once
from tests.support.faults_world import DiskWorld, begin, start
from tests.support.rebuilt import typed_rebuild
from tests.support.remedies import (
    assert_all_rows,
    backfill_in,
    refused,
    renamed,
    restored,
    seen_by_duckdb,
    stopped,
    taken_back,
    typed,
)


def of_epochs(world: DiskWorld, *epochs: int) -> list[tuple[int, int]]:
    """What a sink has to show of these epochs: partition and offset, as the ledger has their ranges."""
    found = []
    for epoch in epochs:
        record = world.ledger.complete_record(epoch)
        assert record
        found += [(r.partition, offset) for r in record.ranges["orders"] for offset in range(r.start, r.end)]
    return sorted(found)


# -- a copy of the ledger --------------------------------------------------------------------------------------------


def delete_the_folder(world: DiskWorld, error: Corrupt) -> None:
    named = re.search(r"delete the folder (\S+) in it", error.remedy)
    assert named
    folder = world.ledger_root / named[1]
    assert folder.is_dir()
    shutil.rmtree(folder)


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [80, 2], ids=["a new run", "the run of that epoch, cleared"])
def test_a_copy_of_a_ledger_with_an_undecided_epoch_runs_on_once_the_folder_is_deleted(
    world: DiskWorld, number: int
) -> None:
    go_on = begin(world)
    copy = replace(world, folder=Path(shutil.copytree(world.folder, f"{world.folder}.copy")))
    go_on()
    before = world.snapshot()
    delete_the_folder(copy, refused(copy))
    assert copy.run(number) is None
    assert_all_rows(copy, "orders", "audit")
    copy.one_more_epoch()
    assert_all_rows(copy, "orders", "audit")
    assert world.snapshot() == before, "it never touches the original's"
    world.one_more_epoch()
    assert_all_rows(world, "orders", "audit")


def test_a_ledger_restored_with_the_tables_of_todays_dag_runs_on_once_the_folder_is_deleted(world: DiskWorld) -> None:
    """The sink that shows more than the ledger knows has left the DAG; its table was not restored."""
    go_on = begin(world)
    backups = {at: shutil.copytree(at, f"{at}.backup") for at in (world.ledger_root, world.table("orders"))}
    go_on()
    for folder, backup in backups.items():
        restored(folder, Path(backup))
    today = replace(world, sinks=("orders",))
    delete_the_folder(today, refused(today))
    assert today.run(81) is None
    assert_all_rows(today, "orders", "audit")
    today.one_more_epoch()
    assert_all_rows(today, "orders")


# -- two histories of one pipeline -----------------------------------------------------------------------------------


@pytest.fixture
def two_ledgers(world: DiskWorld) -> tuple[DiskWorld, DiskWorld]:
    """One ledger went on from epoch 1; so did a copy of it that was put in its place, together with the tables."""
    backups = {sink: shutil.copytree(world.table(sink), f"{world.table(sink)}.backup") for sink in world.sinks}
    other = replace(world, ledger_folder=Path(shutil.copytree(world.ledger_root, world.folder / "ledger.copy")))
    assert world.run(2) is None
    for sink in world.sinks:
        restored(world.table(sink), Path(backups[sink]))
    world.produce(3)
    assert other.run(3) is None
    world.produce(2)
    return world, other


def test_of_two_ledgers_the_one_that_has_the_tables_transaction_goes_on(
    two_ledgers: tuple[DiskWorld, DiskWorld],
) -> None:
    error = stopped(two_ledgers[0])
    named = re.search(r"shows epoch 2 of transaction (\S+), and the ledger has (\S+)\.", error.what)
    assert named
    having = []
    for world in two_ledgers:
        shown = json.loads(typed(world.ledger_root, error, "show"))
        if shown["complete"]["txn_id"] == named[1]:
            having.append(world)
    assert having == [two_ledgers[1]]
    assert having[0].run(80) is None
    assert_all_rows(having[0], "orders", "audit")


def test_two_ledgers_that_both_go_on_feed_the_table_under_two_names(two_ledgers: tuple[DiskWorld, DiskWorld]) -> None:
    world, other = two_ledgers
    assert "give this pipeline's sink another name: it begins with the next epoch" in stopped(world).remedy
    assert refused(renamed(world)).sink == "audit", "each of its sinks that the other ledger has written to"
    world = replace(renamed(world), sinks=("orders_2", "audit_2"), tables={"orders_2": "orders", "audit_2": "audit"})
    written = seen_by_duckdb(world.table("orders_2"))
    assert world.run(81) is None
    assert seen_by_duckdb(world.table("orders_2")) == sorted([*written, *of_epochs(world, 3)])
    assert other.run(82) is None
    both = sorted([*written, *of_epochs(world, 3), *of_epochs(other, 3)])
    assert seen_by_duckdb(other.table("orders")) == seen_by_duckdb(other.table("audit")) == both


# -- the ledger ------------------------------------------------------------------------------------------------------


def test_a_ledger_that_has_lost_a_completion_record_for_good_is_rebuilt_by_the_command_in_the_error(
    world: DiskWorld,
) -> None:
    for number in range(2, 6):
        assert world.run(number) is None
        world.produce(3)
    (world.records / "epochs" / f"{4:020}" / "complete.json").unlink()
    typed_rebuild(lambda: world.coordinator().task, refused(world), ledger_root=world.ledger_root)
    assert world.run(81) is None
    assert_all_rows(world, "orders", "audit")
    world.one_more_epoch()
    require_exactly_once(world)


def rewritten(path: Path, change: Callable[[JsonDict], object]) -> None:
    """A sound record with another content."""
    record = decode(path.read_bytes(), JsonDict)
    change(record)
    path.write_bytes(encode(record))


def of_another_history(record: JsonDict) -> None:
    """Of a backup that was mixed in: the same numbers, another transaction."""
    record["txn_id"] = record["txn_id"][:-32] + "0" * 32


@pytest.mark.parametrize("mixed", ["0000000001.decision.json", "orders.restaged.0000000001.json"])
def test_records_of_two_histories_are_put_right_by_the_whole_folder(world: DiskWorld, mixed: str) -> None:
    world.crash_at("decision.landed")
    if "restaged" in mixed:
        for path in world.table("orders").glob("epochs/*/2-*/*.parquet"):
            path.unlink()
        world.crash_at("restaged.landed", 3)
    folder = world.records / "epochs" / f"{2:020}"
    backup = Path(shutil.copytree(folder, world.folder / "backup"))
    rewritten(folder / mixed, of_another_history)
    for number in (2, 3):
        assert "Restore the whole folder of the epoch" in refused(world, number).remedy
    restored(folder, backup)
    assert world.run(2) is None
    world.one_more_epoch()
    assert_all_rows(world, "orders", "audit")


def test_a_pipeline_is_handed_over_by_the_command_in_the_error(world: DiskWorld) -> None:
    other = replace(world, dag_id="other")
    error = other.run(80)
    assert isinstance(error, Refused)
    typed(other.ledger_root, error, "takeover")
    assert other.run(81) is None
    assert_all_rows(other, "orders", "audit")
    assert isinstance(world.run(82), Refused)


# -- tasks that are to be cleared ------------------------------------------------------------------------------------

TASKS = ("open", "stage", "vote", "commit", "complete")


def from_task(world: DiskWorld, first: str, until: str = "complete") -> None:
    """The tasks of run 2, as Airflow runs those that were cleared with what is downstream of them."""
    task, run, report = world.coordinator(), world.run_of(2), None
    for name in TASKS[TASKS.index(first) : TASKS.index(until) + 1]:
        match name:
            case "open":
                task.open(run)
            case "stage":
                report = task.stage(run).stage
            case "vote":
                task.vote(run, report)
            case "commit":
                for sink in world.sinks:
                    task.commit(run, sink)
            case "complete":
                task.complete(run)


@pytest.mark.parametrize(
    ("done", "failing", "cleared"),
    [
        (None, "stage", r"Clear the (open) task with its downstream"),
        ("open", "vote", r"Clear the (stage) task with its downstream"),
        ("stage", "commit", r"Clear the (stage) task with its downstream"),
        ("stage", "complete", r"Clear the (stage) task with its downstream"),
    ],
)
def test_a_task_that_lacks_what_comes_before_it_names_the_task_to_clear(
    world: DiskWorld, done: str | None, failing: str, cleared: str
) -> None:
    if done:
        from_task(world, "open", done)
    with pytest.raises(Refused) as caught:
        from_task(world, failing, failing)
    named = re.search(cleared, caught.value.remedy)
    assert named, caught.value.remedy
    from_task(world, named[1])
    assert_all_rows(world, "orders", "audit")


# -- what is configured ----------------------------------------------------------------------------------------------


def test_a_place_with_other_files_is_left_for_one_where_there_is_nothing(world: DiskWorld) -> None:
    (world.folder / "files").mkdir()
    (world.folder / "files" / "a.csv").write_text("a")
    wrong = replace(world, sinks=("orders", "gold"), tables={"gold": "files"})
    error = wrong.run(80)
    assert isinstance(error, Refused)
    assert "Point the sink to a Delta table, or to a place where there is nothing yet" in error.remedy
    right = replace(wrong, tables={"gold": "nothing_yet"})
    assert right.run(81) is None
    assert seen_by_duckdb(right.table("gold")) == of_epochs(right, 2)
    assert_all_rows(right, "orders")


def test_a_partitioning_that_the_table_does_not_have_is_left_out(world: DiskWorld) -> None:
    wrong = replace(world, sink_options={"partition_by": ["payload"]})
    error = wrong.run(80)
    assert isinstance(error, Refused)
    assert "Correct partition_by of the sink, or leave it out" in error.remedy
    assert world.run(81) is None
    assert_all_rows(world, "orders", "audit")


@pytest.mark.parametrize("leave_out", [False, True])
def test_a_backfill_that_begins_too_late_is_corrected_as_the_error_says(world: DiskWorld, leave_out: bool) -> None:
    added = replace(world, sinks=("orders", "audit", "gold"), backfill={"gold": 12})
    error = added.run(80)
    assert isinstance(error, Refused)
    named = re.search(
        r"Let `backfill` name epoch (\d+) or an earlier one, or remove the sink from `backfill`", error.remedy
    )
    assert named
    added = replace(added, backfill={} if leave_out else {"gold": int(named[1])})
    assert added.run(81) is None
    assert seen_by_duckdb(added.table("gold")) == of_epochs(added, 2)
    assert_all_rows(added, "orders", "audit")


def overtaken_backfill(world: DiskWorld, first: int = 1) -> DiskWorld:
    """The waived commit of a new sink landed after the decision of the next epoch, which fills the sink again.

    ``first``: from which epoch on. The waived commit has the rows from epoch 1 on.
    """
    world = replace(world, sinks=("orders", "audit", "gold"), backfill={"gold": 1})
    then, task, run = replace(world, backfill={"gold": first}), world.coordinator(), world.run_of(2)
    txn_id = task.open(run).txn_id
    task.vote(run, task.stage(run).stage)

    def meanwhile() -> None:
        world.ledger.put(WaivedRecord(txn_id=txn_id, sink="gold", who="me", why="it hangs", at="now"))
        assert world.run(2) is None
        world.produce(3)
        then.crash_at("decision.landed", number=3)

    world.coordinator({"delta.commit.before": meanwhile}).commit(run, "gold")
    return then


def test_a_table_that_a_late_waived_commit_filled_is_emptied_and_has_each_row_once(
    world: DiskWorld, tmp_path: Path
) -> None:
    world = overtaken_backfill(world)
    error = refused(world, 3)
    assert error.code is codes.BACKFILL_OVERTAKEN and error.epoch == 3 and error.sink == "gold"
    named = re.search(r"Take the folder (\S+) out of the table: move it", error.remedy)
    assert named
    shutil.move(named[1], tmp_path / "moved")
    assert world.run(3) is None, "the failed task, cleared"
    world.one_more_epoch()
    assert_all_rows(world, "orders", "audit", "gold")


@pytest.mark.few(1)
@pytest.mark.parametrize("first", [1, 2], ids=["the table went on", "the backfill lacks rows of the late commit"])
def test_a_table_that_a_late_waived_commit_filled_goes_on_without_the_epoch_or_is_filled_under_another_name(
    world: DiskWorld, first: int
) -> None:
    world = overtaken_backfill(world, first)
    if first == 1:
        DeltaTable(str(world.table("gold"))).alter.set_table_properties({"delta.appendOnly": "false"})
    error = refused(world, 3)
    assert error.code is codes.BACKFILL_OVERTAKEN and "Take the folder" not in error.remedy
    typed(world.ledger_root, error, "waive")
    assert world.run(3) is None, "the failed task, cleared"
    world.one_more_epoch()
    assert seen_by_duckdb(world.table("gold")) == of_epochs(world, 1, 2, 4)
    world = replace(world, sinks=("orders", "audit", "gold_2"), backfill={"gold_2": backfill_in(error)})
    world.one_more_epoch(91)
    assert seen_by_duckdb(world.table("gold_2")) == of_epochs(world, *range(first, 6))
    assert_all_rows(world, "orders", "audit")


# -- a table that is gone, replaced or older while an epoch is under way --------------------------------------------


def another(at: Path) -> None:
    shutil.rmtree(at)
    write_deltalake(str(at), pa.table({"source": ["x"], "partition": [9], "offset": [9], "payload": ["x"]}))


def unmarked(table: Path) -> None:
    for entry in table.glob("_delta_log/*.json"):
        lines = [line for line in entry.read_text().splitlines() if "txn" not in json.loads(line)]
        entry.write_text("\n".join(lines))


def older(table: Path) -> None:
    """As of the first epoch."""
    for entry in sorted(table.glob("_delta_log/*.json"))[1:]:
        entry.unlink()


UNDER_WAY = ["stage.done", "decision.landed", "complete.put"]
"""Undecided; in doubt, without receipts; in doubt, with all of them."""


@pytest.fixture(params=UNDER_WAY)
def under_way(request: pytest.FixtureRequest, world: DiskWorld) -> DiskWorld:
    """Two complete epochs, and a third one that its run has left."""
    assert world.run(2) is None
    world.produce(3)
    world.crash_at(request.param, number=3)
    world.produce(2)
    return world


def waived_if_said(world: DiskWorld, error: Corrupt) -> None:
    """What the remedy says to do before the sink gets another name: nothing if the epoch is undecided."""
    if "airflow epochs waive" in error.remedy:
        typed(world.ledger_root, error, "waive")
        assert world.run(3) is None, "the failed task, cleared"
        assert world.ledger.newest_complete() == 3


@pytest.mark.few(2)
@pytest.mark.parametrize("accident", [shutil.rmtree, older], ids=["gone", "behind"])
def test_a_table_that_is_lost_while_an_epoch_is_under_way_is_filled_again_under_another_name(
    under_way: DiskWorld, accident: Callable[[Path], None]
) -> None:
    accident(under_way.table("orders"))
    error = refused(under_way)
    waived_if_said(under_way, error)
    world = renamed(under_way, orders_2=backfill_in(error))
    for number in (82, 83):
        assert world.run(number) is None
    assert_all_rows(world, "orders", "audit")


def test_a_table_that_is_replaced_while_an_epoch_is_under_way_is_gone_on_with_under_another_name(
    under_way: DiskWorld,
) -> None:
    another(under_way.table("orders"))
    error = refused(under_way)
    waived_if_said(under_way, error)
    assert "give the sink another name: it begins there with the next epoch" in error.remedy
    world = renamed(under_way)
    begins = world.ledger.newest_complete() + 1
    for number in (82, 83):
        assert world.run(number) is None
    epochs = range(begins, world.ledger.newest_complete() + 1)
    assert seen_by_duckdb(world.table("orders_2")) == [*of_epochs(world, *epochs), (9, 9)]
    assert_all_rows(world, "audit")


def test_a_table_that_loses_its_markers_while_an_epoch_is_under_way_goes_on_under_another_name(
    under_way: DiskWorld,
) -> None:
    unmarked(under_way.table("orders"))
    error = refused(under_way)
    waived_if_said(under_way, error)
    world = renamed(under_way, orders_2=backfill_in(error)) if "backfill" in error.remedy else renamed(under_way)
    for number in (82, 83):
        assert world.run(number) is None
    assert_all_rows(world, "orders", "audit")


def test_a_table_put_back_between_stage_and_vote_is_told_of_by_the_next_open(world: DiskWorld) -> None:
    assert world.run(2) is None
    world.produce(3)
    newer = world.folder / "newer"

    def put_back() -> None:
        shutil.copytree(world.table("orders"), newer)
        older(world.table("orders"))

    error = world.run(3, world.coordinator({"stage.done": put_back}))
    assert isinstance(error, Refused)
    assert "the next run start. The error of `open` says what happened" in error.remedy
    assert "Put the newest copy of the table back" in stopped(world).remedy
    restored(world.table("orders"), newer)
    assert world.run(81) is None
    assert_all_rows(world, "orders", "audit")


# -- promises that are waived ----------------------------------------------------------------------------------------


def voted_by_another_version(world: DiskWorld) -> None:
    (path,) = world.records.glob("epochs/*2/*.decision.json")
    rewritten(path, lambda record: record["votes"]["orders"]["staged"].update(digest="0" * 64))


def replaced_in_its_log(world: DiskWorld) -> None:
    """Its markers stay."""
    table = str(world.table("orders"))
    DeltaTable.create(table, DeltaTable(table).schema(), mode="overwrite")


def vacuumed(world: DiskWorld) -> None:
    for path in world.table("orders").glob("epochs/*/2-*/*.parquet"):
        path.unlink()


@pytest.mark.parametrize(
    ("accident", "left"), [(voted_by_another_version, [1]), (replaced_in_its_log, []), (vacuumed, [1])]
)
def test_a_promise_that_is_waived_by_the_command_in_the_error_lets_the_pipeline_go_on(
    world: DiskWorld, accident: Callable[[DiskWorld], None], left: list[int]
) -> None:
    world.crash_at("decision.landed")
    accident(world)
    with without_input(world):
        typed(world.ledger_root, refused(world), "waive")
        assert world.run(2) is None
    world.one_more_epoch()
    assert seen_by_duckdb(world.table("orders")) == of_epochs(world, *left, 3)
    assert_all_rows(world, "audit")


@contextmanager
def without_input(world: DiskWorld) -> Iterator[None]:
    """The records are gone from the topic; put back, so that the source that stands for it can go on."""
    path = world.source._path(0)
    records = path.read_text()
    path.write_text("")
    yield
    path.write_text(records)


# -- rows of a commit that are lost ----------------------------------------------------------------------------------


@pytest.fixture(params=["first epoch", "second epoch"])
def in_files(request: pytest.FixtureRequest, tmp_path: Path) -> DiskWorld:
    """Tables with a file per partition, and input for the next epoch."""
    world = DiskWorld(tmp_path, sink_options={"partition_by": ["partition"]})
    if request.param == "second epoch":
        return start(world)
    world.produce(6)
    return world


def deleted_by_a_new_file(world: DiskWorld, file: Path) -> None:
    newest = max(offset for partition, offset, _ in world.source.all_rows() if partition == 0)
    DeltaTable(str(world.table("orders"))).delete(f"partition = 0 and offset = {newest}")


def deleted_by_a_vector(world: DiskWorld, file: Path) -> None:
    table = world.table("orders")
    before = len(seen_by_duckdb(table))
    delete_by_vector(table, str(file.relative_to(table)), 0)
    assert len(seen_by_duckdb(table)) == before - 1


def lose_a_part(world: DiskWorld, delete_in: Callable[[DiskWorld, Path], None]) -> None:
    """Somebody deletes a row of the commit, and a VACUUM takes a file of which he has deleted none."""
    staged = set(world.table("orders").glob(f"epochs/*/{world.ledger.newest_complete() + 1}-*/**/*.parquet"))
    (first,) = [path for path in staged if "partition=0" in str(path)]
    delete_in(world, first)
    (staged - {first}).pop().unlink()


@pytest.mark.few(2)
@pytest.mark.parametrize("delete_in", [deleted_by_a_new_file, deleted_by_a_vector])
def test_an_epoch_of_which_a_part_is_lost_and_rows_were_deleted_is_there_once_after_the_remedy(
    in_files: DiskWorld, delete_in: Callable[[DiskWorld, Path], None]
) -> None:
    number = in_files.ledger.newest_complete() + 1
    lose = partial(lose_a_part, in_files, delete_in)
    error = in_files.run(number, in_files.coordinator({"delta.commit.after#1": lose}))
    assert isinstance(error, Corrupt), error
    taken_back(error)
    typed(in_files.ledger_root, error, "waive")
    assert in_files.run(number) is None, "the commit task, cleared"
    world = renamed(in_files, orders_2=backfill_in(error))
    world.one_more_epoch()
    assert_all_rows(world, "orders", "audit")
    world.one_more_epoch(91)
    assert_all_rows(world, "orders", "audit")


@pytest.mark.few(2)
@pytest.mark.parametrize("files", [1, 2], ids=["one of two files", "both files"])
def test_an_epoch_whose_lost_rows_cannot_be_had_again_is_in_no_row_of_the_sink_after_the_remedy(
    in_files: DiskWorld, files: int
) -> None:
    number = in_files.ledger.newest_complete() + 1

    def lose() -> None:
        for path in sorted(in_files.table("orders").glob(f"epochs/*/{number}-*/**/*.parquet"))[:files]:
            path.unlink()

    in_files.crash_at("delta.commit.after#1", number, {"delta.commit.before#1": lose})
    with without_input(in_files):
        error = refused(in_files)
        taken_back(error)
        typed(in_files.ledger_root, error, "waive")
        assert in_files.run(81) is None
    in_files.one_more_epoch()
    others = [each for each in range(1, in_files.ledger.newest_complete() + 1) if each != number]
    assert seen_by_duckdb(in_files.table("orders")) == of_epochs(in_files, *others)
    assert_all_rows(in_files, "audit")
