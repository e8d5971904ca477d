"""Pipelines that may be today's under another name: what they have written to places of today, and where they ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from airflow_epochs import secrecy
from airflow_epochs.config import Transform
from airflow_epochs.contracts import Holding, Position, Sink
from airflow_epochs.coordinator import sink_calls
from airflow_epochs.coordinator.code_changes import TransformCode, code_in
from airflow_epochs.coordinator.former_names.recorded_places import is_at
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, OutcomeUnknown, Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.overview import Owned, owned
from airflow_epochs.ledger.queries import newest_opened
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import CompleteRecord, JsonDict, OpenRecord, TransactionId, ends_of
from airflow_epochs.names import no_dag_of
from airflow_epochs.protocol import State
from airflow_epochs.sinks import from_spec
from airflow_epochs.storage.objects import may_answer_later

log = secrecy.logger(__name__)

Partition = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a former pipeline at the place of a sink of today.

    Attributes:
        sink: The sink of today.
        until: The newest epoch whose rows are there, or may come to be there.
    """

    sink: str
    place: str
    until: OpenRecord | CompleteRecord

    def ends(self, now: Position) -> dict[Partition, int]:
        """Where ``until`` ended, in the topics of ``now``. Without topics that were created again under their name."""
        then = Position.of(self.until)
        ends = ends_of(then.named_as_in(now))
        return {at: end for at, end in ends.items() if at[0] in now.ranges and _is_same(at[0], then, now)}


@dataclass(frozen=True, kw_only=True)
class Former:
    """A pipeline that may be today's under another name: one that left the DAG, or one of another DAG.

    Attributes:
        dag_id: The DAG that owns it, or did so until it was ended.
        is_ours: Whether that is the DAG of today's pipeline.
        ended: Whether an operator has said that no DAG runs it any more.
        believed: Whether its records could be checked.
        rows: What complete epochs have written to places of today.
        coming: What its unfinished epoch may write there.
        view: That epoch: open, or in doubt; None if there is none.
    """

    name: str
    dag_id: str
    is_ours: bool
    ended: bool
    believed: bool
    rows: tuple[Rows, ...]
    coming: tuple[Rows, ...]
    view: EpochView | None

    @property
    def at(self) -> str:
        """When it wrote there last."""
        return max(_time_of(each.until) for each in (*self.rows, *self.coming))

    @property
    def newest(self) -> Rows | None:
        """The rows of the latest epoch among ``rows``; None if ``rows`` is empty."""
        return max(self.rows, key=lambda each: each.until.txn_id.epoch, default=None)

    @property
    def is_open(self) -> bool:
        """Whether its unfinished epoch is not decided yet, so that its rows may still come."""
        return self.view is not None and self.view.state is State.OPEN


def _is_same(topic: str, then: Position, now: Position) -> bool:
    return len({then.id_of(topic), now.id_of(topic)} - {None}) < 2


def _time_of(record: OpenRecord | CompleteRecord) -> str:
    return record.opened_at if isinstance(record, OpenRecord) else record.completed_at


# -- which there are --------------------------------------------------------------------------------------------------


def formers(task: TaskTry, in_dag: Collection[str]) -> list[Former]:
    """The pipelines outside of the DAG that wrote to places of today, the last one first.

    Pipelines of another DAG count only if they have the same transform, which makes the same rows.
    """
    try:
        others = task.ledger.others()
    except OutcomeUnknown as error:
        if may_answer_later(error):
            raise
        log.warning(
            "The ledger's store does not list the other pipelines, so the provider cannot find out whether this "
            "pipeline had another name."
        )
        return []
    found = [_former(task, each) for each in owned(task.ledger.of(name) for name in others if name not in in_dag)]
    return sorted((each for each in found if each), key=lambda each: each.at, reverse=True)


def _former(task: TaskTry, of: Owned) -> Former | None:
    """The pipeline as a ``Former``; None if it shares no place with today's sinks.

    Damaged records stop only the DAG that has them.
    """
    nobody = no_dag_of(of.ledger.pipeline)
    dag_id = next((owner for owner in reversed(of.owners) if owner != nobody), nobody)
    is_ours, ended = dag_id == task.pipeline.dag_id, of.owners[-1] == nobody
    if not (is_ours or of.believed):
        return None  # anybody may have added it to the ledger
    try:
        return _wrote_there(task, of, dag_id, is_ours=is_ours, ended=ended)
    except (Corrupt, Refused, OutcomeUnknown) as error:
        is_broken = not isinstance(error, OutcomeUnknown)
        if may_answer_later(error) or (is_broken and is_ours and not ended and of.believed):
            raise
        log.warning(
            "The provider cannot find out whether a pipeline of DAG %s is this one under another name. %s",
            dag_id,
            error,
        )
        return None


def _wrote_there(task: TaskTry, of: Owned, dag_id: str, *, is_ours: bool, ended: bool) -> Former | None:
    history = _history(of.ledger)
    if history is None or not (is_ours or _is_code_of(history.opened, task.pipeline.transform)):
        return None
    rows, coming = tuple(_rows(task, of.ledger, history.complete)), tuple(_coming(task, history.unfinished))
    if not rows and not coming:
        return None
    return Former(
        name=of.ledger.pipeline,
        dag_id=dag_id,
        is_ours=is_ours,
        ended=ended,
        believed=of.believed,
        rows=rows,
        coming=coming,
        view=history.unfinished if coming else None,
    )


@dataclass(frozen=True, kw_only=True)
class _History:
    """A pipeline's records. ``opened``: the newest open record; None if pruned. ``unfinished``: as ``Former.view``."""

    opened: OpenRecord | None
    complete: CompleteRecord | None
    unfinished: EpochView | None


def _history(ledger: Ledger) -> _History | None:
    """The pipeline's records; None if no epoch of it has written anything, or may yet do so."""
    try:
        view = ledger.view_of_next()
        complete = ledger.complete_record(view.number - 1)
        unfinished = view if view.state in (State.OPEN, State.IN_DOUBT) else None
        if complete is None and unfinished is None:
            return None
        return _History(opened=newest_opened(ledger), complete=complete, unfinished=unfinished)
    except Corrupt as damaged:
        damaged.remedy = (
            f"{damaged.remedy} Or, if pipeline {ledger.pipeline!r} has left DAG and tables for good, type "
            f"`{ending(ledger.pipeline)}`. Then clear the failed task."
        )
        raise


def ending(pipeline: str) -> str:
    """The command after which no DAG runs the pipeline any more."""
    return f"airflow epochs takeover {pipeline} --dag-id {no_dag_of(pipeline)} --why …"


def _is_code_of(opened: OpenRecord | None, today: Transform) -> bool:
    """Whether an epoch ran the transform of today: the same file, or one of the same name and content."""
    if opened is None:
        return False
    return opened.transform == str(today) or (opened.code is not None and TransformCode.of(today) == code_in(opened))


# -- what they have written -------------------------------------------------------------------------------------------


def _coming(task: TaskTry, view: EpochView | None) -> Iterator[Rows]:
    plans = view.opened.sinks.values() if view else ()
    for sink, place in _places(task):
        if view and any(is_at(sink, plan.spec, task.pipeline.sinks) for plan in plans):
            yield Rows(sink=sink.name, place=place, until=view.opened)


def _rows(task: TaskTry, ledger: Ledger, complete: CompleteRecord | None) -> Iterator[Rows]:
    """For each sink of today, what the sinks that were ever in the pipeline have written last to its place."""
    written = complete.markers.items() if complete else ()
    for sink, place in _places(task):
        there = [txn for name, txn in written if _is_there(task, sink, ledger, name, txn)]
        last = max((txn.epoch for txn in there), default=0)
        if until := last and (ledger.complete_record(last) or complete):
            yield Rows(sink=sink.name, place=place, until=until)


def _places(task: TaskTry) -> Iterator[tuple[Sink, str]]:
    return ((sink, place) for sink in task.pipeline.sinks if (place := sink.destination()))


def _is_there(task: TaskTry, sink: Sink, ledger: Ledger, name: str, txn: TransactionId) -> bool:
    """Whether the former pipeline's sink ``name`` wrote ``txn``, its last one, to the place of ``sink``.

    If the record of that was pruned, the receipt and the place's own marker tell.
    """
    if spec := _spec_of(ledger, name, txn):
        return is_at(sink, spec, task.pipeline.sinks)
    if isinstance(sink, Holding):
        record = ledger.complete_record(txn.epoch)
        receipt = record.receipts.get(name) if record else None
        if receipt is None or not sink.may_hold(receipt, task.env):
            return False
    alike = from_spec({**sink.spec(), "name": name}, task.pipeline.sinks)
    return alike.name == name and sink_calls.marker_of(alike, ledger.pipeline, task.env) is not None


def _spec_of(ledger: Ledger, name: str, txn: TransactionId) -> JsonDict | None:
    if opened := ledger.open_record(txn.epoch, txn.attempt):
        return opened.sinks[name].spec if name in opened.sinks else None
    rebuilt = ledger.rebuilt()
    return rebuilt.sinks.get(name) if rebuilt and rebuilt.txn_id == txn else None
