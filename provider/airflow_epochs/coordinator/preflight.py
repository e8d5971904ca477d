"""Asks the sinks, before Spark runs, for what their votes would refuse whatever the rows are."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_epochs import secrecy
from airflow_epochs.contracts import Preflight
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused, located
from airflow_epochs.model import SinkPlan, TransactionId

log = secrecy.logger(__name__)

_OF_VOTE = re.compile(r"\b([Cc]lear the) stage task\b")


def require_ready(task: TaskTry, plans: Mapping[str, SinkPlan]) -> None:
    """Raise the Refused of the first sink that is not ready; log those of the others, so one look shows all of them.

    Raises NotApplied if a sink does not answer. Changes nothing.
    """
    refusals = [no for sink, plan in plans.items() if (no := refusal(task, sink, plan))]
    for other in refusals[1:]:
        log.error("%s", other)
    if refusals:
        raise refusals[0]


def refusal(task: TaskTry, name: str, plan: SinkPlan) -> Refused | None:
    """The error of one sink that is not ready; None if it is, or if a sink of its kind cannot tell.

    Raises NotApplied if the sink does not answer.
    """
    sink = task.pipeline.sink(name)
    if not isinstance(sink, Preflight):
        return None
    previous = TransactionId.parse(plan.previous) if plan.previous else None
    try:
        with located(task.pipeline.name, sink=name):
            sink.require_ready(task.pipeline.name, previous, task.env)
    except Refused as refused:
        # Also the vote makes these checks. Here, no stage task has run that could be cleared.
        refused.remedy = _OF_VOTE.sub(r"\1 failed task", refused.remedy)
        return refused
    return None
