"""Which types of columns fit those that a state declares."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import types as t

from airflow_epochs.transforms.fit import Part, misfit, reordered


def struct(**fields: Any) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


FITTING: list[tuple[t.DataType, t.DataType]] = [
    (t.IntegerType(), t.LongType()),
    (t.LongType(), t.IntegerType()),
    (t.LongType(), t.DoubleType()),
    (t.FloatType(), t.DoubleType()),
    (t.DateType(), t.DateType()),
    (t.NullType(), t.DateType()),
    (t.StringType("UTF8_LCASE"), t.StringType()),
    (t.DecimalType(10, 2), t.DecimalType(20, 4)),
    (t.DecimalType(20, 2), t.DecimalType(10, 2)),
    (t.DecimalType(20, 0), t.LongType()),
    (t.LongType(), t.DecimalType(12, 2)),
    (t.DecimalType(10, 2), t.DoubleType()),
    (t.DoubleType(), t.FloatType()),
    (t.LongType(), t.StringType()),
    (t.DateType(), t.StringType()),
    (t.DateType(), t.TimestampType()),
    (t.ArrayType(t.BooleanType()), t.ArrayType(t.StringType())),
    (struct(col1=t.LongType(), col2=t.DateType()), struct(a=t.LongType(), b=t.DateType())),
    (struct(a=t.LongType(), B=t.DateType()), struct(b=t.DateType(), a=t.LongType())),
    (t.ArrayType(t.IntegerType(), False), t.ArrayType(t.LongType())),
    (t.MapType(t.StringType(), t.IntegerType(), False), t.MapType(t.StringType(), t.LongType())),
]


@pytest.mark.parametrize(("kind", "wanted"), FITTING, ids=str)
def test_a_type_fits_another_one_that_has_its_values_or_fails_for_those_that_are_too_large(
    kind: t.DataType, wanted: t.DataType
) -> None:
    assert misfit(Part("c", kind, wanted)) is None


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [(t.DoubleType(), t.FloatType()), (t.DecimalType(10, 2), t.DoubleType()), (t.DecimalType(10, 2), t.FloatType())],
    ids=str,
)
def test_the_nearest_number_is_no_key(kind: t.DataType, wanted: t.DataType) -> None:
    """Rows of the next epoch would not find it: a duplicate would pass."""
    part = Part("k", kind, wanted)
    assert misfit(part) is None and misfit(part, is_key=True) == part


UNFIT: list[tuple[str, t.DataType, t.DataType]] = [
    ("c", t.DecimalType(20, 2), t.LongType()),
    ("c", t.DecimalType(10, 4), t.DecimalType(20, 2)),
    ("c", t.DoubleType(), t.LongType()),
    ("c", t.DoubleType(), t.DecimalType(20, 2)),
    ("c", t.TimestampType(), t.DateType()),
    ("c", t.TimestampNTZType(), t.TimestampType()),
    ("c", t.BooleanType(), t.IntegerType()),
    ("c", t.TimestampType(), t.TimestampNTZType()),
    ("c", t.BinaryType(), t.StringType()),
    ("c", t.DoubleType(), t.StringType()),
    ("c.col2", struct(a=t.LongType(), col2=t.DateType()), struct(a=t.LongType(), b=t.DateType())),
    ("c", t.ArrayType(t.LongType()), t.LongType()),
    ("c.n", struct(n=t.LongType()), struct()),
    ("c.n", struct(), struct(n=t.LongType())),
    ("c.element.n", t.ArrayType(struct(n=t.DoubleType())), t.ArrayType(struct(n=t.LongType()))),
    ("c.key", t.MapType(t.DoubleType(), t.LongType()), t.MapType(t.LongType(), t.LongType())),
    ("c.value", t.MapType(t.LongType(), t.DoubleType()), t.MapType(t.LongType(), t.LongType())),
]


@pytest.mark.parametrize(("place", "kind", "wanted"), UNFIT, ids=str)
def test_a_type_whose_values_would_become_others_does_not_fit_and_the_place_of_it_is_told(
    place: str, kind: t.DataType, wanted: t.DataType
) -> None:
    found = misfit(Part("c", kind, wanted))
    assert found is not None and found.name == place


INT, LONG = t.IntegerType(), t.LongType()
AB, BA = struct(a=INT, b=INT), struct(b=INT, a=INT)


@pytest.mark.parametrize(
    ("kind", "like", "wanted"),
    [
        (struct(B=LONG, a=INT), struct(a=LONG, b=LONG), struct(a=INT, B=LONG)),
        (t.ArrayType(t.MapType(INT, BA)), t.ArrayType(t.MapType(INT, AB)), t.ArrayType(t.MapType(INT, AB))),
        (struct(x=INT, y=BA), struct(col1=INT, col2=AB), struct(x=INT, y=AB)),
        (BA, struct(a=INT, b=INT, c=INT), BA),
    ],
    ids=["its own names and types", "inside of others", "fields without names", "not the same fields"],
)
def test_fields_get_another_order_and_nothing_else_changes(kind: Any, like: Any, wanted: Any) -> None:
    assert reordered(kind, like) == wanted
