"""The ledger: one record stands per key, whatever the store does; the newest epoch is found by probing."""

from __future__ import annotations

import errno
import math
import os
from functools import partial

import pytest

from airflow_epochs.errors import NotApplied, OutcomeUnknown, Refused
from airflow_epochs.ledger.codec import encode
from airflow_epochs.ledger.keys import key_of
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.records import PUT_TRIES
from airflow_epochs.model import (
    DecisionKind,
    Run,
    WaivedRecord,
)
from airflow_epochs.protocol import State
from airflow_epochs.testing import DictStore, Fault, FaultyStore, OverwritingStore
from tests.support.records import RUN, complete, decision, open_record, receipt, txn, whole_epoch


def with_epochs(count: int) -> FaultyStore:
    store = DictStore()
    for epoch in range(1, count + 1):
        store.values[f"p/{key_of(complete(epoch))}"] = encode(complete(epoch))
    return FaultyStore(store)


# -- the newest epoch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [*range(71), 10_000])
def test_the_newest_complete_epoch_is_found_with_a_logarithmic_number_of_calls(count: int) -> None:
    store = with_epochs(count)
    assert Ledger(store, "p").newest_complete() == count
    assert len(store.calls) <= 2 * math.log2(count + 1) + 3
    assert {operation for operation, _ in store.calls} == {"exists", "get"}
    assert [key for operation, key in store.calls if operation == "get"] == ["p/rebuilt/0000000001.json"]


@pytest.mark.parametrize("attempts", range(1, 9))
def test_a_view_shows_the_newest_attempt(attempts: int) -> None:
    ledger = Ledger(DictStore(), "p")
    for attempt in range(1, attempts + 1):
        if attempt > 1:
            ledger.put(decision(DecisionKind.GLOBAL_ABORT, attempt=attempt - 1))
        ledger.put(open_record(attempt=attempt))
    assert ledger.view(1).epoch.attempt == attempts
    assert ledger.view(1).state is State.OPEN


def test_a_view_shows_every_state_as_its_records_come() -> None:
    ledger = Ledger(DictStore(), "p")
    states = [ledger.view(1).state]
    for put in (
        partial(ledger.put, open_record()),
        partial(ledger.put, decision(DecisionKind.GLOBAL_ABORT)),
        partial(ledger.put, open_record(attempt=2)),
        partial(ledger.put, decision(DecisionKind.GLOBAL_COMMIT, attempt=2)),
        partial(ledger.put, receipt(attempt=2)),
        partial(ledger.put, complete()),
    ):
        put()
        states.append(ledger.view(1).state)
    doubt = [State.IN_DOUBT, State.IN_DOUBT]
    assert states == [State.NEW, State.OPEN, State.ABORTED, State.OPEN, *doubt, State.COMPLETE]


def test_a_waiver_acknowledges_in_place_of_a_receipt() -> None:
    ledger = Ledger(DictStore(), "p")
    ledger.put(open_record())
    ledger.put(decision(DecisionKind.GLOBAL_COMMIT))
    assert ledger.view(1).epoch.unacknowledged == {"a"}
    ledger.put(WaivedRecord(txn_id=txn(), sink="a", who="me", why="dropped", at="now"))
    assert ledger.view(1).epoch.unacknowledged == frozenset()


def test_a_view_of_a_complete_epoch_reads_the_completion_record_alone() -> None:
    store = with_epochs(1)
    Ledger(store, "p").view(1)
    assert [operation for operation, _ in store.calls] == ["get"]


# -- one record stands ------------------------------------------------------------------------------------------


def test_the_loser_of_a_put_gets_the_winners_record() -> None:
    ledger = Ledger(DictStore(), "p")
    commit = ledger.put(decision(DecisionKind.GLOBAL_COMMIT, writer="one"))
    assert ledger.put(decision(DecisionKind.GLOBAL_ABORT, writer="two")) == commit
    assert ledger.decision_record(1, 1) == commit


@pytest.mark.parametrize("faulty_calls", range(1, 2 * PUT_TRIES))
def test_a_put_whose_acknowledgement_was_lost_is_read_back_and_was_a_success(faulty_calls: int) -> None:
    """Put and read-back take turns in failing; the first answer that comes through settles it."""
    store = FaultyStore(DictStore())
    store.fault = lambda operation, key: Fault.LOST_ACKNOWLEDGEMENT if len(store.fired) < faulty_calls else None
    mine = decision(DecisionKind.GLOBAL_COMMIT)
    assert Ledger(store, "p").put(mine) == mine
    assert len(store.fired) == faulty_calls and len(store.calls) <= 2 * PUT_TRIES


def test_a_put_that_was_refused_once_is_sent_again() -> None:
    store = FaultyStore(DictStore())
    store.fault = lambda operation, key: Fault.REFUSED if operation == "put" and not store.fired else None
    mine = decision(DecisionKind.GLOBAL_COMMIT)
    assert Ledger(store, "p").put(mine) == mine
    assert [operation for operation, _ in store.calls] == ["put", "get", "put"]


def test_an_error_from_a_put_that_another_writer_won_returns_the_winners_record() -> None:
    inner = DictStore()
    theirs = Ledger(inner, "p").put(decision(DecisionKind.GLOBAL_ABORT, writer="other"))
    store = FaultyStore(inner, lambda operation, key: Fault.REFUSED if operation == "put" else None)
    assert Ledger(store, "p").put(decision(DecisionKind.GLOBAL_COMMIT)) == theirs


@pytest.mark.parametrize("fault", Fault)
def test_a_put_that_nobody_answers_is_an_unknown_outcome_after_a_bounded_number_of_tries(fault: Fault) -> None:
    store = FaultyStore(DictStore(), lambda operation, key: fault)
    with pytest.raises(OutcomeUnknown, match="did not confirm") as unknown:
        Ledger(store, "p").put(decision(DecisionKind.GLOBAL_COMMIT))
    assert len(store.calls) == 2 * PUT_TRIES
    assert unknown.value.pipeline == "p"
    assert "reset by peer" in str(unknown.value)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (
            errno.ENOSPC,
            r"The ledger's disk is full\. The provider cannot write p/epochs/.*decision.json: .*No space left",
        ),
        (errno.EDQUOT, r"The ledger's disk is full\. .*quota exceeded"),
        (errno.EROFS, r"The ledger's disk is read-only\. .*Read-only file system"),
    ],
    ids=["full", "quota", "read-only"],
)
def test_a_disk_that_takes_no_record_is_named_and_with_room_again_the_same_put_succeeds(number: int, told: str) -> None:
    class Disk(DictStore):
        full = True

        def put_if_absent(self, key: str, value: bytes) -> bool:
            if self.full:
                raise OSError(number, os.strerror(number))
            return super().put_if_absent(key, value)

    disk, mine = Disk(), decision(DecisionKind.GLOBAL_COMMIT)
    with pytest.raises(NotApplied, match=told) as full:
        Ledger(disk, "p").put(mine)
    assert "Free space on the ledger's disk" in full.value.remedy
    with pytest.raises(NotApplied, match=r"(?s)cannot write to the ledger.*Free space on the ledger's disk"):
        Ledger(disk, "p").register("dag", at="now", writer="w")
    disk.full = False
    assert Ledger(disk, "p").put(mine) == mine


@pytest.mark.parametrize("operation", ["get", "exists", "list"])
def test_a_ledger_that_cannot_be_read_says_so_and_what_to_do(operation: str) -> None:
    store = with_epochs(3)
    store.fault = lambda called, key: Fault.REFUSED if called == operation else None
    ledger = Ledger(store, "p")
    with pytest.raises(
        OutcomeUnknown, match=r"(?s)cannot read .* in the ledger.*reset by peer.*What to do: Check that"
    ):
        ledger.newest_complete()
        ledger.view(1)
        ledger.tries(1)


# -- the store is put to the test ---------------------------------------------------------------------------------


def test_a_store_that_overwrites_is_refused_before_anything_is_written() -> None:
    store = OverwritingStore()
    with pytest.raises(Refused, match="does not support put-if-absent"):
        Ledger(store, "p").register("dag", at="now", writer="w")
    assert store.values == {}


def test_a_store_without_conditional_put_is_refused() -> None:
    class Plain(DictStore):
        def put_if_absent(self, key: str, value: bytes) -> bool:
            raise NotImplementedError("mode=create")

    with pytest.raises(Refused, match="does not support put-if-absent"):
        Ledger(Plain(), "p").register("dag", at="now", writer="w")


def test_a_store_is_put_to_the_test_once_and_leaves_nothing() -> None:
    store = FaultyStore(DictStore())
    ledger = Ledger(store, "p")
    for _ in range(3):
        ledger.register("dag", at="now", writer="w")
    probes = [call for call in store.calls if "/probe/" in call[1]]
    assert [operation for operation, _ in probes] == ["put", "put", "get", "delete"]
    assert not any("/probe/" in key for key in store.list("p"))


def test_a_read_only_ledger_is_named_and_nothing_is_claimed() -> None:
    inner = DictStore()
    store = FaultyStore(inner, lambda operation, key: Fault.REFUSED if operation in ("put", "delete") else None)
    with pytest.raises(NotApplied, match="cannot write to the ledger"):
        Ledger(store, "p").register("dag", at="now", writer="w")
    assert inner.values == {}


def test_a_store_that_never_deletes_is_a_good_home() -> None:
    store = FaultyStore(DictStore(), lambda operation, key: Fault.REFUSED if operation == "delete" else None)
    assert Ledger(store, "p").register("dag", at="now", writer="w").dag_id == "dag"


# -- ownership --------------------------------------------------------------------------------------------------


def test_the_first_claim_draws_the_ledgers_identity_and_later_ones_find_it() -> None:
    store = DictStore()
    first = Ledger(store, "p").register("dag", at="now", writer="one")
    assert Ledger(store, "p").register("dag", at="later", writer="two") == first
    assert Ledger(store, "q").register("dag", at="now", writer="one").ledger_id != first.ledger_id


def test_another_dag_is_refused_with_the_command_that_hands_the_pipeline_over() -> None:
    ledger = Ledger(DictStore(), "p")
    ledger.register("dag", at="now", writer="w")
    with pytest.raises(
        Refused,
        match=r"(?s)belongs to DAG 'dag'\. DAG 'other' may not run it.*takeover p --dag-id other.*Then clear the",
    ):
        ledger.register("other", at="now", writer="w")


def test_a_takeover_changes_the_owner_and_can_be_taken_back() -> None:
    ledger = Ledger(DictStore(), "p")
    identity = ledger.register("dag", at="now", writer="w")
    for owner in ("other", "dag", "third"):
        ledger.take_over(owner, who="me", why="because", at="now", writer="w")
        assert ledger.owner(identity) == owner
        assert ledger.register(owner, at="now", writer="w") == identity
    with pytest.raises(Refused, match="belongs to DAG 'third'"):
        ledger.register("dag", at="now", writer="w")


def test_of_two_takeovers_at_once_one_is_told_that_it_lost() -> None:
    inner = DictStore()
    Ledger(inner, "p").register("dag", at="now", writer="w")

    def other_first(moment: str) -> None:
        if "takeovers" in moment and moment.startswith("before put"):
            inner.observer = lambda _: None
            Ledger(inner, "p").take_over("first", who="them", why="x", at="now", writer="w")

    inner.observer = other_first
    with pytest.raises(Refused, match="them handed the pipeline to DAG 'first' at the same moment"):
        Ledger(inner, "p").take_over("second", who="me", why="y", at="now", writer="w")


def test_the_first_epoch_that_a_run_opened_stays_its_own() -> None:
    ledger = Ledger(DictStore(), "p")
    assert ledger.epoch_of(RUN) is None
    ledger.put_run(RUN, 3)
    ledger.put_run(RUN, 4)
    assert ledger.epoch_of(RUN) == 3
    assert ledger.epoch_of(Run("dag", "run 2")) is None


# -- pruning ----------------------------------------------------------------------------------------------------


def test_pruning_leaves_the_completion_record_of_a_complete_epoch() -> None:
    store = DictStore()
    ledger = Ledger(store, "p")
    whole_epoch(ledger)
    ledger.put(complete())
    ledger.put(open_record(epoch=2))
    assert ledger.pruning.prune(1) == 4
    assert store.list("p/epochs") == [f"p/{key_of(complete())}", f"p/{key_of(open_record(epoch=2))}"]
    assert ledger.view(1).state is State.COMPLETE and ledger.newest_complete() == 1
    assert ledger.pruning.prune(1) == 0


def test_pruning_leaves_the_word_of_whoever_waived_a_sink() -> None:
    store = DictStore()
    ledger = Ledger(store, "p")
    whole_epoch(ledger)
    waived = WaivedRecord(txn_id=txn(), sink="a", who="me", why="dropped", at="now")
    ledger.put(waived)
    ledger.put(complete())
    ledger.pruning.prune(1)
    assert store.list("p/epochs") == [f"p/{key_of(waived)}", f"p/{key_of(complete())}"]


@pytest.mark.parametrize("number", [-3, 0, 1, 2])
def test_pruning_an_epoch_that_is_not_complete_deletes_nothing(number: int) -> None:
    store = DictStore()
    whole_epoch(Ledger(store, "p"))
    before = dict(store.values)
    assert Ledger(store, "p").pruning.prune(number) == 0
    assert store.values == before


def test_an_epoch_pruned_while_it_is_read_is_seen_as_complete() -> None:
    inner = DictStore()
    whole_epoch(Ledger(inner, "p"))

    class PrunedMeanwhile(FaultyStore):
        def get(self, key: str) -> bytes | None:
            if key.endswith(".open.json"):
                Ledger(inner, "p").put(complete())
                Ledger(inner, "p").pruning.prune(1)
            return super().get(key)

    assert Ledger(PrunedMeanwhile(inner), "p").view(1).state is State.COMPLETE
