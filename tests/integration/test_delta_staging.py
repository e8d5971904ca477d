"""What Spark writes when it stages: types that every reader knows, few files, whatever the server's defaults are."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import Refused
from airflow_epochs.model import Staged, StagedClaim, VoteKind
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.kafka.rows import RowShape
from airflow_epochs.sinks.sql.values import tuples_of
from airflow_epochs.spark.driver import row_digest
from airflow_epochs.spark.driver.delta import types
from airflow_epochs.spark.driver.plans import RowDigest
from airflow_epochs.spark.driver.wire import from_json
from airflow_epochs.staged.digest import content_of
from airflow_epochs.staged.footers import completed
from airflow_epochs.staged.staging import read_staging
from airflow_epochs.staged.table import StagedTable
from airflow_epochs.storage.files import open_files
from orders_demo.duck import duck
from stack.connect import ConnectServer
from tests.support.delta_world import (
    SparkOn,
    attempt_of,
    fill_with_spark,
    log_of,
    promised,
    seen_by_duckdb,
    spark_epoch,
    stage_with_spark,
    transaction,
)
from tests.support.environment import Environment
from tests.support.spark_world import LEGACY, settings

pytestmark = pytest.mark.jvm

PROPERTY = "spark.databricks.delta.properties.defaults."


def staged_table(tmp_path: Path) -> StagedTable:
    return StagedTable(root=str(tmp_path / "staging"), sink="events", target="the topic", options={})


# -- how much is asked of Spark ------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("ids", [(2, 3), ()], ids=["rows", "no rows"])
def test_an_append_computes_no_state_of_its_private_table(
    session: Any, world: Environment, table: str, ids: tuple[int, ...]
) -> None:
    """Spark believes the checksum of version 0, and looks for no earlier transaction: each would be a job or two."""
    sink = DeltaSink("bronze", table)
    spark_epoch(sink, before := transaction(1), None, of_udfs(session, 1), world)
    attempt = attempt_of(transaction(2), before)
    plan = sink.plan_stage(attempt, "a" * 32, world)
    first = Path(plan["place"], "_delta_log", f"{0:020}.json")
    entry = first.read_text()
    first.write_text(entry.replace("in-side", "elsewhere"))  # would be the table's schema, if Spark asked the log
    claim = fill_with_spark(session, plan, of_udfs(session, *ids) if ids else of_udfs(session, 1).where("false"))
    first.write_text(entry)
    assert promised(sink.vote(attempt, claim, world)).rows == len(ids)
    kinds = {kind for line in (first.parent / f"{1:020}.json").read_text().splitlines() for kind in json.loads(line)}
    assert kinds == {"commitInfo", "add"} if ids else {"commitInfo"}


# -- text of Python UDFs -------------------------------------------------------------------------------------------


def of_udfs(session: Any, *ids: int) -> Any:
    """Text that Python UDFs return, in every nesting."""
    text = F.udf(lambda n: f"text {n}", "string")
    return session.createDataFrame([(i,) for i in ids], "id bigint").select(
        "id",
        text("id").alias("s", metadata={"comment": "it's text"}),
        F.struct(text("id").alias("in-side")).alias("st"),
        F.array(text("id")).alias("ar"),
        F.create_map(text("id"), F.struct(F.array(text("id")).alias("deep"))).alias("m"),
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"commit": "spark"},
        pytest.param({"mode": "upsert", "keys": ["id"]}, marks=pytest.mark.long),
    ],
    ids=["deltalake", "spark", "upsert"],
)
def test_a_table_with_text_of_python_udfs_can_be_opened_by_every_reader(
    session: Any, world: Environment, table: str, options: dict[str, Any]
) -> None:
    sink = DeltaSink("bronze", table, **options)
    first, second = transaction(1), transaction(2)
    spark_epoch(sink, first, None, of_udfs(session, 1, 2), world)
    _, receipt = spark_epoch(sink, second, first, of_udfs(session, 3), world)
    assert seen_by_duckdb(table) == [1, 2, 3]
    rows = {row["id"]: row for row in DeltaTable(table).to_pyarrow_table().to_pylist()}
    assert sorted(rows) == [1, 2, 3]
    assert rows[3]["m"] == [("text 3", {"deep": ["text 3"]})]
    assert DeltaTable(table).schema().fields[1].metadata == {"comment": "it's text"}
    assert receipt.detail["committer"] == ("spark" if options else "deltalake")
    assert "collate" not in str(log_of(table))


def test_rows_for_a_topic_or_a_database_are_staged_with_plain_types_too(session: Any, tmp_path: Path) -> None:
    staged, attempt = staged_table(tmp_path), attempt_of(transaction(1))
    claim = fill_with_spark(session, staged.plan(attempt, "a"), of_udfs(session, 1))
    staging, _ = staged.checked(attempt, claim)
    assert "collate" not in str(staging.shape.schema)


@pytest.mark.long
def test_a_table_that_version_0_1_has_spoilt_is_repaired_by_the_command_in_the_message(
    session: Any, world: Environment, table: str
) -> None:
    sink, first, second = DeltaSink("bronze", table), transaction(1), transaction(2)
    spark_epoch(sink, first, None, session.sql("SELECT 0L id"), world)
    spoilt = of_udfs(session, 1, 2).write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    spoilt.save(f"file://{table}")
    session.sql(f"ALTER TABLE delta.`file://{table}` ALTER COLUMN st COMMENT 'kept'").collect()
    with pytest.raises(Exception, match="string collate UTF8_BINARY"):
        DeltaTable(table)
    attempt = attempt_of(second, first)
    with pytest.raises(Refused, match=r"column 's' is string collate UTF8_BINARY, column 'st\.in-side'") as caught:
        stage_with_spark(sink, attempt, of_udfs(session, 3), world)
    (command,) = re.findall(r"ALTER TABLE .*\)(?=\. Then)", caught.value.remedy)
    session.sql(command).collect()
    assert seen_by_duckdb(table) == [1, 2]
    _, receipt = spark_epoch(sink, second, first, of_udfs(session, 3), world)
    assert receipt.detail["committer"] == "deltalake"
    assert seen_by_duckdb(table) == sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist()) == [1, 2, 3]
    comments = {field.name: field.metadata.get("comment") for field in DeltaTable(table).schema().fields}
    assert (comments["s"], comments["st"]) == ("it's text", "kept")


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [{"commit": "spark"}, pytest.param({"mode": "upsert", "keys": ["id"]}, marks=pytest.mark.long)],
    ids=["append", "upsert"],
)
def test_a_table_that_version_0_1_has_spoilt_takes_epochs_that_spark_commits(
    session: Any, world: Environment, table: str, options: dict[str, Any]
) -> None:
    sink, first, second = DeltaSink("bronze", table, **options), transaction(1), transaction(2)
    spark_epoch(sink, first, None, session.sql("SELECT 0L id"), world)
    spoilt = of_udfs(session, 1, 2).write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    spoilt.save(f"file://{table}")
    with pytest.raises(Exception, match="string collate UTF8_BINARY"):
        DeltaTable(table)
    _, receipt = spark_epoch(sink, second, first, of_udfs(session, 3), world)
    assert receipt.detail["committer"] == "spark"
    found = session.read.format("delta").load(f"file://{table}")
    assert sorted((row["id"], row["s"]) for row in found.collect()) == [(i, f"text {i}") for i in (1, 2, 3)]


def test_a_column_of_no_type_is_a_vote_abort_before_it_makes_a_table_that_duckdb_cannot_open(
    session: Any, world: Environment, table: str
) -> None:
    sink, attempt = DeltaSink("bronze", table), attempt_of(transaction(1))
    claim = stage_with_spark(sink, attempt, session.sql("SELECT 1L id, NULL nothing"), world)
    vote = sink.vote(attempt, claim, world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "column 'nothing' is void" in (vote.reason or "")
    again = session.sql("SELECT 1L id, NULL nothing").withColumn("nothing", F.col("nothing").cast("string"))
    spark_epoch(sink, transaction(1), None, again, world)
    assert seen_by_duckdb(table) == [1]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("INTERVAL '1' DAY", "'n' (interval day)"),
        pytest.param("make_interval(1, 2)", "'n' (interval)", marks=pytest.mark.long),
        pytest.param("TIME'10:00:00'", "'n' (time(6))", marks=pytest.mark.long),
        pytest.param("array(named_struct('at', TIME'10:00:00'))", "'n.element.at' (time(6))", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "keys": ["id"]}], ids=["append", "upsert"])
def test_a_column_that_delta_cannot_store_is_a_vote_abort_that_names_it_and_what_to_do(
    session: Any, world: Environment, table: str, value: str, named: str, options: dict[str, Any]
) -> None:
    sink, rows = DeltaSink("bronze", table, **options), session.sql(f"SELECT 1L id, {value} n")
    problem = stage_with_spark(sink, attempt_of(transaction(1)), rows, world).problem or ""
    assert named in problem and table in problem
    assert '`.cast("string")`' in problem
    spark_epoch(sink, transaction(1), None, rows.withColumn("n", F.lit("one day").cast("string")), world)
    assert seen_by_duckdb(table) == [1]


# -- the digest of the rows -----------------------------------------------------------------------------------------

ROWS = """
    SELECT id, id % 2 = 0 AS b, CAST(id AS TINYINT) AS tiny, id * 0.5D AS d, CAST(id AS DECIMAL(30, 2)) AS exact,
        IF(id = 3, NULL, concat('text ', id)) AS s, X'00FF' AS raw, DATE'2024-02-29' AS day,
        TIMESTAMP'2024-02-29 12:00:00.000001' AS at, NAMED_STRUCT('x', id, 'y', CAST(NULL AS BIGINT)) AS st,
        ARRAY(id, NULL) AS ar, ARRAY(ARRAY(1, 2), ARRAY(3)) AS nested, MAP('k', id, 'l', 2L) AS m,
        CAST(NULL AS STRING) AS never
    FROM RANGE(0, 100, 1, 4)
"""
OTHER_ROWS = {
    "an inverted boolean": ("b", "NOT b"),
    "one inverted boolean": ("b", "IF(id = 7, NOT b, b)"),
    "a value between the smallest and the greatest": ("d", "IF(id = 7, 8.25D, d)"),
    "the sign of a zero": ("d", "IF(id = 0, -0.0D, d)"),
    "NaN": ("d", "IF(id = 7, CAST('NaN' AS DOUBLE), d)"),
    "a NULL": ("b", "IF(id = 7, NULL, b)"),
    "NULL for an empty text": ("never", "''"),
    "a NULL that moves to the next column": ("st", "NAMED_STRUCT('x', CAST(NULL AS BIGINT), 'y', id)"),
    "NULL for a struct of NULLs": ("st", "IF(id = 7, NULL, st)"),
    "the order in an array": ("ar", "REVERSE(ar)"),
    "a NULL less in an array": ("ar", "FILTER(ar, x -> x IS NOT NULL)"),
    "other brackets": ("nested", "ARRAY(ARRAY(1), ARRAY(2, 3))"),
    "an empty array and NULL": ("ar", "IF(id = 7, ARRAY(), IF(id = 8, NULL, ar))"),
    "NULL and an empty array": ("ar", "IF(id = 7, NULL, IF(id = 8, ARRAY(), ar))"),
    "values of a map changed over": ("m", "MAP('k', 2L, 'l', id)"),
    "a byte": ("raw", "IF(id = 7, X'00FE', raw)"),
    "a microsecond": ("at", "IF(id = 7, at - INTERVAL '0.000001' SECOND, at)"),
    "values of two rows changed over": ("exact", "CASE id WHEN 7 THEN 8 WHEN 8 THEN 7 ELSE id END"),
}
SUMS = (205417140575, 240060583987)
"""Of these rows, as the versions had it whose expressions were Columns, not SQL."""
SUMS_OF_VARIANTS = (224928167758, 219798609423)
"""Of variants, as the versions had it that hashed their JSON alone."""
SAME_ROWS: dict[str, Callable[[Any], Any]] = {
    "another order": lambda rows: rows.orderBy(F.desc("id")),
    "one file": lambda rows: rows.coalesce(1),
    "other files": lambda rows: rows.repartition(3, "id"),
    "entries of a map in another order": lambda rows: rows.withColumn("m", F.expr("MAP('l', 2L, 'k', id)")),
}


def hashed(rows: Any, *, typed: bool = True) -> Any:
    observed, observation = row_digest.observing(rows, typed=typed)
    observed.write.format("noop").mode("overwrite").save()
    return row_digest.told(observed, observation, typed=typed)


def test_the_digest_tells_rows_that_differ_in_any_value_and_not_their_order_or_files(session: Any) -> None:
    rows = session.sql(ROWS)
    told = hashed(rows)
    assert told.rows == 100
    for what, change in SAME_ROWS.items():
        assert hashed(change(rows)) == told, what
    seen = {told.sums}
    for what, (column, expression) in OTHER_ROWS.items():
        other = hashed(rows.withColumn(column, F.expr(expression)))
        assert other.sums not in seen, what
        seen.add(other.sums)


@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP_NTZ"])
def test_the_digest_tells_variants_that_differ_in_a_microsecond_only(session: Any, kind: str) -> None:
    def told(second: str) -> Any:
        at = f"{kind}'2026-11-29 01:02:{second}'"
        return hashed(session.sql(f"SELECT CAST({at} AS VARIANT) AS v, ARRAY(CAST(ARRAY({at}) AS VARIANT)) AS deep"))

    assert told("03.000001").sums == told("03.000001").sums != told("03.000002").sums


def test_the_digest_tells_variants_whose_json_is_equal_and_whose_type_differs(session: Any) -> None:
    def told(value: str, typed: bool = True) -> Any:
        found = hashed(session.sql(f"SELECT ARRAY(CAST({value} AS VARIANT)) AS v"), typed=typed)
        assert found.typed is typed
        return found.sums

    for one, other in (("1", "1.0BD"), ("1.5F", "1.5D"), ("DATE'2026-01-01'", "'2026-01-01'"), ("X'61'", "'YQ=='")):
        assert told(one) == told(one) != told(other)
        assert told(one, typed=False) == told(other, typed=False), "so it was when earlier versions promised them"


def test_the_digest_of_rows_stays_that_of_earlier_versions_which_promised_them(session: Any) -> None:
    assert hashed(session.sql(ROWS)).sums == SUMS
    variants = session.sql("SELECT id, ARRAY(CAST(CAST(id AS INT) AS VARIANT)) AS v FROM RANGE(0, 100, 1, 4)")
    assert hashed(variants, typed=False).sums == SUMS_OF_VARIANTS


@pytest.mark.parametrize(
    ("setting", "value"), [("spark.sql.ansi.enabled", "false"), ("spark.sql.session.timeZone", "Asia/Kolkata")]
)
def test_the_digest_of_rows_is_the_same_under_other_settings_of_a_server(
    session: Any, other_session: Any, setting: str, value: str
) -> None:
    """Another try may meet a server with other settings."""
    at = "TIMESTAMP'2026-10-25 00:30:00.123456Z'"
    rows = f"""SELECT id, IF(id > 1, ARRAY(id), NULL) AS a, IF(id > 2, MAP(id, ARRAY(id)), NULL) AS m,
        NAMED_STRUCT('a', IF(id > 3, ARRAY(MAP('k', id), NULL), NULL)) AS s, MAP('k', IF(id > 4, ARRAY(1), NULL)) AS d,
        {at} AS at, ARRAY(CAST(ARRAY({at}) AS VARIANT), CAST(id AS VARIANT)) AS v FROM RANGE(6)"""
    promised = [hashed(session.sql(rows), typed=typed) for typed in (True, False)]
    other_session.conf.set(setting, value)
    assert [hashed(other_session.sql(rows), typed=typed) for typed in (True, False)] == promised


def test_the_digest_covers_odd_names_even_where_the_session_takes_quoted_ones_for_patterns(other_session: Any) -> None:
    other_session.conf.set("spark.sql.parser.quotedRegexColumnNames", "true")
    of_element = ArrayType(StructType([StructField("s s", LongType())]))
    inside = StructType([StructField("p+", LongType()), StructField("ar ()", of_element)])
    names = ["it's", "a.b", "`q`", "a *", "\\", '"', "€"]
    kinds = StructType([*(StructField(name, LongType()) for name in names), StructField("st", inside)])

    def told(changed: int) -> Any:
        *outside, p, s = (99 if number == changed else number for number in range(len(names) + 2))
        rows = types.plain(other_session.createDataFrame([(*outside, (p, [(s,)]))], kinds))
        assert rows.columns == kinds.names
        return hashed(rows).sums

    assert len({told(changed) for changed in range(-1, len(names) + 2)}) == len(names) + 3


@pytest.mark.parametrize("partition_by", [[], ["a.b"]], ids=["plain", "partition"])
def test_dates_in_a_column_of_an_odd_name_are_shown_even_where_the_session_takes_quoted_names_for_patterns(
    other_session: Any, world: Environment, table: str, partition_by: list[str]
) -> None:
    other_session.conf.set("spark.sql.parser.quotedRegexColumnNames", "true")
    rows = other_session.sql("SELECT id, date_add(DATE'2026-01-01', CAST(id AS INT)) AS `a.b` FROM RANGE(0, 3, 1, 1)")
    spark_epoch(DeltaSink("bronze", table, partition_by=partition_by), transaction(1), None, rows, world)
    shown = DeltaTable(table).to_pyarrow_table().sort_by("id").to_pylist()
    assert [str(row["a.b"]) for row in shown] == ["2026-01-01", "2026-01-02", "2026-01-03"]


def test_many_columns_take_no_more_columns_of_the_api_than_one(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock(wraps=F.expr)
    monkeypatch.setattr(F, "expr", made)
    monkeypatch.setattr(F, "col", made)

    def columns_for(width: int) -> int:
        made.reset_mock()
        rows = session.sql("SELECT " + ", ".join(f"'x' AS s{n}, 1D AS d{n}" for n in range(width)))
        row_digest.observing(types.plain(rows))
        return int(made.call_count)

    assert columns_for(50) == columns_for(1) > 0


def test_rows_staged_again_in_another_order_and_in_other_files_are_the_promised_ones_and_others_are_not(
    session: Any, world: Environment, table: str
) -> None:
    sink = DeltaSink("bronze", table, partition_by=["p"])
    rows = session.sql("SELECT id, concat('p', id % 3) p, id % 2 = 0 flag FROM RANGE(0, 300, 1, 4)")
    spark_epoch(sink, transaction(1), None, rows, world)

    def staged(frame: Any) -> Any:
        attempt = attempt_of(transaction(1, pipeline="other"))
        return promised(sink.vote(attempt, stage_with_spark(sink, attempt, frame, world), world))

    first = staged(rows)
    assert staged(rows.orderBy(F.desc("id"))).has_rows_of(first)
    inverted = staged(rows.withColumn("flag", ~F.col("flag")))
    assert (inverted.digest, inverted.rows) == (first.digest, first.rows), "its statistics do not tell"
    assert not inverted.has_rows_of(first)


def test_rows_that_version_0_1_promised_are_staged_again_into_such_files_as_it_wrote(
    other_session: Any, tmp_path: Path
) -> None:
    other_session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    table, attempt = str(tmp_path / "orders"), attempt_of(transaction(1))
    sink, world = DeltaSink("bronze", table, partition_by=["p"]), Environment(spark=SparkOn(other_session))
    rows = other_session.sql("SELECT id, id % 3 AS p, timestamp_seconds(id) AS at FROM RANGE(0, 300, 1, 4)")
    plan = sink.plan_stage(attempt, "a" * 32, world)
    options = {"userMetadata": plan["user_metadata"], "txnAppId": "the pipeline", "txnVersion": "1"}
    writer = rows.write.format("delta").mode("append").options(**options, **{"delta.randomizeFilePrefixes": "true"})
    writer.partitionBy("p").save(f"file://{plan['place']}")
    before = promised(sink.vote(attempt, StagedClaim(place=plan["place"]), world))
    assert (before.files, before.content) == (12, None)
    plan = sink.plan_stage(attempt, "b" * 32, world)
    again = fill_with_spark(other_session, plan, rows, files_of_0_1=True, statistics=True)
    assert promised(sink.vote(attempt, again, world)).has_rows_of(before)


def test_a_digest_of_other_rows_than_were_staged_is_none(session: Any, world: Environment, table: str) -> None:
    sink, attempt = DeltaSink("bronze", table), attempt_of(transaction(1))
    claim = stage_with_spark(sink, attempt, session.range(5), world)
    assert claim.content
    told = from_json(RowDigest, claim.content)
    assert told.rows == 5
    staging = read_staging(open_files(table), claim.place.removeprefix(f"{table}/"))
    assert staging and content_of(completed(open_files(table), staging), replace(told, rows=6)) is None


# -- instants -------------------------------------------------------------------------------------------------------

INSTANTS = """
    SELECT at, NAMED_STRUCT('at', at) AS st, ARRAY(at) AS ar, MAP('at', at) AS m,
        ARRAY(NAMED_STRUCT('at', at)) AS ar_st, NAMED_STRUCT('ar', ARRAY(at)) AS st_ar,
        MAP('k', ARRAY(at)) AS m_ar, ARRAY(MAP('k', at)) AS ar_m, MAP('k', NAMED_STRUCT('at', at)) AS m_st,
        NAMED_STRUCT('st', NAMED_STRUCT('at', at)) AS st_st
    FROM (SELECT TIMESTAMP'2024-02-29 12:00:00.5Z' AS at)
"""


def test_an_instant_keeps_its_zone_in_every_nesting_and_a_list_its_format_whatever_the_servers_defaults_are(
    other_session: Any, tmp_path: Path
) -> None:
    other_session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    other_session.conf.set("spark.sql.parquet.writeLegacyFormat", "true")
    rows = other_session.sql(f"SELECT *, MAP(at, 1) AS keyed FROM ({INSTANTS})")
    staged, attempt = staged_table(tmp_path), attempt_of(transaction(1))
    staging, promise = staged.checked(attempt, fill_with_spark(other_session, staged.plan(attempt, "a"), rows))
    for path in Path(promise.place).glob("*.parquet"):
        schema = str(pq.ParquetFile(path).schema)
        assert "INT96" not in schema and "group bag" not in schema, "of the server's defaults"
    (batch,) = staged.rows(attempt, promise)
    fields = staging.shape.schema["fields"]
    (row,) = tuples_of(batch, fields)
    assert [name["name"] for name, text in zip(fields, row, strict=True) if "12:00:00.5" not in text] == []
    assert [text for text in row[1:] if "12:00:00.500000Z" not in text and "12:00:00.5Z" not in text] == []
    shape = RowShape.of({"fields": fields[:-1]}, "the topic")  # keys of JSON are text
    ((_, value, _, _),) = shape.records(iter([batch]), "p/events/1", lambda number: 0)
    assert value is not None and value.count(b"12:00:00.5") == value.count(b"Z") == len(fields) - 1


@pytest.mark.few(1)
@pytest.mark.parametrize("how", [{}, {"commit": "spark"}, {"mode": "upsert", "keys": ["id"]}], ids=str)
def test_old_dates_get_into_a_table_as_they_are_whatever_calendar_the_server_is_set_up_to_write(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    rows = session.sql("SELECT id, date'1500-01-01' AS day, timestamp'0900-01-01 00:00:00Z' AS moment FROM RANGE(2)")
    with settings(session, LEGACY):
        spark_epoch(DeltaSink("bronze", table, **how), transaction(1), None, rows, world)
    with duck() as database:
        query = "SELECT DISTINCT day::text, epoch(moment) FROM delta_scan(?)"
        found = database.execute(query, [table]).fetchall()
    assert found == [("1500-01-01", dt.datetime(900, 1, 1, tzinfo=dt.timezone.utc).timestamp())]


# -- files ----------------------------------------------------------------------------------------------------------


def test_rows_of_one_partition_get_into_one_file_however_many_tasks_have_some(
    session: Any, world: Environment, table: str
) -> None:
    rows = session.sql("SELECT id, id % 14 AS p FROM RANGE(0, 2000, 1, 24)")
    for name, by, files in (("parted", ["p"], 14), ("plain", [], 1)):
        first, second = transaction(1), transaction(2)
        sink = DeltaSink(name, f"{table}/{name}", partition_by=by)
        staged, _ = spark_epoch(sink, first, None, rows, world)
        again, _ = spark_epoch(sink, second, first, rows, world)
        assert (staged.files, again.files) == (files, files)
        assert seen_by_duckdb(f"{table}/{name}") == sorted([*range(2000)] * 2)


def test_a_table_whose_owner_says_how_to_write_is_written_so_and_rows_that_are_copied_keep_their_order(
    session: Any, world: Environment, table: str, tmp_path: Path
) -> None:
    rows = session.sql("SELECT id FROM RANGE(0, 40, 1, 4)")
    sink = DeltaSink("bronze", table, properties={"delta.autoOptimize.optimizeWrite": "false"})
    first = transaction(1)
    for txn, previous in ((first, None), (transaction(2), first)):
        staged, _ = spark_epoch(sink, txn, previous, rows, world)
        assert staged.files == 4
    copied, attempt = staged_table(tmp_path), attempt_of(transaction(1))
    session.conf.set("spark.databricks.delta.optimizeWrite.enabled", "true")
    _, promise = copied.checked(attempt, fill_with_spark(session, copied.plan(attempt, "a"), rows))
    session.conf.unset("spark.databricks.delta.optimizeWrite.enabled")
    assert [i for batch in copied.rows(attempt, promise) for i in batch.column("id").to_pylist()] == [*range(40)]


# -- a server's defaults --------------------------------------------------------------------------------------------

DEFAULTS = {
    "spark.databricks.delta.autoCompact.enabled": "true",
    "spark.databricks.delta.optimizeWrite.enabled": "true",
    "spark.databricks.delta.stats.collect": "false",
    "spark.databricks.delta.schema.autoMerge.enabled": "true",
    f"{PROPERTY}autoOptimize.autoCompact": "true",
    f"{PROPERTY}checkpointInterval": "2",
    f"{PROPERTY}checkpointPolicy": "v2",
    f"{PROPERTY}columnMapping.mode": "name",
    f"{PROPERTY}dataSkippingNumIndexedCols": "0",
    f"{PROPERTY}enableChangeDataFeed": "true",
    f"{PROPERTY}enableDeletionVectors": "true",
    f"{PROPERTY}enableInCommitTimestamps": "true",
    f"{PROPERTY}enableTypeWidening": "true",
    f"{PROPERTY}parquet.compression.codec": "gzip",
    f"{PROPERTY}setTransactionRetentionDuration": "interval 1 hour",
}


def on_such_a_server(connect: ConnectServer, act: Callable[[Environment], Any]) -> Any:
    """A task's: in a session of its own, which is set up as the server's defaults would set it up."""
    session = connect.session()
    try:
        for key, value in DEFAULTS.items():
            session.conf.set(key, value)
        return act(Environment(spark=SparkOn(session)))
    finally:
        session.stop()


def rows_of(world: Environment, start: int) -> Any:
    return world.spark.session.sql(f"SELECT id, id % 2 AS p FROM RANGE({start}, {start + 10}, 1, 2)")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"commit": "spark"}, marks=pytest.mark.long), {"mode": "upsert", "keys": ["id"]}],
    ids=str,
)
def test_no_default_of_a_server_keeps_epochs_from_a_table_that_is_created(
    connect: ConnectServer, table: str, options: dict[str, Any]
) -> None:
    sink, previous = DeltaSink("bronze", table, partition_by=["p"], **options), None
    for epoch in (1, 2):
        attempt = attempt_of(transaction(epoch), previous)

        def vote(world: Environment, attempt: SinkAttempt = attempt) -> Staged:
            claim = stage_with_spark(sink, attempt, rows_of(world, 10 * attempt.txn.epoch), world)
            return promised(sink.vote(attempt, claim, world))

        staged = on_such_a_server(connect, vote)
        receipt = on_such_a_server(connect, partial(sink.commit, attempt, staged))
        assert receipt.detail["committer"] == ("spark" if options else "deltalake")
        previous = attempt.txn
    assert seen_by_duckdb(table) == [*range(10, 30)]
    properties = next(action["metaData"]["configuration"] for action in log_of(table)[0] if "metaData" in action)
    assert "delta.setTransactionRetentionDuration" not in properties
    assert properties["delta.enableChangeDataFeed"] == "true", "what does no harm is what the server says"
    assert ("delta.enableTypeWidening" in properties) == bool(options)


def test_no_default_of_a_server_gets_into_what_is_staged_for_a_topic_or_a_database(
    connect: ConnectServer, tmp_path: Path
) -> None:
    staged, attempt = staged_table(tmp_path), attempt_of(transaction(1))

    def stage(world: Environment) -> StagedClaim:
        return fill_with_spark(world.spark.session, staged.plan(attempt, "a"), rows_of(world, 0))

    staging, promise = staged.checked(attempt, on_such_a_server(connect, stage))
    assert staging.shape.properties == {"delta.randomizeFilePrefixes": "true"}
    assert sorted(i for batch in staged.rows(attempt, promise) for i in batch.column("id").to_pylist()) == [*range(10)]


def test_a_sink_that_would_create_a_table_whose_markers_expire_is_told_so_before_it_does(
    session: Any, world: Environment, table: str
) -> None:
    sink = DeltaSink("bronze", table, properties={"delta.setTransactionRetentionDuration": "interval 1 hour"})
    attempt = attempt_of(transaction(1))
    vote = sink.vote(attempt, stage_with_spark(sink, attempt, session.range(1), world), world)
    assert "The epoch marker would expire" in (vote.reason or "")
    assert "from `properties` of the sink" in (vote.reason or "")
