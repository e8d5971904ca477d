"""Values that no table takes: each is a vote against that names the record, the column and the value."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_epochs.model import VoteKind
from airflow_epochs.spark.driver.delta.keys import DELETED
from tests.support.delta_world import attempt_of, not_utf8, transaction
from tests.support.sql_world import SqlWorld, new_sqlite

pytestmark = pytest.mark.proof

UTC = dt.timezone.utc
GOOD = 500
"""Rows before the bad one: it is not in the first place, nor in a batch of its own."""


def one(value: Any, kind: pa.DataType) -> pa.Array:
    return pa.array([value], kind)


def us(text: int) -> pa.Array:
    return pa.array([text], pa.int64()).cast(pa.timestamp("us", "UTC"))


YEAR_294000 = us(9_215_543_000_000_000_000)
BEFORE_YEAR_1 = us(-62_135_596_800_000_001)
LATE_DAY = pa.array([2_932_897], pa.int32()).cast(pa.date32())

BOTH: dict[str, tuple[pa.Array, str, str]] = {
    "bytes that are no UTF-8": (not_utf8(b"a\xffb"), "text", "column 's' is not UTF-8: b'a\\xffb'"),
    "a lone surrogate": (not_utf8(b"\xed\xa0\x80"), "text", "column 's' is not UTF-8"),
    "the year 294000": (
        YEAR_294000,
        "timestamptz",
        "column 's' is outside of the years 1 to 9999: a time of the year 29",
    ),
    "a time before the year 1": (
        BEFORE_YEAR_1,
        "timestamptz",
        "'s' is outside of the years 1 to 9999: a time of the year 0",
    ),
    "a wall clock of the year 294000": (
        YEAR_294000.cast(pa.timestamp("us")),
        "timestamp",
        "column 's' is outside of the years 1 to 9999",
    ),
    "a day after the year 9999": (
        LATE_DAY,
        "date",
        "column 's' is outside of the years 1 to 9999: a time of the year 10000",
    ),
    "a time within a struct": (
        pa.StructArray.from_arrays([YEAR_294000], ["t"]),
        "json",
        "column 's' is outside of the years 1 to 9999",
    ),
    "a text within a list": (
        pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), not_utf8(b"\xff")),
        "json",
        "column 's' is not UTF-8",
    ),
    "a key of a map that is no text": (
        one([({"k": 1}, 1)], pa.map_(pa.struct([("k", pa.int64())]), pa.int64())),
        "json",
        "cannot be written as JSON",
    ),
}
POSTGRES: dict[str, tuple[pa.Array, str, str]] = {
    "a NUL character": (
        one("a\0b", pa.string()),
        "text",
        "column 's' has a NUL character, which PostgreSQL cannot store: 'a\\x00b'",
    ),
    "a NUL character within a list": (one(["a\0"], pa.list_(pa.string())), "jsonb", "column 's' has a NUL character"),
    "a NUL character within text of JSON": (
        one('{"a": "\\u0000"}', pa.string()),
        "jsonb",
        "\\u0000 cannot be converted",
    ),
    "a lone surrogate in text of JSON": (one('{"a": "\\ud800"}', pa.string()), "jsonb", "surrogate"),
    "text that is no uuid": (one("x", pa.string()), "uuid", "invalid input syntax for type uuid"),
    "a text with lines before it": (one("x\ny", pa.string()), "uuid", "invalid input syntax for type uuid"),
    "a number that is too large": (one(10**5, pa.int64()), "numeric(3)", "numeric field overflow"),
}


def bad_after_good(bad: pa.Array) -> pa.Table:
    """Rows that know the record that they came from; the last one is bad. Those before have line breaks within."""
    size = GOOD + 1
    return pa.table(
        {
            "topic": ["clicks"] * size,
            "partition": pa.array([4] * size, pa.int32()),
            "offset": range(100, 100 + size),
            "note": ["two\nlines"] * size,
            "s": pa.chunked_array([pa.nulls(GOOD, bad.type), bad]),
        }
    )


def make(world: SqlWorld, kind: str) -> None:
    world.db.run(f'CREATE TABLE v (topic text, partition int, "offset" bigint, note text, s {kind}, UNIQUE ("offset"))')


def assert_named(world: SqlWorld, bad: pa.Array, expected: str, **options: Any) -> None:
    reason = world.reason_against(world.sink("v", **options), bad_after_good(bad))
    assert f"the record at topic 'clicks', partition 4, offset {100 + GOOD}" in reason
    assert expected in reason
    assert world.db.run("SELECT count(*) FROM v") == [(0,)]


UPSERT: dict[str, Any] = {"mode": "upsert", "keys": ["offset"]}


@pytest.mark.few(12)
@pytest.mark.parametrize("options", [{}, UPSERT, {"rehearse": False}], ids=["append", "upsert", "not rehearsed"])
@pytest.mark.parametrize("what", BOTH)
def test_a_value_that_no_table_takes_is_named_with_its_record(
    sql_world: SqlWorld, what: str, options: dict[str, Any]
) -> None:
    bad, kind, expected = BOTH[what]
    if what.startswith("a key") and options == {"rehearse": False}:
        options = {}  # JSON is made as it is written
    make(sql_world, kind)
    assert_named(sql_world, bad, expected, **options)


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
@pytest.mark.parametrize("what", POSTGRES)
def test_a_value_that_postgresql_does_not_take_is_named_with_its_record(
    pg: SqlWorld, what: str, options: dict[str, Any]
) -> None:
    bad, kind, expected = POSTGRES[what]
    make(pg, kind)
    assert_named(pg, bad, expected, **options)


@pytest.mark.parametrize("first", ["a", "a\nb", "a\nb\nc\nd\ne", "a\rb", "a\r\nb\r\nc"])
@pytest.mark.parametrize("bad", [0, 1, 10])
def test_a_row_that_postgresql_refuses_is_named_whatever_line_ends_the_first_row_has(
    pg: SqlWorld, first: str, bad: int
) -> None:
    make(pg, "uuid")
    notes = [first, *["two\nlines\r"] * 10]
    data = pa.table(
        {
            "topic": ["clicks"] * 11,
            "partition": pa.array([4] * 11, pa.int32()),
            "offset": range(100, 111),
            "note": notes,
            "s": pa.array(["no uuid" if row == bad else None for row in range(11)]),
        }
    )
    reason = pg.reason_against(pg.sink("v"), data)
    assert f"the record at topic 'clicks', partition 4, offset {100 + bad}." in reason


def test_a_row_that_breaks_a_rule_is_named_with_its_record(sql_world: SqlWorld) -> None:
    make(sql_world, "bigint CHECK (s > 0)")
    assert_named(
        sql_world, one(-1, pa.int64()), "v_s_check" if sql_world.db.kind == "postgres" else "CHECK constraint failed"
    )


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
@pytest.mark.parametrize(
    ("kind", "trigger", "expected"),
    [
        ("text", "RAISE(ABORT, 'account is locked')", "account is locked"),
        ("text", "RAISE(ABORT, 'the box is full, or busy')", "the box is full, or busy"),
        ("text", "RAISE(ROLLBACK, 'account is locked')", "account is locked"),
        ("text NOT NULL", None, "NOT NULL constraint failed: v.locked_at"),
    ],
)
def test_a_row_that_sqlite_refuses_with_words_that_tell_of_a_lock_is_a_vote_against(
    sqlite: SqlWorld, kind: str, trigger: str | None, expected: str, options: dict[str, Any]
) -> None:
    sqlite.db.run(
        f'CREATE TABLE v (topic text, partition int, "offset" bigint, note text, locked_at {kind}, UNIQUE ("offset"))'
    )
    if trigger:
        when = "BEFORE INSERT ON v WHEN NEW.locked_at IS NULL"
        sqlite.db.run(f"CREATE TRIGGER locks {when} BEGIN SELECT {trigger}; END")
    data = bad_after_good(one(None, pa.string()))
    data = data.set_column(4, "locked_at", pa.array([*["open"] * GOOD, None]))
    reason = sqlite.reason_against(sqlite.sink("v", **options), data)
    assert "EPOCHS-SQL-ROW-REFUSED" in reason and expected in reason
    assert options or f"the record at topic 'clicks', partition 4, offset {100 + GOOD}" in reason


def test_without_the_record_the_keys_are_named_and_how_to_carry_it(sql_world: SqlWorld) -> None:
    sql_world.db.run("CREATE TABLE v (id bigint PRIMARY KEY, s text)")
    data = pa.table({"id": [7], "s": not_utf8(b"\xff")})
    reason = sql_world.reason_against(sql_world.sink("v", mode="upsert", keys=["id"]), data)
    assert "a row with id = 7 (its record is unknown: the rows have no columns topic, partition and offset)" in reason


def test_the_record_is_found_within_a_struct(sql_world: SqlWorld) -> None:
    sql_world.db.run("CREATE TABLE v (origin json, s text)")
    origin = pa.array([{"topic": "t", "partition": 1, "offset": 2}])
    reason = sql_world.reason_against(sql_world.sink("v"), pa.table({"origin": origin, "s": not_utf8(b"\xff")}))
    assert "the record at topic 't', partition 1, offset 2" in reason


def test_the_first_and_the_last_day_that_there_is_are_taken(sql_world: SqlWorld) -> None:
    sql_world.db.run("CREATE TABLE v (d date, t timestamptz, s json)")
    first, last = dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)
    data = pa.table(
        {
            "d": [first.date(), last.date(), None],
            "t": pa.array([first, last, None], pa.timestamp("us", "UTC")),
            "s": pa.array([[("k", first)], [("l", last)], None], pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
        }
    )
    sql_world.epoch(sql_world.sink("v"), transaction(1), None, data)
    said = "d::text" if sql_world.db.kind == "postgres" else "d"
    assert sql_world.db.run(f"SELECT {said} FROM v") == [("0001-01-01",), ("9999-12-31",), (None,)]


def test_numbers_of_the_kind_that_are_not_said_in_decimals_are_kept(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE v (f double precision, r real, n numeric)")
    huge = pa.array([10**37, -(10**37), None, 0], pa.decimal128(38, 0))
    given = [float("nan"), float("-inf"), -0.0, 5e-324]
    data = pa.table({"f": given, "r": pa.array([float("inf"), -0.0, 1e-45, None], pa.float32()), "n": huge})
    pg.epoch(pg.sink("v"), transaction(1), None, data)
    found = pg.db.run("SELECT f::text, r::text, n::text FROM v")
    assert found == [
        ("NaN", "Infinity", str(10**37)),
        ("-Infinity", "-0", str(-(10**37))),
        ("-0", "1e-45", None),
        ("5e-324", None, "0"),
    ]


def test_sqlite_keeps_a_nul_character(tmp_path: Path) -> None:
    world = SqlWorld(new_sqlite(tmp_path), tmp_path)
    world.db.run("CREATE TABLE v (s text)")
    world.epoch(world.sink("v"), transaction(1), None, pa.table({"s": ["a\0b"]}))
    assert world.db.run("SELECT s FROM v") == [("a\0b",)]


def test_after_the_records_are_kept_out_the_same_epoch_goes_in(sql_world: SqlWorld) -> None:
    make(sql_world, "text")
    sink, first = sql_world.sink("v"), attempt_of(transaction(1))
    data = bad_after_good(not_utf8(b"\xff"))
    assert sql_world.voted(sink, first, data).vote is VoteKind.VOTE_ABORT
    again = attempt_of(transaction(1, attempt=2))
    sink.commit(again, sql_world.staged(sink, again, data.slice(0, GOOD)), sql_world.env)
    assert sql_world.db.run("SELECT count(*) FROM v") == [(GOOD,)]


def bytes_key(size: int) -> bytes:
    """A key that no compression makes shorter."""
    return b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(size // 32 + 1))[:size]


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("size", [2_800, 20_000])
def test_a_key_that_is_too_long_for_its_index_is_a_vote_against_that_names_its_record(
    pg: SqlWorld, size: int, deletes: bool
) -> None:
    pg.db.run('CREATE TABLE orders (id bytea PRIMARY KEY, partition int, "offset" bigint, topic text)')
    sink = pg.sink(mode="upsert", keys=["id"], sequence_by="offset", delete_when="topic = ''")

    def rows(*keys: bytes) -> pa.Table:
        count, is_gone = len(keys), [deletes and len(key) == size for key in keys]
        places = {"partition": pa.array([3] * count, pa.int32()), "offset": pa.array(range(count), pa.int64())}
        return pa.table({"id": keys, **places, "topic": ["t"] * count, DELETED: is_gone})

    good, bad = (b"k", bytes_key(2_600)), bytes_key(size)
    reason = pg.reason_against(sink, rows(*good, bad))
    assert reason.startswith("EPOCHS-SQL-LIMIT") and "docs/sql.md, 'Long keys'" in reason
    assert "The row with the longest key: the record at topic 't', partition 3, offset 2." in reason
    pg.epoch(sink, transaction(1), None, rows(*good))
    assert pg.db.run("SELECT id FROM orders ORDER BY length(id)") == [(key,) for key in good]


def test_a_value_that_is_too_long_for_an_index_beside_the_key_blames_no_key(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE orders (id text PRIMARY KEY, note bytea)", "CREATE INDEX ON orders (note)")
    rows = pa.table({"id": ["a", "b"], "note": [b"n", bytes_key(2_800)]})
    reason = pg.reason_against(pg.sink(mode="upsert", keys=["id"]), rows)
    assert reason.startswith("EPOCHS-SQL-LIMIT") and "longest key" not in reason


def test_a_row_of_too_many_columns_blames_no_key_and_goes_in_as_json(pg: SqlWorld) -> None:
    names = [f"n{number}" for number in range(1_500)]
    pg.db.run(f"CREATE TABLE wide ({', '.join(f'{name} bigint' for name in names)})", "CREATE TABLE narrow (n jsonb)")
    reason = pg.reason_against(pg.sink("wide"), pa.table({name: pa.array([1 << 60]) for name in names}))
    assert "row is too big" in reason and "several of them as one of `jsonb`" in reason and "key" not in reason
    pg.epoch(pg.sink("narrow"), transaction(1), None, pa.table({"n": [json.dumps(dict.fromkeys(names, 1 << 60))]}))
    assert pg.db.run("SELECT count(*) FROM narrow, jsonb_each(n)") == [(1_500,)]
