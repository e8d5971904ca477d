"""What happened to a ``DiskWorld``, told to the checkers: real records, real rows, real log entries."""

from __future__ import annotations

from typing import Any

from airflow_epochs.delta.table import App
from airflow_epochs.testing.checkers import check
from airflow_epochs.testing.history import History, Observation, Origin, Repeat, Rest, SinkState, VisibleRow
from tests.support.cells import Outcome
from tests.support.delta_history import commits_of, places_of, referenced_by
from tests.support.faults_disk import PARTITIONS, TOPIC
from tests.support.faults_world import DiskWorld, Left

LAST = 90
"""The run of the last epoch."""


def finished(world: DiskWorld, left: Left, **more: Any) -> Outcome:
    """Bring the world to rest with one more epoch, check every invariant; what came of what was left."""
    world.one_more_epoch(LAST)
    require_exactly_once(world, copies=[left.copy], **more)
    return world.fate_of(left.txn)


def require_exactly_once(world: DiskWorld, **more: Any) -> None:
    """All input is complete, every invariant that a look from outside can tell holds (I13 is about what went on)."""
    lengths = {p: sum(row[0] == p for row in world.source.all_rows()) for p in PARTITIONS}
    newest = world.ledger.complete_record(world.ledger.newest_complete())
    assert newest and {r.partition: r.end for r in newest.ranges[TOPIC]} == lengths, "input was left behind"
    repeat = repeated(world)
    unknown = {"I13"} if more.get("copies") or more.get("zombies") else {"I11", "I13"}
    check(history_of(world, repeats=[repeat], **more)).require(unknown=unknown)


def repeated(world: DiskWorld) -> Repeat:
    """The newest run, cleared although it is complete."""
    before = world.snapshot()
    newest = world.coordinator().newest_complete()
    world.run(int(newest.opened_by.run_id.removeprefix("run ")))
    return Repeat(what="the newest run was cleared", before=before, after=world.snapshot())


def history_of(world: DiskWorld, **more: Any) -> History:
    return History.of_ledger(
        world.ledger,
        sinks={sink: _state_of(world, sink) for sink in world.sinks},
        produced={Origin(TOPIC, p, offset): text for p, offset, text in world.source.all_rows()},
        rest=Rest(recoveries=1),
        places={place for sink in world.sinks for place in places_of(world.table(sink))},
        referenced={file for sink in world.sinks for file in referenced_by(world.table(sink))},
        **more,
    )


def observe(world: DiskWorld) -> Observation:
    """What a reader sees now: the ledger's watermark first, then the tables, then the ledger."""
    complete = world.ledger.newest_complete()
    sinks = {sink: _state_of(world, sink) for sink in world.sinks}
    return Observation(complete=complete, sinks=sinks, ledger=world.left().copy)


def _state_of(world: DiskWorld, sink: str) -> SinkState:
    rows = [VisibleRow(TOPIC, *row) for row in world.rows(sink)]
    return SinkState(rows=rows, commits=commits_of(world.table(sink), App.of(world.name, sink)))
