"""What Spark itself stages arrives in PostgreSQL as it was: its Parquet files are not those of deltalake's writer."""

from __future__ import annotations

import ast
import datetime as dt
import re
import uuid
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import functions as F

from airflow_epochs.model import StagedClaim, VoteKind
from airflow_epochs.spark.driver.plans import TransformFile
from stack.postgres import Postgres
from tests.support.delta_world import attempt_of, fill_with_spark, transaction
from tests.support.spark_world import LEGACY, settings
from tests.support.sql_world import SqlWorld, new_postgres, new_sqlite

pytestmark = pytest.mark.jvm

UTC = dt.timezone.utc
COLUMNS = {
    "id": ("bigint", "id"),
    "tiny": ("smallint", "cast(id AS tinyint)"),
    "d": ("numeric(38,10)", "cast('-12345678901234567890.5' AS decimal(38,10))"),
    "f": ("double precision", "double('Infinity')"),
    "s": ("text", "concat('Zürich\n', chr(92), '.')"),
    "x": ("bytea", "unhex('00FF5C')"),
    "day": ("date", "date'1582-10-04'"),
    "late": ("timestamptz", "timestamp'9999-12-31 23:59:59.999999 UTC'"),
    "early": ("timestamptz", "timestamp'1600-01-01 00:00:00 UTC'"),
    "wall": ("timestamp", "timestamp_ntz'2500-03-29 02:30:00.000001'"),
    "n": ("jsonb", "named_struct('a', array(1, null), 'm', map('k', cast(1.50 AS decimal(4,2))))"),
}


@pytest.fixture
def world(postgres: Postgres, tmp_path: Path) -> SqlWorld:
    made = SqlWorld(new_postgres(postgres), tmp_path)
    made.db.run(f"CREATE TABLE orders ({', '.join(f'{name} {kind}' for name, (kind, _) in COLUMNS.items())})")
    return made


def staged(world: SqlWorld, session: Any, plan: dict[str, Any], frame: Any) -> StagedClaim:
    return fill_with_spark(session, plan, frame)


def test_rows_that_spark_staged_arrive_as_they_were(world: SqlWorld, session: Any) -> None:
    sink, attempt = world.sink(), attempt_of(transaction(1))
    frame = session.range(2).selectExpr(*(f"{expression} AS {name}" for name, (_, expression) in COLUMNS.items()))
    claim = staged(world, session, sink.plan_stage(attempt, uuid.uuid4().hex, world.env), frame)
    vote = sink.vote(attempt, claim, world.env)
    assert vote.staged is not None, vote.reason
    sink.commit(attempt, vote.staged, world.env)
    names = [name for name in COLUMNS if name != "n"]
    assert world.db.run(f"SELECT {', '.join(names)}, n::text FROM orders ORDER BY id")[1] == (
        1,
        1,
        Decimal("-12345678901234567890.5000000000"),
        float("inf"),
        "Zürich\n\\.",
        b"\x00\xff\\",
        dt.date(1582, 10, 4),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        dt.datetime(1600, 1, 1, tzinfo=UTC),
        dt.datetime(2500, 3, 29, 2, 30, 0, 1),
        '{"a": [1, null], "m": {"k": 1.50}}',
    )


@pytest.mark.parametrize(
    "options", [{}, {"mode": "upsert", "keys": ["unit price"], "sequence_by": "at (s)"}], ids=["append", "upsert"]
)
def test_columns_may_have_any_names_and_so_may_the_fields_within_them(
    world: SqlWorld, session: Any, options: dict[str, Any]
) -> None:
    world.db.run('CREATE TABLE odd ("unit price" bigint PRIMARY KEY, "at (s)" bigint, "a,b;c" jsonb)')
    sink, attempt = world.sink("odd", **options), attempt_of(transaction(1))
    inner = "named_struct('x y', array(map('k', named_struct('=', 2L))))"
    frame = session.sql(f"SELECT 1L AS `unit price`, 2L AS `at (s)`, {inner} AS `a,b;c`")
    claim = staged(world, session, sink.plan_stage(attempt, uuid.uuid4().hex, world.env), frame)
    vote = sink.vote(attempt, claim, world.env)
    assert vote.staged is not None, vote.reason
    sink.commit(attempt, vote.staged, world.env)
    assert world.db.run("SELECT * FROM odd") == [(1, 2, {"x y": [{"k": {"=": 2}}]})]


def test_an_epoch_that_spark_staged_without_rows_moves_the_marker(world: SqlWorld, session: Any) -> None:
    sink, attempt = world.sink(), attempt_of(transaction(1))
    claim = staged(world, session, sink.plan_stage(attempt, uuid.uuid4().hex, world.env), session.range(0))
    vote = sink.vote(attempt, claim, world.env)
    assert vote.staged is not None, vote.reason
    assert sink.commit(attempt, vote.staged, world.env).rows == 0
    assert world.marker_rows()[0][2:4] == (1, str(attempt.txn))


def test_a_column_without_a_type_is_a_vote_against(world: SqlWorld, session: Any) -> None:
    sink, attempt = world.sink(), attempt_of(transaction(1))
    frame = session.sql("SELECT 1L AS id, NULL AS s")
    claim = staged(world, session, sink.plan_stage(attempt, uuid.uuid4().hex, world.env), frame)
    vote = sink.vote(attempt, claim, world.env)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "'s' is void in the rows" in (vote.reason or "")


VARIANT = "named_struct('at', timestamp'2026-01-01 00:00:00.000001Z', 'doc', parse_json('{\"a\": [1, null]}'))"


def test_a_variant_in_a_struct_is_a_vote_against_until_text_is_made_of_it_as_the_remedy_says(
    postgres: Postgres, tmp_path: Path, session: Any
) -> None:
    for db, kind in ((new_postgres(postgres), "json"), (new_sqlite(tmp_path), "TEXT")):
        world = SqlWorld(db, tmp_path)
        world.db.run(f"CREATE TABLE docs (v {kind})")
        sink, attempt = world.sink("docs"), attempt_of(transaction(1))
        plan, frame = sink.plan_stage(attempt, uuid.uuid4().hex, world.env), session.sql(f"SELECT {VARIANT} AS v")
        against = sink.vote(attempt, staged(world, session, plan, frame), world.env)
        assert against.vote is VoteKind.VOTE_ABORT and "'v.doc' is a variant" in (against.reason or "")
        made = re.search(r"F\.to_json\('v', (\{.*\})\)", against.reason or "")
        assert made
        text, plan = F.to_json("v", ast.literal_eval(made[1])), sink.plan_stage(attempt, uuid.uuid4().hex, world.env)
        vote = sink.vote(attempt, staged(world, session, plan, frame.select(text.alias("v"))), world.env)
        assert vote.staged is not None, vote.reason
        sink.commit(attempt, vote.staged, world.env)
        told = '{"at":"2026-01-01T00:00:00.000001Z","doc":{"a":[1,null]}}'
        assert world.db.run("SELECT CAST(v AS text) FROM docs") == [(told,)]


POISON = {
    b"\xff\xfe": "not UTF-8",
    b'{"order_id": "a\\u0000", "customer": "c", "amount": 1, "currency": "EUR", "ts": "2026-01-02T03:04:05Z"}': (
        "a NUL character"
    ),
    b'{"order_id": "a", "customer": "c", "amount": 1, "currency": "EUR", "ts": "+294000-01-01T00:00:00Z"}': (
        "a year that no calendar has"
    ),
}


def test_the_example_sends_what_no_table_takes_to_rejected_and_the_rest_to_orders(session: Any) -> None:
    from airflow_epochs.spark.driver import transform

    good = b'{"order_id": "a", "customer": "c", "amount": 1, "currency": "EUR", "ts": "2026-01-02T03:04:05Z"}'
    records = [(value, "t", 0, offset) for offset, value in enumerate([*POISON, good])]
    batch = session.createDataFrame(records, "value binary, topic string, partition int, offset long")
    path = Path(__file__).parents[2] / "spark_apps" / "orders.py"
    with transform.loaded(TransformFile(path=str(path), function="orders")) as users:
        found = users.module.orders(batch, None)
        assert [row.offset for row in found["orders"].collect()] == [len(POISON)]
        rejected = {row.offset: row.error for row in found["rejected"].collect()}
    assert rejected == dict(enumerate(POISON.values()))


def snippet(page: str, first_words: str) -> str:
    """The block of Python in a page that has these words in it."""
    blocks = (Path(__file__).parents[2] / page).read_text().split("```")[1::2]
    (found,) = (block.removeprefix("python\n") for block in blocks if first_words in block)
    return found


def split(session: Any, outputs: Any, sink: str, records: list[bytes | None]) -> tuple[list[int], list[int]]:
    """Offsets of records that a transform's ``outputs`` give to the sink, and of those that they give to rejected."""
    batch = session.createDataFrame(
        [(value, "t", 0, offset) for offset, value in enumerate(records)],
        "value binary, topic string, partition int, offset long",
    )
    found = outputs(batch)
    rejected = sorted(row.offset for row in found["rejected"].collect())
    return sorted(row.offset for row in found[sink].collect()), rejected


IN_A_PAGE: list[bytes | None] = [
    b'{"order_id": 0, "customer": "c", "amount": 1, "ts": "2026-01-02T03:04:05Z"}',
    None,
    b"",
    b"no order",
    b'[{"order_id": 4, "customer": "c", "amount": 1, "ts": "2026-01-02T03:04:05Z"}]',
    b'{"order_id": 5, "customer": "\xff", "amount": 1, "ts": "2026-01-02T03:04:05Z"}',
    b'{"order_id": 6, "customer": "c", "amount": 1, "ts": "yesterday"}',
    b'{"order_id": 7, "customer": "c", "amount": 1, "ts": "2026-01-02T03:04:05Z"}',
]


def test_the_transform_of_the_readme_gives_every_record_to_orders_or_to_rejected(session: Any) -> None:
    names: dict[str, Any] = {}
    exec(snippet("README.md", "def orders(batch, epoch)"), names)
    no_amount = b'{"order_id": 8, "customer": "c", "amount": "much", "ts": "2026-01-02T03:04:05Z"}'
    found = split(session, lambda batch: names["orders"](batch, None), "orders", [*IN_A_PAGE, no_amount])
    assert found == ([0, 7], [1, 2, 3, 4, 5, 6, 8])


def test_the_example_with_a_database_judges_a_year_in_utc_whatever_the_zone_of_sparks_session(session: Any) -> None:
    from pyspark.sql import functions as F

    from airflow_epochs.spark.driver import transform

    order = '{{"order_id": "{0}", "customer": "c", "amount": 1, "currency": "EUR", "ts": "{1}"}}'
    times = {
        "last": "9999-12-31T23:59:59.999999Z",
        "too late": "10000-01-01T00:00:00Z",
        "first": "0001-01-01T00:00:00Z",
    }
    records = [(order.format(*item).encode(), "t", 0, offset) for offset, item in enumerate(times.items())]
    path = Path(__file__).parents[2] / "spark_apps" / "orders_fanout.py"
    with settings(session, {"spark.sql.session.timeZone": "America/New_York"}):
        batch = session.createDataFrame(records, "value binary, topic string, partition int, offset long")
        with transform.loaded(TransformFile(path=str(path), function="fanout")) as users:
            found = users.module.fanout(batch, SimpleNamespace(record=F.lit(0).alias("__record")))
            assert [row.order_id for row in found["database"].select("order_id").collect()] == ["last", "first"]
            rejected = [(row.offset, row.error) for row in found["rejected"].collect()]
    assert rejected == [(1, "a year that no calendar has")]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("expression", "column", "expected"),
    [
        ("cast(unhex('61FF62') AS string)", "text", "column 's' is not UTF-8: b'a\\xffb'"),
        ("concat('a', char(0))", "text", "column 's' has a NUL character"),
        (
            "timestamp'+200000-01-01 00:00:00 UTC'",
            "timestamptz",
            "'s' is outside of the years 1 to 9999: a time of the year 200000",
        ),
        ("timestamp'-0044-03-15 00:00:00 UTC'", "timestamptz", "column 's' is outside of the years 1 to 9999"),
        ("date'+10000-01-01'", "date", "column 's' is outside of the years 1 to 9999: a time of the year 10000"),
        ("array(named_struct('t', date'+10000-01-01'))", "json", "column 's' is outside of the years 1 to 9999"),
        ("array(cast(unhex('FF') AS string))", "json", "column 's' is not UTF-8"),
        ("map('k', concat('a', char(0)))", "jsonb", "column 's' has a NUL character"),
    ],
)
def test_a_value_that_spark_has_and_no_table_takes_is_named_with_its_record(
    world: SqlWorld, session: Any, tmp_path: Path, expression: str, column: str, expected: str
) -> None:
    columns = f'topic text, partition int, "offset" bigint, s {column}'
    in_file = SqlWorld(new_sqlite(tmp_path), tmp_path)
    in_file.db.run('CREATE TABLE v (topic text, partition int, "offset" bigint, s)')
    world.db.run(f"CREATE TABLE v ({columns})")
    frame = session.range(3).selectExpr(
        "'clicks' AS topic", "4 AS partition", "100 + id AS offset", f"IF(id = 1, {expression}, NULL) AS s"
    )
    for place in (world, in_file):
        if place is in_file and "NUL" in expected:
            continue  # SQLite keeps it
        sink, attempt = place.sink("v"), attempt_of(transaction(1))
        claim = staged(place, session, sink.plan_stage(attempt, uuid.uuid4().hex, place.env), frame)
        reason = sink.vote(attempt, claim, place.env).reason or ""
        assert "the record at topic 'clicks', partition 4, offset 101" in reason
        assert expected in reason
        assert "Records that no table takes" in reason


def test_old_dates_get_into_the_table_as_they_are_whatever_calendar_the_server_is_set_up_to_write(
    world: SqlWorld, session: Any
) -> None:
    world.db.run("CREATE TABLE v (day date, at timestamptz)")
    frame = session.sql("SELECT date'1500-01-01' AS day, timestamp'1500-01-01 00:00:00 UTC' AS at")
    sink, attempt = world.sink("v", rehearse=False), attempt_of(transaction(1))
    with settings(session, LEGACY):
        claim = staged(world, session, sink.plan_stage(attempt, uuid.uuid4().hex, world.env), frame)
    vote = sink.vote(attempt, claim, world.env)
    assert vote.staged is not None, vote.reason
    sink.commit(attempt, vote.staged, world.env)
    assert world.db.run("SELECT day::text, (at AT TIME ZONE 'UTC')::text FROM v") == [
        ("1500-01-01", "1500-01-01 00:00:00")
    ]


# -- upserts of the newest rows -------------------------------------------------------------------------------------

CHANGES: dict[str, Any] = {"mode": "upsert", "keys": ["ID"], "sequence_by": "at", "delete_when": "op = 'd'"}


@pytest.fixture
def customers(postgres: Postgres, tmp_path: Path) -> SqlWorld:
    made = SqlWorld(new_postgres(postgres), tmp_path)
    made.db.run("CREATE TABLE orders (id bigint PRIMARY KEY, name varchar(5), at bigint, tags jsonb)")
    return made


def changed(session: Any, *rows: tuple[Any, ...]) -> Any:
    """Rows of key, name, sequence and operation; with a map, which Spark neither groups nor compares."""
    frame = session.createDataFrame(list(rows), "id long, name string, at long, op string")
    return frame.selectExpr("*", "map('name', name) AS tags")


def test_of_several_rows_of_a_key_the_newest_is_written_or_deletes_it(customers: SqlWorld, session: Any) -> None:
    sink, first, second = customers.sink(**CHANGES), transaction(1), transaction(2)
    epochs = [
        [(1, "a", 1, "c"), (1, "b", 3, "u"), (1, "c", 2, "u"), (2, "x", 1, "c"), (3, "z", 5, "c"), (3, "z", 5, "c")],
        [(1, "d", 4, "u"), (1, "a name that is too long", 5, "d"), (2, "gone", 7, "d"), (2, "y", 8, "c")],
    ]
    expected = [
        [(1, "b", 3, '{"name": "b"}'), (2, "x", 1, '{"name": "x"}'), (3, "z", 5, '{"name": "z"}')],
        [(2, "y", 8, '{"name": "y"}'), (3, "z", 5, '{"name": "z"}')],
    ]
    for txn, previous, rows, shown in zip((first, second), (None, first), epochs, expected, strict=True):
        attempt = attempt_of(txn, previous)
        plan = sink.plan_stage(attempt, uuid.uuid4().hex, customers.env)
        vote = sink.vote(attempt, staged(customers, session, plan, changed(session, *rows)), customers.env)
        assert vote.staged is not None, vote.reason
        sink.commit(attempt, vote.staged, customers.env)
        assert customers.db.run("SELECT id, name, at, tags::text FROM orders ORDER BY id") == shown


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("rows", "options", "problem"),
    [
        ([(1, "a", 2, "c"), (1, "b", 2, "u")], {}, "Some keys have several newest rows, which differ although"),
        ([(1, "a", 2, "c"), (1, "a", 2, "d")], {}, "Some keys have several newest rows, which differ although"),
        ([(1, "a", 2, "c"), (1, "a", None, "c")], {}, "Some rows have NULL in ID or at: ID=1, at=None"),
        ([(None, "a", 2, "c")], {}, "Some rows have NULL in ID or at: ID=None, at=2"),
        ([(1, "a", 2, "c")], {"sequence_by": "lsn"}, "The rows lack column 'lsn' (see `sequence_by`)"),
        ([(1, "a", 2, "c")], {"delete_when": "kind = 'd'"}, "`delete_when` is not a valid condition on the rows"),
        ([(1, "a", 2, "c")], {"delete_when": "rand() < 1"}, "its result may be another one when Spark computes it"),
    ],
)
def test_rows_without_a_clear_newest_one_are_a_vote_against(
    customers: SqlWorld, session: Any, rows: list[Any], options: dict[str, Any], problem: str
) -> None:
    sink, attempt = customers.sink(**CHANGES | options), attempt_of(transaction(1))
    claim = staged(
        customers, session, sink.plan_stage(attempt, uuid.uuid4().hex, customers.env), changed(session, *rows)
    )
    vote = sink.vote(attempt, claim, customers.env)
    assert (vote.vote, problem in (vote.reason or "")) == (VoteKind.VOTE_ABORT, True), vote.reason
    assert customers.db.run("SELECT count(*) FROM orders") == [(0,)]


def test_a_tie_that_a_newer_row_decides_is_none(customers: SqlWorld, session: Any) -> None:
    sink, attempt = customers.sink(**CHANGES), attempt_of(transaction(1))
    frame = changed(session, (1, "a", 2, "c"), (1, "b", 2, "u"), (1, "c", 3, "u"))
    claim = staged(customers, session, sink.plan_stage(attempt, uuid.uuid4().hex, customers.env), frame)
    vote = sink.vote(attempt, claim, customers.env)
    assert vote.staged is not None, vote.reason
    assert vote.staged.rows == 1


def test_a_deletion_that_comes_twice_is_one_whatever_its_values(customers: SqlWorld, session: Any) -> None:
    """As those that Debezium sends again, from another offset: what it did not rehearse must not fail in the commit."""
    sink, first, second = customers.sink(**CHANGES, rehearse=False), transaction(1), transaction(2)
    for txn, previous, rows in (
        (first, None, [(1, "a", 1, "c")]),
        (second, first, [(1, "a", 2, "d"), (1, "b", 2, "d")]),
    ):
        attempt = attempt_of(txn, previous)
        plan = sink.plan_stage(attempt, uuid.uuid4().hex, customers.env)
        vote = sink.vote(attempt, staged(customers, session, plan, changed(session, *rows)), customers.env)
        assert vote.staged is not None, vote.reason
        assert vote.staged.rows == 1
        sink.commit(attempt, vote.staged, customers.env)
    assert customers.db.run("SELECT id FROM orders") == []
