"""A topic of clicks, and pipelines with state over it: everything is real but Airflow, the oracle is plain Python."""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_epochs import DeltaSink, EventTime, KafkaSource, SparkConnect, StateTable
from airflow_epochs.contracts import Connection
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import NoNewData
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run
from airflow_epochs.operators.transform_file import find_transform
from airflow_epochs.testing import run_epoch
from orders_demo.duck import duck
from stack.broker import Broker
from stack.connect import ConnectServer
from tests.support.environment import Environment
from tests.support.spark_world import APPS

PARTITIONS = 3
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
SIZE, DELAY = 100, 30
"""Seconds: of a window, and how late a click may be."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Click:
    partition: int
    offset: int
    page: str
    n: int
    second: int
    """Since START."""


@dataclass
class Lab:
    """A topic of clicks, and pipelines over it."""

    folder: Path
    broker: Broker
    connect: ConnectServer
    sent: list[Click] = field(default_factory=list)
    runs: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.topic = f"clicks{next(_numbers)}"
        self.connections = {
            "kafka": Connection(conn_id="kafka", conn_type="kafka", extra={"bootstrap.servers": self.broker.bootstrap}),
            "spark": Connection(conn_id="spark", conn_type="spark_connect", **self.connect.where),
        }
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result()

    def produce(self, *clicks: tuple[int, str, int, int]) -> None:
        """Clicks as (partition, page, n, second)."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for partition, page, n, second in clicks:
            offset = sum(click.partition == partition for click in self.sent)
            self.sent.append(Click(partition, offset, page, n, second))
            at = (START + timedelta(seconds=second)).isoformat()
            producer.produce(self.topic, json.dumps({"page": page, "n": n, "ts": at}), partition=partition)
        assert producer.flush(30) == 0

    def windows(self, *, then: Mapping[str, Callable[[], None]] | None = None, **event_time: Any) -> Coordinator:
        """What one task process makes of the pipeline of windows."""
        schema = "page string, window_start timestamp, window_end timestamp, clicks bigint, total bigint"
        state = StateTable(
            "open",
            str(self.folder / "open"),
            schema=schema,
            keys=["page", "window_start"],
            expires="window_end",
        )
        outputs = [DeltaSink(name, str(self.folder / name)) for name in ("hourly", "late")]
        times = EventTime(timedelta(seconds=DELAY), max_ahead="100000 days", **event_time)
        return self.task("clicks", "windows", (*outputs, state), times, then)

    def task(
        self,
        name: str,
        function: str,
        sinks: tuple[Any, ...],
        event_time: EventTime | None,
        then: Mapping[str, Callable[[], None]] | None = None,
        app: Path = APPS / "clicks.py",
        backfill: Mapping[str, int] | None = None,
    ) -> Coordinator:
        env = Environment(self.connections, dict(then or {}))
        env.spark = SparkConnect("spark").runner(env)
        pipeline = Pipeline(
            wait_for_others=0,
            name=name,
            dag_id="dag",
            source=KafkaSource(topics=[self.topic], conn_id="kafka", max_wait=0),
            sinks=sinks,
            transform=find_transform(f"{app.name}:{function}", [app.parent]),
            event_time=event_time,
            backfill=backfill or {},
        )
        ledger = Ledger(LocalStore(self.folder / "ledger"), name)
        return Coordinator(TaskTry(pipeline=pipeline, ledger=ledger, env=env))

    def run(self, coordinator: Coordinator) -> None:
        run_epoch(coordinator, Run("dag", f"run{next(self.runs)}"))

    def run_all(self, make: Callable[[], Coordinator]) -> None:
        """Epochs until there is nothing left to do."""
        while True:
            try:
                self.run(make())
            except NoNewData:
                return

    # -- what is there ---------------------------------------------------------------------------------------------

    def rows(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        with duck() as db:
            return db.execute(f"select {columns} from delta_scan(?)", [str(self.folder / table)]).fetchall()

    def require_oracle(self) -> None:
        """Windows out, late clicks and the open rest are what plain Python makes of the clicks and the watermarks."""
        counts: dict[tuple[str, int], int] = defaultdict(int)
        totals: dict[tuple[str, int], int] = defaultdict(int)
        late = set()
        ledger = self.windows().task.ledger
        newest: dict[int, int] = {}
        mark = before = None
        for number in range(1, ledger.newest_complete() + 1):
            record = ledger.complete_record(number)
            assert record
            if newest:
                before = max((min(newest.values()) - DELAY) * 1_000_000 - 1, -(10**18) if mark is None else mark)
            mark = before
            assert _relative(record.watermarks[0]) == mark
            for r in record.ranges[self.topic]:
                for click in self.sent:
                    if click.partition == r.partition and r.start <= click.offset < r.end:
                        start = click.second // SIZE * SIZE
                        if mark is not None and (start + SIZE) * 1_000_000 <= mark:
                            late.add((click.partition, click.offset))
                        else:
                            counts[click.page, start] += 1
                            totals[click.page, start] += click.n
                        newest[click.partition] = max(newest.get(click.partition, -(10**9)), click.second)
        wanted = {key: (counts[key], totals[key]) for key in counts}
        over = {key: value for key, value in wanted.items() if mark is not None and (key[1] + SIZE) * 1_000_000 <= mark}
        hourly = self.rows("hourly", "page, epoch(window_start)::bigint, clicks, total")
        shown = {(page, start - _EPOCH): (clicks, total) for page, start, clicks, total in hourly}
        assert len(shown) == len(hourly), "a window was shown twice"
        assert shown == over
        assert sorted(self.rows("late", '"partition", "offset"')) == sorted(late)
        assert self.open_windows(mark) == {key: value for key, value in wanted.items() if key not in over}
        total = sum(clicks for clicks, _ in (*shown.values(), *self.open_windows(mark).values())) + len(late)
        assert total == len(self.sent)

    def open_windows(self, mark: int | None) -> dict[tuple[str, int], tuple[int, int]]:
        newest = (
            "select *, row_number() over (partition by page, window_start order by __epoch desc) r from delta_scan(?)"
        )
        with duck() as db:
            rows = db.execute(
                "select page, epoch(window_start)::bigint, epoch_us(window_end), clicks, total "
                f"from ({newest}) where r = 1 and not __deleted",
                [str(self.folder / "open")],
            ).fetchall()
        return {
            (page, start - _EPOCH): (clicks, total)
            for page, start, end, clicks, total in rows
            if mark is None or end - _EPOCH * 1_000_000 > mark
        }


_EPOCH = int(START.timestamp())


def _relative(mark: int | None) -> int | None:
    return None if mark is None else mark - _EPOCH * 1_000_000


def some_clicks(dice: random.Random, epoch: int) -> list[tuple[int, str, int, int]]:
    return [
        (
            dice.choice([0, 0, 1, 1, 2]) if epoch % 5 else dice.randint(0, 1),
            dice.choice("abcdef"),
            dice.randint(1, 9),
            max(0, epoch * 60 + dice.randint(0, 60) - dice.choice([0, 0, 0, 20, 45, 400])),
        )
        for _ in range(dice.choice([5, 15, 40]))
    ]


def folds(lab: Lab) -> int:
    """How many commits of the state, after the first one, have put all of it into new files."""
    entries = (lab.folder / "open/_delta_log").glob("*.json")
    return sum('\\"epochs\\":0' in path.read_text() for path in entries) - 1


def seen_pages(lab: Lab, *more: DeltaSink, backfill: Mapping[str, int] | None = None, **options: Any) -> Coordinator:
    """What one task process makes of the pipeline of first clicks, whose outputs depend on what the epoch adds."""
    state = StateTable("seen", str(lab.folder / "seen"), schema="page string, n bigint", keys=["page", "n"], **options)
    sinks = (DeltaSink("firsts", str(lab.folder / "firsts")), state, *more)
    return lab.task("firsts", "unique", sinks, EventTime("0 s", tick=False), backfill=backfill)


def firsts(lab: Lab) -> list[tuple[Any, ...]]:
    return sorted(lab.rows("firsts", "page, n"))
