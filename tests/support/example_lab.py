"""Runs the example DAGs as they stand in ``dags``: Airflow's own code over a broker, Spark and Delta."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from orders_demo.duck import duck
from stack.broker import Broker
from stack.connect import ConnectServer
from stack.jars import Jars
from tests.support.airflow_harness import Harness
from tests.support.kafka_sink_world import seen_by_confluent, values
from tests.support.kafka_tools import run as run_tool
from tests.support.waiting import wait_until

DAGS = Path(__file__).parents[2] / "dags"
PARTITIONS = 2
MARKERS = "airflow-epochs-markers"
Place = tuple[str, int, int]
"""Topic, partition, offset."""
NO_AMOUNTS: Sequence[Any] = (None, "a lot", 10**10, {}, "NaN")
"""What is no decimal of the examples: missing, no number, too large."""


class Lab:
    """Connections as Airflow has them, a lake, and topics; which are the broker's, so each test needs its own."""

    def __init__(self, folder: Path, broker: Broker, connect: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lake, self.bootstrap, self._set = folder / "lake", broker.bootstrap, monkeypatch.setenv
        monkeypatch.setenv("LAKE", str(self.lake))
        self.connect("kafka_default", "kafka", extra={"bootstrap.servers": broker.bootstrap, "group.id": "examples"})
        self.connect("spark_connect_default", "spark_connect", **connect.where)
        self.connect("epochs_default", "epochs", extra={"ledger_root": str(folder / "ledger")})

    def connect(self, conn_id: str, conn_type: str, **fields: Any) -> None:
        self._set(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": conn_type, **fields}))

    def create(self, *topics: str) -> None:
        """Topics, emptied of what another test may have left. So is the marker topic: each test has its own ledger."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        if known := [topic for topic in (*topics, MARKERS) if topic in admin.list_topics(timeout=10).topics]:
            for deleted in admin.delete_topics(known).values():
                deleted.result()
            wait_until(lambda: not {*known} & {*admin.list_topics(timeout=10).topics})
        for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
            created.result()
        wait_until(lambda: {*topics} <= {*admin.list_topics(timeout=10).topics})

    def produce(self, topic: str, messages: Iterable[Any], at: datetime | None = None) -> dict[Place, bytes | None]:
        """What was sent, by the place that the broker told. ``at``: the time that the producer gives the records."""
        at_ms = int(at.timestamp() * 1000) if at else 0
        producer, sent = Producer({"bootstrap.servers": self.bootstrap}), {}

        def told(error: Any, message: Any) -> None:
            assert error is None
            sent[message.topic(), message.partition(), message.offset()] = message.value()

        for number, message in enumerate(messages):
            value = message if isinstance(message, bytes | None) else json.dumps(message).encode()
            producer.produce(topic, value=value, partition=number % PARTITIONS, timestamp=at_ms, on_delivery=told)
        assert producer.flush(30) == 0
        return sent

    def events(self, topic: str) -> list[Any]:
        """What a consumer that reads committed records has of a topic."""
        seen = [values(seen_by_confluent(self.bootstrap, topic, partition)) for partition in range(PARTITIONS)]
        return [json.loads(value) for each in seen for value in each if value]

    def printed(self, jars: Jars, topic: str) -> list[Any]:
        """What Kafka's console consumer prints of a topic."""
        command = ["kafka-console-consumer.sh", "--topic", topic, "--from-beginning", "--timeout-ms", "3000"]
        command += ["--isolation-level", "read_committed"]
        lines = run_tool(jars, self.bootstrap, command)
        return [json.loads(line) for line in lines if line.startswith("{")]  # the others: the tool's own timeout

    def table(self, path: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(str(self.lake / path)).to_pyarrow_table().to_pylist()
        return rows

    def seen_by_duckdb(self, path: str, columns: str) -> list[Any]:
        with duck() as database:
            return database.execute(f"SELECT {columns} FROM delta_scan('{self.lake / path}')").fetchall()

    def rejected(self, path: str) -> dict[Place, tuple[bytes | None, str]]:
        """By place, what DuckDB sees of a table of dead letters: the record as it was, and the error."""
        rows = self.seen_by_duckdb(path, 'topic, "partition", "offset", value, error')
        found = {(topic, partition, offset): (value, error) for topic, partition, offset, value, error in rows}
        assert len(found) == len(rows)
        return found


def poison(missing: str, unfit: Mapping[str, Sequence[Any]], **record: Any) -> dict[bytes | None, str]:
    """Records that would stop or spoil a pipeline that took them, and what an example with state says of them.

    Args:
        missing: What it says without the first field, which is text.
        unfit: What it says of values that the last field must not have.
        record: A good record, but for its time.
    """

    def but(ts: object = "2026-01-02T10:00:00Z", **changes: Any) -> bytes:
        return json.dumps({**record, "ts": ts, **changes}).encode()

    first, last = next(iter(record)), list(record)[-1]
    found: dict[bytes | None, str] = {but(**{first: "bad?"}).replace(b"?", b"\xff"): "not UTF-8"}
    found |= dict.fromkeys((None, b"", b"\0", b"[]", b"[" + but() + b"]", but(**{first: None})), missing)
    found |= {but(**{last: value}): reason for reason, values in unfit.items() for value in values}
    found |= dict.fromkeys((but(ts) for ts in (None, "soon", "+300000-01-02T03:04:05Z")), "no timestamp")
    times = ("0001-01-01T00:00:00Z", "1600-01-01T00:00:00Z", "2500-01-01T00:00:00Z", "+294247-01-10T03:59:59Z")
    return found | dict.fromkeys(map(but, times), "a time before 1970, or to come")


def told(
    sent: Mapping[Place, bytes | None], reasons: Mapping[bytes | None, str]
) -> dict[Place, tuple[bytes | None, str]]:
    """What ``rejected`` has to have: every record that has a reason, once, under its place."""
    return {place: (value, reasons[value]) for place, value in sent.items() if value in reasons}


def dags_of(name: str) -> dict[str, Harness]:
    """What Airflow finds in an example's file."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(DAGS / f"{name}.py"))
    assert not bag.import_errors
    return {dag_id: Harness(dag) for dag_id, dag in bag.dags.items()}
