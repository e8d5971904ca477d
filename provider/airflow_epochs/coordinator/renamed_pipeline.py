"""A pipeline that has another name in the DAG now would write once more what its tables and topics have.

Ledger and markers go by names. So a pipeline that was renamed counts as new, and begins at the source's ``starting``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from airflow_epochs import codes, secrecy
from airflow_epochs.config import Transform
from airflow_epochs.contracts import PlannedEpoch, Position, Sink, Stateful
from airflow_epochs.coordinator.code_changes import Code, code_in
from airflow_epochs.coordinator.recorded_places import is_at
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, OutcomeUnknown, Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.overview import owner_of_each
from airflow_epochs.ledger.queries import newest_opened
from airflow_epochs.model import (
    CompleteRecord,
    OpenRecord,
    ends_of,
    starting_at_ends,
    starts_of,
)
from airflow_epochs.protocol import State
from airflow_epochs.storage.objects import may_not_be_read

log = secrecy.logger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Former:
    """A pipeline that may be today's under another name: one that left the DAG, or one of another DAG.

    Attributes:
        owner: The DAG that owns it.
        ended: Its newest epoch that is complete or in doubt.
        shared: A sink of today that writes to the place of one of its sinks, and that place.
        in_doubt: Whether ``ended`` is in doubt.
    """

    name: str
    owner: str
    ended: OpenRecord | CompleteRecord
    shared: tuple[str, str]
    in_doubt: bool

    @property
    def at(self) -> str:
        """When it ended."""
        return self.ended.opened_at if isinstance(self.ended, OpenRecord) else self.ended.completed_at


def require_new_input(task: TaskTry, epoch: int, planned: PlannedEpoch) -> None:
    """Raise Refused if a first epoch reads again what another pipeline has written to the same place.

    That is one that left the DAG, or one of another DAG with the same transform, which makes the same rows. Pipelines
    that stand in one DAG share the place on purpose. ``planned``: the epoch's input.
    """
    if epoch > 1 or task.pipeline.in_dag is None:
        return
    for former in sorted(_formers(task, task.pipeline.in_dag), key=lambda each: each.at, reverse=True):
        if again := _read_again(former, planned):
            raise _renamed(task, former, again)


def _formers(task: TaskTry, in_dag: Collection[str]) -> list[_Former]:
    """The pipelines that wrote to places of today, and may be today's under another name."""
    try:
        others = task.ledger.others()
    except OutcomeUnknown as error:
        if not may_not_be_read(error):
            raise
        log.warning("The other pipelines of the ledger cannot be seen, so nobody knows if this one had another name.")
        return []
    ledgers = [task.ledger.of(name) for name in others if name not in in_dag]
    owned = zip(ledgers, owner_of_each(ledgers), strict=True)
    found = [_former(task, ledger, owner) for ledger, owner in owned if owner not in ("", _nobody(ledger.pipeline))]
    return [each for each in found if each]


def _former(task: TaskTry, ledger: Ledger, owner: str) -> _Former | None:
    if owner == task.pipeline.dag_id:
        return _wrote_there(task, ledger, owner)
    try:
        return _wrote_there(task, ledger, owner)
    except (Corrupt, Refused) as error:
        log.warning("Nobody can tell if a pipeline of DAG %s is this one under another name. %s", owner, error)
        return None


def _wrote_there(task: TaskTry, ledger: Ledger, owner: str) -> _Former | None:
    """None if it shares no place with the sinks of today, has had no epoch, or if its records were pruned.

    Or if it is another DAG's, with another transform.
    """
    opened = _newest_opened(ledger)
    if opened is None or not (owner == task.pipeline.dag_id or _is_code_of(opened, task.pipeline.transform)):
        return None
    shared = _shared(opened, task.pipeline.sinks)
    if shared is None:
        return None
    view = ledger.view_of_next()
    in_doubt = view.state is State.IN_DOUBT
    ended = view.open if in_doubt else ledger.complete_record(view.number - 1)
    if ended is None:
        return None
    return _Former(name=ended.txn.pipeline, owner=owner, ended=ended, shared=shared, in_doubt=in_doubt)


def _is_code_of(opened: OpenRecord, today: Transform) -> bool:
    """Whether an epoch ran the transform of today: the same file, or one of the same name and content."""
    return opened.transform == str(today) or (opened.code is not None and Code.of(today) == code_in(opened))


def _newest_opened(ledger: Ledger) -> OpenRecord | None:
    try:
        return newest_opened(ledger)
    except Corrupt as damaged:
        damaged.remedy = (
            f"{damaged.remedy} Or, if pipeline {ledger.pipeline!r} has left DAG and tables for good, type "
            f"`{_end(ledger.pipeline)}`. Then clear the failed task."
        )
        raise


def _end(pipeline: str) -> str:
    """The command after which no DAG runs the pipeline any more."""
    return f"airflow epochs takeover {pipeline} --dag-id {_nobody(pipeline)} --why …"


def _nobody(pipeline: str) -> str:
    """The DAG, which does not exist, that a pipeline is handed to in the end."""
    return f"{pipeline}_ended"


def _read_again(former: _Former, planned: PlannedEpoch) -> tuple[str, int, int] | None:
    """A partition that both read, where the new input begins there, and where the former pipeline ended; or None."""
    now, then = Position(ranges=planned.ranges, state=planned.state), Position.of(former.ended)
    ends = ends_of(then.named_as_in(now))
    for (topic, partition), start in starts_of(planned.ranges).items():
        end = ends.get((topic, partition), 0)
        ids = {then.id_of(topic), now.id_of(topic)} - {None}
        if start < end and len(ids) < 2:  # else it is another topic or table of this name
            return f"{topic}[{partition}]", start, end
    return None


def _shared(opened: OpenRecord, today: Collection[Sink]) -> tuple[str, str] | None:
    """A sink of today that writes to the place of a recorded one, and that place; None if there is none."""
    places = ((sink, place) for sink in today if (place := sink.destination()))
    specs = [plan.spec for plan in opened.sinks.values()]
    return next(((sink.name, at) for sink, at in places if any(is_at(sink, spec, today) for spec in specs)), None)


def _renamed(task: TaskTry, former: _Former, again: tuple[str, int, int]) -> Refused:
    (sink, place), (partition, start, end) = former.shared, again
    return Refused(
        f"The pipeline is new in this ledger. {_said_of(task, former)} It has read {partition} up to offset {end}, and "
        f"written to the place of the sink {sink!r}: {secrecy.shown(place)}. The new pipeline would read that again, "
        f"from offset {start}, and write each row once more. Nothing was read or written.",
        code=codes.PIPELINE_RENAMED,
        remedy=_remedy(task, former),
        pipeline=task.pipeline.name,
        sink=sink,
    )


def _said_of(task: TaskTry, former: _Former) -> str:
    if former.owner == task.pipeline.dag_id:
        return f"DAG {former.owner!r} had a pipeline {former.name!r}, which is not in the DAG any more."
    return f"DAG {former.owner!r} has a pipeline {former.name!r} with the same transform."


def _remedy(task: TaskTry, former: _Former) -> str:
    dag = f"the DAG{_taken_over(task, former)}"
    back = f"Give the pipeline its old name {former.name!r} again in {dag}: it goes on where it ended."
    if former.in_doubt:
        return (
            f"{back} Then clear the failed task. Epoch {former.ended.txn.epoch} of pipeline "
            f"{former.name!r} is in doubt, so keep the old name at least until that is complete."
        )
    on = "" if any(isinstance(sink, Stateful) for sink in task.pipeline.sinks) else _going_on(former)
    return (
        f"{back} Then clear the failed task. Only if it is to have the new name, or is another "
        f"pipeline, type `{_end(former.name)}`: no DAG runs pipeline {former.name!r} any more. {on}Then clear the "
        f"failed task.{_for_both(task, former)}"
    )


def _taken_over(task: TaskTry, former: _Former) -> str:
    """What else a pipeline of another DAG needs to go on in this one."""
    if former.owner == task.pipeline.dag_id:
        return ""
    return f", and type `airflow epochs takeover {former.name} --dag-id {task.pipeline.dag_id} --why …`"


def _for_both(task: TaskTry, former: _Former) -> str:
    if former.owner == task.pipeline.dag_id:
        return ""
    return (
        f" If DAG {former.owner!r} is to go on as well, and the rows of the two differ, give this pipeline a function "
        "of its own in `transform`. Then clear the failed task."
    )


def _going_on(former: _Former) -> str:
    """How a new pipeline without state goes on where the former one ended."""
    starting = starting_at_ends(former.ended.ranges)
    return f"To go on after its rows, also set `starting` of the source to {starting}; else all rows are read again. "
