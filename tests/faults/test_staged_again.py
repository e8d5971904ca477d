"""VACUUM takes what was decided but not committed (F19): staged again, killed and woken at every step of that."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_epochs.contracts import Environment, SinkAttempt
from airflow_epochs.model import StagedClaim, Vote
from airflow_epochs.sinks.delta.sink import DeltaSink
from tests.support.cells import fired
from tests.support.faults_history import finished
from tests.support.faults_process import TaskProcess, kill, stop
from tests.support.faults_successors import finished_after_a_kill, without_tries, woken_after_a_successor
from tests.support.faults_world import DiskWorld, phases_of

STEPS = (
    "restage.audit",
    "stage.start#1",
    "staging.audit",
    "staged.audit",
    "stage.done#1",
    "restaged.put#1",
    "restaged.landed#1",
    "delta.commit.before#1",
    "delta.commit.after#1",
    "committed.audit",
    "restage.orders",
    "restaged.put#2",
    "restaged.landed#2",
    "delta.commit.before#2",
    "delta.commit.after#2",
    "complete.put",
    "complete.landed",
)
"""Of a run that finds an epoch in doubt, and no staged file of it."""
KILLED = [(phase, False) for phase in STEPS] + [
    (phase, True) for phase in STEPS if "restaged" in phase or "delta" in phase
]


def vacuum(world: DiskWorld) -> None:
    """Every file goes that no table refers to now."""
    for sink in world.sinks:
        table = DeltaTable(str(world.table(sink)))
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


@pytest.fixture
def vacuumed(world: DiskWorld) -> DiskWorld:
    """The second epoch is decided, its run is dead, and its files are gone."""
    world.crash_at("decision.landed")
    before = staged_files(world)
    vacuum(world)
    assert before and not staged_files(world)
    return world


def staged_files(world: DiskWorld) -> list[Path]:
    """Of the second epoch."""
    return [path for sink in world.sinks for path in world.table(sink).glob("epochs/*/2-*/**/*.parquet")]


def test_the_steps_named_here_are_come_by_in_this_order(vacuumed: DiskWorld) -> None:
    coordinator = vacuumed.coordinator()
    assert vacuumed.run(3, coordinator) is None
    seen: list[str] = []
    for phase in phases_of(coordinator):
        seen.append(f"{phase}#{sum(name.partition('#')[0] == phase for name in seen) + 1}")
    steps = [phase if "#" in phase else f"{phase}#1" for phase in STEPS]
    assert [phase for phase in seen if phase in steps] == steps


def test_a_vote_is_told_whether_its_promise_was_made_already(
    vacuumed: DiskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, vote = [], DeltaSink.vote

    def asking(sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, env: Environment) -> Vote:
        asked.append((attempt.txn.epoch, attempt.promised))
        return vote(sink, attempt, claim, env)

    monkeypatch.setattr(DeltaSink, "vote", asking)
    assert vacuumed.run(3) is None
    vacuumed.produce(2)
    assert vacuumed.run(4) is None
    assert asked == [(2, True)] * 2 + [(3, False)] * 2


@pytest.mark.few(4)
@pytest.mark.parametrize(("phase", "again"), KILLED)
def test_staging_again_that_is_killed_at_any_step_is_finished_by_the_next_run(
    vacuumed: DiskWorld, phase: str, again: bool
) -> None:
    outcome = finished_after_a_kill(vacuumed, phase, (lambda: vacuum(vacuumed)) if again else None)
    fired("F1", 15, outcome)
    fired("F19", 8, outcome)


@pytest.mark.few(3)
@pytest.mark.parametrize("phase", STEPS)
def test_a_process_woken_in_the_midst_of_staging_again_changes_nothing(vacuumed: DiskWorld, phase: str) -> None:
    fired("F4", 15, woken_after_a_successor(vacuumed, phase, run=3, successor=4, look=without_tries))


def test_two_processes_that_stage_again_at_once_commit_one_place(vacuumed: DiskWorld) -> None:
    left = vacuumed.left()
    with TaskProcess(vacuumed, 3, {"restaged.put#1": stop}) as late:
        late.wait_stopped()
        with TaskProcess(vacuumed, 4, {"restaged.landed#1": kill}) as faster:
            faster.wait_killed()
        ended = late.wake()
    assert ended.error is None, ended
    (record,) = vacuumed.ledger.restaged(2, "audit")
    complete = vacuumed.ledger.complete_record(2)
    assert complete and complete.receipts["audit"].place == record.staged.place
    assert vacuumed.fate_of(left.txn) == "C"
    assert finished(vacuumed, left) == "C"
    fired("F13", 8, "C")
