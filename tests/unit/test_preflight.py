"""What a sink needs is looked at by ``open``, before Spark runs: by the coordinator, and for Delta tables on a disk."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import DeltaSink, KafkaSink, SqlSink, codes
from airflow_epochs.contracts import Environment, Sink
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Corrupt, NoNewData, Refused
from airflow_epochs.model import JsonDict, Run, TransactionId
from airflow_epochs.testing import MemorySink, MemoryWorld, memory_coordinator, memory_pipeline
from tests.support.environment import connected
from tests.support.scenario import BOTH, Scenario, run

# -- the coordinator --------------------------------------------------------------------------------------------------


class Picky(MemorySink):
    """Refuses while its world says so. A class of its own: Python remembers whether ``MemorySink`` has the method."""

    flaws: dict[str, str] = {}
    asked: list[tuple[str, str, TransactionId | None]] = []

    def spec(self) -> JsonDict:
        return {**super().spec(), "kind": f"{__name__}:Picky"}

    @classmethod
    def from_spec(cls, spec: JsonDict) -> Picky:
        return cls(name=spec["name"], world=spec["world"], table=spec["table"])

    def require_ready(self, pipeline: str, previous: TransactionId | None, env: Environment) -> None:
        self.asked.append((self.name, pipeline, previous))
        if flaw := self.flaws.get(self.name):
            raise Refused(flaw, code=codes.SQL_TABLE_MISSING, remedy="Grant it. Clear the stage task.")


@pytest.fixture
def world() -> MemoryWorld:
    Picky.flaws, Picky.asked = {}, []
    return MemoryWorld()


def coordinator_of(world: MemoryWorld, names: Sequence[str] = ("a", "b")) -> Coordinator:
    sinks = tuple(Picky(name=name, world=world.name) for name in names)
    return memory_coordinator(world, replace(memory_pipeline(world), sinks=sinks))


def test_an_epoch_is_not_opened_while_a_sink_is_not_ready_and_is_opened_once_it_is(world: MemoryWorld) -> None:
    world.produce("orders", 0, ["row"])
    Picky.flaws = {"b": "There is no table."}
    coordinator, run = coordinator_of(world), Run("dag", "r1")
    with pytest.raises(Refused, match="There is no table") as refused:
        coordinator.open(run)
    assert (refused.value.sink, refused.value.pipeline) == ("b", coordinator.task.pipeline.name)
    assert refused.value.remedy == "Grant it. Clear the failed task.", "no stage task has run"
    assert coordinator.task.ledger.view(1).open is None
    Picky.flaws = {}
    assert coordinator.open(run).txn_id.epoch == 1


def test_the_flaws_of_all_sinks_are_told_at_once(world: MemoryWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.produce("orders", 0, ["row"])
    Picky.flaws = {"a": "No table a.", "b": "No table b."}
    with caplog.at_level(logging.ERROR), pytest.raises(Refused, match=r"No table a\."):
        coordinator_of(world).open(Run("dag", "r1"))
    (other,) = caplog.messages
    assert "No table b." in other and "sink b" in other and "Clear the failed task." in other


def test_all_sinks_that_do_not_show_the_last_epoch_are_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    scenario = Scenario(BOTH)
    assert scenario.airflow_run(run(1)) is None
    scenario.produce(2)
    scenario.world.tables.clear()
    with caplog.at_level(logging.ERROR), pytest.raises(Corrupt) as raised:
        scenario.coordinator().open(run(2))
    assert (raised.value.code, raised.value.sink) == (codes.SINK_EMPTY, "orders")
    (other,) = caplog.messages
    assert "EPOCHS-SINK-EMPTY" in other and "sink audit" in other


def test_an_aborted_epoch_is_not_opened_again_while_a_sink_is_not_ready(world: MemoryWorld) -> None:
    world.produce("orders", 0, ["row"])
    coordinator, first, second = coordinator_of(world), Run("dag", "r1"), Run("dag", "r2")
    coordinator.open(first)
    coordinator.abort(first, "the test says so")
    Picky.flaws = {"a": "There is no table."}
    with pytest.raises(Refused, match="There is no table"):
        coordinator.open(second)
    assert coordinator.task.ledger.view(1).opened.txn_id.attempt == 1


def test_a_sink_is_told_its_last_transaction_and_is_not_asked_where_there_is_nothing_to_do(world: MemoryWorld) -> None:
    coordinator = coordinator_of(world, ["a"])
    with pytest.raises(NoNewData):
        coordinator.open(Run("dag", "r0"))
    assert Picky.asked == []
    for number in (1, 2):
        world.produce("orders", 0, ["row"])
        run = Run("dag", f"r{number}")
        coordinator = coordinator_of(world, ["a"])
        coordinator.open(run)
        coordinator.vote(run, coordinator.stage(run).stage)
        coordinator.commit(run, "a")
        coordinator.complete(run, {})
    name = coordinator.task.pipeline.name
    (_, _, nothing), (_, _, previous) = Picky.asked
    assert nothing is None and previous and (previous.pipeline, previous.epoch) == (name, 1)


@pytest.mark.parametrize(
    ("sink", "says"),
    [
        (DeltaSink("o", "/lake/o", compact_every=cast(Any, 0.5)), "sink 'o' .*compact_every: Expected `int`"),
        (
            SqlSink("o", "db", "orders", staging="/lake/s", rehearse=cast(Any, "false")),
            "sink 'o' .*rehearse: Expected `bool`",
        ),
        (DeltaSink("o", "/lake/o", storage_conn_id=cast(Any, 7)), "sink 'o' .*storage_conn_id: Expected `str"),
        (KafkaSink("o", "out", conn_id=cast(Any, {1, 2}), staging="/lake/s"), "sink 'o' .*conn_id: Expected `str`"),
    ],
    ids=["a number", "a text", "an id", "a set"],
)
def test_an_epoch_is_not_opened_with_a_sink_that_no_task_could_read_from_the_ledger(
    world: MemoryWorld, sink: Sink, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(sink), "last_committed", lambda *_: None)
    world.produce("orders", 0, ["row"])
    pipeline = replace(memory_pipeline(world), sinks=(sink,))
    with pytest.raises(Refused, match=says) as refused:
        memory_coordinator(world, pipeline).open_epoch(Run("dag", "run 1"))
    assert refused.value.code is codes.SINK_MISCONFIGURED
    assert not [key for key in world.store.values if key.endswith(".open.json")]


# -- Delta tables -----------------------------------------------------------------------------------------------------


def a_table(folder: Path, properties: dict[str, str | None] | None = None, **options: Any) -> str:
    path = str(folder / "table")
    write_deltalake(path, pa.table({"id": [1], "city": ["Rome"]}), configuration=properties, **options)
    return path


def refusal(sink: DeltaSink) -> Refused:
    with pytest.raises(Refused) as refused:
        sink.require_ready("orders", None, connected())
    assert refused.value.sink == sink.name
    return refused.value


@pytest.mark.parametrize(
    ("options", "properties", "code", "cause"),
    [
        ({"partition_by": ["city"]}, {}, codes.DELTA_PARTITIONS, r"is partitioned by \[\], but the sink has"),
        (
            {"mode": "overwrite_partitions"},
            {},
            codes.DELTA_PARTITIONS,
            "'overwrite_partitions' replaces whole partitions, but .* has none",
        ),
        ({"mode": "upsert", "keys": ["nr", "ID"]}, {}, codes.DELTA_ROWS_UNFIT, "has no column 'nr', .*: id, city"),
        ({"mode": "upsert", "keys": ["id"]}, {"delta.appendOnly": "true"}, codes.DELTA_APPEND_ONLY, "new rows only"),
        (
            {},
            {"delta.setTransactionRetentionDuration": "interval 1 days"},
            codes.DELTA_MARKERS_EXPIRE,
            "forgets transactions",
        ),
    ],
    ids=["partitions", "no partitions", "keys", "append only", "markers expire"],
)
def test_a_table_that_no_rows_would_fit_is_refused_before_there_are_rows(
    tmp_path: Path, options: dict[str, Any], properties: dict[str, str | None], code: Any, cause: str
) -> None:
    sink = DeltaSink("orders", a_table(tmp_path, properties), **options)
    refused = refusal(sink)
    assert refused.code is code
    assert re.search(cause, refused.what)
    assert DeltaTable(sink.table).version() == 0


def test_a_table_that_deltalake_cannot_commit_to_is_refused_where_only_deltalake_may(tmp_path: Path) -> None:
    path = a_table(tmp_path)
    entry = Path(path, "_delta_log", "00000000000000000000.json")
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata"]}
    told = [json.loads(line) for line in entry.read_text().splitlines()]
    entry.write_text("\n".join(json.dumps({"protocol": protocol} if "protocol" in each else each) for each in told))
    assert refusal(DeltaSink("orders", path, commit="deltalake")).code is codes.DELTA_NEEDS_SPARK
    DeltaSink("orders", path).require_ready("orders", None, connected())  # Spark commits


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"partition_by": ["city"]},
        {"mode": "overwrite_partitions"},
        {"mode": "upsert", "keys": ["ID", "City"]},
        {"mode": "upsert", "keys": ["nr"], "schema_evolution": "add_columns"},
    ],
    ids=str,
)
def test_a_table_that_some_rows_would_fit_is_ready(tmp_path: Path, options: dict[str, Any]) -> None:
    path = a_table(tmp_path, partition_by=["city"])
    DeltaSink("orders", path, **options).require_ready("orders", None, connected())


def test_a_table_that_does_not_exist_is_ready_and_is_not_created_yet(tmp_path: Path) -> None:
    DeltaSink("orders", str(tmp_path / "new")).require_ready("orders", None, connected())
    assert list(tmp_path.iterdir()) == []


def test_spark_is_not_asked_about_a_table_in_a_catalog() -> None:
    DeltaSink("orders", "lake.orders").require_ready("orders", None, connected())
