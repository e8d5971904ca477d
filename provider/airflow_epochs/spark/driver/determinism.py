"""Finds out whether a transform's plan may compute other rows when it runs again.

A rerun of an epoch must give the same rows, and so must a re-evaluated cache. Spark's optimizer replaces
``current_timestamp()`` by a constant, so only the *analysed* plan shows the call. ``explain`` prints this plan on Spark
Connect and in the classic driver. This module explains the frame with ``where(false)``, which is cheap: the optimizer
then drops the Kafka read, and planning asks no broker.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from itertools import takewhile
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CLOCKS = ("current_timestamp", "now", "current_date", "current_time", "localtimestamp")
RANDOM = ("rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle")
PLACES = (
    *("monotonically_increasing_id", "SPARK_PARTITION_ID"),
    *("input_file_name", "input_file_block_start", "input_file_block_length"),
)
USERS = ("current_user", "session_user", "user")
CHOICES = (
    *("any_value", "first", "first_value", "last", "last_value", "max_by", "min_by", "mode"),
    *("collect_list", "collect_set", "listagg", "string_agg"),
)
"""Aggregates whose result depends on the order of the rows, or on which of several equal rows comes first."""
RANKS = ("lag", "lead", "nth_value", "ntile", "row_number")
"""Window functions that give different results to rows that are equal in the window's order."""
_WHOLE = {"spark.sql.debug.maxToStringFields": "10000", "spark.sql.maxPlanStringLength": str(2**31 - 16)}
"""Settings by which the text of a plan is whole. By default it shows 25 columns; a server may cut it off."""
# Users choose small seeds (epoch.seed has 31 bits); Spark draws seeds of 63 or 64 bits.
_SEED_CHOSEN_BELOW = 2**32
_ALIAS = re.compile(r" AS [^#]*#\d+")
_SORTED = re.compile(r"\b(?:sort_array|array_sort)\(collect_(?:list|set)\(")
_WINDOW = re.compile(r" (windowspecdefinition\()")
_DEDUPLICATE = re.compile(r"\bDeduplicate(?:WithinWatermark)? \[(.*)\]")
_LIMIT = re.compile(r"\b(?:GlobalLimit|LocalLimit|Offset|Tail) ")
_OUTPUT = re.compile(r"\b(?:Project|RelationV2|Range)\s*[\[(](.*)[\])]")
_ATTRIBUTE = re.compile(r"[^\s,\[(]+#\d+L?")
_STATES_NEWEST = re.compile(r"\b__epoch#\d+")
"""A state table has one row per key and epoch, so a choice by the epoch is the same in every run."""
_AGGREGATE = re.compile(r"\b(?:Aggregate|Window) (\[.*)")
_SUM = re.compile(r"(?<![\w.])sum\(.* AS ([^#]*)#\d+L?$")
_FLOATS = ("double", "float")
_ROWS_PLACE = ("partition#", "offset#")
"""The columns that identify a Kafka record within its topic. Most pipelines read one topic only."""
_SAMPLE = re.compile(r"\bSample [\d.E-]+, [\d.E-]+, \w+, (-?\d+)")
_CHANCE = re.compile(rf"(?<![\w.])({'|'.join(RANDOM)})\(|\b(Sample) [\d.E-]+, ")
_MOVES = re.compile(
    r"^[ :+-]*(?:Aggregate|\w*Join|\w*Window|Repartition\w*|Rebalance\w*|Deduplicate\w*|Distinct|GlobalLimit|Offset|"
    r"Tail|Except|Intersect|(?:Flat)?Map(?:Co)?Groups\w*|CTERelationRef) |[+-] Sort .*, true$|\b(?:list|exists)#\d+ \["
)
"""Operators after which the order of the rows, and their partitions, may change when they are computed again.
Without ``true``, a sort moves no row to another partition."""


def analysed_plans(spark: SparkSession, frames: Mapping[str, DataFrame]) -> dict[str, str]:
    """The analysed logical plan of every frame, as text.

    Raises:
        AnalysisException: A plan names a column or function that does not exist.
    """
    from pyspark.sql import functions as F

    before = {key: spark.conf.get(key, None) for key in _WHOLE}
    for key, value in _WHOLE.items():
        spark.conf.set(key, value)
    try:
        return {name: _analysed(frame.where(F.lit(False))) for name, frame in frames.items()}
    finally:
        for key, given in before.items():
            spark.conf.unset(key) if given is None else spark.conf.set(key, given)


def _analysed(frame: DataFrame) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        frame.explain(extended=True)
    _, _, rest = printed.getvalue().partition("== Analyzed Logical Plan ==\n")
    body, _, _ = rest.partition("\n== Optimized Logical Plan ==")
    return body.partition("\n")[2]  # the first line is the schema: column names, not expressions


def nondeterministic(plan: str, udfs: Iterable[str] = ()) -> list[str]:
    """The sorted names of functions and UDFs in an analysed plan whose results differ from run to run."""
    text = _ALIAS.sub("", plan)
    found = {name for name in (*CLOCKS, *PLACES, *USERS, *udfs) if re.search(rf"(?<![\w.]){re.escape(name)}\(", text)}
    for call in re.finditer(rf"\b({'|'.join(RANDOM)})\(", text):
        if _drawn_seed(_arguments(text, call.end())):
            found.add(call.group(1))
    if any(_drawn_seed(seed) for seed in _SAMPLE.findall(text)):
        found.add("sample")
    return sorted(name.lower() for name in found)


def moved_chance(plan: str) -> list[str]:
    """The sorted names of random functions in an analysed plan that draw for rows which an operator has moved.

    With a chosen seed too, they draw by a row's partition and its place there. Two sinks' plans may move it elsewhere.
    """
    lines = _ALIAS.sub("", plan).splitlines()
    found: set[str] = set()
    for number, line in enumerate(lines):
        names = {name or operator for name, operator in _CHANCE.findall(line)}
        if names and any(map(_MOVES.search, _inputs(lines[number:]))):
            found |= names
    return sorted(name.lower() for name in found)


def _inputs(lines: list[str]) -> Iterator[str]:
    """The lines of the operators, near and far, whose rows the operator in the first line takes."""
    here, *below = lines
    return takewhile(lambda line: _depth(line) > _depth(here), below)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" :+-"))


def unordered(plan: str) -> list[str]:
    """The sorted names of operations in an analysed plan that depend on the order in which rows come.

    Run again, they may choose other rows, or another order of values. An operation with a fixed order is left out:
    one that orders by the records' partition and offset, or that sorts the values which it collects.
    """
    text = _ALIAS.sub("", plan)
    found = {name for name in (*CHOICES, *RANKS) if any(_may_vary(text, call) for call in _calls(text, name))}
    lines = plan.splitlines()
    for number, line in enumerate(lines):
        below = lines[number + 1 :]
        if (keys := _DEDUPLICATE.search(line)) and not _whole_rows(keys.group(1), below):
            found.add("dropDuplicates")
        if _LIMIT.search(line) and not _sorted_below(below):
            found.add("limit")
    return sorted(found)


def _calls(text: str, name: str) -> Iterator[re.Match[str]]:
    return re.finditer(rf"(?<![\w.]){name}\(", text)


def _may_vary(text: str, call: re.Match[str]) -> bool:
    arguments = _arguments(text, call.end())
    if call.group().startswith(("listagg", "string_agg")) and re.search(r" (ASC|DESC) NULLS", arguments):
        return False
    if any(sort.end() == call.end() for sort in _SORTED.finditer(text)):
        return False
    if call.group() == "max_by(" and _STATES_NEWEST.search(arguments):
        return False
    window = _WINDOW.match(text, call.end() + len(arguments) + 1)
    return not (window and _names_the_rows_place(_arguments(text, window.end())))


def _names_the_rows_place(text: str) -> bool:
    return all(name in text for name in _ROWS_PLACE)


def _whole_rows(keys: str, below: list[str]) -> bool:
    """Whether duplicates are the same record or equal in all columns. Then it does not matter which one stays."""
    if _names_the_rows_place(keys):
        return True
    for line in below:
        if output := _OUTPUT.search(line):
            columns = {_ATTRIBUTE.findall(item)[-1] for item in _items(output.group(1)) if _ATTRIBUTE.search(item)}
            return bool(columns) and columns <= set(_ATTRIBUTE.findall(keys))
        if not re.search(r"\b(Filter|SubqueryAlias|Sort|Deduplicate|GlobalLimit|LocalLimit)\b", line):
            return False
    return False


def _items(text: str) -> list[str]:
    """Split ``text`` at the commas that stand outside of parentheses and brackets."""
    items, depth = [""], 0
    for character in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return items


def _sorted_below(below: list[str]) -> bool:
    for line in below:
        if not _LIMIT.search(line):
            return "+- Sort [" in line and _names_the_rows_place(line)
    return False


def _arguments(text: str, start: int) -> str:
    """The text from ``start`` to the parenthesis that closes the call."""
    depth = 1
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position]
    return text[start:]


def _drawn_seed(arguments: str) -> bool:
    numbers = re.findall(r"(?<![\w#.])-?\d+(?![\w.])", arguments)
    return any(abs(int(number)) >= _SEED_CHOSEN_BELOW for number in numbers)


def nondeterministic_udfs(module: ModuleType) -> set[str]:
    """Names of the UDFs in the user's module that are declared ``asNondeterministic``.

    A plan shows only a UDF's name. So a name that a deterministic UDF has too (``<lambda>``) is left out.
    """
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for value in vars(module).values():
        declared = getattr(value, "deterministic", None)
        if isinstance(declared, bool):
            names[declared].add(str(getattr(value, "__name__", None) or getattr(value, "_name", "")))
    return names[False] - names[True]


def float_sums(plan: str, kinds: Mapping[str, str]) -> list[str]:
    """The columns of floating-point numbers that the analysed plan computes by a sum.

    ``kinds``: the columns of the result and their types, as ``DataFrame.dtypes`` has them.
    """
    lists = [part.strip()[1:-1] for line in _AGGREGATE.findall(plan) for part in _items(line)]
    summed = {name for each in lists for item in _items(each) for name in _SUM.findall(item)}
    return sorted(name for name in summed if kinds.get(name) in _FLOATS)


def warnings(sink: str, plan: str, udfs: Iterable[str], kinds: Mapping[str, str]) -> list[str]:
    """Warnings about the plan of one sink, for the checkpoint record and the task's log.

    ``kinds``: as ``float_sums``.
    """
    texts = []
    if varying := nondeterministic(plan, udfs):
        texts.append(
            f"The plan for sink {sink!r} is not deterministic ({', '.join(varying)}): a rerun of the epoch would "
            'compute other rows. Use epoch.now in place of the clock, and F.xxhash64("id", F.lit(epoch.seed)), with '
            "the columns that tell all rows apart, in place of chance."
        )
    if names := sorted({*moved_chance(plan)} - {*varying}):
        texts.append(
            f"The plan for sink {sink!r} draws by the places of rows that were moved ({', '.join(names)}): a rerun of "
            "the epoch may draw otherwise, and another sink may take the same rows or lack them. Use "
            'F.xxhash64("id", F.lit(epoch.seed)), with the columns that tell all rows apart, in place of chance.'
        )
    if names := unordered(plan):
        texts.append(
            f"The plan for sink {sink!r} depends on the order in which rows come ({', '.join(names)}): a rerun of the "
            "epoch may choose others among equals. Order by columns that tell all rows apart, with the records' "
            "partition and offset among them."
        )
    if names := float_sums(plan, kinds):
        texts.append(
            f"The plan for sink {sink!r} sums floating-point numbers ({', '.join(names)}): the sum depends on the "
            "order in which rows come, so a rerun of the epoch may compute another one. Cast to decimal before you sum."
        )
    return texts
