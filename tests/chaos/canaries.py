"""Secrets in every connection, and whether they have come out: into a file, an argument or a variable of a process."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import psutil

LOOK_S = 1.0
_LEFT_BEHIND = ("airflow-epochs-*", "spark-*", "blockmgr-*")
"""What tasks and Spark have in the folder for temporary files."""
_SPARK = ("java", "pyspark", "airflow_epochs_main")
"""In the arguments of Spark's processes. Airflow's have the connections in their environment, here."""
_OWN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""By which a Connect server is told its token; what it starts inherits it."""


class Canaries:
    """Watches processes while the system runs, and searches its files at the end.

    Args:
        secrets: What they are of, and they themselves.
        kept_in: The files that have them on purpose.
    """

    def __init__(self, secrets: Mapping[str, str], kept_in: Collection[Path]) -> None:
        self._secrets = {name: secret.encode() for name, secret in secrets.items()}
        self._kept_in = frozenset(kept_in)
        self._seen: set[str] = set()
        self._ended = threading.Event()

    @contextlib.contextmanager
    def watching(self, processes: Callable[[], Iterable[psutil.Process]]) -> Iterator[None]:
        """Look at what ``processes`` finds, again and again, until the block ends."""
        thread = threading.Thread(target=self._watch, args=(processes,), name="canaries", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(60)

    def _watch(self, processes: Callable[[], Iterable[psutil.Process]]) -> None:
        while not self._ended.wait(LOOK_S):
            for process in processes():
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    self._look_at(process)

    def _look_at(self, process: psutil.Process) -> None:
        arguments = " ".join(process.cmdline())
        self._seen.update(f"an argument of {process.name()}: {name}" for name in self._in(arguments.encode()))
        if any(word in arguments for word in _SPARK):
            for variable, value in (process.environ() | {_OWN: ""}).items():
                self._seen.update(f"{variable} of {process.name()}: {name}" for name in self._in(value.encode()))

    def found(self, folder: Path) -> list[str]:
        """Where secrets are that should not be there: in processes seen so far, in files below the folder, in /tmp."""
        temporary = Path(tempfile.gettempdir())
        roots = [folder, *(root for pattern in _LEFT_BEHIND for root in temporary.glob(pattern))]
        files = sorted({path for root in roots for path in root.rglob("*")} - self._kept_in)
        return sorted(self._seen) + [f"{path}: {name}" for path in files for name in self._in(_bytes_of(path))]

    def _in(self, text: bytes) -> list[str]:
        return [name for name, secret in self._secrets.items() if secret in text]


def _bytes_of(path: Path) -> bytes:
    """Nothing, if it is no file, or none any more."""
    try:
        return path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    except FileNotFoundError:
        return b""
