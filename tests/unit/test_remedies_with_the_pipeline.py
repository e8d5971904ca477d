"""The commands of a remedy name the pipeline, also where the source, Spark or a sink that fails does not know it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_epochs.coordinator import coordinator as steps
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.inspection import lag
from airflow_epochs.coordinator.reasons import reason_and_remedy
from airflow_epochs.errors import Corrupt, EpochError, Refused
from airflow_epochs.model import Vote, VoteKind
from airflow_epochs.testing import MemoryEnvironment, MemorySource, run_epoch
from tests.support.scenario import Scenario, run

GONE = "Restore the records. Or run `airflow epochs skip PIPELINE --topic orders --to-available --why …`."
FILLED = "`airflow epochs skip orders --topic orders --to-available --why …`"


def gone(*_: Any, **__: Any) -> Any:
    raise Corrupt("Records are gone.", remedy=GONE)


def stopped(scenario: Scenario, call: Callable[[Coordinator], object]) -> EpochError:
    with pytest.raises(EpochError) as failed:
        call(scenario.coordinator())
    return failed.value


@pytest.mark.parametrize(
    ("where", "name"),
    [(MemorySource, "plan"), (steps, "stage_attempt"), (steps, "votes_of"), (steps, "receipts_that_hold")],
    ids=["open", "stage", "vote", "complete"],
)
def test_an_error_of_each_step_names_the_pipeline_in_its_commands(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str
) -> None:
    monkeypatch.setattr(where, name, gone)
    failed = stopped(Scenario(), lambda coordinator: run_epoch(coordinator, run(1)))
    assert failed.pipeline == "orders"
    assert FILLED in str(failed) and "PIPELINE" not in str(failed)


def test_a_source_whose_records_are_gone_before_the_next_attempt_names_the_pipeline_in_its_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = Scenario()
    scenario.coordinator().open(run(1))
    scenario.coordinator().abort(run(1), "a task failed")
    monkeypatch.setattr(MemorySource, "check", gone)
    assert FILLED in str(stopped(scenario, lambda coordinator: coordinator.open(run(2))))
    assert FILLED in str(stopped(scenario, lambda coordinator: coordinator.stage(run(1))))


def test_a_look_at_the_lag_names_the_pipeline_in_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    class Source:
        unread = staticmethod(gone)

    scenario = Scenario()
    run_epoch(scenario.coordinator(), run(1))
    monkeypatch.setattr(lag, "source_in", lambda spec: Source())
    with pytest.raises(Corrupt) as failed:
        lag.lag_of(scenario.ledger, MemoryEnvironment())
    assert FILLED in str(failed.value)


def test_each_sink_that_voted_against_an_epoch_is_named_in_the_commands_of_its_remedy() -> None:
    no = Refused("The table is empty.", remedy="Type `airflow epochs adopt-sink PIPELINE SINK --why …`.")
    against = Vote(vote=VoteKind.VOTE_ABORT, reason=no.reason)
    scenario = Scenario(("lake", "audit"))
    scenario.coordinator().open(run(1))
    scenario.coordinator().abort(run(1), "x")
    decision = scenario.ledger.view(1).decision
    assert decision
    _, remedy = reason_and_remedy(replace(decision, votes={"lake": against, "audit": against}))
    assert "`airflow epochs adopt-sink PIPELINE lake --why …`" in remedy
    assert "`airflow epochs adopt-sink PIPELINE audit --why …`" in remedy
