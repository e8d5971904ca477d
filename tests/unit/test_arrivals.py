"""What counts as waiting data, and how a task waits that gives its worker slot away."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_epochs.contracts import Limits
from airflow_epochs.operators.deferral import Wait
from airflow_epochs.sources.kafka.arrivals import PartitionEnds, amiss, count, unread

BEGINS = {"in": {0: 5, 1: 0}}


@pytest.mark.parametrize(
    ("ends", "records"),
    [
        ({("in", 0): 5, ("in", 1): 0}, 0),
        ({("in", 0): 7, ("in", 1): 1}, 3),
        ({("in", 0): 5, ("in", 1): 0, ("in", 2): 4}, 4),  # a partition that was added is read from 0
        ({("in", 0): 7, ("in", 1): 0, ("other", 0): 9}, 2),
    ],
)
def test_what_lies_behind_the_position_waits(ends: PartitionEnds, records: int) -> None:
    assert count(BEGINS, ends) == records
    assert not amiss(BEGINS, ends)


def test_only_partitions_with_unread_records_have_a_first_one() -> None:
    assert unread(BEGINS, {("in", 0): 5, ("in", 1): 2}) == {("in", 1): 0}


@pytest.mark.parametrize(
    "ends",
    [
        {},
        {("other", 0): 1},
        {("in", 0): 5},
        {("in", 0): 4, ("in", 1): 0},
    ],
    ids=["nothing is there", "the topic is gone", "a partition is gone", "a log is shorter than before"],
)
def test_what_a_task_has_to_explain_is_amiss(ends: PartitionEnds) -> None:
    assert amiss(BEGINS, ends)


def test_each_look_in_vain_doubles_the_time_for_which_nothing_wakes_the_task() -> None:
    wait, quiet = Wait().at_most(3600), []
    for _ in range(12):
        quiet.append(wait.quiet_s)
        wait = Wait.after({"why": "enough"}, **wait.to_kwargs())
    assert quiet == [0, 1, 2, 4, 8, 16, 32, *[60] * 5]


def test_a_wait_goes_on_to_the_end_that_it_had_at_its_beginning() -> None:
    wait = Wait().at_most(100)
    again = Wait.after({"why": "enough"}, **wait.to_kwargs()).at_most(100)
    assert again.until == wait.until and 99 < again.left_s <= 100
    assert not again.here


def test_that_the_time_is_over_is_believed_only_to_the_own_clock() -> None:
    early = Wait.after({"why": "over"}, until=(datetime.now(timezone.utc) + timedelta(seconds=50)).isoformat(), looks=1)
    limits = early.here_within(Limits(min_records=7))
    assert early.here and limits.min_records == 7
    assert limits.max_wait is not None and 49 < limits.max_wait <= 50


@pytest.mark.parametrize(
    ("error", "max_wait"),
    [("Trigger timeout", 0.0), ("Trigger failure", None)],
    ids=["its time is over", "it waits here for as long as the source says"],
)
def test_without_an_event_a_task_waits_here(error: str, max_wait: float | None) -> None:
    wait = Wait.after_failure({"error": error})
    assert wait.here and wait.here_within(Limits()).max_wait == max_wait
