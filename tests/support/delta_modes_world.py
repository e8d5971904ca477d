"""What tests of the Delta sink's modes share: tables, rows written as SQL, epochs one after the other."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deltalake import DeltaTable

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.model import Marker, Receipt, Staged, TransactionId, Vote
from airflow_epochs.sinks.delta.sink import DeltaSink
from orders_demo.duck import duck
from tests.support.delta_world import attempt_of, spark_epoch, stage_with_spark, transaction
from tests.support.environment import Environment

Rows = list[tuple[Any, ...]]
COUNT = "WHEN MATCHED THEN UPDATE SET t.n = t.n + s.n WHEN NOT MATCHED THEN INSERT *"
UPSERT: dict[str, Any] = {"mode": "upsert", "keys": ["id"], "sequence_by": "v"}
COUNTER: dict[str, Any] = {"mode": "merge", "keys": ["id"], "merge": COUNT}

BERLIN = {"spark.sql.session.timeZone": "Europe/Berlin"}
UTC = {"spark.sql.session.timeZone": "UTC"}
LOCAL_TEXT = {"spark.databricks.delta.write.utcTimestampPartitionValues": "false"}
FIRST, SECOND = 1792886400, 1792890000
"""Two o'clock in Berlin on 2026-10-25, before and after the clocks were set back: 00:00Z and 01:00Z."""


@contextmanager
def table_in_catalog(session: Any) -> Iterator[str]:
    """A table in the catalog with a property, a constraint and two partitions."""
    name = f"spark_catalog.default.t{uuid.uuid4().hex[:12]}"
    session.sql(
        f"CREATE TABLE {name} (id BIGINT, p STRING) USING delta PARTITIONED BY (p) TBLPROPERTIES ('kept' = 'yes')"
    ).collect()
    session.sql(f"ALTER TABLE {name} ADD CONSTRAINT positive CHECK (id >= 0)").collect()
    session.sql(f"INSERT INTO {name} VALUES (0, 'a'), (0, 'b')").collect()
    try:
        yield name
    finally:
        session.sql(f"DROP TABLE {name}").collect()


def create(session: Any, table: str, columns: str, rest: str = "") -> None:
    session.sql(f"CREATE TABLE delta.`file://{table}` ({columns}) USING delta {rest}").collect()


def values(session: Any, columns: str, *rows: str) -> Any:
    """Rows of these columns, each written as SQL."""
    return session.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS t({columns})")


def empty(session: Any, types: str) -> Any:
    return session.createDataFrame([], types)


def shown(session: Any, table: str) -> Rows:
    """The table as Spark sees it."""
    source = f"delta.`file://{table}`" if "/" in table else table
    return sorted((tuple(row) for row in session.sql(f"SELECT * FROM {source}").collect()), key=repr)


def shown_by_others(table: str) -> Rows:
    """The table as DuckDB sees it, which must be as deltalake does."""
    with duck() as database:
        found = database.execute("SELECT * FROM delta_scan(?)", [table]).fetchall()
    arrow = DeltaTable(table).to_pyarrow_table().to_pylist()
    rows = sorted(found, key=repr)
    assert rows == sorted((tuple(row.values()) for row in arrow), key=repr)
    return rows


def hours_seen(table: str) -> list[tuple[int, int]]:
    """Ids and hours as DuckDB sees them, which must be as deltalake does."""
    with duck() as database:
        found = database.execute("SELECT id, epoch(hour)::BIGINT FROM delta_scan(?) ORDER BY ALL", [table]).fetchall()
    arrow = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert found == sorted((row["id"], int(row["hour"].timestamp())) for row in arrow)
    return found


def vote_on(sink: DeltaSink, attempt: SinkAttempt, frame: Any, world: Environment) -> Vote:
    return sink.vote(attempt, stage_with_spark(sink, attempt, frame, world), world)


class Epochs:
    """One sink's epochs, one after the other."""

    def __init__(self, sink: DeltaSink, world: Environment, pipeline: str = "orders") -> None:
        self.sink, self.world, self.pipeline = sink, world, pipeline
        self.previous: TransactionId | None = None

    def run(self, frame: Any) -> tuple[SinkAttempt, Staged, Receipt]:
        txn = transaction(self.previous.epoch + 1 if self.previous else 1, pipeline=self.pipeline)
        attempt = attempt_of(txn, self.previous)
        staged, receipt = spark_epoch(self.sink, txn, self.previous, frame, self.world)
        assert self.sink.last_committed(self.pipeline, self.world) == Marker.of(txn)
        self.previous = txn
        return attempt, staged, receipt
