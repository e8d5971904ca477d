"""Settings of a session against defaults of a server that must not apply where we read, stage or commit rows.

A stage job has a Spark session of its own, so that its settings reach no other job. They are set once, before the sinks
are staged side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta.layout import FileLayout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS = "spark.databricks.delta.properties.defaults."
"""The prefix of settings for properties (named without ``delta.``) of every table that this session creates."""
MARKERS_EXPIRE = "setTransactionRetentionDuration"
"""A table with it forgets its epochs' markers, and takes an epoch that it has for one that it has never seen."""
FOR_EVERY_READER = frozenset(
    {
        *("appendOnly", "autoOptimize.autoCompact", "autoOptimize.optimizeWrite", "checkpointInterval"),
        *("checkpointPolicy", "dataSkippingNumIndexedCols", "dataSkippingStatsColumns", "deletedFileRetentionDuration"),
        *("enableChangeDataFeed", "enableDeletionVectors", "enableExpiredLogCleanup", "logRetentionDuration"),
        *("randomizeFilePrefixes", "randomPrefixLength"),
    }
)
"""The default properties of a server that a table which deltalake creates gets. With other ones, such as column mapping
or row tracking, deltalake would not commit to it, or not read it rightly. Delta refuses a property that it does not
know, such as the codec, if a writer names it, and ignores it as a default."""
ROWS_IN_GROUP = 2**20
"""The most rows that share statistics by which readers skip them. Spark's default is 128 MB before compression, maybe
ten million narrow rows. Files get 2 % larger; with groups of 131,072 rows they get 12 to 19 % larger."""
STATISTICS = "spark.databricks.delta.stats.collect"
FILE_SIZE = "spark.databricks.delta.optimizeWrite.binSize"
OF_READS = {
    # Else the rows of a file that is missing or damaged are left out: by a MERGE, which then inserts their keys once
    # more, and by OPTIMIZE, which takes the file out of the table for good.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # Else Delta may read a table as it was, up to so long ago.
    "spark.databricks.delta.stalenessLimit": "0",
}
"""Settings of every session: it reads all rows that a table has now, whatever the server is set up to do."""
OF_FILES = {
    # Files with dates before 1582 in the calendar of that time are read as other dates by all but Spark.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # Else an instant in a partition column is a local time without its zone, which all but Spark read as UTC.
    "spark.databricks.delta.write.utcTimestampPartitionValues": "true",
    # Spark's default, INT96, loses within structs, arrays and maps that these are instants. Anywhere, readers that take
    # it for nanoseconds, such as deltalake, read another time after the year 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # DuckDB reads a list in the format of Spark 1.4 as NULLs.
    "spark.sql.parquet.writeLegacyFormat": "false",
    "parquet.block.row.count.limit": str(ROWS_IN_GROUP),
    # Parquet's default, 3, takes more processor time for files that are as large to 3 %.
    "parquet.compression.codec.zstd.level": "1",
}
"""Settings of every session that writes rows. Version 0.1 staged rows with the server's settings."""
AUTO_COMPACT = "spark.databricks.delta.autoCompact.enabled"
OF_STAGING = {
    # Once more: the transform may have changed them for files of its own, and the batch is read after that.
    **OF_READS,
    **OF_FILES,
    # It would rewrite the staged files in a commit of its own.
    AUTO_COMPACT: "false",
    # Nobody reads the checksum of a private table's version, and to compute it takes a tenth of the staging.
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    # A checksum would have the list of all files, for which Spark would run a job.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    # An append without rows is a commit all the same, which shows that it was staged.
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",
}


@dataclass(frozen=True, kw_only=True)
class StageJob:
    """What the sinks of one stage job have in common.

    Attributes:
        records: About how many offsets each of Spark's tasks reads.
        defaults: The properties that the server gives to tables that are created, as far as they are for every reader.
        files_of_0_1: Version 0.1 promised rows by a digest of their files. Staged again, such rows need the same
            layout of files.
        variants_by_json: As in ``StagePlan``.
        again: As in ``StagePlan``. The rows must be those that the sink voted for, whatever is refused today.
    """

    records: int
    defaults: dict[str, str]
    files_of_0_1: bool = False
    variants_by_json: bool = False
    again: bool = False


def prepare_staging(
    spark: SparkSession,
    records: int,
    *,
    files_of_0_1: bool = False,
    statistics: bool = False,
    variants_by_json: bool = False,
    again: bool = False,
) -> StageJob:
    """Set the session up for all sinks. No table of this session gets any of the server's properties by itself.

    Args:
        spark: The session.
        records: About how many offsets each of Spark's tasks reads.
        files_of_0_1: Write dates and instants as version 0.1 did, which is as the server says.
        statistics: Collect statistics, at a tenth of the time of a narrow row. Else the vote and the commit take them
            from the files' footers.
        variants_by_json: As in ``StagePlan``.
        again: As in ``StageJob``.
    """
    given = _defaults(spark)
    for key, value in OF_STAGING.items():
        if not (files_of_0_1 and key in OF_FILES):
            spark.conf.set(key, value)
    spark.conf.set(STATISTICS, str(statistics).lower())
    for name in given:
        spark.conf.unset(DEFAULTS + name)
    defaults = {f"delta.{name}": value for name, value in given.items() if name in FOR_EVERY_READER}
    return StageJob(
        records=records,
        defaults=defaults,
        files_of_0_1=files_of_0_1,
        variants_by_json=variants_by_json,
        again=again,
    )


def read_every_row(spark: SparkSession) -> None:
    """Let no read of this session leave out rows of a table."""
    for key, value in OF_READS.items():
        spark.conf.set(key, value)


def write_for_every_reader(spark: SparkSession) -> None:
    """Let this session write dates and instants that every reader of Parquet takes for the same."""
    for key, value in OF_FILES.items():
        spark.conf.set(key, value)


def size_files(spark: SparkSession, shuffled_mib: int) -> None:
    """Let Delta's optimized writes gather ``shuffled_mib`` MiB of a shuffle for a file, from now on."""
    spark.conf.set(FILE_SIZE, str(shuffled_mib))


def prepare_commit(spark: SparkSession, layout: FileLayout) -> None:
    """Let this session write rows for every reader in such files, and create tables that keep the epochs' markers.

    A table that is to compact itself does not: right behind the commit, Delta would sign its compaction with the epoch.
    """
    _write_so(spark, layout)
    spark.conf.set(AUTO_COMPACT, "false")
    for name in _defaults(spark):
        if name == MARKERS_EXPIRE:
            spark.conf.unset(DEFAULTS + name)


def prepare_compaction(spark: SparkSession, layout: FileLayout) -> None:
    """Let OPTIMIZE in this session write such files, and leave those alone that are as large."""
    _write_so(spark, layout)
    for which in ("minFileSize", "maxFileSize"):
        spark.conf.set(f"spark.databricks.delta.optimize.{which}", str(layout.file_bytes))


@contextmanager
def compacting(spark: SparkSession) -> Iterator[None]:
    """Let tables that are set to compact themselves do so until the block ends, and not afterwards."""
    spark.conf.set(AUTO_COMPACT, "true")
    try:
        yield
    finally:
        spark.conf.set(AUTO_COMPACT, "false")


def _write_so(spark: SparkSession, layout: FileLayout) -> None:
    write_for_every_reader(spark)
    spark.conf.set("spark.sql.parquet.compression.codec", layout.codec)
    size_files(spark, layout.shuffled_mib)


def _defaults(spark: SparkSession) -> dict[str, str]:
    settings = spark.conf.getAll
    return {key.removeprefix(DEFAULTS): value for key, value in settings.items() if key.startswith(DEFAULTS)}
