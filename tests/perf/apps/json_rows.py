"""Rows out of JSON for ``json_figures``: with ``parse_json``, and as one would write it with ``from_json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from airflow_epochs.transforms import parse_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDER = "order_id long, customer string, amount double, ts timestamp"
WIDE = ", ".join(f"field_{number} {kind}" for number, kind in enumerate(["long", "string", "double", "timestamp"] * 25))


def orders_spark(batch: DataFrame, epoch: object) -> DataFrame:
    return parse_json(batch, ORDER).rows


def orders_arrow(batch: DataFrame, epoch: object) -> DataFrame:
    return parse_json(batch, ORDER, engine="arrow").rows


def wide_spark(batch: DataFrame, epoch: object) -> DataFrame:
    return parse_json(batch, WIDE).rows


def wide_arrow(batch: DataFrame, epoch: object) -> DataFrame:
    return parse_json(batch, WIDE, engine="arrow").rows


def plain_orders(batch: DataFrame) -> DataFrame:
    return _from_json(batch, ORDER)


def plain_wide(batch: DataFrame) -> DataFrame:
    return _from_json(batch, WIDE)


def _from_json(batch: DataFrame, schema: str) -> DataFrame:
    row = F.from_json(F.col("value").cast("string"), schema).alias("row")
    return batch.select("topic", "partition", "offset", row).select("topic", "partition", "offset", "row.*")
