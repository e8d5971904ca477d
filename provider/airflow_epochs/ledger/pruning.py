"""Deletes records that nothing needs any more, of complete epochs that the pipeline no longer keeps."""

from __future__ import annotations

from collections.abc import Callable

from airflow_epochs.ledger.keys import complete_key, epoch_folder
from airflow_epochs.ledger.records import Records, last_of
from airflow_epochs.model import CompleteRecord

PRUNED_MAX = 100
"""How many epochs one task prunes at most."""


class Pruning:
    """Which epochs of one ledger have records to prune, and their deletion."""

    def __init__(self, records: Records, complete_record: Callable[[int], CompleteRecord | None]) -> None:
        self._records = records
        self._complete_record = complete_record

    def due(self, number: int) -> list[int]:
        """The epochs up to ``number`` that are complete and have more records than pruning leaves, oldest first.

        An earlier task may have died before it pruned, or the DAG kept more epochs then. Epochs are pruned in order, so
        the search goes back from ``number`` to one that is pruned: it asks once if there is nothing to catch up with.
        At most ``PRUNED_MAX``: the next task goes on.
        """
        if not self._prunable(number):
            return []
        behind = last_of(lambda more: bool(self._prunable(number - more)))
        return list(range(number - behind, number + 1))[:PRUNED_MAX]

    def prune(self, number: int) -> int:
        """Delete the records of a complete epoch, except ``complete.json`` and waivers. Idempotent.

        ``complete.json`` stays because it closes the epoch: without it, a late task could put a decision again.

        Returns:
            The number of records deleted; 0 if the epoch is not complete.
        """
        if not self._complete_record(number):
            return 0
        keys = self._prunable(number)
        for key in keys:
            self._records.delete(key)
        return len(keys)

    def _prunable(self, number: int) -> list[str]:
        """The keys that pruning deletes; empty for an epoch without a completion record."""
        keys = self._records.keys_in(epoch_folder(number)) if number >= 1 else []
        if complete_key(number) not in keys:
            return []
        kept = (complete_key(number), ".waived.json")  # a waiver says for ever who gave up rows, and why
        return [key for key in keys if not key.endswith(kept)]
