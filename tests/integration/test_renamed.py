"""A pipeline that gets another name in the DAG: no row comes twice without a word."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from airflow_epochs import codes
from airflow_epochs.config import Pipeline
from airflow_epochs.contracts import Move, Position
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.orders import adopting, orders
from airflow_epochs.errors import Code, Corrupt, Refused
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import CompleteRecord, Ranges, starting_at_ends
from airflow_epochs.testing import Crash, FaultyStore
from tests.support.checked import checks_of
from tests.support.faults_world import DiskWorld, abort, begin, crash, start
from tests.support.remedies import assert_all_rows, ordered, seen_by_duckdb, starting_in, typed
from tests.support.sql_pipeline import COLUMNS, Related
from tests.support.sql_world import SqliteDb
from tests.support.table_lab import TableLab
from tests.support.table_staging import WithoutSpark

OLD, NEW = frozenset({"orders"}), frozenset({"orders_new"})


@pytest.fixture
def world(tmp_path: Path) -> DiskWorld:
    """Two sinks, two complete epochs, and input for the third."""
    world = start(DiskWorld(tmp_path, in_dag=OLD))
    assert world.run(2) is None
    world.produce(6)
    return world


@pytest.fixture
def database(tmp_path: Path) -> Related:
    """Two sinks in SQLite, whose tables take a row twice; two complete epochs, and input for the third."""
    db = SqliteDb(tmp_path / "db.sqlite")
    columns = 'source text, partition bigint, "offset" bigint, payload text'
    db.run(f"CREATE TABLE orders ({columns})", f"CREATE TABLE lines ({columns})")
    world = Related(tmp_path, db, in_dag=OLD)
    for number in (1, 2):
        world.source.produce(4)
        assert world.run(number) is None
    world.source.produce(6)
    return world


def renamed(world: DiskWorld, **changes: Any) -> DiskWorld:
    """The pipeline has another name in the DAG."""
    return replace(world, **{"name": "orders_new", "input": "orders", "in_dag": NEW, **changes})


def refused(error: Exception | None, code: Code) -> Refused:
    assert isinstance(error, Refused) and error.code is code, error
    return error


def stopped(world: DiskWorld, code: Code, number: int = 3) -> Refused:
    """A run is red, and has opened nothing; `check` says the same before it."""
    before = world.snapshot_of_tables()
    found = [each.error for each in checks_of(world.coordinator().task).values() if each.error]
    assert code in [error.code for error in found]
    error = refused(world.run(number), code)
    assert str(error.what) in [each.what for each in found]
    assert world.snapshot_of_tables() == before
    return error


# -- a pipeline -------------------------------------------------------------------------------------------------------


def test_a_renamed_pipeline_is_refused_and_goes_on_under_its_old_name(world: DiskWorld) -> None:
    error = stopped(renamed(world), codes.PIPELINE_RENAMED)
    assert "pipeline 'orders', which is not in the DAG any more" in error.what
    assert error.remedy.startswith("Give the pipeline its old name 'orders' again in the DAG")
    assert world.run(4) is None
    assert_all_rows(world, "orders", "audit")
    world.one_more_epoch()
    assert_all_rows(world, "orders", "audit")


def test_a_renamed_pipeline_goes_on_under_its_new_name_where_the_old_one_ended(world: DiskWorld) -> None:
    today = renamed(world)
    error = stopped(today, codes.PIPELINE_RENAMED)
    typed(world.ledger_root, error, "takeover")
    today = replace(today, starting=starting_in(error))
    assert today.run(3) is None
    assert_all_rows(today, "orders", "audit")
    today.one_more_epoch()
    assert_all_rows(today, "orders", "audit")
    back = refused(world.run(5), codes.PIPELINE_OF_OTHER_DAG)
    assert "orders_ended" in back.what
    assert_all_rows(today, "orders", "audit")


def test_another_pipeline_that_reads_all_again_on_purpose_does_so_after_the_command_in_the_error(
    world: DiskWorld,
) -> None:
    today = renamed(world)
    typed(world.ledger_root, stopped(today, codes.PIPELINE_RENAMED), "takeover")
    assert today.run(3) is None
    read, again = [(p, o) for p, o, _ in world.source.all_rows()], seen_by_duckdb(world.table("orders"))
    ended = world.ledger.complete_record(2)
    assert ended
    twice = [(r.partition, offset) for r in ended.ranges["orders"] for offset in range(r.end)]
    assert again == sorted(read + twice)


def test_a_renamed_pipeline_is_refused_in_a_database_and_goes_on_after_the_remedy(database: Related) -> None:
    today = replace(database, name="orders_new", in_dag=NEW)
    error = refused(today.run(3), codes.PIPELINE_RENAMED)
    assert today.shown("orders") == database.shown("orders")
    typed(database.folder / "ledger", error, "takeover")
    today = replace(today, starting=starting_in(error))
    assert today.run(3) is None
    today.require_all_shown("orders", "lines")


def test_the_sinks_of_a_renamed_pipeline_may_have_other_names_too(world: DiskWorld) -> None:
    tables = {"orders_2": "orders", "audit_2": "audit"}
    stopped(renamed(world, sinks=tuple(tables), tables=tables), codes.PIPELINE_RENAMED)


def test_of_several_former_pipelines_the_last_one_is_named(world: DiskWorld) -> None:
    gone_on(world)
    third = renamed(world, name="orders_3", in_dag=frozenset({"orders_3"}))
    error = stopped(third, codes.PIPELINE_RENAMED)
    assert "a pipeline 'orders_new'" in error.what
    typed(world.ledger_root, error, "takeover orders_new")
    assert replace(third, starting=starting_in(error)).run(4) is None
    assert_all_rows(world, "orders", "audit")


def test_a_pipeline_that_was_renamed_while_its_epoch_was_in_doubt_keeps_its_old_name(world: DiskWorld) -> None:
    world.crash_at("decision.landed", 3)
    error = stopped(renamed(world), codes.PIPELINE_RENAMED, 4)
    assert "Epoch 3 of pipeline 'orders' is in doubt" in error.remedy and "takeover" not in error.remedy
    assert world.run(4) is None
    assert_all_rows(world, "orders", "audit")


def test_a_pipeline_that_was_renamed_in_doubt_in_its_first_epoch_is_refused(tmp_path: Path) -> None:
    world = DiskWorld(tmp_path, in_dag=OLD)
    world.produce(4)
    world.crash_at("decision.landed", 1)
    stopped(renamed(world), codes.PIPELINE_RENAMED)


LEGITIMATE = {
    "both are in the DAG": {"in_dag": OLD | NEW},
    "the DAG's pipelines are not known": {"in_dag": None},
    "another DAG's, with a function of its own": {"dag_id": "dag_2", "function": "lines_of"},
    "tables of its own": {"tables": {"orders": "orders_new", "audit": "audit_new"}},
}


@pytest.mark.parametrize("changes", [pytest.param(each, id=name) for name, each in LEGITIMATE.items()])
def test_another_pipeline_that_is_no_renamed_one_begins_as_ever(world: DiskWorld, changes: dict[str, object]) -> None:
    today = renamed(world, **changes)
    assert today.run(3) is None
    if "tables" in changes:
        assert_all_rows(today, "orders_new", "audit_new")


def of_another_dag(world: DiskWorld, **changes: Any) -> DiskWorld:
    """The pipeline and its DAG have other names."""
    return renamed(world, dag_id="dag_2", **changes)


def test_a_pipeline_renamed_with_its_dag_goes_on_under_its_old_name_after_the_takeover_in_the_error(
    world: DiskWorld,
) -> None:
    error = stopped(of_another_dag(world), codes.PIPELINE_RENAMED)
    assert "DAG 'dag' has a pipeline 'orders' with the same transform" in error.what
    typed(world.ledger_root, error, "takeover orders --dag-id dag_2")
    today = replace(world, dag_id="dag_2")
    assert today.run(4) is None
    today.one_more_epoch()
    assert_all_rows(today, "orders", "audit")
    refused(world.run(6), codes.PIPELINE_OF_OTHER_DAG)


def test_a_pipeline_renamed_with_its_dag_goes_on_under_its_new_name_where_the_old_one_ended(world: DiskWorld) -> None:
    today = of_another_dag(world)
    error = stopped(today, codes.PIPELINE_RENAMED)
    typed(world.ledger_root, error, "takeover orders --dag-id orders_ended")
    today = replace(today, starting=starting_in(error))
    assert today.run(3) is None
    today.one_more_epoch()
    assert_all_rows(today, "orders", "audit")
    refused(world.run(5), codes.PIPELINE_OF_OTHER_DAG)


def test_a_pipeline_of_another_dag_that_makes_other_rows_has_a_function_of_its_own(world: DiskWorld) -> None:
    today = of_another_dag(world)
    remedy = stopped(today, codes.PIPELINE_RENAMED).remedy
    own = "Give this pipeline a function of its own in `transform`, or another table or topic, if DAG 'dag' goes on."
    assert remedy.startswith(own) and "DAG 'dag' does not run pipeline 'orders' any more" in remedy
    today = replace(today, function="lines_of")
    assert today.run(3) is None
    assert world.run(4) is None
    assert len(seen_by_duckdb(world.table("orders"))) == 2 * len(world.source.all_rows())


def test_a_pipeline_that_another_dag_renamed_while_its_epoch_was_in_doubt_is_taken_over(world: DiskWorld) -> None:
    world.crash_at("decision.landed", 3)
    error = stopped(of_another_dag(world), codes.PIPELINE_RENAMED, 4)
    assert "is in doubt" in error.remedy and "orders_ended" not in error.remedy
    typed(world.ledger_root, error, "takeover orders --dag-id dag_2")
    assert replace(world, dag_id="dag_2").run(4) is None
    assert_all_rows(world, "orders", "audit")


@pytest.mark.parametrize("changes", [{"code": None}, {"code": "f" * 64}])
def test_the_transform_of_another_dag_is_known_by_its_path_if_its_content_is_not(
    world: DiskWorld, changes: dict[str, Any]
) -> None:
    stopped(of_another_dag(world, **changes), codes.PIPELINE_RENAMED)


def test_damaged_records_of_another_dags_pipeline_keep_no_other_one_from_its_work(world: DiskWorld) -> None:
    for record in world.records.glob("epochs/**/*.json"):
        record.write_text("{")
    today = of_another_dag(world, tables={"orders": "orders_new", "audit": "audit_new"})
    assert today.run(3) is None
    assert_all_rows(today, "orders_new", "audit_new")


def test_a_pipeline_that_left_the_dag_without_an_epoch_keeps_no_other_one_from_its_tables(tmp_path: Path) -> None:
    world = DiskWorld(tmp_path, in_dag=OLD)
    world.produce(4)
    world.crash_at("stage.done", 1)
    abort(world.coordinator(), world.run_of(1))
    today = renamed(world)
    assert today.run(2) is None
    assert_all_rows(today, "orders", "audit")


def test_a_former_pipeline_whose_records_are_damaged_keeps_no_other_one_from_its_work(world: DiskWorld) -> None:
    (world.records / "pipeline.json").write_text("{")
    today = renamed(world, tables={"orders": "orders_new", "audit": "audit_new"})
    assert today.run(3) is None
    assert_all_rows(today, "orders_new", "audit_new")


def test_a_command_that_says_where_a_pipeline_begins_says_that_it_is_another_one(world: DiskWorld) -> None:
    """As ``adopt-group`` and ``adopt-checkpoint`` do, before the first run."""
    ended = world.ledger.complete_record(2)
    assert ended
    task, by = renamed(world).coordinator().task, Account(who="me", why="to go on")
    at = Position(ranges=one_before_the_ends(ended.ranges), state={})
    adopting.adopt(task, adopting.require_new(task), "adopt-group", by, Move(position=at))
    assert renamed(world).run(3) is None
    assert len(seen_by_duckdb(world.table("orders"))) == len(world.source.all_rows()) + 2


def one_before_the_ends(ranges: Ranges) -> Ranges:
    """Empty ranges, one record of each partition before the ends of these."""
    return {topic: tuple(r._replace(start=r.end - 1, end=r.end - 1) for r in of) for topic, of in ranges.items()}


@pytest.mark.parametrize("why, opens", [(PermissionError, True), (TimeoutError, False)])
def test_a_ledger_whose_pipelines_may_not_be_listed_is_used_and_one_that_does_not_answer_is_not(
    world: DiskWorld, why: type[OSError], opens: bool
) -> None:
    today = renamed(world, tables={"orders": "orders_new", "audit": "audit_new"})
    store = FaultyStore(LocalStore(world.ledger_root))
    with patch.object(store, "folders", side_effect=why):
        error = today.run(3, today.coordinator(store=store))
    assert (error is None) is opens
    assert bool(today.ledger.open_record(1, 1)) is opens


def test_another_teams_folder_that_may_not_be_read_hides_no_renamed_pipeline(world: DiskWorld) -> None:
    (world.ledger_root / "foreign").mkdir()
    store = FaultyStore(LocalStore(world.ledger_root))
    get = store.get

    def of_ours(key: str) -> bytes | None:
        if key.startswith("foreign/"):
            raise PermissionError(key)
        return get(key)

    with patch.object(store, "get", side_effect=of_ours):
        refused(renamed(world).run(3, renamed(world).coordinator(store=store)), codes.PIPELINE_RENAMED)


def test_a_former_pipeline_whose_epochs_are_damaged_stops_another_one_until_it_is_ended(world: DiskWorld) -> None:
    for record in world.records.glob("epochs/**/*.json"):
        record.write_text("{")
    today = renamed(world, tables={"orders": "orders_new", "audit": "audit_new"})
    error = today.run(3)
    assert isinstance(error, Corrupt) and "if pipeline 'orders' has left DAG and tables for good" in error.remedy
    typed(world.ledger_root, error, "takeover")
    assert today.run(3) is None
    assert_all_rows(today, "orders_new", "audit_new")


# -- a pipeline whose sinks came and went -----------------------------------------------------------------------------


@pytest.mark.parametrize("are_pruned", [False, True])
def test_a_renamed_pipeline_is_known_by_a_table_whose_sink_left_the_dag_before_it(
    database: Related, are_pruned: bool
) -> None:
    database.db.run(f"CREATE TABLE orders_b ({COLUMNS})")
    assert replace(database, names=("other",), tables={"other": "orders_b"}).run(3) is None
    if are_pruned:
        forget_the_open_records(database.folder / "ledger" / "orders")
    today = replace(database, names=("orders",), name="orders_new", in_dag=NEW)
    database.source.produce(2)
    error = refused(today.run(4), codes.PIPELINE_RENAMED)
    typed(database.folder / "ledger", error, "takeover")
    assert replace(today, starting=starting_in(error)).run(4) is None
    today.require_all_shown("orders")


def forget_the_open_records(records: Path) -> None:
    for record in records.glob("epochs/*/*.open.json"):
        record.unlink()


def test_the_tables_tell_where_the_records_of_a_renamed_pipeline_were_pruned(world: DiskWorld) -> None:
    forget_the_open_records(world.records)
    stopped(renamed(world), codes.PIPELINE_RENAMED)
    assert renamed(world, tables={"orders": "orders_new", "audit": "audit_new"}).run(3) is None


def test_a_renamed_pipeline_whose_last_attempt_had_another_table_and_was_aborted_is_refused(world: DiskWorld) -> None:
    replace(world, sinks=("copy",)).crash_at("stage.done", 3)
    abort(world.coordinator(), world.run_of(3))
    today = renamed(world)
    error = stopped(today, codes.PIPELINE_RENAMED)
    typed(world.ledger_root, error, "takeover")
    assert replace(today, starting=starting_in(error)).run(4) is None
    assert_all_rows(today, "orders", "audit")


def test_the_error_says_which_table_of_a_renamed_pipeline_lacks_the_last_epochs(world: DiskWorld) -> None:
    assert replace(world, sinks=("audit",)).run(3) is None
    error = stopped(renamed(world), codes.PIPELINE_RENAMED)
    assert "The place of sink 'orders' has its rows up to epoch 2 alone." in error.remedy
    assert starting_in(error) == starting_at_ends(complete(world, 3).ranges)


# -- a pipeline that was renamed while its run was at work ------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 3])
def test_the_run_that_was_at_work_under_the_old_name_ends_by_the_remedy_and_writes_nothing(
    tmp_path: Path, number: int
) -> None:
    world = at_epoch(tmp_path, number)
    go_on, today = begin(world, number), renamed(world)
    error = stopped(today, codes.PIPELINE_RENAMED, number)
    assert f"Its epoch {number}, which is open" in error.what
    told = typed(world.ledger_root, error, "takeover")
    assert "Pipeline orders will end: no DAG will run it any more." in told and "No later run will finish it." in told
    refused(today.run(number), codes.PIPELINE_RENAMED)
    typed(world.ledger_root, error, "abort")
    today = today if number == 1 else replace(today, starting=starting_in(error))
    assert today.run(number + 1) is None
    with pytest.raises(Refused):
        go_on()
    assert_all_rows(today, "orders", "audit")
    today.one_more_epoch()
    assert_all_rows(today, "orders", "audit")


@pytest.mark.parametrize("number", [1, 3])
def test_a_pipeline_that_was_renamed_while_its_run_was_at_work_goes_on_under_its_old_name(
    tmp_path: Path, number: int
) -> None:
    world = at_epoch(tmp_path, number)
    go_on = begin(world, number)
    error = stopped(renamed(world), codes.PIPELINE_RENAMED, number)
    assert f"Epoch {number} of pipeline 'orders' is open, so keep that name" in error.remedy
    go_on()
    world.produce(2)
    assert world.run(number + 1) is None
    assert_all_rows(world, "orders", "audit")


def at_epoch(folder: Path, number: int) -> DiskWorld:
    """Input for this epoch, and all before it complete."""
    world = DiskWorld(folder, in_dag=OLD)
    for run in range(1, number):
        world.produce(4)
        assert world.run(run) is None
    world.produce(6)
    return world


def test_an_epoch_that_was_decided_after_the_takeover_is_completed_under_the_old_name(world: DiskWorld) -> None:
    decide, today = decided_later(world), renamed(world)
    error = stopped(today, codes.PIPELINE_RENAMED)
    typed(world.ledger_root, error, "takeover")
    decide()
    again = refused(replace(today, starting=starting_in(error)).run(4), codes.PIPELINE_RENAMED)
    assert "Its epoch 3, which is in doubt" in again.what and "abort" not in again.remedy
    typed(world.ledger_root, again, "takeover orders --dag-id dag")
    assert world.run(5) is None
    assert_all_rows(world, "orders", "audit")


def decided_later(world: DiskWorld) -> Callable[[], None]:
    """A run has staged epoch 3; it dies after its decision."""
    begin(world, 3)
    coordinator, run = world.coordinator({"decision.landed": crash}), world.run_of(3)

    def decide() -> None:
        report = coordinator.stage(run).stage
        with pytest.raises(Crash):
            coordinator.vote(run, report)

    return decide


# -- a pipeline that comes back under its old name --------------------------------------------------------------------


def gone_on(world: DiskWorld) -> DiskWorld:
    """It has had an epoch under its new name, by the remedy; there is input for the next one."""
    today = renamed(world)
    error = stopped(today, codes.PIPELINE_RENAMED)
    typed(world.ledger_root, error, "takeover")
    today = replace(today, starting=starting_in(error))
    assert today.run(3) is None
    world.produce(4)
    return today


def taken_back(world: DiskWorld) -> None:
    """The DAG is as it was, and somebody has done what the error says."""
    error = refused(world.run(4), codes.PIPELINE_OF_OTHER_DAG)
    assert "root handed it to 'orders_ended'" in error.what and "because: the remedy says so" in error.what
    assert error.remedy.startswith("Give the pipeline the name of the one that goes on after its rows")
    typed(world.ledger_root, error, "takeover orders --dag-id dag")


def test_a_pipeline_whose_renaming_was_taken_back_is_refused_and_goes_on_under_the_newer_name(
    world: DiskWorld,
) -> None:
    today = gone_on(world)
    taken_back(world)
    error = stopped(world, codes.PIPELINE_RENAMED, 5)
    assert "handed the pipeline to DAG 'dag'" in error.what and "a pipeline 'orders_new'" in error.what
    assert error.remedy.startswith("Give the pipeline the name 'orders_new' again in the DAG")
    assert today.run(6) is None
    assert_all_rows(today, "orders", "audit")


def test_a_pipeline_whose_renaming_was_taken_back_is_refused_with_its_aborted_epoch_too(world: DiskWorld) -> None:
    world.crash_at("stage.done", 3)
    abort(world.coordinator(), world.run_of(3))
    today = gone_on(world)
    taken_back(world)
    stopped(world, codes.PIPELINE_RENAMED, 5)
    assert today.run(6) is None
    assert_all_rows(today, "orders", "audit")


def test_a_pipeline_whose_renaming_was_taken_back_is_refused_after_the_epoch_that_was_in_doubt_meanwhile(
    world: DiskWorld,
) -> None:
    world.crash_at("decision.landed", 3)
    ordered(
        world.ledger_root, "epochs", "takeover", "orders", "--dag-id", "orders_ended", "--why", "the remedy says so"
    )
    behind_it = starting_at_ends(world.ledger.view_of_next().opened.ranges)
    world.produce(2)
    today = renamed(world, starting=behind_it)
    assert today.run(4) is None
    taken_back(world)
    assert world.run(5) is None, "epoch 3 was decided"
    world.produce(2)
    stopped(world, codes.PIPELINE_RENAMED, 6)
    assert today.run(7) is None
    assert_all_rows(today, "orders", "audit")


@pytest.mark.parametrize("command", ["adopt-sink", "rewind"])
def test_no_command_lets_a_pipeline_whose_renaming_was_taken_back_read_again_without_a_word(
    world: DiskWorld, command: str
) -> None:
    today = gone_on(world)
    at, by = orders.standing(world.ledger, "orders"), Account(who="me", why="a test")
    assert at.before
    again = one_before_the_ends(at.before.ranges) if command == "rewind" else {}
    position = Position(ranges=again or at.before.ranges, state=at.before.source_state)
    orders.put(world.ledger, at, command, by, Move(position=position, again=again))
    taken_back(world)
    stopped(world, codes.PIPELINE_RENAMED, 5)
    assert today.run(6) is None
    assert_all_rows(today, "orders", "audit")


def test_a_pipeline_whose_renaming_was_taken_back_before_an_epoch_goes_on(world: DiskWorld) -> None:
    typed(world.ledger_root, stopped(renamed(world), codes.PIPELINE_RENAMED), "takeover")
    taken_back(world)
    assert world.run(5) is None
    world.one_more_epoch()
    assert_all_rows(world, "orders", "audit")


def test_a_pipeline_whose_renaming_was_taken_back_goes_on_by_a_command_behind_the_rows_of_the_newer_name(
    lab: TableLab,
) -> None:
    root, old = lab.folder / "ledger", replace(lab.pipeline, in_dag={"reader"})
    error = refused(failed(lab, of_table(lab)), codes.PIPELINE_RENAMED)
    typed(root, error, "takeover")
    lab.run(pipeline=of_table(lab, source=replace(lab.source, starting=starting_in(error))))
    lab.write(4)
    typed(root, refused(failed(lab, old), codes.PIPELINE_OF_OTHER_DAG), "takeover reader --dag-id dag")
    error = refused(failed(lab, old), codes.PIPELINE_RENAMED)
    typed(root, error, "takeover reader_new")
    file = lab.folder / "offsets.json"
    named = re.search(r"write (\{.*\}\}) into a file", error.remedy)
    assert named
    file.write_text(named[1])
    command = re.search(r"`airflow (epochs skip reader --offsets) FILE --why …`", error.remedy)
    assert command
    ordered(root, *command[1].split(), str(file), "--why", "x")
    lab.run(pipeline=old)
    assert lab.ids() == Counter([1, 2, 3, 4])


def failed(lab: TableLab, pipeline: Pipeline) -> Refused:
    with pytest.raises(Refused) as error:
        lab.run(pipeline=pipeline)
    return error.value


# -- a pipeline that would leave something out ------------------------------------------------------------------------


def behind(world: DiskWorld, more: int = 2) -> dict[str, dict[str, int]]:
    """So many offsets of each partition after the end of the newest epoch."""
    ends = starting_at_ends(complete(world, 2).ranges)
    return {topic: {partition: end + more for partition, end in of.items()} for topic, of in ends.items()}


def complete(world: DiskWorld, number: int) -> CompleteRecord:
    record = world.ledger.complete_record(number)
    assert record
    return record


def test_a_renamed_pipeline_that_begins_behind_the_end_of_the_old_one_is_refused_and_reads_all_by_the_remedy(
    world: DiskWorld,
) -> None:
    today = renamed(world, starting=behind(world))
    error = stopped(today, codes.PIPELINE_RENAMED)
    assert "No pipeline would read the offsets in between, 4 in all." in error.what
    typed(world.ledger_root, error, "takeover")
    assert replace(today, starting=starting_in(error)).run(3) is None
    assert_all_rows(today, "orders", "audit")


@pytest.mark.parametrize("number", [1, 3])
def test_a_gap_behind_an_epoch_that_is_in_doubt_is_refused_until_that_epoch_is_complete(
    tmp_path: Path, number: int
) -> None:
    world = DiskWorld(tmp_path, in_dag=OLD)
    if number > 1:
        assert start(world).run(number - 1) is None
    world.produce(4)
    world.crash_at("decision.landed", number)
    ends = starting_at_ends(world.ledger.view_of_next().opened.ranges)
    world.produce(6)
    starting = {topic: {partition: end + 1 for partition, end in of.items()} for topic, of in ends.items()}
    error = stopped(renamed(world, starting=starting), codes.PIPELINE_RENAMED, number + 1)
    assert f"Its epoch {number}, which is in doubt" in error.what and "takeover" not in error.remedy
    assert world.run(number + 2) is None
    world.one_more_epoch()
    assert_all_rows(world, "orders", "audit")


def test_a_renamed_pipeline_leaves_out_on_purpose_what_the_takeover_consents_to(world: DiskWorld) -> None:
    today = renamed(world, starting=behind(world))
    typed(world.ledger_root, stopped(today, codes.PIPELINE_RENAMED), "takeover")
    assert today.run(3) is None
    assert len(seen_by_duckdb(world.table("orders"))) == len(world.source.all_rows()) - 4


def test_a_renamed_pipeline_begins_where_the_old_one_ended_only_after_that_one_was_ended(world: DiskWorld) -> None:
    today = renamed(world, starting=behind(world, 0))
    error = stopped(today, codes.PIPELINE_RENAMED)
    assert "nobody has ended pipeline 'orders'" in error.what and "`starting`" not in error.remedy
    typed(world.ledger_root, error, "takeover")
    assert today.run(3) is None
    assert_all_rows(today, "orders", "audit")
    world.produce(4)
    refused(world.run(4), codes.PIPELINE_OF_OTHER_DAG)
    assert today.run(5) is None
    assert_all_rows(today, "orders", "audit")


def test_nothing_is_left_out_if_another_former_pipeline_has_read_it(world: DiskWorld) -> None:
    today = gone_on(world)
    third = renamed(world, name="orders_3", in_dag=frozenset({"orders_3"}))
    error = stopped(third, codes.PIPELINE_RENAMED)
    typed(world.ledger_root, error, "takeover orders_new")
    third = replace(third, starting=starting_in(error))
    taken_back(world)
    assert "nobody has ended pipeline 'orders'." in stopped(third, codes.PIPELINE_RENAMED, 5).what
    typed(world.ledger_root, stopped(third, codes.PIPELINE_RENAMED, 5), "takeover orders --dag-id orders_ended")
    assert third.run(6) is None
    assert_all_rows(today, "orders", "audit")


# -- a pipeline whose records another key has signed ------------------------------------------------------------------

FIRST_KEY, SECOND_KEY = "1" * 32, "2" * 32


@pytest.fixture
def signed(tmp_path: Path) -> DiskWorld:
    world = start(DiskWorld(tmp_path, in_dag=OLD, password=FIRST_KEY))
    assert world.run(2) is None
    world.produce(6)
    return world


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_pipeline_that_was_renamed_with_the_key_of_the_ledger_goes_on_with_both_keys_or_after_signing(
    signed: DiskWorld, is_lost: bool
) -> None:
    today = renamed(signed, password=SECOND_KEY)
    error = stopped(today, codes.PIPELINE_RENAMED)
    assert "signed with a key that the ledger's connection does not have" in error.what
    assert error.remedy.startswith("Set the password of the ledger's connection to the new key, a comma and the old")
    if is_lost:
        typed(signed.ledger_root, error, "sign orders", password=SECOND_KEY)
    else:
        today = replace(today, password=f"{SECOND_KEY},{FIRST_KEY}")
    error = stopped(today, codes.PIPELINE_RENAMED)
    typed(signed.ledger_root, error, "takeover", password=today.password)
    assert replace(today, starting=starting_in(error)).run(4) is None
    assert_all_rows(today, "orders", "audit")


def test_another_pipeline_of_another_key_that_shares_no_table_begins_as_ever(signed: DiskWorld) -> None:
    tables = {"orders": "orders_new", "audit": "audit_new"}
    today = renamed(signed, password=SECOND_KEY, tables=tables)
    assert today.run(3) is None
    assert_all_rows(today, *tables.values())


# -- a pipeline that reads a table ------------------------------------------------------------------------------------


@pytest.fixture
def lab(tmp_path: Path) -> TableLab:
    """A pipeline that reads a table has had two epochs, and is not in the DAG any more."""
    lab = TableLab(tmp_path, spark=WithoutSpark())
    for number in (1, 2):
        lab.write(number)
        lab.run()
    lab.write(3)
    return lab


def of_table(lab: TableLab, **changes: Any) -> Pipeline:
    return replace(lab.pipeline, **{"name": "reader_new", "in_dag": {"reader_new"}, **changes})


def test_a_renamed_pipeline_that_reads_a_table_goes_on_where_the_old_one_ended(lab: TableLab) -> None:
    with pytest.raises(Refused) as error:
        lab.run(pipeline=of_table(lab))
    refused(error.value, codes.PIPELINE_RENAMED)
    typed(lab.folder / "ledger", error.value, "takeover")
    lab.run(pipeline=of_table(lab, source=replace(lab.source, starting=starting_in(error.value))))
    assert lab.ids() == Counter([1, 2, 3])


def test_a_renamed_pipeline_whose_input_was_moved_too_goes_on_where_the_old_one_ended(lab: TableLab) -> None:
    shutil.move(lab.table, lab.folder / "moved")
    lab.table = lab.folder / "moved"
    error = refused(failed(lab, of_table(lab)), codes.PIPELINE_RENAMED)
    typed(lab.folder / "ledger", error, "takeover")
    lab.run(pipeline=of_table(lab, source=replace(lab.source, starting=starting_in(error))))
    assert lab.ids() == Counter([1, 2, 3])


def test_a_pipeline_that_reads_another_table_begins_as_ever(lab: TableLab) -> None:
    lab.table = lab.folder / "returns"
    lab.write(4)
    lab.run(pipeline=of_table(lab))
    assert lab.ids() == Counter([1, 2, 4])


def test_a_pipeline_that_reads_a_table_that_was_created_again_begins_as_ever(lab: TableLab) -> None:
    shutil.rmtree(lab.table)
    lab.write(4)
    lab.run(pipeline=of_table(lab))
    assert lab.ids() == Counter([1, 2, 4])
