"""Subjects in contexts of a schema registry: ids are unique within one, and references stay in it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
from confluent_kafka.schema_registry import RegisteredSchema, Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry import SchemaRegistryError as NotThere

from airflow_epochs.contracts import Connection
from airflow_epochs.errors import Refused
from airflow_epochs.kafka.schema_registry import schemas_of
from airflow_epochs.schemas import WriterSchema

CONN = Connection(conn_id="registry", conn_type="schema_registry", host="registry")
Subjects = dict[str, tuple[int, Schema]]


def record(name: str, kind: str = "long", refers_to: Iterable[tuple[str, str]] = ()) -> Schema:
    text = {"type": "record", "name": name, "fields": [{"name": "x", "type": kind}]}
    return Schema(json.dumps(text), "AVRO", [SchemaReference(*each, 1) for each in refers_to])


def asked(monkeypatch: pytest.MonkeyPatch, registry: Subjects, subjects: list[str]) -> dict[str, WriterSchema]:
    """The schemas of a registry with one version in each subject."""

    def get_version(client: object, subject: str, version: int, deleted: bool = False) -> RegisteredSchema:
        if subject not in registry:
            raise NotThere(404, 40401, f"Subject '{subject}' not found.")
        number, schema = registry[subject]
        told: RegisteredSchema = SimpleNamespace(schema_id=number, schema=schema)
        return told

    monkeypatch.setattr(SchemaRegistryClient, "get_versions", lambda *_, **__: [1], raising=True)
    monkeypatch.setattr(SchemaRegistryClient, "get_version", get_version)
    return schemas_of(CONN, subjects)


def test_an_id_that_is_another_schema_in_another_context_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = {":.east:orders": (7, record("Order")), ":.west:orders": (7, record("Order", "string"))}
    with pytest.raises(Refused, match=r"another schema with the id 7 in subject ':\.west:orders'") as refused:
        asked(monkeypatch, registry, [*registry])
    assert refused.value.code and refused.value.code.name == "EPOCHS-SOURCE-MISCONFIGURED"
    assert "/contexts/:.east:" in refused.value.remedy


def test_a_schema_that_two_subjects_have_with_one_id_is_one_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = {"orders": (7, record("Order")), "returns": (7, record("Order"))}
    assert [*asked(monkeypatch, registry, [*registry])] == ["7"]


def test_a_reference_without_a_context_is_in_that_of_the_schema_that_refers_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = {
        ":.east:orders": (7, record("Order", "Item", [("Item", "items")])),
        ":.east:items": (8, record("Item", "Price", [("Price", ":.west:prices")])),
        ":.west:prices": (9, record("Price", "Unit", [("Unit", "units")])),
        ":.west:units": (10, record("Unit", "string")),
        "items": (8, record("Item", "double")),
        "units": (10, record("Unit", "double")),
    }
    told = asked(monkeypatch, registry, [":.east:orders"])["7"]
    assert (told.flaw, "Price" in told.text, "string" in told.text, "double" in told.text) == (None, True, True, False)


def test_a_reference_that_is_missing_is_named_with_the_subject_that_refers_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = {"orders": (7, record("Order", "Item", [("Item", "items")]))}
    with pytest.raises(
        Refused, match=r"'Item' \(subject 'items', version 1\), to which subject 'orders' refers"
    ) as refused:
        asked(monkeypatch, registry, ["orders"])
    assert "the schema that is referred to" in refused.value.remedy
