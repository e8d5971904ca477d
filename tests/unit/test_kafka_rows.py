"""From staged columns to records: what is sent, where to, and what is refused before anything is promised."""

from __future__ import annotations

import datetime
import json
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.kafka.checks import require_records, require_room
from airflow_epochs.sinks.kafka.cluster import TopicFacts
from airflow_epochs.sinks.kafka.marker import MarkerRecord
from airflow_epochs.sinks.kafka.rows import HEADER, KafkaRecord, RowShape, size_of
from airflow_epochs.sinks.kafka.told_rows import of_epoch
from airflow_epochs.staged.table import StagedTable
from tests.support.delta_world import attempt_of, not_utf8, stage_with_deltalake, transaction

UTC = datetime.timezone.utc
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def struct(**fields: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [field(name, kind) for name, kind in fields.items()]}


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def mapping(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def records(tmp_path: Path, data: pa.Table, partitions: int = 1) -> list[KafkaRecord]:
    """Staged by Delta's writer, read back, and made records: as the sink does it."""
    area = StagedTable(root=str(tmp_path), sink="events", target="topic t", options={})
    attempt = attempt_of(transaction(3))
    staging, staged = area.checked(attempt, stage_with_deltalake(area.plan(attempt, "a"), data))
    shape = RowShape.of(staging.shape.schema, "topic t")
    return list(shape.records(area.rows(attempt, staged), "orders/events/3", lambda number: number % partitions))


def refusal(**columns: Any) -> str:
    with pytest.raises(Refused) as caught:
        RowShape.of(struct(**columns), "topic t")
    return caught.value.what


# --- what is sent ---------------------------------------------------------------------------------------------


def test_columns_named_as_for_sparks_own_sink_are_sent_as_they_are(tmp_path: Path) -> None:
    data = pa.table(
        {
            "Key": pa.array(["a", "é", None]),
            "VALUE": pa.array([b"\0\xff", None, b""], pa.binary()),
            "partition": pa.array([1, None, 0], pa.int32()),
            "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], [], None], HEADERS),
        }
    )
    sent = records(tmp_path, data)
    assert [record[:3] for record in sent] == [
        (b"a", b"\0\xff", 1),
        ("é".encode(), None, None),
        (None, b"", 0),
    ]
    assert sent[0][3] == [("h", b"1"), ("h", None), (HEADER, b"orders/events/3/0")]


@pytest.mark.proof
def test_every_row_has_its_number_in_the_epoch_in_a_header_across_batches(tmp_path: Path) -> None:
    sent = records(tmp_path, pa.table({"value": [str(number) for number in range(25_000)]}))
    assert [record[1] for record in sent] == [b"%d" % number for number in range(25_000)]
    assert [record[3] for record in sent] == [[(HEADER, b"orders/events/3/%d" % number)] for number in range(25_000)]


def test_a_header_of_our_name_from_another_pipelines_topic_is_replaced(tmp_path: Path) -> None:
    headers = [[{"key": HEADER, "value": b"upstream/x/1/1"}, {"key": "k", "value": b"v"}]]
    (sent,) = records(tmp_path, pa.table({"value": ["v"], "headers": pa.array(headers, HEADERS)}))
    assert sent[3] == [("k", b"v"), (HEADER, b"orders/events/3/0")]


def test_rows_with_a_key_go_by_its_hash_and_others_by_their_number(tmp_path: Path) -> None:
    data = pa.table({"key": ["a", None, None, None], "value": list("wxyz")})
    assert [record[2] for record in records(tmp_path, data, 3)] == [None, 1, 2, 0]


def test_without_a_value_all_other_columns_make_a_json_object_in_the_order_of_the_schema(tmp_path: Path) -> None:
    data = pa.table(
        {
            "key": ["k"],
            "z": pa.array([2**60], pa.int64()),
            "text": ['say "ü"\n'],
            "flag": [True],
            "nothing": pa.array([None], pa.string()),
            "price": pa.array([Decimal("12.30")], pa.decimal128(9, 2)),
            "half": [0.5],
            "raw": pa.array([b"\0\1"], pa.binary()),
            "day": pa.array([datetime.date(2026, 1, 31)]),
            "at": pa.array([datetime.datetime(2026, 1, 31, 1, 2, 3, 4, UTC)], pa.timestamp("us", "UTC")),
            "local": pa.array([datetime.datetime(2026, 1, 31, 1, 2, 3)], pa.timestamp("us")),
            "list": pa.array([[1, None]], pa.list_(pa.int32())),
            "deep": pa.array([{"a": {"b": 1}}]),
            "map": pa.array([[("x", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32())),
        }
    )
    (sent,) = records(tmp_path, data)
    assert (sent[0], json.loads(sent[1] or b"")) == (
        b"k",
        {
            "z": 2**60,
            "text": 'say "ü"\n',
            "flag": True,
            "nothing": None,
            "price": "12.30",
            "half": 0.5,
            "raw": "AAE=",
            "day": "2026-01-31",
            "at": "2026-01-31T01:02:03.000004Z",
            "local": "2026-01-31T01:02:03",
            "list": [1, None],
            "deep": {"a": {"b": 1}},
            "map": {"x": 1, "a": 2},
        },
    )
    assert list(json.loads(sent[1] or b"")) == [name for name in data.column_names if name != "key"]


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    sent = records(tmp_path, pa.table({"x": [math.nan, math.inf, 1.0]}))
    assert [record[1] for record in sent] == [b'{"x":null}', b'{"x":null}', b'{"x":1.0}']


def test_names_and_times_of_every_kind_are_said_in_json(tmp_path: Path) -> None:
    """Fields in any order of the alphabet, names that JSON has to escape, the first and the last instant, NULL."""
    times = [
        datetime.datetime(1, 1, 1, tzinfo=UTC),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 500000, UTC),
        None,
    ]
    for name in ("class", 'say "it"', "back\\slash", "ü ö"):
        data = pa.table(
            {
                name: pa.array(times, pa.timestamp("us", "UTC")),
                "local": pa.array([time and time.replace(tzinfo=None) for time in times], pa.timestamp("us")),
                "a": pa.array([[time] for time in times], pa.list_(pa.timestamp("us", "UTC"))),
            }
        )
        sent = [json.loads(record[1] or b"") for record in records(tmp_path / str(len(name)), data)]
        said = [time and time.isoformat().replace("+00:00", "Z") for time in times]
        assert [row[name] for row in sent] == said
        assert [row["local"] for row in sent] == [time and time.removesuffix("Z") for time in said]
        assert [row["a"] for row in sent] == [[time] for time in said]
        assert list(sent[0]) == [name, "local", "a"]


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (
            pa.array([2**58], pa.timestamp("us", "UTC")),
            "column 'bad' is outside of the years 1 to 9999: a time of the year 11103",
        ),
        (pa.array([2**58], pa.timestamp("us")), "column 'bad' is outside of the years 1 to 9999"),
        (
            pa.array([2_932_897], pa.int32()).cast(pa.date32()),
            "outside of the years 1 to 9999: a time of the year 10000",
        ),
        (pa.array([{"t": 2**58}], pa.struct([("t", pa.timestamp("us", "UTC"))])), "outside of the years 1 to 9999"),
        (pa.array([[("k", 2**58)]], pa.map_(pa.string(), pa.timestamp("us", "UTC"))), "outside of the years 1 to 9999"),
        (not_utf8(b"a\xff"), "column 'bad' is not UTF-8: b'a\\xff'"),
        (pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), not_utf8(b"\xff")), "column 'bad' is not UTF-8"),
    ],
)
def test_a_value_without_a_form_in_json_is_refused_with_its_record(
    tmp_path: Path, bad: pa.Array, expected: str
) -> None:
    good = pa.nulls(3, bad.type)
    origin = [{"topic": "clicks", "partition": 4, "offset": 100 + number} for number in range(4)]
    data = pa.table({"origin": origin, "bad": pa.chunked_array([good, bad]), "key": list("abcd")})
    with pytest.raises(Refused) as caught:
        records(tmp_path / "told", data)
    assert "the record at topic 'clicks', partition 4, offset 103: column 'bad'" in caught.value.what
    assert expected in caught.value.what
    with pytest.raises(
        Refused, match=r"a row with key = 'd' \(its record is unknown: the rows have no struct with topic"
    ):
        records(tmp_path / "not told", data.drop_columns(["origin"]))


def test_an_epoch_without_rows_makes_no_records(tmp_path: Path) -> None:
    assert records(tmp_path, pa.table({"value": pa.array([], pa.string())})) == []


# --- what is refused ------------------------------------------------------------------------------------------


def test_a_column_of_another_type_is_refused_by_name() -> None:
    what = refusal(key="long", value=struct(a="string"), headers=array("string"), partition="long")
    for named in (
        "'key' is long, but it must be string or binary",
        "'value' is struct<a: string>, but it must be string or binary",
        "'headers' is array<string>, but it must be array<struct<key: string, value: binary>>",
        "'partition' is long, but it must be int",
    ):
        assert named in what


def test_columns_beside_a_value_that_would_not_be_sent_are_refused_by_name() -> None:
    assert "because there is a column `value`, 'topic', 'id' would not be sent" in refusal(
        value="string", topic="string", id="long"
    )


def test_rows_without_anything_to_send_are_refused() -> None:
    assert "no other column to make a JSON object of" in refusal(key="string")


@pytest.mark.parametrize("kind", ["variant", "void", mapping("long", "string"), array(struct(a="interval day"))])
def test_columns_that_have_no_form_in_json_are_refused(kind: Any) -> None:
    assert "column 'odd'" in refusal(id="long", odd=kind)


def test_a_null_among_the_headers_is_refused_and_its_column_named(tmp_path: Path) -> None:
    headers = pa.array([[{"key": "k", "value": b"1"}, None]], HEADERS)
    with pytest.raises(Refused, match="a NULL among its headers: one struct in the array of column `headers`"):
        records(tmp_path, pa.table({"value": ["v"], "headers": headers}))


def test_a_header_without_a_key_is_refused(tmp_path: Path) -> None:
    headers = pa.array([[{"key": None, "value": b"1"}]], HEADERS)
    with pytest.raises(Refused, match="a header without a key"):
        records(tmp_path, pa.table({"value": ["v"], "headers": headers}))


@pytest.mark.parametrize("key", ["a\0b", "\0"])
def test_a_header_whose_key_the_client_would_cut_off_is_refused(tmp_path: Path, key: str) -> None:
    headers = pa.array([[{"key": key, "value": b"1"}]], HEADERS)
    with pytest.raises(Refused, match=r"EPOCHS-TOPIC-ROWS-UNFIT(.|\n)*the character U\+0000"):
        records(tmp_path, pa.table({"value": ["v"], "headers": headers}))


def test_rows_of_a_receipt_that_was_made_by_a_marker_put_by_hand_cannot_be_told() -> None:
    """Such a marker does not say where the rows are, which is no loss of rows."""
    receipt = Mock(rows=3, detail={"topic_id": "i", "offsets": {}})
    with pytest.raises(Refused, match="the receipt does not say where they are") as untold:
        list(of_epoch(Mock(**{"topic.return_value": facts()}), "t", receipt, "orders/events"))
    assert untold.value.code is codes.DRY_RUN_UNTOLD
    receipt.rows = 0
    assert list(of_epoch(Mock(**{"topic.return_value": facts()}), "t", receipt, "orders/events")) == []


# --- what the topic does not take -----------------------------------------------------------------------------


def facts(**settings: str) -> TopicFacts:
    given = {"max.message.bytes": "1000", "cleanup.policy": "delete", **settings}
    return TopicFacts(
        name="t", id="i", partitions=2, replicas=1, allowed=None, settings=given, servers=("kafka-1:9092",)
    )


def reason(*records: KafkaRecord, **settings: str) -> str:
    with pytest.raises(Refused) as caught:
        require_records(records, facts(**settings))
    return caught.value.what


def test_rows_that_the_topic_does_not_take_are_named() -> None:
    good: KafkaRecord = (b"k", b"v", 1, [])
    require_records([good] * 10, facts(**{"cleanup.policy": "compact,delete"}))
    assert "row 1 makes a record of 1098 bytes, but the topic has max.message.bytes=1000" in reason(
        good, (b"k", b"x" * 1000, 0, [])
    )
    assert "row 2 is for partition 2, but the topic has 2 partitions" in reason(good, good, (None, b"v", 2, []))
    assert "row 0 is for partition -1" in reason((None, b"v", -1, []))
    assert "row 0 has no key" in reason((None, b"v", 0, []), **{"cleanup.policy": "compact"})
    large = {"max.message.bytes": str(2**31 - 1)}
    assert "the sink sends at most 33554432" in reason((None, b"x" * (32 << 20), 0, []), **large)
    assert reason(*[(None, b"v", 9, [])] * 5).endswith("row 2 is for partition 9, but the topic has 2 partitions ….")


def test_a_marker_that_is_larger_than_a_file_of_its_topic_names_the_command_that_raises_what_limits_it() -> None:
    marker = MarkerRecord.of_fence(transaction(1), "t", None)
    roomy = facts(**{"max.message.bytes": "5000", "segment.bytes": "5000"})
    require_room(roomy, facts(), marker)
    with pytest.raises(Refused, match="The marker topic t takes at most 300 bytes") as refused:
        require_room(facts(**{"max.message.bytes": "5000", "segment.bytes": "300"}), facts(), marker)
    [raised] = re.findall(r"--entity-name t --add-config segment.bytes=(\d+)`", refused.value.remedy)
    require_room(facts(**{"max.message.bytes": "5000", "segment.bytes": raised}), facts(), marker)


def test_the_size_of_a_record_counts_its_headers() -> None:
    assert size_of((b"ab", b"cde", None, [("ü", b"1234"), ("n", None)])) - size_of((None, None, None, [])) == 32


def test_a_map_with_equal_keys_is_refused(tmp_path: Path) -> None:
    data = pa.table({"tags": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))})
    with pytest.raises(Refused, match="duplicate key was 'a'"):
        records(tmp_path, data)
