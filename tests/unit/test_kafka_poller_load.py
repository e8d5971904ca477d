"""What a poll costs the triggerer's event loop, where thousands may wait."""

from __future__ import annotations

import asyncio
from collections.abc import ItemsView

import pytest

from airflow_epochs.kafka.connection import KafkaAccess
from airflow_epochs.sources.kafka import poller
from airflow_epochs.sources.kafka.logs import Partition

WATCHES = 50


class Ends(dict[Partition, int]):
    """Counts how often somebody goes through all of it."""

    walks = 0

    def items(self) -> ItemsView[Partition, int]:  # type: ignore[override]
        Ends.walks += 1
        return super().items()


class Played:
    """Brokers with two partitions of each topic."""

    polls = 0

    def __init__(self, access: KafkaAccess) -> None:
        pass

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def partitions(self, topics: list[str]) -> list[Partition]:
        return [(topic, partition) for topic in topics for partition in (0, 1)]

    def stable_ends(self, known: list[Partition]) -> Ends:
        Played.polls += 1
        return Ends({(topic, partition): int(topic) + partition for topic, partition in known})


def test_a_poll_goes_through_the_ends_of_all_topics_once_and_tells_each_watch_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poller, "Brokers", Played)
    monkeypatch.setattr(Ends, "walks", 0)
    monkeypatch.setattr(Played, "polls", 0)
    access = KafkaAccess(conn_id="kafka", servers=("k:9092",), protocol="PLAINTEXT", timeout_s=5)

    async def seen() -> list[poller.PollOutcome]:
        watches = [poller.Watch(access, [str(number)]) for number in range(WATCHES)]
        try:
            return [await each.next() for each in watches]
        finally:
            for each in watches:
                each.close()

    told = asyncio.run(asyncio.wait_for(seen(), 20))
    assert [each.ends for each in told] == [{(str(n), 0): n, (str(n), 1): n + 1} for n in range(WATCHES)]
    assert 1 <= Ends.walks <= Played.polls
