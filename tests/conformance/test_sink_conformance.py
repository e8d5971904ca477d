"""Every sink, in every mode, passes the suite that is shipped for sinks of other people."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from airflow_epochs import DeltaSink, KafkaSink, SqlSink
from airflow_epochs.model import JsonDict, StagedClaim
from airflow_epochs.sinks import _KINDS
from airflow_epochs.sinks.delta.modes import MODES
from airflow_epochs.testing import MemoryEnvironment, MemorySink, MemoryWorld, Place, Row
from airflow_epochs.testing.conformance import SinkConformance, Subject, label_of
from stack.broker import Broker
from stack.postgres import Postgres
from tests.support.delta_world import SparkOn, fill_with_spark, stage_with_deltalake
from tests.support.environment import Environment
from tests.support.kafka_sink_world import seen_by_confluent, settled_end, values, world_at
from tests.support.spark_world import COMPILED, settings
from tests.support.sql_world import PostgresDb, SqlWorld, new_postgres, new_sqlite

pytestmark = pytest.mark.proof


FEW = 10
"""A larger epoch has no labels, which would cost time; and Spark stages it if the sink commits with Spark."""
FEWER = 200_000
"""Rows of the largest epoch where a million take seconds: more than any batch of what the sink reads and sends."""


def staged(plan: JsonDict, ids: Sequence[int], **columns: Sequence[int]) -> StagedClaim:
    numbers = {name: pa.array(of, pa.int64()) for name, of in {"id": ids, **columns}.items()}
    labels = {"label": pa.array(map(label_of, ids), pa.string())} if len(ids) <= FEW else {}
    return stage_with_deltalake(plan, pa.table({**numbers, **labels}))


def staged_labelled(plan: JsonDict, rows: Sequence[tuple[int, str]]) -> StagedClaim:
    ids, labels = zip(*rows, strict=True)
    return stage_with_deltalake(plan, pa.table({"id": pa.array(ids, pa.int64()), "label": pa.array(labels)}))


# -- in memory ---------------------------------------------------------------------------------------------------


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

    def fingerprint(self) -> object:
        return dict(self.world.tables)


class TestMemorySink(SinkConformance):
    names_moments = False

    @pytest.fixture
    def subject(self) -> Subject:
        return InMemory()


class OfOneRowPerKey(InMemory):
    """Its vote lets equal keys of one epoch pass, and the destination keeps the first row of each key."""

    def visible(self) -> list[int]:
        return [*dict.fromkeys(super().visible())]


class WithLabels(OfOneRowPerKey):
    """It stages the label in place of the value."""

    def stage_labelled(self, plan: JsonDict, rows: Sequence[tuple[int, str]]) -> StagedClaim:
        self.world.stage(plan["place"], Place(plan["txn_id"], tuple(Row("t", 0, n, label) for n, label in rows)))
        return StagedClaim(place=plan["place"])

    def labelled(self) -> list[tuple[int, str]]:
        rows = {row.offset: str(row.value) for row in reversed(self.world.table("orders").visible)}
        return list(rows.items())


class Upserting(SinkConformance):
    def shows(self, before: Sequence[int], ids: Sequence[int]) -> list[int]:
        return list({*before, *ids})


def test_a_sink_that_promises_several_rows_of_a_key_and_shows_one_does_not_pass() -> None:
    with pytest.raises(
        AssertionError, match=r"promised 3 rows and shows 2: .* vote against rows that share their keys"
    ):
        Upserting().test_equal_rows_of_an_epoch_are_all_shown_unless_the_sink_refuses_them(OfOneRowPerKey())


@pytest.mark.parametrize(
    ("test", "found"),
    [
        (Upserting.test_a_row_of_a_later_epoch_takes_the_place_of_the_one_with_its_key, "'old'.* == .*'new'"),
        (Upserting.test_different_rows_of_one_key_in_one_epoch_are_not_promised, "promised two different rows of one"),
    ],
)
def test_a_sink_that_upserts_and_mixes_up_the_rows_of_a_key_does_not_pass(
    test: Callable[[SinkConformance, Subject], None], found: str
) -> None:
    with pytest.raises(AssertionError, match=found):
        test(Upserting(), WithLabels())
    test(SinkConformance(), WithLabels())  # of a sink that appends, nothing is asked


# -- Delta -------------------------------------------------------------------------------------------------------

PARTITIONS = 10


@dataclass
class OnDelta:
    """A row is an id, how often it counts (for the merge), and a partition."""

    folder: Path
    env: Environment = field(default_factory=Environment)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> str:
        return str(self.folder / "orders")

    def sink(self) -> DeltaSink:
        return DeltaSink("orders", self.table, **self.options)

    def stage(self, plan: JsonDict, ids: Sequence[int]) -> StagedClaim:
        return staged(plan, ids, n=[1] * len(ids), p=[n % PARTITIONS for n in ids])

    def visible(self) -> list[int]:
        if not DeltaTable.is_deltatable(self.table):
            return []
        found = DeltaTable(self.table).to_pyarrow_table()
        numbers: list[int] = found["id"].to_numpy().repeat(found["n"].to_numpy()).tolist()
        return numbers

    def labelled(self) -> list[tuple[int, str]]:
        found = DeltaTable(self.table).to_pyarrow_table().to_pylist()
        return [(row["id"], row["label"]) for row in found for _ in range(row["n"])]

    def fingerprint(self) -> object:
        return DeltaTable(self.table).version() if DeltaTable.is_deltatable(self.table) else None


class TestDeltaSink(SinkConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return OnDelta(tmp_path)


@dataclass
class OnDeltaThroughSpark(OnDelta):
    compiled: ExitStack = field(default_factory=ExitStack)
    """Of the test's session, from the first large epoch on."""

    def stage(self, plan: JsonDict, ids: Sequence[int]) -> StagedClaim:
        if 0 < len(ids) <= FEW:  # by deltalake, in a tenth of the time: what Spark does here is to commit
            return super().stage(plan, [*dict.fromkeys(ids)] if "keys" in self.options else ids)  # equal rows are one
        assert ids in ([], range(len(ids)))
        session = self.env.spark.session
        if ids:
            self.compiled.enter_context(settings(session, COMPILED))
        rows = session.range(len(ids)).selectExpr("id", "1L AS n", f"id % {PARTITIONS}L AS p", "string(NULL) AS label")
        return fill_with_spark(session, plan, rows)


@pytest.mark.jvm
class ThroughSpark(SinkConformance):
    options: ClassVar[dict[str, Any]]

    @pytest.fixture
    def subject(self, session: Any, tmp_path: Path) -> Iterator[Subject]:
        subject = OnDeltaThroughSpark(tmp_path, Environment(spark=SparkOn(session)), self.options)
        with subject.compiled:
            yield subject


@pytest.mark.long
class TestDeltaSinkThatUpserts(ThroughSpark):
    options = {"mode": "upsert", "keys": ["id"]}

    def shows(self, before: Sequence[int], ids: Sequence[int]) -> list[int]:
        return list({*before, *ids})


@pytest.mark.long
class TestDeltaSinkThatMerges(ThroughSpark):
    """What the epochs add up: a merge that is done twice shows."""

    options = {
        "mode": "merge",
        "keys": ["id"],
        "merge": "WHEN MATCHED THEN UPDATE SET t.n = t.n + s.n WHEN NOT MATCHED THEN INSERT *",
    }

    def shows(self, before: Sequence[int], ids: Sequence[int]) -> list[int]:
        return [*before, *dict.fromkeys(ids)]


@pytest.mark.long
class TestDeltaSinkThatOverwrites(ThroughSpark):
    options = {"mode": "overwrite"}

    def shows(self, before: Sequence[int], ids: Sequence[int]) -> list[int]:
        return list(ids or before)


@pytest.mark.long
class TestDeltaSinkThatOverwritesPartitions(ThroughSpark):
    options = {"mode": "overwrite_partitions", "partition_by": ["p"]}

    def shows(self, before: Sequence[int], ids: Sequence[int]) -> list[int]:
        replaced = {n % PARTITIONS for n in ids}
        return [*(n for n in before if n % PARTITIONS not in replaced), *ids]


# -- Kafka -------------------------------------------------------------------------------------------------------


@dataclass
class OnKafka:
    """A topic of one partition, and a marker topic of its own: every test calls its pipeline by the same name."""

    bootstrap: str
    admin: AdminClient
    folder: Path
    name: str

    def __post_init__(self) -> None:
        self.env = world_at(self.bootstrap)

    @property
    def markers(self) -> str:
        return f"{self.name}-markers"

    def sink(self) -> KafkaSink:
        return KafkaSink(self.name, self.name, staging=str(self.folder / "staging"), marker_topic=self.markers)

    def stage(self, plan: JsonDict, ids: Sequence[int]) -> StagedClaim:
        return staged(plan, ids)

    def rows(self) -> list[JsonDict]:
        settled_end(self.admin, self.name)
        return [json.loads(value or "") for value in values(seen_by_confluent(self.bootstrap, self.name))]

    def visible(self) -> list[int]:
        return [row["id"] for row in self.rows()]

    def labelled(self) -> list[tuple[int, str]]:
        return [(row["id"], row["label"]) for row in self.rows()]

    def fingerprint(self) -> object:
        known = self.admin.list_topics(timeout=20).topics
        markers = known[self.markers].partitions if self.markers in known else ()
        return settled_end(self.admin, self.name), [settled_end(self.admin, self.markers, n) for n in markers]


@pytest.mark.jvm
class TestKafkaSink(SinkConformance):
    many = FEWER

    @pytest.fixture
    def subject(self, broker: Broker, tmp_path: Path) -> Subject:
        admin, name = AdminClient({"bootstrap.servers": broker.bootstrap}), f"out-{uuid.uuid4().hex[:8]}"
        admin.create_topics([NewTopic(name, 1, 1)])[name].result()
        return OnKafka(broker.bootstrap, admin, tmp_path, name)


# -- SQL ---------------------------------------------------------------------------------------------------------


@dataclass
class OnSql:
    world: SqlWorld
    upsert: bool

    def __post_init__(self) -> None:
        # Without a key, rows that are appended twice are there twice.
        self.world.db.run(f"CREATE TABLE orders (id bigint {'PRIMARY KEY' if self.upsert else ''}, label text)")

    @property
    def env(self) -> Environment:
        return self.world.env

    def sink(self) -> SqlSink:
        return self.world.sink(mode="upsert", keys=["id"]) if self.upsert else self.world.sink()

    def stage(self, plan: JsonDict, ids: Sequence[int]) -> StagedClaim:
        return staged(plan, ids)

    def stage_labelled(self, plan: JsonDict, rows: Sequence[tuple[int, str]]) -> StagedClaim:
        return staged_labelled(plan, rows)

    def visible(self) -> list[int]:
        return self.world.ids()

    def labelled(self) -> list[tuple[int, str]]:
        return [(row[0], row[1]) for row in self.world.db.run("SELECT id, label FROM orders")]

    def fingerprint(self) -> object:
        """Of PostgreSQL the transactions that wrote what there is, of SQLite the file."""
        db = self.world.db
        if isinstance(db, PostgresDb):
            return [sorted(db.run(f"SELECT xmin::text FROM {t}")) for t in ("orders", "epoch_markers")]
        return hashlib.sha256(db.path.read_bytes()).hexdigest()


class SqlConformance(SinkConformance):
    overtaken_within_s = 0.5
    upsert = False

    def shows(self, before: Sequence[int], ids: Sequence[int]) -> list[int]:
        return list({*before, *ids}) if self.upsert else [*before, *ids]


class TestPostgresSink(SqlConformance):
    @pytest.fixture
    def subject(self, postgres: Postgres, tmp_path: Path) -> Subject:
        return OnSql(SqlWorld(new_postgres(postgres), tmp_path), self.upsert)


class TestPostgresSinkThatUpserts(TestPostgresSink):
    upsert, many = True, FEWER


class TestSqliteSink(SqlConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return OnSql(SqlWorld(new_sqlite(tmp_path), tmp_path), self.upsert)


class TestSqliteSinkThatUpserts(TestSqliteSink):
    upsert, many = True, FEWER


def test_every_sink_and_every_mode_of_the_delta_sink_is_here() -> None:
    kinds = _KINDS.keys() - {"state"}  # not for any rows: only for changes of a state that was read (test_state.py)
    assert kinds == {"delta", "kafka", "memory", "sql"}, "a new kind needs a class above"
    assert {"append", *(those.options["mode"] for those in ThroughSpark.__subclasses__())} == set(MODES)
