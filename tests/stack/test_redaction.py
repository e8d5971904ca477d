"""The stack's Spark hides what the provider asks every Spark to hide."""

from __future__ import annotations

from airflow_epochs.spark import kafka_read
from stack.spark import REDACTION


def test_the_stack_redacts_by_the_providers_pattern() -> None:
    assert REDACTION == kafka_read.REDACTION
