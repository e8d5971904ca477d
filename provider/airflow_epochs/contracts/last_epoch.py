"""What a sink's own last commit says, so that a lost ledger can be rebuilt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.contracts.sink import Ends
from airflow_epochs.model import EventTimes, Marker, Receipt, TransactionId, Watermarks


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Where the rows of a sink's last epoch went, which is not the sink's table or topic.

    Attributes:
        there, here: That place, and the sink's own, each as a phrase: ``topic orders``.
        renamed: What to do if both are the same place, which has another name now, as a sentence; empty: nothing helps.
    """

    there: str
    here: str
    renamed: str = ""


@dataclass(frozen=True, kw_only=True)
class LastEpoch:
    """What a sink's own last commit says of its epoch.

    Attributes:
        marker: As ``Sink.last_committed`` returns it.
        txn: The transaction; None if the sink no longer knows it.
        ends: As in ``SinkAttempt``; None if the commit does not say it, such as a commit of version 0.1.
        receipt: The commit's receipt, as far as the sink knows; None if it no longer knows the commit.
        watermarks, event_times: As in ``CompleteRecord``; empty if the commit does not say it.
        elsewhere: Set if the commit says that its rows went to another place than the sink's.
    """

    marker: Marker
    txn: TransactionId | None = None
    ends: Ends | None = None
    receipt: Receipt | None = None
    watermarks: Watermarks = ()
    event_times: EventTimes = field(default_factory=dict)
    elsewhere: Elsewhere | None = None


@runtime_checkable
class Positioned(Protocol):
    """A sink that can tell where its last epoch ended: so a ledger that was lost can be rebuilt."""

    def last_epoch(self, pipeline: str, env: Environment) -> LastEpoch | None:
        """What the sink's last commit for this pipeline says; None if it has none. Changes nothing."""
        ...
