"""Rows with keys: finds the rows that break the rules of keys, and the newest row of each key.

Spark checks the staged rows, after it has written them: so it computes the user's transform once, and reads only the
columns in question from the staged files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.spark.driver import failures
from airflow_epochs.spark.driver.delta import schema as delta_schema
from airflow_epochs.spark.driver.delta.plans import How
from airflow_epochs.spark.driver.wire import JsonDict
from airflow_epochs.transforms import exact_json
from airflow_epochs.transforms.conditions import quoted
from airflow_epochs.transforms.parsed import ORIGIN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row
    from pyspark.sql.types import StructField

SHOWN_MAX = 5
"""How many rows a message shows."""
RECORDS_MAX = 3
"""How many records a message shows for one of these rows."""
DELETED = "__epochs_deleted"
_INSERTS = re.compile(r"\binsert\b", re.IGNORECASE)
_RANK, _TIMES, _CONTENTS, _NEWEST = (f"__epochs_{name}" for name in ("rank", "n", "c", "newest"))


def problem(rows: DataFrame, how: How) -> str | None:
    """Why these rows have no clear newest row per key, naming some of the keys; None if they have."""
    keys, sequence = list(how.keys), how.sequence_by
    named = [*keys, sequence] if sequence else keys
    if not _counted(rows, named).where(f"{_TIMES} > 1 OR {_any_null(named)}").select(_TIMES).limit(1).collect():
        return None  # the rows of most epochs need no other query
    if nulls := collected(rows.where(_any_null(named)).select(*map(column, named)).limit(SHOWN_MAX)):
        return f"Some rows have NULL in {' or '.join(named)}: {shown(nulls)}."
    if sequence is None:
        repeated = _traced(rows, _counted(rows, keys).where(f"{_TIMES} > 1").select(*map(column, keys)))
        hint = "" if how.mode == "merge" else ", and the sink has no `sequence_by` that tells which row is the newest"
        return f"Some keys have more than one row{hint}: {shown(repeated)}." if repeated else None
    if ties := _ties(rows, how, sequence):
        return f"Some keys have several newest rows, which differ although their {sequence} is equal: {shown(ties)}."
    return None


def _ties(rows: DataFrame, how: How, sequence: str) -> list[Row]:
    """Keys, each with its newest sequence, whose newest rows differ. Rows that all delete the key do not differ."""
    from pyspark.sql import functions as F

    keys, rows = list(how.keys), rows if DELETED in rows.columns else _bare(rows, how)
    content = _content(rows)
    per_sequence = rows.groupBy(*map(column, [*keys, sequence])).agg(
        (F.min(content) != F.max(content)).alias(_CONTENTS)
    )
    newest = F.max(F.struct(column(sequence).alias(_RANK), F.col(_CONTENTS))).alias(_NEWEST)
    per_key = per_sequence.groupBy(*map(column, keys)).agg(newest)
    found = per_key.where(F.col(f"{_NEWEST}.{_CONTENTS}"))
    return _traced(rows, found.select(*map(column, keys), F.col(f"{_NEWEST}.{_RANK}").alias(sequence)))


def _traced(rows: DataFrame, found: DataFrame) -> list[Row]:
    """Some of the values ``found``, each with some of the records whose rows have them, where the rows tell."""
    from pyspark.sql import functions as F

    some, record = found.limit(SHOWN_MAX), _record_in(rows)
    if record is None:
        return collected(some)
    names = some.columns
    other = [f"{_NEWEST}_{number}" for number in range(len(names))]
    same = [column(name).eqNullSafe(F.col(each)) for name, each in zip(names, other, strict=True)]
    records = F.slice(F.sort_array(F.collect_set(record)), 1, RECORDS_MAX)
    joined = rows.join(some.toDF(*other), same).groupBy(*map(F.col, other)).agg(records)
    return collected(joined.toDF(*names, "records"))


def _record_in(rows: DataFrame) -> Column | None:
    """Topic, partition and offset, as the rows tell them: in columns of these names, or in a struct. Else None."""
    structs = {f.name: {part.lower() for part in getattr(f.dataType, "names", ())} for f in rows.schema.fields}
    if set(ORIGIN) <= {name.lower() for name in structs}:
        return _spaced([column(part) for part in ORIGIN])
    named = next((name for name, parts in structs.items() if set(ORIGIN) <= parts), None)
    return _spaced([column(named)[part] for part in ORIGIN]) if named else None


def _spaced(parts: Sequence[Column]) -> Column:
    """The values as one text; NULL if one is NULL, as in a row that deletes its key."""
    from pyspark.sql import functions as F

    texts = [part.cast("string") for part in parts]
    return F.concat(texts[0], *(each for text in texts[1:] for each in (F.lit(" "), text)))


def _counted(rows: DataFrame, columns: list[str]) -> DataFrame:
    """The values of ``columns``, and how many rows have them."""
    from pyspark.sql import functions as F

    return rows.groupBy(*map(column, columns)).agg(F.count(F.lit(1)).alias(_TIMES))


def require_apart(rows: DataFrame, schema: JsonDict, how: How, table: JsonDict) -> None:
    """Require that keys which differ in the rows' ``schema`` differ in the table's types, too.

    Each key comes once in the rows.

    The vote refuses types that could make one key of two, and then this costs nothing. But an earlier version may have
    decided the epoch, or somebody may have given the table other columns since. Clauses that insert nothing bring no
    key twice, and Delta itself refuses what is ambiguous. ``on`` may tell apart what the keys do not.

    Raises:
        Refused: A MERGE would bring a key twice, or would be ambiguous.
    """
    differences = delta_schema.problems_of_merge(table, schema, "", how.keys)
    if not differences or how.on or not _INSERTS.search(how.merge or ""):
        return
    kinds = {field["name"].lower(): field["type"] for field in table["fields"]}
    there = rows.select(*(_as_there(key, kinds.get(key.lower(), {})).alias(key) for key in how.keys))
    several = _counted(there, list(how.keys)).where(f"{_TIMES} > 1").where(f"NOT ({_any_null(list(how.keys))})")
    if found := collected(several.select(*map(column, how.keys)).limit(SHOWN_MAX)):
        raise Refused(f"{failures.ONE_ROW}: {'; '.join(differences)}: {shown(found)}.", code=codes.DELTA_ROWS_UNFIT)


def _as_there(key: str, kind: object) -> Column:
    """A key in the table's type; NULL if this type does not have the value."""
    return column(key) if isinstance(kind, dict) else column(key).try_cast(delta_schema.sql_type(kind))


def newest(rows: DataFrame, how: How) -> DataFrame:
    """One row per key, with the column ``DELETED``: whether it meets ``delete_when``.

    For rows without a ``problem``: then rows that are equally new are equal, or all delete the key. It does not matter
    which one stays.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if how.sequence_by:
        order = Window.partitionBy(*map(column, how.keys)).orderBy(column(how.sequence_by).desc())
        rows = rows.withColumn(_RANK, F.row_number().over(order)).where(F.col(_RANK) == 1).drop(_RANK)
    return _telling_deleted(rows, how)


def newest_or_tied(rows: DataFrame, how: How) -> DataFrame:
    """The newest rows of each key, with the column ``DELETED``; of equal rows one. Takes one shuffle.

    Where all rows of a key are sound, that is one row. Else ``problem`` finds the same in these rows as in all: NULL in
    ``sequence_by`` counts as newest. A row that deletes its key brings no values.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rows = _bare(rows, how)  # before they are compared: deletions that were sent twice are one
    if how.sequence_by:
        key = Window.partitionBy(*map(column, how.keys))
        newest_first = key.orderBy(column(how.sequence_by).desc_nulls_first())
        rows = rows.withColumn(_RANK, F.rank().over(newest_first)).where(F.col(_RANK) == 1).drop(_RANK)
        among_equals = F.when(F.count(F.lit(1)).over(key) > 1, _content(rows))
        rows = rows.withColumn(_CONTENTS, among_equals)
        first = F.row_number().over(Window.partitionBy(*map(column, how.keys), _CONTENTS).orderBy(F.lit(1)))
        rows = rows.withColumn(_RANK, first).where(F.col(_RANK) == 1).drop(_RANK, _CONTENTS)
    return rows


def _bare(rows: DataFrame, how: How) -> DataFrame:
    """The rows with the column ``DELETED``; those that delete their key with nothing but keys and ``sequence_by``."""
    from pyspark.sql import functions as F

    kept = {name.lower() for name in (*how.keys, how.sequence_by) if name}
    bare = {n: F.when(~F.col(DELETED), column(n)) for n in rows.columns if n.lower() not in kept}
    told = _telling_deleted(rows, how)
    return told.withColumns(bare) if how.delete_when and bare else told  # Spark Connect takes no empty dict


def _content(rows: DataFrame) -> Column:
    """A text that is equal for equal rows only."""
    return exact_json.of_columns(rows, rows.columns)


def _telling_deleted(rows: DataFrame, how: How) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.withColumn(DELETED, F.expr(f"coalesce(({how.delete_when or 'false'}), false)"))


def column(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(quoted(name))


def _any_null(names: list[str]) -> str:
    return " OR ".join(f"{quoted(name)} IS NULL" for name in names)


def collected(some: DataFrame) -> list[Row]:
    """The rows, for ``shown``: with dates and times as texts if one is outside of the years 1 to 9999.

    Python knows no others.
    """
    found: list[Row]
    try:
        found = some.collect()
    except (ValueError, OverflowError):
        found = some.select(*map(_with_times_as_text, some.schema.fields)).collect()
    return found


def _with_times_as_text(field: StructField) -> Column:
    value = column(field.name)
    has_times = re.search("date|timestamp", field.dataType.simpleString())
    return value.cast("string").alias(field.name) if has_times else value


def shown(rows: Iterable[Row], told: Callable[[object], str] = repr) -> str:
    """The values of some rows, for a message."""
    return "; ".join(", ".join(f"{name}={told(value)}" for name, value in row.asDict().items()) for row in rows)
