"""VACUUM, OPTIMIZE and appends of others while an epoch is under way (F19), by deltalake."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs.errors import Refused
from airflow_epochs.model import DecisionKind
from orders_demo.duck import duck
from tests.support.cells import fired
from tests.support.faults_history import finished
from tests.support.faults_process import fail
from tests.support.faults_steps import STEPS
from tests.support.faults_world import DiskWorld, rows_in

Interference = Callable[[str], None]
FOREIGN = "somebody else"


def append(table: str) -> None:
    row = {"source": [FOREIGN], "partition": [0], "offset": [0], "payload": ["x"]}
    schema = pa.schema(
        [("source", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("payload", pa.string())]
    )
    write_deltalake(table, pa.table(row, schema=schema), mode="append")


def optimize(table: str) -> None:
    append(table)
    assert DeltaTable(table).optimize.compact()["numFilesRemoved"] >= 2


def vacuum_tombstones(table: str) -> None:
    """What VACUUM does with no retention: delete what the table once consisted of."""
    optimize(table)
    assert DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def checkpoint(table: str) -> None:
    append(table)
    DeltaTable(table).create_checkpoint()


def vacuum_everything(table: str) -> None:
    """Delete every file that no version refers to, staged ones included."""
    deleted = DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert any("epochs/" in path for path in deleted)


MOMENTS = ("stage.start", "stage.done", "decision.landed", "delta.commit.before#1", "delta.commit.after#1")


@pytest.mark.parametrize("interfere", [append, optimize, vacuum_tombstones, checkpoint])
@pytest.mark.parametrize("phase", MOMENTS)
def test_what_others_do_to_the_table_meanwhile_neither_loses_nor_doubles_a_row(
    world: DiskWorld, interfere: Interference, phase: str
) -> None:
    table = world.table("orders")
    assert world.run(2, world.coordinator({phase: lambda: interfere(str(table))})) is None
    left = world.left(2)
    assert len(rows_in(table, FOREIGN)) == 1
    fired("F19", STEPS[phase], finished(world, left))


@pytest.mark.parametrize("interfere", [append, optimize])
def test_others_between_a_commit_whose_answer_was_lost_and_the_look_at_it_change_nothing(
    world: DiskWorld, interfere: Interference
) -> None:
    table = world.table("orders")

    def lose_and_interfere() -> None:
        interfere(str(table))
        fail()

    assert world.run(2, world.coordinator({"delta.commit.after#1": lose_and_interfere})) is None
    left = world.left(2)
    fired("F19", 9, finished(world, left))


def test_staged_files_deleted_by_vacuum_before_the_vote_are_a_vote_abort(world: DiskWorld) -> None:
    table = str(world.table("orders"))
    error = world.run(2, world.coordinator({"stage.done": lambda: vacuum_everything(table)}))
    assert isinstance(error, Refused)
    left = world.left()
    decision = world.ledger.decision_record(2, 1)
    assert decision and decision.decision is DecisionKind.GLOBAL_ABORT
    assert world.run(2) is None
    fired("F19", STEPS["stage.done"], finished(world, left))


@pytest.mark.parametrize("phase", ["decision.landed", "delta.commit.before#1"])
def test_staged_files_deleted_by_vacuum_after_the_decision_are_staged_again(world: DiskWorld, phase: str) -> None:
    table = str(world.table("orders"))
    left = world.crash_at(phase)
    vacuum_everything(table)
    assert world.run(2) is None
    fired("F19", STEPS[phase], finished(world, left))


def test_another_reader_sees_the_same(world: DiskWorld) -> None:
    table = world.table("orders")
    assert world.run(2, world.coordinator({"decision.landed": lambda: optimize(str(table))})) is None
    with duck() as database:
        found = database.execute("SELECT source, count(*) FROM delta_scan(?) GROUP BY 1", [str(table)]).fetchall()
    assert dict(found) == {world.source.name: 9, FOREIGN: 1}
