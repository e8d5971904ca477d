"""Runs the user's transform: a function in a file, ``(batch, epoch) -> DataFrame | {sink: DataFrame}``.

In a pipeline with state it is ``(batch, epoch, state)``, where ``state`` maps state tables to DataFrames.

The file does not stay in ``sys.modules``. Functions of a registered module are pickled *by reference*, and Spark's
Python workers do not have the file, so they could not unpickle its UDFs. Functions of an unregistered module are
pickled by value. Sibling modules are registered: the workers get their files, so a reference works.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import RAISED_BY_USERS, EpochError, Refused
from airflow_epochs.spark.driver import event_times, failures
from airflow_epochs.spark.driver.plans import StagePlan, TransformFile
from airflow_epochs.spark.driver.user_files import importable, read_source
from airflow_epochs.transforms import registries
from airflow_epochs.transforms.registries import NO_REGISTRY, Registry

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MODULE_NAME = "__epoch_transform__"
RECORD = "__record"
"""The column that says which record a row was made of. No sink gets it."""
_TRACEBACK_MAX = 4_000


@dataclass(frozen=True)
class EpochContext:
    """What a transform can know about its epoch. A rerun has the same values, except ``attempt`` and ``txn_id``.

    Attributes:
        number: The epoch, from 1.
        attempt: The attempt, from 1. For log lines; rows must not depend on it.
        pipeline: The pipeline's name.
        now: The time, with its zone, when the epoch was first opened. Use it instead of ``current_timestamp()``.
        seed: 31 bits, for a hash with a row's key in place of chance: ``F.xxhash64("id", F.lit(epoch.seed))``.
        txn_id: The attempt's transaction id.
        watermark: W: a row with this event time, or an earlier one, is late. None: no row is late.
        previous_watermark: P: what the watermark was in the epoch before.
        place: How many stateful operators stand in front of the one that gets this context.
        clock: Used by the stage job alone.
        table: The table that the epoch reads; None if it reads topics.
        registry: For the parsers: the schemas that records of the epoch were written with.
    """

    number: int
    attempt: int
    pipeline: str
    now: datetime
    seed: int
    txn_id: str
    watermark: datetime | None = None
    previous_watermark: datetime | None = None
    place: int = field(default=0, repr=False)
    _watermarks: tuple[datetime | None, ...] = field(default=(), repr=False)
    clock: event_times.Clock | None = field(default=None, repr=False)
    table: str | None = field(default=None, repr=False)
    registry: Registry = field(default=NO_REGISTRY, repr=False)

    @property
    def record(self) -> Column:
        """The record that a row is made of: select it from the batch beside the columns of a sink's rows.

        If the row becomes a dead letter, it tells which record that is. No sink gets this column. A row of a table
        is no record: then it tells the table.
        """
        from pyspark.sql import functions as F

        if self.table is not None:
            kinds = {"topic": "string", "partition": "int", "offset": "bigint"}
            values = (F.lit(self.table), F.lit(None), F.lit(None))
            parts = (v.cast(kind).alias(n) for (n, kind), v in zip(kinds.items(), values, strict=True))
            return F.struct(*parts).alias(RECORD)
        return F.struct("topic", "partition", "offset").alias(RECORD)

    def event_time(self, rows: DataFrame, column: str) -> DataFrame:
        """``rows``, whose event time is ``column``. They move the watermark of later epochs.

        ``rows`` must still have the column ``partition`` of the batch, and with several topics ``topic``. Use the
        result instead of ``rows``: Spark caches it, so that what is derived from it does not compute it again.

        Raises:
            Refused: The pipeline has no ``event_time``, or a column is missing or of another type.
        """
        if self.clock is None:
            raise Refused("The pipeline has no `event_time`.", code=codes.EVENT_TIME_MISSING)
        return self.clock.watched(rows, column)

    def chained(self, behind: int = 1) -> EpochContext:
        """The context for a stateful operator that stands behind ``behind`` other ones.

        An operator may emit rows up to its own watermark. They are late for an operator behind it that has the same
        watermark. So that one gets the watermark of as many epochs earlier.

        Raises:
            Refused: ``EventTime.depth`` of the pipeline is too small.
        """
        depth = self.clock.depth if self.clock else 1
        if not 0 <= behind < depth:
            raise Refused(
                f"`chained` got {behind}, and the pipeline's EventTime has depth={depth}.",
                code=codes.EVENT_TIME_DEPTH,
            )
        marks = self._watermarks[behind:]
        return replace(
            self,
            watermark=marks[0] if marks else None,
            previous_watermark=marks[1] if len(marks) > 1 else None,
            place=self.place + behind,
            _watermarks=marks,
        )

    @classmethod
    def of(cls, plan: StagePlan) -> EpochContext:
        """Make the context from the plan of a ``stage`` job."""
        now = datetime.fromisoformat(plan.now.replace("Z", "+00:00"))
        if now.tzinfo is None:
            raise ValueError(f"now has no time zone: {plan.now!r}")
        marks = tuple(None if mark is None else event_times.instant(mark) for mark in plan.watermarks)
        if plan.event_time:  # the depth may have been raised since the epoch was opened
            marks += marks[-1:] * (plan.event_time.depth + 1 - len(marks))
        return cls(
            number=plan.epoch,
            attempt=plan.attempt,
            pipeline=plan.pipeline,
            now=now,
            seed=plan.seed,
            txn_id=plan.txn_id,
            watermark=marks[0] if marks else None,
            previous_watermark=marks[1] if len(marks) > 1 else None,
            _watermarks=marks,
            clock=event_times.Clock(plan.event_time) if plan.event_time else None,
            table=plan.table.location if plan.table else None,
            registry=plan.registry,
        )


@contextmanager
def loaded(where: TransformFile) -> Iterator[LoadedTransform]:
    """Load the user's function. It can import its siblings until the block ends.

    Raises:
        Refused: The file or the function does not exist, or the file raises when it is loaded.
    """
    path, source = where.path, where.source
    folder = Path(path).resolve().parent
    with importable(folder):
        module = _module(path, read_source(path) if source is None else source)
        yield LoadedTransform(path, where.function, _function(module, path, where.function), module)


def _module(path: str, source: str) -> ModuleType:
    module = ModuleType(MODULE_NAME)
    module.__file__ = path
    # So tracebacks and inspect.getsource find the text even without the file (in a cluster's driver).
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    sys.modules[MODULE_NAME] = module  # dataclasses and typing look the module up while it is executed
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except RAISED_BY_USERS as error:
        raise Refused(
            f"The transform file {path} raises an error when it is loaded. Nothing was read or written.\n"
            f"{users_traceback(error, path)}",
            code=codes.TRANSFORM_BROKEN,
        ) from error
    finally:
        del sys.modules[MODULE_NAME]
    return module


def _function(module: ModuleType, path: str, name: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if callable(function):
        return function  # type: ignore[no-any-return]  # __call__ checks its result
    functions = sorted(
        key
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == MODULE_NAME and not key.startswith("_")
    )
    raise Refused(
        f"The transform file {path} has no function {name!r}. Its functions are: {', '.join(functions) or 'none'}.",
        code=codes.TRANSFORM_MISSING,
    )


@dataclass(frozen=True)
class LoadedTransform:
    """A loaded transform. Valid inside the ``loaded`` block."""

    path: str
    name: str
    function: Callable[..., Any]
    module: ModuleType

    def __call__(
        self,
        batch: DataFrame,
        epoch: EpochContext,
        sinks: Iterable[str],
        needed: Iterable[str] | None = None,
        state: dict[str, DataFrame] | None = None,
        letters: str | None = None,
    ) -> dict[str, DataFrame]:
        """Run the user's function and check what it returns.

        Args:
            batch: The epoch's input.
            epoch: The context for the function.
            sinks: The names of all sinks that may get a DataFrame.
            needed: The names of the sinks that must get one; by default all. If it names fewer, a DataFrame for an
                unknown sink is no mistake: an older epoch is staged again, and the pipeline may have had other sinks.
            state: The state tables; the function takes them as its third argument if there are any.
            letters: The sink of the dead letters, which may get a DataFrame, and need not.

        Raises:
            Refused: The function raised, or did not return one DataFrame per sink. Nothing was written.
        """
        every = sorted(set(sinks) - {letters})
        return self.frames_of(self.returned(batch, epoch, state), every, needed, letters)

    def returned(self, batch: DataFrame, epoch: EpochContext, state: dict[str, DataFrame] | None = None) -> object:
        """What the user's function returns. Nothing has checked it yet.

        The function may ask Spark's servers for columns or rows. An error about these servers is raised unchanged.

        Raises:
            Refused: The function raised.
        """
        try:
            with registries.known(epoch.registry):
                return self.function(batch, epoch, state) if state else self.function(batch, epoch)
        except EpochError:
            raise
        except RAISED_BY_USERS as error:
            if failures.is_of_spark_itself(error):
                raise
            raise self._raised(error) from error

    def frames_of(
        self,
        result: object,
        sinks: list[str],
        needed: Iterable[str] | None = None,
        letters: str | None = None,
    ) -> dict[str, DataFrame]:
        """The frames by sink that the function has returned. Arguments and errors as for a call of the transform."""
        must = sinks if needed is None else sorted(set(needed) - {letters})
        known: set[str | None] | None = {*sinks, letters} if needed is None else None
        found = self._per_sink(result, sinks, must, known)
        if letters is not None and isinstance(result, dict) and letters in result:
            found |= self._per_sink(result, [letters], [letters], None)
        return found

    def _raised(self, error: BaseException) -> Refused:
        return Refused(
            f"The transform {self.name} raised {type(error).__name__}. Nothing was written.\n"
            f"{users_traceback(error, self.path)}",
            code=codes.TRANSFORM_RAISED,
            remedy=f"Correct {self.path}. Then clear the failed task.",
        )

    def _per_sink(
        self, result: object, sinks: list[str], needed: list[str], known: set[str | None] | None
    ) -> dict[str, DataFrame]:
        """The frames of ``needed``. ``known``: the names that a frame may have; None: any."""
        if not isinstance(result, dict):
            if len(sinks) > 1 and _is_frame(result):
                raise self._wrong(f"one DataFrame, but the pipeline has {len(sinks)} sinks", sinks, needed)
            result = {sinks[0]: result} if len(sinks) == 1 else result
        if not isinstance(result, dict):
            raise self._wrong(_describe(result), sinks, needed)
        missing = [name for name in needed if name not in result]
        unknown = [str(name) for name in result if known is not None and name not in known]
        if missing or unknown:
            parts = [f"no DataFrame for sink {name!r}" for name in missing]
            parts += [f"a DataFrame for {name!r}, which is not a sink" for name in unknown]
            raise self._wrong("; ".join(parts), sinks, needed)
        for name in needed:
            frame = result[name]
            if not _is_frame(frame):
                raise self._wrong(f"{_describe(frame)} for sink {name!r}", sinks, needed)
            if frame.isStreaming:
                raise self._wrong(f"a streaming DataFrame for sink {name!r}", sinks, needed)
            if alike := _alike(frame.columns):
                raise self._ambiguous(alike, name)
        return {name: result[name] for name in needed}

    def _ambiguous(self, columns: list[str], sink: str) -> Refused:
        return Refused(
            f"The transform {self.name} in {self.path} returned columns for sink {sink!r} that Spark and Delta take "
            f"for one: {', '.join(columns)}. Nothing was written.",
            code=codes.TRANSFORM_COLUMNS,
            remedy=f"Give each of these columns another name in {self.path}, or return one of them only. "
            "`rows.toDF(…)` gives new names to all columns in their order, also to such ones. Then clear the failed "
            "task.",
            sink=sink,
        )

    def _wrong(self, what: str, sinks: list[str], needed: list[str]) -> Refused:
        removed = ", ".join(repr(name) for name in needed if name not in sinks)
        later = f" When the epoch is complete, leave {removed} out again: the DAG does not have it now."
        return Refused(
            f"The transform {self.name} in {self.path} returned {what}. Nothing was written.",
            code=codes.TRANSFORM_RESULT,
            remedy=f"{to_return({*sinks, *needed})} Then clear the failed task.{later if removed else ''}",
        )


def to_return(sinks: Iterable[str]) -> str:
    """The part of a remedy that says what a transform returns for these sinks."""
    wanted = [repr(name) for name in sorted(sinks)]
    shape = "a DataFrame or a dict with the key" if len(wanted) == 1 else "a dict of DataFrames with the keys"
    return (
        f"Return {shape} {', '.join(wanted)}, built from the batch. Do not return a streaming DataFrame: Spark cannot "
        "stage it."
    )


def _is_frame(value: object) -> bool:
    from pyspark.sql import DataFrame

    return isinstance(value, DataFrame)


def _alike(columns: list[str]) -> list[str]:
    """The columns whose names are equal but for upper and lower case."""
    times = Counter(name.lower() for name in columns)
    return [name for name in columns if times[name.lower()] > 1]


def _describe(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def users_traceback(error: BaseException, path: str) -> str:
    """The traceback from the user's file on: this package's frames above it would not help the author."""
    told = traceback.TracebackException.from_exception(error)
    for index, frame in enumerate(told.stack):
        if frame.filename == path:
            told.stack = traceback.StackSummary.from_list(list(told.stack)[index:])
            break
    text = secrecy.scrubbed("".join(told.format(chain=False)).rstrip())
    return text if len(text) <= _TRACEBACK_MAX else f"{text[:_TRACEBACK_MAX]} …"
