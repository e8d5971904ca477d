"""Checkpoint folders of Spark queries: what is read, what is written, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.model import OffsetRange
from airflow_epochs.sources.kafka.checkpoint import (
    OFFSET_MAX,
    StreamCheckpoint,
    checkpoint_of,
    kafka_offsets,
    read_checkpoint,
    write_checkpoint,
)
from airflow_epochs.storage.files import open_files

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1763900000000,"conf":{"spark.sql.shuffle.partitions":"200"}}'
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
OFFSETS = st.dictionaries(
    st.text("abc.-_", min_size=1, max_size=5),
    st.dictionaries(st.integers(0, 2000), st.integers(0, OFFSET_MAX), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)


def batch(*sources: str) -> str:
    return "\n".join(["v1", SETTINGS, *sources])


def named(*sources: str) -> str:
    """As Spark 4.2 writes it with ``spark.sql.streaming.offsetLog.formatVersion`` 2."""
    return "\n".join(["v2", SETTINGS, *sources])


def folder(root: Path, **texts: str) -> Path:
    """Two batches, the second of which is not committed; ``texts``: other files, or none if the text is empty."""
    usual = {
        "metadata": '{"id":"a-query"}',
        "offsets/0": batch('{"t":{"0":2,"1":3}}'),
        "offsets/1": batch('{"t":{"0":4,"1":3,"2":1}}'),
        "commits/0": COMMIT,
        "offsets/.0.crc": "a checksum",
        "offsets/.1.6a7b.tmp": "half a batch",
    }
    for path, text in {**usual, **texts}.items():
        if text:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
    return root


def read(root: Path, taken: int | None = None) -> StreamCheckpoint:
    return read_checkpoint(open_files(str(root)), str(root), taken)


def test_the_newest_committed_batch_counts_and_the_planned_one_is_told(tmp_path: Path) -> None:
    found = read(folder(tmp_path))
    assert (found.query, found.batch, found.offsets) == ("a-query", 0, {"t": {0: 2, 1: 3}})
    assert (found.planned, found.has_state) == (1, False)
    assert found.uncommitted == {"t": (OffsetRange(0, 2, 4), OffsetRange(2, 0, 1))}


def test_a_batch_that_the_sink_has_counts_as_committed(tmp_path: Path) -> None:
    found = read(folder(tmp_path), taken=1)
    assert (found.batch, found.uncommitted) == (1, {})
    assert found.offsets == {"t": {0: 4, 1: 3, 2: 1}}


@pytest.mark.parametrize(("taken", "told"), [(2, "the folder is an older copy"), (-1, "the table is an older copy")])
def test_a_sink_with_which_the_query_cannot_be_is_refused(tmp_path: Path, taken: int, told: str) -> None:
    with pytest.raises(Refused, match=told):
        read(folder(tmp_path), taken)


BROKEN = {
    "nothing there": (dict.fromkeys(("offsets/0", "offsets/1", "commits/0"), ""), "neither batches in offsets nor"),
    "never committed": ({"commits/0": ""}, "no batch of the query is committed"),
    "offsets of the batch missing": ({"offsets/0": ""}, "offsets/0 is missing"),
    "an empty file": ({"offsets/0": "v1"}, "has 0 sources"),
    "torn": ({"offsets/0": batch('{"t":{"0":2,')}, "is not Kafka"),
    "torn settings": ({"offsets/0": 'v1\n{"batch\n{"t":{"0":2}}'}, "no settings of a query"),
    "another version": ({"offsets/0": batch('{"t":{"0":2}}').replace("v1", "v3")}, "begins with 'v3'.* knows v1, v2"),
    "an empty file of commits": ({"commits/0": "\n"}, "commits/0 begins with ''"),
    "two sources with names": ({"offsets/0": named('a:{"t":{"0":2}}', 'b:{"u":{"0":2}}')}, "has 2 sources"),
    "a source with a name that has no offsets yet": ({"offsets/0": named("a:-")}, "no offsets yet"),
    "files, by a name": ({"offsets/0": named('a:{"logOffset":7}')}, "is not Kafka"),
    "another version of commits": ({"commits/0": "v9\n{}"}, "begins with 'v9'"),
    "two sources": ({"offsets/0": batch('{"t":{"0":2}}', '{"u":{"0":2}}')}, "has 2 sources, and a pipeline has one"),
    "no offsets yet": ({"offsets/0": batch("-")}, "no offsets yet"),
    "files": ({"offsets/0": batch('{"logOffset":7}')}, "is not Kafka"),
    "a rate": ({"offsets/0": batch("7")}, "is not Kafka"),
    "a log that was compacted": ({"offsets/9.compact": "v1"}, "a compacted log"),
    "backwards": ({"offsets/1": batch('{"t":{"0":1,"1":3}}')}, r"goes back in t\[0\]"),
    "no text": ({"offsets/0": "\udcff"}, "is not a text"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_folder_that_cannot_be_taken_over_is_refused_with_the_file_and_the_reason(tmp_path: Path, name: str) -> None:
    texts, told = BROKEN[name]
    root = folder(tmp_path, **{path: text for path, text in texts.items() if text != "\udcff"})
    for path, text in texts.items():
        if text == "\udcff":
            (root / path).write_bytes(b"v1\n\xff")
    with pytest.raises(Refused, match=told) as refused:
        read(root)
    assert refused.value.code is codes.CHECKPOINT_UNUSABLE and str(tmp_path) in refused.value.what


@pytest.mark.parametrize("commits", ["v1", "v2", "v3"])
@pytest.mark.parametrize("name", ["0", "orders"])
def test_a_source_with_a_name_is_read_in_the_format_of_spark_4_2(tmp_path: Path, name: str, commits: str) -> None:
    ends = {f"offsets/{n}": named(f'{name}:{{"t":{{"0":{n}}}}}') for n in (0, 1)}
    found = read(folder(tmp_path, **ends, **{"commits/0": COMMIT.replace("v1", commits)}))
    assert (found.offsets, found.uncommitted) == ({"t": {0: 0}}, {"t": (OffsetRange(0, 0, 1),)})


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="neither batches in offsets nor in commits"):
        read(folder(tmp_path) / "metadata")


def test_state_is_told(tmp_path: Path) -> None:
    assert read(folder(tmp_path, **{"state/0/0/1.delta": "x"})).has_state


@settings(max_examples=25)
@given(offsets=OFFSETS)
def test_what_is_written_is_read_again(offsets: dict[str, dict[int, int]]) -> None:
    texts = checkpoint_of(offsets)
    assert list(texts)[-1] == "metadata"
    assert kafka_offsets(texts["offsets/0"].decode().splitlines()[-1]) == offsets
    with TemporaryDirectory() as root:
        write_checkpoint(open_files(root), root, offsets)
        found = read(Path(root))
    assert found.query and found.uncommitted == {} and not found.has_state
    assert (found.batch, found.planned, found.offsets) == (0, 0, offsets)


@pytest.mark.proof
@given(text=st.one_of(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)))
def test_no_text_that_is_not_offsets_is_taken_for_offsets(text: str) -> None:
    assert kafka_offsets(text) is None


@pytest.mark.parametrize("value", ["-1", "true", "1.0", '"2"', "null", str(2**63)])
def test_an_offset_that_is_no_offset_is_refused(value: str) -> None:
    assert kafka_offsets(f'{{"t":{{"0":{value}}}}}') is None
    assert kafka_offsets('{"t":{"0":1,"0":2}}') is None


def test_a_folder_that_is_taken_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    with pytest.raises(Refused) as refused:
        write_checkpoint(open_files(str(tmp_path)), str(tmp_path), {"t": {0: 1}})
    assert refused.value.code is codes.EXPORT_OCCUPIED
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
