"""Rows out of records of JSON: what Spark's ``from_json`` makes of them; and apart, the records that are corrupt."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from airflow_epochs.transforms import json_alike, json_columns, worker_functions
from airflow_epochs.transforms.checks import Checks
from airflow_epochs.transforms.conditions import column_named, field_of, quoted
from airflow_epochs.transforms.json_schema import struct_of
from airflow_epochs.transforms.parsed import ORIGIN, Parsed, corrupt_of, kept_of, once, origin_beside, twice

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

MODES = ("permissive", "strict")
ENGINES = ("spark", "arrow", "auto")
_CHECKS = Checks("parse_json")
_DECODED, _RECORD, _ROW, _CORRUPT = "__epochs_json", "__epochs_record", "__epochs_row", "__epochs_corrupt"
_ERROR = "__epochs_error"
_OWN = (_DECODED, _RECORD, _ROW, _CORRUPT, _ERROR)
_POLICY = "spark.sql.legacy.timeParserPolicy"
_IN_QUOTES = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`""")
_CHAR = re.compile(r"\b(var)?char\s*\(", re.I)
_NO_CHAR = "a schema without char and varchar", "from_json does not have them, and string takes the same texts"
_COLLECTION = re.compile(r"(map|array)\s*<", re.I)
_OF_VALUE = re.compile(r"\s*(struct\s*<\s*)?`?value\b", re.I)
_DEFAULT = "EXISTS_DEFAULT"
"""In a field's metadata, as ``spark.table`` has it: what ``from_json`` takes where a record lacks the field."""
_LIBRARIES = {"pyarrow": "pyarrow"}
log = logging.getLogger(__name__)


def parse_json(
    batch: DataFrame,
    schema: str | StructType | Mapping[str, Any],
    *,
    mode: str = "permissive",
    corrupt: str = "raw",
    columns: Sequence[str | Column] = ORIGIN,
    value: str = "value",
    engine: str = "spark",
) -> Parsed:
    """Parse each record as one JSON object. Makes a plan; Spark does the work when it stages the sinks.

    The values are those of Spark's ``from_json`` with its default options, whatever the engine is. So the digest of an
    epoch is the same if a later try meets other workers. The order of the rows is that of the batch.

    Args:
        batch: The epoch's records.
        schema: The columns: as DDL, like ``"id bigint, at timestamp"``; as a StructType; or as a JSON Schema (a dict).
        mode: ``"permissive"``: a value that does not fit its column is NULL, and what is no JSON object is corrupt.
            What stands behind the object is left out, as ``from_json`` does. ``"strict"``: a record with a value that
            does not fit, or with text behind its object, or that is not UTF-8, is corrupt, too.
        corrupt: The name of the column with the record itself, binary, in ``Parsed.corrupt``.
        columns: What to keep of the batch, such as ``epoch.record``. Their names must not be names of the schema.
        value: The batch's column with the JSON, binary or string.
        engine: ``"spark"``: ``from_json``. ``"arrow"``: Spark's Python workers decode the records with pyarrow, which
            they must have, and leave to ``from_json`` what pyarrow may read in another way. ``"auto"``: ``"arrow"`` if
            the schema allows it and a Python worker has pyarrow, for which Spark runs a small job; else ``"spark"``.
            The log tells the engine and why.

    Raises:
        Refused: An argument is not valid, a column is missing or has a name twice, or the driver lacks pyarrow.
    """
    from pyspark.sql import functions as F

    _check(batch, mode, value, engine)
    wanted = columns_of(batch, schema)
    found = _found(wanted)
    taken = [*(field.name for field in wanted.fields), *_OWN, *found]
    kept = kept_of(_CHECKS, batch, columns, taken, "the schema has it, too")
    names, more = kept.columns, origin_beside(_CHECKS, batch, kept, corrupt)
    carried = batch.select(*columns, *more, F.col(quoted(value)).alias(_RECORD))
    by_engine = _by_arrow if _is_for_arrow(engine, carried, wanted) else _by_spark
    told = once(by_engine(carried, wanted, mode == "strict"))
    good, bad = told.where(F.col(_ERROR).isNull()), told.where(F.col(_ERROR).isNotNull())
    fields = [f"{name} AS {quoted(field.name)}" for name, field in found.items()]
    return Parsed(
        rows=good.selectExpr(*map(column_named, names), *fields),
        corrupt=corrupt_of(bad, [*names, *more], _ERROR, _RECORD, corrupt),
    )


def _check(batch: DataFrame, mode: str, value: str, engine: str) -> None:
    for argument, given, known in (("mode", mode, MODES), ("engine", engine, ENGINES)):
        if given not in known:
            raise _CHECKS.argument(argument, given, f"one of {', '.join(map(repr, known))}")
    _CHECKS.has("the batch", batch, [value])
    if (kind := batch.schema[value].dataType.simpleString()) not in ("binary", "string"):
        raise _CHECKS.argument("value", value, "the name of a binary or string column", f"this one is {kind}")


def columns_of(batch: DataFrame, schema: str | StructType | Mapping[str, Any]) -> StructType:
    """The schema as Spark has it, in which everything may be NULL."""
    from pyspark.sql.types import StructType

    if isinstance(schema, str):
        found = _of_ddl(batch, schema)
    elif isinstance(schema, Mapping):
        found = struct_of(schema)
    elif isinstance(schema, StructType):
        found = schema
    else:
        raise _CHECKS.argument("schema", schema, "DDL, a StructType, or a JSON Schema as a dict")
    if not found.fields:
        raise _CHECKS.argument("schema", schema, "a schema with at least one column")
    _check_columns(batch, found)
    return cast("StructType", found.toNullable())


def _of_ddl(batch: DataFrame, ddl: str) -> StructType:
    """Refuses what Spark would take for something else, or refuse with a traceback."""
    told = _IN_QUOTES.sub("``", ddl).strip()
    if told.startswith("{"):
        dictionary = "the dict that json.loads() makes of a JSON Schema"
        raise _CHECKS.argument("schema", ddl, f"DDL, like 'id bigint', or {dictionary}")
    if _CHAR.search(told):
        raise _CHECKS.argument("schema", ddl, *_NO_CHAR)
    found = None if _COLLECTION.match(told) else batch.sparkSession.createDataFrame([], ddl).schema
    if found is None or (found.fieldNames() == ["value"] and not _OF_VALUE.match(ddl)):  # Spark's name for a plain type
        raise _CHECKS.argument("schema", ddl, "names and types of columns, like 'id bigint, at timestamp'")
    return cast("StructType", found)


def _check_columns(batch: DataFrame, schema: StructType) -> None:
    from pyspark.sql.types import CharType, VarcharType

    names = schema.fieldNames()
    if any(isinstance(kind, CharType | VarcharType) for kind in _types(schema)):
        raise _CHECKS.argument("schema", schema.simpleString(), *_NO_CHAR)
    if more := twice(batch, names):
        raise _CHECKS.argument("schema", more, "a schema of columns with different names, in upper or lower case")
    if variables := [name for name in names if "${" in name]:  # in SQL, Spark puts a setting in its place
        raise _CHECKS.argument("schema", variables, "a schema of columns without ${ in their names")


# -- the engines -------------------------------------------------------------------------------------------------------

# Each gives what is carried, one column per field (``_found``), and ``_ERROR``. The row is taken apart before ``once``:
# behind it, Spark would copy it as a whole. It is taken apart in a step after ``from_json``, which so is one expression
# in the plan; and in SQL, for the reason of ``fields_of``.


def _found(wanted: StructType) -> dict[str, StructField]:
    """A column for each field. The field's own name may be that of a column of the batch."""
    return {f"__epochs_value_{number}": field for number, field in enumerate(wanted.fields)}


def _by_spark(carried: DataFrame, wanted: StructType, strict: bool) -> DataFrame:
    from pyspark.sql import functions as F

    parsed = carried.withColumn(_ROW, _from_json(F.col(_RECORD), wanted))
    values = [f"{field_of(_ROW, field.name)} AS {name}" for name, field in _found(wanted).items()]
    return parsed.selectExpr(*map(column_named, carried.columns), *values, f"{_error(strict)} AS {_ERROR}")


def _by_arrow(carried: DataFrame, wanted: StructType, strict: bool) -> DataFrame:
    """What Python workers decode; and ``from_json`` of the other records."""
    from pyspark.sql import functions as F

    plain = _without_metadata(wanted)  # from Python workers, none comes back
    decode = F.arrow_udf(_decoder(json.loads(plain.json())), plain)
    left = F.expr(f"CASE WHEN {_DECODED} IS NULL THEN {_RECORD} END")
    parsed = carried.withColumn(_DECODED, decode(_RECORD)).withColumn(_ROW, _from_json(left, plain))
    values = [
        f"coalesce({field_of(_DECODED, field.name)}, {field_of(_ROW, field.name)}) AS {name}"
        for name, field in _found(wanted).items()
    ]
    of_decoded = _behind() if strict else "NULL"
    error = f"CASE WHEN {_DECODED} IS NULL THEN {_error(strict)} ELSE {of_decoded} END AS {_ERROR}"
    told = parsed.selectExpr(*map(column_named, carried.columns), *values, error)
    return told if plain == wanted else _with_metadata(told, wanted)


def _without_metadata(kind: Any) -> Any:
    """The same type without comments and the like. It has no maps."""
    from pyspark.sql.types import ArrayType, StructField, StructType

    if isinstance(kind, ArrayType):
        return ArrayType(_without_metadata(kind.elementType))
    if not isinstance(kind, StructType):
        return kind
    return StructType([StructField(field.name, _without_metadata(field.dataType)) for field in kind.fields])


def _with_metadata(told: DataFrame, wanted: StructType) -> DataFrame:
    from pyspark.sql.types import StructField, StructType

    found = _found(wanted).items()
    fields = {name: StructField(name, field.dataType, metadata=field.metadata) for name, field in found}
    return told.to(StructType([fields.get(column.name, column) for column in told.schema.fields]))


def _is_for_arrow(engine: str, carried: DataFrame, wanted: StructType) -> bool:
    """Whether Python workers are to decode the records. Refuses the engine ``arrow`` where they cannot."""
    obstacle = _obstacle(carried, wanted) if engine != "spark" else None
    if engine == "arrow":
        worker_functions.require("parse_json", _LIBRARIES)
        if obstacle:
            raise _CHECKS.argument("engine", "arrow", "'spark' or 'auto'", obstacle)
    elif engine == "auto":
        obstacle = obstacle or worker_functions.missing(carried.sparkSession, _LIBRARIES)
    chosen = "arrow" if engine != "spark" and not obstacle else "spark"
    log.info("parse_json: the engine is %s: %s", chosen, obstacle or f"engine={engine!r}")
    return chosen == "arrow"


def _obstacle(carried: DataFrame, wanted: StructType) -> str | None:
    """Why Python workers cannot decode as ``from_json`` would."""
    from pyspark.sql.types import DateType, StructType, TimestampNTZType, TimestampType

    inside, policy = list(_types(wanted)), str(carried.sparkSession.conf.get(_POLICY, "CORRECTED"))
    fields = [field for kind in inside if isinstance(kind, StructType) for field in kind.fields]
    times = (DateType, TimestampType, TimestampNTZType)
    if not json_columns.supported(json.loads(wanted.json())):
        return "the schema has a map, a float, a binary value or another type that pyarrow's reader does not have"
    if defaults := [field.name for field in fields if _DEFAULT in field.metadata]:
        return f"the column {defaults[0]!r} has a default for records without it"
    if policy.upper() == "LEGACY" and any(isinstance(kind, times) for kind in inside):
        return f"{_POLICY} is {policy}"
    return None


def _types(kind: DataType) -> Iterator[DataType]:
    """A type, and those inside of it."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    yield kind
    if isinstance(kind, StructType):
        inside = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inside = [kind.elementType]
    else:
        inside = [kind.keyType, kind.valueType] if isinstance(kind, MapType) else []
    for each in inside:
        yield from _types(each)


def _decoder(schema: json_alike.SparkType) -> Callable[[Any], Any]:
    """What Spark's Python workers run."""
    decoded = json_columns.decoded
    return worker_functions.of_a_column(lambda records: decoded(records, schema), json_columns, json_alike)


# -- what Spark evaluates ----------------------------------------------------------------------------------------------


def _from_json(records: Column, wanted: StructType) -> Column:
    """``from_json`` with a field that tells whether a value did not fit."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType([*wanted.fields, StructField(_CORRUPT, StringType())])
    return F.from_json(records.cast("string"), schema, {"columnNameOfCorruptRecord": _CORRUPT})


def _error(strict: bool) -> str:
    """Why a record is corrupt, in SQL; NULL if it is not."""
    text, fits = f"CAST({_RECORD} AS STRING)", f"{_ROW} IS NOT NULL AND {_ROW}.{_CORRUPT} IS NULL"
    only_syntax = (
        f"from_json({text}, '__epochs_none boolean, {_CORRUPT} string', map('columnNameOfCorruptRecord', '{_CORRUPT}'))"
    )
    is_object = f"{only_syntax} IS NOT NULL AND {only_syntax}.{_CORRUPT} IS NULL"
    not_utf8 = f"WHEN {text} IS NOT NULL AND NOT is_valid_utf8({text}) THEN 'not UTF-8'"
    return f"""CASE {not_utf8 if strict else ""}
        WHEN {fits} THEN {_behind() if strict else "NULL"}
        WHEN {text} IS NULL THEN 'no value'
        WHEN {_ROW} IS NULL OR NOT ({is_object}) THEN 'not a JSON object'
        {"ELSE 'a value does not fit its column'" if strict else ""}
    END"""


def _behind() -> str:
    """Whether there is text behind a record's object, which ``from_json`` does not read; in SQL, as a reason.

    If the record's first brace that closes is its last character, there is none. Only other records are parsed again,
    as one of the two values of an object: text behind it would break that object, or make other values of it.
    """
    text = f"CAST({_RECORD} AS STRING)"
    trimmed = f"trim(BOTH ' \\t\\r\\n' FROM {text})"
    around = f"""concat('{{"{_RECORD}":', {trimmed}, ',"{_ROW}":true}}')"""
    is_whole = f"exists(array(from_json({around}, 'map<string, string>')), m -> size(m) = 2 AND m['{_ROW}'] = 'true')"
    return f"""CASE WHEN locate('}}', {trimmed}) <> char_length({trimmed}) AND {is_whole} IS NOT TRUE
        THEN 'text behind the JSON object' END"""
