"""The example DAGs as they stand in ``dags``, in Airflow's own code, with a broker, Spark, Delta and a database."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from stack.jars import Jars
from stack.postgres import DATABASE, USER, Postgres
from tests.support.example_lab import NO_AMOUNTS, Lab, Place, dags_of, poison, told
from tests.support.sql_world import new_postgres

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [
    pytest.mark.jvm,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?"),
]


HOUR, MS = timedelta(hours=1), timedelta(milliseconds=1)
AT = "2026-01-02T03:04:05.027125Z"
"""When the good orders were made. The microsecond tells a time from one that was cut to milliseconds."""


def orders(numbers: Iterable[int]) -> list[Any]:
    """Every tenth is no order."""
    order = {"currency": "EUR", "ts": AT}
    return [
        {"order_id": f"o{n}", "customer": f"c{n % 3}", "amount": f"{n}.50", **order} if n % 10 else "no order"
        for n in numbers
    ]


def an_order(**changes: Any) -> bytes:
    order = {"order_id": "bad", "customer": "c1", "amount": "1.50", "currency": "EUR", "ts": "2026-01-02T03:04:05Z"}
    return json.dumps(order | changes).encode()


NOT_UTF8 = "not UTF-8"
POISON: dict[bytes | None, str] = {
    None: "no value",
    b"": "not an order in JSON",
    b"\0": "not an order in JSON",
    b"[" + an_order() + b"]": "not an order in JSON",
    an_order(order_id="bad?").replace(b"?", b"\xff"): NOT_UTF8,
    an_order(order_id="bad?").replace(b"?", b"\xed\xa0\x80"): NOT_UTF8,
    an_order(amount="a lot"): "no amount",
    an_order(amount=10**10): "no amount",
    an_order(ts="+300000-01-02T03:04:05Z"): "no timestamp",
    an_order(order_id="bad\0"): "a NUL character",
    an_order(ts="+294000-01-02T03:04:05Z"): "a year that no calendar has",
    an_order(ts="9999-12-31T23:00:00-02:00"): "a year that no calendar has",
    an_order(ts="-0044-03-15T03:04:05Z"): "a year that no calendar has",
    an_order(customer="c" * 600_000): "too large for a topic",
}
"""Records that one sink or another does not take, and what the examples say of them."""
LETTERS_OF_SINKS: dict[bytes | None, str] = {
    an_order(order_id="bad\0"): "column order_id has a NUL character",
    an_order(customer="c" * 600_000): "the record has more than 1048588 bytes",
}
"""What the fan-out leaves to its sinks to say."""
POISON_OF_SUMS = {
    an_order(customer=None): "no customer",
    an_order(currency="XXX"): "unknown currency",
}


def ids(numbers: Iterable[int]) -> list[str]:
    return sorted(f"o{n}" for n in numbers if n % 10)


@pytest.mark.long
def test_a_fan_out_shows_an_epoch_in_the_lake_the_topic_and_the_database(examples: Lab, postgres: Postgres) -> None:
    db = new_postgres(postgres)
    db.run("CREATE TABLE orders (order_id text, customer text, amount numeric(12, 2), currency text, ts timestamptz)")
    options = {"options": f"-c search_path={db.schema}"}
    where = {"host": "127.0.0.1", "port": postgres.port, "login": USER, "password": postgres.password}
    examples.connect("orders_db", "postgres", **where, schema=DATABASE, extra=options)
    examples.create("orders", "orders-valid")
    (fanout,) = dags_of("orders_fanout").values()
    sent: dict[tuple[str, int, int], bytes | None] = {}
    for number, records in enumerate((range(1, 31), range(31, 50)), 1):
        sent |= examples.produce("orders", [*orders(records), *POISON])
        for outcome in (fanout.run(f"run_{number}"), fanout.clear(f"run_{number}")):
            assert outcome.state == "success", outcome.tasks
    expected, nul, large = ids(range(1, 50)), ["bad\0"] * 2, ["bad"] * 2
    assert sorted(row["order_id"] for row in examples.table("silver/orders_valid")) == sorted([*expected, *nul, *large])
    assert sorted(event["order_id"] for event in examples.events("orders-valid")) == sorted([*expected, *nul])
    assert [row[0] for row in db.run("SELECT order_id FROM orders ORDER BY order_id")] == sorted([*expected, *large])
    assert {event["ts"] for event in examples.events("orders-valid") if event["order_id"] in expected} == {AT}
    at = datetime.fromisoformat(AT.replace("Z", "+00:00"))
    assert {row["ts"] for row in examples.table("silver/orders_valid") if row["order_id"] in expected} == {at}
    assert {when for order_id, when in db.run("SELECT order_id, ts FROM orders") if order_id in expected} == {at}
    reasons = {**POISON, b'"no order"': "not an order in JSON", **LETTERS_OF_SINKS}
    assert examples.rejected("silver/orders_fanout_rejected") == told(sent, reasons)


@pytest.mark.long
def test_the_continuous_orders_are_shown_by_several_epochs_of_one_task(
    examples: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_FOR_SECONDS", "0.001")  # nor does it wait for more
    examples.create("orders")
    (continuous,) = dags_of("orders_continuous").values()
    sent = examples.produce("orders", orders(range(1, 30)))
    long = {"max_records": 20, "for_seconds": 120, "max_epochs": 2}
    for outcome in (continuous.run("run_1", long), continuous.clear("run_1")):
        assert (outcome.state, outcome.xcoms["orders_continuous.epochs"]["epoch"]) == ("success", 2)
    shown = examples.seen_by_duckdb("continuous/silver/orders", "order_id")
    assert sorted(row[0] for row in shown) == ids(range(1, 30))
    assert examples.rejected("continuous/silver/orders_rejected") == told(sent, {b'"no order"': "not an order in JSON"})


@pytest.mark.long
def test_customers_have_their_newest_state_in_whatever_order_their_changes_come(examples: Lab) -> None:
    examples.create("customer-changes")
    (customers,) = dags_of("customers_upsert").values()
    changes: list[list[tuple[str, int, str | None, int]]] = [
        [("I", 1, "Ada", 1), ("I", 2, "Bob", 1), ("U", 1, "Ada L.", 3), ("U", 1, "Ada K.", 2), ("I", 3, "Cy", 1)],
        [("D", 2, None, 2), ("U", 3, "Cyd", 2), ("I", 4, "Di", 1), ("U", 1, "too late", 2)],
        [("U", 2, "later than its deletion, and older", 1), ("U", 4, "Dee", 2)],
    ]
    for number, batch in enumerate(changes):
        messages = [{"op": op, "id": n, "name": name, "city": "Zug", "version": v} for op, n, name, v in batch]
        examples.produce("customer-changes", messages)
        assert customers.run(f"run_{number}").state == "success"
    rows = sorted((row["id"], row["name"]) for row in examples.table("silver/customers"))
    assert rows == [(1, "Ada L."), (3, "Cyd"), (4, "Dee")]
    assert len(examples.table("silver/customer_changes")) == sum(map(len, changes))


def a_change(**changes: Any) -> bytes:
    return json.dumps({"op": "U", "id": 1, "name": "bad", "city": "Zug", "version": 9} | changes).encode()


POISON_OF_CUSTOMERS: dict[bytes | None, str] = {
    None: "no value",
    b"no change": "not a change in JSON",
    a_change(id=2**63): "not a change in JSON",
    a_change(name="bad?").replace(b"?", b"\xff"): NOT_UTF8,
    a_change(op="X"): "unknown op",
    a_change(op=None): "unknown op",
    a_change(version=2**63): "no version",
    a_change(city="Z\0g"): "a NUL character",
}


@pytest.mark.long
def test_a_change_of_a_customer_that_cannot_be_read_is_rejected_and_the_others_go_in(examples: Lab) -> None:
    examples.create("customer-changes")
    (customers,) = dags_of("customers_upsert").values()
    good = [a_change(op="I", name="Ada", version=1), a_change(name="Ada L.", version=2)]
    sent = examples.produce("customer-changes", [good[0], *POISON_OF_CUSTOMERS, good[1]])
    outcome = customers.run("run")
    assert outcome.state == "success", outcome.tasks
    assert examples.seen_by_duckdb("silver/customers", "id, name, version") == [(1, "Ada L.", 2)]
    assert sorted(examples.seen_by_duckdb("silver/customer_changes", "name")) == [("Ada",), ("Ada L.",)]
    assert examples.rejected("silver/customer_changes_rejected") == told(sent, POISON_OF_CUSTOMERS)


@pytest.mark.long
def test_what_is_no_order_is_rejected_at_either_end_of_a_chain_and_the_others_are_counted(
    examples: Lab, jars: Jars
) -> None:
    examples.create("orders", "orders-enriched")
    dags = dags_of("chained")
    enrich, totals = dags["chained_enrich"], dags["chained_totals"]
    poison = POISON | POISON_OF_SUMS
    sent = examples.produce(
        "orders", [an_order(order_id="o1"), *poison, an_order(order_id="o2", amount="9999999999.99")]
    )
    outcome = enrich.run("run")
    assert outcome.state == "success", outcome.tasks
    assert sorted(event["order_id"] for event in examples.printed(jars, "orders-enriched")) == ["o1", "o2"]
    assert examples.rejected("silver/orders_enriched_rejected") == told(sent, poison)

    event = {"order_id": "o3", "customer": "c1", "euros": "1.00"}
    strangers: dict[bytes | None, str] = {
        b"no event": "not an order in JSON",
        json.dumps(event | {"customer": None}).encode(): "no customer",
        json.dumps(event | {"euros": "a few"}).encode(): "no amount",
        json.dumps(event).encode().replace(b"c1", b"c\xff"): NOT_UTF8,
        json.dumps(event | {"customer": "c\0"}).encode(): "a NUL character",
    }
    sent = examples.produce("orders-enriched", strangers)
    outcome = totals.run("run")
    assert outcome.state == "success", outcome.tasks
    amount = Decimal("1.50") + Decimal("9999999999.99")
    assert examples.seen_by_duckdb("gold/customer_totals", "customer, orders, amount") == [("c1", 2, amount)]
    assert examples.rejected("gold/customer_totals_rejected") == told(sent, strangers)


@pytest.mark.long
def test_an_order_is_counted_once_at_the_far_end_of_two_pipelines(examples: Lab) -> None:
    examples.create("orders", "orders-enriched")
    dags = dags_of("chained")
    enrich, totals = dags["chained_enrich"], dags["chained_totals"]
    for number, records in enumerate((range(1, 21), range(21, 35)), 1):
        examples.produce("orders", orders(records))
        for dag in (enrich, totals):
            for outcome in (dag.run(f"run_{number}"), dag.clear(f"run_{number}")):
                assert outcome.state == "success", outcome.tasks
    known = [n for n in range(1, 35) if n % 10]
    counts = Counter(f"c{n % 3}" for n in known)
    amounts = {c: sum(Decimal(f"{n}.50") for n in known if f"c{n % 3}" == c) for c in counts}
    found = {row["customer"]: (row["orders"], row["amount"]) for row in examples.table("gold/customer_totals")}
    assert found == {customer: (counts[customer], amounts[customer]) for customer in counts}


@pytest.mark.long
def test_orders_by_the_hour_are_read_by_a_backfill_each_in_its_own_hour(examples: Lab) -> None:
    examples.create("orders")
    (hourly,) = dags_of("hourly_orders").values()
    nine = datetime.now(timezone.utc).replace(hour=9, minute=0, second=0, microsecond=0) - timedelta(days=1)
    times = [nine, nine + 0.5 * HOUR, nine + HOUR - MS, nine + HOUR, nine + 2.5 * HOUR, nine + 3 * HOUR]
    for number, at in enumerate(times):
        examples.produce("orders", [an_order(order_id=f"o{number}"), b"no order"], at=at)
    shown = []
    for run in hourly.backfill(nine, nine + 2 * HOUR):
        assert hourly.drive(run).state == "success"
        shown.append(sorted(row[0] for row in examples.seen_by_duckdb("silver/hourly_orders", "order_id")))
    assert shown == [["o0", "o1", "o2"], ["o0", "o1", "o2", "o3"], ["o0", "o1", "o2", "o3", "o4"]]
    letters = examples.rejected("silver/hourly_orders_rejected")
    assert {value for value, _ in letters.values()} == {b"no order"} and len(letters) == 5


@pytest.mark.long
def test_an_order_is_counted_once_at_the_far_end_of_two_pipelines_with_a_table_between_them(examples: Lab) -> None:
    examples.create("orders")
    dags = dags_of("chained_tables")
    clean, totals = dags["chained_tables_orders"], dags["chained_tables_totals"]
    sent: dict[Place, bytes | None] = {}
    poison = {record: why for record, why in (POISON | POISON_OF_SUMS).items() if why in REASONS_OF_CLEAN_ORDERS}
    foreign = {1: "USD", 2: None}
    for number, records in enumerate((range(1, 21), range(21, 35)), 1):
        other = an_order(order_id=f"d{number}", currency=foreign[number])
        sent |= examples.produce("orders", [*orders(records), *poison, other])
        for dag in (clean, totals):
            outcome = dag.run(f"run_{number}")
            assert outcome.state == "success", outcome.tasks
    assert totals.clear("run_2").state == "success"
    known = [n for n in range(1, 35) if n % 10]
    counts = Counter(f"c{n % 3}" for n in known)
    amounts = {c: sum(Decimal(f"{n}.50") for n in known if f"c{n % 3}" == c) for c in counts}
    found = sorted(examples.seen_by_duckdb("gold/totals", "customer, orders, amount"))
    assert found == [(customer, counts[customer], amounts[customer]) for customer in sorted(counts)]
    reasons = {**poison, b'"no order"': "not an order in JSON"}
    assert examples.rejected("silver/clean_orders_rejected") == told(sent, reasons)
    letters = sorted(examples.seen_by_duckdb("gold/totals_rejected", 'topic, error, "row"'))
    rows = [f'{{"order_id":"d{n}","customer":"c1","currency":{json.dumps(foreign[n])}}}' for n in (1, 2)]
    assert letters == [(str(examples.lake / "silver/clean_orders"), "not in euros", row) for row in rows]


REASONS_OF_CLEAN_ORDERS = {
    *("no value", "not an order in JSON", NOT_UTF8, "no amount", "no timestamp", "a NUL character", "no customer"),
    "a year that no calendar has",
}


def a_sale(shop: str, amount: str, ts: str) -> bytes:
    return json.dumps({"shop": shop, "amount": amount, "ts": f"2026-01-02T{ts}Z"}).encode()


@pytest.mark.long
def test_an_hour_of_revenue_is_shown_when_it_is_over_and_corrected_by_late_sales(examples: Lab) -> None:
    examples.create("sales")
    (revenue,) = dags_of("hourly_revenue").values()
    epochs: list[list[bytes | None]] = [
        [a_sale("a", "1.50", "10:10:00"), a_sale("b", "9.99", "10:20:00"), b"no sale", a_sale("a", "2.00", "10:59:59")],
        [a_sale("a", "4.00", "11:30:00"), a_sale("b", "5.00", "11:31:00")],
        [a_sale("a", "0.25", "10:30:00"), a_sale("b", "1.00", "11:59:00")],
        [a_sale("a", "7.00", "14:30:00"), a_sale("b", "7.00", "14:30:00")],
        [a_sale("a", "100.00", "10:00:01"), a_sale("b", "7.00", "14:30:00")],
    ]
    bad = {b"no sale": "no shop", **poison("no shop", {"no amount": NO_AMOUNTS}, shop="bad", amount="1.00")}
    epochs[0] += bad
    shown = []
    sent: dict[Place, bytes | None] = {}
    for number, messages in enumerate(epochs):
        sent |= examples.produce("sales", messages)
        outcome = revenue.run(f"run_{number}")
        assert outcome.state == "success", outcome.tasks
        shown.append(sorted(examples.seen_by_duckdb("gold/hourly_revenue", "shop, hour(window_start), sales, revenue")))
    ten = [("a", 10, 2, Decimal("3.50")), ("b", 10, 1, Decimal("9.99"))]
    corrected = [("a", 10, 3, Decimal("3.75")), ten[1]]
    eleven = [("a", 11, 1, Decimal("4.00")), ("b", 11, 2, Decimal("6.00"))]
    assert shown == [[], [], sorted([*corrected]), sorted([*corrected]), sorted([*corrected, *eleven])]
    assert examples.seen_by_duckdb("silver/late_sales", "shop, amount") == [("a", Decimal("100.00"))]
    assert examples.rejected("silver/sales_rejected") == told(sent, bad)
    assert revenue.clear("run_4").state == "success"
    assert (
        sorted(examples.seen_by_duckdb("gold/hourly_revenue", "shop, hour(window_start), sales, revenue")) == shown[-1]
    )
