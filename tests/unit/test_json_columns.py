"""What is decoded by columns, and what is left to ``from_json``; Spark itself is asked in ``test_json_engines``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Context, Decimal
from itertools import product
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_epochs.transforms import json_alike, json_columns
from airflow_epochs.transforms.json_columns import arrow_type, decoded, supported
from tests.support.odd_json import SUITE, struct


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind}


def values(records: Sequence[bytes | None], schema: dict[str, Any], kind: pa.DataType | None = None) -> list[Any]:
    found: list[Any] = decoded(pa.array(records, kind or pa.binary()), schema).to_pylist()
    return found


N = struct(n="long")


def test_a_record_is_never_taken_for_its_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_columns, "PATIENCE", 100)
    torn = [b'{"n":1', b',"n":2}', b'{"n":3}{"n":4}', b"", b'{"n":5}}{"n":4,"r":{"n":6}', b'{"o":', b'{"n":8}}']
    for begin in range(len(torn)):
        around = torn[begin : begin + 3]
        assert values([*around, b'{"n":7}', *around], N)[len(around)] == {"n": 7}
        assert values([*around, *around], N) == [None] * 2 * len(around)


def test_beside_strange_records_the_usual_ones_are_decoded_rightly_or_not_at_all() -> None:
    usual = [b'{"n":%d}' % number for number in range(len(SUITE))]
    mixed = [record for pair in zip(SUITE, usual, strict=True) for record in pair]
    found = values(mixed, N)[1::2]
    assert all(value in (None, {"n": number}) for number, value in enumerate(found))
    assert any(found)


def test_text_and_binary_columns_are_the_same_and_so_is_a_part_of_an_array() -> None:
    records = [b'{"n":1}', None, b'{"n":2}']
    assert values(records, N, pa.string()) == values(records, N) == [{"n": 1}, None, {"n": 2}]
    assert decoded(pa.array(records, pa.binary()).slice(1), N).to_pylist() == [None, {"n": 2}]
    assert values([], N) == [] and values([None], N) == [None]


def test_a_batch_with_few_refused_records_is_decoded_but_for_these() -> None:
    records = [b'{"n":%d}' % number for number in range(5_000)]
    records[77], records[2_500], records[4_999] = b'{"n":1.0}', b'{"n":"x"}', b'{"n":[}'
    found = values(records, N)
    assert [place for place, value in enumerate(found) if value is None] == [77, 2_500, 4_999]


def test_a_batch_full_of_refused_records_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, read = [], json_columns._read

    def counted(*args: Any) -> Any:
        calls.append(1)
        return read(*args)

    monkeypatch.setattr(json_columns, "_read", counted)
    assert set(map(str, values([b'{"n":"x"}', b'{"n":1}'] * 5_000, N))) <= {"None", "{'n': 1}"}
    assert len(calls) < 20


AN_ORDER = '{"id":"o%d","amount":%d.5,"n":%d,"at":"2026-01-31T10:20:%02d.123456Z","day":"2026-01-%02d"}'
ORDERS = [(AN_ORDER % (n, n, n, n % 60, n % 28 + 1)).encode() for n in range(4_000)]
ORDER = struct(id="string", amount="double", n="long", at="timestamp", day="date")
ODD = {
    "not UTF-8": (b'"o', b'"\xff'),
    "half of a character at its end": (b"}", b"}\xc3"),
    "a control character": (b'"o', b'"\x01'),
    "half of a pair of characters": (b'"o', b'"\\ud800'),
    "a number of 1,200 digits": (b'"n":', b'"n":' + b"7" * 1_200),
    "a day that no month has": (b"2026-01-31T", b"2026-02-30T"),
    "a date that no month has": (b'"day":"2026-01', b'"day":"2026-13'),
    "another form of a time": (b"2026-01-31T", b"2026-1-31T"),
    "no time": (b"2026-01-31T10", b"some time, T1"),
    "an object for a number": (b'"n":', b'"n":{},"x":'),
    "a name in single quotes": (b'"id"', b"'id'"),
}
"""What to put in which place, to make one of ``ORDERS`` odd."""
PLACES = (0, 1_000, 2_000, 3_000, 3_999)
"""Where an odd record may be taken for an example of the others, too."""


def with_odd(kind: str, *places: int) -> list[bytes]:
    records = list(ORDERS)
    for place in places:
        records[place] = ORDERS[place].replace(*ODD[kind], 1)
        assert records[place] != ORDERS[place]
    return records


@pytest.mark.proof
@pytest.mark.parametrize("kind", ODD)
def test_beside_an_odd_record_all_others_have_their_values(kind: str) -> None:
    usual = values(ORDERS, ORDER)
    assert None not in usual
    for places in (*((place,) for place in PLACES), (254, 255, 256, 257, 1_023, 1_024), tuple(range(0, 4_000, 250))):
        expected = [None if place in places else value for place, value in enumerate(usual)]
        assert values(with_odd(kind, *places), ORDER) == expected, places


@pytest.mark.proof
@pytest.mark.parametrize("kind", ODD)
def test_one_odd_record_costs_its_batch_few_calls(kind: str) -> None:
    usual = calls_in(ORDERS)
    for place in PLACES:
        assert calls_in(with_odd(kind, place)) < usual + 1_000, place


def calls_in(records: list[bytes]) -> int:
    """How many functions are called to decode the records, in Python and from it."""
    found = 0

    def counted(_: Any, event: str, __: Any) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    array = pa.array(records, pa.binary())
    decoded(array, ORDER)
    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        decoded(array, ORDER)
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize("kind", ["another form of a time", "no time", "a day that no month has"])
def test_a_pattern_is_asked_about_few_times_if_one_of_them_is_odd(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, match = [0], pc.match_substring_regex

    def counted(texts: Any, *args: Any, **named: Any) -> Any:
        asked[-1] += len(texts)
        return match(texts, *args, **named)

    monkeypatch.setattr(pc, "match_substring_regex", counted)
    for place in PLACES:
        asked.append(0)
        decoded(pa.array(with_odd(kind, place), pa.binary()), ORDER)
    assert max(asked) < 10


@pytest.mark.parametrize("kind", ODD)
def test_the_others_are_compared_with_one_form_only_whatever_one_odd_record_has(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms: list[str] = []
    compared = json_alike._are_of

    def told(cut: json_alike.Cut, form: json_alike.Form) -> Any:
        forms.append("".join(form.texts))
        return compared(cut, form)

    monkeypatch.setattr(json_alike, "_are_of", told)
    for place in PLACES:
        forms.clear()
        decoded(pa.array(with_odd(kind, place), pa.binary()), ORDER)
        assert forms == ['{"id":"","amount":,"n":,"at":"","day":""}'], place


@pytest.mark.parametrize(("others", "are_decoded"), [(20, False), (21, True)])
def test_pyarrow_is_asked_if_more_than_one_in_200_records_is_written_in_another_way(
    others: int, are_decoded: bool
) -> None:
    records = [b'{"n":1,"more":[]}'] * others + [b'{"n":1}'] * (4_000 - others)
    assert values(records, N) == [{"n": 1} if are_decoded else None] * others + [{"n": 1}] * (4_000 - others)


@pytest.mark.proof
def test_more_text_than_is_decoded_at_once_is_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_columns, "BYTES_MAX", 100)
    records = [b'{"n":%d,"pad":"%s"}' % (number, b"x" * (number % 7) * 30) for number in range(200)]
    assert values(records, N) == [{"n": number} for number in range(200)]


@pytest.mark.parametrize(
    "record",
    [
        b'{"d":-0}',  # 0.0 in Java
        b'{"b":128}',
        b'{"t":"2026-02-30T00:00:00Z"}',
        b'{"t":"2026-01-31T10:20:30"}',  # in the session's time zone
        b'{"t":"2026-01-31T23:59:60Z"}',
        b'{"y":"0999-01-01"}',
        b'{"m":"12.5"}',
        b'{"\\u006d":"12.5"}',
        b'{"l":[{"y":"soon"}]}',
        b'{"x":"\xff"}',
        b'{"surplus":' + b"[" * 201 + b"]" * 201 + b"}",
        b'{"surplus":' + b"1" * 1_001 + b"}",
        b'{"d":' + b"1" * 150 + b"." + b"3" * 880 + b"}",
        b'{"' + b"k" * 50_001 + b'":1}',
    ],
)
def test_what_java_may_read_in_another_way_is_left_to_it(record: bytes) -> None:
    schema = struct(
        d="double", b="byte", t="timestamp", y="date", m="decimal(5,2)", x="string",
        l={"type": "array", "elementType": struct(y="date")},
    )  # fmt: skip
    usual = b'{"d":1,"b":127,"t":"2026-02-28T00:00:00.000001+01:00","y":"1000-01-01","m":12.5,"x":"a"}'
    lists = b'{"l":[{"y":"2026-01-01"},{"y":"2026-01-02"},null]}'
    found = values([lists, record, b"{}", usual], schema)
    assert found[1] is None
    assert found[0] == {**found[2], "l": [{"y": date(2026, 1, 1)}, {"y": date(2026, 1, 2)}, None]}
    assert found[2] == dict.fromkeys("dbtymxl")
    at = datetime(2026, 2, 27, 23, 0, 0, 1, tzinfo=timezone.utc)
    told = {"d": 1.0, "b": 127, "t": at, "y": date(1000, 1, 1), "m": Decimal("12.50"), "x": "a", "l": None}
    assert found[3] == told


@pytest.mark.proof
def test_wherever_a_long_number_or_many_brackets_are_the_record_is_left_and_its_neighbours_are_not() -> None:
    for shift in range(100):
        pad = b'{"n":1,"s":"%s",' % (b"x" * shift)
        short = pad + b'"d":7.' + b"7" * 690 + b"}"
        long = pad + b'"d":-' + b"7" * 200 + b"." + b"7" * 800 + b"}"
        flat = pad + b'"b":' + b"[" * 199 + b"]" * 199 + b"}"
        deep = pad + b'"b":' + b"[{" * 100 + b"}]" * 100 + b"}"
        left = [value is None for value in values([None, short, long, flat, None, deep, short, b"{}"], N)]
        assert left == [True, False, True, False, True, True, False, False], shift


@pytest.mark.proof
def test_many_numbers_are_not_taken_for_a_long_one() -> None:
    digits = b"".join(b'"a%03d":"%s%s",' % (number, b"x" * 10, b"7" * 80) for number in range(30))
    for shift in range(100):
        record = b'{"s":"%s",' % (b"x" * shift) + digits + b'"n":1}'
        assert values([b"{}", record, record], N) == [{"n": None}, {"n": 1}, {"n": 1}], shift


TIMES = [
    *("2024-02-29T23:59:59Z", "2024-02-30T00:00:00Z", "2024-01-01T24:00:00Z", "2024-01-01T00:60:00Z"),
    *("0024-01-01T00:00:00Z", "2024-01-01T00:00:60Z", "2024-01-01 00:00:00Z", "2024-01-01T00:00:00z"),
    *("2024-01-01T00:00:00.5Z", "2024-01-01T00:00:0:.5Z", "2024-01-01T00:00:00,5Z", "2024-01-01T00:00:/0Z"),
    *("2024-01-01T00:00:00.123456Z", "2024-01-01T00:00:00.1234567Z", "2024-01-01T00:00:00", "2024-01-01", "", "Z"),
    *("2024-01-01T00:00:00+17:59", "2024-01-01T00:00:00+18:30", "2024-01-01T00:00:00-0100", "2024-01-01T00:00Z"),
    *("2024-01-01T00:00:00+0Z", "2024-01-01T00:00:0\u0660", "0001-01-01", "2024-13-01", "12024-01-01", r"2024-01-01\n"),
]


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date"])
def test_times_of_one_form_are_decoded_like_those_of_many(kind: str) -> None:
    schema = struct(at=kind)
    records = [f'{{"at":"{text}"}}'.encode() for text in TIMES]
    of_many = values([b'{"at":"no time"}', *records], schema)[1:]
    told = list(zip(records, of_many, strict=True))
    for (first, expected), (other, expected_of_other) in product(told, told):
        assert values([first, other], schema) == [expected, expected_of_other]
    assert any(of_many)


@pytest.mark.parametrize(
    ("number", "kind", "largest"),
    [
        ("1e23", "decimal(38,29)", "999999999.99999999999999999999999999999"),  # 1e52 is 638707343.1... modulo 2**128
        ("9" * 38, "decimal(38,18)", "99999999999999999999.999999999999999999"),
        ("12345678901234567890123456789012345678", "decimal(38,18)", "-99999999999999999999.999999999999999999"),
        ("1" + "0" * 20, "decimal(38,18)", "10000000000000000000.0"),
        ("12345678901", "decimal(12,2)", "9999999999.99"),
        ("-123456789012", "decimal(12,2)", "-9999999999.99"),
        ("12345678901.5", "decimal(12,2)", "1234567890.5"),
        ("1", "decimal(38,38)", "0." + "9" * 38),
        ("3", "decimal(18,18)", "-0." + "9" * 18),
        ("1.5", "decimal(3,3)", "0.999"),
        ("1e4", "decimal(5,1)", "9999.9"),
    ],
)
def test_a_number_too_large_for_its_decimal_is_left_wherever_it_stands(number: str, kind: str, largest: str) -> None:
    def in_lists(value: Any) -> Any:
        return {"o": {"l": [[{"m": value}, {"m": None}]]}}

    shapes: list[tuple[dict[str, Any], str, Any]] = [
        (struct(m=kind), '{"m":%s}', lambda value: {"m": value}),
        (struct(o=struct(m=kind)), '{"o":{"m":%s}}', lambda value: {"o": {"m": value}}),
        (struct(l=array(struct(m=kind))), '{"l":[null,{"m":%s}]}', lambda value: {"l": [None, {"m": value}]}),
        (struct(o=struct(l=array(array(struct(m=kind))))), '{"o":{"l":[[{"m":%s},{}]]}}', in_lists),
    ]
    for schema, record, expected in shapes:
        records = [(record % told).encode() for told in (largest, number, "null", largest)]
        fits = expected(Decimal(largest))
        assert values(records, schema) == [fits, None, expected(None), fits]
        assert decoded(pa.array(records), schema).type == arrow_type(schema)


@pytest.mark.parametrize("precision", [1, 2, 9, 12, 18, 19, 20, 30, 38])
def test_each_decimal_that_is_decoded_has_the_value_that_exact_arithmetic_gives(precision: int) -> None:
    dice, exact = Random(precision), Context(prec=200)
    for scale in {0, 1, precision // 2, precision - 1, precision}:
        bound, unit = Decimal(10) ** (precision - scale), Decimal(1).scaleb(-scale)
        numbers = [a_number(dice, precision, scale) for _ in range(500)]
        schema = struct(m=f"decimal({precision},{scale})")
        found = values([b'{"m":%s}' % number.encode() for number in numbers], schema)
        fitting = [exact.create_decimal(number).copy_abs() < bound for number in numbers]
        assert [value is not None for value in found] == fitting
        for number, value in zip(numbers, found, strict=True):
            assert value is None or value["m"] == exact.create_decimal(number).quantize(unit, context=exact)


def a_number(dice: Random, precision: int, scale: int) -> str:
    """A number that pyarrow takes for such a decimal: it looks at the digits that are written, and behind the point."""
    behind = dice.randint(0, scale)
    before = dice.randint(0, precision - behind)
    zeros = dice.choice([0, 0, dice.randint(0, precision - behind - before)])
    digits = "".join(dice.choices("0123456789", k=before + behind))
    whole, fraction = digits[:before].lstrip("0") or "0", digits[before:]
    if zeros:  # the point is moved
        return f"{dice.choice(['', '-'])}{whole}{'.' * bool(fraction)}{fraction}e{len(fraction) + zeros}"
    return f"{dice.choice(['', '-'])}{whole}{'.' * bool(fraction)}{fraction}"


def test_types_that_the_reader_does_not_have_are_not_supported() -> None:
    plain = ("string", "boolean", "byte", "short", "integer", "long", "double", "date", "timestamp", "timestamp_ntz")
    assert all(supported(struct(a=kind)) for kind in (*plain, "decimal(38,10)", N))
    assert supported(struct(a={"type": "array", "elementType": {"type": "array", "elementType": N}}))
    of_map = {"type": "map", "keyType": "string", "valueType": "long"}
    assert not any(supported(struct(a=kind)) for kind in ("float", "binary", "variant", "interval", of_map))
    assert not supported({"type": "struct", "fields": [*N["fields"], *N["fields"]]})
    assert decoded(pa.array([b"{}"]), N).type == arrow_type(N)
