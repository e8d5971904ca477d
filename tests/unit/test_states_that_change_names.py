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
from airflow_epochs.coordinator import opening, state_tables
from airflow_epochs.coordinator.admin import admin
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.orders import orders
from airflow_epochs.coordinator.orders.outlook import outlook
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import DecisionKind, JsonDict, OpenRecord, PipelineRecord, SinkPlan, StatePin, adopted_in
from airflow_epochs.testing import MemorySink, MemorySource, memory_coordinator, memory_ledger
from tests.support.environment import Environment
from tests.support.records import complete, decision, open_record, rebuilt_to, receipt, txn
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
    return ledger_with(made("open"))


def opened_with(*states: StateTable, epoch: int = 1) -> OpenRecord:
    sinks = {sink.name: SinkPlan(spec=sink.spec(), previous=None) for sink in (DeltaSink("a", "/a"), *states)}
    return replace(open_record(epoch), sinks=sinks, state={state.name: StatePin(version=None) for state in states})


def ledger_with(*states: StateTable) -> Ledger:
    """Epoch 1 is complete; its pipeline had these states."""
    ledger = memory_ledger("p")
    ledger.put(opened_with(*states))
    ledger.put(replace(complete(), markers={name: txn() for name in ("a", *(state.name for state in states))}))
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
    assert "No complete epoch of pipeline p has a sink renamed." in screen and "begins with epoch 2: empty" in screen
    assert pinned(ledger, made("renamed")) == ["renamed"]
    assert adopted(ledger, "renamed") is None, "it stands already"


def test_a_state_is_not_taken_with_an_older_epoch_in_another_table(ledger: Ledger, made: Made) -> None:
    """Nobody looks at that table. Later results would lack the rows of the epochs between."""
    ledger.put(opened_with(made("open"), epoch=2))
    ledger.put(replace(complete(2), markers=dict.fromkeys(("a", "open"), txn(2))))
    at = orders.standing(ledger, "p")
    with pytest.raises(Refused, match="The state shows epoch 1, and the ledger expects epoch 2") as refused:
        orders.adopt(ledger, at, "open", Environment(), shows=1)
    assert refused.value.code is codes.SINK_NOT_ADOPTED and "--new-table" in refused.value.remedy
    other = orders.adopt(ledger, at, "a", Environment(), shows=1)
    assert other and str(other.shown) == txn(1) and other.lacks == (2, 2)


def test_a_state_that_takes_another_ones_place_begins_with_the_rows_that_initial_names(
    ledger: Ledger, made: Made, tmp_path: Any
) -> None:
    write_deltalake(str(tmp_path / "rows"), pa.table({"page": ["a"]}))
    assert pinned(ledger, made("renamed", initial=str(tmp_path / "rows"))) == ["renamed"]


def test_an_aborted_attempt_that_had_the_new_name_already_leaves_the_command_a_way_on(
    ledger: Ledger, made: Made
) -> None:
    ledger.put(opened_with(made("renamed", initial="/rows"), epoch=2))
    ledger.put(decision(DecisionKind.GLOBAL_ABORT, 2))
    with pytest.raises(Refused, match="EPOCHS-STATE-REPLACED"):
        pinned(ledger, made("renamed"))
    assert adopted(ledger, "renamed")
    assert pinned(ledger, made("renamed")) == ["renamed"]


def test_the_initial_with_which_the_old_state_began_does_not_say_that_the_new_one_may_begin(
    made: Made, tmp_path: Any
) -> None:
    write_deltalake(str(tmp_path / "rows"), pa.table({"page": ["a"]}))
    ledger = ledger_with(made("open", initial=f"{tmp_path}/rows"))
    with pytest.raises(Refused, match="`initial` of 'renamed' is still the one of an old state") as refused:
        pinned(ledger, made("renamed", initial=f"file://{tmp_path}/rows/"))
    assert "is to begin empty, or with what its `initial` names now" in refused.value.remedy
    write_deltalake(str(tmp_path / "kept"), pa.table({"page": ["a"]}))
    assert pinned(ledger, made("renamed", initial=f"{tmp_path}/kept")) == ["renamed"]


def test_of_several_states_that_leave_and_begin_the_error_names_all_and_guesses_no_pair(made: Made) -> None:
    ledger = ledger_with(made("orders"), made("payments"))
    with pytest.raises(Refused) as refused:
        pinned(ledger, made("payments_2"), made("orders_2"))
    assert "The states 'payments_2', 'orders_2' are new." in refused.value.what
    assert "no longer has 'orders', 'payments', states of epoch 1" in refused.value.what
    assert "its old name (one of 'orders', 'payments')" in refused.value.remedy
    for name in ("orders_2", "payments_2"):
        assert f"`airflow epochs adopt-sink p {name} --new-table --why …`" in refused.value.remedy
        adopted(ledger, name)
    assert pinned(ledger, made("payments_2"), made("orders_2")) == ["orders_2", "payments_2"]


def test_the_receipts_tell_of_a_state_where_the_open_record_is_gone_as_after_a_rebuild(made: Made) -> None:
    rebuilt = memory_ledger("p")
    receipts = {"open": replace(receipt(), sink="open", detail={"state": {"keys": ["page"]}})}
    newest = replace(complete(), markers={"a": txn(), "open": txn()}, receipts=receipts)
    rebuilt.put(PipelineRecord(pipeline="p", ledger_id="l", dag_id="dag", created_at="now", writer="w"))
    rebuilt.put(newest)
    rebuilt.put(replace(rebuilt_to(newest), sinks={"a": DeltaSink("a", "/a").spec()}))
    with pytest.raises(Refused, match="EPOCHS-STATE-REPLACED"):
        pinned(rebuilt, made("renamed"))
    assert adopted(rebuilt, "renamed")
    assert pinned(rebuilt, made("renamed")) == ["renamed"]


def test_the_receipts_tell_of_a_state_where_the_open_record_is_that_of_a_command_and_the_epoch_was_rebuilt(
    ledger: Ledger, made: Made
) -> None:
    newest, command = ledger.complete_record(1), ledger.open_record(1, 1)
    assert newest and command
    rebuilt = memory_ledger("p")
    rebuilt.put(replace(command, txn_id=txn(digit="e"), state={}))
    told = {"open": replace(receipt(), sink="open", detail={"state": {"keys": ["page"]}})}
    assert state_tables.of_epoch(rebuilt, replace(newest, receipts=told)) == {"open"}


def test_a_users_own_sink_whose_receipt_tells_of_some_state_is_no_state(ledger: Ledger, made: Made) -> None:
    opened = ledger.open_record(1, 1)
    assert opened
    stateless = memory_ledger("p")
    stateless.put(replace(opened, state={}))
    own = {"own": replace(receipt(), sink="own", detail={"state": "warm"})}
    stateless.put(replace(complete(), markers={"a": txn(), "own": txn()}, receipts=own))
    assert pinned(stateless, made("first")) == ["first"], "no state has left the DAG"


def test_a_plain_sink_that_is_typed_as_a_new_state_lacks_nothing_and_is_still_backfilled(
    ledger: Ledger, made: Made
) -> None:
    assert "For a sink of another kind, the command changes nothing." in (adopted(ledger, "fresh") or "")
    order, before = ledger.view(2).open, ledger.complete_record(1)
    assert order and order.command and before and "fresh" in order.adopted
    assert order.command.lacks == {}, "it never promised a row"
    plain, state = opened_with(epoch=2), opened_with(made("fresh"), epoch=2)
    assert adopted_in(replace(plain, adopted=order.adopted), before, ("a", "fresh")) == {}
    assert adopted_in(replace(state, adopted=order.adopted), before, ("a", "fresh")) == {"fresh": 2}
    assert opening.known(before, order.adopted) == {"a", "open"}
    waived = replace(before, waived=("late",))
    assert "late" in opening.known(waived, {"late": None}), "it was a sink of epoch 1"


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
