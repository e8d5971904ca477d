"""Kafka to Delta with ``parse_json``, by both engines, beside a streaming query with ``from_json``: the same settings.

All run in one warm session, in turn. And what one odd record costs the batch that it is in.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa

from airflow_epochs.coordinator.coordinator import Transform
from airflow_epochs.sources.kafka.reader import CONSUMER_DEFAULTS
from airflow_epochs.transforms import json_columns
from stack.broker import Broker
from stack.jars import fetch
from tests.perf.apps import json_rows
from tests.perf.figures import JIT_RUNS, Figure, figure, ratios, timed_in_turn
from tests.perf.spark_figures import available_now, create_topic, epoch, produce_to, warm_session
from tests.support.odd_json import struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP = Path(json_rows.__file__)
ENGINES = ("spark", "arrow")


@dataclass(frozen=True)
class Load:
    """A topic. ``bad``: every so many-th record is malformed, by turns cut off and of the wrong type; 0: none."""

    topic: str
    records: int
    shape: str
    plain: Callable[[DataFrame], DataFrame]
    bad: int = 0
    least: float | None = None

    def values(self) -> Iterator[str]:
        make = _wide if self.shape == "wide" else an_order
        for number in range(self.records):
            told = make(number)
            if self._is_cut_off(number):
                yield json.dumps(told)[:-9]
            else:
                yield json.dumps(told | {"order_id": "x"} if self._is_bad(number) else told)

    @property
    def rows(self) -> int:
        """How many records are JSON: a value of the wrong type is NULL in a row."""
        return self.records - sum(map(self._is_cut_off, range(self.records)))

    def _is_bad(self, number: int) -> bool:
        return self.bad > 0 and number % self.bad == 0

    def _is_cut_off(self, number: int) -> bool:
        return self._is_bad(number) and number // self.bad % 2 == 1


LOADS = (
    Load("clean", 1_000_000, "orders", json_rows.plain_orders, least=1.5),
    Load("one-percent-malformed", 1_000_000, "orders", json_rows.plain_orders, bad=100),
    Load("ten-percent-malformed", 1_000_000, "orders", json_rows.plain_orders, bad=10),
    Load("wide", 60_000, "wide", json_rows.plain_wide),
)


ODD = {
    "is not UTF-8": (b'"c', b'"\xff'),
    "has a control character": (b'"c', b'"\x01'),
    "has half of a pair of characters": (b'"c', b'"\\ud800'),
    "has a number of 1,200 digits": (b": ", b": " + b"7" * 1_200),
    "has an object for a number": (b": ", b': {}, "more": '),
    "has a day that no month has": (b"11-21", b"11-31"),
}
"""What is put in which place of one record."""
BATCH = 10_000
"""So many records Spark gives a worker at once."""


def figures() -> list[Figure]:
    return [*_beside_an_odd_record(), *_epochs()]


def _beside_an_odd_record() -> list[Figure]:
    """How many records a worker decodes in a second of processor time, with an odd one in the batch ÷ without it."""
    usual = [json.dumps(an_order(number)).encode() for number in range(BATCH)]
    batches = {"": pa.array(usual, pa.binary())}
    for odd, (old, new) in ODD.items():
        middle = [usual[BATCH // 2].replace(old, new, 1)]
        batches[odd] = pa.array([*usual[: BATCH // 2], *middle, *usual[BATCH // 2 + 1 :]], pa.binary())
    seconds: dict[str, list[float]] = {odd: [] for odd in batches}
    for _ in range(40):
        for odd, batch in batches.items():
            seconds[odd].append(_processor_time(batch))
    return [
        figure(f"parse_json, arrow: a batch in which one of {BATCH:,} records {odd} ÷ without it", "ratio",
               ratios(seconds[odd], seconds[""]), least=0.8, note="records/s of processor time")
        for odd in ODD
    ]  # fmt: skip


def _processor_time(batch: pa.Array) -> float:
    started = time.process_time()
    json_columns.decoded(batch, struct(order_id="long", customer="string", amount="double", ts="timestamp"))
    return time.process_time() - started


def _epochs() -> list[Figure]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Broker(Path(folder, "broker"), jars := fetch("spark", "broker")) as kafka,
    ):
        with warm_session(jars, Path(folder)) as spark:
            found = [each for load in LOADS for each in _compared(spark, kafka.bootstrap, Path(folder), load)]
            return [*found, figure("parse_json: most memory of a Python worker", "MB", [_peak_mb()], most=500)]


def _compared(spark: SparkSession, bootstrap: str, folder: Path, load: Load) -> list[Figure]:
    create_topic(bootstrap, load.topic)
    produce_to(bootstrap, load.topic, load.values())
    rows = load.rows  # counted before the time is taken
    runs: dict[str, Callable[[], object]] = {"query": lambda: _query(spark, bootstrap, folder, load)}
    runs |= {engine: partial(_epoch, spark, bootstrap, folder, load, rows, engine) for engine in ENGINES}
    seconds = timed_in_turn(runs, warm_up=JIT_RUNS)
    what, least = load.topic.replace("-", " "), {"arrow": load.least}
    return [
        each
        for engine in ENGINES
        for each in (
            figure(f"parse_json, {engine} ÷ availableNow with from_json: {what}", "ratio",
                   ratios(seconds[engine], seconds["query"]), least=least.get(engine), note="rows/s"),
            figure(f"parse_json, {engine}: {what}", "M rows/s", [load.records / s / 1e6 for s in seconds[engine]]),
        )
    ]  # fmt: skip


def _query(spark: SparkSession, bootstrap: str, folder: Path, load: Load) -> None:
    available_now(spark, bootstrap, folder / "query", CONSUMER_DEFAULTS, load.plain, topic=load.topic)


def _epoch(spark: SparkSession, bootstrap: str, folder: Path, load: Load, rows: int, engine: str) -> None:
    transform = Transform(path=str(APP), function=f"{load.shape}_{engine}")
    epoch(spark, bootstrap, folder / "epoch", transform, rows, load.topic)


def an_order(number: int) -> dict[str, Any]:
    """The n-th record, as a dict."""
    at = f"2026-11-21T10:{number // 60 % 60:02}:{number % 60:02}Z"
    return {"order_id": number, "customer": f"c{number % 1000:06}", "amount": number % 9973 / 7, "ts": at}


def _wide(number: int) -> dict[str, Any]:
    kinds = (number, f"some text {number % 77}", number * 0.5, f"2026-11-21T10:00:{number % 60:02}Z")
    return {f"field_{each}": kinds[each % 4] for each in range(100)}


def _peak_mb() -> float:
    """The most memory that any Python worker of Spark's had, of those that wait for more work."""
    ours = psutil.Process().children(recursive=True)
    peaks = [line for each in ours for line in _status(each) if line.startswith("VmHWM:")]
    return max(int(line.split()[1]) / 1024 for line in peaks)


def _status(process: psutil.Process) -> list[str]:
    """What the kernel says of a Python worker; nothing of another process, or of one that has ended."""
    try:
        is_worker = "pyspark.daemon" in " ".join(process.cmdline())
        return Path(f"/proc/{process.pid}/status").read_text().splitlines() if is_worker else []
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return []
