"""Makes one of Spark's schemas of a JSON Schema: of the part of it that says which columns there are.

See https://json-schema.org. What only restricts values (``minimum``, ``pattern``, ``required`` …) says nothing about a
column, and is left to expectations.

A schema may say it in several parts. Those that all hold (its own words, ``$ref``, ``allOf``) are read as one. Of a
choice (``anyOf``, ``oneOf``, ``then`` and ``else``) nobody knows which holds, so each must give the same type; only the
columns of structs are united. Everything else is refused: no column is dropped without a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_epochs import codes
from airflow_epochs.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_Parts = list[Mapping[str, Any]]
"""Schemas that all hold, of the words of _TELLING only."""

_DEPTH_MAX = 50
"""So a schema that refers to itself ends in an error: a column of Spark has a finite type."""

_TELLING = ("type", "format", "properties", "additionalProperties", "items", "prefixItems", "const", "enum")
"""The words that say of themselves which columns there are. The last two do if none of the parts has a ``type``."""

_OF_PYTHON = {"bool": "boolean", "int": "integer", "float": "number", "str": "string", "dict": "object"}

_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_OBJECTS = ("properties", "dependentSchemas", "dependencies")


def struct_of(schema: Mapping[str, Any]) -> StructType:
    """The columns of a JSON Schema whose type is ``object``. All may be NULL. Raises Refused for what has no column."""
    from pyspark.sql.types import StructType

    kind = _kind(schema, schema, "$", 0)
    if not isinstance(kind, StructType):
        raise _refused("$", "is not of type object")
    return kind


def _kind(schema: Any, root: Mapping[str, Any], path: str, depth: int) -> DataType:
    from pyspark.sql import types

    parts, choices = _parts(schema, root, path, depth)
    if choices:
        ways = [{"allOf": [*parts, way]} for choice in choices for way in choice]
        return _united([_kind(way, root, path, depth + 1) for way in ways], path)
    name = _name(parts, path)
    if name == "object":
        return _struct(parts, root, path, depth)
    if name == "array":
        return _array(parts, root, path, depth)
    if name == "string":
        return _text(parts, path)
    plain: dict[str, DataType] = {
        "integer": types.LongType(),
        "number": types.DoubleType(),
        "boolean": types.BooleanType(),
    }
    if name not in plain:
        raise _refused(path, f"has the type {name!r}")
    return plain[name]


def _text(parts: _Parts, path: str) -> DataType:
    from pyspark.sql import types

    formats: dict[str, DataType] = {"date-time": types.TimestampType(), "date": types.DateType()}
    kinds = [formats[told] for part in parts if (told := str(part.get("format"))) in formats]
    return _united(kinds or [types.StringType()], path)


def _array(parts: _Parts, root: Mapping[str, Any], path: str, depth: int) -> DataType:
    from pyspark.sql.types import ArrayType

    items = [part["items"] for part in parts if "items" in part]
    if not items:
        raise _refused(path, "has no `items`")
    elements = [{"allOf": items}, *(first for part in parts for first in part.get("prefixItems", ()))]
    return ArrayType(_united([_kind(each, root, f"{path}[]", depth + 1) for each in elements], f"{path}[]"))


def _struct(parts: _Parts, root: Mapping[str, Any], path: str, depth: int) -> DataType:
    """A struct of its ``properties``; a map if it has none, and says what ``additionalProperties`` are.

    A property that is only ``false`` must not be there, so it has no column.
    """
    from pyspark.sql import types

    properties: dict[str, list[Any]] = {}
    for part in parts:
        for name, of in part.get("properties", {}).items():
            properties.setdefault(name, []).append(of)
    properties = {name: of for name, of in properties.items() if any(each is not False for each in of)}
    others = [part.get("additionalProperties") for part in parts if not part.get("properties")]
    maps = [each for each in others if each and isinstance(each, Mapping)]
    if properties and maps:
        raise _refused(path, "has `properties` in one part, and is a map (`additionalProperties`) in another")
    if properties:
        columns = {name: _kind({"allOf": of}, root, f"{path}.{name}", depth + 1) for name, of in properties.items()}
        return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])
    if maps:
        return types.MapType(types.StringType(), _kind({"allOf": maps}, root, f"{path}.*", depth + 1))
    raise _refused(path, "is an object without `properties`")


def _united(kinds: Sequence[DataType], path: str) -> DataType:
    """The one type that all are; of different structs, one with the columns of all."""
    from pyspark.sql.types import StructField, StructType

    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    columns: dict[str, list[DataType]] = {}
    for kind in kinds:
        if not isinstance(kind, StructType):
            told = ", ".join(sorted({each.simpleString() for each in kinds}))
            raise _refused(path, f"may be of several types: {told}")
        for field in kind.fields:
            columns.setdefault(field.name, []).append(field.dataType)
    return StructType([StructField(name, _united(several, f"{path}.{name}")) for name, several in columns.items()])


def _parts(schema: Any, root: Mapping[str, Any], path: str, depth: int) -> tuple[_Parts, list[list[Any]]]:
    """What the schema tells by its own words, by its references and by ``allOf``; and the choices that it leaves."""
    if depth > _DEPTH_MAX:
        raise _refused(path, "is nested too deeply, or refers to itself")
    if isinstance(schema, bool):  # allows all, or nothing: says nothing about a column
        return [], []
    _check(schema, path)
    parts: _Parts = [{word: schema[word] for word in _TELLING if word in schema}]
    all_choices = _choices(schema)
    choices = [choice for choice in all_choices if len(choice) > 1]
    others = [_referred(str(schema["$ref"]), root, path)] if "$ref" in schema else []
    others += [*schema.get("allOf", ()), *(choice[0] for choice in all_choices if len(choice) == 1)]
    for other in others:
        more, left = _parts(other, root, path, depth + 1)
        parts += more
        choices += left
    return parts, choices


def _check(schema: Any, path: str) -> None:
    if not isinstance(schema, Mapping):
        raise _refused(path, "is no schema")
    if dynamic := {"$dynamicRef", "$recursiveRef"} & schema.keys():
        raise _refused(path, f"has a `{dynamic.pop()}`: only `$ref` is followed")
    for words, shape, name in ((_LISTS, (list, tuple), "list"), (_OBJECTS, Mapping, "object")):
        for word in words:
            if word in schema and not isinstance(schema[word], shape):
                raise _refused(path, f"has `{word}` that is no {name}")


def _choices(schema: Mapping[str, Any]) -> list[list[Any]]:
    """Lists of schemas. Of each list one holds besides, or the value is null. Where none need hold, True is there."""
    choices = [list(schema.get(word, ())) for word in ("anyOf", "oneOf")]
    if "if" in schema:
        choices.append([schema.get("then", True), schema.get("else", True)])
    for word in ("dependentSchemas", "dependencies"):  # `dependencies` has lists of names too: they only restrict
        choices += [[each, True] for each in schema.get(word, {}).values() if not isinstance(each, (list, tuple))]
    return [[each for each in choice if not _is_null(each)] for choice in choices]


def _is_null(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    return schema.get("type") in ("null", ["null"]) or (_values(schema) == [None] and "type" not in schema)


def _values(schema: Mapping[str, Any]) -> list[Any]:
    """The values that ``const`` and ``enum`` allow; empty without them."""
    listed = schema.get("enum", ())
    return [*(listed if isinstance(listed, (list, tuple)) else ()), *([schema["const"]] if "const" in schema else ())]


def _referred(reference: str, root: Mapping[str, Any], path: str) -> Any:
    found: Any = root
    if not reference.startswith("#"):
        raise _refused(path, f"refers to another document, {reference!r}")
    if reference[1:] and not reference.startswith("#/"):
        raise _refused(path, f"refers to an anchor, {reference!r}, and not to a place such as '#/$defs/order'")
    for part in unquote(reference).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = {str(at): each for at, each in enumerate(found)}
        if not isinstance(found, Mapping) or part not in found:
            raise _refused(path, f"refers to {reference!r}, which is not there")
        found = found[part]
    return found


def _name(parts: _Parts, path: str) -> str:
    """The one name that all parts give the type, or that all allowed values have.

    What has ``properties`` is an object.
    """
    given = [part.get("type") for part in parts] + ["object" for part in parts if part.get("properties")]
    single = [each for told in given for each in (told if isinstance(told, list) else [told])]
    names = sorted({str(each) for each in single if each not in ("null", None)})
    if not names:
        allowed = [each for part in parts for each in _values(part) if each is not None]
        names = sorted({_OF_PYTHON.get(type(each).__name__, "array") for each in allowed})
    if len(names) != 1:
        raise _refused(path, f"may be of several types: {', '.join(names)}" if names else "has no type")
    return names[0]


def _refused(path: str, why: str) -> Refused:
    return Refused(
        f"parse_json: the JSON Schema cannot become columns: {path} {why}. Nothing was written.",
        code=codes.OPERATOR_ARGUMENT,
        remedy="Give parse_json() the columns as DDL, like 'id bigint, at timestamp', or as a StructType. Then clear "
        "the failed task.",
    )
