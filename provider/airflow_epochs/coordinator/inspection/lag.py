"""How far a pipeline is behind its source: the records that no epoch has read, and how long they have waited."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_epochs import codes
from airflow_epochs.contracts import Environment, Lagging, Unread
from airflow_epochs.errors import Refused, located
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import newest_opened, position_of_next
from airflow_epochs.model import JsonDict
from airflow_epochs.sources import on_record


@dataclass(frozen=True)
class Lag:
    """What the next epochs have to read, as of the newest complete epoch. An open epoch's records count."""

    partitions: tuple[Unread, ...]

    @property
    def records(self) -> int:
        """How many records, at most, are unread: control records of transactions, and gaps, have offsets too."""
        return sum(each.end - each.start for each in self.partitions)

    def seconds(self, now_ms: int) -> float:
        """How long the first unread record has waited, by its time in the source. 0 if there is none."""
        times = [each.ms for each in self.partitions if each.ms is not None]
        return max(0.0, (now_ms - min(times)) / 1000) if times else 0.0


def lag_of(ledger: Ledger, env: Environment) -> Lag | None:
    """The lag of a pipeline; None if it has no complete epoch, or if its source cannot tell.

    Raises:
        Refused, NotApplied: The source cannot be asked.
        Corrupt: Records are gone that no epoch has read.
    """
    opened, (_, position) = newest_opened(ledger), position_of_next(ledger)
    if opened is None or position is None:
        return None
    with located(ledger.pipeline):
        source = source_in(opened.source)
        return Lag(tuple(source.unread(position, env))) if isinstance(source, Lagging) else None


def source_in(spec: JsonDict) -> object:
    """The source as the ledger describes it; None if it is of a kind that is not ours.

    Raises:
        Refused: It is ours, but this version cannot make it.
    """
    try:
        return on_record(spec)
    except Refused as error:
        if error.code is codes.SOURCE_NOT_MOVABLE:
            return None
        raise
