"""How a commit that hangs is kept from landing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.model import TransactionId


@runtime_checkable
class Fencing(Protocol):
    """A sink that can keep a commit that hangs from landing, once its epoch was waived."""

    def fence(self, pipeline: str, over: Collection[TransactionId | None], by: TransactionId, env: Environment) -> bool:
        """Show ``by``, without rows, if the sink shows one of ``over`` (None: no epoch). Whether it shows ``by`` now.

        A commit whose ``previous`` is one of ``over`` then never lands, even if it has begun: it raises an error, or
        has landed before, and this returns False. Idempotent. Nothing of the sink's rows changes, and ``LastEpoch``
        goes on to tell position and place of the epoch before.

        Raises:
            Refused: The sink cannot be fenced.
            NotApplied, OutcomeUnknown: The sink does not answer. Call again.
        """
        ...
