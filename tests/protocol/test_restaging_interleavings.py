"""Files vanish while two processes commit: every schedule, everybody dead at every state, still exactly one epoch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.model import StageReport
from airflow_epochs.testing import MemoryWorld
from tests.protocol.test_interleavings import Model, committing, completing, opening, staging, voting

pytestmark = pytest.mark.proof


@pytest.fixture
def in_doubt(record_property: Callable[[str, object], None]) -> Model:
    """Decided, and nothing committed."""
    model = Model(record_property, "a")
    model.setup(opening(1), staging(1), voting(1))
    return model


def vacuuming(coordinator: Coordinator, report: StageReport | None) -> None:
    """VACUUM takes the place that the decision names, unless it is the table's by now."""
    decision = coordinator.task.ledger.decision_record(1, 1)
    staged = decision.votes["a"].staged if decision else None
    assert staged
    (sink,) = coordinator.task.pipeline.sinks
    with suppress(OSError):  # nobody waits for its answer
        MemoryWorld.named(sink.spec()["world"]).vacuum(staged.place)


@pytest.mark.long
def test_two_commits_of_one_run_after_files_have_vanished(in_doubt: Model) -> None:
    in_doubt.setup(vacuuming)
    seen = in_doubt.explore(*(in_doubt.actor(name, committing(1, "a")) for name in ("old", "new")))
    assert seen.worlds > 20 and seen.schedules > 10**6


def test_a_late_commit_and_a_vacuum_that_another_commit_follows(in_doubt: Model) -> None:
    late = in_doubt.actor("late", committing(1, "a"), completing(1))
    other = in_doubt.actor("new", vacuuming, committing(1, "a"), completing(1))
    seen = in_doubt.explore(late, other, lost_answers=0)
    assert seen.worlds > 20 and seen.schedules > 10**6


@pytest.mark.long
def test_a_late_commit_and_a_recovery_after_a_vacuum(in_doubt: Model) -> None:
    late = in_doubt.actor("late", committing(1, "a"))
    seen = in_doubt.explore(late, in_doubt.actor("new", vacuuming, opening(2)))
    assert seen.worlds > 20 and seen.schedules > 10**6
