"""Works around five faults of kafka-python 3.0's network layer, through its own extension points.

* It forgets why a connection failed, and repeats a refused login until the timeout: ``network_client``.
* It leaves a socket open when its connection or TLS handshake fails: ``direct_proxy_url``, ``note_sockets``.
* It drops an answer if the connection ends right behind it. Brokers answer a wrong password that way. The sockets of
  this module report the end one read later, so that kafka-python handles the answer first.
* Its DEBUG records hold passwords: ``keep_logins_out_of_logs``.
* It warns if a step of its loop takes more than 0.1 s, as on any busy machine, though nobody else waits for the loop.
  The warnings hid ours: ``network_client`` turns them off.
"""

from __future__ import annotations

import logging
import socket
import ssl
from functools import cache
from typing import Any


def login_errors() -> tuple[type[BaseException], ...]:
    """kafka-python's errors for a login that the broker refuses."""
    from kafka.errors import IllegalSaslStateError, SaslAuthenticationFailedError, UnsupportedSaslMechanismError

    return (SaslAuthenticationFailedError, UnsupportedSaslMechanismError, IllegalSaslStateError)


def network_client(failures: dict[str, BaseException], configs: dict[str, Any]) -> Any:
    """Make a network client of kafka-python that records in ``failures``, by address, why a connection failed last.

    A connection that waits for its first answer has an entry too, and one that succeeds removes it: brokers may
    advertise an address where nobody answers, and kafka-python names no address. After a refused login, every further
    attempt to connect raises it.
    """
    from kafka.net.compat import KafkaNetClient
    from kafka.net.manager import KafkaConnectionManager
    from kafka.net.selector import NetworkSelector

    class Manager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
        def get_connection(self, node_id: Any, **options: Any) -> Any:
            refused = [failure for failure in failures.values() if isinstance(failure, login_errors())]
            if refused:
                raise refused[0]
            known = self._conns.get(node_id)
            connection = super().get_connection(node_id, **options)
            if connection is not known:
                node = self.cluster.broker_metadata(node_id)
                host = f"[{node.host}]" if ":" in node.host else node.host  # as the connection writes IPv6
                address = f"{host}:{node.port}"
                failures.setdefault(address, OSError("not connected"))
                connection.init_future.add_callback(lambda _: failures.pop(address, None))
                connection.init_future.add_errback(lambda error: failures.__setitem__(address, error))
            return connection

    loop = NetworkSelector(**{**configs, "slow_task_threshold_secs": 0})  # 0: never slow
    return KafkaNetClient(net=loop, manager=Manager(loop, **configs))


@cache
def direct_proxy_url() -> str:
    """A ``proxy_url`` that makes kafka-python connect without a proxy, through the sockets of this module."""
    from kafka.net.inet import KafkaNetSocket

    class ClosingSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
        SCHEMES = ("direct",)

        def socket(self, *args: int) -> socket.socket:
            return _PlainSocket(*args)

        async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
            try:
                return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
            except BaseException:
                sock.close()
                raise

    return f"{ClosingSocket.SCHEMES[0]}://"


class _PlainSocket(socket.socket):
    _spoke = False

    def recv(self, *args: int) -> bytes:
        data = super().recv(*args)
        if not data and self._spoke:
            self._spoke = False
            raise BlockingIOError  # "no data now": kafka-python handles the answer, then reads again
        self._spoke = bool(data)
        return data


def note_sockets(context: ssl.SSLContext, sockets: list[ssl.SSLSocket]) -> None:
    """Add every socket that ``context`` makes to ``sockets``. The caller closes them."""

    class TlsSocket(ssl.SSLSocket):
        _spoke = False

        def __new__(cls, *args: Any, **options: Any) -> TlsSocket:
            it = super().__new__(cls, *args, **options)
            sockets.append(it)
            return it

        def recv(self, *args: int) -> bytes:
            data = super().recv(*args)
            if not data and self._spoke:
                self._spoke = False
                raise ssl.SSLWantReadError
            self._spoke = bool(data)
            return data

    context.sslsocket_class = TlsSocket


def keep_logins_out_of_logs() -> None:
    """Drop the DEBUG records in which kafka-python shows its configuration and raw requests. Idempotent."""
    for name in ("kafka.admin.client", "kafka.net.connection", "kafka.protocol.parser"):
        logger = logging.getLogger(name)
        if _above_debug not in logger.filters:
            logger.addFilter(_above_debug)


def _above_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG
