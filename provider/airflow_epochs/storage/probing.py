"""Where a file is written to find out whether a place takes files."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from airflow_epochs.errors import EpochError
from airflow_epochs.storage.blobs import PROBE


@contextmanager
def probe_below(folder: str, delete: Callable[[str], None]) -> Iterator[str]:
    """A new path below a folder, for a probe. What was written there is deleted in the end."""
    path = f"{folder}/{PROBE}{uuid.uuid4().hex}".lstrip("/")
    try:
        yield path
    except EpochError:
        with suppress(EpochError):  # the probe may have landed; why it cannot be written is what counts
            delete(path)
        raise
    delete(path)
