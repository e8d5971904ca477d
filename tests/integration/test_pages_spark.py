"""What README and docs let a reader run in Spark does what they say."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from airflow_epochs.model import OffsetRange
from airflow_epochs.read import CompleteEpoch, ReadableSink, complete_epoch
from stack.broker import Broker
from tests.support.faults_world import DiskWorld
from tests.support.spark_world import settings

pytestmark = pytest.mark.jvm

ROOT = Path(__file__).parents[2]


def samples(page: str) -> list[str]:
    """The page's Python."""
    found = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [inspect.cleandoc(f"\n{sample}") for sample in found]


def test_the_transform_in_the_readme_sends_what_is_no_order_to_rejected_with_its_place(session: Any) -> None:
    names: dict[str, Any] = {}
    exec(samples("README.md")[1], names)
    good = b'{"order_id": "o-1", "customer": "c", "amount": 1.5, "ts": "2026-01-02T03:04:05Z"}'
    bad = {1: b"a\xffb", 2: b'{"order_id": "x"}', 3: None, 4: b"[]"}
    records = [(good, "orders", 0, 0), *((value, "orders", 0, offset) for offset, value in bad.items())]
    found = names["orders"](
        session.createDataFrame(records, "value binary, topic string, partition int, offset long"), None
    )
    [order] = found["orders"].collect()
    assert (order.order_id, order.amount, order.day, order.offset) == ("o-1", 1.5, date(2026, 1, 2), 0)
    rejected = {(row.topic, row.partition, row.offset, row.error) for row in found["rejected"].collect()}
    assert rejected == {("orders", 0, offset, "not an order") for offset in bad}


def test_spark_reads_a_table_as_of_a_complete_epoch(session: Any, all_read: DiskWorld) -> None:
    counts = []
    for number in (1, 2):
        epoch = complete_epoch("orders", number, ledger_root=str(all_read.ledger_root))
        names: dict[str, Any] = {"spark": session, "epoch": epoch}
        exec(samples("docs/reading.md")[1].partition("\n\n\n")[0], names)
        counts.append([names["table"](sink).count() for sink in ("orders", "audit")])
    assert counts == [[4, 4], [9, 9]]


def test_the_history_of_a_table_lists_the_epochs_with_their_ends(session: Any, all_read: DiskWorld) -> None:
    [line] = re.findall(
        r"^`(spark\.sql\(\"DESCRIBE HISTORY .*)`", (ROOT / "docs" / "delta.md").read_text(), re.MULTILINE
    )
    line = line.replace("…", f"delta.`{all_read.table('orders')}`").replace("<pipeline>/<sink>", "orders/orders")
    found = eval(line, {"spark": session}).orderBy("version").collect()
    notes = [json.loads(row.userMetadata)["airflow_epochs"] for row in found]
    assert [note["txn"].split("/")[:2] for note in notes] == [["orders", "1"], ["orders", "2"]]
    assert [note["ends"] for note in notes] == [
        {topic: {str(r.partition): r.end for r in ranges} for topic, ranges in record.ranges.items()}
        for record in map(all_read.ledger.complete_record, (1, 2))
        if record
    ]


def test_spark_reads_the_rows_of_one_epoch_from_a_topic(session: Any, broker: Broker) -> None:
    topic = "pages-events"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(10):
        producer.produce(topic, str(number), partition=0)
    producer.flush()
    shown = ReadableSink(table=None, version=None, epoch=1, topic=topic, offsets=(OffsetRange(0, 3, 5),))
    epoch = CompleteEpoch(pipeline="orders", number=1, ranges={}, completed_at="", sinks={"events": shown})
    sample = samples("docs/reading.md")[3].replace("kafka-1:9092", broker.bootstrap)
    names: dict[str, Any] = {"spark": session, "epoch": epoch, "json": json}
    exec(sample.replace("reader.option(", "found = reader.option("), names)
    assert [row.offset for row in names["found"].orderBy("offset").collect()] == [3, 4]


VALUES: list[tuple[str, Any, Any, Any]] = [
    ("float", 1e300, math.inf, math.inf),
    ("tinyint", 300, "refused", 44),
    ("int", 2**40, "refused", 0),
    ("decimal(5,2)", 1.5, "refused", None),
    ("int", 1.9, 1, None),
    ("boolean", "false", False, None),
]
"""A type, what a function returns for it, and what Spark makes of that: with Arrow, and without."""


@pytest.mark.long
@pytest.mark.parametrize("arrow", [True, False])
def test_spark_makes_of_a_value_that_does_not_fit_its_type_what_the_page_says(session: Any, arrow: bool) -> None:
    def made(kind: str, value: Any) -> Any:
        try:
            return session.range(1).select(F.udf(lambda _: value, kind)("id")).collect()[0][0]
        except PySparkException:
            return "refused"

    with settings(session, {"spark.sql.execution.pythonUDF.arrow.enabled": str(arrow).lower()}):
        assert [made(kind, value) for kind, value, *_ in VALUES] == [each[2 if arrow else 3] for each in VALUES]
        text = made("string", b"abc")
        assert text == "b'abc'" if arrow else re.fullmatch(r"\[B@[0-9a-f]+", text)


ON_TIMES: dict[str, Callable[[Any], Any]] = {
    "pandas_udf": lambda rows: rows.select(F.pandas_udf(lambda times: times, "timestamp")("ts").alias("ts")),
    "mapInPandas": lambda rows: rows.mapInPandas(lambda frames: frames, "ts timestamp"),
    "applyInPandas": lambda rows: rows.groupBy("ts").applyInPandas(lambda rows: rows, "ts timestamp"),
    "mapInArrow": lambda rows: rows.mapInArrow(lambda batches: batches, "ts timestamp"),
    "udf": lambda rows: rows.select(F.udf(lambda time: time, "timestamp")("ts").alias("ts")),
}


@pytest.mark.long
@pytest.mark.parametrize("how", ON_TIMES)
def test_functions_of_pandas_move_instants_of_the_hour_that_comes_twice_unless_the_zone_is_utc(
    session: Any, how: str
) -> None:
    twice = {1793511000, 1793514600}  # 01:30 in New York, in summer time and after it

    def kept(zone: str) -> bool:
        with settings(session, {"spark.sql.session.timeZone": zone}):
            rows = session.createDataFrame([(each,) for each in twice], "s long").select(
                F.timestamp_seconds("s").alias("ts")
            )
            return {row.s for row in ON_TIMES[how](rows).select(F.unix_seconds("ts").alias("s")).collect()} == twice

    assert (kept("UTC"), kept("America/New_York")) == (True, "andas" not in how)
