"""Ports of 127.0.0.1 for servers. A server binds its port seconds after the port was chosen."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import secrets
import socket
import tempfile

from stack import private
from stack.processes import StackError

PORTS = range(10_000, 32_000)  # below those that Linux, macOS and Windows give to outgoing connections
_given: set[int] = set()
"""By this process, which the lock of a port does not keep from itself."""


def free_port() -> int:
    """A free port that the system gives to no outgoing connection, also not between two starts.

    As long as this process lives, it is given to no other one of this account that asks here.
    """
    for port in secrets.SystemRandom().sample(PORTS, min(100, len(PORTS))):
        if port not in _given and _is_ours(port) and _is_free(port):
            _given.add(port)
            return port
    raise StackError("No free port on 127.0.0.1.")


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        return True
    return False


def _is_ours(port: int) -> bool:
    """Lock the port's byte of the file. The system unlocks it when this process ends."""
    try:
        fcntl.lockf(_choices(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    return True


@functools.cache
def _choices() -> int:
    """A file with a byte for each port. It is never closed: that would unlock all of them."""
    path = os.path.join(tempfile.gettempdir(), f"airflow-epochs-ports-{os.getuid()}")
    return private.opener(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)


def hold(address: str, port: int) -> socket.socket | None:
    """A socket that keeps the port of an IPv6 address from others, and answers nobody; None without such an address.

    Raises:
        StackError: Somebody else has it.
    """
    if not socket.has_ipv6:
        return None
    held = socket.socket(socket.AF_INET6)
    try:
        held.bind((address, port))
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            raise StackError(f"Port {port} of {address} is taken.") from None
        return None
    return held


def answers(port: int) -> bool:
    """Whether something on 127.0.0.1 accepts connections to ``port``."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
