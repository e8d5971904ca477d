"""The Kafka sink: an epoch's rows and its marker become visible in one Kafka transaction, exactly once.

Spark stages the rows in a private Delta table. The vote checks the rows and the topic. The commit sends the rows and a
marker record, which names the epoch, in one transaction. A consumer that reads committed records sees all or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.config import require_name
from airflow_epochs.errors import BadArgument, Corrupt, Refused
from airflow_epochs.kafka.topics import require_topic_name
from airflow_epochs.names import call_of, is_template
from airflow_epochs.sinks.kafka.value_options import KINDS, flaw_of
from airflow_epochs.sinks.locations import require_usable

if TYPE_CHECKING:
    from airflow_epochs.contracts import Dataset, Disagreement, Environment, LastEpoch, Row, SinkAttempt, StagedSample
    from airflow_epochs.model import JsonDict, Marker, Receipt, Staged, StagedClaim, TransactionId, Vote
    from airflow_epochs.sinks.kafka.participant import KafkaParticipant

TUNABLE = ("batch.num.messages", "batch.size", "compression.level", "compression.type", "linger.ms")
"""The producer settings that ``options`` may change: order, durability and the memory bound depend on none of them."""
_TIMEOUT_S = range(1, 86_401)


class KafkaSink:
    """Sends rows to a Kafka topic, exactly once per epoch.

    The columns are named as for Spark's own Kafka sink: ``key`` and ``value`` (string or binary), ``headers``
    (array<struct<key: string, value: binary>>) and ``partition`` (int). Without a ``value`` column, the record's value
    is a JSON object of all other columns.

    Args:
        name: The sink's name in the pipeline. The transform returns the sink's rows under it.
        topic: The topic. It must exist.
        staging: Where rows are staged: an absolute path or a URL that Spark and Airflow's workers share. All sinks may
            use the same.
        conn_id: An Airflow connection of type ``kafka``, as the official Kafka provider defines it.
        storage_conn_id: The connection with the credentials of the staging store. By default the worker's environment
            provides them.
        marker_topic: The compacted topic for the epoch markers of all sinks in a cluster. It is created if it is
            missing. Never change it: it records which epochs the topic has.
        transaction_timeout: Seconds after which the brokers abort an epoch that is still being sent. At most their
            ``transaction.max.timeout.ms`` (15 minutes by default). An epoch in doubt uses today's value if that is
            larger.
        options: Tuning of the producer: ``linger.ms``, ``batch.size``, ``batch.num.messages``, ``compression.type``,
            ``compression.level``.
        value_format: "avro", "json_schema" or "protobuf": the value is made of all columns but ``key``, ``headers`` and
            ``partition``, in the wire format of a schema registry. None: as said above.
        value_schema: The schema of the values, complete in itself: JSON text or a dict; of Protobuf, the text of a
            .proto file, whose first message describes the values. By default the sink derives a schema from the
            columns; every field is nullable. Protobuf needs a schema of yours.
        registry_conn_id: An Airflow connection of type ``schema_registry``. The vote asks it for the schema's id.
        subject: The subject that has the schema. Default: ``<topic>-value``.
        register_schemas: Whether the vote may register the schema. False: the subject must have it.
    """

    template_fields: Sequence[str] = (
        "topic",
        "staging",
        "conn_id",
        "storage_conn_id",
        "marker_topic",
        "registry_conn_id",
        "subject",
    )

    def __init__(
        self,
        name: str,
        topic: str,
        *,
        staging: str,
        conn_id: str = "kafka_default",
        storage_conn_id: str | None = None,
        marker_topic: str = "airflow-epochs-markers",
        transaction_timeout: int = 900,
        options: Mapping[str, str | int] | None = None,
        value_format: str | None = None,
        value_schema: str | Mapping[str, Any] | None = None,
        registry_conn_id: str = "schema_registry_default",
        subject: str | None = None,
        register_schemas: bool = True,
    ) -> None:
        self.name = require_name("sink", name)
        self.topic = topic
        self.staging = staging
        self.conn_id = conn_id
        self.storage_conn_id = storage_conn_id
        self.marker_topic = marker_topic
        self.transaction_timeout = _seconds(name, transaction_timeout)
        self.options = _options(name, options or {})
        self.value_format = value_format
        self.value_schema = json.dumps(value_schema) if isinstance(value_schema, Mapping) else value_schema
        self.registry_conn_id = registry_conn_id
        self.subject = subject
        self.register_schemas = register_schemas
        self._require_format()
        if not self._is_template():
            self._require_topics()

    def __repr__(self) -> str:
        return call_of("KafkaSink", self.name, self.topic, conn_id=self.conn_id)

    def asset_uri(self, pipeline: str) -> str:
        """``kafka://<connection id>/<topic>``. Only the connection knows the brokers' addresses."""
        if self._is_template():
            return f"epochs://{pipeline}/{self.name}"
        return f"kafka://{self.conn_id}/{self.topic}"

    def destination(self) -> str | None:
        """Connection and topic; None while they hold a template. Raises Refused if ``staging`` is not usable."""
        require_usable("staging", self.staging, self.name)
        return None if self._is_template() else f"kafka://{self.conn_id}/{self.topic}"

    def spec(self) -> JsonDict:
        """The sink's options, as the ledger records them. Raises Refused if a rendered template is not valid."""
        from airflow_epochs.staged.table import staging_root

        try:
            self._require_topics()
        except BadArgument as error:
            raise Refused(
                f"An argument of the KafkaSink is not valid. {error.what}",
                code=codes.SINK_MISCONFIGURED,
                sink=self.name,
            ) from error
        return {
            "kind": "kafka",
            "name": self.name,
            "topic": self.topic,
            "staging": staging_root(self.staging, self.name),
            "conn_id": self.conn_id,
            "storage_conn_id": self.storage_conn_id,
            "marker_topic": self.marker_topic,
            "transaction_timeout": self.transaction_timeout,
            "options": dict(self.options),
            **(self._format_spec() if self.value_format else {}),  # older versions read the specs of other sinks
        }

    def _format_spec(self) -> JsonDict:
        return {
            "value_format": self.value_format,
            "value_schema": self.value_schema,
            "registry_conn_id": self.registry_conn_id,
            "subject": self.subject,
            "register_schemas": self.register_schemas,
        }

    @classmethod
    def from_spec(cls, spec: JsonDict) -> KafkaSink:
        """The sink that ``spec`` describes. It is checked like a new one."""
        return cls(**{key: value for key, value in spec.items() if key != "kind"})

    def with_todays(self, today: KafkaSink) -> KafkaSink:
        """This sink with today's tuning, and today's transaction_timeout if larger. Neither changes what is sent."""
        timeout = max(self.transaction_timeout, today.transaction_timeout)
        return self.from_spec({**self.spec(), "transaction_timeout": timeout, "options": today.options})

    def _is_template(self) -> bool:
        return is_template([self.topic, self.conn_id, self.marker_topic])

    def _require_topics(self) -> None:
        require_topic_name(self.topic)
        require_topic_name(self.marker_topic)
        if self.topic == self.marker_topic:
            raise BadArgument(
                f"`topic` and `marker_topic` of sink {self.name!r} are both {self.topic!r}. Rows and markers need "
                "different topics.",
                code=codes.KAFKA_SINK_ARGUMENT,
            )

    def _require_format(self) -> None:
        if self.value_format is None and (self.value_schema, self.subject) != (None, None):
            raise self._bad("`value_schema` and `subject`", "are given", f"Give `value_format` too: {_or(KINDS)}")
        if self.value_format is not None and self.value_format not in KINDS:
            raise self._bad("`value_format`", f"is {self.value_format!r}", f"It must be {_or(KINDS)}")
        if self.value_format and (flaw := flaw_of(self.value_format, self.value_schema)):
            raise self._bad("`value_schema`", f"{flaw}", "It must be a schema that is complete in itself")

    def _bad(self, what: str, flaw: str, wanted: str) -> BadArgument:
        return BadArgument(f"{what} of sink {self.name!r} {flaw}. {wanted}.", code=codes.KAFKA_SINK_ARGUMENT)

    # -- what it does in an epoch --------------------------------------------------------------------------------

    def place(self, attempt: SinkAttempt, try_id: str, env: Environment) -> str:
        """A folder of its own below ``staging``."""
        return self._participant(env).staged.place(attempt, try_id)

    def plan_stage(self, attempt: SinkAttempt, try_id: str, env: Environment) -> JsonDict:
        """Describe the staging table to Spark, and sign the sink's staging folder."""
        return self._participant(env).staged.plan(attempt, try_id)

    def require_ready(self, pipeline: str, previous: TransactionId | None, env: Environment) -> None:
        """Look at the topic and the marker topic, their settings, and the user's rights on them."""
        self._participant(env).require_ready(pipeline, previous)

    def require_writable(self, env: Environment) -> None:
        """Write a probe into the folder ``staging``, and remove it."""
        self._participant(env).staged.require_writable()

    def fit(self, pipeline: str, env: Environment) -> JsonDict:
        """What the topic takes of a record."""
        from airflow_epochs.spark.driver.wire import as_json

        return as_json(self._participant(env).fit())

    def vote(self, attempt: SinkAttempt, claim: StagedClaim, env: Environment) -> Vote:
        """Check the staged rows, both topics and the rights on them; make every record; take the transactional id."""
        return self._participant(env).vote(attempt, claim)

    def commit(self, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
        """Send the rows and the marker in one transaction. The receipt comes from the marker alone."""
        return self._participant(env).commit(attempt, staged)

    def has_leftovers(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> bool:
        """Whether any file is left at the place."""
        return self._participant(env).staged.has_leftovers(attempt, place)

    def discard(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> None:
        """Delete the place, published or not: the topic has copies of its rows."""
        self._participant(env).staged.discard(attempt, place)

    def rows_of(self, receipt: Receipt, pipeline: str, env: Environment) -> Iterator[Row]:
        """The epoch's records, found by the offsets of the receipt and by the header that each has."""
        return self._participant(env).rows_of(receipt, pipeline)

    def rows_staged(self, attempt: SinkAttempt, place: str, env: Environment) -> Iterator[Row]:
        """The records that a commit would send."""
        return self._participant(env).rows_staged(attempt, place)

    def sample(self, attempt: SinkAttempt, place: str, most: int, env: Environment) -> StagedSample:
        """The staged rows, as Spark wrote them."""
        return self._participant(env).sample(attempt, place, most)

    def dataset(self, receipt: Receipt, env: Environment) -> Dataset:
        """The topic, in the cluster of the connection."""
        from airflow_epochs.kafka.connection import dataset_of

        return dataset_of(env.connection(self.conn_id), self.topic)

    def in_place_of(self, own: Receipt, others: Sequence[Receipt], env: Environment) -> Receipt | None:
        """The one of ``others`` for this sink's topic, in the same cluster, if the sink had another topic before."""
        cluster = own.detail.get("marker_topic_id")
        if cluster is None or own.detail.get("topic") == self.topic:
            return None
        there = (other for other in others if other.detail.get("marker_topic_id") == cluster)
        return next((other for other in there if other.detail.get("topic") == self.topic), None)

    def may_hold(self, receipt: Receipt, env: Environment) -> bool:
        """Whether the receipt is of this topic, which nobody has created again since."""
        return self._participant(env).may_hold(receipt)

    def last_committed(self, pipeline: str, env: Environment) -> Marker | None:
        """The sink's newest marker in the marker topic."""
        return self._participant(env).last_committed(pipeline)

    def last_epoch(self, pipeline: str, env: Environment) -> LastEpoch | None:
        """What the newest marker says."""
        return self._participant(env).last_epoch(pipeline)

    def diagnose(self, disagreement: Disagreement, env: Environment) -> Corrupt | None:
        """Explain the marker: topics that were deleted or restored, or a ledger that was lost."""
        return self._participant(env).diagnose(disagreement)

    def fence(self, pipeline: str, over: Collection[TransactionId | None], by: TransactionId, env: Environment) -> bool:
        """End the sink's open transaction, and send a marker that names ``by``."""
        return self._participant(env).fence(pipeline, over, by)

    def _participant(self, env: Environment) -> KafkaParticipant:
        # Imported here: every task parses its DAG file, which needs only the sink's options.
        from airflow_epochs.sinks.kafka.participant import KafkaParticipant

        return KafkaParticipant(self, env)


def _or(kinds: Iterable[str]) -> str:
    return " or ".join(map(repr, kinds))


def _seconds(sink: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value not in _TIMEOUT_S:
        raise BadArgument(
            f"`transaction_timeout` of sink {sink!r} is {value!r}. It must be a whole number of seconds from 1 to "
            f"{_TIMEOUT_S[-1]} (a day).",
            code=codes.KAFKA_SINK_ARGUMENT,
        )
    return value


def _options(sink: str, given: Mapping[str, str | int]) -> dict[str, str | int]:
    refused = sorted(str(name) for name in given if name not in TUNABLE)
    if refused:
        raise BadArgument(
            f"`options` of sink {sink!r} sets {', '.join(refused)}. It may set only {', '.join(TUNABLE)}: exactly-once "
            "needs acks=all, idempotence and the transaction, and all other settings belong to the connection.",
            code=codes.KAFKA_SINK_ARGUMENT,
        )
    for name, value in given.items():
        if name != "compression.type" and not str(value).isdigit():
            raise BadArgument(
                f"`options[{name!r}]` of sink {sink!r} is {value!r}. It must be a whole number.",
                code=codes.KAFKA_SINK_ARGUMENT,
            )
    return dict(given)
