"""Keys that an upsert has deleted, noted beside the table: else an older row that comes later would bring them back.

A note is a key with the sequence of its deletion. Notes are added, and flushed, before the table is changed, by an
epoch that is decided; a note made twice says no more than once. So nothing has to be atomic here, nor signed.
"""

from __future__ import annotations

import hashlib
import json
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta.files import entries, exists
from airflow_epochs.spark.driver.delta.keys import DELETED, column
from airflow_epochs.spark.driver.delta.plans import How, ThinnedNotes, ThinNotesPlan
from airflow_epochs.spark.driver.delta.spelling import for_spark, identifier
from airflow_epochs.storage import fsync
from airflow_epochs.transforms.conditions import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DELETED_AT = "__epochs_at"
_LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


def name_of(rows: DataFrame, how: How) -> str:
    """What the notes of these rows are called: otherwise for other keys, as they could not be compared."""
    types = {field.name.lower(): field.dataType.simpleString() for field in rows.schema.fields}
    columns = [(name.lower(), types[name.lower()]) for name in _columns(how)]
    return f"deleted-{hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:16]}"


def remember(rows: DataFrame, how: How, place: str) -> None:
    """Note at ``place`` which keys the ``newest`` rows delete, and as of when. Durable when it returns."""
    from pyspark.sql import functions as F

    deleted = rows.where(F.col(DELETED)).select(*map(column, _columns(how)))
    if deleted.limit(1).collect():
        writer = deleted.write.format("delta").mode("append").option("delta.autoOptimize.autoCompact", "true")
        writer.save(for_spark(place))
    if place.startswith("/"):  # on a disk; always, since an earlier try may have died before it came to this
        fsync.flush(fsync.files_below(Path(place)))


def are_noted(spark: SparkSession, place: str) -> bool:
    """Whether there are notes at ``place``."""
    return exists(spark, entries(place, "*.json"))


def without_older(rows: DataFrame, how: How, places: list[str]) -> DataFrame:
    """The ``newest`` rows but those that are older than a deletion of their key that is noted at any of ``places``.

    A sink that was renamed, or whose ledger was lost, has notes under its old name, which count as much.
    """
    from pyspark.sql import functions as F

    *_, sequence = _columns(how)
    read = rows.sparkSession.read.format("delta")
    noted = [read.load(for_spark(place)).select(*map(column, _columns(how))) for place in places]
    notes = reduce(lambda one, other: one.union(other), noted)
    per_key = notes.groupBy(*map(column, how.keys)).agg(F.max(column(sequence)).alias(_DELETED_AT))
    of_note = [f"__epochs_key_{number}" for number in range(len(how.keys))]
    per_key = per_key.toDF(*of_note, _DELETED_AT)
    same_key = [column(key) == F.col(other) for key, other in zip(how.keys, of_note, strict=True)]
    joined = rows.join(per_key, same_key, "left")
    current = F.col(_DELETED_AT).isNull() | (column(sequence) >= F.col(_DELETED_AT))
    return joined.where(current).drop(*of_note, _DELETED_AT)


def delta_thin_notes(spark: SparkSession, plan: ThinNotesPlan) -> ThinnedNotes:
    """Upkeep of the notes at ``places``: of those about one key only the newest counts, and the others go.

    Safe beside a commit, which only adds notes: a note goes only if a newer one about its key is there.
    """
    spark.conf.set(_LISTING, "8")  # VACUUM starts as many tasks; by default 10,000
    return ThinnedNotes(notes_removed=sum(_thinned(spark, place) for place in plan.places))


def _thinned(spark: SparkSession, place: str) -> int:
    notes = identifier(place)
    *keys, sequence = map(quoted, spark.read.format("delta").load(for_spark(place)).columns)
    newest = f"SELECT {', '.join(keys)}, max({sequence}) AS {_DELETED_AT} FROM {notes} GROUP BY {', '.join(keys)}"
    superseded = " AND ".join([*(f"t.{key} = s.{key}" for key in keys), f"t.{sequence} < s.{_DELETED_AT}"])
    merge = f"MERGE INTO {notes} AS t USING ({newest}) AS s ON {superseded} WHEN MATCHED THEN DELETE"
    removed = int(spark.sql(merge).collect()[0]["num_deleted_rows"])
    for upkeep in ("OPTIMIZE", "VACUUM"):
        spark.sql(f"{upkeep} {notes}").collect()
    return removed


def _columns(how: How) -> list[str]:
    assert how.sequence_by is not None
    return [*how.keys, how.sequence_by]
