"""What may change in a table between stage and commit, and what may not; which rows fit which table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_epochs.delta.shape import TableShape
from airflow_epochs.spark.driver.delta import schema as delta_schema
from airflow_epochs.transforms import fit


def field(name: str, kind: Any = "long", *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


MANIFESTS = "delta.compatibility.symlinkFormatManifest.enabled"
STAGED = TableShape(
    id="t",
    schema=struct(field("id", nullable=False), field("name", "string")),
    partition_by=("name",),
    properties={"delta.constraints.a": "id > 0", "delta.columnMapping.maxColumnId": "2"},
    min_reader=1,
    min_writer=3,
    reader_features=None,
    writer_features=None,
)


def with_fields(*fields: dict[str, Any]) -> TableShape:
    return replace(STAGED, schema=struct(*fields))


@pytest.mark.parametrize(
    "now",
    [
        STAGED,
        with_fields(*STAGED.schema["fields"], field("more")),
        with_fields(field("first"), *STAGED.schema["fields"]),
        replace(STAGED, properties={**STAGED.properties, "delta.appendOnly": "true", "mine": "x"}),
        replace(STAGED, properties={**STAGED.properties, "delta.columnMapping.maxColumnId": "3"}),
    ],
)
def test_nullable_columns_and_harmless_properties_may_be_added(now: TableShape) -> None:
    assert now.difference_for(STAGED.for_staging()) is None


@pytest.mark.parametrize(
    ("now", "what"),
    [
        (with_fields(*STAGED.schema["fields"], field("more", nullable=False)), "new column 'more' is NOT NULL"),
        (with_fields(STAGED.schema["fields"][0]), "column 'name' is gone"),
        (with_fields(field("id", "string", nullable=False), STAGED.schema["fields"][1]), "column 'id' was changed"),
        (with_fields(field("id"), STAGED.schema["fields"][1]), "column 'id' was changed"),
        (
            with_fields(
                STAGED.schema["fields"][0], field("name", "string") | {"metadata": {"delta.columnMapping.id": 2}}
            ),
            "column 'name' was changed",
        ),
        (replace(STAGED, partition_by=()), "partitioned by"),
        (replace(STAGED, properties={}), "delta.constraints.a"),
        (replace(STAGED, properties={**STAGED.properties, "delta.constraints.b": "id < 9"}), "delta.constraints.b"),
        (replace(STAGED, properties={**STAGED.properties, "delta.columnMapping.mode": "name"}), "columnMapping.mode"),
    ],
)
def test_whatever_else_changed_is_named(now: TableShape, what: str) -> None:
    assert what in (now.difference_for(STAGED.for_staging()) or "")


@pytest.mark.parametrize(
    ("reader", "writer", "features", "refused"),
    [
        (1, 2, None, []),
        (2, 5, None, []),
        (2, 6, None, ["writer version 6"]),
        (1, 8, None, ["writer version 8"]),
        (3, 7, ("deletionVectors", "timestampNtz", "columnMapping", "v2Checkpoint"), []),
        (3, 7, ("deletionVectors", "rowTracking", "domainMetadata"), ["domainMetadata", "rowTracking"]),
        (1, 7, ("neverHeardOf",), ["neverHeardOf"]),
    ],
)
def test_features_that_deltalake_refuses_are_known_beforehand(
    reader: int, writer: int, features: tuple[str, ...] | None, refused: list[str]
) -> None:
    shape = replace(STAGED, min_reader=reader, min_writer=writer, writer_features=features)
    assert shape.refused_features == refused


@pytest.mark.parametrize(
    ("properties", "refused"),
    [
        ({MANIFESTS: "true"}, [f"{MANIFESTS}=true"]),
        ({MANIFESTS: "TRUE"}, [f"{MANIFESTS}=TRUE"]),
        ({MANIFESTS: "false"}, []),
        ({"delta.universalFormat.enabledFormats": "hudi"}, ["delta.universalFormat.enabledFormats=hudi"]),
        ({"delta.universalFormat.enabledFormats": ""}, []),
    ],
)
def test_copies_for_other_readers_that_only_a_commit_of_spark_writes_leave_the_table_to_spark(
    properties: dict[str, str], refused: list[str]
) -> None:
    assert replace(STAGED, properties=properties).refused_features == refused


def test_a_shape_survives_the_way_through_a_log() -> None:
    protocol, metadata = STAGED.actions("t", 1)
    assert TableShape.of_actions(protocol["protocol"], metadata["metaData"]) == STAGED


ARRAY = {"type": "array", "elementType": "long", "containsNull": True}
MAP = {"type": "map", "keyType": "string", "valueType": struct(field("a")), "valueContainsNull": True}
TABLE = struct(
    field("id", nullable=False),
    field("Name", "string"),
    field("tags", ARRAY),
    field("props", MAP),
    field("day", "date", nullable=False, **{delta_schema.GENERATED: "CAST(at AS DATE)"}),
    field("kind", "string", nullable=False, **{delta_schema.DEFAULT: "'x'"}),
    field("key", nullable=False, **{delta_schema.IDENTITY: 1}),
    field("own", nullable=False, **{delta_schema.IDENTITY: 1, delta_schema.EXPLICIT_IDENTITY: True}),
)


@pytest.mark.parametrize(
    "rows",
    [
        struct(field("id")),
        struct(field("NAME", "string"), field("ID", nullable=False)),
        struct(field("id"), field("tags", {**ARRAY, "containsNull": False})),
        struct(field("id"), field("props", {**MAP, "valueType": struct(field("A", nullable=False, x=1))})),
        struct(field("id"), field("own")),
    ],
)
def test_rows_fit_whatever_the_case_order_and_nullability_of_their_columns(rows: dict[str, Any]) -> None:
    assert delta_schema.problems(TABLE, rows) == []


@pytest.mark.parametrize(
    ("kind", "wider"),
    [
        ("byte", "short"),
        ("integer", "long"),
        ("integer", "double"),
        ("float", "double"),
        ("date", "timestamp_ntz"),
        ("decimal(6,2)", "decimal(12,4)"),
        ("decimal(6,2)", "decimal(7,2)"),
        ("integer", "decimal(10,0)"),
        ("long", "decimal(20,1)"),
    ],
)
def test_a_wider_type_has_all_values_of_the_one_that_it_takes_the_place_of(kind: str, wider: str) -> None:
    assert fit.widens(kind, wider)
    assert not fit.widens(wider, kind)


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("long", "long"),
        ("long", "double"),
        ("integer", "float"),
        ("integer", "string"),
        ("date", "timestamp"),
        ("decimal(6,2)", "decimal(6,3)"),
        ("decimal(6,2)", "decimal(7,4)"),
        ("decimal(6,2)", "long"),
        ("long", "decimal(19,1)"),
        ("long", None),
        (ARRAY, {**ARRAY, "elementType": "double"}),
    ],
    ids=str,
)
def test_a_type_that_lacks_values_of_another_one_or_means_others_is_not_wider(kind: Any, other: Any) -> None:
    assert not fit.widens(kind, other)


def test_wider_types_are_taken_over_at_every_depth_and_nothing_else_is() -> None:
    def nested(a: str, element: str, value: str, *more: dict[str, Any]) -> dict[str, Any]:
        array = {"type": "array", "elementType": struct(field("b", element)), "containsNull": True}
        return struct(field("A", a), field("l", array), field("m", {**MAP, "valueType": value}), *more)

    rows = nested("integer", "integer", "long")
    assert delta_schema.widened(rows, nested("long", "double", "double", field("new"))) == nested(
        "long", "double", "long"
    )
    assert delta_schema.widened(rows, None) == rows
    assert delta_schema.widened(rows, ARRAY) == rows
    assert delta_schema.widened(struct(field("A", "integer")), struct(field("a"))) == struct(field("A"))
    assert delta_schema.widened("integer", "long") == "long"
    assert delta_schema.widened("long", "integer") == "long"


def test_text_as_spark_connect_may_spell_it_in_a_log_is_text_for_rows_at_every_depth() -> None:
    def texts(kind: str) -> dict[str, Any]:
        array = {**ARRAY, "elementType": struct(field("deep", kind))}
        return struct(field("a", kind), field("m", {**MAP, "keyType": kind, "valueType": array}), field("e", struct()))

    spelt = texts(delta_schema.PLAIN_TEXT)
    assert delta_schema.told_by_spark(spelt) == texts("string")
    assert delta_schema.problems(delta_schema.told_by_spark(spelt), texts("string")) == []


@pytest.mark.parametrize(
    ("rows", "problems"),
    [
        (struct(field("name", "string")), ["column 'id' is NOT NULL in the table and missing in the rows"]),
        (struct(field("id", "integer")), ["column 'id' is integer in the rows and long in the table"]),
        (struct(field("id"), field("more", "date")), ["column 'more' (date) is not in the table"]),
        (
            struct(field("id"), field("tags", {**ARRAY, "elementType": "string"}), field("x", MAP)),
            [
                "column 'tags' is array<string> in the rows and array<long> in the table",
                "column 'x' (map<string, struct<a: long>>) is not in the table",
            ],
        ),
        (
            struct(field("id"), field("props", {**MAP, "valueType": struct(field("a"), field("b"))})),
            [
                "column 'props' is map<string, struct<a: long, b: long>> in the rows and "
                "map<string, struct<a: long>> in the table"
            ],
        ),
        (
            struct(field("id"), field("key")),
            ["column 'key' is an identity column. Delta generates its values, so the rows must not have it"],
        ),
    ],
)
def test_every_misfit_is_named(rows: dict[str, Any], problems: list[str]) -> None:
    assert delta_schema.problems(TABLE, rows) == problems


def test_sql_names_an_instant_so_on_every_server_and_digests_keep_the_word_that_they_had() -> None:
    kind = {"type": "array", "elementType": "timestamp", "containsNull": True}
    assert delta_schema.sql_type(kind) == "array<timestamp_ltz>"
    assert delta_schema.told_type(kind) == "array<timestamp>"
    assert delta_schema.sql_columns({"fields": [field("at", "timestamp")]}) == "`at` timestamp_ltz"


def test_a_partition_column_must_be_in_the_rows_unless_delta_gives_it_a_value() -> None:
    computed = {**field("year", "integer"), "metadata": {delta_schema.GENERATED: "year(at)"}}
    table = struct(field("id"), field("Day", "date"), computed)
    assert delta_schema.problems(table, struct(field("id")), partition_by=["day", "year"]) == [
        "column 'Day' partitions the table and is missing in the rows"
    ]
    assert delta_schema.problems(table, struct(field("id"))) == []


def test_a_field_that_is_never_null_must_be_in_the_rows_whose_struct_may_be_null() -> None:
    table = struct(field("id"), field("s", struct(field("a"), field("b", struct(field("c", nullable=False))))))
    assert delta_schema.problems(table, struct(field("id"))) == [
        "column 's.b.c' is NOT NULL in the table and missing in the rows"
    ]
