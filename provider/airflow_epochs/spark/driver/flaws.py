"""Which rows a destination would not take, as conditions that Spark computes while it stages the others.

The vote (``sinks.row_flaws``) applies the same conditions to every staged row again. So a flaw that is not seen here
aborts the epoch, and no row is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_epochs.spark.driver.delta import dates, folders, partitions
from airflow_epochs.spark.driver.delta.schema import sql_type
from airflow_epochs.spark.driver.plans import Fit
from airflow_epochs.transforms import exact_json
from airflow_epochs.transforms.conditions import anywhere, field_of, is_text, not_utf8, outside, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OF_A_RECORD = ("key", "value", "headers", "partition")
"""Columns that a topic takes as they are; without ``value``, it makes JSON of all others."""
Bytes = Callable[[str, Any], "str | None"]
"""Makes the number of bytes for a value, given in SQL, and its type; None if it is always 0."""
Flaw = tuple[str, str]
"""What is wrong with a row, and the condition in SQL that is true of such a row."""

_RECORD_OVERHEAD = 256
"""The bytes of a Kafka record besides key, value and the row's own headers: its batch, and the provider's header."""
_FRACTION_BYTES = len(".000000")
"""The characters of a time's fraction of a second: Spark writes it always, the sink leaves it out if it is zero."""
_SHORT_MAX = 255
"""The longest text, in bytes, that a schema may encode shorter: the name of an enum, a time."""


def first_flaw(frame: DataFrame, fit: Fit) -> Column | None:
    """The first flaw of a row, as text; NULL for a row without. None if no row can have one."""
    from pyspark.sql import functions as F

    known = tuple(each for each in fit.conditions if _is_about(frame, each[1]))
    found = list(flaws(json.loads(frame.schema.json()), replace(fit, conditions=known)))
    if not found:
        return None
    cases = " ".join(f"WHEN coalesce({condition}, false) THEN {literal(what)}" for what, condition in found)
    return F.expr(f"CASE {cases} END")


def _is_about(frame: DataFrame, condition: str) -> bool:
    """Whether the rows have the condition's columns. Without them, only the table itself can check it."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    try:
        return bool(frame.select(F.expr(condition)).schema)
    except AnalysisException:
        return False


def flaws(schema: dict[str, Any], fit: Fit) -> Iterator[Flaw]:
    """All flaws that rows of this schema (in Spark's JSON) can have."""
    for field in schema["fields"]:
        found = _of_column(field["name"], field["type"], fit)
        yield from found if _is_in(field["name"], fit.keys) else _unless(fit.unless, found)
        if _is_in(field["name"], fit.partition_by):  # also of a row that deletes: it is staged in its partition
            yield from _of_partition(field["name"], field["type"], fit)
    rules = [(f"the row breaks {what}", condition) for what, condition in fit.conditions]
    rules += [(of_expected(rule.condition), rule.condition) for rule in fit.expected]
    yield from _unless(fit.unless, ((what, f"NOT coalesce(({condition}), false)") for what, condition in rules))
    if fit.record_bytes is not None:
        size = _record_size({field["name"]: field["type"] for field in schema["fields"]}, fit.packed)
        yield f"the record has more than {fit.record_bytes} bytes", f"{size} > {fit.record_bytes}"


def of_expected(condition: str) -> str:
    """The flaw of a row that breaks an expectation of the pipeline."""
    return f"the row breaks the expectation {condition!r}"


def _of_record_part(column: str, kind: Any, low: str, fit: Fit) -> Iterator[Flaw]:
    if fit.keyed and low == "key":
        yield "the record has no key, which a compacted topic wants", f"{column} IS NULL"
    if fit.partitions is not None and low == "partition" and kind == "integer":
        yield f"the topic has only {fit.partitions} partitions", f"{column} NOT BETWEEN 0 AND {fit.partitions - 1}"


def _unless(condition: str | None, found: Iterable[Flaw]) -> Iterator[Flaw]:
    for what, flawed in found:
        yield what, f"({flawed}) AND NOT coalesce(({condition}), false)" if condition else flawed


def _is_in(name: str, names: Iterable[str]) -> bool:
    return name.lower() in {each.lower() for each in names}


def _of_column(name: str, kind: Any, fit: Fit) -> Iterator[Flaw]:
    column, low = quoted(name), name.lower()
    if fit.is_topic and low in OF_A_RECORD:  # bytes that the topic takes as they are
        yield from _of_record_part(column, kind, low, fit)
        return
    if _is_in(name, fit.required):
        yield f"column {name} is NULL", f"{column} IS NULL"
    if fit.utf8 and (condition := anywhere(column, kind, not_utf8)):
        yield f"column {name} is not UTF-8", condition
    if not fit.nul and (condition := anywhere(column, kind, _has_nul)):
        yield f"column {name} has a NUL character", condition
    if fit.calendar and (condition := anywhere(column, kind, outside)):
        yield f"column {name} {dates.UNKNOWN}", condition
    if fit.dates and (condition := dates.unknown(column, kind)):
        yield f"column {name} {dates.UNKNOWN}", condition
    if fit.json and (condition := _equal_keys(column, kind)):
        yield f"column {name} has a map with equal keys, which JSON has not", condition
    longest = {each.lower(): size for each, size in fit.longest.items()}.get(low)
    if longest is not None and is_text(kind):
        yield f"column {name} has more than {longest} characters", f"char_length({column}) > {longest}"


def _of_partition(name: str, kind: Any, fit: Fit) -> Iterator[Flaw]:
    if flaw := partitions.flaw(quoted(name), kind):
        what, condition = flaw
        yield f"the partition column {name} {what}", condition
    if fit.folders and (unfit := folders.condition(name, quoted(name), kind)):
        yield from _unless(fit.unless, [(f"the partition column {name} {folders.UNFIT}", f"({unfit})")])


def _has_nul(value: str, kind: str) -> str | None:
    return f"contains({value}, char(0))" if is_text(kind) else None


def _equal_keys(value: str, kind: Any) -> str | None:
    """The condition that a map in the value has equal keys: Spark keeps such keys when it reads JSON."""
    return anywhere(value, kind, lambda *_: None, of_map=_has_equal_keys)


def _has_equal_keys(value: str) -> str:
    return f"cardinality(array_distinct(map_keys({value}))) < cardinality({value})"


def _record_size(kinds: Mapping[str, Any], packed: bool) -> str:
    """The bytes of the Kafka record for a row, in SQL. A value that the sink makes as JSON is estimated.

    If the sink packs the value as Avro or Protobuf, only its long texts and binaries count: other values may take much
    less than their JSON, and a row that the topic takes must not become a dead letter. The vote knows the whole size.

    A column of a type that the topic does not take has no size: the vote says what is wrong with it.
    """
    found = {name.lower(): (quoted(name), kind) for name, kind in kinds.items()}
    sized = [column for low, (column, kind) in found.items() if low in ("key", "value") and _is_bytes(kind)]
    parts = [f"coalesce(octet_length({column}), 0)" for column in sized]
    others = [found[low] for low in found if low not in OF_A_RECORD]
    if packed:
        parts += _sizes(others, _if_long)
    elif "value" not in found:
        fields = ", ".join(_as_sent(*each) for each in others)
        text = f"CAST(octet_length({exact_json.in_sql(f'struct({fields})')}) AS BIGINT)"
        value = " - ".join([text, *_sizes(others, _zero_fraction)])
        parts.append(f"({value}) * 105 / 100")  # the sink writes it a little longer
    if "headers" in found and _is_headers(found["headers"][1]):
        header = "octet_length(h.key) + coalesce(octet_length(h.value), 0) + 10"
        parts.append(f"coalesce(aggregate({found['headers'][0]}, 0, (n, h) -> n + coalesce({header}, 0)), 0)")
    return " + ".join([*parts, str(0 if packed else _RECORD_OVERHEAD)])


def _if_long(value: str, kind: Any) -> str | None:
    length = f"CAST(octet_length({value}) AS BIGINT)"
    return f"if({length} > {_SHORT_MAX}, {length}, 0L)" if _is_bytes(kind) else None


def _zero_fraction(time: str, kind: Any) -> str | None:
    is_time = kind in ("timestamp", "timestamp_ntz")
    return f"if(extract(SECOND FROM {time}) % 1 = 0, {_FRACTION_BYTES}L, 0L)" if is_time else None


def _sizes(columns: Iterable[tuple[str, Any]], of: Bytes) -> list[str]:
    return [size for column, kind in columns if (size := _size(column, kind, of))]


def _size(value: str, kind: Any, of: Bytes, depth: int = 0) -> str | None:
    """The bytes of a value: the sum over all plain values inside of it; None if they are always 0."""
    if not isinstance(kind, dict):
        return of(value, kind)
    found: list[str | None] = []
    if kind["type"] == "struct":
        found = [_size(field_of(value, each["name"]), each["type"], of, depth) for each in kind["fields"]]
    elif kind["type"] == "array":
        found = [_size_of_all(value, kind["elementType"], of, depth)]
    elif kind["type"] == "map":
        keys = _size_of_all(f"map_keys({value})", kind["keyType"], of, depth)
        found = [keys, _size_of_all(f"map_values({value})", kind["valueType"], of, depth)]
    sizes = [size for size in found if size]
    return f"({' + '.join(sizes)})" if sizes else None


def _size_of_all(array: str, kind: Any, of: Bytes, depth: int) -> str | None:
    size = _size(f"e{depth}", kind, of, depth + 1)
    return f"coalesce(aggregate({array}, 0L, (n{depth}, e{depth}) -> n{depth} + {size}), 0L)" if size else None


def _is_headers(kind: Any) -> bool:
    element = kind.get("elementType") if isinstance(kind, dict) else None
    return isinstance(element, dict) and {"key", "value"} <= {f["name"].lower() for f in element.get("fields", ())}


def _is_bytes(kind: Any) -> bool:
    return kind == "binary" or is_text(kind)


def _as_sent(column: str, kind: Any) -> str:
    """The column with the types that the sink makes JSON of: floats as the equal doubles, decimals as texts."""
    sent = _sent(kind)
    return column if sent == kind else f"CAST({column} AS {sql_type(sent)})"


def _sent(kind: Any) -> Any:
    if not isinstance(kind, dict):
        return "double" if kind == "float" else "string" if str(kind).startswith("decimal") else kind
    inside = {part: _sent(kind[part]) for part in ("elementType", "keyType", "valueType") if part in kind}
    fields = {"fields": [{**field, "type": _sent(field["type"])} for field in kind.get("fields", ())]}
    return {**kind, **inside, **(fields if kind["type"] == "struct" else {})}


def literal(words: str) -> str:
    """Words in SQL. A session may read escapes in another way: compare them with what the same session made of them."""
    escaped = words.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
