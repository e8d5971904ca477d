"""Says why spark-submit failed, where Spark's driver has left no report: by what spark-submit itself has printed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import typed
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.spark.driver import main

if TYPE_CHECKING:
    from airflow_epochs.contracts import Connection

TYPE = "spark"
_LINES_MAX, _LENGTH_MAX = 500, 1_000
_COMMAND = re.compile(r"^Cannot execute: .*?\. Error code is: ", re.S)
_TAIL = "\nLast spark-submit output:"
_REASON = re.compile(r'Exception in thread "main"|^Error: |^(?:: )?[\w.]*(?:Error|Exception): ')
_WRONG_MASTER = re.compile(
    r"(?:Master must either be|Could not parse Master URL|Invalid master URL|Asked to run locally with)[^\n]*"
)
_NO_HADOOP = re.compile(r"When running with master \S+ either HADOOP_CONF_DIR or YARN_CONF_DIR must be set[^\n]*")
_STOPPED = re.compile(rf"^{main.STARTING} .*Cannot call methods on a stopped SparkContext", re.S)


def kept(hook: Any) -> Sequence[str]:
    """The last lines that spark-submit will print. Older hooks do not quote them in their errors."""
    lines: deque[str] = deque(maxlen=_LINES_MAX)
    process = hook._process_spark_submit_log
    hook._process_spark_submit_log = lambda output: process(_noting(lines, output))
    return lines


def _noting(lines: deque[str], output: Iterable[str]) -> Iterator[str]:
    for line in output:
        lines.append(line.rstrip())
        yield line


def told(failure: Exception | None, lines: Sequence[str]) -> str:
    """Why there is no result, without the command in the hook's error, which does not tell the cause."""
    if failure is None:
        return "the driver left no complete report"
    what = _COMMAND.sub("spark-submit ended with exit code ", str(failure).partition(_TAIL)[0])
    reasons = [line for line in lines if _REASON.search(line)][-3:] or list(lines)[-5:]
    said = secrecy.scrubbed("\n".join([what, *reasons]))  # before it is cut: half a secret is not recognised
    return said if len(said) <= _LENGTH_MAX else f"{said[:_LENGTH_MAX]} …"


def of_start(said: str, connection: Connection) -> NotApplied | None:
    """The error if Spark could not start as the connection says; None if ``said`` is about something else."""
    error = _of_start(said, connection)
    return error and typed(error, connection.conn_id, connection.conn_type, TYPE)


def _of_start(said: str, connection: Connection) -> NotApplied | None:
    master = f"the master of connection {connection.conn_id}, whose host is {connection.host!r}"
    if wrong := _WRONG_MASTER.search(said):
        return Refused(
            f"Spark does not take {master}: {wrong.group(0)}",
            code=codes.SPARK_CONNECTION,
            remedy="Correct the host of the connection: local[2], yarn, spark://host:7077 or k8s://https://host:6443, "
            "for example. Then clear the failed task.",
        )
    if lacking := _NO_HADOOP.search(said):
        return Refused(
            f"Spark does not find what it needs for {master}: {lacking.group(0)}",
            code=codes.SPARK_INCOMPLETE,
            remedy="Set HADOOP_CONF_DIR or YARN_CONF_DIR for every worker of Airflow: the folder of Hadoop's "
            "configuration there. Then clear the failed task.",
        )
    if _STOPPED.search(said):
        return NotApplied(
            f"Spark gave up while it started, as it does if nobody answers as {master}.",
            code=codes.SPARK_UNREACHABLE,
            remedy="Look for 'ERROR' in the driver's log above. Check that the master runs, and that the worker "
            "reaches it at the address in the connection. Then clear the failed task.",
        )
    return None
