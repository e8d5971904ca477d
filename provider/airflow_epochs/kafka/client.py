"""A client around kafka-python that gives every question an answer or an error within a time limit.

kafka-python alone can wait for ever: it sets no deadline for a TLS handshake.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_epochs import codes
from airflow_epochs.errors import EpochError, NotApplied, Refused
from airflow_epochs.kafka.connection import KafkaAccess

if TYPE_CHECKING:
    import ssl

    from kafka import KafkaAdminClient

Answer = TypeVar("Answer")

RETRY_S = 0.1
GRACE_S = 0.5
"""Seconds that this client waits beyond the timeout: kafka-python's own timeout ends first and names the reason."""


class KafkaClient:
    """A context manager around kafka-python's admin client. Not thread-safe.

    ``within_s``: the time limit of all questions together, if there is one.
    """

    def __init__(self, access: KafkaAccess, *, within_s: float = math.inf) -> None:
        self._access = access
        self._end = time.monotonic() + within_s
        self._admin: KafkaAdminClient | None = None
        self._network: Any = None
        self._tls_sockets: list[ssl.SSLSocket] = []
        self._failures: dict[str, BaseException] = {}
        self._gave_up = False

    def __enter__(self) -> KafkaClient:
        try:
            self._admin = self._answer("connect", self._connect)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, doing: str, question: Callable[[KafkaAdminClient], Answer]) -> Answer:
        """Ask the brokers. Repeats the question after errors that may pass, until the timeout.

        Args:
            doing: What the question does, as an infinitive: "list offsets". Errors quote it.
            question: Must be idempotent.

        Raises:
            Refused: The brokers refuse the login or the right, or are too old.
            NotApplied: No answer came in time, or the brokers answered with another error.
        """
        return self._answer(doing, lambda: question(self._admin))

    @property
    def unreached(self) -> list[str]:
        """The addresses of brokers to which no connection could be made."""
        return list(self._failures)

    def close(self) -> None:
        """Close the connections, and the TLS sockets that kafka-python leaves open."""
        if self._network is not None:
            self._network.close()
        for socket in self._tls_sockets:
            socket.close()

    def _connect(self) -> KafkaAdminClient:
        from kafka import KafkaAdminClient

        from airflow_epochs.kafka.network import direct_proxy_url, keep_logins_out_of_logs, note_sockets

        keep_logins_out_of_logs()
        timeout_ms = int(self._access.timeout_s * 1000)
        options = self._access.client_options()
        if "ssl_context" in options:
            note_sockets(options["ssl_context"], self._tls_sockets)
        return KafkaAdminClient(
            **options,
            bootstrap_timeout_ms=timeout_ms,
            request_timeout_ms=timeout_ms,
            reconnect_backoff_max_ms=1000,
            proxy_url=direct_proxy_url(),
            kafka_client=self._new_network,
        )

    def _new_network(self, **configs: Any) -> Any:
        from airflow_epochs.kafka.network import network_client

        self._network = network_client(self._failures, configs)
        return self._network

    def _answer(self, doing: str, question: Callable[[], Answer]) -> Answer:
        from kafka.errors import KafkaError

        deadline = min(time.monotonic() + self._access.timeout_s, self._end)
        while True:
            try:
                return self._watched(deadline, question)
            except (KafkaError, OSError, RuntimeError) as error:
                lasting = isinstance(error, KafkaError) and not error.retriable
                if lasting or self._gave_up or time.monotonic() + RETRY_S > deadline or self._admin is None:
                    raise self._failure(doing, error) from error
            time.sleep(RETRY_S)

    def _watched(self, deadline: float, question: Callable[[], Answer]) -> Answer:
        watch = threading.Timer(max(deadline - time.monotonic(), 0) + GRACE_S, self._give_up)
        watch.daemon = True
        watch.start()
        try:
            return question()
        finally:
            watch.cancel()

    def _give_up(self) -> None:
        self._gave_up = True
        if self._network is not None:
            self._network._net.stop(timeout_ms=200)  # every waiting call then raises

    def _failure(self, doing: str, error: BaseException) -> EpochError:
        from kafka.errors import AuthorizationError, UnsupportedVersionError

        from airflow_epochs.kafka.network import login_errors

        login = next((e for e in (error, *self._failures.values()) if isinstance(e, login_errors())), None)
        where = f"Kafka at {', '.join(self._access.servers)} (connection {self._access.conn_id!r})"
        if login is not None:
            return Refused(
                f"{where} rejected the login of {self._who()}: {login}.",
                code=codes.KAFKA_LOGIN,
            )
        if isinstance(error, AuthorizationError):
            return Refused(
                f"{where} does not permit {self._who()} to {doing}: {error}.",
                code=codes.KAFKA_FORBIDDEN,
                remedy="Grant the user Describe and Read on the topics, and Read on the consumer group. Clear the "
                "failed task.",
            )
        if isinstance(error, UnsupportedVersionError):
            return Refused(f"{where} is too old. It cannot {doing}: {error}.", code=codes.KAFKA_TOO_OLD)
        return self._no_answer(where, doing, error)

    def _no_answer(self, where: str, doing: str, error: BaseException) -> NotApplied:
        reasons = [f"{address}: {failure}" for address, failure in self._failures.items()]
        if self._gave_up:
            reasons.append(f"no answer within {self._access.timeout_s:g} s (socket.timeout.ms)")
        what = f"The request to {doing} failed. {where}: {'; '.join(reasons) or error}."
        return self._access.unreachable(what, self._failures)

    def _who(self) -> str:
        sasl = self._access.sasl
        if sasl is None:
            return f"a client without a user ({self._access.protocol})"
        return f"user {sasl.username or sasl.principal or 'of the ticket cache'} ({sasl.mechanism})"
