"""The Delta sink's modes in Spark: staged rows that change a table, in one transaction signed with the epoch.

Delta skips a signed transaction that the table has seen, silently and whatever its rows were. So every commit looks
before it and after it, and tells whose transaction it found (as ``jobs.delta_commit`` does for appends).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta import (
    comparison,
    conditions,
    deletions,
    partitions,
    row_problems,
    session,
    staged,
    table_rules,
)
from airflow_epochs.spark.driver.delta import keys as delta_keys
from airflow_epochs.spark.driver.delta.jobs import (
    MESSAGE_LENGTH_MAX,
    NO_NEW_COLUMNS,
    append,
    committed,
    compact_json,
    delta_describe,
    layout_for,
    planned_by_spark,
    refusal,
    seen,
    signature,
    write_staged,
    write_staged_for,
)
from airflow_epochs.spark.driver.delta.plans import (
    ChangePlan,
    Committed,
    DeltaChangeStaging,
    DescribedTable,
    DescribePlan,
    ForgetPlan,
    Forgotten,
    How,
    SeenTable,
)
from airflow_epochs.spark.driver.delta.spelling import for_spark, identifier, is_path
from airflow_epochs.spark.driver.plans import SinkOutcome
from airflow_epochs.spark.driver.wire import JsonDict
from airflow_epochs.transforms.conditions import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_OF_SESSION = {
    "txnAppId": "spark.databricks.delta.write.txnAppId",
    "txnVersion": "spark.databricks.delta.write.txnVersion",
    "userMetadata": "spark.databricks.delta.commitInfo.userMetadata",
}
"""Option of a write -> the session's setting with the same effect on MERGE, which takes no options."""
_AUTO_MERGE = "spark.databricks.delta.schema.autoMerge.enabled"
"""A server may have this setting on: then a MERGE adds columns though nobody asked for it."""
_BY_NAME = "spark.databricks.delta.resolveMergeUpdateStructsByName.enabled"
"""A server may have this setting off: then a MERGE stores the fields of structs by places, and compares by names."""
_OVERWRITES_PARTITIONS = "spark.databricks.delta.dynamicPartitionOverwrite.enabled"
"""A server may have this setting off: then Delta refuses to replace partitions, and a decided epoch stays in doubt."""
_NOT_PLANNED = "Error occurred during query planning"
"""What EXPLAIN prints before a colon and the reason if it cannot plan a statement. It raises only for the syntax."""

_TAKES_MATCHED = re.compile(r"\bwhen\s+matched\b", re.IGNORECASE)
_TAKES_ALL = re.compile(r"\bwhen\s+not\s+matched\s+by\s+source\b", re.IGNORECASE)
"""Clauses by which a MERGE writes files of the table anew. A MERGE without them only inserts rows."""


# -- stage -------------------------------------------------------------------------------------------------------


def stage_sink(spark: SparkSession, plan: DeltaChangeStaging, job: session.StageJob, df: DataFrame) -> SinkOutcome:
    """Stage rows that will change the target, and check what their commit will rely on.

    The ``problem`` may be that the rows do not fit the target, or that their keys break a rule of keys.
    """
    how = plan.how
    spark.conf.set(_AUTO_MERGE, "false")  # every sink says what it wants, so this setting has no other reader
    spark.conf.set(_BY_NAME, "true")
    tells_computed = plan.schema is not None  # the log's, as Spark does not tell which columns the table computes
    plan, rules = planned_by_spark(spark, plan, df.columns)
    if problem := _misfit(plan, df, plan.partition_by if tells_computed else ()):
        return SinkOutcome(place=plan.place, problem=problem)
    df = partitions.stored(df, plan.partition_by)
    if how.mode != "merge":  # the rows of a merge need not look like the table's
        replaces = how.mode != "upsert"  # of a key that is there, what the rows lack keeps its value
        df = table_rules.kept(df, plan.target, rules, unless=how.delete_when or "false", are_whole=replaces)
    claim = write_staged(plan, job, df)
    if claim.problem is None and how.keys:
        return replace(claim, problem=_problem_of_keys(spark, plan))
    return claim


def _misfit(plan: DeltaChangeStaging, df: DataFrame, partition_by: tuple[str, ...]) -> str | None:
    """Why the target cannot take rows with these columns; None if it can."""
    how, schema = plan.how, plan.schema
    if problem := conditions.misfit(df, how):
        return problem
    if schema is None:
        return None
    if missing := conditions.missing(how, [field["name"] for field in schema["fields"]]):
        return (
            f"{plan.target} lacks {missing}. `schema_evolution` does not add the columns that `keys` and `sequence_by` "
            "name."
        )
    found = row_problems.problems(how, plan.target, schema, json.loads(df.schema.json()), partition_by)
    return f"The rows do not fit {plan.target}: {'; '.join(found)}." if found else None


def _problem_of_keys(spark: SparkSession, plan: DeltaChangeStaging) -> str | None:
    from pyspark.errors import AnalysisException

    rows = staged.rows(spark, plan.place)
    try:
        return delta_keys.problem(rows, plan.how) or _not_analysed(spark, plan, rows)
    except AnalysisException as error:  # as of keys that cannot be compared, such as maps
        return f"The MERGE into {plan.target} is not valid: {conditions.first_lines(error)}"


def _not_analysed(spark: SparkSession, plan: DeltaChangeStaging, rows: DataFrame) -> str | None:
    """Why Spark cannot plan the MERGE, or why it would move rows; None if neither is the case.

    Without a table, the staged rows stand in for it.
    """
    target = plan.target if plan.schema is not None else plan.place
    source = delta_keys.newest(rows, plan.how) if plan.how.mode == "upsert" else rows
    with conditions.view(source) as view:
        merge = _Merge.of(plan.how, target, json.loads(rows.schema.json()), view)
        told = "\n".join(str(line[0]) for line in spark.sql(f"EXPLAIN {merge.statement}").collect())
        if _NOT_PLANNED not in told:
            moved = merge.moved(spark, partitions.instants(plan.schema, plan.partition_by))
            return moved and f"{moved}. {partitions.SET_UTC}."
    why = " ".join(told.split(_NOT_PLANNED, 1)[1].split())
    return _of_padding(plan) or f"The MERGE into {plan.target} is not valid{why[:MESSAGE_LENGTH_MAX]}"


def _of_padding(plan: DeltaChangeStaging) -> str | None:
    """What is wrong with a MERGE that compares a column of type CHAR: Spark's own error names no column."""
    compared = {name.lower() for name in (*plan.how.keys, plan.how.sequence_by) if name}
    for field in (plan.schema or {}).get("fields", ()):
        kind = field.get("metadata", {}).get(table_rules.CHAR_OR_VARCHAR, "")
        if field["name"].lower() in compared and kind.startswith("char("):
            return (
                f"The MERGE into {plan.target} is not valid: column {field['name']!r} is {kind} there, and Delta "
                "cannot compare a column that Spark pads with blanks. Make it a text without padding, in Spark: "
                f"ALTER TABLE {identifier(plan.target)} ALTER COLUMN {quoted(field['name'])} TYPE STRING"
            )
    return None


# -- commit ------------------------------------------------------------------------------------------------------


def delta_change(spark: SparkSession, plan: ChangePlan) -> Committed:
    """Bring the rows staged at ``place`` into ``target`` in the plan's mode, once.

    If the table is not the one that the sink voted for, nothing is written. The session's settings are changed
    meanwhile: nothing else may write in it.
    """
    spark.conf.set(_AUTO_MERGE, "false")
    spark.conf.set(_BY_NAME, "true")
    spark.conf.set(_OVERWRITES_PARTITIONS, "true")
    before = seen(spark, plan.target, plan.app)
    if refused := refusal(before, plan) or _replaced(before, plan):
        return Committed(about=before.about, marker=before.marker, refused=refused)
    if before.marker.epoch != plan.epoch:
        session.prepare_commit(spark, layout_for(before, plan))
        partitions.require_unambiguous(spark, plan, before.about.table)
        try:
            _CHANGES[plan.change.how.mode](spark, plan, before.about.table)
        except deletions.NotComparable as refused:
            return Committed(about=before.about, marker=before.marker, refused=str(refused))
    return committed(spark, plan, before)


def _replaced(before: SeenTable, plan: ChangePlan) -> str | None:
    """Why an overwrite would remove rows that the vote did not look at; None if it would not.

    An append may go to a table that somebody has created meanwhile, or has partitioned by other columns.
    """
    table, mode = before.about.table, plan.change.how.mode
    if plan.table_id is None and table is not None and before.marker.epoch is None and mode.startswith("overwrite"):
        return "somebody created the table after these rows were staged"
    if table is None or mode != "overwrite_partitions" or before.marker.epoch == plan.epoch or not plan.change.rows:
        return None
    return partitions.difference(table.partition_by, plan.partition_by)


def _append(spark: SparkSession, plan: ChangePlan, table: DescribedTable | None) -> None:
    options = _options(plan)
    write_staged_for(table, spark, plan, lambda rows: append(plan, rows, new=table is None, options=options))


def _overwrite(spark: SparkSession, plan: ChangePlan, table: DescribedTable | None) -> None:
    write_staged_for(table, spark, plan, lambda rows: _overwrite_with(rows, plan, table))


def _overwrite_with(rows: DataFrame, plan: ChangePlan, table: DescribedTable | None) -> None:
    how = plan.change.how
    partitions = how.mode == "overwrite_partitions"
    nothing = plan.change.rows == 0 and (partitions or how.empty == "keep")
    if table is None or nothing:  # nothing to append, too: the epoch is signed all the same
        append(plan, rows, new=table is None, options=_options(plan))
    elif is_path(plan.target):
        rows.write.format("delta").mode("overwrite").options(**_of_overwrite(plan)).save(for_spark(plan.target))
    else:
        _overwrite_named(plan, rows)


def _of_overwrite(plan: ChangePlan) -> dict[str, str]:
    """Options that say which rows are replaced: else a server may be set up to replace single partitions."""
    partitions = plan.change.how.mode == "overwrite_partitions"
    return _options(plan) | {"partitionOverwriteMode": "dynamic" if partitions else "static"}


def _overwrite_named(plan: ChangePlan, rows: DataFrame) -> None:
    """Overwrite a table of a catalog by ``writeTo``: ``saveAsTable`` would replace its properties and constraints."""
    from pyspark.sql import functions as F

    writer = rows.writeTo(identifier(plan.target)).options(**_of_overwrite(plan))
    if plan.change.how.mode == "overwrite_partitions":
        writer.overwritePartitions()
    else:
        writer.overwrite(F.lit(True))


def _upsert(spark: SparkSession, plan: ChangePlan, table: DescribedTable | None) -> None:
    how, found = plan.change.how, staged.table(spark, plan.place)
    rows = delta_keys.newest(found, how)
    if how.sequence_by:  # deletions by other sinks count too
        places = list(plan.change.all_notes)
        if how.delete_when:
            place = f"{plan.change.notes}/{deletions.name_of(rows, how)}"
            deletions.remember(rows, how, place, plan.user_metadata)
            places = [place, *places]
        noted = deletions.noted(rows, how, dict.fromkeys(places))
        rows = deletions.without_older(rows, how, noted.values()) if noted else rows
        if own := [each for each in noted if each.startswith(f"{plan.change.notes}/")]:
            name = own[0].rpartition("/")[2]
            plan = replace(plan, user_metadata=_telling(plan.user_metadata, deletions=name))
    _merge_into_table(spark, plan, table, rows, found)


def _merge(spark: SparkSession, plan: ChangePlan, table: DescribedTable | None) -> None:
    rows = staged.table(spark, plan.place)
    _merge_into_table(spark, plan, table, rows, rows)


def _merge_into_table(
    spark: SparkSession, plan: ChangePlan, table: DescribedTable | None, rows: DataFrame, found: DataFrame
) -> None:
    """Merge ``rows``, which were ``found`` staged; into a new table if there was no ``table``.

    It is created empty and unsigned: another sink may create it at the same time, whose rows are to be merged too.
    """
    schema = json.loads(found.schema.json())
    if table is None:
        append(plan, found.limit(0), new=True, options={})
    else:
        delta_keys.require_apart(rows, schema, plan.change.how, table.schema)
    _merge_into(spark, plan, rows, schema, table)


_CHANGES: dict[str, Callable[[SparkSession, ChangePlan, DescribedTable | None], None]] = {
    "append": _append,
    "overwrite": _overwrite,
    "overwrite_partitions": _overwrite,
    "upsert": _upsert,
    "merge": _merge,
}


def delta_forget(spark: SparkSession, plan: ForgetPlan) -> Forgotten:
    """Delete the rows that an upsert has just brought although another sink had noted a later deletion of their key.

    Notes that Spark cannot cast are left out here. They stop the sink's next commit, if it deletes too.
    """
    rows = delta_keys.newest(staged.table(spark, plan.place), plan.how)
    schema = json.loads(rows.schema.json())
    noted = deletions.noted(rows, replace(plan.how, delete_when=None), plan.notes)
    older = deletions.older(rows, plan.how, noted.values()) if noted else None
    if older is None or not older.limit(1).collect():
        return Forgotten(rows_deleted=0)
    table = delta_describe(spark, DescribePlan(target=plan.target)).table
    session.prepare_commit(spark, plan.layout.of(table.properties if table else {}))
    with conditions.view(older) as view:
        is_older = f"{_of_table(plan.how.sequence_by or '', schema)} < s.{deletions.DELETED_AT}"
        condition = f"{_same_key(plan.how, schema)} AND {is_older}"
        told = _Merge(plan.target, view, condition, "WHEN MATCHED THEN DELETE").run(spark, table)[0]
    return Forgotten(rows_deleted=told["num_deleted_rows"])


def _telling(user_metadata: str, **facts: str) -> str:
    """The commit's note with more ``facts``, which later epochs read."""
    note = json.loads(user_metadata)
    note["airflow_epochs"] |= facts
    return compact_json(note)


def _options(plan: ChangePlan) -> dict[str, str]:
    evolution = {"mergeSchema": "true"} if plan.change.how.schema_evolution else NO_NEW_COLUMNS
    return signature(plan) | evolution


def _merge_into(
    spark: SparkSession, plan: ChangePlan, rows: DataFrame, schema: JsonDict, table: DescribedTable | None
) -> None:
    how, no_rows = plan.change.how, plan.change.rows == 0
    with conditions.view(rows) as view:
        merge = _Merge.of(how, plan.target, schema, view, no_rows=no_rows)
        with _signed(spark, plan):
            merge.run(spark, None if no_rows else table)


@contextmanager
def _signed(spark: SparkSession, plan: ChangePlan) -> Iterator[None]:
    """Sign every write of this session with the epoch until the block ends."""
    settings = {_OF_SESSION[option]: value for option, value in signature(plan).items()}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)


# -- the MERGE ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Merge:
    """The MERGE of the rows in ``view`` (``s``) into ``target`` (``t``)."""

    target: str
    view: str
    condition: str
    clauses: str
    evolution: str = ""

    @classmethod
    def of(cls, how: How, target: str, schema: JsonDict, view: str, *, no_rows: bool = False) -> _Merge:
        """The MERGE of a mode, for rows of this schema."""
        clauses = _upsert_clauses(how, schema) if how.mode == "upsert" else how.merge or ""
        if no_rows and how.mode == "merge":
            clauses = "WHEN MATCHED AND false THEN DELETE"  # changes nothing, but is signed
        evolution = " WITH SCHEMA EVOLUTION" if how.schema_evolution else ""
        return cls(target, view, _condition(how, schema), clauses, evolution)

    @property
    def statement(self) -> str:
        """The MERGE in SQL."""
        into = f"MERGE{self.evolution} INTO {identifier(self.target)} AS t"
        return f"{into} USING {self.view} AS s ON {self.condition} {self.clauses}"

    def moved(self, spark: SparkSession, instants: list[str]) -> str | None:
        """Why the MERGE would move rows of the table into other partitions; None if it would not."""
        if _TAKES_ALL.search(self.clauses):
            join = f" CROSS JOIN (SELECT 1 FROM {self.view} LIMIT 1)"
        elif _TAKES_MATCHED.search(self.clauses):
            join = f" JOIN {self.view} AS s ON {self.condition}"
        else:
            return None
        return partitions.moved(spark, self.target, instants, join)

    def run(self, spark: SparkSession, table: DescribedTable | None) -> list[Row]:
        """Merge, and return what Spark tells of it: nothing if the table has seen the transaction.

        ``table`` is the target as it was before; None if the MERGE cannot move a row of it.

        Raises:
            Refused: It would move rows of the table into other partitions.
        """
        instants = partitions.instants(table.schema, table.partition_by) if table else []
        if moved := self.moved(spark, instants):
            raise partitions.refused(moved)
        told: list[Row] = spark.sql(self.statement).collect()
        return told


def _condition(how: How, schema: JsonDict) -> str:
    """The SQL condition under which a table row and a staged row have the same key."""
    return f"{_same_key(how, schema)} AND ({how.on})" if how.on else _same_key(how, schema)


def _same_key(how: How, schema: JsonDict) -> str:
    return " AND ".join(f"{_of_table(key, schema)} = s.{quoted(key)}" for key in how.keys)


def _of_table(name: str, schema: JsonDict) -> str:
    """A column of the table, in SQL, with nested fields in the order of ``schema``, the rows' schema."""
    column = comparison.column_of(schema, name)
    return comparison.in_order_of(column and column["type"], f"t.{quoted(name)}")


def _upsert_clauses(how: How, schema: JsonDict) -> str:
    """The clauses of an upsert. They name columns: one that only the table has keeps its value, or is NULL."""
    deleted, newer = f"s.{quoted(delta_keys.DELETED)}", _newer(how.sequence_by, schema)
    keys, columns = {key.lower() for key in how.keys}, [field["name"] for field in schema["fields"]]
    updates = ", ".join(f"{quoted(name)} = s.{quoted(name)}" for name in columns if name.lower() not in keys)
    names = ", ".join(quoted(name) for name in columns)
    values = ", ".join(f"s.{quoted(name)}" for name in columns)
    clauses = [f"WHEN MATCHED AND {newer} AND {deleted} THEN DELETE"] if how.delete_when else []
    if updates:
        clauses.append(f"WHEN MATCHED AND {newer} THEN UPDATE SET {updates}")
    return " ".join([*clauses, f"WHEN NOT MATCHED AND NOT {deleted} THEN INSERT ({names}) VALUES ({values})"])


def _newer(sequence: str | None, schema: JsonDict) -> str:
    """The condition that a staged row is newer. If both are equally new, the row of the later epoch is newer."""
    if sequence is None:
        return "true"
    return f"(t.{quoted(sequence)} IS NULL OR s.{quoted(sequence)} >= {_of_table(sequence, schema)})"
