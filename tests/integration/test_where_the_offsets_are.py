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
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_epochs.errors import Corrupt
from airflow_epochs.model import starting_at_ends
from airflow_epochs.testing import Crash
from stack.broker import Broker
from stack.jars import Jars
from tests.support.faults_world import crash
from tests.support.kafka_tools import run_in_shell
from tests.support.pages import anchor, blocks, chapter, filled, printed
from tests.support.rebuilt import typed_rebuild
from tests.support.sql_world import new_sqlite
from tests.support.topic_world import TABLE, TopicWorld

pytestmark = pytest.mark.jvm

SEEN_AFTER_MS = ("3000", "30000")
"""For how long the console consumer waits for one more record: first the usual time here, then a busy machine's."""
Offsets = dict[str, dict[str, int]]


@dataclass(frozen=True, kw_only=True)
class World(TopicWorld):
    """A pipeline whose ledger gets lost."""

    def told_after_the_ledger_is_lost(self) -> Corrupt:
        shutil.rmtree(self.ledger_root)
        return self.told()

    def told(self) -> Corrupt:
        error = self.run(80)
        assert isinstance(error, Corrupt), error
        return error

    def rebuild(self, error: Corrupt, *more: str) -> str:
        """The command in the error, typed; what it prints. ``more``: words that the docs or the command told to add."""
        return typed_rebuild(lambda: self.task().task, error, *more, ledger_root=self.ledger_root)

    def ends_of_the_newest_epoch(self) -> Offsets:
        return starting_at_ends(self.task().newest_complete().ranges)


@pytest.fixture
def world(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> World:
    db = new_sqlite(tmp_path)
    db.run(TABLE)
    number = f"{abs(hash(request.node.name)):x}"
    return World(folder=tmp_path, broker=broker, db=db, id=number, name=f"orders-{number}")


def with_sinks(world: World, *sinks: str, partitions: int = 2) -> World:
    world.create_topic(partitions=partitions)
    for sink in {*sinks} - {"lake", "rows"}:
        world.create_topic(sink)
    return replace(world, sinks=sinks)


# -- the commands of the docs ---------------------------------------------------------------------------------------


def in_the_marker_topic(world: World, sink: str, jars: Jars) -> Offsets:
    """What Kafka's console consumer shows."""
    (command,) = blocks("kafka-sink.md", "The marker topic", "sh")
    names = {
        "kafka-1:9092": world.broker.bootstrap,
        "airflow-epochs-markers": world.topic("markers"),
        "orders/events": f"{world.name}/{sink}",
    }
    for waited in SEEN_AFTER_MS:
        typed = filled(command, {**names, "10000": waited})
        if (shown := run_in_shell(jars, world.folder / f"tools for {sink}, {waited} ms", typed)) != [""]:
            break
    (marker,) = shown
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
    assert {row["TOPIC"] for row in rows} == {world.topic()}
    return {world.topic(): {row["PARTITION"]: int(row["CURRENT-OFFSET"]) for row in rows}}


# -- the ledger is lost -----------------------------------------------------------------------------------------------


def require_link(page: str, title: str, to: str, then: str) -> None:
    """The chapter that an error names is there, and leads on to this one."""
    assert f"({to}#{anchor(then)})" in chapter(page, title)


@pytest.mark.long
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
    assert "The next epoch is 3." in screen and f"  {world.topic()}[0]: 4" in screen and "60 more partitions" in screen
    require_link("failures.md", "The ledger is behind", "operations.md", "Rebuild a lost ledger")
    ends = in_the_marker_topic(world, "events", jars)
    assert ends == {world.topic(): {"0": 4, "1": 3, **{str(number): 0 for number in range(2, 80)}}}
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
    assert "EPOCHS-ENDS-UNKNOWN: No sink knows the offsets where its last epoch ended" in told
    assert "Write the offsets of the pipeline's consumer group into a file" in told
    assert f"docs/operations.md#{anchor('Where the offsets are')}" in told
    group = in_the_consumer_group(world, jars)
    assert group == ends == {world.topic(): {"0": 4, "1": 3}}
    file = world.folder / "FILE"
    file.write_text(json.dumps(group))
    assert "They are the offsets of the file." in world.rebuild(error, "--offsets", str(file))
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


@pytest.mark.long
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
    ahead, behind = {world.topic(): {"0": 4, "1": 3}}, {world.topic(): {"0": 2, "1": 2}}
    assert in_the_history(world, "lake") == ahead
    assert in_the_marker_topic(world, "events", jars) == in_the_marker_table(world, "rows") == behind
    without: list[str] = []
    for sink in ("events", "rows"):
        with pytest.raises(SystemExit) as refused:
            world.rebuild(error, *without)
        assert f"Sink {sink} shows epoch 1, and lacks epoch 2." in str(refused.value)
        without += _words_of(r"type it with (--without \S+);", str(refused.value))
    screen = world.rebuild(error, *without)
    assert screen.count('another name in the DAG, with EpochPipeline(…, backfill={"<the new name>": 2})') == 2
    renamed = {"events_2": "events", "rows_2": "rows"}
    world = replace(world, sinks=("lake", *renamed), tables=renamed, backfill=dict.fromkeys(renamed, 2))
    for number, payloads in enumerate(("", "kl"), 81):
        world.produce(payloads)
        assert world.run(number) is None
    assert {sink: world.shown(sink) for sink in world.sinks} == dict.fromkeys(world.sinks, "abcdefghijkl")


def _words_of(pattern: str, text: str) -> list[str]:
    (found,) = re.findall(pattern, text)
    return str(found).split()
