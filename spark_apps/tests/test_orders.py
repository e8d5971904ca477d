"""Tests of a transform, as a user writes them. ``pytest spark_apps/tests`` runs them; no server is needed."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs.testing import run_transform

ORDERS = f"{Path(__file__).parents[1] / 'orders.py'}:orders"
GOOD = {"order_id": "a-1", "customer": "Ada", "amount": "9.50", "currency": "EUR", "ts": "2026-01-01T12:00:00Z"}


def test_an_order_becomes_a_row_that_keeps_its_place_in_the_topic() -> None:
    rows = run_transform(ORDERS, records=[GOOD])
    [order] = rows["orders"]
    assert order["amount"] == Decimal("9.50")
    assert (order["topic"], order["partition"], order["offset"]) == ("topic", 0, 0)
    assert rows["rejected"] == []


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (None, "no value"),
        ("{", "not an order in JSON"),
        (b"\xff", "not UTF-8"),
        ({**GOOD, "customer": None}, "no customer"),
        ({**GOOD, "amount": "-1"}, "no positive amount"),
        ({**GOOD, "currency": "XXX"}, "unknown currency"),
        ({**GOOD, "ts": "soon"}, "no timestamp"),
    ],
)
def test_a_record_that_is_no_order_is_rejected_with_the_reason(record: Any, error: str) -> None:
    rows = run_transform(ORDERS, records=[record])
    assert rows["orders"] == []
    assert [row["error"] for row in rows["rejected"]] == [error]
