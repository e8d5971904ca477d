"""Random histories of one Delta table: our epochs and compactions, VACUUM at 0 hours, and writers of other kinds.

Whatever happens in between, and whoever ends after he began, rows that nobody deleted are there, once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_epochs.errors import RowsGone
from airflow_epochs.model import TransactionId
from airflow_epochs.sinks.delta import compaction as delta_compaction
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.storage.local import LocalFiles
from tests.support.delta_world import attempt_of, ids_in, promised, rows, seen_by_duckdb, stage, transaction
from tests.support.environment import Environment

pytestmark = pytest.mark.proof

EXAMPLES = int(os.environ.get("EPOCHS_EXAMPLES", "20"))
PHASES = [Phase.generate, *([Phase.shrink] if os.environ.get("EPOCHS_SHRINK") == "1" else [])]
"""Looking for a smaller example that fails, too, may take minutes."""
TRIES_MAX = 5
Act = Callable[["Table"], None]


class Interrupted(LocalFiles):
    """A table's files; ``before`` and ``after`` happen once, around the first log entry that is written."""

    def __init__(self, root: Path, before: list[Callable[[], None]], after: list[Callable[[], None]]) -> None:
        super().__init__(root)
        self.before, self.after = before, after

    def write_new(self, path: str, value: bytes) -> bool:
        while self.before:
            self.before.pop()()
        written = super().write_new(path, value)
        while written and self.after:
            self.after.pop()()
        return written


@dataclass
class Table:
    """The real table, and ``ids``: the rows that it should have."""

    path: str
    ids: list[int] = field(default_factory=list)
    previous: TransactionId | None = None
    next_id: int = 0
    held: DeltaTable | None = None
    held_ids: list[int] = field(default_factory=list)
    known: set[str] = field(default_factory=set)

    def new_ids(self, count: int) -> list[int]:
        self.next_id += count
        return list(range(self.next_id - count, self.next_id))

    # -- ours -----------------------------------------------------------------------------------------------------

    def epoch(self, meanwhile: dict[str, Act]) -> None:
        """One epoch; whatever has become of its rows, the commit is called again as the coordinator calls it."""
        sink, ids = DeltaSink("bronze", self.path, partition_by=["p"]), self.new_ids(4)
        data = rows(*ids, p=["a", "b", "a", "b"])
        attempt = attempt_of(transaction(self.previous.epoch + 1 if self.previous else 1), self.previous)
        world = Environment()
        staged = promised(sink.vote(attempt, stage(sink, attempt, data, world), world))

        def landing() -> None:
            meanwhile.get("before", nothing)(self)
            self.known = known_to(self.path)

        def landed() -> None:
            world.at.clear()
            self.ids += ids
            delete_unknown(self.path, self.known) if "after" in meanwhile else None

        world.at = {"delta.commit.before": once(landing), "delta.commit.after": landed}
        for _ in range(TRIES_MAX):
            try:
                sink.commit(attempt, staged, world)
                break
            except RowsGone:
                staged = promised(sink.vote(attempt, stage(sink, attempt, data, Environment()), Environment()))
        else:
            raise AssertionError("the epoch came to no end")
        self.previous = attempt.txn

    def compact(self, meanwhile: dict[str, Act]) -> None:
        known = known_to(self.path)
        before = [lambda: meanwhile["before"](self)] if "before" in meanwhile else []
        after = [lambda: delete_unknown(self.path, known)] if "after" in meanwhile and not before else []
        delta_compaction.compact(DeltaTable(self.path), Interrupted(Path(self.path), before, after))

    # -- others ---------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Somebody begins: what he does later, he does to the table as it is now."""
        self.held, self.held_ids = DeltaTable(self.path), list(self.ids)

    def foreign(self, kind: str, *, late: bool) -> None:
        handle = self.held if late and self.held else DeltaTable(self.path)
        seen = self.held_ids if late and self.held else self.ids
        gone = {id_ for id_ in seen if kind == "overwrite" or id_ % 3 == 0}
        new = self.new_ids(1) if kind in ("append", "overwrite") else []
        try:
            FOREIGN[kind](handle, new)
        except CommitFailedError:
            return  # told, and nothing has changed
        except DeltaError:
            if handle is not self.held:
                raise
            return  # told as well: a VACUUM at 0 hours has taken files of the version that it was begun on
        self.ids = [id_ for id_ in self.ids if id_ not in gone or kind in ("append", "optimize")] + new
        self.held = None


FOREIGN: dict[str, Callable[[DeltaTable, list[int]], object]] = {
    "append": lambda table, ids: write_deltalake(table, rows(*ids, p=["a"]), mode="append"),
    "overwrite": lambda table, ids: write_deltalake(table, rows(*ids, p=["a"]), mode="overwrite"),
    "delete": lambda table, _: table.delete("id % 3 = 0"),
    "optimize": lambda table, _: table.optimize.compact(),
}


def nothing(table: Table) -> None:
    """Nobody comes in between."""


def once(action: Callable[[], None]) -> Callable[[], None]:
    left = [action]
    return lambda: left.pop()() if left else None


def known_to(path: str) -> set[str]:
    return set(DeltaTable(path).file_uris()) if Path(path, "_delta_log").exists() else set()


def delete_unknown(path: str, known: set[str]) -> None:
    """What Spark's VACUUM at 0 hours does at its end: what it does not know goes; there is no log entry of it."""
    live = {str(Path(uri)) for uri in known}
    for file in Path(path).rglob("*.parquet"):
        if str(file) not in live and "_delta_log" not in file.parts:
            file.unlink()


def vacuum_of_spark(table: Table) -> None:
    delete_unknown(table.path, known_to(table.path))


def vacuum_of_deltalake(table: Table) -> None:
    if known_to(table.path):
        handle = DeltaTable(table.path)
        handle.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


def foreign(kind: str, late: bool) -> Act:
    def act(table: Table) -> None:
        if known_to(table.path):
            table.foreign(kind, late=late)

    return act


FOREIGNERS = st.builds(foreign, st.sampled_from(sorted(FOREIGN)), st.booleans())
VACUUMS = st.sampled_from([vacuum_of_spark, vacuum_of_deltalake])
MEANWHILE: st.SearchStrategy[dict[str, Act]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"before": st.one_of(VACUUMS, FOREIGNERS)}),
    st.just({"after": nothing}),
)


def epoch(meanwhile: dict[str, Act]) -> Act:
    return lambda table: table.epoch(meanwhile)


def compact(meanwhile: dict[str, Act]) -> Act:
    return lambda table: table.compact(meanwhile) if known_to(table.path) else None


def overtaken(kind: str) -> Act:
    """Somebody begins, a compaction lands, and he ends."""

    def act(table: Table) -> None:
        table.hold()
        table.compact({})
        table.foreign(kind, late=True)

    return act


def hold(table: Table) -> None:
    if known_to(table.path):
        table.hold()


STEPS = st.one_of(
    st.builds(epoch, MEANWHILE), st.builds(epoch, MEANWHILE), st.builds(compact, MEANWHILE), FOREIGNERS, VACUUMS,
    st.just(hold), st.builds(overtaken, st.sampled_from(sorted(FOREIGN))),
)  # fmt: skip


@settings(max_examples=EXAMPLES, phases=PHASES, suppress_health_check=list(HealthCheck), print_blob=True)
@given(steps=st.lists(STEPS, min_size=4, max_size=12))
def test_rows_that_nobody_deleted_stay_readable_and_are_there_once(steps: list[Act]) -> None:
    with TemporaryDirectory() as folder, patch.object(delta_compaction, "FILES_MIN", 2):
        table = Table(f"{folder}/orders")
        table.epoch({})
        for step in steps:
            step(table)
            assert ids_in(table.path) == sorted(table.ids)
        assert seen_by_duckdb(table.path) == sorted(table.ids)
