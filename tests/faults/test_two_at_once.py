"""Two processes at the same step at the same moment (F13); two DAGs of one pipeline; two pipelines on one table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_epochs.errors import NotApplied, Refused
from tests.support.cells import fired
from tests.support.faults_history import finished, require_exactly_once
from tests.support.faults_process import Ended, TaskProcess, refuse, stop
from tests.support.faults_steps import STEPS
from tests.support.faults_world import DiskWorld

HARMLESS = {None, "Fenced", "NoNewData"}


def race(world: DiskWorld, runs: tuple[int, int], phases: tuple[str, str]) -> list[Ended]:
    """Bring two processes to a phase each, and let both go on at once."""
    first, second = ({phase: stop} for phase in phases)
    with TaskProcess(world, runs[0], first) as one:
        one.wait_stopped()
        with TaskProcess(world, runs[1], second) as other:
            other.wait_stopped()
            one.go_on()
            other.go_on()
            return [one.wait(), other.wait()]


COMMITTING = ("commit.orders", "delta.commit.before#1", "committed.orders", "complete.put")


@pytest.mark.few(2)
@pytest.mark.parametrize("phase", COMMITTING)
def test_two_tries_of_one_run_that_commit_the_same_epoch_at_once_show_it_once(world: DiskWorld, phase: str) -> None:
    ends = race(world, (2, 2), (phase, phase))
    assert {ended.error for ended in ends} <= HARMLESS, ends
    left = world.left(2)
    fired("F13", STEPS[phase], finished(world, left))


def test_two_runs_that_open_at_once_get_one_epoch_between_them(world: DiskWorld) -> None:
    ends = race(world, (2, 3), ("open.put", "open.put"))
    assert sorted(str(ended.error) for ended in ends) == ["Fenced", "None"], ends
    left = world.left(2)
    fired("F13", STEPS["open.put"], finished(world, left))


@pytest.mark.few(2)
@pytest.mark.parametrize("attempt", range(3))
def test_global_commit_and_global_abort_written_at_once_are_one_decision(world: DiskWorld, attempt: int) -> None:
    voter, successor = race(world, (2, 3), ("decision.put", "abort.put"))
    assert successor.error in HARMLESS, successor
    assert voter.error in HARMLESS | {"Refused"}, voter
    left = world.left(2)
    fired("F13", 7, finished(world, left))


def test_the_roll_forward_of_the_next_run_and_the_run_itself_commit_at_once(world: DiskWorld) -> None:
    ends = race(world, (2, 3), ("delta.commit.before#2", "delta.commit.before#1"))
    assert {ended.error for ended in ends} <= HARMLESS, ends
    left = world.left(2)
    fired("F13", 11, finished(world, left))


def test_another_dag_with_the_same_pipeline_name_is_refused_until_it_is_given_the_pipeline(world: DiskWorld) -> None:
    left = world.crash_at("decision.landed")
    other = replace(world, dag_id="other")
    before = world.snapshot()
    error = other.run(1)
    assert isinstance(error, Refused)
    assert "airflow epochs takeover orders --dag-id other" in error.remedy
    assert world.snapshot() == before
    world.ledger.take_over("other", who="me", why="renamed", at="now", writer="w")
    assert other.run(1) is None
    assert isinstance(world.run(5), Refused)
    fired("F13", 1, finished(other, left))


def test_two_pipelines_feed_one_table_at_once_each_exactly_once(tmp_path: Path) -> None:
    worlds = [DiskWorld(tmp_path, name=name) for name in ("one", "two")]
    for number in range(1, 4):
        for world in worlds:
            world.produce(4)
        processes = [TaskProcess(world, number, {"delta.commit.before#1": stop}) for world in worlds]
        for process in processes:
            process.wait_stopped()
        for process in processes:
            process.go_on()
        for process in processes:
            with process:
                assert process.wait().error is None
    for world in worlds:
        require_exactly_once(world)
    fired("F13", 8, "C")


def test_one_pipeline_that_fails_leaves_the_other_ones_rows_in_their_table_alone(tmp_path: Path) -> None:
    one, two = (DiskWorld(tmp_path, name=name) for name in ("one", "two"))
    one.produce(4)
    two.produce(4)
    one_left = one.crash_at("delta.commit.before#1", number=1)
    assert isinstance(two.run(1, two.coordinator({"stage.done": refuse})), NotApplied)
    two_left = two.left()
    assert one.run(2) is None
    assert two.run(2) is None
    finished(two, two_left)
    fired("F1", 8, finished(one, one_left))
