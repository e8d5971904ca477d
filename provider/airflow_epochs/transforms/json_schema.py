"""Makes one of Spark's schemas of a JSON Schema: of the part of it that says which columns there are.

See https://json-schema.org. What only restricts values (``minimum``, ``pattern``, ``required`` …) says nothing about a
column, and is left to expectations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_DEPTH_MAX = 50
"""So a schema that refers to itself ends in an error: a column of Spark has a finite type."""


def struct_of(schema: Mapping[str, Any]) -> StructType:
    """The columns of a JSON Schema whose type is ``object``. All may be NULL. Raises Refused for what has no column."""
    from pyspark.sql.types import StructType

    kind = _kind(schema, schema, "$", 0)
    if not isinstance(kind, StructType):
        raise _refused("$", "is not of type object")
    return kind


def _kind(schema: Any, root: Mapping[str, Any], path: str, depth: int) -> DataType:
    from pyspark.sql import types

    if depth > _DEPTH_MAX:
        raise _refused(path, "is nested too deeply, or refers to itself")
    schema = _resolved(schema, root, path)
    name = _name(schema, path)
    if name == "object":
        return _struct(schema, root, path, depth)
    if name == "array":
        if "items" not in schema:
            raise _refused(path, "has no `items`")
        return types.ArrayType(_kind(schema["items"], root, f"{path}[]", depth + 1))
    plain: dict[str, DataType] = {
        "string": _text(schema),
        "integer": types.LongType(),
        "number": types.DoubleType(),
        "boolean": types.BooleanType(),
    }
    if name not in plain:
        raise _refused(path, f"has the type {name!r}")
    return plain[name]


def _text(schema: Mapping[str, Any]) -> DataType:
    from pyspark.sql import types

    formats: dict[str, DataType] = {"date-time": types.TimestampType(), "date": types.DateType()}
    return formats.get(str(schema.get("format")), types.StringType())


def _struct(schema: Mapping[str, Any], root: Mapping[str, Any], path: str, depth: int) -> DataType:
    """A struct of its ``properties``; a map if it has none, and says what ``additionalProperties`` are."""
    from pyspark.sql import types

    if properties := schema.get("properties"):
        columns = [(name, _kind(of, root, f"{path}.{name}", depth + 1)) for name, of in properties.items()]
        return types.StructType([types.StructField(name, kind) for name, kind in columns])
    if isinstance(more := schema.get("additionalProperties"), Mapping):
        return types.MapType(types.StringType(), _kind(more, root, f"{path}.*", depth + 1))
    raise _refused(path, "is an object without `properties`")


def _resolved(schema: Any, root: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The schema itself: behind a reference inside of the document, and without the choice of null."""
    for _ in range(_DEPTH_MAX):
        if not isinstance(schema, Mapping):
            raise _refused(path, "is no schema")
        if "$ref" in schema:
            schema = _referred(str(schema["$ref"]), root, path)
        elif choices := schema.get("anyOf") or schema.get("oneOf"):
            others = [each for each in choices if not (isinstance(each, Mapping) and each.get("type") == "null")]
            if len(others) != 1:
                raise _refused(path, "may be of several types")
            schema = others[0]
        else:
            return schema
    raise _refused(path, "refers to itself")


def _referred(reference: str, root: Mapping[str, Any], path: str) -> Any:
    found: Any = root
    if not reference.startswith("#"):
        raise _refused(path, f"refers to another document, {reference!r}")
    for part in reference.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or part not in found:
            raise _refused(path, f"refers to {reference!r}, which is not there")
        found = found[part]
    return found


def _name(schema: Mapping[str, Any], path: str) -> str:
    given = schema.get("type", "object" if "properties" in schema else None)
    names = [each for each in (given if isinstance(given, list) else [given]) if each not in ("null", None)]
    if len(names) != 1:
        raise _refused(path, "may be of several types" if names else "has no type")
    return str(names[0])


def _refused(path: str, why: str) -> Refused:
    return Refused(
        f"parse_json: the JSON Schema cannot become columns: {path} {why}. Nothing was written.",
        code=codes.OPERATOR_ARGUMENT,
        remedy="Give parse_json() the columns as DDL, like 'id bigint, at timestamp', or as a StructType. Then clear "
        "the failed task.",
    )
