"""A new state where another one has left the DAG: it may be the same one under another name, and would begin empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_epochs import DeltaSink, StateTable, codes
from airflow_epochs.commands.orders import _adopted
from airflow_epochs.contracts import Move, Position
from airflow_epochs.coordinator import admin, orders, state_tables
from airflow_epochs.coordinator.admin import Account
from airflow_epochs.coordinator.outlook import outlook
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import JsonDict, SinkPlan, StatePin
from airflow_epochs.testing import MemorySink, MemorySource, memory_coordinator, memory_ledger
from tests.support.environment import Environment
from tests.support.records import complete, open_record, txn
from tests.support.scenario import BOTH, Scenario, abort, in_doubt, run

ME = Account(who="me", why="the test says so", host="here")
Made = Callable[..., StateTable]


@pytest.fixture
def made(tmp_path: Any) -> Made:
    """Makes a state whose table lies in a folder of the test."""

    def state(name: str, *, table: str = "", initial: str | None = None) -> StateTable:
        where = str(tmp_path / (table or name))
        return StateTable(name, where, schema="page string", keys=["page"], initial=initial)

    return state


@pytest.fixture
def ledger(made: Made) -> Ledger:
    """Epoch 1 is complete; its pipeline had the state ``open``."""
    ledger = memory_ledger("p")
    opened = open_record()
    sinks = {sink.name: SinkPlan(spec=sink.spec(), previous=None) for sink in (DeltaSink("a", "/a"), made("open"))}
    ledger.put(replace(opened, sinks=sinks, state={"open": StatePin(version=None)}))
    ledger.put(replace(complete(), markers={"a": txn(), "open": txn()}))
    return ledger


def pinned(ledger: Ledger, *states: StateTable) -> list[str]:
    """The states that the next epoch would read, as ``open`` looks at them."""
    task: Any = SimpleNamespace(pipeline=SimpleNamespace(name="p", sinks=states), env=Environment(), ledger=ledger)
    order = ledger.view(2).open
    return sorted(state_tables.pins(task, ledger.complete_record(1), order.adopted if order else {}))


def adopted(ledger: Ledger, name: str) -> str | None:
    """What `adopt-sink --new-table` asks, confirmed; None if there is nothing to do."""
    at = orders.standing(ledger, "p")
    adoption = orders.adopt(ledger, at, name, Environment(), new_table=True)
    if adoption is None:
        return None
    move = Move(position=Position(ranges={}, state={}))
    look = outlook(ledger, at, MemorySource(world="", topics=()), move, adoption=adoption)
    orders.put(ledger, at, "adopt-sink", ME, look.move, adoption=adoption)
    return "\n".join(_adopted(ledger, at, adoption, look))


@pytest.mark.parametrize("table", ["renamed", "open"], ids=["in a new table", "in the old table"])
def test_a_state_under_another_name_does_not_begin_empty_until_a_command_says_so(
    ledger: Ledger, made: Made, table: str
) -> None:
    write_deltalake(str(made("open").target), pa.table({"page": ["a"]}))
    renamed = made("renamed", table=table)
    with pytest.raises(Refused, match=r"The state 'renamed' is new.* The DAG no longer has 'open'") as refused:
        pinned(ledger, renamed)
    assert refused.value.code is codes.STATE_REPLACED
    assert "`airflow epochs adopt-sink p renamed --new-table --why …`" in refused.value.remedy
    screen = adopted(ledger, "renamed") or ""
    assert "never had a sink renamed" in screen and "begins with epoch 2: empty" in screen
    assert pinned(ledger, made("renamed")) == ["renamed"]
    assert adopted(ledger, "renamed") is None, "it stands already"


def test_a_state_that_takes_another_ones_place_begins_with_the_rows_that_initial_names(
    ledger: Ledger, made: Made, tmp_path: Any
) -> None:
    write_deltalake(str(tmp_path / "rows"), pa.table({"page": ["a"]}))
    assert pinned(ledger, made("renamed", initial=str(tmp_path / "rows"))) == ["renamed"]


def test_a_new_state_beside_the_others_or_where_none_was_begins_without_a_word(ledger: Ledger, made: Made) -> None:
    opened = ledger.open_record(1, 1)
    assert opened
    stateless = memory_ledger("p")
    stateless.put(replace(opened, state={}))
    stateless.put(replace(complete(), markers={"a": txn()}))
    assert pinned(stateless, made("first")) == ["first"]
    known: Any = SimpleNamespace(pipeline=SimpleNamespace(name="p", sinks=(made("open"), made("more"))), ledger=ledger)
    state_tables.require_whole(known, ledger.complete_record(1), {})


def test_a_name_that_a_pipeline_without_states_never_had_is_still_refused(ledger: Ledger) -> None:
    stateless, opened = memory_ledger("p"), ledger.open_record(1, 1)
    assert opened
    stateless.put(replace(opened, state={}))
    stateless.put(complete())
    with pytest.raises(Refused, match="The pipeline has no sink 'opne'"):
        adopted(stateless, "opne")


class UnusableState(MemorySink):
    """A state whose table has a feature that Spark cannot drop."""

    def pin(self, receipt: object, pipeline: str, env: object) -> StatePin:
        return StatePin(version=None)

    def plan_read(self, pin: StatePin, watermarks: object, env: object) -> JsonDict:
        return {}

    def require_ready(self, pipeline: str, previous: object, env: object) -> None:
        raise Refused("It has a feature.", code=codes.DELTA_NEEDS_SPARK)


@pytest.mark.parametrize("again", [False, True], ids=["a new epoch", "an aborted one"])
def test_that_a_state_lacks_rows_is_told_before_its_table_says_how_to_keep_them(again: bool) -> None:
    scenario = Scenario(BOTH)
    task = in_doubt(scenario)
    admin.waive(scenario.ledger, 1, "audit", by=ME)
    task.commit(run(1), "orders")
    task.complete(run(1))
    scenario.produce(2)
    if again:
        scenario.coordinator().open(run(2))
        abort(scenario.coordinator(), run(2))
    orders_sink, audit = scenario.pipeline.sinks
    state = UnusableState(name=audit.name, world=scenario.world.name)
    pipeline = replace(scenario.pipeline, sinks=(orders_sink, state))
    with pytest.raises(Refused, match="EPOCHS-STATE-SKIPPED"):
        memory_coordinator(scenario.world, pipeline).open(run(3))


def test_nobody_is_told_to_read_again_what_a_state_lacks_by_another_name_and_a_backfill(ledger: Ledger) -> None:
    screen = adopted(ledger, "open") or ""
    assert "Sink open of pipeline p shows no epoch, and the ledger expects epoch 1." in screen
    assert "EpochPipeline(…, backfill" not in screen and "Do not give the state another name" in screen
    assert "'A state that is lost'" in screen
    assert "EpochPipeline(…, backfill" in (adopted(ledger, "a") or "")
