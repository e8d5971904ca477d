"""The value types: ids that round-trip, names that fit everywhere, a checkpoint record that fits into XCom."""

from __future__ import annotations

import json
import operator
import pickle
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_epochs.ledger.codec import from_plain, to_json, to_plain
from airflow_epochs.model import (
    Checkpoint,
    DecisionKind,
    Marker,
    OffsetRange,
    Ranges,
    Receipt,
    Run,
    RunIndex,
    Staged,
    StagedClaim,
    StageReport,
    TransactionId,
    Vote,
    VoteKind,
    agree,
    ends_of,
    records_upper_bound,
    seed_of,
)
from airflow_epochs.names import validated_name
from airflow_epochs.operators.xcom import from_xcom, to_xcom

NONCE = "0123456789abcdef" * 2

LETTERS = "ABCXYZabcxyz0189"
NAMES = st.builds(str.__add__, st.sampled_from(LETTERS), st.text(LETTERS + "_-", max_size=62))
NONCES = st.text("0123456789abcdef", min_size=32, max_size=32)


@pytest.mark.proof
@settings(database=None)
@given(NAMES, st.integers(1, 10**12), st.integers(1, 10**6), NONCES)
def test_a_transaction_id_survives_its_text(pipeline: str, epoch: int, attempt: int, nonce: str) -> None:
    txn = TransactionId(pipeline, epoch, attempt, nonce)
    assert TransactionId.parse(str(txn)) == txn


@pytest.mark.proof
@settings(database=None)
@given(NAMES, st.integers(1, 10**12), st.integers(1, 10**6), NONCES)
def test_a_fence_is_known_by_its_id_and_by_its_marker(pipeline: str, epoch: int, attempt: int, nonce: str) -> None:
    txn = TransactionId(pipeline, epoch, attempt, nonce)
    assert txn.fence == TransactionId.parse(str(txn)).fence
    assert txn.fence.is_fence and Marker.of(txn.fence).is_fence and not Marker(epoch, None).is_fence
    assert not agree(Marker.of(txn.fence), txn)


@pytest.mark.proof
def test_what_was_drawn_at_random_is_no_fence() -> None:
    drawn = [TransactionId("p", 1, 1, f"{number:016x}{number:016x}") for number in range(0, 2**64, 2**50 + 1)]
    assert not [txn for txn in drawn if txn.is_fence or Marker.of(txn).is_fence]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "p",
        f"p/1/{NONCE}",
        f"p/1/1/1/{NONCE}",
        f"p/0/1/{NONCE}",
        f"p/1/0/{NONCE}",
        f"p/-1/1/{NONCE}",
        f"p/01/1/{NONCE}",
        f"p/1_0/1/{NONCE}",
        f"p/+1/1/{NONCE}",
        f"p/ 1/1/{NONCE}",
        f"p/1.0/1/{NONCE}",
        f"p/٣/1/{NONCE}",
        f"/1/1/{NONCE}",
        f"a b/1/1/{NONCE}",
        f"p/1/1/{NONCE[:-1]}",
        f"p/1/1/{NONCE.upper()}",
        f"p/1/1/{NONCE}\n",
    ],
)
def test_what_is_no_transaction_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        TransactionId.parse(text)


def test_transaction_ids_are_ordered_by_their_numbers_and_have_no_order_with_text() -> None:
    ascending = [
        TransactionId("p", 2, 10, NONCE),
        TransactionId("p", 10, 1, NONCE),
        TransactionId("p", 10, 9, NONCE),
        TransactionId("p", 10, 10, NONCE),
        TransactionId("p", 10, 10, "f" * 32),
        TransactionId("q", 1, 1, NONCE),
    ]
    descending, (first, *others) = list(reversed(ascending)), ascending
    assert sorted(descending) == ascending and max(descending) == others[-1]
    assert all(first < other and other > first and first <= other and other >= first for other in others)
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        for pair in ((first, str(others[0])), (str(others[0]), first)):
            with pytest.raises(TypeError, match="has no order with 'p/10/1/"):
                compare(*pair)


def pickled(txn: TransactionId) -> TransactionId:
    again: TransactionId = pickle.loads(pickle.dumps(txn))
    return again


@pytest.mark.parametrize("copied", [pickled, copy, deepcopy])
def test_a_copy_of_a_transaction_id_has_its_parts(copied: Callable[[TransactionId], TransactionId]) -> None:
    again = copied(TransactionId("p", 3, 2, NONCE))
    assert again == f"p/3/2/{NONCE}" and type(again) is TransactionId
    assert (again.pipeline, again.epoch, again.attempt, again.nonce) == ("p", 3, 2, NONCE)
    with pytest.raises(AttributeError, match="never changed"):
        again.epoch = 4


def test_a_transaction_id_is_its_text() -> None:
    txn, text = TransactionId("p", 3, 2, NONCE), f"p/3/2/{NONCE}"
    assert txn == text and hash(txn) == hash(text) and {text: 1}[txn] == 1 and repr(txn) == repr(text)
    assert type(str(txn)) is type(f"{txn}") is str
    assert txn.with_nonce("f" * 32) == f"p/3/2/{'f' * 32}"


def test_in_a_record_it_is_an_id_and_in_json_it_is_text() -> None:
    record = checkpoint(1, 1)
    plain = to_plain(record)
    assert type(plain["txn_id"]) is type(plain["receipts"]["sink_0"]["txn_id"]) is str
    assert json.loads(to_json(record))["txn_id"] == record.txn_id
    again = from_plain(json.loads(to_json(record)), Checkpoint)
    assert again == record and isinstance(again.txn_id, TransactionId)
    for wrong in (3, None, "p/1", ["p"]):
        with pytest.raises(msgspec.ValidationError, match=r"at `\$\.txn_id`"):
            from_plain({**plain, "txn_id": wrong}, Checkpoint)


def test_two_attempts_with_the_same_numbers_differ_by_their_nonce() -> None:
    one, other = TransactionId("p", 1, 1, NONCE), TransactionId("p", 1, 1, NONCE[::-1])
    assert one != other and one.token != other.token and Marker.of(one) != Marker.of(other)


@settings(database=None)
@given(NONCES)
def test_the_token_fits_into_a_signed_64_bit_number(nonce: str) -> None:
    assert 0 <= TransactionId("p", 1, 1, nonce).token < 2**63


@pytest.mark.parametrize("name", ["a", "9", "Orders_eu-1", "x" * 63])
def test_a_usable_name_is_returned(name: str) -> None:
    assert validated_name("sink", name) == name


@pytest.mark.parametrize("name", ["", "-a", "_a", "a b", "a.b", "a/b", "..", "ä", "x" * 64, "a\n"])
def test_a_name_that_cannot_be_a_key_a_folder_and_a_task_id_is_refused_and_quoted(name: str) -> None:
    with pytest.raises(ValueError, match=r"sink name .* is not usable"):
        validated_name("sink", name)


def test_vote_commit_needs_something_staged_and_vote_abort_a_reason() -> None:
    with pytest.raises(ValueError, match="without staged"):
        Vote(vote=VoteKind.VOTE_COMMIT)
    with pytest.raises(ValueError, match="without a reason"):
        Vote(vote=VoteKind.VOTE_ABORT, reason="")


def test_ranges_are_half_open() -> None:
    ranges: Ranges = {"t": (OffsetRange(0, 5, 9), OffsetRange(1, 4, 4)), "u": (OffsetRange(0, 0, 1),)}
    assert records_upper_bound(ranges) == 5
    assert ends_of(ranges) == {("t", 0): 9, ("t", 1): 4, ("u", 0): 1}


def test_a_seed_is_the_same_for_every_attempt_and_differs_between_epochs_pipelines_and_ledgers() -> None:
    assert seed_of("p", 1, "l") == seed_of("p", 1, "l")
    others = {seed_of("p", 1, "l"), seed_of("p", 2, "l"), seed_of("q", 1, "l"), seed_of("p", 1, "m")}
    assert len(others) == 4
    assert all(0 <= seed < 2**31 for seed in others)


def test_runs_of_different_dags_never_share_an_index_key() -> None:
    runs = [Run("a", "b"), Run("ab", ""), Run("", "ab"), Run("a\0", "b"), Run("b", "a"), Run("x" * 250, "y" * 250)]
    keys = {RunIndex.key_of(run) for run in runs[:3] + runs[4:]}
    assert len(keys) == 5
    assert all(len(key) == 40 for key in keys)


def checkpoint(partitions: int, sinks: int) -> Checkpoint:
    """A checkpoint record as ``complete`` returns it, with 13-digit offsets and long place names."""
    txn_id = TransactionId("p" * 63, 123456, 12, NONCE)
    staged = Staged(place="s3://bucket/" + "x" * 160, version=1, files=99, rows=10**9, bytes=10**12, digest="d" * 64)
    names = [f"sink_{n}" for n in range(sinks)]
    return Checkpoint(
        pipeline="p" * 63,
        epoch=123456,
        attempt=12,
        txn_id=txn_id,
        ranges={"topic": tuple(OffsetRange(n, 1234567890123, 1234567899999) for n in range(partitions))},
        state="complete",
        stage=StageReport(
            txn_id=txn_id, try_id=NONCE, claims={name: StagedClaim(place=staged.place) for name in names}
        ),
        votes={name: Vote(vote=VoteKind.VOTE_COMMIT, staged=staged) for name in names},
        decision=DecisionKind.GLOBAL_COMMIT,
        receipts={
            name: Receipt(
                txn_id=txn_id,
                sink=name,
                rows=10**9,
                files=99,
                bytes=10**12,
                version=10**6,
                committed_at="t" * 32,
                place=staged.place,
            )
            for name in names
        },
    )


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["compact", "as json.dumps writes"])
def test_the_checkpoint_record_of_a_thousand_partitions_with_large_offsets_fits_into_48_kb(
    separators: tuple[str, str],
) -> None:
    plain = to_plain(checkpoint(1000, sinks=4))
    assert len(json.dumps(plain, separators=separators)) <= 48 * 1024


def with_offsets(record: Checkpoint, partitions: int) -> Checkpoint:
    """Receipts as those of Kafka sinks, each with a topic of so many partitions."""
    offsets = {str(n): [1234567890123, 1234567899999] for n in range(partitions)}
    detail = {"topic": "t" * 40, "offsets": offsets}
    return replace(record, receipts={name: replace(of, detail=detail) for name, of in record.receipts.items()})


@pytest.mark.parametrize(
    ("topics", "partitions", "sinks", "whole"),
    [(1, 1000, 1, True), (1, 1000, 3, True), (3, 334, 1, True), (3, 1000, 3, False)],
)
def test_an_xcom_of_a_thousand_partitions_in_and_out_fits_into_48_kb(
    topics: int, partitions: int, sinks: int, whole: bool
) -> None:
    record = with_offsets(checkpoint(partitions, sinks), 1000)
    record = replace(record, ranges={f"topic-{n}": record.ranges["topic"] for n in range(topics)})
    xcom = to_xcom(record)
    assert len(json.dumps(xcom)) <= 48 * 1024
    again = from_xcom(xcom)
    assert (again.stage, again.votes, again.txn_id) == (record.stage, record.votes, record.txn_id)
    assert {of.detail["topic"] for of in again.receipts.values()} == {"t" * 40}
    assert {tuple(of.detail["left_out"]) for of in again.receipts.values()} == {("offsets",)}
    if whole:
        assert again.ranges == record.ranges and not again.totals
    else:
        assert again.totals == {f"topic-{n}": {"partitions": 1000, "offsets": 9876000} for n in range(3)}


def test_event_times_stay_in_an_xcom_however_many_there_are_since_the_vote_reads_them() -> None:
    record = checkpoint(partitions=3000, sinks=1)
    assert record.stage
    times = {"topic": {str(number): 1_700_000_000_000_000 + number for number in range(3000)}}
    xcom = to_xcom(replace(record, stage=replace(record.stage, event_times=times)))
    assert xcom["stage"]["event_times"] == times
    assert len(json.dumps(xcom)) <= 48 * 1024 + 26 * 3000


def test_an_xcom_that_is_small_enough_leaves_nothing_out() -> None:
    record = with_offsets(checkpoint(partitions=20, sinks=2), 20)
    assert from_xcom(to_xcom(record)) == record


def test_an_xcom_has_the_id_of_its_try_under_the_key_of_version_0_1() -> None:
    record = checkpoint(partitions=1, sinks=1)
    xcom = to_xcom(record)
    assert (xcom["stage"]["nonce"], "try_id" in xcom["stage"]) == (NONCE, False)
    assert from_xcom(xcom) == record
