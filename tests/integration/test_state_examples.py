"""The example DAGs with state as they stand in ``dags``, in Airflow's own code, with a broker, Spark and Delta."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from stack.broker import Broker
from stack.connect import ConnectServer
from tests.support.example_lab import Lab, dags_of

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [
    pytest.mark.jvm,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?"),
]


@pytest.fixture
def lab(tmp_path: Path, broker: Broker, connect: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, broker, connect, monkeypatch)


def record(time: str, **fields: Any) -> bytes:
    """A record at a time of day."""
    return json.dumps({**fields, "ts": f"2026-01-02T{time}Z"}).encode()


def run(lab: Lab, dag: str, *epochs: dict[str, Sequence[bytes]]) -> None:
    """A run for the records of each epoch, by topic. Clear the last one: nothing may change by that."""
    (example,) = dags_of(dag).values()
    for number, records in enumerate(epochs):
        for topic, values in records.items():
            lab.produce(topic, values)
        for outcome in (example.run(f"run_{number}"), example.clear(f"run_{number}")):
            assert outcome.state == "success", outcome.tasks


def reasons(lab: Lab, table: str) -> list[str]:
    return sorted(reason for _, reason in lab.rejected(table).values())


def test_a_reading_that_a_sensor_repeats_passes_once(lab: Lab) -> None:
    def reading(time: str, seq: int, celsius: str = "20.5") -> bytes:
        return record(time, sensor="s", seq=seq, celsius=celsius)

    lab.create("readings")
    run(
        lab,
        "unique_readings",
        {"readings": [reading("10:00:00", 1), reading("10:00:00", 1), b"no reading", reading("10:01:00", 2)]},
        {"readings": [reading("10:30:00", 1), reading("10:31:00", 3)]},
        {"readings": [reading("11:20:00", 4), reading("11:21:00", 1, "7.25"), reading("10:02:00", 9)]},
    )
    passed = lab.seen_by_duckdb("silver/readings", "seq, strftime(ts, '%H:%M'), celsius")
    usual = Decimal("20.50")
    expected = [(1, "10:00", usual), (1, "11:21", Decimal("7.25")), (2, "10:01", usual), (3, "10:31", usual)]
    assert sorted(passed) == sorted([*expected, (4, "11:20", usual)])
    assert lab.seen_by_duckdb("silver/late_readings", "seq") == [(9,)]
    assert reasons(lab, "silver/readings_rejected") == ["no sensor"]
    ledger = Ledger(LocalStore(lab.lake.parent / "ledger"), "unique_readings")
    late = [record.metrics["rows_late"] for number in (1, 2, 3) if (record := ledger.complete_record(number))]
    assert late == [0, 0, 1]


def test_a_visit_is_shown_once_when_it_is_over_however_many_epochs_it_lasts(lab: Lab) -> None:
    def view(time: str, visitor: str, page: str = "home") -> bytes:
        return record(time, visitor=visitor, page=page)

    lab.create("page_views")
    run(
        lab,
        "sessions",
        {"page_views": [view("10:00:00", "ada"), view("10:01:00", "bob"), b"{}"]},
        {"page_views": [view("10:20:00", "ada", "order"), view("10:45:00", "ada")]},
        {"page_views": [view("13:00:00", "cy"), view("13:00:01", "cy")]},
        {"page_views": [view("10:02:00", "bob"), view("13:10:00", "cy", "order")]},
    )
    columns = "visitor, strftime(session_start, '%H:%M'), strftime(session_end, '%H:%M'), views, orders"
    shown = sorted(lab.seen_by_duckdb("gold/visits", columns))
    assert shown == [("ada", "10:00", "11:15", 3, 1), ("bob", "10:01", "10:31", 1, 0)]
    assert lab.seen_by_duckdb("silver/late_views", "visitor") == [("bob",)]
    assert reasons(lab, "silver/views_rejected") == ["no visitor"]


def test_an_order_meets_its_payments_whichever_of_them_comes_first(lab: Lab) -> None:
    def about(time: str, order: str, amount: str = "9.99") -> bytes:
        return record(time, order_id=order, amount=amount)

    lab.create("orders", "payments")
    run(
        lab,
        "orders_payments",
        {
            "orders": [about("10:00:00", "together"), about("10:05:00", "paid later"), about("10:06:00", "never paid")],
            "payments": [about("10:10:00", "together"), about("10:11:00", "ordered later", "5.00"), b"?"],
        },
        {
            "orders": [about("10:10:30", "ordered later"), about("10:12:00", "paid too late")],
            "payments": [about("11:05:00", "paid later", "4.00"), about("11:05:00", "paid later", "5.99")],
        },
        {
            "orders": [about("12:00:00", "other"), about("12:01:00", "another")],
            "payments": [about("11:12:01", "paid too late"), about("12:02:00", "unknown")],
        },
        {
            "orders": [about("10:00:01", "late")],
            "payments": [about("12:30:00", "other"), about("10:00:02", "late")],
        },
    )
    paid = sorted(lab.seen_by_duckdb("gold/paid_orders", "order_id, amount, paid, strftime(paid_at, '%H:%M')"))
    amount = Decimal("9.99")
    assert paid == [
        ("ordered later", amount, Decimal("5.00"), "10:11"),
        ("other", amount, amount, "12:30"),
        ("paid later", amount, Decimal("4.00"), "11:05"),
        ("paid later", amount, Decimal("5.99"), "11:05"),
        ("together", amount, amount, "10:10"),
    ]
    assert lab.seen_by_duckdb("silver/late_orders", "order_id") == [("late",)]
    assert lab.seen_by_duckdb("silver/late_payments", "order_id") == [("late",)]
    assert reasons(lab, "silver/orders_payments_rejected") == ["no order id"]


def test_a_card_raises_one_alert_an_hour_however_its_payments_are_spread(lab: Lab) -> None:
    def payment(time: str, card: str, amount: str = "10.00") -> bytes:
        return record(time, card=card, amount=amount)

    lab.create("card_payments")
    run(
        lab,
        "card_fraud",
        {"card_payments": [payment("10:00:00", "a"), payment("10:01:00", "b"), payment("10:02:00", "a"), b"[]"]},
        {"card_payments": [payment("10:20:00", "a"), payment("10:30:00", "a", "0.50"), payment("10:31:00", "a")]},
        {"card_payments": [payment("12:00:00", "b"), payment("12:00:01", "a"), payment("12:00:02", "b")]},
        {"card_payments": [payment("10:03:00", "b"), payment("12:30:00", "b"), payment("12:31:00", "b")]},
    )
    alerts = lab.seen_by_duckdb("gold/card_alerts", "card, strftime(since, '%H:%M'), strftime(ts, '%H:%M'), total")
    assert sorted(alerts) == [("a", "10:00", "10:30", Decimal("30.50")), ("b", "12:00", "12:31", Decimal("40.00"))]
    assert lab.seen_by_duckdb("silver/late_card_payments", "card") == [("b",)]
    assert reasons(lab, "silver/card_payments_rejected") == ["no card"]
