"""What the errors of state say is done to the letter, and ends in a running pipeline whose rows are right."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import NewTopic
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from airflow_epochs import DeltaSink, EventTime, SparkConnect, StateTable, codes
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Corrupt, NotApplied, Refused
from airflow_epochs.model import Run
from airflow_epochs.read import state
from airflow_epochs.sinks.delta.state import pinning
from airflow_epochs.spark.driver.event_times import instant
from tests.support.rebuilt import offsets_file, typed_rebuild
from tests.support.remedies import log_cleaned, taken_back
from tests.support.spark_world import APPS
from tests.support.state_clicks import EPOCH, SIZE
from tests.support.state_lab import ALWAYS, OPEN, PARTITIONS, Lab, firsts, folds, seen_pages
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def soon_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third epoch folds; otherwise it is the sixth at best."""
    monkeypatch.setattr(pinning, "FOLD_EPOCHS_MIN", 1)


def an_epoch(lab: Lab, *pages: str, **options: Any) -> None:
    """An epoch with a click of each of these pages."""
    lab.produce(*((0, page, 1, 1) for page in pages))
    lab.run(seen_pages(lab, **options))


def decided(lab: Lab, *pages: str, **options: Any) -> Run:
    """The run of an epoch with a click of each of these pages, which no sink shows yet."""
    lab.produce(*((0, page, 1, 1) for page in pages))
    run, task = Run("dag", f"{len(lab.sent)} clicks"), seen_pages(lab, **options)
    task.open(run)
    task.vote(run, task.stage(run).stage)
    return run


def finished(lab: Lab, run: Run, **options: Any) -> None:
    """The tasks that were left, cleared."""
    task = seen_pages(lab, **options)
    for sink in ("firsts", "seen"):
        task.commit(run, sink)
    task.complete(run)


def vacuumed(table: DeltaTable) -> None:
    """Only the files of the newest version are left."""
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def pages_of_state(lab: Lab) -> list[str]:
    return [page for (page,) in sorted(lab.rows("seen", "page"))]


# -- before a fold -------------------------------------------------------------------------------------------------


def appended(table: DeltaTable) -> None:
    row = table.to_pyarrow_table().slice(0, 1)
    write_deltalake(table, row.set_column(row.column_names.index("page"), "page", pa.array(["x"])), mode="append")


CHANGES: dict[str, Callable[[DeltaTable], object]] = {
    "append": appended,
    "delete": lambda table: table.delete("page = 'a'"),
}


@pytest.mark.usefixtures("soon_folded")
def test_before_a_fold_a_change_of_rows_is_refused_until_it_is_undone_and_no_note_nor_optimize_is(
    lab: Lab, session: Any
) -> None:
    for page in "ab":
        an_epoch(lab, page)
    run = decided(lab, "a", "c")
    for change in CHANGES.values():
        change(lab.delta("seen"))
        with pytest.raises(Corrupt, match="EPOCHS-STATE-CHANGED") as refused:
            seen_pages(lab).commit(run, "seen")
        taken_back(refused.value)
    finished(lab, run)
    assert (folds(lab, "seen"), pages_of_state(lab)) == (1, ["a", "b", "c"])
    vacuumed(lab.delta("seen"))  # deletes what the fold has taken out, and nothing that the next epoch reads
    an_epoch(lab, "a", "b", "d")
    run = decided(lab, "d", "e")
    lab.delta("seen").optimize.compact()
    for change_of_no_row in (
        "CLUSTER BY (page)",
        "SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
        "ALTER COLUMN page SET DEFAULT 'no page'",
        "ALTER COLUMN page COMMENT 'the page'",
    ):
        session.sql(f"ALTER TABLE delta.`{lab.at('seen')}` {change_of_no_row}").collect()
    finished(lab, run)
    assert session.table(f"delta.`{lab.at('seen')}`").count() == 5
    assert (folds(lab, "seen"), pages_of_state(lab)) == (2, ["a", "b", "c", "d", "e"])
    assert firsts(lab) == [(page, 1) for page in "abcde"]
    with pytest.raises(Refused, match=r"EPOCHS-STATE-EPOCH-GONE(.|\n)*Read a newer epoch"):
        state("firsts", "seen", epoch=2, ledger_root=lab.ledger_root)
    assert state("firsts", "seen", epoch=4, ledger_root=lab.ledger_root).to_arrow().num_rows == 4


# -- rows that others have changed for good ------------------------------------------------------------------------


def changed_for_good(lab: Lab) -> None:
    """Somebody deletes a page, and VACUUM the files that have it."""
    lab.delta("seen").delete("page = 'a'")
    vacuumed(lab.delta("seen"))


def require_no_way_back(error: Corrupt) -> None:
    """RESTORE, which the error names first, fails."""
    assert error.code is codes.STATE_CHANGED
    with pytest.raises(DeltaError, match="missing file"):
        taken_back(error)


def kept(lab: Lab, session: Any, *staged: str) -> str:
    """The newest state of the old table in another table, as docs/state.md writes it; with what an epoch has staged."""
    logs = " UNION ALL ".join(f"SELECT * FROM {log}" for log in (f"delta.`{lab.at('seen')}`", *staged))
    newest = f"SELECT *, row_number() OVER (PARTITION BY page, n ORDER BY __epoch DESC) AS newest FROM ({logs})"
    rows = f"SELECT page, n FROM ({newest}) WHERE newest = 1 AND NOT __deleted"
    session.sql(f"CREATE TABLE delta.`{lab.at('kept')}` USING delta AS {rows}").collect()
    return lab.at("kept")


def test_a_state_whose_changed_rows_no_restore_brings_back_begins_anew_with_those_that_are_left(
    lab: Lab, session: Any
) -> None:
    for page in "ab":
        an_epoch(lab, page)
    changed_for_good(lab)
    with pytest.raises(Corrupt) as refused:
        an_epoch(lab, "a", "b", "c")
    require_no_way_back(refused.value)
    with pytest.raises(Refused, match="EPOCHS-STATE-EPOCH-GONE"):
        state("firsts", "seen", ledger_root=lab.ledger_root)
    anew: dict[str, Any] = {"table": lab.at("seen_2"), "initial": kept(lab, session)}
    refused.value.pipeline = "firsts"  # as the operator does
    lab.typed(refused.value, "adopt-sink")
    lab.run(seen_pages(lab, **anew))
    an_epoch(lab, "b", "c", "d", **anew)
    assert firsts(lab) == [("a", 1), ("a", 1), ("b", 1), ("c", 1), ("d", 1)], "that a was seen is lost"


def test_an_epoch_in_doubt_whose_state_no_restore_brings_back_is_completed_without_it_and_the_state_begins_anew(
    lab: Lab, session: Any
) -> None:
    for page in "ab":
        an_epoch(lab, page)
    run = decided(lab, "c")
    changed_for_good(lab)
    with pytest.raises(Corrupt) as refused:
        seen_pages(lab).commit(run, "seen")
    require_no_way_back(refused.value)
    (staged,) = re.findall(r"its changes of the state at (delta\.`[^`]*`): to keep", refused.value.remedy)
    anew: dict[str, Any] = {"table": lab.at("seen_2"), "initial": kept(lab, session, staged)}
    lab.typed(refused.value, "waive")
    finished(lab, run)
    refused.value.sink = "seen"  # as the operator does
    lab.typed(refused.value, "adopt-sink")
    an_epoch(lab, "b", "c", "d", **anew)
    assert firsts(lab) == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]


def test_an_epoch_without_a_decision_whose_state_no_restore_brings_back_is_aborted_and_the_state_begins_anew(
    lab: Lab, session: Any
) -> None:
    for page in "ab":
        an_epoch(lab, page)
    lab.produce((0, "c", 1, 1))
    run, task = Run("dag", "struck"), seen_pages(lab)
    task.open(run)
    told = task.stage(run).stage
    changed_for_good(lab)
    with pytest.raises(Corrupt) as refused:
        seen_pages(lab).vote(run, told)
    require_no_way_back(refused.value)
    refused.value.pipeline = "firsts"
    lab.typed(refused.value, "abort")
    with pytest.raises(Corrupt, match="EPOCHS-STATE-CHANGED") as refused:
        seen_pages(lab).open(run)
    refused.value.pipeline = "firsts"
    lab.typed(refused.value, "adopt-sink")
    anew: dict[str, Any] = {"table": lab.at("seen_2"), "initial": kept(lab, session)}
    lab.run(seen_pages(lab, **anew))
    an_epoch(lab, "b", "c", "d", **anew)
    assert firsts(lab) == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]


def test_a_state_whose_column_somebody_has_renamed_goes_on_once_it_has_its_old_name_again(
    lab: Lab, session: Any
) -> None:
    an_epoch(lab, "a")
    mapped = "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    for change in (mapped, "RENAME COLUMN n TO m", "RENAME COLUMN page TO `the page`"):
        session.sql(f"ALTER TABLE delta.`{lab.at('seen')}` {change}").collect()
    with pytest.raises(Refused, match="EPOCHS-STATE-SCHEMA") as refused:
        an_epoch(lab, "a", "b")
    for statement in re.findall(r"ALTER TABLE \S+ RENAME COLUMN `[^`]+` TO `[^`]+`", refused.value.remedy):
        session.sql(statement).collect()
    lab.run(seen_pages(lab))
    assert firsts(lab) == [("a", 1), ("b", 1)]


# -- a pinned version that is gone ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("soon_folded")
def test_when_files_of_the_pinned_version_are_vacuumed_a_backup_of_them_lets_the_epoch_go_on(lab: Lab) -> None:
    for page in "ab":
        an_epoch(lab, page)
    backup = shutil.copytree(lab.at("seen"), lab.at("backup"))

    def put_back() -> None:
        for file in Path(backup).rglob("*.parquet"):
            shutil.copy(file, Path(lab.at("seen")) / file.relative_to(backup))

    lab.produce((0, "a", 1, 1), (0, "c", 1, 1))
    run, task = Run("dag", "struck"), seen_pages(lab)
    task.open(run)
    lab.delta("seen").optimize.compact()
    vacuumed(lab.delta("seen"))
    with pytest.raises(Corrupt, match=r"EPOCHS-STATE-GONE.*2 of its files(.|\n)*Restore the files from a backup"):
        task.stage(run)
    put_back()
    task.vote(run, task.stage(run).stage)
    task.commit(run, "seen")
    assert folds(lab, "seen") == 1
    for place in (found.places["firsts"] for found in task.task.ledger.tries(3)):
        shutil.rmtree(place, ignore_errors=True)
    vacuumed(lab.delta("seen"))
    with pytest.raises(Corrupt, match=r"Version 1 of the state table.*2 of its files(.|\n)*Restore the files from a b"):
        task.commit(run, "firsts")
    put_back()
    finished(lab, run)
    an_epoch(lab, "a", "b", "c", "d")
    assert firsts(lab) == [(page, 1) for page in "abcd"]


@pytest.mark.long
def test_an_epoch_whose_commit_to_the_state_has_lost_its_files_ends_once_they_are_put_back(lab: Lab) -> None:
    for page in "ab":
        an_epoch(lab, page)
    run = decided(lab, "a", "c")
    task = seen_pages(lab)
    task.commit(run, "seen")
    for place in (found.places["seen"] for found in task.task.ledger.tries(3)):
        for file in Path(place).rglob("*.parquet"):
            file.unlink()
    finished(lab, run)
    an_epoch(lab, "a", "c", "d")
    assert firsts(lab) == [(page, 1) for page in "abcd"]


def test_a_damaged_file_stops_the_epoch_even_where_the_server_is_set_up_to_ignore_such_files(lab: Lab) -> None:
    an_epoch(lab, "a")
    lab.spark = SparkConnect("spark", session_conf={"spark.sql.files.ignoreCorruptFiles": "true"})
    (file,) = Path(lab.at("seen")).rglob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(b"x" * len(whole))
    with pytest.raises(NotApplied, match="EPOCHS-SPARK-JOB-FAILED"):
        an_epoch(lab, "a")
    file.write_bytes(whole)
    lab.run_all(lambda: seen_pages(lab))
    assert firsts(lab) == [("a", 1)]


def test_a_lost_state_begins_anew_in_a_new_table_and_sees_earlier_records_again_after_a_rewind(lab: Lab) -> None:
    for page in "ab":
        an_epoch(lab, page)
    shutil.rmtree(lab.at("seen"))
    with pytest.raises(Corrupt, match=r"EPOCHS-TABLE-GONE(.|\n)*point the state to a new table in the DAG") as gone:
        an_epoch(lab, "a", "c")
    screen = lab.typed(gone.value, "adopt-sink")
    assert "Sink seen of pipeline firsts shows no epoch, and the ledger expects epoch 2" in screen
    anew: dict[str, Any] = {"table": lab.at("seen_2")}
    lab.run(seen_pages(lab, **anew))
    assert firsts(lab) == [("a", 1), ("a", 1), ("b", 1), ("c", 1)], "a is new to the new state"
    with pytest.raises(Refused, match="State 'seen' began anew in epoch 3"):
        state("firsts", "seen", 2, ledger_root=lab.ledger_root)
    assert state("firsts", "seen", 3, ledger_root=lab.ledger_root).to_arrow().num_rows == 2
    screen = lab.ordered("firsts", "rewind", "--to-epoch", "1")
    assert "The state counts these records a second time, too: seen." in screen
    assert "The watermark does not go back. Rows up to it" in screen, "the pipeline has an event time"
    an_epoch(lab, "d", **anew)
    assert firsts(lab) == [("a", 1), ("a", 1), ("b", 1), ("b", 1), ("c", 1), ("d", 1)], "b is new to it, c is not"


def test_states_that_must_not_count_records_twice_begin_anew_by_the_commands_that_rewind_tells(lab: Lab) -> None:
    def by_two_states(suffix: str = "") -> Coordinator:
        tables = [
            StateTable(name, lab.at(f"{name}{suffix}"), schema="page string, n bigint", keys=["page", "n"])
            for name in ("seen", "also")
        ]
        return lab.task(
            "twice", "unique_twice", (*lab.outputs("firsts", "firsts_again"), *tables), EventTime("0 s", tick=False)
        )

    for page in "ab":
        lab.produce((0, page, 1, 1))
        lab.run(by_two_states())
    screen = lab.ordered("twice", "rewind", "--to-epoch", "1", answer="n")
    commands = re.findall(r"^ +airflow epochs (\S+) (\S+) (.*) --why …$", screen, re.M)
    assert len(commands) == 2
    for command, pipeline, words in commands:
        lab.ordered(pipeline, command, *words.split())
    assert "The state counts" not in lab.ordered("twice", "rewind", "--to-epoch", "1")
    lab.run(by_two_states("_2"))
    assert [sorted(lab.rows(name, "page")) for name in ("seen_2", "also_2")] == [[("b",)]] * 2
    assert [sorted(lab.rows(name, "page")) for name in ("firsts", "firsts_again")] == [[("a",), ("b",), ("b",)]] * 2


def test_a_state_that_is_lost_while_its_epoch_is_in_doubt_is_waived_and_begins_anew(lab: Lab) -> None:
    an_epoch(lab, "a")
    lab.produce((0, "b", 1, 1))
    run = decided(lab)
    shutil.rmtree(lab.at("seen"))
    with pytest.raises(Corrupt, match="EPOCHS-TABLE-GONE") as gone:
        seen_pages(lab).commit(run, "seen")
    screen = lab.typed(gone.value, "waive")
    assert "It is a state table, so later results would lack these rows." in screen
    finished(lab, run)
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SKIPPED.*'seen' is as of epoch 1, and epochs 2 to 2") as skipped:
        an_epoch(lab, "c")
    lab.typed(skipped.value, "adopt-sink")
    lab.run(seen_pages(lab, table=lab.at("seen_2")))
    assert firsts(lab) == [("a", 1), ("b", 1), ("c", 1)]


def test_a_state_that_is_waived_in_its_first_epoch_begins_anew_as_the_error_says(lab: Lab) -> None:
    lab.produce((0, "a", 1, 1))
    run = decided(lab)
    lab.ordered("firsts", "waive", "1", "seen")
    finished(lab, run)
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SKIPPED.*'seen' is as of epoch 0, and epochs 1 to 1") as skipped:
        an_epoch(lab, "b")
    screen = lab.typed(skipped.value, "adopt-sink")
    assert "Sink seen of pipeline firsts shows no epoch, and it never got one." in screen
    assert "missing for good, unless its table has them: the rows of epoch 1\n" in screen
    anew: dict[str, Any] = {"table": lab.at("seen_2")}
    lab.run(seen_pages(lab, **anew))
    an_epoch(lab, "a", "b", "c", **anew)
    assert firsts(lab) == [("a", 1), ("a", 1), ("b", 1), ("c", 1)], "a is new to the new state"


def test_a_state_that_was_out_of_the_dag_for_an_epoch_begins_anew_as_the_error_says(lab: Lab) -> None:
    an_epoch(lab, "a")
    lab.produce((0, "b", 1, 1))
    lab.run(lab.task("firsts", "stateless", tuple(lab.outputs("firsts")), None))
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SKIPPED") as skipped:
        an_epoch(lab, "c")
    lab.typed(skipped.value, "adopt-sink")
    lab.run(seen_pages(lab, table=lab.at("seen_2")))
    assert ("c", 1) in firsts(lab)


def test_windows_go_on_as_if_nothing_had_happened_after_their_ledger_was_lost_and_rebuilt(lab: Lab) -> None:
    """The twin, a copy, keeps its ledger. After the loss come a late click, and clicks of one partition, which lags."""
    lab.produce(*((partition, "a", 1, 10 + 200 * partition) for partition in range(PARTITIONS)))
    lab.run(lab.windows())
    lab.produce((0, "a", 1, 300), (1, "b", 1, 310), (2, "a", 1, 420))
    lab.run(lab.windows())
    twin = lab.beside("twin")
    shutil.copytree(lab.folder, twin.folder, ignore=shutil.ignore_patterns("twin"))
    shutil.rmtree(lab.ledger_root)
    with pytest.raises(Corrupt, match="EPOCHS-LEDGER-BEHIND") as stopped:
        lab.run(lab.windows())
    screen = typed_rebuild(lambda: lab.windows().task, stopped.value, ledger_root=Path(lab.ledger_root))
    assert "The watermark of epoch 2: 20" in screen
    lab.produce((0, "a", 5, 15), (1, "b", 1, 500), (1, "b", 1, 1000))
    for each in (lab, twin):
        each.run(each.windows())
    for table, columns in (("hourly", "*"), ("late", '"partition", "offset"')):
        assert sorted(map(str, lab.rows(table, columns))) == sorted(map(str, twin.rows(table, columns)))
    assert lab.rows("late", "page") and lab.shown_windows()
    (*_, newest), (*_, other) = lab.records(), twin.records()
    assert (newest.txn_id.epoch, newest.watermarks) == (other.txn_id.epoch, other.watermarks)
    reached = [{p: at.newest for p, at in each.event_times[lab.topic].items()} for each in (newest, other)]
    assert reached[0] == reached[1]


def test_windows_go_on_anew_if_no_log_has_their_last_commit(lab: Lab, tmp_path: Path) -> None:
    """Each refusal is heeded in turn: the offsets, the watermark, then a new table for the state."""
    lab.produce((0, "a", 1, 10), *((partition, "a", 1, 500) for partition in range(PARTITIONS)))
    lab.run(lab.windows())
    lab.produce((0, "b", 1, 510))
    lab.run(lab.windows())
    newest = lab.records()[-1]
    assert newest.watermarks[0]
    watermark = instant(newest.watermarks[0]).isoformat()
    shutil.rmtree(lab.ledger_root)
    for table in ("hourly", "late", "open"):
        log_cleaned(lab.at(table))
    anew = [lab.open_table(table=lab.at("open_2"))]
    with pytest.raises(Corrupt, match="EPOCHS-LEDGER-BEHIND") as stopped:
        lab.run(lab.windows())

    def refused(*words: str) -> str:
        with pytest.raises(SystemExit) as error:
            typed_rebuild(lambda: lab.windows().task, stopped.value, *words, ledger_root=Path(lab.ledger_root))
        return str(error.value)

    words = ["--offsets", offsets_file(tmp_path, newest.ranges)]
    assert "EPOCHS-ENDS-UNKNOWN" in refused() and "rebuild clicks --offsets FILE --why" in refused()
    assert "EPOCHS-WATERMARK-UNKNOWN" in refused(*words) and "rebuild clicks --watermark TIME" in refused(*words)
    words += ["--watermark", watermark]
    assert "EPOCHS-STATE-COMMIT-GONE" in refused(*words) and "rebuild clicks --without open" in refused(*words)
    words += ["--without", "open"]
    ledger = Path(lab.ledger_root)
    screen = typed_rebuild(lambda: lab.windows(state=anew).task, stopped.value, *words, ledger_root=ledger)
    assert f"as typed: {watermark}" in screen and "The state open begins anew" in screen
    lab.produce((0, "a", 5, 15), (0, "b", 1, 600), *((partition, "b", 1, 900) for partition in range(PARTITIONS)))
    lab.run(lab.windows(state=anew))
    lab.produce((0, "b", 1, 901))
    lab.run(lab.windows(state=anew))
    # late by the watermark that was typed, and shown once; the windows of 500 were open when the state was lost
    assert lab.shown_windows() == {("a", 0): (1, 1), ("b", 600): (1, 1)}
    assert lab.rows("late", "page") == [("a",)]


# -- how a state begins --------------------------------------------------------------------------------------------


def test_a_state_that_cannot_begin_begins_once_the_error_is_heeded(lab: Lab) -> None:
    write_deltalake(lab.at("known"), pa.table({"page": ["a", "z"], "n": [1, 1]}))
    with pytest.raises(Refused, match=r"EPOCHS-STATE-INITIAL-MISSING(.|\n)*Correct `initial`"):
        an_epoch(lab, "a", "b", initial=lab.at("unknown"))
    with pytest.raises(Refused, match=r"EPOCHS-STATE-NOT-EMPTY(.|\n)*name that table in `initial`"):
        lab.run(seen_pages(lab, table=lab.at("known")))
    run = decided(lab, initial=lab.at("known"))
    write_deltalake(lab.at("seen"), pa.table({"page": ["b"], "n": [1]}))
    with pytest.raises(Corrupt, match="EPOCHS-STATE-CHANGED") as refused:
        seen_pages(lab, initial=lab.at("known")).commit(run, "seen")
    taken_back(refused.value)
    finished(lab, run, initial=lab.at("known"))
    an_epoch(lab, "a", "b", "c", "z", initial=lab.at("known"))
    assert firsts(lab) == [("b", 1), ("c", 1)]


def test_a_state_that_has_skipped_epochs_leaves_the_dag_again_or_begins_anew_with_rows_of_a_table(lab: Lab) -> None:
    def without() -> None:
        lab.run(lab.task("firsts", "stateless", tuple(lab.outputs("firsts")), None))

    an_epoch(lab, "a")
    lab.produce((0, "b", 1, 1))
    without()
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SKIPPED(.|\n)*Remove the state from the DAG again"):
        an_epoch(lab, "c")
    without()
    old, known = lab.at("seen"), lab.at("known")
    with pytest.raises(Refused, match=r"EPOCHS-STATE-INITIAL-LOG(.|\n)*Write that state, as of its newest epoch"):
        an_epoch(lab, "a", "d", state="seen_2", initial=old)
    write_deltalake(known, state("firsts", "seen", ledger_root=lab.ledger_root).to_arrow())
    lab.run(seen_pages(lab, state="seen_2", initial=known))
    an_epoch(lab, "a", "d", "e", state="seen_2", initial=known)
    assert [page for page, _ in firsts(lab) if page != "x"] == ["a", "d", "e"]


def test_windows_go_on_from_the_state_after_their_topic_was_created_again_with_fewer_partitions(lab: Lab) -> None:
    lab.produce(*((partition, "a", 1, second) for partition in range(PARTITIONS) for second in (10, 150)))
    lab.run_all(lab.windows)
    assert lab.shown_windows() == {("a", 0): (3, 3)}
    lab.admin.delete_topics([lab.topic])[lab.topic].result()
    wait_until(lambda: lab.topic not in lab.admin.list_topics(timeout=10).topics)
    lab.admin.create_topics([NewTopic(lab.topic, 1, 1)])[lab.topic].result()
    lab.produce((0, "a", 5, 160), (0, "z", 1, 1000))
    with pytest.raises(Corrupt, match=r"EPOCHS-RECORDS-GONE.*the topic was deleted and created again") as gone:
        lab.run(lab.windows())
    gone.value.pipeline = "clicks"  # as the operator does
    lab.typed(gone.value, "reset-source")
    lab.run_all(lab.windows)
    assert lab.shown_windows() == {("a", 0): (3, 3), ("a", SIZE): (4, 8)}


# -- other columns -------------------------------------------------------------------------------------------------


def test_while_windows_are_open_a_column_is_added_and_a_key_gets_another_type_by_a_new_state(lab: Lab) -> None:
    wide = f"{OPEN}, largest bigint"
    retyped = wide.replace("page string", "page bigint")
    lab.produce((0, "1", 5, 10), (1, "2", 6, 20), (2, "1", 7, 150))
    lab.run(hourly(lab))
    lab.produce((0, "1", 3, 30), (1, "2", 4, 140))
    lab.run(hourly(lab, schema=wide))
    lab.produce((0, "2", 3, 145))
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SCHEMA.*page is string there and bigint in `schema`") as refused:
        lab.run(hourly(lab, schema=retyped))
    said = "write the state of the newest epoch, converted, to another Delta table"
    assert said in refused.value.remedy and "give the state a new name and a new table" in refused.value.remedy
    newest = state("clicks", "open", ledger_root=lab.ledger_root).to_arrow()
    converted = newest.set_column(0, "page", newest["page"].cast(pa.int64()))
    write_deltalake(lab.at("converted"), converted)
    again = {"name": "open_2", "schema": retyped, "initial": lab.at("converted")}
    lab.run(hourly(lab, **again))
    lab.produce(*((partition, "9", 1, 1000) for partition in range(PARTITIONS)))
    lab.run_all(lambda: hourly(lab, **again))
    assert lab.shown_windows() == {("1", 0): (2, 8), ("2", 0): (1, 6), ("1", SIZE): (1, 7), ("2", SIZE): (2, 7)}
    largest = lab.rows("hourly", "page, epoch(window_start)::bigint, largest")
    found = {(page, start - EPOCH): n for page, start, n in largest}
    assert found == {("1", 0): 3, ("2", 0): None, ("1", SIZE): None, ("2", SIZE): 4}, "n of older clicks is not known"
    assert lab.rows("late", "page") == []


def hourly(lab: Lab, **options: Any) -> Coordinator:
    """The pipeline of windows, whose output takes new columns."""
    shown = DeltaSink("hourly", lab.at("hourly"), schema_evolution="add_columns", commit="spark")
    sinks = (shown, *lab.outputs("late"), lab.open_table(**options))
    return lab.task("clicks", "hourly", sinks, EventTime("30 s", max_ahead=ALWAYS), app=APPS / "windows.py")
