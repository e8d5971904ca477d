"""Whole epochs of the real coordinator with a Delta table and a database: both show an epoch, or neither does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs.contracts import Connection
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Marker, Run
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.sql.postgres import PostgresSession
from airflow_epochs.sinks.sql.sink import SqlSink
from airflow_epochs.staged.owner import OWNER
from airflow_epochs.testing import Crash
from stack.postgres import Postgres
from tests.support.environment import Action, Environment
from tests.support.faults_disk import FileSource, Row
from tests.support.faults_world import airflow_run, crash, on_disk, phases_of, rows_in
from tests.support.sql_world import Db, new_postgres, new_sqlite

pytestmark = pytest.mark.proof

TABLE = "CREATE TABLE orders (source text, partition bigint, {offset} bigint, payload text)"


@dataclass(frozen=True)
class TwoSinks:
    folder: Path
    db: Db

    @property
    def source(self) -> FileSource:
        return FileSource(folder=str(self.folder / "input"))

    @property
    def connections(self) -> dict[str, Connection]:
        return {"db": self.db.connection()}

    @property
    def sql_sink(self) -> SqlSink:
        return SqlSink("database", "db", self.db.table(), staging=str(self.folder / "staging"))

    def coordinator(self, at: Mapping[str, Action] | None = None) -> Coordinator:
        return Coordinator(
            TaskTry(
                pipeline=Pipeline(
                    wait_for_others=0,
                    name="orders",
                    dag_id="dag",
                    source=self.source,
                    sinks=(DeltaSink("lake", str(self.folder / "lake")), self.sql_sink),
                    transform=Transform(path="disk.py", function="keep_all"),
                ),
                ledger=Ledger(LocalStore(self.folder / "ledger"), "orders"),
                env=on_disk(at, self.connections),
            )
        )

    def run(self, number: int, at: Mapping[str, Action] | None = None) -> Exception | None:
        return airflow_run(self.coordinator(at), Run("dag", f"run {number}"))

    def in_the_database(self) -> list[Row]:
        return [
            (p, o, text) for p, o, text in self.db.run('SELECT partition, "offset", payload FROM orders ORDER BY 1, 2')
        ]

    def in_the_lake(self) -> list[Row]:
        return sorted(rows_in(self.folder / "lake", self.source.name))

    def require_all_shown(self, epochs: int) -> None:
        """Both show every record once, and nothing staged is left."""
        assert self.in_the_database() == self.in_the_lake() == self.source.all_rows()
        record = self.coordinator().newest_complete()
        assert record.txn_id.epoch == epochs
        marker = self.sql_sink.last_committed("orders", Environment(self.connections))
        assert marker == Marker.of(record.txn_id)
        assert not [p for p in (self.folder / "staging").rglob("*") if p.is_file() and p.name != OWNER]


def two_sinks(folder: Path, db: Db) -> TwoSinks:
    folder.mkdir(exist_ok=True)
    db.run(TABLE.format(offset='"offset"'))
    world = TwoSinks(folder, db)
    world.source.produce(4)
    assert world.run(1) is None
    world.source.produce(5)
    return world


@pytest.fixture
def world(db: Db, tmp_path: Path) -> TwoSinks:
    return two_sinks(tmp_path, db)


@pytest.mark.few(1)
def test_epochs_are_shown_in_both_and_a_rerun_changes_nothing(world: TwoSinks) -> None:
    for _ in range(2):
        assert world.run(2) is None
        world.require_all_shown(epochs=2)


@pytest.mark.long
def test_a_run_that_dies_at_any_phase_is_finished_or_done_again_by_the_next(tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    clean.mkdir()
    coordinator = two_sinks(clean, new_sqlite(clean)).coordinator()
    assert airflow_run(coordinator, Run("dag", "run 2")) is None
    phases = list(dict.fromkeys(phases_of(coordinator)))
    assert {"sql.locked", "sql.copied", "sql.commit.before", "sql.commit.after", "complete.put"} < set(phases)
    for phase in phases:
        folder = tmp_path / phase
        folder.mkdir()
        world = two_sinks(folder, new_sqlite(folder))
        with pytest.raises(Crash):
            world.run(2, {phase: crash})
        assert world.run(3) is None, phase
        world.source.produce(2)  # what is left of an epoch is swept with the next one
        assert world.run(4) is None, phase
        world.require_all_shown(epochs=3)


@pytest.mark.few(1)
def test_a_vote_of_the_database_against_the_epoch_keeps_it_out_of_the_lake_too(world: TwoSinks) -> None:
    before = world.in_the_lake()
    world.db.run(
        "DROP TABLE orders",
        TABLE.format(offset='"offset"').replace("payload text", "payload text CHECK (payload = '')"),
    )
    error = world.run(2)
    assert "payload" in str(error)
    assert (world.in_the_database(), world.in_the_lake()) == ([], before)


@pytest.mark.few(1)
def test_a_database_changed_after_the_decision_leaves_the_epoch_in_doubt_until_it_is_undone(world: TwoSinks) -> None:
    def rename() -> None:
        world.db.run("ALTER TABLE orders RENAME TO gone")

    error = world.run(2, {"decision.landed": rename})
    assert re.search(r"Table \S+ does not exist any more in", str(error))
    assert world.in_the_lake() == world.source.all_rows()
    assert re.search(r"Table \S+ does not exist any more in", str(world.run(3)))
    world.db.run("ALTER TABLE gone RENAME TO orders")
    assert world.run(4) is None
    world.require_all_shown(epochs=2)


def test_an_epoch_asks_postgresql_in_nine_sessions_and_at_most_75_statements(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, asked = two_sinks(tmp_path, new_postgres(postgres)), Counter[str]()

    def counted(name: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any) -> Any:
            asked[name] += 1
            return whole(*arguments)

        return count

    for name in ("begin", "execute", "change"):
        monkeypatch.setattr(PostgresSession, name, counted(name, getattr(PostgresSession, name)))
    assert world.run(2) is None
    assert asked["begin"] <= 9 and asked["execute"] + asked["change"] <= 75, asked
