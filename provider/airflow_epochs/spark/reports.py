"""Reads the report of Spark's driver: a local file, or a text file in a folder that driver and task both reach.

A report that was cut off counts as missing. A report with other fields than this version expects is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from airflow_epochs import codes
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import Refused, tolerated
from airflow_epochs.model import JsonDict, TransactionId
from airflow_epochs.spark.driver.wire import Dataclass, from_json

if TYPE_CHECKING:
    from airflow_epochs.storage.files import Files

R = TypeVar("R", bound=Dataclass)


def understood(kind: type[R], told: JsonDict, job: str, txn: TransactionId | None = None) -> R:
    """The report of the Spark job ``job``, or a part of it, out of its JSON. ``txn``: the attempt, for the error.

    Raises:
        Refused: Its fields differ from the fields of ``kind``. A job that commits may still have taken effect.
    """
    try:
        return from_json(kind, told)
    except ValueError as error:
        unfit = Refused(
            f"The task cannot read the report of the Spark job {job!r}. {error}", code=codes.SPARK_REPORT_UNFIT
        )
        if txn:
            unfit.pipeline, unfit.epoch, unfit.attempt = txn.pipeline, txn.epoch, txn.attempt
        raise unfit from error


def take(where: str, connection: Connection | None) -> JsonDict | None:
    """``read`` the report, and delete it. If the driver's user owns it, it may stay."""
    report = read(where, connection)
    if report is not None:
        with tolerated("deleting a report of Spark's driver"):
            delete(where, connection)
    return report


def read(where: str, connection: Connection | None) -> JsonDict | None:
    """Read the report; None if the driver did not write it, or not to its end.

    Args:
        where: A local path, or the URL of a folder that Spark wrote as text.
        connection: Holds the credentials of the object store; None for a local path or a shared disk.
    """
    text = _from_folder(where, connection) if "://" in where else _from_file(Path(where))
    try:
        return json.loads(text) if text else None
    except json.JSONDecodeError:
        return None


def delete(where: str, connection: Connection | None) -> None:
    """Delete a report, if there is one."""
    if "://" in where:
        root, _, folder = where.rpartition("/")
        _open(root, connection).delete(folder)
    else:
        Path(where).unlink(missing_ok=True)


def place_of(work_url: str, token: str) -> str:
    """Where the driver of a submit leaves its report below ``work_url``."""
    return f"{work_url.rstrip('/')}/{token}"


def require_readable(work_url: str, connection: Connection | None) -> None:
    """Raise Refused unless the task can read reports below ``work_url``, which is not on HDFS, for example.

    Asks no server.
    """
    _open(work_url, connection)


def result_of(report: JsonDict, job: str, conn_id: str) -> JsonDict:
    """The result of the Spark job ``job`` out of its report. Raises Refused if the report has no result."""
    result = report.get("result")
    if not isinstance(result, dict):
        raise Refused(
            f"The report of the Spark job {job!r} through {conn_id} has no result.",
            code=codes.SPARK_REPORT_UNFIT,
        )
    return result


def _from_file(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _from_folder(url: str, connection: Connection | None) -> str | None:
    root, _, folder = url.rpartition("/")
    files = _open(root, connection)
    names = files.names(folder)
    if "_SUCCESS" not in names:
        return None
    parts = sorted(name for name in names if name.startswith("part-"))
    return b"".join(files.read(f"{folder}/{part}") or b"" for part in parts).decode()


def _open(root: str, connection: Connection | None) -> Files:
    from airflow_epochs.storage.files import open_files
    from airflow_epochs.storage.options import storage_options

    return open_files(root, storage_options(connection), connection.conn_id if connection else None)
