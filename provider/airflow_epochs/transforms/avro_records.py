"""Rows out of records of Avro in the wire format of Confluent's registry; and apart, the records that are corrupt.

Behind the magic byte and the id of the schema is the value, as Avro's binary encoding has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.transforms import avro_names, avro_schemas, registry_frames
from airflow_epochs.transforms.avro_schemas import Resolved, Schema, SchemaFlaw
from airflow_epochs.transforms.checks import Checks
from airflow_epochs.transforms.conditions import anywhere, column_named, field_of, not_utf8, quoted
from airflow_epochs.transforms.parsed import ERROR, ORIGIN, Parsed, corrupt_of, fields_of, kept_of, once, origin_beside
from airflow_epochs.transforms.registry_frames import HEADER, NO_HEADER, NO_VALUE, NOT_UTF8, head_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CHECKS = Checks("parse_avro")
_FRAME, _VALUE, _RAW = "__epochs_frame", "__epochs_value", "__epochs_raw"
_END = b"EPOCHS\0!"
"""Bytes put behind each value that Spark decodes. If it finds others there, the value is corrupt. By itself, Spark
reports neither a value that cannot be decoded nor bytes that are left over. No beginning of them is also their end."""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_JAR = "org.apache.spark:spark-avro_2.13"


def parse_avro(
    batch: DataFrame,
    reader_schema: str | Mapping[str, Any],
    *,
    schemas: Mapping[int, str | Mapping[str, Any] | list[Any]] | None = None,
    registry: str | None = None,
    corrupt: str = "raw",
    columns: Sequence[str | Column] = ORIGIN,
    value: str = "value",
) -> Parsed:
    """Decode each record with the schema it was written with. Makes a plan; Spark decodes when it stages the sinks.

    The rows have the columns of ``reader_schema``, whatever the record's own schema is, by Avro's rules: fields that
    the reader's schema does not have are left out, missing ones get its default, and numbers become wider.

    Corrupt are: records without a value or without the magic byte; with an id that is not known; of a schema that
    cannot be read into the reader's; that are not of their schema, or have bytes left over; with a text that is not
    UTF-8. Spark must have the jar of ``org.apache.spark:spark-avro``.

    Args:
        batch: The epoch's records.
        reader_schema: The Avro schema of the rows, a record: as JSON text, or as what the text stands for.
        schemas: The id of each schema that records may have -> the schema, complete in itself. A rerun must have the
            same ones.
        registry: In place of ``schemas``: the connection of the schema registry, as the source has it in
            ``registry_conn_id``. Then the schemas are what the registry had when the epoch was opened.
        corrupt: The name of the column with the record itself, binary, in ``Parsed.corrupt``.
        columns: What to keep of the batch, such as ``epoch.record``. Their names must not be names of the schema.
        value: The batch's binary column with the records.

    Raises:
        Refused: An argument is not valid, a column is missing or has a name twice, or Spark lacks the jar.
    """
    from pyspark.sql import functions as F

    reader = _reader(reader_schema)
    written, unusable = registry_frames.written(_CHECKS, schemas, registry, "AVRO")
    registry_frames.require_binary(_CHECKS, batch, value)
    fields = [field["name"] for field in reader.root["fields"]]
    kept = kept_of(_CHECKS, batch, columns, [*fields, _FRAME, _VALUE, _RAW], "the schema has it, too")
    names, more = kept.columns, origin_beside(_CHECKS, batch, kept, corrupt)
    known, problems = _readable(written, reader)
    carried = batch.select(*columns, *more, F.col(quoted(value)).alias(_RAW))
    declared = avro_names.for_reader(reader)
    wide = avro_names.with_room(declared)
    with _spark_has_avro():
        framed = once(carried.withColumn(_FRAME, _decoded(known, wide)))
        whole = F.when(F.col(f"{_FRAME}.end") == F.lit(_END), F.col(f"{_FRAME}.value"))
        told = framed.withColumn(_VALUE, whole)
        kind = json.loads(told.schema.json())["fields"][-1]["type"]
        narrow = None if wide == declared else _kind_of(carried, declared)
    flaws = anywhere(_VALUE, narrow, _too_large), anywhere(_VALUE, kind, not_utf8)
    told = told.withColumn(ERROR, _error([*known], {**unusable, **problems}, *flaws))
    good, bad = told.where(F.col(ERROR).isNull()), told.where(F.col(ERROR).isNotNull())
    return Parsed(
        rows=_rows(good, [*map(column_named, names)], kind, narrow),
        corrupt=corrupt_of(bad, [*names, *more], ERROR, _RAW, corrupt),
    )


def _reader(told: str | Mapping[str, Any]) -> Resolved:
    try:
        reader = avro_schemas.resolved(dict(told) if isinstance(told, Mapping) else told)
        avro_schemas.require_columns(reader)
    except SchemaFlaw as flaw:
        raise _CHECKS.argument("reader_schema", told, "a schema that Spark can read", f"this one {flaw}") from None
    return reader


def _readable(schemas: Mapping[int, Any], reader: Resolved) -> tuple[dict[int, Schema], dict[int, str]]:
    """The schemas that can be read into the reader's, as Spark has to have them; and why the others cannot."""
    known: dict[int, Schema] = {}
    problems: dict[int, str] = {}
    for number, told in sorted(schemas.items()):
        try:
            writer = avro_schemas.resolved(told)
        except SchemaFlaw as flaw:
            problems[number] = f"schema {number} {flaw}"
            continue
        try:
            known[number] = avro_names.for_writer(writer, reader)
        except SchemaFlaw as problem:
            problems[number] = f"schema {number} cannot be read into the reader's: {problem}"
    return known, problems


# -- what Spark evaluates ----------------------------------------------------------------------------------------------


def _decoded(known: Mapping[int, Schema], reader: Schema) -> Column:
    """The decoded value, and the bytes found behind it; a struct of NULLs if the value cannot be decoded."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    wanted = _framed(reader)
    # A session's setting must not move dates.
    options = {"avroSchema": wanted, "mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
    body = F.concat(F.expr(f"substring({_RAW}, {HEADER + 1})"), F.lit(_END))
    head = F.substring(_RAW, 1, HEADER)
    found = F.when(F.lit(False), from_avro(body, wanted, options))  # gives the type, if no schema is known
    for number, writer in known.items():
        found = found.when(head == F.lit(head_of(number)), from_avro(body, _framed(writer), options))
    return found


def _kind_of(batch: DataFrame, reader: Schema) -> Any:
    """The type in Spark's JSON that a reader's schema stands for. All parts of it may be NULL, as after a cast."""
    from pyspark.sql.avro.functions import from_avro

    found = batch.select(from_avro(_RAW, _framed(reader)).getField("value"))
    return _nullable(json.loads(found.schema.json())["fields"][0]["type"])


def _nullable(kind: Any) -> Any:
    if not isinstance(kind, dict):
        return kind
    inside = {part: _nullable(kind[part]) for part in ("elementType", "keyType", "valueType") if part in kind}
    flags = dict.fromkeys((part for part in ("containsNull", "valueContainsNull") if part in kind), True)
    fields = [{**each, "type": _nullable(each["type"]), "nullable": True} for each in kind.get("fields", ())]
    return {**kind, **inside, **flags, **({"fields": fields} if fields else {})}


def _too_large(value: str, kind: str | None) -> str | None:
    """The condition that a number has more digits than its type, where ``avro_names.with_room`` lets it have them."""
    told = _DECIMAL.fullmatch(kind or "")
    if not told or int(told[1]) > avro_names.DIGITS_OF_LONG:
        return None
    return f"abs({value}) >= 1{'0' * (int(told[1]) - int(told[2]))}BD"


def _rows(good: DataFrame, kept: list[str], kind: Any, narrow: Any) -> DataFrame:
    """The rows; ``narrow``: the type that their values must be cast to, None if they need no cast."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    columns = fields_of(_VALUE, [each["name"] for each in kind["fields"]])
    if narrow is None:
        return good.selectExpr(*kept, *columns)
    types = zip(StructType.fromJson(narrow).fields, StructType.fromJson(_nullable(kind)).fields, strict=True)
    cast = [
        F.expr(field_of(_VALUE, to.name)).try_cast(to.dataType).alias(to.name) if to != given else F.expr(column)
        for column, (to, given) in zip(columns, types, strict=True)
    ]
    return good.select(*map(F.expr, kept), *cast)


@contextmanager
def _spark_has_avro() -> Iterator[None]:
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        if "AVRO_NOT_LOADED" not in str(error):
            raise
        raise Refused(
            "parse_avro: Spark does not have the jar that decodes Avro. Nothing was written.",
            code=codes.SPARK_INCOMPLETE,
            remedy=f"Start Spark with --packages {_JAR}:<version of your Spark>, or with this jar. Then clear the "
            "failed task.",
        ) from None


def _framed(schema: Schema) -> str:
    """The schema of a record with ``_END`` behind it."""
    end = {"type": "fixed", "name": "epochs_end", "namespace": "airflow_epochs", "size": len(_END)}
    fields = [{"name": "value", "type": schema}, {"name": "end", "type": end}]
    return json.dumps({"type": "record", "name": "epochs_frame", "namespace": "airflow_epochs", "fields": fields})


def _error(known: Sequence[int], problems: Mapping[int, str], too_large: str | None, no_text: str | None) -> Column:
    """Why a record is corrupt; NULL if it is not."""
    from pyspark.sql import functions as F

    head, frame = F.substring(_RAW, 1, HEADER), F.col(_FRAME)
    number = F.conv(F.hex(F.substring(_RAW, 2, HEADER - 1)), 16, 10)
    framed = (F.length(_RAW) >= HEADER) & (F.substring(_RAW, 1, 1) == F.lit(b"\0"))
    told = F.when(F.col(_RAW).isNull(), NO_VALUE).when(~framed, NO_HEADER)
    for each, problem in problems.items():
        told = told.when(head == F.lit(head_of(each)), F.lit(problem))
    told = told.when(~number.isin([str(each) for each in known]), F.concat(F.lit("unknown schema id "), number))
    unlike = F.concat(F.lit("not of its schema, "), number)
    told = told.when(frame.getField("end").isNull(), unlike)
    left_over = F.concat(F.lit("bytes left over behind a value of schema "), number)
    told = told.when(frame.getField("end") != F.lit(_END), left_over)
    told = told.when(F.expr(f"coalesce({too_large}, false)"), unlike) if too_large else told
    return told.when(F.expr(f"coalesce({no_text}, false)"), NOT_UTF8) if no_text else told
