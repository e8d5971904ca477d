"""Lets the tasks that commit tell Airflow's OpenLineage provider which records each sink shows, and as which version.

The provider asks an operator when its task is over, in a fork of the task's process. Neither deltalake nor obstore nor
the connection to Airflow's supervisor works there. So the task notes the facts itself, as plain values, as soon as
the ledger has them. Without the provider, or where it is switched off, nothing is noted.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from airflow_epochs.errors import tolerated

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_epochs.coordinator.coordinator import Coordinator
    from airflow_epochs.model import Checkpoint
    from airflow_epochs.operators.lineage_facts import Noted


def is_on() -> bool:
    """Whether Airflow's OpenLineage provider is installed and sends its events anywhere."""
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return False
    return not conf.is_disabled()


class ReportsLineage:
    """An operator that reports the epochs that it has worked on."""

    _noted: tuple[Noted, ...] = ()

    def note_lineage(self, coordinator: Coordinator, done: Checkpoint, sinks: Collection[str]) -> None:
        """Note what these sinks show of an epoch, unless nobody wants to know. Never fails the task."""
        if not is_on():
            return
        from airflow_epochs.operators.lineage_facts import noted

        with tolerated("noting the lineage of the epoch"):
            self._noted = (*self._noted, *noted(coordinator.task, done, sinks))

    def get_openlineage_facets_on_complete(self, task_instance: object) -> OperatorLineage[Any, Any]:
        """What the task has noted. The provider calls this when the task is over, also if it failed."""
        from airflow_epochs.operators.lineage_facets import reported

        return reported(self._noted)
