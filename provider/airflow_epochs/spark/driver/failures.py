"""Turns Spark's errors into this package's errors, and keeps credentials out of pyspark's log lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import EpochError, NotApplied, Refused
from airflow_epochs.spark.driver import python_workers
from airflow_epochs.spark.driver.kafka_read import REDACTION
from airflow_epochs.spark.driver.wire import JsonDict
from airflow_epochs.transforms.fit import OUTGROWN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LENGTH_MAX = 4_000
_JARS = {
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_2.13",
    "delta": "io.delta:delta-spark_4.2_2.13",
}
_FRAMES = re.compile(r"\n\s*(?:JVM stacktrace:|at [\w.$]+\()")
_CAUSE = re.compile(r"^Caused by: (.*?)(?=\n\s+at |\nCaused by: |\Z)", re.M | re.S)
_NO_SOURCE = re.compile(
    r"(?:DATA_SOURCE_NOT_FOUND|[Ff]ailed to find (?:the )?data source).{0,200}?\b(kafka|delta)\b", re.S
)
_STRANGER = re.compile(r"StatusCode\.UNAUTHENTICATED\s+details = \"(.*?)\"", re.S)
_GONE = re.compile(r"StatusCode\.UNAVAILABLE\s+details = \"(.*?)\"", re.S)
_OF_VALUES = re.compile(r"SQLSTATE: (?:22(?!000)\w{3}|P0001)\b")
"""The SQL standard's class 22, "data exception", without 22000, under which Spark tells of lost Kafka records; and
``raise_error`` in the user's SQL.
"""
_EQUAL_KEYS = "[DUPLICATED_MAP_KEY]"
"""The error for a map with equal keys. Its SQLSTATE, 23505, may also mean another writer's row with a unique key."""
_OTHER_ARROW = re.compile(
    r"\[UNSUPPORTED_ARROWTYPE\]|\[UNSUPPORTED_CALL[.\w]*\] [^\n]*ArrowColumnVector\$ArrowVectorAccessor"
)
"""Errors after a Python function made Arrow data of another type than it declares. Only such data reach these readers
of Spark's."""
_NULL_IN_ARROW = "IllegalStateException: Value at index is null"
"""``mapInArrow`` or ``mapInPandas`` returned NULL in a column that it declares NOT NULL."""
_BROKEN_RULE = re.compile(
    r"\[(?:DELTA_VIOLATE_CONSTRAINT_WITH_VALUES|DELTA_NOT_NULL_CONSTRAINT_VIOLATED|DELTA_EXCEED_CHAR_VARCHAR_LIMIT|"
    r"EXCEED_LIMIT_LENGTH)\]"
)
_AMBIGUOUS = "[DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE]"
ONE_ROW = "several rows of the epoch are for one row of the table"
"""A part of the error text for a MERGE that cannot tell which row counts."""
_TIME_TOO_LARGE = "that overflows when converting to Spark's microsecond-precision TimestampType"
_FETCH_TIMED_OUT = "Cannot fetch record for offset"
_NO_BROKER = re.compile(r"org\.apache\.kafka\.common\.errors\.TimeoutException|No resolvable bootstrap urls given")
"""No broker answers Spark's Kafka clients, or Spark's machine does not know the names in the connection."""
_TELLING = ("Traceback (most recent call last)", python_workers.DIED, _TIME_TOO_LARGE, _FETCH_TIMED_OUT)
"""Marks of the most useful errors, wherever they stand in the chain of causes: a user's Python error, a Python worker
that died, and errors of Spark's Kafka reader.
"""
_OF_SPARK_ITSELF = (
    *("StatusCode.UNAVAILABLE", "StatusCode.UNAUTHENTICATED", "[RETRIES_EXCEEDED]"),
    # The server was started again.
    *("[NO_ACTIVE_SESSION]", "[INVALID_HANDLE.SESSION_", "server side session identifier"),
    *("SparkContext was shut down", "ExecutorLostFailure", python_workers.DIED),
)
_CATALOG = "spark.sql.catalog.spark_catalog"
_NO_EXTENSION = "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG"


class _OfPlans(secrecy.Scrubbing):
    """Blots secrets out of logged plans too: everything from the first of Kafka's secret options on.

    pyspark cuts plans, maybe in the middle of a secret, and half a secret is not recognised.
    """

    def told(self, text: str) -> str:
        return re.sub(REDACTION, secrecy.BLOT, secrecy.scrubbed(text))


def quiet_pyspark() -> None:
    """Keep pyspark from writing secrets to standard error. Idempotent.

    Otherwise it writes every error that it raises there, with the JVM's trace. With SPARK_CONNECT_LOG_LEVEL=debug, it
    writes plans too.
    """
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    connect = PySparkLogger.getLogger("pyspark.sql.connect.logging")
    if not any(isinstance(each, _OfPlans) for each in connect.filters):
        connect.addFilter(_OfPlans())


def of_spark(error: BaseException, doing: str, args: JsonDict | None = None) -> EpochError:
    """The error to raise for ``error``: Refused if a retry cannot help, otherwise NotApplied. ``args``: the job's plan.

    Both are true of staging: a failed job has written only to a place of its own, which nobody reads. After a job that
    commits, the caller must look for the effect.
    """
    if isinstance(error, EpochError):
        return error
    whole = _message(error)
    text = _cut(whole)
    if found := _NO_SOURCE.search(text):
        return _jar_missing(found.group(1), doing)
    if _NO_EXTENSION in text:
        return _without_catalog(doing)
    if unknown := _STRANGER.search(text):
        return Refused(
            f"{doing} failed: the Spark Connect server does not accept the task's token ({unknown.group(1)}).",
            code=codes.SPARK_LOGIN,
        )
    if gone := _GONE.search(text):
        return NotApplied(
            f"{doing} failed: the Spark Connect server no longer answers ({gone.group(1)}).",
            code=codes.SPARK_UNREACHABLE,
        )
    if _is_analysis(error):
        return Refused(f"{doing} failed: the plan is not valid. {text}", code=codes.SPARK_PLAN_REFUSED)
    if of_a_row := _about_a_row(text, doing):
        return of_a_row
    of_worker = python_workers.refused(whole, text, doing) or python_workers.died(whole, text, doing)
    if known := of_worker or _no_broker(text, doing, args or {}):
        return known
    if _is_without_cause(error):
        return _without_cause(f"{type(error).__name__}: {text}", doing)
    return _job_failed(f"{doing} failed: {type(error).__name__}: {text}")


def is_of_spark_itself(error: BaseException) -> bool:
    """Whether an error comes from Spark and is about its servers, whatever the request was."""
    try:
        from pyspark.errors import PySparkException
    except ImportError:
        return False
    is_of_spark = isinstance(error, PySparkException) or type(error).__module__.startswith("py4j.")
    return is_of_spark and any(words in _message(error) for words in _OF_SPARK_ITSELF)


def _is_without_cause(error: BaseException) -> bool:
    """Whether a Connect server did not send the causes of an error.

    Spark 4.2 sends no cause if one in the chain has no text of its own, as Java's EOFException after a Python worker
    died.
    """
    try:
        from pyspark.errors.exceptions.connect import SparkException
    except ImportError:  # of grpc: there is no Connect
        return False
    return isinstance(error, SparkException) and error.getStackTrace() is None


def _without_cause(text: str, doing: str) -> NotApplied:
    return NotApplied(
        f"{doing} failed, and Spark Connect does not tell the cause. {text}",
        code=codes.SPARK_JOB_FAILED,
        remedy="Look for 'Lost task' in the log of the Spark Connect server: the cause stands there. If it is "
        f"{python_workers.DIED!r}, do what docs/failures.md says of {codes.SPARK_WORKER_DIED.name}. Else correct the "
        "cause. Then clear the failed task.",
    )


def _about_a_row(text: str, doing: str) -> Refused | None:
    """The error for a row that a retry would meet again; None if ``text`` is about something else."""
    if _TIME_TOO_LARGE in text:  # where Spark gives it an SQLSTATE, that is one of values
        return Refused(f"{doing} failed: a record has no valid timestamp. {text}", code=codes.RECORD_TIME_INVALID)
    if _BROKEN_RULE.search(text):
        return Refused(f"{doing} failed: a row breaks a rule of the table. {text}", code=codes.DELTA_ROWS_UNFIT)
    if _AMBIGUOUS in text:
        return Refused(f"{doing} failed: {ONE_ROW}. {text}", code=codes.DELTA_ROWS_UNFIT)
    if OUTGROWN in text:
        return _outgrown(text, doing)
    if _OTHER_ARROW.search(text):
        return _other_arrow(text, doing)
    if _NULL_IN_ARROW in text:
        return _null_in_arrow(text, doing)
    if _EQUAL_KEYS in text:
        return _equal_keys(text, doing)
    if _OF_VALUES.search(text):
        return Refused(f"{doing} failed: a value cannot be computed. {text}", code=codes.SPARK_VALUE_INVALID)
    return None


def _outgrown(text: str, doing: str) -> Refused:
    return Refused(
        f"{doing} failed: a number does not fit the state. {text}",
        code=codes.OPERATOR_COLUMNS,
        remedy="Give the column a decimal type with more digits in the schema of the state table, which then needs "
        "another table (docs/state.md, 'Keep the rows of a state'); or let the transform leave out the rows that make "
        "the number so large. Then clear the failed task.",
    )


def _other_arrow(text: str, doing: str) -> Refused:
    return Refused(
        f"{doing} failed: a Python function of the transform made Arrow data of another type than it declares. {text}",
        code=codes.SPARK_VALUE_INVALID,
        remedy="Let the function cast what it returns to the types that it declares, in their order "
        '(`batch.cast(pa.schema([("id", pa.int32())]))`), or declare the types that it returns. Then clear the failed '
        "task.",
    )


def _null_in_arrow(text: str, doing: str) -> Refused:
    return Refused(
        f"{doing} failed: a Python function of the transform made NULL in a column that it declares NOT NULL. {text}",
        code=codes.SPARK_VALUE_INVALID,
        remedy="Let the function return a value in every row, or declare the column without NOT NULL. Then clear the "
        "failed task.",
    )


def _equal_keys(text: str, doing: str) -> Refused:
    return Refused(
        f"{doing} failed: a map of the transform has a key twice. {text}",
        code=codes.SPARK_VALUE_INVALID,
        remedy="Let the transform make each key once. Keys that differ there may be equal in the type of the column "
        "that takes them, as some of `double` are as `float`: then give the column the wider type. If the last value "
        'of a key shall count, set "spark.sql.mapKeyDedupPolicy": "LAST_WIN" in `session_conf` of SparkConnect or '
        "`conf` of SparkSubmit. Then clear the failed task.",
    )


def _job_failed(what: str) -> NotApplied:
    if _FETCH_TIMED_OUT not in what:
        return NotApplied(what, code=codes.SPARK_JOB_FAILED)
    return NotApplied(
        what,
        code=codes.SPARK_JOB_FAILED,
        remedy="Check that Spark's executors reach every address that the brokers advertise (advertised.listeners). "
        "If the topic has tiered storage, and the brokers are older than Kafka 3.8, set "
        'KafkaSource(options={"kafka.fetch.max.wait.ms": "5000"}): they end a read from the remote storage after that '
        "time. Then clear the failed task.",
    )


def _no_broker(text: str, doing: str, args: JsonDict) -> NotApplied | None:
    if not _NO_BROKER.search(text):
        return None
    servers = (args.get("read") or {}).get("kafka.bootstrap.servers")
    at = f" at {servers} (connection {args.get('connection')!r})" if servers else ""
    return NotApplied(
        f"{doing} failed: Spark gets no answer from Kafka{at}. {text}",
        code=codes.KAFKA_UNREACHABLE,
        remedy="Check that the brokers run. Check that Spark's machines, of the driver and of the executors, can reach "
        "the addresses in the connection and every address that the brokers advertise (advertised.listeners): Airflow "
        "may reach them from another network. Then clear the failed task.",
    )


def _without_catalog(doing: str) -> Refused:
    return Refused(
        f"{doing} failed: Spark runs without Delta's extension and catalog.",
        code=codes.SPARK_INCOMPLETE,
        remedy="Start Spark with --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and --conf "
        "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog. Then clear the failed "
        "task.",
    )


def refuse_without_catalog(spark: SparkSession, doing: str) -> None:
    """Raise the error of Delta's first write, before anything is written, if the session has no catalog for Delta."""
    if spark.conf.get(_CATALOG, "") == "":
        raise _without_catalog(doing)


def _jar_missing(source: str, doing: str) -> Refused:
    return Refused(
        f"{doing} failed: Spark does not know the data source {source!r}.",
        code=codes.SPARK_INCOMPLETE,
        remedy=f"Start Spark with --packages {_JARS[source]}:<version of your Spark or Delta> or with its jars. Then "
        "clear the failed task.",
    )


def _is_analysis(error: BaseException) -> bool:
    try:
        from pyspark.errors import AnalysisException, ParseException
    except ImportError:
        return False
    return isinstance(error, (AnalysisException, ParseException))


def _message(error: BaseException) -> str:
    """The error's message and its cause, without the JVM's frames and without secrets."""
    whole = str(error)
    trace = getattr(error, "getStackTrace", lambda: None)() or whole
    text = _FRAMES.split(whole, maxsplit=1)[0].strip()
    causes = [cause.strip() for cause in _CAUSE.findall(trace)]
    telling = [cause for cause in causes if any(words in cause for words in _TELLING)] or causes[-1:]
    if telling and telling[0] not in text:
        text = f"{text}\nCaused by: {telling[0]}"
    return secrecy.scrubbed(text)  # before it is cut: half a secret is not recognised


def _cut(text: str) -> str:
    """``text`` without its middle, if it is long: a traceback names the exception at its end."""
    half = _LENGTH_MAX // 2
    return text if len(text) <= _LENGTH_MAX else f"{text[:half]} … {text[-half:]}"


def error_as_json(error: EpochError) -> JsonDict:
    """The error's class, code, text and remedy, for the report."""
    code = error.code.name if error.code else None
    return {"type": type(error).__name__, "code": code, "what": error.what, "remedy": error.remedy}


def error_from_json(told: JsonDict) -> EpochError:
    """The error that the driver reported. Refused stays Refused; every other class becomes NotApplied."""
    kind = Refused if told["type"] == "Refused" else NotApplied
    return kind(told["what"], code=codes.BY_NAME.get(told["code"]), remedy=told["remedy"])
