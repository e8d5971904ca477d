"""Make and dispose of savepoints as actions, as those in ``admin.actions``."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_epochs.coordinator.admin import savepoints
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.ledger.ledger import Ledger


@dataclass(frozen=True)
class MakeSavepoint:
    """Give the complete epoch ``epoch`` the name ``savepoint``."""

    pipeline: str
    savepoint: str
    epoch: int
    name = "savepoint"

    def told(self, ledger: Ledger) -> list[str]:
        """As ``Action.told``."""
        savepoints.require_free(ledger, self.pipeline, self.savepoint, self.epoch)
        savepoints.require_complete(ledger, self.pipeline, self.epoch)
        return [
            f"Epoch {self.epoch} of pipeline {self.pipeline} will get the name {self.savepoint}, by which one can go "
            "back.",
            "Nothing else changes. A savepoint keeps no files of tables: a VACUUM may delete a version that it names.",
        ]

    def do(self, ledger: Ledger, by: Account) -> str:
        """As ``Action.do``."""
        made = savepoints.make(ledger, self.pipeline, self.savepoint, self.epoch, by)
        return f"Savepoint {made.name} is epoch {made.epoch} of pipeline {self.pipeline}."


@dataclass(frozen=True)
class DisposeSavepoint:
    """Let a savepoint not count any more."""

    pipeline: str
    savepoint: str
    name = "dispose-savepoint"

    def told(self, ledger: Ledger) -> list[str]:
        """As ``Action.told``."""
        found = savepoints.find(ledger, self.pipeline, self.savepoint)
        return [
            f"Savepoint {found.name} of pipeline {self.pipeline} will not count any more. It is epoch {found.epoch}: "
            f"{found.why}",
            "Nobody can go back to it by its name, and the name is not used again. No table changes.",
        ]

    def do(self, ledger: Ledger, by: Account) -> str:
        """As ``Action.do``."""
        savepoints.dispose(ledger, self.pipeline, self.savepoint, by)
        return f"Savepoint {self.savepoint} is disposed of."
