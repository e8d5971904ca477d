"""A reader's barrier: tables read at the versions of one complete epoch agree, whatever is committed meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import JsonDict, OffsetRange, Run, WaivedRecord
from airflow_epochs.read import CompleteEpoch, ReadableSink, complete_epoch
from airflow_epochs.testing import MemoryWorld, memory_coordinator, memory_pipeline, run_epoch
from orders_demo.duck import duck
from tests.support.faults_world import DiskWorld, start
from tests.support.records import complete, receipt, txn

Place = tuple[int, int]


def read(world: DiskWorld, number: int | None = None) -> CompleteEpoch:
    found = complete_epoch("orders", number, ledger_root=str(world.ledger_root))
    assert found
    return found


def seen_at(epoch: CompleteEpoch, sink: str) -> list[Place]:
    """(partition, offset) of all rows that DuckDB sees at the epoch's version."""
    query = 'SELECT "partition", "offset" FROM delta_scan(?, version => ?) ORDER BY ALL'
    with duck() as database:
        return database.execute(query, [epoch.sinks[sink].table, epoch.version(sink)]).fetchall()


def test_in_the_middle_of_a_commit_the_tables_agree_at_the_newest_complete_epoch(one_epoch: DiskWorld) -> None:
    one_epoch.crash_at("committed.orders")
    newest = [len(DeltaTable(str(one_epoch.table(sink))).to_pyarrow_table()) for sink in ("orders", "audit")]
    assert newest == [9, 4]  # read as they are, they do not agree
    epoch = read(one_epoch)
    assert epoch.number == 1
    assert seen_at(epoch, "orders") == seen_at(epoch, "audit")
    assert len(seen_at(epoch, "orders")) == 4


def test_inside_airflow_the_ledger_is_found_by_its_connection(
    one_epoch: DiskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"ledger_root": str(one_epoch.ledger_root)}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps({"conn_type": "epochs", "extra": extra}))
    assert complete_epoch("orders") == read(one_epoch)


def test_an_older_epoch_can_be_read_after_newer_ones(one_epoch: DiskWorld) -> None:
    assert one_epoch.run(2) is None
    epochs = {number: read(one_epoch, number) for number in (1, 2)}
    assert read(one_epoch) == epochs[2]
    counts = {n: [len(seen_at(epoch, sink)) for sink in ("orders", "audit")] for n, epoch in epochs.items()}
    assert counts == {1: [4, 4], 2: [9, 9]}


def test_other_writers_and_upkeep_after_the_epoch_are_not_seen(tmp_path: Path) -> None:
    world = start(DiskWorld(tmp_path, sink_options={"compact_every": 1, "checkpoint_every": 1}))
    DeltaTable(str(world.table("orders"))).delete()
    assert len(seen_at(read(world), "orders")) == 4


def test_where_nothing_is_complete_there_is_nothing_to_read(one_epoch: DiskWorld) -> None:
    root = str(one_epoch.ledger_root)
    assert complete_epoch("unheard-of", ledger_root=root) is None
    assert [complete_epoch("orders", number, ledger_root=root) for number in (-1, 0, 2)] == [None] * 3


def test_a_sink_without_a_version_is_refused_by_name(one_epoch: DiskWorld) -> None:
    with pytest.raises(
        Refused, match=r"no version of sink 'refunds'.*\nWhere: pipeline orders, epoch 1, sink refunds\n"
    ) as caught:
        read(one_epoch).version("refunds")
    assert "audit, orders" in str(caught.value)


def test_what_is_no_table_is_not_called_one_and_a_topic_is_named_with_the_offsets_of_the_epoch(tmp_path: Path) -> None:
    in_topic = {"topic": "orders-enriched", "offsets": {"0": [3, 5], "2": [0, 7]}}
    details: dict[str, JsonDict] = {"lake": {"table": "/lake/orders"}, "events": in_topic, "own": {}}
    receipts = {name: replace(receipt(), sink=name, version=None, detail=detail) for name, detail in details.items()}
    ledger = Ledger(LocalStore(tmp_path), "p")
    ledger.put(replace(complete(), receipts=receipts, markers=dict.fromkeys(details, txn())))
    found = complete_epoch("p", ledger_root=str(tmp_path))
    assert found and found.sinks == {
        "events": ReadableSink(
            table=None,
            version=None,
            epoch=1,
            topic="orders-enriched",
            offsets=(OffsetRange(0, 3, 5), OffsetRange(2, 0, 7)),
        ),
        "lake": ReadableSink(table="/lake/orders", version=None, epoch=1),
        "own": ReadableSink(table=None, version=None, epoch=1),
    }


def test_a_sink_that_was_removed_or_waived_is_read_at_its_own_last_epoch(tmp_path: Path) -> None:
    world = MemoryWorld()

    def task(*sinks: str) -> Coordinator:
        return memory_coordinator(world, memory_pipeline(world, sinks), store=LocalStore(tmp_path))

    for number, sinks in enumerate((("orders", "audit"), ("orders", "audit"), ("orders",)), 1):
        world.produce("orders", 0, [f"row {number}"])
        run = Run("dag", f"r{number}")
        opened = task(*sinks).open(run)
        task(*sinks).vote(run, task(*sinks).stage(run).stage)
        task(*sinks).commit(run, "orders")
        if number == 1:
            task(*sinks).commit(run, "audit")
        if number == 2:
            ledger = task(*sinks).task.ledger
            ledger.put(WaivedRecord(txn_id=opened.txn_id, sink="audit", who="me", why="gone", at="now"))
        task(*sinks).complete(run)
    pipeline = memory_pipeline(world, ("orders",)).name
    epochs = [complete_epoch(pipeline, number, ledger_root=str(tmp_path)) for number in (1, 2, 3)]
    assert [epoch and {name: sink.epoch for name, sink in epoch.sinks.items()} for epoch in epochs] == [
        {"audit": 1, "orders": 1},
        {"audit": 1, "orders": 2},
        {"audit": 1, "orders": 3},
    ]
    world.produce("orders", 0, ["row 4"])
    run_epoch(task("orders"), Run("dag", "r4"))
    newest = complete_epoch(pipeline, ledger_root=str(tmp_path))
    assert newest and newest.number == 4
