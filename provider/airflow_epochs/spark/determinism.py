"""Find out whether a transform's plan would compute other rows when it runs again.

A rerun of an epoch, or a re-evaluated cache, must give the same rows. Spark's optimizer replaces
``current_timestamp()`` by a constant, so only the *analysed* plan shows it; ``explain`` prints that on Spark
Connect and in the classic driver alike. Explaining ``where(false)`` keeps it cheap: the optimizer then drops the
Kafka read, and planning asks no broker.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CLOCKS = ("current_timestamp", "now", "current_date", "curdate", "current_time", "localtimestamp")
RANDOM = ("rand", "randn", "randstr", "uniform", "uuid", "shuffle")
PLACES = ("monotonically_increasing_id", "SPARK_PARTITION_ID")
_FIELDS_CONF = "spark.sql.debug.maxToStringFields"
# Whoever names a seed writes a small number (epoch.seed has 31 bits); a seed drawn by Spark has 63 or 64.
_SEED_CHOSEN_BELOW = 2**32
_ALIAS = re.compile(r" AS [^#]*#\d+")
_SAMPLE = re.compile(r"\bSample [\d.E-]+, [\d.E-]+, \w+, (-?\d+)")


def analysed_plans(spark: SparkSession, frames: Mapping[str, DataFrame]) -> dict[str, str]:
    """The analysed logical plan of every frame, as text.

    Raises:
        AnalysisException: A plan names a column or function that does not exist.
    """
    from pyspark.sql import functions as F

    before = spark.conf.get(_FIELDS_CONF, "25")
    spark.conf.set(_FIELDS_CONF, "10000")  # by default a plan shows its first 25 columns
    try:
        return {name: _analysed(frame.where(F.lit(False))) for name, frame in frames.items()}
    finally:
        spark.conf.set(_FIELDS_CONF, before or "25")


def _analysed(frame: DataFrame) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        frame.explain(extended=True)
    _, _, rest = printed.getvalue().partition("== Analyzed Logical Plan ==\n")
    body, _, _ = rest.partition("\n== Optimized Logical Plan ==")
    return body.partition("\n")[2]  # its first line is the schema: column names, not expressions


def nondeterministic(plan: str, udfs: Iterable[str] = ()) -> list[str]:
    """Names of the expressions in an analysed plan that differ from run to run, sorted."""
    text = _ALIAS.sub("", plan)
    found = {name for name in (*CLOCKS, *PLACES, *udfs) if re.search(rf"(?<![\w.]){re.escape(name)}\(", text)}
    for call in re.finditer(rf"\b({'|'.join(RANDOM)})\(", text):
        if _drawn_seed(_arguments(text, call.end())):
            found.add(call.group(1))
    if any(_drawn_seed(seed) for seed in _SAMPLE.findall(text)):
        found.add("sample")
    return sorted(name.lower() for name in found)


def _arguments(text: str, start: int) -> str:
    """The text up to the parenthesis that closes the call."""
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

    A plan shows only a UDF's name, so one that a deterministic UDF has too (``<lambda>``) says nothing.
    """
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for value in vars(module).values():
        declared = getattr(value, "deterministic", None)
        if isinstance(declared, bool):
            names[declared].add(str(getattr(value, "__name__", None) or getattr(value, "_name", "")))
    return names[False] - names[True]


def warning(sink: str, names: list[str]) -> str:
    """One sentence for the checkpoint record and the task's log."""
    return (
        f"The plan for sink {sink!r} is not deterministic ({', '.join(names)}): a rerun of the epoch would compute "
        "other rows. Use epoch.now in place of the clock, and epoch.seed as the seed of random functions."
    )
