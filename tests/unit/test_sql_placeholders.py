"""Statements reach PostgreSQL as they were written: psycopg takes only ``%s`` outside of quotes for a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from psycopg import sql

from airflow_epochs.sinks.sql.placeholders import for_psycopg


def read_by_psycopg(statement: bytes, values: Sequence[Any]) -> str:
    """What arrives at the server: psycopg has the rules of Python's own ``%``."""
    return (statement % tuple(sql.Literal(value).as_bytes() for value in values)).decode()


@pytest.mark.parametrize(
    ("statement", "values", "sent"),
    [
        ('SELECT "50% off" FROM "a%sb"."%%"', [], 'SELECT "50% off" FROM "a%sb"."%%"'),
        ('SELECT "say ""%s""" FROM t WHERE a = %s', [7], 'SELECT "say ""%s""" FROM t WHERE a = 7'),
        ("SELECT 'it''s %s' LIKE 'x%', %s", ["%s"], "SELECT 'it''s %s' LIKE 'x%', '%s'"),
        ('SELECT a OPERATOR("s %".%) b, a % %s', [2], 'SELECT a OPERATOR("s %".%) b, a % 2'),
        ("""SELECT "it's %s", 'a "b', %s, '%s'""", [1], """SELECT "it's %s", 'a "b', 1, '%s'"""),
    ],
    ids=["names", "name in quotes", "texts", "operators", "mixed quotes"],
)
def test_a_percent_sign_in_a_name_a_text_or_an_operator_stands_for_itself(
    statement: str, values: list[Any], sent: str
) -> None:
    assert read_by_psycopg(for_psycopg(statement), values) == sent
