"""Damaged, foreign and newer records are told apart, named, and never acted on."""

from __future__ import annotations

import pytest

from airflow_epochs.errors import Corrupt, EpochError, Refused
from airflow_epochs.ledger.codec import encode
from airflow_epochs.ledger.keys import key_of
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import (
    FORMAT,
    DecisionKind,
    OpenRecord,
)
from airflow_epochs.testing import DictStore
from tests.support.records import decision, open_record, receipt, whole_epoch


def damaged(key: str, value: bytes) -> Ledger:
    store = DictStore()
    whole_epoch(Ledger(store, "p"))
    assert f"p/{key}" in store.values
    store.values[f"p/{key}"] = value
    return Ledger(store, "p")


RECORD_KEYS = [key_of(record) for record in (open_record(), decision(DecisionKind.GLOBAL_COMMIT), receipt())]


@pytest.mark.parametrize("key", RECORD_KEYS)
@pytest.mark.parametrize("value", [b"", b"{}", encode(receipt())[:-1], b"garbage"], ids=["empty", "{}", "cut", "other"])
def test_a_damaged_record_is_corrupt_and_named(key: str, value: bytes) -> None:
    with pytest.raises(Corrupt, match=r"(?s)is damaged.*Restore this one file") as corrupt:
        damaged(key, value).view(1)
    assert f"p/{key}" in str(corrupt.value)


def test_a_damaged_record_is_not_taken_for_a_lost_acknowledgement() -> None:
    key = key_of(decision(DecisionKind.GLOBAL_ABORT))
    with pytest.raises(Corrupt):
        damaged(key, b"garbage").put(decision(DecisionKind.GLOBAL_ABORT))


@pytest.mark.parametrize(
    "foreign",
    [open_record(pipeline="q"), open_record(epoch=2), open_record(attempt=2)],
    ids=["another pipeline's", "another epoch's", "another attempt's"],
)
def test_a_record_that_belongs_elsewhere_is_corrupt(foreign: OpenRecord) -> None:
    with pytest.raises(Corrupt, match="it belongs to"):
        damaged(key_of(open_record()), encode(foreign)).view(1)


def test_records_of_two_histories_in_one_epoch_are_corrupt() -> None:
    mixed = encode(decision(DecisionKind.GLOBAL_COMMIT, digit="9"))
    with pytest.raises(Corrupt, match=r"(?s)contradict each other.*Restore the whole folder of the epoch"):
        damaged(key_of(decision(DecisionKind.GLOBAL_COMMIT)), mixed).view(1)


def test_a_record_of_a_newer_version_is_refused_and_says_to_upgrade() -> None:
    key = key_of(decision(DecisionKind.GLOBAL_COMMIT))
    with pytest.raises(
        Refused, match=r"(?s)decision.json has format 3\. This version of the provider reads formats up to 2.*Upgrade"
    ):
        damaged(key, encode({"format": FORMAT + 1})).view(1)


@pytest.mark.parametrize("name", ["", "a b", "../up", "x" * 64])
def test_a_pipeline_name_that_is_no_key_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="pipeline name"):
        Ledger(DictStore(), name)


def test_an_error_prints_its_remedy() -> None:
    for error in EpochError.__subclasses__():
        assert "What to do: look." in str(error("Something.", remedy="look."))
