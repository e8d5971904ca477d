"""Operators that get other places in a transform: each window is shown once, with all its clicks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_epochs import EventTime, StateTable
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import Run
from airflow_epochs.spark.driver.delta import state as driver_state
from tests.support.spark_world import APPS
from tests.support.state_clicks import DELAY, EPOCH, SIZE
from tests.support.state_lab import ALWAYS, PARTITIONS, Lab

pytestmark = pytest.mark.timeout(300)
Windows = dict[tuple[str, int], list[int]]
"""Page and beginning -> the clicks of each row that is shown."""


def pipeline(lab: Lab, function: str, depth: int, backfill: Mapping[str, int] | None = None) -> Coordinator:
    names, states = ["hourly", "late"], [lab.open_table()]
    if function.startswith("chain"):
        names, states = [*names, "daily", "late_again"], [*states, lab.open_table("days")]
    if function == "chain_behind_another":
        schema, keys = "partition int, offset bigint, expires timestamp", ["partition", "offset"]
        states.append(StateTable("seen", lab.at("seen"), schema=schema, keys=keys, expires="expires"))
    if function.endswith("shown"):
        names.append("again")
    times = EventTime(timedelta(seconds=DELAY), max_ahead=ALWAYS, depth=depth)
    sinks = (*lab.outputs(*names), *states)
    return lab.task("clicks", function, sinks, times, app=APPS / "moving.py", backfill=backfill)


def produce(lab: Lab, number: int) -> None:
    """Clicks of the next window, in each partition."""
    seconds = (number * SIZE + 5, number * SIZE + 95)
    lab.produce(*((partition, page, 1, at) for partition in range(PARTITIONS) for page in "ab" for at in seconds))


def run(lab: Lab, function: str, depth: int, *numbers: int) -> None:
    for number in numbers:
        produce(lab, number)
        lab.run(pipeline(lab, function, depth))


def shown(lab: Lab, table: str = "hourly") -> Windows:
    found: Windows = {}
    for page, start, clicks in lab.rows(table, "page, epoch(window_start)::bigint, clicks"):
        found.setdefault((page, start - EPOCH), []).append(clicks)
    return found


def wanted(lab: Lab, size: int = SIZE) -> Windows:
    """The windows that the watermark has passed, each once."""
    mark = lab.records()[-1].watermarks[0]
    assert mark is not None
    counted = Counter((click.page, click.second // size * size) for click in lab.sent)
    return {key: [clicks] for key, clicks in counted.items() if key[1] + size <= mark // 1_000_000 - EPOCH}


@pytest.mark.parametrize(
    ("before", "depth_before", "after", "depth_after"),
    [
        ("second", 2, "first", 1),
        ("first", 2, "second", 3),
        pytest.param("first", 1, "second", 2, marks=pytest.mark.long),
        pytest.param("first", 2, "second", 2, marks=pytest.mark.long),
        pytest.param("second", 2, "first", 2, marks=pytest.mark.long),
        pytest.param("third", 3, "second", 2, marks=pytest.mark.long),
    ],
)
def test_every_window_is_shown_once_though_its_operator_moves(
    lab: Lab, before: str, depth_before: int, after: str, depth_after: int
) -> None:
    run(lab, before, depth_before, 0, 1, 2)
    run(lab, after, depth_after, 3, 4)
    lab.run_all(lambda: pipeline(lab, after, depth_after))
    assert shown(lab) == wanted(lab)
    assert len(wanted(lab)) == 8 and lab.rows("late", "page") == []


@pytest.mark.parametrize("retried", ["stage is cleared", pytest.param("another attempt", marks=pytest.mark.long)])
def test_after_the_depth_was_too_small_the_remedy_ends_in_each_window_once(lab: Lab, retried: str) -> None:
    run(lab, "first", 1, 0, 1)
    produce(lab, 2)
    run_of = Run("dag", "too deep")
    task = pipeline(lab, "second", 1)
    task.open(run_of)
    with pytest.raises(Refused, match="EPOCHS-EVENT-TIME-DEPTH") as refused:
        task.stage(run_of)
    assert refused.value.remedy.startswith("Set `depth` of EventTime to the number of stateful operators")
    task = pipeline(lab, "second", 2)
    if retried == "another attempt":
        task.abort(run_of, "stage failed")
        lab.run(task)
    else:
        task.vote(run_of, task.stage(run_of).stage)
        for sink in task.task.pipeline.sinks:
            task.commit(run_of, sink.name)
        task.complete(run_of)
    run(lab, "second", 2, 3, 4)
    lab.run_all(lambda: pipeline(lab, "second", 2))
    assert shown(lab) == wanted(lab)


@pytest.mark.long
def test_a_chain_goes_on_behind_an_operator_that_is_put_in_front_of_it(lab: Lab) -> None:
    run(lab, "chain", 2, 0, 1, 2, 3, 4)
    run(lab, "chain_behind_another", 3, 5, 6, 7, 8, 9)
    lab.run_all(lambda: pipeline(lab, "chain_behind_another", 3))
    assert shown(lab) == wanted(lab)
    assert shown(lab, "daily") == wanted(lab, 400)
    assert len(shown(lab, "daily")) == 4
    assert lab.rows("late", "page") == lab.rows("late_again", "page") == []


@pytest.mark.long
def test_a_sink_that_is_backfilled_has_the_windows_of_epochs_in_which_their_operator_stood_elsewhere(lab: Lab) -> None:
    run(lab, "first", 1, 0, 1, 2)
    produce(lab, 3)
    lab.run(pipeline(lab, "second_twice_shown", 2, backfill={"again": 1}))
    run(lab, "second_twice_shown", 2, 4)
    lab.run_all(lambda: pipeline(lab, "second_twice_shown", 2))
    assert shown(lab) == shown(lab, "again") == wanted(lab)


@pytest.mark.long
def test_epochs_of_an_earlier_version_are_not_replayed_with_a_larger_depth(lab: Lab) -> None:
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(driver_state, "_noted", lambda plan, closed: plan)
        run(lab, "first", 1, 0, 1)
    shown_before = shown(lab)
    run(lab, "second", 2, 2)
    produce(lab, 3)
    with pytest.raises(Refused, match="depth=2, and epoch 2 was opened with depth=1") as refused:
        lab.run(pipeline(lab, "second_twice_shown", 2, backfill={"again": 1}))
    assert refused.value.remedy.startswith("Let `backfill` name epoch 3 or a later one, or remove the sink")
    lab.run(pipeline(lab, "second_twice_shown", 2, backfill={"again": 3}))
    lab.run_all(lambda: pipeline(lab, "second_twice_shown", 2))
    assert shown(lab) == wanted(lab)
    assert shown(lab, "again") == {key: clicks for key, clicks in shown(lab).items() if key not in shown_before}


@pytest.mark.long
def test_rows_that_an_operator_at_another_place_has_staged_again_are_not_the_promised_ones(lab: Lab) -> None:
    run(lab, "first", 2, 0, 1)
    produce(lab, 2)
    struck, task = Run("dag", "struck"), pipeline(lab, "first", 2)
    task.open(struck)
    task.vote(struck, task.stage(struck).stage)
    task.commit(struck, "hourly")
    task.commit(struck, "late")
    (place,) = (found.places["open"] for found in task.task.ledger.tries(3))
    for file in Path(place).rglob("*.parquet"):
        file.unlink()
    with pytest.raises(Corrupt, match="its operator stands at another place, and so it has closed another part"):
        pipeline(lab, "second_twice_shown", 2).commit(struck, "open")
    task = pipeline(lab, "first", 2)
    task.commit(struck, "open")
    task.complete(struck)
    run(lab, "second_twice_shown", 2, 3)
    lab.run_all(lambda: pipeline(lab, "second_twice_shown", 2))
    assert shown(lab) == wanted(lab)


@pytest.mark.long
def test_an_operator_that_an_epoch_does_not_call_goes_on_in_the_next_one(lab: Lab) -> None:
    run(lab, "first_unless_empty", 1, 0, 1, 2)
    empty = pipeline(lab, "first_unless_empty", 1)
    empty.open(Run("dag", "empty"))
    told = empty.stage(Run("dag", "empty")).stage
    assert told and any(
        "got the state 'open' in this epoch. It stays closed up to 2026" in text for text in told.warnings
    )
    empty.abort(Run("dag", "empty"), "only to look at it")
    lab.run_all(lambda: pipeline(lab, "first_unless_empty", 1))
    run(lab, "first_unless_empty", 1, 3, 4)
    assert shown(lab) == wanted(lab)


@pytest.mark.long
def test_empty_epochs_close_all_though_the_operator_in_front_is_taken_away_among_them(lab: Lab) -> None:
    run(lab, "chain_behind_another", 3, 0, 1, 2, 3)
    lab.run(pipeline(lab, "chain_behind_another", 3))
    lab.run_all(lambda: pipeline(lab, "chain", 2))
    assert shown(lab) == wanted(lab)
    produce(lab, 8)
    lab.run_all(lambda: pipeline(lab, "chain", 2))
    assert shown(lab) == wanted(lab)
    assert shown(lab, "daily") == wanted(lab, 400)
    assert lab.rows("late", "page") == lab.rows("late_again", "page") == []
