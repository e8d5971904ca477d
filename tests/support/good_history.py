"""A good history of a world in memory, and ways to change single things about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from airflow_epochs.ledger.codec import decode, encode
from airflow_epochs.ledger.keys import attempt_key, complete_key
from airflow_epochs.model import (
    TransactionId,
)
from airflow_epochs.testing import (
    Act,
    Event,
    History,
    Origin,
    Repeat,
    Rest,
    VisibleRow,
)
from airflow_epochs.testing.checkers import INVARIANTS
from tests.support.recorded import Recorder
from tests.support.scenario import Scenario, run, staged

SINKS = ("orders", "audit")
EVERY = {invariant.key for invariant in INVARIANTS}
EPOCHS = 3


@cache
def good() -> History:
    """Three epochs in two sinks, the second after an aborted attempt; seen by a reader at every effect."""
    scenario = Scenario(SINKS)
    recorder = Recorder(scenario.world)
    with recorder.watching():
        scenario.airflow_run(run(1))
        scenario.produce(4)
        coordinator = scenario.coordinator()
        staged(scenario, coordinator, 2)
        coordinator.abort(run(2), "a task failed")
        scenario.airflow_run(run(3))
        scenario.produce(2)
        scenario.airflow_run(run(4))
    key = attempt_key(1, 1, "decision")
    txn = shown(recorder.history(), "orders")[0]
    return recorder.history(
        rest=Rest(recoveries=1),
        repeats=[Repeat(what="run 1", before={"orders": 3}, after={"orders": 3})],
        zombies=[Repeat(what="vote of run 2", before={"orders": 3}, after={"orders": 3})],
        trace=[
            Event("vote", Act.LOST, key),
            Event("vote", Act.LOOKED, key),
            Event("vote", Act.DECIDED, key, txn),
            Event("commit", Act.COMMITTED, "orders", txn),
            Event("complete", Act.LOOKED, complete_key(1)),
            Event("complete", Act.DISCARDED, "a place", txn),
        ],
    )


def shown(history: History, sink: str) -> list[str]:
    assert history.sinks
    return [str(commit) for commit in history.sinks[sink].commits or ()]


def rows(history: History, sink: str) -> list[VisibleRow]:
    assert history.sinks
    return list(history.sinks[sink].rows or ())


def with_sink(history: History, sink: str, **changes: Any) -> History:
    assert history.sinks
    return replace(history, sinks={**history.sinks, sink: replace(history.sinks[sink], **changes)})


def with_rows(history: History, sink: str, change: Callable[[list[VisibleRow]], list[VisibleRow]]) -> History:
    return with_sink(history, sink, rows=change(rows(history, sink)))


def with_record(history: History, key: str, kind: type[Any], **changes: Any) -> History:
    """One ledger record changed, at the end only: copies taken before are as they were."""
    assert history.ledger is not None
    record = replace(decode(history.ledger[key], kind), **changes)
    return replace(history, ledger={**history.ledger, key: encode(record)}, copies=(), observations=())


def without_record(history: History, key: str) -> History:
    assert history.ledger is not None
    return replace(history, ledger={k: v for k, v in history.ledger.items() if k != key}, copies=(), observations=())


def in_epoch(history: History, sink: str, epoch: int) -> set[Origin]:
    return history.epochs.split({row.origin for row in rows(history, sink)})[epoch]


def without_epoch(history: History, sink: str, epoch: int) -> History:
    gone = in_epoch(history, sink, epoch)
    return with_rows(history, sink, lambda all_rows: [row for row in all_rows if row.origin not in gone])


def aborted_id(history: History) -> str:
    return history.facts.opens[2, 1].txn_id


def committed(history: History, epoch: int) -> TransactionId:
    return history.facts.complete[epoch].txn_id
