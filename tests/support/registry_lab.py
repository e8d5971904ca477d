"""A topic with orders of two schemas of a registry, and the transform that a page shows for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from airflow_epochs import DeltaSink
from tests.support.state_lab import Lab

Record = Callable[[int], bytes]
Row = tuple[Any, ...]
ORDERS = 30


def order(number: int) -> dict[str, object]:
    """The fields that an order has in both schemas."""
    return {"order_id": f"o{number}", "amount": number}


def shown_and_rejected(lab: Lab, app: Path, first: Record, second: Record) -> tuple[list[Row], list[Row]]:
    """Run an epoch over orders of both schemas and records of neither: what DuckDB reads of the two tables."""
    producer = Producer({"bootstrap.servers": lab.broker.bootstrap})
    for number in range(ORDERS):
        producer.produce(lab.topic, first(number), partition=0)
        producer.produce(lab.topic, second(number), partition=1)
        producer.produce(lab.topic, b"of no schema", partition=2)
    assert producer.flush(30) == 0
    sinks = (DeltaSink("orders", lab.at("orders")), DeltaSink("rejected", lab.at("rejected")))
    lab.run(lab.task("orders", "orders", sinks, None, app=app))
    return sorted(lab.rows("orders", "order_id, amount, channel"), key=repr), lab.rows("rejected", "error")


def orders_of(first: str | None, second: str | None) -> list[Row]:
    """The rows of all orders, with the channels that those of the two schemas have."""
    rows = [(f"o{n}", float(n), channel) for n in range(ORDERS) for channel in (first, second)]
    return sorted(rows, key=repr)
