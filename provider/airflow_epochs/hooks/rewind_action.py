"""The command ``rewind`` as actions, as in ``coordinator.actions``: the page has it in these two forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from airflow_epochs import codes
from airflow_epochs.contracts import Environment, Move
from airflow_epochs.coordinator import orders, rewinding
from airflow_epochs.coordinator.admin import Account
from airflow_epochs.coordinator.order_wording import told
from airflow_epochs.coordinator.orders import NO_RESTORATION, Restoration, Standing
from airflow_epochs.errors import Refused, located
from airflow_epochs.hooks.epochs import AirflowEnvironment
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.sources import from_spec
from airflow_epochs.spark.runners import SparkConnect

COMMAND = "rewind"


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
    name = COMMAND

    @classmethod
    def of(cls, ledger: Ledger, pipeline: str, to_epoch: int, restore_tables: bool) -> Rewind:
        """The action as it stands now. Raises Refused if an epoch is unfinished."""
        at = orders.standing(ledger, pipeline)
        return cls(pipeline, to_epoch, restore_tables, at.epoch, at.attempt)

    def told(self, ledger: Ledger) -> list[str]:
        """As ``Action.told``."""
        return _told(ledger, self)

    def do(self, ledger: Ledger, by: Account) -> str:
        """As ``Action.do``."""
        return _done(ledger, self, by)

    def planned(self, ledger: Ledger, at: Standing, env: Environment) -> tuple[Move, Restoration | None]:
        """Where the source goes, and what happens to the tables."""
        move = rewinding.to_epoch(ledger, at, from_spec(at.newest.source), self.to_epoch, env)
        return move, orders.restoration(ledger, at, self.to_epoch, env) if self.restore_tables else NO_RESTORATION


@dataclass(frozen=True)
class RewindToTime:
    """Read records once more, from the first ones of a time. The tables stay as they are.

    Attributes:
        to_time: ISO 8601 with its zone, such as ``2026-01-31T00:00Z``.
        epoch, attempt: As in ``Rewind``.
    """

    pipeline: str
    to_time: str
    epoch: int
    attempt: int
    name = "rewind-to-time"

    @classmethod
    def of(cls, ledger: Ledger, pipeline: str, to_time: str) -> RewindToTime:
        """As ``Rewind.of``."""
        at = orders.standing(ledger, pipeline)
        return cls(pipeline, to_time, at.epoch, at.attempt)

    def told(self, ledger: Ledger) -> list[str]:
        """As ``Action.told``."""
        return _told(ledger, self)

    def do(self, ledger: Ledger, by: Account) -> str:
        """As ``Action.do``."""
        return _done(ledger, self, by)

    def planned(self, ledger: Ledger, at: Standing, env: Environment) -> tuple[Move, Restoration | None]:
        """As ``Rewind.planned``."""
        source = from_spec(at.newest.source)
        return source.to_time(at.position(source), self.to_time, env), NO_RESTORATION


class _Rewinding(Protocol):
    @property
    def pipeline(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    def planned(self, ledger: Ledger, at: Standing, env: Environment) -> tuple[Move, Restoration | None]: ...


def _told(ledger: Ledger, action: _Rewinding) -> list[str]:
    at, move, restoration = _planned(ledger, action)
    return told(ledger, at, move, restoration or NO_RESTORATION)


def _done(ledger: Ledger, action: _Rewinding, by: Account) -> str:
    at, move, restoration = _planned(ledger, action)
    orders.put(ledger, at, COMMAND, by, move, restoration=restoration)
    return rewinding.next_step(restoration)


def _planned(ledger: Ledger, action: _Rewinding) -> tuple[Standing, Move, Restoration | None]:
    at = _same_standing(ledger, action)
    with located(action.pipeline):
        move, restoration = action.planned(ledger, at, AirflowEnvironment(SparkConnect()))
    if rewinding.is_nothing(at, move, restoration):
        raise Refused(
            "The pipeline goes on there in any case. Nothing was changed.",
            code=codes.NOTHING_TO_REWIND,
            pipeline=action.pipeline,
        )
    return at, move, restoration


def _same_standing(ledger: Ledger, action: _Rewinding) -> Standing:
    at = orders.standing(ledger, action.pipeline)
    if (at.epoch, at.attempt) != (action.epoch, action.attempt):
        raise Refused(
            "The pipeline has moved on while this command waited for a confirmation. Nothing was changed.",
            code=codes.COMMAND_RACE,
            pipeline=action.pipeline,
        )
    return at
