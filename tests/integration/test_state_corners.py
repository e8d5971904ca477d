"""Corners of state and event time, over a real broker and a real Spark; the oracles are plain Python."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from confluent_kafka.admin import NewPartitions

from airflow_epochs.contracts import Limits
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import CompleteRecord, Run
from airflow_epochs.sinks.delta.state import pinning
from airflow_epochs.testing import Crash
from stack.spark import S3Access
from tests.support import state_oracles
from tests.support.faults_world import crash
from tests.support.state_clicks import DELAY, EPOCH, SIZE, START, Sent, over, read_in, relative, some_clicks
from tests.support.state_lab import PARTITIONS, Lab, dropped_files, folds
from tests.support.state_world import Epoch, Event
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.long, pytest.mark.timeout(300)]
END = 100_000
"""A second after all windows of a test."""


def ending(second: int = END, partitions: int = PARTITIONS) -> list[Sent]:
    """Clicks after which all windows but their own can close."""
    return [(partition, "z", 1, second) for partition in range(partitions)]


def test_on_s3_too_killed_epochs_leave_state_and_outputs_as_the_oracle_has_them(
    lab: Lab, s3: S3Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinning, "FOLD_EPOCHS_MIN", 2)  # the fourth epoch folds, in place of the sixth
    lab = lab.beside("on-s3", lake=f"s3a://{s3.bucket}/{uuid.uuid4().hex}", s3=s3)
    dice = random.Random(0)
    for epoch, phase in enumerate(["stage.done", "delta.commit.after", "committed.hourly", "delta.commit.before"]):
        lab.produce(*some_clicks(dice, epoch, pace=200))
        with pytest.raises(Crash):
            lab.run(lab.windows(then={phase: crash}, tick=False))
        lab.run_all(lambda: lab.windows(tick=False))
    lab.produce(*ending())
    lab.run_all(lab.windows)
    lab.require_oracle()
    assert folds(lab) >= 1, "no epoch has staged the whole state"
    assert dropped_files(lab) >= 1, "no commit has dropped expired files"


# -- one key with nearly all rows ----------------------------------------------------------------------------------


def test_a_key_with_nearly_all_rows_is_counted_as_any_other_by_windows_and_by_a_function(lab: Lab) -> None:
    dice = random.Random(3)
    for begin in (0, SIZE):
        many = [
            (dice.randrange(PARTITIONS), "a", dice.randint(1, 9), begin + dice.randrange(SIZE)) for _ in range(9900)
        ]
        few = [(partition, page, 2, 50) for page in "bcd" for partition in range(PARTITIONS)]
        lab.produce(*((partition, page, n, begin + second) for partition, page, n, second in [*many, *few]))
        lab.run(skewed(lab))
    lab.produce(*ending())
    lab.run_all(lambda: skewed(lab))
    lab.require_oracle()
    assert sorted(lab.rows("counted", "page, calls, clicks, total, here")) == sorted(calls(lab))


def skewed(lab: Lab) -> Coordinator:
    counts = lab.open_table(
        "counts", schema="page string, calls bigint, clicks bigint, total bigint", keys=["page"], expires=None
    )
    return lab.windows(transform="windows.py:skewed", state=[lab.open_table(), counts], more=["counted"])


def calls(lab: Lab) -> Iterator[tuple[str, int, int, int, int]]:
    """What the function shows: it is called once for each page of an epoch, with all its clicks."""
    called, clicks, totals = Counter[str](), Counter[str](), Counter[str]()
    for record in lab.records():
        here = read_in(record.ranges, lab.sent)
        for page in {click.page for click in here}:
            of_page = [click.n for click in here if click.page == page]
            called[page] += 1
            clicks[page] += len(of_page)
            totals[page] += sum(of_page)
            yield page, called[page], clicks[page], totals[page], len(of_page)


# -- two operators, one behind the other ---------------------------------------------------------------------------


def test_what_an_operator_emits_is_late_for_none_behind_it_and_windows_of_sessions_are_as_the_oracle_has_them(
    lab: Lab,
) -> None:
    dice = random.Random(6)
    for epoch in range(3):
        lab.produce(*some_clicks(dice, epoch, pace=150), *(ending() if epoch == 2 else []))
        lab.run(chained(lab))
    lab.run_all(lambda: chained(lab))
    records = lab.records()
    wanted, late = windows_of_sessions(lab, records)
    assert {key: lab.shown_windows().get(key) for key in wanted} == wanted
    assert lab.shown_windows().keys() == wanted.keys()
    assert sorted(lab.rows("late", '"partition", "offset"')) == late
    assert late, "no click was late"
    assert lab.rows("late_again", "page") == []


def chained(lab: Lab) -> Coordinator:
    sessions = lab.open_table(
        "sessions",
        schema="page string, session_start timestamp, session_end timestamp, clicks bigint",
        keys=["page", "session_start"],
        expires="session_end",
    )
    state = [lab.open_table(), sessions]
    return lab.windows(transform="windows.py:chained", state=state, more=["late_again"], depth=2)


def windows_of_sessions(
    lab: Lab, records: list[CompleteRecord]
) -> tuple[dict[tuple[str, int], tuple[int, int]], list[tuple[int, int]]]:
    """The final windows, and partition and offset of the late clicks, by the watermarks on record."""
    first: list[Epoch] = []
    second: list[Epoch] = []
    for record in records:
        marks = [None if mark is None else mark // 1_000_000 - EPOCH for mark in record.watermarks]
        read = read_in(record.ranges, lab.sent)
        events = [Event(c.page, c.n, c.second, c.partition, lab.sent.index(c)) for c in read]
        before = Counter(state_oracles.sessions(first, 20)[0])
        first.append(Epoch(tuple(events), marks[0], marks[1]))
        ended = Counter(state_oracles.sessions(first, 20)[0]) - before
        second.append(Epoch(tuple(Event(k, n, end, 0, 0) for k, _, end, n in ended), marks[1], marks[2]))
    windows, late_again = state_oracles.windows(second, SIZE, SIZE)
    assert late_again == []
    mark = relative(records[-1].watermarks[1])
    late = [lab.sent[number] for number in state_oracles.sessions(first, 20)[1]]
    final = {key: value for key, value in windows.items() if over(key[1] + SIZE, mark)}
    return final, sorted((click.partition, click.offset) for click in late)


# -- event time ----------------------------------------------------------------------------------------------------


def test_a_click_far_in_the_future_opens_its_window_and_does_not_move_the_watermark(lab: Lab) -> None:
    future = int((datetime.now(timezone.utc) - START).total_seconds()) + 7_200
    lab.produce((0, "a", 1, 10), (1, "a", 2, 20), (2, "a", 3, 30), (0, "f", 4, future), (1, "f", 5, future))
    ahead = lab.sent[-2:]
    run, task = Run("dag", "future"), lab.windows(max_ahead="1 h")
    task.open(run)
    told = task.stage(run).stage
    assert told and any(warning.startswith("2 rows have an event time further ahead") for warning in told.warnings)
    task.vote(run, told)
    for sink in task.task.pipeline.sinks:
        task.commit(run, sink.name)
    task.complete(run)
    lab.produce(*ending(400))
    lab.run_all(lambda: lab.windows(max_ahead="1 h"))
    lab.require_oracle(ahead=ahead)
    assert lab.shown_windows() == {("a", 0): (3, 6)}
    lab.produce(*ending(future + SIZE + DELAY))
    lab.run_all(lab.windows)
    lab.require_oracle(ahead=ahead)
    assert lab.shown_windows()["f", future // SIZE * SIZE] == (2, 9)


def test_idle_and_new_partitions_move_the_watermark_as_the_oracle_has_it(lab: Lab) -> None:
    lab.produce((0, "a", 1, 10), (1, "a", 1, 20), (2, "a", 1, 15))
    lab.run(idle(lab))
    lab.produce((0, "a", 1, 300), (1, "b", 1, 310))
    lab.run(idle(lab))
    lab.admin.create_partitions([NewPartitions(lab.topic, PARTITIONS + 1)])[lab.topic].result()
    wait_until(lambda: len(lab.admin.list_topics(lab.topic, timeout=10).topics[lab.topic].partitions) == 4)
    lab.produce((0, "a", 1, 500), (1, "c", 1, 500), (2, "late", 1, 50), (3, "late", 1, 100), (3, "b", 1, 480))
    lab.run(idle(lab))
    assert sorted(lab.rows("late", "page")) == [("late",), ("late",)], "partition 2 was idle, partition 3 is new"
    lab.produce((0, "c", 1, 520), (1, "c", 1, 530), (3, "c", 1, 510))
    lab.run(idle(lab))
    lab.require_oracle(idle_at_once=True)
    marks = [relative(record.watermarks[0]) for record in lab.records()]
    assert marks[2] == marks[3] == 270 * 1_000_000 - 1, "partition 2, awake again, holds it back"
    lab.produce(*ending(partitions=4))
    lab.run_all(lambda: idle(lab))
    lab.require_oracle(idle_at_once=True)


def idle(lab: Lab) -> Coordinator:
    """A partition without clicks in the newest epoch that had any does not hold the watermark back."""
    return lab.windows(idle_after="0 s")


def test_a_topic_that_vanished_stops_the_pipeline_and_holds_nothing_back_once_it_is_taken_out(lab: Lab) -> None:
    other = lab.new_topic()
    both = {"topics": [lab.topic, other]}
    lab.produce((0, "a", 1, 10), (1, "a", 1, 20))
    lab.produce((0, "o", 1, 5), topic=other)
    lab.run(lab.windows(source=both))
    lab.admin.delete_topics([other])[other].result()
    wait_until(lambda: other not in lab.admin.list_topics(timeout=10).topics)
    lab.produce((0, "a", 1, 500), (1, "b", 1, 510))
    with pytest.raises(Corrupt, match=r"EPOCHS-RECORDS-GONE.*the topic no longer exists"):
        lab.run(lab.windows(source=both))
    lab.run_all(lab.windows)
    lab.require_oracle()
    assert lab.shown_windows() == {("a", 0): (2, 2), ("o", 0): (1, 1)}


def test_where_epochs_end_changes_no_final_window_when_nothing_is_late(lab: Lab) -> None:
    dice = random.Random(11)
    clicks = [
        (partition, dice.choice("ab"), dice.randint(1, 9), step * 40 + dice.randint(0, DELAY))
        for step in range(11)
        for partition in range(PARTITIONS)
    ]
    lab.produce(*clicks, *ending())
    wanted: dict[tuple[str, int], tuple[int, int]] = {}
    for _, page, n, second in clicks:
        window = page, second // SIZE * SIZE
        so_far = wanted.get(window, (0, 0))
        wanted[window] = so_far[0] + 1, so_far[1] + n
    epochs = set()
    for most in (None, 18, 9):
        split = lab.beside(f"split-{most}")
        split.run_all(split.windows, Limits(max_records=most))
        epochs.add(len(split.records()))
        assert (split.shown_windows(), split.rows("late", "page")) == (wanted, [])
        split.require_oracle()
    assert len(epochs) == 3, "the splits do not differ"
