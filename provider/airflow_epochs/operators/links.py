"""The button of a task that leads to its epoch on the Epochs page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink, conf

from airflow_epochs.operators.documentation import page_of

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class EpochLink(BaseOperatorLink):
    """Leads to the epoch that the task worked on, with all records of the ledger; before that, to the pipeline."""

    name = "Epoch"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Called in the task's process, when the task is over."""
        from airflow_epochs.operators.epoch import EpochOperator

        assert isinstance(operator, EpochOperator)
        base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
        pipeline = base + page_of(operator.pipeline, operator.ledger_conn_id, operator.dag_id)
        return f"{pipeline}/epochs/{operator.epoch}" if operator.epoch else pipeline
