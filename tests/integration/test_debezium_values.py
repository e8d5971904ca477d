"""Values as Debezium's connectors write them in each of their modes, and what the page makes of them."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Context, Decimal
from random import Random
from typing import Any

import pytest
from pyspark.sql import functions as F

from airflow_epochs.transforms import debezium_decimal, parse_debezium
from tests.integration.test_parse_debezium import PAGE, blocks, event, events_of
from tests.support.spark_world import COMPILED

pytestmark = pytest.mark.jvm

TABLE = PAGE.read_text().partition("### What Debezium writes")[2]
ROWS = [re.findall(r"`(.*?)`", row) for row in TABLE.splitlines() if re.match(r"\| (?!the database)", row)]
EXAMPLES = [(*row[-4:],) for row in ROWS]
"""Per row of the page's table: a value, its declaration, the column that is made of it, and the text of that."""
MANY_DIGITS = Context(prec=100)
VARIABLE = "v struct<scale: int, value: string>"


@pytest.fixture
def utc(other_session: Any) -> Any:
    other_session.conf.set("spark.sql.session.timeZone", "UTC")
    return other_session


@pytest.fixture(params=["true", "false"], ids=["ansi", "not ansi"])
def either(other_session: Any, request: pytest.FixtureRequest) -> Any:
    """A session that fails where a value is not valid, and one that has NULL there. Both compile the expression."""
    for key, value in {**COMPILED, "spark.sql.ansi.enabled": request.param}.items():
        other_session.conf.set(key, value)
    return other_session


def test_the_page_has_examples_of_all_modes() -> None:
    assert len(EXAMPLES) == 15
    for mode in ("precise", "string", "double", "isostring", "connect", "adaptive", "adaptive_time_microseconds"):
        assert f"`{mode}`" in TABLE


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["spark", "arrow"])
def test_each_value_of_the_page_is_what_the_page_says_and_fits_what_it_declares(utc: Any, engine: str) -> None:
    numbered = [[re.sub(r"\bv\b", f"v{n}", text) for text in example[1:3]] for n, example in enumerate(EXAMPLES)]
    row = {"id": 1, **{f"v{n}": json.loads(example[0]) for n, example in enumerate(EXAMPLES)}}
    batch = events_of(utc, event("c", None, row), event("c", None, {"id": 2}))
    declared = ", ".join(["id bigint", *(declaration for declaration, _ in numbered)])
    changes = parse_debezium(batch, declared, mode="strict", engine=engine)
    names = {"F": F, "debezium_decimal": debezium_decimal}
    made = changes.rows.select(
        *(eval(column, names).cast("string").alias(f"m{n}") for n, (_, column) in enumerate(numbered))
    )
    assert [tuple(row) for row in made.collect()] == [tuple(text for *_, text in EXAMPLES), (None,) * len(EXAMPLES)]
    assert changes.corrupt.count() == 0


def test_in_the_default_mode_a_value_that_does_not_fit_is_null_and_in_strict_mode_its_event_is_corrupt(
    session: Any,
) -> None:
    batch = events_of(session, event("c", None, {"id": 1, "price": "MDk="}))
    changes = parse_debezium(batch, "id bigint, price decimal(12, 2)")
    assert ([row.price for row in changes.rows.collect()], changes.corrupt.count()) == ([None], 0)
    changes = parse_debezium(batch, "id bigint, price decimal(12, 2)", mode="strict")
    assert (changes.rows.count(), changes.corrupt.count()) == (0, 1)


def test_the_transform_of_the_page_gives_prices_as_the_database_has_them(session: Any) -> None:
    names: dict[str, Any] = {"parse_debezium": parse_debezium, "debezium_decimal": debezium_decimal}
    exec(blocks("python")[3], names)
    batch = events_of(session, *(event("c", None, {"id": n, "price": told(n)}) for n in (-300, -1, 0, 299)), b"{")
    found = names["orders"](batch, None)
    assert {row.id: row.price for row in found["orders"].collect()} == {
        -300: Decimal("-3.00"),
        -1: Decimal("-0.01"),
        0: Decimal("0.00"),
        299: Decimal("2.99"),
    }
    assert found["orders"].schema["price"].dataType.simpleString() == "decimal(12,2)"
    assert found["rejected"].count() == 1


def told(number: int, more: int = 0) -> str:
    """As Java's BigInteger.toByteArray, in base64; with some bytes more than it needs."""
    return b64encode(number.to_bytes((number + (number < 0)).bit_length() // 8 + 1 + more, "big", signed=True)).decode()


def numbers() -> Iterator[int]:
    """Of each number of bytes the smallest and the largest, and of each number of digits; and any."""
    for bits in range(7, 128, 8):
        yield from (-(2**bits), 1 - 2**bits, 2**bits - 1, 2**bits)
    for digits in range(39):
        yield from (10**digits - 1, -(10**digits) + 1, 10**digits, -(10**digits))
    random = Random(38)
    yield from (random.randrange(-(2**bits), 2**bits) for bits in range(1, 128) for _ in range(3))


def expected(number: int, precision: int, scale: int, own: int | None = None) -> Decimal | None:
    """The number as Python's decimals have it; None if it, or its result, has too many digits."""
    exact = Decimal(number).scaleb(-(scale if own is None else own), MANY_DIGITS)
    rounded = exact.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, MANY_DIGITS)
    return None if len(str(abs(number))) > 38 or rounded.copy_abs() >= 10 ** (precision - scale) else rounded


@pytest.mark.parametrize(("precision", "scale"), [(38, 0), (38, 38), (38, 10), (12, 2)])
def test_a_decimal_is_what_python_makes_of_its_bytes(either: Any, precision: int, scale: int) -> None:
    each = [*numbers()]
    rows = [(n, told(n, more)) for n in each for more in (0, 1) if len(b64decode(told(n, more))) <= 16]
    frame = either.createDataFrame([(str(n), text) for n, text in rows], "n string, v string").coalesce(1)
    made = frame.select("n", debezium_decimal("v", precision, scale).alias("made")).collect()
    assert len(made) == len(rows) > 1000
    assert [(row.n, row.made) for row in made] == [(str(n), expected(n, precision, scale)) for n, _ in rows]


def test_a_decimal_with_a_scale_of_its_own_is_rounded_half_up_to_that_of_the_column(either: Any) -> None:
    each = [(n, own) for n in (0, 5, -5, 15, 12345, -12345, 10**38 - 1, 1 - 10**38) for own in (-3, 0, 1, 2, 3, 9, 40)]
    frame = either.createDataFrame(
        [({"scale": own, "value": told(n)},) for n, own in each], "v struct<scale: int, value: string>"
    )
    made = frame.select(debezium_decimal("v.value", 20, 2, value_scale="v.scale").alias("made")).collect()
    assert [row.made for row in made] == [expected(n, 20, 2, own) for n, own in each]


def test_what_is_no_decimal_of_at_most_38_digits_is_null_and_fails_no_query(either: Any) -> None:
    long = [told(number) for number in (10**38, -(10**38), 2**127, 2**200)]
    texts = [None, "", "123.45", "NaN", "A", "MDk", "MD=k", " MDk=", *long]
    frame = either.createDataFrame([(text,) for text in texts], "v string")
    made = frame.select(debezium_decimal(F.col("v"), 38, 0).alias("made")).collect()
    assert [row.made for row in made] == [None] * len(texts)


def test_a_decimal_with_a_scale_that_no_database_has_is_null_and_takes_no_time(either: Any) -> None:
    scales = [None, 2**31 - 1, -(2**31), 20_001, -20_001]
    frame = either.createDataFrame([({"scale": own, "value": "MDk="},) for own in scales] + [(None,)], VARIABLE)
    made = frame.select(debezium_decimal("v.value", 38, 0, value_scale="v.scale").alias("made")).collect()
    assert [row.made for row in made] == [None] * 6
