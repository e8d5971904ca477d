"""Sinks that commit together, or note, replace or adapt something as they commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.contracts.sink import Sink, SinkAttempt
from airflow_epochs.model import Receipt, Staged, StagedClaim, Vote


@runtime_checkable
class Joint(Protocol):
    """A sink that votes and commits in one transaction with others: with all that return the same key.

    ``vote`` and ``commit`` remain, and do the same for a group of one. A group holds the attempt's sinks that have
    neither a receipt nor a waiver, in the DAG's order, so it may shrink from one call to the next.
    """

    def joint(self) -> str | None:
        """The key that sinks of one transaction share; None if this sink is always alone. Needs no connection."""
        ...

    def vote_together(self, those: Sequence[tuple[Any, SinkAttempt, StagedClaim]], env: Environment) -> dict[str, Vote]:
        """``Sink.vote`` for all sinks of a group; votes by sink name.

        A claim may have a ``problem``, or be ``unmet``: the provider itself votes against that sink. Vote for the
        others as far as you can without its rows.
        """
        ...

    def commit_together(self, those: Sequence[tuple[Any, SinkAttempt, Staged]], env: Environment) -> dict[str, Receipt]:
        """``Sink.commit`` for a group: all of them show the epoch, or no sink does. Receipts by sink name.

        Raises:
            RowsGone: A sink's staged rows are gone. Every error raised here names the sink that it concerns.
        """
        ...


@runtime_checkable
class Noting(Protocol):
    """A sink whose commit notes something before its transaction. The note stays if the transaction never comes."""

    def left_if_waived(self) -> str | None:
        """What may stay of a commit that was under way, and what to do, in sentences; None if nothing does."""
        ...


@runtime_checkable
class Adapting(Protocol):
    """A sink with options that do not affect what is written. In an epoch in doubt, today's DAG sets them."""

    def with_todays(self, today: Sink) -> Sink:
        """This sink, as the ledger describes it, with those options of ``today``, which has the same name and class."""
        ...


@runtime_checkable
class Replacing(Protocol):
    """A sink in which rows of a later epoch take the place of earlier rows. In other sinks all rows stay."""

    def replaces_by(self) -> tuple[str, ...] | None:
        """The columns whose values a row shares with the earlier rows that it replaces.

        Empty: a row replaces no earlier row. None: the rows of several epochs cannot be written at once.
        """
        ...


def replaces_by(sink: object) -> tuple[str, ...] | None:
    """``Replacing.replaces_by`` of the sink; empty for a sink that is not ``Replacing``: in it all rows stay."""
    return sink.replaces_by() if isinstance(sink, Replacing) else ()
