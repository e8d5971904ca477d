"""Why a Delta table's marker is not the one that the ledger expects: told by what can be seen, each with a remedy.

What is looked at: whether there is a table, whether it is the one that is on record (path and id), and
whether it is ahead of the ledger or behind it. docs/failures.md has a chapter for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_epochs import codes
from airflow_epochs.contracts import Disagreement, backfill_from, rebuild_remedy
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import JsonDict, Shown, TransactionId, compare
from airflow_epochs.sinks.delta.target import Target


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A table that shows another epoch than expected.

    Attributes:
        target: One look at it.
        seen: What was found and expected.
        recorded: The ``table`` and its ``table_id`` of the epoch expected, as far as they are on record.
    """

    target: Target
    seen: Disagreement
    recorded: JsonDict

    def diagnosis(self) -> Corrupt:
        """The error to raise. Changes nothing."""
        error = self._accident()
        error.pipeline, error.sink = self.seen.pipeline, self.target.app.sink
        return error

    def _accident(self) -> Corrupt:
        found, expected = self.seen.found, self.seen.expected
        stands = compare(found, expected)
        if expected is None or stands is Shown.AHEAD:
            return self._ahead()
        if not self.target.exists:
            return self._elsewhere() if self._is_elsewhere() else self._gone()
        if self._is_another():
            return self._elsewhere() if self._is_elsewhere() else self._replaced()
        if stands is Shown.NOTHING:
            return self._markers_gone(expected)
        if stands is Shown.ANOTHER:
            return self._other_history(expected)
        return self._elsewhere() if self._is_elsewhere() else self._behind(expected)

    # -- the accidents -----------------------------------------------------------------------------------------------

    def _gone(self) -> Corrupt:
        return Corrupt(
            f"The table {self._name} is gone, but {self._last} was committed to it. Nothing was written.",
            code=codes.TABLE_GONE,
            remedy="Put the table back. If somebody renamed or moved it, give it its old name and place; else get its "
            "whole folder back from a backup. If the table cannot come back, give the sink another name, with "
            f"{backfill_from(1)}: a new table gets what the source still has. See "
            "docs/failures.md#the-table-is-gone.",
        )

    def _elsewhere(self) -> Corrupt:
        found = self.seen.found
        shows = f", which shows epoch {found.epoch}" if found else ""
        begins = f", with {backfill_from(found.epoch + 1)}" if found else ": it begins there with the next epoch"
        return Corrupt(
            f"The sink points to {self._name}{shows}, but {self._last} was committed to {self.recorded.get('table')}. "
            "Nothing was written.",
            code=codes.TABLE_ELSEWHERE,
            remedy=f"Point the sink back to {self.recorded.get('table')}. To move the table, move its whole folder. To "
            f"continue in another table, give the sink another name{begins}. See "
            "docs/failures.md#the-sink-points-elsewhere.",
        )

    def _replaced(self) -> Corrupt:
        return Corrupt(
            f"Another table stands at {self._name}: its id is {self.target.table_id or 'unknown'}, but {self._last} "
            f"was committed to the table with id {self.recorded.get('table_id')}. Nothing was written.",
            code=codes.TABLE_REPLACED,
            remedy="Put the old table back from a backup: restore its whole folder. To continue in the new table, give "
            "the sink another name: it begins there with the next epoch. See docs/failures.md#the-table-was-replaced.",
        )

    def _markers_gone(self, expected: TransactionId) -> Corrupt:
        return Corrupt(
            f"The table {self._name} has lost its epoch markers: it shows no epoch of {self.target.app.epoch}, but "
            f"{self._last} was committed to it. Nothing was written.",
            code=codes.MARKERS_GONE,
            remedy="Put the table back from a backup: restore its whole folder. If the table has all rows up to epoch "
            f"{expected.epoch}, give the sink another name{self._and_backfill(expected)} instead: it continues with "
            "the next epoch. See docs/failures.md#the-markers-are-gone.",
        )

    def _behind(self, expected: TransactionId) -> Corrupt:
        found = self.seen.found
        assert found
        return Corrupt(
            f"The table {self._name} is behind the ledger: it shows epoch {found.epoch}, and epoch {expected.epoch} "
            "was committed to it. The table was restored from an older copy. Nothing was written.",
            code=codes.SINK_BEHIND,
            remedy="Put the newest copy of the table back: restore its whole folder. If there is none, give the sink "
            f"another name, with {backfill_from(found.epoch + 1)}: the provider reads the missing epochs from the "
            "source again. See docs/failures.md#the-table-is-behind.",
        )

    def _other_history(self, expected: TransactionId) -> Corrupt:
        commit = self.target.newest_commit
        shown = commit.user_metadata["txn"] if commit and commit.user_metadata else f"unknown (token {self._token})"
        return Corrupt(
            f"The table {self._name} shows epoch {expected.epoch} of transaction {shown}, and the ledger has "
            f"{expected}. Two ledgers with one pipeline name have written to the table, or a ledger was restored and "
            "ran the epoch again. Nothing was written now.",
            code=codes.TWO_LEDGERS,
            remedy=f"Find the ledger that has the table's transaction: `airflow epochs show {expected.pipeline} "
            f"{expected.epoch}` prints the `txn_id` of a ledger. Let only that ledger continue, in place of this one. "
            "If both must continue, give this pipeline's sink another name: it begins with the next epoch. See "
            "docs/failures.md#the-ledger-is-behind.",
        )

    def _ahead(self) -> Corrupt:
        found, expected = self.seen.found, self.seen.expected
        has = f"ends with epoch {expected.epoch}" if expected else "has no epoch of this sink"
        return Corrupt(
            f"The ledger is behind the table {self._name}: the table shows epoch {found.epoch if found else None}, but "
            f"the ledger {has}. The newest records of the ledger are lost, or the ledger was restored from an older "
            "copy, or it is a new ledger. Nothing was read or written.",
            code=codes.LEDGER_BEHIND,
            remedy=rebuild_remedy(self.seen.pipeline),
        )

    # -- what is known -----------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return self.target.location.name

    @property
    def _last(self) -> str:
        return f"epoch {self.seen.expected.epoch}" if self.seen.expected else "no epoch"

    def _is_elsewhere(self) -> bool:
        return bool(self.recorded.get("table", self._name) != self._name)

    def _is_another(self) -> bool:
        recorded = self.recorded.get("table_id")
        if self._is_elsewhere() and self.seen.found is None:
            return True
        found = self.target.table_id if recorded else None
        return found is not None and found != recorded

    @property
    def _token(self) -> int | None:
        return self.seen.found.token if self.seen.found else None

    def _and_backfill(self, expected: TransactionId) -> str:
        """The backfill of the epoch in doubt, whose rows are not in the table yet; empty without such an epoch."""
        waits = self.seen.in_doubt
        return f", with {backfill_from(waits.epoch)}" if waits and waits.epoch > expected.epoch else ""
