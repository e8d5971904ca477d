"""The values that operators keep are those that were computed, whatever types the state declares."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.spark.driver.failures import of_spark
from airflow_epochs.transforms import Result, interval_join, windowed
from tests.integration.test_stateful_corners import BEGIN, World, row
from tests.support.spark_world import settings
from tests.support.state_world import S

pytestmark = pytest.mark.jvm

WINDOW = "k string, window_start timestamp, window_end timestamp"


@pytest.fixture(scope="module")
def world(session: Any) -> World:
    return World(session)


def of_windows(world: World, kind: str, agg: str, merge: str = "max(x)") -> Result:
    """Two rows of a key in one window, whose amounts are 2.50 and 2.75. ``kind``: that the state declares."""
    rows = world.rows(row(1, o=0), row(2, o=1)).withColumn("amount", F.expr("cast(2.5 + o * 0.25 as decimal(10,2))"))
    state = world.session.createDataFrame([], f"{WINDOW}, x {kind}")
    given: dict[str, Any] = {"keys": ["k"], "agg": [F.expr(agg).alias("x")], "merge": [F.expr(merge).alias("x")]}
    return windowed(rows, state, BEGIN, time="ts", size=10 * S, **given)


REFUSED: dict[str, tuple[str, str, str]] = {
    "a sum that would be cut": ("bigint", "sum(amount)", r"column 'x' of .* decimal\(20,2\), and .* bigint"),
    "a mean that would be cut": ("int", "avg(v)", "is of type double, and the state declares int"),
    "a time of a day": ("date", "max(ts)", "is of type timestamp, and the state declares date"),
    "a field of a struct": (
        "struct<s:bigint>",
        "struct(sum(amount) as s)",
        r"column 'x\.s' of .* decimal\(20,2\), and .* bigint",
    ),
    "a field too many": (
        "struct<n:bigint>",
        "struct(count(*) as n, count(*) as m)",
        r"field 'x\.m' is in a struct of what is kept, and missing from the struct of the state",
    ),
    "a field too few": (
        "struct<n:bigint,m:bigint>",
        "struct(count(*) as n)",
        r"field 'x\.m' is in a struct of the state, and missing from the struct of what is kept",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_an_aggregate_is_refused_whose_values_would_become_others_in_the_state(world: World, mistake: str) -> None:
    kind, agg, said = REFUSED[mistake]
    with pytest.raises(Refused, match=f"windowed: .*{said}") as refused:
        of_windows(world, kind, agg)
    assert refused.value.code is codes.OPERATOR_COLUMNS
    assert "Nothing was written." in refused.value.what
    assert refused.value.remedy.endswith("Then clear the failed task.")


def test_what_the_refusal_of_an_aggregate_says_helps(world: World) -> None:
    with pytest.raises(Refused) as refused:
        of_windows(world, "bigint", "sum(amount)")
    assert "Give it the type decimal(20,2)" in refused.value.remedy and ".cast('bigint')" in refused.value.remedy
    declared = of_windows(world, "decimal(20,2)", "sum(amount)")
    cast = of_windows(world, "bigint", "cast(sum(amount) as bigint)")
    assert [kept.x for made in (declared, cast) for kept in made.changes.collect()] == [Decimal("5.25"), 5]


def test_the_fields_of_a_struct_are_kept_by_their_names_at_every_depth(world: World) -> None:
    both, kind = "struct(sum(amount) as total, count(*) as N)", "struct<n:int,total:decimal(12,2)>"
    made = f"struct(array({both}, null) as l, map('m', {both}) as m, {both} as s)"
    found = of_windows(world, f"struct<s:{kind},l:array<{kind}>,m:map<string,{kind}>>", made, "first(x)")
    (kept,) = found.changes.collect()
    told = {"n": 2, "total": Decimal("5.25")}
    assert kept.x.asDict(recursive=True) == {"s": told, "l": [told, None], "m": {"m": told}}
    placed = of_windows(world, "struct<x:string,y:decimal(12,2)>", "struct(count(*), sum(amount))", "first(x)")
    assert [kept.x for kept in placed.changes.collect()] == [("2", Decimal("5.25"))], "no name is in both"
    none = of_windows(world, kind, f"if(count(*) > 2, {both}, null)", "first(x)")
    assert [kept.x for kept in none.changes.collect()] == [None]


LARGE = [
    ("decimal(3,2)", "sum(amount)", "sum(amount * 3)"),
    ("tinyint", "sum(v)", "sum(v * 100)"),
    ("decimal(4,2)", "sum(v)", "sum(v * 100)"),
    ("double", "sum(v)", f"sum(v) + {2**53 - 1}"),
    ("array<int>", "array(sum(v))", f"array(sum(v) + {2**31})"),
]
"""Declared type, an aggregate that it has, and one that is too large for it."""


@pytest.mark.few(1)
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_number_that_the_state_cannot_have_stops_the_epoch_and_is_never_another_one(world: World, ansi: str) -> None:
    with settings(world.session, {"spark.sql.ansi.enabled": ansi}):
        for kind, small, large in LARGE:
            assert of_windows(world, kind, small).changes.collect()[0].x in (2, [2], Decimal("5.25"))
            with pytest.raises(
                PySparkException, match=r"windowed: a value of column 'x.* is not exactly in the type"
            ) as failed:
                of_windows(world, kind, large).changes.collect()
            told = of_spark(failed.value, "staging")
            assert (type(told), told.code) == (Refused, codes.OPERATOR_COLUMNS)
            assert "Keep the rows of a state" in told.remedy


def paired(world: World, kind: str, value: str, *, at_once: bool) -> list[Any]:
    """``value`` of the left row of a pair, whose rows come in one epoch, or in two. ``kind``: its type in the state."""
    left = world.rows(row(1)).select("k", "ts", F.expr(value).alias("v"))
    right = world.rows(row(2)).select("k", F.col("ts").alias("rts"))
    kept = world.session.createDataFrame([], f"k string, ts timestamp, v {kind}, expires timestamp")
    other = world.session.createDataFrame([], "k string, rts timestamp, expires timestamp")
    given: dict[str, Any] = {"on": ["k"], "left_time": "ts", "right_time": "rts", "within": 10 * S}
    if not at_once:
        first = interval_join(left, right.limit(0), kept, other, BEGIN, **given)
        left, kept = left.limit(0), first.left_changes.drop("__deleted")
    return [pair.v for pair in interval_join(left, right, kept, other, BEGIN, **given).out.collect()]


def test_a_pair_has_the_same_values_wherever_an_epoch_ends(world: World) -> None:
    amount, swapped = "cast(2.5 as decimal(20,2))", "struct(1 as a, 2 as b)"
    with pytest.raises(Refused, match=r"interval_join: column 'v' of what is kept is of type decimal\(20,2\)"):
        paired(world, "bigint", amount, at_once=True)
    for kind, value, expected in (
        ("decimal(10,2)", amount, Decimal("2.50")),
        ("decimal(30,4)", amount, Decimal("2.50")),
        ("double", amount, 2.5),
        ("struct<b:bigint,a:int>", swapped, (1, 2)),
    ):
        assert [paired(world, kind, value, at_once=at_once) for at_once in (True, False)] == [[expected]] * 2
