"""What the ledger writes is what it reads, and anything else is noticed."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_epochs.ledger.codec import DEPTH_MAX, NewerFormat, decode, encode, to_plain
from airflow_epochs.model import (
    FORMAT,
    FORMAT_UNSIGNED,
    Backlog,
    Command,
    CompleteRecord,
    DecisionKind,
    DecisionRecord,
    OffsetRange,
    OpenRecord,
    PartitionTime,
    PipelineRecord,
    Receipt,
    RestagedRecord,
    RestorePoint,
    Run,
    RunIndex,
    SigningRecord,
    SinkPlan,
    Staged,
    StatePin,
    TakeoverRecord,
    TransactionId,
    TryRecord,
    Vote,
    VoteKind,
    WaivedRecord,
)

RECORDS = [
    PipelineRecord,
    TakeoverRecord,
    OpenRecord,
    TryRecord,
    DecisionRecord,
    Receipt,
    RestagedRecord,
    WaivedRecord,
    CompleteRecord,
    RunIndex,
    SigningRecord,
]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,9}", fullmatch=True)
NONCE = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
TXN = st.builds(TransactionId, NAME, st.integers(1, 2**62), st.integers(1, 2**62), NONCE)
COUNT = st.integers(0, 2**62)
JSON = st.dictionaries(TEXT, st.none() | st.booleans() | COUNT | TEXT | st.lists(TEXT, max_size=2), max_size=3)
STAGED = st.builds(Staged, place=TEXT, version=COUNT, files=COUNT, rows=COUNT, bytes=COUNT, digest=TEXT)
VOTES = st.builds(Vote, vote=st.just(VoteKind.VOTE_COMMIT), staged=STAGED) | st.builds(
    Vote, vote=st.just(VoteKind.VOTE_ABORT), reason=st.text("abc ü", min_size=1, max_size=8)
)
RANGES = st.dictionaries(TEXT, st.lists(st.builds(OffsetRange, COUNT, COUNT, COUNT), max_size=3).map(tuple), max_size=2)
RUNS = st.builds(Run, TEXT, TEXT)
RECEIPTS = st.builds(
    Receipt,
    txn_id=TXN,
    sink=TEXT,
    rows=COUNT,
    files=COUNT,
    bytes=COUNT,
    version=st.none() | COUNT,
    committed_at=TEXT,
    place=st.none() | TEXT,
    detail=JSON,
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "ranges": RANGES,
    "source": JSON,
    "source_state": JSON,
    "session": JSON,
    "ledger_id": NAME,
    "try_id": NONCE,
    "detail": JSON,
    "metrics": JSON,
    "sinks": st.dictionaries(NAME, st.builds(SinkPlan, spec=JSON, previous=st.none() | TXN), max_size=2),
    "trusted": st.dictionaries(TEXT, TEXT, max_size=2),
    "txn_id": TXN,
    "waived": st.lists(TEXT, max_size=2).map(tuple),
    "waived_ids": st.dictionaries(TEXT, st.lists(TXN, max_size=2).map(tuple), max_size=2),
    "warnings": st.lists(TEXT, max_size=2).map(tuple),
    "watermarks": st.lists(st.none() | COUNT, max_size=3).map(tuple),
    "state": st.dictionaries(NAME, st.builds(StatePin, version=st.none() | COUNT, fold=st.booleans()), max_size=2),
    "places": st.dictionaries(TEXT, TEXT, max_size=2),
    "markers": st.dictionaries(TEXT, TXN, max_size=2),
    "votes": st.dictionaries(TEXT, VOTES, max_size=2),
    "receipts": st.dictionaries(TEXT, RECEIPTS, max_size=2),
    "decision": st.sampled_from(DecisionKind),
    "opened_by": RUNS,
    "completed_by": RUNS,
    "seed": st.integers(0, 2**31 - 1),
    "epoch": COUNT,
    "rows": COUNT,
    "files": COUNT,
    "bytes": COUNT,
    "version": st.none() | COUNT,
    "place": st.none() | TEXT,
    "number": COUNT,
    "staged": STAGED,
    "code": st.none() | TEXT,
    "DecisionRecord.event_times": st.dictionaries(TEXT, st.dictionaries(TEXT, COUNT, max_size=2), max_size=2),
    "CompleteRecord.event_times": st.dictionaries(
        TEXT, st.dictionaries(TEXT, st.builds(PartitionTime, newest=COUNT, seen=TEXT), max_size=2), max_size=2
    ),
    "command": st.none() | st.builds(Command, name=TEXT, who=TEXT, why=TEXT, at=TEXT, lost=RANGES, again=RANGES),
    "commands": st.lists(st.builds(Command, name=TEXT, who=TEXT, why=TEXT, at=TEXT), max_size=2).map(tuple),
    "obeys": COUNT,
    "moved": st.booleans(),
    "moved_in": COUNT,
    "adopted_in": st.dictionaries(NAME, COUNT, max_size=2),
    "adopted": st.dictionaries(NAME, st.none() | TXN, max_size=2),
    "restored_to": COUNT,
    "restores": st.dictionaries(NAME, st.builds(RestorePoint, epoch=COUNT, version=COUNT, state=JSON), max_size=2),
    "backlog": st.none() | st.builds(Backlog, offsets=COUNT, seconds=st.none() | st.floats(0, 10**9)),
    "format": st.just(1),
}


def strategy_of(kind: type) -> st.SearchStrategy[Any]:
    names = [field.name for field in fields(kind)]
    return st.builds(kind, **{name: FIELDS.get(f"{kind.__name__}.{name}", FIELDS.get(name, TEXT)) for name in names})


def example() -> DecisionRecord:
    staged = Staged(place="t/epochs/1-1-é", version=1, files=2, rows=3, bytes=4, digest="d")
    return DecisionRecord(
        txn_id=TransactionId("p", 1, 1, "0" * 32),
        decision=DecisionKind.GLOBAL_COMMIT,
        reason="every sink voted VOTE_COMMIT",
        votes={"a": Vote(vote=VoteKind.VOTE_COMMIT, staged=staged)},
        dag_id="dag",
        run_id="run",
        decided_at="2026-01-01T00:00:00+00:00",
        writer="w",
    )


def test_a_try_has_its_id_under_the_key_of_version_0_1() -> None:
    txn = TransactionId("p", 1, 1, "0" * 32)
    record = TryRecord(txn_id=txn, try_id="a" * 32, places={}, session={}, started_at="now")
    value = encode(record)
    assert b'"nonce":"' + b"a" * 32 in value and b"try_id" not in value
    assert decode(value, TryRecord) == record


@pytest.mark.parametrize("kind", RECORDS)
def test_every_record_survives_writing_and_reading(kind: type) -> None:
    @settings(max_examples=40, database=None)
    @given(strategy_of(kind))
    def survives(record: object) -> None:
        assert decode(encode(record), kind) == record

    survives()


def test_a_record_cut_off_at_any_byte_is_refused() -> None:
    value = encode(example())
    for length in range(len(value)):
        with pytest.raises(ValueError):
            decode(value[:length], DecisionRecord)


def test_a_record_with_any_bit_flipped_is_refused() -> None:
    value = encode(example())
    for bit in range(len(value) * 8):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError):
            decode(bytes(flipped), DecisionRecord)


@pytest.mark.parametrize("appended", [b" ", b"\n", b"\0", b"}", b"{}"])
def test_a_record_with_something_behind_it_is_refused(appended: bytes) -> None:
    with pytest.raises(ValueError):
        decode(encode(example()) + appended, DecisionRecord)


@pytest.mark.parametrize("value", [b"", b"{}", b"null", b"\xff\xfe", b'{"format":1}', b"not JSON at all"])
def test_what_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError):
        decode(value, DecisionRecord)


def resealed(change: dict[str, object]) -> bytes:
    """The example with changed members and a checksum that fits: another version's record, not damage."""
    return encode({**to_plain(example()), **change})


def test_a_record_of_a_newer_format_is_told_apart_from_a_damaged_one() -> None:
    with pytest.raises(NewerFormat) as newer:
        decode(resealed({"format": FORMAT + 1, "votes": "something else by then"}), DecisionRecord)
    assert newer.value.format == FORMAT + 1


def test_fields_that_a_newer_writer_of_the_same_format_added_are_ignored() -> None:
    assert decode(resealed({"later": {"any": ["thing"]}}), DecisionRecord) == example()


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (
            WaivedRecord,
            b'{"sha256":"ac0ec01114830ca5","txn_id":"p/1/1/00000000000000000000000000000000","sink":"a","who":"alice",'
            b'"why":"dropped","at":"2026-01-01T00:00:00+00:00","format":1}',
        ),
        (
            TakeoverRecord,
            b'{"sha256":"7498e2bab42cec76","dag_id":"new","who":"alice","why":"renamed",'
            b'"at":"2026-01-01T00:00:00+00:00","writer":"w","format":1}',
        ),
    ],
)
def test_records_that_name_an_operator_without_his_host_are_read(
    kind: type[WaivedRecord | TakeoverRecord], written: bytes
) -> None:
    """As version 0.1 wrote them."""
    record = decode(written, kind)
    assert (record.who, record.host, record.login) == ("alice", "", "")


@pytest.mark.parametrize(
    "change", [{"decision": "MAYBE"}, {"votes": []}, {"txn_id": 3}, {"votes": {"a": {"vote": "VOTE_COMMIT"}}}]
)
def test_a_record_of_another_shape_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="it is not a valid DecisionRecord"):
        decode(resealed(change), DecisionRecord)


def test_a_record_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="it is not a valid OpenRecord"):
        decode(encode(example()), OpenRecord)


def test_the_format_is_written_into_every_record() -> None:
    for kind in RECORDS:
        [format] = [field.default for field in fields(kind) if field.name == "format"]
        assert format == (FORMAT if kind is SigningRecord else FORMAT_UNSIGNED)


@pytest.mark.parametrize("opening", ["[", '{"x":'])
def test_a_record_nested_too_deeply_is_no_record(opening: str) -> None:
    closing = {"[": "]", '{"x":': "}"}[opening]

    def nested(depth: int) -> bytes:
        value = f"{opening * depth}1{closing * depth}"
        body = encode(example())[29:].replace(b'"format":1', f'"later":{value},"format":1'.encode())
        return b'{"sha256":"' + hashlib.sha256(b"{" + body).hexdigest()[:16].encode() + b'",' + body

    assert decode(nested(DEPTH_MAX - 1), DecisionRecord) == example()
    for depth in (DEPTH_MAX, 1_000, 1_000_000):
        with pytest.raises(ValueError, match="more than 50 levels deep"):
            decode(nested(depth), DecisionRecord)


def test_brackets_within_text_are_not_depth() -> None:
    record = replace(example(), reason=r"a \" [ " + "[{" * 1_000)
    assert decode(encode(record), DecisionRecord) == record
