"""Go back to where an epoch ended: what the command ``rewind`` and the page share."""

from __future__ import annotations

from airflow_epochs.contracts import Environment, Movable, Move
from airflow_epochs.coordinator import orders
from airflow_epochs.coordinator.orders import Restoration, Standing
from airflow_epochs.ledger.ledger import Ledger

NEXT = "The next run obeys. Start one, or clear the failed tasks of the last one."
RESTORES = (
    "The next run brings the tables back, and reads nothing; the run after it reads on. Start them. If the last run "
    "failed, clear the failed tasks of that run in place of starting the first one."
)


def to_epoch(ledger: Ledger, at: Standing, source: Movable, number: int, env: Environment) -> Move:
    """Where the next epoch begins if it goes back to the end of a complete epoch. Asks the source; reads only."""
    return source.to_offsets(at.position(source), orders.ends_after(ledger, at, number), env)


def is_nothing(at: Standing, move: Move, restoration: Restoration | None) -> bool:
    """Whether the pipeline goes on there in any case, with the tables as they are, or as an earlier command says."""
    ordered = at.order.restores if at.order else {}
    return not move.moves and (restoration is None or restoration.points == ordered)


def next_step(restoration: Restoration | None) -> str:
    """What the operator has to do then."""
    return RESTORES if restoration and restoration.points else NEXT
