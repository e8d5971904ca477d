"""The one comparison of what a sink shows with what a ledger knows."""

from __future__ import annotations

import pytest

from airflow_epochs.model import Marker, Shown, TransactionId, compare


def of(epoch: int, nonce: str, attempt: int = 1) -> TransactionId:
    return TransactionId("orders", epoch, attempt, nonce * 32)


BEFORE, NOW = of(4, "a"), of(6, "c")
STANDS: list[tuple[Marker | TransactionId | None, TransactionId | None, Shown]] = [
    (None, None, Shown.EXPECTED),
    (None, BEFORE, Shown.NOTHING),
    (BEFORE, BEFORE, Shown.EXPECTED),
    (Marker.of(BEFORE), BEFORE, Shown.EXPECTED),
    (Marker(4, None), BEFORE, Shown.EXPECTED),
    (of(4, "b"), BEFORE, Shown.ANOTHER),
    (of(4, "a", attempt=2), BEFORE, Shown.ANOTHER),
    (Marker.of(of(4, "b")), BEFORE, Shown.ANOTHER),
    (of(3, "a"), BEFORE, Shown.BEHIND),
    (Marker(3, None), BEFORE, Shown.BEHIND),
    (BEFORE, None, Shown.AHEAD),
    (Marker(5, None), BEFORE, Shown.AHEAD),
    (of(7, "a"), BEFORE, Shown.AHEAD),
    (Marker(7, BEFORE.token), BEFORE, Shown.AHEAD),
]
ON_ITS_WAY: list[tuple[Marker | TransactionId, Shown]] = [
    (NOW, Shown.ALREADY),
    (Marker.of(NOW), Shown.ALREADY),
    (Marker(6, None), Shown.NAMELESS),
    (Marker(6, BEFORE.token), Shown.AHEAD),
    (of(6, "c", attempt=2), Shown.AHEAD),
]


@pytest.mark.parametrize(("found", "expected", "stands"), STANDS)
def test_where_a_sink_stands_is_told_by_its_marker_and_what_is_expected(
    found: Marker | TransactionId | None, expected: TransactionId | None, stands: Shown
) -> None:
    assert compare(found, expected) is compare(found, expected, NOW) is stands


@pytest.mark.parametrize("expected", [None, BEFORE])
@pytest.mark.parametrize(("found", "stands"), ON_ITS_WAY)
def test_an_epoch_on_its_way_is_there_only_if_the_sink_says_whose_it_is(
    found: Marker | TransactionId, stands: Shown, expected: TransactionId | None
) -> None:
    assert compare(found, expected, NOW) is stands
    assert compare(found, expected) is Shown.AHEAD
