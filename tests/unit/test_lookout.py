"""When waiting data is worth a look by a task; no broker is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from airflow_epochs.sources.kafka.poller import Watch
from airflow_epochs.triggers import lookout
from airflow_epochs.triggers.lookout import OLD, Lookout

MAX_DELAY_S = 60.0


class Clock:
    """Stands still between two steps."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


class NoneIsOld:
    """Brokers that hold every record for newer than ``max_delay``."""

    async def ask(self, question: Callable[[object], object]) -> bool:
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(lookout, "time", clock := Clock())
    return clock


def answers(clock: Clock, positions: list[int]) -> list[str | None]:
    """Why to look, every 20 seconds, in a log that always has one record behind the position."""
    looking = Lookout(cast(Watch, NoneIsOld()), min_records=10, max_delay_s=MAX_DELAY_S)

    def why(position: int) -> str | None:
        clock.now += 20
        return asyncio.run(looking.why({"orders": {0: position}}, {("orders", 0): position + 1}))

    return [why(position) for position in positions]


def test_records_that_are_read_one_after_another_do_not_grow_old_however_long_there_are_some(clock: Clock) -> None:
    assert answers(clock, [0, 0, 1, 1, 2, 2, 3, 3]) == [None] * 8


def test_a_record_that_stays_unread_for_max_delay_is_old_whatever_its_time_is(clock: Clock) -> None:
    assert answers(clock, [0, 1, 1, 1, 1, 2]) == [None, None, None, None, OLD, None]


def test_of_two_partitions_the_one_that_stands_still_counts(clock: Clock) -> None:
    looking = Lookout(cast(Watch, NoneIsOld()), min_records=10, max_delay_s=MAX_DELAY_S)

    def why(position: int) -> str | None:
        clock.now += 20
        ends = {("orders", 0): position + 1, ("orders", 1): 1}
        return asyncio.run(looking.why({"orders": {0: position, 1: 0}}, ends))

    assert [why(position) for position in range(4)] == [None, None, None, OLD]
