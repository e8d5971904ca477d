"""The frame of a record of Protobuf, and the reasons why one cannot be decoded. No Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.transforms import parse_protobuf, protobuf_records
from airflow_epochs.transforms.protobuf_columns import Decoder
from airflow_epochs.transforms.protobuf_schemas import columns_of, description_of, files_of
from tests.support.protobuf_world import files, message_class, varint, written
from tests.unit.test_transforms import ABSENT

DEEP = files("message A { message In { message Deep { int32 x = 1; } } } message B { int32 x = 1; }")
MANY = files("".join(f"message M{number} {{ int32 x = 1; }}" for number in range(200)))
X = b"\x08\x05"
"""The field x is 5."""


def parts(message: str, reader: bytes, schemas: dict[int, bytes] | None = None) -> tuple[Any, ...]:
    """What a decoder is made of."""
    found = files_of(reader).message(message)
    return description_of(found), columns_of(found), protobuf_records._readable(schemas or {7: reader}, found)


def decoded(records: Sequence[bytes | None], message: str, reader: bytes, schemas: Any = None) -> list[Any]:
    """What a record is decoded to: its columns, or the reason why it is corrupt."""
    found = Decoder(*parts(message, reader, schemas)).decoded(pa.array(records, pa.binary())).to_pylist()
    return [row["error"] or row["value"] for row in found]


@pytest.mark.parametrize(
    ("record", "message", "reader"),
    [
        (written(7, X, [1]), "shop.B", DEEP),
        (written(7, X, [0, 0, 0]), "shop.A.In.Deep", DEEP),
        (written(7, X, [0]), "shop.M0", MANY),
        (b"\0\0\0\0\7\2\0" + X, "shop.M0", MANY),  # [0] at length
        (b"\0\0\0\0\7\x80\x00" + X, "shop.M0", MANY),  # in more bytes than it takes
        (written(7, X, [150]), "shop.M150", MANY),  # an index of two bytes
    ],
)
def test_the_indexes_of_a_record_name_its_message(record: bytes, message: str, reader: bytes) -> None:
    assert decoded([record], message, reader) == [{"x": 5}]


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (b"", "no magic byte and schema id"),
        (b"\0\0\0\7", "no magic byte and schema id"),
        (b"\1\0\0\0\7\0", "no magic byte and schema id"),
        (b"\0\0\0\0\7", "no message indexes that can be read"),
        (b"\0\0\0\0\7\4\2", "no message indexes that can be read"),  # one of two
        (b"\0\0\0\0\7\2\x80", "no message indexes that can be read"),  # half a number
        (b"\0\0\0\0\7" + b"\x80" * 5 + b"\0", "no message indexes that can be read"),  # more than 32 bits
        (b"\0\0\0\0\7\1", "no message indexes that can be read"),  # -1 of them
        (b"\0\0\0\0\7" + varint(2**30), "no message indexes that can be read"),
        (b"\0\0\0\0\7\2\1", "schema 7 has no message with the indexes [-1]"),
        (b"\0\0\0\0\7\2\6", "schema 7 has no message with the indexes [3]"),
        (b"\0\0\0\0\7\4\0\2", "schema 7 has no message with the indexes [0, 1]"),
        (b"\0\0\0\0\7\0", "the message indexes name shop.A in schema 7, not shop.B"),
        (b"\0\0\0\0\7\4\0\0", "the message indexes name shop.A.In in schema 7, not shop.B"),
        (b"\0\0\0\0\x08\2\2", "unknown schema id 8"),
    ],
)
def test_a_frame_that_names_no_message_of_the_readers_is_corrupt(frame: bytes, told: str) -> None:
    assert decoded([frame, frame + X if frame[5:] else frame], "shop.B", DEEP)[0] == told


@pytest.mark.proof
def test_an_index_that_clients_write_for_two_messages_names_none() -> None:
    two = files("message A { map<string, int32> m = 1; message B { int32 x = 1; } message C { int32 x = 1; } }")
    records = [written(7, X, [0, number]) for number in range(3)]
    told = "the message indexes name shop.A.C or shop.A.B in schema 7, not shop.A.B"
    other = "the message indexes name shop.A.C in schema 7, not shop.A.B"
    assert decoded(records, "shop.A.B", two) == [{"x": 5}, told, other]


@pytest.mark.proof
def test_a_schema_that_cannot_be_used_makes_only_its_own_records_corrupt() -> None:
    schemas = {1: MANY, 2: b"\xff", 3: files("message M0 { string x = 1; }"), 4: files("message N { int32 x = 1; }")}
    assert decoded([written(number, X) for number in schemas], "shop.M0", MANY, schemas) == [
        {"x": 5},
        "schema 2 is no FileDescriptorSet, which protoc --descriptor_set_out writes",
        "schema 3 cannot be read into the reader's: field x is string, not int32",
        "the message indexes name shop.N in schema 4, not shop.M0",
    ]


@pytest.mark.proof
@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@pytest.mark.parametrize("place", ["optional {}", "repeated {}", "map<string, {}>"])
def test_a_text_or_a_number_of_an_enum_that_is_none_is_told_in_each_syntax(syntax: str, place: str) -> None:
    fields = f"{place.format('string')} t = 1; {place.format('E')} e = 2;"
    told = files(f"enum E {{ A = 0; B = 5; }} message M {{ {fields} }}", syntax)
    frame, entry = b"\0\0\0\0\7\0", "map" in place
    text, number = (b"\x0a\x04\x0a\0\x12\0", b"\x12\4\x0a\0\x10\5") if entry else (b"\x0a\2ab", b"\x10\5")
    bad_text = b"\x0a\x06\x0a\0\x12\2a\xff" if entry else b"\x0a\2a\xff"
    bad_number = b"\x12\4\x0a\0\x10\7" if entry else b"\x10\7"
    found = decoded([frame + text + number, frame + bad_text, frame + bad_number], "shop.M", told)
    assert isinstance(found[0], dict)
    where = "e.value" if entry else "e"
    assert found[1:] == ["a text that is not UTF-8", f"field {where} has the number 7, which its enum does not have"]


def test_a_key_of_a_map_that_is_no_text_is_told_and_of_two_equal_ones_the_later_counts() -> None:
    told = files("message M { map<string, int32> m = 1; }")
    a1, b2, a3, bad = (b"\x0a\5\x0a\1" + pair[:1] + b"\x10" + pair[1:] for pair in (b"a\1", b"b\2", b"a\3", b"\xff\4"))
    frame = b"\0\0\0\0\7\0"
    found = decoded([frame + a1 + b2 + a3, frame + bad, frame], "shop.M", told)
    assert found == [{"m": [("a", 3), ("b", 2)]}, "a text that is not UTF-8", {"m": []}]


def test_the_entries_of_a_map_keep_the_order_of_the_record_in_each_worker() -> None:
    told = files("message M { map<string, int32> m = 1; }")
    numbers = [number * 7919 % 101 for number in range(1, 101)]
    entries = b"".join(b"\x0a\7\x0a\3%03d\x10%c" % (number, number) for number in numbers)
    assert decoded([written(7, entries)], "shop.M", told) == [{"m": [(f"{number:03}", number) for number in numbers]}]


def test_of_the_fields_of_a_oneof_the_last_one_in_the_record_is_there() -> None:
    told = files(
        "message M { oneof o { int32 a = 1; int32 b = 2; } int32 c = 3; oneof p { int32 d = 4; int32 e = 5; } }"
    )
    body = b"".join(bytes([8 * number, number]) for number in (2, 1, 3, 4, 5))
    assert decoded([written(7, body)], "shop.M", told) == [{"a": 1, "b": None, "c": 3, "d": None, "e": 5}]


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_an_entry_of_a_map_without_key_or_value_has_their_defaults(syntax: str) -> None:
    x = {"proto2": "optional int32 x", "proto3": "int32 x"}[syntax]
    maps = "message M { map<string, E> m = 1; map<bool, In> n = 2; }"
    told = files(f"enum E {{ A = 0; B = 1; }} {maps} message In {{ {x} = 1; }}", syntax)
    value = {"x": {"proto2": None, "proto3": 0}[syntax]}
    assert decoded([written(7, b"\x0a\0\x12\0")], "shop.M", told) == [{"m": [("", "A")], "n": [(False, value)]}]


def test_of_two_names_for_a_number_of_an_enum_the_first_is_told_as_the_library_does() -> None:
    told = files("enum E { option allow_alias = true; N = 0; B = 1; A = 1; C = 1; } message M { E e = 1; }")
    named = message_class(told, "shop.M").DESCRIPTOR.fields_by_name["e"].enum_type.values_by_number[1].name
    assert decoded([written(7, b"\x08\1")], "shop.M", told) == [{"e": named}]


def test_a_field_may_have_the_name_of_what_the_library_gives_each_message() -> None:
    told = files("message M { int32 DESCRIPTOR = 1; int32 HasField = 2; int32 class = 3; }")
    assert decoded([written(7, X)], "shop.M", told) == [{"DESCRIPTOR": 5, "HasField": 0, "class": 0}]


def test_a_required_field_that_is_absent_makes_the_record_corrupt_at_each_depth() -> None:
    told = files(
        "message M { required int32 a = 1; repeated In b = 2; } message In { required int32 c = 1; }", "proto2"
    )
    frame = b"\0\0\0\0\7\0"
    found = decoded([frame, frame + b"\x08\1\x12\0", frame + b"\x08\1\x12\2\x08\2"], "shop.M", told)
    assert found == [
        "no value for the required field a",
        "no value for the required field b.c",
        {"a": 1, "b": [{"c": 2}]},
    ]


@pytest.mark.proof
def test_a_time_beyond_the_years_of_protobufs_times_is_corrupt_and_finer_ones_are_cut_towards_the_past() -> None:
    told = files('import "google/protobuf/timestamp.proto"; message M { google.protobuf.Timestamp at = 1; }')
    make = message_class(told, "shop.M")
    good = [(-62_135_596_800, 0), (253_402_300_799, 999_999_999), (-1, 999_999_999), (0, 1_999)]
    bad = [(-62_135_596_801, 0), (253_402_300_800, 0), (0, -1), (0, 10**9), (2**62, 0)]
    records = [written(7, make(at={"seconds": seconds, "nanos": nanos})) for seconds, nanos in [*good, *bad]]
    found = Decoder(*parts("shop.M", told)).decoded(pa.array(records, pa.binary()))
    micros = found.field("value").flatten()[0].cast(pa.int64()).to_pylist()[: len(good)]
    assert micros == [seconds * 10**6 + nanos // 1000 for seconds, nanos in good]
    reason = "field at is no time in the years 1 to 9999"
    assert found.field("error").to_pylist() == [None] * len(good) + [reason] * len(bad)


UNPICKLED = """
import pyarrow as pa
decode = pickle.loads(sys.stdin.buffer.read())
found = decode(pa.array([bytes.fromhex("0000000007000805"), b""], pa.binary()))
assert found.to_pylist() == [
    {"error": None, "value": {"x": 5}},
    {"error": "no magic byte and schema id", "value": None},
], found
"""
ABSENT_LIBRARY = """
class NoProtobuf:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("google"):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, NoProtobuf())
"""


def in_a_worker(program: str) -> subprocess.CompletedProcess[bytes]:
    """A Python that has the function of a worker as its input, and not this package."""
    pickled = cloudpickle.dumps(protobuf_records._decoder(*parts("shop.M0", MANY)))
    command = [sys.executable, "-c", ABSENT + program]
    return subprocess.run(command, input=pickled, capture_output=True, timeout=30, check=False)


@pytest.mark.proof
def test_the_function_that_decodes_is_unpickled_where_this_package_cannot_be_imported() -> None:
    assert in_a_worker(UNPICKLED).stderr == b""


@pytest.mark.proof
def test_a_worker_without_the_library_names_it() -> None:
    done = in_a_worker(ABSENT_LIBRARY + UNPICKLED)
    assert b"has no library that decodes Protobuf (No module named 'google')" in done.stderr
    assert b"`pip install protobuf`" in done.stderr


@pytest.mark.parametrize("library", ["pyarrow", "google.protobuf"])
def test_where_the_transform_runs_the_error_names_a_library_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    batch: Any = None
    with pytest.raises(Refused) as refused:
        parse_protobuf(batch, "shop.M0", MANY, schemas={1: MANY})
    assert (refused.value.code, library in refused.value.what) == (codes.SPARK_INCOMPLETE, True)
    assert "pip install protobuf pyarrow" in refused.value.remedy
