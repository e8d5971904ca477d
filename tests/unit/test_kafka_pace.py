"""How large an epoch is: sizes by the speed of earlier epochs, and shares of records and bytes that starve nobody."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_epochs.model import CompleteRecord, JsonDict, OffsetRange, Ranges, records_upper_bound
from airflow_epochs.sources.kafka import pace
from airflow_epochs.sources.kafka.logs import ClusterLog, Log, TopicLog
from airflow_epochs.sources.kafka.pace import EpochSize, bytes_of, bytes_per_offset, limited_bytes, next_size
from airflow_epochs.sources.kafka.plan import fair_shares, limited
from tests.support import records

TARGET_S = 600


def epoch(number: int, offsets: int, seconds: Any, size: int | None = None, **other: float) -> CompleteRecord:
    """A complete epoch whose ``stage`` took so long; ``other``: seconds of other tasks."""
    state: JsonDict = {} if size is None else {pace.KEY: {"size": size, "told": ["…"]}}
    ranges: Ranges = {"orders": (OffsetRange(0, 0, offsets),)}
    steps = {"stage": seconds, **{step.replace("_", "."): s for step, s in other.items()}}
    return replace(records.complete(number), ranges=ranges, source_state=state, metrics={"seconds": steps})


def sized(*newest_first: CompleteRecord, max_records: int | None = None, min_records: int = 1) -> EpochSize:
    return next_size(iter(newest_first), TARGET_S, max_records, min_records)


# --- by the speed of earlier epochs ---------------------------------------------------------------------------


def test_without_history_the_size_is_max_records_or_a_stated_default() -> None:
    assert sized().offsets == 1_000_000
    assert sized(max_records=7_000_000).offsets == 7_000_000
    assert sized(min_records=3_000_000).offsets == 3_000_000
    assert "no epoch of late was large enough" in sized().why


def test_the_next_epoch_is_as_large_as_the_target_at_the_median_speed_and_says_so() -> None:
    past = [epoch(9, 600_000, 500, 600_000), epoch(8, 600_000, 600, 600_000), epoch(7, 600_000, 1_000, 600_000)]
    assert sized(*past) == EpochSize(
        offsets=600_000,
        why="at most 600,000 offsets: the median of epochs 7, 8, 9 is 1,000.0 offsets a second, and the target is 600 "
        "s",
    )


def test_the_time_of_an_epoch_is_that_of_stage_vote_and_the_longest_commit() -> None:
    assert sized(epoch(1, 600_000, 100, 600_000, vote=200, commit_a=300, commit_b=5, open=9_999)).offsets == 600_000


def test_one_epoch_to_the_next_the_size_no_more_than_doubles_and_no_more_than_quarters() -> None:
    fast, slow = sized(epoch(1, 100_000, 1, 100_000)), sized(epoch(1, 100_000, 100_000, 100_000))
    assert (fast.offsets, slow.offsets) == (200_000, 25_000)
    assert fast.why.endswith(", but no more than 2 times the 100,000 before")
    assert slow.why.endswith(", but no less than 1/4 of the 100,000 before")


def test_no_epoch_is_made_smaller_than_a_thousand_or_than_min_records() -> None:
    crawling = epoch(1, 1_200, 3_600, 1_200)
    assert sized(crawling).offsets == 1_000
    assert sized(crawling, min_records=1_100).offsets == 1_100
    assert sized(crawling).why.endswith(", but no epoch is made smaller than 1,000")


def test_an_epoch_of_a_day_among_others_changes_nothing() -> None:
    usual = [epoch(n, 600_000, 600, 600_000) for n in (9, 8, 6, 5)]
    hung = epoch(7, 600_000, 3_600 * 24, 600_000)
    assert sized(usual[0], usual[1], hung, *usual[2:]).offsets == sized(*usual).offsets == 600_000


def test_small_epochs_do_not_tell_the_speed_of_large_ones_and_keep_the_size() -> None:
    idle = [epoch(n, 10, 5, 400_000) for n in range(20, 11, -1)]
    assert sized(*idle).offsets == 400_000
    assert sized(*idle, epoch(11, 400_000, 400, 400_000)).offsets == 600_000, "the last epoch that was large counts"


def test_an_epoch_below_its_size_that_took_long_counts() -> None:
    assert sized(epoch(2, 90_000, 900, 1_000_000)).offsets == 250_000


def test_a_pipeline_that_had_no_target_before_begins_with_the_epochs_that_took_long() -> None:
    assert sized(epoch(3, 900_000, 900), epoch(2, 50, 4)).offsets == 600_000
    assert sized(epoch(3, 9_000_000, 900)).offsets == 6_000_000


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"seconds": None},
        {"seconds": {"vote": 3}},
        {"seconds": {"stage": "soon"}},
        {"seconds": {"stage": math.nan}},
        {"seconds": {"stage": math.inf}},
        {"seconds": {"stage": -1.0}},
        {"seconds": {"stage": 10**400}},
        {"seconds": {"stage": True}},
        {"seconds": {"stage": 0}},
    ],
)
def test_an_epoch_without_usable_measurements_tells_no_speed_but_its_size(metrics: JsonDict) -> None:
    unmeasured = replace(epoch(2, 600_000, 1, 600_000), metrics=metrics)
    assert sized(unmeasured, epoch(1, 300_000, 900, 300_000)).offsets == 200_000
    assert sized(unmeasured).offsets == 600_000, "as large as before"


@pytest.mark.parametrize("state", [{pace.KEY: 5}, {pace.KEY: {"size": "many"}}, {pace.KEY: {"size": -3}}, {}])
def test_a_size_that_cannot_be_read_is_none(state: JsonDict) -> None:
    assert sized(replace(epoch(1, 600_000, 600), source_state=state)).offsets == 600_000


def test_few_records_of_the_ledger_are_read() -> None:
    read = []

    def newest_first(offsets: int) -> Iterator[CompleteRecord]:
        for number in range(1_000, 0, -1):
            read.append(number)
            yield epoch(number, offsets, 600, 600_000)

    next_size(newest_first(600_000), TARGET_S, None, 1)
    assert read == [1_000, 999, 998, 997, 996], "the newest five that tell a speed"
    read.clear()
    next_size(newest_first(0), TARGET_S, None, 1)
    assert len(read) == 10


@pytest.mark.proof
@given(
    past=st.lists(
        st.tuples(st.integers(0, 10**7), st.floats(0, 10**6), st.none() | st.integers(pace.SIZE_MIN, 10**8)),
        max_size=12,
    ),
    max_records=st.none() | st.integers(1, 10**7),
    min_records=st.integers(1, 5_000),
)
def test_whatever_the_past_was_the_size_is_within_its_bounds(
    past: list[tuple[int, float, int | None]], max_records: int | None, min_records: int
) -> None:
    newest_first = [epoch(len(past) - i, *each) for i, each in enumerate(past)]
    size = sized(*newest_first, max_records=max_records, min_records=min_records).offsets
    assert size >= min_records
    sizes = [each for _, _, each in past[:5] if each]
    if sizes:
        assert sizes[0] // 4 <= size <= max(2 * sizes[0], pace.SIZE_MIN, min_records)


def test_a_steady_speed_is_reached_from_far_above_and_from_far_below() -> None:
    """Each epoch takes 20 s, and a second for 500 offsets: 290,000 of them in 600 s."""
    for first in (2_000, 50_000_000):
        past = [epoch(1, first, 20 + first / 500, first)]
        for number in range(2, 16):
            size = sized(*past).offsets
            past.insert(0, epoch(number, size, 20 + size / 500, size))
        assert 280_000 <= sized(*past).offsets <= 300_000


# --- fair shares ----------------------------------------------------------------------------------------------

arrivals_st = st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=12, max_size=25)


@pytest.mark.proof
@given(sizes=st.lists(st.integers(0, 1_000), min_size=1, max_size=30), total=st.integers(1, 5_000))
def test_a_partition_gets_all_it_has_or_its_fair_share_however_hot_the_others_are(sizes: list[int], total: int) -> None:
    ranges: Ranges = {"orders": tuple(OffsetRange(p, 0, size) for p, size in enumerate([*sizes, 10**9]))}
    cut = limited(ranges, total)
    assert records_upper_bound(cut) == total
    with_data = sum(size > 0 for size in sizes) + 1
    for size, taken in zip(sizes, cut["orders"], strict=False):
        assert taken.end >= min(size, total // with_data)


@pytest.mark.proof
@settings(max_examples=300)
@given(arrivals=arrivals_st, total=st.integers(1, 6), begin=st.lists(st.integers(0, 50), min_size=6, max_size=6))
def test_beside_a_hot_partition_every_record_is_read_within_a_bounded_number_of_epochs(
    arrivals: list[list[int]], total: int, begin: list[int]
) -> None:
    """Partition 0 always has more than an epoch takes. Records come into the others, and are gone again."""
    consumed = list(begin)
    round_trip = -(-len(begin) // total)  # epochs in which everybody has a turn
    due: list[list[int]] = [[] for _ in begin]  # per record that waits, the last epoch that may read it
    for now, coming in enumerate(arrivals):
        for queue, count in zip(due, [10, *coming[1:]], strict=True):
            queue += [now + round_trip * (len(queue) + i + 1) - 1 for i in range(count)]
        shares = fair_shares([len(queue) for queue in due], total, consumed)
        assert sum(shares) == total
        consumed = [had + share for had, share in zip(consumed, shares, strict=True)]
        due = [queue[share:] for queue, share in zip(due, shares, strict=True)]
        assert all(last > now for queue in due for last in queue), "a record waits for too long"


# --- bytes ----------------------------------------------------------------------------------------------------


def test_bytes_per_offset_are_the_size_on_disk_by_the_offsets_there_and_empty_logs_have_none() -> None:
    cluster = ClusterLog("c", {"orders": TopicLog("id", {0: Log(100, 200), 1: Log(7, 7), 2: Log(0, 10)})})
    sizes = {("orders", 0): 5_000, ("orders", 1): 0, ("orders", 2): 15}
    assert bytes_per_offset(sizes, cluster) == {("orders", 0): 50.0, ("orders", 2): 1.5}


def test_a_partition_of_large_records_gets_as_many_bytes_and_so_fewer_records() -> None:
    ranges: Ranges = {"a": (OffsetRange(0, 10, 1_000),), "b": (OffsetRange(0, 0, 900), OffsetRange(1, 5, 5))}
    per_offset = {("a", 0): 100.0, ("b", 0): 10.0, ("b", 1): 1.0}
    cut = limited_bytes(ranges, 10_000, per_offset)
    assert cut == {"a": (OffsetRange(0, 10, 60),), "b": (OffsetRange(0, 0, 500), OffsetRange(1, 5, 5))}
    assert (bytes_of(cut, per_offset), bytes_of(ranges, per_offset)) == (10_000, 108_000)


@pytest.mark.proof
@given(
    logs=st.lists(st.tuples(st.integers(0, 500), st.floats(0, 1_000), st.integers(0, 99)), min_size=1, max_size=12),
    max_bytes=st.integers(1, 200_000),
)
def test_the_bytes_stay_within_the_limit_but_each_partition_with_records_goes_on(
    logs: list[tuple[int, float, int]], max_bytes: int
) -> None:
    ranges: Ranges = {"orders": tuple(OffsetRange(p, start, start + n) for p, (n, _, start) in enumerate(logs))}
    per_offset = {("orders", p): size for p, (_, size, _) in enumerate(logs)}
    cut = limited_bytes(ranges, max_bytes, per_offset)
    for now, was in zip(cut["orders"], ranges["orders"], strict=True):
        assert (now.partition, now.start) == (was.partition, was.start)
        assert min(1, was.end - was.start) <= now.end - now.start <= was.end - was.start
    of_single_records = sum(size for (n, size, _) in logs if n)
    assert bytes_of(cut, per_offset) <= max_bytes + of_single_records + 1
    if bytes_of(ranges, per_offset) + len(logs) <= max_bytes:
        assert cut == ranges
