"""Orders of a topic, cleaned into a table by one pipeline, and summed up from there by the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

ORDER = "order_id string, customer string, amount decimal(12,2), currency string, ts timestamp"
ORIGIN = ("topic", "partition", "offset")


def orders(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """Orders with the day of their sale. A record of the topic becomes one row, or is rejected."""
    text = F.col("value").cast("string")
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    parsed = batch.select(*ORIGIN, "value", F.explode(F.array(F.from_json(text, ORDER))).alias("o"))
    error = (
        F.when(F.col("value").isNull(), "no value")
        .when(~F.is_valid_utf8(F.col("value").cast("string")), "not UTF-8")
        .when(F.col("o.order_id").isNull(), "not an order in JSON")
        .when(F.col("o.customer").isNull(), "no customer")
        .when(F.col("o.amount").isNull(), "no amount")
        .when(F.col("o.ts").isNull(), "no timestamp")
        .when(~F.year("o.ts").between(1, 9999), "a year that no calendar has")
        .when(F.concat("o.order_id", "o.customer").contains("\0"), "a NUL character")
    )
    judged = parsed.withColumn("error", error)
    return {
        "orders": judged.where("error is null").select(epoch.record, "o.*", F.to_date("o.ts").alias("day")),
        "rejected": judged.where("error is not null").select("error", *ORIGIN),
    }


def totals(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """One row per customer of the epoch: what there is to add. The batch has the columns of the table.

    A row of a table has no offset, so a rejected one says itself what it was.
    """
    error = F.when(F.coalesce(F.col("currency"), F.lit("")) != "EUR", "not in euros")
    judged = batch.withColumn("error", error)
    good, bad = judged.where("error is null"), judged.where("error is not null")
    sums = (F.count("*").alias("orders"), F.sum("amount").cast("decimal(20,2)").alias("amount"))
    row = F.to_json(F.struct("order_id", "customer", "currency"), {"ignoreNullFields": "false"})
    return {"totals": good.groupBy("customer").agg(*sums), "rejected": bad.select("error", row.alias("row"))}
