"""The redaction setting hides passwords and costs nothing where there are none."""

from __future__ import annotations

import re
import time

from stack.spark import REDACTION


def test_a_plan_with_a_kafka_password_is_hidden_as_a_whole() -> None:
    plan = "Relation [key, value]\n  kafka.sasl.jaas.config=word\n  path=x"
    assert re.sub(REDACTION, "(redacted)", plan) == "(redacted)"


def test_redaction_of_a_megabyte_without_passwords_takes_no_time() -> None:
    plan = "Filter (isnotnull(a) AND (a > 1))\n" * 30_000
    began = time.monotonic()
    assert re.sub(REDACTION, "(redacted)", plan) == plan
    assert time.monotonic() - began < 2
