"""Every sink passes the suite that is shipped for sinks of other people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_epochs.model import JsonDict, StagedClaim
from airflow_epochs.sinks.delta import DeltaSink
from airflow_epochs.sinks.sql import SqlSink
from airflow_epochs.testing import MemoryEnvironment, MemorySink, MemoryWorld, Place, Row
from airflow_epochs.testing.conformance import SinkConformance, Subject
from delta_world import World, stage_with_deltalake
from sql_world import SqlWorld, new_postgres, new_sqlite
from stack.postgres import Postgres


def staged(plan: JsonDict, ids: Sequence[int]) -> StagedClaim:
    return stage_with_deltalake(plan, pa.table({"id": pa.array(ids, pa.int64())}))


@dataclass
class InMemory:
    env: MemoryEnvironment = field(default_factory=MemoryEnvironment)
    world: MemoryWorld = field(default_factory=MemoryWorld)

    def sink(self) -> MemorySink:
        return MemorySink(name="orders", world=self.world.name)

    def stage(self, plan: JsonDict, ids: Sequence[int]) -> StagedClaim:
        self.world.stage(plan["place"], Place(plan["txn_id"], tuple(Row("t", 0, n, n) for n in ids)))
        return StagedClaim(place=plan["place"])

    def visible(self) -> list[int]:
        return [row.offset for row in self.world.table("orders").visible]


class TestMemorySink(SinkConformance):
    @pytest.fixture
    def subject(self) -> Subject:
        return InMemory()


@dataclass
class OnDelta:
    folder: Path
    env: World = field(default_factory=World)

    def sink(self) -> DeltaSink:
        return DeltaSink("orders", str(self.folder / "orders"))

    def stage(self, plan: JsonDict, ids: Sequence[int]) -> StagedClaim:
        return staged(plan, ids)

    def visible(self) -> list[int]:
        table = str(self.folder / "orders")
        if not DeltaTable.is_deltatable(table):
            return []
        found: list[int] = DeltaTable(table).to_pyarrow_table()["id"].to_pylist()
        return found


class TestDeltaSink(SinkConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return OnDelta(tmp_path)


@dataclass
class OnSql:
    world: SqlWorld
    upsert: bool

    @property
    def env(self) -> World:
        return self.world.env

    def sink(self) -> SqlSink:
        return self.world.sink(mode="upsert", keys=["id"]) if self.upsert else self.world.sink()

    def stage(self, plan: JsonDict, ids: Sequence[int]) -> StagedClaim:
        return staged(plan, ids)

    def visible(self) -> list[int]:
        return self.world.ids()


class TestPostgresSink(SinkConformance):
    upsert = False

    @pytest.fixture
    def subject(self, postgres: Postgres, tmp_path: Path) -> Subject:
        world = SqlWorld(new_postgres(postgres), tmp_path)
        world.db.run("CREATE TABLE orders (id bigint PRIMARY KEY)")
        return OnSql(world, self.upsert)


class TestPostgresSinkThatUpserts(TestPostgresSink):
    upsert, many = True, 100_000


class TestSqliteSink(SinkConformance):
    upsert = False

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        world = SqlWorld(new_sqlite(tmp_path), tmp_path)
        world.db.run("CREATE TABLE orders (id integer PRIMARY KEY)")
        return OnSql(world, self.upsert)


class TestSqliteSinkThatUpserts(TestSqliteSink):
    upsert, many = True, 100_000


# The Kafka sink has its class in test_kafka_sink_conformance.py, since it needs Java.
