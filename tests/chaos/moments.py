"""At which step of its epoch a pipeline was when a fault fired, and what came of that attempt."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.protocol import State
from tests.chaos.system import System
from tests.support.cells import Outcome, fired

FAULTS = {
    "kill task": ("F1", "bank"),
    "kill spark server": ("F2", "bank"),
    "kill submit driver": ("F2", "bank_submit"),
    "kill executor": ("F3", "bank"),
    "kill scheduler": ("F22", "bank"),
    "wipe metadata": ("F22", "bank"),
    "clear tasks": ("F13", "bank"),
    "same run by a second scheduler": ("F13", "bank"),
}
"""Which fault of the catalogue a kind is, and which pipeline surely noticed."""


@dataclass(frozen=True)
class Moment:
    """``step``: the row of the matrix of faults; ``txn_id``: the attempt that was in flight, if there was one."""

    fault: str
    ledger: Ledger
    step: int
    epoch: int
    txn_id: str | None

    @classmethod
    def of(cls, system: System, kind: str) -> Moment | None:
        """Now; None for kinds that the catalogue does not have."""
        if kind not in FAULTS:
            return None
        fault, pipeline = FAULTS[kind]
        ledger = system.ledger_of(pipeline)
        view = ledger.view(ledger.newest_complete() + 1)
        return cls(fault, ledger, _step(view, ledger), view.number, view.open.txn_id if view.open else None)

    def record(self) -> None:
        """Tell docs/faults.md, once everything is at rest."""
        fired(self.fault, self.step, self._outcome())

    def _outcome(self) -> Outcome:
        complete = self.ledger.complete_record(self.epoch)
        if self.txn_id is None or complete is None:
            return "="
        return "C" if complete.txn_id == self.txn_id else "A"


def _step(view: EpochView, ledger: Ledger) -> int:
    match view.state:
        case State.OPEN:
            return 3 if any(t.txn_id == view.opened.txn_id for t in ledger.tries(view.number)) else 2
        case State.IN_DOUBT:
            done = len(view.receipts)
            return 8 if not done else 12 if done == len(view.opened.sinks) else 11
        case State.ABORTED:
            return 14
    return 1
