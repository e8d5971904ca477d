"""What Airflow's OpenLineage provider writes of commits: its own listener and file transport, real Delta tables."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from airflow.providers.common.compat.sdk import hookimpl
from airflow.providers.openlineage.plugins.listener import OpenLineageListener
from airflow.providers.openlineage.utils.utils import translate_airflow_asset
from airflow.sdk import DAG, Asset
from airflow.sdk.listener import get_listener_manager
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from airflow_epochs import DeltaSink, DeltaSource, EpochPipeline, KafkaSink, KafkaSource, SqlSink, StateTable
from airflow_epochs.contracts import (
    Connection,
    Dataset,
    Environment,
    Limits,
    PlannedEpoch,
    Position,
    Sink,
    Traceable,
)
from airflow_epochs.coordinator.admin.admin import Account, waive
from airflow_epochs.errors import NotApplied
from airflow_epochs.kafka.connection import dataset_of
from airflow_epochs.model import JsonDict, OffsetRange, Receipt, Run, TransactionId
from airflow_epochs.operators import lineage_facts
from airflow_epochs.operators.lineage import is_on
from airflow_epochs.operators.lineage_facets import SCHEMA, reported, united
from airflow_epochs.operators.lineage_facts import LineageInput, Noted
from tests.support.environment import connected
from tests.support.faults_disk import PARTITIONS, TOPIC, DiskSpark, FileSource
from tests.support.faults_world import DiskWorld
from tests.support.pyproject import ROOT
from tests.support.task_runner import run_task

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]
RUN = Run("orders_dag", "run_1")
CLUSTER = {"bootstrap.servers": "b1.example.com:9093,b2.example.com"}
FACETS = json.loads((ROOT / "docs" / "lineage" / "facets.json").read_text())


def nothing(phase: str) -> None:
    """What happens at a step of Spark if the test does not say."""


@dataclass(frozen=True, kw_only=True)
class Topics(FileSource):
    """Files that stand for a topic of a Kafka cluster, beside one of which there is nothing to read."""

    def plan(self, position: Position | None, limits: Limits, env: Environment) -> PlannedEpoch | None:
        planned = super().plan(position, limits, env)
        return planned and replace(planned, ranges={**planned.ranges, "idle": (OffsetRange(0, 3, 3),)})

    def dataset_of(self, topic: str, env: Environment) -> Dataset:
        return dataset_of(env.connection("kafka_default"), topic)


@dataclass(frozen=True)
class TopicsWorld(DiskWorld):
    dag_id: str = RUN.dag_id

    @property
    def source(self) -> Topics:
        return Topics(folder=str(self.folder / f"input-{self.name}"))


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file in which the provider's listener writes what it is told, a line for each event."""
    path = tmp_path / "events.jsonl"
    transport = {"type": "file", "log_file_path": str(path), "append": True}
    listeners = get_listener_manager().pm  # first: with a transport, the provider's plugin would add a second listener
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    listeners.register(listener := OpenLineageListener())
    yield path
    listeners.unregister(listener)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TopicsWorld:
    """A pipeline with five records to read."""
    world = TopicsWorld(tmp_path)
    ledger = {"conn_type": "epochs", "extra": {"ledger_root": str(world.ledger_root)}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(ledger))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": CLUSTER}))
    (tmp_path / "disk.py").write_text("def keep_all(batch, epoch): ...\n")
    world.produce(5)
    return world


def dag(world: DiskWorld, at: Callable[[str], object] = nothing, **layout: Any) -> DAG:
    """``at`` is told of each step of Spark."""

    def runner(env: Environment) -> DiskSpark:
        def reached(phase: str) -> None:
            at(phase)
            env.reached(phase)

        return DiskSpark(reached)

    with DAG(RUN.dag_id, schedule=None, max_active_runs=1) as made:
        EpochPipeline(
            world.name,
            source=world.source,
            transform=f"{world.folder}/disk.py:keep_all",
            sinks=[DeltaSink(sink, str(world.table(sink))) for sink in world.sinks],
            spark=SimpleNamespace(runner=runner),  # type: ignore[arg-type]  # the double has the runner's methods
            operator_args={"retries": 0},
            **layout,
        )
    return made


def up_to_the_vote(world: DiskWorld) -> None:
    c = world.coordinator()
    c.open(RUN)
    c.vote(RUN, c.stage(RUN).stage)


def commit(world: DiskWorld, sink: str = "orders") -> str:
    return run_task(dag(world), RUN, f"orders.commit.{sink}")


def all_epochs(world: DiskWorld, at: Callable[[str], object] = nothing) -> str:
    """The layout with one task."""
    return run_task(dag(world, at, layout="single"), RUN, "orders.epochs")


def ended(events: Path) -> list[JsonDict]:
    """The events about tasks that are over. Every facet of ours is as its schema says."""
    found = [json.loads(line) for line in events.read_text().splitlines()]
    for event in found:
        for facet in ours_in(event):
            name = facet["_schemaURL"].removeprefix(f"{SCHEMA}#/$defs/")
            jsonschema.Draft202012Validator(FACETS["$defs"][name]).validate(facet)
    return [event for event in found if event["eventType"] in ("COMPLETE", "FAIL")]


def ours_in(part: Any) -> Iterator[JsonDict]:
    """The facets of ours, wherever they are."""
    if isinstance(part, dict) and str(part.get("_schemaURL", "")).startswith("urn:"):
        yield part
    for below in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from ours_in(below)


def datasets(event: JsonDict) -> tuple[list[JsonDict], list[JsonDict]]:
    return event["inputs"], event["outputs"]


def offsets(read: JsonDict) -> list[OffsetRange]:
    return [OffsetRange(**each) for each in read["inputFacets"]["epochs_ranges"]["ranges"]]


def version(dataset: JsonDict) -> str:
    return str(dataset["facets"]["version"]["datasetVersion"])


def row_count(written: JsonDict) -> int:
    return int(written["outputFacets"]["outputStatistics"]["rowCount"])


# -- a commit ----------------------------------------------------------------------------------------------------------


def test_a_commit_reports_the_offsets_that_it_read_and_the_version_that_it_made(
    world: TopicsWorld, events: Path
) -> None:
    up_to_the_vote(world)
    assert commit(world) == "success"
    [event] = ended(events)
    [read], [written] = datasets(event)
    opened, table = world.ledger.open_record(1, 1), DeltaTable(str(world.table("orders")))
    assert opened
    assert (read["namespace"], read["name"]) == ("kafka://b1.example.com:9093", TOPIC)
    assert tuple(offsets(read)) == opened.ranges[TOPIC]
    assert (written["namespace"], written["name"]) == ("file", str(world.table("orders")))
    assert (version(written), row_count(written)) == (str(table.version()), table.to_pyarrow_table().num_rows)
    [shown] = written["outputFacets"]["epochs_commits"]["commits"]
    assert (shown["epoch"], shown["transactionId"], shown["version"]) == (1, opened.txn_id, table.version())
    told = event["run"]["facets"]["epochs_run"]
    assert told["pipeline"] == "orders"
    assert told["epochs"] == [{"epoch": 1, "transactionId": opened.txn_id, "without": []}]


def test_what_is_reported_is_known_before_the_provider_asks_for_it(
    world: TopicsWorld, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks in a fork, where no object store can be read, and no connection should be."""

    class Thief:
        @hookimpl
        def on_task_instance_success(self) -> None:
            shutil.rmtree(world.ledger_root)
            monkeypatch.delenv("AIRFLOW_CONN_KAFKA_DEFAULT")

    up_to_the_vote(world)
    get_listener_manager().pm.register(thief := Thief())  # the last one that is registered is called first
    try:
        assert commit(world) == "success"
    finally:
        get_listener_manager().pm.unregister(thief)
    assert not world.ledger_root.exists()
    [event] = ended(events)
    assert [len(each) for each in datasets(event)] == [1, 1]


def test_a_second_epoch_reports_its_own_offsets_and_version(world: TopicsWorld, events: Path) -> None:
    assert world.run(7) is None
    world.produce(3)
    up_to_the_vote(world)
    commit(world)
    [event] = ended(events)
    [read], [written] = datasets(event)
    assert sum(each.end - each.start for each in offsets(read)) == row_count(written) == 3
    assert min(each.start for each in offsets(read)) == 2
    assert version(written) == str(DeltaTable(str(world.table("orders"))).version()) == "1"


def test_a_commit_that_was_done_before_reports_the_same(world: TopicsWorld, events: Path) -> None:
    up_to_the_vote(world)
    for sink in world.sinks:
        commit(world, sink)
    commit(world)
    world.coordinator().complete(RUN)
    assert world.run(8) is None
    commit(world)  # cleared, after all is over
    first, _, second, third = map(datasets, ended(events))
    assert first == second == third


def test_a_commit_that_another_run_has_done_is_reported_by_the_run_of_the_epoch(
    world: TopicsWorld, events: Path
) -> None:
    up_to_the_vote(world)
    assert world.run(8) is None
    assert commit(world) == "success"
    [event] = ended(events)
    [read], [written] = datasets(event)
    assert (read["name"], version(written), row_count(written)) == (TOPIC, "0", 5)


def test_a_sink_that_begins_with_earlier_epochs_reports_the_offsets_of_all_of_them(
    world: TopicsWorld, events: Path
) -> None:
    alone = replace(world, sinks=("orders",))
    assert alone.run(7) is None
    world.produce(3)
    both = replace(world, backfill={"audit": 1})
    up_to_the_vote(both)
    for sink in both.sinks:
        commit(both, sink)
    read = [sum(r.end - r.start for r in offsets(event["inputs"][0])) for event in ended(events)]
    assert read == [3, 8]


def test_the_event_names_the_table_as_airflow_itself_names_its_asset(world: TopicsWorld, events: Path) -> None:
    up_to_the_vote(world)
    commit(world)
    [event] = ended(events)
    [written] = event["outputs"]
    asset = translate_airflow_asset(Asset(DeltaSink("orders", str(world.table("orders"))).asset_uri("orders")), None)
    assert asset and (asset.namespace, asset.name) == (written["namespace"], written["name"])


def test_a_sink_that_was_waived_is_reported_as_one_without_rows(world: TopicsWorld, events: Path) -> None:
    up_to_the_vote(world)
    waive(world.ledger, 1, "orders", by=Account(who="me", why="gone"))
    assert commit(world) == "success"
    [event] = ended(events)
    assert datasets(event) == ([], [])
    assert event["run"]["facets"]["epochs_run"]["epochs"][0]["without"] == ["orders"]


def test_a_commit_that_failed_reports_no_data(
    world: TopicsWorld, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up_to_the_vote(world)

    def broken(*of: object) -> Receipt:
        raise NotApplied("The table cannot be reached.", remedy="wait.")

    monkeypatch.setattr(DeltaSink, "commit", broken)
    assert commit(world) == "failed"
    [event] = ended(events)
    assert (event["eventType"], datasets(event)) == ("FAIL", ([], []))


def test_an_epoch_whose_open_record_was_pruned_is_not_reported_again(
    world: TopicsWorld, events: Path, caplog: pytest.LogCaptureFixture
) -> None:
    up_to_the_vote(world)
    for sink in world.sinks:
        world.coordinator().commit(RUN, sink)
    world.coordinator().complete(RUN)
    world.ledger.pruning.prune(1)
    assert world.ledger.open_record(1, 1) is None
    assert commit(world) == "success"
    assert "lineage" not in caplog.text
    [event] = ended(events)
    assert datasets(event) == ([], [])


# -- all epochs in one task --------------------------------------------------------------------------------------------


def more_in_the_first_two_epochs(world: DiskWorld) -> Callable[[str], object]:
    """Records come while Spark works, so that the task has three epochs to do."""
    seen: Counter[str] = Counter()

    def at(phase: str) -> None:
        seen[phase] += 1
        if phase == "staged.orders" and seen[phase] <= 2:
            world.produce(4)

    return at


def test_one_task_reports_all_its_epochs_as_one_dataset_for_each_topic_and_table(
    world: TopicsWorld, events: Path
) -> None:
    assert all_epochs(world, more_in_the_first_two_epochs(world)) == "success"
    [event] = ended(events)
    [read], outputs = datasets(event)
    lengths = Counter(partition for partition, _, _ in world.source.all_rows())
    assert offsets(read) == [OffsetRange(partition, 0, lengths[partition]) for partition in PARTITIONS]
    assert (read["inputFacets"]["epochs_ranges"]["firstEpoch"], world.ledger.newest_complete()) == (1, 3)
    for written in outputs:
        table = DeltaTable(written["name"])
        assert (version(written), row_count(written)) == (str(table.version()), len(world.source.all_rows()))
        commits = written["outputFacets"]["epochs_commits"]["commits"]
        records = [world.ledger.complete_record(epoch) for epoch in (1, 2, 3)]
        assert [each["transactionId"] for each in commits] == [record.txn_id for record in records if record]
        assert [each["version"] for each in commits] == [0, 1, 2]
    assert {written["name"] for written in outputs} == {str(world.table(sink)) for sink in world.sinks}


def test_one_task_that_fails_reports_the_epochs_that_it_has_completed(world: TopicsWorld, events: Path) -> None:
    begun: Counter[str] = Counter()

    def at(phase: str) -> None:
        begun[phase] += 1
        if begun["staging.orders"] == 2:
            raise NotApplied("Spark fell over.", remedy="try again.")
        if phase == "staged.orders":
            world.produce(4)

    assert all_epochs(world, at) == "failed"
    [event] = ended(events)
    assert event["eventType"] == "FAIL"
    assert [row_count(written) for written in event["outputs"]] == [5, 5]


# -- it never harms ----------------------------------------------------------------------------------------------------


def test_lineage_that_cannot_be_noted_is_a_warning_and_the_commit_succeeds(
    world: TopicsWorld, events: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    up_to_the_vote(world)
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka"}))
    with caplog.at_level(logging.WARNING):
        assert commit(world) == "success"
    assert [record.levelname for record in caplog.records if "lineage" in record.getMessage()] == ["WARNING"]
    [event] = ended(events)
    assert datasets(event) == ([], [])


@pytest.mark.parametrize("missing", [True, False])
def test_without_the_provider_or_a_transport_nothing_is_looked_up(
    world: TopicsWorld, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    if missing:
        monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps({"type": "console"}))
        for module in [name for name in sys.modules if name.startswith("airflow.providers.openlineage")]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, "airflow.providers.openlineage", None)
    assert not is_on()
    looked: list[object] = []
    monkeypatch.setattr(lineage_facts, "noted", lambda *of: looked.append(of))
    up_to_the_vote(world)
    assert commit(world) == "success"
    assert looked == []


def test_a_known_secret_in_a_name_is_blotted_out(
    world: TopicsWorld, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"bootstrap.servers": "hunter22.example.com:9092", "sasl.password": "hunter22"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    up_to_the_vote(world)
    commit(world)
    [event] = ended(events)
    assert event["inputs"][0]["namespace"] == "kafka://******.example.com:9092"


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "namespace", "name"),
    [
        ("/lake/orders", "file", "/lake/orders"),
        ("file:///lake/with%20blank", "file", "/lake/with blank"),
        ("s3a://bucket/lake/orders/", "s3://bucket", "lake/orders"),
        ("s3://bucket", "s3://bucket", "/"),
        ("gs://bucket/orders", "gs://bucket", "orders"),
        ("hdfs://name:8020/lake/orders", "hdfs://name:8020", "/lake/orders"),
        ("abfss://box@account.dfs.core.windows.net/o", "abfss://box@account.dfs.core.windows.net", "o"),
        ("https://me:word@host/orders?sig=abc#x", "https://host", "orders"),
    ],
)
def test_a_location_has_the_name_of_openlineages_rules_and_no_secret(location: str, namespace: str, name: str) -> None:
    assert Dataset.at(location) == (namespace, name, False)


ENV = connected(
    Connection(conn_id="kafka_default", conn_type="kafka", extra=CLUSTER),
    Connection(conn_id="pg", conn_type="postgres", host="db1,db2", login="me", password="word", schema="shop"),
    Connection(conn_id="pg_bare", conn_type="postgres", login="me", extra={"port": 6432}),
    Connection(conn_id="lite", conn_type="sqlite", host="/data/shop.db"),
)
RECEIPT = Receipt(
    txn_id=TransactionId("orders", 1, 1, "0" * 32),
    sink="s",
    rows=1,
    files=1,
    bytes=1,
    version=None,
    committed_at="2026-01-01T00:00:00Z",
)
KAFKA = "kafka://b1.example.com:9093"


@pytest.mark.parametrize(
    ("sink", "namespace", "name"),
    [
        (DeltaSink("s", "s3://bucket/orders"), "s3://bucket", "orders"),
        (DeltaSink("s", "main.shop.orders"), "s3://bucket", "warehouse/orders"),
        (StateTable("s", "/lake/s", schema="k string", keys=["k"]), "file", "/lake/s"),
        (KafkaSink("s", "shipped", staging="/s"), KAFKA, "shipped"),
        (SqlSink("s", "pg", '"Sales"."Orders"', staging="/s"), "postgres://db1:5432", "shop.Sales.Orders"),
        (SqlSink("s", "pg", "orders", staging="/s"), "postgres://db1:5432", "shop.found.orders"),
        (SqlSink("s", "pg_bare", "orders", staging="/s"), "postgres://localhost:6432", "me.found.orders"),
        (SqlSink("s", "lite", "orders", staging="/s"), "sqlite:///data/shop.db", "orders"),
    ],
)
def test_every_sink_has_the_name_of_openlineages_rules(sink: Sink, namespace: str, name: str) -> None:
    receipt = replace(RECEIPT, place="s3://bucket/warehouse/orders/epochs/l/t", detail={"schema": "found"})
    assert named(sink, receipt) == (namespace, name)


def test_a_destination_of_unknown_place_has_a_name_of_its_own_or_that_of_postgresqls_first_schema() -> None:
    assert named(DeltaSink("s", "main.shop.orders")) == ("epochs://orders", "s")
    assert named(SqlSink("s", "pg", "orders", staging="/s")) == ("postgres://db1:5432", "shop.public.orders")


def named(sink: Sink, receipt: Receipt = RECEIPT) -> tuple[str, str]:
    assert isinstance(sink, Traceable)
    found = sink.dataset(receipt, ENV)
    return found.namespace, found.name


def test_the_sources_have_the_names_of_openlineages_rules_and_versions_are_known_as_such() -> None:
    assert KafkaSource(topics=["orders"]).dataset_of("orders", ENV) == (KAFKA, "orders", False)
    assert DeltaSource("/lake/o").dataset_of("/lake/o", ENV) == ("file", "/lake/o", True)


def test_versions_of_a_table_that_were_read_are_reported_with_the_last_of_them_as_its_version() -> None:
    ranges = (OffsetRange(0, 4, 7),)
    read = LineageInput(dataset=DeltaSource("/lake/o").dataset_of("/lake/o", ENV), ranges=ranges)
    txn = RECEIPT.txn_id
    [told] = reported([Noted(txn=txn, read=(read,), written=(), without=())]).inputs
    assert told.facets["version"].datasetVersion == "6"
    assert told.inputFacets["epochs_ranges"].ranges == [{"partition": 0, "start": 4, "end": 7}]


# -- ranges ------------------------------------------------------------------------------------------------------------

RANGES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 6)).map(
        lambda of: OffsetRange(of[0], of[1], of[1] + of[2])
    )
)


@given(RANGES)
def test_united_ranges_have_the_same_offsets_each_once_with_a_gap_between_any_two(ranges: list[OffsetRange]) -> None:
    found = united(ranges)
    assert sorted(offsets_in(found)) == sorted({*offsets_in(ranges)})
    assert all(b.partition > a.partition or b.start > a.end for a, b in pairwise(found))


def offsets_in(ranges: list[OffsetRange]) -> list[tuple[int, int]]:
    return [(r.partition, offset) for r in ranges for offset in range(r.start, r.end)]
