"""The lag of pipelines. It is kept for some seconds, so that many readers of the page ask the brokers once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Lock

from airflow_epochs import secrecy
from airflow_epochs.coordinator.inspection.lag import lag_of
from airflow_epochs.errors import EpochError
from airflow_epochs.hooks.epochs import AirflowEnvironment
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.spark.runners import SparkConnect

log = secrecy.logger(__name__)

KEPT_S = 10.0


@dataclass(frozen=True)
class Behind:
    """How many records, at most, are unread, and for how long the first of them has waited."""

    records: int
    seconds: float


_kept: dict[tuple[str, str], tuple[float, Behind | None]] = {}
_asking: dict[tuple[str, str], Lock] = {}


def lag_now(ledger: Ledger, conn_id: str, pipeline: str) -> Behind | None:
    """The lag, at most ``KEPT_S`` seconds old; None if it is not known. Several readers wait for one answer."""
    key = conn_id, pipeline
    with _asking.setdefault(key, Lock()):
        asked, found = _kept.get(key, (-KEPT_S, None))
        if time.monotonic() - asked > KEPT_S:
            found = _asked(ledger)
            _kept[key] = time.monotonic(), found
    return found


def _asked(ledger: Ledger) -> Behind | None:
    try:
        found = lag_of(ledger, AirflowEnvironment(SparkConnect()))
    except EpochError as error:
        log.info("the lag is not known: %s", error)
        return None
    return Behind(found.records, found.seconds(int(time.time() * 1000))) if found else None
