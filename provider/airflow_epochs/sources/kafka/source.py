"""The Kafka source. Its position comes from the ledger's last complete epoch, never from a consumer group."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_epochs import codes
from airflow_epochs.errors import Refused, without_code
from airflow_epochs.names import is_template
from airflow_epochs.sources.kafka.config import DATA_INTERVAL, DEFAULTS, SIZES, KafkaConfig, read_config
from airflow_epochs.sources.kafka.starting import starting_json

if TYPE_CHECKING:
    from airflow_epochs.contracts import (
        Dataset,
        Environment,
        Interval,
        Limits,
        Move,
        Past,
        PlannedEpoch,
        Position,
        SparkRead,
        Unread,
    )
    from airflow_epochs.model import JsonDict, Ranges
    from airflow_epochs.schemas import WriterSchema
    from airflow_epochs.sources.kafka.reader import KafkaReader

KIND = "kafka"


@dataclass
class KafkaSource:
    """Topics of one Kafka cluster, read in epochs of exact offset ranges.

    Every option may be a Jinja template.

    Attributes:
        topics: Topic names: a list, or one text with commas between them.
        conn_id: An Airflow connection of type ``kafka``, as the official Kafka provider defines it.
        starting: Where a topic begins in its first epoch; it has no effect later. ``"earliest"``, ``"latest"``, a time
            with its zone (ISO 8601, or ``{"timestamp": …}`` with a time or milliseconds), or offsets per topic and
            partition (a partition without one begins at the earliest). A partition added later begins at offset 0.
        max_records: The largest number of offsets per epoch, in fair shares for the partitions. None: no limit.
        max_bytes: About how many bytes of the topics an epoch reads at most: a number, or a text such as ``"256MiB"``.
            An estimate, by the size of the partitions on the brokers' disks; at least one record of each partition is
            read. None: no limit.
        min_records: The number of records to wait for before an epoch begins.
        max_delay: No record waits for ``min_records`` for longer than this: seconds, or a text such as ``"10m"``. None:
            the epoch takes the records that are there after ``max_wait``.
        max_wait: For how many seconds ``open`` waits for ``min_records``. Then, without ``max_delay``, the epoch takes
            the records that are there, if any; with it, the run is skipped, and the next one looks again.
        target_duration: How long the work on an epoch shall take: seconds, or a text such as ``"10m"``. The size of an
            epoch then follows from the speed of the last ones, within ``max_records``. None: no target.
        group_id: A consumer group for which the pipeline commits its offsets, for lag monitors only. Default:
            ``airflow-epochs.<pipeline>``. The position never comes from it. The pipeline refuses a group in which
            other consumers have committed offsets.
        options: More options of Spark's Kafka source (``minPartitions``, ``includeHeaders``, …). The ranges, the
            isolation level, ``failOnDataLoss`` and the connection's settings cannot be set.
        allow_loop: Whether a sink of the pipeline may write to one of the topics, so that its rows are read again.
        bounds: "available": an epoch has what can be read now. "data_interval": it has the records with timestamps in
            the data interval, or the partition, of its DAG run. Then ``starting`` is a time, or the pipeline begins
            with the interval of its first run.
        grace: With "data_interval": how long after the interval ``open`` waits for late records, in seconds, or a text.
        missed: With "data_interval", if earlier intervals were left out. "read": the epoch has their records, too.
            "refuse": the run fails, until each of them has an epoch of its own.
        registry_conn_id: An Airflow connection of type ``schema_registry``. ``open`` asks it for the schemas that
            records may have, and parsers such as ``parse_avro(registry=…)`` find them. None: no registry is asked.
        subjects: The subjects of the registry that have these schemas: a list, or one text with commas between them.
            Default: ``<topic>-value`` of each topic.

    Raises:
        BadArgument: An option is not valid.
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
    max_bytes: int | str | None = DEFAULTS["max_bytes"]
    max_delay: float | str | None = DEFAULTS["max_delay"]
    target_duration: float | str | None = DEFAULTS["target_duration"]
    bounds: str = DEFAULTS["bounds"]
    grace: float | str = DEFAULTS["grace"]
    missed: str = DEFAULTS["missed"]
    registry_conn_id: str | None = DEFAULTS["registry_conn_id"]
    subjects: Sequence[str] | str | None = DEFAULTS["subjects"]

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
        "max_bytes",
        "max_delay",
        "target_duration",
        "bounds",
        "grace",
        "missed",
        "registry_conn_id",
        "subjects",
    )

    def __post_init__(self) -> None:
        read_config(self._raw_given())

    def spec(self) -> JsonDict:
        """The source as JSON, for the ledger: connection ids, no secrets."""
        topics = self.topics if isinstance(self.topics, str) else list(self.topics)
        raw = {**self._raw(), "topics": topics, "starting": starting_json(self.starting)}
        subjects = list(self.subjects) if self.subjects and not isinstance(self.subjects, str) else self.subjects
        return {"kind": KIND, **raw, "options": dict(self.options), "subjects": subjects}

    @classmethod
    def from_spec(cls, spec: JsonDict) -> KafkaSource:
        """Rebuild the source from its ``spec``. Ignores fields that this version does not know."""
        return cls(**{field.name: spec[field.name] for field in fields(cls) if field.name in spec})

    def reads(self) -> set[str]:
        """The topics that no sink of the pipeline may write to, spelled like ``Sink.destination``.

        Empty with ``allow_loop``, and while an option that decides it is a template.
        """
        config = read_config(self._raw_given())
        if config.allow_loop or any(map(is_template, (self.topics, self.conn_id, self.allow_loop))):
            return set()
        return {f"kafka://{config.conn_id}/{topic}" for topic in config.topics}

    def by_interval(self) -> bool:
        """Whether epochs belong to the data intervals of their runs."""
        return read_config(self._raw_given()).by_interval

    @property
    def lacks(self) -> Mapping[str, str]:
        """The params that a run cannot have if its epoch has the records of an interval."""
        reason = "the interval says which records an epoch has"
        return dict.fromkeys(SIZES, reason) if self.bounds == DATA_INTERVAL else {}

    def planned_for(self, state: JsonDict) -> Interval | None:
        """The interval that an epoch with this state was planned for; None: it was not for an interval."""
        from airflow_epochs.sources.kafka.interval import planned_for

        return planned_for(state)

    def read_until(self, state: JsonDict) -> datetime | None:
        """The end of the interval that an epoch with this state was planned for; None: it was not for an interval."""
        from airflow_epochs.sources.kafka.interval import coverage_of

        covered = coverage_of(state)
        return covered.end if covered and not covered.went_back else None

    def leaves_out(self, topic: str) -> bool:
        """Whether the source's ``topics`` no longer name ``topic``."""
        return topic not in read_config(self._raw_given()).topics

    def prepare(self, pipeline: str, writes: Collection[str], position: Position | None, env: Environment) -> None:
        """Raise Refused if a sink writes to an input topic, or if other consumers use the consumer group."""
        self._reader(env).prepare(writes, position)

    def plan(self, position: Position | None, limits: Limits, env: Environment) -> PlannedEpoch | None:
        """Plan a new epoch as ``plan_paced`` does, without looking at earlier epochs."""
        return self.plan_paced(position, limits, _no_past(), env)

    def plan_paced(
        self, position: Position | None, limits: Limits, past: Past, env: Environment
    ) -> PlannedEpoch | None:
        """Plan a new epoch, with ``limits`` in place of the source's own; None if there is no data."""
        return self._reader(env, limits).plan(position, past)

    def again(self, ranges: Ranges, state: JsonDict, env: Environment) -> PlannedEpoch:
        """Plan an aborted epoch again: the same ranges, except that deleted oldest records are left out."""
        return self._reader(env).again(ranges, state)

    def check(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        """Raise Corrupt unless every planned record can still be read. Reads only."""
        self._reader(env).check(ranges, state)

    def confirm(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        """After Spark's read: raise Corrupt if it may have read other records than the planned ones."""
        self._reader(env).confirm(ranges, state)

    def before(self, base: Position | None, ranges: Ranges, state: JsonDict) -> Position:
        """The position at which an aborted epoch with these planned ranges began."""
        from airflow_epochs.sources.kafka import moves

        return moves.before(base, ranges, state)

    def past_losses(self, position: Position, topics: Sequence[str], env: Environment) -> Move:
        """Go on after the records that Kafka has lost in ``topics`` (empty: in all topics). Reads only."""
        return self._reader(env).past_losses(position, topics)

    def cut_off(self, ranges: Ranges, state: JsonDict, env: Environment) -> Ranges:
        """What truncations have removed of an aborted epoch's planned ranges, in topics that are read. Reads only."""
        return self._reader(env).cut_off(ranges, state)

    def to_offsets(self, position: Position, offsets: Mapping[str, Mapping[int, int]], env: Environment) -> Move:
        """Go on at these offsets. Reads only."""
        return self._reader(env).to_offsets(position, offsets)

    def to_time(self, position: Position, time: str, env: Environment) -> Move:
        """Go back to the first records at or after a time with its zone. Reads only."""
        from airflow_epochs.sources.kafka.starting import parse_time

        at = parse_time(time)
        return self._reader(env).to_time(position, at)

    def to_another(self, position: Position, topics: Sequence[str], starting: object, env: Environment) -> Move:
        """Go on in the topics that have these names now. ``starting``: as the option. Reads only.

        ``topics``: empty for all topics.
        """
        from airflow_epochs.sources.kafka.starting import parse_starting

        return self._reader(env).to_another(position, topics, parse_starting(starting))

    def spark_read(self, ranges: Ranges, env: Environment) -> SparkRead:
        """Describe a Spark read of exactly these ranges, committed records only."""
        return self._reader(env).spark_read(ranges)

    def unread(self, position: Position, env: Environment) -> list[Unread]:
        """What can be read behind the position, per partition. Raises Corrupt if records are gone. Reads only."""
        return self._reader(env).unread(position)

    def registry(self) -> JsonDict | None:
        """The connection of the schema registry, and the subjects that it is asked for; None: no registry is asked."""
        config = read_config(self._raw_given())
        if config.registry_conn_id is None:
            return None
        return {"registry_conn_id": config.registry_conn_id, "subjects": list(config.subjects)}

    def schemas(self, env: Environment) -> dict[str, WriterSchema]:
        """All versions of the subjects, by their ids."""
        from airflow_epochs.kafka.schema_registry import schemas_of

        config = self._config()
        assert config.registry_conn_id
        return schemas_of(env.connection(config.registry_conn_id), config.subjects)

    def dataset_of(self, topic: str, env: Environment) -> Dataset:
        """The topic, in the cluster of the connection."""
        from airflow_epochs.kafka.connection import dataset_of

        return dataset_of(env.connection(self.conn_id), topic)

    def why_nothing(self, env: Environment) -> str | None:
        """Say which records wait for open transactions, as a sentence without full stop; None if no record waits."""
        return self._reader(env).why_nothing()

    def waiting(self, env: Environment) -> list[str]:
        """Tell people which records wait for which open transactions, and how to end these."""
        return self._reader(env).waiting()

    def acknowledge(self, pipeline: str, ranges: Ranges, env: Environment) -> None:
        """Commit the ends of the ranges for the consumer group, for lag monitors. Idempotent."""
        self._reader(env).acknowledge(pipeline, ranges)

    def _reader(self, env: Environment, limits: Limits | None = None) -> KafkaReader:
        # Imported late: every task parses the DAG file, and that needs only the source's description.
        from airflow_epochs.sources.kafka.reader import KafkaReader

        return KafkaReader(self._config(limits), env, defers=bool(limits and limits.defers))

    def _raw(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _raw_given(self) -> dict[str, Any]:
        return {name: value for name, value in self._raw().items() if not is_template(value)}

    def _config(self, limits: Limits | None = None) -> KafkaConfig:
        """Today's rendered options, with a run's own limits in place of theirs."""
        own = {name: value for name, value in vars(limits).items() if value is not None} if limits else {}
        try:
            config = read_config({**self._raw(), **own})
            if limits and limits.wait_at_most is not None:
                return replace(config, max_wait_s=min(config.max_wait_s, limits.wait_at_most))
            return config
        except ValueError as error:
            raise Refused(
                f"An argument of the KafkaSource is not valid. {without_code(error)}",
                code=codes.SOURCE_MISCONFIGURED,
            ) from error


def _no_past() -> Past:
    from airflow_epochs.contracts import Past

    return Past(epochs=lambda: iter(()), clock=lambda: datetime.now(timezone.utc))
