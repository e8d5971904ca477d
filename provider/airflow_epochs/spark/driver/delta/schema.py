"""Do rows fit a table? Compares schemas in the JSON form that Delta and Spark share. Standard library only.

It is strict on purpose. Delta would cast or merge some columns that are refused here. But a column that quietly changes
its meaning is worse than an epoch that stops and names the column.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from airflow_epochs.transforms.conditions import quoted
from airflow_epochs.transforms.fit import widens

JsonDict = dict[str, Any]

GENERATED = "delta.generationExpression"
INVARIANTS = "delta.invariants"
IDENTITY = "delta.identity.start"
EXPLICIT_IDENTITY = "delta.identity.allowExplicitInsert"
DEFAULT = "CURRENT_DEFAULT"
COLUMN_MAPPING = "delta.columnMapping.mode"
_NESTED = ("elementType", "keyType", "valueType")
_UNMAPPED = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that no name may have in a table that does not map its columns."""
_NOT_STORED = re.compile(r"interval|time\(")


def maps_columns(properties: Mapping[str, str]) -> bool:
    """Whether a table with these properties has its columns under other names in its files."""
    return properties.get(COLUMN_MAPPING, "none") != "none"


def needs_mapping(kind: Any) -> bool:
    """Whether a type has names, nested or not, that Delta takes only in a table that maps its columns."""
    return next(places_to_map(kind), None) is not None


def places_to_map(kind: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of fields whose names Delta takes only in a table that maps its columns: names from the outside in."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", []):
        at = (*place, field["name"])
        if _UNMAPPED.search(field["name"]):
            yield at
        yield from places_to_map(field["type"], at)
    for key in _NESTED:
        yield from places_to_map(kind.get(key), (*place, key.removesuffix("Type")))


def not_stored(kind: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Columns, and parts of columns, of types that Delta cannot store, each with its type: intervals and times."""
    if not isinstance(kind, dict):
        if _NOT_STORED.match(str(kind)):
            yield path, str(kind)
        return
    parts = [(field["name"], field["type"]) for field in kind.get("fields", [])]
    parts += [(key.removesuffix("Type"), kind[key]) for key in _NESTED if key in kind]
    for name, part in parts:
        yield from not_stored(part, f"{path}.{name}" if path else name)


def without_mapping(name: str) -> str:
    """A name like this one that Delta takes in every table."""
    return _UNMAPPED.sub("_", name)


def problems(
    table: JsonDict, rows: JsonDict, *, add_columns: bool = False, partition_by: Collection[str] = ()
) -> list[str]:
    """Why rows of schema ``rows`` cannot be appended to ``table``; empty if they can. Names without case, as Delta.

    With ``add_columns``, the table may lack columns. The rows must have all columns by which Delta's writer partitions.
    """
    columns = {field["name"].lower(): field for field in table["fields"]}
    given = {field["name"].lower() for field in rows["fields"]}
    fitting = [field for field in rows["fields"] if not add_columns or field["name"].lower() in columns]
    found = [text for field in fitting if (text := _misfit(columns.get(field["name"].lower()), field))]
    partitions = {name.lower() for name in partition_by}
    for name, column in columns.items():
        if name in given or _filled_by_delta(column):
            continue
        if required := _required(column):
            found.append(f"column {required!r} is NOT NULL in the table and missing in the rows")
        elif name in partitions:
            found.append(f"column {column['name']!r} partitions the table and is missing in the rows")
    return found


def retyped(place: str, table: JsonDict, declared: Mapping[str, Any]) -> str | None:
    """The problem that the table of a state, or its initial table, has other types than the DAG; None if it has not.

    ``declared``: column -> type. A column that one side lacks does not count.
    """
    kinds = {field["name"]: field["type"] for field in table["fields"]}
    wrong = [
        f"{name} is {told_type(kinds[name])} there and {told_type(kind)} in `schema`"
        for name, kind in declared.items()
        if name in kinds and kinds[name] != kind
    ]
    return f"The state table {place} has other types than the DAG declares: {'; '.join(wrong)}." if wrong else None


_COPIES = re.compile(r"\bUPDATE\s+SET\s+\*|\bINSERT\s+\*", re.IGNORECASE)
"""A clause of a MERGE that copies all columns of the rows: Delta casts them, and so rounds and cuts values."""


def copies(clauses: str) -> bool:
    """Whether one of these clauses of a MERGE copies whole rows."""
    return _COPIES.search(clauses) is not None


def problems_of_merge(table: JsonDict, rows: JsonDict, clauses: str, keys: Collection[str]) -> list[str]:
    """Why a MERGE with these clauses cannot bring rows of schema ``rows`` into ``table``; empty if it can.

    Key columns are compared: Spark compares keys in the wider type, where keys of two rows may be equal. Other
    columns are compared only if a clause copies them with the whole row: what a user writes out may be meant to change
    values.
    """
    columns = {field["name"].lower(): field for field in table["fields"]}
    both = [(columns[name], field) for field in rows["fields"] if (name := field["name"].lower()) in columns]
    compared, copied = {key.lower() for key in keys}, copies(clauses)
    return [
        _difference(column, field)
        for column, field in both
        if (is_key := column["name"].lower() in compared) or copied
        if _is_cast(field["type"], column["type"], whole=is_key)
    ]


def _is_cast(kind: Any, wanted: Any, *, whole: bool) -> bool:
    """Whether values of type ``kind`` may change in the ``wanted`` type.

    ``whole``: also by a field that one side lacks.
    """
    if not isinstance(kind, dict) or not isinstance(wanted, dict):
        return kind not in (wanted, "void") and not widens(kind, wanted)
    if kind["type"] != wanted["type"]:
        return True
    fields = {field["name"].lower(): field["type"] for field in wanted.get("fields", ())}
    own = {field["name"].lower(): field["type"] for field in kind.get("fields", ())}
    inside = [(part, fields.get(name)) for name, part in own.items()]
    inside += [(kind[key], wanted[key]) for key in _NESTED if key in kind]
    lacks = whole and own.keys() != fields.keys()
    return lacks or any(other is not None and _is_cast(part, other, whole=whole) for part, other in inside)


def _required(column: JsonDict) -> str | None:
    """The column, or the first field within its structs, that is never NULL; None if all of it may be."""
    if not column["nullable"]:
        return str(column["name"])
    kind = column["type"]
    inside = kind["fields"] if isinstance(kind, dict) and kind["type"] == "struct" else []
    return next((f"{column['name']}.{name}" for field in inside if (name := _required(field))), None)


def _misfit(column: JsonDict | None, field: JsonDict) -> str | None:
    if column is None:
        return f"column {field['name']!r} ({type_name(field['type'])}) is not in the table"
    if IDENTITY in (metadata := column.get("metadata", {})) and not metadata.get(EXPLICIT_IDENTITY):
        return (
            f"column {column['name']!r} is an identity column. Delta generates its values, so the rows must not have it"
        )
    if _comparable(column["type"]) == _comparable(field["type"]):
        return None
    return _difference(column, field)


def _difference(column: JsonDict, field: JsonDict) -> str:
    rows, table = type_name(field["type"]), type_name(column["type"])
    return f"column {column['name']!r} is {rows} in the rows and {table} in the table"


def _filled_by_delta(column: JsonDict) -> bool:
    return any(key in column.get("metadata", {}) for key in (GENERATED, IDENTITY, DEFAULT))


def _comparable(kind: Any) -> Any:
    """A type without nullability, metadata and case; order of nested fields does not count."""
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "struct":
        return {field["name"].lower(): _comparable(field["type"]) for field in kind["fields"]}
    return kind["type"], *(_comparable(kind[key]) for key in _NESTED if key in kind)


def type_name(kind: Any) -> str:
    """A type as SQL users know it."""
    if not isinstance(kind, dict):
        return str(kind)
    if kind["type"] == "struct":
        inside = ", ".join(f"{field['name']}: {type_name(field['type'])}" for field in kind["fields"])
        return f"struct<{inside}>"
    if kind["type"] == "array":
        return f"array<{type_name(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{type_name(kind['keyType'])}, {type_name(kind['valueType'])}>"
    return str(kind["type"])


def widened(kind: Any, now: Any) -> Any:
    """The type ``kind`` with the wider types that it, or the parts of it, have got in ``now``; fields have no case."""
    if not isinstance(kind, dict) or not isinstance(now, dict) or kind["type"] != now["type"]:
        return now if widens(kind, now) else kind
    parts = {key: widened(kind[key], now[key]) for key in _NESTED if key in kind and key in now}
    if "fields" not in kind:
        return {**kind, **parts}
    types = {field["name"].lower(): field["type"] for field in now["fields"]}
    fields = [{**field, "type": widened(field["type"], types.get(field["name"].lower()))} for field in kind["fields"]]
    return {**kind, "fields": fields}


PLAIN_TEXT = "string collate UTF8_BINARY"
"""Spark Connect may write this for ``string``. Spark takes both for the same type; no other reader knows this one."""
_IN_SQL = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint", PLAIN_TEXT: "string"}


def told_by_spark(kind: Any) -> Any:
    """A type of a table's log as Spark tells it, in which every plain text is ``string``."""
    if not isinstance(kind, dict):
        return "string" if kind == PLAIN_TEXT else kind
    parts = {key: told_by_spark(kind[key]) for key in _NESTED if key in kind}
    fields = [{**field, "type": told_by_spark(field["type"])} for field in kind.get("fields", ())]
    return {**kind, **parts, **({"fields": fields} if fields else {})}


_FOR_EVERY_SERVER = _IN_SQL | {"timestamp": "timestamp_ltz"}
"""With ``spark.sql.timestampType=TIMESTAMP_NTZ``, a server takes the word ``timestamp`` for a time without zone."""


def told_type(kind: Any) -> str:
    """A type as digests of rows tell it. Digests on record have this spelling, so it stays."""
    return _spelt(kind, _IN_SQL)


def sql_type(kind: Any) -> str:
    """A type as Spark's SQL reads it back, on every server."""
    return _spelt(kind, _FOR_EVERY_SERVER)


def sql_columns(schema: JsonDict) -> str:
    """All columns of a table as CREATE TABLE and REPLACE COLUMNS take them."""
    return ", ".join(f"{quoted(field['name'])} {_spelt_field(field, _FOR_EVERY_SERVER)}" for field in schema["fields"])


def _spelt(kind: Any, words: Mapping[str, str]) -> str:
    if not isinstance(kind, dict):
        return words.get(kind, str(kind))
    if kind["type"] == "struct":
        inside = ", ".join(f"{quoted(field['name'])}: {_spelt_field(field, words)}" for field in kind["fields"])
        return f"struct<{inside}>"
    if kind["type"] == "array":
        return f"array<{_spelt(kind['elementType'], words)}>"
    return f"map<{_spelt(kind['keyType'], words)}, {_spelt(kind['valueType'], words)}>"


def _spelt_field(field: JsonDict, words: Mapping[str, str]) -> str:
    comment = field.get("metadata", {}).get("comment", "").replace("\\", "\\\\").replace("'", "\\'")
    required = "" if field["nullable"] else " not null"
    return _spelt(field["type"], words) + required + (f" comment '{comment}'" if comment else "")
