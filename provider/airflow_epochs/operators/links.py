"""The buttons of a task: they lead to its epoch, to the epoch's records and to its sinks, on the Epochs page.

A task makes its links when it is over, whether it succeeded or not. A link that is empty makes no button.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink, conf

from airflow_epochs.operators.documentation import page_of

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from airflow_epochs.operators.base import EpochOperator


class EpochLink(BaseOperatorLink):
    """Leads to the epoch that the task worked on, with all records of the ledger; before that, to the pipeline."""

    name = "Epoch"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Called in the task's process, when the task is over."""
        known = _known(operator)
        return _epoch(known) or _pipeline(known)


class RecordsLink(BaseOperatorLink):
    """Leads to the records that the ledger holds of the task's epoch, as JSON."""

    name = "Ledger records"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """As ``EpochLink``; empty before there is an epoch."""
        epoch = _epoch(_known(operator))
        return epoch and f"{epoch}/records"


class SinksLink(BaseOperatorLink):
    """Leads to what the sinks show of the task's epoch: table or topic, version, rows. A commit leads to its sink.

    It does not lead to the table itself: a path or a bucket is no address that a browser opens.
    """

    name = "Sinks"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """As ``EpochLink``; empty before there is an epoch."""
        known = _known(operator)
        epoch, sink = _epoch(known), getattr(known, "sink", None)
        return epoch and f"{epoch}#{f'sink-{sink}' if sink else 'sinks'}"


def _known(operator: BaseOperator) -> EpochOperator:
    from airflow_epochs.operators.base import EpochOperator

    assert isinstance(operator, EpochOperator)
    return operator


def _pipeline(operator: EpochOperator) -> str:
    base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return base + page_of(operator.pipeline, str(operator.ledger_conn_id), operator.dag_id)


def _epoch(operator: EpochOperator) -> str:
    return f"{_pipeline(operator)}/epochs/{operator.epoch}" if operator.epoch else ""
