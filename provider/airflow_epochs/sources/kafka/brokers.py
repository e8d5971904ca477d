"""The source's requests to the brokers: the bounds of logs, open transactions, a consumer group's offsets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.kafka.client import RETRY_S, KafkaClient
from airflow_epochs.kafka.connection import KafkaAccess
from airflow_epochs.kafka.open_transactions import blocking_in
from airflow_epochs.sources.kafka.group_requests import committed, members
from airflow_epochs.sources.kafka.history import batches, epoch_ends, log_sizes
from airflow_epochs.sources.kafka.logs import Batch, ClusterLog, Log, Offsets, Partition, TopicLog
from airflow_epochs.sources.kafka.record_times import FIRST_BYTES, MORE_BYTES, Round, look
from airflow_epochs.sources.kafka.waiting import Waiting

if TYPE_CHECKING:
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndTimestamp

_LATEST, _EARLIEST = -1, -2
"""Values that Kafka's ListOffsets request takes in place of a timestamp."""

log = secrecy.logger(__name__)

DESCRIBED_MAX = 100
"""The largest number of partitions for which the open transactions are looked up."""
SETTLE_S = 1.0
"""Seconds for which to ask again for a missing topic: a broker may not know a new topic yet."""


class Brokers:
    """A client of one Kafka cluster, as a context manager. Every method raises what ``KafkaClient.ask`` raises."""

    def __init__(self, access: KafkaAccess) -> None:
        self._client = KafkaClient(access)

    def __enter__(self) -> Brokers:
        self._client.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def look(self, topics: Sequence[str], epochs: Mapping[Partition, int] | None = None) -> ClusterLog:
        """Read the current bounds of the logs of ``topics``. Leaves out topics that do not exist.

        Args:
            topics: Topic names.
            epochs: Leader epochs that an earlier plan recorded. The result says where each of them ends now.
        """
        described = self._describe(topics)
        partitions = [(t["name"], p["partition_index"]) for t in described for p in t["partitions"]]
        # Beginnings first: so no end lies before its beginning, even if retention deletes records in between.
        starts = self._list_offsets(dict.fromkeys(partitions, _EARLIEST), stable=False)
        # The last stable offsets: the records behind them wait for open transactions.
        ends = self._list_offsets(dict.fromkeys(partitions, _LATEST), stable=True)
        logs: dict[str, dict[int, Log]] = {t["name"]: {} for t in described}
        for at in partitions:
            logs[at[0]][at[1]] = Log(starts[at].offset, ends[at].offset, ends[at].leader_epoch)
        topic_logs = {t["name"]: TopicLog(t.get("topic_id"), logs[t["name"]]) for t in described}
        known = {at: epoch for at, epoch in (epochs or {}).items() if at in starts}
        unchanged = self._client.ask("ask for leader epochs", lambda admin: epoch_ends(admin, known))
        return ClusterLog(self._cluster_id(), topic_logs, unchanged)

    def partitions(self, topics: Sequence[str]) -> list[Partition]:
        """The partitions of the topics, without topics that do not exist or that the user may not describe."""
        described = self._client.ask("describe topics", lambda admin: _described(admin, topics))
        return [(t["name"], p["partition_index"]) for t in described for p in t["partitions"]]

    def stable_ends(self, partitions: Sequence[Partition]) -> dict[Partition, int] | None:
        """Per partition, the last stable offset: one request to each broker. None if a partition is no longer there."""
        if not partitions:
            return {}
        found = self._client.ask("list offsets", lambda admin: _stable_ends(admin, partitions))
        return None if found is None else {(tp.topic, tp.partition): at.offset for tp, at in found.items()}

    def batches(self, ends: Mapping[Partition, int], cluster: ClusterLog) -> dict[Partition, Batch]:
        """Per partition, the batch with the record before ``ends``. Leaves out deleted and very large batches."""
        logs = {(topic, p): log for topic, of in cluster.topics.items() for p, log in of.partitions.items()}
        there = {at: end - 1 for at, end in ends.items() if at in logs and logs[at].start < end <= logs[at].end}
        return self._client.ask("read the last batches", lambda admin: batches(admin, there))

    def sizes(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Per partition, the bytes of its log on its leader's disk. Raises Refused if the brokers do not tell."""
        try:
            found = self._client.ask("describe the log directories", lambda admin: log_sizes(admin, partitions))
        except Refused as error:
            raise _untold(error.what) if error.code is codes.KAFKA_FORBIDDEN else error from error
        if missing := sorted(f"{topic}[{partition}]" for topic, partition in set(partitions) - found.keys()):
            # so brokers before Kafka 2.6 answer a user without the right
            raise _untold(f"The brokers do not tell the size of {', '.join(missing[:20])}.")
        return found

    def waiting(self, stable: Mapping[Partition, int]) -> list[Waiting]:
        """The offsets that wait now, and the open transactions that hold them back.

        ``stable``: the partitions, with last stable offsets of a moment ago. If a log ends there, nothing of it waits.
        """
        # The ends of the logs first: what producers write after this question then does not count as waiting.
        ends = self._list_offsets(dict.fromkeys(stable, _LATEST), stable=False)
        starts = self._stable_ends_of(at for at, end in stable.items() if ends[at].offset > end)
        behind = {at: ends[at].offset - start for at, start in starts.items() if ends[at].offset > start}
        blocked_by = blocking_in(self._client, sorted(behind)[:DESCRIBED_MAX])
        return [
            Waiting(topic=at[0], partition=at[1], start=starts[at], records=count, transaction=blocked_by.get(at))
            for at, count in sorted(behind.items())
        ]

    def hanging(self) -> set[str]:
        """Transactional ids of transactions that are open for longer than Kafka's default limit allows (KIP-664).

        Such a transaction may still be alive if the brokers' ``transaction.max.timeout.ms`` is above 15 minutes.
        """
        found = self._client.ask("find hanging transactions", lambda admin: admin.find_hanging_transactions())
        return {each["transactional_id"] for each in found}

    def offsets_at(self, ms: int, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """Per partition, the first readable offset at or after a time in ms since 1970; None if no record is so new."""
        found = self._list_offsets(dict.fromkeys(partitions, ms), stable=True)
        return {partition: at.offset if at.offset >= 0 else None for partition, at in found.items()}

    def seen_offsets_at(self, ms: int, begins: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """Per partition, the first record at or after a time and an offset that readers of committed records see.

        None if no such record exists yet. ``ms``: the time in ms since 1970. ``begins``: the offsets.
        """
        told = {at: offset for at, offset in self.offsets_at(ms, begins).items() if offset is not None}
        last = self._round(ms, {at: max(offset, begins[at]) for at, offset in told.items()}, told, FIRST_BYTES)
        found, ends = dict(last.found), self._stable_ends_of(last.further)
        while left := {at: offset for at, offset in last.further.items() if offset < ends[at]}:
            last = self._round(ms, left, told, last.next_bytes)
            if not last.found and last.further == left:
                break  # ``look`` has made sure that the logs end here: they have got shorter since
            found |= last.found
        return {at: found.get(at) for at in begins}

    def _round(self, ms: int, offsets: Mapping[Partition, int], told: Mapping[Partition, int], bytes_max: int) -> Round:
        """One step of the search, with a time limit of its own: the whole search may read many gigabytes."""
        return self._client.ask("look up times", lambda admin: look(admin, ms, offsets, told, bytes_max))

    def _stable_ends_of(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The last stable offsets now. A search ends there, even if producers go on to write old times."""
        ends = self._list_offsets(dict.fromkeys(partitions, _LATEST), stable=True)
        return {partition: at.offset for partition, at in ends.items()}

    def as_late(self, ms: int, offsets: Mapping[Partition, int]) -> set[Partition]:
        """The partitions whose record at the offset has a time of ``ms`` or later. It does not read on."""
        firsts = self.offsets_at(ms, offsets)
        maybe = {at: offset for at, offset in offsets.items() if (first := firsts[at]) is not None and first <= offset}
        found = self._round(ms, maybe, {}, MORE_BYTES).found
        return {at for at, offset in found.items() if offset == offsets[at]}

    def times(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Per partition, the time of the batch that has the offset, in ms since 1970. Leaves out very large batches."""
        found = self._client.ask("read the first batches", lambda admin: batches(admin, offsets))
        return {at: batch.ms for at, batch in found.items() if batch.ms >= 0}

    def group(self, group: str, partitions: Iterable[Partition] = ()) -> dict[Partition, tuple[int, str]]:
        """A consumer group's committed offsets with their metadata. Empty if the group does not exist.

        Offsets may be part of a transaction: waits until it has ended, as long as for any answer. ``partitions``: as in
        ``committed``.
        """
        return self._client.ask(f"list offsets of group {group}", lambda admin: committed(admin, group, partitions))

    def members(self, group: str) -> list[str]:
        """The members of a consumer group, for people: client id and host. Empty if the group does not exist."""
        return self._client.ask(f"describe group {group}", lambda admin: members(admin, group))

    def commit(self, group: str, offsets: Offsets, metadata: str) -> None:
        """Commit the offsets for a consumer group. Idempotent.

        Raises:
            NotApplied: Kafka did not take the offsets of some partitions. It may have taken the others.
        """
        if failed := self.rejected(group, offsets, metadata):
            raise NotApplied(
                f"Kafka rejected offsets of the consumer group {group}: {', '.join(failed[:20])}. This affects lag "
                "monitors only.",
                code=codes.GROUP_OFFSETS_REFUSED,
            )

    def rejected(self, group: str, offsets: Offsets, metadata: str) -> list[str]:
        """Commit the offsets for a consumer group; the partitions that Kafka did not take, with its reasons."""
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        flat = [(topic, partition, at) for topic in offsets for partition, at in offsets[topic].items()]
        wanted = {
            TopicPartition(topic, partition): OffsetAndMetadata(at, metadata, -1) for topic, partition, at in flat
        }
        results = self._client.ask(f"commit offsets of group {group}", lambda admin: _committed(admin, group, wanted))
        return sorted(f"{tp.topic}[{tp.partition}]: {error.__name__}" for tp, error in results.items() if error.errno)

    def _describe(self, topics: Sequence[str]) -> list[dict[str, Any]]:
        """Describe the topics that exist. Repeats the question for missing ones, for ``SETTLE_S`` seconds."""
        settled = time.monotonic() + SETTLE_S
        while True:
            described = self._client.ask("describe topics", lambda admin: _existing(admin, topics))
            if len(described) == len(topics) or time.monotonic() > settled:
                return described
            time.sleep(RETRY_S)

    def _cluster_id(self) -> str | None:
        cluster: dict[str, Any] = self._client.ask("describe the cluster", lambda admin: admin.describe_cluster())
        return cluster.get("cluster_id")

    def _list_offsets(self, specs: dict[Partition, int], *, stable: bool) -> dict[Partition, OffsetAndTimestamp]:
        from kafka import TopicPartition
        from kafka.protocol.consumer import IsolationLevel

        level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(*partition): spec for partition, spec in specs.items()}
        found = self._client.ask(
            "list offsets", lambda admin: admin.list_partition_offsets(asked, isolation_level=level)
        )
        return {(tp.topic, tp.partition): at for tp, at in found.items()}


def _untold(what: str) -> Refused:
    return Refused(
        what,
        code=codes.KAFKA_FORBIDDEN,
        remedy="Grant the connection's user Describe on the cluster: `max_bytes` needs the size of the partitions. Or "
        "leave `max_bytes` out, and set `max_records`. Clear the failed task.",
    )


def _stable_ends(admin: KafkaAdminClient, partitions: Sequence[Partition]) -> dict[Any, OffsetAndTimestamp] | None:
    from kafka import TopicPartition
    from kafka.errors import UnknownTopicOrPartitionError
    from kafka.protocol.consumer import IsolationLevel

    asked = {TopicPartition(*partition): _LATEST for partition in partitions}
    try:
        found: dict[Any, OffsetAndTimestamp] = admin.list_partition_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED
        )
    except UnknownTopicOrPartitionError:
        return None
    return found


def _described(admin: KafkaAdminClient, topics: Sequence[str]) -> list[dict[str, Any]]:
    """The topics without those whose error does not pass by itself. Raises errors that do."""
    from kafka.errors import UnknownTopicOrPartitionError, for_code

    found = []
    for topic in admin.describe_topics(list(topics)):
        error = for_code(topic["error_code"])
        if topic["error_code"] and error.retriable and error is not UnknownTopicOrPartitionError:
            raise error(topic["name"])
        if not topic["error_code"]:
            found.append(topic)
    return found


def _existing(admin: KafkaAdminClient, topics: Sequence[str]) -> list[dict[str, Any]]:
    from kafka.errors import UnknownTopicOrPartitionError, for_code

    found = []
    for topic in admin.describe_topics(list(topics)):
        error = for_code(topic["error_code"])
        if topic["error_code"] and error is not UnknownTopicOrPartitionError:
            raise error(topic["name"])
        if not topic["error_code"]:
            found.append(topic)
    return found


def _committed(admin: KafkaAdminClient, group: str, offsets: dict[Any, Any]) -> dict[Any, type[KafkaError]]:
    """Commit; return the outcome per partition. Raises errors that pass by themselves, so that ``ask`` repeats it."""
    from kafka.errors import CoordinatorLoadInProgressError, NotCoordinatorError

    results: dict[Any, type[KafkaError]] = admin.alter_group_offsets(group, offsets)
    passing = [error for error in results.values() if error in (CoordinatorLoadInProgressError, NotCoordinatorError)]
    if passing:
        raise passing[0](group)
    return results
