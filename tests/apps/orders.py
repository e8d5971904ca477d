"""A transform with two sinks, a UDF that uses sibling modules, and a sibling package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import prices
from currencies.rates import RATES
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


@dataclass(frozen=True)
class Limit:
    amount: int


def taxed(amount):  # type: ignore[no-untyped-def]  # with type hints Spark would look for pandas types
    import rounding

    return rounding.whole(prices.with_tax(amount) * RATES["EUR"])


with_tax = F.udf(taxed, "int")


def orders(batch: DataFrame, epoch: Any) -> dict[str, DataFrame]:
    amount = F.col("value").cast("string").try_cast("int")
    parsed = batch.select("partition", "offset", amount.alias("amount"))
    good = F.coalesce(F.col("amount") < Limit(1_000_000).amount, F.lit(False))
    return {
        "orders": parsed.where(good).select("partition", "offset", with_tax("amount").alias("amount")),
        "rejected": parsed.where(~good).withColumn("epoch", F.lit(epoch.number)),
    }
