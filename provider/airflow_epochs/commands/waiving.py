"""The action of ``airflow epochs waive``, which knows today's DAG, too. ``hooks.informed_actions`` does the work."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from airflow_epochs import secrecy
from airflow_epochs.commands.printing import answer_alone
from airflow_epochs.contracts import Sink
from airflow_epochs.coordinator.admin import admin
from airflow_epochs.errors import RAISED_BY_USERS, first_line
from airflow_epochs.hooks import informed_actions
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.operators import definitions

log = secrecy.logger(__name__)


@dataclass(frozen=True)
class WaiveWithDags(informed_actions.InformedWaive):
    """As ``InformedWaive``. The command may run DAG files, which the API server must not."""

    def sinks_of_today(self, ledger: Ledger) -> Collection[Sink]:
        """The sinks of the pipeline in the DAGs of this installation; empty if no DAG tells them."""
        try:
            owner = admin.owner_of(ledger, self.pipeline)
            with answer_alone():
                return definitions.find(self.pipeline, owner, self.ledger_conn_id).pipeline.sinks
        except RAISED_BY_USERS as error:  # looking for the DAG runs every bundle and DAG file
            log.warning("The sinks of pipeline %s cannot be read from a DAG here: %s", self.pipeline, first_line(error))
            return ()
