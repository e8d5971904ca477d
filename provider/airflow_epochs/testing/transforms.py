"""Runs a transform on records that a test makes up, on Spark in the test's own process. No broker, no Airflow.

    rows = run_transform("spark_apps/orders.py:orders", records=[{"order_id": "a", "amount": "9.50"}])
    assert rows["rejected"][0]["error"] == "no customer"

It needs pyspark (``pip install pyspark``; the client alone has no Spark) and Java 17. The first call of a process takes
about 5 s, because Spark starts; later ones share that Spark.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import warnings
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow_epochs.config import Transform
from airflow_epochs.event_time import micros
from airflow_epochs.schemas import WriterSchema
from airflow_epochs.spark.driver import determinism, letters, transform, user_files
from airflow_epochs.spark.driver.plans import EventTimePlan, StagePlan, TransformFile
from airflow_epochs.transforms.registries import Registry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_epochs.event_time import EventTime

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
KAFKA_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
"""The columns of Spark's Kafka source with ``includeHeaders``, and their types."""

MadeUpTable = tuple[str, Sequence[Mapping[str, object]]]
"""A table that a test makes up: its columns as SQL, and its rows, with values as ``createDataFrame`` takes them."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """A Kafka record. ``bytes`` stay as they are, ``str`` becomes UTF-8, None stays NULL, all else becomes JSON.

    Attributes:
        value: The record's value. None: a tombstone.
        key: The record's key.
        topic, partition: Where it is.
        offset: None: the number of records before it in its partition.
        timestamp: When it was produced, with its zone; None: the epoch's ``now``.
        headers: Name -> value.
    """

    value: object
    key: object = None
    topic: str = "topic"
    partition: int = 0
    offset: int | None = None
    timestamp: datetime | None = None
    headers: Mapping[str, object] = field(default_factory=dict)


def run_transform(
    path: str,
    *,
    records: Iterable[object] = (),
    table: MadeUpTable | None = None,
    state: Mapping[str, MadeUpTable] | None = None,
    sinks: Sequence[str] | None = None,
    dead_letters: str | None = None,
    epoch: int = 1,
    now: datetime = NOW,
    watermark: datetime | None = None,
    previous_watermark: datetime | Sequence[datetime | None] | None = None,
    event_time: EventTime | None = None,
    schemas: Mapping[int, str | bytes] | None = None,
    registry_conn_id: str = "schema_registry_default",
    spark: SparkSession | None = None,
) -> Any:
    """Run a transform, and return what it returns, with a list of rows in place of each DataFrame.

    A row is a dict. Rows come in no order that a test should rely on. What the task ``stage`` would warn of, such as
    ``current_timestamp()``, is a Python warning here. Expectations are not looked at, and rows are not judged as
    their sinks would: ``airflow epochs preview`` does that, as far as it can without asking them.

    Args:
        path: ``path/to/file.py:function``, as in the DAG; relative to the working directory.
        records: The epoch's records: ``Record`` objects, or values alone.
        table: What the epoch reads of a Delta table, in place of records.
        state: State table -> its rows before the epoch. Name every state table of the pipeline.
        sinks: The names of the pipeline's sinks and state tables. Then the result is checked as in a run. None: the
            transform may return any names.
        dead_letters: As in the pipeline. The transform may return rows for this sink, and need not.
        epoch: The number that the transform sees.
        now: The epoch's ``now``, with its zone.
        watermark: The epoch's watermark, with its zone; None: it has none yet.
        previous_watermark: The watermark of the epoch before. With a ``depth`` of several operators, a list: the
            watermarks of as many epochs before, newest first.
        event_time: As in the pipeline. A transform that calls ``epoch.event_time`` needs it.
        schemas: The schemas in the registry by their ids: Avro schemas as text, Protobuf's as FileDescriptorSets.
        registry_conn_id: The registry's connection, as the transform names it.
        spark: The session to use; None: Spark in this process.

    Returns:
        A list of rows, or a dict of such lists by sink.

    Raises:
        Refused: The transform raises, or does not return what the pipeline needs.
        ValueError: ``previous_watermark`` has too few watermarks for the ``depth``.
        ImportError: Spark is not installed.
    """
    session = spark or _local_spark()
    made = [_record(each) for each in records]
    marks = (watermark, *_earlier_watermarks(previous_watermark))
    _require_marks(marks, event_time)
    plan = _plan(path, made, state or {}, sinks, epoch, now, marks, event_time)
    if schemas is not None:
        plan = replace(plan, registry=_registry(registry_conn_id, schemas))
    with transform.loaded(plan.transform) as users:
        user_files.ship(session, user_files.siblings_of(plan.transform.path), _archives())
        batch = _frame(session, table or (KAFKA_COLUMNS, _kafka_rows(made, now)))
        before = {name: _frame(session, known) for name, known in (state or {}).items()}
        returned = users.returned(batch, transform.EpochContext.of(plan), before)
        frames = _checked(users, returned, sinks, dead_letters)
        _warn(session, users, frames)
        rows = {name: _rows(letters.plain(frame)) for name, frame in frames.items()}
    return rows if isinstance(returned, dict) else next(iter(rows.values()))


def _earlier_watermarks(previous: datetime | Sequence[datetime | None] | None) -> Sequence[datetime | None]:
    return (previous,) if previous is None or isinstance(previous, datetime) else previous


def _require_marks(watermarks: Sequence[datetime | None], event_time: EventTime | None) -> None:
    """Raise ValueError if watermarks are missing: an operator behind others would close nothing, and the test pass."""
    depth = event_time.depth if event_time else 1
    if watermarks[0] is not None and len(watermarks) <= depth:
        raise ValueError(
            f"EventTime has depth={depth}, and `previous_watermark` has {len(watermarks) - 1} of {depth} watermarks.\n"
            f"Give it a list with the watermarks of the {depth} epochs before, newest first."
        )


def _local_spark() -> SparkSession:
    from pyspark.sql import SparkSession
    from pyspark.util import is_remote_only

    if is_remote_only():
        raise ImportError(
            "Only the client of Spark Connect is installed, so Spark cannot run in this process.\n"
            "Type pip install pyspark, or give run_transform a session of a Connect server: spark=…."
        )
    if running := SparkSession.getActiveSession():
        return running
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the workers are whatever python3 the PATH has
    session: SparkSession = (
        SparkSession.builder.master("local[1]")
        .appName("run_transform")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


@cache
def _archives() -> Path:
    """A folder for archives. It lasts as long as Spark in this process, which may read it whenever a job begins."""
    folder = TemporaryDirectory(prefix="airflow-epochs-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _plan(
    path: str,
    records: Sequence[Record],
    state: Mapping[str, MadeUpTable],
    sinks: Sequence[str] | None,
    epoch: int,
    now: datetime,
    watermarks: Sequence[datetime | None],
    event_time: EventTime | None,
) -> StagePlan:
    """The plan of a stage job, as far as a transform sees it."""
    where = Transform.parse(path)
    return StagePlan(
        txn_id=f"test/{epoch}/1/0",
        pipeline="test",
        epoch=epoch,
        attempt=1,
        now=now.isoformat(),
        seed=epoch,
        read={},
        transform=TransformFile(path=str(Path(where.path).resolve()), function=where.function),
        outputs=tuple(sinks or ()),
        sinks={name: {} for name in state},
        watermarks=tuple(None if mark is None else micros(mark) for mark in watermarks),
        event_time=_event_time(event_time, records, now) if event_time else None,
    )


def _registry(conn_id: str, schemas: Mapping[int, str | bytes]) -> Registry:
    return Registry(conn_id=conn_id, schemas={str(number): _schema(told) for number, told in schemas.items()})


def _schema(told: str | bytes) -> WriterSchema:
    if isinstance(told, bytes):
        return WriterSchema(kind="PROTOBUF", text=b64encode(told).decode())
    return WriterSchema(kind="AVRO", text=told)


def _event_time(event_time: EventTime, records: Sequence[Record], now: datetime) -> EventTimePlan:
    partitions: dict[str, set[int]] = {}
    for record in records:
        partitions.setdefault(record.topic, set()).add(record.partition)
    return EventTimePlan(
        partitions={topic: tuple(sorted(of)) for topic, of in partitions.items()},
        newest_allowed=event_time.newest_allowed(now.isoformat()),
        depth=event_time.depth,
    )


def _record(given: object) -> Record:
    return given if isinstance(given, Record) else Record(value=given)


def _kafka_rows(records: Iterable[Record], now: datetime) -> list[dict[str, object]]:
    before: Counter[tuple[str, int]] = Counter()
    rows: list[dict[str, object]] = []
    for record in records:
        place = (record.topic, record.partition)
        rows.append(_kafka_row(record, before[place] if record.offset is None else record.offset, now))
        before[place] += 1
    return rows


def _kafka_row(record: Record, offset: int, now: datetime) -> dict[str, object]:
    return {
        "key": _bytes(record.key),
        "value": _bytes(record.value),
        "topic": record.topic,
        "partition": record.partition,
        "offset": offset,
        "timestamp": record.timestamp or now,
        "timestampType": 0,
        "headers": [(name, _bytes(value)) for name, value in record.headers.items()] or None,
    }


def _bytes(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)).encode()


def _frame(spark: SparkSession, table: MadeUpTable) -> DataFrame:
    columns, rows = table
    names = spark.createDataFrame([], columns).columns
    for row in rows:
        if unknown := sorted(set(row) - set(names)):
            raise ValueError(f"A row has {', '.join(unknown)}, which the columns lack: {columns}.")
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], columns)


def _checked(
    users: transform.LoadedTransform, returned: object, sinks: Sequence[str] | None, dead_letters: str | None
) -> dict[str, DataFrame]:
    names = sinks if sinks is not None else returned if isinstance(returned, dict) else ["rows"]
    return users.frames_of(returned, sorted(set(names) - {dead_letters}), letters=dead_letters)


def _warn(spark: SparkSession, users: transform.LoadedTransform, frames: Mapping[str, DataFrame]) -> None:
    udfs = determinism.nondeterministic_udfs(users.module)
    for sink, plan in determinism.analysed_plans(spark, frames).items():
        for text in determinism.warnings(sink, plan, udfs, dict(frames[sink].dtypes)):
            warnings.warn(text, stacklevel=3)


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]
