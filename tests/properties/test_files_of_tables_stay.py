"""Backups, copies, restored ledgers and tables, removed, renamed and waived sinks, late tries, pruned epochs, VACUUM,
foreign writers, in any order, on real disks: no task of ours ever deletes a file that a version of a table refers to
which can still be read.

``EPOCHS_SEED=N`` replays a run, ``EPOCHS_HISTORIES=500`` makes a long one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import TypeVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from airflow_epochs.coordinator.admin import admin
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import EpochError
from airflow_epochs.ledger.queries import unfinished, waits_for
from airflow_epochs.model import Run, StageReport
from orders_demo.duck import duck
from tests.support.delta_history import named_by
from tests.support.faults_world import DiskWorld, airflow_run
from tests.support.quiet import nothing_logged

pytestmark = pytest.mark.proof

HISTORIES = int(os.environ.get("EPOCHS_HISTORIES", "15"))
SEED = int(os.environ.get("EPOCHS_SEED", SystemRandom().randrange(10**9)))

SINKS = ("orders", "audit")
RENAMED = "orders_2"
"""Another name for the sink of the table `orders`."""
PARTS = ("ledger", *SINKS)
HOMES_MAX = 3

T = TypeVar("T")

any_of = st.integers(0, 10**6)
"""Which one of a list that grows."""
parts = st.sets(st.sampled_from(PARTS), min_size=1)
sinks = st.sampled_from([SINKS, ("orders",), ("audit",), (RENAMED, "audit"), (RENAMED,)])


def of(things: list[T], number: int) -> T:
    return things[number % len(things)]


Foreign = Callable[[DeltaTable, int], object]


def vacuum(table: DeltaTable, number: int) -> None:
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=bool(number % 2))


def restore(table: DeltaTable, number: int) -> None:
    table.restore(number % (table.version() + 1))  # refused where a VACUUM has taken the version's files


def compact(table: DeltaTable, number: int) -> None:
    table.optimize.compact()


def write(table: DeltaTable, number: int) -> None:
    row = {"source": ["x"], "partition": [0], "offset": [0], "payload": ["x"]}
    schema = pa.schema(table.schema().to_arrow())
    write_deltalake(table, pa.table(row, schema), mode="overwrite" if number % 2 else "append")


def delete(table: DeltaTable, number: int) -> None:
    table.delete(f"offset = {number % 3}")


FOREIGN = (vacuum, restore, compact, write, delete)


class Histories(RuleBasedStateMachine):
    """Homes of one pipeline: the original, copies of it, and a second ledger on the same tables."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.homes: list[DiskWorld] = []
        self.backups: list[tuple[Path, str]] = []
        self.staged: list[tuple[DiskWorld, Coordinator, Run, StageReport]] = []
        self.runs = 0
        self.names = 0

    def teardown(self) -> None:
        try:
            self._require_readable()
        finally:
            shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        (self.folder / "original").mkdir()
        self.homes.append(DiskWorld(self.folder / "original", tables={RENAMED: "orders"}))
        self.run_whole(0)

    # -- what the pipeline does ------------------------------------------------------------------------------------

    @rule(home=any_of)
    def run_whole(self, home: int) -> None:
        run = self._next_run(home)
        with self._nothing_lost():
            error = airflow_run(of(self.homes, home).coordinator(), run)
        assert error is None or isinstance(error, EpochError), error

    @rule(home=any_of, moment=st.sampled_from(["staged", "voted", "committed"]), what=parts, copies=st.booleans())
    def run_while_it_is_copied(self, home: int, moment: str, what: set[str], copies: bool) -> None:
        """What a nightly backup meets: an epoch that is undecided, or in doubt."""
        world, task, run = of(self.homes, home), of(self.homes, home).coordinator(), self._next_run(home)

        def copy_if(now: str) -> None:
            if now == moment:
                self.copy_all(home, world.sinks) if copies and len(self.homes) < HOMES_MAX else self.back_up(home, what)

        def tasks() -> None:
            task.open(run)
            report = task.stage(run).stage
            copy_if("staged")
            task.vote(run, report)
            copy_if("voted")
            for sink in world.sinks:
                task.commit(run, sink)
            copy_if("committed")
            task.complete(run)

        self._tasks(tasks)

    @rule(home=any_of)
    def run_up_to_the_vote(self, home: int) -> None:
        world, task, run = of(self.homes, home), of(self.homes, home).coordinator(), self._next_run(home)

        def open_and_stage() -> None:
            task.open(run)
            if report := task.stage(run).stage:
                self.staged.append((world, task, run, report))

        self._tasks(open_and_stage)

    def _next_run(self, home: int) -> Run:
        of(self.homes, home).produce(2)
        self.runs += 1
        return of(self.homes, home).run_of(self.runs)

    @precondition(lambda self: self.staged)
    @rule(commits=st.integers(0, 2))
    def go_on_with_a_run(self, commits: int) -> None:
        world, task, run, report = self.staged.pop()
        self._tasks(lambda: task.vote(run, report))
        for sink in world.sinks[:commits]:
            self._tasks(partial(task.commit, run, sink))
        self._tasks(lambda: task.complete(run))

    @precondition(lambda self: self.staged)
    @rule(which=any_of)
    def fail_a_run(self, which: int) -> None:
        _, task, run, _ = of(self.staged, which)
        self._tasks(lambda: task.abort(run, "a task failed"))

    @precondition(lambda self: self.staged)
    @rule(which=any_of)
    def stage_again(self, which: int) -> None:
        """What a retry of the task does: the places of the try before are left behind."""
        number = which % len(self.staged)
        world, task, run, _ = self.staged[number]

        def again() -> None:
            if report := task.stage(run).stage:
                self.staged[number] = (world, task, run, report)

        self._tasks(again)

    @rule(home=any_of, runs=st.integers(1, 2))
    def stage_so_slowly_that_other_runs_are_faster(self, home: int, runs: int) -> None:
        """A try that writes on when its attempt is aborted, or its epoch complete, or even pruned."""
        world, run = of(self.homes, home), self._next_run(home)

        def others() -> None:
            for _ in range(runs):
                self.run_whole(home)
            lost.enter_context(self._nothing_lost())

        task = world.coordinator({f"staging.{world.sinks[-1]}": others})
        with ExitStack() as lost, suppress(EpochError):
            task.open(run)
            task.stage(run)

    @rule(home=any_of)
    def waive_what_is_waited_for(self, home: int) -> None:
        ledger = of(self.homes, home).ledger

        def waive() -> None:
            if view := unfinished(ledger):
                for sink in waits_for(view):
                    admin.waive(ledger, view.number, sink, by=Account(who="me", why="no backup"))

        self._tasks(waive)

    @rule(home=any_of, keep=st.sampled_from([1, 2, 1000]))
    def keep_other_epochs(self, home: int, keep: int) -> None:
        number = home % len(self.homes)
        self.homes[number] = replace(self.homes[number], keep_epochs=keep)

    @rule(home=any_of, sinks=sinks)
    def change_the_sinks(self, home: int, sinks: tuple[str, ...]) -> None:
        number = home % len(self.homes)
        self.homes[number] = replace(self.homes[number], sinks=sinks)

    # -- what befalls it ---------------------------------------------------------------------------------------------

    @rule(home=any_of, what=parts)
    def back_up(self, home: int, what: set[str]) -> None:
        for part in sorted(what):
            if (place := _place(of(self.homes, home), part)).exists():
                self.backups.append((Path(shutil.copytree(place, self._new_folder())), part))

    @precondition(lambda self: self.backups)
    @rule(home=any_of, which=any_of)
    def restore_the_newest_backups(self, home: int, which: int) -> None:
        """One of ledger and each table, up to a number of them."""
        for backup, part in self.backups[-1 - which % len(PARTS) :]:
            place = _place(of(self.homes, home), part)
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(backup, place)

    @precondition(lambda self: len(self.homes) < HOMES_MAX)
    @rule(home=any_of, sinks=sinks)
    def copy_all(self, home: int, sinks: tuple[str, ...]) -> None:
        original, folder = of(self.homes, home), self._new_folder()
        shutil.copytree(original.folder, folder)
        if original.ledger_folder:
            shutil.rmtree(folder / "ledger", ignore_errors=True)
            shutil.copytree(original.ledger_folder, folder / "ledger")
        self.homes.append(replace(original, folder=folder, ledger_folder=None, sinks=sinks))

    @precondition(lambda self: len(self.homes) < HOMES_MAX)
    @rule(home=any_of)
    def copy_the_ledger_alone(self, home: int) -> None:
        original, folder = of(self.homes, home), self._new_folder()
        shutil.copytree(original.ledger_root, folder)
        self.homes.append(replace(original, ledger_folder=folder))

    # -- what others do to its tables --------------------------------------------------------------------------------

    @rule(home=any_of, sink=st.sampled_from(SINKS), what=st.sampled_from(FOREIGN), number=any_of)
    def do_as_others(self, home: int, sink: str, what: Foreign, number: int) -> None:
        table = of(self.homes, home).table(sink)
        if DeltaTable.is_deltatable(str(table)):
            with suppress(DeltaError):  # a version whose log or files are gone cannot be restored
                what(DeltaTable(str(table)), number)

    # -- what must hold ----------------------------------------------------------------------------------------------

    def _tasks(self, work: Callable[[], object]) -> None:
        """Do a task's work, which may be refused; what is looked at is what became of the files."""
        with self._nothing_lost(), suppress(EpochError):
            work()

    @contextmanager
    def _nothing_lost(self) -> Iterator[None]:
        """Whatever a version of any table refers to, and is there, is there afterwards."""
        before = self._referenced()
        yield
        lost = {path for path in before if not path.exists()}
        assert not lost, f"files of tables were deleted: {sorted(map(str, lost))}"

    def _tables(self) -> set[Path]:
        return {world.table(sink) for world in self.homes for sink in SINKS if world.table(sink).exists()}

    def _referenced(self) -> set[Path]:
        return {path for table in self._tables() for path in named_by(table) if path.exists()}

    def _require_readable(self) -> None:
        """Two readers see every row that the log counts."""
        for table in filter(lambda table: DeltaTable.is_deltatable(str(table)), self._tables()):
            rows = DeltaTable(str(table)).to_pyarrow_table()
            with duck() as database:
                (count,) = database.execute("SELECT count(payload) FROM delta_scan(?)", [str(table)]).fetchone() or (0,)
            assert count == len(rows)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _new_folder(self) -> Path:
        self.names += 1
        return self.folder / f"copy-{self.names}"


def _place(world: DiskWorld, part: str) -> Path:
    return world.ledger_root if part == "ledger" else world.table(part)


@pytest.mark.few(1)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", [1, 2])
def test_no_history_of_copies_and_restores_makes_a_task_delete_what_a_table_refers_to(part: int) -> None:
    print(f"EPOCHS_SEED={SEED}")
    with nothing_logged():
        run_state_machine_as_test(
            seed(SEED + part)(Histories),
            settings=settings(
                max_examples=HISTORIES,
                stateful_step_count=14,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
