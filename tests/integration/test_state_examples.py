"""The example DAGs with state as they stand in ``dags``, in Airflow's own code, with a broker, Spark and Delta."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from tests.support.example_lab import NO_AMOUNTS, Lab, Place, dags_of, poison, told

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [
    pytest.mark.jvm,
    pytest.mark.long,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?"),
]
Sent = dict[Place, bytes | None]


def at(time: str, **fields: Any) -> bytes:
    """A record at a time of day."""
    return json.dumps({**fields, "ts": f"2026-01-02T{time}Z"}).encode()


def run(lab: Lab, dag: str, tables: Mapping[str, str], *epochs: Mapping[str, Sequence[bytes | None]]) -> Sent:
    """A run for the records of each epoch, by topic. Clear the first and the last one: no table may change by that."""
    (example,) = dags_of(dag).values()
    sent: Sent = {}
    for number, records in enumerate(epochs):
        for topic, values in records.items():
            sent |= lab.produce(topic, values)
        succeed(example.run(f"run_{number}"))
    before = contents(lab, tables)
    for number in (0, len(epochs) - 1):
        succeed(example.clear(f"run_{number}"))
    assert contents(lab, tables) == before
    return sent


def succeed(outcome: Any) -> None:
    assert outcome.state == "success", outcome.tasks


def contents(lab: Lab, tables: Mapping[str, str]) -> dict[str, list[Any]]:
    """The given columns of each table."""
    return {table: sorted(lab.seen_by_duckdb(table, columns)) for table, columns in tables.items()}


def test_a_reading_that_a_sensor_repeats_passes_once(examples: Lab) -> None:
    def reading(time: str, seq: int, celsius: str = "20.5") -> bytes:
        return at(time, sensor="s", seq=seq, celsius=celsius)

    examples.create("readings")
    bad = poison("no sensor", {"no temperature": NO_AMOUNTS}, sensor="bad", seq=1, celsius="1.5")
    tables = {"silver/readings": "seq, strftime(ts, '%H:%M'), celsius", "silver/late_readings": "seq"}
    sent = run(
        examples,
        "unique_readings",
        tables,
        {"readings": [reading("10:00:00", 1), reading("10:00:00", 1), reading("10:01:00", 2), reading("10:02:00", 1)]},
        {"readings": [reading("10:30:00", 1), reading("10:31:00", 3), *bad]},
        {"readings": [reading("11:20:00", 4), reading("11:21:00", 1, "7.25"), reading("10:02:00", 9)]},
    )
    usual = Decimal("20.50")
    passed = [(1, "10:00", usual), (1, "11:21", Decimal("7.25")), (2, "10:01", usual), (3, "10:31", usual)]
    assert contents(examples, tables) == {
        "silver/readings": [*passed, (4, "11:20", usual)],
        "silver/late_readings": [(9,)],
    }
    assert examples.rejected("silver/readings_rejected") == told(sent, bad)
    ledger = Ledger(LocalStore(examples.lake.parent / "ledger"), "unique_readings")
    done = [record.metrics for n in (1, 2, 3) if (record := ledger.complete_record(n))]
    assert [metrics["rows_late"] for metrics in done] == [0, 0, 1]
    assert [metrics["broken"] for metrics in done] == [{"readings": {"celsius BETWEEN -40 AND 60": 0}}] * 3


def test_a_visit_is_shown_once_when_it_is_over_however_many_epochs_it_lasts(examples: Lab) -> None:
    def view(time: str, visitor: str, page: str = "home") -> bytes:
        return at(time, visitor=visitor, page=page)

    examples.create("page_views")
    bad = poison("no visitor", {"no page": [None]}, visitor="bad", page="home")
    spans = "visitor, strftime(session_start, '%H:%M'), strftime(session_end, '%H:%M'), views, orders"
    tables = {"gold/visits": spans, "silver/late_views": "visitor"}
    sent = run(
        examples,
        "sessions",
        tables,
        {"page_views": [view("10:00:00", "ada"), view("10:01:00", "bob"), *bad]},
        {
            "page_views": [
                view("10:20:00", "ada", "order"),
                view("10:45:00", "ada"),
                view("11:14:00", "ada"),
                view("13:00:00", "cy"),
                view("13:00:01", "cy"),
            ]
        },
        {"page_views": [view("10:02:00", "bob"), view("13:10:00", "cy", "order")]},
    )
    assert contents(examples, tables) == {
        "gold/visits": [("ada", "10:00", "11:44", 4, 1), ("bob", "10:01", "10:31", 1, 0)],
        "silver/late_views": [("bob",)],
    }
    assert examples.rejected("silver/views_rejected") == told(sent, bad)


def test_an_order_meets_its_payments_whichever_of_them_comes_first(examples: Lab) -> None:
    def about(time: str, order: str, amount: str = "9.99") -> bytes:
        return at(time, order_id=order, amount=amount)

    examples.create("orders", "payments")
    bad = poison("no order id", {"no amount": NO_AMOUNTS}, order_id="bad", amount="1.00")
    paid = "order_id, amount, paid, strftime(paid_at, '%H:%M')"
    tables = {"gold/paid_orders": paid, "silver/late_orders": "order_id", "silver/late_payments": "order_id"}
    sent = run(
        examples,
        "orders_payments",
        tables,
        {
            "orders": [about("10:00:00", "together"), about("10:05:00", "paid later"), about("10:06:00", "never paid")],
            "payments": [about("10:10:00", "together"), about("10:11:00", "ordered later", "5.00"), *bad],
        },
        {
            "orders": [
                about("10:10:30", "ordered later"),
                about("10:12:00", "paid too late"),
                *bad,
                about("12:00:00", "other"),
                about("12:01:00", "another"),
            ],
            "payments": [
                about("11:05:00", "paid later", "4.00"),
                about("11:05:00", "paid later", "5.99"),
                about("11:12:01", "paid too late"),
                about("12:02:00", "unknown"),
            ],
        },
        {
            "orders": [about("10:00:01", "late")],
            "payments": [about("12:30:00", "other"), about("10:00:02", "late")],
        },
    )
    usual = Decimal("9.99")
    assert contents(examples, tables) == {
        "gold/paid_orders": [
            ("ordered later", usual, Decimal("5.00"), "10:11"),
            ("other", usual, usual, "12:30"),
            ("paid later", usual, Decimal("4.00"), "11:05"),
            ("paid later", usual, Decimal("5.99"), "11:05"),
            ("together", usual, usual, "10:10"),
        ],
        "silver/late_orders": [("late",)],
        "silver/late_payments": [("late",)],
    }
    assert examples.rejected("silver/orders_payments_rejected") == told(sent, bad)


def test_a_card_raises_one_alert_an_hour_however_its_payments_are_spread(examples: Lab) -> None:
    def payment(time: str, card: str, amount: str = "10.00") -> bytes:
        return at(time, card=card, amount=amount)

    examples.create("card_payments")
    bad = poison("no card", {"no amount": NO_AMOUNTS}, card="bad", amount="1.00")
    alerts = "card, strftime(since, '%H:%M'), strftime(ts, '%H:%M'), total"
    forgotten = "card, n, __deleted, __epoch"
    tables = {"gold/card_alerts": alerts, "silver/late_card_payments": "card", "state/card_fraud": forgotten}
    a, b = payment("10:00:00", "a"), payment("10:01:00", "b")
    sent = run(
        examples,
        "card_fraud",
        tables,
        {"card_payments": [a, b, payment("10:02:00", "a"), payment("10:03:00", "once"), *bad]},
        {"card_payments": [payment("10:20:00", "a"), payment("10:30:00", "a", "0.50")]},
        {
            "card_payments": [
                payment("10:31:00", "a"),
                payment("12:00:00", "b"),
                payment("12:00:02", "b"),
                payment("12:00:01", "a"),
            ]
        },
        {"card_payments": [payment("10:03:00", "b"), payment("12:30:00", "b"), payment("12:31:00", "b")]},
    )
    seen = contents(examples, tables)
    assert seen["gold/card_alerts"] == [
        ("a", "10:00", "10:30", Decimal("30.50")),
        ("b", "12:00", "12:31", Decimal("40.00")),
    ]
    assert seen["silver/late_card_payments"] == [("b",)]
    assert [row[2:] for row in seen["state/card_fraud"] if row[0] == "once"] == [(False, 1), (True, 4)]
    assert examples.rejected("silver/card_payments_rejected") == told(sent, bad)
