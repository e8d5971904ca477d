"""A sink that was waived, and has another place than the new one, is left alone: its commits may be sound."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from airflow_epochs.config import Pipeline, Transform
from airflow_epochs.contracts import Sink
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.signing import Keys
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run, TransactionId, WaivedRecord
from airflow_epochs.protocol import State
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.sql.sink import SqlSink
from airflow_epochs.testing import Crash
from tests.support.environment import Action
from tests.support.faults_disk import StartingSource
from tests.support.faults_world import DiskWorld, airflow_run, crash, on_disk, start
from tests.support.remedies import assert_all_rows, ordered
from tests.support.sql_pipeline import COLUMNS, Related
from tests.support.sql_world import SqliteDb

WORDS = ("is fenced", "waived under the name")
KEYS = Keys.parse("k" * 40)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of fences and of waived epochs."""
    said = [record.getMessage() for record in caplog.records]
    return [line for line in said if any(word in line for word in WORDS)]


def versions(table: Path) -> list[str]:
    return sorted(path.name for path in (table / "_delta_log").glob("*.json"))


# -- surely elsewhere -------------------------------------------------------------------------------------------------


def test_another_delta_table_gets_no_fence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = start(DiskWorld(tmp_path, sinks=("orders", "audit")))
    world.crash_at("commit.audit")
    ordered(world.ledger_root, "epochs", "waive", "orders", "2", "audit", "--why", "its store is away")
    assert world.run(2) is None
    world.produce(2)
    before = versions(world.table("audit"))
    today = replace(world, sinks=("orders", "gold"), backfill={"gold": 1})
    assert today.run(3) is None
    assert versions(world.table("audit")) == before
    assert told(caplog) == []
    assert_all_rows(today, "gold")


@dataclass(frozen=True)
class Mixed:
    """Delta tables, and the table `rows` in a database."""

    folder: Path
    db: SqliteDb
    names: tuple[str, ...]
    backfill: dict[str, int] = field(default_factory=dict)

    @property
    def source(self) -> StartingSource:
        return StartingSource(folder=str(self.folder / "input"), starting={})

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalStore(self.folder / "ledger"), "orders", KEYS)

    def sink(self, name: str) -> Sink:
        if name == "rows":
            return SqlSink("rows", "db", "rows", staging=str(self.folder / "staging"))
        return DeltaSink(name, str(self.folder / name))

    def run(self, number: int, at: dict[str, Action] | None = None) -> Exception | None:
        pipeline = Pipeline(
            name="orders",
            dag_id="dag",
            source=self.source,
            sinks=tuple(map(self.sink, self.names)),
            transform=Transform(path="disk.py", function="keep_all"),
            backfill=self.backfill,
        )
        env = on_disk(at, {"db": self.db.connection(conn_id="db")})
        task = TaskTry(pipeline=pipeline, ledger=self.ledger, env=env)
        return airflow_run(Coordinator(task), Run("dag", f"run {number}"))


def test_a_new_delta_table_does_not_wait_for_a_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A session holds all locks of the database. Whoever asks for one waits for half a minute."""
    db = SqliteDb(tmp_path / "db.sqlite")
    db.run(f"CREATE TABLE rows ({COLUMNS})")
    world = Mixed(tmp_path, db, ("lake", "rows"))
    world.source.produce(4)
    assert world.run(1) is None
    world.source.produce(4)
    with pytest.raises(Crash):
        world.run(2, {"commit.rows": crash})
    waived = world.ledger.view(2).opened.txn_id
    world.ledger.put(WaivedRecord(txn_id=waived, sink="rows", who="me", why="it hangs", at="now"))
    assert world.run(2) is None
    world.source.produce(2)
    hangs = sqlite3.connect(tmp_path / "db.sqlite", isolation_level=None)
    hangs.execute("BEGIN IMMEDIATE")
    with patch.object(SqlSink, "fence", autospec=True) as asked:
        assert replace(world, names=("lake", "gold"), backfill={"gold": 1}).run(3) is None
    hangs.close()
    asked.assert_not_called()
    assert told(caplog) == []


def test_another_table_of_the_same_database_gets_no_fence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = waived_once(tmp_path)
    database.db.run(f"CREATE TABLE gold ({COLUMNS})")
    before = markers(database)
    assert replace(database, names=("gold",), backfill={"gold": 1}).run(3) is None
    assert markers(database)["orders"] == before["orders"]
    assert told(caplog) == []


class Signed(Related):
    """Its records may use connections that no sink of the DAG uses."""

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalStore(self.folder / "ledger"), self.name, KEYS)


def waived_once(folder: Path, *, first: int = 2, **fields: Any) -> Signed:
    """`orders` was waived, in its epoch ``first``. There is input for the next one."""
    db = SqliteDb(folder / "db.sqlite")
    db.run(f"CREATE TABLE orders ({COLUMNS})")
    database = Signed(folder, db, names=("orders",), **fields)
    database.source.produce(4)
    for number in range(1, first):
        assert database.run(number) is None
        database.source.produce(4)
    with pytest.raises(Crash):
        database.run(first, {"commit.orders": crash})
    database.waive("orders", first)
    assert database.run(first) is None
    database.source.produce(2)
    return database


def markers(database: Related) -> dict[str, tuple[Any, ...]]:
    found = database.db.run("SELECT sink, epoch, txn_id, row_count, ends, target FROM epoch_markers")
    return {sink: tuple(rest) for sink, *rest in found}


# -- perhaps elsewhere ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [1, 2])
def test_the_same_table_through_another_connection_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    """`open` and the commit say it, once each, and nobody writes."""
    database = waived_once(tmp_path, first=first, connections={"orders": {}, "gold": {}})
    before = markers(database)
    today = replace(database, names=("gold",), tables={"gold": "orders"}, backfill={"gold": first})
    assert today.run(3) is None
    assert markers(database)["orders"] == before["orders"]
    opening, commit = told(caplog)
    assert f"epoch {first}, which was waived under the name orders, perhaps in the same place" in opening
    assert commit.startswith(f"Epoch {first} was waived under the name orders, which perhaps writes to the same place")


def test_a_table_that_is_spelled_in_another_way_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the newest receipt says of the table tells that it is the same."""
    database = waived_once(tmp_path)
    before = markers(database)
    today = replace(database, names=("gold",), tables={"gold": '"ORDERS"'}, backfill={"gold": 2})
    assert today.run(3) is None
    assert markers(database)["orders"] == before["orders"]
    assert ["perhaps" in line for line in told(caplog)] == [True, True]


# -- surely here ------------------------------------------------------------------------------------------------------


def waived_thrice(folder: Path) -> DiskWorld:
    """The epochs 2, 3 and 4 of `orders` were waived; `gold` has its table now."""
    world = start(DiskWorld(folder, sinks=("orders",)))
    for number in (2, 3, 4):
        world.crash_at("commit.orders", number)
        ordered(world.ledger_root, "epochs", "waive", "orders", str(number), "orders", "--why", "it hangs")
        assert world.run(number) is None
        world.produce(2)
    return replace(world, sinks=("gold",), tables={"gold": "orders"}, backfill={"gold": 2})


def test_a_fence_that_stands_is_told_as_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is put once for each epoch, and a repeat puts nothing."""
    caplog.set_level("INFO", "airflow_epochs")
    today = waived_thrice(tmp_path)
    before = len(versions(today.table("gold")))
    today.crash_at("delta.commit.before", 5)
    assert len(versions(today.table("gold"))) == before + 3
    assert today.run(5) is None
    assert len(versions(today.table("gold"))) == before + 4
    assert "cannot be fenced" not in caplog.text
    assert "sink orders is fenced up to epoch 4, which was waived" in caplog.text
    assert_all_rows(today, "orders")


def test_fences_that_a_task_left_half_done_are_completed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "airflow_epochs")
    today, reached = waived_thrice(tmp_path), []

    def third_dies() -> None:
        reached.append(1)
        if len(reached) == 3:
            crash()

    with pytest.raises(Crash):
        today.run(5, today.coordinator({"delta.fence.before": third_dies}))
    assert today.run(5) is None
    assert "cannot be fenced" not in caplog.text
    assert "sink orders is fenced up to epoch 4, which was waived" in caplog.text
    assert_all_rows(today, "orders")


# -- markers in other tables ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [1, 2], ids=["its first epochs", "behind a complete one"])
def test_commits_that_hang_are_fenced_in_the_marker_table_of_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    """The DAG named another marker table between two epochs, both waived. There, the log tells of what has no fence."""
    caplog.set_level("INFO", "airflow_epochs")
    earlier = waived_once(tmp_path, first=first, options={"marker_table": "m1"})
    later = replace(earlier, options={"marker_table": "m2"})
    with pytest.raises(Crash):
        later.run(first + 1, {"commit.orders": crash})
    later.waive("orders", first + 1)
    assert later.run(first + 1) is None
    later.source.produce(2)
    gold = replace(later, names=("gold",), tables={"gold": "orders"}, backfill={"gold": first})
    assert gold.run(first + 2) is None
    fenced = {first: "m1"} | ({} if first > 1 else {2: "m2"})
    for number, table in fenced.items():
        ((epoch, txn),) = earlier.db.run(f"SELECT epoch, txn_id FROM {table} WHERE sink = 'orders'")
        assert epoch == number and TransactionId.parse(txn).is_fence
    assert f"Epoch {first} was waived under the name orders, which cannot be fenced" not in caplog.text
    is_told = f"Epoch {first + 1} was waived under the name orders, which cannot be fenced" in caplog.text
    assert is_told is (first + 1 not in fenced)


@pytest.mark.parametrize(
    "spoilt", ["DROP TABLE m1; CREATE TABLE m1 (x int)", "UPDATE m1 SET txn_id = 'x'"], ids=["other table", "other row"]
)
def test_a_marker_that_cannot_be_read_does_not_stop_the_sink_of_today(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoilt: str
) -> None:
    database = waived_once(tmp_path, options={"marker_table": "m1"})
    for statement in spoilt.split("; "):
        database.db.run(statement)
    today = replace(
        database, options={"marker_table": "m2"}, names=("gold",), tables={"gold": "orders"}, backfill={"gold": 2}
    )
    assert today.run(3) is None
    assert today.ledger.view(3).state is State.COMPLETE
    assert told(caplog)[-1].startswith("Epoch 2 was waived under the name orders, which cannot be fenced.")
