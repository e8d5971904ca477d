"""What a rerun may compute otherwise is found in plans as Spark prints them, name by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs.contracts import Connection
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver import determinism
from airflow_epochs.spark.runners import SparkSubmit
from orders_demo.duck import duck
from tests.support.delta_world import SparkOn, attempt_of, seen_by_duckdb, transaction
from tests.support.environment import Environment, connected
from tests.support.spark_world import MASTER, Topic, settings, stage_job

pytestmark = pytest.mark.jvm
PAGE = Path(__file__).parents[2] / "docs" / "spark.md"

CALLS = {
    **{name: f"{name}()" for name in (*determinism.CLOCKS, *determinism.PLACES, *determinism.USERS)},
    **{name: f"{name}()" for name in ("rand", "random", "randn", "uuid")},
    "randstr": "randstr(5)",
    "uniform": "uniform(1, 5)",
    "shuffle": "shuffle(array(k, 1))",
}
CALLS_OF_OTHER_NAMES = {"curdate()": "current_date", "unix_timestamp()": "current_timestamp"}
AGGREGATES = {name: f"{name}(v)" for name in determinism.CHOICES} | {
    "max_by": "max_by(v, k)",
    "min_by": "min_by(v, k)",
}
SORTED = (
    "sort_array(collect_list(v))",
    "sort_array(collect_set(v))",
    "listagg(v) WITHIN GROUP (ORDER BY v)",
    "string_agg(v) WITHIN GROUP (ORDER BY v)",
)
OF_WINDOWS = {
    "lag": "lag(v)",
    "lead": "lead(v)",
    "nth_value": "nth_value(v, 2)",
    "ntile": "ntile(2)",
    "row_number": "row_number()",
}
BY_PLACE = "ORDER BY k, `partition`, `offset`"


@pytest.fixture(scope="module")
def rows(session: Any) -> Iterator[Any]:
    frame = session.range(3).selectExpr("id AS k", "string(id) AS v", "int(id) AS partition", "id AS offset")
    frame.createOrReplaceTempView("varying")
    yield frame
    session.catalog.dropTempView("varying")


def named(session: Any, **queries: Any) -> dict[str, list[str]]:
    """What is warned about in each query, which is a frame or SQL's SELECT from the rows."""
    frames = {name: session.sql(query) if isinstance(query, str) else query for name, query in queries.items()}
    plans = determinism.analysed_plans(session, frames)
    return {name: [*determinism.nondeterministic(plan), *determinism.unordered(plan)] for name, plan in plans.items()}


def test_every_function_that_is_looked_for_is_named_as_spark_prints_it(session: Any, rows: Any) -> None:
    assert {*CALLS} == {*determinism.CLOCKS, *determinism.PLACES, *determinism.USERS, *determinism.RANDOM}
    assert {*AGGREGATES} == {*determinism.CHOICES}
    assert {*OF_WINDOWS} == {*determinism.RANKS}
    found = named(
        session,
        **{name: f"SELECT {call} AS x FROM varying" for name, call in CALLS.items()},
        **{name: f"SELECT {call} AS x FROM varying GROUP BY k" for name, call in AGGREGATES.items()},
        **{name: f"SELECT {call} OVER (ORDER BY k) AS x FROM varying" for name, call in OF_WINDOWS.items()},
    )
    assert found == {name: [name.lower()] for name in (*CALLS, *AGGREGATES, *OF_WINDOWS)}


def test_a_plan_is_looked_through_to_its_end_where_a_server_cuts_it_off(session: Any, rows: Any) -> None:
    many = ", ".join(f"k + {number} AS k{number}" for number in range(30))
    short = {"spark.sql.debug.maxToStringFields": "3", "spark.sql.maxPlanStringLength": "300"}
    with settings(session, short):
        assert named(session, rand=f"SELECT {many}, rand() AS r FROM varying") == {"rand": ["rand"]}
        assert {key: session.conf.get(key) for key in short} == short, "the settings are the server's again"


def test_other_spellings_are_named_as_documented(session: Any, rows: Any) -> None:
    found = named(
        session,
        **{call: f"SELECT {call} AS x FROM varying" for call in CALLS_OF_OTHER_NAMES},
        array_agg="SELECT array_agg(v) AS x FROM varying",
        offset=rows.offset(1),
        limit=rows.limit(1),
        sample=rows.sample(fraction=0.5),
        sampleBy=rows.sampleBy("k", {1: 0.5}),
        randomSplit=rows.randomSplit([0.5, 0.5])[0],
        dropDuplicates=rows.dropDuplicates(["k"]),
    )
    assert found == {call: [name] for call, name in CALLS_OF_OTHER_NAMES.items()} | {
        "array_agg": ["collect_list"],
        "offset": ["limit"],
        "limit": ["limit"],
        "sample": ["sample"],
        "sampleBy": ["rand"],
        "randomSplit": ["sample"],
        "dropDuplicates": ["dropDuplicates"],
    }


def test_what_is_seeded_sorted_or_ordered_by_the_records_places_is_not_named(session: Any, rows: Any) -> None:
    found = named(
        session,
        seeded="SELECT rand(7) AS x, uuid(7) AS y FROM varying",
        sampled=rows.sample(fraction=0.5, seed=7),
        whole=rows.dropDuplicates(),
        by_place=rows.dropDuplicates(["k", "partition", "offset"]),
        limited=rows.orderBy("partition", "offset").limit(1),
        **{call: f"SELECT {call} AS x FROM varying" for call in SORTED},
        **{name: f"SELECT {call} OVER ({BY_PLACE}) AS x FROM varying" for name, call in OF_WINDOWS.items()},
    )
    assert not any(found.values()), found


def test_a_table_sample_is_not_noticed_as_documented(session: Any, rows: Any) -> None:
    assert named(session, sampled="SELECT * FROM varying TABLESAMPLE (50 PERCENT)") == {"sampled": []}


ADAPTIVE = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "64KB",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1KB",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.shuffle.partitions": "20",
}
"""Spark's default way, for small rows: the bytes of the columns in a plan decide how many partitions it has."""
WIDE = ", ".join(f"sha2(string(id + {each}), 512)" for each in range(3))
DIVIDED = f"""
from pyspark.sql import functions as F

def f(batch, epoch):
    rows = batch.sparkSession.sql("SELECT string(id) AS id, concat({WIDE}) AS wide FROM range(0, 2000, 1, 2)")
    rows = rows.groupBy("id").agg(F.max("wide").alias("wide"))
    {{half}}
    return {{{{"test": rows.where(half).select("id"), "control": rows.where(~half)}}}}
"""


def divided(session: Any, folder: Path, half: str) -> tuple[list[str], list[str]]:
    """The ids that each of two sinks got, and what the stage job warned of."""
    app, tables = folder / "app.py", {"test": folder / "test", "control": folder / "control"}
    app.write_text(DIVIDED.format(half=half))
    with settings(session, ADAPTIVE):
        report = SparkOn(session).run(stage_job(Topic("t", "nowhere:1", (1,)), f"{app}:f", tables))
    with duck() as database:
        places = [claim["place"] for claim in report["sinks"].values()]
        ids = [str(row[0]) for p in places for row in database.execute("SELECT id FROM delta_scan(?)", [p]).fetchall()]
    return ids, [text for text in report["warnings"] if "were moved" in text]


def test_two_sinks_divide_rows_behind_a_group_by_as_documented_and_none_is_lost_or_doubled(
    session: Any, tmp_path: Path
) -> None:
    (half,) = [line for line in PAGE.read_text().splitlines() if line.startswith("half = ")]
    ids, warnings = divided(session, tmp_path, half)
    assert sorted(ids, key=int) == [str(number) for number in range(2000)]
    assert warnings == []


@pytest.mark.long
def test_two_sinks_that_divide_rows_behind_a_group_by_by_a_seeded_draw_are_warned_about(
    session: Any, tmp_path: Path
) -> None:
    ids, warnings = divided(session, tmp_path, "half = F.rand(epoch.seed) < 0.5")
    assert len(set(ids)) < 2000
    assert [text.split(" draws ")[0] for text in warnings] == [
        "The plan for sink 'test'",
        "The plan for sink 'control'",
    ]


BESIDE = """
from pyspark.sql import functions as F

def f(batch, epoch):
    {read}
    spark.range(50, 100).write.format("delta").mode("append").save("{table}")  # others write while `stage` runs
    rows = spark.range(100)
    return {{"known": rows.join(customers, "id"), "unknown": rows.join(customers, "id", "left_anti")}}
"""


def read_as_documented(how: str, table: Path) -> str:
    """What the page says, with this table."""
    _, _, rest = PAGE.read_text().partition("**Tables beside the batch.**")
    block, text = rest.split("```python\n")[1].split("```")[:2]
    spark, version, customers = block.splitlines()
    if how == "one version":
        lines = [spark, version, customers]
    else:
        [call] = [code for code in text.split("`") if code.endswith(".localCheckpoint()")]
        lines = [spark, f"customers = {call}"]
    return "\n    ".join(lines).replace("/lake/customers", str(table))


@pytest.fixture
def spark_runner(request: pytest.FixtureRequest) -> Any:
    """Runs jobs on the Connect server, or by spark-submit."""
    if request.param == "connect":
        return SparkOn(request.getfixturevalue("session"))
    conf = request.getfixturevalue("submit_conf")
    submit = Connection(conn_id="submit", conn_type="spark", host=MASTER)
    return SparkSubmit("submit", conf=conf).runner(connected(submit))


@pytest.mark.parametrize("how", ["one version", "computed once"])
@pytest.mark.parametrize("spark_runner", ["connect", pytest.param("submit", marks=pytest.mark.long)], indirect=True)
def test_a_table_beside_the_batch_is_the_same_for_two_sinks_if_it_is_read_as_documented(
    session: Any, tmp_path: Path, spark_runner: Any, how: str
) -> None:
    app, table, sinks = tmp_path / "app.py", tmp_path / "customers", ("known", "unknown")
    stored = session.range(50).write
    stored.format("delta").save(str(table)) if how == "one version" else stored.parquet(str(table))
    text = BESIDE.format(read=read_as_documented(how, table), table=table)
    app.write_text(text if how == "one version" else text.replace('.format("delta")', ""))
    tables = {sink: tmp_path / sink for sink in sinks}
    report = spark_runner.run(stage_job(Topic("t", "nowhere:1", (1,)), f"{app}:f", tables))
    found = [seen_by_duckdb(report["sinks"][sink]["place"]) for sink in sinks]
    assert found == [[*range(50)], [*range(50, 100)]]


ZONED = """
def f(batch, epoch):
    batch.sparkSession.conf.set("spark.sql.session.timeZone", "America/New_York")
    return batch.sparkSession.range(1)
"""


@pytest.mark.parametrize(("how", "warned"), [({"mode": "upsert", "keys": ["id"]}, 1), ({}, 0)], ids=str)
def test_a_time_zone_that_the_transform_sets_is_warned_of_where_spark_commits(
    other_session: Any, tmp_path: Path, how: dict[str, Any], warned: int
) -> None:
    app, world = tmp_path / "app.py", Environment(spark=SparkOn(other_session))
    app.write_text(ZONED)
    sink = DeltaSink("orders", str(tmp_path / "orders"), **how)
    sinks = {"orders": sink.plan_stage(attempt_of(transaction(1)), "a" * 32, world)}
    job = stage_job(Topic("t", "nowhere:1", (1,)), f"{app}:f", {}, outputs=("orders",), sinks=sinks)
    warnings = world.spark.run(job)["warnings"]
    assert len([text for text in warnings if "(spark.sql.session.timeZone)" in text]) == warned
