"""Which of a test's parameters ``make test`` runs; ``make test-long`` runs the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def long_but(short: Iterable[object], values: Iterable[object]) -> list[Any]:
    """The values, for ``parametrize``: all but ``short`` are long tests."""
    kept = list(short)
    return [each if each in kept else pytest.param(each, marks=pytest.mark.long) for each in values]
