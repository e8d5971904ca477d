"""``airflow_epochs.testing.run_transform``: a user's unit tests of a transform."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import EventTime, codes
from airflow_epochs.errors import BadArgument, Refused
from airflow_epochs.testing import Record, run_transform
from airflow_epochs.testing.transforms import MadeUpTable
from tests.integration.test_parse_avro import written as written_in_avro
from tests.support.protobuf_world import files, message_class
from tests.support.protobuf_world import written as written_in_protobuf

pytestmark = pytest.mark.jvm
REPOSITORY = Path(__file__).parents[2]
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
PROTOBUF = files("message Order { int64 id = 1; }")
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def app(tmp_path: Path) -> Any:
    def written(body: str, **siblings: str) -> str:
        for name, text in siblings.items():
            (tmp_path / f"{name}.py").write_text(text)
        (tmp_path / "app.py").write_text(f"from pyspark.sql import functions as F\n{body}")
        return f"{tmp_path / 'app.py'}:f"

    return written


def test_a_transform_gets_records_as_spark_reads_them_from_kafka(session: Any, app: Any) -> None:
    path = app(
        "def f(batch, epoch):\n"
        "    return batch.select('topic', 'partition', 'offset', 'key', 'value', 'headers',\n"
        "                        F.unix_millis('timestamp').alias('ms'))\n"
    )
    records = [{"a": "ü"}, "text", b"\xff", None, Record(value=7, key="k", partition=1, headers={"h": "x"})]
    records.append(Record(value="late", topic="other", offset=40, timestamp=NOON))
    rows = run_transform(path, records=records, spark=session)
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [
        *(("topic", 0, n) for n in range(4)),
        ("topic", 1, 0),
        ("other", 0, 40),
    ]
    values = [None if row["value"] is None else bytes(row["value"]) for row in rows]
    assert values == ['{"a": "ü"}'.encode(), b"text", b"\xff", None, b"7", b"late"]
    assert (bytes(rows[4]["key"]), bytes(rows[4]["headers"][0]["value"])) == (b"k", b"x")
    assert rows[5]["ms"] == NOON.timestamp() * 1000


def test_a_dict_of_frames_comes_back_as_a_dict_of_lists(session: Any, app: Any) -> None:
    path = app("def f(batch, epoch):\n    return {'a': batch.select('offset'), 'none': batch.where('false')}")
    assert run_transform(path, records=["x"], spark=session) == {"a": [{"offset": 0}], "none": []}


def test_the_names_of_the_sinks_are_checked_as_in_a_run(session: Any, app: Any) -> None:
    path = app("def f(batch, epoch):\n    return {'ordres': batch}")
    with pytest.raises(Refused) as refused:
        run_transform(path, records=["x"], sinks=["orders"], spark=session)
    assert refused.value.code is codes.TRANSFORM_RESULT
    assert "no DataFrame for sink 'orders'; a DataFrame for 'ordres'" in refused.value.what


def test_rows_for_the_dead_letters_are_optional_and_the_record_of_a_row_is_no_column(session: Any, app: Any) -> None:
    path = app(
        "def f(batch, epoch):\n"
        "    rows = {'a': batch.select('offset', epoch.record)}\n"
        "    return rows | ({'bad': batch.select('value')} if epoch.number == 2 else {})\n"
    )
    given: dict[str, Any] = {"records": [b"x"], "sinks": ["a", "bad"], "dead_letters": "bad", "spark": session}
    assert run_transform(path, **given) == {"a": [{"offset": 0}]}
    assert list(run_transform(path, epoch=2, **given)) == ["a", "bad"]


def test_an_error_of_the_transform_shows_its_line(session: Any, app: Any) -> None:
    path = app("def f(batch, epoch):\n    return batch.select(1 / 0)")
    with pytest.raises(Refused) as refused:
        run_transform(path, records=["x"], spark=session)
    assert refused.value.code is codes.TRANSFORM_RAISED and "line 3" in refused.value.what


def test_what_a_rerun_would_compute_anew_is_a_warning(session: Any, app: Any) -> None:
    path = app("def f(batch, epoch):\n    return batch.select(F.rand().alias('r'))")
    with pytest.warns(UserWarning, match="rand"):
        run_transform(path, records=["x"], spark=session)


def test_a_transform_with_state_reads_the_rows_that_the_test_gives_it(session: Any) -> None:
    path = f"{REPOSITORY / 'spark_apps' / 'hourly_revenue.py'}:hourly"
    times = "window_start timestamp, window_end timestamp, expires timestamp"
    columns = f"shop string, {times}, sales bigint, revenue decimal(22, 2)"
    hour = timedelta(hours=1)
    window = {"window_start": NOON - hour, "window_end": NOON, "expires": NOON + 2 * hour}
    before = [{"shop": "a", **window, "sales": 1, "revenue": Decimal(5)}]
    given: dict[str, Any] = {"now": NOON, "event_time": EventTime("10 min"), "spark": session}
    sale = {"shop": "b", "amount": "2.00", "ts": "2026-01-01T12:00:30Z"}
    rows = run_transform(path, records=[sale, {}], state={"open": (columns, before)}, watermark=NOON, **given)
    assert [(row["shop"], row["sales"]) for row in rows["hourly"]] == [("a", 1)]
    assert [(row["shop"], row["sales"]) for row in rows["open"]] == [("b", 1)]
    assert [row["error"] for row in rows["rejected"]] == ["no shop"]


def test_a_transform_may_get_the_rows_of_a_table(session: Any, app: Any) -> None:
    path = app("def f(batch, epoch):\n    return batch.groupBy('city').agg(F.sum('n').alias('n'))")
    table: MadeUpTable = ("city string, n bigint", [{"city": "Bern", "n": 1}, {"city": "Bern", "n": 2}, {"n": 4}])
    rows = run_transform(path, table=table, spark=session)
    assert {row["city"]: row["n"] for row in rows} == {"Bern": 3, None: 4}
    with pytest.raises(ValueError, match="A row has m, which the columns lack"):
        run_transform(path, table=("n bigint", [{"m": 1}]), spark=session)


@pytest.mark.parametrize("path", ["app.py", "app.txt:f"])
def test_a_path_without_a_function_is_refused(session: Any, path: str) -> None:
    with pytest.raises(BadArgument, match="must have the form"):
        run_transform(path, spark=session)


@pytest.mark.long
def test_the_tests_of_the_gallery_pass_on_a_spark_of_their_own() -> None:
    done = _pytest(REPOSITORY / "spark_apps" / "tests", cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout


@pytest.mark.long
def test_python_workers_import_what_lies_beside_the_transform(app: Any, tmp_path: Path) -> None:
    path = app(
        "import beside\n\ndef f(batch, epoch):\n"
        "    return batch.select(F.udf(beside.doubled, 'string')(F.col('value').cast('string')).alias('v'))\n",
        beside="def doubled(text):\n    return text * 2\n",
    )
    (tmp_path / "test_app.py").write_text(
        "from airflow_epochs.testing import run_transform\n"
        "def test_twice():\n"
        "    for _ in range(2):\n"
        f"        assert run_transform({path!r}, records=['ab']) == [{{'v': 'abab'}}]\n"
    )
    done = _pytest(tmp_path / "test_app.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def _pytest(what: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run tests in a process of their own: this one has a client of Spark Connect."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYTEST_"))}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(what)]
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=110, check=False)


def test_a_test_says_which_schemas_the_registry_has(app: Any, session: Any) -> None:
    path = app(
        """
from airflow_epochs.transforms import parse_avro, parse_protobuf

def f(batch, epoch):
    avro = parse_avro(batch, READER, registry="schema_registry_default", columns=[])
    proto = parse_protobuf(batch, "shop.Order", FILES, registry="schema_registry_default", columns=[])
    return {"avro": avro.rows, "protobuf": proto.rows, "neither": avro.corrupt}
""".replace("READER", repr(AVRO)).replace("FILES", repr(PROTOBUF))
    )
    order = message_class(PROTOBUF, "shop.Order")(id=5)
    records = [written_in_avro(7, AVRO, {"id": 3}), written_in_protobuf(8, order)]
    schemas: dict[int, str | bytes] = {7: json.dumps(AVRO), 8: PROTOBUF}
    rows = run_transform(path, records=records, schemas=schemas, spark=session)
    assert (rows["avro"], rows["protobuf"]) == ([{"id": 3}], [{"id": 5}])
    assert [row["error"] for row in rows["neither"]] == ["schema 8 is of kind PROTOBUF, not AVRO"]


CHAINED = """
from datetime import timedelta

from pyspark.sql import functions as F

from airflow_epochs.transforms import windowed


def ended(batch, epoch, state):
    found = windowed(
        batch.select("timestamp", F.lit("k").alias("key")),
        state["open"],
        epoch.chained(),
        time="timestamp",
        size=timedelta(minutes=1),
        keys=["key"],
        agg=[F.count("*").alias("n")],
        merge=[F.sum("n").alias("n")],
    )
    return {"ended": found.out, "open": found.changes}
"""


def test_an_operator_behind_others_gets_the_watermarks_that_the_test_gives_for_its_place(
    session: Any, tmp_path: Path
) -> None:
    (tmp_path / "chained.py").write_text(CHAINED)
    minutes = [NOON + timedelta(minutes=n) for n in range(4)]
    columns = "key string, window_start timestamp, window_end timestamp, n long"
    rows = [{"key": "k", "window_start": a, "window_end": b, "n": 1} for a, b in itertools.pairwise(minutes)]

    def told(*previous: datetime) -> Any:
        return run_transform(
            f"{tmp_path}/chained.py:ended",
            state={"open": (columns, rows)},
            watermark=minutes[3],
            previous_watermark=previous,
            event_time=EventTime("0 s", depth=2),
            spark=session,
        )

    assert [row["window_start"] for row in told(minutes[2], minutes[1])["ended"]] == [minutes[1].replace(tzinfo=None)]
    with pytest.raises(ValueError, match="depth=2, and `previous_watermark` has 1 of 2 watermarks"):
        told(minutes[2])
