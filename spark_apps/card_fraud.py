"""Payments by card from Kafka: ``{"card": …, "amount": …, "ts": …}``. What is none goes to ``rejected``."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from airflow_epochs.transforms import stateful

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

PAYMENT = "card string, amount decimal(12, 2), ts timestamp"
ORIGIN = ("topic", "partition", "offset")
EARLIEST = datetime(1970, 1, 1, tzinfo=timezone.utc)
ALERT = "card string, since timestamp, ts timestamp, total decimal(22, 2)"
HOUR = timedelta(hours=1)
PAYMENTS_MAX = 3


def alerts(batch: DataFrame, epoch: EpochContext, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """An alert for each card that pays for the fourth time within an hour of its first payment, once in this hour."""
    rows = epoch.event_time(_parsed(batch, epoch), "ts")
    s = stateful(
        rows.where("reason is null").drop("value", "reason"),
        state["cards"],
        epoch,
        time="ts",
        keys=["card"],
        order=["partition", "offset"],
        func=_counted,
        out=ALERT,
    )
    rejected = rows.where("reason is not null").select(F.col("reason").alias("error"), *ORIGIN)
    return {"alerts": s.out, "late": s.late, "cards": s.changes, "rejected": rejected}


def _counted(
    key: tuple[str], rows: pd.DataFrame, state: pd.DataFrame, watermark: pd.Timestamp | None
) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """The alerts of a card, and what is known of it: nothing any more once its hour is over (``timer``)."""
    import pandas as pd

    since, n, total = (state.since[0], state.n[0], state.total[0]) if len(state) else (None, 0, Decimal(0))
    found = []
    for ts, amount in zip(rows.ts, rows.amount, strict=True):
        if since is None or ts >= since + HOUR:
            since, n, total = ts, 0, Decimal(0)
        n, total = n + 1, total + amount
        if n == PAYMENTS_MAX + 1:
            found.append({"card": key[0], "since": since, "ts": ts, "total": total})
    if since is None or (watermark is not None and since + HOUR <= watermark):
        known = None
    else:
        known = pd.DataFrame({"since": [since], "n": [n], "total": [total], "timer": [since + HOUR]})
    return pd.DataFrame(found) if found else None, known


def _parsed(batch: DataFrame, epoch: EpochContext) -> DataFrame:
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    parsed = F.explode(F.array(F.from_json(F.col("value").cast("string"), PAYMENT)))
    rows = batch.select(*ORIGIN, "value", parsed.alias("r")).select(*ORIGIN, "value", "r.*")
    return rows.withColumn("reason", _reason(epoch.now + timedelta(hours=1)))


def _reason(latest: datetime) -> Column:
    """Why a record is no payment; null if it is one."""
    return (
        F.when(~F.is_valid_utf8(F.col("value").cast("string")), "not UTF-8")
        .when(F.col("card").isNull(), "no card")
        .when(F.col("amount").isNull(), "no amount")
        .when(F.col("ts").isNull(), "no timestamp")
        # the state would wait for such a time for years
        .when(~F.col("ts").between(F.lit(EARLIEST), F.lit(latest)), "a time before 1970, or to come")
    )
