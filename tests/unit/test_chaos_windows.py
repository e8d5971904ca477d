"""The oracle of the chaos run's windows passes a good history, and says what is wrong with a bad one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_epochs.delta.table import App
from airflow_epochs.testing.history import Origin
from tests.chaos.books import OpenBook
from tests.chaos.windows import (
    SIZE_US,
    Closed,
    Late,
    Shown,
    Taken,
    Total,
    Transfer,
    Wanted,
    Window,
    judged_by_oracle,
)
from tests.support.records import complete

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
TOPIC = "transfers"
SECOND = 1_000_000


def transfer(payer: str, amount: int, second: float) -> Transfer:
    value = {"payer": payer, "payee": "x", "amount": amount, "at": int(second * SECOND)}
    return Transfer.of(json.dumps(value).encode())


FIRST = [transfer("a", 1, 10), transfer("b", 2, 20), transfer("a", 4, 65)]
SECOND_EPOCH = [transfer("a", 8, 70), transfer("a", 16, 90)]
THIRD = [transfer("a", 32, 30), transfer("b", 64, 100), transfer("b", 128, 200)]
EPOCHS = (FIRST, SECOND_EPOCH, THIRD, [transfer("c", 256, 210)])
"""The third one has a late transfer: its window ended at 60, and the watermark is just below 80."""


@dataclass(frozen=True)
class Bank:
    """A history, and what strangers have read of it."""

    epochs: tuple[Taken, ...]
    topic: dict[Origin, Transfer]
    shown: Shown

    def wrong(self) -> list[str]:
        return judged_by_oracle(self.epochs, self.topic, self.shown)


def bank(epochs: Sequence[Sequence[Transfer]] = EPOCHS, marks: Sequence[float | None] = (None, 55, 80, 190)) -> Bank:
    """Everything in one partition; an epoch each half minute; ``marks``: a microsecond later than the watermarks."""
    topic: dict[Origin, Transfer] = {}
    taken: list[Taken] = []
    for number, (rows, mark) in enumerate(zip(epochs, marks, strict=True)):
        start = len(topic)
        topic |= {Origin(TOPIC, 0, start + place): row for place, row in enumerate(rows)}
        taken.append(
            Taken(
                number=number + 1,
                now=NOON + number * timedelta(seconds=30),
                watermark=None if mark is None else int(mark * SECOND) - 1,
                ranges={(TOPIC, 0): range(start, len(topic))},
            )
        )
    return Bank(tuple(taken), topic, shown_of(Wanted.of(taken, topic)))


def shown_of(wanted: Wanted) -> Shown:
    return Shown(
        closed=list(wanted.closed.items()),
        late=list(wanted.late.items()),
        open=list(wanted.open.items()),
        totals={epoch: (total.transfers, total.transfers, total.amount) for epoch, total in wanted.totals.items()},
    )


def test_the_oracle_closes_windows_by_the_recorded_watermarks_and_tells_late_transfers_apart() -> None:
    good = bank()
    assert [(w.payer, w.start // SIZE_US, closed.epoch) for w, closed in good.shown.closed] == [
        ("a", 0, 3),
        ("b", 0, 3),
        ("a", 1, 4),
        ("b", 1, 4),
    ]
    assert [closed.total.amount for _, closed in good.shown.closed] == [1, 2, 4 + 8 + 16, 64]
    assert good.shown.closed[2][1].total.crc == FIRST[2].crc + SECOND_EPOCH[0].crc + SECOND_EPOCH[1].crc
    assert [(origin.offset, late.epoch) for origin, late in good.shown.late] == [(5, 3)]
    assert [(window.payer, total.amount) for window, total in good.shown.open] == [("b", 128), ("c", 256)]
    assert good.wrong() == []


def test_gaps_of_aborted_transactions_and_epochs_without_records_are_no_fault() -> None:
    good = bank()
    moved = {Origin(TOPIC, 0, 2 * origin.offset): record for origin, record in good.topic.items()}
    epochs = [
        replace(epoch, ranges={where: range(2 * r.start, 2 * r.stop) for where, r in epoch.ranges.items()})
        for epoch in good.epochs
    ]
    tick = replace(epochs[-1], number=5, watermark=200 * SECOND - 1, ranges={(TOPIC, 0): range(18, 18)})
    assert judged_by_oracle([*epochs, tick], moved, shown_of(Wanted.of([*epochs, tick], moved))) == []


# -- planted mistakes ----------------------------------------------------------------------------------------------


def a_window_shown_twice(good: Bank) -> Bank:
    return replace(good, shown=replace(good.shown, closed=[*good.shown.closed, good.shown.closed[0]]))


def an_output_made_again_from_the_newest_state(good: Bank) -> Bank:
    """The epoch's own commit of the state has dropped the file of the windows that it closes."""
    return replace(good, shown=replace(good.shown, closed=[each for each in good.shown.closed if each[1].epoch != 3]))


def changes_applied_twice(good: Bank) -> Bank:
    """The changes of an epoch rest on a state that has them already."""
    (window, total), *others = good.shown.open
    return replace(good, shown=replace(good.shown, open=[(window, total.plus(total)), *others]))


def a_state_with_two_newest_rows_of_a_key(good: Bank) -> Bank:
    return replace(good, shown=replace(good.shown, open=[*good.shown.open, good.shown.open[0]]))


def a_state_that_an_aborted_attempt_has_changed(good: Bank) -> Bank:
    """The state was committed before the decision, which was an abort."""
    window, closed = good.shown.closed[2]
    more = Closed(closed.epoch, closed.total.plus(Total(1, 8, 8)))
    closed_rows = [*good.shown.closed[:2], (window, more), *good.shown.closed[3:]]
    return replace(good, shown=replace(good.shown, closed=closed_rows))


def a_watermark_computed_anew_for_a_rerun(good: Bank) -> Bank:
    """The rerun of epoch 3 closed windows and told late transfers by a watermark that is not on record."""
    epochs = [*good.epochs[:2], replace(good.epochs[2], watermark=121 * SECOND), good.epochs[3]]
    return replace(good, shown=shown_of(Wanted.of(epochs, good.topic)))


def a_watermark_on_record_that_does_not_follow(good: Bank) -> Bank:
    epochs = (*good.epochs[:2], replace(good.epochs[2], watermark=121 * SECOND), good.epochs[3])
    return Bank(epochs, good.topic, shown_of(Wanted.of(epochs, good.topic)))


def a_late_transfer_that_counts_as_well(good: Bank) -> Bank:
    (window, closed), *others = good.shown.closed
    more = closed.total.plus(Total(1, 32, FIRST[0].crc))
    return replace(good, shown=replace(good.shown, closed=[(window, Closed(closed.epoch, more)), *others]))


def a_late_transfer_that_vanished(good: Bank) -> Bank:
    return replace(good, shown=replace(good.shown, late=[]))


def a_late_transfer_with_the_content_of_another(good: Bank) -> Bank:
    [(origin, late)] = good.shown.late
    return replace(good, shown=replace(good.shown, late=[(origin, Late(late.epoch, late.crc + 1))]))


def a_window_that_never_closed(good: Bank) -> Bank:
    *others, (window, closed) = good.shown.closed
    opened = [*good.shown.open, (window, closed.total)]
    return replace(good, shown=replace(good.shown, closed=others, open=opened))


def a_window_closed_an_epoch_late(good: Bank) -> Bank:
    (window, closed), *others = good.shown.closed
    return replace(good, shown=replace(good.shown, closed=[(window, Closed(4, closed.total)), *others]))


def an_open_window_dropped_with_a_file(good: Bank) -> Bank:
    return replace(good, shown=replace(good.shown, open=good.shown.open[1:]))


def an_older_row_of_a_key_come_back(good: Bank) -> Bank:
    window, _ = good.shown.closed[0]
    return replace(good, shown=replace(good.shown, open=[*good.shown.open, (window, Total(1, 1, 1))]))


def a_transfer_in_the_place_of_another(good: Bank) -> Bank:
    """Number and amount are right; only the checksum is not."""
    (window, closed), *others = good.shown.closed
    total = closed.total._replace(crc=closed.total.crc + 1)
    return replace(good, shown=replace(good.shown, closed=[(window, Closed(closed.epoch, total)), *others]))


def a_reader_that_saw_state_and_outputs_of_different_epochs(good: Bank) -> Bank:
    return _seen(good, rows=3, transfers=3)


def a_reader_that_saw_a_window_twice(good: Bank) -> Bank:
    return _seen(good, rows=3)


def a_reader_that_saw_another_amount(good: Bank) -> Bank:
    return _seen(good, amount=29)


def _seen(good: Bank, rows: int = 0, transfers: int = 0, amount: int = 0) -> Bank:
    """So much more in epoch 3."""
    was = good.shown.totals[3]
    totals = {**good.shown.totals, 3: (was[0] + rows, was[1] + transfers, was[2] + amount)}
    return replace(good, shown=replace(good.shown, totals=totals))


PLANTED: list[tuple[Callable[[Bank], Bank], str]] = [
    (a_window_shown_twice, "a closed window is shown more than once, 1 times"),
    (an_output_made_again_from_the_newest_state, "a closed window is missing, 2 times"),
    (changes_applied_twice, "an open window is shown wrong, 1 times"),
    (a_state_with_two_newest_rows_of_a_key, "an open window is shown more than once, 1 times"),
    (a_state_that_an_aborted_attempt_has_changed, "a closed window is shown wrong, 1 times"),
    (a_watermark_computed_anew_for_a_rerun, "a closed window is shown wrong, "),
    (a_watermark_on_record_that_does_not_follow, "the watermark of epoch 3 is 121000000, and follows as 79999999"),
    (a_late_transfer_that_counts_as_well, "9 transfers went in, and 10 are in closed windows, late or in open windows"),
    (a_late_transfer_that_vanished, "a late transfer is missing, 1 times"),
    (a_late_transfer_with_the_content_of_another, "a late transfer is shown wrong, 1 times"),
    (a_window_that_never_closed, "an open window is shown that should not be, 1 times"),
    (a_window_closed_an_epoch_late, "a closed window is shown wrong, 1 times"),
    (an_open_window_dropped_with_a_file, "an open window is missing, 1 times"),
    (an_older_row_of_a_key_come_back, "an open window is shown that should not be, 1 times"),
    (a_transfer_in_the_place_of_another, "a closed window is shown wrong, 1 times"),
    (a_reader_that_saw_state_and_outputs_of_different_epochs, "up to epoch 3 8 transfers of 255 went in, and a reader"),
    (a_reader_that_saw_a_window_twice, "up to epoch 3 8 transfers of 255 went in, and a reader saw 11"),
    (a_reader_that_saw_another_amount, "up to epoch 3 8 transfers of 255 went in, and a reader saw 8"),
]


@pytest.mark.parametrize(("plant", "told"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_mistake_is_told(plant: Callable[[Bank], Bank], told: str) -> None:
    wrong = plant(bank()).wrong()
    assert any(sentence.startswith(told) for sentence in wrong), wrong


def test_a_window_is_over_once_the_watermark_is_its_end() -> None:
    epoch = Taken(number=1, now=NOON, watermark=SIZE_US, ranges={})
    assert epoch.is_over(Window("a", 0))
    assert not replace(epoch, watermark=SIZE_US - 1).is_over(Window("a", 0))


@pytest.mark.parametrize(
    ("second", "third", "mark"), [(30, 45, 80), (30, 46, 190), (30, 500, 80), (50, 500, 190)], ids=str
)
def test_a_partition_that_is_idle_for_long_enough_does_not_hold_the_watermark_back(
    second: int, third: int, mark: int
) -> None:
    """Partition 1 has its newest transfer at 90, and none in the second epoch."""
    require_watermarks([{0: 100, 1: 90}, {0: 200}, {}], [0, second, third], [None, 80, mark])


def test_a_partition_that_begins_late_does_not_take_the_watermark_back() -> None:
    require_watermarks([{0: 100}, {1: 20}, {}], [0, 10, 20], [None, 90, 90])


def require_watermarks(times: Sequence[dict[int, int]], opened: Sequence[int], marks: Sequence[int | None]) -> None:
    """In every epoch at most one transfer per partition. ``marks``: as in ``bank``."""
    topic: dict[Origin, Transfer] = {}
    epochs = []
    for number, (found, after, mark) in enumerate(zip(times, opened, marks, strict=True)):
        topic |= {Origin(TOPIC, partition, number): transfer("a", 1, second) for partition, second in found.items()}
        epochs.append(
            Taken(
                number=number + 1,
                now=NOON + timedelta(seconds=after),
                watermark=None if mark is None else mark * SECOND - 1,
                ranges={(TOPIC, partition): range(number, number + 1) for partition in (0, 1)},
            )
        )
    assert judged_by_oracle(epochs, topic, shown_of(Wanted.of(epochs, topic))) == []


def test_the_state_is_read_as_the_newest_rows_of_windows_that_are_neither_deleted_nor_over(tmp_path: Path) -> None:
    rows = [  # payer, minute, transfers, epoch, deleted
        ("over", 0, 9, 3, False),
        ("changed", 1, 1, 2, False),
        ("changed", 1, 2, 3, False),
        ("deleted", 1, 1, 2, False),
        ("deleted", 1, 1, 3, True),
        ("twice", 2, 5, 1, False),
        ("twice", 2, 5, 1, False),
    ]
    names = ("payer", "minute", "transfers", "__epoch", "__deleted")
    write_deltalake(str(tmp_path), _log([dict(zip(names, row, strict=True)) for row in rows]))
    newest = replace(complete(3), watermarks=(SIZE_US, None))
    book = OpenBook(tmp_path, App.of("bank_windows", "open"), ledger=lambda: pytest.fail("not asked"))
    assert sorted((window.payer, total.transfers) for window, total in book.still_open(newest)) == [
        ("changed", 2),
        ("twice", 5),
        ("twice", 5),
    ]


def _log(rows: list[dict[str, Any]]) -> pa.Table:
    starts = [Window("", row.pop("minute") * SIZE_US) for row in rows]
    instants = {"window_start": [w.start for w in starts], "window_end": [w.end for w in starts]}
    columns = {name: pa.array(values, pa.timestamp("us", tz="UTC")) for name, values in instants.items()}
    table = pa.Table.from_pylist([{**row, "amount": 1, "crc": 1} for row in rows])
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table
