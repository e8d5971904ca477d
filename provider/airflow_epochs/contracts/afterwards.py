"""What may become of rows after their commit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.model import JsonDict, Receipt, TransactionId


@runtime_checkable
class Perishable(Protocol):
    """A sink whose rows may vanish after the receipt, while the marker stays."""

    def has_lost_rows(self, receipt: Receipt, env: Environment) -> bool:
        """Whether rows of that commit are missing that readers should see. Reads little, changes nothing.

        If True, the coordinator commits again before it completes the epoch.
        """
        ...


@runtime_checkable
class Undoable(Protocol):
    """A sink whose last commit somebody may undo, while its marker stays."""

    def is_taken_back(self, pipeline: str, env: Environment) -> bool:
        """Whether the rows of the last commit for this pipeline are not in the sink any more. False in doubt.

        Changes nothing.
        """
        ...


@runtime_checkable
class Vacating(Protocol):
    """A sink that an operator can make empty again after its first epoch, without loss of what others wrote."""

    def how_to_vacate(self, first: TransactionId, env: Environment) -> str | None:
        """What the operator must do before the commit task is cleared, in sentences. None if more came than ``first``.

        Changes nothing.
        """
        ...


@runtime_checkable
class Watching(Protocol):
    """A sink that notices what other writers have done to its rows since one of its commits."""

    def foreign_changes(self, since: Receipt, pipeline: str, told: Collection[str], env: Environment) -> list[str]:
        """Changes that removed whole epochs but left their markers: one sentence each, without those in ``told``.

        ``told``: what was reported before. Reads little, changes nothing.

        Raises:
            Corrupt: There is such a change, and the sink is configured to stop then.
        """
        ...


@runtime_checkable
class Maintained(Protocol):
    """A sink that needs regular upkeep, such as compaction. It runs after an epoch is complete."""

    def maintain(self, pipeline: str, epoch: int, env: Environment) -> JsonDict:
        """Do the upkeep that is due and report it. The caller logs failures; they never fail the epoch."""
        ...


@runtime_checkable
class KnownByMarker(Protocol):
    """A sink whose marker stands beside its rows, and not among them: only receipts tell which rows are its own."""

    def in_place_of(self, own: Receipt, others: Sequence[Receipt], env: Environment) -> Receipt | None:
        """The receipt among ``others``, of other sinks, whose rows were committed to where this sink points now.

        None if this sink still points to where it committed ``own``, or if no other sink committed there. Each ``open``
        asks. Nearly every sink answers by its configuration. A sink whose place depends on its server opens a
        connection: a table without a schema in PostgreSQL is such a place.

        Raises:
            Corrupt: It is in another place now, and nobody has chosen that.
        """
        ...


@runtime_checkable
class Holding(Protocol):
    """A sink that can tell whether rows of another sink's commit may still be where it writes to itself.

    For sinks that cannot tell, a marker of the other sink counts, but only if the ledger describes the other sink with
    the same ``destination``.
    """

    def may_hold(self, receipt: Receipt, env: Environment) -> bool:
        """Whether this receipt of another sink is for this sink's place, and its rows may still be there.

        A marker of the other sink need not be there. A receipt that does not tell the place by an id counts only if a
        marker is there, or if its name is enough. Changes nothing.
        """
        ...
