"""Backfill: a sink that is new to its pipeline takes the input of earlier epochs together with its first epoch.

The protocol does not know of backfills. The open record holds the sink's own ranges: they start where the earlier epoch
started and end where this epoch ends. So the sink's rows are staged, voted on and committed like all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Stateful
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import JsonDict, Ranges, SinkPlan, records_upper_bound

log = secrecy.logger(__name__)


def with_backfill(
    task: TaskTry, plans: dict[str, SinkPlan], epoch: int, ranges: Ranges, state: JsonDict
) -> dict[str, SinkPlan]:
    """``plans`` for an attempt of ``epoch``, with the wider ranges of sinks that the pipeline backfills.

    Only a sink that shows no epoch yet is backfilled. ``ranges`` and ``state`` are those of ``epoch``.

    Raises:
        Refused: The epoch to begin with does not exist yet. Nothing was opened.
        Corrupt: Some of the earlier input cannot be read any more; names the exact range. Nothing was opened.
    """
    return {
        name: _backfilled(task, name, plan, epoch, ranges, state) if plan.previous is None else plan
        for name, plan in plans.items()
    }


def _backfilled(task: TaskTry, sink: str, plan: SinkPlan, epoch: int, ranges: Ranges, state: JsonDict) -> SinkPlan:
    first = task.pipeline.backfill.get(sink, epoch)
    if first > epoch:
        raise Refused(
            f"`backfill` lets sink {sink!r} begin with epoch {first}, but the run is opening epoch {epoch}.",
            code=codes.BACKFILL_TOO_LATE,
            remedy=f"Let `backfill` name epoch {epoch} or an earlier one, or remove the sink from `backfill`: the sink "
            f"then begins with epoch {epoch}.",
            pipeline=task.pipeline.name,
            epoch=epoch,
            sink=sink,
        )
    if first == epoch:
        return plan
    if any(isinstance(each, Stateful) for each in task.pipeline.sinks):
        raise Refused(
            f"`backfill` lets sink {sink!r} begin with epoch {first}. The pipeline has state, and rows of earlier "
            "epochs would meet the state of today.",
            code=codes.BACKFILL_WITH_STATE,
            pipeline=task.pipeline.name,
            epoch=epoch,
            sink=sink,
        )
    wide = widened(ranges, _earlier(task, first, epoch))
    try:
        task.pipeline.source.check(wide, state, task.env)
    except Corrupt as gone:
        raise Corrupt(
            f"Sink {sink!r} cannot begin with epoch {first}. {gone.what}",
            code=codes.BACKFILL_GONE,
            remedy="Let `backfill` name a later epoch whose input is still there, or remove the sink from `backfill`: "
            f"the sink then begins with epoch {epoch}.",
            pipeline=task.pipeline.name,
            epoch=epoch,
            sink=sink,
        ) from gone
    log.info("sink %s begins with epoch %s: %s offsets to read", sink, first, records_upper_bound(wide))
    return replace(plan, ranges=wide)


def _earlier(task: TaskTry, first: int, epoch: int) -> Iterable[Ranges]:
    for number in range(first, epoch):
        if record := task.ledger.complete_record(number):  # always true: a completion record is never deleted
            yield record.ranges


def widened(ranges: Ranges, earlier: Iterable[Ranges]) -> Ranges:
    """``ranges``, where each partition starts as in the first of ``earlier`` that has it.

    Ranges are half-open, and each epoch starts where the one before ended. So the result is what all these epochs read
    together. ``earlier`` has the oldest epoch first; it is read only until every partition is found.
    """
    missing = {(topic, r.partition) for topic in ranges for r in ranges[topic]}
    starts: dict[tuple[str, int], int] = {}
    for before in earlier:
        found = {(topic, r.partition): r.start for topic in before for r in before[topic]}
        starts |= {key: found[key] for key in missing & found.keys()}
        missing -= found.keys()
        if not missing:
            break
    return {
        topic: tuple(r._replace(start=starts.get((topic, r.partition), r.start)) for r in ranges[topic])
        for topic in ranges
    }
