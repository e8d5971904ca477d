"""Runs jobs on a Spark Connect server. The task process is a client: it needs no Java.

A session's id is drawn before the session exists, and the ledger records it. So a later try can reconnect to the
session, interrupt its work and release it. The server then refuses every further request of the old client, which may
still be alive. Every wait for a server has a time limit.
"""

from __future__ import annotations

import atexit
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlparse

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Environment, SparkJob
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.secrecy import shown
from airflow_epochs.spark import kafka_credentials
from airflow_epochs.spark.connect_address import (
    DEFAULT_PORT,
    connection_url,
    refuse_to_send_readably,
    used_for_connect,
)
from airflow_epochs.spark.connect_caches import Caches
from airflow_epochs.spark.driver import failures, jobs, kafka_read, user_files
from airflow_epochs.spark.driver.delta import jobs as delta_jobs
from airflow_epochs.spark.runners import stop_session
from airflow_epochs.time_limit import bounded

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
    """A ``contracts.SparkRunner`` on one Spark Connect server.

    Args:
        conn_id: Connection of type ``spark_connect``.
        env: Finds the connection.
        session_conf: Runtime settings of the Spark session.
        connect_timeout_s: How long a server may take to answer a session's first request.
    """

    def __init__(
        self, conn_id: str, env: Environment, *, session_conf: dict[str, str], connect_timeout_s: float = 60.0
    ) -> None:
        self._conn_id, self._env, self._timeout_s = conn_id, env, connect_timeout_s
        self._conf = {**kafka_read.SESSION_CONF, **delta_jobs.WRITER_CONF, **session_conf}
        self._running: list[JsonDict] = []
        self._caches: dict[str, Caches] = {}
        self._lock = Lock()

    def new_session(self) -> JsonDict:
        """Draw the id of a session that does not exist yet. Asks no server."""
        return {"kind": KIND, "conn_id": self._conn_id, "session_id": str(uuid.uuid4())}

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        """Run ``job`` in its own Spark session, and release the session afterwards.

        Raises:
            Refused: The server lacks a jar or a setting, the job is wrong, or others could read its secrets on the way.
            NotApplied: The server is down, or the job failed. A job that commits may still have taken effect.
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
                # The text of the original may hold credentials, and a traceback would print it.
                cause = None if job.secrets else error
                raise sent.explained(failures.of_spark(error, doing, job.args)) from cause

    def _sent(self, job: SparkJob) -> kafka_credentials.Sent:
        connection = self._env.connection(self._conn_id)
        sent = kafka_credentials.sent(job, connection)
        refuse_to_send_readably(connection, {*sent.readable, *secrecy.secret_names(self._conf)})
        return sent

    def stop(self, session: JsonDict) -> None:
        """Interrupt and release a session, within a time limit. Idempotent.

        An ended or unknown session is no error. A failure is only logged.
        """
        if session["kind"] != KIND:
            stop_session(session, self._env)
            return
        try:
            self._require_spark(session["conn_id"])
            with self._session(session) as spark:
                interrupted = _bounded(spark.interruptAll, RELEASE_TIMEOUT_S, "Interrupting Spark's jobs")
                log.info("interrupted %s operations of session %s", len(interrupted), session["session_id"])
        except Exception as error:
            # Nobody reads what that session writes. Stopping it only saves the server's time.
            log.info("Spark Connect session %s could not be stopped: %s", session["session_id"], error)

    def _require_spark(self, conn_id: str) -> None:
        """Refuse a connection of another type.

        A record may name any connection of Airflow, and its password may go to no other service than Spark Connect.
        """
        if (kind := self._env.connection(conn_id).conn_type) != KIND:
            raise Refused(
                f"A record of the ledger names connection {conn_id} as a Spark Connect server, but its type is {kind}. "
                "Nothing was sent there.",
                code=codes.SPARK_CONNECTION_TYPE,
            )

    def cancel(self) -> None:
        """Stop the job that ``run`` runs now. ``on_kill`` calls it in a signal handler, so it works in a thread."""
        with self._lock:
            running = list(self._running)
        for session in running:
            thread = Thread(target=self.stop, args=(session,), daemon=True)
            thread.start()
            thread.join(RELEASE_TIMEOUT_S)

    @contextmanager
    def _registered(self, session: JsonDict) -> Iterator[None]:
        self._running.append(session)
        self._caches[session["session_id"]] = Caches()
        try:
            yield
        finally:
            self._running.remove(session)
            del self._caches[session["session_id"]]

    @contextmanager
    def _session(self, session: JsonDict) -> Iterator[SparkSession]:
        connection = self._env.connection(session["conn_id"])
        url = connection_url(connection)
        with used_for_connect(connection):
            _refuse_if_nobody_listens(url, session["conn_id"])
        with _connect_mode():
            spark = _client(f"{url};session_id={session['session_id']}")
            # The caches of the running job, even if another client ends its session.
            caches = self._caches.get(session["session_id"], Caches())
            caches.watch(spark)
            spark.release_session_on_close = False  # before the first answer there is no session to release
            try:
                _bounded(lambda: spark.version, self._timeout_s, f"The first answer of {shown(url)}")
                spark.release_session_on_close = True
                yield spark
            except BaseException:
                _release(spark, caches, RELEASE_AFTER_FAILURE_S)
                raise
            _release(spark, caches, RELEASE_TIMEOUT_S)

    def _prepare(self, spark: SparkSession, job: SparkJob, sent: kafka_credentials.Sent) -> None:
        for key, value in self._conf.items():
            _set(spark, key, value)
        if sent.readable:
            kafka_read.refuse_unless_redacting(spark, f"The Spark Connect server of {self._conn_id}")
        if job.files:
            with TemporaryDirectory(prefix="airflow-epochs-") as folder:
                user_files.ship(spark, user_files.siblings_of(job.files[0], job.files[1:]), Path(folder))


def _client(url: str) -> SparkSession:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    failures.quiet_pyspark()
    spark = SparkSession.builder.remote(url).create()
    # By default a client retries a dead server for ten minutes. A session ends with its server, so only a short
    # failure of the network is worth a wait, here of 8 s.
    spark.client.set_retry_policies([DefaultPolicy(max_retries=5, max_backoff=4_000)])
    return spark


def _set(spark: SparkSession, key: str, value: str) -> None:
    from pyspark.errors import AnalysisException

    try:
        spark.conf.set(key, value)
    except AnalysisException as error:
        raise Refused(
            f"The Spark session does not accept the setting {key}={value}: {error}",
            code=codes.SPARK_SETTING,
        ) from error


def _refuse_if_nobody_listens(url: str, conn_id: str) -> None:
    address = _address_in(url)
    try:
        socket.create_connection(address, TCP_TIMEOUT_S).close()
    except OSError as error:
        raise NotApplied(
            f"No Spark Connect server answers at {address[0]}:{address[1]} (connection {conn_id}): {error}",
            code=codes.SPARK_UNREACHABLE,
        ) from None


def _address_in(url: str) -> tuple[str, int]:
    parsed = urlparse(url)
    return parsed.hostname or "", parsed.port or DEFAULT_PORT


def _bounded(call: Callable[[], T], seconds: float, doing: str) -> T:
    """Call, with a time limit: a server that accepts connections and never answers must not hold a task."""
    late = NotApplied(f"{doing} took longer than {seconds:g} s.", code=codes.SPARK_UNREACHABLE)
    return bounded(call, seconds, late)


def _release(spark: SparkSession, caches: Caches, seconds: float) -> None:
    """End the session on the server, and what it has cached there. Each has a time limit; a failure is only logged."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=1)])
    wait(spark.client._release_futures, seconds)  # PySpark releases finished operations in the background
    _empty(caches, spark, seconds)
    try:
        _bounded(lambda: _let_go(spark), seconds, "Releasing the Spark session")
    except Exception as error:
        log.warning("the Spark Connect session was not released: %s", error)
    if on_exit := getattr(spark.client, "_on_exit", None):
        atexit.unregister(on_exit)  # else the process keeps the closed client to its end, and with it the token


def _empty(caches: Caches, spark: SparkSession, seconds: float) -> None:
    try:
        _bounded(lambda: caches.let_go(spark), seconds, "Emptying Spark's cache")
    except Exception as error:
        if _is_gone(spark):
            log.info("The Spark Connect server is gone, and with it what the job has cached there: %s", error)
            return
        log.warning(
            "What the job has cached may stay on the Spark Connect server: %s\n"
            "Later jobs there that read the same tables or files then get the old rows.\n"
            "Call spark.catalog.clearCache() in a session of that server, or restart it.",
            error,
        )


def _is_gone(spark: SparkSession) -> bool:
    """Whether no server listens at the address any more. A server that listens and does not answer is not gone."""
    try:
        socket.create_connection(_address_in(f"//{spark.client._builder.endpoint}"), TCP_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False


def _let_go(spark: SparkSession) -> None:
    """End the session's operations, then the session.

    A killed client leaves operations behind. A server that closes a session with such operations logs their whole
    plans at its default level, with the Kafka options and so with credentials. For an operation that was ended before,
    it logs only the id.
    """
    try:
        for operation in _operations(spark):
            _end(spark, operation)
    except Exception as error:
        log.info("could not end the operations of the Spark Connect session one by one: %s", error)
    finally:
        spark.stop()


def _operations(spark: SparkSession) -> list[str]:
    """The ids of the session's operations. Finished ones count too: the server still holds some of them."""
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
    """Remove the mark of a Connect client afterwards.

    PySpark marks the whole process by an environment variable, and a later spark-submit would inherit it.
    """
    before = os.environ.get(_MODE_VARIABLE)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_MODE_VARIABLE, None)
