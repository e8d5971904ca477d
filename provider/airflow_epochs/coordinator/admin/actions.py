"""What operators do to a pipeline at once, by the command line or by the page: pause, abort, waive a sink, hand over.

Each action first tells what it will change. It holds what it has told, so that it changes nothing else: if the ledger
has moved on meanwhile, it is refused. ``coordinator.orders`` has the commands that the next run obeys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from airflow_epochs import codes
from airflow_epochs.contracts import Noting
from airflow_epochs.coordinator.admin import admin, pausing
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.looks import NotChecked
from airflow_epochs.coordinator.recorded_sinks import built
from airflow_epochs.coordinator.task import new_writer
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import in_words, unfinished
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import DecisionKind, DecisionRecord, attempt_fields, described_epochs, records_upper_bound
from airflow_epochs.names import no_dag_of
from airflow_epochs.protocol import State

_DAG_ID = re.compile(r"[\w.-]{1,250}")
"""Airflow's own rule."""


class Action(Protocol):
    """One action on one pipeline. ``name``: the command, as typed after ``airflow epochs``."""

    @property
    def name(self) -> str: ...

    def told(self, ledger: Ledger) -> list[str]:
        """What will change, in sentences. Raises Refused if there is nothing to do. Changes nothing."""
        ...

    def do(self, ledger: Ledger, by: Account) -> str:
        """Do it, and say so in a sentence. Raises Refused if the ledger has changed since. Idempotent."""
        ...


@runtime_checkable
class Asking(Protocol):
    """An action that asks a sink before it tells what will change. A sink may take long to answer."""

    def require_possible(self, ledger: Ledger) -> None:
        """Raise Refused as ``Action.told`` does, without asking the sink."""
        ...


def require_possible(action: Action, ledger: Ledger) -> None:
    """Raise Refused if there is nothing to do any more. For an action that has been told: no sink is asked again."""
    if isinstance(action, Asking):
        action.require_possible(ledger)
    else:
        action.told(ledger)


@dataclass(frozen=True)
class Waive:
    """Let an epoch in doubt be completed without one of its sinks."""

    pipeline: str
    epoch: int
    sink: str
    name = "waive"

    def told(self, ledger: Ledger) -> list[str]:
        """As ``Action.told``."""
        view = admin.with_promise(ledger, self.epoch, self.sink)
        return [
            f"Epoch {self.epoch} of pipeline {self.pipeline} will be complete without sink {self.sink}.",
            *self._lost(ledger, view),
            *self._of_table(view),
            *self._of_state(view),
            *self._left(view),
        ]

    def do(self, ledger: Ledger, by: Account) -> str:
        """As ``Action.do``."""
        admin.waive(ledger, self.epoch, self.sink, by=by)
        return f"Epoch {self.epoch} will be completed without sink {self.sink}: clear `complete`, or start a run."

    def require_possible(self, ledger: Ledger) -> None:
        """As ``Asking.require_possible``."""
        admin.with_promise(ledger, self.epoch, self.sink)

    def is_shown(self, ledger: Ledger, view: EpochView) -> bool:
        """Whether the sink shows the epoch's rows already. Raises NotChecked, with a clause, if it is not known."""
        raise NotChecked("it could not be asked")

    def _lost(self, ledger: Ledger, view: EpochView) -> list[str]:
        promised, unless = admin.promised(ledger, view, self.sink), ""
        try:
            shown = self.is_shown(ledger, view)
        except NotChecked as why:
            shown, unless = False, f", unless it shows them already ({why})"
        if shown:
            return [
                f"Sink {self.sink} shows the {promised.rows} rows of the epoch: its commit has landed, and a waiver "
                "takes no row back. Waive it only if it cannot get its receipt: to complete the epoch with the "
                f"sink, clear the failed task, or start a run (transaction {view.opened.txn_id})."
            ]
        if self.sink in view.receipts:
            unless = ", if it has lost its commit (it has a receipt)"
        offsets = records_upper_bound(view.opened.ranges_of(self.sink))
        return [
            f"Rows that sink {self.sink} loses for good{unless}: {promised.rows}, staged at {promised.place} "
            f"(offsets: {offsets}; transaction {view.opened.txn_id}).",
            "A commit that has begun is not stopped by the waiver, and may land later all the same. If a sink of "
            f"another name gets epoch {self.epoch} by `backfill` in the same table or topic, it fences that commit "
            "first. It does not if it cannot, or if the place is not surely the same. So end all tasks of the epoch "
            "that hang: its rows could come twice.",
        ]

    def _of_table(self, view: EpochView) -> list[str]:
        """The line for a table that was to go back: it keeps its rows, and the next epochs read them again."""
        if self.sink not in view.opened.restores:
            return []
        epoch = view.opened.restored_to
        since = described_epochs(epoch + 1, view.number - 1)
        return [
            f"Its table does not go back to epoch {epoch}: it keeps its rows of {since}. The next epochs read "
            "them again, so they come twice there, unless the sink replaces them."
        ]

    def _of_state(self, view: EpochView) -> list[str]:
        if self.sink not in view.opened.state:
            return []
        return [
            "It is a state table, so later results would lack these rows. The next run stops until the state begins "
            f"anew: airflow epochs adopt-sink {self.pipeline} {self.sink} --new-table --why …"
        ]

    def _left(self, view: EpochView) -> list[str]:
        sink: object = built(view.opened.sinks[self.sink].spec)
        if self.sink in view.receipts or not isinstance(sink, Noting):
            return []
        left = sink.left_if_waived()
        return [left] if left else []


@dataclass(frozen=True)
class TakeOver:
    """Hand a pipeline from the DAG ``owner`` to another one."""

    pipeline: str
    dag_id: str
    owner: str
    name = "takeover"

    def told(self, ledger: Ledger) -> list[str]:
        """As ``Action.told``."""
        _require_dag_id(self.dag_id)
        admin.require_owner(ledger, self.pipeline, self.owner)
        if self.dag_id == self.owner:
            raise Refused(
                f"Pipeline {self.pipeline} belongs to DAG {self.dag_id} already. Nothing was changed.",
                code=codes.COMMAND_OPTIONS,
                remedy="Do nothing, or give the id of another DAG.",
            )
        view = unfinished(ledger)
        return [
            f"Pipeline {self.pipeline} will end: no DAG will run it any more."
            if self.ends
            else f"Pipeline {self.pipeline} will go from DAG {self.owner} to DAG {self.dag_id}.",
            f"Runs of DAG {self.owner} will not be able to open it any more.",
            f"{in_words(view)} {self._becomes()}" if view else "No epoch is unfinished.",
        ]

    @property
    def ends(self) -> bool:
        """Whether no DAG is to run the pipeline any more."""
        return self.dag_id == no_dag_of(self.pipeline)

    def _becomes(self) -> str:
        return "No later run will finish it." if self.ends else f"A run of DAG {self.dag_id} will finish or abort it."

    def do(self, ledger: Ledger, by: Account) -> str:
        """As ``Action.do``."""
        admin.take_over(ledger, self.pipeline, self.dag_id, owner=self.owner, by=by)
        return f"Pipeline {self.pipeline} now belongs to DAG {self.dag_id}."


def _require_dag_id(dag_id: str) -> None:
    """Raise Refused if no DAG can have this id, for example of a shell variable that is not set."""
    if not _DAG_ID.fullmatch(dag_id):
        raise Refused(
            f"No DAG can have the id {dag_id!r}. Nothing was changed.",
            code=codes.COMMAND_OPTIONS,
            remedy="Give the id of the DAG that runs the pipeline from now on. It has letters, digits, dashes, dots "
            "and underscores.",
        )


@dataclass(frozen=True)
class Abort:
    """Abort an attempt that is not decided: the next run takes the same input again."""

    pipeline: str
    txn_id: str
    name = "abort"

    @classmethod
    def of(cls, ledger: Ledger, pipeline: str) -> Abort:
        """The action for the attempt that is open now. Raises Refused if no attempt is open."""
        view = unfinished(ledger)
        if view is None or view.state is not State.OPEN:
            raise Refused(
                f"No attempt is undecided. {in_words(view) if view else 'No epoch is unfinished.'}",
                code=codes.ATTEMPT_NOT_OPEN,
                pipeline=pipeline,
            )
        return cls(pipeline, str(view.opened.txn_id))

    def told(self, ledger: Ledger) -> list[str]:
        """As ``Action.told``."""
        opened = self._view(ledger).opened
        return [
            f"Attempt {opened.txn_id.attempt} of epoch {opened.txn_id.epoch} of pipeline {self.pipeline} will be "
            f"aborted ({self.txn_id}, opened by {opened.run}). No sink has shown, or will show, any of its rows.",
            "If that run is still at work, it goes on with a new attempt. To stop it, first mark the run as failed in "
            "Airflow.",
            "A Spark job that stages for this attempt may run to its end, in vain.",
            f"The next run, or a clear of that one, takes the same {records_upper_bound(opened.ranges)} offsets again.",
        ]

    def do(self, ledger: Ledger, by: Account) -> str:
        """As ``Action.do``."""
        opened = self._view(ledger).opened
        record = DecisionRecord(
            txn_id=opened.txn_id,
            decision=DecisionKind.GLOBAL_ABORT,
            reason=f"`airflow epochs abort` by {by.who}: {by.why}",
            votes={},
            dag_id=opened.dag_id,
            run_id=opened.run_id,
            decided_at=by.at,
            writer=new_writer(),
        )
        standing = ledger.put(record)
        if standing.writer != record.writer:
            raise Refused(
                f"The attempt was decided at the same moment: {standing.decision.value}. This abort changed nothing.",
                code=codes.COMMAND_RACE,
                **attempt_fields(opened.txn_id),
            )
        attempt, epoch = opened.txn_id.attempt, opened.txn_id.epoch
        return f"Attempt {attempt} of epoch {epoch} is aborted. If its run has ended, start a run, or clear it."

    def _view(self, ledger: Ledger) -> EpochView:
        view = unfinished(ledger)
        if view is None or view.state is not State.OPEN or view.opened.txn_id != self.txn_id:
            raise Refused(
                f"The attempt {self.txn_id} is not undecided any more. "
                f"{in_words(view) if view else 'No epoch is unfinished.'} Nothing was changed.",
                code=codes.ATTEMPT_NOT_OPEN,
                pipeline=self.pipeline,
            )
        return view


@dataclass(frozen=True)
class Pause:
    """Let the pipeline take no new epoch. ``number``: of the record, so that no later command is overruled."""

    pipeline: str
    number: int
    name = "pause"

    @classmethod
    def of(cls, ledger: Ledger, pipeline: str) -> Pause:
        """The action as it stands now. Raises Refused if the pipeline is paused."""
        if pause := ledger.pause_in_force():
            raise _nothing_to_do(pipeline, pausing.in_words(pause))
        return cls(pipeline, _next(ledger))

    def told(self, ledger: Ledger) -> list[str]:
        """As ``Action.told``."""
        view = unfinished(ledger)
        return [
            f"Pipeline {self.pipeline} will take no new epoch. Its runs will be skipped, and say who paused it and "
            "why.",
            f"{in_words(view)} {_after_pause(view)}" if view else "No epoch is unfinished.",
            f"To go on: airflow epochs unpause {self.pipeline} --why …",
        ]

    def do(self, ledger: Ledger, by: Account) -> str:
        """As ``Action.do``."""
        pausing.put(ledger, self.pipeline, self.number, paused=True, by=by)
        return f"Pipeline {self.pipeline} is paused."


_AFTER_PAUSE = {
    State.OPEN: "Its run goes on with it; if that run has ended, the next one aborts it.",
    State.IN_DOUBT: "A run finishes it all the same.",
    State.ABORTED: "During the pause only its own run opens it again, if it is cleared.",
}


def _after_pause(view: EpochView) -> str:
    """What becomes of an unfinished epoch. A command is an aborted attempt too, but of no run."""
    return "It waits for the end of the pause." if view.opened.command else _AFTER_PAUSE[view.state]


@dataclass(frozen=True)
class Unpause:
    """Let a paused pipeline take new epochs again. ``number``: as in ``Pause``."""

    pipeline: str
    number: int
    name = "unpause"

    @classmethod
    def of(cls, ledger: Ledger, pipeline: str) -> Unpause:
        """The action as it stands now. Raises Refused if the pipeline is not paused."""
        if ledger.pause_in_force() is None:
            raise _nothing_to_do(pipeline, "The pipeline is not paused.")
        return cls(pipeline, _next(ledger))

    def told(self, ledger: Ledger) -> list[str]:
        """As ``Action.told``."""
        pause = ledger.pause_in_force()
        return [f"Pipeline {self.pipeline} will take new epochs again.", *([pausing.in_words(pause)] if pause else [])]

    def do(self, ledger: Ledger, by: Account) -> str:
        """As ``Action.do``."""
        pausing.put(ledger, self.pipeline, self.number, paused=False, by=by)
        return f"Pipeline {self.pipeline} takes new epochs again: start a run, or wait for the next one."


def _next(ledger: Ledger) -> int:
    newest = ledger.newest_pause()
    return newest.number + 1 if newest else 1


def _nothing_to_do(pipeline: str, why: str) -> Refused:
    return Refused(f"{why} Nothing was changed.", code=codes.NOTHING_TO_PAUSE, pipeline=pipeline)
