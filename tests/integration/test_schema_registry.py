"""Schemas of a real registry: asked for by ``open``, on record, and used by each attempt of the epoch."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from airflow_epochs import DeltaSink
from airflow_epochs.contracts import Connection
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.inspection.preview import preview
from airflow_epochs.coordinator.looks import CheckResult
from airflow_epochs.errors import Corrupt, EpochError, NotApplied, Refused
from airflow_epochs.hooks.schema_registry import SchemaRegistryHook
from airflow_epochs.kafka.protobuf_files import compiled
from airflow_epochs.kafka.schema_registry import schemas_of
from stack.ports import free_port
from stack.registry import SchemaRegistry
from tests.integration.test_parse_avro import record, written
from tests.support import pages
from tests.support.checked import checks_of
from tests.support.protobuf_world import message_class
from tests.support.protobuf_world import written as protobuf_written
from tests.support.state_lab import Lab

pytestmark = pytest.mark.jvm

CONN = "schema_registry_default"
V1 = record(("order_id", "string"), ("amount", "int"), name="Order")
V2 = record(("order_id", "string"), ("amount", "int"), ("channel", "string", "web"), name="Order")


MONEY_PROTO = 'syntax = "proto3"; package shop; message Money { int64 units = 1; }'
ORDER_PROTO = """
syntax = "proto3";
package shop;
import "shop/money.proto";
message Order { string order_id = 1; Money amount = 2; string channel = 3; }
"""
PROTOBUF_APP = """
from airflow_epochs.transforms import parse_protobuf

def orders(batch, epoch):
    parsed = parse_protobuf(batch, "shop.Order", {reader!r}, registry="schema_registry_default")
    rows = parsed.rows.selectExpr("order_id", "cast(amount.units as double) amount", "channel")
    return {{"orders": rows, "rejected": parsed.corrupt}}
"""


class Shop:
    """A topic of orders, its subject in the registry, and the pipeline of the page over it."""

    def __init__(self, lab: Lab, registry: SchemaRegistry, client: SchemaRegistryClient) -> None:
        self.lab, self.registry, self.client, self.subject = lab, registry, client, f"{lab.topic}-value"
        lab.connections[CONN] = Connection(conn_id=CONN, conn_type="schema_registry", host=registry.url)
        lab.folder.mkdir(exist_ok=True)
        self.app = lab.folder / "orders_registry.py"
        self.app.write_text(pages.blocks("read-your-topic.md", "From a schema registry", "python")[0])
        self.source: dict[str, Any] = {"registry_conn_id": CONN}

    def register(self, schema: Any, *references: SchemaReference, subject: str = "") -> int:
        known: int = self.client.register_schema(
            subject or self.subject, Schema(json.dumps(schema), "AVRO", [*references])
        )
        return known

    def send(self, *records: bytes) -> None:
        producer = Producer({"bootstrap.servers": self.lab.broker.bootstrap})
        for each in records:
            producer.produce(self.lab.topic, each)
        assert producer.flush(30) == 0

    def task(self, **then: Any) -> Coordinator:
        sinks = (DeltaSink("orders", self.lab.at("orders")), DeltaSink("rejected", self.lab.at("rejected")))
        return self.lab.task("shop", "orders", sinks, None, then, app=self.app, source=self.source)

    def run(self, **then: Any) -> None:
        self.lab.run(self.task(**then))

    def fails(self, kind: type[EpochError], **then: Any) -> EpochError:
        with pytest.raises(kind) as failed:
            self.run(**then)
        return failed.value

    def moved_to(self, url: str) -> None:
        """Somebody edits the connection."""
        self.lab.connections[CONN] = replace(self.lab.connections[CONN], host=url)

    def orders(self) -> list[tuple[Any, ...]]:
        return sorted(self.lab.rows("orders", "order_id, amount, channel"))

    def rejected(self) -> list[tuple[Any, ...]]:
        return sorted(self.lab.rows("rejected", "error"))

    def recorded(self) -> list[Path]:
        return sorted((Path(self.lab.ledger_root) / "shop" / "schemas").glob("*.json"))


@pytest.fixture
def shop(lab: Lab, registry: SchemaRegistry, client: SchemaRegistryClient) -> Shop:
    return Shop(lab, registry, client)


def order(number: int, name: str) -> bytes:
    return written(number, V1, {"order_id": name, "amount": 5})


def test_each_record_is_decoded_with_the_schema_that_the_registry_has_for_it(shop: Shop) -> None:
    first, second = shop.register(V1), shop.register(V2)
    later = written(second, V2, {"order_id": "b", "amount": 7, "channel": "app"})
    shop.send(order(first, "a"), later, b"no Avro", order(2**31 - 1, "c"))
    shop.run()
    assert shop.orders() == [("a", 5.0, "web"), ("b", 7.0, "app")]
    assert shop.rejected() == [("no magic byte and schema id",), (f"unknown schema id {2**31 - 1}",)]


@pytest.mark.long
def test_a_schema_that_is_registered_between_two_epochs_is_known_to_the_second_one(shop: Shop) -> None:
    first = shop.register(V1)
    shop.send(order(first, "a"))
    shop.run()
    shop.send(written(shop.register(V2), V2, {"order_id": "b", "amount": 7, "channel": "app"}))
    shop.run()
    shop.send(order(first, "c"))
    shop.run()
    assert shop.orders() == [("a", 5.0, "web"), ("b", 7.0, "app"), ("c", 5.0, "web")]
    assert shop.rejected() == []
    assert len(shop.recorded()) == 2, "the third epoch shares the record of the second"


@pytest.mark.long
def test_a_schema_that_was_deleted_in_the_registry_still_decodes_its_records(shop: Shop) -> None:
    shop.send(order(shop.register(V1), "a"))
    shop.register(V2)
    shop.client.delete_version(shop.subject, 1)
    shop.run()
    assert (shop.orders(), shop.rejected()) == ([("a", 5.0, "web")], [])


def fail() -> None:
    raise RuntimeError("the worker breaks")


def test_a_rerun_decodes_with_the_schemas_of_the_first_attempt_though_the_registry_is_gone(shop: Shop) -> None:
    shop.send(order(shop.register(V1), "a"))
    with pytest.raises(RuntimeError, match="the worker breaks"):
        shop.run(**{"stage.done": fail})
    shop.moved_to(f"http://127.0.0.1:{free_port()}")
    shop.run()
    assert (shop.orders(), shop.rejected()) == ([("a", 5.0, "web")], [])
    [epoch] = shop.lab.records("shop")
    assert epoch.txn_id.attempt == 2


@pytest.mark.long
def test_a_rerun_asks_again_once_the_dag_names_other_subjects(shop: Shop) -> None:
    elsewhere = f"elsewhere-{uuid.uuid4().hex}"
    known = shop.register(V1, subject=elsewhere)
    shop.register(V2)
    shop.send(order(known, "a"))
    with pytest.raises(RuntimeError, match="the worker breaks"):
        shop.run(**{"stage.done": fail})
    shop.source["subjects"] = [shop.subject, elsewhere]
    shop.run()
    assert (shop.orders(), shop.rejected()) == ([("a", 5.0, "web")], [])


def test_a_schema_that_refers_to_others_is_complete_on_record(shop: Shop) -> None:
    money = record(("amount", "int"), name="shop.Money")
    price = record(("net", "shop.Money"), ("gross", "shop.Money"), name="shop.Price")
    whole = record(("order_id", "string"), ("amount", "int"), ("price", "shop.Price"), name="Order")
    names = {name: f"{name}-{uuid.uuid4().hex}" for name in ("shop.Money", "shop.Price")}
    shop.register(money, subject=names["shop.Money"])
    shop.register(price, SchemaReference("shop.Money", names["shop.Money"], 1), subject=names["shop.Price"])
    number = shop.register(whole, SchemaReference("shop.Price", names["shop.Price"], 1))
    plain = json.loads(
        json.dumps(whole).replace('"shop.Price"', json.dumps(price)).replace('"shop.Money"', json.dumps(money), 1)
    )
    value = {"order_id": "a", "amount": 5, "price": {"net": {"amount": 1}, "gross": {"amount": 2}}}
    shop.send(written(number, plain, value))
    shop.run()
    assert (shop.orders(), shop.rejected()) == ([("a", 5.0, "web")], [])


@pytest.mark.long
def test_a_subject_of_another_kind_makes_its_records_corrupt_and_no_others(shop: Shop) -> None:
    proto = shop.client.register_schema(
        f"{shop.subject}-2", Schema('syntax = "proto3"; message M { int32 a = 1; }', "PROTOBUF")
    )
    first = shop.register(V1)
    shop.source["subjects"] = f"{shop.subject}, {shop.subject}-2"
    shop.send(order(first, "a"), order(proto, "b"))
    shop.run()
    assert shop.orders() == [("a", 5.0, "web")]
    assert shop.rejected() == [(f"schema {proto} is of kind PROTOBUF, not AVRO",)]


def test_records_of_protobuf_are_decoded_with_the_schemas_of_the_registry_and_what_these_import(shop: Shop) -> None:
    names = {name: f"{name}-{uuid.uuid4().hex}" for name in ("shop/money.proto",)}
    shop.client.register_schema(names["shop/money.proto"], Schema(MONEY_PROTO, "PROTOBUF"))
    money = SchemaReference("shop/money.proto", names["shop/money.proto"], 1)
    number = shop.client.register_schema(shop.subject, Schema(ORDER_PROTO, "PROTOBUF", [money]))
    whole = compiled(ORDER_PROTO, {"shop/money.proto": MONEY_PROTO})
    reader = shop.lab.folder / "order.bin"
    reader.write_bytes(whole)
    shop.app.write_text(PROTOBUF_APP.format(reader=str(reader)))
    message = message_class(whole, "shop.Order")(order_id="a", amount={"units": 5}, channel="app")
    shop.send(protobuf_written(number, message), b"no Protobuf", order(2**31 - 1, "c"))
    shop.run()
    assert shop.orders() == [("a", 5.0, "app")]
    assert shop.rejected() == [("no magic byte and schema id",), (f"unknown schema id {2**31 - 1}",)]


# -- what can go wrong, and what its error says to do ----------------------------------------------------------------


def test_a_missing_subject_stops_open_until_the_dag_names_the_right_one(shop: Shop) -> None:
    elsewhere = f"elsewhere-{uuid.uuid4().hex}"
    shop.send(order(shop.register(V1, subject=elsewhere), "a"))
    refused = shop.fails(Refused)
    assert refused.code and refused.code.name == "EPOCHS-REGISTRY-SUBJECT-MISSING"
    assert f"does not have the versions of subject {shop.subject!r}" in refused.what
    assert "subjects=[…]" in str(refused)
    shop.source["subjects"] = [elsewhere]
    shop.run()
    assert shop.orders() == [("a", 5.0, "web")]


def test_a_registry_that_does_not_answer_stops_open_and_the_next_run_goes_on(shop: Shop) -> None:
    shop.send(order(shop.register(V1), "a"))
    shop.moved_to(f"http://127.0.0.1:{free_port()}")
    failed = shop.fails(NotApplied)
    assert failed.code and failed.code.name == "EPOCHS-REGISTRY-UNREACHABLE"
    assert (failed.pipeline, shop.lab.ledger("shop").newest_complete()) == ("shop", 0)
    shop.moved_to(shop.registry.url)
    shop.run()
    assert shop.orders() == [("a", 5.0, "web")]


def test_a_parser_that_names_a_registry_which_the_source_did_not_ask_is_refused_until_both_agree(shop: Shop) -> None:
    shop.send(order(shop.register(V1), "a"))
    shop.source.clear()
    refused = shop.fails(Refused)
    assert refused.code and refused.code.name == "EPOCHS-REGISTRY-NOT-ASKED"
    assert f"registry_conn_id={CONN!r}" in str(refused)
    shop.source["registry_conn_id"] = CONN
    shop.run()
    assert shop.orders() == [("a", 5.0, "web")]


@pytest.mark.long
def test_schemas_that_the_ledger_has_lost_stop_the_stage_until_the_file_is_back(shop: Shop) -> None:
    shop.send(order(shop.register(V1), "a"))
    with pytest.raises(RuntimeError, match="the worker breaks"):
        shop.run(**{"stage.done": fail})
    [file] = shop.recorded()
    saved = file.read_bytes()
    file.unlink()
    lost = shop.fails(Corrupt)
    assert lost.code and lost.code.name == "EPOCHS-SCHEMAS-LOST" and file.name in lost.what
    file.write_bytes(saved)
    shop.run()
    assert shop.orders() == [("a", 5.0, "web")]


@pytest.mark.long
def test_schemas_that_somebody_exchanged_in_the_ledger_are_not_used(shop: Shop) -> None:
    shop.send(order(shop.register(V1), "a"))
    with pytest.raises(RuntimeError, match="the worker breaks"):
        shop.run(**{"stage.done": fail})
    shop.send(order(shop.register(V2), "b"))
    [first] = shop.recorded()
    other = Shop(shop.lab.beside("other", topic=shop.lab.topic), shop.registry, shop.client)
    other.run()
    [second] = other.recorded()
    assert second.name != first.name
    first.write_bytes(second.read_bytes())
    damaged = shop.fails(Corrupt)
    assert f"it belongs to schemas/{second.name}" in damaged.what


@pytest.mark.parametrize(
    ("host", "extra", "problem"),
    [
        (None, {}, "Invalid url"),
        ("http://r", {"retires": 3}, "Unrecognized properties: retires"),
        ("http://r", {"ssl.ca.location": "/nowhere.pem"}, "No such file"),
    ],
)
def test_a_connection_that_is_none_of_a_registry_is_refused(
    host: str | None, extra: dict[str, Any], problem: str
) -> None:
    connection = Connection(conn_id="r", conn_type="schema_registry", host=host, extra=extra)
    with pytest.raises(Refused, match=problem) as refused:
        schemas_of(connection, ["s"])
    assert refused.value.code and refused.value.code.name == "EPOCHS-REGISTRY-CONNECTION"


# -- around the pipeline ---------------------------------------------------------------------------------------------


def test_the_test_button_of_the_connection_tells_how_many_subjects_there_are(
    registry: SchemaRegistry, client: SchemaRegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.register_schema(f"button-{uuid.uuid4().hex}", Schema(json.dumps(V1), "AVRO"))
    monkeypatch.setenv("AIRFLOW_CONN_R", json.dumps({"conn_type": "schema_registry", "host": registry.url}))
    expected = f"The schema registry answers. It has {len(client.get_subjects())} subjects."
    assert SchemaRegistryHook("r").test_connection() == (True, expected)
    monkeypatch.setenv(
        "AIRFLOW_CONN_R", json.dumps({"conn_type": "schema_registry", "host": f"127.0.0.1:{free_port()}"})
    )
    fine, told = SchemaRegistryHook("r").test_connection()
    assert not fine and "EPOCHS-REGISTRY-UNREACHABLE" in told


def test_a_preview_decodes_with_what_the_registry_has_today(shop: Shop) -> None:
    shop.send(order(shop.register(V1), "a"))
    shown = preview(shop.task().task, records=10, sample=10)
    assert {each.sink: each.rows for each in shown.sinks} == {"orders": 1, "rejected": 0}


@pytest.mark.long
def test_a_check_tells_how_many_schemas_there_are_and_what_is_missing(shop: Shop) -> None:
    shop.register(V1)
    shop.send(b"x")
    found = checks_of(shop.task().task)
    assert found[f"source, connection {CONN}"].result is CheckResult.OK
    assert found["source, schemas"].details == "The registry has 1 schemas that records may have."
    shop.source["subjects"] = f"gone-{uuid.uuid4().hex}"
    found = checks_of(shop.task().task)
    error = found["source, schemas"].error
    assert error and error.code and error.code.name == "EPOCHS-REGISTRY-SUBJECT-MISSING"
