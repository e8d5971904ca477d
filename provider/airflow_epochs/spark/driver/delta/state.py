"""State tables in Spark: read as of the epoch before, and staged as a log of changes.

A state table is a Delta table with the columns of the state, ``__epoch`` and ``__deleted``: one row per key and epoch
that changed it. The state is the newest row of each key, less deleted keys, less rows that have expired. Now and then
an epoch stages a *fold* instead of its changes: the whole state, which takes the place of all earlier rows.

Rows whose ``expires`` is behind the watermark are left out *before* the newest row of each key is looked for, so Delta
skips whole files. That is right because ``expires`` never falls for a key: if a key's newest row has not expired, the
rows left out are older ones.

The task's side has read the table's log, and says which files the version has. So Spark need not read the log again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import Refused, first_line
from airflow_epochs.spark.driver.delta import jobs, session, staged, table_rules
from airflow_epochs.spark.driver.delta.files import rows_in
from airflow_epochs.spark.driver.delta.keys import SHOWN_MAX, collected, shown
from airflow_epochs.spark.driver.delta.plans import EPOCH, StateStaging
from airflow_epochs.spark.driver.delta.schema import retyped
from airflow_epochs.spark.driver.delta.spelling import for_spark
from airflow_epochs.spark.driver.event_times import instant
from airflow_epochs.spark.driver.plans import SinkOutcome, StateRead
from airflow_epochs.transforms import closing
from airflow_epochs.transforms.changes import DELETED, expiring
from airflow_epochs.transforms.conditions import anywhere, not_utf8, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

_TIMESTAMP, _INSTANT = "spark.sql.timestampType", "TIMESTAMP_LTZ"
"""The setting for the meaning of the word TIMESTAMP, and its value if the word means an instant."""
_LIMITED = re.compile(r"\b(var)?char\(\d")
_NEWEST, _TIMES, _BEFORE, _UNTIL = (f"__epochs_{name}" for name in ("newest", "times", "before", "until"))


def understood(spark: SparkSession, reads: Mapping[str, StateRead]) -> dict[str, StateRead]:
    """``reads`` with the columns as Spark knows them. To be called before sinks are staged side by side.

    TIMESTAMP is an instant in them, whatever a server takes the word for.
    """
    kind = spark.conf.get(_TIMESTAMP, _INSTANT) if reads else _INSTANT
    if kind == _INSTANT:
        return {name: _understood(spark, read) for name, read in reads.items()}
    spark.conf.set(_TIMESTAMP, _INSTANT)
    try:
        return {name: _understood(spark, read) for name, read in reads.items()}
    finally:
        spark.conf.set(_TIMESTAMP, kind)


def _understood(spark: SparkSession, read: StateRead) -> StateRead:
    return replace(read, declared=json.loads(_schema(spark, read).json()))


def frames(spark: SparkSession, reads: Mapping[str, StateRead]) -> dict[str, DataFrame]:
    """State table -> the state as a transform gets it: one row per key."""
    operators = closing.Operators()
    return {name: _frame(spark, name, read, operators) for name, read in reads.items()}


def _frame(spark: SparkSession, name: str, read: StateRead, operators: closing.Operators) -> DataFrame:
    state = expiring(_state(spark, read), read.expires)
    return closing.told(state, closing.Closing(name, operators, before=read.closed, then=read.closed_then))


def closed(reads: Mapping[str, StateRead], states: Mapping[str, DataFrame]) -> dict[str, StateRead]:
    """``reads``, each with how far the transform, which got ``states``, has closed the state."""
    known = {name: told.now for name, state in states.items() if (told := closing.of(state))}
    return {name: replace(read, closed_now=known.get(name, ())) for name, read in reads.items()}


def warnings(reads: Mapping[str, StateRead]) -> Iterator[str]:
    """Warnings about states that no operator got in this epoch, but one got before. ``reads``: from ``closed``."""
    for name, read in reads.items():
        if any(read.closed) and not read.closed_now:
            yield (
                f"No operator of airflow_epochs.transforms got the state {name!r} in this epoch. It stays closed up to "
                f"{instant(*filter(None, read.closed)).isoformat()}, and later rows do not expire until an operator "
                "gets it again. If code of your own reads it from now on, give it a state of another name."
            )


def _state(spark: SparkSession, read: StateRead) -> DataFrame:
    """The newest row of each key that is not deleted.

    The rows of the last fold have each key once. So only the few rows of later epochs are aggregated, and rows of the
    fold count if their keys have no later row. Both are read from their own files: so Spark knows how few the later
    rows are.
    """
    declared = _schema(spark, read)
    if read.folded_in is None or read.files is None:
        return newest(changes(spark, read, declared), read.keys).where(f"not {DELETED}").drop(EPOCH, DELETED)
    told = {file: epochs or (0, read.folded_in + 1) for file, epochs in read.files.items()}
    folded = [file for file, (first, _) in told.items() if first <= read.folded_in]
    since = [file for file, (_, last) in told.items() if last > read.folded_in]
    later = newest(changes(spark, read, declared, since).where(f"{EPOCH} > {read.folded_in}"), read.keys)
    base = changes(spark, read, declared, folded).where(f"{EPOCH} <= {read.folded_in}")
    anew = later.select(*map(quoted, read.keys))
    unchanged = base.join(anew, list(read.keys), "left_anti").select(*map(quoted, base.columns))
    return unchanged.unionByName(later).where(f"not {DELETED}").drop(EPOCH, DELETED)


def changes(
    spark: SparkSession, read: StateRead, declared: StructType, files: Collection[str] | None = None
) -> DataFrame:
    """Every row of the log, or of some of its files, that has not expired, with ``EPOCH`` and ``DELETED``."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    if read.files is not None:
        table = _stored(spark, read, read.files if files is None else files)
        rows = _as_declared(table, declared, read.location, EPOCH, DELETED)
    elif read.initial is not None:
        table = _as_declared(_at(spark, read.initial, read.initial_version), declared, read.initial)
        rows = table.select("*", F.lit(0).cast("bigint").alias(EPOCH), F.lit(False).alias(DELETED))
    else:
        rows = spark.createDataFrame([], StructType([*declared.fields]).add(EPOCH, "long").add(DELETED, "boolean"))
    return unexpired(rows, read)


def unexpired(rows: DataFrame, read: StateRead) -> DataFrame:
    """The rows that have not expired. A row without ``expires`` never expires."""
    from pyspark.sql import functions as F

    if read.expires is None or read.hidden_to is None:
        return rows
    until = F.col(quoted(read.expires))
    return rows.where(until.isNull() | (until > F.timestamp_micros(F.lit(read.hidden_to))))


def newest(rows: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """The newest row of each key, with ``EPOCH`` and ``DELETED``."""
    from pyspark.sql import functions as F

    columns = [F.col(quoted(name)) for name in rows.columns if name not in keys]
    found = rows.groupBy(*map(quoted, keys)).agg(F.max_by(F.struct(*columns), F.col(EPOCH)).alias(_NEWEST))
    return found.select(*(F.col(_NEWEST)[n].alias(n) if n not in keys else F.col(quoted(n)) for n in rows.columns))


def stage_sink(
    spark: SparkSession, plan: StateStaging, read: StateRead, job: session.StageJob, df: DataFrame
) -> SinkOutcome:
    """Stage the epoch's changes of the state, or the whole state. ``read``: the state that the changes rest on.

    The claim has a problem if the changes do not have the state's columns, if a key is NULL, or if ``expires`` of a key
    falls; for a fold, also if a key changes twice. For changes, the vote looks at that.
    """
    plan, declared = _noted(plan, read.closed_now or read.closed), _schema(spark, read)
    if problem := _misfit(declared, df, plan):
        return SinkOutcome(place=plan.place, problem=problem)
    changed = _changed(df, declared, plan, read.keys)
    before = changes(spark, read, declared)
    if read.files is None and read.initial is not None:
        before = table_rules.ruled(before, plan.target, _of_texts(declared, " in the table in `initial`"))
    rows = _folded(before, changed, plan, read) if plan.fold else changed
    claim = jobs.stage_sink(spark, replace(plan, kind="delta"), job, rows)
    if claim.problem or plan.fold:
        return claim
    return replace(claim, problem=_fallen(spark, before, plan.place, read))


def _noted(plan: StateStaging, closed: closing.Marks) -> StateStaging:
    """The plan with a note of how far the operator has closed the state. Rows that it has not closed do not expire."""
    if not closed:
        return plan
    expired_to, note = closing.least(plan.expired_to, *closed), json.loads(plan.user_metadata)
    (ours,) = note.values()
    ours["state"] |= {"closed": list(closed), "expired_to": expired_to}
    return replace(plan, expired_to=expired_to, user_metadata=json.dumps(note, separators=(",", ":")))


def _changed(df: DataFrame, declared: StructType, plan: StateStaging, keys: tuple[str, ...]) -> DataFrame:
    """The changes as the table has them. When Spark computes them, it fails on a NULL key and on text without UTF-8."""
    from pyspark.sql import functions as F

    named = [_as_stored(field, keys).alias(field.name) for field in declared.fields]
    rows = df.select(*named, F.lit(plan.epoch).cast("bigint").alias(EPOCH), F.col(DELETED))
    rules = [(f"rule of state that its key column {key} is not NULL", f"{quoted(key)} IS NOT NULL") for key in keys]
    rules.append((f"rule of state that {DELETED} is not NULL", f"{DELETED} IS NOT NULL"))
    return table_rules.ruled(rows, plan.target, [*rules, *_of_texts(declared)])


def _of_texts(declared: StructType, where: str = "") -> Iterator[table_rules.Rule]:
    """The rule that texts are UTF-8: only Spark could read a table with other texts."""
    for field in declared.fields:
        if flawed := anywhere(quoted(field.name), json.loads(field.dataType.json()), not_utf8):
            yield f"rule of state that column {field.name} is UTF-8{where}", f"NOT coalesce({flawed}, false)"


def _as_stored(field: StructField, keys: tuple[str, ...]) -> Column:
    """The column with its type in the table. In a key, -0.0 becomes 0.0, and every NaN the same one.

    Spark takes both for equal; the vote and other readers compare the bits.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, FloatType

    value = F.col(quoted(field.name)).cast(field.dataType)
    if field.name not in keys or not isinstance(field.dataType, (DoubleType, FloatType)):
        return value
    one_nan = F.when(F.isnan(value), F.lit("NaN").cast(field.dataType)).otherwise(value)
    return F.when(value == 0, F.lit(0).cast(field.dataType)).otherwise(one_nan)


def _folded(before: DataFrame, changed: DataFrame, plan: StateStaging, read: StateRead) -> DataFrame:
    """The whole state after this epoch, as changes of this epoch."""
    from pyspark.sql import functions as F

    keys, names = read.keys, before.columns
    columns = [F.col(quoted(name)) for name in names if name not in keys]
    is_new = F.col(EPOCH) == F.lit(plan.epoch)
    found = [
        F.max_by(F.struct(*columns), F.col(EPOCH)).alias(_NEWEST),
        F.count(F.when(is_new, F.lit(1))).alias(_TIMES),
    ]
    rules = [("rule of state that an epoch changes a key at most once", f"{_TIMES} <= 1")]
    if read.initial is not None:
        found.append(F.count(F.when(~is_new, F.lit(1))).alias(_BEFORE))
        rules.append(("rule of state that the table in `initial` has a key at most once", f"{_BEFORE} <= 1"))
        rules += [
            (f"rule of state that {key} is not NULL in the table in `initial`", f"{quoted(key)} IS NOT NULL")
            for key in keys
        ]
    if read.expires is not None:
        last = F.struct(_until(read.expires).alias("until"), F.col(DELETED).alias("deleted"))
        found.append(F.max_by(last, F.when(~is_new, F.col(EPOCH))).alias(_UNTIL))
        newest_until = f"coalesce({_NEWEST}.{quoted(read.expires)}, {_NEVER})"
        never_falls = f"{_TIMES} = 0 OR {_UNTIL} IS NULL OR {_UNTIL}.deleted OR {_UNTIL}.until <= {newest_until}"
        rules.append((f"rule of state that {read.expires} never falls for a key", never_falls))
    rows = table_rules.ruled(before.unionByName(changed).groupBy(*map(quoted, keys)).agg(*found), plan.target, rules)
    state = rows.select(*(F.col(_NEWEST)[n].alias(n) if n not in keys else F.col(quoted(n)) for n in names))
    state = state.where(f"not {DELETED}").withColumn(EPOCH, F.lit(plan.epoch).cast("bigint"))
    return unexpired(state, replace(read, hidden_to=plan.expired_to))


_NEVER = "TIMESTAMP '9999-12-31 23:59:59.999999 UTC'"
"""When a row without ``expires`` expires: practically never."""


def _until(expires: str) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.col(quoted(expires)), F.expr(_NEVER))


def _fallen(spark: SparkSession, before: DataFrame, place: str, read: StateRead) -> str | None:
    """Some keys whose ``expires`` is earlier now than before; None if it fell for no key.

    Older rows are dropped, file by file, once they have expired. A newer row that expires sooner would be dropped
    first, and the older row would be the state again. Behind a deletion an earlier time does no harm: the deletion
    stays for longer than what it deletes.
    """
    if read.expires is None or (read.files is None and read.initial is None):
        return None
    keys = [quoted(key) for key in read.keys]
    now = staged.rows(spark, place).select(*keys, _until(read.expires).alias(_UNTIL))
    touched = before.join(now.select(*keys), list(read.keys), "left_semi")
    last = newest(touched, read.keys).where(f"not {DELETED}")
    earlier = last.select(*keys, _until(read.expires).alias(_NEWEST))
    fallen = collected(earlier.join(now, list(read.keys)).where(f"{_NEWEST} > {_UNTIL}").select(*keys).limit(SHOWN_MAX))
    return f"For some keys {read.expires} is earlier than in an earlier epoch: {shown(fallen)}." if fallen else None


# -- columns -----------------------------------------------------------------------------------------------------


def _schema(spark: SparkSession, read: StateRead) -> StructType:
    from pyspark.sql.types import StructType

    if read.declared is not None:
        return StructType.fromJson(read.declared)
    try:
        schema = spark.createDataFrame([], read.schema).schema
    except Exception as error:
        raise _unread(read.schema, error) from error
    if collated := [field.name for field in schema if " collate " in field.dataType.simpleString()]:
        raise Refused(
            f"A column of a state table cannot have a collation, and {', '.join(collated)} has one.",
            code=codes.STATE_SCHEMA,
            remedy="Write string without COLLATE in `schema`, and return such texts: F.collate(column, 'UTF8_BINARY') "
            "makes one. Where upper and lower case are the same, return F.lower() of that. Then clear the failed task.",
        )
    if read.expires and (kind := schema[read.expires].dataType.simpleString()) != "timestamp":
        raise Refused(
            f"`expires` of a state table is the column {read.expires!r} of type {kind}. It must be of type TIMESTAMP.",
            code=codes.STATE_SCHEMA,
        )
    if nested := [name for name in read.keys if name in schema.names and _is_nested(schema[name].dataType)]:
        raise Refused(
            f"A key column of a state table cannot be a struct, an array, a map or a variant: {', '.join(nested)}. "
            "Make columns of their parts, and name these in `keys`.",
            code=codes.STATE_SCHEMA,
        )
    return schema


def _unread(schema: str, error: Exception) -> Refused:
    """The error for a schema that Spark cannot make a DataFrame with."""
    if limited := _limited_texts(schema):
        return Refused(
            f"A column of a state table cannot be of type char or varchar: {', '.join(limited)}.",
            code=codes.STATE_SCHEMA,
            remedy="Write string in `schema`. Then clear the failed task.",
        )
    return Refused(
        f"The schema of a state table cannot be read by Spark: {schema!r}. {first_line(error)}",
        code=codes.STATE_SCHEMA,
    )


def _limited_texts(schema: str) -> list[str]:
    """The columns of type char or varchar. Spark parses such types, but has no values of them."""
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(schema)
    except Exception:
        return []
    kinds = {field.name: field.dataType.simpleString() for field in found}
    return [f"{name} is {kind}" for name, kind in kinds.items() if _LIMITED.search(kind)]


def _is_nested(kind: DataType) -> bool:
    """Whether the vote cannot look for keys that come twice: pyarrow does not compare such values."""
    from pyspark.sql import types

    return isinstance(kind, (types.StructType, types.ArrayType, types.MapType, types.VariantType))


def _misfit(declared: StructType, df: DataFrame, plan: StateStaging) -> str | None:
    wanted, given = {*declared.names, DELETED}, set(df.columns)
    parts = [f"they lack {', '.join(sorted(wanted - given))}"] if wanted - given else []
    parts += [f"they have {', '.join(sorted(given - wanted))}, which the state does not have"] if given - wanted else []
    kinds = dict(df.dtypes)
    for field in declared.fields:
        if field.name in given and kinds[field.name] not in (field.dataType.simpleString(), "void"):
            parts.append(f"{field.name} is {kinds[field.name]} instead of {field.dataType.simpleString()}")
    return f"The changes do not fit the state {plan.target}: {'; '.join(parts)}." if parts else None


def _as_declared(table: DataFrame, declared: StructType, where: str, *more: str) -> DataFrame:
    """The declared columns of a table, and more. A declared column that the table lacks is NULL: it is newer."""
    from pyspark.sql import functions as F

    wanted = {field.name: json.loads(field.dataType.json()) for field in declared.fields}
    if wrong := retyped(where, json.loads(table.schema.json()), wanted):
        raise Refused(wrong, code=codes.STATE_SCHEMA)
    known = [
        F.col(quoted(field.name)) if field.name in table.columns else F.lit(None).cast(field.dataType).alias(field.name)
        for field in declared.fields
    ]
    return table.select(*known, *more)


def _stored(spark: SparkSession, read: StateRead, files: Collection[str]) -> DataFrame:
    from pyspark.sql.types import StructType

    return rows_in(spark, StructType.fromJson(read.stored or {}), read.location, files)


def _at(spark: SparkSession, location: str, version: int | None) -> DataFrame:
    return spark.read.format("delta").option("versionAsOf", version).load(for_spark(location))
