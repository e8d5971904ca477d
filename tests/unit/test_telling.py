"""The one line that a task logs of its work."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_epochs.coordinator.admin import admin
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.model import Checkpoint
from airflow_epochs.operators.telling import CHATTER, in_brief, quiet_clients, told
from airflow_epochs.operators.xcom import from_xcom, to_xcom
from airflow_epochs.testing import MemoryWorld, memory_coordinator, memory_pipeline
from tests.support.scenario import run


@pytest.fixture(scope="module")
def steps() -> dict[str, Checkpoint]:
    """Step -> its checkpoint, of an epoch with 1,200 records."""
    world = MemoryWorld()
    world.produce("orders", 0, list(range(1_200)))
    task, now = memory_coordinator(world, memory_pipeline(world, ("users", "audit"))), run(1)
    opened, staged = task.checkpoint(task.open_epoch(now)), task.stage(now)
    voted = task.vote(now, staged.stage)
    committed = {f"commit.{sink}": task.commit(now, sink) for sink in ("users", "audit")}
    return {"open": opened, "stage": staged, "vote": voted, **committed, "complete": task.complete(now)}


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ("open", "epoch 1: 1,200 offsets of 1 partition, attempt 1, opened in 1.3 s"),
        ("stage", "epoch 1: rows for audit, users staged in 1.3 s"),
        ("vote", "epoch 1: GLOBAL_COMMIT: 1,200 rows for audit, 1,200 rows for users, decided in 1.3 s"),
        ("commit.users", "epoch 1: 1,200 rows for users as version 0 shown in 1.3 s"),
        ("complete", "epoch 1: complete, with 1,200 rows for audit, 1,200 rows for users, in 1.3 s"),
    ],
)
def test_a_step_says_what_it_did_in_one_line(steps: dict[str, Checkpoint], step: str, line: str) -> None:
    assert told(step, steps[step], 1.26) == line


def test_rows_that_spark_has_counted_are_told_when_they_are_staged(steps: dict[str, Checkpoint]) -> None:
    report = steps["stage"].stage
    assert report
    counted = {sink: replace(claim, content={"rows": 630}) for sink, claim in report.claims.items()}
    staged = replace(steps["stage"], stage=replace(report, claims=counted))
    assert "630 rows for audit, 630 rows for users staged" in told("stage", staged, 1.0)


def test_an_epoch_that_was_complete_before_is_told_so_by_each_step(steps: dict[str, Checkpoint]) -> None:
    for step in ("open", "stage", "vote"):
        assert told(step, steps["complete"], 0.0).startswith("epoch 1: complete, with 1,200 rows for")


def test_open_says_of_an_epoch_that_is_complete_that_the_run_takes_no_new_data(steps: dict[str, Checkpoint]) -> None:
    assert told("open", steps["complete"], 0.2).endswith("users; so this run takes no new data, in 0.2 s")


def test_a_run_is_told_in_brief_by_its_rows_and_where_each_sink_stands(steps: dict[str, Checkpoint]) -> None:
    done = steps["complete"]
    assert in_brief(done) == "epoch 1: 2,400 rows, audit@0, users@0"
    audit, users = done.receipts["audit"], done.receipts["users"]
    sent = replace(audit, version=None, detail={"offsets": {"0": [0, 4], "1": [0, 2], "2": [5, 5]}})
    copied = replace(users, version=None)
    assert in_brief(replace(done, receipts={"users": copied, "audit": sent})) == (
        "epoch 1: 2,400 rows, audit 3 partitions, users"
    )


def test_a_run_of_several_epochs_is_told_in_brief_without_the_rows_of_the_last(steps: dict[str, Checkpoint]) -> None:
    last = replace(steps["complete"], epoch=9)
    assert in_brief(last, 7) == "epochs 7 to 9: audit@0, users@0"
    assert in_brief(last, 9) == "epoch 9: 2,400 rows, audit@0, users@0"


@pytest.fixture(scope="module")
def waived() -> dict[str, Checkpoint]:
    """Step -> its checkpoint, of an epoch with 1,200 records whose sink `audit` was waived after the vote."""
    world = MemoryWorld()
    world.produce("orders", 0, list(range(1_200)))
    task, now = memory_coordinator(world, memory_pipeline(world, ("users", "audit"))), run(1)
    task.open(now)
    task.vote(now, task.stage(now).stage)
    users = task.commit(now, "users")
    admin.waive(task.task.ledger, 1, "audit", by=Account(who="ada", why="the table is gone"))
    audit = task.commit(now, "audit")
    return {"commit.users": users, "commit.audit": audit, "complete": task.complete(now), "again": task.complete(now)}


GONE = "sink audit was waived by ada (the table is gone), so it does not get its 1,200 rows, in 1.3 s"


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ("commit.users", "epoch 1: 1,200 rows for users as version 0 shown in 1.3 s"),
        ("commit.audit", f"epoch 1: {GONE}"),
        ("complete", f"epoch 1: complete, with 1,200 rows for users; {GONE}"),
        ("again", f"epoch 1: complete, with 1,200 rows for users; {GONE}"),
    ],
)
def test_a_step_says_of_a_waived_sink_who_waived_it_and_which_rows_it_does_not_get(
    waived: dict[str, Checkpoint], step: str, line: str
) -> None:
    assert told(step, waived[step], 1.26) == line
    assert told(step, from_xcom(to_xcom(waived[step])), 1.26) == line, "the next task reads the same"


def test_the_note_of_a_run_names_a_waived_sink(waived: dict[str, Checkpoint]) -> None:
    assert in_brief(waived["complete"]) == "epoch 1: 1,200 rows, users@0, audit waived"


def test_the_commit_of_a_sink_that_the_epoch_does_not_have_calls_no_epoch_complete() -> None:
    world = MemoryWorld()
    world.produce("orders", 0, ["a"])
    task, now = memory_coordinator(world, memory_pipeline(world, ("users",))), run(1)
    task.open(now)
    task.vote(now, task.stage(now).stage)
    line = told("commit.new", task.commit(now, "new"), 1.26)
    assert line == "epoch 1: in doubt, and nothing was left to do for `commit.new`, in 1.3 s"


@pytest.fixture
def clients() -> Iterator[list[logging.Logger]]:
    found = [logging.getLogger(name) for name in CHATTER]
    before = [client.level for client in found]
    for client in found:
        client.setLevel(logging.NOTSET)
    yield found
    for client, level in zip(found, before, strict=True):
        client.setLevel(level)


def test_clients_log_warnings_only_unless_somebody_wants_more(clients: list[logging.Logger]) -> None:
    clients[0].setLevel(logging.DEBUG)
    quiet_clients()
    assert [client.level for client in clients] == [logging.DEBUG, logging.WARNING]
