"""Rules that Spark applies to a table's rows only when it commits: here it applies them while it stages.

So a row that breaks a rule leads to VOTE_ABORT. Otherwise the table would refuse an epoch that is decided.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta import schema as delta_schema
from airflow_epochs.spark.driver.wire import JsonDict
from airflow_epochs.transforms.conditions import anywhere, is_text, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Rule = tuple[str, str]
"""The name of a rule, and the condition that every row must meet."""
CHAR_OR_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
"""The property of a column in which Spark keeps the type that its owner gave it, such as ``varchar(3)``."""
_TEXT_TYPE = re.compile(r"(?:^|[<:,])(?:string|(?:var)?char\((\d+)\))(?=[ ,>]|$)", re.IGNORECASE)
"""The type of a text, alone or within another type."""


@dataclass(frozen=True, kw_only=True)
class TableRules:
    """A table's rules, and the columns of the table that the rows lack.

    Attributes:
        rules: The conditions that every row must meet.
        nulls: Columns that are NULL in a new row, as the table's schema has them.
        generated: Column -> the expression that gives its value in a new row.
        others: Columns whose value in a new row only Delta knows.
    """

    rules: list[Rule] = field(default_factory=list)
    nulls: list[JsonDict] = field(default_factory=list)
    generated: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    @property
    def are_all_given(self) -> bool:
        """Whether the rows have every column of the table."""
        return not (self.nulls or self.generated or self.others)


def of(schema: JsonDict, properties: Mapping[str, str], partition_by: Collection[str], given: set[str]) -> TableRules:
    """The rules of a table for rows with the columns ``given``, in lower case."""
    found = TableRules(rules=[*_checks(properties), *_of_columns(schema, given)])
    partitions = {name.lower() for name in partition_by}
    for column in schema["fields"]:
        if column["name"].lower() in given:
            continue
        metadata = column.get("metadata", {})
        if expression := metadata.get(delta_schema.GENERATED):
            is_path = is_text(column["type"]) and column["name"].lower() in partitions
            found.generated[column["name"]] = f"nullif({expression}, '')" if is_path else expression
        elif delta_schema.IDENTITY in metadata or delta_schema.DEFAULT in metadata:
            found.others.append(column["name"])
        else:
            found.nulls.append(column)
    return found


def kept(df: DataFrame, target: str, found: TableRules, *, unless: str = "false", are_whole: bool = True) -> DataFrame:
    """``df``, which fails on the first row that breaks a rule and does not meet ``unless``, when Spark computes it.

    It gets the columns that are NULL in a new row, if the table's own columns are computed from them: at the commit,
    Delta finds columns of the rows only.

    Args:
        df: The rows.
        target: The table.
        found: The table's rules.
        unless: The condition of rows that need not keep the rules.
        are_whole: Whether a column that the rows lack gets the value of a new row. Otherwise its value is unknown, so
            rules about it cannot be checked here: the table checks them at the commit.
    """
    if found.are_all_given:
        return ruled(df, target, found.rules, unless)
    if are_whole and len(decidable(df, found.generated.items())) < len(found.generated):
        df, found = with_nulls(df, found.nulls), replace(found, nulls=[])
    columns = list(map(quoted, df.columns))
    filled = _generated(with_nulls(df, found.nulls) if are_whole else df, found)
    rules = found.rules if are_whole and not found.others else decidable(filled, found.rules)
    return ruled(filled, target, rules, unless).select(*columns)


def with_nulls(df: DataFrame, columns: list[JsonDict]) -> DataFrame:
    """``df`` with these columns of a table's schema, which are NULL in every row."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    nulls = StructType.fromJson({"type": "struct", "fields": columns})
    return df.select("*", *(F.lit(None).cast(each.dataType).alias(each.name) for each in nulls.fields))


def _generated(df: DataFrame, found: TableRules) -> DataFrame:
    """``df`` with the columns that the table computes from other columns."""
    from pyspark.sql import functions as F

    return df.select("*", *(F.expr(value).alias(name) for name, value in decidable(df, found.generated.items())))


def decidable(df: DataFrame, rules: Iterable[Rule]) -> list[Rule]:
    """The rules whose SQL names columns of ``df`` only."""
    from pyspark.errors import AnalysisException

    found = []
    for what, rule in rules:
        try:
            df.selectExpr(f"({rule}) AS kept").schema  # noqa: B018  (Spark analyses it when it is asked for the schema)
        except AnalysisException:
            continue
        found.append((what, rule))
    return found


def ruled(df: DataFrame, target: str, rules: Iterable[Rule], unless: str = "false") -> DataFrame:
    """``df``, which fails on the first row that breaks a rule and does not meet ``unless``, when Spark computes it."""
    for what, rule in rules:
        met = f"coalesce(({rule}), false) OR coalesce(({unless}), false)"
        df = failing(df, met, f"A row breaks the {what} of {target}")
    return df


def failing(df: DataFrame, met: str, message: str, *, shown: str | None = None) -> DataFrame:
    """``df``, which fails with ``message`` on the first row that does not meet a condition, when Spark computes it.

    ``shown``: SQL of a value of the row to show behind the message.
    """
    text = "'" + message.replace("\\", "\\\\").replace("'", "\\'") + "'"
    told = text if shown is None else f"concat_ws(': ', {text}, CAST({shown} AS STRING))"
    return df.where(f"if({met}, true, raise_error({told}))")


def _checks(properties: Mapping[str, str]) -> Iterator[Rule]:
    for key, value in sorted(properties.items()):
        if key.startswith("delta.constraints."):
            yield f"CHECK constraint {key.removeprefix('delta.constraints.')} ({value})", value


def _of_columns(schema: JsonDict, given: set[str]) -> Iterator[Rule]:
    for column in schema["fields"]:
        name, metadata, is_given = quoted(column["name"]), column.get("metadata", {}), column["name"].lower() in given
        yield from _invariant(column["name"], metadata)
        expression = metadata.get(delta_schema.GENERATED)
        if not is_given and not expression:
            continue
        if not column["nullable"]:
            yield f"NOT NULL constraint of column {column['name']}", f"{name} IS NOT NULL"
        yield from _within(column["name"], name, column["type"])
        if too_long := _too_long(name, column["type"], metadata.get(CHAR_OR_VARCHAR, "")):
            yield f"length of column {column['name']}", f"NOT coalesce({too_long}, false)"
        if expression and is_given:
            yield f"generation expression of column {column['name']}", f"{name} <=> ({expression})"


def _invariant(told: str, metadata: JsonDict) -> Iterator[Rule]:
    """The condition of an invariant, which Delta had before CHECK constraints. It names columns as these do."""
    if invariant := metadata.get(delta_schema.INVARIANTS):
        rule = json.loads(invariant)["expression"]["expression"]
        yield f"invariant of column {told} ({rule})", rule


def _too_long(name: str, kind: object, given: str) -> str | None:
    """The condition that a text is longer than a column's owner allows it; None if every length is allowed.

    Blanks at its end count, as they do for Delta.

    Args:
        name: The column, in SQL.
        kind: Its type, in which all texts are ``string``.
        given: The type that its owner gave it, such as ``array<varchar(3)>``: it has the same texts in the same order.
    """
    lengths = iter(_TEXT_TYPE.findall(given))

    def longer(value: str, inside: str) -> str | None:
        length = next(lengths, "") if is_text(inside) else ""
        return f"length({value}) > {length}" if length else None

    return anywhere(name, kind, longer)


def _within(told: str, parent: str, kind: object) -> Iterator[Rule]:
    """The NOT NULL constraints of a struct's fields. As in Delta, a struct that is NULL breaks them, too.

    Delta has no such constraints within arrays and maps.
    """
    if not isinstance(kind, dict) or kind["type"] != "struct":
        return
    for part in kind["fields"]:
        inner, name = f"{told}.{part['name']}", f"{parent}.{quoted(part['name'])}"
        if not part["nullable"]:
            yield f"NOT NULL constraint of column {inner}", f"{name} IS NOT NULL"
        yield from _invariant(inner, part.get("metadata", {}))
        yield from _within(inner, name, part["type"])
