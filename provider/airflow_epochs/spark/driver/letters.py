"""Dead letters: rows that a sink would not take, and records that the transform could not parse.

While the other rows flow to the staging tables, Spark counts the rows that do not fit. Only if there are some, Spark
computes them once more, for the sink of the dead letters. Each comes with the record that it was made of, as it was
read.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.spark.driver import flaws, observed
from airflow_epochs.spark.driver.plans import Fit, LettersPlan, SinkOutcome, StagePlan
from airflow_epochs.spark.driver.transform import RECORD
from airflow_epochs.transforms import exact_json
from airflow_epochs.transforms.conditions import outside, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

ORIGIN = ("topic", "partition", "offset")
COLUMNS = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp_ltz",
    "sink": "string",
    "error": "string",
    "key": "binary",
    "value": "binary",
    "row": "string",
}
"""The columns of a dead letter in a table, in this order, with their types."""
OF_THE_RECORD = ("timestamp", "key", "value")
NEEDED = (*ORIGIN, "error")
"""The columns that the transform must return for a Kafka record that it could not parse."""
UNREADABLE = "\ufffd"
"""Replaces bytes that are no character, and NUL, in the texts of a dead letter."""
HEADER = "dead-letter."
"""The prefix of the names of a dead letter's headers in a topic."""
_KNOWN_TIME = f"CASE WHEN NOT coalesce({outside('timestamp', 'timestamp')}, false) THEN timestamp END"
"""The record's timestamp; NULL for a time that no table takes: a producer can send any time."""
_FLAW, _COUNT, _ROWS = "__epochs_flaw", "flawed", "rows"


@dataclass(frozen=True)
class Counts:
    """How many rows of one sink are dead letters.

    Attributes:
        letters: How many of its rows are dead letters.
        broken: Condition of an expectation -> how many rows are dead letters because they break it. A row counts once,
            for its first flaw: the conditions after that may not even be computable.
    """

    letters: int
    broken: dict[str, int]


@dataclass(frozen=True)
class Judged:
    """The rows of one sink.

    Attributes:
        rows: The rows that it takes.
        bad: Its dead letters, without their records.
        flawed: All its rows, with their flaws.
        conditions: The conditions of the expectations that make dead letters of rows which break them.
        observation: Counts ``flawed``.
    """

    rows: DataFrame
    bad: DataFrame
    flawed: DataFrame
    conditions: Sequence[str]
    observation: Observation

    def counts(self, staged: SinkOutcome) -> Counts:
        """The counts of dead letters, once ``rows`` were staged.

        If Spark's count were too low, rows would be lost: so it must fit what was staged, or the rows are counted anew.
        """
        found = observed.result(self.observation)
        rows = staged.content.rows if staged.content else None
        if not found or found[_ROWS] - found[_COUNT] != rows:
            found = self.flawed.agg(*_sums(self.conditions)).collect()[0].asDict()
        broken = {condition: int(found[_broken(number)]) for number, condition in enumerate(self.conditions)}
        return Counts(letters=int(found[_COUNT]), broken=broken)


@dataclass(frozen=True)
class Posted:
    """The rows for the sink of the dead letters.

    Attributes:
        frames: Its rows, by its name; empty if it is not to be staged.
        counts: Sink -> how many of its rows are dead letters.
        broken: Sink -> ``Counts.broken``, for sinks with expectations.
        bad: The dead letters of all sinks.
        observation: Counts the dead letters while they are staged.
    """

    frames: dict[str, DataFrame] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    broken: dict[str, dict[str, int]] = field(default_factory=dict)
    bad: Sequence[DataFrame] = ()
    observation: Observation | None = None

    def require_all(self) -> None:
        """Check that every row that was left out of a sink is a dead letter. Call it after ``frames`` were staged.

        Raises:
            NotApplied: The transform returned other rows when they were computed once more.
        """
        if self.observation is None or not self.counts:
            return
        found, expected = observed.result(self.observation), sum(self.counts.values())
        seen = int(found[_COUNT]) if found else sum(frame.count() for frame in self.bad)
        if seen != expected:
            raise NotApplied(
                f"Spark left out {expected} rows as dead letters, and then found {seen} of them.",
                code=codes.DEAD_LETTERS_CHANGED,
            )


@dataclass(frozen=True)
class _Records:
    """The records that letters are about. If the epoch reads a ``table``, a letter names only the table."""

    batch: DataFrame
    table: str | None

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that the transform must return for a record that it could not parse."""
        return NEEDED if self.table is None else ("error",)

    def none(self) -> DataFrame:
        """An empty DataFrame of letters."""
        from pyspark.sql import functions as F

        if self.table is None:
            return self.batch.where("false").select(*ORIGIN)
        return self.batch.where("false").select(*(F.lit(None).cast(COLUMNS[name]).alias(name) for name in ORIGIN))

    def added_to(self, letters: DataFrame) -> DataFrame:
        """The letters with key, value and timestamp of their records, or with the table's name."""
        from pyspark.sql import functions as F

        if self.table is None:
            return _with_records(letters, self.batch)
        return letters.withColumn("topic", F.coalesce(F.col("topic"), F.lit(self.table)))


def judged(plan: StagePlan, every: Mapping[str, DataFrame]) -> dict[str, Judged]:
    """The sinks that may have dead letters, with their rows judged. ``every``: what the transform returned."""
    if plan.letters is None:
        return {}
    found = {sink: _judged(sink, every[sink], fit) for sink, fit in plan.letters.fits.items() if sink in every}
    return {sink: each for sink, each in found.items() if each}


def posted(
    plan: StagePlan,
    judged: Mapping[str, Judged],
    batch: DataFrame,
    every: Mapping[str, DataFrame],
    staged: Mapping[str, SinkOutcome],
) -> Posted:
    """The dead letters of the epoch, once the other rows are staged. ``staged``: what was staged of them.

    Raises:
        Refused: There are dead letters, and another job stages their sink: they would be in no sink.
    """
    from pyspark.sql import Observation

    if plan.letters is None:
        return Posted()
    # Staged again alone, the letters of all sinks are computed: nobody has counted them.
    counts = {} if plan.again else {sink: each.counts(staged[sink]) for sink, each in judged.items() if sink in staged}
    found = {sink: each.letters for sink, each in counts.items() if each.letters}
    broken = {sink: each.broken for sink, each in counts.items() if each.broken}
    if (name := plan.letters.sink) not in plan.sinks:
        _require_none(name, found)
        return Posted(broken=broken)
    bad = [each.bad for sink, each in judged.items() if plan.again or sink in found]
    observation = Observation(f"letters {uuid.uuid4().hex}")
    known = _Records(batch, plan.table.location if plan.table else None)
    frame = _frame_of(plan.letters, known, every.get(name), bad, observation)
    return Posted(frames={name: frame}, counts=found, broken=broken, bad=bad, observation=observation if bad else None)


def _require_none(letters: str, counts: Mapping[str, int]) -> None:
    if counts:
        raise Refused(
            f"{sum(counts.values())} rows of sink {', '.join(counts)} are dead letters, and this Spark job does not "
            f"stage {letters!r}, which gets them.",
            code=codes.DEAD_LETTERS_APART,
        )


def _judged(sink: str, frame: DataFrame, fit: Fit) -> Judged | None:
    """Split the rows into those that a sink takes and its dead letters; None if no row can be a dead letter."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    flaw = flaws.first_flaw(plain(frame), fit)
    if flaw is None:
        return None
    observation = Observation(f"letters {uuid.uuid4().hex}")
    flawed, conditions = frame.withColumn(_FLAW, flaw), tuple(dict.fromkeys(each.condition for each in fit.expected))
    counted = flawed.observe(observation, *_sums(conditions))
    return Judged(
        rows=plain(counted.where(F.isnull(_FLAW)).drop(_FLAW)),
        bad=_letters_of(sink, flawed.where(F.isnotnull(_FLAW)), flat=not fit.is_topic),
        flawed=flawed,
        conditions=conditions,
        observation=observation,
    )


def _sums(conditions: Sequence[str]) -> list[Column]:
    from pyspark.sql import functions as F

    are = [F.col(_FLAW) == F.expr(flaws.literal(flaws.of_expected(condition))) for condition in conditions]
    broken = [F.count(F.when(each, 1)).alias(_broken(number)) for number, each in enumerate(are)]
    return [F.count(F.lit(1)).alias(_ROWS), F.count(_FLAW).alias(_COUNT), *broken]


def _broken(number: int) -> str:
    return f"broken_{number}"


def plain(frame: DataFrame) -> DataFrame:
    """``frame`` without the column that only tells dead letters where they come from."""
    return frame.drop(RECORD)


def _letters_of(sink: str, rows: DataFrame, *, flat: bool) -> DataFrame:
    from pyspark.sql import functions as F

    names = [name for name in rows.columns if name not in (_FLAW, RECORD)]
    return rows.select(
        *_origin(rows, flat=flat),
        F.lit(sink).alias("sink"),
        F.col(_FLAW).alias("error"),
        exact_json.of_columns(rows, names).alias("row"),
    )


def _origin(rows: DataFrame, *, flat: bool) -> list[Column]:
    """Topic, partition and offset of the record that a row was made of, as far as the row tells."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    names = {name.lower(): quoted(name) for name in rows.columns}
    structs = [f.name for f in rows.schema.fields if isinstance(f.dataType, StructType) and _has_origin(f.dataType)]
    if RECORD in rows.columns:
        found = {part: f"{RECORD}.{part}" for part in ORIGIN}
    elif flat and set(ORIGIN) <= names.keys():
        found = {part: names[part] for part in ORIGIN}
    elif structs:
        found = {part: f"{quoted(structs[0])}.{part}" for part in ORIGIN}
    else:
        found = dict.fromkeys(ORIGIN, "NULL")
    # Columns of these names may be something else than Kafka's.
    return [F.expr(f"try_cast({found[part]} AS {COLUMNS[part]})").alias(part) for part in ORIGIN]


def _has_origin(kind: object) -> bool:
    return set(ORIGIN) <= {name.lower() for name in getattr(kind, "names", ())}


def _frame_of(
    letters: LettersPlan,
    records: _Records,
    parsed: DataFrame | None,
    bad: Sequence[DataFrame],
    observation: Observation,
) -> DataFrame:
    """The rows for the sink of the dead letters.

    Args:
        letters: Where they go.
        records: The epoch's input.
        parsed: What the transform returned for that sink; None: nothing.
        bad: The dead letters of each sink.
        observation: Counts ``bad``.

    Raises:
        Refused: The transform's rows are not dead letters.
    """
    from pyspark.sql import functions as F

    together = _completed(records.none() if parsed is None else _of_the_transform(letters.sink, parsed, records.needed))
    if bad:
        left_out = reduce(lambda one, other: one.unionByName(other), map(_completed, bad))
        together = together.unionByName(left_out.observe(observation, F.count(F.lit(1)).alias(_COUNT)))
    known = records.added_to(together)
    return _as_records(known) if letters.as_records else known.withColumn("timestamp", F.expr(_KNOWN_TIME))


def _of_the_transform(sink: str, frame: DataFrame, needed: Sequence[str]) -> DataFrame:
    names = {name.lower() for name in frame.columns} - {RECORD}
    missing, unknown = sorted(set(needed) - names), sorted(names - COLUMNS.keys())
    if missing or unknown:
        parts = [f"no column {', '.join(missing)}"] if missing else []
        parts += [f"the unknown column {', '.join(unknown)}"] if unknown else []
        raise Refused(
            f"The transform returned rows for {sink!r}, which gets dead letters, with {' and '.join(parts)}.",
            code=codes.DEAD_LETTERS_UNFIT,
            sink=sink,
        )
    return plain(frame)


def _completed(frame: DataFrame) -> DataFrame:
    """The rows with all columns of a dead letter; those that they lack are NULL."""
    from pyspark.sql import functions as F

    names = {name.lower(): F.col(quoted(name)) for name in frame.columns}
    return frame.select(*(_letter_part(names.get(n, F.lit(None)), kind).alias(n) for n, kind in COLUMNS.items()))


def _letter_part(value: Column, kind: str) -> Column:
    """A column of a dead letter. Characters that a table would not take are replaced: texts may come from a record."""
    from pyspark.sql import functions as F

    part = value.cast(kind)
    return F.replace(F.make_valid_utf8(part), F.lit("\0"), F.lit(UNREADABLE)) if kind == "string" else part


def _with_records(letters: DataFrame, batch: DataFrame) -> DataFrame:
    """The letters with key, value and timestamp of their records, if they tell which records these are."""
    from pyspark.sql import functions as F

    named = letters.select(*ORIGIN).where("offset IS NOT NULL").distinct()
    at = [F.col(name).alias(f"__at_{name}") for name in ORIGIN]
    read = [F.col(name).alias(f"__{name}") for name in OF_THE_RECORD]
    raw = batch.join(named, list(ORIGIN), "left_semi").select(*at, *read)
    same = reduce(lambda one, other: one & other, (letters[name] == raw[f"__at_{name}"] for name in ORIGIN))
    joined = letters.join(raw, same, "left")
    return joined.select(
        *(F.coalesce(F.col(n), F.col(f"__{n}")).alias(n) if n in OF_THE_RECORD else F.col(n) for n in COLUMNS)
    )


def _as_records(letters: DataFrame) -> DataFrame:
    """Key and value as they were read, the rest as headers. A row without a record is its own value, as JSON."""
    from pyspark.sql import functions as F

    is_known = F.col("timestamp").isNotNull()  # every record of Kafka has one
    told = {name: F.col(name).cast("string") for name in ("topic", "partition", "offset", "timestamp", "sink", "error")}
    told["timestamp"] = F.when(is_known, exact_json.of_time("timestamp"))
    headers = [
        F.struct(F.lit(f"{HEADER}{name}").alias("key"), text.cast("binary").alias("value"))
        for name, text in told.items()
    ]
    known = F.filter(F.array(*headers), lambda header: header["value"].isNotNull())
    value = F.when(is_known, F.col("value")).otherwise(F.coalesce("value", F.col("row").cast("binary")))
    return letters.select("key", value.alias("value"), known.alias("headers"))
