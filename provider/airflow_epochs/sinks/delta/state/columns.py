"""The columns that ``schema`` of a state table names, read without Spark, so that nothing waits for Spark to be wrong.

Spark is the judge of the text. What this module does not read for certain, it leaves to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_TOKEN = re.compile(
    r"""
    --[^\r\n]* | /\*.*?\*/                                            # comments of SQL
    | r'[^']*' | r"[^"]*" | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*"  # texts
    | `(?:[^`]|``)*` | \w+ | \S                                       # names, words, and signs
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
"""A token as Spark's lexer sees it, to the extent needed to find where a column begins."""
_DEPTH = {"<": 1, "(": 1, ">": -1, ")": -1}
_SIMPLE = {
    **{word: word for word in ("string", "float", "double", "boolean", "binary", "date", "timestamp", "timestamp_ntz")},
    "byte": "byte",
    "tinyint": "byte",
    "short": "short",
    "smallint": "short",
    "int": "integer",
    "integer": "integer",
    "long": "long",
    "bigint": "long",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
"""A type's word in SQL -> the type as a table's log has it."""
_DECIMALS = ("decimal", "dec", "numeric")


class _Unread(Exception):
    """This module cannot read the type; only Spark can."""


def columns_of(schema: str) -> list[str]:
    """The names of the columns of a schema in SQL."""
    return [_name(first) for first, *_ in _columns(schema) if _is_name(first)]


def types_of(schema: str) -> dict[str, Any]:
    """Column -> its type as a table's log has it. Leaves out columns whose type only Spark can tell."""
    found = {}
    for first, *words in _columns(schema):
        try:
            found[_name(first)] = _typed(words)
        except _Unread:
            continue
    return found


def without_notes(kind: Any) -> Any:
    """A type of a table's log, or a whole schema, without comments and ids, which ``types_of`` does not tell."""
    if not isinstance(kind, dict):
        return kind
    found = {key: without_notes(value) for key, value in kind.items()}
    fields = [{**field, "type": without_notes(field["type"]), "metadata": {}} for field in kind.get("fields", ())]
    return {**found, "fields": fields} if fields else found


def _columns(schema: str) -> list[list[str]]:
    """The tokens of each column."""
    columns: list[list[str]] = [[]]
    depth = 0
    for token in _TOKEN.findall(schema):
        depth += _DEPTH.get(token, 0)
        if token == "," and depth == 0:
            columns.append([])
        elif not token.startswith(("--", "/*")):
            columns[-1].append(token)
    return [column for column in columns if column]


def _is_name(token: str) -> bool:
    return token[0] in "`_" or token[0].isalnum()


def _name(token: str) -> str:
    return token[1:-1].replace("``", "`") if token[0] == "`" else token


def _typed(words: list[str]) -> Any:
    """The type that follows a column's name. NOT NULL and a comment may come behind it: they do not change it."""
    kind, behind = _type(words[words[:1] == [":"] :])
    told = [word.lower() for word in behind]
    told = told[2:] if told[:2] == ["not", "null"] else told
    if told and not (told[0] == "comment" and len(told) == 2):
        raise _Unread
    return kind


def _type(words: list[str]) -> tuple[Any, list[str]]:
    """The type with which ``words`` begin, and the words behind it."""
    word, behind = words[0].lower() if words else "", words[1:]
    if word in _SIMPLE and behind[:1] != ["("]:
        return _SIMPLE[word], behind
    if word in _DECIMALS:
        return _decimal(behind)
    if word in _NESTED and behind[:1] == ["<"]:
        return _NESTED[word](behind[1:])
    raise _Unread


def _decimal(words: list[str]) -> tuple[str, list[str]]:
    if words[:1] != ["("]:
        return "decimal(10,0)", words
    given = [word for word in words[1 : words.index(")")] if word != ","] if ")" in words else []
    if not 1 <= len(given) <= 2 or not all(map(str.isdecimal, given)):
        raise _Unread
    return f"decimal({','.join([*given, '0'][:2])})", words[words.index(")") + 1 :]


def _array(words: list[str]) -> tuple[Any, list[str]]:
    kind, behind = _type(words)
    return {"type": "array", "elementType": kind, "containsNull": True}, _after(">", behind)


def _map(words: list[str]) -> tuple[Any, list[str]]:
    key, behind = _type(words)
    value, behind = _type(_after(",", behind))
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}, _after(">", behind)


def _struct(words: list[str]) -> tuple[Any, list[str]]:
    """The struct type with which ``words`` begin, and the words behind it.

    Reads only fields without NOT NULL and comments: a table's log keeps these in the type.
    """
    fields: list[dict[str, Any]] = []
    while not fields or words[:1] == [","]:
        first, *words = words[bool(fields) :] or [">"]
        kind, words = _type(words[words[:1] == [":"] :])
        fields.append({"name": _name(first), "type": kind, "nullable": True, "metadata": {}})
    return {"type": "struct", "fields": fields}, _after(">", words)


def _after(sign: str, words: list[str]) -> list[str]:
    if words[:1] != [sign]:
        raise _Unread
    return words[1:]


_NESTED: dict[str, Callable[[list[str]], tuple[Any, list[str]]]] = {"array": _array, "map": _map, "struct": _struct}
