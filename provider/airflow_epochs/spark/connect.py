"""Run jobs on a Spark Connect server. The task process is a client: it needs no Java.

A session's identity is drawn before the session exists and recorded in the ledger. Whoever comes later can
reconnect to it, interrupt what it does and release it; the server then refuses every further request of a
client that was thought dead. Every wait on a server that may be down is bounded.
"""

from __future__ import annotations

import os
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlparse

from airflow_epochs import secrecy
from airflow_epochs.contracts import Environment, SparkJob
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.secrecy import shown
from airflow_epochs.spark import kafka_credentials
from airflow_epochs.spark.connect_address import DEFAULT_PORT, connection_url, refuse_to_send_readably
from airflow_epochs.spark.driver import failures, jobs, kafka_read, user_files
from airflow_epochs.spark.driver.delta import jobs as delta_jobs
from airflow_epochs.spark.runners import stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = secrecy.logger(__name__)
T = TypeVar("T")

KIND = "spark_connect"
TCP_TIMEOUT_S = 5.0
RELEASE_TIMEOUT_S = 10.0
RELEASE_AFTER_FAILURE_S = 3.0
_MODE_VARIABLE = "SPARK_CONNECT_MODE_ENABLED"


class ConnectRunner:
    """An ``contracts.SparkRunner`` on one Spark Connect server.

    Args:
        conn_id: Connection of type ``spark_connect``.
        env: Looks the connection up.
        session_conf: Runtime settings of the Spark session.
        connect_timeout_s: How long a server may take to answer a session's first request.
    """

    def __init__(
        self, conn_id: str, env: Environment, *, session_conf: dict[str, str], connect_timeout_s: float = 60.0
    ) -> None:
        self._conn_id, self._env, self._timeout_s = conn_id, env, connect_timeout_s
        self._conf = {**kafka_read.SESSION_CONF, **delta_jobs.WRITER_CONF, **session_conf}
        self._running: list[JsonDict] = []
        self._lock = Lock()

    def new_session(self) -> JsonDict:
        return {"kind": KIND, "conn_id": self._conn_id, "session_id": str(uuid.uuid4())}

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        """Run ``job`` in its own Spark session, which is released afterwards.

        Raises:
            Refused: The server lacks a jar or a setting, or the job is wrong, or its secrets could be read on the way.
            NotApplied: The server is down or the job failed.
        """
        session = session or self.new_session()
        secrecy.keep_options(job.secrets)
        doing = f"The Spark job {job.kind!r} on {self._conn_id}"
        sent = self._sent(job)
        with self._registered(session):
            try:
                with self._session(session) as spark:
                    self._prepare(spark, job, sent)
                    return jobs.run(spark, job.kind, job.args, sent.options)
            except Exception as error:
                # The original may hold credentials in its text, and it would be printed too.
                cause = None if job.secrets else error
                raise sent.explained(failures.of_spark(error, doing)) from cause

    def _sent(self, job: SparkJob) -> kafka_credentials.Sent:
        connection = self._env.connection(self._conn_id)
        sent = kafka_credentials.sent(job, connection)
        refuse_to_send_readably(connection, {*sent.readable, *secrecy.secret_names(self._conf)})
        return sent

    def stop(self, session: JsonDict) -> None:
        """Interrupt and release a session, in bounded time; an ended or unknown session or a dead server is fine."""
        if session["kind"] != KIND:
            stop_session(session, self._env)
            return
        try:
            self._require_spark(session["conn_id"])
            with self._session(session) as spark:
                interrupted = _bounded(spark.interruptAll, RELEASE_TIMEOUT_S, "Interrupting Spark's jobs")
                log.info("interrupted %s operations of session %s", len(interrupted), session["session_id"])
        except Exception as error:
            # Nobody will look at what that session writes: stopping it saves the server's time, no more.
            log.info("Spark Connect session %s is not to be stopped: %s", session["session_id"], error)

    def _require_spark(self, conn_id: str) -> None:
        """A record may name any connection of Airflow: its password must not be sent to anything but Spark Connect."""
        if (kind := self._env.connection(conn_id).conn_type) != KIND:
            raise Refused(
                f"Connection {conn_id}, which a record names as that of a Spark Connect server, is of type {kind}.",
                remedy="find out who wrote that record of the ledger. Nothing was sent there.",
            )

    def cancel(self) -> None:
        """Stop what ``run`` is doing now. For ``on_kill``: called from a signal handler, so it works in a thread."""
        with self._lock:
            running = list(self._running)
        for session in running:
            thread = Thread(target=self.stop, args=(session,), daemon=True)
            thread.start()
            thread.join(RELEASE_TIMEOUT_S)

    @contextmanager
    def _registered(self, session: JsonDict) -> Iterator[None]:
        self._running.append(session)
        try:
            yield
        finally:
            self._running.remove(session)

    @contextmanager
    def _session(self, session: JsonDict) -> Iterator[SparkSession]:
        url = connection_url(self._env.connection(session["conn_id"]))
        _refuse_if_nobody_listens(url, session["conn_id"])
        with _connect_mode():
            spark = _client(f"{url};session_id={session['session_id']}")
            spark.release_session_on_close = False  # there is nothing to release before the first answer
            try:
                _bounded(lambda: spark.version, self._timeout_s, f"The first answer of {shown(url)}")
                spark.release_session_on_close = True
                yield spark
            except BaseException:
                _release(spark, RELEASE_AFTER_FAILURE_S)
                raise
            _release(spark, RELEASE_TIMEOUT_S)

    def _prepare(self, spark: SparkSession, job: SparkJob, sent: kafka_credentials.Sent) -> None:
        for key, value in self._conf.items():
            _set(spark, key, value)
        if sent.readable:
            kafka_read.refuse_unless_redacting(spark, f"The Spark Connect server of {self._conn_id}")
        if job.files:
            _ship(spark, user_files.siblings_of(job.files[0], job.files[1:]))


def _client(url: str) -> SparkSession:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    failures.quiet_pyspark()
    spark = SparkSession.builder.remote(url).create()
    # By default a client retries a dead server for ten minutes. A session does not outlive its server, so
    # only a short interruption of the network is worth waiting for: here 8 s.
    spark.client.set_retry_policies([DefaultPolicy(max_retries=5, max_backoff=4_000)])
    return spark


def _set(spark: SparkSession, key: str, value: str) -> None:
    from pyspark.errors import AnalysisException

    try:
        spark.conf.set(key, value)
    except AnalysisException as error:
        raise Refused(
            f"The Spark session does not take {key}={value}: {error}",
            remedy="Take it out of session_conf; static settings are those of the server.",
        ) from error


def _refuse_if_nobody_listens(url: str, conn_id: str) -> None:
    parsed = urlparse(url)
    address = (parsed.hostname or "", parsed.port or DEFAULT_PORT)
    try:
        socket.create_connection(address, TCP_TIMEOUT_S).close()
    except OSError as error:
        raise NotApplied(
            f"No Spark Connect server answers at {address[0]}:{address[1]} (connection {conn_id}): {error}",
            remedy="Start the server or correct the connection; the task may then be retried.",
        ) from None


def _bounded(call: Callable[[], T], seconds: float, doing: str) -> T:
    """``call()`` in a daemon thread: a server that accepts connections and never answers must not hold a task."""
    outcome: dict[str, Any] = {}

    def target() -> None:
        try:
            outcome["value"] = call()
        except BaseException as error:
            outcome["error"] = error

    thread = Thread(target=target, daemon=True)
    thread.start()
    thread.join(seconds)
    if "error" in outcome:
        raise outcome["error"]
    if "value" not in outcome:
        raise NotApplied(
            f"{doing} took longer than {seconds:g} s.",
            remedy="Look at the Spark Connect server; then retry the task.",
        )
    return outcome["value"]  # type: ignore[no-any-return]


def _release(spark: SparkSession, seconds: float) -> None:
    """End the session on the server. It is only tidiness, so it may not take long nor fail the job."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=1)])
    wait(spark.client._release_futures, seconds)  # PySpark lets go of finished operations in the background
    try:
        _bounded(lambda: _let_go(spark), seconds, "Releasing the Spark session")
    except Exception as error:
        log.warning("the Spark Connect session was not released: %s", error)


def _let_go(spark: SparkSession) -> None:
    """End the session's operations, then the session.

    A server that closes a session with operations left, those of a client that was killed, logs them whole at its
    default level: with the Kafka options, and so with credentials. Of one that was ended before it logs the id.
    """
    try:
        for operation in _operations(spark):
            _end(spark, operation)
    except Exception as error:
        log.info("Operations of the Spark Connect session were not ended one by one: %s", error)
    finally:
        spark.stop()


def _operations(spark: SparkSession) -> list[str]:
    """The ids of all that the session does or has done. Those that are over count too: some are still held."""
    return [status.operation_id for status in spark.client._get_operation_statuses().operation_statuses]


def _end(spark: SparkSession, operation: str) -> None:
    from pyspark.sql.connect.proto import ReleaseExecuteRequest, UserContext

    client = spark.client
    request = ReleaseExecuteRequest(
        session_id=client._session_id,
        user_context=UserContext(user_id=client._user_id),
        operation_id=operation,
        release_all=ReleaseExecuteRequest.ReleaseAll(),
    )
    client._stub.ReleaseExecute(request, metadata=client._builder.metadata())


@contextmanager
def _connect_mode() -> Iterator[None]:
    """PySpark marks the whole process as a Connect client; a spark-submit started later would inherit the mark."""
    before = os.environ.get(_MODE_VARIABLE)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_MODE_VARIABLE, None)


def _ship(spark: SparkSession, files: dict[str, Path]) -> None:
    if not files:
        return
    content = user_files.archive(files)
    with tempfile.TemporaryDirectory(prefix="airflow-epochs-") as folder:
        packed = Path(folder) / user_files.archive_name(content)
        packed.write_bytes(content)
        with _unchanged_path():
            spark.addArtifacts(str(packed), pyfile=True)


@contextmanager
def _unchanged_path() -> Iterator[None]:
    """``addArtifacts`` puts the zip on this process's ``sys.path`` too, where it is gone in a moment."""
    import sys

    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before
