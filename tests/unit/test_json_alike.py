"""Records that are written alike are decoded without a parser; what is decoded is what JSON says."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterable, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_epochs.transforms import json_alike, json_columns
from airflow_epochs.transforms.json_alike import ValueGap, form_of
from airflow_epochs.transforms.json_columns import arrow_type
from tests.support.odd_json import alike, struct


def values(records: Sequence[str], schema: dict[str, Any], places: Iterable[int] | None = None) -> list[Any]:
    """What each record has; None if it is left to others."""
    found: list[Any] = [None] * len(records)
    asked = np.array(range(len(records)) if places is None else list(places), np.int64)
    texts = pa.array(records, pa.string())
    for numbers, told in json_alike.decoded(texts, asked, schema, arrow_type(schema, read=True)):
        for number, value in zip(numbers.tolist(), told.to_pylist(), strict=True):
            assert found[number] is None, "a record is decoded once"
            found[number] = value
    return found


def test_a_form_tells_where_the_values_of_a_record_are() -> None:
    form = form_of('{"a": 1, "b": {"c":"x"}}')
    assert form is not None
    assert form.gaps == (ValueGap(2, before=2, behind=2), ValueGap(7))
    assert form.texts == ('{"a": ', ', "b": {"c":"', '"}}')
    assert form.tree == {"a": 0, "b": {"c": "1"}}


@pytest.mark.parametrize(
    "record",
    [
        *('{"a":1', '{"a":1}}', '{"a":1}{"a":2}', '{"a" 1}', '{"a":1,}', "{a:1}", '{"a":1 2}', "[1]", "1", '"a"', ""),
        *('{"a":1,"a":2}', '{"o":{"a":1,"a":2}}', '{"a":[1,2]}', '{"a":"b}', '{"a"}', '{"a":}'),
        '{"a":' + "[" * 201 + "]" * 201 + "}",
    ],
)
def test_what_is_no_object_or_has_a_name_twice_or_several_numbers_in_a_row_has_no_form(record: str) -> None:
    assert form_of(record) is None
    assert values([record] * 3, struct(a="long")) == [None] * 3


def test_a_record_that_is_nested_more_deeply_than_python_reads_is_left_and_the_others_are_decoded() -> None:
    deep = '{"n":' + "[" * 40_000 + "]" * 40_000 + "}"
    for at in range(5):
        records = ['{"n":1}'] * 5
        records[at] = deep
        assert values(records, struct(n="long")) == [None if place == at else {"n": 1} for place in range(5)]


@pytest.mark.parametrize("long", [" ", "["])
def test_a_record_with_many_blanks_or_brackets_before_two_values_is_left_without_delay(long: str) -> None:
    """A pattern that tried each length of what stands before the first value would take ten seconds."""
    record = '{"a":' + long * 40_000 + "1,2}"
    started = time.process_time()
    assert form_of(record) is None
    assert time.process_time() - started < 1


def test_an_object_for_a_struct_without_columns_is_decoded() -> None:
    schema = struct(o=struct(), i="long", p=struct(q=struct()))
    records = [f'{{"i":{number},"o":{{}},"p":{{"q":{{"more":{number}}}}}}}' for number in range(100)]
    expected: list[Any] = [{"o": {}, "i": number, "p": {"q": {}}} for number in range(100)]
    assert values(records, schema) == expected
    records[50], expected[50] = records[50].replace("50", "x"), None
    assert values(records, schema) == expected
    assert json_columns.decoded(pa.array(records, pa.binary()), schema).to_pylist() == expected


def test_records_of_one_form_are_decoded_at_once_with_all_kinds_of_values() -> None:
    schema = struct(
        n="long", i="integer", d="double", m="decimal(4,2)", w="decimal(2,2)", z="boolean", s="string",
        o=struct(s="string", more="long"), gone="string",
    )  # fmt: skip
    records: list[dict[str, Any]] = [
        {"n": 0, "i": -7, "d": 1.5, "m": 12.25, "w": 0.5, "z": True, "s": "", "o": {"s": "ä"}, "surplus": None},
        {"n": 10**17, "i": 70, "d": -3, "m": -99, "w": 0, "z": False, "s": "]}: ,{", "o": {"s": "€"}, "surplus": 1e3},
        {"n": None, "i": None, "d": None, "m": None, "w": None, "z": None, "s": "x", "o": {"s": "x"}, "surplus": True},
    ]  # fmt: skip
    for separators in ((",", ":"), (", ", ": "), (" ,  ", " : ")):
        texts = [json.dumps(record, ensure_ascii=False, separators=separators) for record in records]
        for told, record in zip(values(texts, schema), records, strict=True):
            expected: dict[str, Any] = {name: record.get(name) for name in told}
            assert told == expected | {"o": {**record["o"], "more": None}}


def test_null_for_an_object_or_a_list_is_decoded_and_a_list_or_a_text_for_a_number_is_not() -> None:
    lists = {"type": "array", "elementType": "long"}
    schema = struct(o=struct(n="long"), l=lists, s="string", n="long")
    assert values(['{"o":null,"l":null,"s":null,"n":1}'], schema) == [{"o": None, "l": None, "s": None, "n": 1}]
    odd = ['{"n":"1"}', '{"n":{}}', '{"s":{}}', '{"s":1}', '{"l":["1"]}', '{"o":["x"]}', '{"o":"x"}', '{"n":true}']
    for record in odd:
        assert values([record] * 2, schema) == [None, None], record


def test_each_form_of_a_batch_is_found_if_it_has_enough_records() -> None:
    forms = ['{"n":%d}', '{"n":%d,"s":"x"}', '{"s":null,"n":%d}', '{"s":"x","n":%d}']
    records = [forms[number % 4] % number for number in range(400)]
    assert [told["n"] for told in values(records, struct(n="long", s="string"))] == [*range(400)]
    rare = [*records[0::4] * 20, '{"n":1,"s":"x"}']
    assert values(rare, struct(n="long"))[-1] is None


@pytest.mark.parametrize("odd", ['{"n":1,,"s":"x"}', '{"n":1,"n":2}', '{"n":"1","s":2}', '{"n":{"s":"x"}}'])
def test_one_odd_record_does_not_hide_the_form_of_the_others_wherever_it_stands(odd: str) -> None:
    usual = '{"n":1,"s":"x"}'
    for at in range(5):
        records = [usual] * 5
        records[at] = odd
        found = values(records, struct(n="long", s="string"))
        assert found == [None if place == at else {"n": 1, "s": "x"} for place in range(5)]


@pytest.mark.proof
def test_a_record_that_differs_from_its_form_in_one_byte_is_left_or_another_value() -> None:
    schema, usual = struct(n="long", s="string"), '{"n":12,"s":"ab"}'
    for at in range(len(usual)):
        for other in ['"', "\\", "\t", "x", "0", "-", " ", "}", ",", "ä", ""]:
            changed = usual[:at] + other + usual[at + 1 :]
            told = values([usual, changed, usual], schema)[1]
            read = json.loads(changed) if told is not None else {}
            assert told in (None, {name: read.get(name) for name in "ns"}), changed


@pytest.mark.parametrize(
    "odd",
    ["01", "-01", "1.", ".5", "+1", "1e", "1e+", "-", "--1", "NaN", "Inf", "0x1", "1_0", "\u0661", "TRUE", "nul", ""],
)
def test_what_is_no_value_of_json_is_left(odd: str) -> None:
    for kind in ("long", "double", "decimal(9,4)", "boolean", "string"):
        usual = {"boolean": "true", "string": "null"}.get(kind, "7")
        records = [f'{{"v": {told}, "s": "x"}}' for told in (usual, odd, usual, usual)]
        for schema in (struct(v=kind), struct(s="string")):
            first, left, last, _ = values(records, schema)
            assert left is None and first == last and first is not None, (kind, odd)


def test_numbers_are_no_truth_values_and_texts_of_numbers_no_longer_than_usual_ones() -> None:
    for odd in ("0", "1"):
        assert values([f'{{"z":{told}}}' for told in ("true", odd, "false", "true")], struct(z="boolean"))[1] is None
    for odd in ("1" * 19, "0." + "3" * 21, "1e999"):
        assert values([f'{{"d":{told}}}' for told in ("1", odd, "1", "1")], struct(d="double"))[1] is None


@pytest.mark.proof
def test_numbers_that_are_told_without_a_pattern_fit_the_pattern() -> None:
    """Every text of up to five of these characters, alone and in the midst of usual numbers."""
    texts = ["".join(told) for size in range(6) for told in itertools.product("01.-e", repeat=size)]
    for points, kind, usual, many in ((False, "long", "7", "1" * 18), (True, "double", "7.5", "0." + "3" * 17)):
        pattern, plain = re.compile(json_alike._pattern(kind)), partial(json_alike._are_plain, points=points)
        told = {text for text in texts if plain(pa.array([text]))}
        unsigned = [text for text in texts if not {"-", "e"} & {*text} and ("." in text) == points]
        assert told == set(filter(pattern.fullmatch, unsigned))
        for text in texts:
            assert plain(pa.array(["9" + usual, usual, text, usual]).slice(1)) == (text in told), text
        assert plain(pa.array([many])) and not plain(pa.array([many + "1"])) and plain(pa.array([], pa.string()))


def test_a_record_with_less_text_around_a_value_than_its_form_is_not_of_this_form() -> None:
    records = ['{"a":,"s": "x"}', '{"a":1,"s": "x"}', *['{"a": 2, "s": "x"}'] * 9]
    assert [told and told["a"] for told in values(records, struct(a="long"))] == [None, 1, *[2] * 9]


def test_only_the_records_that_are_asked_for_are_decoded() -> None:
    records = ['{"n":1}', '{"n":2}', '{"n":3}']
    assert values(records, struct(n="long"), [0, 2]) == [{"n": 1}, None, {"n": 3}]
    sliced = pa.array(['{"n":"\\', *records], pa.string()).slice(1)
    ((places, told),) = json_alike.decoded(sliced, np.arange(3), struct(n="long"), arrow_type(struct(n="long")))
    assert places.tolist() == [0, 1, 2] and told.to_pylist() == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_decoded_is_what_python_reads(seed: int) -> None:
    dice = Random(seed)
    for _ in range(100):
        require_what_python_reads(dice)


def require_what_python_reads(dice: Random) -> None:
    schema = struct(i="long", d="double", x="string", z="boolean", o=struct(x="string", i="long"))
    records = [record.decode(errors="replace") for record in alike(dice, 30)]
    for record, told in zip(records, values(records, schema), strict=True):
        if told is None:
            continue
        read = json.loads(record)
        for name, kind in (("i", int), ("x", str), ("z", bool)):
            value = read.get(name)
            assert told[name] == value and type(value) in (kind, type(None)), record
        assert told["d"] == (None if read.get("d") is None else float(read["d"])), record
        inner = read.get("o")
        assert told["o"] == (inner if inner is None else {name: inner.get(name) for name in ("x", "i")}), record
