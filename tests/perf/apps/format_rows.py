"""The same orders out of JSON, Avro and Protobuf, for ``format_figures``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_epochs.transforms import parse_avro, parse_json, parse_protobuf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NUMBER = 7
"""The id of the schema that all records have."""
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "order_id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
PROTOBUF = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order { int64 order_id = 1; string customer = 2; double amount = 3; google.protobuf.Timestamp ts = 4; }
"""
DESCRIPTOR = Path(__file__).with_name("order.bin")
"""Where the measurement puts what protoc makes of it."""


def json(batch: DataFrame, epoch: object) -> DataFrame:
    return parse_json(batch, "order_id long, customer string, amount double, ts timestamp").rows


def avro(batch: DataFrame, epoch: object) -> DataFrame:
    return parse_avro(batch, AVRO, schemas={NUMBER: AVRO}).rows


def protobuf(batch: DataFrame, epoch: object) -> DataFrame:
    files = DESCRIPTOR.read_bytes()
    return parse_protobuf(batch, "shop.Order", files, schemas={NUMBER: files}).rows
