"""The example DAGs as they stand in ``examples``, in Airflow's own code, with a broker, Spark, Delta and a database."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from airflow_harness import Harness
from kafka_sink_world import seen_by_confluent, values
from sql_world import DATABASE, PASSWORD, USER, new_postgres
from stack.broker import Broker
from stack.connect import ConnectServer
from stack.postgres import Postgres
from waiting import wait_until

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [
    pytest.mark.jvm,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?"),
]
DAGS = Path(__file__).parents[2] / "examples" / "dags"
PARTITIONS = 2


class Lab:
    """Connections as Airflow has them, a lake, and topics; which are the broker's, so each test needs its own."""

    def __init__(self, folder: Path, broker: Broker, connect: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lake, self.bootstrap, self._set = folder / "lake", broker.bootstrap, monkeypatch.setenv
        monkeypatch.setenv("LAKE", str(self.lake))
        self.connect("kafka_default", "kafka", extra={"bootstrap.servers": broker.bootstrap, "group.id": "examples"})
        self.connect("spark_connect_default", "spark_connect", host="127.0.0.1", port=connect.port)
        self.connect("epochs_default", "epochs", extra={"ledger_root": str(folder / "ledger")})

    def connect(self, conn_id: str, conn_type: str, **fields: Any) -> None:
        self._set(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": conn_type, **fields}))

    def create(self, *topics: str) -> None:
        """Topics, emptied of what another test may have left."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        if known := [topic for topic in topics if topic in admin.list_topics(timeout=10).topics]:
            for deleted in admin.delete_topics(known).values():
                deleted.result()
            wait_until(lambda: not {*known} & {*admin.list_topics(timeout=10).topics})
        for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
            created.result()
        wait_until(lambda: {*topics} <= {*admin.list_topics(timeout=10).topics})

    def produce(self, topic: str, messages: Iterable[Any]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number, message in enumerate(messages):
            value = message if isinstance(message, bytes) else json.dumps(message).encode()
            producer.produce(topic, value=value, partition=number % PARTITIONS)
        assert producer.flush(30) == 0

    def events(self, topic: str) -> list[Any]:
        """What a consumer that reads committed records has of a topic."""
        seen = [values(seen_by_confluent(self.bootstrap, topic, partition)) for partition in range(PARTITIONS)]
        return [json.loads(value) for each in seen for value in each if value]

    def table(self, path: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(str(self.lake / path)).to_pyarrow_table().to_pylist()
        return rows


@pytest.fixture
def lab(tmp_path: Path, broker: Broker, connect: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, broker, connect, monkeypatch)


def dags_of(name: str) -> dict[str, Harness]:
    """What Airflow finds in an example's file."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(DAGS / f"{name}.py"))
    assert not bag.import_errors
    return {dag_id: Harness(dag) for dag_id, dag in bag.dags.items()}


def orders(numbers: Iterable[int]) -> list[Any]:
    """Every tenth is no order."""
    order = {"currency": "EUR", "ts": "2026-01-02T03:04:05Z"}
    return [
        {"order_id": f"o{n}", "customer": f"c{n % 3}", "amount": f"{n}.50", **order} if n % 10 else "no order"
        for n in numbers
    ]


POISON: dict[bytes, str] = {
    b'{"order_id": "bad\xff", "customer": "c", "ts": "2026-01-02T03:04:05Z"}': "not UTF-8",
    b'{"order_id": "\xed\xa0\x80", "customer": "c", "ts": "2026-01-02T03:04:05Z"}': "not UTF-8",
    b'{"order_id": "bad\\u0000", "customer": "c", "ts": "2026-01-02T03:04:05Z"}': "a NUL character",
    b'{"order_id": "bad", "customer": "c", "ts": "+294000-01-02T03:04:05Z"}': "a year that no calendar has",
    b'{"order_id": "bad", "customer": "c", "ts": "-0044-03-15T03:04:05Z"}': "a year that no calendar has",
}
"""Records that one sink or another does not take, and what the examples say of them."""


def ids(numbers: Iterable[int]) -> list[str]:
    return sorted(f"o{n}" for n in numbers if n % 10)


def test_a_fan_out_shows_an_epoch_in_the_lake_the_topic_and_the_database(lab: Lab, postgres: Postgres) -> None:
    db = new_postgres(postgres)
    db.run("CREATE TABLE orders (order_id text, customer text, amount numeric(12, 2), currency text, ts timestamptz)")
    options = {"options": f"-c search_path={db.schema}"}
    where = {"host": "127.0.0.1", "port": postgres.port, "login": USER, "password": PASSWORD, "schema": DATABASE}
    lab.connect("orders_db", "postgres", **where, extra=options)
    lab.create("orders", "orders-valid")
    (fanout,) = dags_of("orders_fanout").values()
    for number, records in enumerate((range(1, 31), range(31, 50)), 1):
        lab.produce("orders", [*orders(records), *POISON])
        for outcome in (fanout.run(f"run_{number}"), fanout.clear(f"run_{number}")):
            assert outcome.state == "success", outcome.tasks
    expected = ids(range(1, 50))
    assert sorted(row["order_id"] for row in lab.table("silver/orders_valid")) == expected
    assert sorted(event["order_id"] for event in lab.events("orders-valid")) == expected
    assert [row[0] for row in db.run("SELECT order_id FROM orders ORDER BY order_id")] == expected
    rejected = lab.table("silver/orders_fanout_rejected")
    assert {row["value"]: row["reason"] for row in rejected} == {**POISON, b'"no order"': "not an order in JSON"}
    assert len({(row["topic"], row["partition"], row["offset"]) for row in rejected}) == 4 + 2 * len(POISON)


def test_customers_have_their_newest_state_in_whatever_order_their_changes_come(lab: Lab) -> None:
    lab.create("customer-changes")
    (customers,) = dags_of("customers_upsert").values()
    changes = [
        [("I", 1, "Ada", 1), ("I", 2, "Bob", 1), ("U", 1, "Ada L.", 3), ("U", 1, "Ada K.", 2), ("I", 3, "Cy", 1)],
        [("D", 2, None, 2), ("U", 3, "Cyd", 2), ("I", 4, "Di", 1), ("U", 1, "too late", 2)],
        [("U", 2, "later than its deletion, and older", 1), ("U", 4, "Dee", 2)],
    ]
    for number, batch in enumerate(changes):
        messages = [{"op": op, "id": n, "name": name, "city": "Zug", "version": v} for op, n, name, v in batch]
        lab.produce("customer-changes", messages)
        assert customers.run(f"run_{number}").state == "success"
    rows = sorted((row["id"], row["name"]) for row in lab.table("silver/customers"))
    assert rows == [(1, "Ada L."), (3, "Cyd"), (4, "Dee")]
    assert len(lab.table("silver/customer_changes")) == sum(map(len, changes))


def test_an_order_is_counted_once_at_the_far_end_of_two_pipelines(lab: Lab) -> None:
    lab.create("orders", "orders-enriched")
    dags = dags_of("chained")
    enrich, totals = dags["chained_enrich"], dags["chained_totals"]
    for number, records in enumerate((range(1, 21), range(21, 35)), 1):
        lab.produce("orders", orders(records))
        for dag in (enrich, totals):
            for outcome in (dag.run(f"run_{number}"), dag.clear(f"run_{number}")):
                assert outcome.state == "success", outcome.tasks
    known = [n for n in range(1, 35) if n % 10]
    counts = Counter(f"c{n % 3}" for n in known)
    amounts = {c: sum(Decimal(f"{n}.50") for n in known if f"c{n % 3}" == c) for c in counts}
    found = {row["customer"]: (row["orders"], row["amount"]) for row in lab.table("gold/customer_totals")}
    assert found == {customer: (counts[customer], amounts[customer]) for customer in counts}
