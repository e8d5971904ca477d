"""An epoch asks little of the ledger's store: no task reads a record twice, and what was absent is looked for again."""

from __future__ import annotations

import math
from pathlib import Path
from unittest.mock import patch

import pytest

from airflow_epochs.ledger import remembered
from airflow_epochs.ledger.keys import complete_key
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.overview import overview
from airflow_epochs.ledger.queries import newest_epochs
from airflow_epochs.ledger.remembered import Remembered
from airflow_epochs.ledger.signing import NO_KEYS, Keys
from airflow_epochs.model import DecisionKind, transaction
from airflow_epochs.model.transaction import _parsed
from airflow_epochs.protocol import State
from airflow_epochs.testing import DictStore, Fault, FaultyStore
from tests.support.ledger_calls import CountedEpochs, CountingStore, total
from tests.support.records import complete, decision, open_record, receipt, whole_epoch

SIGNED = pytest.mark.parametrize("keys", [NO_KEYS, Keys(("k" * 32,))], ids=["unsigned", "signed"])

A_THOUSAND_TIMES_AS_MANY = 2 * math.ceil(math.log2(1_000))
"""Calls to double as often as that takes, and to halve as often."""

PARSED_FIRST, PARSED_LATER = 23, 98
"""How many ids the records of an epoch have that its tasks read, each for itself. Later epochs also read those before.
"""


@SIGNED
def test_the_first_epoch_of_two_sinks_asks_the_store_at_most_60_times(tmp_path: Path, keys: Keys) -> None:
    tasks = CountedEpochs(tmp_path, keys, in_dag=frozenset({"orders"})).run()
    assert total(tasks) <= 60, {task: store.calls for task, store in tasks.items()}
    assert max(len(store.calls) for task, store in tasks.items() if task.startswith("commit")) <= 8


def test_only_the_first_epoch_looks_for_pipelines_that_left_the_dag_and_asks_once_where_there_is_none(
    tmp_path: Path,
) -> None:
    epochs = CountedEpochs(tmp_path, in_dag=frozenset({"orders"}))
    first, later = epochs.run(), epochs.run()
    listed = [[operation for operation, _ in tasks["open"].calls].count("folders") for tasks in (first, later)]
    assert listed == [1, 0]


@SIGNED
def test_later_epochs_ask_more_only_about_the_epochs_before_and_where_the_newest_one_is(
    tmp_path: Path, keys: Keys
) -> None:
    epochs = CountedEpochs(tmp_path, keys)
    counted = [epochs.run() for _ in range(5)]
    calls = 69 + bool(keys)  # one of them: is it paused? With keys: has the key changed?
    assert total(counted[1]) <= calls
    assert total(counted[4]) <= calls + 5
    assert all(len(counted[4][task].calls) == len(counted[1][task].calls) for task in counted[1] if task != "open")


@pytest.mark.proof
@SIGNED
def test_an_epoch_after_100_000_others_asks_the_store_no_more_than_one_after_100_but_for_finding_the_newest(
    keys: Keys,
) -> None:
    few, many = (CountedEpochs.of_a_ledger_with(epochs, keys) for epochs in (100, 100_000))
    after_few, after_many = few.run(), many.run()
    for task, store in after_many.items():
        more = A_THOUSAND_TIMES_AS_MANY if task == "open" else 0
        assert len(store.calls) <= len(after_few[task].calls) + more, (task, store.calls)
        assert len(store.listed) == len(after_few[task].listed), (task, store.listed)
    assert many.ledger(many.home).newest_complete() == 100_001


def test_the_newest_epochs_of_100_000_are_listed_without_a_look_at_the_others() -> None:
    asked = []
    for epochs in (100, 100_000):
        counted = CountedEpochs.of_a_ledger_with(epochs)
        store = CountingStore(counted.home)
        shown = [view.number for view in newest_epochs(counted.ledger(store), 1)]
        assert shown == [epochs] and not store.listed
        asked.append(len(store.calls))
    assert asked[1] - asked[0] <= A_THOUSAND_TIMES_AS_MANY


def test_the_tab_of_a_dag_asks_of_another_dags_pipeline_only_whose_it_is() -> None:
    epochs = CountedEpochs.of_a_ledger_with(1_000)
    stores = [CountingStore(epochs.home) for _ in range(3)]
    [own] = overview(["orders"], lambda _: epochs.ledger(stores[0]), "dag")
    assert own == overview(["orders"], lambda _: epochs.ledger(stores[1]))[0]
    assert overview(["orders"], lambda _: epochs.ledger(stores[2]), "another_dag") == []
    assert len(stores[2].calls) <= 4 < len(stores[1].calls) / 2


def test_the_tab_of_a_dag_reads_once_who_owns_its_own_pipeline() -> None:
    epochs = CountedEpochs.of_a_ledger_with(100)
    store = CountingStore(epochs.home)
    assert len(overview(["orders"], lambda _: epochs.ledger(store), "dag")) == 1
    asked = [key for _, key in store.calls if "takeovers/" in key or key.endswith("/pipeline.json")]
    assert sorted(asked) == ["orders/pipeline.json", "orders/takeovers/0000000001.json"]


@SIGNED
def test_no_task_reads_a_record_twice_nor_one_that_it_put(tmp_path: Path, keys: Keys) -> None:
    epochs = CountedEpochs(tmp_path, keys)
    for task, store in [*epochs.run().items(), *epochs.run().items()]:
        put = {key for operation, key in store.calls if operation == "put" and "/probe/" not in key}
        records = [key for key in store.found if "/probe/" not in key]
        assert len(records) == len(set(records)) and not put & set(records), task


def test_a_transaction_id_is_parsed_once_however_many_records_have_it(tmp_path: Path) -> None:
    _parsed.cache_clear()
    CountedEpochs(tmp_path).run()
    assert _parsed.cache_info().misses == 1


def test_an_epoch_of_two_sinks_parses_ids_only_where_records_enter(tmp_path: Path) -> None:
    epochs = CountedEpochs(tmp_path)
    for most in (PARSED_FIRST, PARSED_LATER, PARSED_LATER):
        with patch.object(transaction, "_parsed", wraps=_parsed) as counted:
            epochs.run()
        assert counted.call_count <= most


def test_what_another_task_puts_between_two_looks_is_seen() -> None:
    store = DictStore()
    here, there = Ledger(store, "p"), Ledger(store, "p")
    states = [here.view(1).state]
    for put in (
        lambda: there.put(open_record()),
        lambda: there.put(decision(DecisionKind.GLOBAL_COMMIT)),
        lambda: there.put(receipt()),
    ):
        put()
        states.append(here.view(1).state)
    assert states == [State.NEW, State.OPEN, State.IN_DOUBT, State.IN_DOUBT]
    assert here.view(1).receipts and here.newest_complete() == 0
    there.put(complete())
    assert here.view(1).complete and here.newest_complete() == 1


def test_a_new_task_reads_again_what_an_earlier_one_has_believed() -> None:
    store = DictStore()
    ledger = Ledger(store, "p")
    whole_epoch(ledger)
    key = f"p/{complete_key(1)}"
    ledger.put(complete())
    store.values[key] = b"forged"
    assert ledger.view(1).complete
    with pytest.raises(Exception, match="is damaged"):
        Ledger(store, "p").view(1)


def test_what_this_task_has_pruned_is_gone_for_it_too() -> None:
    ledger = Ledger(DictStore(), "p")
    whole_epoch(ledger)
    ledger.put(complete())
    assert ledger.open_record(1, 1)
    ledger.pruning.prune(1)
    assert ledger.open_record(1, 1) is None


@pytest.mark.parametrize("fault", Fault)
def test_nothing_is_known_of_a_put_that_failed(fault: Fault) -> None:
    store = FaultyStore(DictStore(), lambda operation, key: fault if operation == "put" else None)
    here = Remembered(store)
    with pytest.raises(OSError, match="reset by peer"):
        here.put_if_absent("key", b"mine")
    assert here.exists("key") == (fault is Fault.LOST_ACKNOWLEDGEMENT)
    assert here.get("key") == (b"mine" if fault is Fault.LOST_ACKNOWLEDGEMENT else None)
    assert [operation for operation, _ in store.calls] == ["put", "exists", "get"]


def test_the_oldest_of_what_was_read_is_forgotten_where_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "BYTES_MAX", 20)
    store = FaultyStore(DictStore())
    here = Remembered(store)
    for key in ("a", "b", "c"):
        here.put_if_absent(key, 8 * key.encode())
    store.calls.clear()
    assert [here.get(key) for key in ("c", "b", "a")] == [b"cccccccc", b"bbbbbbbb", b"aaaaaaaa"]
    assert store.calls == [("get", "a")]
