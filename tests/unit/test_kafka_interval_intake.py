"""What the brokers are asked for the epoch of a data interval; no broker is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Interval, Past, Position
from airflow_epochs.errors import Refused
from airflow_epochs.model import OffsetRange, Ranges
from airflow_epochs.sources.kafka.brokers import Brokers
from airflow_epochs.sources.kafka.config import KafkaConfig, read_config
from airflow_epochs.sources.kafka.interval import KEY, Coverage, recorded
from airflow_epochs.sources.kafka.interval_intake import find_interval
from airflow_epochs.sources.kafka.logs import ClusterLog, Log, Partition, TopicLog
from airflow_epochs.sources.kafka.moves import to_offsets
from airflow_epochs.sources.kafka.starting import ms_of
from airflow_epochs.sources.kafka.waiting import Waiting

DAY = datetime(2026, 1, 31, tzinfo=timezone.utc)


def hour(number: float) -> datetime:
    return DAY + timedelta(hours=number)


class Logs(Brokers):
    """Topics of one partition: the hour of each record, by offset. Like brokers, they know no other topic.

    A negative hour is that of the end of a transaction, which brokers count and readers do not see.
    """

    def __init__(self, **topics: Sequence[float]) -> None:
        self.topics = topics

    def look(self, topics: Sequence[str], epochs: Mapping[Partition, int] | None = None) -> ClusterLog:
        there = {topic: self.topics[topic] for topic in topics if topic in self.topics}
        return ClusterLog("c", {t: TopicLog(f"id-of-{t}", {0: Log(0, len(of))}) for t, of in there.items()})

    def waiting(self, stable: Mapping[Partition, int]) -> list[Waiting]:
        return []

    def offsets_at(self, ms: int, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        return {at: self._first([*map(abs, self.topics[at[0]])], ms, 0) for at in partitions}

    def seen_offsets_at(self, ms: int, begins: Mapping[Partition, int]) -> dict[Partition, int | None]:
        return {at: self._first(self.topics[at[0]], ms, begin) for at, begin in begins.items()}

    def as_late(self, ms: int, offsets: Mapping[Partition, int]) -> set[Partition]:
        return {at for at, offset in offsets.items() if ms_of(hour(self.topics[at[0]][offset])) >= ms}

    @staticmethod
    def _first(times: Sequence[float], ms: int, begin: int) -> int | None:
        return next((o for o, time in enumerate(times) if o >= begin and ms_of(hour(time)) >= ms), None)


def config(*topics: str) -> KafkaConfig:
    return read_config({"topics": list(topics), "conn_id": "kafka", "bounds": "data_interval", "max_wait": 0})


def past(start: float) -> Past:
    """Of the run for the hour from ``start`` on, a day later."""
    interval = Interval(hour(start), hour(start + 1))
    return Past(epochs=lambda: iter(()), clock=lambda: hour(start + 24), interval=interval)


def rewound(to: int) -> Position:
    """As a command leaves it, which takes back what was read by times."""
    return Position(ranges={"orders": (OffsetRange(0, to, to),)}, state={"cluster_id": "c"})


def position(**ends: int) -> Position:
    """After the epoch of the hour from 9 to 10."""
    coverage = {KEY: recorded(Interval(hour(9), hour(10)), Coverage(hour(9), hour(10)))}
    ranges: Ranges = {topic: (OffsetRange(0, 0, end),) for topic, end in ends.items()}
    return Position(ranges=ranges, state={"cluster_id": "c", **coverage})


@pytest.mark.parametrize("there", [True, False], ids=["there", "deleted"])
def test_of_a_topic_that_is_no_longer_read_an_interval_has_nothing_and_its_position_stays(there: bool) -> None:
    logs = Logs(orders=[9, 10, 11], **({"refunds": [9, 10, 11]} if there else {}))
    found = find_interval(logs, config("orders"), position(orders=1, refunds=1), past(10))
    assert found.ranges == {"orders": (OffsetRange(0, 1, 2),), "refunds": (OffsetRange(0, 1, 1),)}


def test_after_a_rewind_an_hour_without_records_is_an_epoch_though_a_transaction_before_it_ended_later() -> None:
    logs = Logs(orders=[9.5, 10.5, -30, 10.6, 12.1])
    found = find_interval(logs, config("orders"), rewound(to=4), past(11))
    assert found.ranges == {"orders": (OffsetRange(0, 4, 4),)}


def test_after_a_rewind_an_hour_whose_records_lie_before_the_position_is_refused() -> None:
    logs = Logs(orders=[9.5, 11.5, -30, 12.1])
    with pytest.raises(Refused) as refused:
        find_interval(logs, config("orders"), rewound(to=3), past(11))
    assert refused.value.code is codes.INTERVAL_BEFORE


THIRTY_YEARS = 24 * 365 * 30


def test_an_epoch_that_ends_before_a_record_with_a_time_far_ahead_names_it_and_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = find_interval(Logs(orders=[9.2, THIRTY_YEARS, 9.5]), config("orders"), None, past(9))
    assert found.ranges == {"orders": (OffsetRange(0, 0, 1),)}
    assert found.why and "orders[0] at offset 1" in found.why
    assert "skip PIPELINE --offsets FILE" in found.why and '{"orders": {"0": 2}}' in found.why
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_epoch_that_ends_before_a_record_of_the_next_hour_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    found = find_interval(Logs(orders=[9.2, 10.1, THIRTY_YEARS]), config("orders"), None, past(9))
    assert found.why and "ahead" not in found.why
    assert not caplog.records


def test_after_a_skip_behind_a_record_with_a_time_far_ahead_the_next_epoch_reads_on() -> None:
    logs = Logs(orders=[9.2, THIRTY_YEARS, 9.5, 10.5, 11.5])
    skipped = to_offsets(position(orders=1), {"orders": {0: 2}}, logs.look(["orders"]))
    found = find_interval(logs, config("orders"), skipped.position, past(10))
    assert found.ranges == {"orders": (OffsetRange(0, 2, 4),)}
