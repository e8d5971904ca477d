"""Each transfer becomes a debit and a credit of the same amount. Python UDFs write what stands beside them.

Rows of the topic and of the databases tell which attempt they belong to, for the judge of the chaos run. A pipeline's
rows should not depend on the attempt; these do so in this column alone.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from airflow_epochs.transforms import windowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

TRANSFER = "payer string, payee string, amount long, at long"
PARTIES = "struct<from: string, to: string, tags: array<string>>"


def _memo(payer: str, payee: str) -> str:
    return f"{payer} an {payee} überwiesen"


def _parties(payer: str, payee: str) -> dict[str, object]:
    return {"from": payer, "to": payee, "tags": sorted({payer, payee})}


def _transfers(batch: DataFrame, epoch: EpochContext) -> DataFrame:
    value = F.col("value")
    transfer = F.from_json(value.cast("string"), TRANSFER)
    parties = (F.col("t.payer"), F.col("t.payee"))
    transfers = batch.select("topic", "partition", "offset", F.crc32(value).alias("crc"), transfer.alias("t"))
    return transfers.select(
        "*",
        F.lit(epoch.number).cast("long").alias("epoch"),
        F.lit(epoch.txn_id).alias("txn_id"),
        F.udf(_memo, "string")(*parties).alias("memo"),
        F.udf(_parties, PARTIES)(*parties).alias("parties"),
    )


def book(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """Into two Delta tables."""
    transfers = _transfers(batch, epoch)
    origin = ("topic", "partition", "offset", "crc", "epoch", "memo", "parties")
    return {
        "debits": transfers.select(*origin, F.col("t.payer").alias("account"), (-F.col("t.amount")).alias("amount")),
        "credits": transfers.select(*origin, F.col("t.payee").alias("account"), F.col("t.amount")),
    }


def book_everywhere(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """Into a Delta table, a topic and two databases: debits and withdrawals against payments and deposits."""
    transfers = _transfers(batch, epoch)
    debit, credit = (-F.col("t.amount")).alias("amount"), F.col("t.amount")
    payer, payee = F.col("t.payer").alias("account"), F.col("t.payee").alias("account")
    row = ("topic", F.col("partition").alias("part"), F.col("offset").alias("place"), "crc", "epoch", "txn_id", "memo")
    return {
        "debits": transfers.select("topic", "partition", "offset", "crc", "epoch", "memo", "parties", payer, debit),
        "payments": transfers.select(
            F.struct("topic", "partition", "offset").alias("origin"),
            *("crc", "epoch", "txn_id", "memo", "parties"),
            payee,
            credit,
        ),
        "withdrawals": transfers.select(*row, payer, debit),
        "deposits": transfers.select(*row, payee, credit),
    }


def windows(batch: DataFrame, epoch: EpochContext, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """What each account has paid in each minute of the transfers' own time."""
    value = F.col("value")
    transfer = F.from_json(value.cast("string"), TRANSFER)
    parsed = batch.select("topic", "partition", "offset", F.crc32(value).alias("crc"), transfer.alias("t"))
    rows = parsed.select("*", F.col("t.payer"), F.col("t.amount"), F.timestamp_micros("t.at").alias("at")).drop("t")
    w = windowed(
        epoch.event_time(rows, "at"),
        state["open"],
        epoch,
        time="at",
        size=timedelta(minutes=1),
        keys=["payer"],
        agg=[F.count("*").alias("transfers"), F.sum("amount").alias("amount"), F.sum("crc").alias("crc")],
        merge=[F.sum(name).alias(name) for name in ("transfers", "amount", "crc")],
    )
    number = F.lit(epoch.number).cast("long").alias("epoch")
    return {"closed": w.out.select("*", number), "late": w.late.select("*", number), "open": w.changes}
