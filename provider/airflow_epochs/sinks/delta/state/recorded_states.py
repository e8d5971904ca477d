"""What the ledger says of a state table as of a complete epoch, for readers.

A completion record is kept for ever. It has the version and the watermarks. Which columns are keys stands in the open
record alone, and that may have been pruned. Then the newest epoch of the state tells, because a state keeps its keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import Refused

if TYPE_CHECKING:
    from airflow_epochs.ledger.ledger import Ledger
    from airflow_epochs.model import CompleteRecord, JsonDict, OpenRecord

KIND = "state"


@dataclass(frozen=True, kw_only=True)
class StateRecords:
    """A state as of a complete epoch.

    Attributes:
        name: The state's name.
        shown: The epoch; the last one that the state took part in, if it was removed from the pipeline.
        opened: The open record of this epoch. If it was pruned: of the newest epoch that the state took part in.
    """

    name: str
    shown: CompleteRecord
    opened: OpenRecord

    @property
    def spec(self) -> JsonDict:
        """``StateTable.spec``."""
        return self.opened.sinks[self.name].spec

    @property
    def is_fold(self) -> bool | None:
        """Whether the epoch staged the whole state; None if its record was pruned."""
        if self.opened.txn_id != self.shown.txn_id:
            return None
        return self.opened.state[self.name].fold


def find(ledger: Ledger, name: str, epoch: int | None) -> StateRecords:
    """The state ``name`` as of a complete epoch; of the newest one if ``epoch`` is None.

    Raises:
        Refused: The epoch is not complete, it has no such state, or no record says which columns are keys.
    """
    newest = ledger.complete_record(ledger.newest_complete())
    if newest is None:
        raise _unknown("No epoch of the pipeline is complete.")
    record = newest if epoch is None else ledger.complete_record(epoch)
    if record is None:
        last = newest.txn_id.epoch
        raise _unknown(f"Epoch {epoch} of the pipeline is not complete. The newest complete one is {last}.")
    if name not in record.markers:
        raise _unknown(f"Up to epoch {record.txn_id.epoch}, the pipeline had no state {name!r}.")
    shown = _epoch_of(ledger, record, name)
    _require_same_table(newest, name, shown)
    opened = _opened(ledger, shown) or _opened(ledger, _epoch_of(ledger, newest, name))
    if opened is None:
        raise Refused(
            f"The open records of all epochs of state {name!r} have been pruned, so its keys are not known.",
            code=codes.STATE_KEYS_UNKNOWN,
        )
    if opened.sinks[name].spec.get("kind") != KIND:
        raise _unknown(f"{name!r} is a sink of the pipeline, but no state table.")
    return StateRecords(name=name, shown=shown, opened=opened)


def _require_same_table(newest: CompleteRecord, name: str, shown: CompleteRecord) -> None:
    anew = newest.adopted_in.get(name, 0)
    if shown.txn_id.epoch < anew:
        raise _unknown(f"State {name!r} began anew in epoch {anew}, in a new table: it has no earlier epochs.")


def names(ledger: Ledger) -> list[str]:
    """The state tables of the newest complete epoch; empty before the first one."""
    record = ledger.complete_record(ledger.newest_complete())
    opened = _opened(ledger, record) if record else None
    return sorted(opened.state) if opened else []


def _epoch_of(ledger: Ledger, record: CompleteRecord, name: str) -> CompleteRecord:
    """The last epoch up to ``record`` that the state took part in."""
    last = record.markers[name].epoch
    shown = record if last == record.txn_id.epoch else ledger.complete_record(last)
    if shown is None:
        raise _unknown(f"State {name!r} last took part in epoch {last}, and the record of that epoch is gone.")
    return shown


def _opened(ledger: Ledger, shown: CompleteRecord) -> OpenRecord | None:
    return ledger.open_record(shown.txn_id.epoch, shown.txn_id.attempt)


def _unknown(what: str) -> Refused:
    return Refused(what, code=codes.STATE_UNKNOWN)
