"""Names for complete epochs, made by an operator or by a run, and the way back to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_epochs.coordinator.admin import savepoints
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.signing import Keys
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import SavepointRecord, starting_at_ends
from airflow_epochs.testing import DictStore, MemoryWorld, memory_coordinator, memory_pipeline, run_epoch
from tests.support.remedies import ordered
from tests.support.scenario import Scenario, run

ME = Account(who="me", why="before the upgrade", host="here")


@pytest.fixture
def scenario() -> Scenario:
    """Three complete epochs, of which only the newest keeps all its records."""
    scenario = Scenario(keep_epochs=1)
    for number in (1, 2, 3):
        assert scenario.airflow_run(run(number)) is None
        scenario.produce(2)
    return scenario


def make(scenario: Scenario, name: str = "upgrade", epoch: int | None = None) -> SavepointRecord:
    return savepoints.make(scenario.ledger, "orders", name, epoch, ME)


def test_a_savepoint_keeps_position_receipts_and_pipeline_when_the_epoch_is_pruned(scenario: Scenario) -> None:
    made, newest = make(scenario), scenario.ledger.complete_record(3)
    for number in (4, 5):
        assert scenario.airflow_run(run(number)) is None
        scenario.produce(2)
    assert scenario.ledger.open_record(3, 1) is None
    assert make(scenario, epoch=3) == made, "a repeat, when a run is cleared much later"
    found = savepoints.find(scenario.ledger, "orders", "upgrade")
    assert (found, found.complete, found.epoch, found.who) == (made, newest, 3, "me")
    assert found.complete.receipts["orders"].version is not None
    assert found.sinks["orders"]["kind"] == "memory" and found.source["kind"] == "memory"


def test_a_savepoint_that_is_made_twice_is_the_same_and_another_epoch_cannot_have_its_name(scenario: Scenario) -> None:
    made = make(scenario)
    assert make(scenario) == made
    assert scenario.airflow_run(run(4)) is None
    with pytest.raises(Refused, match=r"EPOCHS-SAVEPOINT-NAME: The savepoint name 'upgrade' is taken: .* of epoch 3"):
        make(scenario)
    assert [each.name for each in scenario.ledger.savepoints()] == ["upgrade"]


@pytest.mark.parametrize(
    ("name", "epoch", "why"),
    [
        ("../x", 3, "EPOCHS-SAVEPOINT-NAME: The savepoint name '../x' is not valid"),
        ("upgrade", 9, "EPOCHS-EPOCH-UNKNOWN: The pipeline has no complete epoch 9"),
        ("upgrade", 1, "EPOCHS-SAVEPOINT-EPOCH-PRUNED: The records of epoch 1 were pruned"),
    ],
)
def test_a_savepoint_that_cannot_be_made_is_refused(scenario: Scenario, name: str, epoch: int, why: str) -> None:
    with pytest.raises(Refused, match=why):
        make(scenario, name, epoch)
    assert scenario.ledger.savepoints() == []


def test_a_savepoint_that_was_disposed_of_does_not_count_and_its_name_is_not_used_again(scenario: Scenario) -> None:
    make(scenario)
    savepoints.dispose(scenario.ledger, "orders", "upgrade", ME)
    with pytest.raises(Refused, match=r"no savepoint 'upgrade'\. Its savepoints: none"):
        savepoints.find(scenario.ledger, "orders", "upgrade")
    with pytest.raises(Refused, match="it was the name of a savepoint that was disposed of"):
        make(scenario)
    with pytest.raises(Refused, match="EPOCHS-SAVEPOINT-UNKNOWN"):
        savepoints.dispose(scenario.ledger, "orders", "upgrade", ME)


def test_a_savepoint_from_before_the_ledger_was_signed_counts_and_one_that_is_forged_does_not() -> None:
    scenario, store = Scenario(), DictStore()
    run_epoch(memory_coordinator(scenario.world, scenario.pipeline, store=store), run(1))
    unsigned = Ledger(store, "orders")
    made = savepoints.make(unsigned, "orders", "upgrade", None, ME)
    keys = Keys.parse("k" * 32)
    Ledger(store, "orders", keys).register("dag", at="now", writer="w")
    assert savepoints.find(Ledger(store, "orders", keys), "orders", "upgrade").epoch == 1
    text = store.values["orders/savepoints/upgrade.json"].replace(b'"upgrade"', b'"forged"')
    store.values["orders/savepoints/forged.json"] = text
    with pytest.raises(Corrupt):
        savepoints.find(Ledger(store, "orders", keys), "orders", "forged")
    assert made.epoch == 1


@pytest.mark.proof
def test_the_commands_make_list_describe_and_dispose_of_a_savepoint(tmp_path: Path) -> None:
    world = MemoryWorld()
    task = memory_coordinator(world, memory_pipeline(world), store=LocalStore(tmp_path))
    world.produce("orders", 0, ["row"])
    run_epoch(task, run(1))
    told = ordered(tmp_path, "epochs", "savepoint", "orders", "upgrade", "--why", "version 2 comes")
    assert "Savepoint upgrade is epoch 1 of pipeline orders." in told
    again = ordered(tmp_path, "epochs", "savepoint", "orders", "upgrade", "--why", "version 2 comes", "--yes")
    assert again == told, "as other commands that write, it takes --yes"
    listed = ordered(tmp_path, "epochs", "savepoints", "orders", "--output", "json")
    assert '"upgrade"' in listed and '"version 2 comes"' in listed
    described = json.loads(_json(ordered(tmp_path, "epochs", "describe-savepoint", "orders", "upgrade")))
    complete = Ledger(LocalStore(tmp_path), "orders").complete_record(1)
    assert complete and described["starting"] == starting_at_ends(complete.ranges)
    told = ordered(tmp_path, "epochs", "dispose-savepoint", "orders", "upgrade", "--why", "done")
    assert "It is epoch 1: version 2 comes" in told and "is disposed of" in told
    with pytest.raises(SystemExit, match="EPOCHS-SAVEPOINT-UNKNOWN"):
        ordered(tmp_path, "epochs", "describe-savepoint", "orders", "upgrade")


def _json(screen: str) -> str:
    """The object that ends what a screen shows."""
    return screen[screen.index("\n{") if "\n{" in screen else screen.index("{") :]
