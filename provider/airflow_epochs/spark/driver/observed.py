"""Reads the metrics that Spark observes while rows flow through a plan, without a second pass over them."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Any

from airflow_epochs import secrecy

if TYPE_CHECKING:
    from pyspark.sql import Observation

log = secrecy.logger(__name__)

WAIT_S = 5.0


def result(observation: Observation) -> dict[str, Any]:
    """The observed metrics; empty if they do not arrive within ``WAIT_S`` seconds.

    In the classic driver ``get`` waits for ever if the optimizer has dropped the observed rows from every plan.
    """
    found: dict[str, Any] = {}

    def wait_for_it() -> None:
        try:
            found.update(observation.get)
        except Exception as error:
            log.warning("a metric could not be computed: %s", error)

    waiter = Thread(target=wait_for_it, daemon=True)
    waiter.start()
    waiter.join(WAIT_S)
    return found
