"""What a SparkSubmitOperator would run without us: Kafka to Delta with ``availableNow`` and a checkpoint folder.

Arguments: bootstrap servers, output folder.
"""

from __future__ import annotations

import sys

from parse import parsed
from pyspark.sql import SparkSession

bootstrap, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", "bench")
stream = stream.option("startingOffsets", "earliest").option("kafka.isolation.level", "read_committed")
query = (
    parsed(stream.load())
    .writeStream.format("delta")
    .trigger(availableNow=True)
    .option("checkpointLocation", f"{folder}/checkpoint")
    .start(f"{folder}/table")
)
query.awaitTermination()
spark.stop()
