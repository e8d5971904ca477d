"""The Kafka source: offset ranges from the ledger's last complete epoch, never from a consumer group."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, ClassVar

from airflow_epochs.environment import Environment
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict, Ranges, records_upper_bound
from airflow_epochs.sources.base import Limits, PlannedEpoch, Position, SparkRead
from airflow_epochs.sources.kafka_brokers import Brokers
from airflow_epochs.sources.kafka_config import DEFAULTS, KafkaConfig, is_template, read_config
from airflow_epochs.sources.kafka_connection import read_connection
from airflow_epochs.sources.kafka_logs import ClusterLog
from airflow_epochs.sources.kafka_loss import require_readable
from airflow_epochs.sources.kafka_plan import TimeIndex, available, limited, pinned, state_of
from airflow_epochs.sources.kafka_starting import AtTime, Latest, Starting, starting_json

log = logging.getLogger(__name__)

KIND = "kafka"
POLL_S = 0.5
MAX_POLL_RECORDS = "20000"
"""Records that Spark's consumer takes per poll. Kafka's own 500 costs a fifth of the speed."""


@dataclass
class KafkaSource:
    """Topics of one Kafka cluster, read in epochs of exact offset ranges.

    Every option may be a Jinja template.

    Attributes:
        topics: Topic names; a list, or one text with commas.
        conn_id: An Airflow connection of type ``kafka``, as the official Kafka provider defines it.
        starting: Where a topic begins in its first epoch, later without effect: ``"earliest"``, ``"latest"``, a time
            with its zone (ISO 8601, or ``{"timestamp": …}`` with a time or milliseconds), or offsets per topic and
            partition (partitions not named: earliest). A partition added later always begins at offset 0.
        max_records: At most so many offsets per epoch, split fairly over the partitions. None: all there is.
        min_records: Wait for so many …
        max_wait: … for at most so many seconds; then take what is there, if anything.
        group_id: Consumer group whose offsets follow the pipeline, for lag monitors only; by default
            ``airflow-epochs.<pipeline>``. Never read.
        options: More options of Spark's Kafka source (``minPartitions``, ``includeHeaders``, …). Ranges,
            isolation level, ``failOnDataLoss`` and what belongs to the connection cannot be set.

    Raises:
        ValueError: An option is not valid.
    """

    topics: Sequence[str] | str
    conn_id: str = DEFAULTS["conn_id"]
    starting: str | datetime | Mapping[str, Any] = DEFAULTS["starting"]
    max_records: int | str | None = DEFAULTS["max_records"]
    min_records: int | str = DEFAULTS["min_records"]
    max_wait: float | str = DEFAULTS["max_wait"]
    group_id: str | None = DEFAULTS["group_id"]
    options: Mapping[str, Any] = field(default_factory=dict)

    template_fields: ClassVar[Sequence[str]] = (
        "topics",
        "conn_id",
        "starting",
        "max_records",
        "min_records",
        "max_wait",
        "group_id",
        "options",
    )

    def __post_init__(self) -> None:
        read_config({name: value for name, value in self._raw().items() if not is_template(value)})

    def spec(self) -> JsonDict:
        topics = self.topics if isinstance(self.topics, str) else list(self.topics)
        raw = {**self._raw(), "topics": topics, "starting": starting_json(self.starting)}
        return {"kind": KIND, **raw, "options": dict(self.options)}

    @classmethod
    def from_spec(cls, spec: JsonDict) -> KafkaSource:
        """The inverse of ``spec``. Fields that this version does not know are ignored."""
        return cls(**{field.name: spec[field.name] for field in fields(cls) if field.name in spec})

    def plan(self, position: Position | None, limits: Limits, env: Environment) -> PlannedEpoch | None:
        """Ranges for a new epoch, or None after ``max_wait`` seconds without data.

        A topic that starts at ``"latest"`` is an exception to the latter: its first epoch may be empty, and pins
        where it begins. Otherwise the next run would begin at its own latest, and skip what came between.
        """
        config = self._config(limits)
        known = position.ranges if position else {}
        _say_what_is_left_out(known, config)
        with Brokers(read_connection(env.connection(config.conn_id))) as brokers:
            ranges, state = _wait_for_data(brokers, config, position)
        pins = isinstance(config.starting, Latest) and not known.keys() >= set(config.topics)
        if not records_upper_bound(ranges) and not pins:
            return None
        return PlannedEpoch(ranges=limited(ranges, config.max_records), state=state)

    def check(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        with Brokers(read_connection(env.connection(self._config().conn_id))) as brokers:
            require_readable(ranges, state, brokers.look(_topics_to_read(ranges)))

    def spark_read(self, ranges: Ranges, env: Environment) -> SparkRead:
        """Options of Spark's ``kafka`` format for exactly these ranges."""
        config = self._config()
        access = read_connection(env.connection(config.conn_id))
        full = {topic: [r for r in ranges[topic] if r.end > r.start] for topic in _topics_to_read(ranges)}
        full = full or {
            topic: list(ranges[topic]) for topic in ranges
        }  # all empty: Spark wants partitions all the same
        options = {
            **_with_default("kafka.max.poll.records", MAX_POLL_RECORDS, config.options),
            **access.spark_options(),
            "assign": _json({topic: [r.partition for r in full[topic]] for topic in full}),
            "startingOffsets": _json({topic: {str(r.partition): r.start for r in full[topic]} for topic in full}),
            "endingOffsets": _json({topic: {str(r.partition): r.end for r in full[topic]} for topic in full}),
            "kafka.isolation.level": "read_committed",
            "failOnDataLoss": "true",
        }
        return SparkRead(options=options, secrets=access.spark_secrets())

    def acknowledge(self, pipeline: str, ranges: Ranges, env: Environment) -> None:
        """Commit the ends of the ranges for the consumer group, for the topics that are still configured."""
        config = self._config()
        ends = {topic: {r.partition: r.end for r in ranges[topic]} for topic in config.topics if topic in ranges}
        if not any(ends.values()):
            return
        with Brokers(read_connection(env.connection(config.conn_id))) as brokers:
            brokers.commit(config.group_id or f"airflow-epochs.{pipeline}", ends)

    def _raw(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _config(self, limits: Limits | None = None) -> KafkaConfig:
        """Today's options; rendered by now, and a run's own limits over them."""
        raw = self._raw()
        if limits and limits.max_records is not None:
            raw["max_records"] = limits.max_records
        if limits and limits.starting is not None:
            raw["starting"] = limits.starting
        try:
            return read_config(raw)
        except ValueError as error:
            raise Refused(
                f"The Kafka source is not configured right: {error}.",
                remedy="Correct the KafkaSource of the DAG, or the parameters of the run.",
            ) from error


def _say_what_is_left_out(known: Ranges, config: KafkaConfig) -> None:
    left_out = sorted(known.keys() - set(config.topics))
    if left_out:
        log.warning("not read, as topics no longer names it, but its position is kept: %s", ", ".join(left_out))


def _wait_for_data(brokers: Brokers, config: KafkaConfig, position: Position | None) -> tuple[Ranges, JsonDict]:
    """Look until ``min_records`` are there or the time is up. Looks at least once."""
    deadline = time.monotonic() + config.max_wait_s
    topics = list(config.topics)
    starting = config.starting
    while True:
        cluster = brokers.look(topics)
        ranges = available(position, topics, cluster, starting, _time_index(brokers, cluster, starting, position))
        left = deadline - time.monotonic()
        if records_upper_bound(ranges) >= config.min_records or left <= 0:
            return ranges, state_of(position, cluster)
        starting = pinned(starting, cluster)
        time.sleep(min(POLL_S, left))


def _time_index(brokers: Brokers, cluster: ClusterLog, starting: Starting, position: Position | None) -> TimeIndex:
    """Where ``starting`` is a time: its offsets in the topics that have no position yet."""
    if not isinstance(starting, AtTime):
        return {}
    known = position.ranges if position else {}
    new = [(topic, p) for topic, at in cluster.topics.items() if topic not in known for p in at.partitions]
    return brokers.offsets_at(starting.ms, new) if new else {}


def _topics_to_read(ranges: Ranges) -> list[str]:
    return [topic for topic in ranges if any(r.end > r.start for r in ranges[topic])]


def _with_default(name: str, value: str, options: Mapping[str, str]) -> dict[str, str]:
    given = {option.lower() for option in options}
    return dict(options) if name in given else {name: value, **options}


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
