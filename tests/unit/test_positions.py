"""Every sink's commit carries the offsets where its epoch ended, once and compactly, and tells them again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from airflow_epochs.contracts import LastEpoch, SinkAttempt
from airflow_epochs.event_time import packed, unpacked
from airflow_epochs.model import PartitionTime, Staged
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.kafka.checks import require_room
from airflow_epochs.sinks.kafka.cluster import TopicFacts
from airflow_epochs.sinks.kafka.marker import MarkerRecord
from tests.support.delta_world import attempt_of, promised, rows, stage, transaction
from tests.support.environment import Environment
from tests.support.sql_world import SqlWorld, new_sqlite

PARTITIONS = 1_000
ENDS = {"orders": {str(partition): 123_456_789_000 + partition for partition in range(PARTITIONS)}}
FACTS_MAX = 1_000
"""Bytes of all that a marker says besides the offsets."""


def bytes_of_ends(quote: str = '"') -> int:
    """Each offset once, with its partition: ``"999":123456789999,``."""
    return sum(len(f"{quote}{p}{quote}:{end},") for p, end in ENDS["orders"].items())


def attempt() -> SinkAttempt:
    return replace(attempt_of(transaction(1)), ends=ENDS)


def require_told(told: LastEpoch | None, this: SinkAttempt) -> None:
    assert told and told.receipt
    assert (told.txn, told.ends, told.receipt.txn_id) == (this.txn, ENDS, str(this.txn))


def test_an_entry_of_a_tables_log_has_a_thousand_partitions_once(tmp_path: Path, world: Environment) -> None:
    this, sink = attempt(), DeltaSink("orders", str(tmp_path / "orders"))
    sink.commit(this, promised(sink.vote(this, stage(sink, this, rows(1), world), world)), world)
    [entry] = (tmp_path / "orders" / "_delta_log").glob("*.json")
    [info] = [line for line in entry.read_text().splitlines() if '"commitInfo"' in line]
    assert len(info) <= bytes_of_ends(r"\"") + FACTS_MAX
    assert str(ENDS["orders"]["7"]) not in entry.read_text().replace(info, "")
    require_told(sink.last_epoch("orders", world), this)


def test_a_row_of_the_marker_table_has_a_thousand_partitions_once(tmp_path: Path) -> None:
    world, this = SqlWorld(new_sqlite(tmp_path), tmp_path), attempt()
    world.db.run("CREATE TABLE orders (id integer)")
    sink = world.sink()
    sink.commit(this, world.staged(sink, this, rows(1)), world.env)
    [(size,)] = world.db.run("SELECT sum(length(ends)) FROM epoch_markers")
    assert size <= bytes_of_ends() + FACTS_MAX
    require_told(sink.last_epoch("orders", world.env), this)


def test_a_marker_in_a_topic_has_a_thousand_partitions_once_and_fits() -> None:
    """Into a marker topic with Kafka's own limit, also if the sink's topic has a thousand partitions too."""
    limit = {"max.message.bytes": "1048588"}
    topic = TopicFacts(name="out", id="i", partitions=PARTITIONS, replicas=3, allowed=None, settings=limit, servers=())
    staged = Staged(place="/lake/staging/x", version=1, files=1, rows=1, bytes=1, digest="d")
    marker = MarkerRecord.of(attempt().txn, topic, topic, staged, ENDS)
    assert len(marker.encoded()) <= bytes_of_ends() + FACTS_MAX
    require_room(topic, topic, marker)
    assert MarkerRecord.decoded(marker.encoded()).ends == ENDS


def test_a_watermark_and_the_event_times_of_a_thousand_partitions_are_packed_and_unpacked() -> None:
    seen = [f"2026-01-0{day}T03:04:05.678901+00:00" for day in (1, 2, 3)]
    newest = 1_767_225_600_000_000
    times = {"orders": {str(p): PartitionTime(newest=newest + p, seen=seen[p % 3]) for p in range(PARTITIONS)}}
    told = json.dumps(packed((newest, None), times), separators=(",", ":"))
    assert len(told) <= sum(len(f'"{p}":[{newest},0],') for p in range(PARTITIONS)) + FACTS_MAX
    assert unpacked(json.loads(told)) == ((newest, None), times)


def test_a_tables_commit_tells_the_watermark_and_one_without_event_time_tells_none(
    tmp_path: Path, world: Environment
) -> None:
    times = {"orders": {"0": PartitionTime(newest=5, seen="2026-01-01T00:00:00+00:00")}}
    timed = replace(attempt(), watermarks=(4, None), event_times=times)
    for name, this in (("plain", attempt()), ("timed", timed)):
        sink = DeltaSink("orders", str(tmp_path / name))
        sink.commit(this, promised(sink.vote(this, stage(sink, this, rows(1), world), world)), world)
        told = sink.last_epoch("orders", world)
        assert told and (told.watermarks, told.event_times) == (this.watermarks, this.event_times)
