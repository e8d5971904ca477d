"""What a sink shows, compared with what the ledger expects."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from airflow_epochs.model.transaction import TransactionId, is_of_fence


@dataclass(frozen=True)
class Marker:
    """What a sink stores atomically with an epoch's rows.

    ``token`` is ``TransactionId.token``. It is None if the sink no longer knows the transaction: a Delta table that
    Spark commits to, once its history has been cleaned up.
    """

    epoch: int
    token: int | None

    @classmethod
    def of(cls, txn: TransactionId) -> Marker:
        """The marker that a sink stores for this transaction."""
        return cls(txn.epoch, txn.token)

    @property
    def is_fence(self) -> bool:
        """Whether it is the marker of a fence: as ``TransactionId.is_fence``. False without a token."""
        return self.token is not None and is_of_fence(self.token)


def agree(found: Marker | None, expected: TransactionId | None) -> bool:
    """Whether a sink shows exactly ``expected``; None: no epoch. A marker without a token needs only the same epoch."""
    return compare(found, expected) is Shown.EXPECTED


class Shown(Enum):
    """What a sink shows, compared with the epoch that is expected and with the one that is being committed."""

    ALREADY = "the epoch on its way"
    NAMELESS = "an epoch of that number, and the sink no longer knows whose"
    EXPECTED = "what is expected"
    NOTHING = "no epoch, though one is expected"
    BEHIND = "an earlier epoch than expected"
    ANOTHER = "another transaction of the epoch that is expected"
    AHEAD = "a later epoch than expected"


def compare(
    found: Marker | TransactionId | None, expected: TransactionId | None, on_its_way: TransactionId | None = None
) -> Shown:
    """Compare what a sink shows with what the ledger says. No other code makes this comparison.

    Args:
        found: What the sink shows: a marker, or a whole transaction id if the sink keeps it.
        expected: The sink's previous transaction, or its last complete one; None: no epoch.
        on_its_way: The transaction that is being committed or is in doubt, if any. Later than ``expected``.
    """
    if found is None:
        return Shown.NOTHING if expected else Shown.EXPECTED
    if on_its_way and found in (on_its_way, Marker.of(on_its_way)):
        return Shown.ALREADY
    if on_its_way and found == Marker(on_its_way.epoch, None):
        return Shown.NAMELESS
    if expected is None or found.epoch > expected.epoch:
        return Shown.AHEAD
    if found.epoch < expected.epoch:
        return Shown.BEHIND
    is_it = found in (expected, Marker.of(expected), Marker(expected.epoch, None))
    return Shown.EXPECTED if is_it else Shown.ANOTHER


def described_epochs(first: int, last: int) -> str:
    """The epochs ``[first, last]``, for a text."""
    return f"epoch {first}" if first == last else f"epochs {first} to {last}"


def described(marker: Marker | None) -> str:
    """What a sink shows, for an error's text."""
    return "no epoch of this sink" if marker is None else f"epoch {marker.epoch} (token {marker.token})"


def described_transaction(txn: TransactionId | None) -> str:
    """The epoch that the ledger expects, for an error's text in which the word "epoch" comes before."""
    return "none" if txn is None else f"{txn.epoch} ({txn}, token {txn.token})"
