"""Sinks get other names, tables and backfills, the database is restored, tasks crash, in any order: no row comes twice.

Whoever follows the errors gets a green run. ``EPOCHS_SEED=N`` replays a run, ``EPOCHS_HISTORIES=100`` makes a long one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random, SystemRandom

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Move, Position
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.orders import orders
from airflow_epochs.coordinator.runs import patience
from airflow_epochs.errors import EpochError
from airflow_epochs.testing import Crash
from tests.support.faults_world import crash
from tests.support.quiet import nothing_logged
from tests.support.sql_pipeline import COLUMNS, Related
from tests.support.sql_world import SqliteDb

pytestmark = pytest.mark.proof

HISTORIES = int(os.environ.get("EPOCHS_HISTORIES", "5"))
SEED = int(os.environ.get("EPOCHS_SEED", SystemRandom().randrange(10**9)))
STEPS = 8
REMEDIES_MAX = 8
NAMES, TABLES = ("a", "b", "c", "d"), ("t0", "t1", "t2")
PHASES = ("open.landed", "stage.done", "decision.landed", "complete.landed")

Row = tuple[int, int]


@dataclass
class History:
    """A pipeline whose DAG changes, and what its tables must show.

    ``expected``: table -> its rows, by the open records of the complete epochs. ``copy``: those of the newest backup.
    """

    folder: Path
    random: Random
    world: Related
    runs: int = 0
    counted: int = 0
    expected: dict[str, Counter[Row]] = field(default_factory=lambda: {table: Counter() for table in TABLES})
    copy: dict[str, Counter[Row]] | None = None
    steps: list[str] = field(default_factory=list)

    def step(self) -> None:
        self.random.choices((self.changed, self.backed_up, self.restored, self.crashed), (6, 1, 1, 2))[0]()
        self.world.source.produce(self.random.randint(1, 3))
        self.green()

    def changed(self) -> None:
        """Today's DAG has other sinks, on other tables."""
        tables = self.random.sample(TABLES, self.random.choice((1, 2, 2, 3)))
        names = self.random.sample(NAMES, len(tables))
        epochs = {name: self.random.randint(1, self.world.ledger.newest_complete() + 1) for name in names}
        backfill = {name: epoch for name, epoch in epochs.items() if self.random.random() < 0.8}
        self.world = replace(
            self.world, names=tuple(names), tables=dict(zip(names, tables, strict=True)), backfill=backfill
        )
        self.steps.append(f"{self.world.tables} backfill {backfill}")

    def backed_up(self) -> None:
        shutil.copy(self.folder / "db.sqlite", self.folder / "backup")
        self.copy = {table: rows.copy() for table, rows in self.expected.items()}
        self.steps.append("backup")

    def restored(self) -> None:
        if self.copy is not None:
            shutil.copy(self.folder / "backup", self.folder / "db.sqlite")
            self.expected = {table: rows.copy() for table, rows in self.copy.items()}
            self.steps.append("restore")

    def crashed(self) -> None:
        """A task ends without one more effect; then the DAG changes."""
        phase = self.random.choice(PHASES)
        self.world.source.produce(1)
        try:
            self.run(phase)
        except Crash:
            self.steps.append(f"crash at {phase}")
        self.changed()

    def run(self, phase: str = "") -> Exception | None:
        self.runs += 1
        error = self.world.run(self.runs, {phase: crash} if phase else None)
        self.steps.append(f"run {self.runs}: {str(error).partition(' ')[0]}")
        return error

    def green(self) -> None:
        """Runs, and what their errors say to do, until one is green."""
        for _ in range(REMEDIES_MAX):
            error = self.run()
            self.require_all_rows()
            if error is None:
                return
            assert isinstance(error, EpochError), error
            self.follow(error)
        raise AssertionError("the remedies lead to no green run")

    def follow(self, error: EpochError) -> None:
        """What the error says to do."""
        if error.code is codes.SINK_RENAMED and error.sink:
            self.require_rows_since(error.sink)
            named = re.search(r"Let `backfill` name epoch (\d+)", error.remedy)
            others = {name: epoch for name, epoch in self.world.backfill.items() if name != error.sink}
            first = {error.sink: int(named[1])} if named else {}
            self.world = replace(self.world, backfill={**others, **first})
        elif error.code is codes.TABLE_ELSEWHERE:
            self.changed()
        else:
            assert "adopt-sink" in error.remedy and error.sink, error
            self.adopt(error.sink)

    def adopt(self, sink: str) -> None:
        at, env = orders.standing(self.world.ledger, self.world.name), self.world.coordinator().task.env
        adoption, position = orders.adopt(self.world.ledger, at, sink, env), Position.after(at.order or at.before)
        assert adoption and adoption.lacks and position
        by = Account(who="me", why="a test")
        orders.put(self.world.ledger, at, "adopt-sink", by, Move(position=position), adoption=adoption)
        self.steps.append(f"adopt {sink}, which lacks {adoption.lacks}")

    # -- what must hold -------------------------------------------------------------------------------------------

    def require_all_rows(self) -> None:
        """Each table shows what the complete epochs were opened to write to it, and shows each row once."""
        for number in range(self.counted + 1, self.world.ledger.newest_complete() + 1):
            for table, rows in self._written_in(number):
                self.expected[table].update(rows)
            self.counted = number
        shown = {table: Counter((p, o) for p, o, _ in self.world.shown(table)[0]) for table in TABLES}
        assert shown == self.expected
        assert max((n for rows in shown.values() for n in rows.values()), default=1) == 1, "a row came twice"

    def _written_in(self, number: int) -> Iterator[tuple[str, list[Row]]]:
        complete = self.world.ledger.complete_record(number)
        opened = self.world.ledger.open_record(number, complete.txn_id.attempt) if complete else None
        assert opened
        for sink, plan in opened.sinks.items():
            ranges = (r for of in opened.ranges_of(sink).values() for r in of)
            yield plan.spec["table"], [(r.partition, offset) for r in ranges for offset in range(r.start, r.end)]

    def require_rows_since(self, sink: str) -> None:
        """A backfill is refused only if rows of its epochs are there; after a restore, or were there before it."""
        first = self.world.backfill[sink]
        rows = {row for number in range(first, self.counted + 1) for _, of in self._written_in(number) for row in of}
        assert self.copy is not None or rows & self.expected[self.world.tables[sink]].keys()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(patience, "_patience", lambda *asked: 0)
    with nothing_logged():
        yield


@pytest.mark.timeout(600)
def test_no_row_comes_twice_whatever_names_tables_and_backfills_the_sinks_get(tmp_path: Path) -> None:
    for seed in range(SEED, SEED + HISTORIES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        db = SqliteDb(folder / "db.sqlite")
        db.run(*(f"CREATE TABLE {table} ({COLUMNS})" for table in TABLES))
        history = History(folder, Random(seed), Related(folder, db, names=("a", "b"), tables={"a": "t0", "b": "t1"}))
        try:
            for _ in range(STEPS):
                history.step()
        except Exception as error:
            raise AssertionError("\n".join([f"EPOCHS_SEED={seed}", *history.steps])) from error
