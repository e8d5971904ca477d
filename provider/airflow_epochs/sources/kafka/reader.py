"""A Kafka source's work in an epoch: plan its ranges, check that they can be read, describe Spark's read."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Environment, Move, NotYet, Past, PlannedEpoch, Position, SparkRead, Unread
from airflow_epochs.errors import Refused
from airflow_epochs.kafka.connection import KafkaAccess, read_connection
from airflow_epochs.model import JsonDict, Ranges, ends_of
from airflow_epochs.sources.kafka import moves
from airflow_epochs.sources.kafka.brokers import Brokers
from airflow_epochs.sources.kafka.config import KafkaConfig
from airflow_epochs.sources.kafka.group import OURS, require_own_group
from airflow_epochs.sources.kafka.intake import (
    Found,
    Intake,
    awaited,
    intake,
    look_for_data,
    time_index,
    too_few,
    wait_for_data,
)
from airflow_epochs.sources.kafka.interval_intake import find_interval
from airflow_epochs.sources.kafka.logs import Batch, ClusterLog, Offsets, Partition, offsets_at_ends
from airflow_epochs.sources.kafka.loss import (
    epochs_of,
    require_readable,
    require_same_records,
    require_was_readable,
)
from airflow_epochs.sources.kafka.plan import available, begun_again, begun_at_oldest, left_unread, new_ends, state_of
from airflow_epochs.sources.kafka.starting import Latest, Starting
from airflow_epochs.sources.kafka.waiting import Waiting, told

log = secrecy.logger(__name__)

CONSUMER_DEFAULTS = {
    # Kafka's default of 500 costs a fifth of the speed.
    "kafka.max.poll.records": "20000",
    # At the end of a log, a fetch waits for this time, and Spark's next request on the connection waits behind it.
    # With Kafka's default of 500 ms, an epoch that reads to the end loses half a second per partition.
    "kafka.fetch.max.wait.ms": "10",
}
"""Settings of Spark's consumer that differ from Kafka's defaults. The source's own options override them."""


@dataclass(frozen=True)
class KafkaReader:
    """The operations of ``contracts.Source`` for one Kafka source's options, in one task's environment."""

    config: KafkaConfig
    env: Environment
    defers: bool = False

    @cached_property
    def access(self) -> KafkaAccess:
        """The source's connection, translated. Raises Refused if it cannot be used."""
        return read_connection(self.env.connection(self.config.conn_id))

    def prepare(self, writes: Collection[str], position: Position | None) -> None:
        """Raise Refused if a sink writes to an input topic, or if other consumers use the consumer group."""
        for destination in sorted(writes):
            self._require_no_loop(destination)
        if self.config.group_id is not None:
            with Brokers(self.access) as brokers:
                committed = brokers.group(self.config.group_id)
            require_own_group(self.config.group_id, committed, position, self.access.servers)

    def _require_no_loop(self, destination: str) -> None:
        scheme, _, path = destination.partition("://")
        conn_id, _, topic = path.partition("/")
        if self.config.allow_loop or scheme != "kafka" or topic not in self.config.topics:
            return
        there = read_connection(self.env.connection(conn_id)).servers
        if set(there) & set(self.access.servers):
            raise Refused(
                f"A sink writes to the topic {topic} through the connection {conn_id!r}, and the source reads the same "
                f"topic through the connection {self.config.conn_id!r}. The pipeline would read its own rows again and "
                "again.",
                code=codes.LOOP,
            )

    def plan(self, position: Position | None, past: Past) -> PlannedEpoch | None:
        """Plan the ranges of a new epoch; None after ``max_wait`` seconds without data.

        The first epoch of a topic that starts at ``"latest"`` may be empty: it records where the topic begins.
        Otherwise the next run would begin at a later ``"latest"`` and skip the records in between. The epoch of a data
        interval may be empty, too.

        Raises:
            Corrupt: Records that this pipeline has not read yet are gone.
            Refused: A topic or a starting offset does not exist, or the brokers refuse the login or the right.
            NotApplied: The brokers did not answer in time.
            NoNewData: There are records, but fewer than ``min_records``, and none has waited for ``max_delay``.
            NotYet: With ``defers``, in place of waiting for data, or for the end of the interval and its grace.
        """
        config = self.config
        known = position.ranges if position else {}
        _say_what_is_left_out(known, config)
        with Brokers(self.access) as brokers:
            found = self._found(brokers, position, past)
            cluster = found.cluster
            if position:
                _require_same_records(brokers, _of_topics(known, config.topics), position.state, cluster)
            pins = config.by_interval or (
                isinstance(config.starting, Latest) and not known.keys() >= set(config.topics)
            )  # then the epoch may be empty
            if self.defers and not found.ready and not pins:
                raise NotYet(awaited(found, config))
            if not found.records and not pins:
                return None
            if not found.ready and not pins:
                raise too_few(found.records, config)
            _say_what_waits(brokers, cluster, found.ranges)
            taken = intake(brokers, found, config, past)
            batches = brokers.batches(new_ends(position, taken.ranges), cluster)
        for decision in taken.told:
            log.info("the epoch takes %s", decision)
        return self._planned(position, found, taken, batches, past)

    def _planned(
        self, position: Position | None, found: Found, taken: Intake, batches: Mapping[Partition, Batch], past: Past
    ) -> PlannedEpoch:
        """The epoch that takes ``taken`` of what was ``found``. ``batches``: the batch before each of its ends."""
        config, ranges = self.config, taken.ranges
        state = state_of(position, found.cluster, ranges, batches)
        oldest = begun_at_oldest(position, config.topics, ranges, config.starting)
        if oldest and not config.by_interval:
            state["oldest"] = oldest
        now_ms = int(past.clock().timestamp() * 1000)
        return PlannedEpoch(
            ranges=ranges,
            state={**state, **taken.state(), **found.state},
            backlog=left_unread(config.topics, ranges, found.cluster, batches, now_ms),
        )

    def _found(self, brokers: Brokers, position: Position | None, past: Past) -> Found:
        """The records for the next epoch: those of the run's interval, those there now, or those there after a wait."""
        if self.config.by_interval:
            return find_interval(brokers, self.config, position, past, defers=self.defers)
        if self.defers:
            return look_for_data(brokers, self.config, position, past, self.config.starting)
        return wait_for_data(brokers, self.config, position, past)

    def unread(self, position: Position) -> list[Unread]:
        """What can be read behind the position, per partition. Raises Corrupt if records are gone, as ``plan``."""
        topics, starting = list(self.config.topics), self.config.starting
        with Brokers(self.access) as brokers:
            cluster = brokers.look(topics, epochs_of(position.state))
            index = time_index(brokers, cluster, starting, position)
            ranges = _of_topics(available(position, topics, cluster, starting, index), topics)
            _require_same_records(brokers, _of_topics(position.ranges, topics), position.state, cluster)
            first = {(topic, r.partition): r.start + 1 for topic, of in ranges.items() for r in of if r.end > r.start}
            times = {at: batch.ms for at, batch in brokers.batches(first, cluster).items() if batch.ms >= 0}
        return [
            Unread(topic=topic, partition=r.partition, start=r.start, end=r.end, ms=times.get((topic, r.partition)))
            for topic, of in ranges.items()
            for r in of
        ]

    def why_nothing(self) -> str | None:
        """Say which records wait for open transactions, as a sentence without full stop; None if no record waits."""
        with Brokers(self.access) as brokers:
            waiting = brokers.waiting(brokers.look(list(self.config.topics)).ends())
        return told(waiting) or None

    def waiting(self) -> list[str]:
        """Tell people which records wait for which open transactions, and how to end these."""
        with Brokers(self.access) as brokers:
            waiting = brokers.waiting(brokers.look(list(self.config.topics)).ends())
            hanging = brokers.hanging() if waiting else set()
        return [f"{each}. {_how_to_end(each, hanging, self.access.servers)}" for each in waiting]

    def again(self, ranges: Ranges, state: JsonDict) -> PlannedEpoch:
        """Plan an aborted epoch again, as ``plan.begun_again`` does. Raises Corrupt if a planned record is gone."""
        with Brokers(self.access) as brokers:
            named = self._asked_for(ranges)
            cluster = brokers.look(list(named), epochs_of(state))
            planned = begun_again(ranges, state, cluster)
            self._require_readable(brokers, _of_topics(planned.ranges, named), planned.state, cluster)
        if planned.ranges != ranges:
            log.warning("retention has deleted the oldest records: the epoch begins with those that are left")
        return planned

    def check(self, ranges: Ranges, state: JsonDict) -> None:
        """Raise Corrupt unless every planned record can still be read. Reads only."""
        with Brokers(self.access) as brokers:
            cluster = brokers.look(list(self._asked_for(ranges)), epochs_of(state))
            self._require_readable(brokers, ranges, state, cluster)

    def confirm(self, ranges: Ranges, state: JsonDict) -> None:
        """After Spark's read: raise Corrupt if it may have read other records than the planned ones."""
        with Brokers(self.access) as brokers:
            named = self._asked_for(ranges)
            cluster = brokers.look(list(named), epochs_of(state))
            require_was_readable(named, state, cluster)
            _require_same_records(brokers, named, state, cluster)

    def _require_readable(self, brokers: Brokers, ranges: Ranges, state: JsonDict, cluster: ClusterLog) -> None:
        named = self._asked_for(ranges)
        require_readable(named, state, cluster)
        _require_same_records(brokers, named, state, cluster)

    def _asked_for(self, ranges: Ranges) -> Ranges:
        """What Spark is asked for. If all ranges are empty, it still wants partitions: of topics that are there."""
        return _to_read(ranges) or _of_topics(ranges, self.config.topics) or ranges

    def past_losses(self, position: Position, topics: Sequence[str]) -> Move:
        """``moves.past_losses``, by what the brokers say now. No topics: all that are read."""
        named = self._or_all(position, topics)
        with Brokers(self.access) as brokers:
            cluster = brokers.look(named, epochs_of(position.state))
            ends = ends_of(_of_topics(position.ranges, named))
            return moves.past_losses(position, named, cluster, brokers.batches(ends, cluster))

    def cut_off(self, ranges: Ranges, state: JsonDict) -> Ranges:
        """``moves.cut_off``, by what the brokers say now, in the topics that are read."""
        named = _of_topics(ranges, self.config.topics)
        with Brokers(self.access) as brokers:
            cluster = brokers.look(list(named), epochs_of(state))
            return moves.cut_off(named, state, cluster, brokers.batches(ends_of(named), cluster))

    def to_offsets(self, position: Position, offsets: Offsets) -> Move:
        """``moves.to_offsets``, by what the brokers say now."""
        with Brokers(self.access) as brokers:
            return moves.to_offsets(position, offsets, brokers.look(list(offsets), epochs_of(position.state)))

    def to_time(self, position: Position, ms: int) -> Move:
        """``moves.to_time``, by what the brokers say now, in the topics that are read."""
        with Brokers(self.access) as brokers:
            cluster = brokers.look(self._or_all(position, []), epochs_of(position.state))
            return moves.to_time(position, ms, cluster, brokers.seen_offsets_at(ms, cluster.starts()))

    def to_another(self, position: Position, topics: Sequence[str], starting: Starting) -> Move:
        """``moves.to_another``, by what the brokers say now. No topics: all that are read."""
        named = self._or_all(position, topics)
        with Brokers(self.access) as brokers:
            cluster = brokers.look(named)
            index = time_index(brokers, cluster, starting, None)
            return moves.to_another(position, named, starting, cluster, index)

    def _or_all(self, position: Position, topics: Sequence[str]) -> list[str]:
        return list(dict.fromkeys(topics)) or sorted(_of_topics(position.ranges, self.config.topics))

    def spark_read(self, ranges: Ranges) -> SparkRead:
        """Options of Spark's ``kafka`` format for exactly these ranges."""
        config, full = self.config, self._asked_for(ranges)
        options = {
            **_with_defaults(config.options),
            **self.access.spark_options(),
            "assign": _json({topic: [r.partition for r in full[topic]] for topic in full}),
            "startingOffsets": _json({topic: {str(r.partition): r.start for r in full[topic]} for topic in full}),
            "endingOffsets": _json({topic: {str(r.partition): r.end for r in full[topic]} for topic in full}),
            "kafka.isolation.level": "read_committed",
            "failOnDataLoss": "true",
        }
        return SparkRead(options=options, secrets=self.access.spark_secrets(), secrets_of=config.conn_id)

    def acknowledge(self, pipeline: str, ranges: Ranges) -> None:
        """Commit the ends of the ranges for the consumer group. Leaves out topics that are no longer configured."""
        config = self.config
        ends = offsets_at_ends(_of_topics(ranges, config.topics))
        if not any(ends.values()):
            return
        with Brokers(self.access) as brokers:
            brokers.commit(config.group_id or f"airflow-epochs.{pipeline}", ends, f"{OURS}{pipeline}")


def _say_what_waits(brokers: Brokers, cluster: ClusterLog, ranges: Ranges) -> None:
    """Warn of records that wait for open transactions, in partitions from which this epoch reads nothing.

    In the other partitions open transactions are normal: they come and go.
    """
    moving = {(topic, r.partition) for topic in ranges for r in ranges[topic] if r.end > r.start}
    if waiting := brokers.waiting({at: end for at, end in cluster.ends().items() if at not in moving}):
        log.warning("not read in this epoch: %s", told(waiting))


def _how_to_end(waiting: Waiting, hanging: Collection[str], servers: Sequence[str]) -> str:
    transaction = waiting.transaction
    if transaction is None:
        return "Whose it is, the brokers do not say (before Kafka 3.0, or without Describe on transactional ids)."
    state = "Brokers end it after its own timeout"
    if not transaction.known:
        state = "It is unknown to the coordinators, or hidden from this user"
    elif transaction.transactional_id in hanging:
        state = "It is open for too long"
    return f"{state}. If its producer is gone for good: {transaction.abort_command(waiting.of, servers)}"


def _say_what_is_left_out(known: Ranges, config: KafkaConfig) -> None:
    left_out = sorted(known.keys() - set(config.topics))
    if left_out:
        log.warning(
            "topics that `topics` no longer names are not read, and keep their position: %s", ", ".join(left_out)
        )


def _require_same_records(brokers: Brokers, ranges: Ranges, state: JsonDict, cluster: ClusterLog) -> None:
    ends = ends_of(ranges)
    require_same_records(ends, state, cluster, brokers.batches(ends, cluster))


def _of_topics(ranges: Ranges, topics: Collection[str]) -> Ranges:
    return {topic: ranges[topic] for topic in ranges if topic in topics}


def _to_read(ranges: Ranges) -> Ranges:
    full = {topic: tuple(r for r in ranges[topic] if r.end > r.start) for topic in ranges}
    return {topic: full[topic] for topic in full if full[topic]}


def _with_defaults(options: Mapping[str, str]) -> dict[str, str]:
    given = {option.lower() for option in options}
    return {**{name: value for name, value in CONSUMER_DEFAULTS.items() if name not in given}, **options}


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
