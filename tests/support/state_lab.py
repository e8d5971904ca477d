"""A topic of clicks, and pipelines with state over it: everything is real but Airflow, the oracle is plain Python."""

from __future__ import annotations

import itertools
import json
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from airflow_epochs import DeltaSink, EventTime, KafkaSource, SparkConnect, SparkSubmit, StateTable
from airflow_epochs.contracts import Connection, Limits
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.delta.log import actions_of
from airflow_epochs.errors import EpochError, NoNewData
from airflow_epochs.expectations import Expectations
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import CompleteRecord, Run
from airflow_epochs.operators.transform_file import find_transform
from airflow_epochs.storage.files import open_files
from airflow_epochs.storage.options import storage_options
from airflow_epochs.testing import run_epoch
from orders_demo.duck import duck
from stack.broker import Broker
from stack.connect import ConnectServer
from stack.spark import S3Access
from tests.support import remedies, s3_access
from tests.support.environment import Action, Environment
from tests.support.spark_world import APPS
from tests.support.state_clicks import DELAY, EPOCH, Click, Counts, Oracle, Sent, Window, over, relative

PARTITIONS = 3
ALWAYS = "100000 days"
"""As ``max_ahead``: no click is too far ahead."""
OPEN = "page string, window_start timestamp, window_end timestamp, clicks bigint, total bigint"
"""The columns of open windows."""


@dataclass
class Lab:
    """A topic of clicks, and pipelines over it. ``lake``: where their tables are, by default in the folder."""

    folder: Path
    broker: Broker
    connect: ConnectServer
    sent: list[Click] = field(default_factory=list)
    runs: Iterator[int] = field(default_factory=itertools.count)
    topic: str = ""
    lake: str = ""
    s3: S3Access | None = None
    spark: SparkConnect | SparkSubmit = field(default_factory=lambda: SparkConnect("spark"))

    def __post_init__(self) -> None:
        self.connections = {
            "kafka": Connection(conn_id="kafka", conn_type="kafka", extra={"bootstrap.servers": self.broker.bootstrap}),
            "spark": Connection(conn_id="spark", conn_type="spark_connect", **self.connect.where),
        }
        if self.s3:
            self.connections["s3"] = s3_access.connection(self.s3)
        self.lake = self.lake or str(self.folder)
        self.topic = self.topic or self.new_topic()

    def new_topic(self) -> str:
        """An empty topic."""
        name = f"clicks-{uuid.uuid4().hex[:8]}"
        self.admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()
        return name

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.bootstrap})

    def beside(self, name: str, **changes: Any) -> Lab:
        """The same topic, for pipelines with a ledger and tables of their own."""
        return replace(self, folder=self.folder / name, **{"lake": "", **changes})

    def produce(self, *clicks: Sent, topic: str = "") -> None:
        """Append clicks to the topic, or to another one."""
        topic = topic or self.topic
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        offsets = Counter(click.partition for click in self.sent if click.topic == topic)
        for partition, page, n, second in clicks:
            click = Click(topic, partition, offsets[partition], page, n, second)
            offsets[partition] += 1
            self.sent.append(click)
            value = json.dumps({"page": page, "n": n, "ts": click.at.isoformat()})
            producer.produce(topic, value, partition=partition)
        assert producer.flush(30) == 0

    # -- pipelines ---------------------------------------------------------------------------------------------------

    def at(self, table: str) -> str:
        """Where a table is."""
        return f"{self.lake}/{table}"

    @property
    def stored(self) -> dict[str, Any]:
        """What sinks must be told of the tables' store."""
        return {"storage_conn_id": "s3"} if self.s3 else {}

    def outputs(self, *names: str) -> list[DeltaSink]:
        return [DeltaSink(name, self.at(name), **self.stored) for name in names]

    def open_table(self, name: str = "open", *, schema: str = OPEN, **options: Any) -> StateTable:
        """The state of open windows."""
        usual = {"table": self.at(name), "keys": ["page", "window_start"], "expires": "window_end"}
        return StateTable(name, schema=schema, **{**usual, **self.stored, **options})

    def windows(
        self,
        *,
        then: Mapping[str, Action] | None = None,
        transform: str = "clicks.py:windows",
        state: Sequence[StateTable] = (),
        more: Sequence[str] = (),
        name: str = "clicks",
        source: Mapping[str, Any] | None = None,
        **event_time: Any,
    ) -> Coordinator:
        """What one task process makes of the pipeline of windows. ``more``: the names of other outputs."""
        times = EventTime(timedelta(seconds=DELAY), **{"max_ahead": ALWAYS, **event_time})
        app, _, function = transform.rpartition(":")
        sinks = (*self.outputs("hourly", "late", *more), *(state or [self.open_table()]))
        return self.task(name, function, sinks, times, then, app=APPS / app, source=source)

    def task(
        self,
        name: str,
        function: str,
        sinks: tuple[Any, ...],
        event_time: EventTime | None,
        then: Mapping[str, Action] | None = None,
        app: Path = APPS / "clicks.py",
        backfill: Mapping[str, int] | None = None,
        source: Mapping[str, Any] | None = None,
        expectations: Expectations | None = None,
        dead_letters: str | None = None,
    ) -> Coordinator:
        env = Environment(self.connections, dict(then or {}))
        env.spark = self.spark.runner(env)
        pipeline = Pipeline(
            wait_for_others=0,
            name=name,
            dag_id="dag",
            source=KafkaSource(**{"topics": [self.topic], "conn_id": "kafka", "max_wait": 0, **(source or {})}),
            sinks=sinks,
            transform=find_transform(f"{app.name}:{function}", [app.parent]),
            event_time=event_time,
            backfill=backfill or {},
            expectations=expectations or {},
            dead_letters=dead_letters,
        )
        return Coordinator(TaskTry(pipeline=pipeline, ledger=self.ledger(name), env=env))

    def run(self, coordinator: Coordinator, limits: Limits | None = None) -> None:
        run_epoch(coordinator, Run("dag", f"run{next(self.runs)}"), limits)

    def run_all(self, make: Callable[[], Coordinator], limits: Limits | None = None) -> None:
        """Epochs until there is nothing left to do."""
        while True:
            try:
                self.run(make(), limits)
            except NoNewData:
                return

    def ledger(self, name: str) -> Ledger:
        return Ledger(LocalStore(Path(self.ledger_root)), name)

    @property
    def ledger_root(self) -> str:
        return str(self.folder / "ledger")

    def records(self, name: str = "clicks") -> list[CompleteRecord]:
        """The complete epochs of a pipeline."""
        ledger = self.ledger(name)
        found = [ledger.complete_record(number) for number in range(1, ledger.newest_complete() + 1)]
        return [record for record in found if record]

    # -- commands ------------------------------------------------------------------------------------------------------

    def typed(self, error: EpochError, name: str) -> str:
        """The command that the error names, typed as it says, and confirmed; what it shows."""
        with patch.dict("os.environ", remedies.in_the_environment(*self.connections.values())):
            return remedies.typed(Path(self.ledger_root), error, name)

    def ordered(self, pipeline: str, name: str, *words: str, answer: str = "y") -> str:
        """A command that no error names, confirmed or not; what it shows."""
        with patch.dict("os.environ", remedies.in_the_environment(*self.connections.values())):
            said = ("epochs", name, pipeline, *words, "--why", "the test says so")
            return remedies.ordered(Path(self.ledger_root), *said, answer=answer)

    # -- what is there -----------------------------------------------------------------------------------------------

    def delta(self, table: str) -> DeltaTable:
        return DeltaTable(self.at(table).replace("s3a://", "s3://"), storage_options=self.options)

    @property
    def options(self) -> dict[str, str] | None:
        """As the ``object_store`` crate names them."""
        return storage_options(self.connections["s3"]) if self.s3 else None

    def rows(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        """What DuckDB finds in a table."""
        return self._asked(table, f"select {columns} from log")

    def _asked(self, table: str, query: str) -> list[tuple[Any, ...]]:
        with duck() as db:
            if self.s3:  # DuckDB needs one more extension for it
                db.register("log", self.delta(table).to_pyarrow_table())
            else:
                db.execute(f"create view log as select * from delta_scan('{self.at(table)}')")
            return db.execute(query).fetchall()

    def log_of(self, table: str) -> list[list[dict[str, Any]]]:
        """The actions of each version in a table's log."""
        files = open_files(self.at(table).replace("s3a://", "s3://"), self.options or {})
        names = sorted(name for name in files.sizes("_delta_log") if name.endswith(".json"))
        return [list(actions_of(files.read(name) or b"")) for name in names]

    def require_oracle(self, *, ahead: Collection[Click] = (), idle_at_once: bool = False) -> None:
        """Windows out, late clicks and the open rest are what plain Python makes of the clicks and the watermarks."""
        oracle = Oracle(self.sent, ahead, idle_at_once)
        for record in self.records():
            opened = self.ledger("clicks").open_record(record.txn_id.epoch, record.txn_id.attempt)
            assert opened
            oracle.epoch(opened.source["topics"], record.ranges)
            assert relative(record.watermarks[0]) == oracle.mark
        shown, found = self.shown_windows(), self.open_windows(oracle.mark)
        assert shown == oracle.final()
        assert sorted(self.rows("late", '"partition", "offset"')) == sorted(oracle.late)
        assert found == oracle.open()
        counted = sum(clicks for clicks, _ in (*shown.values(), *found.values()))
        assert counted + len(oracle.late) == len(self.sent)

    def shown_windows(self) -> dict[Window, Counts]:
        rows = self.rows("hourly", "page, epoch(window_start)::bigint, clicks, total")
        shown = {(page, start - EPOCH): (clicks, total) for page, start, clicks, total in rows}
        assert len(shown) == len(rows), "a window was shown twice"
        return shown

    def open_windows(self, mark: int | None, table: str = "open") -> dict[Window, Counts]:
        """The windows in the state that have not ended by a watermark."""
        newest = "select *, row_number() over (partition by page, window_start order by __epoch desc) r from log"
        columns = "page, epoch(window_start)::bigint, epoch(window_end)::bigint, clicks, total"
        rows = self._asked(table, f"select {columns} from ({newest}) where r = 1 and not __deleted")
        return {
            (page, start - EPOCH): (clicks, total)
            for page, start, end, clicks, total in rows
            if not over(end - EPOCH, mark)
        }


def folds(lab: Lab, table: str = "open") -> int:
    """How many commits of the state, after the first one, have put all of it into new files."""
    return sum(map(_is_whole, lab.log_of(table))) - 1


def dropped_files(lab: Lab, table: str = "open") -> int:
    """How many files commits have dropped that were no folds."""
    return sum("remove" in action for actions in lab.log_of(table) if not _is_whole(actions) for action in actions)


def _is_whole(actions: list[dict[str, Any]]) -> bool:
    return '\\"epochs\\":0' in json.dumps(actions)


def seen_pages(
    lab: Lab,
    *more: DeltaSink,
    backfill: Mapping[str, int] | None = None,
    pipeline: str = "firsts",
    state: str = "seen",
    then: Mapping[str, Action] | None = None,
    source: Mapping[str, Any] | None = None,
    **options: Any,
) -> Coordinator:
    """What one task process makes of the pipeline of first clicks, whose outputs depend on what the epoch adds."""
    given = {"table": lab.at(state), **lab.stored, **options}
    table = StateTable(state, schema="page string, n bigint", keys=["page", "n"], **given)
    sinks = (*lab.outputs("firsts"), table, *more)
    times = EventTime("0 s", tick=False)
    return lab.task(pipeline, "unique", sinks, times, then, backfill=backfill, source=source)


def firsts(lab: Lab) -> list[tuple[Any, ...]]:
    return sorted(lab.rows("firsts", "page, n"))
