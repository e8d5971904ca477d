"""Where Spark shows what it did for an epoch, as far as the ledger or a connection says. Asks no Spark."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from airflow_epochs import secrecy
from airflow_epochs.errors import EpochError
from airflow_epochs.hooks.epochs import connection
from airflow_epochs.ledger.epoch_records import EpochRecords
from airflow_epochs.model import RAN_AS, JsonDict, TryRecord

UI_EXTRA = "ui_url"
"""The field of a Spark connection's extra that says where the UI, or the history server, is."""
_OF_SPARK = ("spark_connect", "spark")


@dataclass(frozen=True)
class LinkedApplication:
    """A Spark application, and where its UI is; None if it is not known."""

    id: str
    url: str | None

    @classmethod
    def of(cls, metrics: JsonDict) -> LinkedApplication | None:
        """The application in an epoch's metrics, which may be forged and hold anything."""
        told = metrics.get(RAN_AS)
        return cls(str(told["id"]), web_link(told.get("url"))) if isinstance(told, dict) and "id" in told else None


def web_link(url: object) -> str | None:
    """The URL if a browser may follow it from the page: by http or https, to a host, and without a login."""
    try:
        parts = urlsplit(str(url or "").strip())
    except ValueError:
        return None
    usable = parts.scheme in ("http", "https") and parts.hostname and not secrecy.has_login(parts.geturl())
    return parts.geturl() if usable else None


def uis(records: EpochRecords) -> dict[str, str]:
    """Try -> the UI that the extra of its Spark connection names."""
    tries = [tried for attempt in records.attempts for tried in attempt.tries]
    known = {conn_id: url for conn_id in sorted(set(map(_conn_id, tries))) if (url := _of_connection(conn_id))}
    return {tried.try_id: known[conn_id] for tried in tries if (conn_id := _conn_id(tried)) in known}


def _conn_id(tried: TryRecord) -> str:
    return str(tried.session.get("conn_id", ""))


def _of_connection(conn_id: str) -> str | None:
    try:
        spark = connection(conn_id)
    except EpochError:
        return None  # it was renamed since, or this server does not see it
    return web_link(spark.extra.get(UI_EXTRA)) if spark.conn_type in _OF_SPARK else None
