"""The ledger is lost: the sinks say where to go on, to ``airflow epochs rebuild`` and to whoever looks for himself.

The commands are those of the errors and the pages, with a test's names in place of the example's. Each test does as the
error of today's run says, and ends in a pipeline that runs, whose sinks show every record once. For tables of Delta
alone, also by Spark: ``test_whole_pipeline.py``; for each database: ``test_sql_sink_diagnosis.py``; for every accident
of the command itself: ``faults/test_rebuilding.py``.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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
from airflow_epochs.model import Run, starting_at_ends
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
from tests.support.rebuilt import typed_rebuild
from tests.support.sql_world import SqliteDb, new_sqlite

pytestmark = pytest.mark.jvm

TABLE = 'CREATE TABLE rows (source text, partition bigint, "offset" bigint, payload text)'
SEEN_AFTER_MS = "3000"
"""For how long the console consumer waits for one more record here; the page gives a slow cluster more time."""
Offsets = dict[str, dict[str, int]]


def kind(sink: str) -> str:
    """A sink with another name on the same table or topic is ``<name>_2``."""
    return sink.removesuffix("_2")


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
    backfill: Mapping[str, int] = field(default_factory=dict)

    # -- acting ----------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        return f"in-{self.id}"

    def out(self, sink: str) -> str:
        return f"{kind(sink)}-{self.id}"

    @property
    def markers(self) -> str:
        return f"markers-{self.id}"

    def sink(self, name: str) -> Sink:
        staging = str(self.folder / "staging")
        if kind(name) == "lake":
            return DeltaSink(name, str(self.folder / "lake"))
        if kind(name) == "rows":
            return SqlSink(name, "db", "rows", staging=staging)
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

    def coordinator(self, at: Mapping[str, Action] | None = None) -> Coordinator:
        source = KafkaSource([self.topic], conn_id="kafka", max_wait=0, starting=self.starting)
        kafka = Connection(conn_id="kafka", conn_type="kafka", extra={"bootstrap.servers": self.broker.bootstrap})
        env = connected(kafka, self.db.connection(), at=at)
        env.spark = TopicSpark(env.reached)
        return Coordinator(
            TaskTry(
                pipeline=Pipeline(
                    wait_for_others=0,
                    name=self.name,
                    dag_id="dag",
                    source=source,
                    sinks=tuple(map(self.sink, self.sinks)),
                    transform=Transform(path="disk.py", function="keep_all"),
                    backfill=self.backfill,
                ),
                ledger=Ledger(LocalStore(self.folder / "ledger"), self.name),
                env=env,
            )
        )

    def run(self, number: int, at: Mapping[str, Action] | None = None) -> Exception | None:
        return airflow_run(self.coordinator(at), Run("dag", f"run {number}"))

    def told_after_the_ledger_is_lost(self) -> Corrupt:
        shutil.rmtree(self.folder / "ledger")
        return self.told()

    def told(self) -> Corrupt:
        error = self.run(80)
        assert isinstance(error, Corrupt), error
        return error

    def rebuild(self, error: Corrupt, *more: str) -> str:
        """The command in the error, typed; what it prints. ``more``: words that the docs or the command told to add."""
        return typed_rebuild(lambda: self.coordinator().task, error, *more, ledger_root=self.folder / "ledger")

    def ends_of_the_newest_epoch(self) -> Offsets:
        return starting_at_ends(self.coordinator().newest_complete().ranges)

    # -- looking ---------------------------------------------------------------------------------------------------

    def shown(self, sink: str) -> str:
        """The payloads that a stranger sees, sorted."""
        readers: dict[str, Callable[[], list[Any]]] = {"lake": self._in_the_lake, "rows": self._in_the_database}
        return "".join(sorted(readers.get(kind(sink), lambda: self._in_the_topic(sink))()))

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
    """The chapter that an error names is there, and leads on to this one."""
    assert f"({to}#{anchor(then)})" in chapter(page, title)


def test_a_ledger_that_is_lost_is_rebuilt_from_the_marker_of_a_topic(world: World, jars: Jars) -> None:
    """80 partitions; and the marker of a removed sink whose name begins like that of the other."""
    world = with_sinks(world, "events", "events-2", partitions=80)
    world.produce("abcd")
    assert world.run(1) is None
    world = replace(world, sinks=("events",))
    world.produce("efg")
    assert world.run(2) is None
    world.produce("hij")
    error = world.told_after_the_ledger_is_lost()
    assert "docs/kafka-sink.md, 'The ledger is behind the marker'" in error.remedy
    require_link("kafka-sink.md", "The ledger is behind the marker", "operations.md", "Rebuild a lost ledger")
    screen = world.rebuild(error)
    assert "The next epoch is 3." in screen and f"  {world.topic}[0]: 4" in screen and "60 more partitions" in screen
    require_link("failures.md", "The ledger is behind", "operations.md", "Rebuild a lost ledger")
    ends = in_the_marker_topic(world, "events", jars)
    assert ends == {world.topic: {"0": 4, "1": 3, **{str(number): 0 for number in range(2, 80)}}}
    assert world.ends_of_the_newest_epoch() == ends
    assert world.run(81) is None
    assert world.shown("events") == "abcdefghij"


def test_the_consumer_group_says_where_to_go_on_where_no_marker_does(world: World, jars: Jars) -> None:
    """As where the user may not add the column ``ends`` to a table of markers of version 0.1."""
    world = with_sinks(world, "rows")
    for number, payloads in enumerate(("abcd", "efg"), 1):
        world.produce(payloads)
        assert world.run(number) is None
    world.produce("hij")
    ends = in_the_marker_table(world, "rows")
    world.db.run("ALTER TABLE epoch_markers DROP COLUMN ends")
    error = world.told_after_the_ledger_is_lost()
    assert "docs/sql.md, 'The ledger is behind the database'" in error.remedy
    require_link("sql.md", "The ledger is behind the database", "operations.md", "Rebuild a lost ledger")
    with pytest.raises(SystemExit) as refused:
        world.rebuild(error)
    told = str(refused.value)
    assert "EPOCHS-POSITION-UNKNOWN: No sink stored the offsets where its last epoch ended." in told
    assert "a new name in the DAG, and its source `starting` at the offsets of the pipeline's consumer group" in told
    assert f"docs/operations.md#{anchor('Where the offsets are')}" in told
    starting = in_the_consumer_group(world, jars)
    assert starting == ends == {world.topic: {"0": 4, "1": 3}}
    world = replace(world, name=f"{world.name}-2", starting=starting)
    assert world.run(81) is None
    assert world.shown("rows") == "abcdefghij"


def test_sinks_of_every_kind_go_on_together_after_the_ledger_was_restored_from_an_older_copy(world: World) -> None:
    world = with_sinks(world, "lake", "events", "rows")
    world.produce("abcd")
    assert world.run(1) is None
    shutil.copytree(world.folder / "ledger", world.folder / "copy")
    for number, payloads in enumerate(("efg", "hij"), 2):
        world.produce(payloads)
        assert world.run(number) is None
    shutil.rmtree(world.folder / "ledger")
    (world.folder / "copy").rename(world.folder / "ledger")
    world.produce("kl")
    screen = world.rebuild(world.told())
    assert "the ledger ends with epoch 1, and the sinks show epoch 3" in screen
    for number, payloads in enumerate(("", "mn"), 81):
        world.produce(payloads)
        assert world.run(number) is None
    assert {sink: world.shown(sink) for sink in world.sinks} == dict.fromkeys(world.sinks, "abcdefghijklmn")


def test_sinks_that_lack_the_last_epoch_get_it_under_other_names(world: World, jars: Jars) -> None:
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
    assert in_the_history(world, "lake") == ahead
    assert in_the_marker_topic(world, "events", jars) == in_the_marker_table(world, "rows") == behind
    without: list[str] = []
    for sink in ("events", "rows"):
        with pytest.raises(SystemExit) as refused:
            world.rebuild(error, *without)
        assert f"Sink {sink} shows epoch 1, and lacks epoch 2." in str(refused.value)
        without += _words_of(r"type it with (--without \S+);", str(refused.value))
    screen = world.rebuild(error, *without)
    assert screen.count('another name in the DAG, with backfill={"<the new name>": 2}') == 2
    names = ("events_2", "rows_2")
    world = replace(world, sinks=("lake", *names), backfill=dict.fromkeys(names, 2))
    for number, payloads in enumerate(("", "kl"), 81):
        world.produce(payloads)
        assert world.run(number) is None
    assert {sink: world.shown(sink) for sink in world.sinks} == dict.fromkeys(world.sinks, "abcdefghijkl")


def _words_of(pattern: str, text: str) -> list[str]:
    (found,) = re.findall(pattern, text)
    return str(found).split()
