"""The stack's Spark hides what the provider asks every Spark to hide."""

from __future__ import annotations

from airflow_epochs.spark.driver import kafka_read
from stack.spark import LOG4J, REDACTION


def test_the_stack_redacts_by_the_providers_pattern() -> None:
    assert REDACTION == kafka_read.REDACTION


def test_the_stacks_servers_log_no_plans_of_clients_that_were_killed() -> None:
    assert f".name={kafka_read.LOGGER}\nlogger.operations.level=WARN\n" in LOG4J
