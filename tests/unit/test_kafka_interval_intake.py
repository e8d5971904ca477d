"""What the brokers are asked for the epoch of a data interval; no broker is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_epochs import codes
from airflow_epochs.contracts import Interval, Past, Position
from airflow_epochs.errors import NoNewData, Refused
from airflow_epochs.model import Command, CompleteRecord, OffsetRange, Ranges
from airflow_epochs.sources.kafka.brokers import Brokers
from airflow_epochs.sources.kafka.config import KafkaConfig, read_config
from airflow_epochs.sources.kafka.interval import KEY, Coverage, recorded
from airflow_epochs.sources.kafka.interval_intake import find_interval
from airflow_epochs.sources.kafka.logs import ClusterLog, Log, Partition, TopicLog
from airflow_epochs.sources.kafka.moves import to_offsets, to_time
from airflow_epochs.sources.kafka.starting import AtTime, ms_of
from airflow_epochs.sources.kafka.waiting import Waiting
from tests.support.records import complete

DAY = datetime(2026, 1, 31, tzinfo=timezone.utc)


def hour(number: float) -> datetime:
    return DAY + timedelta(hours=number)


class Logs(Brokers):
    """Topics of one partition: the hour of each record, by offset. Like brokers, they know no other topic.

    A negative hour is that of the end of a transaction, which brokers count and readers do not see.
    """

    def __init__(self, **topics: Sequence[float]) -> None:
        self.topics = topics
        self.deleted = 0  # so many of the oldest records of each topic

    def look(self, topics: Sequence[str], epochs: Mapping[Partition, int] | None = None) -> ClusterLog:
        there = {topic: self.topics[topic] for topic in topics if topic in self.topics}
        logs = {topic: {0: Log(self.deleted, len(of))} for topic, of in there.items()}
        return ClusterLog("c", {topic: TopicLog(f"id-of-{topic}", of) for topic, of in logs.items()})

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


def test_an_interval_that_ends_with_the_calendar_is_not_over_whatever_the_grace() -> None:
    last = datetime.max.replace(tzinfo=timezone.utc)
    at = replace(past(9), interval=Interval(last - timedelta(hours=1), last))
    with pytest.raises(Refused) as refused:
        find_interval(Logs(orders=[9]), replace(config("orders"), grace_s=60), position(orders=1), at)
    assert refused.value.code is codes.INTERVAL_NOT_OVER


def test_after_a_rewind_an_hour_without_records_is_an_epoch_though_a_transaction_before_it_ended_later() -> None:
    logs = Logs(orders=[9.5, 10.5, -30, 10.6, 12.1])
    found = find_interval(logs, config("orders"), rewound(to=4), past(11))
    assert found.ranges == {"orders": (OffsetRange(0, 4, 4),)}


def test_after_a_rewind_an_hour_whose_records_lie_before_the_position_is_refused() -> None:
    logs = Logs(orders=[9.5, 11.5, -30, 12.1])
    with pytest.raises(Refused) as refused:
        find_interval(logs, config("orders"), rewound(to=3), past(11))
    assert refused.value.code is codes.INTERVAL_BEFORE


def as_an_older_version_put_it(number: int, ranges: tuple[int, int], of: float, **changes: Any) -> CompleteRecord:
    """An epoch of the hour ``of``, the first one after a command: that version took its hour for the beginning."""
    state = {"cluster_id": "c", KEY: recorded(Interval(hour(of), hour(of + 1)), None)}
    return replace(complete(number), ranges={"orders": (OffsetRange(0, *ranges),)}, source_state=state, **changes)


@pytest.mark.parametrize(
    ("of", "by"),
    [(9, "epoch 1"), (10, "epoch 2"), (11, "epoch 2"), (7, None)],
    ids=["read before the command", "in between", "that of the epoch", "before the beginning"],
)
def test_in_a_ledger_of_an_older_version_hours_that_were_read_since_a_rewind_are_known_too(
    of: float, by: str | None
) -> None:
    logs = Logs(orders=[7.5, 9.5, 10.5, 11.5, 12.5])
    back = Command(name="rewind", who="me", why="history", at="now", back_to=hour(10).isoformat())
    first = as_an_older_version_put_it(1, (1, 4), of=9)
    first.source_state[KEY]["end"] = hour(12).isoformat()
    newest = as_an_older_version_put_it(2, (2, 4), of=11, moved_in=2, commands=(back,))
    before = Position(ranges=newest.ranges, state=newest.source_state)
    at = replace(past(of), epochs=lambda: iter((newest, first)))
    with pytest.raises(NoNewData if by else Refused) as done:
        find_interval(logs, config("orders"), before, at)
    assert done.value.code is (codes.INTERVAL_COVERED if by else codes.INTERVAL_BEFORE)
    assert by is None or f"were read already, by {by} of" in str(done.value)


def test_in_a_ledger_of_an_older_version_history_that_was_read_after_the_command_of_the_error_is_known() -> None:
    """The first epoch began later than the hours that the command went back to."""
    logs = Logs(orders=[9.5, 10.5, 11.5, 20.5])
    first = as_an_older_version_put_it(1, (3, 4), of=20)
    newest = as_an_older_version_put_it(2, (0, 3), of=11, moved_in=2)
    before = Position(ranges=newest.ranges, state=newest.source_state)
    with pytest.raises(NoNewData, match="were read already, by epoch 2 of"):
        find_interval(logs, config("orders"), before, replace(past(9), epochs=lambda: iter((newest, first))))


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


# --- any history with commands --------------------------------------------------------------------------------


class History:
    """A pipeline over one log whose records are in order: its epochs, and the offset that the next one begins at."""

    def __init__(self, times: Sequence[float]) -> None:
        self.logs, self.epochs = Logs(orders=times), list[CompleteRecord]()
        self.position: Position | None = None
        self.commands: tuple[Command, ...] = ()

    def rewind(self, to: float) -> bool:
        """Whether there was something to go back to."""
        assert self.position
        log = self.logs.look(["orders"])
        index = self.logs.seen_offsets_at(ms_of(hour(to)), log.starts())
        move = to_time(self.position, ms_of(hour(to)), log, index)
        if move.moves:
            back = Command(name="rewind", who="me", why="", at="now", again=move.again, back_to=move.back_to)
            self.position, self.commands = move.position, (*self.commands, back)
        return move.moves

    def run(self, start: int) -> tuple[int, int]:
        """The offsets that the run's epoch reads."""
        at = replace(past(start), epochs=lambda: reversed(self.epochs))
        found = find_interval(self.logs, config("orders"), self.position, at)
        number = len(self.epochs) + 1
        moved = number if self.commands else self.epochs[-1].moved_in if self.epochs else 0
        record = replace(complete(number), ranges=found.ranges, source_state={"cluster_id": "c", **found.state})
        self.epochs.append(replace(record, moved_in=moved, commands=self.commands))
        self.position, self.commands = Position.of(self.epochs[-1]), ()
        [[_, first, last]] = found.ranges["orders"]
        return first, last

    def first_at(self, time: float) -> int:
        found = self.logs.seen_offsets_at(ms_of(hour(time)), {("orders", 0): 0})["orders", 0]
        return len(self.logs.topics["orders"]) if found is None else found

    def has_read(self, start: int) -> bool:
        """Whether epochs have read all that came from the hour's start to its end, or nothing came before them."""
        begun = min(record.ranges["orders"][0].start for record in self.epochs)
        return begun <= self.first_at(start)


@pytest.mark.parametrize(
    "number, deleted, error",
    [(10, 0, Refused), (10, 3, Refused), (11, 0, NoNewData), (11, 2, NoNewData), (11, 3, Refused)],
)
def test_an_hour_whose_records_may_have_been_deleted_before_any_epoch_is_not_said_to_be_read(
    number: int, deleted: int, error: type[Exception]
) -> None:
    history = History([10, 10, 10, 12, 12.5])
    assert history.run(12) == (3, 5)
    history.logs.deleted = deleted
    with pytest.raises(error):
        history.run(number)


@pytest.mark.proof
@settings(max_examples=300, deadline=None)
@given(
    times=st.lists(st.floats(0, 8, exclude_max=True, width=16), max_size=12).map(sorted),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=1, max_size=14),
)
def test_whatever_runs_after_whatever_rewinds_each_hour_is_read_again_at_most_once_and_none_is_refused_that_was_read(
    times: list[float], steps: list[tuple[bool, int]]
) -> None:
    history, free_from = History(times), 99.0
    for rewinds, number in steps:
        if rewinds and history.position:
            free_from = number if history.rewind(number) else free_from
            continue
        was = history.position
        try:
            first, last = history.run(number)
        except NoNewData:
            assert history.has_read(number), "what is skipped was read"
            assert number < free_from or not history.commands, "after a command its hours are free"
        except Refused as refused:
            assert refused.code is codes.INTERVAL_BEFORE
            assert not history.has_read(number), "what is refused was not read"
        else:
            assert was is None or first == was.ranges["orders"][0].end, "epochs have no gap"
            assert last == max(first, history.first_at(number + 1)), "and end with their hour"


def test_a_pipeline_that_begins_after_the_calendar_refuses_an_interval_of_today() -> None:
    late = replace(config("orders"), starting=AtTime(2**63 - 1))
    with pytest.raises(Refused) as refused:
        find_interval(Logs(orders=[9]), late, None, past(9))
    assert refused.value.code is codes.INTERVAL_BEFORE
