"""Why a sink's marker is not the expected one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.contracts.remedies import waive_command
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import Marker, Receipt, Shown, TransactionId, compare


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A sink's marker is not the one that the ledger expects.

    Attributes:
        pipeline: The pipeline that asked.
        found: The sink's marker now.
        expected: The transaction that the ledger expects; None if it expects no epoch of this pipeline.
        receipt: The receipt of ``expected``, if the ledger still has it. Its ``detail`` names the table.
        in_doubt: The transaction of the epoch in doubt that this sink must show or has acknowledged; else None.
        undecided: The transaction of an attempt that is open and not decided; else None.
    """

    pipeline: str
    found: Marker | None
    expected: TransactionId | None
    receipt: Receipt | None = None
    in_doubt: TransactionId | None = None
    undecided: TransactionId | None = None

    def while_in_doubt(self, sink: str) -> str:
        """What to add to the remedy while an epoch is in doubt: today's DAG has no effect before it is complete."""
        if self.in_doubt is None or compare(self.found, self.expected, self.in_doubt) is Shown.AHEAD:
            return ""  # a ledger that is behind is rebuilt: then the epoch is over
        return (
            f" Epoch {self.in_doubt.epoch} is in doubt, so clear the failed task after that. If you give the sink "
            "another name, first complete the epoch without this sink's rows: "
            f"`{waive_command(self.in_doubt, sink)}`. Then clear the failed task."
        )


@runtime_checkable
class Diagnosing(Protocol):
    """A sink that can explain an unexpected marker: a table dropped, moved or restored, or a lost ledger."""

    def diagnose(self, disagreement: Disagreement, env: Environment) -> Corrupt | None:
        """The error to raise, with cause and remedy; None if the sink knows no more than its marker says.

        Changes nothing.
        """
        ...
