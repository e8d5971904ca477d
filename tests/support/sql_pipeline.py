"""A pipeline of SQL sinks in one database, with the real coordinator and a ledger on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_epochs.contracts import Connection
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run, WaivedRecord
from airflow_epochs.sinks.sql.sink import SqlSink
from tests.support.environment import Action
from tests.support.faults_disk import FileSource, StartingSource
from tests.support.faults_world import airflow_run, on_disk
from tests.support.sql_world import Db

COLUMNS = 'source text, partition bigint, "offset" bigint, payload text'
PARENT = f'CREATE TABLE orders ({COLUMNS}, PRIMARY KEY (partition, "offset"))'
CHILD = f'CREATE TABLE lines ({COLUMNS}, FOREIGN KEY (partition, "offset") REFERENCES orders'
NAMES = ("orders", "lines")


@dataclass(frozen=True)
class Related:
    """A pipeline of sinks in one database, by default a parent and its child.

    ``connections``: of sinks that have a connection of their own, which is called as they are, what it says.
    """

    folder: Path
    db: Db
    names: tuple[str, ...] = NAMES
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = "orders"
    backfill: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    starting: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    connections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    in_dag: frozenset[str] | None = None
    keep_epochs: int = 1000

    @property
    def source(self) -> FileSource:
        return StartingSource(folder=str(self.folder / "input"), starting=self.starting)

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalStore(self.folder / "ledger"), self.name)

    def ledger_files(self) -> list[Path]:
        return sorted(path for path in (self.folder / "ledger").rglob("*") if path.is_file())

    @property
    def known(self) -> dict[str, Connection]:
        """All connections."""
        return {name: self.db.connection(conn_id=name, **said) for name, said in {"db": {}, **self.connections}.items()}

    def sink(self, name: str) -> SqlSink:
        staging = str(self.folder / "staging")
        conn_id = name if name in self.connections else "db"
        return SqlSink(name, conn_id, self.db.table(self.tables.get(name, name)), staging=staging, **self.options)

    def coordinator(self, at: Mapping[str, Action] | None = None) -> Coordinator:
        return Coordinator(
            TaskTry(
                pipeline=Pipeline(
                    name=self.name,
                    dag_id="dag",
                    source=self.source,
                    sinks=tuple(map(self.sink, self.names)),
                    transform=Transform(path="disk.py", function="keep_all"),
                    backfill=self.backfill,
                    in_dag=self.in_dag,
                    keep_epochs=self.keep_epochs,
                ),
                ledger=self.ledger,
                env=on_disk(at, self.known),
            )
        )

    def run(self, number: int, at: Mapping[str, Action] | None = None) -> Exception | None:
        return airflow_run(self.coordinator(at), Run("dag", f"run {number}"))

    def waive(self, sink: str, epoch: int = 1) -> None:
        txn_id = self.ledger.view(epoch).opened.txn_id
        self.ledger.put(WaivedRecord(txn_id=txn_id, sink=sink, who="me", why="dropped", at="now"))

    def shown(self, *tables: str) -> list[list[tuple[Any, ...]]]:
        select = 'SELECT partition, "offset", payload FROM {} ORDER BY 1, 2'
        return [self.db.run(select.format(table)) for table in tables or NAMES]

    def require_all_shown(self, *tables: str) -> None:
        assert self.shown(*tables) == [self.source.all_rows() for _ in tables or NAMES]


def related(folder: Path, db: Db, child: str = ")", **options: Any) -> Related:
    db.run(PARENT, CHILD + child)
    world = Related(folder, db, **options)
    world.source.produce(4)
    return world
