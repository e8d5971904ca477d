"""Which partition of the marker topic is whose: every sink has one for itself, so that none waits for another's.

Partition 0 says so: one record per sink, under the sink's key, with the number of its partition. A claim is made once
and for ever, by the first vote. Claims are made one at a time: all under one transactional id, the topic's name. So
whoever claims ends every other claim that is not committed yet, and only then looks which partitions are free.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from airflow_epochs.errors import Corrupt
from airflow_epochs.sinks.kafka_cluster import Cluster
from airflow_epochs.sinks.kafka_log import PartitionLog
from airflow_epochs.sinks.kafka_producer import fenced, producer_options, transactional

FORMAT = 1
DIRECTORY = 0
"""The partition of the claims."""
TIMEOUT_S = 10
"""After which the brokers end a claim that was left half made."""


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The claims in one marker topic, which exists. Methods raise what ``PartitionLog`` raises."""

    cluster: Cluster
    topic: str

    def find(self, key: str) -> int | None:
        """The partition of a sink; None if it has none yet. Does not wait for the claims of others once it is found."""
        found = (value for of, value in self._log.records() if of == key.encode())
        value = next(found, None)
        return None if value is None else self._decoded(key, value)

    def claim(self, key: str) -> int:
        """The partition of a sink: the one that it has, or a free one from now on."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self.cluster.access.timeout_s
        with self.cluster.asking(f"claim a partition of topic {self.topic}"):
            while True:
                try:
                    return self._claimed(key)
                except KafkaException as error:  # somebody else claims at the same time, and was later
                    if error.args[0].code() not in fenced() or time.monotonic() > deadline:
                        raise

    def _claimed(self, key: str) -> int:
        """In this order: after the first step, nobody else's claim can be committed before this one."""
        producer = transactional(self.cluster, producer_options(self.topic, TIMEOUT_S, {}), self.topic)
        taken = self._all()
        if key in taken:
            return taken[key]
        number = self._free(taken)
        producer.begin_transaction()
        producer.produce(self.topic, key=key, value=_encoded(number), partition=DIRECTORY)
        producer.commit_transaction(self.cluster.access.timeout_s)
        return number

    def _all(self) -> dict[str, int]:
        of_all = ((key.decode(), value) for key, value in self._log.records() if key and value)
        return {key: self._decoded(key, value) for key, value in of_all}

    def _free(self, taken: Mapping[str, int]) -> int:
        number = next(number for number in count(DIRECTORY + 1) if number not in taken.values())
        self.cluster.require_partitions(self.topic, number + 1)
        return number

    @property
    def _log(self) -> PartitionLog:
        return PartitionLog(cluster=self.cluster, topic=self.topic, partition=DIRECTORY)

    def _decoded(self, key: str, value: bytes) -> int:
        try:
            return _decoded(value)
        except ValueError as error:
            raise Corrupt(
                f"The record of key {key} in {self.topic}[{DIRECTORY}] does not say which partition is the sink's: "
                f"{error}.",
                remedy="Use the provider's version that wrote it, or one that is newer. If something else writes to "
                "this topic, stop it. See docs/kafka-sink.md, 'The marker topic'.",
            ) from error


def _encoded(number: int) -> bytes:
    return json.dumps({"partition": number, "format": FORMAT}).encode()


def _decoded(value: bytes) -> int:
    given: Any = json.loads(value)
    try:
        if given["format"] > FORMAT:
            raise ValueError(f"its format is {given['format']}, this version knows {FORMAT}")
        number = given["partition"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"it lacks {error}") from error
    if type(number) is not int or number <= DIRECTORY:
        raise ValueError(f"{number!r} is no such partition")
    return number
