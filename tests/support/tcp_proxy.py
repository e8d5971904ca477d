"""A network between client and server that can lose what one of them says, while both stay up."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from typing_extensions import Self

REQUESTS, ANSWERS = "requests", "answers"


class Proxy:
    """Passes every connection to ``address`` on to a port of this machine. ``port``: its own; any that is free if 0."""

    def __init__(self, to_port: int, port: int = 0) -> None:
        self._to_port = to_port
        self._lost: str | None = None
        self._cuts = False
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    def lose(self, what: str, *, cut: bool = False) -> None:
        """From now on, let all requests or all answers disappear; ``cut``: and the connection with the first of them.

        Whoever finds it cut knows that what is lost had been said.
        """
        self._lost, self._cuts = what, cut

    def heal(self) -> None:
        """Pass everything on again, on new connections: the old ones have lost bytes."""
        self._lost = None
        self._hang_up()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # ends the accept that waits, which would keep the port
        self._listener.close()
        self._hang_up()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._to_port))
        except OSError:
            client.close()
            return
        self._open += [client, server]
        for source, target, kind in ((client, server, REQUESTS), (server, client, ANSWERS)):
            threading.Thread(target=self._pass_on, args=(source, target, kind), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, kind: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self._lost != kind:
                    target.sendall(data)
                elif self._cuts:
                    break
        for end in (source, target):
            _close(end)

    def _hang_up(self) -> None:
        while self._open:
            _close(self._open.pop())


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
