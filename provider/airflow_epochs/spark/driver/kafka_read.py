"""Reads exactly the planned offset ranges, and refuses a Spark that would show credentials."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REDACTION_CONF = "spark.redaction.string.regex"
# Matches everything from the first such key on. It has no ".*" in front: Spark tries it at every position of every
# plan, and in Delta's long plans that quadratic search took 100 s instead of 1.
REDACTION = r"(?s)kafka\.(sasl|ssl)\..*"
# At INFO, Spark's default, this logger writes the plans of operations whose client was killed.
LOGGER = "org.apache.spark.sql.connect.service.SparkConnectExecutionManager"
SESSION_CONF = {
    # Spark's default without "kafka": batch reads through the V1 source are about 10 % slower.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
}
_PROBE = "Hunter2;q=9,[%]{}"
_PROBES = (
    f"Relation [key#1] kafka [kafka.sasl.jaas.config={_PROBE}]\n+- Scan",
    f"ScanV2\nkafka [assign=…,\nkafka.ssl.keystore.password={_PROBE}]",
)


def batch(spark: SparkSession, options: dict[str, str], secrets: dict[str, str]) -> DataFrame:
    """The batch as a lazy DataFrame. ``secrets`` are options too; they only travel here on their own."""
    return spark.read.format("kafka").options(**options).options(**secrets).load()


def planned(options: dict[str, str]) -> int:
    """The number of offsets in the batch. It is at least the number of records."""
    return sum(_lengths(options))


def tasks(options: dict[str, str]) -> int:
    """About how many tasks of Spark's read the batch: one for each partition with records, or more if asked for."""
    return max(sum(length > 0 for length in _lengths(options)), int(options.get("minPartitions", 1)), 1)


def _lengths(options: dict[str, str]) -> list[int]:
    """How many offsets each partition has in the batch."""
    starts, ends = (json.loads(options[which]) for which in ("startingOffsets", "endingOffsets"))
    return [int(end) - int(starts[topic][partition]) for topic in ends for partition, end in ends[topic].items()]


def refuse_unless_redacting(spark: SparkSession, where: str) -> None:
    """Raise Refused unless this Spark blots Kafka's credentials out of its event log, UI and log lines.

    For plans, ``spark.sql.redaction.string.regex`` overrides ``spark.redaction.string.regex``: both must match them.
    """
    for key in (REDACTION_CONF, "spark.sql.redaction.string.regex"):
        pattern = spark.conf.get(key, "") or ""
        if not _covers(pattern):
            raise Refused(
                f"{where} would write the Kafka connection's credentials into its event log, because its setting {key} "
                f"is {pattern!r}. They were not sent.",
                code=codes.SPARK_CLEAR_TEXT,
                remedy="Set kafka_credentials_file in the connection's extra, which keeps the credentials out of plans "
                f"(docs/spark.md). Or start Spark with --conf '{REDACTION_CONF}={REDACTION}' (and leave its sql "
                f"variant unset), and with logger.plans.name={LOGGER} and logger.plans.level=WARN in its "
                "log4j2.properties. Then clear the failed task.",
            )


def _covers(pattern: str) -> bool:
    try:
        return bool(pattern) and all(_PROBE not in re.sub(pattern, "", text) for text in _PROBES)
    except re.error:
        return False  # Java may know the pattern, Python does not: nothing is proven, so nothing is sent
