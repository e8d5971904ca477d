"""Silence for tests that bring about thousands of failures, each of them worth a line in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nothing_logged() -> Iterator[None]:
    """No record is made by any logger; afterwards everything is logged as before."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)
