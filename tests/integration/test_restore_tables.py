"""``airflow epochs rewind --restore-tables`` on a real broker: all Delta tables go back in one epoch, or none does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import DeltaSink, SqlSink, codes
from airflow_epochs.coordinator.backfills.backfill import replayed
from airflow_epochs.delta.log import actions_of, log_entry
from airflow_epochs.errors import Corrupt, EpochError, Refused
from airflow_epochs.model import Run
from airflow_epochs.read import complete_epoch
from airflow_epochs.sinks.delta.state import pinning
from airflow_epochs.testing import Crash
from orders_demo.duck import duck
from tests.support.faults_world import crash
from tests.support.remedies import ordered, taken_back, typed
from tests.support.sql_world import new_sqlite
from tests.support.state_lab import PARTITIONS, Lab, folds
from tests.support.topic_world import TopicWorld

pytestmark = pytest.mark.jvm

LAKES = ("lake_a", "lake_b")
COLUMNS = '"partition", "offset"'


@pytest.fixture
def world(known_topic_world: Callable[..., TopicWorld]) -> TopicWorld:
    """Two tables and a database; epochs 1, 2 and 3 have read ab, cd and ef."""
    world = known_topic_world(sinks=(*LAKES, "rows"))
    for number, payloads in enumerate(("ab", "cd", "ef"), 1):
        epoch(world, number, payloads)
    return world


def epoch(world: TopicWorld, number: int, payloads: str) -> None:
    world.produce(payloads)
    assert world.run(number) is None


def rewind(world: TopicWorld, *words: str) -> str:
    return ordered(world.ledger_root, "epochs", "rewind", world.name, *words, "--why", "the transform was wrong")


def shown(world: TopicWorld) -> list[str]:
    return [world.shown(sink) for sink in world.sinks]


def test_the_tables_go_back_in_an_epoch_of_their_own_and_then_get_every_record_once(world: TopicWorld) -> None:
    screen = rewind(world, "--to-epoch", "1", "--restore-tables")
    assert "sink lake_a: its table goes back to version 0, which it had after epoch 1" in screen
    assert "sink rows stays as it is: its rows of epochs 2 to 3 come twice" in screen
    assert "so rows that are there come twice" not in screen and "The next run brings the tables back" in screen
    assert world.run(4) is None
    assert shown(world) == ["ab", "ab", "abcdef"]
    assert world.run(5) is None
    assert shown(world) == ["abcdef", "abcdef", "abccddeeff"]
    epoch(world, 6, "gh")
    assert shown(world)[:2] == ["abcdefgh", "abcdefgh"]
    assert world.ledger.newest_complete() == 6, "numbers go on upward"
    (command,) = world.completed(4).commands
    assert (command.name, command.restores) == ("rewind", {"lake_a": 0, "lake_b": 0})
    read = complete_epoch(world.name, 4, ledger_root=str(world.ledger_root))
    assert read and read.sinks["lake_a"].version == 3


@pytest.mark.long
def test_every_version_of_the_table_can_still_be_read(world: TopicWorld) -> None:
    """Nothing was deleted: time travel sees what the epochs showed."""
    rewind(world, "--to-epoch", "2", "--restore-tables")
    assert world.run(4) is None
    with duck() as db:
        for version, rows in ((0, 2), (1, 4), (2, 6), (3, 4)):
            path = f"{world.folder}/lake_a"
            found = db.execute("SELECT count(*) FROM delta_scan(?, version := ?)", [path, version]).fetchall()
            assert found == [(rows,)]
    assert [each["operation"] for each in DeltaTable(f"{world.folder}/lake_a").history(1)] == ["RESTORE"]
    entry = (world.folder / "lake_a" / log_entry(3)).read_bytes()
    assert [action["remove"]["dataChange"] for action in actions_of(entry) if "remove" in action] == [True]


PHASES = [
    pytest.param("open.landed", marks=pytest.mark.long),
    "stage.done",
    "decision.landed",
    pytest.param("delta.commit.after", marks=pytest.mark.long),
    "committed.lake_a",
    pytest.param("complete.put", marks=pytest.mark.long),
]


@pytest.mark.few(1)
@pytest.mark.parametrize("phase", PHASES)
def test_a_run_that_is_killed_brings_all_tables_back_or_none(world: TopicWorld, phase: str) -> None:
    rewind(world, "--to-epoch", "1", "--restore-tables")
    with pytest.raises(Crash):
        world.run(4, {phase: crash})
    numbers = iter(range(5, 9))
    while world.ledger.newest_complete() < 4:
        assert world.run(next(numbers)) is None
    assert shown(world) == ["ab", "ab", "abcdef"]
    assert world.run(next(numbers)) is None
    assert shown(world)[:2] == ["abcdef", "abcdef"]


def test_after_an_aborted_attempt_the_next_run_brings_the_tables_back(world: TopicWorld) -> None:
    rewind(world, "--to-epoch", "1", "--restore-tables")
    world.opened(4)
    world.task().abort(Run("dag", "run 4"), "a task failed")
    assert world.run(5) is None
    assert shown(world) == ["ab", "ab", "abcdef"]


def vacuumed(world: TopicWorld) -> None:
    """The files of epoch 1 were compacted, and a VACUUM has deleted them."""
    table = DeltaTable(f"{world.folder}/lake_b")
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def log_cleaned(world: TopicWorld) -> None:
    log = world.folder / "lake_b" / "_delta_log"
    DeltaTable(f"{world.folder}/lake_b").create_checkpoint()
    (log / f"{0:020}.json").unlink()


def of_another_pipeline(world: TopicWorld) -> None:
    other = world.but(name="others", sinks=("lake_x",), tables={"lake_x": "lake_b"})
    assert other.run(1) is None


def append_only(world: TopicWorld) -> None:
    DeltaTable(f"{world.folder}/lake_b").alter.set_table_properties({"delta.appendOnly": "true"})


def columns_changed(world: TopicWorld) -> None:
    table = DeltaTable(f"{world.folder}/lake_b")
    rows = table.to_pyarrow_table().drop_columns(["payload"])
    write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (vacuumed, "a VACUUM has deleted"),
        (log_cleaned, "cannot go back to version 0"),
        (of_another_pipeline, "pipeline 'others' has put rows of its epoch 1 into the table since"),
        (append_only, "the table has the property delta.appendOnly"),
        (columns_changed, "its column 'payload' is gone"),
    ],
)
def test_a_table_that_cannot_go_back_is_named_and_no_table_does(
    world: TopicWorld, change: Callable[[TopicWorld], None], says: str
) -> None:
    change(world)
    before, rows = sorted(world.ledger_root.rglob("*")), world.shown("lake_a")
    with pytest.raises(SystemExit) as told:
        rewind(world, "--to-epoch", "1", "--restore-tables")
    assert says in str(told.value) and "EPOCHS-DELTA-NOT-RESTORABLE" in str(told.value)
    assert "lake_b" in str(told.value)
    assert sorted(world.ledger_root.rglob("*")) == before
    assert world.shown("lake_a") == rows


@pytest.mark.parametrize("phase", [pytest.param("open.landed", marks=pytest.mark.long), "stage.done"])
def test_a_vacuum_before_the_vote_aborts_the_epoch_and_the_remedy_helps(world: TopicWorld, phase: str) -> None:
    rewind(world, "--to-epoch", "1", "--restore-tables")
    error = world.run(4, {phase: lambda: vacuumed(world)})
    assert isinstance(error, EpochError) and "a VACUUM has deleted" in str(error)
    assert shown(world) == ["abcdef", "abcdef", "abcdef"]
    assert "without `--restore-tables`" in str(error)
    rewind(world, "--to-epoch", "1")
    assert world.run(5) is None
    assert shown(world) == ["abccddeeff"] * 3, "as the command promised: they come twice"


@pytest.mark.parametrize(
    ("change", "rows"),
    [(of_another_pipeline, "aabbccddeeff"), pytest.param(vacuumed, "abcdef", marks=pytest.mark.long)],
)
def test_a_table_that_was_altered_after_the_decision_can_be_waived_and_stays_as_it_is(
    world: TopicWorld, change: Callable[[TopicWorld], None], rows: str
) -> None:
    rewind(world, "--to-epoch", "1", "--restore-tables")
    error = world.run(4, {"decision.landed": lambda: change(world)})
    assert isinstance(error, Corrupt) and error.code == codes.DELTA_NOT_RESTORABLE_NOW
    assert world.shown("lake_b") == rows
    typed(world.ledger_root, error, "waive")
    assert world.run(5) is None
    assert world.completed(4).waived == ("lake_b",)
    assert (world.shown("lake_a"), world.shown("lake_b")) == ("ab", rows)


@pytest.mark.long
def test_files_that_a_vacuum_deletes_during_the_commit_are_told_and_nothing_takes_their_place(
    world: TopicWorld,
) -> None:
    """Epoch 1's file was compacted, so only the commit refers to it again, too late for the VACUUM."""
    table = DeltaTable(f"{world.folder}/lake_b")
    (first,) = DeltaTable(table.table_uri, version=0).file_uris()
    table.optimize.compact()
    rewind(world, "--to-epoch", "1", "--restore-tables")
    commits = iter(("lake_a", "lake_b"))
    error = world.run(4, {"delta.commit.after": lambda: Path(first).unlink() if next(commits) == "lake_b" else None})
    assert isinstance(error, Corrupt) and error.code == codes.DELTA_FILES_LOST
    taken_back(error)
    assert world.shown("lake_b") == "abcdef"
    typed(world.ledger_root, error, "waive")
    assert world.run(5) is None
    assert (world.shown("lake_a"), world.shown("lake_b")) == ("ab", "abcdef")


@pytest.mark.long
def test_a_sink_that_came_later_stays_as_it_is_and_the_command_says_so(world: TopicWorld) -> None:
    wider = world.but(sinks=(*world.sinks, "lake_c"))
    epoch(wider, 4, "gh")
    screen = rewind(wider, "--to-epoch", "3", "--restore-tables")
    assert "sink lake_c stays as it is: its rows of epoch 4 come twice" in screen
    assert [wider.run(number) for number in (5, 6)] == [None, None]
    assert [wider.shown(sink) for sink in (*LAKES, "lake_c")] == ["abcdefgh", "abcdefgh", "gghh"]


@pytest.mark.long
def test_a_sink_that_is_new_in_the_dag_begins_after_the_tables_went_back(world: TopicWorld) -> None:
    rewind(world, "--to-epoch", "1", "--restore-tables")
    wider = world.but(sinks=(*world.sinks, "lake_c"))
    assert [wider.run(number) for number in (4, 5)] == [None, None]
    assert wider.shown("lake_c") == "cdef"


@pytest.mark.long
def test_a_backfill_does_not_reach_back_beyond_the_epoch_that_brought_tables_back(world: TopicWorld) -> None:
    """Not even where the input did not move: that epoch has none of its own."""
    rewind(world, "--to-epoch", "3", "--restore-tables")
    wider = world.but(sinks=(*world.sinks, "lake_c"), backfill={"lake_c": 2})
    error = wider.run(4)
    assert isinstance(error, Refused) and error.code == codes.BACKFILL_MOVED
    for number in (4, 5):
        world.produce("gh")
        assert world.run(number) is None
    assert [each.txn_id.epoch for each in replayed(world.task().task, 3, 6)] == [3, 5], "its rows are no input"
    wider = wider.but(backfill={"lake_c": 4})
    epoch(wider, 6, "ij")
    assert wider.shown("lake_c") == "gghhij"


@pytest.mark.long
def test_a_savepoint_names_the_versions_too(world: TopicWorld) -> None:
    ordered(world.ledger_root, "epochs", "savepoint", world.name, "before-the-change", "--epoch", "2", "--why", "safe")
    rewind(world, "--to-savepoint", "before-the-change", "--restore-tables")
    assert [world.run(number) for number in (4, 5)] == [None, None]
    assert shown(world)[:2] == ["abcdef", "abcdef"]


@pytest.mark.long
def test_tables_can_go_back_twice_and_forward_again(world: TopicWorld) -> None:
    rewind(world, "--to-epoch", "2", "--restore-tables")
    assert world.run(4) is None
    rewind(world, "--to-epoch", "1", "--restore-tables")
    assert world.run(5) is None
    assert shown(world)[:2] == ["ab", "ab"]
    rewind(world, "--to-epoch", "3", "--restore-tables")
    assert world.run(6) is None
    assert shown(world)[:2] == ["abcdef", "abcdef"]
    epoch(world, 7, "gh")
    assert shown(world)[:2] == ["abcdefgh", "abcdefgh"]


@pytest.mark.long
def test_rows_that_somebody_deleted_or_added_by_hand_since_go_with_the_other_changes(world: TopicWorld) -> None:
    table = DeltaTable(f"{world.folder}/lake_a")
    table.delete("payload = 'a'")
    write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="append")
    rewind(world, "--to-epoch", "3", "--restore-tables")
    assert world.run(4) is None
    assert world.shown("lake_a") == "abcdef"


def test_another_command_in_the_same_epoch_keeps_what_was_ordered(world: TopicWorld) -> None:
    rewind(world, "--to-epoch", "1", "--restore-tables")
    table = world.folder / "lake_b"
    shutil.copytree(table, world.folder / "copy")
    shutil.rmtree(table)
    error = world.run(4)
    assert isinstance(error, Corrupt)
    error.pipeline = world.name
    typed(world.ledger_root, error, "adopt-sink")
    assert world.run(5) is None
    assert shown(world)[0] == "ab"
    assert [command.name for command in world.completed(4).commands] == ["rewind", "adopt-sink"]
    assert world.run(6) is None
    assert [world.shown(sink) for sink in LAKES] == ["abcdef", "cdef"], "the new table begins where it was adopted"


@pytest.mark.few(1)
@pytest.mark.parametrize("aborted", [False, True])
@pytest.mark.long
def test_a_run_whose_dag_lacks_one_of_the_tables_brings_none_back(world: TopicWorld, aborted: bool) -> None:
    """Else that table keeps its rows, and gets them a second time when its sink is back in the DAG."""
    rewind(world, "--to-epoch", "1", "--restore-tables")
    if aborted:
        world.opened(4)
        world.task().abort(Run("dag", "run 4"), "a task failed")
    less = world.but(sinks=("lake_a", "rows"))
    error = less.run(5)
    assert isinstance(error, Refused) and error.code == codes.RESTORE_LACKS_SINK
    assert "no sink lake_b" in error.what and shown(world) == ["abcdef"] * 3
    assert [world.run(number) for number in (5, 6)] == [None, None]
    assert shown(world)[:2] == ["abcdef", "abcdef"]


@pytest.mark.parametrize("gone", [("lake_b",), LAKES])
@pytest.mark.few(1)
def test_tables_go_back_without_those_that_are_gone_together_with_their_sinks(
    world: TopicWorld, gone: tuple[str, ...]
) -> None:
    rewind(world, "--to-epoch", "1", "--restore-tables")
    for sink in gone:
        shutil.rmtree(world.folder / sink)
    stay = [sink for sink in LAKES if sink not in gone]
    less = world.but(sinks=(*stay, "rows"))
    error = less.run(4)
    assert isinstance(error, Refused) and error.code == codes.RESTORE_LACKS_SINK
    for sink in gone:
        typed(world.ledger_root, error, f"adopt-sink {world.name} {sink}")
    assert [less.run(number) for number in (5, 6)] == [None, None]
    assert [less.shown(sink) for sink in stay] == ["abcdef"] * len(stay)
    assert less.shown("rows") == "abccddeeff"


@pytest.mark.long
def test_the_last_rewind_counts(world: TopicWorld) -> None:
    rewind(world, "--to-epoch", "1", "--restore-tables")
    rewind(world, "--to-epoch", "2")
    assert world.run(4) is None
    assert shown(world) == ["abcdeeff"] * 3


@pytest.mark.parametrize("words", [("--to-timestamp", "2026-01-01T00:00Z"), ("--offsets", "offsets.json")])
@pytest.mark.long
def test_without_an_epoch_there_are_no_versions_to_go_back_to(world: TopicWorld, words: tuple[str, str]) -> None:
    with pytest.raises(SystemExit, match="EPOCHS-COMMAND-OPTIONS"):
        rewind(world, *words, "--restore-tables")


@pytest.mark.long
def test_without_a_delta_table_the_command_says_so(world: TopicWorld) -> None:
    other = world.but(name="others", sinks=("rows",))
    assert other.run(1) is None
    with pytest.raises(SystemExit, match="EPOCHS-NOTHING-TO-RESTORE"):
        rewind(other, "--to-epoch", "1", "--restore-tables")


# -- with Spark -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_windows_and_their_state_go_on_as_if_the_later_epochs_had_never_been(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin, a copy of the first two epochs, never had them. The third and fourth epoch fold the state."""
    lab.produce(*((partition, "a", 1, 10 + 200 * partition) for partition in range(PARTITIONS)))
    lab.run(lab.windows())
    lab.produce((2, "a", 1, 420), (2, "b", 1, 430))
    lab.run(lab.windows())
    monkeypatch.setattr(pinning, "FOLD_EPOCHS_MIN", 1)
    twin = lab.beside("twin")
    shutil.copytree(lab.folder, twin.folder, ignore=shutil.ignore_patterns("twin"))
    for clicks in ([(0, "a", 1, 300), (1, "b", 1, 310)], [(1, "b", 1, 350), (2, "a", 1, 900), (0, "a", 1, 700)]):
        lab.produce(*clicks)
        lab.run(lab.windows())
    assert folds(lab, "open") > folds(twin, "open")
    screen = lab.ordered("clicks", "rewind", "--to-epoch", "2", "--restore-tables")
    assert "sink open: its table goes back" in screen and "second time" not in screen
    lab.run(lab.windows())
    assert (lab.rows("hourly", "*"), lab.rows("late", "*")) == (twin.rows("hourly", "*"), twin.rows("late", "*"))
    back, then = lab.records()[4], lab.records()[1]
    assert (back.watermarks, back.event_times) == (then.watermarks, then.event_times)
    for each in (lab, twin):
        each.run(each.windows())
    opened = [each.ledger("clicks").open_record(number, 1) for each, number in ((lab, 6), (twin, 3))]
    folded_in = [record.state["open"].folded_in for record in opened if record]
    assert folded_in == [1, 1]
    lab.produce((0, "a", 5, 15), (1, "b", 1, 1500), (2, "c", 1, 1600), (0, "c", 1, 1700))
    for each in (lab, twin):
        each.run(each.windows())
    assert lab.rows("late", "page") and lab.shown_windows()
    assert lab.shown_windows() == twin.shown_windows()
    assert sorted(lab.rows("late", COLUMNS)) == sorted(twin.rows("late", COLUMNS))
    marks = [each.records()[-1].watermarks[0] for each in (lab, twin)]
    assert marks[0] == marks[1]
    assert lab.open_windows(marks[0]) == twin.open_windows(marks[0])


TOTALS = """
def totals(batch, epoch):
    return {"lake": batch.selectExpr("cast(value as string) as click"), "sums": batch.groupBy().count()}
"""


def test_sinks_that_stay_get_no_row_of_the_epoch_that_brings_tables_back(lab: Lab) -> None:
    """A sum over no rows is a row, which the sinks must not get."""
    (app := lab.folder / "totals.py").write_text(TOTALS)
    db = new_sqlite(lab.folder)
    db.run("CREATE TABLE sums (count bigint)")
    lab.connections["db"] = db.connection()
    sums = SqlSink("sums", "db", "sums", staging=str(lab.folder / "staging"))

    def run() -> None:
        lab.run(lab.task("totals", "totals", (*lab.outputs("lake"), sums), None, app=app))

    for number in range(1, 3):
        lab.produce(*[(0, "a", 1, 1)] * number)
        run()
    lab.ordered("totals", "rewind", "--to-epoch", "1", "--restore-tables")
    run()
    assert (lab.rows("lake", "count(*)"), db.run("SELECT count FROM sums ORDER BY 1")) == ([(1,)], [(1,), (2,)])
    run()
    assert (lab.rows("lake", "count(*)"), db.run("SELECT count FROM sums ORDER BY 1")) == ([(3,)], [(1,), (2,), (2,)])


@pytest.mark.long
def test_rows_that_a_deletion_vector_had_hidden_are_back(lab: Lab, session: Any) -> None:
    """Spark marks deleted rows beside a file, which stays: the log has the file twice, with and without them."""
    (app := lab.folder / "totals.py").write_text(TOTALS)
    sink = DeltaSink("lake", lab.at("lake"), properties={"delta.enableDeletionVectors": "true"})

    def run() -> None:
        lab.run(lab.task("totals", "totals", (sink, *lab.outputs("sums")), None, app=app))

    lab.produce(*((0, page, 1, 1) for page in "abc"))
    run()
    lab.produce((0, "d", 1, 1))
    run()
    session.sql(f"DELETE FROM delta.`{lab.at('lake')}` WHERE click LIKE '%\"b\"%' OR click LIKE '%\"d\"%'")
    assert any("deletionVector" in action.get("add", {}) for action in lab.log_of("lake")[-1])
    DeltaTable(lab.at("lake")).create_checkpoint()
    lab.ordered("totals", "rewind", "--to-epoch", "1", "--restore-tables")
    run()
    assert pages(session, lab) == ["a", "b", "c"]
    run()
    assert pages(session, lab) == ["a", "b", "c", "d"]


def pages(session: Any, lab: Lab) -> list[str]:
    """The pages in the table, for Spark and for DuckDB alike."""
    rows = session.sql(f"SELECT get_json_object(click, '$.page') FROM delta.`{lab.at('lake')}`").collect()
    found = sorted(page for (page,) in rows)
    assert sorted(page for (page,) in lab.rows("lake", "click->>'page'")) == found
    return found
