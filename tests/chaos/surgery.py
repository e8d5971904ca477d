"""What operators do to logs and tables: an older copy of a topic's log in its place, RESTORE, VACUUM at once."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from deltalake import DeltaTable

from airflow_epochs.model import ends_of
from tests.chaos.system import PIPELINES, System
from tests.chaos.transfers import PARTITIONS, TOPIC, ends

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}
"""Not in hundreds of tasks, for which a RESTORE would take a minute here."""
BEYOND = 20
"""So many records more than the pipelines have read, a truncated log is filled up with."""


@dataclass(frozen=True)
class SourceLogs:
    """The folders of the source topic's partitions on the broker's disk. For a broker that is not running."""

    system: System
    store: Path

    @property
    def has_copy(self) -> bool:
        return self._copy("older").exists()

    def keep(self, name: str) -> None:
        """Copy them as they are now."""
        shutil.rmtree(self._copy(name), ignore_errors=True)
        for folder in self._folders():
            shutil.copytree(folder, self._copy(name) / folder.name)

    def put_back(self, name: str) -> None:
        """Let a copy take their place."""
        for folder in self._folders():
            shutil.rmtree(folder)
        for folder in self._copy(name).iterdir():
            shutil.copytree(folder, self._broker / folder.name)

    def _copy(self, name: str) -> Path:
        return self.store / name

    @property
    def _broker(self) -> Path:
        return self.system.broker.folder / "log"

    def _folders(self) -> list[Path]:
        return sorted(self._broker.glob(f"{TOPIC}-*"))


def taken(system: System) -> dict[int, list[int]]:
    """How far each pipeline has read each partition."""
    read: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for pipeline in PIPELINES:
        ledger = system.ledger_of(pipeline)
        record = ledger.complete_record(ledger.newest_complete())
        for (_, partition), end in (ends_of(record.ranges) if record else {(0, p): 0 for p in read}).items():
            read[partition].append(end)
    return read


def truncated(system: System) -> bool:
    """Whether the log now ends before what every pipeline has read of it.

    One that has not read so far could not know that what comes next is not what was there.
    """
    now, read = ends(system.broker.bootstrap), taken(system)
    return all(now[partition] < min(read[partition]) for partition in read)


def fill_up(system: System) -> None:
    """Let other records stand where the pipelines have read already, and behind."""
    producer = Producer({"bootstrap.servers": system.broker.bootstrap, "transactional.id": "stranger", "log_level": 0})
    now, read = ends(system.broker.bootstrap), taken(system)
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in read:
        for number in range(max(0, max(read[partition]) - now[partition]) + BEYOND):
            value = {"id": -1, "payer": "nobody", "payee": "nobody else", "amount": 1_000_000}
            producer.produce(TOPIC, json.dumps(value).encode(), f"stranger {partition} {number}", partition=partition)
            producer.poll(0)
    producer.flush(60)
    producer.commit_transaction(60)


@contextlib.contextmanager
def spark(system: System) -> Iterator[SparkSession]:
    session = system.connect.session()
    try:
        for key, value in SETTINGS.items():
            session.conf.set(key, value)
        yield session
    finally:
        session.stop()


def vacuum(table: Path) -> None:
    """Delete every file that the newest version does not name, now.

    By deltalake, which takes less than a second. Spark takes a minute here, and nobody can notice what a VACUUM deletes
    that is still at it once the epoch is complete: the documentation says not to run such a one beside epochs.
    """
    DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


def restore(system: System, table: Path, version: int) -> None:
    """Let the table be as it was at a version."""
    with spark(system) as session:
        session.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {version}").collect()
