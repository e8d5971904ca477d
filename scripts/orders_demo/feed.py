"""Produces orders into Kafka, some malformed on purpose, and notes where each record came to lie."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

TOPIC = "orders"
MALFORMED_SHARE = 0.02
DAYS = 5
DELIVERY_S = 60.0


@dataclass
class Feed:
    """Orders, the same for the same seed, at ``per_s`` records a second from the one numbered ``at_once`` on."""

    bootstrap: str
    total: int
    at_once: int
    per_s: int
    seed: int = 7
    sent: int = 0
    malformed: int = 0
    places: list[tuple[int, int]] = field(default_factory=list)
    """Partition and offset of every record that Kafka has acknowledged."""
    failed: list[str] = field(default_factory=list)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Produce in the background; ``finish`` waits for it."""
        self._thread = threading.Thread(target=self._produce_noting_failure, name="feed", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until Kafka has acknowledged everything. Raises RuntimeError if it has not."""
        assert self._thread is not None
        self._thread.join()
        if self.failed or len(self.places) != self.total:
            raise RuntimeError(f"{len(self.places)} of {self.total} orders were acknowledged: {self.failed[:3]}")

    def write_places(self, path: Path) -> None:
        with path.open("w") as lines:
            lines.write("partition,offset\n")
            lines.writelines(f"{partition},{offset}\n" for partition, offset in self.places)

    def _produce_noting_failure(self) -> None:
        try:
            self._produce()
        except Exception as error:
            self.failed.append(repr(error))

    def _produce(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 20, "log_level": 0}
        )
        began = time.monotonic()
        for value in self._orders():
            self._keep_pace(began)
            while True:
                try:
                    producer.produce(TOPIC, key=str(self.sent % 1000), value=value, on_delivery=self._delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
            self.sent += 1
            producer.poll(0)
        producer.flush(DELIVERY_S)

    def _keep_pace(self, began: float) -> None:
        late = (self.sent - self.at_once) / self.per_s
        if self.sent % 100 == 0 and (ahead := late - (time.monotonic() - began)) > 0:
            time.sleep(ahead)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        self.places.append((partition, offset))

    def _orders(self) -> Iterator[bytes]:
        dice = random.Random(self.seed)
        for number in range(self.total):
            if dice.random() < MALFORMED_SHARE:
                self.malformed += 1
                yield _malformed(number, dice)
            else:
                yield json.dumps(_order(number, dice)).encode()


def _order(number: int, dice: random.Random) -> dict[str, object]:
    return {
        "order_id": f"o-{number:08d}",
        "customer": f"c-{dice.randrange(20_000)}",
        "amount": round(dice.uniform(1, 900), 2),
        "currency": dice.choice(["CHF", "EUR", "GBP", "USD"]),
        "ts": f"2026-11-{1 + number % DAYS:02d}T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z",
    }


def _malformed(number: int, dice: random.Random) -> bytes:
    good = _order(number, dice)
    bad: list[object] = [
        {**good, "amount": -1.0},
        {**good, "currency": "???"},
        {**good, "ts": "yesterday"},
        {key: value for key, value in good.items() if key != "customer"},
        "not an order",
    ]
    kind = dice.randrange(len(bad) + 1)
    return json.dumps(bad[kind]).encode() if kind < len(bad) else json.dumps(good).encode()[:-9]
