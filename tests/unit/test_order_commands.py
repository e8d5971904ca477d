"""Commands typed as the errors name them, where the brokers say what a test lets them say. No broker is needed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_epochs import KafkaSource, codes
from airflow_epochs.commands import migration
from airflow_epochs.contracts import Move, Position
from airflow_epochs.coordinator.admin import admin
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.inspection.lag import lag_of
from airflow_epochs.coordinator.orders import adopting, rewinding
from airflow_epochs.coordinator.orders.orders import Restoration
from airflow_epochs.errors import Corrupt
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import OffsetRange, RestorePoint, Run
from airflow_epochs.operators import definitions
from airflow_epochs.sources.kafka import beginning, reader
from airflow_epochs.sources.kafka.brokers import Brokers
from airflow_epochs.sources.kafka.logs import Batch, ClusterLog, Log, Offsets, Partition, TopicLog
from airflow_epochs.sources.kafka.waiting import Waiting
from stack.broker import Broker
from tests.support.rebuilt import Found
from tests.support.remedies import in_the_environment, ordered, typed
from tests.support.sql_world import new_sqlite
from tests.support.topic_world import TopicWorld, stopped

WHY = ("--why", "the test says so")


class Told(Brokers):
    """Brokers without a network. ``logs``: topic -> its first log; ``epoch_ends``: where older leader epochs end."""

    def __init__(self) -> None:
        self.logs: dict[str, Log] = {}
        self.added: dict[Partition, Log] = {}
        """The logs of more partitions of these topics."""
        self.epoch_ends: dict[Partition, int | None] = {}
        self.last: dict[Partition, Batch] = {}
        """The batches before the positions that are asked for."""
        self.exported: list[Offsets] = []
        self.made = 1
        """How often the topics were created."""

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def look(self, topics: Sequence[str], epochs: Mapping[Partition, int] | None = None) -> ClusterLog:
        there = {
            topic: TopicLog(f"id-{self.made}-of-{topic}", {0: self.logs[topic], **self._added(topic)})
            for topic in topics
            if topic in self.logs
        }
        return ClusterLog("c", there, {at: end for at, end in self.epoch_ends.items() if at in (epochs or {})})

    def _added(self, topic: str) -> dict[int, Log]:
        return {partition: log for (of, partition), log in self.added.items() if of == topic}

    def waiting(self, stable: Mapping[Partition, int]) -> list[Waiting]:
        return []

    def batches(self, ends: Mapping[Partition, int], cluster: ClusterLog) -> dict[Partition, Batch]:
        return {at: batch for at, batch in self.last.items() if at in ends}

    def commit(self, group: str, offsets: Offsets, metadata: str) -> None:
        pass

    def partitions(self, topics: Sequence[str]) -> list[Partition]:
        return [*self.look(topics).starts()]

    def members(self, group: str) -> list[str]:
        return []

    def group(self, group: str, partitions: Iterable[Partition] = ()) -> dict[Partition, tuple[int, str]]:
        return {}

    def rejected(self, group: str, offsets: Offsets, metadata: str) -> list[str]:
        self.exported.append(offsets)
        return []

    def offsets_at(self, ms: int, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        return dict.fromkeys(partitions)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()
    for module in (reader, beginning):
        monkeypatch.setattr(module, "Brokers", lambda access: told)
    monkeypatch.setattr("tests.support.kafka_staging._between", lambda *offsets: [])
    return told


@pytest.fixture
def world(tmp_path: Path, brokers: Told, monkeypatch: pytest.MonkeyPatch) -> TopicWorld:
    """Epoch 1 has read the topic up to offset 20."""
    nowhere = cast(Broker, SimpleNamespace(bootstrap="127.0.0.1:1"))
    world = TopicWorld(folder=tmp_path, broker=nowhere, db=new_sqlite(tmp_path), id="x")
    for name, value in in_the_environment(world.kafka).items():
        monkeypatch.setenv(name, value)
    brokers.logs[world.topic()] = Log(0, 20, 3)
    assert world.run(1) is None
    return world


def aborted(world: TopicWorld, number: int) -> None:
    world.opened(number)
    world.task().abort(Run("dag", f"run {number}"), "out of memory")


def truncated(world: TopicWorld, brokers: Told, to: int) -> None:
    """An unclean election has cut the log there; since then it has grown up to offset 60."""
    brokers.logs[world.topic()] = Log(0, 60, 4)
    brokers.epoch_ends = {(world.topic(), 0): to}


@pytest.mark.parametrize("chosen", [False, True], ids=["to-available", "offsets"])
def test_what_is_passed_over_in_a_partition_that_no_epoch_has_read_is_told_as_lost_and_goes_on_record(
    world: TopicWorld, brokers: Told, tmp_path: Path, *, chosen: bool
) -> None:
    """Such a partition begins at offset 0."""
    brokers.added[world.topic(), 5] = Log(4, 9)
    error = stopped(world, 2)
    assert error.code is codes.RECORDS_GONE and f"{world.topic()}[5] offsets [0, 4)" in error.what
    if chosen:
        (tmp_path / "offsets").write_text(json.dumps({world.topic(): {"5": 6}}))
        screen = ordered(world.ledger_root, "epochs", "skip", world.name, "--offsets", str(tmp_path / "offsets"), *WHY)
    else:
        screen = typed(world.ledger_root, error, "skip")
    begins = 6 if chosen else 4
    assert f"  lost for good: {begins} offsets, {world.topic()}[5] [0, {begins})\n" in screen
    assert world.run(3) is None
    completed = world.completed(2)
    assert [command.lost for command in completed.commands] == [{world.topic(): (OffsetRange(5, 0, begins),)}]
    assert OffsetRange(5, begins, 9) in completed.ranges[world.topic()]


def test_an_aborted_epoch_whose_log_was_cut_behind_its_beginning_is_planned_anew_by_the_command_of_the_error(
    world: TopicWorld, brokers: Told
) -> None:
    brokers.logs[world.topic()] = Log(0, 40, 3)
    aborted(world, 2)
    truncated(world, brokers, to=30)
    for number in (3, 4):
        error = stopped(world, number)
        assert error.code is codes.RECORDS_GONE and f"{world.topic()}[0] offsets [30, 40)" in error.what
    screen = typed(world.ledger_root, error, "skip")
    assert f"was aborted. Its input was 20 offsets, {world.topic()}[0] [20, 40)." in screen
    assert "no record that is there is left out, and none is read twice" in screen
    lost = {world.topic(): (OffsetRange(0, 30, 40),)}
    assert f"  lost for good: 10 offsets, {world.topic()}[0] [30, 40)\n" in screen, "as the error says"
    assert world.opened(5).ranges == {world.topic(): (OffsetRange(0, 20, 60),)}
    order = world.ledger.open_record(2, 2)
    assert order and order.command and (order.command.name, order.command.lost, order.moved) == ("skip", lost, False)


@pytest.mark.proof
def test_what_a_cut_log_has_lost_of_an_aborted_epoch_stays_on_record_whatever_command_comes_next(
    world: TopicWorld, brokers: Told, tmp_path: Path
) -> None:
    brokers.logs[world.topic()] = Log(0, 40, 3)
    aborted(world, 2)
    truncated(world, brokers, to=30)
    typed(world.ledger_root, stopped(world, 3), "skip")
    (tmp_path / "offsets").write_text(json.dumps({world.topic(): {"0": 15}}))
    ordered(world.ledger_root, "epochs", "rewind", world.name, "--offsets", str(tmp_path / "offsets"), *WHY)
    brokers.epoch_ends = {}
    assert world.run(4) is None
    skip, rewind = world.completed(2).commands
    assert (skip.lost, rewind.lost) == ({world.topic(): (OffsetRange(0, 30, 40),)}, {})


@pytest.mark.parametrize(("begins", "lost"), [(25, [(20, 25), (30, 40)]), (35, [(20, 40)]), (50, [(20, 50)])])
def test_what_a_cut_log_has_lost_of_an_aborted_epoch_is_told_and_goes_on_record_if_offsets_are_chosen_too(
    world: TopicWorld, brokers: Told, tmp_path: Path, begins: int, lost: list[tuple[int, int]]
) -> None:
    brokers.logs[world.topic()] = Log(0, 40, 3)
    aborted(world, 2)
    truncated(world, brokers, to=30)
    assert "offsets [30, 40)" in stopped(world, 3).what
    (tmp_path / "offsets").write_text(json.dumps({world.topic(): {"0": begins}}))
    screen = ordered(world.ledger_root, "epochs", "skip", world.name, "--offsets", str(tmp_path / "offsets"), *WHY)
    offsets = ", ".join(f"{world.topic()}[0] [{start}, {end})" for start, end in lost)
    assert f"  lost for good: {sum(end - start for start, end in lost)} offsets, {offsets}\n" in screen
    assert ("new records may have the offsets of lost ones: they are read" in screen) == (begins < 40)
    brokers.epoch_ends = {}
    assert world.run(4) is None
    (skip,) = world.completed(2).commands
    assert skip.lost == {world.topic(): tuple(OffsetRange(0, start, end) for start, end in lost)}


def test_a_log_that_was_cut_before_the_beginning_of_an_aborted_epoch_is_gone_on_with_where_it_was_cut(
    world: TopicWorld, brokers: Told
) -> None:
    brokers.logs[world.topic()] = Log(0, 40, 3)
    aborted(world, 2)
    truncated(world, brokers, to=15)
    screen = typed(world.ledger_root, stopped(world, 3), "skip")
    assert f"  lost for good: 20 offsets, {world.topic()}[0] [20, 40)\n" in screen, "no epoch has read these"
    assert world.opened(4).ranges == {world.topic(): (OffsetRange(0, 15, 60),)}


def test_a_topic_that_is_gone_is_not_said_to_have_had_more_records_and_is_gone_on_with_when_it_is_there_again(
    world: TopicWorld, brokers: Told
) -> None:
    """Epoch 1 has read the topic to its end."""
    del brokers.logs[world.topic()]
    error = stopped(world, 2)
    assert error.code is codes.RECORDS_GONE and "no longer has records" not in error.what
    assert f"{world.topic()}[0] offset 20 and up (the topic no longer exists)" in error.what
    assert "If there were records that it had not read yet, they are gone too." in error.what
    assert f"create {world.topic()}, and run `airflow epochs reset-source" in error.remedy
    brokers.logs[world.topic()] = Log(0, 7, 0)
    brokers.made = 2
    typed(world.ledger_root, error, "reset-source")
    assert world.opened(3).ranges == {world.topic(): (OffsetRange(0, 0, 7),)}, "each record of the new topic, once"


def created_again(world: TopicWorld, brokers: Told) -> None:
    brokers.logs[world.topic()], brokers.made = Log(0, 50, 3), 2
    brokers.last = {(world.topic(), 0): Batch(8, whole=True)}


def deleted(world: TopicWorld, brokers: Told) -> None:
    brokers.logs[world.topic()] = Log(25, 50, 3)


def written_anew(world: TopicWorld, brokers: Told) -> None:
    """Together with the metadata of the cluster, so that only the checksum of the last batch tells."""
    brokers.logs[world.topic()], brokers.last = Log(0, 50, 3), {(world.topic(), 0): Batch(8, whole=True)}


@pytest.mark.parametrize(
    ("how", "command", "begins"),
    [(created_again, "reset-source", 0), (deleted, "skip", 25), (written_anew, "skip", 0)],
)
@pytest.mark.parametrize("export", ["export-group", "export-checkpoint"])
def test_a_position_that_the_pipeline_cannot_go_on_at_is_exported_only_after_the_command_of_the_error(
    world: TopicWorld,
    brokers: Told,
    tmp_path: Path,
    how: Callable[[TopicWorld, Told], None],
    command: str,
    begins: int,
    export: str,
) -> None:
    brokers.logs[world.topic()], brokers.last = Log(0, 20, 3), {(world.topic(), 0): Batch(7, whole=True)}
    rerun = world.but(name="told", folder=tmp_path / "told")
    assert rerun.run(1) is None
    how(rerun, brokers)
    folder = tmp_path / "checkpoint"
    words = ("epochs", export, rerun.name, *(["--group", "g"] if export == "export-group" else [str(folder)]), *WHY)
    with pytest.raises(SystemExit) as refused:
        ordered(rerun.ledger_root, *words)
    told = str(refused.value)
    assert told.startswith("EPOCHS-RECORDS-GONE: ") and "Then run the command again." in told
    assert (brokers.exported, folder.exists()) == ([], False)
    typed(rerun.ledger_root, told, command)
    ordered(rerun.ledger_root, *words)
    exported = brokers.exported or [json.loads((folder / "offsets/0").read_text().splitlines()[-1])]
    assert [{int(p): at for p, at in of.items()} for each in exported for of in each.values()] == [{0: begins}]


@pytest.mark.parametrize("export", ["export-group", "export-checkpoint"])
def test_a_position_before_a_loss_within_an_aborted_epoch_is_exported_only_after_the_command_of_the_error(
    world: TopicWorld, brokers: Told, tmp_path: Path, export: str
) -> None:
    """The next run stops, too."""
    brokers.logs[world.topic()] = Log(0, 40, 3)
    aborted(world, 2)
    truncated(world, brokers, to=30)
    folder = tmp_path / "checkpoint"
    words = ("epochs", export, world.name, *(["--group", "g"] if export == "export-group" else [str(folder)]), *WHY)
    with pytest.raises(SystemExit, match=r"EPOCHS-RECORDS-GONE: .* offsets \[30, 40\)") as refused:
        ordered(world.ledger_root, *words)
    assert (brokers.exported, folder.exists()) == ([], False)
    typed(world.ledger_root, str(refused.value), "skip")
    ordered(world.ledger_root, *words)
    exported = brokers.exported or [json.loads((folder / "offsets/0").read_text().splitlines()[-1])]
    assert [{int(p): at for p, at in of.items()} for each in exported for of in each.values()] == [{0: 20}]


def test_a_log_that_was_written_anew_is_no_lag_of_the_pipeline(world: TopicWorld, brokers: Told) -> None:
    """`lag` says what the next run says."""
    brokers.logs[world.topic()], brokers.last = Log(0, 40, 3), {(world.topic(), 0): Batch(7, whole=True)}
    assert world.run(2) is None
    written_anew(world, brokers)
    for asked in (lambda: lag_of(world.ledger, world.task().task.env), lambda: world.opened(3)):
        with pytest.raises(Corrupt, match="these offsets have new records"):
            asked()


def gone(world: TopicWorld, brokers: Told) -> None:
    del brokers.logs[world.topic()]


@pytest.mark.parametrize("how", [gone, created_again])
def test_an_epoch_without_records_is_not_staged_if_its_topic_is_gone_and_the_command_of_the_error_goes_on(
    world: TopicWorld, brokers: Told, tmp_path: Path, how: Callable[[TopicWorld, Told], None]
) -> None:
    latest = world.but(name="latest", starting="latest", folder=tmp_path / "latest")
    opened = latest.opened(1)
    assert opened.ranges == {world.topic(): (OffsetRange(0, 20, 20),)}, "nothing to read"
    how(latest, brokers)
    with pytest.raises(Corrupt) as stopped:
        latest.task().stage(Run("dag", "run 1"))
    assert stopped.value.code is codes.RECORDS_GONE
    stopped.value.pipeline = latest.name
    source, env = cast(KafkaSource, latest.task().task.pipeline.source), latest.task().task.env
    for asked in (source.again, source.check, source.confirm):
        with pytest.raises(Corrupt, match=re.escape(f"{world.topic()}[0] offset 20 and up")):
            asked(opened.ranges, opened.source_state, env)
    latest.task().abort(Run("dag", "run 1"), "the topic is gone")
    created_again(latest, brokers)
    typed(latest.ledger_root, stopped.value, "reset-source")
    assert latest.run(2) is None
    assert latest.completed(1).ranges == {world.topic(): (OffsetRange(0, 0, 50),)}


@pytest.mark.parametrize("how", [gone, created_again])
def test_an_aborted_epoch_that_only_brings_tables_back_is_opened_again_although_its_topic_is_gone(
    world: TopicWorld, brokers: Told, how: Callable[[TopicWorld, Told], None]
) -> None:
    """It reads nothing. The epoch after it stops."""
    brokers.logs[world.topic()] = Log(0, 40, 3)
    assert world.run(2) is None
    ordered(world.ledger_root, "epochs", "rewind", world.name, "--to-epoch", "1", "--restore-tables", *WHY)
    aborted(world, 3)
    how(world, brokers)
    assert world.run(4) is None
    assert world.completed(3).ranges == {world.topic(): (OffsetRange(0, 20, 20),)}
    assert stopped(world, 5).code is codes.RECORDS_GONE


def test_a_first_epoch_whose_records_are_all_deleted_is_opened_again_beside_a_topic_without_records(
    world: TopicWorld, brokers: Told, tmp_path: Path
) -> None:
    first = world.but(name="first", topics=("in", "more"), folder=tmp_path / "first")
    brokers.logs[world.topic("more")] = Log(3, 3)
    aborted(first, 1)
    brokers.logs[world.topic()] = Log(25, 30)
    again = {world.topic(): (OffsetRange(0, 25, 25),), world.topic("more"): (OffsetRange(0, 3, 3),)}
    opened, task = first.opened(2), first.task().task
    assert opened.ranges == again
    brokers.logs[world.topic()] = Log(28, 30)
    cast(KafkaSource, task.pipeline.source).check(opened.ranges, opened.source_state, task.env)
    assert first.run(3) is None, "it reads nothing, so nothing of it is gone"
    assert first.run(4) is None
    assert first.completed(2).ranges[world.topic()] == (OffsetRange(0, 28, 30),)


def test_where_nothing_is_lost_and_no_epoch_was_aborted_skip_has_nothing_to_do(
    world: TopicWorld, brokers: Told
) -> None:
    words = ("epochs", "skip", world.name, "--to-available", "--why", "the test says so")
    assert "Nothing to do" in ordered(world.ledger_root, *words)
    brokers.logs[world.topic()] = Log(0, 40, 3)
    aborted(world, 2)
    assert "plans it anew" in ordered(world.ledger_root, *words)
    assert "Nothing to do" in ordered(world.ledger_root, *words), "the command stands already"


def test_a_command_takes_the_topics_of_todays_dag_and_the_next_run_reads_them(
    world: TopicWorld, brokers: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.logs |= {world.topic(): Log(25, 40, 3), world.topic("more"): Log(0, 5, 3)}
    changed = world.but(topics=("in", "more"))
    monkeypatch.setattr(definitions, "find", lambda name, dag_id, ledger: Found(lambda: changed.task().task))
    shown = typed(world.ledger_root, stopped(changed, 2), "skip")
    assert f"lost for good: 5 offsets, {world.topic()}[0] [20, 25)" in shown
    ranges = {world.topic(): (OffsetRange(0, 25, 40),), world.topic("more"): (OffsetRange(0, 0, 5),)}
    assert changed.opened(3).ranges == ranges


def test_a_command_goes_on_with_the_source_on_record_whatever_fails_in_the_search_for_the_dag(
    world: TopicWorld, brokers: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str, dag_id: str, ledger: str) -> Found:
        raise RuntimeError("the bundle cannot be fetched")

    brokers.logs[world.topic()] = Log(25, 40, 3)
    monkeypatch.setattr(definitions, "find", find)
    shown = typed(world.ledger_root, stopped(world, 2), "skip")
    assert "The source cannot be read from a DAG here (RuntimeError): it is taken as epoch 1 has it on record." in shown
    assert world.opened(3).ranges == {world.topic(): (OffsetRange(0, 25, 40),)}


def test_what_airflow_logs_of_its_bundles_is_not_in_the_midst_of_what_reset_source_prints(
    world: TopicWorld, brokers: Told, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def bags() -> Iterable[object]:
        os.write(1, b"[info] DAG bundles loaded\n")
        return ()

    monkeypatch.setattr(definitions, "_bags", bags)
    words = ("epochs", "reset-source", world.name, "--starting", "earliest", "--why", "the test says so")
    assert "The source cannot be read from a DAG here" in ordered(world.ledger_root, *words)
    out, err = capfd.readouterr()
    assert "bundles" not in out and "DAG bundles loaded" in err


def test_after_a_takeover_a_command_takes_the_source_of_the_new_dag_before_that_has_opened_an_epoch(
    world: TopicWorld, brokers: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.logs |= {world.topic(): Log(25, 40, 3), world.topic("more"): Log(0, 5, 3)}
    dags = {"dag": world, "new_dag": world.but(topics=("more",))}
    monkeypatch.setattr(definitions, "find", lambda name, dag_id, ledger: Found(lambda: dags[dag_id].task().task))
    by = Account(who="test", why="the DAG was renamed")
    admin.take_over(world.ledger, world.name, "new_dag", owner="dag", by=by)
    words = ("epochs", "skip", world.name, "--to-available", "--why", "the test says so")
    assert "Nothing to do" in ordered(world.ledger_root, *words), "the topic with losses is not read any more"


@pytest.mark.parametrize(
    "words",
    [
        ("skip", "--to-available", *WHY),
        ("rewind", "--to-epoch", "1", *WHY),
        ("reset-source", "--starting", "earliest", "--source-conn-id", "other", *WHY),
        ("export-group", "--group", "g", *WHY),
        ("in-doubt",),
    ],
    ids=lambda words: words[0],
)
def test_a_source_that_a_newer_version_has_put_on_record_is_told_to_be_so_by_each_command_that_makes_it(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    opened = world.ledger.open_record(1, 1)
    assert opened
    newer = replace(opened, source={**opened.source, "bounds": "novel"})
    monkeypatch.setattr(Ledger, "open_record", lambda *_: newer)
    with pytest.raises(SystemExit) as refused:
        ordered(world.ledger_root, "epochs", words[0], world.name, *words[1:])
    cause, where, remedy = str(refused.value).split("\n")
    assert "EPOCHS-LEDGER-TOO-NEW" in cause and "`bounds` is 'novel'" in cause
    assert where == "Where: pipeline orders" and remedy.startswith("What to do: Upgrade airflow-provider-epochs")


def test_a_connection_that_the_source_does_not_take_is_told_as_an_argument_not_as_a_damaged_record(
    world: TopicWorld,
) -> None:
    with pytest.raises(SystemExit, match="EPOCHS-KAFKA-SOURCE-ARGUMENT"):
        ordered(
            world.ledger_root,
            "epochs",
            "reset-source",
            world.name,
            "--starting",
            "earliest",
            "--source-conn-id",
            " ",
            "--why",
            "x",
        )


@pytest.mark.parametrize(
    "restoration", [None, Restoration(epoch=1, points={"orders": RestorePoint(epoch=1, version=0)})]
)
def test_after_a_command_a_failed_run_is_to_be_retried_not_cleared(restoration: Restoration | None) -> None:
    """To clear the failed tasks of a run that was marked as failed leaves tasks skipped, and makes the run green."""
    told = rewinding.next_step("shop", KafkaSource(["orders"]), restoration)
    assert "`airflow epochs retry shop --why …`" in told and "clear" not in told


def test_after_a_command_a_pipeline_of_intervals_is_not_said_to_obey_in_a_run_that_is_started_by_hand() -> None:
    told = rewinding.next_step("shop", KafkaSource(["orders"], bounds="data_interval"))
    assert "The schedule starts it, or a backfill" in told and "Start one" not in told


@pytest.mark.parametrize(("bounds", "says"), [("available", "or start a run"), ("data_interval", "create a backfill")])
def test_after_a_migration_a_pipeline_of_intervals_is_not_told_to_start_a_run_by_hand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bounds: str, says: str
) -> None:
    monkeypatch.setattr(adopting, "adopt", lambda *of: None)
    monkeypatch.setattr(migration, "logged", lambda *of, **how: nullcontext())
    source = KafkaSource(["orders"], bounds=bounds)
    found: Any = SimpleNamespace(pipeline=SimpleNamespace(source=source, dag_id="shop"), task=lambda: None)
    migration._adopt(
        found,
        1,
        "adopt-group",
        Account(who="test", why="the test says so"),
        Move(position=Position(ranges={}, state={})),
    )
    assert says in capsys.readouterr().out
