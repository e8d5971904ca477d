"""All versions of a pipeline's subjects go into one record of the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import Refused
from airflow_epochs.kafka import schema_registry
from airflow_epochs.ledger.store import VALUE_BYTES_MAX

CONNECTION = Connection(conn_id="registry", conn_type="schema_registry", host="registry")


class Registry:
    """Per subject, the lengths of its versions' schemas."""

    def __init__(self, **subjects: list[int]) -> None:
        self.subjects = subjects

    def get_versions(self, subject: str, *, deleted: bool) -> list[int]:
        return list(range(len(self.subjects[subject])))

    def get_version(self, subject: str, version: int, *, deleted: bool) -> Any:
        schema = SimpleNamespace(schema_type="JSON", schema_str="x" * self.subjects[subject][version], references=[])
        return SimpleNamespace(schema_id=f"{subject}{version}", schema=schema)


def asking(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> dict[str, int]:
    @contextmanager
    def client(_: Connection) -> Iterator[Registry]:
        yield registry

    monkeypatch.setattr(schema_registry, "client_of", client)
    found = schema_registry.schemas_of(CONNECTION, list(registry.subjects))
    return {number: len(schema.text) for number, schema in found.items()}


def test_schemas_that_no_record_has_room_for_are_refused_with_the_largest_subjects_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Refused) as refused:
        asking(monkeypatch, Registry(small=[100], large=[3 << 20, 3 << 20], middle=[1 << 20, 2 << 20]))
    assert refused.value.code is codes.LEDGER_RECORD_TOO_LARGE
    assert f"at most {VALUE_BYTES_MAX}" in str(refused.value)
    assert [text.split("'")[1] for text in refused.value.what.split("The largest: ")[1].split(", ")] == [
        "large",
        "middle",
        "small",
    ]
    assert "Remove versions from the registry for good" in refused.value.remedy


def test_schemas_that_a_record_has_room_for_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asking(monkeypatch, Registry(a=[1, 4 << 20], b=[3 << 20])) == {"a0": 1, "a1": 4 << 20, "b0": 3 << 20}
