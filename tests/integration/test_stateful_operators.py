"""Stateful operators on a real Spark Connect server, over random histories, against plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import functions as F

from airflow_epochs.transforms import JoinResult, Result, dedupe, interval_join, sessionize, stateful, windowed
from tests.support import state_oracles as oracle
from tests.support.state_world import (
    EVENT,
    Epoch,
    Event,
    KeptState,
    Record,
    S,
    arrivals,
    collected,
    cut,
    events_of,
    framed,
    history,
    without_nulls,
)

pytestmark = pytest.mark.jvm


def n_and_total() -> dict[str, Any]:
    return {
        "agg": [F.count("*").alias("n"), F.sum("v").alias("total")],
        "merge": [F.sum("n").alias("n"), F.sum("total").alias("total")],
    }


def numbers(rows: Sequence[Record]) -> list[int]:
    """Which rows of the history these are."""
    return sorted(row["o"] for row in rows)


def taken(result: Result, state: KeptState, epoch: Epoch) -> dict[str, list[Record]]:
    """What an operator made of an epoch; the state keeps its changes."""
    found = collected(out=result.out, late=result.late, changes=result.changes)
    state.apply(found["changes"], epoch)
    return found


def in_rows(epochs: Sequence[Epoch]) -> int:
    return sum(len(epoch.events) for epoch in epochs)


# -- windows -------------------------------------------------------------------------------------------------------


def windows_state(session: Any, lateness: int = 0) -> KeptState:
    columns = {"k": "string", "window_start": "timestamp", "window_end": "timestamp", "n": "long", "total": "long"}
    if lateness:
        columns["expires"] = "timestamp"
    return KeptState(session, ["k", "window_start"], columns, "expires" if lateness else "window_end")


def run_windows(
    session: Any, epochs: Sequence[Epoch], size: int, slide: int | None = None, lateness: int = 0
) -> tuple[dict[oracle.Window, oracle.Sums], list[int]]:
    state = windows_state(session, lateness)
    shown: dict[oracle.Window, oracle.Sums] = {}
    late: list[Record] = []
    for number, epoch in enumerate(epochs, 1):
        rows = events_of(session, epoch.events)
        options: dict[str, Any] = {"slide": slide * S if slide else None, "lateness": lateness * S, **n_and_total()}
        result = windowed(rows, state.frame(epoch), epoch, time="ts", size=size * S, keys=["k"], **options)
        found = taken(result, state, epoch)
        windows = {(row["k"], row["window_start"]): (row["n"], row["total"]) for row in found["out"]}
        assert len(windows) == len(found["out"])
        assert lateness or not windows.keys() & shown.keys(), "a final window was shown again"
        shown |= windows
        late += found["late"]
        if not lateness and not slide:
            counted = sum(n for n, _ in shown.values()) + sum(row["n"] for row in state.open(epoch))
            assert counted + len(late) == in_rows(epochs[:number]), "a row is nowhere, or twice"
    return shown, numbers(late)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("size", "slide", "lateness", "seed"),
    [
        pytest.param(30, None, 0, 1, id="tumbling"),
        pytest.param(30, 10, 0, 3, id="hopping"),
        pytest.param(30, 20, 0, 8, id="hopping by what does not divide the size"),
        pytest.param(20, None, 25, 4, id="corrected by late rows"),
        pytest.param(30, 20, 15, 6, id="hopping and corrected"),
    ],
)
def test_windows_count_what_plain_python_counts_and_tell_the_late_rows(
    session: Any, size: int, slide: int | None, lateness: int, seed: int
) -> None:
    epochs = history(seed)
    expected, late = oracle.windows(epochs, size, slide or size, lateness)
    assert len(late) >= 10 and len(expected) > 20
    assert run_windows(session, epochs, size, slide, lateness) == (expected, late)


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [(30, 60), (60, 30)])
def test_open_windows_keep_their_rows_when_the_size_is_changed(session: Any, before: int, after: int) -> None:
    run_changed_windows(session, (before, 0), (after, 0))


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((30, 60), (60, 60), id="larger"),
        pytest.param((30, 90), (60, 10), id="larger and corrected for less long", marks=pytest.mark.long),
        pytest.param((60, 60), (30, 60), id="smaller", marks=pytest.mark.long),
        pytest.param((30, 90), (60, 0), id="larger and not corrected any more", marks=pytest.mark.long),
    ],
)
def test_windows_that_are_corrected_count_each_row_once_when_size_and_lateness_are_changed(
    session: Any, before: tuple[int, int], after: tuple[int, int]
) -> None:
    run_changed_windows(session, before, after)


def run_changed_windows(session: Any, before: tuple[int, int], after: tuple[int, int]) -> None:
    """Change size and lateness after the second epoch. What was shown is told apart by start and end."""
    epochs, kept_longer = cut(arrivals(1, 150), 1, pieces=6 if before[1] else 4, delay=5), before[1]
    state, late = windows_state(session, kept_longer), 0
    shown: dict[tuple[str, int, int], int] = {}
    for number, epoch in enumerate(epochs, 1):
        size, lateness = before if number <= 2 else after
        rows, kept = events_of(session, epoch.events), state.frame(epoch)
        options: dict[str, Any] = {"lateness": lateness * S, **n_and_total()}
        found = taken(windowed(rows, kept, epoch, time="ts", size=size * S, keys=["k"], **options), state, epoch)
        ended = {(row["k"], row["window_start"], row["window_end"]): row["n"] for row in found["out"]}
        assert kept_longer or not ended.keys() & shown.keys(), "a final window was shown again"
        shown |= ended
        late += len(found["late"])
        if number == 3:
            sizes = {row["window_end"] - row["window_start"] for row in state.rows.values()}
            assert len(sizes) == 2, "no window was there when the size was changed"
        counted = sum(shown.values()) + sum(row["n"] for row in state.open(epoch) if not epoch.late(row["window_end"]))
        assert counted + late == in_rows(epochs[:number]), "a row is nowhere, or twice"


# -- duplicates ----------------------------------------------------------------------------------------------------


def run_dedupe(session: Any, epochs: Sequence[Epoch], within: int) -> tuple[list[int], list[int]]:
    state = KeptState(session, ["k"], {"k": "string", "expires": "timestamp"}, "expires")
    shown, late = [], []
    for epoch in epochs:
        rows = events_of(session, epoch.events)
        result = dedupe(rows, state.frame(epoch), epoch, time="ts", keys=["k"], within=within * S, order=["p", "o"])
        found = taken(result, state, epoch)
        shown += found["out"]
        late += found["late"]
    return numbers(shown), numbers(late)


@pytest.mark.few(1)
@pytest.mark.parametrize(("within", "seed"), [(40, 3), (7, 1)])
def test_the_first_row_of_a_key_passes_and_those_that_follow_for_a_while_do_not(
    session: Any, within: int, seed: int
) -> None:
    epochs = history(seed)
    passed, late = oracle.firsts(epochs, within)
    assert len(late) >= 10 and len(passed) > 20
    assert run_dedupe(session, epochs, within) == (passed, late)


# -- sessions ------------------------------------------------------------------------------------------------------


def run_sessions(session: Any, epochs: Sequence[Epoch], gap: int) -> tuple[list[oracle.Session], list[int]]:
    columns = {"k": "string", "session_start": "timestamp", "session_end": "timestamp", "n": "long"}
    state = KeptState(session, ["k", "session_start"], columns, "session_end")
    shown: list[oracle.Session] = []
    late: list[Record] = []
    options: dict[str, Any] = {"agg": [F.count("*").alias("n")], "merge": [F.sum("n").alias("n")]}
    for number, epoch in enumerate(epochs, 1):
        rows = events_of(session, epoch.events)
        result = sessionize(rows, state.frame(epoch), epoch, time="ts", keys=["k"], gap=gap * S, **options)
        found = taken(result, state, epoch)
        shown += [(row["k"], row["session_start"], row["session_end"], row["n"]) for row in found["out"]]
        late += found["late"]
        counted = sum(n for *_, n in shown) + sum(row["n"] for row in state.open(epoch))
        assert counted + len(late) == in_rows(epochs[:number]), "a row is nowhere, or twice"
    return sorted(shown), numbers(late)


@pytest.mark.parametrize(("gap", "seed"), [(40, 1), pytest.param(90, 3, marks=pytest.mark.long)])
def test_sessions_are_those_of_plain_python_also_if_a_row_connects_two(session: Any, gap: int, seed: int) -> None:
    epochs = history(seed)
    expected, late = oracle.sessions(epochs, gap)
    assert late and len(expected) > 10
    assert run_sessions(session, epochs, gap) == (expected, late)


# -- joins ---------------------------------------------------------------------------------------------------------


def side(session: Any, name: str, epoch: Epoch | None) -> tuple[Any, dict[str, str]]:
    """The rows of one partition as one of two streams; its columns begin with the side's first letter, but for k."""
    columns = {column if column == "k" else f"{name[0]}{column}": kind for column, kind in EVENT.items()}
    events = [event for event in (epoch.events if epoch else ()) if event.p == ("left", "right").index(name)]
    return framed(session, events, columns), columns


def run_join(
    session: Any, epochs: Sequence[Epoch], within: timedelta | tuple[timedelta, timedelta]
) -> tuple[list[tuple[int, int]], list[int]]:
    states = {
        name: KeptState(session, [f"{name[0]}o"], {**side(session, name, None)[1], "expires": "timestamp"}, "expires")
        for name in ("left", "right")
    }
    shown: list[tuple[int, int]] = []
    late: list[int] = []
    for epoch in epochs:
        (left, _), (right, _) = side(session, "left", epoch), side(session, "right", epoch)
        result: JoinResult = interval_join(
            left,
            right,
            states["left"].frame(epoch),
            states["right"].frame(epoch),
            epoch,
            on=["k"],
            left_time="lts",
            right_time="rts",
            within=within,
        )
        found = collected(**vars(result))
        states["left"].apply(found["left_changes"], epoch)
        states["right"].apply(found["right_changes"], epoch)
        shown += [(row["lo"], row["ro"]) for row in found["out"]]
        late += [row["lo"] for row in found["left_late"]] + [row["ro"] for row in found["right_late"]]
    return sorted(shown), sorted(late)


def waited(epochs: Sequence[Epoch], pairs: Sequence[tuple[int, int]]) -> dict[str, int]:
    """How many pairs were made when W had passed the older row already, by the side of that row."""
    came = {event.o: (number, event.ts) for number, epoch in enumerate(epochs) for event in epoch.events}
    counts = {"left": 0, "right": 0}
    for pair in pairs:
        (first, time), (second, _) = sorted(came[row] for row in pair)
        if first < second and time is not None and epochs[second].late(time):
            counts["left" if came[pair[0]] == (first, time) else "right"] += 1
    return counts


@pytest.mark.parametrize(("before", "after", "seed"), [(0, 90, 4), pytest.param(60, 90, 8, marks=pytest.mark.long)])
def test_every_pair_of_rows_that_came_in_time_is_made_once(session: Any, before: int, after: int, seed: int) -> None:
    epochs = cut(arrivals(seed, 150), seed, pieces=7)
    expected, late = oracle.pairs(epochs, before, after)
    assert len(late) >= 10 and waited(epochs, expected)["left"] > 2
    assert before == 0 or waited(epochs, expected)["right"] > 2
    within = (before * S, after * S) if before else after * S
    assert run_join(session, epochs, within) == (expected, late)


# -- any state -----------------------------------------------------------------------------------------------------


def silence() -> Any:
    """Tells a key and its number of rows when it had none for half a minute. It travels by value, as a user's does."""

    def told_when_silent(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        import pandas as pd

        told, count, times = [], len(rows), list(rows["ts"])
        if len(state) and watermark is not None and state["timer"][0] <= watermark:
            told = [(key[0], state["n"][0])]
        elif len(state):
            count, times = count + state["n"][0], [*times, state["last"][0]]
        out = pd.DataFrame(told, columns=["k", "n"])
        if not count:
            return out, None
        return out, pd.DataFrame({"n": [count], "last": [max(times)], "timer": [max(times) + pd.Timedelta("30s")]})

    return told_when_silent


def test_a_function_keeps_a_state_and_is_called_when_its_timer_is_due(session: Any) -> None:
    epochs = without_nulls(history(1))
    columns = {"k": "string", "n": "long", "last": "timestamp", "timer": "timestamp"}
    state = KeptState(session, ["k"], columns, None)
    shown = []
    for epoch in epochs:
        rows = events_of(session, epoch.events)
        result = stateful(rows, state.frame(epoch), epoch, keys=["k"], func=silence(), out="k string, n long")
        shown += [(row["k"], row["n"]) for row in taken(result, state, epoch)["out"]]
    assert not state.rows
    assert sorted(shown) == oracle.silences(epochs, 30)


# -- where an epoch ends -------------------------------------------------------------------------------------------


def two_cuts(disorder: Sequence[int], delay: int) -> list[list[Epoch]]:
    """The same rows in one epoch, and in several. None is late: none comes later than the delay."""
    events = arrivals(7, 80, disorder=disorder, nulls=False)
    return [cut(events, seed, pieces=pieces, delay=delay) for seed, pieces in ((1, 1), (2, 3))]


def test_where_epochs_end_changes_no_result_if_no_row_is_late(session: Any) -> None:
    first, second = two_cuts(disorder=(0, 3, 10), delay=11)
    for run in (
        lambda epochs: run_windows(session, epochs, 30, 20),
        lambda epochs: run_sessions(session, epochs, 40),
        lambda epochs: run_join(session, epochs, (10 * S, 60 * S)),
    ):
        found, late = run(first)
        assert found and not late
        assert run(second) == (found, [])


@pytest.mark.long
def test_where_epochs_end_changes_no_duplicate_if_the_rows_come_in_order(session: Any) -> None:
    first, second = two_cuts(disorder=(0,), delay=1)
    found, late = run_dedupe(session, first, 40)
    assert found and not late
    assert run_dedupe(session, second, 40) == (found, [])


@pytest.mark.long
def test_of_rows_of_a_key_within_a_while_one_passes_wherever_epochs_end(session: Any) -> None:
    rows = [Event(k, 1, ts, 0, o) for o, (k, ts) in enumerate([("a", 38), ("b", 7), ("a", 0), ("b", 9), ("a", 39)])]
    for ends in ([5], [1, 5], [3, 5], [1, 2, 3, 4, 5]):
        epochs = [Epoch(tuple(rows[a:b]), -1, None) for a, b in pairwise([0, *ends])]
        passed, late = run_dedupe(session, epochs, 40)
        assert ([rows[o].k for o in passed], late) == (["a", "b"] if passed[0] == 0 else ["b", "a"], [])
