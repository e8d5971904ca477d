"""Read exactly the planned offset ranges, and see that no credential shows on the way."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from airflow_epochs.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REDACTION_CONF = "spark.redaction.string.regex"
# Everything from the first such key on. Not ".*" in front: Spark applies it to every plan, at every position, and
# Delta's plans are so long that the quadratic search took 100 s instead of 1.
REDACTION = r"(?s)kafka\.(sasl|ssl)\..*"
# At INFO, Spark's default, this logger writes the plans of operations whose client was killed.
LOGGER = "org.apache.spark.sql.connect.service.SparkConnectExecutionManager"
SESSION_CONF = {
    # Spark's own default less "kafka": batch reads through the V1 source are about 10 % slower.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
}
_PROBE = "Hunter2;q=9,[%]{}"
_PROBES = (
    f"Relation [key#1] kafka [kafka.sasl.jaas.config={_PROBE}]\n+- Scan",
    f"ScanV2\nkafka [assign=…,\nkafka.ssl.keystore.password={_PROBE}]",
)


def batch(spark: SparkSession, options: dict[str, str], secrets: dict[str, str]) -> DataFrame:
    """The batch, lazily. ``secrets`` are options too; they are kept apart only on their way here."""
    return spark.read.format("kafka").options(**options).options(**secrets).load()


def planned(options: dict[str, str]) -> int:
    """How many offsets the batch has: at least as many as records."""
    starts, ends = (json.loads(options[which]) for which in ("startingOffsets", "endingOffsets"))
    return sum(int(end) - int(starts[topic][partition]) for topic in ends for partition, end in ends[topic].items())


def refuse_unless_redacting(spark: SparkSession, where: str) -> None:
    """Raise Refused unless Kafka credentials are blotted out of this Spark's event log, UI and log lines.

    ``spark.sql.redaction.string.regex`` overrides the other one for plans, so both must cover them.
    """
    for key in (REDACTION_CONF, "spark.sql.redaction.string.regex"):
        pattern = spark.conf.get(key, "") or ""
        if not _covers(pattern):
            raise Refused(
                f"{where} would write the Kafka connection's credentials into its event log: {key} is "
                f"{pattern!r} there.",
                remedy="Keep them out of plans by kafka_credentials_file in the connection's extra (docs/spark.md). Or "
                f"start Spark with --conf '{REDACTION_CONF}={REDACTION}' (and leave its sql variant unset), and with "
                f"logger.plans.name={LOGGER} and logger.plans.level=WARN in its log4j2.properties.",
            )


def _covers(pattern: str) -> bool:
    try:
        return bool(pattern) and all(_PROBE not in re.sub(pattern, "", text) for text in _PROBES)
    except re.error:
        return False  # a pattern of Java's that Python does not know: nothing is proven, so nothing is sent
