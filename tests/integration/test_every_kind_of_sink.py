"""One epoch in a Delta table, a Kafka topic, a PostgreSQL table and an SQLite table: all show it, or none does."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from airflow_epochs import DeltaSink, KafkaSink, SqlSink
from airflow_epochs.contracts import Connection, Sink
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import EpochRow
from airflow_epochs.ledger.signing import Keys
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run
from airflow_epochs.staged.owner import OWNER
from airflow_epochs.testing import Crash
from stack.broker import Broker
from stack.postgres import Postgres
from tests.support.environment import Action
from tests.support.faults_disk import PARTITIONS, FileSource
from tests.support.faults_world import airflow_run, crash, on_disk, phases_of, rows_in
from tests.support.kafka_sink_world import seen_by_confluent, seen_by_kafka_python, values
from tests.support.lanes import long_but
from tests.support.one_task import run_in_one_task
from tests.support.sql_world import Db, PostgresDb, SqliteDb, new_postgres, new_sqlite
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm

NAMES = ("lake", "topic", "database", "file")
READERS = (seen_by_confluent, seen_by_kafka_python)
TABLE = 'CREATE TABLE orders (source text, partition bigint, "offset" bigint, payload text)'
Payloads = list[str]


@dataclass(frozen=True)
class World:
    """What outlives a process: input, ledger, sinks. ``names``: the sinks that the DAG has today."""

    folder: Path
    broker: Broker
    topic: str
    database: PostgresDb
    file: SqliteDb
    names: tuple[str, ...] = NAMES
    changed: str | None = None
    """The sink that is described otherwise today than it was."""
    down: Mapping[str, Connection] = field(default_factory=dict)
    """Connections that lead to a port where nobody listens."""
    password: str = "a key that is long enough"
    """Of the ledger's connection."""

    @property
    def pipeline(self) -> str:
        """One broker knows all these worlds, so each has a name of its own."""
        return self.topic

    @property
    def source(self) -> FileSource:
        return FileSource(folder=str(self.folder / "input"))

    @property
    def connections(self) -> dict[str, Connection]:
        return {
            "kafka": Connection(conn_id="kafka", conn_type="kafka", extra={"bootstrap.servers": self.broker.bootstrap}),
            "database": replace(self.database.connection(), conn_id="database"),
            "file": replace(self.file.connection(), conn_id="file"),
        }

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalStore(self.folder / "ledger"), self.pipeline, Keys.parse(self.password))

    def sink(self, name: str) -> Sink:
        staging = str(self.folder / ("staging" if name != self.changed else "other staging"))
        match name:
            case "lake":
                return DeltaSink(name, str(self.folder / "lake"), compact_every=50 if name != self.changed else 7)
            case "topic":
                return KafkaSink(name, self.topic, staging=staging, conn_id="kafka")
            case "database":
                return SqlSink(name, name, self.database.table(), staging=staging)
        return SqlSink(name, name, self.file.table(), staging=staging)

    def coordinator(self, at: Mapping[str, Action] | None = None) -> Coordinator:
        return Coordinator(
            TaskTry(
                pipeline=Pipeline(
                    wait_for_others=0,
                    name=self.pipeline,
                    dag_id="dag",
                    source=self.source,
                    sinks=tuple(self.sink(name) for name in self.names),
                    transform=Transform(path="disk.py", function="keep_all"),
                ),
                ledger=self.ledger,
                env=on_disk(at, {**self.connections, **self.down}),
            )
        )

    def run(self, number: int, at: Mapping[str, Action] | None = None) -> Exception | None:
        return airflow_run(self.coordinator(at), Run("dag", f"run {number}"))

    # -- looking --------------------------------------------------------------------------------------------------

    def shown(self) -> dict[str, Payloads]:
        """What a reader of each sink sees, in an order of its own."""
        read: dict[str, Callable[[], Payloads]] = {
            "lake": lambda: [text for _, _, text in rows_in(self.folder / "lake", self.source.name)],
            "topic": self._in_the_topic,
            "database": lambda: _payloads(self.database),
            "file": lambda: _payloads(self.file),
        }
        return {name: sorted(read[name]()) for name in NAMES}

    def _in_the_topic(self) -> Payloads:
        seen = [seen_by_confluent(self.broker.bootstrap, self.topic, partition) for partition in PARTITIONS]
        texts = [text for each in seen for text in values(each) if text]
        return [json.loads(text)["payload"] for text in texts]

    def all_rows(self) -> Payloads:
        return sorted(text for _, _, text in self.source.all_rows())

    def require_all_shown(self, names: Iterable[str] = NAMES) -> None:
        """Each of the sinks shows every record once, and nothing staged is left."""
        shown = self.shown()
        assert {name: shown[name] for name in names} == dict.fromkeys(names, self.all_rows())
        assert not [p for p in self.folder.glob("*staging/**/*") if p.is_file() and p.name != OWNER]


def _payloads(db: Db) -> Payloads:
    return [text for (text,) in db.run("SELECT payload FROM orders")]


@pytest.fixture
def world(tmp_path: Path, broker: Broker, postgres: Postgres) -> World:
    return started(tmp_path, broker, postgres)


def started(tmp_path: Path, broker: Broker, postgres: Postgres, **more: Any) -> World:
    """One complete epoch of four records in every sink, and input for the next one."""
    admin, topic = AdminClient({"bootstrap.servers": broker.bootstrap}), f"orders-{uuid.uuid4().hex}"
    admin.create_topics([NewTopic(topic, len(PARTITIONS), 1)])[topic].result()
    wait_until(lambda: topic in admin.list_topics(timeout=5).topics)
    world = World(tmp_path, broker, topic, new_postgres(postgres), new_sqlite(tmp_path), **more)
    for db in (world.database, world.file):
        db.run(TABLE)
    world.source.produce(4)
    assert world.run(1) is None
    world.source.produce(5)
    return world


def test_every_sink_shows_each_epoch_once_and_a_rerun_changes_nothing(world: World) -> None:
    for _ in range(2):
        assert world.run(2) is None
        world.require_all_shown()
    assert EpochRow.of(world.ledger, world.ledger.view(2)).versions == {"lake": 1}, "no other sink has any"
    for partition in PARTITIONS:
        by_one, by_other = (see(world.broker.bootstrap, world.topic, partition) for see in READERS)
        assert by_one == by_other


@pytest.mark.few(1)
@pytest.mark.parametrize("first", range(3))
def test_a_run_that_dies_at_any_phase_is_finished_or_done_again_by_the_next(world: World, first: int) -> None:
    coordinator = world.coordinator()
    assert airflow_run(coordinator, Run("dag", "run 2")) is None
    every = list(dict.fromkeys(phases_of(coordinator)))
    assert {"delta.commit.after", "kafka.commit.after", "sql.commit.after", "complete.put"} < set(every)
    phases = every[first::3]
    for number, phase in enumerate(phases, 2):
        world.source.produce(2)
        with pytest.raises(Crash):
            world.run(2 * number, {phase: crash})
        assert world.run(2 * number + 1) is None, phase
        assert world.shown() == dict.fromkeys(NAMES, world.all_rows()), phase
    world.source.produce(2)  # what is left of an epoch is swept with the next one
    assert world.run(2 * len(phases) + 4) is None
    world.require_all_shown()


IN_ONE_TASK = ("stage.done", "decision.landed", "delta.commit.after", "kafka.commit.after", "sql.commit.after")


def in_one_task(world: World, run: str, *at: Mapping[str, Action]) -> Exception | None:
    """The layout with one task; ``at``: what happens in each of its epochs. The error that made it red, if any."""
    actions = iter(at)
    sinks = [world.sink(name) for name in world.names]
    try:
        run_in_one_task(Run("dag", run), sinks, lambda: world.coordinator(next(actions, None)))
    except Exception as error:
        return error
    return None


@pytest.mark.long
def test_one_task_that_dies_in_its_second_epoch_is_finished_when_it_is_cleared_or_by_the_next_run(world: World) -> None:
    more = {"complete.landed": lambda: world.source.produce(2)}
    for number, phase in enumerate(IN_ONE_TASK, 2):
        world.source.produce(1)
        with pytest.raises(Crash):
            in_one_task(world, f"run {number}", more, {phase: crash})
        # by one task, cleared, or by a task per step, in turn
        error = in_one_task(world, f"run {number}") if number % 2 else world.run(100 + number)
        assert error is None, phase
        assert world.shown() == dict.fromkeys(NAMES, world.all_rows()), phase
    assert world.ledger.newest_complete() == 1 + 2 * len(IN_ONE_TASK)
    world.source.produce(2)  # what is left of an epoch is swept with the next one
    assert in_one_task(world, "last") is None
    world.require_all_shown()


@pytest.mark.long
def test_a_vote_against_an_epoch_of_one_task_keeps_it_out_of_all_and_clearing_the_task_helps(world: World) -> None:
    before = world.shown()
    error = in_one_task(world, "run 2", {"stage.done": lambda: rename(world.database, "orders", "gone")})
    rename(world.database, "gone", "orders")
    assert "Sink database voted against it: " in str(error)
    assert str(error).endswith("Then clear the task, or let the next run take the same offsets.")
    assert world.shown() == before
    assert in_one_task(world, "run 2") is None
    world.require_all_shown()


def lose_staged_rows(world: World) -> Callable[[], None]:
    def lose() -> None:
        for path in (world.folder / "lake" / "epochs").glob("*/2-*/**/*.parquet"):
            path.unlink()

    return lose


def limit_messages(world: World, size: int = 10) -> None:
    """Let the brokers refuse messages of more than ``size`` bytes."""
    admin = AdminClient({"bootstrap.servers": world.broker.bootstrap})
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, world.topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()


def rename(db: Db, name: str, to: str) -> None:
    db.run(f"ALTER TABLE {name} RENAME TO {to}")


@pytest.mark.few(1)
@pytest.mark.parametrize("against", NAMES)
def test_a_vote_against_the_epoch_by_any_sink_keeps_it_out_of_all(world: World, against: str) -> None:
    before = world.shown()
    break_it: dict[str, Callable[[], None]] = {
        "lake": lose_staged_rows(world),
        "topic": lambda: limit_messages(world),
        "database": lambda: rename(world.database, "orders", "gone"),
        "file": lambda: rename(world.file, "orders", "gone"),
    }
    error = world.run(2, {"stage.done": break_it[against]})
    assert f"Sink {against} voted against it: " in str(error)
    mend_it: dict[str, Callable[[], None]] = {
        "topic": lambda: limit_messages(world, 1_000_000),
        "database": lambda: rename(world.database, "gone", "orders"),
        "file": lambda: rename(world.file, "gone", "orders"),
    }
    mend_it.get(against, lambda: None)()
    assert world.shown() == before
    assert world.run(3) is None
    world.require_all_shown()


def dead(world: World, sink: str) -> World:
    """The same world, in which a sink's server or disk does not answer."""
    if sink == "lake":
        (world.folder / "lake").rename(world.folder / "lake.unmounted")
        return world
    if sink == "file":
        return replace(world, down={"file": Connection(conn_id="file", conn_type="sqlite", host="/dev/null/db")})
    conn_id = {"topic": "kafka"}.get(sink, sink)
    extra = {"bootstrap.servers": "127.0.0.1:9", "socket.timeout.ms": 500}
    down = {
        "kafka": Connection(conn_id="kafka", conn_type="kafka", extra=extra),
        "database": replace(world.database.connection(port=9), conn_id="database"),
    }
    return replace(world, down={conn_id: down[conn_id]})


def alive(world: World, sink: str) -> World:
    if sink == "lake":
        (world.folder / "lake.unmounted").rename(world.folder / "lake")
    return replace(world, down={})


TODAY: dict[str, Callable[[World, str], World]] = {
    "as it was": lambda world, sink: world,
    "without the sink": lambda world, sink: replace(world, names=tuple(name for name in NAMES if name != sink)),
    "with the sink changed": lambda world, sink: replace(world, changed=sink),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("dag", long_but(["as it was"], TODAY))
@pytest.mark.parametrize("failing", NAMES)
def test_a_sink_that_fails_for_long_after_the_decision_is_waited_for_and_gets_its_rows(
    world: World, failing: str, dag: str
) -> None:
    with pytest.raises(Crash):
        world.run(2, {"decision.landed": crash})
    promised = world.all_rows()
    world.source.produce(3)
    world = TODAY[dag](dead(world, failing), failing)
    for number in (3, 4):  # the runs of that hour
        assert f"The epoch is in doubt: it waits for sink {failing}. " in str(world.run(number))
    assert world.ledger.open_record(3, 1) is None
    assert EpochRow.of(world.ledger, world.ledger.view(2)).waits_for == (failing,)
    others = {*NAMES} - {failing}
    world = alive(world, failing)
    shown = world.shown()
    assert {name for name in NAMES if shown[name] == promised} == others
    assert world.run(5) is None
    assert world.run(6) is None
    complete = world.ledger.complete_record(2)
    assert complete
    assert complete.receipts.keys() == {*NAMES}
    world.require_all_shown(world.names)
    assert world.shown()[failing] == (world.all_rows() if failing in world.names else promised)


@pytest.mark.few(1)
@pytest.mark.parametrize("removed", ["topic", "database", "file"])
def test_in_an_unsigned_ledger_a_removed_sink_with_a_connection_of_its_own_has_to_be_put_back_first(
    tmp_path: Path, broker: Broker, postgres: Postgres, removed: str
) -> None:
    """As the error says, which is then followed."""
    world = started(tmp_path, broker, postgres, password="")
    with pytest.raises(Crash):
        world.run(2, {"decision.landed": crash})
    without = replace(world, names=tuple(name for name in NAMES if name != removed))
    error = without.run(3)
    assert isinstance(error, Refused), error
    assert f"which is not signed, the sink uses connection {world.sink(removed).spec()['conn_id']!r}" in error.what
    assert "Undo the change of the DAG until the epoch is complete" in error.remedy
    assert world.run(4) is None
    world.require_all_shown(NAMES)
    world.source.produce(2)
    assert without.run(5) is None
    without.require_all_shown(without.names)
