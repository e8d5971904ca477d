"""Each transfer becomes a debit and a credit of the same amount."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRANSFER = "payer string, payee string, amount long"


def book(batch: DataFrame, epoch: object) -> dict[str, DataFrame]:
    value = F.col("value")
    transfer = F.from_json(value.cast("string"), TRANSFER)
    transfers = batch.select("topic", "partition", "offset", F.crc32(value).alias("crc"), transfer.alias("t"))
    origin = ("topic", "partition", "offset", "crc")
    return {
        "debits": transfers.select(*origin, F.col("t.payer").alias("account"), (-F.col("t.amount")).alias("amount")),
        "credits": transfers.select(*origin, F.col("t.payee").alias("account"), F.col("t.amount")),
    }
