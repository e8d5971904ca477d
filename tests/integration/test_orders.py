"""Commands about the next epoch, typed as the errors name them, on a real broker; strangers count the rows."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import codes
from airflow_epochs.commands import asking
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.errors import Corrupt, Fenced, Refused
from airflow_epochs.hooks.audit import caller
from airflow_epochs.hooks.rewind_action import RewindToTime
from airflow_epochs.ledger.keys import attempt_key
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import OffsetRange, Run, records_upper_bound
from airflow_epochs.read import complete_epoch
from airflow_epochs.testing import Crash
from stack.broker import Broker
from stack.jars import Jars
from tests.support.faults_world import crash
from tests.support.remedies import in_the_environment, ordered, typed
from tests.support.topic_world import TopicWorld, stopped
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm


@pytest.fixture
def world(known_topic_world: Callable[..., TopicWorld]) -> TopicWorld:
    """A topic of two partitions; epoch 1 has read a, c of partition 0 and b, d of partition 1."""
    world = known_topic_world()
    world.produce("abcd")
    assert world.run(1) is None
    return world


def typing(world: TopicWorld, name: str, *words: str) -> str:
    """A command that no error names; what it shows."""
    return ordered(world.ledger_root, "epochs", name, world.name, *words, "--why", "the test says so")


def test_after_retention_deleted_records_the_command_in_the_error_goes_on_behind_them(world: TopicWorld) -> None:
    world.produce("efghij")
    world.delete_before(0, 4)
    error = stopped(world, 2)
    assert "EPOCHS-RECORDS-GONE" in str(error)
    screen = typed(world.ledger_root, error, "skip")
    topic = world.topic()
    assert f"lost for good: 2 offsets, {topic}[0] [2, 4)" in screen
    assert f"there to be read now: 1 offsets, {topic}[0] [4, 5)" in screen
    assert world.run(3) is None
    assert world.shown("lake") == "abcdfhij", "e and g are lost"
    order = world.ledger.open_record(2, 1)
    assert order and order.command
    assert (order.command.name, order.command.lost) == ("skip", {topic: (OffsetRange(0, 2, 4),)})
    assert world.completed(2).moved_in == 2


def test_a_run_whose_records_were_deleted_before_it_read_them_goes_on_when_its_tasks_are_cleared(
    world: TopicWorld,
) -> None:
    world.produce("efghij")
    error = world.run(2, {"open.landed": lambda: world.delete_before(0, 4)})
    assert isinstance(error, Corrupt) and "EPOCHS-RECORDS-GONE" in str(error)
    error.pipeline = world.name
    typed(world.ledger_root, error, "skip")
    again, run = world.task(), Run("dag", "run 2")
    again.vote(run, again.stage(run).stage)
    again.commit(run, "lake")
    assert again.complete(run).state == "complete"
    assert world.shown("lake") == "abcdfhij"
    assert [command.name for command in world.completed(2).commands] == ["skip"]


def test_after_a_topic_was_created_again_the_command_in_the_error_takes_every_new_record(world: TopicWorld) -> None:
    world.delete_topic()
    world.create_topic(partitions=1)
    world.produce("vwxyz", partitions=[0])
    error = stopped(world, 2)
    assert "`airflow epochs skip" not in str(error)
    screen = typed(world.ledger_root, error, "reset-source")
    assert f"left for good: the old topics, from these offsets on: {world.topic()}[0] 2, {world.topic()}[1] 2" in screen
    assert f"there to be read now: 5 offsets, {world.topic()}[0] [0, 5)" in screen
    assert world.run(3) is None
    world.produce("!", partitions=[0])
    assert world.run(4) is None
    assert world.shown("lake") == "!abcdvwxyz"


@pytest.mark.long
def test_in_another_cluster_a_file_says_where_to_go_on(
    world: TopicWorld, servers: Path, jars: Jars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new cluster has the last record of each partition of the old one, and two more."""
    monkeypatch.setattr("stack.broker.CLUSTER_ID", "BBBBBBBBBBBBBBBBBBBBBQ")
    with Broker(servers / "moved", jars) as other:
        moved = world.but(broker=other)
        moved.create_topic()
        moved.produce("cdef")
        for name, value in in_the_environment(moved.kafka).items():
            monkeypatch.setenv(name, value)
        error = stopped(moved, 2)
        assert error.code == codes.CLUSTER_CHANGED
        file = world.folder / "FILE"
        file.write_text(json.dumps({world.topic(): {"0": 1, "1": 1}}))
        monkeypatch.chdir(world.folder)
        screen = typed(world.ledger_root, error, "reset-source")
        assert f"there to be read now: 2 offsets, {world.topic()}[0] [1, 2), {world.topic()}[1] [1, 2)" in screen
        assert moved.run(3) is None
        assert moved.shown("lake") == "abcdef"


def test_without_a_topic_that_is_gone_an_aborted_epoch_is_planned_anew(world: TopicWorld) -> None:
    world = world.but(topics=("in", "more"))
    world.create_topic("more", 1)
    world.produce("ef")
    world.produce("xy", "more", [0])
    assert isinstance(world.run(2, {"open.landed": lambda: world.delete_topic("more")}), Corrupt)
    error = stopped(world, 3)
    world = world.but(topics=("in",))
    assert isinstance(world.run(4), Corrupt), "the epoch still has records of it"
    screen = typed(world.ledger_root, error, "replan")
    assert "no record is left out or read twice" in screen
    assert world.run(5) is None
    assert world.shown("lake") == "abcdef"


def test_an_aborted_epoch_is_planned_anew_with_fewer_records_until_the_poison_is_found(world: TopicWorld) -> None:
    world.produce("efghij")
    big = world.opened(2)
    world.task().abort(Run("dag", "run 2"), "out of memory")
    assert world.opened(3, max_records=2).ranges == big.ranges, "as always: the same offsets again"
    world.task().abort(Run("dag", "run 3"), "out of memory")
    typing(world, "replan")
    small = world.opened(4, max_records=2)
    assert records_upper_bound(small.ranges) == 2
    assert (small.now, small.seed) != (big.now, 0)
    assert world.run(4) is None  # it goes on with its own attempt
    assert [world.run(number) for number in (5, 6)] == [None, None]
    assert world.shown("lake") == "abcdefghij"


# -- a run and a command at the same moment --------------------------------------------------------------------------


def test_a_run_that_opens_the_epoch_while_the_question_stands_wins_and_the_command_changes_nothing(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(question: str) -> bool:
        world.opened(2)
        return True

    world.produce("ef")
    monkeypatch.setattr(asking, "ask_yesno", meanwhile)
    with pytest.raises(SystemExit, match=r"EPOCHS-COMMAND-RACE.*run 2"):
        typing(world, "reset-source", "--starting", "earliest")
    assert world.run(3) is None
    assert world.shown("lake") == "abcdef"


def test_a_run_that_planned_before_the_command_and_opens_after_it_obeys_the_command(world: TopicWorld) -> None:
    world.produce("ef")
    late = world.run(2, {"open.put": lambda: print(typing(world, "reset-source", "--starting", "earliest"))})
    assert isinstance(late, Fenced)
    assert world.run(3) is None
    assert world.shown("lake") == "aabbccddef"


@pytest.mark.parametrize("phase", ["open.landed", "committed.lake"])
def test_no_command_acts_on_an_epoch_that_is_undecided_or_in_doubt(world: TopicWorld, phase: str) -> None:
    world.produce("ef")
    with pytest.raises(Crash):
        world.run(2, {phase: crash})
    for name, words in EVERY.items():
        with pytest.raises(SystemExit, match=r"EPOCHS-EPOCH-UNFINISHED: The epoch is (open|in doubt)\."):
            typing(world, name, *words)
    assert world.run(3) is None
    assert world.shown("lake") == "abcdef"


EVERY = {
    "skip": ["--to-available"],
    "rewind": ["--to-epoch", "1"],
    "reset-source": ["--starting", "latest"],
    "replan": [],
    "adopt-sink": ["lake"],
}
"""Each command, with what it needs."""


@pytest.mark.parametrize("name", EVERY)
def test_a_pipeline_that_has_never_opened_an_epoch_has_nothing_to_change(world: TopicWorld, name: str) -> None:
    Ledger(LocalStore(world.ledger_root), "fresh").register("dag", at="now", writer="w")
    with pytest.raises(SystemExit, match="EPOCHS-POSITION-MISSING"):
        ordered(world.ledger_root, "epochs", name, "fresh", *EVERY[name], "--why", "too early")
    with pytest.raises(SystemExit, match="2"):
        ordered(world.ledger_root, "epochs", name, "ordres", *EVERY[name], "--why", "typo")


def test_without_a_loss_and_without_a_change_there_is_nothing_to_do(world: TopicWorld) -> None:
    before = [path.name for path in world.ledger_root.rglob("*.json")]
    assert "Nothing to do" in typing(world, "skip", "--to-available")
    assert "Nothing to do" in typing(world, "adopt-sink", "lake")
    with pytest.raises(SystemExit, match="EPOCHS-NOTHING-TO-REPLAN"):
        typing(world, "replan")
    assert [path.name for path in world.ledger_root.rglob("*.json")] == before


# -- offsets in a file ------------------------------------------------------------------------------------------------


def test_offsets_of_a_file_are_skipped_to_and_partitions_that_it_does_not_name_go_on(world: TopicWorld) -> None:
    world.produce("efghij")
    file = world.folder / "offsets.json"
    file.write_text(json.dumps({world.topic(): {"1": 4}}))
    screen = typing(world, "skip", "--offsets", str(file))
    assert f"lost for good: 2 offsets, {world.topic()}[1] [2, 4)" in screen
    assert world.run(2) is None
    assert world.shown("lake") == "abcdegij"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"IN": {"0": 99}}', r"would go on at offset 99 of in-\w+\[0\], but the brokers have the offsets \[0, 2\)"),
        ('{"IN": {"0": -1}}', "must be a whole number, 0 or larger"),
        ('{"other": {"0": 1}}', "does not read the topic 'other'"),
        ("{", "cannot be read"),
        ('{"timestamp": 5}', "has no offsets"),
    ],
)
def test_a_file_without_fitting_offsets_is_refused(world: TopicWorld, text: str, why: str) -> None:
    file = world.folder / "offsets.json"
    file.write_text(text.replace("IN", world.topic()))
    with pytest.raises(SystemExit, match=why):
        typing(world, "skip", "--offsets", str(file))
    with pytest.raises(SystemExit, match=r"nowhere.json cannot be read"):
        typing(world, "reset-source", "--offsets", "nowhere.json")


@pytest.mark.parametrize(
    "words",
    [
        ["skip"],
        ["skip", "--to-available", "--offsets", "f"],
        ["skip", "--topic", "in", "--offsets", "f"],
        ["reset-source"],
        ["reset-source", "--starting", "latest", "--offsets", "f"],
    ],
)
def test_options_that_do_not_fit_each_other_are_refused(world: TopicWorld, words: list[str]) -> None:
    with pytest.raises(SystemExit, match="EPOCHS-COMMAND-OPTIONS"):
        typing(world, *words)


# -- back again -------------------------------------------------------------------------------------------------------


def test_a_rewind_to_an_epoch_reads_what_came_after_it_once_more_and_epoch_numbers_go_on(world: TopicWorld) -> None:
    for number, payloads in ((2, "ef"), (3, "gh")):
        world.produce(payloads)
        assert world.run(number) is None
    screen = typing(world, "rewind", "--to-epoch", "1")
    topic = world.topic()
    assert f"read again, so rows that are there come twice: 4 offsets, {topic}[0] [2, 4), {topic}[1] [2, 4)" in screen
    world.produce("ij")
    assert world.run(4) is None
    assert world.shown("lake") == "abcdeeffgghhij"
    assert world.ledger.newest_complete() == 4
    world.produce("kl")
    assert world.run(5) is None
    assert world.shown("lake") == "abcdeeffgghhijkl"


def test_a_savepoint_is_gone_back_to_and_another_pipeline_starts_from_it(world: TopicWorld) -> None:
    assert "Savepoint upgrade is epoch 1" in typing(world, "savepoint", "upgrade")
    world.produce("ef")
    assert world.run(2) is None
    screen = ordered(world.ledger_root, "epochs", "describe-savepoint", world.name, "upgrade")
    starting = json.loads(screen[screen.index("{\n") :])["starting"]
    other = world.but(name="beside", sinks=("lake_2",), starting=starting)
    assert other.run(3) is None
    assert other.shown("lake_2") == "ef"
    typing(world, "rewind", "--to-savepoint", "upgrade")
    assert world.run(4) is None
    assert world.shown("lake") == "abcdeeff"
    with pytest.raises(SystemExit, match="EPOCHS-SAVEPOINT-UNKNOWN"):
        typing(world, "rewind", "--to-savepoint", "upgrad")


def test_a_rewind_to_a_time_goes_back_to_the_first_records_of_that_time(world: TopicWorld) -> None:
    between = datetime.now(timezone.utc)
    wait_until(lambda: datetime.now(timezone.utc) > between + timedelta(milliseconds=5))
    world.produce("ef")
    assert world.run(2) is None
    typing(world, "rewind", "--to-timestamp", between.isoformat())
    assert world.run(3) is None
    assert world.shown("lake") == "abcdeeff"
    assert "Nothing to do" in typing(world, "rewind", "--to-timestamp", "2999-01-01T00:00Z")
    action = RewindToTime.of(world.ledger, world.name, between.isoformat())  # what the page does
    assert any("read again, so rows that are there come twice: 2 offsets" in line for line in action.told(world.ledger))
    action.do(world.ledger, Account(who="ada", why="a wrong rate"))
    assert world.run(4) is None
    assert world.shown("lake") == "abcdeeefff"


def test_a_rewind_behind_another_topic_or_to_no_epoch_is_refused(world: TopicWorld) -> None:
    typing(world, "reset-source", "--starting", "earliest")
    assert world.run(2) is None
    with pytest.raises(SystemExit, match=r"`reset-source` moved.*in epoch 2(.|\n)*Name epoch 2"):
        typing(world, "rewind", "--to-epoch", "1")
    assert "Nothing to do" in typing(world, "rewind", "--to-epoch", "2")
    with pytest.raises(SystemExit, match="EPOCHS-EPOCH-UNKNOWN: The pipeline has no complete epoch 9"):
        typing(world, "rewind", "--to-epoch", "9")
    for words in ([], ["--to-epoch", "1", "--to-timestamp", "2999-01-01T00:00Z"]):
        with pytest.raises(SystemExit, match="EPOCHS-COMMAND-OPTIONS"):
            typing(world, "rewind", *words)
    with pytest.raises(SystemExit, match=r"The time is 'earliest'\. It must be a time with its zone"):
        typing(world, "rewind", "--to-timestamp", "earliest")


@pytest.mark.long
def test_before_an_epoch_in_another_topic_a_rewind_to_an_epoch_is_refused_and_one_to_a_time_is_not(
    world: TopicWorld,
) -> None:
    typing(world, "reset-source", "--starting", "latest")
    refusal = r"EPOCHS-OFFSETS-UNUSABLE: .* moves the pipeline to other topics in epoch 2(.|\n)*Name a time, or offsets"
    with pytest.raises(SystemExit, match=refusal):
        typing(world, "rewind", "--to-epoch", "1")
    world.produce("ef")
    world.opened(2)
    world.task().abort(Run("dag", "run 2"), "out of memory")
    with pytest.raises(SystemExit, match=refusal):
        typing(world, "rewind", "--to-epoch", "1")
    typing(world, "rewind", "--to-timestamp", "2000-01-01T00:00Z")
    assert world.run(3) is None
    assert world.shown("lake") == "aabbccddef"


@pytest.mark.few(1)
@pytest.mark.parametrize("since", ["it was deleted", "retention deleted its records"])
@pytest.mark.parametrize(
    ("epoch", "tables", "shown"),
    [
        (3, [], "abcdefghiijjkkllxy"),
        pytest.param(3, ["--restore-tables"], "abcdefghijklxy", marks=pytest.mark.long),
        pytest.param(2, [], "abcdefgghhiijjkkllxy", marks=pytest.mark.long),
        (2, ["--restore-tables"], "abcdefghijklx"),
    ],
)
def test_a_topic_that_is_no_longer_read_and_is_gone_does_not_hinder_a_rewind(
    world: TopicWorld, since: str, epoch: int, tables: list[str], shown: str
) -> None:
    """The epochs 2 and 3 have read it: so it need not move for epoch 3, and cannot for epoch 2."""
    wide = world.but(topics=("in", "more"))
    world.create_topic("more", 1)
    for number, payloads, more in ((2, "ef", "x"), (3, "gh", "y")):
        world.produce(payloads)
        world.produce(more, "more", [0])
        assert wide.run(number) is None
    for number, payloads in ((4, "ij"), (5, "kl")):
        world.produce(payloads)
        assert world.run(number) is None
    world.produce("z", "more", [0])
    world.delete_topic("more") if since == "it was deleted" else world.delete_before(0, 3, "more")
    screen = typing(world, "rewind", "--to-epoch", str(epoch), *tables)
    assert (f"{world.topic('more')} stays where it is: the DAG no longer reads it" in screen) == (epoch == 2)
    lost = "Its rows of epochs 3 to 5 go from the tables, and cannot be read again."
    assert (lost in screen) == (epoch == 2 and tables != [])
    assert [world.run(number) for number in range(6, 7 + len(tables))] == [None] * (1 + len(tables))
    assert world.shown("lake") == shown
    assert world.completed(world.ledger.newest_complete()).ranges[world.topic("more")] == (OffsetRange(0, 2, 2),)


@pytest.mark.long
def test_a_topic_that_is_no_longer_read_goes_back_where_it_can_and_is_read_again_once_it_is_back(
    world: TopicWorld,
) -> None:
    wide = world.but(topics=("in", "more"))
    world.create_topic("more", 1)
    for number, more in ((2, "x"), (3, "y")):
        world.produce(more, "more", [0])
        assert wide.run(number) is None
    world.produce("ef")
    assert world.run(4) is None
    screen = typing(world, "rewind", "--to-epoch", "2", "--restore-tables")
    gone = "until then, their rows of epochs 3 to 4 are gone from the tables"
    assert f"has them again; {gone}: 1 offsets, {world.topic('more')}[0] [1, 2)" in screen
    assert "stays where it is" not in screen
    assert [each.run(number) for number, each in ((5, world), (6, world), (7, wide))] == [None] * 3
    assert world.shown("lake") == "abcdefxy"


def test_a_partition_that_came_later_goes_back_to_its_beginning(world: TopicWorld) -> None:
    world.add_partition()
    world.produce("efg", partitions=range(3))
    assert world.run(2) is None
    typing(world, "rewind", "--to-epoch", "1")
    assert world.run(3) is None
    assert world.shown("lake") == "abcdeeffgg"


# -- other epochs -----------------------------------------------------------------------------------------------------


def test_a_new_sink_begins_with_the_epoch_that_a_command_moved_but_not_with_one_before(world: TopicWorld) -> None:
    world.produce("efghij")
    world.delete_before(0, 4)
    typed(world.ledger_root, stopped(world, 2), "skip")
    assert world.run(3) is None
    wide = world.but(sinks=("lake", "lake_2"), backfill={"lake_2": 1})
    world.produce("kl")
    refused = wide.run(4)
    assert isinstance(refused, Refused) and "EPOCHS-BACKFILL-MOVED" in str(refused)
    (epoch,) = re.findall(r"Let `backfill` name epoch (\d+)", str(refused))
    assert wide.but(backfill={"lake_2": int(epoch)}).run(5) is None
    assert wide.shown("lake") == "abcdfhijkl"
    assert wide.shown("lake_2") == "fhijkl"


def test_two_commands_before_one_epoch_are_both_obeyed_and_stay_on_record_when_it_is_pruned(world: TopicWorld) -> None:
    world.produce("efghij")
    world.delete_before(0, 4)
    shutil.rmtree(world.folder / "lake")
    error = stopped(world, 2)
    typing(world, "adopt-sink", "lake")
    typing(world, "skip", "--topic", world.topic(), "--to-available")
    assert error.code == codes.TABLE_GONE
    assert world.run(3) is None
    assert world.shown("lake") == "fhij"
    assert [command.name for command in world.completed(2).commands] == ["adopt-sink", "skip"]
    newest = json.loads(ordered(world.ledger_root, "epochs", "list", world.name, "--output", "json"))[0]
    assert (newest["epoch"], newest["commands"]) == (2, ["adopt-sink", "skip"])
    assert world.ledger.pruning.prune(2)
    assert [command.why for command in world.completed(2).commands] == ["the test says so"] * 2


# -- sinks as they are ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_table_that_was_restored_from_an_older_copy_is_taken_as_it_is(world: TopicWorld) -> None:
    shutil.copytree(world.folder / "lake", world.folder / "copy")
    for number, payloads in ((2, "ef"), (3, "gh")):
        world.produce(payloads)
        assert world.run(number) is None
    shutil.rmtree(world.folder / "lake")
    (world.folder / "copy").rename(world.folder / "lake")
    world.produce("ij")
    error = stopped(world, 4)
    assert error.code == codes.SINK_BEHIND
    screen = typed(world.ledger_root, error, "adopt-sink")
    assert "missing for good, unless its table has them: the rows of epochs 2 to 3 (4 by their receipts)" in screen
    assert world.run(5) is None
    world.produce("kl")
    assert world.run(6) is None
    assert world.shown("lake") == "abcdijkl"
    (on_record,) = world.completed(4).commands
    assert (on_record.name, on_record.lacks, on_record.who) == ("adopt-sink", {"lake": (2, 3)}, caller().who)
    readable = {n: complete_epoch(world.name, n, ledger_root=str(world.ledger_root)) for n in (3, 4, 5)}
    versions = {n: found.sinks["lake"].version for n, found in readable.items() if found}
    assert versions == {3: None, 4: 1, 5: 2}, "the old table's version 2 was another one"


@pytest.mark.long
def test_a_waived_table_that_is_gone_does_not_stop_the_next_run(world: TopicWorld) -> None:
    world.produce("ef")
    with pytest.raises(Crash):
        world.run(2, {"decision.landed": crash})
    shutil.rmtree(world.folder / "lake")
    error = stopped(world, 3)
    assert error.code == codes.TABLE_GONE
    typed(world.ledger_root, error, "waive")
    world.produce("gh")
    assert [world.run(number) for number in (4, 5)] == [None, None]
    world.produce("ij")
    assert world.run(6) is None
    assert world.shown("lake") == "ghij"


@pytest.mark.parametrize("how", ["dropped", "created again"])
def test_a_table_that_is_gone_or_another_one_is_taken_as_it_is(world: TopicWorld, how: str) -> None:
    table = world.folder / "lake"
    rows = DeltaTable(table).to_pyarrow_table()
    shutil.rmtree(table)
    if how == "created again":
        write_deltalake(table, rows.slice(0, 3))
    world.produce("ef")
    error = stopped(world, 2)
    screen = typed(world.ledger_root, error, "adopt-sink")
    assert "shows no epoch, and the ledger expects epoch 1" in screen
    assert world.run(3) is None
    assert len(world.shown("lake")) == (2 if how == "dropped" else 5)


def test_a_sink_that_points_to_a_new_table_goes_on_there_under_its_name(world: TopicWorld) -> None:
    world = world.but(tables={"lake": "lake_2"})
    world.produce("ef")
    error = stopped(world, 2)
    assert error.code == codes.TABLE_ELSEWHERE
    assert "Nothing to do" in typing(world, "adopt-sink", "lake"), "the old table is as it was"
    typed(world.ledger_root, error, "adopt-sink")
    assert world.run(3) is None
    assert (world.shown("lake"), world.but(tables={}).shown("lake")) == ("ef", "abcd")


@pytest.mark.parametrize("after", [1, 2])
def test_a_backup_that_is_found_after_adopt_sink_is_taken_by_the_same_command_typed_again(
    world: TopicWorld, after: int
) -> None:
    """The backup shows epoch 1, or all epochs: then the first command is taken back."""
    table, backup = world.folder / "lake", world.folder / "backup"
    for number, payloads in ((1, ""), (2, "ef")):
        if payloads:
            world.produce(payloads)
            assert world.run(number) is None
        if number == after:
            shutil.copytree(table, backup)
    shutil.rmtree(table)
    world.produce("gh")
    typed(world.ledger_root, stopped(world, 3), "adopt-sink")
    backup.rename(table)
    error = stopped(world, 4)
    assert error.code == codes.ADOPTION_OUTDATED
    screen = typed(world.ledger_root, error, "adopt-sink")
    assert "will be taken back" in screen if after == 2 else "shows epoch 1, and the ledger expects epoch 2" in screen
    assert world.run(5) is None
    assert world.shown("lake") == ("abcdefgh" if after == 2 else "abcdgh")
    assert world.completed(3).adopted_in == ({} if after == 2 else {"lake": 3})


def test_a_new_table_that_the_dag_does_not_point_to_is_told_and_both_remedies_go_on(world: TopicWorld) -> None:
    world.produce("ef")
    typing(world, "adopt-sink", "lake", "--new-table")
    error = stopped(world, 2)
    assert error.code == codes.ADOPTION_OUTDATED and world.shown("lake") == "abcd"
    corrected = world.but(tables={"lake": "lake_2"})
    assert corrected.run(3) is None
    assert corrected.shown("lake") == "ef"
    world = corrected
    typing(world, "adopt-sink", "lake", "--new-table")
    world.produce("gh")
    typed(world.ledger_root, stopped(world, 4), "adopt-sink")
    assert world.run(5) is None
    assert world.shown("lake") == "efgh"


def test_a_sink_that_was_out_of_the_dag_while_its_table_was_lost_is_taken_as_it_is(world: TopicWorld) -> None:
    wider = world.but(sinks=("lake", "lake_2"))
    for each, number, payloads in ((wider, 2, "ef"), (world, 3, "gh")):
        each.produce(payloads)
        assert each.run(number) is None
    shutil.rmtree(world.folder / "lake_2")
    world.produce("ij")
    error = stopped(wider, 4)
    assert error.sink == "lake_2"
    screen = typed(world.ledger_root, error, "adopt-sink")
    assert "shows no epoch, and the ledger expects epoch 2" in screen
    assert wider.run(5) is None
    assert (wider.shown("lake"), wider.shown("lake_2")) == ("abcdefghij", "ij")
    with pytest.raises(SystemExit, match=r"no sink 'lake_3'\. Its sinks are lake, lake_2"):
        typing(world, "adopt-sink", "lake_3")


def test_a_sink_whose_last_records_were_pruned_while_it_was_out_of_the_dag_needs_a_new_table(world: TopicWorld) -> None:
    wider = world.but(sinks=("lake", "lake_2"))
    wider.produce("ef")
    assert wider.run(2) is None
    (opened,) = world.ledger_root.rglob(attempt_key(2, 1, "open"))
    world.produce("gh")
    assert world.run(3) is None
    opened.unlink()
    with pytest.raises(SystemExit, match=r"EPOCHS-SINK-NOT-ADOPTED(.|\n)*were pruned(.|\n)*add --new-table"):
        typing(world, "adopt-sink", "lake_2")
    typing(world, "adopt-sink", "lake_2", "--new-table")
    wider = wider.but(tables={"lake_2": "lake_3"})
    wider.produce("ij")
    assert wider.run(4) is None
    assert wider.shown("lake_2") == "ij"


def test_a_database_that_was_restored_from_an_older_copy_is_taken_as_it_is(world: TopicWorld) -> None:
    world = world.but(sinks=("lake", "rows"))
    for number, payloads in ((2, "ef"), (3, "gh")):
        world.produce(payloads)
        assert world.run(number) is None
    world.db.run("DELETE FROM rows")
    world.db.run("DELETE FROM epoch_markers")
    world.produce("ij")
    error = stopped(world, 4)
    assert error.sink == "rows"
    typed(world.ledger_root, error, "adopt-sink")
    assert world.run(5) is None
    world.produce("kl")
    assert world.run(6) is None
    assert (world.shown("lake"), world.shown("rows")) == ("abcdefghijkl", "ijkl")


def test_a_topic_that_was_created_again_with_its_markers_is_taken_as_it_is(world: TopicWorld) -> None:
    world.create_topic("out")
    world = world.but(sinks=("lake", "out"))
    world.produce("ef")
    assert world.run(2) is None
    for topic in ("out", "markers"):
        world.delete_topic(topic)
    world.create_topic("out")
    world.produce("gh")
    error = stopped(world, 3)
    assert error.sink == "out"
    typed(world.ledger_root, error, "adopt-sink")
    assert world.run(4) is None
    world.produce("ij")
    assert world.run(5) is None
    assert (world.shown("lake"), world.shown("out")) == ("abcdefghij", "ghij")
