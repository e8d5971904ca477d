"""Upserts into SQLite whose rows get another type: the sink refuses what it could not compare, and loses nothing."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_epochs.errors import Corrupt
from tests.support.sql_upserts import SqlEpochs, changes
from tests.support.sql_world import SqlWorld

UTC = pa.timestamp("us", "UTC")
WALL = pa.timestamp("us")
CENTS = pa.decimal128(10, 2)
FINE = pa.decimal128(12, 4)
MIDNIGHT = dt.datetime(2026, 1, 1)


def test_a_key_with_other_decimals_than_the_rows_of_the_table_is_refused_and_the_cast_of_the_remedy_mends_it(
    sqlite: SqlWorld,
) -> None:
    epochs = SqlEpochs(sqlite, "id TEXT PRIMARY KEY, name TEXT, lsn INTEGER")
    epochs.takes(changes((Decimal("1.10"), "a", 10), (Decimal("2.10"), "b", 10), id=CENTS))
    epochs.refuses(
        changes((Decimal("1.1000"), "a2", 11), (Decimal("2.1000"), None, 12), id=FINE),
        *("'id' is decimal(12,4)", "'1.10'", "with the type that it had before"),
    )
    epochs.takes(changes((Decimal("1.10"), "a2", 11), (Decimal("2.10"), None, 12), id=CENTS))
    assert epochs.rows() == [("1.10", "a2")]


def documented(table: str, column: str, expression: str) -> str:
    """The statement of docs/sql.md that has this expression, for a column of a table."""
    page = (Path(__file__).parents[2] / "docs/sql.md").read_text()
    statements = re.findall(r"`(UPDATE orders SET price = [^`]+)`", page)
    (statement,) = [found for found in statements if expression in found]
    return str(statement).replace("orders", table).replace("price", column)


def tables_of(world: SqlWorld) -> list[str]:
    found = world.db.run("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 't_deleted_*'")
    return ["t", *(f'"{name}"' for (name,) in found)]


@pytest.mark.parametrize(
    ("was", "now", "old", "new", "expression"),
    [
        (CENTS, FINE, Decimal("1.10"), Decimal("1.1000"), "|| '00'"),
        (FINE, CENTS, Decimal("1.1000"), Decimal("1.10"), "length(price) - 2"),
        (WALL, UTC, MIDNIGHT, MIDNIGHT, "|| '+00'"),
        (UTC, WALL, MIDNIGHT, MIDNIGHT, "substr(price, 1, 26)"),
        (pa.int64(), pa.string(), 7, "7", "CAST(price AS TEXT)"),
        (pa.string(), pa.int64(), "7", 7, "CAST(price AS INTEGER)"),
        (pa.binary(), pa.string(), b"k", "k", "CAST(price AS TEXT)"),
    ],
    ids=["more decimals", "fewer decimals", "zone", "no zone", "text of a number", "number of a text", "text of bytes"],
)
def test_keys_of_another_type_count_as_equal_after_the_documented_statement(
    sqlite: SqlWorld, was: Any, now: Any, old: Any, new: Any, expression: str
) -> None:
    epochs = SqlEpochs(sqlite, "id PRIMARY KEY, name TEXT, lsn INTEGER")
    epochs.takes(changes((old, "a", 10), id=was))
    epochs.takes(changes((old, None, 20), id=was))
    epochs.refuses(changes((new, "late", 15), id=now), "docs/sql.md, 'When a type changes in SQLite'")
    for table in tables_of(sqlite) * 2:  # who types a statement twice spoils nothing
        sqlite.db.run(documented(table, "id", expression))
    epochs.takes(changes((new, "late", 15), id=now))
    assert epochs.rows() == []
    epochs.takes(changes((new, "newer", 20), id=now))
    assert [name for _, name in epochs.rows()] == ["newer"]


@pytest.mark.parametrize(
    ("column", "was", "now", "old", "new"),
    [
        ("", pa.string(), pa.int64(), "1", 2),
        ("", pa.int64(), pa.string(), 2, "1"),
        ("INTEGER", UTC, pa.int64(), MIDNIGHT, 2),
        ("TEXT", pa.binary(), pa.string(), b"1", "2"),
    ],
    ids=["number", "text", "number for a time", "text for bytes"],
)
@pytest.mark.parametrize("rehearse", [True, False])
def test_a_sequence_of_another_type_than_that_of_the_row_in_the_table_stops_the_epoch(
    sqlite: SqlWorld, column: str, was: Any, now: Any, old: Any, new: Any, rehearse: bool
) -> None:
    epochs = SqlEpochs(sqlite, f"id TEXT PRIMARY KEY, name TEXT, lsn {column}", rehearse=rehearse)
    epochs.takes(changes(("k", "a", old), lsn=was))
    data = changes(("k", "a2", new), lsn=now)
    if rehearse:
        epochs.refuses(data, "'lsn'", "newer rows as older")
    else:
        with pytest.raises(Corrupt, match=r"'lsn'.*newer rows as older") as stopped:
            epochs.votes(data)
        assert stopped.value.remedy.startswith("While no task runs, UPDATE column")
    assert epochs.rows() == [("k", "a")]


def test_a_sequence_of_another_type_than_that_of_the_deletion_is_refused(sqlite: SqlWorld) -> None:
    epochs = SqlEpochs(sqlite, "id TEXT PRIMARY KEY, name TEXT, lsn")
    epochs.takes(changes(("k", "a", "1"), lsn=pa.string()))
    epochs.takes(changes(("k", None, "2"), lsn=pa.string()))
    epochs.refuses(changes(("k", "again", 3)), "its notes of deleted keys")


def test_a_sequence_of_another_type_is_taken_where_no_row_is_compared_with_an_earlier_one(sqlite: SqlWorld) -> None:
    epochs = SqlEpochs(sqlite, "id TEXT PRIMARY KEY, name TEXT, lsn")
    epochs.takes(changes(("k", "a", "1"), lsn=pa.string()))
    epochs.takes(changes(("other", "b", 3)))
    assert epochs.rows() == [("k", "a"), ("other", "b")]


def test_the_second_column_of_a_key_is_looked_at_too(sqlite: SqlWorld) -> None:
    epochs = SqlEpochs(sqlite, "id TEXT, name TEXT, lsn, UNIQUE (id, lsn)", keys=["id", "lsn"], sequence_by=None)
    epochs.takes(changes(("k", "a", Decimal("1.10")), lsn=CENTS))
    epochs.refuses(changes(("k", "b", Decimal("1.1000")), lsn=FINE), "'lsn' is decimal(12,4)")


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    [
        ("TEXT", CENTS, ["0.00", "-1.10", "12345678.90"]),
        ("", pa.decimal128(5, 0), ["0", "-1", "12345"]),
        ("NUMERIC", CENTS, ["0.00", "-1.10", "2.00"]),
        ("TEXT", pa.int64(), [0, -1, 2**62]),
        ("INTEGER", pa.int64(), [0, -1, 2**62]),
        ("", pa.float64(), [0.5, -1.0, 1e300]),
        ("TEXT", pa.string(), ["", "1.10", "2026-01-01 00:00:00.000000+00"]),
        ("", pa.binary(), [b"", b"1.10", b"\x00"]),
        ("TEXT", UTC, [dt.datetime(1, 1, 1), MIDNIGHT]),
        ("DATETIME", WALL, [dt.datetime(1, 1, 1), MIDNIGHT]),
        ("DATE", pa.date32(), [dt.date(1, 1, 1), MIDNIGHT.date()]),
        ("BOOLEAN", pa.bool_(), [True, False]),
    ],
)
def test_keys_of_the_same_type_are_taken_again(
    sqlite: SqlWorld, column: str, kind: pa.DataType, values: list[Any]
) -> None:
    ids = list(map(Decimal, values)) if pa.types.is_decimal(kind) else values
    epochs = SqlEpochs(sqlite, f"id {column} PRIMARY KEY, name TEXT, lsn INTEGER")
    for lsn in (1, 2):
        epochs.takes(changes(*((each, str(lsn), lsn) for each in ids), id=kind))
    assert [name for _, name in epochs.rows()] == ["2"] * len(ids)


@pytest.mark.parametrize("there", ["2025-12-31 23:59:59", "2025-12-31 23:59:59.000000", "2025-12-31T23:59:59Z"])
@pytest.mark.parametrize("kind", [UTC, WALL], ids=["zone", "no zone"])
def test_times_that_another_program_spelled_in_the_table_are_compared_as_before(
    sqlite: SqlWorld, there: str, kind: pa.DataType
) -> None:
    epochs = SqlEpochs(sqlite, "id TEXT PRIMARY KEY, name TEXT, lsn TEXT")
    sqlite.db.run(f"INSERT INTO t VALUES ('k', 'a', '{there}')")
    epochs.takes(changes(("k", "b", MIDNIGHT), lsn=kind))
    epochs.takes(changes(("k", "older", MIDNIGHT - dt.timedelta(days=2)), lsn=kind))
    assert epochs.rows() == [("k", "b")]


@pytest.mark.parametrize(
    ("column", "there", "kind", "ours"),
    [
        ("TEXT", "2025-12-31 23:59:59.000000", UTC, MIDNIGHT),
        ("TEXT", "2025-12-31", WALL, MIDNIGHT),
        ("TEXT", "3.5", CENTS, Decimal("1.10")),
        ("", 7, pa.string(), "8"),
    ],
    ids=["a time", "a day", "a decimal", "a number"],
)
def test_keys_in_another_form_that_no_row_of_the_epoch_means_are_left_alone(
    sqlite: SqlWorld, column: str, there: object, kind: pa.DataType, ours: object
) -> None:
    epochs = SqlEpochs(sqlite, f"id {column} PRIMARY KEY, name TEXT, lsn INTEGER")
    sqlite.db.run(f"INSERT INTO t VALUES ({there!r}, 'theirs', 1)")
    for lsn in (1, 2):
        epochs.takes(changes((ours, str(lsn), lsn), id=kind))
    assert sorted(name for _, name in epochs.rows()) == ["2", "theirs"]


@pytest.mark.parametrize(
    ("was", "now", "old", "new", "expression"),
    [
        (CENTS, FINE, Decimal("1.10"), Decimal("2.5000"), "|| '00'"),
        (FINE, CENTS, Decimal("1.1000"), Decimal("2.50"), "length(price) - 2"),
        (WALL, UTC, MIDNIGHT, MIDNIGHT + dt.timedelta(days=1), "|| '+00'"),
        (UTC, WALL, MIDNIGHT, MIDNIGHT + dt.timedelta(days=1), "substr(price, 1, 26)"),
    ],
    ids=["more decimals", "fewer decimals", "zone", "no zone"],
)
def test_the_documented_statement_leaves_keys_alone_that_have_the_new_form_already(
    sqlite: SqlWorld, was: Any, now: Any, old: Any, new: Any, expression: str
) -> None:
    epochs = SqlEpochs(sqlite, "id TEXT PRIMARY KEY, name TEXT, lsn INTEGER")
    epochs.takes(changes((old, "a", 1), id=was))
    epochs.takes(changes((new, "b", 1), id=now))
    sqlite.db.run(documented("t", "id", expression))
    epochs.takes(changes((old, "a2", 2), (new, "b2", 2), id=now))
    assert sorted(name for _, name in epochs.rows()) == ["a2", "b2"]
