"""What an operator may do to a pipeline, for a command line as for a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_epochs import DeltaSink
from airflow_epochs.coordinator.admin import actions, admin
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import EpochRow, newest_epochs, newest_opened, unfinished, waits_for
from airflow_epochs.ledger.signing import Keys
from airflow_epochs.protocol import State
from airflow_epochs.testing import DictStore
from tests.support.scenario import BOTH, Scenario, in_doubt, run

ME = admin.Account(who="me", why="the table was dropped", host="here")


@pytest.fixture
def scenario() -> Scenario:
    """One complete epoch, and one that is decided and waits for both sinks."""
    scenario = Scenario(BOTH)
    scenario.airflow_run(run(1))
    scenario.produce(2)
    in_doubt(scenario, 2)
    return scenario


@pytest.mark.parametrize("why", ["", " \t\n"])
def test_an_act_without_a_reason_is_refused(why: str) -> None:
    with pytest.raises(Refused, match=r"is empty. Nothing was changed"):
        admin.Account(who="me", why=why)


def test_a_pipeline_is_taken_from_the_dag_that_was_shown_and_from_no_other(scenario: Scenario) -> None:
    assert admin.owner_of(scenario.ledger, "orders") == "dag"
    admin.take_over(scenario.ledger, "orders", "new", owner="dag", by=ME)
    assert admin.owner_of(scenario.ledger, "orders") == "new"
    with pytest.raises(Refused, match="Somebody handed the pipeline to another DAG before"):
        admin.take_over(scenario.ledger, "orders", "third", owner="dag", by=ME)
    assert admin.owner_of(scenario.ledger, "orders") == "new"


def test_nothing_is_taken_over_in_a_ledger_that_does_not_have_the_pipeline() -> None:
    with pytest.raises(
        Refused, match=r"(?s)no pipeline with this name, so there is nothing to take over.*Where: pipeline p\n"
    ):
        admin.take_over(Ledger(DictStore(), "p"), "p", "new", owner="dag", by=ME)


def test_a_waiver_says_who_and_why_and_the_epoch_waits_for_the_other_sink_alone(scenario: Scenario) -> None:
    view = admin.with_promise(scenario.ledger, 2, "audit")
    assert admin.promised(scenario.ledger, view, "audit").rows == 2
    admin.waive(scenario.ledger, 2, "audit", by=ME)
    after = scenario.ledger.view(2)
    waived = after.waived["audit"]
    assert (waived.who, waived.why, waived.host) == ("me", "the table was dropped", "here")
    assert waits_for(after) == ("orders",)


@pytest.mark.parametrize(
    ("epoch", "sink", "told"),
    [
        (1, "audit", "(?s)The epoch is complete.*epoch 1, sink audit"),
        (3, "audit", "(?s)The pipeline has no epoch 3.*epoch 3, sink audit"),
        (2, "gone", "waits for: audit, orders"),
    ],
)
def test_what_is_not_waited_for_is_not_waived(scenario: Scenario, epoch: int, sink: str, told: str) -> None:
    before = dict(scenario.world.store.values)
    with pytest.raises(Refused, match=told):
        admin.waive(scenario.ledger, epoch, sink, by=ME)
    assert scenario.world.store.values == before


def test_a_ledger_is_signed_with_a_key_and_not_without_one(scenario: Scenario) -> None:
    with pytest.raises(Refused, match="has no password"):
        admin.sign(scenario.ledger, by=ME)
    record = admin.sign(Ledger(scenario.world.store, "orders", Keys(("a key of the owner",))), by=ME)
    assert (record.epoch, record.who, record.why) == (1, "me", "the table was dropped")


def test_the_newest_epochs_come_newest_first_each_in_a_row(scenario: Scenario) -> None:
    rows = [EpochRow.of(scenario.ledger, view) for view in newest_epochs(scenario.ledger, 20)]
    assert [(row.number, row.state, row.rows, row.waits_for) for row in rows] == [
        (2, State.IN_DOUBT, 0, ("audit", "orders")),
        (1, State.COMPLETE, 20, ()),
    ]
    assert rows[1].versions == {"audit": 0, "orders": 0} and rows[0].offsets == 2
    assert [view.number for view in newest_epochs(scenario.ledger, 1)] == [2]


@pytest.mark.parametrize(("limit", "before", "shown"), [(1, None, [2]), (2, None, [2, 1]), (1, 9, [2]), (1, 2, [1])])
def test_an_epoch_that_nobody_has_opened_is_not_counted_among_the_newest(
    scenario: Scenario, limit: int, before: int | None, shown: list[int]
) -> None:
    scenario.airflow_run(run(2))
    assert [view.number for view in newest_epochs(scenario.ledger, limit, before)] == shown


@pytest.mark.parametrize("finish", [lambda scenario: None, lambda scenario: scenario.airflow_run(run(2))])
def test_what_a_pipeline_reads_is_told_by_its_newest_open_record(
    scenario: Scenario, finish: Callable[[Scenario], object]
) -> None:
    finish(scenario)
    opened = newest_opened(scenario.ledger)
    assert opened and opened.txn_id.epoch == 2
    assert (unfinished(scenario.ledger) is None) == (scenario.ledger.newest_complete() == 2)
    assert newest_opened(Ledger(DictStore(), "p")) is None


@pytest.mark.parametrize(("options", "left"), [({"delete_when": "op = 'd'"}, True), ({}, False)])
def test_a_waiver_says_that_a_commit_may_have_left_notes_of_deletions(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], left: bool
) -> None:
    sink = DeltaSink("orders", "/lake/orders", mode="upsert", keys=["id"], sequence_by="v", **options)
    monkeypatch.setattr(actions, "built", lambda spec: sink)
    view = unfinished(scenario.ledger)
    assert view
    lines = actions.Waive("orders", view.number, "orders").told(scenario.ledger)
    assert any("noted beside /lake/orders already" in line for line in lines) is left
