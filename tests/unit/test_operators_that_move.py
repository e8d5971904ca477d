"""Operators that change places, over the watermarks of many epochs: what each closes, without Spark."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_epochs import EventTime
from airflow_epochs.contracts import Position
from airflow_epochs.coordinator import opening
from airflow_epochs.errors import Refused
from airflow_epochs.event_time import next_watermarks
from airflow_epochs.model import PartitionTime, Watermarks
from airflow_epochs.sinks.delta.state.pinning import expired_to
from airflow_epochs.transforms import closing
from airflow_epochs.transforms.closing import Closing, Mark, Marks, least

pytestmark = pytest.mark.proof

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_epochs.coordinator.task import TaskTry

NOW = "2026-01-01T00:00:00+00:00"
DEPTH = st.integers(1, 4)
NAMES = ("a", "b", "c", "d")
ORDERS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)
"""Operators by their names, the one in front first."""


@dataclass
class Pipeline:
    """The watermarks and the states of a pipeline, epoch by epoch."""

    records: list[Any] = field(default_factory=list)
    closed: dict[str, Marks] = field(default_factory=dict)
    hidden: dict[str, Mark] = field(default_factory=dict)
    """State -> up to where its rows are gone for good."""

    def epoch(self, order: list[str], depth: int, newest: int) -> dict[str, tuple[Mark, Mark]]:
        """Run an epoch whose operators stand in this order; (P, W] of each. ``newest``: of the epoch's rows."""
        marks = self.watermarks(depth)
        states = {name: SimpleNamespace() for name in order}
        operators = closing.Operators()
        for name, state in states.items():
            closing.told(cast("DataFrame", state), Closing(name, operators, before=self.closed.get(name, ())))
        found = {}
        for place, (name, state) in enumerate(states.items()):
            now, before = closing.settled(marks[place], marks[place + 1], place, [cast("DataFrame", state)])
            found[name] = before, now
        self.closed = {name: told.now for name, each in states.items() if (told := vars(each)["_epochs_closing"])}
        self.hidden = {name: expired_to(marks, self.closed[name]) for name in order}
        times = {"t": {"0": PartitionTime(newest=newest, seen=NOW)}}
        receipts = {
            name: SimpleNamespace(detail={"state": {"closed": list(mark)}}) for name, mark in self.closed.items()
        }
        txn = SimpleNamespace(epoch=len(self.records) + 1)
        self.records.append(SimpleNamespace(watermarks=marks, event_times=times, receipts=receipts, txn_id=txn))
        return found

    @property
    def record(self) -> Any:
        """Of the last epoch."""
        return self.records[-1] if self.records else None

    def watermarks(self, depth: int) -> Watermarks:
        """Those of the next epoch."""
        return next_watermarks(EventTime("0 s", depth=depth), self.record, NOW)

    def ticks(self, order: list[str], depth: int) -> int:
        """Run epochs without data for as long as there are any; how many there were."""
        states = [SimpleNamespace(name=name, pin=print, plan_read=print) for name in order]
        ledger = SimpleNamespace(complete_record=lambda number: self.records[number - 1] if number else None)
        pipeline = SimpleNamespace(event_time=EventTime("0 s", depth=depth), sinks=states)
        task, at_end = cast("TaskTry", SimpleNamespace(pipeline=pipeline, ledger=ledger)), Position(ranges={}, state={})
        newest, number = self.record.event_times["t"]["0"].newest, 0
        while opening._tick(task, self.record, at_end, self.watermarks(depth)):
            self.epoch(order, depth, newest)
            number += 1
            assert number < 20, "they never end"
        return number


def order_of(*marks: Mark) -> bool:
    """Whether the marks do not fall."""
    return all(least(one, other) == one for one, other in itertools.pairwise(marks))


@settings(max_examples=400, deadline=None)
@given(epochs=st.lists(st.tuples(ORDERS, DEPTH, st.integers(0, 50)), min_size=2, max_size=12))
def test_wherever_operators_move_each_closes_every_time_once_and_waits_for_those_in_front_of_it(
    epochs: list[tuple[list[str], int, int]],
) -> None:
    pipeline, newest = Pipeline(), 0
    last: dict[str, Mark] = {}
    for order, least_depth, step in epochs:
        newest, depth = newest + step, max(least_depth, len(order))
        hidden = pipeline.hidden
        found = pipeline.epoch(order, depth, newest)
        for name, (before, now) in found.items():
            if name in last:
                assert before == last[name], "it goes on where it ended"
            if name in hidden:
                assert order_of(hidden[name], before), "the state still has what is to be closed"
            assert order_of(before, now)
        for front, behind in itertools.pairwise(order):
            shown_behind, watermark_behind = found[front][0], found[behind][1]
            assert order_of(watermark_behind, max(shown_behind, found[behind][0], key=closing._order))
        last = {name: now for name, (_, now) in found.items()}


@settings(max_examples=300, deadline=None)
@given(
    epochs=st.lists(st.tuples(ORDERS, DEPTH, st.integers(1, 50)), min_size=2, max_size=8),
    last=st.tuples(ORDERS, DEPTH),
    empty=st.integers(0, 2),
)
def test_without_new_data_every_operator_closes_all_also_if_it_has_moved_before_the_empty_epochs_or_among_them(
    epochs: list[tuple[list[str], int, int]], last: tuple[list[str], int], empty: int
) -> None:
    pipeline, newest = Pipeline(), 0
    for order, depth, step in epochs:
        newest += step
        pipeline.epoch(order, max(depth, len(order)), newest)
    for _ in range(empty):
        pipeline.epoch(order, max(depth, len(order)), newest)
    (then, depth_then), depth = last, len(pipeline.record.watermarks) - 1
    depth_then = max(depth_then, len(then))
    if depth_then == depth:
        then = order  # to move within one depth after all that can be closed was closed needs new data
    pipeline.ticks(then, depth_then)
    newest_mark = pipeline.record.watermarks[0]
    assert {mark for name in then for mark in pipeline.closed.get(name, ())} <= {newest_mark}


def test_an_empty_epoch_more_lets_an_operator_close_that_has_waited_for_one_which_has_moved() -> None:
    pipeline = Pipeline()
    for newest in (100, 200, 300, 400):
        pipeline.epoch(["a", "b", "c"], 3, newest)
    pipeline.epoch(["a", "b", "c"], 3, 400)
    assert pipeline.ticks(["b", "c"], 2) > 0
    assert pipeline.closed == {"b": (399,), "c": (399,)}


def test_a_state_is_given_to_no_two_operators_at_different_places() -> None:
    state = cast("DataFrame", SimpleNamespace())
    closing.told(state, Closing("open", closing.Operators(), before=(3,)))
    closing.settled(5, 3, 0, [state])
    closing.settled(5, 3, 0, [state])
    with pytest.raises(
        Refused, match="The state 'open' was given to two operators, one behind 0 others and one behind 1"
    ):
        closing.settled(3, 3, 1, [state])


def test_of_two_states_of_a_join_none_is_closed_less_than_before() -> None:
    (lefts, rights), operators = (cast("DataFrame", SimpleNamespace()) for _ in range(2)), closing.Operators()
    closing.told(lefts, Closing("left", operators, before=(3,)))
    closing.told(rights, Closing("right", operators, before=(9,)))
    assert closing.settled(5, 4, 0, [lefts, rights]) == (5, 3)
    assert [told and told.now for told in map(closing.of, (lefts, rights))] == [(5,), (9,)]


@pytest.mark.parametrize("depths", [(1, 2), (2, 1), (2, 3), (3, 2), (2, 2), (3, 3)])
def test_an_operator_that_has_moved_closes_what_it_would_have_closed_a_few_epochs_later(
    depths: tuple[int, int],
) -> None:
    pipeline = Pipeline()
    orders = (["a", "b", "c"][: depths[0]], ["d", "a", "b"][: depths[1]])
    for number, (order, depth) in enumerate(zip(orders, depths, strict=True)):
        for newest in range(number * 600, (number + 1) * 600, 100):
            pipeline.epoch(list(order), depth, newest)
    marks = pipeline.watermarks(depths[1])
    assert [pipeline.closed[name] for name in orders[1]] == [(mark,) for mark in pipeline.record.watermarks[:-1]]
    assert marks[1:] == pipeline.record.watermarks[:-1]


def test_an_operator_whose_state_tells_nothing_has_the_watermarks_of_its_place() -> None:
    derived = cast("DataFrame", SimpleNamespace())
    assert closing.settled(5, 3, 1, [derived]) == (5, 3)
    new = cast("DataFrame", SimpleNamespace())
    closing.told(new, Closing("open", closing.Operators()))
    assert closing.settled(5, 3, 1, [new]) == (5, 3)


def test_an_epoch_that_is_replayed_closes_what_it_closed_then() -> None:
    state = cast("DataFrame", SimpleNamespace())
    closing.told(state, Closing("open", closing.Operators(), before=(3,), then=(7,)))
    assert closing.settled(3, 3, 1, [state]) == (7, 3)
