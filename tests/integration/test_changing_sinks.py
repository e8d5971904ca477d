"""Sinks that are added, removed and renamed between epochs: nothing is lost and nothing comes twice."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import codes
from airflow_epochs.contracts import Move, Position, SparkJob
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.orders import orders
from airflow_epochs.errors import BadArgument, Corrupt, Refused
from airflow_epochs.model import JsonDict, Marker, OffsetRange, OpenRecord
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver import transform
from airflow_epochs.spark.driver.plans import StagePlan, TransformFile
from airflow_epochs.spark.driver.wire import from_json
from tests.support.environment import Environment
from tests.support.faults_disk import DiskSpark, Row
from tests.support.faults_world import DiskWorld, abort
from tests.support.remedies import assert_all_rows

ALL = ("orders", "audit", "gold")


def rows_from(world: DiskWorld, epoch: int, to: int | None = None) -> list[Row]:
    """The rows of the epochs ``[epoch, to]``, as a sink has to show them."""
    first = world.ledger.complete_record(epoch)
    last = world.ledger.complete_record(to or world.ledger.newest_complete())
    assert first and last
    starts = {r.partition: r.start for r in first.ranges["orders"]}
    ends = {r.partition: r.end for r in last.ranges["orders"]}
    return [row for row in world.source.all_rows() if starts[row[0]] <= row[1] < ends[row[0]]]


def with_gold(world: DiskWorld, backfill: Mapping[str, int] | None = None) -> DiskWorld:
    return replace(world, sinks=ALL, backfill=backfill or {})


def test_a_new_sink_begins_with_its_first_epoch(two_epochs: DiskWorld) -> None:
    world = with_gold(two_epochs)
    assert world.run(3) is None
    assert world.rows("gold") == rows_from(world, 3)
    assert world.rows("orders") == world.rows("audit") == world.source.all_rows()


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_new_sink_takes_the_input_of_earlier_epochs_if_it_is_to(two_epochs: DiskWorld, first: int) -> None:
    world = with_gold(two_epochs, {"gold": first})
    assert world.run(3) is None
    assert world.rows("gold") == rows_from(world, first)
    assert world.rows("orders") == world.rows("audit") == world.source.all_rows()
    world.one_more_epoch()
    assert world.rows("gold") == rows_from(world, first)
    assert world.rows("orders") == world.source.all_rows()


def test_the_open_record_says_what_a_backfilled_sink_reads(two_epochs: DiskWorld) -> None:
    world = with_gold(two_epochs, {"gold": 2})
    opened = world.coordinator().open(world.run_of(3))
    assert isinstance(opened, OpenRecord)
    assert opened.ranges_of("orders") == opened.ranges == {"orders": (OffsetRange(0, 5, 8), OffsetRange(1, 4, 7))}
    assert opened.ranges_of("gold") == {"orders": (OffsetRange(0, 2, 8), OffsetRange(1, 2, 7))}


PHASES = [
    "open.landed",
    "stage.start",
    "stage.done",
    "staged.gold",
    "decision.landed",
    "committed.gold",
    "complete.put",
]


@pytest.mark.few(3)
@pytest.mark.proof
@pytest.mark.parametrize("phase", [*PHASES, "stage.start#2"])
def test_a_backfill_that_is_killed_anywhere_is_there_once_in_the_end(two_epochs: DiskWorld, phase: str) -> None:
    world = with_gold(two_epochs, {"gold": 1})
    left = world.crash_at(phase, 3)
    assert world.run(4) is None
    assert world.fate_of(left.txn) in ("A", "C")
    assert world.rows("gold") == world.rows("orders") == world.rows("audit") == world.source.all_rows()
    world.one_more_epoch()
    assert world.rows("gold") == world.source.all_rows()


def test_after_the_decision_a_backfill_is_completed_though_the_dag_has_dropped_the_sink(two_epochs: DiskWorld) -> None:
    added = with_gold(two_epochs, {"gold": 1})
    added.crash_at("decision.landed", 3)
    two_epochs.produce(2)
    assert two_epochs.run(4) is None
    assert two_epochs.run(5) is None
    assert added.rows("gold") == rows_from(two_epochs, 1, 3)
    assert two_epochs.rows("orders") == two_epochs.source.all_rows()


def test_a_backfill_whose_staged_rows_are_gone_is_staged_again_with_its_own_input(two_epochs: DiskWorld) -> None:
    world = with_gold(two_epochs, {"gold": 1})
    world.crash_at("decision.landed", 3)
    shutil.rmtree(world.table("gold") / "epochs")
    assert world.run(3) is None
    assert world.rows("gold") == world.source.all_rows()


def test_an_aborted_backfill_may_begin_elsewhere_in_the_next_attempt(two_epochs: DiskWorld) -> None:
    with_gold(two_epochs, {"gold": 1}).crash_at("stage.done", 3)
    world = with_gold(two_epochs, {"gold": 2})
    assert world.run(4) is None
    assert world.rows("gold") == rows_from(world, 2)


def test_a_backfill_left_in_the_dag_does_nothing_more(two_epochs: DiskWorld) -> None:
    world = with_gold(two_epochs, {"gold": 1, "orders": 1})
    assert world.run(3) is None
    for number in (4, 5):
        world.one_more_epoch(number)
    assert world.rows("gold") == world.rows("orders") == world.source.all_rows()


@pytest.mark.parametrize("aborted", [False, True])
def test_a_backfill_left_in_the_dag_reads_nothing_twice_for_a_sink_that_is_adopted(
    two_epochs: DiskWorld, aborted: bool
) -> None:
    world = with_gold(two_epochs, {"gold": 1})
    assert world.run(3) is None
    world.one_more_epoch(4)
    without_markers(world.table("gold"))
    world.produce(2)
    assert isinstance(world.run(5), Corrupt)
    adopt(world, "gold")
    if aborted:
        world.crash_at("stage.start", 5)
    assert world.run(6) is None
    opened = world.ledger.open_record(5, 3 if aborted else 2)
    assert opened and opened.sinks["gold"].ranges is None
    assert world.rows("gold") == world.rows("orders") == world.source.all_rows()


def adopt(world: DiskWorld, sink: str) -> None:
    """What the command ``adopt-sink`` puts on record."""
    at = orders.standing(world.ledger, world.name)
    position = Position.after(at.before)
    assert position
    adoption = orders.adopt(world.ledger, at, sink, world.coordinator().task.env)
    by = Account(who="me", why="a test", host="here")
    orders.put(world.ledger, at, "adopt-sink", by, Move(position=position), adoption=adoption)


def without_markers(table: Path) -> None:
    """The table becomes a copy of its rows."""
    rows = DeltaTable(str(table)).to_pyarrow_table()
    shutil.rmtree(table)
    write_deltalake(str(table), rows)


def test_a_backfill_from_an_epoch_that_is_still_to_come_is_refused(two_epochs: DiskWorld) -> None:
    world = with_gold(two_epochs, {"gold": 12})
    error = world.run(3)
    assert isinstance(error, Refused)
    assert "`backfill` lets sink 'gold' begin with epoch 12, but the run is opening epoch 3." in str(error)
    assert world.ledger.open_record(3, 1) is None


def test_a_backfill_whose_input_is_gone_opens_nothing(two_epochs: DiskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: object, ranges: dict[str, tuple[OffsetRange, ...]], *_: object) -> None:
        if ranges["orders"][0].start < 2:
            raise Corrupt("orders[0] offsets [0, 2) are gone.", remedy="let backfill begin later.")

    monkeypatch.setattr("tests.support.faults_disk.FileSource.check", lost)
    error = with_gold(two_epochs, {"gold": 1}).run(3)
    assert isinstance(error, Corrupt)
    assert "offsets [0, 2) are gone" in str(error)
    assert two_epochs.ledger.open_record(3, 1) is None
    assert with_gold(two_epochs, {"gold": 2}).run(3) is None
    assert with_gold(two_epochs).rows("gold") == rows_from(two_epochs, 2)


@pytest.mark.parametrize(
    ("backfill", "why"),
    [
        ({"silver": 1}, "`backfill` names silver. The pipeline has no sink of this name"),
        ({"gold": 0}, "`backfill` of sink 'gold' is 0. It must be the number of an epoch, 1 or larger"),
        ({"gold": True}, "is True. It must be the number"),
        ({"gold": "1"}, "is '1'. It must be the number"),
    ],
)
def test_a_backfill_that_means_nothing_is_refused(two_epochs: DiskWorld, backfill: dict[str, int], why: str) -> None:
    with pytest.raises(BadArgument, match=why):
        with_gold(two_epochs, backfill).coordinator()


def test_a_removed_sink_keeps_what_it_has_and_goes_on_from_its_return(two_epochs: DiskWorld) -> None:
    without = replace(two_epochs, sinks=("orders",))
    assert without.run(3) is None
    assert two_epochs.rows("audit") == rows_from(two_epochs, 1, 2)
    two_epochs.one_more_epoch(4)
    assert two_epochs.rows("audit") == sorted([*rows_from(two_epochs, 1, 2), *rows_from(two_epochs, 4)])
    assert two_epochs.rows("orders") == two_epochs.source.all_rows()


@pytest.mark.parametrize("phase", ["decision.landed", "committed.orders", "committed.audit", "complete.put"])
def test_a_sink_is_let_go_only_once_the_epoch_that_it_took_part_in_is_complete(
    two_epochs: DiskWorld, phase: str
) -> None:
    two_epochs.crash_at(phase, 3)
    two_epochs.produce(2)
    without = replace(two_epochs, sinks=("orders",))
    assert without.run(4) is None
    assert without.run(5) is None
    assert two_epochs.rows("audit") == rows_from(two_epochs, 1, 3)
    assert two_epochs.rows("orders") == two_epochs.source.all_rows()


@pytest.mark.few(3)
@pytest.mark.parametrize("phase", ["open.landed", "stage.done", "decision.landed", "committed.audit", "complete.put"])
def test_a_renamed_sink_goes_on_in_its_table_without_a_gap(two_epochs: DiskWorld, phase: str) -> None:
    two_epochs.crash_at(phase, 3)
    two_epochs.produce(2)
    renamed = replace(two_epochs, sinks=("orders", "journal"), tables={"journal": "audit"})
    assert renamed.run(4) is None
    renamed.one_more_epoch(5)
    assert renamed.rows("journal") == renamed.rows("orders") == two_epochs.source.all_rows()
    sinks = [DeltaSink(name, str(two_epochs.table("audit"))) for name in ("journal", "audit")]
    newest = two_epochs.ledger.newest_complete()
    epochs = [sink.last_committed("orders", Environment()) for sink in sinks]
    assert [isinstance(found, Marker) and found.epoch for found in epochs] in ([newest, 3], [newest, 2])


def test_sinks_that_change_places_go_on_each_in_its_new_table(two_epochs: DiskWorld) -> None:
    swapped = replace(two_epochs, tables={"orders": "audit", "audit": "orders"})
    error = swapped.run(3)
    assert isinstance(error, Corrupt)  # each table would get a second time line of the other's name
    assert two_epochs.run(3) is None
    assert two_epochs.rows("orders") == two_epochs.rows("audit") == two_epochs.source.all_rows()


# -- the transform changes with the sinks ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """What a transform takes for a DataFrame here."""

    isStreaming: bool = False
    columns: tuple[str, ...] = ()


class SparkThatAsks(DiskSpark):
    """Runs the transform that the file has now, and refuses what it returns as Spark's driver does."""

    app: Path

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        plan = from_json(StagePlan, job.args)
        needed = plan.sinks if plan.again else None
        letters = plan.letters.sink if plan.letters else None
        with transform.loaded(TransformFile(path=str(self.app), function="f")) as users:
            users(Frame(), transform.EpochContext.of(plan), plan.outputs, needed, letters=letters)
        return super().run(job, session)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(transform, "_is_frame", lambda value: isinstance(value, Frame))
    return tmp_path / "app.py"


def deployed(app: Path, sinks: Collection[str]) -> None:
    """The transform returns a DataFrame for each of these sinks, or for the only one."""
    result = "batch" if len(sinks) == 1 else f"dict.fromkeys({sorted(sinks)}, batch)"
    app.write_text(f"def f(batch, epoch): return {result}\n")


def asking(world: DiskWorld, app: Path, dead_letters: str | None = None) -> Coordinator:
    coordinator = world.coordinator()
    coordinator.task.pipeline = replace(coordinator.task.pipeline, dead_letters=dead_letters)
    env = coordinator.task.env
    assert isinstance(env, Environment)
    env.spark = SparkThatAsks(env.reached)
    env.spark.app = app
    return coordinator


def keys_in(error: Refused) -> list[str]:
    """What the transform is to return, as the error spells it."""
    assert error.code is codes.TRANSFORM_RESULT
    named = re.search(r"Return .*? with the keys? (.*?), built from the batch\.", error.remedy)
    assert named, error.remedy
    return re.findall(r"'(\w+)'", named[1])


def stage_cleared(world: DiskWorld, app: Path, number: int) -> None:
    """``stage`` of a run is cleared with its downstream tasks."""
    task, run = asking(world, app), world.run_of(number)
    task.vote(run, task.stage(run).stage)
    for sink in world.sinks:
        task.commit(run, sink)
    task.complete(run)


RENAMED = {"journal": "audit"}


@pytest.mark.few(3)
@pytest.mark.parametrize("then", ["stage cleared", "run cleared", "next run"])
@pytest.mark.parametrize("sinks", [("orders", "journal"), ("orders",), ALL], ids=["renamed", "removed", "added"])
def test_the_remedy_for_a_transform_that_changed_with_the_sinks_after_open_names_the_sinks_of_today(
    two_epochs: DiskWorld, app: Path, sinks: tuple[str, ...], then: str
) -> None:
    asking(two_epochs, app).open(two_epochs.run_of(3))
    changed = replace(two_epochs, sinks=sinks, tables=RENAMED)
    deployed(app, sinks)
    with pytest.raises(Refused) as refused:
        asking(changed, app).stage(changed.run_of(3))
    abort(asking(changed, app), changed.run_of(3))
    assert "The attempt was opened with the sinks 'audit', 'orders'. The DAG has other sinks now." in str(refused.value)
    assert keys_in(refused.value) == sorted(sinks)
    assert "does so already, do not change it. Then type `airflow epochs retry orders" in refused.value.remedy
    if then == "stage cleared":
        stage_cleared(changed, app, 3)
    else:
        assert changed.run(3 if then == "run cleared" else 4, asking(changed, app)) is None
    begun = {"gold"} & {*sinks}
    assert_all_rows(changed, *(RENAMED.get(sink, sink) for sink in {*sinks} - begun))
    assert [changed.rows(sink) for sink in begun] == [rows_from(two_epochs, 3) for _ in begun]


def test_the_remedy_for_a_transform_that_changed_with_the_sinks_does_not_ask_for_dead_letters(
    two_epochs: DiskWorld, app: Path
) -> None:
    asking(two_epochs, app).open(two_epochs.run_of(3))
    changed = replace(two_epochs, sinks=("orders", "gold"))
    deployed(app, ["orders"])
    with pytest.raises(Refused) as refused:
        asking(changed, app, "gold").stage(changed.run_of(3))
    assert keys_in(refused.value) == ["orders"]
    abort(asking(changed, app, "gold"), changed.run_of(3))
    assert changed.run(3, asking(changed, app, "gold")) is None
    assert_all_rows(changed, "orders")


def test_the_remedy_for_a_transform_that_is_wrong_says_nothing_of_sinks_that_have_not_changed(
    two_epochs: DiskWorld, app: Path
) -> None:
    deployed(app, ["orders", "gold"])
    error = two_epochs.run(3, asking(two_epochs, app))
    assert isinstance(error, Refused)
    assert keys_in(error) == ["audit", "orders"]
    assert error.remedy.endswith("Then clear the failed task.")
    assert "The attempt was opened" not in str(error)
    deployed(app, keys_in(error))
    assert two_epochs.run(3, asking(two_epochs, app)) is None
    assert_all_rows(two_epochs, "orders", "audit")


@pytest.mark.parametrize("sinks", [("orders",), ("orders", "gold")], ids=len)
def test_the_remedy_for_a_transform_without_a_promised_sink_that_left_the_dag_names_that_sink_too(
    two_epochs: DiskWorld, app: Path, sinks: tuple[str, ...]
) -> None:
    two_epochs.crash_at("decision.landed", 3)
    (staged,) = two_epochs.table("audit").glob("epochs/*/3-*")
    shutil.rmtree(staged)
    changed = replace(two_epochs, sinks=sinks)
    deployed(app, sinks)
    error = changed.run(4, asking(changed, app))
    assert isinstance(error, Refused)
    assert keys_in(error) == sorted(["audit", *sinks])
    assert "When the epoch is complete, leave 'audit' out again" in error.remedy
    deployed(app, keys_in(error))
    assert changed.run(4, asking(changed, app)) is None
    assert_all_rows(two_epochs, "orders", "audit")
    deployed(app, sinks)
    changed.produce(2)
    assert changed.run(5, asking(changed, app)) is None
    assert_all_rows(two_epochs, "orders")
