"""How a MERGE compares keys and sequences in rows with keys and sequences in the table: nested fields by their names.

Spark compares structs by the places of their fields, whatever the names, and a table may have them in another order
than the rows. The order does not change which values are equal. It changes which value is greater: the rows' order
decides, as it does within an epoch. The vote requires that ``sequence_by`` has the table's order in the rows: so all
writers mean the same.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_epochs.spark.driver.delta.schema import JsonDict, type_name
from airflow_epochs.spark.driver.delta.spelling import identifier
from airflow_epochs.transforms.conditions import field_of, quoted


def in_order_of(kind: Any, value: str, depth: int = 0) -> str:
    """``value``, in SQL, with nested fields in the order that they have in ``kind``, a type in Spark's JSON.

    Spark compares no maps, so what is inside of them stays as it is. So do arrays of arrays: Delta, too, takes what is
    inside of these by its place when it writes.
    """
    if not isinstance(kind, dict):
        return value
    if kind["type"] == "struct":
        # With their names: Spark makes fields of two types comparable only if they have the same names.
        fields = [
            f"{in_order_of(field['type'], field_of(value, field['name']), depth)} AS {quoted(field['name'])}"
            for field in kind["fields"]
        ]
        return f"IF({value} IS NULL, NULL, struct({', '.join(fields)}))"
    if kind["type"] == "array" and not _is_array(kind["elementType"]):
        element = f"e{depth}"
        made = in_order_of(kind["elementType"], element, depth + 1)
        return value if made == element else f"transform({value}, {element} -> {made})"
    return value


def _is_array(kind: Any) -> bool:
    return isinstance(kind, dict) and kind["type"] == "array"


def has_same_names(kind: Any, other: Any) -> bool:
    """Whether two types have the same nested fields, in whatever order. Names have no case."""
    return bool(_names(kind) == _names(other))


def _names(kind: Any) -> Any:
    if not isinstance(kind, dict):
        return None
    if kind["type"] == "struct":
        return {field["name"].lower(): _names(field["type"]) for field in kind["fields"]}
    return kind["type"], _names(kind.get("elementType"))


def problems_of_order(target: str, table: JsonDict, rows: JsonDict, sequence_by: str | None) -> list[str]:
    """The problem that the fields in ``sequence_by`` have another order in the table than in the rows, if they have."""
    ours, theirs = (column_of(schema, sequence_by or "") for schema in (rows, table))
    if ours is None or theirs is None or not has_same_names(ours["type"], theirs["type"]):
        return []  # what else may be wrong is told elsewhere
    moves = list(_moves(theirs["type"], ours["type"], quoted(theirs["name"])))
    if not moves:
        return []
    statements = "; ".join(f"ALTER TABLE {identifier(target)} ALTER COLUMN {move}" for move in moves)
    return [
        f"column {theirs['name']!r} is {type_name(ours['type'])} in the rows and {type_name(theirs['type'])} in the "
        "table, and as `sequence_by` it has an order that depends on the order of its fields. Let the transform return "
        f"them in the table's order. Or type {statements} in Spark: then the table has the rows' order"
    ]


def problems_of_places(mode: str, table: JsonDict, rows: JsonDict) -> list[str]:
    """The problem that a MERGE would exchange the values of fields, if it would. Empty for modes that are no MERGE.

    Delta's MERGE stores the fields of structs by their names, but inside of arrays of arrays, or of maps, by their
    places.
    """
    if mode not in ("upsert", "merge"):
        return []
    both = ((field, column_of(table, field["name"])) for field in rows["fields"])
    return [
        f"column {own['name']!r} is {type_name(field['type'])} in the rows and {type_name(own['type'])} in the table, "
        "and Delta's MERGE takes fields inside of arrays of arrays, or of maps, by their places. Let the transform "
        "return them in the table's order"
        for field, own in both
        if own and _is_exchanged(field["type"], own["type"])
    ]


def _is_exchanged(kind: Any, other: Any, *, by_place: bool = False) -> bool:
    """Whether fields that Delta takes by their places have another order. Other differences do not count here."""
    if not isinstance(kind, dict) or not isinstance(other, dict) or kind["type"] != other["type"]:
        return False
    if kind["type"] == "struct":
        ours, theirs = ({field["name"].lower(): field["type"] for field in each["fields"]} for each in (kind, other))
        if by_place and list(ours) != list(theirs):
            return True
        return any(_is_exchanged(ours[name], theirs[name], by_place=by_place) for name in ours.keys() & theirs.keys())
    if kind["type"] == "array":
        inner = kind["elementType"]
        in_array = by_place or (isinstance(inner, dict) and inner["type"] in ("array", "map"))
        return _is_exchanged(inner, other["elementType"], by_place=in_array)
    parts = ("keyType", "valueType") if kind["type"] == "map" else ()
    return any(_is_exchanged(kind[part], other[part], by_place=by_place) for part in parts)


def column_of(schema: JsonDict, name: str) -> JsonDict | None:
    """The schema's column of this name, which has no case."""
    return next((field for field in schema["fields"] if field["name"].lower() == name.lower()), None)


def _moves(kind: Any, wanted: Any, place: str) -> Iterator[str]:
    """How ALTER COLUMN brings the fields within a column into the ``wanted`` order. Both have the same names."""
    if not isinstance(kind, dict):
        return
    if kind["type"] == "array":
        yield from _moves(kind["elementType"], wanted["elementType"], f"{place}.element")
    if kind["type"] != "struct":
        return
    fields = {field["name"].lower(): field for field in kind["fields"]}
    now, last = list(fields), ""
    for at, field in enumerate(wanted["fields"]):
        own = fields[field["name"].lower()]
        name = quoted(own["name"])
        if now[at] != own["name"].lower():
            yield f"{place}.{name} {f'AFTER {last}' if last else 'FIRST'}"
            now.remove(own["name"].lower())
            now.insert(at, own["name"].lower())
        yield from _moves(own["type"], field["type"], f"{place}.{name}")
        last = name
