"""A StatsD server on loopback, which remembers what it gets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from types import TracebackType


class StatsdServer:
    """Listens from ``__enter__`` to ``__exit__``. ``env``: the settings with which Airflow sends it our metrics."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)

    @property
    def env(self) -> dict[str, str]:
        settings = {"ON": "True", "HOST": "127.0.0.1", "PORT": str(self._socket.getsockname()[1])}
        settings = {f"AIRFLOW__METRICS__STATSD_{name}": value for name, value in settings.items()}
        return {**settings, "AIRFLOW__METRICS__METRICS_ALLOW_LIST": "epochs"}

    def __enter__(self) -> StatsdServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.sendto(b"", self._socket.getsockname())  # an empty packet ends the thread
        self._thread.join(10)
        self._socket.close()

    def _listen(self) -> None:
        while packet := self._socket.recv(65_536):
            self._lines.extend(packet.decode().splitlines())

    def told(self) -> Mapping[str, float]:
        """Name -> the sum of a counter, or the last value of a gauge or a timing."""
        found: dict[str, float] = {}
        for line in [*self._lines]:
            name, _, rest = line.partition(":")
            name, (value, kind) = name.removeprefix("airflow.epochs."), rest.split("|")[:2]
            known = found.get(name, 0.0) if kind == "c" else 0.0
            found[name] = known + float(value)
        return found

    def forget(self) -> None:
        """Begin anew."""
        self._lines.clear()
