"""Kafka to Delta out of Avro and Protobuf, beside JSON: the same orders, in one warm session, in turn."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import fastavro

from airflow_epochs.coordinator.coordinator import Transform
from airflow_epochs.kafka.protobuf_files import compiled
from stack.broker import Broker
from stack.jars import fetch
from tests.perf.apps import format_rows
from tests.perf.figures import Figure, figure, ratios, timed_in_turn
from tests.perf.json_figures import an_order
from tests.perf.spark_figures import create_topic, epoch, produce_to, warm_session
from tests.support.protobuf_world import message_class, written

RECORDS = 1_000_000
BEGIN = datetime(2026, 11, 21, tzinfo=timezone.utc)


def figures() -> list[Figure]:
    files = compiled(format_rows.PROTOBUF, {})
    format_rows.DESCRIPTOR.write_bytes(files)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            Broker(Path(folder, "broker"), jars := fetch("spark", "broker")) as kafka,
        ):
            values: dict[str, Iterator[str] | Iterator[bytes]] = {
                "json": _json(),
                "avro": _avro(),
                "protobuf": _protobuf(files),
            }
            for name, records in values.items():
                create_topic(kafka.bootstrap, name)
                produce_to(kafka.bootstrap, name, records)
            with warm_session(jars, Path(folder)) as spark:
                made = partial(epoch, spark, kafka.bootstrap, Path(folder, "epoch"))
                runs: dict[str, Callable[[], object]] = {name: partial(_run, made, name) for name in values}
                return _compared(timed_in_turn(runs))
    finally:
        format_rows.DESCRIPTOR.unlink()


def _run(made: Callable[..., object], name: str) -> None:
    made(Transform(path=str(Path(format_rows.__file__)), function=name), RECORDS, name)


def _compared(seconds: dict[str, list[float]]) -> list[Figure]:
    others = [name for name in seconds if name != "json"]
    return [
        *(figure(f"parse_{name} ÷ parse_json", "ratio", ratios(seconds[name], seconds["json"])) for name in others),
        *(figure(f"{name}: an epoch", "M rows/s", [RECORDS / s / 1e6 for s in seconds[name]]) for name in seconds),
    ]


def _orders() -> Iterator[dict[str, Any]]:
    for number in range(RECORDS):
        order = {"order_id": number, "customer": f"c{number % 1000:06}", "amount": number % 9973 / 7}
        yield {**order, "ts": BEGIN + timedelta(seconds=number % 86_400)}


def _json() -> Iterator[str]:
    return (json.dumps(an_order(number)) for number in range(RECORDS))


def _avro() -> Iterator[bytes]:
    schema = fastavro.parse_schema(format_rows.AVRO)
    for order in _orders():
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, order)
        yield b"\0" + format_rows.NUMBER.to_bytes(4, "big") + out.getvalue()


def _protobuf(files: bytes) -> Iterator[bytes]:
    made = message_class(files, "shop.Order")
    return (written(format_rows.NUMBER, made(**order)) for order in _orders())
