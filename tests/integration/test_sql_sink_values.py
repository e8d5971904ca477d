"""Values on their way into a real PostgreSQL and SQLite: each comes back as it was."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.delta_world import transaction
from tests.support.sql_world import SqlWorld, new_sqlite

_TEXTS = ["", 'a"b,\n\\.\nc\\N', "\\.", "Zürich 🚲"]
_UTC = dt.timezone.utc
_VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "f": (pa.float64(), [0.1, float("inf"), -1e300, None]),
    "d": (pa.decimal128(38, 10), [decimal.Decimal("-12345678901234567890.0123456789"), decimal.Decimal(0), None, None]),
    "b": (pa.bool_(), [True, False, None, None]),
    "s": (pa.string(), _TEXTS),
    "x": (pa.binary(), [b"", b"\x00\xff\\", None, b"'"]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None, dt.date(1582, 10, 4)]),
    "at": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2026, 3, 29, 1, 0, 0, 1, _UTC), dt.datetime(1, 1, 1, tzinfo=_UTC), None, None],
    ),
    "wall": (
        pa.timestamp("us"),
        [dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1969, 12, 31), None, None],
    ),
    "tags": (pa.list_(pa.string()), [["a", None], [], None, ['"']]),
    "m": (pa.map_(pa.string(), pa.decimal128(4, 2)), [[("k", decimal.Decimal("1.50"))], [], None, None]),
}


def values() -> pa.Table:
    return pa.table({name: pa.array(given, kind) for name, (kind, given) in _VALUES.items()})


def test_values_come_back_from_postgresql_as_they_were(pg: SqlWorld) -> None:
    pg.db.run(
        "CREATE TABLE v (f double precision, d numeric, b boolean, s text, x bytea, day date, at timestamptz,"
        " wall timestamp, tags jsonb, m jsonb)"
    )
    pg.epoch(pg.sink("v"), transaction(1), None, values())
    names = [*_VALUES][:8]
    found = dict(zip(names, zip(*pg.db.run(f"SELECT {', '.join(names)} FROM v"), strict=True), strict=True))
    assert found == {name: tuple(_VALUES[name][1]) for name in names}
    assert pg.db.run("SELECT tags::text, m::text FROM v") == [
        ('["a", null]', '{"k": 1.50}'),
        ("[]", "{}"),
        (None, None),
        ('["\\""]', None),
    ]


def test_values_come_back_from_sqlite_as_they_were_or_as_text(tmp_path: Path) -> None:
    world = SqlWorld(new_sqlite(tmp_path), tmp_path)
    sink = world.sink("v")
    reason = world.reason_against(sink, values())
    (statement,) = re.findall(r"`(CREATE TABLE [^`]*)`", reason)
    world.db.run(statement)
    world.epoch(sink, transaction(1), None, values())
    found = world.db.run("SELECT f, b, s, x, day, at, wall, d, tags, m FROM v")
    assert found[0] == (
        0.1,
        1,
        "",
        b"",
        "0001-01-01",
        "2026-03-29 01:00:00.000001+00",
        "9999-12-31 23:59:59.999999",
        "-12345678901234567890.0123456789",
        '["a",null]',
        '{"k":1.50}',
    )
    assert [row[2] for row in found] == _TEXTS
    assert found[3][:2] == (None, None)


def test_nested_values_that_have_no_json_are_a_vote_against(sql_world: SqlWorld) -> None:
    sql_world.db.run("CREATE TABLE v (m json)")
    keys = pa.array([[({"k": 1}, 1)]], pa.map_(pa.struct([("k", pa.int64())]), pa.int64()))
    assert "cannot be written as JSON" in sql_world.reason_against(sql_world.sink("v"), pa.table({"m": keys}))


def test_a_float_is_the_same_number_in_columns_of_either_width(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE v (narrow real, wide double precision)")
    given = pa.array([0.1, 3.4e38, 1e-45, None], pa.float32())
    pg.epoch(pg.sink("v"), transaction(1), None, pa.table({"narrow": given, "wide": given}))
    assert [wide for _, wide in pg.db.run("SELECT narrow, wide FROM v")] == given.to_pylist()
    assert pg.db.run("SELECT count(*) FROM v WHERE narrow IS DISTINCT FROM wide") == [(0,)]


def test_a_row_of_one_null_is_a_row(sql_world: SqlWorld) -> None:
    sql_world.db.run("CREATE TABLE v (s text)")
    sql_world.epoch(sql_world.sink("v"), transaction(1), None, pa.table({"s": ["a", None, "", None]}))
    assert sorted(sql_world.db.run("SELECT s FROM v"), key=repr) == [("",), ("a",), (None,), (None,)]


def test_small_decimals_are_written_out_in_sqlite(tmp_path: Path) -> None:
    world = SqlWorld(new_sqlite(tmp_path), tmp_path)
    world.db.run("CREATE TABLE v (d text)")
    given = pa.array([decimal.Decimal("0.00000001"), decimal.Decimal("-0.0000001"), None], pa.decimal128(20, 8))
    world.epoch(world.sink("v"), transaction(1), None, pa.table({"d": given}))
    assert world.db.run("SELECT d FROM v") == [("0.00000001",), ("-0.00000010",), (None,)]


def test_nan_is_nan_in_postgresql(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE v (f double precision)")
    pg.epoch(pg.sink("v"), transaction(1), None, pa.table({"f": [float("nan")]}))
    assert str(pg.db.run("SELECT f FROM v")[0][0]) == "nan"


def test_text_goes_where_postgresql_reads_a_type_from_text(pg: SqlWorld) -> None:
    pg.db.run(
        "CREATE TYPE mood AS ENUM ('ok')", "CREATE DOMAIN code AS varchar(3)", "CREATE TABLE v (a mood, b uuid, c code)"
    )
    given = pa.table({"a": ["ok"], "b": ["00000000-0000-0000-0000-000000000001"], "c": ["abc"]})
    pg.epoch(pg.sink("v"), transaction(1), None, given)
    assert pg.db.run("SELECT a::text, b::text, c FROM v") == [("ok", "00000000-0000-0000-0000-000000000001", "abc")]


@pytest.mark.parametrize("column", ["STRING", "UUID", "DATE", "NUMERIC", "INTEGER"])
def test_a_column_in_which_sqlite_makes_numbers_of_texts_is_a_vote_against(tmp_path: Path, column: str) -> None:
    world = SqlWorld(new_sqlite(tmp_path), tmp_path)
    world.db.run(f"CREATE TABLE v (sku {column} PRIMARY KEY)")
    sink, data = world.sink("v", mode="upsert", keys=["sku"]), pa.table({"sku": ["007", "7", "1e5"]})
    reason = world.reason_against(sink, data)
    assert f"column 'sku' is string in the rows and {column} in the table" in reason
    assert "declare in the table: 'sku' TEXT" in reason
    world.db.run("DROP TABLE v", "CREATE TABLE v (sku TEXT PRIMARY KEY)")
    world.epoch(sink, transaction(1), None, data)
    assert sorted(world.db.run("SELECT sku FROM v")) == [("007",), ("1e5",), ("7",)]


def test_any_column_of_a_strict_table_of_sqlite_keeps_texts_or_refuses_them(tmp_path: Path) -> None:
    world = SqlWorld(new_sqlite(tmp_path), tmp_path)
    world.db.run("CREATE TABLE v (a ANY, n INTEGER) STRICT")
    texts = pa.table({"a": ["007"]})
    assert "column 'n' is string in the rows" in world.reason_against(
        world.sink("v"), texts.append_column("n", [["7"]])
    )
    world.epoch(world.sink("v"), transaction(1), None, texts)
    assert world.db.run("SELECT a FROM v") == [("007",)]


def test_numbers_are_the_same_in_whatever_column_of_sqlite_takes_them(tmp_path: Path) -> None:
    world = SqlWorld(new_sqlite(tmp_path), tmp_path)
    world.db.run("CREATE TABLE v (d DECIMAL(15,2), r REAL, w NUMERIC, f NUMERIC, i DOUBLE, n BIGINT, b BOOLEAN)")
    money = pa.array([decimal.Decimal("9999999999999.97"), decimal.Decimal("-1.10")], pa.decimal128(15, 2))
    whole = pa.array([10**18 - 1, -1], pa.decimal128(18, 0))
    data = pa.table({"d": money, "r": money, "w": whole, "f": [0.1 + 0.2, 2.0], "n": [2**63 - 1, -(2**63)]})
    data = data.append_column("i", pa.array([2**31 - 1, 1], pa.int32())).append_column("b", [[True, False]])
    world.epoch(world.sink("v"), transaction(1), None, data)
    assert world.db.run("SELECT printf('%.2f', d), printf('%.2f', r), w, f, i, n, b FROM v") == [
        ("9999999999999.97", "9999999999999.97", 10**18 - 1, 0.1 + 0.2, 2**31 - 1, 2**63 - 1, 1),
        ("-1.10", "-1.10", -1, 2.0, 1, -(2**63), 0),
    ]


@pytest.mark.parametrize("kind", ["character varying(3)", "character(3)"])
def test_a_text_of_any_length_is_sound_for_sqlite_which_does_not_look_at_the_size(sqlite: SqlWorld, kind: str) -> None:
    """What ``fit`` says decides which rows go to the dead letters."""
    sqlite.db.run(f"CREATE TABLE v (s {kind})")
    sink = sqlite.sink("v")
    assert "longest" not in {name for name, value in sink.fit("orders", sqlite.env).items() if value}
    sqlite.epoch(sink, transaction(1), None, pa.table({"s": ["abcdef"]}))
    assert sqlite.db.run("SELECT s FROM v") == [("abcdef",)]


def test_a_text_that_is_too_long_for_postgresql_is_not_sound(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE v (s character varying(3))")
    assert pg.sink("v").fit("orders", pg.env)["longest"] == {"s": 3}
