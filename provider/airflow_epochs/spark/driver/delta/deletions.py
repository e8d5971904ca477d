"""Keys that an upsert has deleted, noted beside the table: else an older row that comes later would bring them back.

A note is a key with the sequence of its deletion. An epoch that is decided adds and flushes its notes before it changes
the table. A note that is added twice has the effect of one. So notes need be neither atomic nor signed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta import comparison, conditions, session
from airflow_epochs.spark.driver.delta.files import entries, exists
from airflow_epochs.spark.driver.delta.keys import DELETED, column
from airflow_epochs.spark.driver.delta.plans import How, ThinnedNotes, ThinNotesPlan
from airflow_epochs.spark.driver.delta.spelling import for_spark, identifier
from airflow_epochs.storage import fsync
from airflow_epochs.transforms.conditions import column_named, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

DELETED_AT = "__epochs_at"
_GOES = "__epochs_goes"
_NEEDS_MAPPING = " ,;{}()\n\t="
"""Characters that Parquet takes in a column's name only under a mapping of names."""
_LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


class NotComparable(Exception):
    """Notes of deleted keys have other types than the rows, and Spark cannot cast them."""


def name_of(rows: DataFrame, how: How) -> str:
    """The name of the notes about these rows. Keys of other names or types give another name."""
    types = _types(rows)
    return named([(name.lower(), types[name.lower()].simpleString()) for name in _columns(how)])


def named(columns: list[tuple[str, str]]) -> str:
    """The name of the notes with these columns, each with its type."""
    return f"deleted-{hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:16]}"


def remember(rows: DataFrame, how: How, place: str, user_metadata: str) -> None:
    """Note at ``place`` which keys the ``newest`` rows delete, and at which sequence. Durable when it returns.

    ``user_metadata`` names the epoch in the notes' history: if it is waived, a person can take its notes back.
    """
    from pyspark.sql import functions as F

    deleted = rows.where(F.col(DELETED)).select(*map(column, _columns(how)))
    if deleted.limit(1).collect():
        writer = deleted.write.format("delta").mode("append").option("delta.autoOptimize.autoCompact", "true")
        writer = writer.option("userMetadata", user_metadata)
        if needs_mapping(_columns(how)):
            writer = writer.option("delta.columnMapping.mode", "name")
        with session.compacting(rows.sparkSession):
            writer.save(for_spark(place))
    _flush(place)  # always, since an earlier try may have died before it came to this


def _flush(place: str) -> None:
    """Make notes on a disk survive a power cut."""
    if place.startswith("/"):
        fsync.flush(fsync.files_below(Path(place)))


def needs_mapping(names: Iterable[str]) -> bool:
    """Whether Parquet takes these names under a mapping only."""
    return not set(_NEEDS_MAPPING).isdisjoint("".join(names))


def noted(rows: DataFrame, how: How, places: Iterable[str]) -> dict[str, DataFrame]:
    """The notes about these keys: place -> keys and sequences, in the rows' types.

    Notes from before a column's type was changed have the old type, and another name. A sink that deletes nothing
    itself goes on without those that Spark cannot cast: others' old notes are no reason to stop it.

    Raises:
        NotComparable: Spark cannot cast some of the notes.
    """
    spark = rows.sparkSession
    there = [place for place in places if exists(spark, entries(place, "*.json"))]
    notes = {place: spark.read.format("delta").load(for_spark(place)) for place in there}
    found = {}
    for place, each in notes.items():
        if not is_about(each.columns, how.keys, how.sequence_by):
            continue
        try:
            found[place] = _cast(each, rows, how, place)
        except NotComparable:
            if how.delete_when:
                raise
    return found


def is_about(notes: Sequence[str], keys: Sequence[str], sequence_by: str | None) -> bool:
    """Whether notes with these columns are about these keys and this sequence."""
    *of_notes, sequence = (name.lower() for name in notes)
    return sequence == (sequence_by or "").lower() and sorted(of_notes) == sorted(key.lower() for key in keys)


def _cast(notes: DataFrame, rows: DataFrame, how: How, place: str) -> DataFrame:
    """The notes in the rows' types. A key that has no value in its new type is NULL: it is equal to no row's."""
    from pyspark.errors import AnalysisException

    names, old, new = _columns(how), _types(notes), _types(rows)
    if all(old[name.lower()] == new[name.lower()] for name in names):
        return notes.select(*map(column, names))
    try:
        cast = notes.select(*(_as(name, old[name.lower()], new[name.lower()]).alias(name) for name in names))
        lost = cast.where(column(names[-1]).isNull()).limit(1).collect()
    except AnalysisException as error:
        raise NotComparable(f"the notes of deleted keys in {place}: {conditions.first_lines(error)}") from error
    if lost:
        is_now = f"{names[-1]} is {new[names[-1].lower()].simpleString()} now"
        raise NotComparable(f"the notes of deleted keys in {place} have values that cannot be cast: {is_now}")
    return cast


def _as(name: str, old: DataType, new: DataType) -> Column:
    """A column of notes in another type; NULL where a number would change its value (1.5 is not the key 1)."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import NumericType

    cast = F.expr(_in_order(name, old, new)).try_cast(new)
    if isinstance(old, NumericType) and isinstance(new, NumericType):
        return F.when(cast == column(name), cast)
    return cast


def _in_order(name: str, old: DataType, new: DataType) -> str:
    """A column of notes, in SQL, with its nested fields in the order of the new type: a cast takes them by places.

    If names have changed, fields correspond by their places.
    """
    kind, wanted = (json.loads(each.json()) for each in (old, new))
    value = column_named(name)
    return comparison.in_order_of(wanted, value) if comparison.has_same_names(kind, wanted) else value


def _types(rows: DataFrame) -> dict[str, DataType]:
    return {field.name.lower(): field.dataType for field in rows.schema.fields}


def without_older(rows: DataFrame, how: How, notes: Collection[DataFrame]) -> DataFrame:
    """The ``newest`` rows without those that are older than a deletion of their key in the ``notes``."""
    from pyspark.sql import functions as F

    is_newer = column(_columns(how)[-1]) >= F.col(DELETED_AT)
    return _with_deletions(rows, how, notes).where(F.col(DELETED_AT).isNull() | is_newer).drop(DELETED_AT)


def older(rows: DataFrame, how: How, notes: Collection[DataFrame]) -> DataFrame:
    """The keys of those ``newest`` rows that are older than a deletion of their key in the ``notes``.

    Each comes with the sequence of its newest deletion as ``DELETED_AT``.
    """
    from pyspark.sql import functions as F

    is_older = column(_columns(how)[-1]) < F.col(DELETED_AT)
    return _with_deletions(rows, how, notes).where(is_older).select(*map(column, how.keys), DELETED_AT)


def _with_deletions(rows: DataFrame, how: How, notes: Collection[DataFrame]) -> DataFrame:
    """The rows, with the greatest sequence of a deletion of their key as ``DELETED_AT``; NULL if none is noted."""
    from pyspark.sql import functions as F

    *_, sequence = _columns(how)
    per_key = reduce(lambda one, other: one.union(other), notes)
    per_key = per_key.groupBy(*map(column, how.keys)).agg(F.max(column(sequence)).alias(DELETED_AT))
    of_note = [f"__epochs_key_{number}" for number in range(len(how.keys))]
    per_key = per_key.toDF(*of_note, DELETED_AT)
    same_key = [column(key) == F.col(other) for key, other in zip(how.keys, of_note, strict=True)]
    return rows.join(per_key, same_key, "left").drop(*of_note)


def delta_thin_notes(spark: SparkSession, plan: ThinNotesPlan) -> ThinnedNotes:
    """Thin out the notes at ``places``: for each key only the newest note counts, and the others are removed.

    Safe beside a commit, which only adds notes: a note is removed only if one as new, or newer, stays for its key.
    """
    session.write_for_every_reader(spark)
    spark.conf.set(_LISTING, "8")  # VACUUM starts as many tasks; by default 10,000
    return ThinnedNotes(notes_removed=sum(_thinned(spark, place) for place in plan.places))


def _thinned(spark: SparkSession, place: str) -> int:
    notes = identifier(place)
    names = list(map(quoted, spark.read.format("delta").load(for_spark(place)).columns))
    removed = spark.sql(_one_per_key(notes, names[:-1], names[-1])).collect()[0]
    for upkeep in ("OPTIMIZE", "VACUUM"):
        spark.sql(f"{upkeep} {notes}").collect()
    _flush(place)
    return int(removed["num_deleted_rows"]) - int(removed["num_inserted_rows"])


def _one_per_key(notes: str, keys: list[str], sequence: str) -> str:
    """A MERGE that puts one note in the place of all notes about a key that are no newer.

    A key that is deleted again at the same sequence has equal notes, and a condition cannot tell them apart: so all
    are removed, and one is written, in one transaction.
    """
    key, no_null = ", ".join(keys), " AND ".join(f"{name} IS NOT NULL" for name in keys)
    several = (
        f"SELECT {key}, max({sequence}) AS {sequence} FROM {notes} WHERE {no_null} GROUP BY {key} "
        f"HAVING count({sequence}) > 1"
    )
    source = f"SELECT *, explode(array(true, false)) AS {_GOES} FROM ({several})"
    superseded = " AND ".join(
        [f"s.{_GOES}", *(f"t.{name} = s.{name}" for name in keys), f"t.{sequence} <= s.{sequence}"]
    )
    columns = [*keys, sequence]
    return (
        f"MERGE INTO {notes} AS t USING ({source}) AS s ON {superseded} WHEN MATCHED THEN DELETE "
        f"WHEN NOT MATCHED AND NOT s.{_GOES} THEN INSERT ({', '.join(columns)}) "
        f"VALUES ({', '.join(f's.{name}' for name in columns)})"
    )


def _columns(how: How) -> list[str]:
    assert how.sequence_by is not None
    return [*how.keys, how.sequence_by]
