"""Stateful operators at their edges: one or two rows each, and what is refused."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.spark.driver import determinism
from airflow_epochs.spark.driver.delta.state import frames as states
from airflow_epochs.spark.driver.delta.state import understood
from airflow_epochs.spark.driver.plans import StateRead
from airflow_epochs.spark.driver.user_files import _unchanged_path
from airflow_epochs.transforms import Result, dedupe, interval_join, sessionize, stateful, windowed
from stack.connect import ConnectServer
from tests.support.spark_world import settings
from tests.support.state_world import EVENT, Epoch, Event, S, collected, events_of, framed

pytestmark = pytest.mark.jvm

OPEN = {"k": "string", "window_start": "timestamp", "window_end": "timestamp", "n": "long"}
SEEN = {"k": "string", "expires": "timestamp"}
SESSIONS = {"k": "string", "session_start": "timestamp", "session_end": "timestamp", "n": "long"}
COUNTS = {"k": "string", "n": "long"}
BEGIN = Epoch((), None, None)


def row(ts: int | None, k: str | None = "a", o: int = 0) -> Event:
    return Event(k, 1, ts, 0, o)


def counted() -> dict[str, Any]:
    return {"keys": ["k"], "agg": [F.count("*").alias("n")], "merge": [F.sum("n").alias("n")]}


class World:
    """Calls operators with usual arguments, of which a test replaces some."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def rows(self, *events: Event) -> Any:
        return events_of(self.session, events or [row(5)])

    def state(self, columns: dict[str, str], *rows: tuple[Any, ...]) -> Any:
        return framed(self.session, rows, columns)

    def windowed(self, rows: Any = None, state: Any = None, epoch: Epoch = BEGIN, **given: Any) -> Result:
        given = {"time": "ts", "size": 10 * S, **counted(), **given}
        return windowed(rows or self.rows(), state or self.state(OPEN), epoch, **given)

    def dedupe(self, rows: Any = None, state: Any = None, epoch: Epoch = BEGIN, **given: Any) -> Result:
        given = {"time": "ts", "keys": ["k"], "within": 10 * S, **given}
        return dedupe(rows or self.rows(), state or self.state(SEEN), epoch, **given)

    def sessionize(self, rows: Any = None, state: Any = None, epoch: Epoch = BEGIN, **given: Any) -> Result:
        given = {"time": "ts", "gap": 10 * S, **counted(), **given}
        return sessionize(rows or self.rows(), state or self.state(SESSIONS), epoch, **given)

    def right(self) -> Any:
        return self.rows().withColumnsRenamed({name: f"r{name}" for name in EVENT if name != "k"})

    def join(self, right: Any = None, left: Any = None, **given: Any) -> Any:
        left, right = self.rows() if left is None else left, self.right() if right is None else right
        expires = F.lit(None).cast("timestamp").alias("expires")
        left_state, right_state = (frame.select("*", expires).where(F.lit(False)) for frame in (left, right))
        usual = {"on": ["k"], "left_time": "ts", "right_time": "rts", "within": 10 * S}
        usual |= {"left_state": left_state, "right_state": right_state}
        return interval_join(left, right, epoch=BEGIN, **{**usual, **given})

    def stateful(self, rows: Any = None, state: Any = None, epoch: Epoch = BEGIN, **given: Any) -> Result:
        given = {"keys": ["k"], "func": counting(), "out": "k string, n long", **given}
        return stateful(rows or self.rows(), state or self.state(COUNTS), epoch, **given)


def counting() -> Any:
    """Counts the rows of a key. It travels by value, as a user's function does."""

    def count(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        import pandas as pd

        n = len(rows) + (state["n"][0] if len(state) else 0)
        return pd.DataFrame({"k": [key[0]], "n": [n]}), pd.DataFrame({"n": [n]})

    return count


def counted_as_text() -> Any:
    """The same; it shows keys as texts."""
    count = counting()

    def shown(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        out, kept = count(key, rows, state, watermark)
        return out.assign(k=str(key[0])), kept

    return shown


@pytest.fixture(scope="module")
def world(session: Any) -> World:
    return World(session)


def test_without_a_watermark_nothing_is_late_and_nothing_closes(world: World) -> None:
    for result in (
        world.windowed(state=world.state(OPEN, ("a", 0, 10, 3))),
        world.sessionize(state=world.state(SESSIONS, ("a", 0, 10, 3))),
    ):
        found = collected(out=result.out, late=result.late, changes=result.changes)
        assert (found["out"], found["late"]) == ([], [])
        assert [changed["n"] for changed in found["changes"]] == [4]


def test_a_watermark_that_stands_still_closes_nothing_twice(world: World) -> None:
    again, first = Epoch((), 10, 10), Epoch((), 10, None)
    nothing = world.rows().limit(0)
    open_, sessions = world.state(OPEN, ("a", 0, 10, 3)), world.state(SESSIONS, ("a", 0, 10, 3))
    shown = {
        "windows": world.windowed(nothing, open_, first).out,
        "windows again": world.windowed(nothing, open_, again).out,
        "sessions": world.sessionize(nothing, sessions, first).out,
        "sessions again": world.sessionize(nothing, sessions, again).out,
    }
    assert {name: len(rows) for name, rows in collected(**shown).items()} == {
        "windows": 1,
        "windows again": 0,
        "sessions": 1,
        "sessions again": 0,
    }


def test_a_row_exactly_at_the_watermark_is_late_and_one_a_microsecond_later_is_not(world: World) -> None:
    rows = world.rows(row(10, o=1), row(10, k="b", o=2)).withColumn(
        "ts", F.timestamp_micros(F.unix_micros("ts") + F.when(F.col("o") == 2, 1).otherwise(0))
    )
    found = world.dedupe(rows, epoch=Epoch((), 10, 0))
    told = collected(out=found.out.select("o"), late=found.late.select("o"))
    assert told == {"out": [{"o": 2}], "late": [{"o": 1}]}


def test_a_key_closes_and_opens_again_in_the_same_epoch(world: World) -> None:
    epoch = Epoch((), 20, 5)
    session = world.sessionize(world.rows(row(21)), world.state(SESSIONS, ("a", 0, 15, 3)), epoch)
    seen = world.dedupe(world.rows(row(21)), world.state(SEEN, ("a", 15)), epoch)
    found = collected(
        closed=session.out, opened=session.changes, passed=seen.out.select("k", "ts"), changes=seen.changes
    )
    assert found == {
        "closed": [{"k": "a", "session_start": 0, "session_end": 15, "n": 3}],
        "opened": [{"k": "a", "session_start": 21, "session_end": 31, "n": 1, "__deleted": False}],
        "passed": [{"k": "a", "ts": 21}],
        "changes": [{"k": "a", "expires": 31, "__deleted": False}],
    }


def test_rows_without_time_or_key_are_told_among_the_late_ones_by_every_operator(world: World) -> None:
    rows = world.rows(row(None), row(5, k=None), row(6))
    right = rows.withColumnsRenamed({name: f"r{name}" for name in EVENT if name != "k"})
    joined = world.join(right)
    late = {
        "windowed": world.windowed(rows).late,
        "dedupe": world.dedupe(rows).late,
        "sessionize": world.sessionize(rows).late,
        "stateful": world.stateful(rows, time="ts").late,
        "join": joined.right_late,
    }
    assert {name: len(found) for name, found in collected(**late).items()} == dict.fromkeys(late, 2)


FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first microsecond of the year 1, and the last one of 9999."""


def test_rows_whose_times_are_outside_of_the_years_1_to_9999_are_told_among_the_late_ones(world: World) -> None:
    late = late_of_times(world, -(2**63), FIRST - 1, LAST + 1, 2**63 - 1)
    assert {name: len(rows) for name, rows in late.items()} == dict.fromkeys(late, 4)


def test_a_row_is_told_among_the_late_ones_if_its_window_session_or_expiry_is_after_the_year_9999(world: World) -> None:
    late = late_of_times(world, LAST)
    assert {name: len(rows) for name, rows in late.items()} == {**dict.fromkeys(late, 1), "stateful": 0}


def test_a_row_at_the_beginning_of_the_year_1_counts_unless_one_of_its_windows_is_before(world: World) -> None:
    first = world.rows().withColumn("ts", F.timestamp_micros(F.lit(FIRST)))
    tumbling, hopping = world.windowed(first), world.windowed(first, slide=5 * S)
    found = collected(changes=tumbling.changes, late=tumbling.late, too_late=hopping.late, nothing=hopping.changes)
    assert {name: len(rows) for name, rows in found.items()} == {"changes": 1, "late": 0, "too_late": 1, "nothing": 0}


def late_of_times(world: World, *times: int) -> dict[str, list[Any]]:
    """The late rows of each operator, of a row of an ordinary time, which counts, and of rows with these times."""
    micros = F.element_at(F.array(*map(F.lit, [1_767_225_605_000_000, *times])), F.col("o").cast("int") + 1)
    rows = world.rows(*(row(5, o=number) for number in range(len(times) + 1)))
    rows = rows.withColumn("ts", F.timestamp_micros(micros))
    renamed = {name: f"r{name}" for name in EVENT if name != "k"}
    joined = world.join(rows.withColumnsRenamed(renamed), within=(S, S))
    results = {
        "windowed": world.windowed(rows),
        "corrected": world.windowed(rows, world.state({**OPEN, "expires": "timestamp"}), lateness=S),
        "dedupe": world.dedupe(rows),
        "sessionize": world.sessionize(rows),
        "stateful": world.stateful(rows, time="ts"),
    }
    late = {name: result.late for name, result in results.items()} | {"join": joined.right_late}
    del results["stateful"]  # pandas has no such times
    counted = {f"{name} counted": result.changes for name, result in results.items()} | {"join counted": joined.out}
    found = collected(**{name: frame.select("k") for name, frame in late.items()}, **counted)
    assert [len(found.pop(name)) for name in counted] == [1] * len(counted)
    return found


def test_a_row_that_is_late_alone_counts_if_an_open_session_is_connected_to_it(world: World) -> None:
    """Flink does the same; Structured Streaming drops the row."""
    state = world.state(SESSIONS, ("a", 10, 30, 3))
    result = world.sessionize(world.rows(row(4, o=1), row(2, k="b", o=2)), state, Epoch((), 20, None))
    found = collected(late=result.late.select("o"), changes=result.changes)
    assert found["late"] == [{"o": 2}]
    assert sorted(found["changes"], key=lambda row: row["__deleted"]) == [
        {"k": "a", "session_start": 4, "session_end": 30, "n": 4, "__deleted": False},
        {"k": "a", "session_start": 10, "session_end": 30, "n": 3, "__deleted": True},
    ]


def test_rows_exactly_a_gap_apart_are_in_one_session(world: World) -> None:
    result = world.sessionize(world.rows(row(0), row(10), row(21, o=1)))
    changes = collected(changes=result.changes)["changes"]
    assert sorted((row["session_start"], row["n"]) for row in changes) == [(0, 2), (21, 1)]


def test_of_equal_times_the_order_decides_which_row_passes_and_then_the_other_columns(world: World) -> None:
    rows = world.rows(Event("a", 1, 5, 1, 1), Event("a", 3, 5, 0, 3), Event("a", 2, 5, 0, 2))
    passed = collected(by_order=world.dedupe(rows, order=["p"]).out, by_all=world.dedupe(rows).out)
    assert [row["o"] for row in passed["by_order"]] == [2]
    assert [row["o"] for row in passed["by_all"]] == [1]


def test_a_row_long_before_the_one_that_passed_is_told_among_the_late_ones_and_one_shortly_before_is_none(
    world: World,
) -> None:
    rows = world.rows(row(80, o=1), row(81, o=2), row(90, o=3), row(99, o=4), row(80, "b", 5), row(100, "b", 6))
    result = world.dedupe(rows, world.state(SEEN, ("a", 110)), Epoch((), 50, None), within=20 * S)
    found = collected(out=result.out.select("o"), late=result.late.select("o"), changes=result.changes)
    assert found["late"] == []  # 110 says that the row of 90 has passed
    result = world.dedupe(rows, world.state(SEEN, ("a", 121)), Epoch((), 50, None), within=20 * S)
    found = collected(out=result.out.select("o"), late=result.late.select("o"), changes=result.changes)
    assert sorted(row["o"] for row in found["late"]) == [1, 2]
    assert sorted(row["o"] for row in found["out"]) == [5, 6]
    assert [(row["k"], row["expires"]) for row in found["changes"]] == [("b", 120)]


def test_a_column_may_stand_twice_in_the_order_or_be_a_key(world: World) -> None:
    rows = world.rows(Event("a", 2, 5, 1, 1), Event("a", 3, 5, 0, 2), Event("a", 1, 5, 0, 3))
    orders = {"twice": ["p", "p"], "time": ["ts", "p"], "key": ["k", "p", "ts"]}
    passed = collected(**{name: world.dedupe(rows, order=order).out for name, order in orders.items()})
    assert {name: [row["o"] for row in found] for name, found in passed.items()} == {name: [3] for name in orders}


def test_no_chance_chooses_between_rows_whose_texts_differ_only_where_their_collation_does_not(world: World) -> None:
    rows = world.rows(row(5)).withColumn("t", F.explode(F.array(F.lit("b"), F.lit("B"))))
    for order in ("t", F.desc("t")):
        sorted_rows = rows.orderBy(order).withColumn("t", F.collate("t", "UTF8_LCASE"))
        assert [passed.t for passed in world.dedupe(sorted_rows).out.collect()] == ["B"]


def test_no_chance_chooses_between_rows_that_differ_only_by_the_sign_of_zero(world: World) -> None:
    for signs in ([-1, 1], [1, -1]):
        rows = world.rows(*(Event("a", sign, 5, 0, 1) for sign in signs)).coalesce(1)
        passed = world.dedupe(rows.select("k", "ts", F.array(F.col("v") * 0.0).alias("x"))).out
        assert collected(passed=passed.select(F.col("x")[0].cast("string").alias("x")))["passed"] == [{"x": "-0.0"}]


def test_columns_may_have_dots_in_their_names(world: World) -> None:
    dots = {"k": "the.key", "ts": "at.ts"}
    rows = world.rows(row(5), row(7), row(1)).withColumnsRenamed(dots)
    of: dict[str, Any] = {"time": "at.ts", "keys": ["the.key"]}
    right = world.rows(row(9)).withColumnsRenamed({name: f"r.{name}" for name in EVENT} | {"k": "the.key"})
    left_state = rows.withColumn("expires", F.col("`at.ts`")).limit(0)
    right_state = right.withColumn("expires", F.col("`r.ts`")).limit(0)
    joined = interval_join(
        rows,
        right,
        left_state,
        right_state,
        BEGIN,
        on=["the.key"],
        left_time="at.ts",
        right_time="r.ts",
        within=3 * S,
    )
    windows = world.windowed(rows, world.state(OPEN).withColumnsRenamed(dots), **of)
    passed = world.dedupe(rows, world.state(SEEN).withColumnsRenamed(dots), order=["at.ts"], **of)
    assert [window.n for window in windows.changes.collect()] == [3]
    assert (passed.out.count(), passed.late.count(), joined.out.count()) == (1, 0, 1)


def test_a_day_has_24_hours_in_every_time_zone(world: World, session: Any) -> None:
    day = timedelta(days=1)
    with settings(session, {"spark.sql.session.timeZone": "Europe/Berlin"}):
        spring = world.rows().select(
            "k",
            F.timestamp_seconds(F.lit(1_774_742_400)).alias("ts"),  # 2026-03-29 UTC, when clocks go forward
        )
        result = world.windowed(spring, size=day)
        until = world.dedupe(spring, within=day).changes
        lengths = {
            "window": result.changes.select((F.unix_seconds("window_end") - F.unix_seconds("window_start")).alias("s")),
            "seen": until.select((F.unix_seconds("expires") - 1_774_742_400).alias("s")),
        }
        assert collected(**lengths) == {"window": [{"s": 86_400}], "seen": [{"s": 86_400}]}


def test_a_window_expires_no_earlier_when_the_lateness_is_lowered(world: World) -> None:
    columns = {**OPEN, "expires": "timestamp"}
    state = world.state(columns, ("a", 0, 10, 1, 100))
    result = world.windowed(world.rows(row(5)), state, lateness=20 * S)
    assert [row["expires"] for row in collected(changes=result.changes)["changes"]] == [100]


@pytest.mark.long
def test_an_open_window_keeps_its_rows_when_the_state_gets_a_column_for_its_expiry(world: World) -> None:
    state = world.state({**OPEN, "expires": "timestamp"}, ("a", 0, 10, 3, None), ("a", 10, 20, 3, None))
    result = world.windowed(world.rows(row(5), row(15)), state, Epoch((), 12, 2))
    found = collected(changes=result.changes, out=result.out)
    assert [(row["window_start"], row["n"], row["expires"]) for row in found["changes"]] == [(10, 4, 20)]
    assert [(row["window_start"], row["n"]) for row in found["out"]] == [(0, 3)]


def test_a_window_keeps_its_rows_and_its_expiry_when_the_size_is_raised_and_the_lateness_is_lowered(
    world: World,
) -> None:
    state = world.state({**OPEN, "expires": "timestamp"}, ("a", 0, 30, 3, 130), ("b", 0, 30, 3, 130))
    result = world.windowed(world.rows(row(50), row(55, "c")), state, Epoch((), 45, 20), size=60 * S, lateness=10 * S)
    found = collected(out=result.out, changes=result.changes)
    assert sorted((row["k"], row["window_end"], row["n"], row["expires"]) for row in found["changes"]) == [
        ("a", 60, 4, 130),
        ("c", 60, 1, 70),
    ]
    assert found["out"] == [{"k": "b", "window_start": 0, "window_end": 30, "n": 3}]


def test_a_larger_window_takes_the_place_of_a_shown_one_and_counts_only_its_own_rows(world: World) -> None:
    state = world.state({**OPEN, "expires": "timestamp"}, ("a", 0, 30, 3, 130))
    result = world.windowed(world.rows(row(50)), state, Epoch((), 65, 40), size=60 * S, lateness=10 * S)
    found = collected(out=result.out, changes=result.changes)
    assert found["out"] == [{"k": "a", "window_start": 0, "window_end": 60, "n": 1}]
    assert [(row["n"], row["expires"]) for row in found["changes"]] == [(1, 130)]


def test_aggregates_keep_the_types_of_the_state(world: World) -> None:
    rows = world.rows().withColumn("amount", F.lit("1.50").cast("decimal(10,2)"))
    state = world.state({**OPEN, "n": "decimal(12,2)"})
    sums: dict[str, Any] = {"agg": [F.sum("amount").alias("n")], "merge": [F.sum("n").alias("n")]}
    result = world.windowed(rows, state, **sums)
    assert result.changes.schema["n"].dataType == result.out.schema["n"].dataType == state.schema["n"].dataType


def test_windows_without_keys_count_all_rows(world: World) -> None:
    state = world.state({name: kind for name, kind in OPEN.items() if name != "k"}, (0, 10, 3))
    changes = collected(changes=world.windowed(world.rows(row(5), row(6)), state, keys=[]).changes)["changes"]
    assert [row["n"] for row in changes] == [5]


# -- functions of pandas -------------------------------------------------------------------------------------------


@pytest.fixture
def bare(connect: ConnectServer, tmp_path: Path) -> Iterator[Any]:
    """A session whose Python workers cannot import this package, as those of a Connect server without it."""
    packed = tmp_path / "absent.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("airflow_epochs/__init__.py", "raise ImportError('this worker has no airflow_epochs')")
    session = connect.session()
    with _unchanged_path():
        session.addArtifacts(str(packed), pyfile=True)
    yield session
    session.stop()


def test_a_function_runs_in_workers_that_do_not_have_this_package(bare: Any) -> None:
    importing = F.udf(lambda _: __import__("airflow_epochs").__name__, "string")
    with pytest.raises(PySparkException, match="this worker has no airflow_epochs"):
        bare.range(1).select(importing("id")).collect()
    world = World(bare)
    result = world.stateful(world.rows(row(1), row(2)), world.state(COUNTS, ("a", 5), ("b", 1)))
    found = collected(out=result.out, changes=result.changes)
    assert found["out"] == [{"k": "a", "n": 7}]
    assert found["changes"] == [{"k": "a", "n": 7, "__deleted": False}]


def test_a_function_sees_its_rows_in_the_order_of_their_times(world: World) -> None:
    def joined(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        import pandas as pd

        return pd.DataFrame({"text": [f"{list(rows['o'])} at {watermark}"]}), None

    rows = world.rows(row(30, o=3), row(10, o=1), row(20, o=2), row(30, o=0))
    result = world.stateful(rows, epoch=Epoch((), 5, None), func=joined, out="text string", time="ts", order=["o"])
    assert collected(out=result.out)["out"] == [{"text": "[1, 2, 0, 3] at 2026-01-01 00:00:05"}]


def test_a_state_that_the_function_gives_up_is_deleted_and_missing_values_are_null(world: World) -> None:
    def ending(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        import pandas as pd

        kept = None if len(state) else pd.DataFrame({"n": [float("nan")]})
        return pd.DataFrame({"n": [1, 2**62 + 1], "t": [pd.NaT, rows["ts"][0]]}), kept

    result = world.stateful(
        world.rows(row(1), row(2, k="b")), world.state(COUNTS, ("a", 5)), func=ending, out="n long, t timestamp"
    )
    found = collected(out=result.out, changes=result.changes)
    assert sorted(found["changes"], key=lambda row: str(row["k"])) == [
        {"k": "a", "n": 5, "__deleted": True},
        {"k": "b", "n": None, "__deleted": False},
    ]
    assert sorted((row["n"], row["t"]) for row in found["out"] if row["t"]) == [(2**62 + 1, 1), (2**62 + 1, 2)]


def test_a_large_number_is_kept_beside_a_null_in_the_rows_and_in_the_state(world: World) -> None:
    def newest(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        import pandas as pd

        known = pd.concat([rows[["v"]], state.rename(columns={"n": "v"})[["v"]]])
        return rows[["v", "o"]].assign(kind=str(rows["v"].dtype)), pd.DataFrame({"n": [known["v"].max()]})

    big = 2**53 + 1
    rows = world.rows(Event("a", big, 1, 0, 1), Event("a", 0, 1, 0, 2), Event("b", big, 1, 0, 3))
    with_null = rows.withColumn("v", F.when(F.col("o") != 2, F.col("v")))
    state = world.state(COUNTS, ("a", None), ("b", None))
    result = world.stateful(with_null, state, func=newest, out="v long, o long, kind string", order=["o"])
    found = collected(out=result.out, changes=result.changes)
    assert sorted(found["out"], key=lambda row: row["o"]) == [
        {"v": big, "o": 1, "kind": "Int64"},
        {"v": None, "o": 2, "kind": "Int64"},
        {"v": big, "o": 3, "kind": "int64"},
    ]
    assert [row["n"] for row in found["changes"]] == [big, big]


def test_a_function_of_rows_and_of_a_state_without_a_bigint_is_called(world: World) -> None:
    def last(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        import pandas as pd

        return pd.DataFrame({"k": [key[0]], "known": [len(state)]}), pd.DataFrame({"last": [rows["ts"].max()]})

    rows = world.rows(row(5), row(7), row(6, k="b")).select("k", "ts")
    state = world.state({"k": "string", "last": "timestamp"}, ("a", 3))
    result = world.stateful(rows, state, func=last, out="k string, known int")
    found = collected(out=result.out, changes=result.changes)
    assert sorted((row["k"], row["known"]) for row in found["out"]) == [("a", 1), ("b", 0)]
    assert sorted((row["k"], row["last"]) for row in found["changes"]) == [("a", 7), ("b", 6)]


@pytest.mark.parametrize("kind", ["double", pytest.param("float", marks=pytest.mark.long)])
def test_zeros_of_both_signs_are_one_key_of_a_function_and_nan_is_a_key_too(world: World, kind: str) -> None:
    def first(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        import pandas as pd

        seen = pd.DataFrame({"key": [str(key[0])], "rows": [len(rows)], "known": [len(state)]})
        return seen, None if len(state) else pd.DataFrame({"n": [len(rows)]})

    def keyed(*keys: float) -> Any:
        return world.session.createDataFrame([(key, 3) for key in keys], f"k {kind}, n long")

    nan = float("nan")
    for known in ([], [0.0, nan], [-0.0, nan, 7.0]):
        rows = keyed(-0.0, 0.0, -0.0, 1.5, nan, nan)
        result = world.stateful(rows, keyed(*known), func=first, out="key string, rows int, known int")
        found = collected(out=result.out, changes=result.changes)
        is_known = int(bool(known))
        assert sorted(map(str, found["out"])) == [
            f"{{'key': '0.0', 'rows': 3, 'known': {is_known}}}",
            "{'key': '1.5', 'rows': 1, 'known': 0}",
            f"{{'key': 'nan', 'rows': 2, 'known': {is_known}}}",
        ]
        changed = {str(row["k"]): (row["n"], row["__deleted"]) for row in found["changes"]}
        both = {"0.0": (3, True), "NaN": (3, True)} if known else {"0.0": (3, False), "NaN": (2, False)}
        assert changed == {"1.5": (1, False), **both}


def test_a_number_that_is_nan_is_null_once_a_function_has_had_it(world: World) -> None:
    def same(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        import pandas as pd

        return rows[["o", "x"]], pd.DataFrame({"n": [float("nan")]})

    rows = world.rows(row(1, o=1), row(1, o=2), row(1, o=3))
    value = F.when(F.col("o") == 1, F.lit("NaN").cast("double")).when(F.col("o") == 2, F.lit(2.5))
    state = world.state({"k": "string", "n": "double"})
    result = world.stateful(rows.withColumn("x", value), state, func=same, out="o long, x double", order=["o"])
    found = collected(out=result.out, changes=result.changes)
    assert [row["x"] for row in found["out"]] == [None, 2.5, None]
    assert [row["n"] for row in found["changes"]] == [None]


def test_a_state_of_two_rows_or_of_other_columns_is_an_error_that_names_the_key(world: World) -> None:
    def doubled(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        import pandas as pd

        return None, pd.DataFrame({"n": [1, 2]})

    def other(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        import pandas as pd

        return None, pd.DataFrame({"m": [1]})

    for func, said in ((doubled, "2 rows of state"), (other, r"the columns \['m'\]")):
        with pytest.raises(PySparkException, match=rf"the key \('a',\) the function returned.*{said}"):
            world.stateful(func=func).changes.collect()


def test_a_key_is_deleted_although_its_function_emptied_the_state_in_place(world: World) -> None:
    def emptied(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        state.drop(index=state.index, inplace=True)
        return None, state

    changes = collected(changes=world.stateful(state=world.state(COUNTS, ("a", 5)), func=emptied).changes)["changes"]
    assert changes == [{"k": "a", "n": 5, "__deleted": True}]


def test_values_of_every_kind_are_kept_as_a_function_returns_them(world: World) -> None:
    columns = {"k": "string", "i": "int", "d": "decimal(10,2)", "s": "struct<a:string,n:int>", "l": "array<double>"}

    def returned(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        import decimal

        import numpy as np
        import pandas as pd

        values = {
            "i": 3.0,
            "d": decimal.Decimal("1.5"),
            "s": {"n": np.int64(1), "a": "x"},
            "l": np.array([0.5, np.nan]),
        }
        return None, pd.DataFrame([values])

    state = world.session.createDataFrame([], ", ".join(f"{name} {kind}" for name, kind in columns.items()))
    (changed,) = collected(changes=world.stateful(state=state, func=returned).changes)["changes"]
    assert changed == {"k": "a", "i": 3, "d": 1.5, "s": {"a": "x", "n": 1}, "l": [0.5, None], "__deleted": False}


def test_a_value_that_does_not_fit_its_column_is_an_error_that_names_key_and_column_and_says_what_to_do(
    world: World,
) -> None:
    def halved(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        import pandas as pd

        return None, pd.DataFrame({"n": [len(rows) / 2]})

    def misspelt(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        import pandas as pd

        return pd.DataFrame({"k": [key[0]], "N": [len(rows)]}), None

    for func, said in (
        (halved, "column 'n' is 0.5, which is no whole number. Round it"),
        (misspelt, r"the columns \['k', 'N'\]. They must have the columns of out: \['k', 'n'\]"),
    ):
        with pytest.raises(PySparkException, match=rf"the key \('a',\) the function returned.*{said}"):
            world.stateful(func=func).changes.collect()


# -- what is refused, and what is not warned about -----------------------------------------------------------------

Call = Callable[[World], Any]
REFUSED: dict[str, tuple[Call, str]] = {
    "keys as text": (lambda w: w.windowed(keys="k"), r"windowed\(keys='k'\).*a list of columns' names"),
    "no keys": (lambda w: w.sessionize(keys=[]), r"sessionize\(keys=\[\]\).*at least one"),
    "no size": (lambda w: w.windowed(size=0 * S), r"windowed\(size=.*a positive timedelta"),
    "a negative gap": (lambda w: w.sessionize(gap=-1 * S), r"sessionize\(gap=.*a positive timedelta"),
    "seconds": (lambda w: w.dedupe(within=10), r"dedupe\(within=10\).*datetime.timedelta"),
    "ever": (
        lambda w: w.dedupe(within=timedelta.max),
        r"dedupe\(within=.*at most 7000 years, timedelta\(days=",
    ),
    "a slide beyond the size": (lambda w: w.windowed(slide=11 * S), r"windowed\(slide=.*at most the size"),
    "three bounds": (lambda w: w.join(within=(S, S, S)), r"interval_join\(within=.*\(before, after\)"),
    "a negative bound": (lambda w: w.join(within=(S, -S)), r"interval_join\(within=.*not negative"),
    "no such key": (lambda w: w.windowed(keys=["page"]), "'page' is missing among the columns of the rows"),
    "no such time": (lambda w: w.dedupe(time="at"), "'at' is missing among"),
    "a time of no zone": (
        lambda w: w.windowed(w.rows().withColumn("ts", F.col("ts").cast("timestamp_ntz"))),
        r"column 'ts' of the rows is of type timestamp_ntz[\s\S]*cast\('timestamp'\)",
    ),
    "a state of no zone": (
        lambda w: w.dedupe(state=w.state(SEEN).withColumn("expires", F.col("expires").cast("timestamp_ntz"))),
        r"column 'expires' of the state is of type timestamp_ntz[\s\S]*'expires timestamp'",
    ),
    "a taken column": (
        lambda w: w.windowed(w.rows().withColumn("Window_End", F.col("ts"))),
        r"'Window_End' must not be among the columns of the rows[\s\S]*withColumnRenamed\('Window_End'",
    ),
    "columns of both sides": (
        lambda w: w.join(w.rows(), right_time="ts"),
        "'v', 'ts', 'p', 'o' must not be among the columns of right: left has one",
    ),
    "a state without an aggregate": (
        lambda w: w.windowed(state=w.state({k: v for k, v in OPEN.items() if k != "n"})),
        "'n' is missing among the columns of the state",
    ),
    "an aggregate too few": (
        lambda w: w.windowed(state=w.state({**OPEN, "m": "long"})),
        "'m' is missing among the columns of what is kept",
    ),
    "lateness without expires": (lambda w: w.windowed(lateness=S), "needs a column 'expires'"),
    "a map": (
        lambda w: w.dedupe(w.rows().withColumn("m", F.create_map("k", "v"))),
        r"column 'm' of the rows is of type map[\s\S]*F\.to_json\('m'\)",
    ),
    "a map with times": (
        lambda w: w.dedupe(w.rows().withColumn("m", F.create_map("k", "ts"))),
        r"column 'm' of the rows is of type map[\s\S]*F\.to_json\('m', \{.*'timestampFormat': .*ss\.SSSSSSXXX",
    ),
}


def collated(frame: Any, name: str = "k", collation: str = "UTF8_LCASE") -> Any:
    return frame.withColumn(name, F.collate(name, collation))


def in_an_array(frame: Any) -> Any:
    return frame.withColumn("k", F.array("k"))


LEFT = {**EVENT, "expires": "timestamp"}
ARRAYS = {**OPEN, "k": "array<string>"}
COLLATED: dict[str, tuple[Call, str]] = {
    "windowed": (lambda w: w.windowed(collated(w.rows())), "windowed: key 'k' of the rows is of type string collate"),
    "a state of windows": (lambda w: w.windowed(state=collated(w.state(OPEN))), "windowed: key 'k' of the state"),
    "dedupe": (lambda w: w.dedupe(collated(w.rows(), collation="UNICODE")), "dedupe: .*string collate UNICODE"),
    "sessionize": (lambda w: w.sessionize(collated(w.rows())), "sessionize: "),
    "stateful": (lambda w: w.stateful(collated(w.rows())), "stateful: "),
    "right of a join": (lambda w: w.join(collated(w.right())), "interval_join: key 'k' of right"),
    "left of a join": (lambda w: w.join(left=collated(w.rows())), "interval_join: key 'k' of left"),
    "state of a join": (
        lambda w: w.join(left_state=collated(w.state(LEFT))),
        "interval_join: key 'k' of the left state",
    ),
    "blanks at the end": (lambda w: w.windowed(collated(w.rows(), collation="UTF8_BINARY_RTRIM")), "BINARY_RTRIM"),
    "an array": (
        lambda w: w.windowed(in_an_array(collated(w.rows())), w.state(ARRAYS)),
        r"array<string collate UTF8_LCASE>.*[\s\S]*F\.col\('k'\)\.cast\('array<string>'\)",
    ),
}


@pytest.mark.parametrize("place", COLLATED)
def test_a_key_with_a_collation_is_refused_by_every_operator_with_the_column_and_what_to_do(
    world: World, place: str
) -> None:
    call, said = COLLATED[place]
    with pytest.raises(Refused, match=said) as refused:
        call(world)
    assert refused.value.code is codes.OPERATOR_COLUMNS
    assert "Nothing was written." in refused.value.what
    assert refused.value.remedy.endswith("Then clear the failed task.")


def test_a_key_is_made_of_a_text_with_a_collation_as_the_refusal_says(world: World) -> None:
    rows = collated(world.rows(row(1, "Home"), row(2, "home")))
    with pytest.raises(Refused) as refused:
        world.windowed(rows)
    assert "F.col('k').cast('string')" in refused.value.remedy and "F.lower() of that" in refused.value.remedy
    plain = F.col("k").cast("string")
    two, one = (world.windowed(rows.withColumn("k", key)).changes.collect() for key in (plain, F.lower(plain)))
    assert (sorted((w.k, w.n) for w in two), [(w.k, w.n) for w in one]) == ([("Home", 1), ("home", 1)], [("home", 2)])
    nested = in_an_array(rows).withColumn("k", F.col("k").cast("array<string>"))
    assert [(w.k, w.n) for w in world.windowed(nested.where("o = 0"), world.state(ARRAYS)).changes.collect()]


def test_a_column_with_a_collation_that_is_no_key_is_kept_by_every_operator(world: World) -> None:
    rows = world.rows(row(1), row(2)).withColumn("t", F.collate(F.lit("Ab"), "UTF8_LCASE"))
    agg, merge = [F.any_value("t").alias("t")], [F.any_value("t").alias("t")]
    kept: dict[str, Any] = {"agg": agg, "merge": merge}
    for made in (
        world.windowed(rows, world.state({k: v for k, v in OPEN.items() if k != "n"} | {"t": "string"}), **kept),
        world.sessionize(rows, world.state({k: v for k, v in SESSIONS.items() if k != "n"} | {"t": "string"}), **kept),
    ):
        assert [kept.t for kept in made.changes.collect()] == ["Ab"]
    assert [passed.t for passed in world.dedupe(rows).out.collect()] == ["Ab"]
    assert [shown.n for shown in world.stateful(rows).out.collect()] == [2]


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_refused_with_the_operator_the_place_and_what_to_do(world: World, mistake: str) -> None:
    call, said = REFUSED[mistake]
    with pytest.raises(Refused, match=said) as refused:
        call(world)
    assert "Nothing was written." in refused.value.what
    assert refused.value.remedy.endswith("Then clear the failed task.")


UNFIT: dict[str, tuple[str, str]] = {
    "a collation": ("k string, t string COLLATE UTF8_LCASE", r"a collation, and t has one\.[\s\S]*without COLLATE"),
    "a collation inside": ("k string, t array<struct<x: string COLLATE UNICODE>>", "a collation, and t has one"),
    "char": ("k char(5), n bigint", r"char or varchar: k is char\(5\)\.[\s\S]*Write string"),
    "varchar inside": ("k string, t array<varchar(5)>", r"t is array<varchar\(5\)>"),
    "no type": ("k string, n nosuch", "by Spark: .*UNSUPPORTED_DATATYPE.*NOSUCH"),
    "no schema": ("k string,, n", "by Spark: .*PARSE_SYNTAX_ERROR"),
}


@pytest.mark.parametrize("flaw", UNFIT)
def test_a_schema_that_no_state_can_have_is_refused_with_the_column_and_the_reason(session: Any, flaw: str) -> None:
    schema, said = UNFIT[flaw]
    with pytest.raises(Refused, match=said) as refused:
        understood(session, {"it": stored(schema, ("k",))})
    assert refused.value.code is codes.STATE_SCHEMA


@pytest.mark.long
def test_texts_with_a_collation_fit_a_state_once_they_are_returned_as_the_refusal_says(session: Any) -> None:
    with pytest.raises(Refused) as refused:
        understood(session, {"it": stored("k string COLLATE UTF8_LCASE", ("k",))})
    made = re.search(r"F\.collate\(column, '(\w+)'\)", refused.value.remedy)
    assert made and "F.lower() of that" in refused.value.remedy
    texts = session.sql("select 'Ab' collate utf8_lcase k").select(F.collate("k", made[1]).alias("k"))
    state = states(session, {"it": stored("k string", ("k",))})["it"]
    lower = texts.select(F.lower("k").alias("k"))
    assert texts.dtypes == lower.dtypes == state.dtypes
    assert (texts.collect(), lower.collect()) == ([("Ab",)], [("ab",)])


def test_a_function_of_local_times_is_refused(world: World, session: Any) -> None:
    with settings(session, {"spark.sql.session.timeZone": "Europe/Berlin"}):
        with pytest.raises(Refused, match="time zone is Europe/Berlin") as refused:
            world.stateful()
    assert "spark.sql.session.timeZone to UTC" in refused.value.remedy


def test_the_operators_and_the_state_that_they_read_are_not_warned_about(session: Any) -> None:
    world = World(session)
    world.state = read_by_the_driver(session)  # type: ignore[method-assign]
    frames: dict[str, Any] = {}
    late = {"state": world.state({**OPEN, "expires": "timestamp"}), "lateness": 5 * S, "slide": 5 * S}
    for name, result in {
        "windowed": world.windowed(**late),
        "dedupe": world.dedupe(),
        "sessionize": world.sessionize(),
        "join": world.join(),
        "stateful": world.stateful(time="ts"),
    }.items():
        frames |= {f"{name}.{part}": frame for part, frame in vars(result).items()}
    assert warnings_of(session, frames) == []


def read_by_the_driver(session: Any) -> Any:
    """A state as the stage job gives it to a transform: the newest row of each key, out of a log of changes."""

    def frame(columns: dict[str, str]) -> Any:
        schema = ", ".join(f"{name} {kind.replace('long', 'bigint')}" for name, kind in columns.items())
        return states(session, {"it": stored(schema, tuple(columns)[:1])})["it"]

    return frame


def stored(schema: str, keys: tuple[str, ...]) -> StateRead:
    """A state with nothing in it."""
    return StateRead(location="/", files=None, stored=None, schema=schema, keys=keys, expires=None, hidden_to=None)


def warnings_of(session: Any, frames: dict[str, Any]) -> list[str]:
    plans = determinism.analysed_plans(session, frames)
    return [
        text for name, plan in plans.items() for text in determinism.warnings(name, plan, (), dict(frames[name].dtypes))
    ]


def test_a_sum_of_floating_point_numbers_is_warned_about_by_its_column(session: Any) -> None:
    world = World(session)
    columns = {k: ("double" if k == "total" else v) for k, v in OPEN.items()} | {"total": "double"}
    aggregates: dict[str, Any] = {
        "agg": [F.count("*").alias("n"), F.sum(F.col("v") / 3).alias("total")],
        "merge": [F.sum("n").alias("n"), F.sum("total").alias("total")],
    }
    result = world.windowed(state=world.state(columns), **aggregates)
    (told,) = warnings_of(session, {"open": result.changes})
    assert "sums floating-point numbers (total)" in told and "decimal" in told
    by_window = session.sql("SELECT id, sum(id / 3) OVER (PARTITION BY id) AS part, sum(id) OVER () AS n FROM range(3)")
    (told,) = warnings_of(session, {"shares": by_window})
    assert "(part)" in told


def test_a_state_that_names_the_fields_of_structs_in_another_order_pairs_the_same_rows(world: World) -> None:
    """Spark asks by the places of fields whether structs are equal, and unites maps of structs by them."""
    g, m = "named_struct('a', 5, 'b', 6) g", "map('x', named_struct('a', 1, 'b', 2)) m"
    left = world.rows(row(5)).selectExpr("*", g, m)
    waiting = left.selectExpr("o", "named_struct('b', 6, 'a', 5) g", "map('x', named_struct('b', 20, 'a', 10)) m")
    old = left.drop("g", "m").join(waiting, "o").withColumn("expires", F.timestamp_seconds(F.lit(9_999_999_999)))
    right = world.right().selectExpr("* except (k)", "named_struct('b', 6, 'a', 5) g")
    joined = world.join(right, left, left_state=old, on=["g"])
    found = sorted((made.g.a, made.g.b, made.m["x"].a, made.m["x"].b) for made in joined.out.collect())
    assert found == [(5, 6, 1, 2), (5, 6, 10, 20)]


def test_a_state_that_names_the_fields_of_structs_in_another_order_has_the_same_largest_ones(world: World) -> None:
    """Spark compares the first field first: the last value of a window is the one with the largest time."""
    last: dict[str, Any] = {"agg": [F.max(F.struct("ts", "v")).alias("last")], "merge": [F.max("last").alias("last")]}
    for operator, columns in ((world.windowed, OPEN), (world.sessionize, SESSIONS)):
        times = [name for name in columns if name.startswith(("window_", "session_"))]
        state = world.state({"k": "string", **dict.fromkeys(times, "timestamp")}, ("a", 0, 10)).selectExpr(
            "*", "named_struct('v', try_add(99L, 0L), 'ts', to_timestamp('2001-01-01')) AS last"
        )
        changes = operator(world.rows(row(5)), state, **last).changes
        assert changes.schema["last"].dataType.simpleString() == "struct<v:bigint,ts:timestamp>"
        assert [changed.last.v for changed in changes.collect() if not changed["__deleted"]] == [1]


@pytest.mark.parametrize(
    ("of_rows", "of_state"),
    [("decimal(10,2)", "decimal(12,4)"), ("float", "double"), ("date", "timestamp"), ("int", "bigint")],
)
def test_a_function_gets_the_state_of_a_key_whose_type_is_wider_in_the_state(
    world: World, of_rows: str, of_state: str
) -> None:
    as_key = "DATE'2026-01-02'" if of_rows == "date" else "3"
    rows = world.rows(row(5)).selectExpr("* except (k)", f"CAST({as_key} AS {of_rows}) k")
    state = world.state(COUNTS, ("a", 4)).selectExpr(f"CAST({as_key} AS {of_state}) k", "n")
    found = world.stateful(rows, state, out="k string, n long", func=counted_as_text()).changes.collect()
    assert [changed.n for changed in found] == [5]


def test_a_function_gets_the_states_of_many_keys_of_another_type_from_many_partitions(
    world: World, session: Any
) -> None:
    """Spark chooses the partition of a key by its type, too."""
    rows = world.rows(*(row(5, str(k)) for k in range(10))).selectExpr("* except (k)", "CAST(k AS int) k")
    state = world.state(COUNTS, *((str(k), 4) for k in range(10))).selectExpr("CAST(k AS bigint) k", "n")
    with settings(session, {"spark.sql.shuffle.partitions": "8"}):
        found = world.stateful(rows, state, out="k string, n long", func=counted_as_text()).changes.collect()
    assert [changed.n for changed in found] == [5] * 10


def test_a_key_that_may_become_another_one_in_the_type_of_the_state_is_refused(world: World) -> None:
    rows = world.rows(row(5)).selectExpr("* except (k)", "CAST(3 AS decimal(12,4)) k")
    state = world.state(COUNTS, ("a", 4)).selectExpr("CAST(3 AS decimal(10,2)) k", "n")
    with pytest.raises(Refused, match=r"'k' of what is kept is of type decimal\(12,4\), and the state declares"):
        world.stateful(rows, state)
