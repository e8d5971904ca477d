"""Compiling schemas of Protobuf as a registry keeps them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.kafka import protobuf_files
from airflow_epochs.kafka.protobuf_files import compiled
from airflow_epochs.transforms.avro_schemas import SchemaFlaw

ORDER = """
syntax = "proto3";
package shop;
import "shop/customer.proto";
import "google/protobuf/timestamp.proto";
message Order { Customer by = 1; google.protobuf.Timestamp at = 2; }
"""
CUSTOMER = 'syntax = "proto3"; package shop; import "main.proto"; message Customer { Name name = 1; }'
FOREVER = "import threading; threading.Event().wait()"
NAME = 'syntax = "proto3"; package shop; message Name { string name = 1; }'


def names(told: bytes) -> list[str]:
    """The files of a set."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    return [each.name for each in FileDescriptorSet.FromString(told).file]


@pytest.mark.proof
def test_a_schema_is_compiled_with_all_that_it_imports_and_stands_last() -> None:
    told = compiled(ORDER, {"shop/customer.proto": CUSTOMER, "main.proto": NAME})
    assert names(told) == ["main.proto", "shop/customer.proto", "google/protobuf/timestamp.proto", "_main.proto"]
    assert compiled(ORDER, {"main.proto": NAME, "shop/customer.proto": CUSTOMER}) == told


def in_base64(told: bytes, renamed: dict[str, str]) -> dict[str, str]:
    """Files of a set as Confluent's client for Python registers them: name -> schema."""
    from confluent_kafka.schema_registry.common.protobuf import _proto_to_str
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    return {renamed.get(each.name, each.name): _proto_to_str(each) for each in FileDescriptorSet.FromString(told).file}


@pytest.mark.proof
@pytest.mark.parametrize("as_text", [(), ("order",), ("shop/customer.proto",), ("main.proto", "shop/customer.proto")])
def test_schemas_in_base64_are_the_same_as_their_texts(as_text: tuple[str, ...]) -> None:
    texts = {"shop/customer.proto": CUSTOMER, "main.proto": NAME, "order": ORDER}
    told = compiled(ORDER, {name: text for name, text in texts.items() if name != "order"})
    binary = {name: one for name, one in in_base64(told, {"_main.proto": "order"}).items() if name in texts}
    assert binary.keys() == texts.keys()
    given = {**binary, **{name: texts[name] for name in as_text}}
    assert compiled(given.pop("order"), given) == told


def test_files_that_confluents_registry_has_built_in_need_no_reference() -> None:
    told = compiled(
        'syntax = "proto3"; import "google/type/money.proto"; import "confluent/meta.proto"; '
        'import "confluent/type/decimal.proto"; message A { google.type.Money x = 1 [(confluent.field_meta).doc = ""]; '
        "confluent.type.Decimal y = 2; }",
        {},
    )
    assert {"google/type/money.proto", "confluent/meta.proto", "confluent/type/decimal.proto"} < {*names(told)}


def test_a_reference_goes_before_a_built_in_file_of_its_name() -> None:
    mine = 'syntax = "proto3"; package mine; message Money { string all = 1; }'
    told = compiled(
        'syntax = "proto3"; import "google/type/money.proto"; message A { mine.Money x = 1; }',
        {"google/type/money.proto": mine},
    )
    assert names(told) == ["google/type/money.proto", "main.proto"]


def test_what_protoc_says_of_a_schema_is_told_and_is_the_same_in_each_try() -> None:
    with pytest.raises(SchemaFlaw) as found:
        compiled('syntax = "proto3";\nimport "gone.proto";\nmessage A { Foo x = 1; }', {})
    assert str(found.value) == (
        'cannot be compiled: gone.proto: File not found.; main.proto:2:1: Import "gone.proto" was not found or had '
        'errors.; main.proto:3:13: "Foo" is not defined.'
    )


@pytest.mark.parametrize("name", ["/etc/a.proto", "../a.proto", "a/../../b.proto", "", "a//b.proto", "./a", "a\0b"])
def test_a_reference_cannot_be_written_elsewhere(name: str) -> None:
    with pytest.raises(SchemaFlaw, match="has a reference with the name"):
        compiled('syntax = "proto3";', {name: NAME})


def test_code_among_the_references_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ran = tmp_path / "ran"
    compiled(
        ORDER.replace("Customer by = 1;", ""),
        {
            "shop/customer.proto": 'syntax = "proto3";',
            "grpc_tools/__init__.py": f"open({str(ran)!r}, 'w')",
            "grpc_tools/protoc.py": f"open({str(ran)!r}, 'w')",
        },
    )
    assert [*tmp_path.iterdir()] == []


def test_without_grpcio_tools_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Refused) as refused:
        compiled(NAME, {})
    assert "pip install grpcio-tools" in refused.value.remedy


@pytest.mark.parametrize("program", ["raise ValueError('broken')", "import os; os.kill(os.getpid(), 9)", FOREVER])
def test_a_protoc_that_gives_no_answer_is_no_flaw_of_the_schema(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    run = subprocess.run

    def other(command: Any, **options: Any) -> Any:
        return run([sys.executable, "-c", program], **options)

    monkeypatch.setattr(protobuf_files, "_TIMEOUT_S", 0.5 if program == FOREVER else 60)
    monkeypatch.setattr(subprocess, "run", other)
    with pytest.raises(NotApplied, match=r"protoc (ended with|did not end)"):
        compiled(NAME, {})
