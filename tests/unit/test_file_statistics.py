"""Statistics out of a Parquet file's footer: a bound that is told holds for every row; one that may not is left out."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from airflow_epochs.delta.log import StagedFile
from airflow_epochs.delta.shape import TableShape
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.staged import footers
from airflow_epochs.staged.file_statistics import INDEXED, NAMED, statistics_of
from airflow_epochs.staged.staging import Staging
from airflow_epochs.storage.files import open_files

UTC = timezone.utc


def field(name: str, kind: Any, **metadata: str) -> JsonDict:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def struct(*fields: JsonDict) -> JsonDict:
    return {"type": "struct", "fields": list(fields)}


def shape_of(*fields: JsonDict, partition_by: tuple[str, ...] = (), **properties: str) -> TableShape:
    return TableShape(
        id="t",
        schema=struct(*fields),
        partition_by=partition_by,
        properties=properties,
        min_reader=1,
        min_writer=2,
        reader_features=None,
        writer_features=None,
    )


def parquet(data: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(data, file, **options)
    return file.getvalue()


def told(data: pa.Table, shape: TableShape, **options: Any) -> JsonDict:
    """The statistics of a file with this data. Numbers with a point are Decimals, as the log has them."""
    footer = pq.read_metadata(io.BytesIO(parquet(data, **options)))
    found: JsonDict = json.loads(statistics_of(footer, shape), parse_float=Decimal)
    return found


def bounds(kind: str, values: list[Any], type_: pa.DataType, **options: Any) -> tuple[Any, Any]:
    stats = told(pa.table({"c": pa.array(values, type_)}), shape_of(field("c", kind)), **options)
    assert stats["nullCount"] == {"c": values.count(None)}
    return stats["minValues"].get("c"), stats["maxValues"].get("c")


NEITHER = (None, None)
MICROS = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("kind", "type_", "values", "expected"),
    [
        ("byte", pa.int8(), [3, -128, None], (-128, 3)),
        ("long", pa.int64(), [2**63 - 1, -(2**63)], (-(2**63), 2**63 - 1)),
        ("double", pa.float64(), [0.5, -1.5], (Decimal("-1.5"), None)),
        ("double", pa.float64(), [0.0, -0.0], (Decimal(0), None)),
        ("double", pa.float64(), [1.0, math.inf], (Decimal(1), None)),
        ("float", pa.float32(), [-math.inf, 1.0], NEITHER),
        ("decimal(9,2)", pa.decimal128(9, 2), [Decimal("-1.05"), Decimal("7.00")], (Decimal("-1.05"), Decimal("7.00"))),
        (
            "decimal(38,10)",
            pa.decimal128(38, 10),
            [Decimal("-1234567890123456789012345678.0123456789"), Decimal("9" * 28 + ".0000000001")],
            (Decimal("-1234567890123456789012345678.0123456789"), Decimal("9" * 28 + ".0000000001")),
        ),
        ("date", pa.date32(), [date(999, 1, 2), date(9999, 12, 31)], ("0999-01-02", "9999-12-31")),
        ("date", pa.date32(), [0, 3_000_000], ("1970-01-01", None)),
        (
            "timestamp",
            MICROS,
            [datetime(2024, 1, 1, 0, 0, 0, 1, UTC), datetime(2024, 1, 2, 0, 0, 0, 1, UTC)],
            ("2024-01-01T00:00:00.000Z", "2024-01-02T00:00:00.001Z"),
        ),
        ("timestamp", MICROS, [-1, 2**62], ("1969-12-31T23:59:59.999Z", None)),
        ("timestamp_ntz", pa.timestamp("us"), [datetime(1, 1, 1)], ("0001-01-01T00:00:00.000",) * 2),
        ("string", pa.string(), ["b", "a", None, "ä"], ("a", "ä")),
        ("string", pa.string(), ["x" * 40], ("x" * 32, "x" * 32 + "\U0010ffff")),
        ("string", pa.string(), ["x" * 32], ("x" * 32,) * 2),
        ("string", pa.string(), ["x" * 32 + "\U0010ffff" * 3], ("x" * 32, "x" * 32 + "\U0010ffff" * 3)),
        ("string", pa.string(), ["x" * 32 + "\U0010ffffy"], ("x" * 32, "x" * 32 + "\U0010ffff" * 2)),
        ("string", pa.binary(), [b"\xff", b"a"], ("a", None)),
        ("string", pa.string(), ["", "\x00"], ("", "\x00")),
        ("boolean", pa.bool_(), [True, False], NEITHER),
        ("binary", pa.binary(), [b"a"], NEITHER),
        ("string", pa.string(), [None, None], NEITHER),
        ("timestamp", pa.timestamp("ms", "UTC"), [1], NEITHER),
        ("long", pa.float64(), [1.0], NEITHER),
    ],
    ids=str,
)
def test_bounds_are_exact_or_wider_or_left_out(kind: str, type_: pa.DataType, values: list[Any], expected: Any) -> None:
    assert bounds(kind, values, type_) == expected


def test_a_value_that_is_no_number_and_in_spark_the_greatest_is_not_above_any_bound() -> None:
    assert bounds("double", [1.0, math.nan], pa.float64()) == (Decimal(1), None)
    assert bounds("double", [math.nan, math.nan], pa.float64()) == NEITHER


def test_bounds_are_those_of_all_row_groups_and_are_left_out_if_one_has_none() -> None:
    assert bounds("decimal(20,1)", [Decimal("0.1"), Decimal("-0.1"), None], pa.decimal128(20, 1), row_group_size=1) == (
        Decimal("-0.1"),
        Decimal("0.1"),
    )
    assert bounds("string", ["b", None, "a"], pa.string(), row_group_size=1) == ("a", "b")
    too_long_to_keep = "z" * 10_000
    assert bounds("string", ["b", None, too_long_to_keep], pa.string(), row_group_size=1) == NEITHER
    data = pa.table({"c": [1, 2]})
    assert told(data, shape_of(field("c", "long")), write_statistics=False) == {
        "numRecords": 2,
        "minValues": {},
        "maxValues": {},
        "nullCount": {},
    }


def test_fields_of_structs_count_and_those_of_lists_and_maps_do_not() -> None:
    shape = shape_of(
        field("s", struct(field("a", "integer"), field("t", struct(field("b.c", "string"))))),
        field("l", {"type": "array", "elementType": "integer", "containsNull": True}),
        field("m", {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True}),
    )
    data = pa.table(
        {
            "s": pa.array(
                [{"a": 1, "t": {"b.c": "x"}}, {"a": None, "t": None}, None],
                pa.struct([("a", pa.int32()), ("t", pa.struct([("b.c", pa.string())]))]),
            ),
            "l": pa.array([[1], None, []], pa.list_(pa.int32())),
            "m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        }
    )
    assert told(data, shape) == {
        "numRecords": 3,
        "minValues": {"s": {"a": 1, "t": {"b.c": "x"}}},
        "maxValues": {"s": {"a": 1, "t": {"b.c": "x"}}},
        "nullCount": {"s": {"a": 2, "t": {"b.c": 2}}},
    }


def test_a_name_that_stands_for_two_columns_of_the_file_gets_no_statistics() -> None:
    shape = shape_of(field("a", struct(field("b", "integer"))), field("a.b", "integer"), field("c", "integer"))
    data = pa.table({"a": [{"b": 1}], "a.b": pa.array([9], pa.int32()), "c": pa.array([5], pa.int32())})
    assert told(data, shape)["minValues"] == {"c": 5}


def test_columns_are_known_by_the_names_that_the_files_have() -> None:
    shape = shape_of(field("c", "long", **{"delta.columnMapping.physicalName": "col-1"}))
    assert told(pa.table({"col-1": [7]}), shape)["minValues"] == {"col-1": 7}


def test_a_column_that_is_compared_by_other_rules_gets_no_bounds() -> None:
    shape = shape_of(field("c", "string", __COLLATIONS="UTF8_LCASE"))
    stats = told(pa.table({"c": ["B", "a"]}), shape)
    assert (stats["minValues"], stats["maxValues"], stats["nullCount"]) == ({}, {}, {"c": 0})


WIDE = [field("p", "string"), field("s", struct(field("A", "long"), field("b`c", "long"))), field("x", "long")]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, ["s.A", "s.b`c", "x"]),
        ({INDEXED: "2"}, ["s.A", "s.b`c"]),
        ({INDEXED: "0"}, []),
        ({INDEXED: "-1"}, ["s.A", "s.b`c", "x"]),
        ({INDEXED: "many"}, ["s.A", "s.b`c", "x"]),
        ({NAMED: "x"}, ["x"]),
        ({NAMED: "X, s.a"}, ["s.A", "x"]),
        ({NAMED: "`s`"}, ["s.A", "s.b`c"]),
        ({NAMED: "s . `b``c`", INDEXED: "0"}, ["s.b`c"]),
        ({NAMED: "gone"}, []),
        ({NAMED: "a..b"}, ["s.A", "s.b`c", "x"]),
    ],
    ids=str,
)
def test_the_tables_owner_says_which_columns_have_statistics(properties: dict[str, str], expected: list[str]) -> None:
    data = pa.table({"s": [{"A": 1, "b`c": 2}], "x": [3]})
    nulls = told(data, shape_of(*WIDE, partition_by=("p",), **properties))["nullCount"]
    found = {f"s.{name}" for name in nulls.get("s", {})} | (nulls.keys() - {"s"})
    assert sorted(found) == expected


def test_by_default_the_first_32_columns_have_statistics() -> None:
    names = [f"c{number}" for number in range(40)]
    stats = told(pa.table({name: [1] for name in names}), shape_of(*(field(name, "long") for name in names)))
    assert list(stats["nullCount"]) == names[:32]


TEXTS = st.one_of(st.text(), st.text("x\U0010ffff", min_size=30, max_size=36), st.just("é" * 5_000))
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "integer": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "double": (pa.float64(), st.floats()),
    "float": (pa.float32(), st.floats(width=32)),
    "decimal(38,5)": (pa.decimal128(38, 5), st.decimals(-(10**30), 10**30, places=5)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (MICROS, st.datetimes(timezones=st.just(UTC))),
    "string": (pa.string(), TEXTS),
}


def as_value(kind: str, bound: Any) -> Any:
    if kind == "date":
        return date.fromisoformat(bound)
    if kind == "timestamp":
        return datetime.fromisoformat(bound.replace("Z", "+00:00"))
    if kind in ("double", "float"):
        return float(bound)
    return bound.encode() if kind == "string" else bound


@pytest.mark.proof
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)), size=st.integers(1, 4))
def test_whatever_a_column_has_no_value_lies_outside_its_bounds(data: st.DataObject, kind: str, size: int) -> None:
    type_, of_kind = KINDS[kind]
    values = data.draw(st.lists(st.none() | of_kind, min_size=1, max_size=6))
    column = pa.array(values, type_)
    stats = told(pa.table({"c": column}), shape_of(field("c", kind)), row_group_size=size)
    assert stats["nullCount"] in ({"c": column.null_count}, {})
    known = [value.encode() if isinstance(value, str) else value for value in column.to_pylist() if value is not None]
    known = [math.inf if isinstance(value, float) and math.isnan(value) else value for value in known]
    for name in ("minValues", "maxValues"):
        if "c" in stats[name]:
            bound = as_value(kind, stats[name]["c"])
            assert all(bound <= value if name == "minValues" else value <= bound for value in known)
            if kind == "timestamp":
                assert min(abs(bound - value) for value in known) < timedelta(milliseconds=1)
            elif kind != "string":
                assert bound in known


# -- of staged files ------------------------------------------------------------------------------------------------


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    """Three files whose statistics are not known."""
    for number in range(3):
        (tmp_path / f"{number}.parquet").write_bytes(parquet(pa.table({"c": [number, 10]})))
    files = tuple(
        StagedFile(
            path=path.name,
            logged_path=path.name,
            size=path.stat().st_size,
            partition_values={},
            stats="",
            modified_ms=0,
        )
        for path in sorted(tmp_path.iterdir())
    )
    shape = shape_of(field("c", "long"))
    return Staging(place=".", version=1, shape=shape, files=files, user_metadata={}, counted=None)


def lows(staging: Staging) -> list[int]:
    return [json.loads(file.stats)["minValues"]["c"] for file in staging.files]


@pytest.mark.parametrize(("name", "few"), [("READ_BYTES", 64 * 1024), ("READ_BYTES", 20), ("FILES_AT_ONCE", 2)])
def test_every_file_gets_its_own_statistics_however_much_is_read_at_once(
    staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, few: int
) -> None:
    monkeypatch.setattr(footers, name, few)
    whole = footers.completed(open_files(str(tmp_path)), staging)
    assert lows(whole) == [0, 1, 2]
    assert whole.from_footers
    assert footers.completed(open_files(str(tmp_path)), whole) == replace(whole, from_footers=False)


@pytest.mark.parametrize("damage", [b"", b"PAR", b"\xff\xff\xff\x7fPAR1", b"\x00\x00\x00\x00PAR1", b"0123456789PAR1"])
def test_a_file_without_a_footer_is_refused(staging: Staging, tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "1.parquet").write_bytes(damage)
    files = [replace(file, size=(tmp_path / file.path).stat().st_size) for file in staging.files]
    with pytest.raises(Refused, match=r"The staged file \./1\.parquet is cut off or damaged"):
        footers.completed(open_files(str(tmp_path)), replace(staging, files=tuple(files)))


def test_the_statistics_are_those_that_deltalake_takes_from_the_same_file(tmp_path: Path) -> None:
    data = pa.table(
        {
            "i": pa.array([3, None, 1], pa.int32()),
            "t": pa.array(["b", "a", None]),
            "day": pa.array([date(2024, 1, 1), date(2023, 1, 1), None]),
            "s": pa.array([{"x": 1}, {"x": None}, {"x": 5}], pa.struct([("x", pa.int64())])),
        }
    )
    write_deltalake(tmp_path / "t", data)
    shape = TableShape.of_table(DeltaTable(tmp_path / "t"))
    entry = (tmp_path / "t" / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    add = next(json.loads(line)["add"] for line in entry if line.startswith('{"add"'))
    footer = pq.read_metadata(tmp_path / "t" / add["path"])
    assert json.loads(statistics_of(footer, shape)) == json.loads(add["stats"])
