"""A Delta table, and a pipeline that reads it: everything is real but Airflow."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import DeltaSink, DeltaSource, KafkaSource, SparkConnect, SparkSubmit
from airflow_epochs.contracts import Connection, Limits, Sink
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import EpochError
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import OpenRecord, Run
from airflow_epochs.operators import definitions
from airflow_epochs.operators.transform_file import find_transform
from airflow_epochs.testing import run_epoch
from orders_demo.duck import duck
from stack.broker import Broker
from tests.support import remedies
from tests.support.environment import Action, Environment
from tests.support.rebuilt import Found
from tests.support.spark_world import APPS
from tests.support.table_staging import WithoutSpark

PIPELINE = "reader"


@dataclass
class TableLab:
    """``table`` is what the pipeline ``reader`` reads; ``rows`` is where it writes.

    ``where``: the fields of the connection of Spark Connect; empty if Spark must not be asked. ``in_dags``: what looks
    for the pipeline in the DAGs; None: it is there as it is here.
    """

    folder: Path
    where: Mapping[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    transform: str = "copied"
    letters: bool = False
    backfill: dict[str, int] = field(default_factory=dict)
    more_sinks: tuple[str, ...] = ()
    spark: SparkConnect | SparkSubmit | WithoutSpark = field(default_factory=lambda: SparkConnect("spark"))
    in_dags: Callable[..., Any] | None = None
    runs: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.connections = {"spark": Connection(conn_id="spark", conn_type="spark_connect", **self.where)}
        self.table = self.folder / "table"

    def write(self, *ids: int, mode: Any = "append", **options: Any) -> None:
        """One version of the table, by deltalake."""
        data = pa.table({"id": pa.array(ids, pa.int64()), "amount": pa.array([n / 4 for n in ids], pa.float64())})
        write_deltalake(str(self.table), data, mode=mode, **options)

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(str(self.table))

    @property
    def source(self) -> DeltaSource:
        return DeltaSource(str(self.table), **{"max_wait": 0, **self.options})

    @property
    def sinks(self) -> tuple[Sink, ...]:
        names = ["rows", *self.more_sinks, *(["rejected"] if self.letters else [])]
        return tuple(DeltaSink(name, str(self.folder / name)) for name in names)

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(
            wait_for_others=0,
            name=PIPELINE,
            dag_id="dag",
            source=self.source,
            sinks=self.sinks,
            transform=find_transform(f"tables.py:{self.transform}", [APPS]),
            dead_letters="rejected" if self.letters else None,
            backfill=self.backfill,
        )

    def upstream(self, broker: Broker, topic: str) -> Pipeline:
        """A pipeline that writes the table, from a topic of numbers."""
        self.connections["kafka"] = Connection(
            conn_id="kafka", conn_type="kafka", extra={"bootstrap.servers": broker.bootstrap}
        )
        return replace(
            self.pipeline,
            name="writer",
            source=KafkaSource([topic], conn_id="kafka", max_wait=0),
            sinks=(DeltaSink("table", str(self.table)),),
            transform=find_transform("tables.py:from_topic", [APPS]),
        )

    def run(
        self,
        limits: Limits | None = None,
        at: Mapping[str, Action] | None = None,
        pipeline: Pipeline | None = None,
    ) -> None:
        """A run of the pipeline, or of another one, in a task process of its own."""
        run_epoch(Coordinator(self.task(pipeline, at)), Run("dag", f"run{next(self.runs)}"), limits)

    def task(self, pipeline: Pipeline | None = None, at: Mapping[str, Action] | None = None) -> TaskTry:
        """A task process of the pipeline, or of another one."""
        pipeline, env = pipeline or self.pipeline, Environment(self.connections, dict(at or {}))
        env.spark = self.spark.runner(env)
        return TaskTry(pipeline=pipeline, ledger=self.ledger_of(pipeline.name), env=env)

    def ledger_of(self, pipeline: str) -> Ledger:
        return Ledger(LocalStore(self.folder / "ledger"), pipeline)

    @property
    def ledger(self) -> Ledger:
        return self.ledger_of(PIPELINE)

    def opened(self, epoch: int) -> OpenRecord:
        """The attempt that completed an epoch."""
        complete = self.ledger.complete_record(epoch)
        assert complete
        opened = self.ledger.open_record(epoch, complete.txn_id.attempt)
        assert opened
        return opened

    def versions(self) -> list[tuple[int, int]]:
        """The versions that each complete epoch read: ``[start, end)``."""
        found = [self.opened(number).ranges for number in range(1, self.ledger.newest_complete() + 1)]
        return [(r.start, r.end) for ranges in found for of in ranges.values() for r in of]

    def typed(self, error: EpochError, command: str, *more: str) -> str:
        """The command that the error names, typed as it says, and confirmed; what it shows. It finds the DAG.

        ``more``: words after it.
        """
        with self._at_a_terminal():
            return remedies.typed(self.folder / "ledger", error, command, *more)

    def ordered(self, command: str, *words: str, pipeline: Pipeline | None = None) -> str:
        """A command that no error names, for this pipeline or another one."""
        return self.printed(command, *words, "--why", "a test", pipeline=pipeline)

    def printed(self, command: str, *words: str, pipeline: Pipeline | None = None) -> str:
        """A command that is not asked why. It finds the pipeline in the DAGs."""
        of = pipeline or self.pipeline
        with self._at_a_terminal(of):
            return remedies.ordered(self.folder / "ledger", "epochs", command, of.name, *words)

    @contextmanager
    def _at_a_terminal(self, pipeline: Pipeline | None = None) -> Iterator[None]:
        """Where Airflow has the connections and the pipeline's DAG."""
        with (
            patch.dict("os.environ", remedies.in_the_environment(*self.connections.values())),
            patch.object(
                definitions, "find", self.in_dags or (lambda *asked, **named: Found(partial(self.task, pipeline)))
            ),
        ):
            yield

    # -- what is there -----------------------------------------------------------------------------------------------

    def asked(self, query: str, of: str = "rows") -> list[Any]:
        """What DuckDB finds in the table ``t``, which the pipeline has written."""
        with duck() as db:
            db.execute(f"CREATE VIEW t AS SELECT * FROM delta_scan('{self.folder / of}')")
            return db.execute(query).fetchall()

    def ids(self) -> Counter[int]:
        """How often each id is in the table at the end."""
        return Counter(row[0] for row in self.asked("SELECT id FROM t"))


def renamed_in(lab: TableLab, number: int) -> None:
    """The table maps columns, and ``amount`` is called ``price`` from this version on, which deltalake cannot do."""
    plain, log = '"configuration":{', entry(lab, number)
    first = entry(lab, 0).read_text().replace(plain, plain + '"delta.columnMapping.mode":"name",')
    entry(lab, 0).write_text(first)
    (metadata,) = (line for line in first.splitlines() if '"metaData"' in line)
    log.write_text("\n".join([metadata.replace("amount", "price"), log.read_text()]))


def maps_in(lab: TableLab, number: int, files_call_amount: str | None) -> None:
    """The table maps columns from this version on, and ``amount`` has this name in its files; None: it maps none.

    deltalake cannot do that. As in Delta, the protocol admits column mapping ever after.
    """
    protocol, metadata = {"minReaderVersion": 2, "minWriterVersion": 5}, _metadata_of(entry(lab, 0))
    schema = json.loads(metadata["schemaString"])
    if files_call_amount:
        metadata["configuration"]["delta.columnMapping.mode"] = "name"
        for number_of, field_ in enumerate(schema["fields"], 1):
            name = files_call_amount if field_["name"] == "amount" else field_["name"]
            field_["metadata"] = {"delta.columnMapping.id": number_of, "delta.columnMapping.physicalName": name}
    told = [{"protocol": protocol}, {"metaData": {**metadata, "schemaString": json.dumps(schema)}}]
    log = entry(lab, number)
    log.write_text("\n".join([*map(json.dumps, told), *log.read_text().splitlines()]))


def _metadata_of(log: Path) -> dict[str, Any]:
    actions = (json.loads(line) for line in log.read_text().splitlines())
    return next(dict(action["metaData"]) for action in actions if "metaData" in action)


def entry(lab: TableLab, number: int) -> Path:
    """The log entry of a version."""
    return lab.table / "_delta_log" / f"{number:020d}.json"
