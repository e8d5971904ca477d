"""The same rows through Spark Structured Streaming, one micro-batch per epoch, show the same; where not, is shown too.

Both sides get the same watermarks: the newest time less the delay. Late rows are those by the watermark of this batch;
Structured Streaming's default is that of the batch before.
"""

from __future__ import annotations

import json
import os
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from tests.integration.test_stateful_operators import run_dedupe, run_join, run_sessions, run_windows
from tests.support.spark_world import settings
from tests.support.state_world import EVENT, ZERO, Epoch, Event, S, arrivals, collected

pytestmark = pytest.mark.jvm

STREAMING = {
    "spark.sql.streaming.statefulOperator.allowMultiple": "false",
    "spark.sql.streaming.metricsEnabled": "false",
}


@pytest.fixture(autouse=True)
def _late_by_this_batch(session: Any) -> Iterator[None]:
    with settings(session, STREAMING):
        yield


def batches(events: Sequence[Event], seed: int, pieces: int = 3) -> list[list[Event]]:
    r = random.Random(seed)
    ends = [0, *sorted(r.sample(range(1, len(events)), pieces - 1)), len(events)]
    return [list(events[begin:end]) for begin, end in pairwise(ends)]


def as_epochs(parts: Sequence[Sequence[Event]], delay: int, *, least: bool = False) -> list[Epoch]:
    """An epoch per batch and a tick, with Spark's watermarks: of two streams it takes the least of the newest times."""
    epochs: list[Epoch] = []
    seen: dict[int, int] = {}
    w: int | None = None
    for part in [*parts, []]:
        epochs.append(Epoch(tuple(part), w, epochs[-1].w if epochs else None))
        for event in part:
            assert event.ts is not None
            stream = event.p if least else 0
            seen[stream] = max(seen.get(stream, 0), event.ts)
        if len(seen) == 1 + least:
            w = max(w if w is not None else -delay, min(seen.values()) - delay)
    return epochs


def streamed(
    session: Any, folder: Path, parts: Sequence[Sequence[Event]], query: Callable[[Any], Any]
) -> list[dict[str, Any]]:
    """What the query shows in append mode after a batch for each part and one without rows."""
    for number, part in enumerate(parts):
        path = folder / f"{number}.json"
        path.write_text("".join(json.dumps({**e._asdict(), "ts": ZERO + (e.ts or 0)}) + "\n" for e in part))
        os.utime(path, (number, number))  # the order in which Spark takes them
    columns = ", ".join(f"{name} {'long' if kind == 'timestamp' else kind}" for name, kind in EVENT.items())
    rows = session.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(str(folder))
    name = f"streamed_{uuid.uuid4().hex}"
    shown = query(rows.withColumn("ts", F.timestamp_seconds("ts"))).writeStream.format("memory").queryName(name)
    running = shown.outputMode("append").trigger(availableNow=True).start()
    assert running.awaitTermination(60)
    return collected(out=session.table(name))["out"]


@pytest.mark.long
def test_windows_with_a_watermark_are_the_same(session: Any, tmp_path: Path) -> None:
    parts, delay = batches(arrivals(11, 120, nulls=False), 11), 20
    window = F.window("ts", "30 seconds", "10 seconds")
    shown = streamed(
        session,
        tmp_path,
        parts,
        lambda rows: (
            rows.withWatermark("ts", f"{delay} seconds")
            .groupBy("k", window)
            .agg(F.count("*").alias("n"), F.sum("v").alias("total"))
            .select("k", F.col("window.start").alias("start"), "n", "total")
        ),
    )
    found, late = run_windows(session, as_epochs(parts, delay), 30, 10)
    assert found == {(row["k"], row["start"]): (row["n"], row["total"]) for row in shown}
    assert late and len(found) > 50


@pytest.mark.long
def test_sessions_are_the_same(session: Any, tmp_path: Path) -> None:
    parts, delay = batches(arrivals(12, 120, disorder=(0, 5, 20), nulls=False), 12), 20
    shown = streamed(
        session,
        tmp_path,
        parts,
        lambda rows: (
            rows.withWatermark("ts", f"{delay} seconds")
            .groupBy("k", F.session_window("ts", "40 seconds").alias("s"))
            .agg(F.count("*").alias("n"))
            .select("k", F.col("s.start").alias("start"), F.col("s.end").alias("end"), "n")
        ),
    )
    found, _ = run_sessions(session, as_epochs(parts, delay), 40)
    assert found == sorted((row["k"], row["start"], row["end"], row["n"]) for row in shown)
    assert len(found) > 10


@pytest.mark.long
def test_joined_rows_are_the_same(session: Any, tmp_path: Path) -> None:
    parts, delay = batches(arrivals(13, 120, nulls=False), 13), 20

    def joined(rows: Any) -> Any:
        left, right = (
            rows.where(F.col("p") == p).select(
                F.col("k").alias(f"{side}k"), F.col("ts").alias(f"{side}ts"), F.col("o").alias(f"{side}o")
            )
            for p, side in ((0, "l"), (1, "r"))
        )
        near = F.expr("lk = rk AND rts >= lts - INTERVAL 30 SECONDS AND rts <= lts + INTERVAL 60 SECONDS")
        both = left.withWatermark("lts", f"{delay} seconds").join(right.withWatermark("rts", f"{delay} seconds"), near)
        return both.select("lo", "ro")

    shown = streamed(session, tmp_path, parts, joined)
    found, late = run_join(session, as_epochs(parts, delay, least=True), (30 * S, 60 * S))
    assert found == sorted((row["lo"], row["ro"]) for row in shown)
    assert late and len(found) > 20


@pytest.mark.long
def test_the_same_duplicates_are_dropped(session: Any, tmp_path: Path) -> None:
    parts, delay = batches(retries(14), 14), 60
    shown = streamed(
        session,
        tmp_path,
        parts,
        lambda rows: rows.withWatermark("ts", f"{delay} seconds").dropDuplicatesWithinWatermark(["k"]),
    )
    events = {event.o: event for part in parts for event in part}
    found, late = run_dedupe(session, as_epochs(parts, delay), delay)
    assert sorted((events[o].k, events[o].ts) for o in found) == sorted((row["k"], row["ts"]) for row in shown)
    assert late and len(found) > 40


def retries(seed: int) -> list[Event]:
    """Rows with ids; some come again a little later with the same time, and a few much later."""
    r = random.Random(seed)
    sent = [(clock * 5 + r.choice([0, 0, 8, 40, 400]), clock * 5, f"id{clock}") for clock in range(60) for _ in "12"]
    return [Event(key, 1, time, 0, number) for number, (_, time, key) in enumerate(sorted(sent))]


# -- what differs --------------------------------------------------------------------------------------------------


def parts_of(*batches: Sequence[int]) -> list[list[Event]]:
    """Batches of rows of one key with these times."""
    return [[Event("a", 1, time, 0, time) for time in times] for times in batches]


@pytest.mark.long
def test_by_default_rows_of_windows_that_end_now_still_count_there_and_here_they_are_late(
    session: Any, tmp_path: Path
) -> None:
    parts = parts_of([100], [75], [200])
    with settings(session, {"spark.sql.streaming.statefulOperator.allowMultiple": "true"}):
        shown = streamed(
            session,
            tmp_path,
            parts,
            lambda rows: (
                rows.withWatermark("ts", "10 seconds")
                .groupBy(F.window("ts", "10 seconds"))
                .agg(F.count("*").alias("n"))
                .select(F.col("window.start").alias("start"), "n")
            ),
        )
    found, late = run_windows(session, as_epochs(parts, 10), 10)
    assert sorted(row["start"] for row in shown) == [70, 100]
    assert (sorted(start for _, start in found), late) == ([100], [75])


@pytest.mark.long
def test_a_row_that_connects_to_an_open_session_is_dropped_there_and_counts_here(session: Any, tmp_path: Path) -> None:
    parts = parts_of([100, 140], [75], [1000])  # 140 is exactly a gap later; 75 alone would end at 115, and W is 120
    shown = streamed(
        session,
        tmp_path,
        parts,
        lambda rows: (
            rows.withWatermark("ts", "20 seconds")
            .groupBy("k", F.session_window("ts", "40 seconds").alias("s"))
            .agg(F.count("*").alias("n"))
            .select(F.col("s.start").alias("start"), F.col("s.end").alias("end"), "n")
        ),
    )
    found, late = run_sessions(session, as_epochs(parts, 20), 40)
    assert shown == [{"start": 100, "end": 180, "n": 2}]
    assert (found, late) == ([("a", 75, 180, 3)], [])


@pytest.mark.long
def test_a_key_that_comes_back_before_its_state_expires_is_dropped_there_and_passes_here(
    session: Any, tmp_path: Path
) -> None:
    parts = parts_of([100], [170])
    shown = streamed(
        session,
        tmp_path,
        parts,
        lambda rows: rows.withWatermark("ts", "60 seconds").dropDuplicatesWithinWatermark(["k"]),
    )
    assert [row["ts"] for row in shown] == [100]
    assert run_dedupe(session, as_epochs(parts, 60), 60) == ([100, 170], [])
