"""Tells what went wrong in Spark's Python workers: a user's function that raises, two Pythons, a worker that died."""

from __future__ import annotations

import re

from airflow_epochs import codes
from airflow_epochs.errors import NotApplied, Refused

DIED = "Python worker exited unexpectedly"
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)", re.M)
_VERSIONS = re.compile(r"\[PYTHON_VERSION_MISMATCH\] (.*?)(?:, PySpark cannot|$)", re.M)
_MAY_PASS = re.compile(
    r"Timeout|TimedOut|Connection|Disconnect|Unavailable|Throttl|TooManyRequests|"
    r"^(?:OSError|IOError|EOFError|BrokenPipeError|BlockingIOError|InterruptedError|MemoryError|URLError|HTTPError|gaierror)$"
)
"""Names of exceptions that tell of another service, of the worker's pipe, or of memory. They may pass by themselves."""


def refused(whole: str, shown: str, doing: str) -> Refused | None:
    """The error if a Python worker raised one that a retry would meet again; else None. ``whole``: Spark's error."""
    if mixed := _VERSIONS.search(whole):
        return Refused(f"{doing} failed: {mixed.group(1)}.", code=codes.SPARK_PYTHON_MIXED)
    raised = _exception(whole)
    if raised is None or _MAY_PASS.search(raised.rpartition(".")[2]):
        return None
    return Refused(
        f"{doing} failed: a Python function of the transform raised {raised}. {shown}", code=codes.UDF_RAISED
    )


def died(whole: str, shown: str, doing: str) -> NotApplied | None:
    """The error if a Python worker died without an exception; else None. A retry may help if it was out of memory."""
    if DIED not in whole:
        return None
    return NotApplied(
        f"{doing} failed: a Python worker ended in the middle of its work. {shown}", code=codes.SPARK_WORKER_DIED
    )


def _exception(text: str) -> str | None:
    """The class of the last traceback's exception: Python writes frames indented, and the exception is not."""
    _, found, after = text.rpartition(_TRACEBACK)
    named = _RAISED.search(after) if found else None
    return named.group(1) if named else None
