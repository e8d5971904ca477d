"""Commands typed as the errors name them, where the brokers say what a test lets them say. No broker is needed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
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
from airflow_epochs.coordinator.orders import adopting, rewinding
from airflow_epochs.coordinator.orders.orders import Restoration
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import OffsetRange, RestorePoint, Run
from airflow_epochs.operators import definitions
from airflow_epochs.sources.kafka import reader
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
    """Brokers without a network. ``logs``: topic -> its only log; ``epoch_ends``: where older leader epochs end."""

    def __init__(self) -> None:
        self.logs: dict[str, Log] = {}
        self.epoch_ends: dict[Partition, int | None] = {}
        self.made = 1
        """How often the topics were created."""

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def look(self, topics: Sequence[str], epochs: Mapping[Partition, int] | None = None) -> ClusterLog:
        there = {
            topic: TopicLog(f"id-{self.made}-of-{topic}", {0: self.logs[topic]})
            for topic in topics
            if topic in self.logs
        }
        return ClusterLog("c", there, {at: end for at, end in self.epoch_ends.items() if at in (epochs or {})})

    def waiting(self, stable: Mapping[Partition, int]) -> list[Waiting]:
        return []

    def batches(self, ends: Mapping[Partition, int], cluster: ClusterLog) -> dict[Partition, Batch]:
        return {}

    def commit(self, group: str, offsets: Offsets, metadata: str) -> None:
        pass

    def offsets_at(self, ms: int, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        return dict.fromkeys(partitions)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()
    monkeypatch.setattr(reader, "Brokers", lambda access: told)
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
    assert "no record is left out or read twice" in screen
    assert world.opened(5).ranges == {world.topic(): (OffsetRange(0, 20, 60),)}
    order = world.ledger.open_record(2, 2)
    assert order and order.command and (order.command.name, order.command.lost, order.moved) == ("skip", {}, False)


def test_a_log_that_was_cut_before_the_beginning_of_an_aborted_epoch_is_gone_on_with_where_it_was_cut(
    world: TopicWorld, brokers: Told
) -> None:
    brokers.logs[world.topic()] = Log(0, 40, 3)
    aborted(world, 2)
    truncated(world, brokers, to=15)
    typed(world.ledger_root, stopped(world, 3), "skip")
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
