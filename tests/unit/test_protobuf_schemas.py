"""Which messages of a writer can be read into a reader's, and of which the library would make another value."""

from __future__ import annotations

import pytest

from airflow_epochs.kafka.protobuf_files import compiled
from airflow_epochs.transforms.avro_schemas import SchemaFlaw
from airflow_epochs.transforms.protobuf_schemas import columns_of, files_of, indexes_of, unreadable
from tests.support.protobuf_world import files

IMPORTS = "".join(f'import "google/protobuf/{name}.proto";' for name in ("timestamp", "duration", "wrappers", "struct"))


def problem(written: str, wanted: str, syntax: str = "proto3") -> str | None:
    """Why a message ``M`` with these fields cannot be read into one with those."""
    writer, reader = (
        files_of(files(f"{IMPORTS} message M {{ {fields} }}", syntax)).message("shop.M") for fields in (written, wanted)
    )
    return unreadable(writer, reader)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("int32 f = 1;", "int32 renamed = 1;"),
        ("int32 f = 1;", "int64 f = 1;"),
        ("uint32 f = 1;", "uint64 f = 1;"),
        ("uint32 f = 1;", "int64 f = 1;"),
        ("sint32 f = 1;", "sint64 f = 1;"),
        ("int32 f = 1;", "optional int32 f = 1;"),
        ("int32 f = 1; string more = 2;", "int32 f = 1;"),
        ("int32 f = 1;", "int32 f = 1; string more = 2;"),
        ("repeated int32 f = 1;", "repeated int32 f = 1 [packed = false];"),
        ("map<string, int32> f = 1;", "map<string, int64> f = 1;"),
        ("enum E { A = 0; B = 1; } E f = 1;", "enum F { A = 0; C = 2; } F f = 1;"),
        ("enum E { option allow_alias = true; A = 0; B = 0; } E f = 1;", "enum E { B = 0; } E f = 1;"),
        ("message In { int32 x = 1; } In f = 1;", "message Other { int64 x = 1; } Other f = 1;"),
        ("google.protobuf.Timestamp f = 1;", "google.protobuf.Timestamp f = 1;"),
        ("oneof o { int32 a = 1; int32 b = 2; }", "oneof p { int32 b = 2; int32 a = 1; }"),
        ("oneof o { int32 a = 1; int32 b = 2; }", "int32 a = 1; int32 b = 2;"),
        ("int32 a = 1;", "oneof o { int32 a = 1; int32 b = 2; }"),
        ("M f = 1; int32 n = 2;", "int32 n = 2;"),
    ],
)
def test_what_keeps_its_values_is_readable(written: str, wanted: str) -> None:
    assert problem(written, wanted) is None


@pytest.mark.parametrize(
    ("written", "wanted", "told"),
    [
        ("int64 f = 1;", "int32 f = 1;", "field f is int64, not int32"),
        ("int32 f = 1;", "sint32 f = 1;", "field f is int32, not sint32"),
        ("int32 f = 1;", "uint32 f = 1;", "field f is int32, not uint32"),
        ("fixed32 f = 1;", "sfixed32 f = 1;", "field f is fixed32, not sfixed32"),
        ("bool f = 1;", "int32 f = 1;", "field f is bool, not int32"),
        ("string f = 1;", "bytes f = 1;", "field f is string, not bytes"),
        ("float f = 1;", "double f = 1;", "field f is float, not double"),
        ("enum E { A = 0; } E f = 1;", "int32 f = 1;", "field f is enum, not int32"),
        (
            "enum E { A = 0; B = 1; } E f = 1;",
            "enum E { A = 0; C = 1; } E f = 1;",
            "field f: the number 1 is B, not C",
        ),
        ("repeated int32 f = 1;", "int32 f = 1;", "field f is repeated, not single"),
        ("int32 f = 1;", "repeated int32 f = 1;", "field f is single, not repeated"),
        (
            "map<string, int32> f = 1;",
            "message E { string key = 1; int32 value = 2; } repeated E f = 1;",
            "field f is a map, not repeated",
        ),
        ("map<string, int32> f = 1;", "map<string, sint32> f = 1;", "field f.value is int32, not sint32"),
        (
            "message In { string x = 1; } repeated In f = 1;",
            "message In { int32 x = 1; } repeated In f = 1;",
            "field f.x is string, not int32",
        ),
        (
            "google.protobuf.Duration f = 1;",
            "google.protobuf.Timestamp f = 1;",
            "field f is google.protobuf.Duration, not google.protobuf.Timestamp",
        ),
        (
            "message T { int64 seconds = 1; int32 nanos = 2; } T f = 1;",
            "google.protobuf.Timestamp f = 1;",
            "field f is shop.M.T, not google.protobuf.Timestamp",
        ),
        ("int32 f = 1;", "int32 f = 2;", "field f has the number 1, not 2"),
        ("int32 a = 1; int32 b = 2;", "oneof o { int32 a = 1; int32 b = 2; }", "the fields of o are not in one oneof"),
        (
            "optional int32 a = 1; optional int32 b = 2;",
            "oneof o { int32 a = 1; int32 b = 2; }",
            "the fields of o are not in one oneof",
        ),
    ],
)
def test_what_could_become_another_value_is_not(written: str, wanted: str, told: str) -> None:
    assert problem(written, wanted) == told


@pytest.mark.proof
def test_a_field_that_the_reader_requires_must_be_there() -> None:
    told = "field f is missing, and the reader's message requires it"
    assert problem("optional int32 n = 2;", "required int32 f = 1;", "proto2") == told
    assert problem("optional int32 f = 1;", "required int32 f = 1;", "proto2") is None


@pytest.mark.parametrize(
    ("fields", "flaw"),
    [
        ("M f = 1;", "has field f, which is a message inside of itself, and Spark has no such type"),
        (
            "message A { repeated B b = 1; } message B { A a = 1; } A f = 1;",
            "has field f.b.a, which is a message inside of itself, and Spark has no such type",
        ),
        (
            "google.protobuf.Struct f = 1;",
            "has field f.fields.value.struct_value, which is a message inside of itself",
        ),
        ("message E {} E f = 1;", "has field f, a message without fields, and Spark's tables have no such column"),
        ("", "has a message without fields"),
        ("int32 aB = 1; int32 ab = 2;", "has fields that differ only in upper and lower case: ab"),
    ],
)
def test_a_message_of_which_spark_makes_no_columns_is_refused_for_the_reader(fields: str, flaw: str) -> None:
    reader = files_of(files(f"{IMPORTS} message M {{ {fields} }}")).message("shop.M")
    with pytest.raises(SchemaFlaw) as found:
        columns_of(reader)
    assert str(found.value).startswith(flaw)


def test_the_features_of_an_edition_say_what_is_absent() -> None:
    feature = "[features.field_presence={}]"
    fields = f"int32 a = 1; int32 b = 2 {feature.format('IMPLICIT')}; int32 c = 3 {feature.format('LEGACY_REQUIRED')};"
    reader = files_of(compiled(f'edition = "2023"; package shop; message M {{ {fields} }}', {})).message("shop.M")
    labels = {each.name: each.label for each in columns_of(reader)}
    assert labels == {"a": "optional", "b": "always", "c": "required"}


def test_a_group_is_refused_for_the_reader() -> None:
    reader = files_of(files("message M { optional group G = 1 { optional int32 x = 2; } }", "proto2")).message("shop.M")
    with pytest.raises(SchemaFlaw, match="has field g, which is a group"):
        columns_of(reader)


def test_a_set_that_is_none_or_not_complete_is_refused() -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    whole = FileDescriptorSet.FromString(files(f"{IMPORTS} message M {{ google.protobuf.Timestamp at = 1; }}"))
    part = FileDescriptorSet(file=whole.file[-1:])
    twice = FileDescriptorSet(file=[*whole.file, whole.file[-1]])
    twice.file[-1].message_type[0].name = "N"
    unlinked = FileDescriptorSet(file=whole.file)
    unlinked.file[-1].message_type[0].field[0].type_name = ".shop.Gone"
    lacking = ", ".join(f"google/protobuf/{name}.proto" for name in ("duration", "struct", "timestamp", "wrappers"))
    for told, flaw in (
        (b"\xff", "is no FileDescriptorSet, which protoc --descriptor_set_out writes"),
        ("text", "is no FileDescriptorSet, which protoc --descriptor_set_out writes"),
        (b"", "has no file"),
        (part.SerializeToString(), f"lacks {lacking}, which it imports"),
        (twice.SerializeToString(), "is not valid: "),
        (unlinked.SerializeToString(), "is not valid: "),
    ):
        with pytest.raises(SchemaFlaw) as found:
            files_of(told)  # type: ignore[arg-type]
        assert str(found.value).startswith(flaw)
    with pytest.raises(SchemaFlaw, match=r"has no message 'shop.Gone'; it has shop.M$"):
        files_of(whole.SerializeToString()).message("shop.Gone")


def test_indexes_count_the_messages_that_are_declared_and_both_meanings_are_told_where_clients_differ() -> None:
    text = "message A { message In { message Deep { int32 x = 1; } } } message B { int32 x = 1; }"
    names = {
        (0,): ["shop.A"],
        (0, 0): ["shop.A.In"],
        (0, 0, 0): ["shop.A.In.Deep"],
        (1,): ["shop.B"],
    }
    assert indexes_of(files_of(files(text))) == names
    text = "message A { map<string, int32> m = 1; message In { int32 x = 1; } message Other { int32 x = 1; } }"
    assert indexes_of(files_of(files(text))) == {
        (0,): ["shop.A"],
        (0, 0): ["shop.A.In"],  # for Confluent's client for Python, the map's entries
        (0, 1): ["shop.A.Other", "shop.A.In"],
        (0, 2): ["shop.A.Other"],
    }
