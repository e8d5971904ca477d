"""Epochs of data intervals on a real broker: their bounds, crashes, missed and late records, history, other runs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import pytest
from confluent_kafka import Producer
from kafka.codec import has_zstd

from airflow_epochs import codes
from airflow_epochs.contracts import Interval
from airflow_epochs.coordinator.runs import rereading, series
from airflow_epochs.errors import EpochError, NoNewData, NotApplied, Refused
from airflow_epochs.ledger import run_ids
from airflow_epochs.model import OffsetRange, Run
from airflow_epochs.testing import Crash, run_epoch
from tests.support.faults_world import abort, crash
from tests.support.remedies import in_the_environment, ordered, typed
from tests.support.topic_world import TopicWorld
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm

MIDNIGHT = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
MS = timedelta(milliseconds=1)


@pytest.fixture
def world(topic_world: Callable[..., TopicWorld], monkeypatch: pytest.MonkeyPatch) -> TopicWorld:
    """An empty topic of two partitions, and a pipeline of data intervals."""
    it = topic_world(options={"bounds": "data_interval"})
    for name, value in in_the_environment(it.kafka).items():
        monkeypatch.setenv(name, value)
    return it


def at(hour: float) -> datetime:
    return MIDNIGHT + timedelta(hours=hour)


def hour(world: TopicWorld, number: float, **options: object) -> TopicWorld:
    """A DAG run for the hour from ``number`` on."""
    return world.but(interval=Interval(at(number), at(number + 1)), options={**world.options, **options})


def send(world: TopicWorld, *records: tuple[str, datetime]) -> None:
    """All into one partition, in this order."""
    for payload, time_of_it in records:
        world.produce(payload, partitions=[0], at=time_of_it)


def failed(world: TopicWorld, number: int) -> EpochError:
    """A red run, which has changed nothing that a reader sees."""
    before = world.shown("lake") if world.ledger.newest_complete() else ""
    error = world.run(number)
    assert isinstance(error, EpochError), error
    error.pipeline = world.name  # as the operator does
    assert before == (world.shown("lake") if world.ledger.newest_complete() else "")
    return error


def skipped_by(world: TopicWorld, hours: Iterable[int], reader: str) -> None:
    """Runs for these hours have nothing to do, name the epoch that has read them, and change nothing."""
    before = world.shown("lake")
    for number in hours:
        with pytest.raises(NoNewData, match=f"were read already, by {reader}") as done:
            hour(world, number).opened(100 + number)
        assert done.value.code is codes.INTERVAL_COVERED
    assert world.shown("lake") == before


def typing(world: TopicWorld, name: str, *words: str) -> str:
    return ordered(world.ledger_root, "epochs", name, world.name, *words, "--why", "a mistake in the transform")


def told(world: TopicWorld, epoch: int) -> str:
    [what] = world.completed(epoch).source_state["pace"]["told"]
    return str(what)


# --- which records --------------------------------------------------------------------------------------------


def test_an_epoch_has_the_records_from_the_first_to_the_last_millisecond_of_its_interval(world: TopicWorld) -> None:
    send(world, ("a", at(9) - MS), ("b", at(9)), ("c", at(10) - MS), ("d", at(10)), ("e", at(11) - MS), ("f", at(12)))
    for number, shown in ((9, "bc"), (10, "bcde"), (11, "bcde")):
        assert hour(world, number).run(number) is None
        assert world.shown("lake") == shown
    assert world.ledger.newest_complete() == 3, "an hour without records is an epoch, too"
    first = world.completed(1)
    assert first.ranges == {world.topic(): ((0, 1, 3), (1, 0, 0))}
    nine, ten = at(9).isoformat(), at(10).isoformat()
    assert first.source_state["interval"] == {"start": nine, "end": ten, "since": nine}


def test_a_late_record_is_in_the_epoch_of_the_next_run_and_is_not_lost(world: TopicWorld) -> None:
    send(world, ("a", at(9)), ("b", at(10)))
    assert hour(world, 9).run(1) is None
    send(world, ("l", at(9.5)), ("c", at(10.5)), ("d", at(11)))
    assert hour(world, 10).run(2) is None
    assert world.shown("lake") == "abcl"


def test_killed_at_any_moment_a_rerun_reads_the_same_records_though_late_ones_have_come(world: TopicWorld) -> None:
    moments = ["open.put", "open.landed", "staging.downstream", "decision.put", "decision.landed", "commit.lake"]
    moments += ["committed.lake", "complete.put", "complete.landed"]
    expected = ""
    for number, moment in enumerate(moments):
        letters = "abcdefghijklmnopqr"[2 * number :][:2]
        run = hour(world, number)
        send(world, (letters[0], at(number)))
        with pytest.raises(Crash):
            run.run(number, at={moment: crash})
        planned = world.ledger.open_record(number + 1, 1)
        send(world, (letters[1], at(number)))  # before the interval's end: a new plan would take it
        assert run.run(number) is None
        expected += letters[0] if planned else letters
        if planned:
            assert world.completed(number + 1).ranges == planned.ranges, moment
        assert run.run(number) is None, "cleared"
        assert world.shown("lake") == expected, moment
        expected += "" if planned is None else letters[1]
    assert hour(world, len(moments)).run(99) is None
    assert world.shown("lake") == expected


@contextmanager
def transactional(world: TopicWorld) -> Iterator[Callable[..., None]]:
    """Sends records in a transaction, which is committed or aborted."""
    producer = Producer({"bootstrap.servers": world.broker.bootstrap, "transactional.id": world.topic()})
    producer.init_transactions(20)

    def sent(payloads: str, of: datetime, *, commit: bool = True) -> None:
        producer.begin_transaction()
        for payload in payloads:
            value = json.dumps({"source": world.topic(), "payload": payload})
            producer.produce(world.topic(), value, partition=0, timestamp=int(of.timestamp() * 1000))
        producer.flush(20)  # or an abort may overtake the records, and the broker knows no transaction to end
        producer.commit_transaction(20) if commit else producer.abort_transaction(20)

    yield sent


@pytest.mark.parametrize("missed", ["read", "refuse"])
def test_history_that_transactions_have_written_is_in_the_epochs_of_its_own_intervals(
    world: TopicWorld, missed: str
) -> None:
    """The markers that end transactions have today's time, and no reader sees them."""
    with transactional(world) as send_in_transaction:
        for number, payloads in ((9, "ab"), (10, "cd"), (11, "ef")):
            send_in_transaction(payloads, at(number + 0.5))
    for number, shown in ((9, "ab"), (10, "abcd"), (11, "abcdef")):
        assert hour(world, number, missed=missed).run(number) is None
        assert world.shown("lake") == shown


def test_aborted_records_do_not_end_an_interval_and_committed_ones_in_their_batch_of_time_do(world: TopicWorld) -> None:
    send(world, ("a", at(9.2)))
    with transactional(world) as send_in_transaction:
        send_in_transaction("xyz", at(23.5), commit=False)
        send(world, ("b", at(9.3)))
        send_in_transaction("c", at(9.4))
        send_in_transaction("xyz", at(23.5), commit=False)
        send_in_transaction("d", at(10.3))
    for number, shown in ((9, "abc"), (10, "abcd")):
        assert hour(world, number).run(number) is None
        assert world.shown("lake") == shown


def test_a_record_of_the_future_that_was_read_before_the_intervals_began_does_not_end_them(world: TopicWorld) -> None:
    world.set_option("message.timestamp.after.max.ms", str(10**12))
    send(world, ("a", at(9.5)), ("x", at(24 + 200)))
    assert world.but(options={}).run(1) is None
    for number, payload in ((10, "b"), (11, "c")):
        send(world, (payload, at(number + 0.5)))
    for number, shown in ((10, "abx"), (11, "abcx")):
        assert hour(world, number).run(number) is None
        assert world.shown("lake") == shown


@pytest.mark.few(1)
@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_within_a_batch_that_transactions_have_written_the_epoch_ends_at_the_record(
    world: TopicWorld, codec: str
) -> None:
    """The batch lies behind a marker with a later time, so this process reads it; a codec that it lacks ends before."""
    with transactional(world) as send_in_transaction:
        send_in_transaction("a", at(9.1))
    options = {"bootstrap.servers": world.broker.bootstrap, "compression.type": codec, "linger.ms": 500}
    producer = Producer({**options, "transactional.id": f"{world.topic()}-2"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for payload, time_of_it in (("b", at(9.2)), ("c", at(9.9)), ("d", at(10.1))):
        value = json.dumps({"source": world.topic(), "payload": payload})
        producer.produce(world.topic(), value, partition=0, timestamp=int(time_of_it.timestamp() * 1000))
    producer.commit_transaction(20)
    assert hour(world, 9).run(9) is None
    assert world.shown("lake") in (["abc"] if codec != "zstd" or has_zstd() else ["a"])
    assert hour(world, 10).run(10) is None
    assert world.shown("lake") == "abcd"


# --- runs that do not follow one another ----------------------------------------------------------------------


def test_the_records_of_missed_runs_are_in_the_next_epoch_and_the_missed_runs_then_do_nothing(
    world: TopicWorld,
) -> None:
    send(world, *((letter, at(9 + n)) for n, letter in enumerate("abcde")))
    assert hour(world, 9).run(9) is None
    assert hour(world, 12).run(12) is None
    assert world.shown("lake") == "abcd"
    assert f"with those before it since {at(10).isoformat()}, which no run has read (2 offsets)" in told(world, 2)
    for missed in (11, 10, 12):
        with pytest.raises(NoNewData, match="were read already, by epoch 2 of run run 12 of DAG dag") as done:
            hour(world, missed).opened(100 + missed)
        assert done.value.code is codes.INTERVAL_COVERED
    assert hour(world, 13).run(13) is None
    assert world.shown("lake") == "abcde"


def test_a_pipeline_that_refuses_missed_runs_goes_on_when_their_epochs_are_there(world: TopicWorld) -> None:
    send(world, *((letter, at(9 + n)) for n, letter in enumerate("abcd")))
    strict = world.but(options={**world.options, "missed": "refuse"}, starting=at(9).isoformat())
    for number in (10, 12):
        assert failed(hour(strict, number), number).code is codes.INTERVAL_MISSED
        assert not world.ledger.open_record(1, 1)
    for number in (9, 10, 11, 12):  # the backfill that the remedy names, and the cleared run
        assert hour(strict, number).run(number) is None
    assert [world.completed(epoch).source_state["interval"]["start"] for epoch in (1, 2, 3, 4)] == [
        at(number).isoformat() for number in (9, 10, 11, 12)
    ]
    assert world.shown("lake") == "abcd"


def test_after_a_pause_the_hours_of_skipped_runs_are_read_as_the_error_says(world: TopicWorld) -> None:
    send(world, *((letter, at(9.5 + n)) for n, letter in enumerate("abcd")))
    strict = world.but(options={**world.options, "missed": "refuse"})
    assert driven(hour(strict, 9), 9) == 1
    typing(world, "pause")
    assert [driven(hour(strict, number), number) for number in (10, 11)] == [None, None], "green, and without an epoch"
    typing(world, "unpause")
    error = failed(hour(strict, 12), 12)
    assert error.code is codes.INTERVAL_MISSED
    assert "Else it names the `airflow backfill create` for it, which also repeats runs" in error.remedy
    for number, shown in ((10, "ab"), (11, "abc"), (12, "abcd")):
        assert driven(hour(strict, number), number) == number - 8
        assert world.shown("lake") == shown


def test_an_hour_before_the_beginning_that_no_epoch_has_read_in_the_topics_of_today_is_not_called_read(
    world: TopicWorld,
) -> None:
    world.create_topic("more", 1)
    for number, (old, new) in enumerate(zip("abc", "xyz", strict=True)):
        send(world, (old, at(9.5 + number)))
        world.produce(new, "more", [0], at(9.5 + number))
    assert hour(world, 10).run(10) is None
    now = world.but(topics=("more",))
    for number in (11, 12):
        error = failed(hour(now, 9), 9)
        assert error.code is codes.INTERVAL_BEFORE
        assert hour(now, number).run(number) is None
        assert world.shown("lake") == "bz"
    typed(world.ledger_root, error, "rewind")
    assert hour(now, 9).run(9) is None
    assert world.shown("lake") == "bxz"


def test_an_hour_that_was_read_without_intervals_is_not_called_read_in_a_topic_that_came_later(
    world: TopicWorld,
) -> None:
    world.create_topic("more", 1)
    both = world.but(topics=("in", "more"))
    send(world, ("a", at(9)))
    assert world.but(options={}).run(1) is None
    for number, (old, new) in enumerate(zip("bcd", "xyz", strict=True)):
        send(world, (old, at(10 + number)))
        world.produce(new, "more", [0], at(10 + number))
    assert hour(both, 12).run(12) is None
    assert world.shown("lake") == "abcdz"
    error = failed(hour(both, 10), 10)
    assert error.code is codes.INTERVAL_BEFORE
    typed(world.ledger_root, error, "rewind")
    assert hour(both, 10).run(10) is None
    assert world.shown("lake") == "abbcdxz"


def test_history_before_the_beginning_is_refused_and_read_after_the_command_of_the_error(world: TopicWorld) -> None:
    send(world, *((letter, at(9 + n)) for n, letter in enumerate("abcd")))
    assert hour(world, 11).run(1) is None
    assert world.shown("lake") == "c"
    error = failed(hour(world, 9), 2)
    assert error.code is codes.INTERVAL_BEFORE
    screen = typed(world.ledger_root, error, "rewind")
    topic = world.topic()
    assert f"not read by any epoch yet: 2 offsets, {topic}[0] [0, 2)\n  Their rows come for the first time.\n" in screen
    assert f"read again, so rows that are there come twice: 1 offsets, {topic}[0] [2, 3)\n" in screen
    for number, shown in ((9, "ac"), (10, "abc"), (11, "abcc"), (12, "abccd")):
        assert hour(world, number).run(10 + number) is None
        assert world.shown("lake") == shown, "hour by hour, and the hour that was shown before comes twice, as told"


def test_after_a_rewind_before_the_beginning_the_first_run_reads_all_and_those_in_between_have_nothing_to_do(
    world: TopicWorld,
) -> None:
    send(world, *((letter, at(9 + n)) for n, letter in enumerate("abcdef")))
    assert hour(world, 13).run(1) is None
    error = failed(hour(world, 10), 2)
    typed(world.ledger_root, error, "rewind")
    assert hour(world, 12).run(12) is None
    assert world.shown("lake") == "bcde"
    skipped_by(world, (10, 11, 12), "epoch 2 of run run 12 of DAG dag")
    assert hour(world, 13).run(13) is None
    assert world.shown("lake") == "bcdee", "the hour that was shown before comes twice, as told"
    error = failed(hour(world, 9), 3)
    assert f"The pipeline began at {at(10).isoformat()}, and has read up to {at(14).isoformat()}." in str(error)
    topic, screen = world.topic(), typed(world.ledger_root, error, "rewind")
    assert f"not read by any epoch yet: 1 offsets, {topic}[0] [0, 1)\n  Their rows come for the first time.\n" in screen
    assert f"read again, so rows that are there come twice: 4 offsets, {topic}[0] [1, 5)\n" in screen
    assert hour(world, 14).run(14) is None
    assert world.shown("lake") == "abbccddeeef"


@pytest.mark.few(1)
@pytest.mark.parametrize("aborted", [True, False], ids=["whose first attempt fails", "that succeeds"])
@pytest.mark.parametrize("command", ["--to-timestamp", "--to-epoch"])
def test_after_a_rewind_the_last_hour_first_takes_all_since_then_and_the_others_have_nothing_to_do(
    world: TopicWorld, command: str, aborted: bool
) -> None:
    send(world, *((letter, at(9 + n)) for n, letter in enumerate("abcd")))
    for number in (9, 10, 11, 12):
        assert hour(world, number).run(number) is None
    if command == "--to-timestamp":
        typing(world, "rewind", command, at(10).isoformat())
        skipped_by(world, (9,), "epoch 1 of run run 9 of DAG dag")
    else:
        typing(world, "rewind", command, "1")
    if aborted:
        hour(world, 12).opened(21)
        world.task().abort(Run("dag", "run 21"), "out of memory")
        typing(world, "replan")
    assert hour(world, 12).run(22) is None
    assert world.shown("lake") == "abbccdd"
    skipped_by(world, (12, 11, 10), "epoch 5 of run run 22 of DAG dag")
    skipped_by(world, (9,), "epoch 1 of run run 9 of DAG dag")


def test_after_a_rewind_each_hour_is_free_to_be_read_again_once(world: TopicWorld) -> None:
    send(world, *((letter, at(9 + n)) for n, letter in enumerate("abc")))
    for number in (9, 10, 11):
        assert hour(world, number).run(number) is None
    typing(world, "rewind", "--to-timestamp", at(10).isoformat())
    for number, shown in ((10, "abbc"), (11, "abbcc")):
        assert hour(world, number).run(20 + number) is None
        assert world.shown("lake") == shown
        skipped_by(world, (number,), f"epoch {number - 6} of run run {20 + number} of DAG dag")


def driven(world: TopicWorld, number: int) -> int | None:
    """The epoch of a run whose tasks begin from the first one on; None if it was skipped."""
    coordinator, run = world.task(), Run("dag", f"run {number}")
    known = rereading.as_known(coordinator.task, run, begins=True)
    try:
        done = run_epoch(coordinator, known)
    except NoNewData:
        return None
    assert rereading.as_known(world.task().task, run) == known, "in the tasks behind, too, whenever they run"
    assert run_ids.airflow_run(world.ledger, known) == run
    return done.epoch


def restored(world: TopicWorld, *, fails: bool) -> str:
    """After two hours, the pipeline goes back with its table to the end of the first. What the command says."""
    send(world, *((letter, at(9.5 + n)) for n, letter in enumerate("abcd")))
    assert [driven(hour(world, number), number) for number in (9, 10)] == [1, 2]
    if fails:
        with pytest.raises(Crash):
            hour(world, 11).run(11, at={"staging.downstream": crash})
        abort(hour(world, 11).task(), Run("dag", "run 11"))
    return typing(world, "rewind", "--to-epoch", "1", "--restore-tables")


@pytest.mark.few(1)
@pytest.mark.parametrize("missed", ["refuse", "read"])
@pytest.mark.parametrize("obeys", ["the failed run", "the first run of the backfill", "a run by hand"])
def test_after_tables_came_back_each_hour_is_read_again_whichever_run_brought_them_back(
    world: TopicWorld, obeys: str, missed: str
) -> None:
    world = world.but(options={**world.options, "missed": missed})
    fails = obeys == "the failed run"
    said = restored(world, fails=fails)
    assert "clear the runs of the intervals since then" in said and "docs/intervals.md" in said
    first = {"the failed run": hour(world, 11), "the first run of the backfill": hour(world, 10)}.get(obeys, world)
    assert driven(first, {"the failed run": 11, "the first run of the backfill": 10}.get(obeys, 99)) == 3
    assert world.shown("lake") == "a"
    if obeys == "a run by hand":
        assert driven(world, 99) == 3, "without an interval, it passes its epoch on"
        assert driven(hour(world, 9), 99) == 3, "so it does if the tables have its interval"
    for number, shown in ((10, "ab"), (11, "abc"), (12, "abcd")):
        assert driven(hour(world, number), number) == number - 6
        assert world.shown("lake") == shown
    for number in (10, 11, 12):
        assert driven(hour(world, number), number) == number - 6, "cleared once more, it passes its epoch on"
    assert world.shown("lake") == "abcd"


def test_a_run_that_brought_tables_back_still_works_on_that_epoch_if_its_last_task_is_repeated(
    world: TopicWorld,
) -> None:
    restored(world, fails=True)
    with pytest.raises(Crash):
        hour(world, 11).run(11, at={"complete.landed": crash})
    coordinator, run = hour(world, 11).task(), Run("dag", "run 11")
    done = coordinator.complete(rereading.as_known(coordinator.task, run))
    assert done.epoch == 3
    assert world.shown("lake") == "a"


@pytest.mark.parametrize("bound", ["one epoch", "none"])
def test_a_run_of_many_epochs_that_brought_tables_back_reads_its_hour_too(world: TopicWorld, bound: str) -> None:
    restored(world, fails=False)
    run = Run("dag", "run 10")
    coordinator = hour(world, 10).task()
    known = rereading.as_known(coordinator.task, run, begins=True)
    done = run_epoch(coordinator, known)
    if bound == "none":
        done = run_epoch(hour(world, 10).task(), run_ids.nth(known, 2))
    series.put_end(world.ledger, known, 1 if bound == "one epoch" else 2, done.epoch)
    again = rereading.as_known(hour(world, 10).task().task, run, begins=True)
    assert (again == known) == (bound == "none")
    if bound == "one epoch":
        run_epoch(hour(world, 10).task(), again)
    assert world.shown("lake") == "ab"
    assert world.ledger.newest_complete() == 4


@pytest.mark.parametrize("command", ["skip", "reset-source"])
def test_what_was_read_since_a_command_for_offsets_before_the_beginning_is_known_by_its_offsets(
    world: TopicWorld, command: str
) -> None:
    send(world, *((letter, at(9 + n)) for n, letter in enumerate("abcdef")))
    assert hour(world, 12).run(1) is None
    file = world.folder / "offsets.json"
    file.write_text(json.dumps({world.topic(): {"0": 1, "1": 0}}))
    typing(world, command, "--offsets", str(file))
    assert hour(world, 13).run(13) is None
    assert world.shown("lake") == "bcdde"
    skipped_by(world, (10, 11, 13), "epoch 2 of run run 13 of DAG dag")
    skipped_by(world, (12,), "epoch 1 of" if command == "skip" else "epoch 2 of")
    assert failed(hour(world, 9), 2).code is codes.INTERVAL_BEFORE


def test_hours_between_that_a_first_epoch_read_have_nothing_to_do_after_the_pipeline_got_intervals(
    world: TopicWorld,
) -> None:
    send(world, ("a", at(9)))
    assert world.but(options={}).run(1) is None
    send(world, *((letter, at(10 + n)) for n, letter in enumerate("bcd")))
    assert hour(world, 12).run(12) is None
    assert world.shown("lake") == "abcd"
    skipped_by(world, (10, 11), "epoch 2 of run run 12 of DAG dag")
    typing(world, "rewind", "--to-timestamp", at(12).isoformat())
    assert hour(world, 12).run(20) is None
    assert world.shown("lake") == "abcdd"
    skipped_by(world, (10, 11), "epoch")


@pytest.mark.parametrize("then", ["added again", "deleted"])
def test_a_topic_that_is_no_longer_read_has_no_part_in_an_interval_and_keeps_its_position(
    world: TopicWorld, then: str
) -> None:
    world.create_topic("more", 1)
    both = world.but(topics=("in", "more"))
    send(world, ("a", at(9)), ("b", at(10)), ("c", at(11)))
    for payload, number in (("x", 9), ("y", 10), ("z", 11)):
        world.produce(payload, "more", [0], at(number))
    assert hour(both, 9).run(9) is None
    if then == "deleted":
        world.delete_topic("more")
    assert hour(world, 10).run(10) is None
    assert world.shown("lake") == "abx"
    assert world.completed(2).ranges[world.topic("more")] == (OffsetRange(0, 1, 1),)
    assert hour(both if then == "added again" else world, 11).run(11) is None
    assert world.shown("lake") == ("abcxyz" if then == "added again" else "abcx")


def test_a_pipeline_that_read_what_was_there_goes_on_by_intervals(world: TopicWorld) -> None:
    send(world, ("a", at(9)), ("b", at(9.5)))
    assert world.but(options={}).run(1) is None
    send(world, ("c", at(9.7)), ("d", at(10)))
    assert failed(hour(world, 8), 2).code is codes.INTERVAL_BEFORE
    assert hour(world, 9).run(3) is None
    assert world.shown("lake") == "abc"


def test_where_the_broker_gives_the_times_an_epoch_has_exactly_the_records_that_came_in_its_interval(
    world: TopicWorld,
) -> None:
    world.set_option("message.timestamp.type", "LogAppendTime")
    world.produce("a", at=at(9))
    middle = datetime.now(timezone.utc) + 10 * MS
    wait_until(lambda: datetime.now(timezone.utc) > middle)
    world.produce("bc", at=at(9))
    minute = timedelta(minutes=1)
    assert world.but(interval=Interval(middle - minute, middle)).run(1) is None
    assert world.shown("lake") == "a", "whatever time its producer gave it"
    assert world.but(interval=Interval(middle, middle + minute), clock=lambda: middle + minute).run(2) is None
    assert world.shown("lake") == "abc"


# --- intervals that are not over ------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [None, Interval(at(9), at(9))], ids=["none", "without duration"])
def test_a_run_without_an_interval_is_refused_and_opens_nothing(world: TopicWorld, interval: Interval | None) -> None:
    send(world, ("a", at(9)))
    assert failed(world.but(interval=interval), 1).code is codes.INTERVAL_MISSING
    assert not world.ledger.open_record(1, 1)


def test_a_run_whose_interval_is_not_over_is_refused_or_waits_for_its_end_and_the_grace(world: TopicWorld) -> None:
    send(world, ("a", at(9)))
    early = hour(world, 9).but(clock=lambda: at(10) - timedelta(seconds=1))
    assert failed(early, 1).code is codes.INTERVAL_NOT_OVER
    slept: list[float] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "sleep", slept.append)
        assert hour(world, 9, grace="5m").but(clock=lambda: at(10) + timedelta(seconds=10)).run(2) is None
    assert max(slept) == 290 and world.shown("lake") == "a"


def test_behind_a_record_with_a_time_far_ahead_the_pipeline_goes_on_as_the_open_record_says(world: TopicWorld) -> None:
    world.set_option("message.timestamp.after.max.ms", str(2**63 - 1))
    send(world, ("a", at(9)), ("x", at(24 * 365 * 30)), ("b", at(9.5)), ("y", at(24 * 365 * 30)), ("c", at(10.5)))
    for number, offset, shown in ((9, 1, "a"), (10, 3, "ab"), (11, None, "abc")):
        assert hour(world, number).run(number) is None
        assert world.shown("lake") == shown
        text = told(world, world.ledger.newest_complete())
        assert (f"{world.topic()}[0] at offset {offset}." in text) == ("ahead" in text) == (offset is not None)
        if offset:
            file = world.folder / "offsets.json"
            file.write_text(re.findall(r"the file has (\{.*\})", text)[0])
            ordered(world.ledger_root, "epochs", "skip", world.name, "--offsets", str(file), "--why", "it says so")


@contextmanager
def transaction(world: TopicWorld, payload: str, of: datetime) -> Iterator[None]:
    """A producer's transaction with one record, open within the block."""
    producer = Producer({"bootstrap.servers": world.broker.bootstrap, "transactional.id": world.topic()})
    producer.init_transactions(20)
    producer.begin_transaction()
    value = f'{{"source": "{world.topic()}", "payload": "{payload}"}}'
    producer.produce(world.topic(), value=value, partition=0, timestamp=int(of.timestamp() * 1000))
    assert producer.flush(20) == 0
    yield
    producer.commit_transaction(20)


def test_an_epoch_waits_for_transactions_that_may_have_records_of_its_interval(world: TopicWorld) -> None:
    send(world, ("a", at(9)))
    with transaction(world, "t", at(9.5)):
        send(world, ("b", at(10)))
        error = failed(hour(world, 9), 1)
        assert isinstance(error, NotApplied) and not isinstance(error, Refused)
        assert error.code is codes.INTERVAL_HELD and "2 records wait for the transaction of producer" in str(error)
        assert not world.ledger.open_record(1, 1)
    assert hour(world, 9).run(1) is None
    assert world.shown("lake") == "at"


def test_an_epoch_waits_for_a_later_transaction_too_as_long_as_no_readable_record_is_too_new(world: TopicWorld) -> None:
    send(world, ("a", at(9)))
    with transaction(world, "t", at(10.01)):
        assert failed(hour(world, 9), 1).code is codes.INTERVAL_HELD
    assert hour(world, 9).run(1) is None
    assert world.shown("lake") == "a"


# --- epochs of other runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["staging.downstream", "decision.landed"], ids=["undecided", "in doubt"])
def test_a_run_does_not_touch_the_unfinished_epoch_of_another_interval(world: TopicWorld, moment: str) -> None:
    send(world, ("a", at(9)), ("b", at(10)), ("c", at(11)))
    with pytest.raises(Crash):
        hour(world, 9).run(9, at={moment: crash})
    error = failed(hour(world, 10), 10)
    assert error.code is codes.EPOCH_BLOCKED and "belongs to run run 9 of DAG dag" in str(error)
    assert hour(world, 9).run(9) is None, "cleared, as the error says"
    assert hour(world, 10).run(10) is None
    assert [world.completed(epoch).opened_by.run_id for epoch in (1, 2)] == ["run 9", "run 10"]
    assert world.shown("lake") == "ab"


def test_another_run_of_the_same_interval_may_finish_its_epoch(world: TopicWorld) -> None:
    send(world, ("a", at(9)), ("b", at(10)))
    with pytest.raises(Crash):
        hour(world, 9).run(9, at={"staging.downstream": crash})
    assert hour(world, 9).run(109) is None, "a backfill, after Airflow has lost run 9"
    assert (world.ledger.newest_complete(), world.shown("lake")) == (1, "a")


def test_a_pipeline_may_let_later_runs_take_epochs_over_and_loses_nothing(world: TopicWorld) -> None:
    send(world, ("a", at(9)), ("b", at(10)), ("c", at(11)))
    world = world.but(on_failed_epoch="take_over")
    with pytest.raises(Crash):
        hour(world, 9).run(9, at={"staging.downstream": crash})
    assert hour(world, 10).run(10) is None
    assert world.shown("lake") == "a", "the same records"
    assert hour(world, 11).run(11) is None
    assert world.shown("lake") == "abc"


def test_a_pipeline_without_intervals_blocks_if_it_is_told_to(world: TopicWorld) -> None:
    send(world, ("a", at(9)))
    blocks = world.but(options={}, on_failed_epoch="block")
    with pytest.raises(Crash):
        blocks.run(1, at={"staging.downstream": crash})
    assert failed(blocks, 2).code is codes.EPOCH_BLOCKED
    assert blocks.task().abort(Run("dag", "run 1"), "given up")
    assert failed(blocks, 2).code is codes.EPOCH_BLOCKED, "aborted, and still another run's"
    assert blocks.run(1) is None and world.shown("lake") == "a"
