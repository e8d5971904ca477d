"""The Delta sink's side in Spark: stage rows into a private table, or append staged rows with Spark's own writer.

Only the public DataFrame and SQL API, so that Spark Connect and a classic driver both work; no session settings,
so that several sinks can be staged at once in one session.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import Refused
from airflow_epochs.spark.driver import row_digest
from airflow_epochs.spark.driver.delta import dates, partitions, session, staged, table_rules, types
from airflow_epochs.spark.driver.delta import schema as delta_schema
from airflow_epochs.spark.driver.delta.files import entries, exists, is_missing
from airflow_epochs.spark.driver.delta.layout import FileLayout
from airflow_epochs.spark.driver.delta.plans import (
    CommitPlan,
    Committed,
    DeltaStaging,
    Described,
    DescribedTable,
    DescribePlan,
    FoundMarker,
    MarkerPlan,
    Optimized,
    OptimizePlan,
    SeenTable,
)
from airflow_epochs.spark.driver.delta.spelling import for_spark, identifier, is_path
from airflow_epochs.spark.driver.delta.table_rules import TableRules
from airflow_epochs.spark.driver.plans import SinkOutcome
from airflow_epochs.spark.driver.wire import JsonDict

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession

P = TypeVar("P", bound=DeltaStaging)

WRITER_CONF = {"parquet.page.size.row.check.min": "10"}
"""By default the writer looks at a page's size after 100 rows. Where a row has a megabyte, a page then has 100 MB, and
each reader of the staged rows must hold a whole page in memory."""
OPTIMIZE_WRITE = "delta.autoOptimize.optimizeWrite"
"""A property by which a table's owner says whether rows are shuffled before they are written."""
_IS_VIEW = "[EXPECT_TABLE_NOT_VIEW"
"""How Spark's error begins if the name belongs to a view."""
FEW_RECORDS = 50_000
"""A task with fewer records writes a small file: so few records are shuffled, which takes a moment."""
HISTORY_DEPTHS = (20, 1_000)
"""How many of the newest commits are searched for a marker, before the log itself is read."""
_NOT_STORED = (
    "Delta, in which rows wait for their commit, does not know the types of these columns. Let the transform return "
    'others, for example by `.cast("string")`:'
)
MESSAGE_LINES_MAX = 4
MESSAGE_LENGTH_MAX = 600

_ABOUT_THE_ROWS = re.compile(r"\b(DELTA_[A-Z0-9_]+|EXCEED_LIMIT_LENGTH|USER_RAISED_EXCEPTION|UNRESOLVED_COLUMN)\b")
_STACK = re.compile(r"JVM stacktrace:|at [\w.$]+[(/]|Caused by:")
_NO_PARTITION = "[DELTA_PARTITION_COLUMN_NOT_FOUND] Partition column"
_NOT_THE_DATA = ("DELTA_CONCURRENT", "DELTA_CONFIGURE_SPARK_SESSION", "DELTA_FILE_NOT_FOUND", "DELTA_PATH_")


def stage_sink(spark: SparkSession, plan: DeltaStaging, job: session.StageJob, df: DataFrame) -> SinkOutcome:
    """Write ``df`` into the private table of this try, in one commit that carries the transaction id.

    If the rows or their schema do not fit the target, the claim has a ``problem``, and nothing was staged.
    """
    rows = json.loads(df.schema.json())
    tells_computed = plan.schema is not None  # the log's, as Spark does not tell which columns the table computes
    if plan.committer == "spark":
        plan, rules = planned_by_spark(spark, plan, df.columns)
        df = table_rules.kept(partitions.stored(df, plan.partition_by), plan.target, rules)
    partition_by = plan.partition_by if tells_computed else ()
    if plan.schema is not None and (found := delta_schema.problems(plan.schema, rows, partition_by=partition_by)):
        return SinkOutcome(place=plan.place, problem=f"The rows do not fit {plan.target}: {'; '.join(found)}.")
    return write_staged(plan, job, df)


def write_staged(plan: DeltaStaging, job: session.StageJob, df: DataFrame) -> SinkOutcome:
    """Append the rows to the staging table; return the claim for them."""
    if unknown := list(delta_schema.not_stored(json.loads(df.schema.json()))):
        columns = ", ".join(f"{name!r} ({kind})" for name, kind in unknown)
        return SinkOutcome(place=plan.place, problem=f"{plan.target} cannot get these rows. {_NOT_STORED} {columns}.")
    try:
        df, observation = row_digest.observing(types.plain(df), typed=not job.variants_by_json)
        # Behind the observation, below which Spark moves no check: it would judge rows that a join drops.
        df = partitions.unambiguous(df if job.again else partitions.sound(dates.known(df, plan), plan), plan)
        _staging_writer(plan, job, df).save(for_spark(plan.place))
    except Exception as error:
        if problem := problem_in(error):
            return SinkOutcome(place=plan.place, problem=problem)
        raise
    return SinkOutcome(place=plan.place, content=row_digest.told(df, observation, typed=not job.variants_by_json))


def _staging_writer(plan: DeltaStaging, job: session.StageJob, df: DataFrame) -> DataFrameWriter:
    partition_by = _partition_by(plan, df)
    writer = (
        df.write.format("delta")
        .mode("append")
        # Without ``txnAppId``: to look for earlier ones, Delta computes the table's state, which takes as long as a
        # small append. A try has its table to itself, and the vote refuses a second append.
        .option("userMetadata", plan.user_metadata)
        .option("optimizeWrite", str(_gathers(plan, partition_by, job.records)).lower())
    )
    if plan.layout is not None:
        writer = writer.option("compression", plan.layout.codec)
    if plan.has_version_0:
        return writer
    # A table that deltalake creates is a copy of this one; where Spark does, it applies the server's defaults itself.
    given = job.defaults if plan.committer == "deltalake" else _of_copied(plan, df)
    for key, value in {**given, **plan.properties, "delta.randomizeFilePrefixes": "true"}.items():
        writer = writer.option(key, value)
    return writer.partitionBy(*partition_by)


def _of_copied(plan: DeltaStaging, df: DataFrame) -> dict[str, str]:
    """Properties of a staging table whose rows are copied: no other program reads it, so columns may have any names."""
    if plan.committer != "copy" or not delta_schema.needs_mapping(json.loads(df.schema.json())):
        return {}
    return {delta_schema.COLUMN_MAPPING: "name"}


def _partition_by(plan: DeltaStaging, df: DataFrame) -> tuple[str, ...]:
    """The staging table's partitioning: where Spark commits to a table, that computes columns which the rows lack."""
    if plan.has_version_0 or plan.schema is None:
        return plan.partition_by
    given = {name.lower() for name in df.columns}
    return tuple(name for name in plan.partition_by if name.lower() in given)


def _gathers(plan: DeltaStaging, partition_by: tuple[str, ...], records: int) -> bool:
    """Whether rows are shuffled first, so that the rows of a partition get into one file, up to a size worth a file.

    Else every task writes a file for every partition that it has rows of. Without partitions, a task writes one file,
    which is too small only if the task has few records. Rows that will be copied keep their order.
    """
    if plan.committer == "copy":
        return False
    if plan.optimize_write is not None:
        return plan.optimize_write
    return bool(partition_by) or records <= FEW_RECORDS


def planned_by_spark(spark: SparkSession, plan: P, columns: list[str]) -> tuple[P, TableRules]:
    """The plan with the target's schema as Spark knows it, and the rules that the target has for rows with ``columns``.

    The staging table gets no rules of its own: they would cost one commit each.
    """
    table = _described(spark, plan.target).table
    if table is None:
        return plan, TableRules()
    schema = plan.schema or table.schema
    given = {name.lower() for name in columns}
    note = json.loads(plan.user_metadata)
    note["airflow_epochs"]["table_id"] = table.id
    mapping = {key: value for key, value in table.properties.items() if key == delta_schema.COLUMN_MAPPING}
    gather = table.properties.get(OPTIMIZE_WRITE)
    plan = replace(
        plan,
        schema=schema,
        partition_by=table.partition_by,
        properties=mapping,
        optimize_write=plan.optimize_write if gather is None else gather.lower() == "true",
        user_metadata=compact_json(note),
    )
    return plan, table_rules.of(schema, table.properties, table.partition_by, given)


def delta_describe(spark: SparkSession, plan: DescribePlan) -> Described:
    """Describe the table ``target``, as Spark knows it."""
    return _described(spark, plan.target)


def _described(spark: SparkSession, name: str) -> Described:
    target = identifier(name)
    try:
        detail = spark.sql(f"DESCRIBE DETAIL {target}").collect()[0].asDict(recursive=True)
    except Exception as error:
        if is_missing(error):
            return Described()
        if _IS_VIEW in str(error):
            raise _a_view(name) from error
        raise
    if detail["format"] != "delta" or not detail["id"]:
        return Described(format=detail["format"])
    table = DescribedTable(
        location=detail["location"],
        id=detail["id"],
        schema=json.loads(spark.sql(f"SELECT * FROM {target} LIMIT 0").schema.json()),
        partition_by=tuple(detail["partitionColumns"]),
        properties=dict(detail["properties"]),
        min_reader=detail["minReaderVersion"],
        min_writer=detail["minWriterVersion"],
        features=tuple(sorted(detail.get("tableFeatures") or [])),
    )
    return Described(table=table)


def _a_view(name: str) -> Refused:
    in_catalog = ".".join(name.split(".")[-2:])  # RENAME TO takes no name of a catalog
    rename = f"`ALTER TABLE … RENAME TO {identifier(in_catalog)}`"
    return Refused(
        f"{name} is not a Delta table: in the catalog, it is a view.",
        code=codes.DELTA_NOT_A_TABLE,
        remedy=f"Put the table back under its name: drop the view (`DROP VIEW {identifier(name)}` in Spark), and give "
        f"the table its old name ({rename}). Or, if the sink has shown no epoch yet, name a table in the sink. Then "
        "clear the failed task.",
    )


def delta_marker(spark: SparkSession, plan: MarkerPlan) -> SeenTable:
    """The newest epoch of ``app`` in ``target`` and its transaction id, if the table still knows it."""
    return seen(spark, plan.target, plan.app)


def seen(spark: SparkSession, target: str, app: str) -> SeenTable:
    """The table ``target``, and the marker of ``app`` in it, as ``delta_marker`` reports them."""
    about = _described(spark, target)
    marker = _found(spark, target, app, about.table.location) if about.table else FoundMarker()
    return SeenTable(about=about, marker=marker)


def committed(spark: SparkSession, plan: CommitPlan, before: SeenTable) -> Committed:
    """The table and the marker after a commit. ``before``: the same right before it.

    The marker is read anew. The table is the same, so it is described again only if it did not exist before.
    """
    if before.about.table is None:
        after = seen(spark, plan.target, plan.app)
        return Committed(about=after.about, marker=after.marker)
    marker = _found(spark, plan.target, plan.app, before.about.table.location)
    return Committed(about=before.about, marker=marker)


def _found(spark: SparkSession, target: str, app: str, location: str) -> FoundMarker:
    """The marker in the table's newest version, and its commit."""
    for depth in HISTORY_DEPTHS:
        if found := _in_history(spark, target, app, depth):
            return found
    return _in_log(spark, location, app)


def _in_history(spark: SparkSession, target: str, app: str, depth: int) -> FoundMarker | None:
    from pyspark.sql import functions as F

    history = spark.sql(f"DESCRIBE HISTORY {identifier(target)} LIMIT {depth}")
    ours = history.where(F.col("userMetadata").contains(f'"app":"{app}"') & _commits(F.col("operation")))
    found = ours.select("version", F.unix_millis("timestamp").alias("timestamp_ms"), "userMetadata").collect()
    if not found:
        return None
    newest = max(found, key=lambda commit: int(commit["version"]))  # here, since Spark would start a job to sort them
    return _noted(newest["userMetadata"], newest["version"], newest["timestamp_ms"])


def _commits(operation: Column) -> Column:
    """Whether an operation can be an epoch's commit.

    Earlier versions let a table compact itself right behind a MERGE. Delta gave its OPTIMIZE the note of the epoch.
    """
    return ~operation.eqNullSafe("OPTIMIZE")


def _noted(user_metadata: str, version: int, timestamp_ms: int) -> FoundMarker:
    """The marker of a commit with this note."""
    note = json.loads(user_metadata)["airflow_epochs"]
    return FoundMarker(
        epoch=int(note["txn"].split("/")[1]),
        txn=note["txn"],
        committer=note.get("committer"),
        place=note.get("place"),
        deletions=note.get("deletions"),
        version=version,
        timestamp_ms=timestamp_ms,
        ends=note.get("ends"),
        event_time=note.get("event_time"),
    )


def _in_log(spark: SparkSession, location: str, app: str) -> FoundMarker:
    """The marker from the whole log. Its commit is unknown only if a clean-up of the log has taken the entry.

    Epochs only grow, so the highest of the ``txn`` actions is the newest.
    """
    from pyspark.sql import functions as F

    signed = "txn struct<appId: string, version: bigint>"
    epoch = F.max(F.when(F.col("txn.appId") == app, F.col("txn.version")))
    name, note = F.col("_metadata.file_name"), F.col("commitInfo.userMetadata")
    time = F.unix_millis("_metadata.file_modification_time")
    is_ours = note.contains(f'"app":"{app}"') & _commits(F.col("commitInfo.operation"))
    newest = F.max(F.when(is_ours, F.struct(name, time, note)))
    info = "commitInfo struct<operation: string, userMetadata: string>"
    log = spark.read.schema(f"{signed}, {info}").json(entries(location, "*.json"))
    found, noted = log.agg(epoch, newest).collect()[0]
    if exists(spark, checkpoints := entries(location, "*.checkpoint*.parquet")):
        in_checkpoints = spark.read.schema(signed).parquet(checkpoints).agg(epoch).collect()[0][0]
        found = max((known for known in (found, in_checkpoints) if known is not None), default=None)
    if noted is None:
        return FoundMarker(epoch=found)
    entry, timestamp_ms, user_metadata = noted
    marker = _noted(user_metadata, int(entry.partition(".")[0]), timestamp_ms)
    return marker if marker.epoch == found else FoundMarker(epoch=found)


def delta_commit(spark: SparkSession, plan: CommitPlan) -> Committed:
    """Append the rows staged at ``place`` to ``target``, once, and say whose rows the target has for the epoch.

    A repeat changes nothing: Spark itself skips an append whose ``txnVersion`` the table has seen. Where the table is
    not the one that the sink voted for, nothing is written.
    """
    before = seen(spark, plan.target, plan.app)
    if refused := refusal(before, plan):
        return Committed(about=before.about, marker=before.marker, refused=refused)
    if before.marker.epoch != plan.epoch:
        session.prepare_commit(spark, layout_for(before, plan))
        table = before.about.table
        partitions.require_unambiguous(spark, plan, table)
        options = signature(plan) | NO_NEW_COLUMNS
        write_staged_for(table, spark, plan, lambda rows: append(plan, rows, new=table is None, options=options))
    return committed(spark, plan, before)


def write_staged_for(
    table: DescribedTable | None, spark: SparkSession, plan: CommitPlan, write: Callable[[DataFrame], None]
) -> None:
    """Write the staged rows, with the types that the table has now, and NULL for the partition columns that they lack.

    The vote refuses rows without such a column. But the table may have got it since, or an earlier version may have
    voted. Before it writes anything, Delta names such a column, if it does not compute it itself.
    """
    rows = staged.rows(spark, plan.place)
    if table is None:
        return write(rows)
    rows = types.widened(rows, table.schema)
    while True:
        try:
            return write(rows)
        except Exception as error:
            lacking = _partition_without_rows(table, rows, str(error))
            if lacking is None:
                raise
            rows = table_rules.with_nulls(rows, [lacking])


def _partition_without_rows(table: DescribedTable, rows: DataFrame, error: str) -> JsonDict | None:
    """The partition column of the table that the rows lack, as Delta's ``error`` names it."""
    given = {name.lower() for name in rows.columns}
    columns = [field for field in table.schema["fields"] if field["name"].lower() not in given]
    return next((field for field in columns if f"{_NO_PARTITION} `{field['name']}` " in error), None)


def layout_for(before: SeenTable, plan: CommitPlan) -> FileLayout:
    """The file size and codec for the table that ``before`` describes."""
    return plan.layout.of(before.about.table.properties if before.about.table else plan.properties)


def signature(plan: CommitPlan) -> dict[str, str]:
    """The options by which Spark signs a write as the epoch's commit."""
    return signed(plan.app, plan.epoch, plan.user_metadata)


def signed(app: str, epoch: int, user_metadata: str) -> dict[str, str]:
    """The options that sign a write. Delta skips a write under the same ``app`` whose ``epoch`` is not newer."""
    return {"txnAppId": app, "txnVersion": str(epoch), "userMetadata": user_metadata}


NO_NEW_COLUMNS = {"mergeSchema": "false"}
"""Set for each write: else a server may be set up to add columns (``schema.autoMerge.enabled``)."""


def append(plan: CommitPlan, df: DataFrame, *, new: bool, options: dict[str, str]) -> None:
    """Append to ``target``, which is created if it is ``new``, in one commit."""
    writer = df.write.format("delta").mode("append").options(**options)
    if new:
        writer = writer.options(**plan.properties).partitionBy(*plan.partition_by)
    append_to(plan.target, writer)


def append_to(target: str, writer: DataFrameWriter) -> None:
    """Let the writer append to a table, by its path or its name."""
    if is_path(target):
        writer.save(for_spark(target))
    else:
        writer.saveAsTable(identifier(target))


def refusal(before: SeenTable, plan: CommitPlan) -> str | None:
    """Why rows may not be committed to the table that ``before`` describes; None if they may."""
    table, marker = before.about.table, before.marker
    if plan.table_id and table is None:
        return "the table is gone"
    if plan.table_id and table and table.id != plan.table_id:
        return "somebody replaced the table with another one"
    if marker.epoch not in (plan.previous_epoch, plan.epoch):
        expected, found = _epoch(plan.previous_epoch), _epoch(marker.epoch)
        return f"the table shows {found}, but before this commit it must show {expected}"
    if marker.epoch not in (None, plan.epoch) and marker.txn not in (None, plan.previous):
        return (
            f"the table and the ledger have different transactions of epoch {marker.epoch}: {marker.txn} in the table, "
            f"{plan.previous} in the ledger"
        )
    return None


def _epoch(number: int | None) -> str:
    return "no epoch" if number is None else f"epoch {number}"


def delta_optimize(spark: SparkSession, plan: OptimizePlan) -> Optimized:
    """Compact small files, but not in partitions whose values would change. Conflicts with nobody's appends."""
    table = _described(spark, plan.target).table
    session.prepare_compaction(spark, plan.layout.of(table.properties if table else {}))
    stay = partitions.that_stay(table) if table else None
    statement = f"OPTIMIZE {identifier(plan.target)}{f' WHERE {stay}' if stay else ''}"
    metrics = spark.sql(statement).select("metrics.*").collect()[0]
    return Optimized(files_added=metrics["numFilesAdded"], files_removed=metrics["numFilesRemoved"])


def compact_json(value: JsonDict) -> str:
    """The value as JSON in one spelling, so that a text search in the table's history finds it."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def problem_in(error: Exception) -> str | None:
    """The first lines of an error that is about the rows; None if it is about the machinery."""
    # What a task raised stands at the end of the chain of causes, which Connect shows in the stack trace only.
    trace = getattr(error, "getStackTrace", lambda: None)()
    text = f"{error}\n{trace or ''}"
    first = _ABOUT_THE_ROWS.search(text)
    if first is None or any(name.startswith(_NOT_THE_DATA) for name in _ABOUT_THE_ROWS.findall(text)):
        return None
    lines = (line.strip() for line in text[max(0, first.start() - 1) :].splitlines() if line.strip())
    message = itertools.takewhile(lambda line: not _STACK.match(line), lines)
    return secrecy.scrubbed(" ".join(itertools.islice(message, MESSAGE_LINES_MAX)))[:MESSAGE_LENGTH_MAX]
