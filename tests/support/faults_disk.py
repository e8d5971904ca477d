"""What is real on disk in the tests of faults: input that outlives a process, and a Spark that only stages.

``FileSource`` and ``DiskSpark`` stand for Kafka and Spark; tables, ledger and coordinator are the real ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from airflow_epochs.contracts import Environment, Limits, PlannedEpoch, Position, SparkJob, SparkRead, SparkRunner
from airflow_epochs.errors import Corrupt, NotApplied
from airflow_epochs.model import JsonDict, OffsetRange, Ranges
from airflow_epochs.spark.driver.plans import InputMetrics, SinkOutcome, StageOutcome, StagePlan, TableRead
from airflow_epochs.spark.driver.wire import as_json, from_json
from tests.support.delta_world import stage_with_deltalake

TOPIC = "orders"
PARTITIONS = (0, 1)

Row = tuple[int, int, str]
"""Partition, offset and payload, which is a function of the two."""


def payload(partition: int, offset: int) -> str:
    """What the record at this offset says; a row in the wrong place or of the wrong epoch cannot pass for it."""
    return hashlib.sha256(f"{TOPIC}/{partition}/{offset}".encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """A topic of two partitions, each a file with one record per line. Takes what is there; never waits."""

    folder: str

    @property
    def name(self) -> str:
        """Goes into every row: tells the rows of two pipelines apart in one table."""
        return Path(self.folder).name

    def spec(self) -> JsonDict:
        return {"kind": "file", "folder": self.folder}

    def plan(self, position: Position | None, limits: Limits, env: Environment) -> PlannedEpoch | None:
        starting = limits.starting[TOPIC] if isinstance(limits.starting, dict) else {}
        before = {int(partition): offset for partition, offset in starting.items()}
        if position:
            before = {r.partition: r.end for r in position.ranges.get(TOPIC, ())}
        ranges = tuple(OffsetRange(p, before.get(p, 0), len(self._records(p))) for p in PARTITIONS)
        if any(r.start > r.end for r in ranges):
            raise Corrupt("Records that were read are gone: the input is an older copy.", remedy="restore the input.")
        if all(r.start == r.end for r in ranges):
            return None
        return PlannedEpoch(ranges={TOPIC: ranges}, state={"topic": TOPIC})

    def check(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        if TOPIC not in ranges:
            raise Corrupt(f"The ledger names no offsets of {TOPIC}.", remedy="restore the record.")
        for r in ranges[TOPIC]:
            if r.end > len(self._records(r.partition)):
                raise Corrupt(f"{TOPIC}-{r.partition}: [{r.start}, {r.end}) is gone.", remedy="restore the input.")

    def spark_read(self, ranges: Ranges, env: Environment) -> SparkRead:
        return SparkRead(options={"folder": self.folder, "ranges": json.dumps(ranges)})

    def acknowledge(self, pipeline: str, ranges: Ranges, env: Environment) -> None:
        """Nobody watches the lag of a file."""

    def produce(self, records: int) -> None:
        """Append records, in turn to each partition."""
        Path(self.folder).mkdir(exist_ok=True)
        for _ in range(records):
            lengths = {p: len(self._records(p)) for p in PARTITIONS}
            partition = min(PARTITIONS, key=lambda p: lengths[p])
            with self._path(partition).open("a") as file:
                file.write(payload(partition, lengths[partition]) + "\n")

    def all_rows(self) -> list[Row]:
        """Everything ever produced, as sinks have to show it."""
        return [(p, offset, text) for p in PARTITIONS for offset, text in enumerate(self._records(p))]

    def _path(self, partition: int) -> Path:
        return Path(self.folder, f"{TOPIC}-{partition}")

    def _records(self, partition: int) -> list[str]:
        path = self._path(partition)
        return path.read_text().splitlines() if path.exists() else []


@dataclass(frozen=True, kw_only=True)
class StartingSource(FileSource):
    """Its first epoch starts where it is told to, as that of ``KafkaSource`` does."""

    starting: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def plan(self, position: Position | None, limits: Limits, env: Environment) -> PlannedEpoch | None:
        if position is None and self.starting:
            at = tuple(OffsetRange(p, 0, self.starting[TOPIC].get(str(p), 0)) for p in PARTITIONS)
            position = Position(ranges={TOPIC: at}, state={})
        return super().plan(position, limits, env)


class DiskSpark:
    """Stages as the plan says, into real Delta tables, sink after sink. ``reached`` sees each of its steps.

    Every other job is for real Spark, ``elsewhere``; where there is none, no answer arrives.
    """

    def __init__(self, reached: Callable[[str], None], elsewhere: SparkRunner | None = None) -> None:
        self.reached = reached
        self.elsewhere = elsewhere
        self.staged: list[StagePlan] = []

    def new_session(self) -> JsonDict:
        return {"kind": "disk"}

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        if job.kind != "stage" and self.elsewhere:
            return self.elsewhere.run(job, session)
        if job.kind != "stage":
            raise NotApplied(f"There is no Spark here for {job.kind}.", remedy="start one.")
        plan = from_json(StagePlan, job.args)
        self.staged.append(plan)
        claims = {}
        for name in plan.sinks:
            self.reached(f"staging.{name}")
            claims[name] = stage_sink(plan, name)
            self.reached(f"staged.{name}")
        return as_json(StageOutcome(sinks=claims, metrics=InputMetrics(rows_in=len(_read(plan.read)))))

    def cancel(self) -> None:
        """Nothing runs while anybody could cancel it."""

    def stop(self, session: JsonDict) -> None:
        """A session of this Spark ends with its process."""


class TableSpark(DiskSpark):
    """Stages what lies in a table, too."""

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        plan = from_json(StagePlan, job.args)
        if plan.table is None:
            return super().run(job, session)
        rows, claims = in_versions(plan.table), {}
        for name, told in plan.sinks.items():
            self.reached("staging.downstream")
            claims[name] = SinkOutcome(place=stage_with_deltalake(told, rows).place)
        return as_json(StageOutcome(sinks=claims, metrics=InputMetrics(rows_in=len(rows))))


def in_versions(read: TableRead) -> pa.Table:
    """The rows that Spark is told to read."""
    if read.start == 0:
        return DeltaTable(read.location, version=read.end - 1).to_pyarrow_table()
    schema = DeltaTable(read.location, version=read.end - 1).to_pyarrow_table().schema
    return pa.concat_tables(
        [schema.empty_table(), *(pq.read_table(f"{read.location}/{file}").cast(schema) for file in read.files)]
    )


def stage_sink(plan: StagePlan, name: str) -> SinkOutcome:
    """Stage one sink's rows as a stage job says."""
    told = plan.sinks[name]
    return SinkOutcome(place=stage_with_deltalake(told, _fitted(_together(plan, name), told)).place)


def _together(plan: StagePlan, sink: str) -> pa.Table:
    """The rows of the epoch and of those that are replayed with it; of rows that replace each other, the newest."""
    by, tables, found = plan.replaces_by.get(sink, ()), [], set[tuple[object, ...]]()
    for each in (plan, *reversed(plan.earlier)):
        rows = _read(each.read)
        keys = [tuple(row[name] for name in by) for row in rows.to_pylist()]
        tables.append(rows.filter(pa.array([not by or key not in found for key in keys])))
        found.update(keys)
    return pa.concat_tables(tables)


def _fitted(data: pa.Table, plan: JsonDict) -> pa.Table:
    """With nulls in the columns that the target has got since."""
    for column in (plan["schema"] or {"fields": []})["fields"]:
        if column["name"] not in data.column_names:
            data = data.append_column(column["name"], pa.nulls(len(data), pa.string()))
    return data


def _read(options: dict[str, str]) -> pa.Table:
    source = FileSource(folder=options["folder"])
    ranges = {r[0]: OffsetRange(*r) for r in json.loads(options["ranges"])[TOPIC]}
    rows = [row for row in source.all_rows() if ranges[row[0]].start <= row[1] < ranges[row[0]].end]
    partitions, offsets, payloads = zip(*rows, strict=True)
    return pa.table(
        {
            "source": pa.array([source.name] * len(rows), pa.string()),
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "payload": pa.array(payloads, pa.string()),
        }
    )
