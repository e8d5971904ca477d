"""A sink that is new to a pipeline with state takes earlier epochs as they were, with real Kafka, Spark, Delta."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_epochs import DeltaSink, EventTime, StateTable
from airflow_epochs.coordinator.backfills import backfill as backfills
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import Run
from tests.support.state_clicks import DELAY
from tests.support.state_lab import Lab

pytestmark = [pytest.mark.jvm, pytest.mark.long, pytest.mark.timeout(300)]
WINDOWS = ("hourly", "late")
FIRSTS = ("firsts", "newest")


def windows(lab: Lab, *copies: str, backfill: Mapping[str, int] | None = None) -> Coordinator:
    """The pipeline of windows, and sinks that get once more what it shows."""
    schema = "page string, window_start timestamp, window_end timestamp, clicks bigint, total bigint"
    keys = ["page", "window_start"]
    state = StateTable("open", str(lab.folder / "open"), schema=schema, keys=keys, expires="window_end")
    times = EventTime(timedelta(seconds=DELAY), max_ahead="100000 days")
    function = "copied_windows" if copies else "windows"
    return lab.task("clicks", function, (*appends(lab, *WINDOWS, *copies), state), times, backfill=backfill)


def firsts(lab: Lab, *copies: DeltaSink, backfill: Mapping[str, int] | None = None) -> Coordinator:
    """The pipeline of first clicks, whose rows depend on the state that their epoch has read."""
    state = StateTable("seen", str(lab.folder / "seen"), schema="page string, n bigint", keys=["page", "n"])
    sinks = (*appends(lab, "firsts"), newest(lab, "newest"), state, *copies)
    function = "copied_firsts" if copies else "firsts"
    return lab.task("firsts", function, sinks, EventTime("0 s", tick=False), backfill=backfill)


def appends(lab: Lab, *names: str) -> tuple[DeltaSink, ...]:
    return tuple(DeltaSink(name, str(lab.folder / name)) for name in names)


def newest(lab: Lab, name: str) -> DeltaSink:
    """The newest first click of each page: every epoch replaces the row of the epoch before."""
    return DeltaSink(name, str(lab.folder / name), mode="upsert", keys=["page"])


@contextmanager
def pruned(lab: Lab, epoch: int) -> Iterator[None]:
    """Without the open record of an epoch, as the ledger is once the epoch is older than ``keep_epochs``."""
    (record,) = lab.folder.glob(f"ledger/**/*{epoch:010}/*.open.json")
    aside = record.rename(lab.folder / "aside")
    try:
        yield
    finally:
        aside.rename(record)


def rows(lab: Lab, table: str) -> Counter[tuple[Any, ...]]:
    """All rows as DuckDB reads them."""
    return Counter(lab.rows(table, "*"))


def test_a_new_sink_shows_what_it_would_show_had_it_been_there_from_an_earlier_epoch(lab: Lab) -> None:
    for n in range(4):
        lab.produce((0, "a", n, 100 * n + 10), (1, "b", n, 100 * n + 60), (0, "a", n, max(0, 100 * n - 250)))
        lab.run_all(lambda: windows(lab))
    shown = rows(lab, "late")
    assert shown, "no click was late"
    lab.produce((0, "a", 1, 20), (1, "c", 1, 520), (0, "c", 1, 510))
    lab.run_all(lambda: windows(lab, "hourly_again", "late_again", backfill={"hourly_again": 1, "late_again": 1}))
    lab.require_oracle()
    assert rows(lab, "hourly_again") == rows(lab, "hourly")
    assert rows(lab, "late_again") == rows(lab, "late") != shown


def test_a_new_upsert_keeps_the_rows_of_the_newest_epoch_and_is_staged_again_from_the_same_states(lab: Lab) -> None:
    for n in range(1, 5):
        lab.produce((0, "a", n, n), (1, "b", 9 - n if n < 3 else 7, n), (2, "c", 1, n))
        lab.run(firsts(lab))
    lab.produce((0, "a", 2, 9), (0, "d", 1, 9))
    copies = (*appends(lab, "firsts_again"), newest(lab, "newest_again"))
    run, task = Run("dag", "struck"), firsts(lab, *copies, backfill={"firsts_again": 2, "newest_again": 1})
    task.open(run)
    task.vote(run, task.stage(run).stage)
    for sink in ("seen", "newest_again"):
        task.commit(run, sink)
    (place,) = (found.places["firsts_again"] for found in task.task.ledger.tries(5) if "firsts_again" in found.places)
    for file in Path(place).rglob("*.parquet"):
        file.unlink()
    task = firsts(lab, *copies)
    for sink in ("firsts", "newest", "firsts_again"):
        task.commit(run, sink)
    task.complete(run)
    assert len(task.task.ledger.restaged(5, "firsts_again")) == 1
    assert sorted(lab.rows("firsts_again", "page, n")) == [("a", 2), ("a", 3), ("a", 4), ("b", 7), ("d", 1)]
    assert rows(lab, "newest_again") == rows(lab, "newest")
    assert sorted(lab.rows("newest_again", "page, n")) == [("a", 4), ("b", 7), ("c", 1), ("d", 1)]


def test_a_backfill_that_cannot_be_as_it_was_opens_nothing_and_its_remedy_ends_in_rows(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(1, 8):
        lab.produce((0, "a", n, n))
        lab.run(firsts(lab))
    DeltaTable(str(lab.folder / "seen")).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    lab.produce((0, "b", 1, 9))

    def again(first: int) -> Coordinator:
        copies = (*appends(lab, "firsts_again"), newest(lab, "newest_again"))
        return firsts(lab, *copies, backfill={"firsts_again": first})

    with pruned(lab, 6), pytest.raises(Corrupt, match=r"EPOCHS-BACKFILL-GONE.*Epoch 6 has no open record any more"):
        lab.run(again(6))
    with pytest.raises(Corrupt, match=r"EPOCHS-BACKFILL-GONE.*cannot begin with epoch 2") as gone:
        lab.run(again(2))
    assert "Let `backfill` name a later epoch" in str(gone.value)
    whole = DeltaSink("firsts_again", str(lab.folder / "firsts_again"), mode="overwrite")
    with pytest.raises(Refused, match="A sink of its mode takes each epoch by itself"):
        lab.run(firsts(lab, whole, newest(lab, "newest_again"), backfill={"firsts_again": 7}))
    monkeypatch.setattr(backfills, "REPLAYED_MAX", 1)
    with pytest.raises(Refused, match=r"EPOCHS-BACKFILL-WITH-STATE.*These are 2 epochs, and one Spark job replays at"):
        lab.run(again(6))
    lab.run(again(7))
    assert sorted(lab.rows("firsts_again", "page, n")) == [("a", 7), ("b", 1)]


def test_one_frame_fills_a_new_sink_from_an_earlier_epoch_on_beside_dead_letters(lab: Lab) -> None:
    def shown(sink: str, **backfill: int) -> Coordinator:
        sinks, times = appends(lab, sink, "rejected"), EventTime("0 s", tick=False)
        return lab.task("bare", "bare", sinks, times, backfill=backfill, dead_letters="rejected")

    lab.produce((0, "a", 1, 1))
    lab.run(shown("first"))
    lab.produce((0, "b", 2, 2))
    lab.run(shown("second", second=1))
    assert sorted(lab.rows("second", "page, n")) == [("a", 1), ("b", 2)]
