"""The ledger is lost: the sinks and the consumer group say where to go on, to whoever runs the commands of the docs.

The commands are those of the pages, with a test's names in place of the example's. Each test does as the error of
today's run says, and ends in a pipeline that runs, whose sinks show every record once. For tables of Delta alone, also
by Spark: ``test_whole_pipeline.py``; for each database: ``test_sql_sink_diagnosis.py``.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from airflow_epochs import DeltaSink, KafkaSink, KafkaSource, SqlSink
from airflow_epochs.contracts import Connection, Sink
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run
from airflow_epochs.testing import Crash
from orders_demo.duck import duck
from stack.broker import Broker
from stack.jars import Jars
from tests.support.environment import Action, connected
from tests.support.faults_disk import PARTITIONS
from tests.support.faults_world import airflow_run, crash
from tests.support.kafka_sink_world import create, seen_by_confluent, values
from tests.support.kafka_staging import TopicSpark
from tests.support.kafka_tools import run_in_shell
from tests.support.pages import anchor, blocks, chapter, filled, printed
from tests.support.sql_world import SqliteDb, new_sqlite

pytestmark = pytest.mark.jvm

TABLE = 'CREATE TABLE rows (source text, partition bigint, "offset" bigint, payload text)'
SEEN_AFTER_MS = "3000"
"""For how long the console consumer waits for one more record here; the page gives a slow cluster more time."""
Offsets = dict[str, dict[str, int]]


@dataclass(frozen=True, kw_only=True)
class World:
    """A pipeline from a topic to sinks of any kind, as the DAG is today."""

    folder: Path
    broker: Broker
    db: SqliteDb
    id: str
    name: str
    sinks: tuple[str, ...] = ()
    starting: str | Offsets = "earliest"

    # -- acting ----------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        return f"in-{self.id}"

    def out(self, sink: str) -> str:
        return f"{sink}-{self.id}"

    @property
    def markers(self) -> str:
        return f"markers-{self.id}"

    def sink(self, name: str) -> Sink:
        staging = str(self.folder / "staging")
        if name == "lake":
            return DeltaSink(name, str(self.folder / name))
        if name == "rows":
            return SqlSink(name, "db", name, staging=staging)
        return KafkaSink(name, self.out(name), staging=staging, conn_id="kafka", marker_topic=self.markers)

    def create_topic(self, partitions: int) -> None:
        create(AdminClient({"bootstrap.servers": self.broker.bootstrap}), self.topic, partitions)

    def produce(self, payloads: str) -> None:
        """A record for each letter, in turn to partition 0 and 1."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for number, payload in enumerate(payloads):
            value = json.dumps({"source": self.topic, "payload": payload})
            producer.produce(self.topic, value=value, partition=number % 2)
        assert producer.flush(20) == 0

    def run(self, number: int, at: Mapping[str, Action] | None = None) -> Exception | None:
        source = KafkaSource([self.topic], conn_id="kafka", max_wait=0, starting=self.starting)
        kafka = Connection(conn_id="kafka", conn_type="kafka", extra={"bootstrap.servers": self.broker.bootstrap})
        env = connected(kafka, self.db.connection(), at=at)
        env.spark = TopicSpark(env.reached)
        coordinator = Coordinator(
            TaskTry(
                pipeline=Pipeline(
                    wait_for_others=0,
                    name=self.name,
                    dag_id="dag",
                    source=source,
                    sinks=tuple(map(self.sink, self.sinks)),
                    transform=Transform(path="disk.py", function="keep_all"),
                ),
                ledger=Ledger(LocalStore(self.folder / "ledger"), self.name),
                env=env,
            )
        )
        return airflow_run(coordinator, Run("dag", f"run {number}"))

    def told_after_the_ledger_is_lost(self) -> Corrupt:
        shutil.rmtree(self.folder / "ledger")
        error = self.run(80)
        assert isinstance(error, Corrupt), error
        return error

    def anew(self, starting: Offsets, *sinks: str) -> World:
        """Under a new name, as the errors say."""
        return replace(self, name=f"{self.name}-{'-'.join(sinks)}", starting=starting, sinks=sinks)

    # -- looking ---------------------------------------------------------------------------------------------------

    def shown(self, sink: str) -> str:
        """The payloads that a stranger sees, sorted."""
        readers: dict[str, Callable[[], list[Any]]] = {"lake": self._in_the_lake, "rows": self._in_the_database}
        return "".join(sorted(readers.get(sink, lambda: self._in_the_topic(sink))()))

    def _in_the_lake(self) -> list[Any]:
        with duck() as db:
            found = db.execute("SELECT payload FROM delta_scan(?)", [str(self.folder / "lake")])
            return [payload for (payload,) in found.fetchall()]

    def _in_the_database(self) -> list[Any]:
        return [payload for (payload,) in self.db.run("SELECT payload FROM rows")]

    def _in_the_topic(self, sink: str) -> list[Any]:
        seen = [seen_by_confluent(self.broker.bootstrap, self.out(sink), partition) for partition in PARTITIONS]
        return [json.loads(text)["payload"] for each in seen for text in values(each) if text]


@pytest.fixture
def world(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> World:
    db = new_sqlite(tmp_path)
    db.run(TABLE)
    number = f"{abs(hash(request.node.name)):x}"
    return World(folder=tmp_path, broker=broker, db=db, id=number, name=f"orders-{number}")


def with_sinks(world: World, *sinks: str, partitions: int = 2) -> World:
    world.create_topic(partitions)
    for sink in {*sinks} - {"lake", "rows"}:
        create(AdminClient({"bootstrap.servers": world.broker.bootstrap}), world.out(sink), len(PARTITIONS))
    return replace(world, sinks=sinks)


# -- the commands of the docs ---------------------------------------------------------------------------------------


def in_the_marker_topic(world: World, sink: str, jars: Jars) -> Offsets:
    """What Kafka's console consumer shows."""
    (command,) = blocks("kafka-sink.md", "The marker topic", "sh")
    names = {
        "kafka-1:9092": world.broker.bootstrap,
        "airflow-epochs-markers": world.markers,
        "orders/events": f"{world.name}/{sink}",
        "10000": SEEN_AFTER_MS,
    }
    (marker,) = run_in_shell(jars, world.folder / f"tools for {sink}", filled(command, names))
    ends: Offsets = json.loads(marker)["ends"]
    return ends


def in_the_history(world: World, sink: str) -> Offsets:
    """What deltalake shows."""
    command = blocks("operations.md", "Where the offsets are", "python")[0]
    names = {"orders/orders": f"{world.name}/{sink}", "/lake/orders": str(world.folder / sink)}
    ends: Offsets = json.loads(printed(filled(command, names)))
    return ends


def in_the_marker_table(world: World, sink: str) -> Offsets:
    (statement,) = blocks("sql.md", "The marker", "sql")
    names = {"pipeline = 'orders'": f"pipeline = '{world.name}'", "sink = 'orders'": f"sink = '{sink}'"}
    ((_, ends),) = world.db.run(filled(statement, names))
    found: Offsets = json.loads(ends)
    return found


def in_the_consumer_group(world: World, jars: Jars) -> Offsets:
    """What Kafka's tool shows, by the columns that the page names."""
    (command,) = blocks("operations.md", "Where the offsets are", "sh")
    names = {"kafka-1:9092": world.broker.bootstrap, "epochs.orders": f"epochs.{world.name}"}
    table = run_in_shell(jars, world.folder / "tools", filled(command, names))
    heads, *lines = (line.split() for line in table if line)
    rows = [dict(zip(heads, line, strict=True)) for line in lines]
    assert {row["TOPIC"] for row in rows} == {world.topic}
    return {world.topic: {row["PARTITION"]: int(row["CURRENT-OFFSET"]) for row in rows}}


# -- the ledger is lost -----------------------------------------------------------------------------------------------


def require_link(page: str, title: str, to: str, then: str) -> None:
    """The chapter that an error names is there, and leads on to this one. ``to`` is empty for the same page."""
    assert f"({to}#{anchor(then)})" in chapter(page, title)


def test_the_marker_topic_says_where_to_go_on_where_the_error_has_no_room_for_all_partitions(
    world: World, jars: Jars
) -> None:
    """80 partitions; and the marker of a removed sink whose name begins like that of the other."""
    world = with_sinks(world, "events", "events-2", partitions=80)
    world.produce("abcd")
    assert world.run(1) is None
    world = replace(world, sinks=("events",))
    world.produce("efg")
    assert world.run(2) is None
    world.produce("hij")
    error = world.told_after_the_ledger_is_lost()
    assert "starting={…} (use the offsets in `ends` of the marker)" in error.remedy
    assert "docs/kafka-sink.md, 'The ledger is behind the marker'" in error.remedy
    require_link("kafka-sink.md", "The ledger is behind the marker", "", "The marker topic")
    ends = in_the_marker_topic(world, "events", jars)
    assert ends == {world.topic: {"0": 4, "1": 3, **{str(number): 0 for number in range(2, 80)}}}
    world = world.anew(ends, "events")
    assert world.run(81) is None
    assert world.shown("events") == "abcdefghij"


def test_the_consumer_group_says_where_to_go_on_where_the_marker_does_not(world: World, jars: Jars) -> None:
    """As where the user may not add the column ``ends`` to a table of markers of version 0.1."""
    world = with_sinks(world, "rows")
    for number, payloads in enumerate(("abcd", "efg"), 1):
        world.produce(payloads)
        assert world.run(number) is None
    world.produce("hij")
    ends = in_the_marker_table(world, "rows")
    world.db.run("ALTER TABLE epoch_markers DROP COLUMN ends")
    error = world.told_after_the_ledger_is_lost()
    assert "starting={…} (the offsets of the pipeline's consumer group: this marker has none)" in error.remedy
    assert "docs/sql.md, 'The ledger is behind the database'" in error.remedy
    require_link("sql.md", "The ledger is behind the database", "failures.md", "The ledger is behind")
    require_link("failures.md", "The ledger is behind", "operations.md", "Where the offsets are")
    starting = in_the_consumer_group(world, jars)
    assert starting == ends == {world.topic: {"0": 4, "1": 3}}
    world = world.anew(starting, "rows")
    assert world.run(81) is None
    assert world.shown("rows") == "abcdefghij"


def test_sinks_that_end_at_different_offsets_go_on_in_pipelines_of_their_own(world: World, jars: Jars) -> None:
    """The last epoch was in doubt when the ledger was lost: the table shows it, the topic and the database do not."""
    world = with_sinks(world, "lake", "events", "rows")
    world.produce("abcd")
    assert world.run(1) is None
    world.produce("efg")
    with pytest.raises(Crash):
        world.run(2, {"committed.lake": crash})
    world.produce("hij")
    error = world.told_after_the_ledger_is_lost()
    ahead, behind = {world.topic: {"0": 4, "1": 3}}, {world.topic: {"0": 2, "1": 2}}
    (told,) = re.findall(r"starting=(\{.*?\}\})", error.remedy)
    assert json.loads(told) == ahead
    assert "has more sinks, first look where each sink ends: docs/failures.md#the-ledger-is-behind" in error.remedy
    assert in_the_history(world, "lake") == ahead
    assert in_the_marker_topic(world, "events", jars) == in_the_marker_table(world, "rows") == behind
    two = (world.anew(ahead, "lake"), world.anew(behind, "events", "rows"))
    for number, payloads in enumerate(("", "kl"), 81):
        world.produce(payloads)
        assert [each.run(number) for each in two] == [None, None]
    assert {sink: world.shown(sink) for sink in world.sinks} == dict.fromkeys(world.sinks, "abcdefghijkl")
