"""What a dry run stages."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_epochs.model.attempt import OpenRecord, TryRecord
from airflow_epochs.model.record import FORMAT_UNSIGNED
from airflow_epochs.names import DRY_RUN


@dataclass(frozen=True, kw_only=True)
class DryRunRecord:
    """``dry-runs/<try_id>.json``: what a dry run stages, so that its places are found if it is killed.

    It is deleted when they are. No step of an epoch reads it.

    Attributes:
        opened: The attempt that is played. Its ``ledger_id`` begins with ``names.DRY_RUN``, so its places are no
            attempt's.
        tried: As for a try of ``stage``.
        writer: As in ``OpenRecord``: the process that plays it.
    """

    pipeline: str
    opened: OpenRecord
    tried: TryRecord
    writer: str
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        if not self.opened.ledger_id.startswith(DRY_RUN) or self.opened.txn_id.pipeline != self.pipeline:
            raise ValueError(f"not a dry run: {self.opened.ledger_id!r} of {self.opened.txn_id}")
