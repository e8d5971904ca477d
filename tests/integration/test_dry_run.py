"""A dry run shows how an epoch would differ, and changes nothing: Spark, a broker, PostgreSQL, Delta tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaAdminClient
from kafka import TopicPartition as Partition

from airflow_epochs import KafkaSink, SqlSink, expect
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.dry_run import DryRun, SinkResult, dry_run
from airflow_epochs.errors import Corrupt, EpochError, Refused
from airflow_epochs.model import Run
from airflow_epochs.testing import Crash
from stack.postgres import Postgres
from tests.support.faults_world import crash
from tests.support.kafka_sink_world import create
from tests.support.sql_world import Db, new_postgres
from tests.support.state_lab import Lab, seen_pages

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

PRICED = """
from pyspark.sql import functions as F

def priced(batch, epoch):
    order = F.from_json(F.col("value").cast("string"), "id string, amount long, day string")
    rows = batch.select(epoch.record, order.alias("o")).select("__record", "o.*")
    is_order = F.col("id").isNotNull()
    good = rows.where(is_order).withColumn("amount", {amount})
    origin = [F.col("__record." + name).alias(name) for name in ("topic", "partition", "offset")]
    return {{
        "lake": good,
        "database": good.select("__record", "id", "amount"),
        "events": good.select("__record", F.col("id").alias("key"), "amount"),
        "rejected": rows.where(~is_order).select(*origin, F.lit("no order").alias("error")),
    }}
"""
THEN = "F.when(F.col('amount') > 100, F.col('amount') - 1).otherwise(F.col('amount'))"
"""The bug: it takes one from large amounts."""
NOW = "F.col('amount')"
ORDERS = [("a", 5), ("b", 500), ("b", 500), ("c", 700), ("d", 100)]


@pytest.fixture
def db(postgres: Postgres, lab: Lab) -> Db:
    made = new_postgres(postgres)
    made.run(f"CREATE TABLE {made.table('orders')} (id varchar(3) NOT NULL, amount bigint)")
    lab.connections["db"] = made.connection()
    create(lab.admin, f"events-{lab.topic}")
    return made


def sent(lab: Lab, *values: tuple[str, int] | bytes) -> None:
    producer = Producer({"bootstrap.servers": lab.broker.bootstrap})
    for value in values:
        text = value if isinstance(value, bytes) else json.dumps({"id": value[0], "amount": value[1], "day": "mon"})
        producer.produce(lab.topic, text, partition=0)
    assert producer.flush(20) == 0


def code(lab: Lab, amount: str) -> Path:
    path = lab.folder / "apps" / f"priced_{abs(hash(amount))}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(PRICED.format(amount=amount))
    return path


def orders(lab: Lab, db: Db, amount: str = THEN, **options: Any) -> Coordinator:
    """Orders in a partitioned table, a database and a topic; what is no order in a table of dead letters."""
    staging = str(lab.folder / "staging")
    (lake, letters) = lab.outputs("lake", "rejected")
    lake.partition_by = ["day"]
    database = SqlSink("database", "db", db.table("orders"), staging=staging)
    markers = f"markers-{lab.topic}"
    events = KafkaSink("events", f"events-{lab.topic}", staging=staging, conn_id="kafka", marker_topic=markers)
    usual = {"dead_letters": "rejected", "app": code(lab, amount)}
    return lab.task("orders", "priced", (lake, database, events, letters), None, **{**usual, **options})


def everything(lab: Lab, db: Db | None = None) -> dict[str, Any]:
    """All that a dry run must leave as it is: every file, the ends of all topics, the rows of the database."""
    found = [path for path in lab.folder.rglob("*") if "apps" not in path.parts]
    files = {str(path): path.stat().st_mtime_ns for path in found if path.is_file()}
    ends = {}
    consumer = Consumer({"bootstrap.servers": lab.broker.bootstrap, "group.id": "looks"})
    for name, topic in consumer.list_topics(timeout=10).topics.items():
        if name.endswith(lab.topic):
            for number in topic.partitions:
                ends[name, number] = consumer.get_watermark_offsets(TopicPartition(name, number), timeout=10)
    consumer.close()
    tables = db.run("SELECT relname, n_tup_ins FROM pg_stat_user_tables") if db else []
    rows = db.run(f"SELECT id, amount FROM {db.table('orders')}") if db else []
    return {"files": files, "ends": ends, "rows": sorted(rows), "tables": len(tables)}


def played(lab: Lab, db: Db, epoch: int = 1, amount: str = THEN, sample: int = 5, **options: Any) -> DryRun:
    return dry_run(orders(lab, db, amount, **options).task, epoch, sample)


def by_sink(told: DryRun) -> dict[str, SinkResult]:
    return {each.sink: each for each in told.sinks}


def counts(each: SinkResult) -> tuple[int | None, int | None, int | None, int | None]:
    found = each.difference
    return (each.rows_then, each.rows_now, found.only_then if found else None, found.only_now if found else None)


def samples(each: SinkResult) -> tuple[list[Any], list[Any]]:
    assert each.difference
    return [json.loads(row) for row in each.difference.sample_then], [
        json.loads(row) for row in each.difference.sample_now
    ]


def test_a_corrected_transform_shows_exactly_the_rows_that_change_and_the_same_one_none(lab: Lab, db: Db) -> None:
    sent(lab, *ORDERS, ("long", 1), b"no order")
    lab.run(orders(lab, db))
    sent(lab, ("z", 900))
    lab.run(orders(lab, db))
    before = everything(lab, db)
    same, other = played(lab, db), played(lab, db, amount=NOW, sample=2)
    assert everything(lab, db) == before
    assert {name: counts(each) for name, each in by_sink(same).items()} == {
        "database": (5, 5, None, None),
        "events": (6, 6, 0, 0),
        "lake": (6, 6, 0, 0),
        "rejected": (2, 2, 0, 0),
    }
    assert same.decision.value == other.decision.value == "GLOBAL_COMMIT"
    assert same.code_then == same.code_now != other.code_now
    found = by_sink(other)
    assert {name: counts(each) for name, each in found.items()} == {
        "database": (5, 5, None, None),
        "events": (6, 6, 3, 3),
        "lake": (6, 6, 3, 3),
        "rejected": (2, 2, 0, 0),
    }
    assert found["database"].dead_letters == 1
    assert "cannot tell the rows of one epoch from others" in found["database"].note
    b_then, b_now = ({"amount": amount, "day": "mon", "id": "b"} for amount in (499, 500))
    c_then, c_now = ({"amount": amount, "day": "mon", "id": "c"} for amount in (699, 700))
    assert samples(found["lake"]) == ([b_then, c_then], [b_now, c_now])
    assert [json.loads(each["value"])["amount"] for each in samples(found["events"])[1]] == [500, 700]


def test_what_the_vote_would_refuse_is_shown_and_nothing_is_written(lab: Lab, db: Db) -> None:
    sent(lab, *ORDERS)
    lab.run(orders(lab, db))
    before = everything(lab, db)
    expected = {"lake": [expect("amount < 600"), expect("id <> 'd'", otherwise="warn")]}
    told = played(lab, db, amount=NOW, expectations=expected)
    assert everything(lab, db) == before
    found = by_sink(told)
    assert told.decision.value == "GLOBAL_ABORT"
    assert len(told.reasons) == 1
    assert "EPOCHS-EXPECTATION-UNMET" in told.reasons[0]
    assert "amount < 600" in told.reasons[0]
    assert found["lake"].broken == {"amount < 600": 1, "id <> 'd'": 1}
    assert found["lake"].vote
    assert found["lake"].vote.vote.value == "VOTE_ABORT"
    assert found["events"].vote
    assert found["events"].vote.vote.value == "VOTE_COMMIT"
