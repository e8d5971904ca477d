"""The Kafka source: offset ranges from the ledger's last complete epoch, never from a consumer group."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_epochs.errors import Refused
from airflow_epochs.names import is_template
from airflow_epochs.sources.kafka.config import DEFAULTS, KafkaConfig, read_config
from airflow_epochs.sources.kafka.starting import starting_json

if TYPE_CHECKING:
    from airflow_epochs.contracts import Environment, Limits, PlannedEpoch, Position, SparkRead
    from airflow_epochs.model import JsonDict, Ranges
    from airflow_epochs.sources.kafka.reader import KafkaReader

KIND = "kafka"


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
            ``airflow-epochs.<pipeline>``. The position is never taken from it. A group with offsets of others is
            refused.
        options: More options of Spark's Kafka source (``minPartitions``, ``includeHeaders``, …). Ranges,
            isolation level, ``failOnDataLoss`` and what belongs to the connection cannot be set.
        allow_loop: Whether a sink of the pipeline may write to one of the topics, so that its rows are read again.

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
    allow_loop: bool | str = DEFAULTS["allow_loop"]

    template_fields: ClassVar[Sequence[str]] = (
        "topics",
        "conn_id",
        "starting",
        "max_records",
        "min_records",
        "max_wait",
        "group_id",
        "options",
        "allow_loop",
    )

    def __post_init__(self) -> None:
        read_config(self._raw_given())

    def spec(self) -> JsonDict:
        topics = self.topics if isinstance(self.topics, str) else list(self.topics)
        raw = {**self._raw(), "topics": topics, "starting": starting_json(self.starting)}
        return {"kind": KIND, **raw, "options": dict(self.options)}

    @classmethod
    def from_spec(cls, spec: JsonDict) -> KafkaSource:
        """The inverse of ``spec``. Fields that this version does not know are ignored."""
        return cls(**{field.name: spec[field.name] for field in fields(cls) if field.name in spec})

    def reads(self) -> set[str]:
        """What no sink of the pipeline may write to, in the form of ``Sink.destination``; none while templated."""
        config = read_config(self._raw_given())
        if config.allow_loop or any(map(is_template, (self.topics, self.conn_id, self.allow_loop))):
            return set()
        return {f"kafka://{config.conn_id}/{topic}" for topic in config.topics}

    def prepare(self, pipeline: str, writes: Collection[str], position: Position | None, env: Environment) -> None:
        self._reader(env).prepare(writes, position)

    def plan(self, position: Position | None, limits: Limits, env: Environment) -> PlannedEpoch | None:
        return self._reader(env, limits).plan(position)

    def again(self, ranges: Ranges, state: JsonDict, env: Environment) -> PlannedEpoch:
        return self._reader(env).again(ranges, state)

    def check(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        self._reader(env).check(ranges, state)

    def confirm(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        self._reader(env).confirm(ranges, state)

    def spark_read(self, ranges: Ranges, env: Environment) -> SparkRead:
        return self._reader(env).spark_read(ranges)

    def why_nothing(self, env: Environment) -> str | None:
        return self._reader(env).why_nothing()

    def waiting(self, env: Environment) -> list[str]:
        """For people: what open transactions keep from being read, and how to end them."""
        return self._reader(env).waiting()

    def acknowledge(self, pipeline: str, ranges: Ranges, env: Environment) -> None:
        self._reader(env).acknowledge(pipeline, ranges)

    def _reader(self, env: Environment, limits: Limits | None = None) -> KafkaReader:
        # Imported here: a DAG file, parsed in every task, needs only the source's description.
        from airflow_epochs.sources.kafka.reader import KafkaReader

        return KafkaReader(self._config(limits), env)

    def _raw(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _raw_given(self) -> dict[str, Any]:
        return {name: value for name, value in self._raw().items() if not is_template(value)}

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
