"""Which column takes which of Spark's types, and which column to create for one."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.sql.postgres import Postgres
from airflow_epochs.sinks.sql.sqlite import Sqlite
from airflow_epochs.sinks.sql.table import SqlColumn, SqlTable, columns_for, sequence_column
from airflow_epochs.sinks.sql.types import postgres_takes, postgres_type, sqlite_affinity, sqlite_takes, sqlite_type

KINDS: list[Any] = [
    *("byte", "short", "integer", "long", "float", "double", "decimal(10,2)", "boolean", "string", "binary"),
    *("date", "timestamp", "timestamp_ntz", {"type": "array", "elementType": "long", "containsNull": True}),
]
ARRAY = {"type": "array", "elementType": "long", "containsNull": True}
DOC = {"type": "struct", "fields": [{"name": "n", "type": "long"}, {"name": "doc", "type": "variant"}]}
VARIANTS: dict[str, Any] = {
    "v": "variant",
    "v.doc": DOC,
    "v.element": {"type": "array", "elementType": "variant", "containsNull": True},
    "v.value.element.doc": {
        "type": "map",
        "keyType": "string",
        "valueType": {"type": "array", "elementType": DOC, "containsNull": True},
        "valueContainsNull": True,
    },
}
"""Its place in column ``v`` -> a type with a variant."""


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        ("bigint", "long", True),
        ("integer", "long", False),
        ("numeric", "long", True),
        ("smallint", "integer", False),
        ("smallint", "byte", True),
        ("double precision", "float", True),
        ("real", "double", False),
        ("numeric", "decimal(38,18)", True),
        ("numeric(12,4)", "decimal(10,2)", True),
        ("numeric(12,1)", "decimal(10,2)", False),
        ("numeric(9,2)", "decimal(10,2)", False),
        ("numeric(10)", "decimal(10,0)", True),
        ("numeric(10)", "decimal(10,1)", False),
        ("double precision", "decimal(10,2)", False),
        ("text", "string", True),
        ("character varying(20)", "string", True),
        ("jsonb", "string", True),
        ("uuid", "string", True),
        ("integer", "string", False),
        ("numeric(5,2)", "string", False),
        ("timestamp with time zone", "timestamp", True),
        ("timestamp(6) with time zone", "timestamp", True),
        ("timestamp(3) with time zone", "timestamp", False),
        ("timestamp(0) without time zone", "timestamp_ntz", False),
        ("timestamp without time zone", "timestamp", False),
        ("timestamp without time zone", "timestamp_ntz", True),
        ("date", "timestamp_ntz", False),
        ("jsonb", ARRAY, True),
        ("bigint[]", ARRAY, False),
        ("text", "void", False),
        ("jsonb", "variant", False),
    ],
)
def test_a_column_takes_what_cannot_change_in_it(column: str, kind: Any, expected: bool) -> None:
    assert postgres_takes(column, kind) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_is_created_for_a_type_takes_it(kind: Any) -> None:
    column = postgres_type(kind)
    assert column is not None
    assert postgres_takes(column, kind)
    declared = sqlite_type(kind)
    assert declared in ("INTEGER", "REAL", "TEXT", "BLOB")
    assert sqlite_takes(sqlite_affinity(declared, strict=False), kind)


@pytest.mark.parametrize("kind", ["void", *VARIANTS.values()], ids=str)
def test_no_column_is_created_for_what_has_no_type_there(kind: Any) -> None:
    assert (postgres_type(kind), sqlite_type(kind)) == (None, None)


def refused(kind: Any, column: SqlColumn, database: Postgres | Sqlite) -> Refused:
    """The error about a row with a column ``v`` of this type, for a table with this column."""
    table = SqlTable(schema="main", name="docs", columns=(column,), unique={}, problem=None)
    with pytest.raises(Refused) as error:
        columns_for(table, [{"name": "v", "type": kind}], database.takes, database.type_for)
    return error.value


def column(kind: str, affinity: str = "") -> SqlColumn:
    return SqlColumn(name="v", kind=kind, required=False, generated=False, affinity=affinity)


@pytest.mark.parametrize("place", VARIANTS)
@pytest.mark.parametrize(
    ("declared", "database", "then"),
    [
        (column("jsonb"), Postgres(), "."),
        (column("bytea"), Postgres(), ". Correct the transform, or declare in the table: 'v' text."),
        (column("TEXT", "TEXT"), Sqlite(), "."),
        (column("JSON", "NUMERIC"), Sqlite(), ". Correct the transform, or declare in the table: 'v' TEXT."),
    ],
)
def test_a_variant_anywhere_in_a_column_does_not_fit_and_the_error_tells_its_place_and_how_to_make_text_of_it(
    place: str, declared: SqlColumn, database: Postgres | Sqlite, then: str
) -> None:
    error = refused(VARIANTS[place], declared, database)
    assert error.code is codes.SQL_ROWS_UNFIT
    assert error.what == f"The rows do not fit table 'docs': {place!r} is a variant, which the sink cannot write."
    made = "Make text of column 'v' in the transform, by F.to_json('v')"
    assert error.remedy == f"{made}{then} Then clear the stage task."


def test_the_error_says_of_a_column_that_sqlite_has_without_a_type_that_it_has_none() -> None:
    error = refused("void", column("", "BLOB"), Sqlite())
    assert "column 'v' is void in the rows and without a type in the table." in error.what
    table = SqlTable(schema="main", name="docs", columns=(column("", "BLOB"),), unique={}, problem=None)
    fields = [{"name": "v", "type": "double"}]
    with pytest.raises(Refused, match="'v', which is double in the rows and without a type in table 'docs'"):
        sequence_column(table, "v", fields, Sqlite().sorts)


@pytest.mark.parametrize(
    ("column", "part"),
    [
        ("date[]", "date"),
        ("daterange", "date"),
        ("timestamp without time zone[]", "timestamp without time zone"),
        ("tsrange", "timestamp without time zone"),
        ("time without time zone[]", "time without time zone"),
        ("time(6) with time zone[]", "time(6) with time zone"),
    ],
)
def test_no_text_goes_where_its_date_or_its_zone_would_be_dropped(column: str, part: str) -> None:
    assert not postgres_takes(column, "string", [column, part])


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        *((column, "string", True) for column in ("TEXT", "varchar(10)", "CLOB", "", "BLOB")),
        *(
            (column, "string", False)
            for column in ("STRING", "UUID", "JSON", "DATE", "INTEGER", "POINT", "REAL", "ANY")
        ),
        ("DOUBLE", "double", True),
        ("NUMERIC", "double", True),
        ("TEXT", "double", False),
        ("TEXT", "long", True),
        ("DOUBLE", "long", False),
        ("DOUBLE", "integer", True),
        ("INTEGER", "long", True),
        ("BOOLEAN", "boolean", True),
        ("DATE", "date", True),
        ("DATETIME", "timestamp", True),
        ("JSON", ARRAY, True),
        ("bytea", "binary", True),
        ("TEXT", "decimal(38,10)", True),
        ("DECIMAL(10,2)", "decimal(15,2)", True),
        ("DECIMAL(20,2)", "decimal(16,2)", False),
        ("NUMERIC", "decimal(18,0)", True),
        ("NUMERIC", "decimal(19,0)", False),
        ("REAL", "decimal(18,0)", False),
        ("TEXT", "void", False),
    ],
)
def test_a_column_of_sqlite_takes_what_its_affinity_leaves_as_it_is(column: str, kind: Any, expected: bool) -> None:
    assert sqlite_takes(sqlite_affinity(column, strict=False), kind) == expected


def test_any_takes_texts_only_in_a_strict_table() -> None:
    assert sqlite_takes(sqlite_affinity("any", strict=True), "string")
    assert not sqlite_takes(sqlite_affinity("INTEGER", strict=True), "string")
