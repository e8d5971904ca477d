"""Produces transfers without end, in transactions of which every fifth is aborted, and notes what became of each.

A transfer has a time of its own, which moves on with the number of the transfer, so it does not depend on the machine's
clock. Most are a little out of order, and a few are late. One partition is quiet for a third of the time.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_epochs.testing.history import Origin

TOPIC, PARTITIONS = "transfers", 4
PAUSE_S = 0.4
PATIENCE_S = 60
LEADER_S = 30
ABORTED_SHARE = 0.2
BEGIN_US = 1_735_689_600_000_000
"""2025-01-01, in microseconds since 1970: the time of the first transfer."""
STEP_US = 100_000
"""From one transfer to the next."""
DISORDER_US, LATE_US = 8_000_000, (120_000_000, 900_000_000)
"""How much a transfer may be out of order, and how late the late ones are."""
LATE_SHARE = 0.03
STRETCH = 3_000
"""For so many transfers of three times as many, the last partition is quiet."""
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "10000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
}
"""Keys are unique, so no transfer is compacted away; records of aborted transactions are, which leaves gaps."""


def create_topic(bootstrap: str) -> None:
    topic = NewTopic(TOPIC, PARTITIONS, 1, config=COMPACTED)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([topic])[TOPIC].result()


class Transfers:
    """A producer in a thread of its own. Broker restarts do not end it.

    Attributes:
        acknowledged: Records of transactions whose commit Kafka confirmed.
        withdrawn: Records of transactions whose abort Kafka confirmed.
        transactions: How many ended how; ``unsure``: a restart came in between.
    """

    def __init__(self, bootstrap: str, seed: int) -> None:
        self.bootstrap, self.dice = bootstrap, random.Random(seed)
        self.acknowledged: set[Origin] = set()
        self.withdrawn: set[Origin] = set()
        self.transactions = {"committed": 0, "aborted": 0, "unsure": 0}
        self.number = 0
        self._stop = threading.Event()
        self._busy = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="transfers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Stop, after the end of the transaction that is open. Raises RuntimeError if that takes too long."""
        self._stop.set()
        self._thread.join(90)
        if self._thread.is_alive():
            raise RuntimeError("the producer has not ended")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Between two transactions. Raises TimeoutError if one does not end."""
        if not self._busy.acquire(timeout=PATIENCE_S):
            raise TimeoutError("a transaction of the producer does not end")
        try:
            yield
        finally:
            self._busy.release()

    def one_more(self, records: int = 40) -> None:
        """One committed transaction, after ``finish``."""
        self._transaction(self._producer(), records, abort=False)

    def _run(self) -> None:
        producer = None
        while not self._stop.is_set():
            try:
                with self._busy:
                    producer = producer or self._producer()
                    self._transaction(producer, self.dice.randint(10, 80), self.dice.random() < ABORTED_SHARE)
            except KafkaException:
                self.transactions["unsure"] += 1
                producer = None  # the next one's init_transactions ends what is open
            self._stop.wait(PAUSE_S)

    def _producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": "bank",
                "transaction.timeout.ms": 15_000,
                "log_level": 0,
            }
        )
        producer.init_transactions(30)
        return producer

    def _transaction(self, producer: Producer, records: int, abort: bool) -> None:
        places: set[Origin] = set()

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                places.add(_origin_of(message))

        producer.begin_transaction()
        for _ in range(records):
            key, value = self._transfer()
            partition = self.dice.randrange(_loud(self.number))
            producer.produce(TOPIC, key=key, value=value, partition=partition, on_delivery=delivered)
        producer.flush(20)
        if abort:
            producer.abort_transaction(20)
            self.withdrawn |= places
        else:
            _until_it_is_known(producer)
            self.acknowledged |= places
        self.transactions["aborted" if abort else "committed"] += 1

    def _transfer(self) -> tuple[str, bytes]:
        self.number += 1
        payer, payee = self.dice.sample(range(100), 2)
        parties = {"payer": f"a{payer}", "payee": f"a{payee}"}
        value = {"id": self.number, **parties, "amount": self.dice.randint(1, 10_000), "at": self._time()}
        return f"t{self.number}", json.dumps(value).encode()

    def _time(self) -> int:
        """Whole tenths of a second, so some times are exactly the end of a window."""
        back = LATE_US if self.dice.random() < LATE_SHARE else (0, DISORDER_US)
        return BEGIN_US + (self.number - self.dice.randint(*back) // STEP_US) * STEP_US


def _loud(number: int) -> int:
    """How many partitions get transfers when this one is produced."""
    return PARTITIONS - (number // STRETCH % 3 == 1)


def _until_it_is_known(producer: Producer) -> None:
    for _ in range(5):
        try:
            producer.commit_transaction(10)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
    producer.commit_transaction(10)


def _origin_of(message: Any) -> Origin:
    return Origin(message.topic(), message.partition(), message.offset())


def committed(bootstrap: str) -> dict[Origin, bytes]:
    """What a ``read_committed`` reader finds in the whole topic: every record, with its value."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        found: dict[Origin, bytes] = {}
        at_end: set[int] = set()
        while len(at_end) < PARTITIONS:
            for message in consumer.consume(5_000, timeout=10):
                if message.error():
                    at_end.add(message.partition())
                else:
                    found[_origin_of(message)] = message.value()
    return found


_NOT_YET = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._UNKNOWN_PARTITION)


def ends(bootstrap: str) -> dict[int, int]:
    """The last stable offsets. Raises KafkaException if the brokers do not say in time."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "checker", "isolation.level": "read_committed"})
    with contextlib.closing(consumer):
        return {number: _end_of(consumer, TopicPartition(TOPIC, number)) for number in range(PARTITIONS)}


def _end_of(consumer: Consumer, partition: TopicPartition) -> int:
    """Asked again of a broker that has just started, and does not know or lead its partitions yet."""
    deadline = time.monotonic() + LEADER_S
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=10)[1])
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_S)
