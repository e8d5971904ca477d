"""``parse_json`` in a transform: over Spark Connect, from a real topic, into real tables."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructType, VarcharType

from airflow_epochs import codes
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import Refused
from airflow_epochs.spark.connect import ConnectRunner
from airflow_epochs.spark.runners import SparkConnect
from airflow_epochs.testing import run_transform
from airflow_epochs.transforms import json_records, parse_json
from stack.broker import Broker
from stack.connect import ConnectServer
from tests.support.environment import connected
from tests.support.spark_world import Topic, batch_of, produce, stage_job, staged_rows
from tests.support.spark_world import settings as session_settings

pytestmark = pytest.mark.jvm
BEHIND = (
    b'{"i":1}\n{"i":2}',
    b'{"i":1},{"i":2}',
    b'{"i":1} {"i":',
    b'{"i":1}garbage',
    b'{"i":1}\x00',
    b'{"i":1}]',
    b'{"i":1}}',
    b'{"i":1},"r":{"i":2}',
    b'{"i":1}],"r":[{"i":2}',
    b'{"o":{"x":"}"},"i":1}{"i":2}',
)
"""Records with more than one JSON object. ``from_json`` takes the first one."""
ALONE = (
    b'{"i":1}',
    b' {"i":1} \r\n\t',
    b'{"o":{"x":"}"},"i":1}',
    b'{"o":{"x":"{} {}"}, "more":[{},{"a":{}}], "i":1}',
    b"{'i':1}",
    b'{"i":1,"more":NaN}',
)

RECORDS = ['{"id":1}', "no JSON", '{"id":"x","at":"2026-01-31T10:20:30Z"}', '{"id":1.0}', "[]"]
PAGE = Path(__file__).parents[2] / "docs" / "read-your-topic.md"
SCHEMA = "id bigint, at timestamp"


@pytest.fixture(scope="module")
def topic(broker: Broker) -> Topic:
    return produce(broker.bootstrap, RECORDS * 20)


@pytest.fixture
def runner(connect: ConnectServer) -> ConnectRunner:
    server = Connection(conn_id="spark", conn_type="spark_connect", **connect.where)
    return SparkConnect("spark").runner(connected(server))


def app(folder: Path, body: str) -> str:
    path = folder / "app.py"
    path.write_text("from airflow_epochs.transforms import parse_json\n" + dedent(body))
    return f"{path}:f"


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_each_record_is_a_row_or_corrupt_and_says_why(session: Any, engine: str) -> None:
    batch = batch_of(session, [b'{"id":1}', b'{"id":"x"}', b"{", None, b'{"id":2,"at":"\xff"}', b"", b'{"id":3}'])
    parsed = parse_json(batch, SCHEMA, engine=engine)
    assert parsed.rows.columns == ["topic", "partition", "offset", "id", "at"]
    assert [(row.offset, row.id) for row in parsed.rows.collect()] == [(0, 1), (1, None), (4, 2), (6, 3)]
    corrupt = parsed.corrupt.collect()
    assert parsed.corrupt.columns == ["topic", "partition", "offset", "error", "raw"]
    assert [(row.offset, row.error, row.raw) for row in corrupt] == [
        (2, "not a JSON object", b"{"),
        (3, "no value", None),
        (5, "not a JSON object", b""),
    ]
    strict = parse_json(batch, SCHEMA, mode="strict", engine=engine, corrupt="value", columns=["offset"])
    assert [row.id for row in strict.rows.collect()] == [1, 3]
    assert {row.offset: row.error for row in strict.corrupt.collect()} == {
        1: "a value does not fit its column",
        2: "not a JSON object",
        3: "no value",
        4: "not UTF-8",
        5: "not a JSON object",
    }
    assert strict.corrupt.columns == ["offset", "topic", "partition", "error", "value"]


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_a_record_is_parsed_once_whatever_is_asked_of_its_columns(
    session: Any, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    records = batch_of(session, [b'{"id":1}']).repartition(1)  # a local one would be parsed at once
    rows = parse_json(records, SCHEMA, engine=engine).rows
    rows.where("id > 0 AND at IS NULL").select("id", "at", "offset").explain()
    assert capsys.readouterr().out.count("from_json(StructField(id,") == 1


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_many_fields_take_no_more_columns_of_the_api_than_one(
    session: Any, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import functions

    records, col = batch_of(session, [b'{"f1":1}']), Mock(wraps=functions.col)
    monkeypatch.setattr(functions, "col", col)

    def columns_for(fields: int) -> int:
        col.reset_mock()
        parse_json(records, ", ".join(f"f{number} long" for number in range(fields)), engine=engine)
        return int(col.call_count)

    assert columns_for(100) == columns_for(1) > 0


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_a_value_that_spark_knows_to_be_never_null_is_parsed(session: Any, engine: str) -> None:
    batch = batch_of(session, [b'{"id":1}', None]).selectExpr("* EXCEPT (value)", "coalesce(value, X'5B5D') AS value")
    parsed = parse_json(batch, SCHEMA, engine=engine)
    assert [row.id for row in parsed.rows.collect()] == [1]
    assert [row.raw for row in parsed.corrupt.collect()] == [b"[]"]


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_odd_names_are_names_even_where_the_session_takes_quoted_ones_for_patterns(
    other_session: Any, engine: str
) -> None:
    other_session.conf.set("spark.sql.parser.quotedRegexColumnNames", "true")
    records = [b'{"a+b":1,"x.y":{"p q":2}}', b"{'a+b':3,'x.y':{'p q':4}}"]  # pyarrow leaves the second to from_json
    batch = batch_of(other_session, records).withColumnRenamed("offset", "at *")
    parsed = parse_json(batch, "`a+b` bigint, `x.y` struct<`p q`: bigint>", columns=[F.col("`at *`")], engine=engine)
    assert parsed.rows.columns == ["at *", "a+b", "x.y"]
    assert [tuple(row) for row in parsed.rows.collect()] == [(0, 1, (2,)), (1, 3, (4,))]


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_odd_names_of_the_batch_stay_in_the_rows_and_in_the_corrupt_records(session: Any, engine: str) -> None:
    batch = batch_of(session, [b'{"id":1}', b"{"]).withColumnRenamed("value", "body.`json`")
    kept = ["offset", F.lit(5).alias("meta.ip"), F.lit(6).alias("a`b")]
    parsed = parse_json(batch, "id bigint", columns=kept, value="body.`json`", corrupt="raw.`value`", engine=engine)
    [row], [letter] = (frame.collect() for frame in (parsed.rows, parsed.corrupt))
    assert row.asDict() == {"offset": 0, "meta.ip": 5, "a`b": 6, "id": 1}
    flaw = {"error": "not a JSON object", "raw.`value`": b"{"}
    assert letter.asDict() == {"offset": 1, "meta.ip": 5, "a`b": 6, "topic": "clicks", "partition": 0, **flaw}


def test_comments_of_columns_stay_whatever_the_engine_is(session: Any) -> None:
    schema = "id bigint COMMENT 'of the order', o struct<a: int COMMENT 'x'>, l array<struct<b: int COMMENT 'y'>>"
    records = [b'{"id":1,"o":{"a":2},"l":[{"b":3},null]}', b"{'id':4,'o':{'a':5},'l':[{'b':6}]}", b'{"o":null}']
    spark, arrow = (parse_json(batch_of(session, records), schema, engine=engine) for engine in ("spark", "arrow"))
    assert [tuple(row)[3:] for row in arrow.rows.collect()] == [(1, (2,), [(3,), None]), (4, (5,), [(6,)]), (None,) * 3]
    assert arrow.rows.collect() == spark.rows.collect()
    assert arrow.rows.schema == spark.rows.schema
    assert {name for name in "xy" if f'"comment":"{name}"' in arrow.rows.schema.json()} == {"x", "y"}
    assert arrow.rows.schema["id"].metadata == {"comment": "of the order"}


@pytest.mark.parametrize("nested", [False, True])
def test_a_default_of_a_column_is_what_a_record_without_it_has_so_pyarrow_does_not_decode_it(
    session: Any, nested: bool
) -> None:
    of_a_table = StructType().add("id", LongType()).add("channel", StringType(), True, {"EXISTS_DEFAULT": "'web'"})
    schema = StructType().add("o", of_a_table) if nested else of_a_table
    batch = batch_of(session, [b'{"o":{"id":1}}' if nested else b'{"id":1}'])
    with pytest.raises(Refused, match="the column 'channel' has a default for records without it"):
        parse_json(batch, schema, engine="arrow")
    [row] = parse_json(batch, schema, engine="auto").rows.selectExpr("o.channel" if nested else "channel").collect()
    assert row.channel == "web"


@pytest.mark.parametrize("policy", ["LEGACY", "legacy"])
def test_times_of_the_legacy_parser_are_left_to_from_json_and_names_are_no_times(
    other_session: Any, policy: str
) -> None:
    batch = batch_of(other_session, [b'{"update_id":1}'])
    with session_settings(other_session, {"spark.sql.legacy.timeParserPolicy": policy}):
        for schema in ("at timestamp", "l array<struct<day: date>>", "at timestamp_ntz"):
            with pytest.raises(Refused, match="timeParserPolicy is"):
                parse_json(batch, schema, engine="arrow")
        assert parse_json(batch, "update_id bigint", engine="arrow").rows.collect()[0].update_id == 1


def test_maps_are_parsed_by_from_json_alone(session: Any) -> None:
    batch = batch_of(session, [b'{"tags":{"a":"b"}}'])
    assert parse_json(batch, "tags map<string,string>").rows.collect()[0].tags == {"a": "b"}
    with pytest.raises(Refused, match="the schema has a map"):
        parse_json(batch, "tags map<string,string>", engine="arrow")


@pytest.mark.parametrize(
    ("schema", "libraries", "chosen", "why"),
    [
        (SCHEMA, ["pyarrow"], "arrow", "engine='auto'"),
        ("tags map<string,string>", ["pyarrow"], "spark", "the schema has a map"),
        (SCHEMA, ["only_in_the_driver"], "spark", "the Python of Spark's workers lacks a library (No module named"),
        (SCHEMA, ["nowhere"], "spark", "the Python that runs the transform lacks a library (No module named"),
    ],
)
def test_the_engine_that_is_chosen_is_one_that_can_parse_and_the_log_tells_it(
    session: Any,
    schema: str,
    libraries: list[str],
    chosen: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "only_in_the_driver", ModuleType("only_in_the_driver"))
    monkeypatch.setattr(json_records, "_LIBRARIES", dict.fromkeys(libraries))
    records = batch_of(session, [b'{"id":1}']).repartition(1)
    with caplog.at_level("INFO"):
        rows = parse_json(records, schema, engine="auto").rows
    assert f"parse_json: the engine is {chosen}: {why}" in caplog.text
    rows.explain()
    assert ("ArrowEvalPython" in capsys.readouterr().out) == (chosen == "arrow")
    assert rows.count() == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"mode": "lenient"}, "mode must be one of 'permissive', 'strict'"),
        ({"engine": "duckdb"}, "engine must be one of"),
        ({"engine": "arrow", "schema": "m map<string,int>"}, "engine must be 'spark' or 'auto'; the schema has a map"),
        ({"value": "body"}, "'body' is missing among the columns of the batch"),
        ({"value": "offset"}, "value must be the name of a binary or string column; this one is bigint"),
        ({"columns": ["offset", "value"], "corrupt": "value"}, "'value' must not be among the columns of what is kept"),
        ({"schema": "offset bigint"}, "'offset' must not be among the columns of what is kept: the schema has it"),
        ({"schema": 7}, "schema must be DDL, a StructType, or a JSON Schema"),
        ({"schema": {"type": "object"}}, r"\$ is an object without `properties`"),
        ({"schema": "map<string,string>"}, "schema must be names and types of columns, like 'id bigint"),
        ({"schema": "string"}, "schema must be names and types of columns"),
        ({"schema": ' {"type": "object"}'}, r"must be DDL, like 'id bigint', or the dict that json\.loads\(\) makes"),
        ({"schema": "id varchar (2)"}, "schema must be a schema without char and varchar"),
        ({"schema": StructType().add("l", ArrayType(VarcharType(2)))}, "without char and varchar; .* string takes"),
        (
            {"schema": "id int, a int, ID int"},
            r"schema=\['id', 'ID'\]\): schema must be a schema of columns with different names",
        ),
        ({"schema": StructType().add("${x}", LongType())}, r"must be a schema of columns without \$\{ in their names"),
        ({"columns": "offset"}, r"columns must be a list of columns, like columns=\['offset'\]"),
        ({"columns": ["offset", "Offset"]}, "columns must be a list of columns with different names"),
        ({"corrupt": "Error"}, "corrupt must be a name that no other column .*; they have error"),
        ({"corrupt": "topic", "columns": ["offset"]}, "must be a name that no .*; they have error, topic, partition"),
    ],
)
def test_what_cannot_be_parsed_is_refused_before_spark_runs(session: Any, given: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        parse_json(batch_of(session, []), **{"schema": SCHEMA, **given})
    assert refused.value.code in (codes.OPERATOR_ARGUMENT, codes.OPERATOR_COLUMNS)
    if named := re.match(r"parse_json\((\w+)=.*: \1 must be (.*?)[;.] ", refused.value.what):
        assert refused.value.remedy == f"Set {named[1]} of parse_json() to {named[2]}. Then clear the failed task."


def test_names_that_look_like_what_is_refused_are_names(other_session: Any) -> None:
    batch = batch_of(other_session, [b'{"value":1,"char (2)":2}'])
    for schema in ("value bigint", "`value` int", "struct<value: int>", StructType().add("value", LongType())):
        assert parse_json(batch, schema).rows.collect()[0].value == 1
    assert parse_json(batch, "`char (2)` int COMMENT 'was varchar(2)'").rows.collect()[0]["char (2)"] == 2
    of_other_case = parse_json(batch, "id int", columns=[F.col("offset").alias("Offset")])
    assert of_other_case.corrupt.columns == ["Offset", "topic", "partition", "error", "raw"]
    with session_settings(other_session, {"spark.sql.caseSensitive": "true"}):
        assert parse_json(batch, "value int, VALUE int").rows.collect()[0][3:] == (1, None)


def test_the_remedy_for_a_field_with_the_name_of_a_column_that_is_kept_helps(session: Any) -> None:
    batch = batch_of(session, [b'{"offset":7}', b"{"])
    with pytest.raises(Refused) as refused:
        parse_json(batch, "offset bigint")
    assert "in the argument columns: [F.col('key'), F.col('offset').alias('another')]" in refused.value.remedy
    parsed = parse_json(batch, "offset bigint", columns=["topic", "partition", F.col("offset").alias("another")])
    assert [tuple(row) for row in parsed.rows.collect()] == [("clicks", 0, 0, 7)]
    assert [(row.another, row.offset) for row in parsed.corrupt.collect()] == [(1, 1)]


def test_a_batch_without_the_columns_that_are_kept_by_default_is_refused_and_can_be_parsed(session: Any) -> None:
    batch = batch_of(session, [b'{"id":7}']).select("value", "offset")
    with pytest.raises(Refused, match="'topic', 'partition' is missing among the columns of the batch") as refused:
        parse_json(batch, "id int")
    assert "columns=[] keeps nothing" in refused.value.remedy
    assert [tuple(row) for row in parse_json(batch, "id int", columns=[]).rows.collect()] == [(7,)]


def examples() -> list[str]:
    """The transforms of orders on the page."""
    return re.findall(r"^```python\n(.*?def orders.*?)^```", PAGE.read_text().partition("\n## Avro")[0], re.M | re.S)


@pytest.mark.parametrize("example", examples(), ids=["usual", "dead letters", "with the id of a schema"])
def test_the_examples_of_the_page_run_as_they_stand(session: Any, tmp_path: Path, example: str) -> None:
    (tmp_path / "orders.py").write_text(example)
    frame = b"\0\0\0\0\7" if "substring" in example else b""
    records = [frame + b'{"order_id":"a","amount":12.5,"at":"2026-01-31T10:20:30Z"}', frame + b"no JSON"]
    found = run_transform(f"{tmp_path / 'orders.py'}:orders", records=records, spark=session)
    [row], [letter] = found["orders"], found["rejected"]
    assert (row["order_id"], str(row["amount"])) == ("a", "12.50")
    assert (letter["offset"], letter["error"]) == (1, "not a JSON object")
    assert bytes(letter.get("raw") or letter["value"]) == b"no JSON"


def test_all_engines_stage_rows_with_the_same_digest(runner: ConnectRunner, topic: Topic, tmp_path: Path) -> None:
    claims = {}
    for engine in ("arrow", "spark", "auto"):
        parsing = app(
            tmp_path,
            f"""
            def f(batch, epoch):
                parsed = parse_json(batch, "{SCHEMA}", engine="{engine}")
                return {{"rows": parsed.rows, "corrupt": parsed.corrupt}}
            """,
        )
        places = {name: tmp_path / engine / name for name in ("rows", "corrupt")}
        report = runner.run(stage_job(topic, parsing, places, measure_input=True))
        assert (report["metrics"]["rows_in"], report["warnings"]) == (len(RECORDS) * 20, [])
        claims[engine] = {name: claim["content"] for name, claim in report["sinks"].items()}
        rows, corrupt = (staged_rows(place) for place in places.values())
        assert sorted({str(row["id"]) for row in rows}) == ["1", "None"]
        assert {row["raw"] for row in corrupt} == {b"no JSON", b"[]"}
        assert len(rows) + len(corrupt) == len(RECORDS) * 20
    assert claims["arrow"] == claims["spark"] == claims["auto"]
    assert [content["rows"] for content in claims["arrow"].values()] == [60, 40]


@pytest.mark.parametrize("engine", json_records.ENGINES[:2])
def test_strict_takes_no_record_with_text_behind_its_object(session: Any, engine: str) -> None:
    batch = batch_of(session, [*ALONE, *BEHIND])
    parsed = parse_json(batch, "i int, o struct<x: string>", mode="strict", engine=engine)
    assert [row.offset for row in parsed.rows.collect()] == [*range(len(ALONE))]
    corrupt = {row.offset: (row.error, bytes(row.raw)) for row in parsed.corrupt.collect()}
    told = "text behind the JSON object"
    assert corrupt == {len(ALONE) + at: (told, record) for at, record in enumerate(BEHIND)}
    lenient = parse_json(batch, "i int, o struct<x: string>", engine=engine)
    assert [row.i for row in lenient.rows.collect()] == [1] * (len(ALONE) + len(BEHIND))
