"""Where the records of an epoch went: read = written + dead letters + left out."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_epochs.ledger.queries import RecordCounts, accounts
from airflow_epochs.model import CompleteRecord, Receipt, Run, TransactionId

TXN = TransactionId("orders", 1, 1, "0" * 32)


def receipt(sink: str, rows: int, **detail: Any) -> Receipt:
    values = {"files": 1, "bytes": 1, "version": 0, "committed_at": "now"}
    return Receipt(txn_id=TXN, sink=sink, rows=rows, detail=detail, **values)  # type: ignore[arg-type]


def complete(receipts: list[Receipt], **metrics: Any) -> CompleteRecord:
    return CompleteRecord(
        txn_id=TXN,
        ranges={},
        source_state={},
        receipts={each.sink: each for each in receipts},
        markers={},
        opened_by=Run("dag", "run"),
        completed_by=Run("dag", "run"),
        metrics=metrics,
        completed_at="now",
        writer="me",
    )


def test_what_was_read_is_written_dead_lettered_or_left_out() -> None:
    shown = [receipt("lake", 90), receipt("database", 85), receipt("rejected", 12), receipt("seen", 7, state={"of": 1})]
    letters = {"dead_letter_sink": "rejected", "dead_letters": {"database": 5, "lake": 1}}
    found = accounts(complete(shown, rows_in=100, **letters))
    assert found == {
        "database": RecordCounts(read=100, written=85, dead_letters=5 + 6, left_out=4),
        "lake": RecordCounts(read=100, written=90, dead_letters=1 + 6, left_out=3),
    }


@pytest.mark.parametrize("metrics", [{"rows_in": 10}, {"rows_in": 10, "dead_letter_sink": "rejected"}])
def test_a_transform_that_makes_more_rows_than_records_has_left_out_nobody_knows_how_many(
    metrics: dict[str, Any],
) -> None:
    [account] = accounts(complete([receipt("lake", 11)], **metrics)).values()
    assert account == RecordCounts(read=10, written=11, dead_letters=0, left_out=None)


def test_without_a_count_of_the_records_there_is_no_account() -> None:
    assert accounts(complete([receipt("lake", 11)])) == {}
