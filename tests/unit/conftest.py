"""What unit tests of the Delta sink share. A module that needs it otherwise has a fixture of its own of that name."""

from __future__ import annotations

import pytest

from airflow_epochs.sinks.delta.sink import DeltaSink
from tests.support.environment import Environment


@pytest.fixture
def sink(table: str) -> DeltaSink:
    """A sink that appends to the table."""
    return DeltaSink("bronze", table)


@pytest.fixture
def world() -> Environment:
    """No connections and no Spark."""
    return Environment()
