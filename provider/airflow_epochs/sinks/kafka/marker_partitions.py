"""Assigns every sink its own partition of the marker topic, so that no sink waits for another sink's transactions.

Partition 0 keeps the assignments: one record per sink, under the sink's key, with its partition and the transactional
id for its epochs. A sink's first vote makes its assignment, which never changes. All assignments are made under one
transactional id, the topic's name, and so one at a time: a new one first ends every other uncommitted one, and then
looks which partitions are free.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt, EpochError, NotApplied, Refused
from airflow_epochs.sinks.kafka.cluster import Cluster
from airflow_epochs.sinks.kafka.committed_records import PartitionLog
from airflow_epochs.sinks.kafka.producer import fenced, producer_options, transactional

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException

FORMAT = 1
DIRECTORY = 0
"""The partition that keeps the assignments."""
TIMEOUT_S = 10
"""Seconds after which the brokers abort an unfinished assignment."""
ASSIGNING_S = 120
"""How long a sink tries to get a partition: other sinks that get theirs may overtake it each time."""
DOUBLED_MAX = 5
"""How often the time between two tries is doubled: then 32 sinks have room in it."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A sink's own partition and transactional id.

    Attributes:
        partition: A partition of the marker topic.
        transactional_id: The same for all epochs, so that each commit fences a stray producer of an earlier one.
    """

    partition: int
    transactional_id: str

    @classmethod
    def decoded(cls, key: str, value: bytes) -> Assignment:
        """The inverse of ``encoded``. Raises ValueError if the value is not an assignment, or its format is newer."""
        given: Any = json.loads(value)
        try:
            if given["format"] > FORMAT:
                raise ValueError(f"its format is {given['format']}, and this version reads formats up to {FORMAT}")
            number = given["partition"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"a field is missing or wrong ({error})") from error
        if type(number) is not int or number <= DIRECTORY:
            raise ValueError(f"{number!r} is not a partition of a sink")
        return cls(partition=number, transactional_id=given.get("transactional_id") or first_id(key))

    def encoded(self) -> bytes:
        """The assignment as JSON, the record's value."""
        value = {"partition": self.partition, "transactional_id": self.transactional_id, "format": FORMAT}
        return json.dumps(value).encode()


def first_id(key: str) -> str:
    """The transactional id of a sink whose assignment version 0.1 made.

    It must stay: a process of that version may still run, and only producers with the same id fence each other.
    """
    return key.replace("/", ".")


def own_id(key: str) -> str:
    """The transactional id of a new sink. Its prefix keeps it apart from the ids of other applications."""
    return f"airflow-epochs.{first_id(key)}"


@dataclass(frozen=True, kw_only=True)
class Assignments:
    """The assignments in one marker topic, which must exist. Methods raise what ``PartitionLog`` raises."""

    cluster: Cluster
    topic: str

    def find(self, key: str) -> Assignment | None:
        """A sink's assignment; None if it has none. Reads no further than to the assignment."""
        found = (value for of, value in self._log(DIRECTORY).records() if of == key.encode())
        value = next(found, None)
        return None if value is None else self._decoded(key, value)

    def assign(self, key: str, *, in_ours: bool = False) -> Assignment:
        """A sink's assignment: the one that it has, or a new one on a free partition.

        ``in_ours``: True if the topic is known to be a marker topic, whatever records it holds.

        Raises:
            Refused: The topic holds records that are not ours. Nothing was written.
            NotApplied: Other sinks overtook this one each time, or the brokers never took its assignment.
        """
        failures: list[KafkaException] = []
        deadline = time.monotonic() + ASSIGNING_S
        for tries in count(1):
            begun = time.monotonic()
            assigned = self._unless_overtaken(key, in_ours)
            now = time.monotonic()
            if isinstance(assigned, Assignment):
                return assigned
            failures.append(assigned)
            if now > deadline:
                break
            # A new try would overtake theirs. So it waits, the longer the more others there seem to be.
            time.sleep(random.uniform(0, min((now - begun) * 2 ** min(tries, DOUBLED_MAX), deadline - now)))
        raise self._never_assigned(key, failures) from failures[-1]

    def _never_assigned(self, key: str, failures: list[KafkaException]) -> EpochError:
        last: KafkaError = failures[-1].args[0]
        if not any(each.args[0].code() in fenced() for each in failures):
            return self.cluster.failure(self._assigning, last)
        return NotApplied(
            f"Sink {key} got no partition of topic {self.topic} in {ASSIGNING_S} s: other sinks have been assigned "
            f"theirs at the same time, and overtook it. The last answer: {last.str()}.",
            code=codes.TOPIC_NOT_READY,
            remedy="Let Airflow retry the task, or clear the failed task.",
        )

    @property
    def _assigning(self) -> str:
        return f"assign a partition of topic {self.topic}"

    def _unless_overtaken(self, key: str, in_ours: bool) -> Assignment | KafkaException:
        """The assignment; or an error that may mean that another process makes one now, and has fenced this one."""
        from confluent_kafka import KafkaError, KafkaException

        # UNKNOWN: a commit that Kafka gets while it fences the producer (its log: pending state PREPARE_EPOCH_FENCE).
        # Kafka gives this answer also when it fails for a reason of its own, such as a broken disk.
        overtaken = {*fenced(), KafkaError.UNKNOWN}
        with self.cluster.asking(self._assigning):
            try:
                return self._assigned(key, in_ours)
            except KafkaException as error:
                if error.args[0].code() not in overtaken:
                    raise
                return error

    def _assigned(self, key: str, in_ours: bool) -> Assignment:
        """Make the assignment. The order matters: after the first step, no other process can commit one first."""
        producer = transactional(self.cluster, producer_options(self.topic, TIMEOUT_S, {}), self.topic)
        taken = self._all()
        if key in taken:
            return taken[key]
        if not taken and not in_ours:
            self._require_empty()
        assignment = Assignment(partition=self._free(taken), transactional_id=own_id(key))
        producer.begin_transaction()
        producer.produce(self.topic, key=key, value=assignment.encoded(), partition=DIRECTORY)
        producer.commit_transaction(self.cluster.access.timeout_s)
        return assignment

    def _all(self) -> dict[str, Assignment]:
        return {
            str(key): assignment
            for key, assignment in (self._read(*record) for record in self._log(DIRECTORY).records())
        }

    def _read(self, key: bytes | None, value: bytes | None) -> tuple[str, Assignment]:
        try:
            name = (key or b"").decode()
            return name, Assignment.decoded(name, value or b"")
        except ValueError as error:
            raise self._foreign(DIRECTORY) from error

    def _require_empty(self) -> None:
        """Check that a topic without assignments is empty. Otherwise it serves another purpose."""
        facts = self.cluster.topic(self.topic)
        ends = self.cluster.ends(self.topic, range(facts.partitions)) if facts else {}
        for partition in (number for number, end in ends.items() if end):  # reading them all would take long
            if next(self._log(partition).records(), None):
                if self._all():  # made by a process that has fenced this one: the brokers will refuse ours
                    return
                raise self._foreign(partition)

    def _foreign(self, partition: int) -> Refused:
        return Refused(
            f"Topic {self.topic} cannot be the marker topic: {self.topic}[{partition}] has records, and partition "
            f"{DIRECTORY} does not assign them to a sink. Nothing was written into it.",
            code=codes.MARKER_TOPIC_OCCUPIED,
        )

    def _free(self, taken: Mapping[str, Assignment]) -> int:
        numbers = {assignment.partition for assignment in taken.values()}
        number = next(number for number in count(DIRECTORY + 1) if number not in numbers)
        self.cluster.require_partitions(self.topic, number + 1)
        return number

    def _log(self, partition: int) -> PartitionLog:
        owner = self.topic if partition == DIRECTORY else None
        return PartitionLog(cluster=self.cluster, topic=self.topic, partition=partition, owner=owner)

    def _decoded(self, key: str, value: bytes) -> Assignment:
        try:
            return Assignment.decoded(key, value)
        except ValueError as error:
            raise Corrupt(
                f"The record of key {key} in {self.topic}[{DIRECTORY}] does not name the partition of this sink: "
                f"{error}.",
                code=codes.MARKER_FOREIGN,
                remedy="Use the provider's version that wrote the record, or a newer one. If another program wrote it, "
                "stop that program, and give the sink a new name and a marker_topic of its own. See "
                "docs/kafka-sink.md, 'The marker topic'.",
            ) from error
