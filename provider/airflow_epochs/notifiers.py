"""Notifiers in Airflow's form, which tell somebody only if there is something to tell: an epoch in doubt, a lag.

Each asks the ledger when Airflow calls it, and passes on to another notifier, or to a function of the context. The text
is in the context as ``epochs_alert``, so templates of the other notifier can use it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from airflow.sdk import BaseNotifier

from airflow_epochs import codes
from airflow_epochs.errors import BadArgument
from airflow_epochs.hooks.epochs import AirflowEnvironment, EpochsHook
from airflow_epochs.operators.rendered import require_texts

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_epochs.ledger.ledger import Ledger

ALERT = "epochs_alert"
"""The text's name in the context."""


class _LedgerNotifier(BaseNotifier):
    """Asks the ledger of one pipeline.

    Args:
        pipeline: The pipeline's name.
        then: Is called with the context if there is something to tell: another notifier, or a function.
        ledger_conn_id: A connection of type ``epochs``.
    """

    template_fields: Sequence[str] = ("pipeline", "ledger_conn_id")

    def __init__(
        self,
        pipeline: str,
        then: Callable[[Context], object],
        *,
        ledger_conn_id: str = EpochsHook.default_conn_name,
    ) -> None:
        super().__init__()
        self.pipeline, self.then, self.ledger_conn_id = pipeline, then, ledger_conn_id

    def notify(self, context: Context) -> None:
        """Ask, and pass on. Airflow logs an error that this raises."""
        require_texts([self])
        alert = self._alert(EpochsHook(self.ledger_conn_id).ledger(self.pipeline))
        if alert:
            self.log.warning("the notifier sends an alert: %s", alert)
            # Airflow renders a notifier in place: one that several share would repeat the first text for ever.
            then = copy.copy(self.then) if isinstance(self.then, BaseNotifier) else self.then
            then(cast("Context", {**context, ALERT: alert}))

    def _alert(self, ledger: Ledger) -> str | None:
        """What to tell; None: nothing."""
        raise NotImplementedError


class InDoubtNotifier(_LedgerNotifier):
    """Tells of an epoch in doubt. For ``on_failure_callback`` of the DAG.

    Args:
        pipeline, then, ledger_conn_id: As in every notifier here.
        older_than_s: Say nothing before the epoch has been in doubt for this many seconds.
    """

    def __init__(
        self,
        pipeline: str,
        then: Callable[[Context], object],
        *,
        older_than_s: float = 0,
        ledger_conn_id: str = EpochsHook.default_conn_name,
    ) -> None:
        super().__init__(pipeline, then, ledger_conn_id=ledger_conn_id)
        self.older_than_s = older_than_s

    def _alert(self, ledger: Ledger) -> str | None:
        from airflow_epochs.ledger.queries import in_doubt, in_words

        found = in_doubt(ledger)
        if found is None:
            return None
        view, decided = found
        old = time.time() - decided.timestamp() >= self.older_than_s
        return f"Pipeline {self.pipeline}: {in_words(view)}" if old else None


class LagNotifier(_LedgerNotifier):
    """Tells of a pipeline that is far behind its source. For ``on_success_callback`` of the DAG.

    Args:
        pipeline, then, ledger_conn_id: As in every notifier here.
        records_above: Tell if more records are unread.
        seconds_above: Tell if the first unread record has waited longer.

    Raises:
        BadArgument: Neither limit is given.
    """

    def __init__(
        self,
        pipeline: str,
        then: Callable[[Context], object],
        *,
        records_above: int | None = None,
        seconds_above: float | None = None,
        ledger_conn_id: str = EpochsHook.default_conn_name,
    ) -> None:
        if records_above is None and seconds_above is None:
            raise BadArgument(
                "`LagNotifier` has no limit. Give it `records_above` or `seconds_above`.", code=codes.PIPELINE_ARGUMENT
            )
        super().__init__(pipeline, then, ledger_conn_id=ledger_conn_id)
        self.records_above, self.seconds_above = records_above, seconds_above

    def _alert(self, ledger: Ledger) -> str | None:
        from airflow_epochs.coordinator.inspection.lag import lag_of
        from airflow_epochs.spark.runners import SparkConnect

        lag = lag_of(ledger, AirflowEnvironment(SparkConnect()))
        if lag is None:
            return None
        seconds = lag.seconds(int(time.time() * 1000))
        many = self.records_above is not None and lag.records > self.records_above
        late = self.seconds_above is not None and seconds > self.seconds_above
        if not (many or late):
            return None
        return (
            f"Pipeline {self.pipeline}: {lag.records:,} records are unread. The first has waited for {seconds:,.0f} s."
        )
