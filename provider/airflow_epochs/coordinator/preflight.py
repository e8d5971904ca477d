"""Asks the sinks, before Spark runs, for what their votes would refuse whatever the rows are."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_epochs import secrecy
from airflow_epochs.contracts import Environment, Preflight, Probing, Sink
from airflow_epochs.coordinator.sink_calls import asked
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused, located
from airflow_epochs.model import SinkPlan

log = secrecy.logger(__name__)

_OF_VOTE = re.compile(r"\b([Cc]lear the) stage task\b")


def require_ready(task: TaskTry, plans: Mapping[str, SinkPlan]) -> None:
    """Raise Refused for the first sink that is not ready; log the errors of the others, so one look shows all.

    For a sink without an epoch so far, also find out whether it can write. Raises as ``refusal`` and ``unwritable``.
    """
    refusals = [no for sink, plan in plans.items() if (no := _refusal_at_open(task, sink, plan))]
    for other in refusals[1:]:
        log.error("another sink is not ready either: %s", other)
    if refusals:
        raise refusals[0]


def _refusal_at_open(task: TaskTry, name: str, plan: SinkPlan) -> Refused | None:
    refused = refusal(task, name, plan)
    return refused or (None if plan.previous else unwritable(task.pipeline.sink(name), task.pipeline.name, task.env))


def refusal(task: TaskTry, name: str, plan: SinkPlan) -> Refused | None:
    """The error of one sink that is not ready; None if it is, or if a sink of its kind cannot tell. Changes nothing.

    Raises NotApplied if the sink does not answer.
    """
    sink = task.pipeline.sink(name)
    if not isinstance(sink, Preflight):
        return None
    try:
        with located(task.pipeline.name, sink=name), asked(sink, "require_ready"):
            sink.require_ready(task.pipeline.name, plan.previous, task.env)
    except Refused as refused:
        # Also the vote makes these checks. Here, no stage task has run that could be cleared.
        refused.remedy = _OF_VOTE.sub(r"\1 failed task", refused.remedy)
        return refused
    return None


def unwritable(sink: Sink, pipeline: str, env: Environment) -> Refused | None:
    """The error of one sink that cannot write; None if it can, or if a sink of its kind cannot tell. Leaves nothing.

    Raises NotApplied or OutcomeUnknown if its store does not answer.
    """
    if not isinstance(sink, Probing):
        return None
    try:
        with located(pipeline, sink=sink.name), asked(sink, "require_writable"):
            sink.require_writable(env)
    except Refused as refused:
        return refused
    return None
