"""An environment in memory: connections, a "Spark" that runs Python functions, and phases that can crash or pause."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_epochs.contracts import Connection, SparkJob
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.model import JsonDict, OffsetRange
from airflow_epochs.spark.driver.plans import InputMetrics, SinkOutcome, StageOutcome, StagePlan
from airflow_epochs.spark.driver.wire import as_json, from_json
from airflow_epochs.testing.stores import Observer, unobserved
from airflow_epochs.testing.world import MemoryWorld, Place, Row


class Crash(BaseException):
    """The process dies here. It is no ``Exception``, so that no handler catches it."""


@dataclass
class Observed:
    """An observer that records what it sees, and acts once, at the call numbered ``at`` (from 0).

    It crashes by default. Give it a function as ``then`` to do something else instead, as a second process would.
    """

    at: int | None = None
    then: Callable[[], None] | None = None
    seen: list[str] = field(default_factory=list)

    def __call__(self, moment: str) -> None:
        self.seen.append(moment)
        if len(self.seen) - 1 != self.at:
            return
        if self.then is None:
            raise Crash(moment)
        self.then()


@dataclass(frozen=True, kw_only=True)
class MemoryEpoch:
    """What a transform may know about its epoch. Only ``attempt`` differs between attempts."""

    pipeline: str
    epoch: int
    attempt: int
    now: str
    seed: int


MemoryTransform = Callable[[list[Row], MemoryEpoch], "list[Row] | Mapping[str, list[Row] | str]"]
"""Returns rows for all sinks, or rows per sink. In place of a sink's rows, a text says why they cannot be staged."""


def keep_all(batch: list[Row], epoch: MemoryEpoch) -> list[Row]:
    """The transform that sends every record to every sink."""
    return batch


class MemorySpark:
    """Runs only the ``stage`` job: reads the planned ranges, transforms them, and fills every sink's staging place."""

    def __init__(self, transform: MemoryTransform = keep_all) -> None:
        self.transform = transform
        self.jobs: list[SparkJob] = []
        self.stopped: list[JsonDict] = []
        self._sessions = 0

    def new_session(self) -> JsonDict:
        """Numbers, from 1."""
        self._sessions += 1
        return {"session": self._sessions}

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        """Run the job at once, in this process."""
        if job.kind != "stage":
            raise Refused(f"MemorySpark has no job {job.kind!r}.", remedy="Use real Spark for this job.")
        self.jobs.append(job)
        plan = from_json(StagePlan, job.args)
        batches = [_read(each.read) for each in (*plan.earlier, plan)]
        results = [self._transformed(*each, plan.sinks) for each in zip((*plan.earlier, plan), batches, strict=True)]
        sinks = {name: _stage(told, _together([each[name] for each in results])) for name, told in plan.sinks.items()}
        return as_json(StageOutcome(sinks=sinks, metrics=InputMetrics(rows_in=len(batches[-1]))))

    def cancel(self) -> None:
        """Does nothing: a job has ended before anybody could cancel it."""

    def stop(self, session: JsonDict) -> None:
        """Only remember the session in ``stopped``."""
        self.stopped.append(session)

    def _transformed(self, plan: StagePlan, batch: list[Row], sinks: Iterable[str]) -> Mapping[str, list[Row] | str]:
        epoch = MemoryEpoch(
            pipeline=plan.pipeline, epoch=plan.epoch, attempt=plan.attempt, now=plan.now, seed=plan.seed
        )
        try:
            result = self.transform(batch, epoch)
        except Exception as error:
            raise NotApplied(
                f"The transform failed: {error!r}.", remedy="Correct the transform. Then clear the stage task."
            ) from error
        return result if isinstance(result, Mapping) else dict.fromkeys(sinks, result)


def _read(options: Mapping[str, str]) -> list[Row]:
    world = MemoryWorld.named(options["world"])
    ranges = json.loads(options["ranges"])
    return [row for topic, per_topic in ranges.items() for r in per_topic for row in world.read(topic, OffsetRange(*r))]


def _together(rows: Sequence[list[Row] | str]) -> list[Row] | str:
    """The rows of epochs that a sink takes together, oldest first; or why the rows of one epoch cannot be staged."""
    together: list[Row] = []
    for each in rows:
        if isinstance(each, str):
            return each
        together += each
    return together


def _stage(plan: JsonDict, rows: list[Row] | str) -> SinkOutcome:
    if isinstance(rows, str):
        return SinkOutcome(place=plan["place"], problem=rows)
    MemoryWorld.named(plan["world"]).stage(plan["place"], Place(plan["txn_id"], tuple(rows)))
    return SinkOutcome(place=plan["place"])


@dataclass
class MemoryEnvironment:
    """Connections in a dict, and Spark in memory. ``observer`` is called at every named phase of the coordinator."""

    spark: MemorySpark = field(default_factory=MemorySpark)
    connections: dict[str, Connection] = field(default_factory=dict)
    observer: Observer = unobserved

    def connection(self, conn_id: str) -> Connection:
        """The connection in ``connections``. Raises Refused if it is not there."""
        if conn_id not in self.connections:
            raise Refused(f"Connection {conn_id!r} does not exist.", remedy="Add it to MemoryEnvironment.connections.")
        return self.connections[conn_id]

    def reached(self, phase: str) -> None:
        """Call ``observer``."""
        self.observer(phase)
