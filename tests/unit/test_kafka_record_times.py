"""Searches for the first record of a time over brokers that send at most 16 MB in an answer."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaError

from airflow_epochs.sources.kafka import brokers as brokers_module
from airflow_epochs.sources.kafka import record_times
from airflow_epochs.sources.kafka.brokers import Brokers
from airflow_epochs.sources.kafka.history import ANSWER_BYTES_MAX, Fetched, batches
from airflow_epochs.sources.kafka.logs import Partition

NODES = 3
OLD, NEW = 1_000, 2_000
TIMEOUT_S, ANSWER_S = 15, 1
Answers = Iterator[tuple[Partition, Fetched | None]]


@cache
def _record(size: int, ms: int) -> bytes:
    from kafka.record.memory_records import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=size * 2)
    builder.append(ms, None, bytes(size))
    builder.close()
    return bytes(builder.buffer())


def _batch(offset: int, size: int, ms: int) -> bytes:
    """A batch of one record. Its checksum does not cover its offset."""
    return struct.pack(">q", offset) + _record(size, ms)[8:]


@dataclass(frozen=True)
class At:
    offset: int


@dataclass
class Cluster:
    """Three brokers. Each record is a batch of its own: ``logs`` has its size and its time."""

    logs: dict[Partition, list[tuple[int, int]]]
    told: dict[Partition, int] = field(default_factory=dict)
    requests: int = 0
    clock_s: int = 0

    def list_partition_offsets(self, asked: Mapping[Any, int], isolation_level: object) -> dict[Any, At]:
        ends = {tp: len(self.logs[tuple(tp)]) for tp in asked}
        return {tp: At(self.told.get(tuple(tp), 0) if spec >= 0 else ends[tp]) for tp, spec in asked.items()}

    def fetched(self, _: object, offsets: Mapping[Partition, int], bytes_max: int, **options: object) -> Answers:
        for node in range(NODES):
            if led := sorted(at for at in offsets if at[1] % NODES == node):
                self.requests += 1
                self.clock_s += ANSWER_S
                yield from self._answer({at: offsets[at] for at in led}, bytes_max)

    def _answer(self, offsets: Mapping[Partition, int], bytes_max: int) -> Answers:
        """As Kafka: whole batches up to the limits, and the first batch of all even if it is larger."""
        room = ANSWER_BYTES_MAX
        for at, offset in offsets.items():
            records = self._records(at, offset, min(bytes_max, room), is_first=room == ANSWER_BYTES_MAX)
            room = max(0, room - len(records))
            yield at, Fetched(records, (), len(self.logs[at]))

    def _records(self, at: Partition, offset: int, limit: int, *, is_first: bool) -> bytes:
        found = b""
        for number, (size, ms) in enumerate(self.logs[at][offset:], offset):
            batch = _batch(number, size, ms)
            if len(found) + len(batch) > limit and (found or not is_first):
                break
            found += batch
        return found


@dataclass
class Client:
    """Gives each question the time limit of the real one, and repeats it within."""

    cluster: Cluster

    def ask(self, doing: str, question: Callable[[Cluster], Any]) -> Any:
        begun = self.cluster.clock_s
        while True:
            try:
                answer = question(self.cluster)
            except KafkaError as error:
                assert error.retriable and self.cluster.clock_s - begun < TIMEOUT_S, error
                continue
            assert self.cluster.clock_s - begun <= TIMEOUT_S, f"no answer in time: {doing}"
            return answer


@pytest.fixture
def searching(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cluster], Brokers]:
    def over(cluster: Cluster) -> Brokers:
        monkeypatch.setattr(brokers_module, "KafkaClient", lambda _: Client(cluster))
        monkeypatch.setattr(record_times, "fetched", cluster.fetched)
        return Brokers(None)  # type: ignore[arg-type]  # the client does not connect

    return over


@pytest.mark.proof
def test_a_search_in_thousands_of_partitions_asks_for_all_open_ones_at_once(
    searching: Callable[[Cluster], Brokers],
) -> None:
    partitions = [("orders", number) for number in range(2_000)]
    cluster = Cluster({at: [(60 << 10, OLD), (60 << 10, OLD), (1 << 10, NEW)] for at in partitions})

    found = searching(cluster).seen_offsets_at(NEW, dict.fromkeys(partitions, 1))

    assert found == dict.fromkeys(partitions, 2)
    assert cluster.requests < 30


def test_a_search_in_batches_that_are_larger_than_the_first_look_asks_for_many_at_once(
    searching: Callable[[Cluster], Brokers],
) -> None:
    partitions = [("orders", number) for number in range(300)]
    cluster = Cluster({at: [(100 << 10, OLD), (100 << 10, NEW)] for at in partitions})

    found = searching(cluster).seen_offsets_at(NEW, dict.fromkeys(partitions, 0))

    assert found == dict.fromkeys(partitions, 0), "the brokers' own answer"
    assert cluster.requests < 30


def test_each_answer_of_a_search_over_gigabytes_has_the_whole_time_limit(
    searching: Callable[[Cluster], Brokers],
) -> None:
    long = ("orders", 0)
    cluster = Cluster({long: [(1 << 20, OLD)] * 160 + [(100, NEW)]})

    found = searching(cluster).seen_offsets_at(NEW, {long: 1})

    assert found == {long: 160}
    assert TIMEOUT_S < cluster.clock_s < 70


def test_a_search_finds_none_in_a_log_that_ends_before_the_time_whatever_others_have(
    searching: Callable[[Cluster], Brokers],
) -> None:
    short, long = ("orders", 0), ("orders", 3)
    cluster = Cluster({short: [(100, OLD)], long: [(1 << 20, OLD)] * 8 + [(100, NEW)]})

    assert searching(cluster).seen_offsets_at(NEW, {short: 1, long: 1}) == {short: None, long: 8}


def test_a_search_ends_where_the_logs_ended_even_if_producers_go_on_to_write_old_times(
    searching: Callable[[Cluster], Brokers],
) -> None:
    busy = ("orders", 0)
    cluster = Cluster({busy: [(100, NEW), (100, OLD)]})
    answers = cluster.fetched

    def grows(*args: Any, **options: Any) -> Answers:
        assert cluster.requests < 10, "the search does not end"
        yield from answers(*args, **options)
        cluster.logs[busy].append((100, OLD))

    cluster.fetched = grows  # type: ignore[method-assign]

    assert searching(cluster).seen_offsets_at(NEW, {busy: 1}) == {busy: None}


def test_a_search_ends_in_a_log_that_gets_shorter_meanwhile(searching: Callable[[Cluster], Brokers]) -> None:
    shorter, long = ("orders", 0), ("orders", 1)
    cluster = Cluster({shorter: [(100, OLD)] * 4, long: [(1 << 20, OLD)] * 8 + [(100, NEW)]})
    answers = cluster.fetched

    def shortens(*args: Any, **options: Any) -> Answers:
        assert cluster.requests < 30, "the search does not end"
        del cluster.logs[shorter][2:]
        yield from answers(*args, **options)

    ends = {at: At(len(log)) for at, log in cluster.logs.items()}

    def told(asked: Mapping[Any, int], isolation_level: object) -> dict[Any, At]:
        return {tp: At(0) if spec >= 0 else ends[tuple(tp)] for tp, spec in asked.items()}

    cluster.list_partition_offsets, cluster.fetched = told, shortens  # type: ignore[method-assign]
    assert searching(cluster).seen_offsets_at(NEW, {shorter: 1, long: 1}) == {shorter: None, long: 8}


def test_whether_one_record_is_as_late_as_a_time_takes_no_search_behind_it(
    searching: Callable[[Cluster], Brokers],
) -> None:
    late, early = ("orders", 0), ("orders", 1)
    behind = [(1 << 20, OLD)] * 160
    cluster = Cluster({late: [(100, NEW), (100, NEW), *behind], early: [(100, NEW), (100, OLD), *behind]})

    assert searching(cluster).as_late(NEW, {late: 1, early: 1}) == {late}
    assert cluster.requests == 2, "one to each leader"


def first_answering(cluster: Cluster, first: Callable[[Partition, int], Answers]) -> Cluster:
    """Brokers whose first answer is this one, of each partition and offset."""
    answers = cluster.fetched

    def fetched(_: object, offsets: Mapping[Partition, int], bytes_max: int, **options: object) -> Answers:
        if not cluster.requests:
            cluster.requests += 1
            return (each for at, offset in offsets.items() for each in first(at, offset))
        return answers(_, offsets, bytes_max, **options)

    cluster.fetched = fetched  # type: ignore[method-assign]
    return cluster


LONG = ("orders", 0)
FOURTH_IS_NEW = [(100, OLD), (100, OLD), (100, OLD), (100, NEW)]


@pytest.mark.parametrize(
    "first",
    [lambda at, offset: iter([(at, Fetched(b"", (), 4))]), lambda at, offset: iter([])],
    ids=["tiered storage did not answer in time", "the client is throttled"],
)
def test_an_answer_without_the_records_that_the_log_has_is_asked_for_again(
    searching: Callable[[Cluster], Brokers], first: Callable[[Partition, int], Answers]
) -> None:
    cluster = first_answering(Cluster({LONG: FOURTH_IS_NEW}), first)

    assert searching(cluster).seen_offsets_at(NEW, {LONG: 1}) == {LONG: 3}


def test_a_log_that_lost_the_offset_a_moment_ago_is_left_to_the_check_of_the_ranges(
    searching: Callable[[Cluster], Brokers],
) -> None:
    cluster = first_answering(Cluster({LONG: FOURTH_IS_NEW}), lambda at, offset: iter([(at, None)]))

    assert searching(cluster).seen_offsets_at(NEW, {LONG: 1}) == {LONG: 1}
    assert cluster.requests == 1


# -- how long brokers may take -----------------------------------------------------------------------------------------


class Asked:
    """An admin client that notes how long a broker may wait."""

    def __init__(self) -> None:
        self.waits_ms: list[int] = []
        self._manager = self

    def run(self, question: Callable[[], Any]) -> Any:
        return asyncio.run(question())

    async def _async_get_leader_for_partitions(self, partitions: list[Any]) -> dict[int, list[Any]]:
        return {0: partitions}

    async def send(self, request: Any, node_id: int) -> Any:
        self.waits_ms.append(request.max_wait_ms)
        return SimpleNamespace(responses=[])


def test_only_a_search_for_a_time_waits_for_tiered_storage() -> None:
    admin: Any = Asked()
    assert batches(admin, {LONG: 0}) == {}
    assert set(admin.waits_ms) == {0}
    with pytest.raises(KafkaError, match="no record of"):
        record_times.look(admin, NEW, {LONG: 0}, {}, 1)
    assert admin.waits_ms[-1] == 5_000
