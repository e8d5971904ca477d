"""``python docker/local/records.py topic|produce|consume TOPIC``: make a topic, write records, read them.

``produce`` writes a record for each line of its input; ``consume`` prints what is there, and ends. The broker is the
one in ``$BOOTSTRAP``, which ``. .stack/env`` sets.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer

PARTITIONS = 4
WAIT_S = 30.0


class Failed(Exception):
    """The command did not do what it should; the text says why, and what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python docker/local/records.py", description=__doc__)
    parser.add_argument("command", choices=("topic", "produce", "consume"))
    parser.add_argument("topic")
    arguments = parser.parse_args()
    try:
        run(arguments.command, arguments.topic)
    except Failed as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def run(command: str, topic: str) -> None:
    from confluent_kafka import KafkaException

    bootstrap = os.environ.get("BOOTSTRAP")
    if not bootstrap:
        raise Failed("BOOTSTRAP is not set. What to do: type `. .stack/env`, which `make stack-up` writes.")
    try:
        if command == "topic":
            make_topic(bootstrap, topic)
            print(f"made {topic}, with {PARTITIONS} partitions")
        elif command == "produce":
            print(f"{produce(bootstrap, topic, sys.stdin.buffer)} records are in {topic}")
        else:
            for line in consume(bootstrap, topic):
                print(line)
    except KafkaException as error:
        raise Failed(_told(error.args[0], topic)) from error


def _told(error: KafkaError, topic: str) -> str:
    """Cause and remedy of an error that Kafka's client has raised."""
    from confluent_kafka import KafkaError

    if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return f"There is a topic {topic} already. What to do: produce into it, or choose another name."
    return f"{error.str().rstrip('.')}. What to do: if no broker answers, type `make stack-up`."


def _require_there(client: Consumer | Producer, topic: str) -> list[int]:
    """The partitions of the topic."""
    found = client.list_topics(topic, timeout=WAIT_S).topics[topic]
    if found.error is not None:
        raise Failed(f"{found.error.str()}: {topic}. What to do: type `python docker/local/records.py topic {topic}`.")
    return sorted(found.partitions)


def make_topic(bootstrap: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)], request_timeout=WAIT_S)[topic].result()


def produce(bootstrap: str, topic: str, lines: Iterable[bytes]) -> int:
    """A record for each line. Returns how many Kafka has acknowledged: all of them."""
    from confluent_kafka import Producer

    refused: list[str] = []

    def delivered(error: KafkaError | None, _record: object) -> None:
        if error is not None:
            refused.append(error.str())

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "message.timeout.ms": int(WAIT_S * 1000)})
    _require_there(producer, topic)
    count = 0
    for line in lines:
        count += 1
        while True:
            try:
                producer.produce(topic, value=line.rstrip(b"\r\n"), on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(WAIT_S + 5)
    if refused or left:
        why = refused[0] if refused else "the broker did not answer"
        raise Failed(
            f"Kafka did not take {len(refused) + left} of {count} records: {why}. "
            "What to do: make the topic, or type `make stack-up`."
        )
    return count


def consume(bootstrap: str, topic: str) -> Iterator[str]:
    """Partition, offset and value of every record that is there now."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "records", "enable.auto.commit": False, "log_level": 0}
    )
    try:
        for partition in _require_there(consumer, topic):
            start, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=WAIT_S)
            consumer.assign([TopicPartition(topic, partition, start)])
            position = start
            while position < end:
                message = consumer.poll(WAIT_S)
                if message is None:  # what is left are markers of transactions
                    break
                if message.error() is not None:
                    raise KafkaException(message.error())
                position = (message.offset() or 0) + 1
                if position <= end:
                    yield f"{partition} {message.offset()} {(message.value() or b'').decode(errors='replace')}"
    finally:
        consumer.close()


if __name__ == "__main__":
    sys.exit(main())
