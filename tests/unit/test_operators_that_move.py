"""Operators that change places, over the watermarks of many epochs: what each closes, without Spark."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_epochs import EventTime
from airflow_epochs.event_time import next_watermarks
from airflow_epochs.model import CompleteRecord, PartitionTime
from airflow_epochs.sinks.delta.state_pin import expired_to
from airflow_epochs.transforms import closing
from airflow_epochs.transforms.closing import Closing, Mark, Marks, least

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NOW = "2026-01-01T00:00:00+00:00"
DEPTH = st.integers(1, 4)
NAMES = ("a", "b", "c", "d")
ORDERS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)
"""Operators by their names, the one in front first."""


@dataclass
class Pipeline:
    """The watermarks and the states of a pipeline, epoch by epoch."""

    record: CompleteRecord | None = None
    closed: dict[str, Marks] = field(default_factory=dict)
    hidden: dict[str, Mark] = field(default_factory=dict)
    """State -> up to where its rows are gone for good."""

    def epoch(self, order: list[str], depth: int, newest: int) -> dict[str, tuple[Mark, Mark]]:
        """Run an epoch whose operators stand in this order; (P, W] of each. ``newest``: of the epoch's rows."""
        depth = max(depth, len(order))
        marks = next_watermarks(EventTime("0 s", depth=depth), self.record, NOW)
        states = {name: SimpleNamespace() for name in order}
        operators = closing.Operators()
        for name, state in states.items():
            closing.told(cast("DataFrame", state), Closing(operators, before=self.closed.get(name, ())))
        found = {}
        for place, (name, state) in enumerate(states.items()):
            now, before = closing.settled(marks[place], marks[place + 1], place, [cast("DataFrame", state)])
            found[name] = before, now
        self.closed = {name: told.now for name, each in states.items() if (told := vars(each)["_epochs_closing"])}
        self.hidden = {name: expired_to(marks, self.closed[name]) for name in order}
        self.record = cast(
            "CompleteRecord",
            SimpleNamespace(watermarks=marks, event_times={"t": {"0": PartitionTime(newest=newest, seen=NOW)}}),
        )
        return found


def order_of(*marks: Mark) -> bool:
    """Whether the marks do not fall."""
    return all(least(one, other) == one for one, other in itertools.pairwise(marks))


@settings(max_examples=400, deadline=None)
@given(epochs=st.lists(st.tuples(ORDERS, DEPTH, st.integers(0, 50)), min_size=2, max_size=12))
def test_wherever_operators_move_each_closes_every_time_once_and_nothing_is_late_behind_another(
    epochs: list[tuple[list[str], int, int]],
) -> None:
    pipeline, newest = Pipeline(), 0
    last: dict[str, Mark] = {}
    for order, depth, step in epochs:
        newest += step
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


@pytest.mark.parametrize("depths", [(1, 2), (2, 1), (2, 3), (3, 2), (2, 2), (3, 3)])
def test_an_operator_that_has_moved_closes_what_it_would_have_closed_a_few_epochs_later(
    depths: tuple[int, int],
) -> None:
    pipeline = Pipeline()
    orders = (["a", "b", "c"][: depths[0]], ["d", "a", "b"][: depths[1]])
    for number, (order, depth) in enumerate(zip(orders, depths, strict=True)):
        for newest in range(number * 600, (number + 1) * 600, 100):
            pipeline.epoch(list(order), depth, newest)
    marks = next_watermarks(EventTime("0 s", depth=depths[1]), pipeline.record, NOW)
    assert pipeline.record
    assert [pipeline.closed[name] for name in orders[1]] == [(mark,) for mark in pipeline.record.watermarks[:-1]]
    assert marks[1:] == pipeline.record.watermarks[:-1]


def test_an_operator_whose_state_tells_nothing_has_the_watermarks_of_its_place() -> None:
    derived = cast("DataFrame", SimpleNamespace())
    assert closing.settled(5, 3, 1, [derived]) == (5, 3)
    new = cast("DataFrame", SimpleNamespace())
    closing.told(new, Closing(closing.Operators()))
    assert closing.settled(5, 3, 1, [new]) == (5, 3)


def test_an_epoch_that_is_replayed_closes_what_it_closed_then() -> None:
    state = cast("DataFrame", SimpleNamespace())
    closing.told(state, Closing(closing.Operators(), before=(3,), then=(7,)))
    assert closing.settled(3, 3, 1, [state]) == (7, 3)
