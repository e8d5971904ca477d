"""The command ``rewind`` as actions, as in ``coordinator.admin``: the page has it in these two forms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from airflow_epochs import codes
from airflow_epochs.contracts import Environment, Move
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.orders import orders, rewinding
from airflow_epochs.coordinator.orders.orders import NO_RESTORATION, BetweenEpochs, Restoration
from airflow_epochs.coordinator.orders.outlook import Outlook, outlook
from airflow_epochs.coordinator.orders.wording import told
from airflow_epochs.errors import Refused, located
from airflow_epochs.hooks.epochs import AirflowEnvironment
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import REWIND
from airflow_epochs.sources import on_record
from airflow_epochs.spark.runners import SparkConnect

COMMAND = REWIND


@dataclass(frozen=True)
class _Rewinding(ABC):
    """What both forms have in common.

    Attributes:
        epoch, attempt: Where the pipeline stood when this was told, as in ``BetweenEpochs``.
    """

    pipeline: str
    epoch: int
    attempt: int

    @abstractmethod
    def _moved(self, ledger: Ledger, at: BetweenEpochs, env: Environment) -> tuple[Move, Restoration]:
        """Where the source goes, and what happens to the tables. Asks the source; reads only."""

    def told(self, ledger: Ledger) -> list[str]:
        """As ``Action.told``."""
        at, look = self._planned(ledger)
        return [*told(ledger, at, look), self._source(at)]

    def _source(self, at: BetweenEpochs) -> str:
        """The source on record. The command runs DAG files to find today's; the API server must not."""
        return (
            f"The source is taken as epoch {at.newest.txn_id.epoch} has it on record. If the DAG has changed it since, "
            f"cancel, and type `airflow epochs {COMMAND} {self.pipeline} …`, which takes the source of today's DAG."
        )

    def do(self, ledger: Ledger, by: Account) -> str:
        """As ``Action.do``."""
        at, look = self._planned(ledger)
        orders.put(ledger, at, COMMAND, by, look.move, restoration=look.restoration)
        return rewinding.next_step(self.pipeline, on_record(at.newest.source), look.restoration)

    def _planned(self, ledger: Ledger) -> tuple[BetweenEpochs, Outlook]:
        at = self._standing(ledger)
        with located(self.pipeline):
            move, restoration = self._moved(ledger, at, AirflowEnvironment(SparkConnect()))
        if rewinding.is_nothing(at, move, restoration):
            raise Refused(
                "The pipeline goes on there in any case. Nothing was changed.",
                code=codes.NOTHING_TO_REWIND,
                pipeline=self.pipeline,
            )
        return at, outlook(ledger, at, on_record(at.newest.source), move, restoration=restoration)

    def _standing(self, ledger: Ledger) -> BetweenEpochs:
        at = orders.standing(ledger, self.pipeline)
        if (at.epoch, at.attempt) != (self.epoch, self.attempt):
            raise Refused(
                "The pipeline has moved on before this was confirmed. Nothing was changed.",
                code=codes.COMMAND_RACE,
                pipeline=self.pipeline,
            )
        return at


@dataclass(frozen=True)
class Rewind(_Rewinding):
    """Read records once more, from where an epoch ended.

    Attributes:
        to_epoch: The complete epoch to go back to.
        restore_tables: Whether the Delta tables go back to it, too.
    """

    to_epoch: int
    restore_tables: bool
    name = COMMAND

    @classmethod
    def of(cls, ledger: Ledger, pipeline: str, to_epoch: int, restore_tables: bool) -> Rewind:
        """The action as it stands now. Raises Refused if an epoch is unfinished."""
        at = orders.standing(ledger, pipeline)
        return cls(pipeline, at.epoch, at.attempt, to_epoch, restore_tables)

    def _moved(self, ledger: Ledger, at: BetweenEpochs, env: Environment) -> tuple[Move, Restoration]:
        move = rewinding.to_epoch(ledger, at, on_record(at.newest.source), self.to_epoch, env)
        return move, orders.restoration(ledger, at, self.to_epoch, env) if self.restore_tables else NO_RESTORATION


@dataclass(frozen=True)
class RewindToTime(_Rewinding):
    """Read records once more, from the first ones of a time. The tables stay as they are.

    Attributes:
        to_time: ISO 8601 with its zone, such as ``2026-01-31T00:00Z``.
    """

    to_time: str
    name = "rewind-to-time"

    @classmethod
    def of(cls, ledger: Ledger, pipeline: str, to_time: str) -> RewindToTime:
        """As ``Rewind.of``."""
        at = orders.standing(ledger, pipeline)
        return cls(pipeline, at.epoch, at.attempt, to_time)

    def _moved(self, ledger: Ledger, at: BetweenEpochs, env: Environment) -> tuple[Move, Restoration]:
        source = on_record(at.newest.source)
        return rewinding.to_time(source, at.position(source), self.to_time, env), NO_RESTORATION
