"""The command ``rewind`` to an epoch as an action, as in ``coordinator.actions``: the page has it in this form."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_epochs import codes
from airflow_epochs.contracts import Move
from airflow_epochs.coordinator import orders, rewinding
from airflow_epochs.coordinator.admin import Account
from airflow_epochs.coordinator.order_wording import told
from airflow_epochs.coordinator.orders import NO_RESTORATION, Restoration, Standing
from airflow_epochs.errors import Refused, located
from airflow_epochs.hooks.epochs import AirflowEnvironment
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.sources import from_spec
from airflow_epochs.spark.runners import SparkConnect


@dataclass(frozen=True)
class Rewind:
    """Read records once more, from where an epoch ended.

    Attributes:
        to_epoch: The complete epoch to go back to.
        restore_tables: Whether the Delta tables go back to it, too.
        epoch, attempt: Where the pipeline stood when this was told, as in ``Standing``.
    """

    pipeline: str
    to_epoch: int
    restore_tables: bool
    epoch: int
    attempt: int
    name = "rewind"

    @classmethod
    def of(cls, ledger: Ledger, pipeline: str, to_epoch: int, restore_tables: bool) -> Rewind:
        """The action as it stands now. Raises Refused if an epoch is unfinished."""
        at = orders.standing(ledger, pipeline)
        return cls(pipeline, to_epoch, restore_tables, at.epoch, at.attempt)

    def told(self, ledger: Ledger) -> list[str]:
        """As ``Action.told``."""
        at, move, restoration = self._planned(ledger)
        return told(ledger, at, move, restoration or NO_RESTORATION)

    def do(self, ledger: Ledger, by: Account) -> str:
        """As ``Action.do``."""
        at, move, restoration = self._planned(ledger)
        orders.put(ledger, at, self.name, by, move, restoration=restoration)
        return rewinding.next_step(restoration)

    def _planned(self, ledger: Ledger) -> tuple[Standing, Move, Restoration | None]:
        env = AirflowEnvironment(SparkConnect())
        at = self._standing(ledger)
        with located(self.pipeline):
            move = rewinding.to_epoch(ledger, at, from_spec(at.newest.source), self.to_epoch, env)
            restoration = orders.restoration(ledger, at, self.to_epoch, env) if self.restore_tables else NO_RESTORATION
        if rewinding.is_nothing(at, move, restoration):
            raise Refused(
                "The pipeline goes on there in any case. Nothing was changed.",
                code=codes.NOTHING_TO_REWIND,
                pipeline=self.pipeline,
            )
        return at, move, restoration

    def _standing(self, ledger: Ledger) -> Standing:
        at = orders.standing(ledger, self.pipeline)
        if (at.epoch, at.attempt) != (self.epoch, self.attempt):
            raise Refused(
                "The pipeline has moved on while this command waited for a confirmation. Nothing was changed.",
                code=codes.COMMAND_RACE,
                pipeline=self.pipeline,
            )
        return at
