"""Records of JSON, from the usual to the strange; and cases that divide parsers, like JSONTestSuite's, written anew."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

DDL = (
    "i bigint, b tinyint, s smallint, n int, d double, m decimal(12,2), w decimal(38,10), t timestamp, "
    "tn timestamp_ntz, y date, x string, z boolean, o struct<x: string, i: int, l: array<double>, m: decimal(38,18)>, "
    "l array<struct<q: int, at: date, m: decimal(4,2)>>, g array<string>, `a.b` string, u decimal(38,29), "
    "e decimal(38,38), k array<decimal(4,2)>"
)
_WHOLE = ["0", "1", "-1", "127", "128", "-128", "-129", "32767", "32768", "2147483647", "2147483648", "-2147483649"]
_HUGE = [
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "123456789012345678901234567890",
    "9" * 39,
]
_LARGE = [
    *("1", "12", "123", "1234.5", "12345678901", "-123456789012", "12345678901.5", "1234567890123", "1e11", "3e10"),
    *("1e20", "-1e23", "9E17", "-5e32", "1e37", "99999999999999999999", "123456789012345678901.5"),
    *("12345678901234567890123456789012345678", "-" + "9" * 38, "1" + "0" * 28, "0.1e12", "1.5e28"),
]
"""Numbers with digits enough for some of the decimals, and with too many before the point."""
_REAL = [
    "1.5",
    "-0",
    "-0.0",
    "0.1",
    "1e5",
    "1E+2",
    "1e-2",
    "12.34",
    "12.345",
    "-12.3400",
    "1e400",
    "-1e-400",
    "4.9e-324",
]
_ODD = [
    "NaN",
    "Infinity",
    "-Infinity",
    "+1",
    "01",
    "1.",
    ".5",
    "0x1F",
    "1e",
    "-",
    "- 1",
    "1_000",
    "1 2",
    "\u0661",
    "Inf",
    "-Inf",
    "-NaN",
    "INF",
]
_TIMES = [
    *("2026-01-31T10:20:30Z", "2026-01-31 10:20:30.123456+05:30", "2026-01-31T10:20:30.1-00:00", "2026-02-28"),
    *(
        "2026-01-31T10:20:30",
        "2026-01-31 23:59:59.999999",
        "2026-12-31T23:59:60Z",
        "2026-02-30T00:00:00Z",
        "2026-02-30",
    ),
    *("2026-1-3", "2026-01-31T10:20:30.1234567Z", "2026-01-31T24:00:00Z", "2026-01-31T10:20:30+18:00", "0001-01-01"),
    *(
        "2026-01-31T10:20:30+19:00",
        "1582-10-10",
        "1582-10-10T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "12026-01-31",
        "today",
    ),
    *(
        "2026-01-31T10:20:30 UTC",
        "2026-01-31T10:20:30Europe/Zurich",
        "2026-01-31T10:20Z",
        "2026",
        "T10:20:30Z",
        " 2026-01-31",
    ),
    *(
        "2026-01-31T10:20:30z",
        "2026-01-31t10:20:30Z",
        "2026-01-31T10:20:30+0100",
        "1969-12-31T23:59:59.5Z",
        "1000-01-01",
    ),
]
_STRINGS = [
    *(
        r"",
        r"x",
        r"a\u0000b",
        r"\u00e4",
        "ä",
        "\U0001f600",
        r"\ud83d\ude00",
        r"\ud800",
        r"\udc00",
        r"\ud800x",
        r"\n\t\"\\\/",
    ),
    *(
        r"\x",
        r"\u12",
        "a\tb",
        "a\nb",
        "\u2028",
        "\x7f",
        "}{",
        '},{\\"n\\":1',
        "NaN",
        "1",
        "1.5",
        "1,5",
        "1e2",
        " 12.5",
        "true",
    ),
]
_FITTING = {
    "i": ["0", "-5", "9007199254740993", "9223372036854775807"],
    "b": ["1", "-128"],
    "s": ["32767"],
    "n": ["2147483647", "-1"],
    "d": ["1.5", "2", "1e10", "0.1", "9007199254740993", "1.7976931348623157e308", "2.2250738585072011e-308"],
    "m": ["12.5", "-0.01", "9999999999.99", "7"],
    "w": ["1.0000000001", "9999999999999999999999999999.9999999999"],
    "t": ['"2026-01-31T10:20:30Z"', '"2026-06-30 10:20:30.5+02:00"'],
    "tn": ['"2026-01-31T10:20:30"', '"2026-03-29 02:30:00.000001"'],
    "y": ['"2026-02-28"', '"1999-12-31"'],
    "x": ['"x"', '"\\u00e4 \\ud83d\\ude00"', '""', '"\\\\"'],
    "z": ["true", "false"],
    "o": ['{"x":"y","i":3,"l":[1.5,2],"m":7.5}', "{}", '{"l":[],"more":{"x":[1]}}'],
    "l": ['[{"q":1,"at":"2026-01-01"},{"m":99.99},null]', "[]", '[{"at":"2000-02-29"}]'],
    "g": ['["a",null,"b"]', "[]"],
    "a.b": ['"dotted"'],
    "u": ["1.5", "-999999999.99999999999999999999999999999", "1e-29"],
    "e": ["0.5", "-0." + "9" * 38, "0"],
    "surplus": ["1", '{"deep":[[1,2],{"x":null}]}', '"\\u0041"', "1e999", "[true]"],
}
_OTHERS = [
    "null",
    "{}",
    "[]",
    "[null]",
    "[1]",
    '["1"]',
    '{"x":1}',
    '{"q":"1"}',
    "true",
    "false",
    "TRUE",
    "nul",
    "'x'",
    "",
]

SUITE: tuple[bytes, ...] = (
    *(
        b"",
        b" ",
        b"\n",
        b"{",
        b"}",
        b"{}",
        b" {} ",
        b"{}\n",
        b"\xef\xbb\xbf{}",
        b"{}{}",
        b"{} {}",
        b"{},{}",
        b"{}x",
        b"{}}",
    ),
    *(
        b"null",
        b"true",
        b"1",
        b'"x"',
        b"[]",
        b"[{}]",
        b'[{"i":1},{"i":2}]',
        b"[1]",
        b"[[{}]]",
        b"nul",
        b"NaN",
        b"\x00",
        b"{}\x00",
    ),
    *(
        b'{"i":1,}',
        b'{,"i":1}',
        b'{"i":1,,"n":2}',
        b'{"i"}',
        b'{"i":}',
        b'{"i":1 "n":2}',
        b"{i:1}",
        b"{'i':1}",
        b'{"i"=1}',
    ),
    *(
        b'{"i":1}}',
        b'{"i":1}]',
        b'{"i":[1}',
        b'{"i":1',
        b'{"i"',
        b'{"',
        b'{"x":"',
        b'{"x":"a',
        b'{"x":"a\\',
        b'{"x":"a\\"}',
    ),
    *(
        b'{"i":1}//c',
        b'{"i":1}/*c*/',
        b'{/*c*/"i":1}',
        b'#{"i":1}',
        b'{"i":1}#',
        b'{"i":1};',
        b'\x0b{"i":1}',
        b'\xa0{"i":1}',
    ),
    *(
        b'{"i":1,"i":2}',
        b'{"i":1,"i":"x"}',
        b'{"i":1,"i":null}',
        b'{"o":{"x":"a"},"o":{"i":1}}',
        b'{"":1}',
        b'{"I":1}',
        b'{"\\u0069":1}',
    ),
    *(
        b'{"i":1}}{"n":1,"r":{"i":2}',
        b'{"i":1}}\n{"n":1,"r":{"i":2}',
        b'{"i":1\n',
        b'"n":2}',
        b'{"i":1},"r":{"i":2}',
        b'{"i":1},"x":{"i":2}',
        b'{"i":1},{"i":2}',
        b'{"i":1}\n{"i":2}',
        b'{"i":1}],"r":[{"i":2}',
        b'{"o":{"x":"}"},"i":1} {"i":2}',
        b'{"r":{"i":1}}',
    ),
    *(
        b'{"x":"\xff"}',
        b'{"x":"\xc3"}',
        b'{"x":"\xed\xa0\x80"}',
        b'{"x":"\xc0\xaf"}',
        b"\xff\xfe{\x00}\x00",
        b'{"\xff":1,"i":2}',
    ),
    *(
        b'{"x":"\\ud800"}',
        b'{"x":"\\udc00"}',
        b'{"x":"\\ud800\\u0041"}',
        b'{"b":1,"surplus":"\\udfff"}',
        b'{"x":"\\uD83D\\uDE00"}',
    ),
    *(
        b'{"i":-}',
        b'{"i":-01}',
        b'{"i":+1}',
        b'{"d":.5}',
        b'{"d":5.}',
        b'{"d":1e}',
        b'{"d":1e+}',
        b'{"d":0e1}',
        b'{"d":1E-2}',
        b'{"i":0x10}',
    ),
    *(f'{{"{name}":{number}}}'.encode() for name in "mwue" for number in _LARGE),  # alone: each must be found by itself
    *(b'{"i":1,"o":{"m":%b}}' % number.encode() for number in _LARGE),
    *(b'{"l":[{"m":1},{"m":%b}]}' % number.encode() for number in _LARGE[:5]),
    b'{"k":[1.5,123]}',
    *(
        b'{"surplus":[1,]}',
        b'{"surplus":{"a"}}',
        b'{"surplus":tru}',
        b'{"surplus":01}',
        b'{"surplus":"\t"}',
        b'{"surplus":NaN,"i":1}',
        b'{"surplus":Inf,"i":1}',
        b'{"d":Inf}',
        b'{"d":-Inf }',
        b'{"o":{"l":[-NaN]},"i":1}',
    ),
    *(
        b'{"d":' + b"1" * 900 + b"}",
        b'{"d":' + b"1" * 1100 + b"}",
        b'{"surplus":' + b"1" * 1100 + b',"i":1}',
        b'{"d":1.' + b"3" * 400 + b"}",
        b'{"d":' + b"1" * 150 + b"." + b"3" * 880 + b"}",
    ),
    *(b'{"surplus":' + b"[" * 300 + b"]" * 300 + b',"i":1}', b'{"surplus":' + b"[" * 1200 + b"]" * 1200 + b',"i":1}'),
    *(
        b'{"' + b"k" * 60_000 + b'":1,"i":1}',
        b'{"x":"' + b"v" * 60_000 + b'"}',
        b'{"surplus":' + b'{"a":' * 150 + b"1" + b"}" * 150 + b"}",
    ),
)


def struct(**columns: Any) -> dict[str, Any]:
    """The type of a record with these columns, as Spark's own JSON tells it."""
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in columns.items()]}


def record(dice: Random) -> bytes | None:
    """A record: most are as the schema wants them, some have one flaw or two."""
    fields = dice.sample([*_FITTING], dice.randint(0, 8))
    flaws = dice.choice([0, 0, 0, 1, 1, 2])
    parts = [(name, dice.choice(_FITTING[name])) for name in fields]
    for _ in range(flaws):
        parts.insert(dice.randint(0, len(parts)), (dice.choice([*_FITTING, "I", ""]), _any(dice)))
    blank = dice.choice(["", "", " ", "\n", "\t", "\r\n "])
    text = "{" + ",".join(f'{blank}"{name}"{blank}:{blank}{told}' for name, told in parts) + blank + "}"
    return _spoiled(text.encode(), dice) if dice.random() < 0.15 else text.encode()


def _any(dice: Random) -> str:
    kind = dice.choice([_WHOLE, _HUGE, _LARGE, _REAL, _ODD, _TIMES, _STRINGS, _OTHERS])
    told = dice.choice(kind)
    return f'"{told}"' if kind in (_TIMES, _STRINGS) or dice.random() < 0.15 else told


def _spoiled(text: bytes, dice: Random) -> bytes | None:
    at = dice.randint(0, len(text))
    return dice.choice(
        [
            None,
            text[:at],
            text[at:],
            text[:at] + bytes([dice.randint(0, 255)]) + text[at:],
            text + text,
            b"[" + text + b"]",
            b"\xef\xbb\xbf" + text,
            text + dice.choice([b" x", b"\x00", b"}", b",", b"//", b"\n"]),
            dice.choice(SUITE),
        ]
    )


def records(dice: Random, count: int) -> Sequence[bytes | None]:
    """Many records."""
    return [record(dice) for _ in range(count)]


def alike(dice: Random, count: int) -> Sequence[bytes]:
    """Records of one form or two, of the columns of ``DDL``: the same names in the same order, and the same blanks.

    A few of them differ in a value or in a byte.
    """
    forms = [_form(dice) for _ in range(dice.choice([1, 1, 2]))]
    return [_of_form(dice, dice.choice(forms)) for _ in range(count)]


def _form(dice: Random) -> list[tuple[str, str]]:
    """Names with the text before each value."""
    names = dice.sample([*_FITTING], dice.randint(1, 6))
    if dice.random() < 0.1:
        names.append(dice.choice(names))
    blank = dice.choice(["", "", " ", "  "])
    return [(name, f'{blank}"{name}"{blank}:{blank}') for name in names]


def _of_form(dice: Random, form: list[tuple[str, str]]) -> bytes:
    odd = dice.random() < 0.1
    values = [_any(dice) if odd and dice.random() < 0.5 else dice.choice(_FITTING[name]) for name, _ in form]
    told = "{" + ",".join(text + value for (_, text), value in zip(form, values, strict=True)) + "}"
    return (_spoiled(told.encode(), dice) if dice.random() < 0.05 else None) or told.encode()
