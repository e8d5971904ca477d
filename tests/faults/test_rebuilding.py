"""``airflow epochs rebuild``: killed at any moment, over old copies of every kind, over sinks that do not agree."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from airflow_epochs import EventTime, KafkaSource, StateTable, codes
from airflow_epochs.commands import asking
from airflow_epochs.contracts import LastEpoch, Move, Position
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.orders import earlier_ends, orders
from airflow_epochs.coordinator.rebuilding import planning, recording, wording
from airflow_epochs.coordinator.rebuilding.evidence import Told
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, Fenced, Refused
from airflow_epochs.event_time import next_watermarks
from airflow_epochs.ledger.codec import encode
from airflow_epochs.ledger.keys import rebuilt_key
from airflow_epochs.ledger.queries import newest_epochs
from airflow_epochs.model import Marker, OpenRecord, RebuiltRecord, Run, TransactionId
from airflow_epochs.read import complete_epoch
from airflow_epochs.testing import Crash
from tests.support.environment import Action
from tests.support.faults_history import require_exactly_once
from tests.support.faults_world import DiskWorld, begin, crash
from tests.support.rebuilt import offsets_file, typed_rebuild
from tests.support.remedies import assert_all_rows, log_cleaned, refused, restored

BY = Account(who="ann", why="the disk is gone")
KEY = "k" * 32


def task(world: DiskWorld, **at: Action) -> TaskTry:
    return world.coordinator({phase.replace("_", "."): action for phase, action in at.items()}).task


def rebuild(world: DiskWorld, *without: str, **at: Action) -> RebuiltRecord:
    """What the command does after the yes."""
    plan = planning.plan(task(world), without)
    assert plan, "nothing to rebuild"
    return recording.carry_out(task(world, **at), plan, by=BY)


def epochs(world: DiskWorld, *numbers: int) -> None:
    for number in numbers:
        world.produce(3)
        assert world.run(number) is None


def lose(world: DiskWorld) -> None:
    shutil.rmtree(world.ledger_root)


def assert_goes_on(world: DiskWorld) -> None:
    """The next runs take new data, and strangers count every record once."""
    world.one_more_epoch(81)
    assert_all_rows(world, *world.sinks)
    world.one_more_epoch()
    require_exactly_once(world)


@pytest.fixture
def lost(world: DiskWorld) -> DiskWorld:
    """Three epochs are in the tables, and the ledger's folder is gone."""
    epochs(world, 2, 3)
    lose(world)
    return world


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_plan_says_where_the_pipeline_goes_on_and_what_is_lost(lost: DiskWorld) -> None:
    plan = planning.plan(task(lost))
    assert plan and "The ledger will be begun anew, and will belong to DAG dag." in list(wording.announced(plan))
    screen = typed_rebuild(lambda: task(lost), refused(lost), ledger_root=lost.ledger_root)
    rows = lost.rows("orders")
    for said in (
        "Pipeline orders of DAG dag: the ledger has no epoch of it, and the sinks show epoch 3:",
        "  sink orders: epoch 3, transaction orders/3/1/",
        "  sink audit: epoch 3, transaction orders/3/1/",
        "The next epoch is 4. It goes on from these offsets:",
        *(f"  orders[{p}]: {1 + max(offset for q, offset, _ in rows if q == p)}" for p in {row[0] for row in rows}),
        "Lost for good: what the ledger recorded of epochs 1 to 3",
        "No sink can `backfill` from an epoch before 4",
        "because: the remedy says so",
        "Pipeline orders goes on with epoch 4",
    ):
        assert said in screen, screen
    assert_goes_on(lost)


@pytest.mark.parametrize("phase", ["rebuild_put", "rebuild_complete_put"])
def test_a_command_that_was_killed_has_changed_nothing_and_is_typed_again(lost: DiskWorld, phase: str) -> None:
    with pytest.raises(Crash):
        rebuild(lost, **{phase: crash})
    assert isinstance(lost.run(80), Corrupt)
    rebuild(lost)
    assert_goes_on(lost)


def test_the_command_typed_twice_has_nothing_to_do_the_second_time(lost: DiskWorld) -> None:
    rebuild(lost)
    before = lost.snapshot()
    assert planning.plan(task(lost)) is None
    epochs(lost, 4)
    assert planning.plan(task(lost)) is None
    assert before.items() <= lost.snapshot().items()


def test_a_ledger_that_is_lost_twice_is_rebuilt_twice(lost: DiskWorld) -> None:
    rebuild(lost)
    epochs(lost, 4)
    lose(lost)
    rebuild(lost)
    assert_goes_on(lost)


def test_a_rebuilt_ledger_that_is_restored_to_before_the_next_epochs_is_rebuilt_again(lost: DiskWorld) -> None:
    rebuild(lost)
    backup = shutil.copytree(lost.ledger_root, lost.folder / "backup")
    epochs(lost, 4, 5)
    restored(lost.ledger_root, backup)
    assert rebuild(lost).number == 2
    assert_goes_on(lost)


def adopted(world: DiskWorld) -> None:
    """Epoch 2's table was replaced by a copy of epoch 1's, which epoch 3 will take as it is."""
    copy = shutil.copytree(world.table("orders"), world.folder / "copy")
    epochs(world, 2)
    restored(world.table("orders"), copy)
    at = orders.standing(world.ledger, world.name)
    adoption = orders.adopt(world.ledger, at, "orders", task(world).env)
    position = Position.after(at.before)
    assert adoption and position
    orders.put(world.ledger, at, "adopt-sink", BY, Move(position=position), adoption=adoption)


@pytest.mark.parametrize("copied", ["after epoch 3", "while epoch 3 is undecided"])
def test_a_rebuilt_ledger_knows_which_versions_are_of_a_table_before_an_adoption(world: DiskWorld, copied: str) -> None:
    """A reader must not take a version of the old table for one of the new table."""
    adopted(world)
    backup = world.folder / "backup"
    if copied == "after epoch 3":
        epochs(world, 3)
        shutil.copytree(world.ledger_root, backup)
        epochs(world, 4)
    else:
        world.produce(3)
        copying: dict[str, Action] = {"decision.put": lambda: shutil.copytree(world.ledger_root, backup)}
        assert world.run(3, world.coordinator(copying)) is None
    restored(world.ledger_root, backup)
    rebuild(world)
    epochs(world, 6)
    found = {n: complete_epoch(world.name, n, ledger_root=str(world.ledger_root)) for n in (2, 3)}
    assert {n: epoch.sinks["orders"].version for n, epoch in found.items() if epoch} == {2: None, 3: 1}


def test_two_commands_at_once_are_one(lost: DiskWorld) -> None:
    """The second one comes while the first one waits for its yes."""
    plan = planning.plan(task(lost))
    assert plan
    rebuild(lost)
    with pytest.raises(Refused) as error:
        recording.carry_out(task(lost), plan, by=BY)
    assert error.value.code is codes.LEDGER_CHANGED
    assert_goes_on(lost)


def test_two_commands_that_put_at_the_same_moment_are_one(lost: DiskWorld) -> None:
    with pytest.raises(Refused) as error:
        rebuild(lost, rebuild_put=lambda: rebuild(lost) and None)
    assert error.value.code is codes.LEDGER_CHANGED
    assert_goes_on(lost)


def test_a_run_that_is_at_work_with_the_newest_ledger_while_the_question_stands_is_noticed(world: DiskWorld) -> None:
    """The folder was moved away, not lost: a worker that still has it mounted commits one more epoch."""
    moved = replace(world, ledger_folder=world.folder / "moved")
    world.ledger_root.rename(moved.ledger_root)
    error = refused(world)

    def yes() -> bool:
        assert moved.run(2) is None
        return True

    with patch.object(asking, "_says_yes", yes), pytest.raises(SystemExit, match="EPOCHS-LEDGER-CHANGED"):
        typed_rebuild(lambda: task(world), error, ledger_root=world.ledger_root)
    rebuild(world)
    assert_goes_on(world)


# -- old copies -------------------------------------------------------------------------------------------------------


@pytest.mark.few(3)
@pytest.mark.parametrize("phase", ["open.landed", "decision.put", "decision.landed", "committed.orders"])
@pytest.mark.parametrize("since", [0, 2])
def test_an_epoch_that_was_unfinished_in_an_old_copy_is_over(world: DiskWorld, phase: str, since: int) -> None:
    """``since``: how many epochs came after it. Its run, cleared, neither repeats it nor reads its input again."""
    world.crash_at(phase)
    backup = shutil.copytree(world.ledger_root, world.folder / "backup")
    assert world.run(2) is None
    epochs(world, *range(3, 3 + since))
    restored(world.ledger_root, backup)
    if since == 0 and phase in ("decision.landed", "committed.orders"):
        assert planning.plan(task(world)) is None, "the next run completes it"
        assert world.run(80) is None
    else:
        rebuild(world)
    states = {view.number: view.state.value for view in newest_epochs(world.ledger, 9)}
    assert set(states.values()) == {"complete"} and max(states) == 2 + since
    world.produce(3)
    cleared = world.run(2)
    if since and phase != "open.landed":  # there, no record says that the run has had an epoch: it counts as a new one
        assert isinstance(cleared, Fenced) and cleared.code is codes.EPOCH_BEFORE_REBUILDING
        assert world.ledger.view_of_next().open is None
    else:
        assert cleared is None
    world.one_more_epoch(81)
    assert_all_rows(world, *world.sinks)


@pytest.mark.few(2)
@pytest.mark.parametrize("step", ["stage", "vote", "commit", "complete"])
def test_late_tasks_of_such_an_epoch_are_fenced(world: DiskWorld, step: str) -> None:
    world.crash_at("decision.put" if step in ("stage", "vote") else "decision.landed")
    backup = shutil.copytree(world.ledger_root, world.folder / "backup")
    assert world.run(2) is None
    epochs(world, 3)
    restored(world.ledger_root, backup)
    rebuild(world)
    late, run = world.coordinator(), world.run_of(2)
    steps: dict[str, Callable[[], object]] = {
        "stage": lambda: late.vote(run, late.stage(run).stage),
        "vote": lambda: late.vote(run, late.stage(run).stage),
        "commit": lambda: late.commit(run, "orders"),
        "complete": lambda: [late.commit(run, sink) for sink in world.sinks] and late.complete(run),
    }
    rows = [world.rows(sink) for sink in world.sinks]
    with pytest.raises(Fenced):
        steps[step]()
    assert [world.rows(sink) for sink in world.sinks] == rows
    world.one_more_epoch(81)
    assert_all_rows(world, *world.sinks)


def test_records_of_lost_epochs_in_between_are_not_needed(world: DiskWorld) -> None:
    """Somebody deleted the folders of epochs 2 and 3; 4 and the unfinished 5 are there, and go on."""
    epochs(world, 2, 3, 4)
    world.produce(2)
    world.crash_at("decision.landed", 5)
    for lost_epoch in (2, 3):
        shutil.rmtree(world.records / "epochs" / f"{lost_epoch:020}")
    assert rebuild(world).backfill_from == 4
    assert world.ledger.newest_complete() == 4
    assert world.run(80) is None
    assert world.ledger.newest_complete() == 5
    assert_goes_on(world)


def test_a_new_sink_begins_with_no_epoch_whose_input_is_not_known(lost: DiskWorld) -> None:
    before = lost.rows("orders")
    rebuild(lost)
    epochs(lost, 4)
    wider = replace(lost, sinks=(*lost.sinks, "gold"), backfill={"gold": 3})
    wider.produce(2)
    error = wider.run(82)
    assert isinstance(error, Refused) and error.code is codes.BACKFILL_UNKNOWN
    assert "before 4" in error.what and "epoch 4 or a later one" in error.remedy
    wider = replace(wider, backfill={"gold": 4})
    assert wider.run(82) is None
    assert sorted([*before, *wider.rows("gold")]) == wider.rows("orders") == wider.source.all_rows()


def test_an_operators_commands_know_the_pipeline_of_a_rebuilt_ledger(lost: DiskWorld) -> None:
    """No attempt was opened in it yet: the rebuilding says what the pipeline reads and writes."""
    rebuild(lost)
    at = orders.standing(lost.ledger, "orders")
    assert (at.epoch, at.newest.source, set(at.newest.sinks)) == (4, lost.source.spec(), {"orders", "audit"})
    ends = earlier_ends.ends_after(lost.ledger, at, 3)
    assert ends == {topic: {r.partition: r.end for r in of} for topic, of in at.newest.ranges.items()}


# -- signatures -------------------------------------------------------------------------------------------------------


def test_a_signed_ledger_that_was_lost_is_signed_again_and_believes_no_forged_rebuilding(tmp_path: Path) -> None:
    world = DiskWorld(tmp_path, password=KEY)
    epochs(world, 1, 2)
    lose(world)
    record = rebuild(world)
    stored = world.records / rebuilt_key(1)
    assert b'{"sha256":' in stored.read_bytes() and b'"hmac":"' in stored.read_bytes()
    epochs(world, 3)
    forged = replace(record, number=2, txn_id=TransactionId.parse(record.txn_id.replace("/2/", "/3/")))
    (world.records / rebuilt_key(2)).write_bytes(encode(forged))
    world.produce(2)
    error = refused(world)
    assert error.code is codes.LEDGER_RECORD_FORGED and rebuilt_key(2) in error.what
    (world.records / rebuilt_key(2)).unlink()
    assert_goes_on(world)


def test_a_rebuilt_ledger_may_get_a_key_later(lost: DiskWorld) -> None:
    rebuild(lost)
    signed = replace(lost, password=KEY)
    epochs(signed, 4)
    assert [view.number for view in newest_epochs(signed.ledger, 9)] == [4, 3]
    assert_goes_on(signed)


def test_the_newest_completion_record_of_a_signed_ledger_is_made_again(world: DiskWorld) -> None:
    """It was complete when signing began, so an unsigned record of it is not enough."""
    signed = replace(world, password=KEY)
    assert signed.run(2) is None
    for kept in (signed.records / "epochs" / f"{2:020}").iterdir():
        kept.unlink()
    shutil.rmtree(signed.records / "epochs" / f"{1:020}")
    rebuild(signed)
    assert_goes_on(signed)


# -- sinks that do not agree ------------------------------------------------------------------------------------------


@pytest.fixture
def torn(world: DiskWorld) -> DiskWorld:
    """The ledger was lost when epoch 2 was in doubt: `orders` shows it, `audit` does not."""
    world.crash_at("committed.orders")
    lose(world)
    return world


def test_a_sink_that_lacks_the_epoch_in_doubt_gets_it_under_another_name(torn: DiskWorld) -> None:
    with pytest.raises(Refused) as error:
        rebuild(torn)
    assert "Sink audit shows epoch 1, and lacks epoch 2." in error.value.what
    assert "--without audit" in error.value.remedy and "The command prints from which epoch" in error.value.remedy
    rebuild(torn, "audit")
    world = replace(torn, sinks=("orders", "audit_2"), tables={"audit_2": "audit"}, backfill={"audit_2": 2})
    world.one_more_epoch(81)
    assert_all_rows(world, "orders", "audit")
    world.one_more_epoch()
    assert_all_rows(world, "orders", "audit")


def timed_by(event_time: EventTime | None, world: DiskWorld) -> Coordinator:
    coordinator = world.coordinator()
    coordinator.task.pipeline = replace(coordinator.task.pipeline, event_time=event_time)
    return coordinator


def rebuilt_without_audit(world: DiskWorld, event_time: EventTime | None) -> str:
    """What the command prints of `audit`, whose table has an older copy. Then there is new input."""
    told = Told(watermark=1)
    plan = planning.plan(timed_by(event_time, world).task, ["audit"], told)
    assert plan
    recording.carry_out(timed_by(event_time, world).task, plan, by=BY)
    world.produce(3)
    (said,) = (line for line in wording.announced(plan) if line.startswith("Give sink audit another name"))
    return said


def renamed_audit(world: DiskWorld, **backfill: int) -> DiskWorld:
    return replace(world, sinks=("orders", "audit_2"), tables={"audit_2": "audit"}, backfill=backfill)


@pytest.mark.parametrize("event_time", [None, EventTime("10 s")], ids=str)
def test_only_a_backfill_that_opens_is_printed_for_a_sink_left_out(
    world: DiskWorld, event_time: EventTime | None
) -> None:
    """With state or event time, an epoch is replayed by its open record, which a rebuilt ledger lacks."""
    older = shutil.copytree(world.table("audit"), world.folder / "older")
    epochs(world, 2, 3)
    lose(world)
    restored(world.table("audit"), older)
    said = rebuilt_without_audit(world, event_time)
    unknown, printed = (2, {"audit_2": 3}) if event_time is None else (3, {})
    assert ("backfill" in said) is bool(printed)
    assert ("It begins with epoch 4, and lacks earlier rows." in said) is not bool(printed)
    with pytest.raises(Refused) as error:
        timed_by(event_time, renamed_audit(world, audit_2=unknown)).open(Run("dag", "next"))
    assert error.value.code is codes.BACKFILL_UNKNOWN
    opened = timed_by(event_time, renamed_audit(world, **printed)).open(Run("dag", "next"))
    assert isinstance(opened, OpenRecord) and opened.txn_id.epoch == 4
    assert (opened.ranges_of("audit_2") == opened.ranges) is not bool(printed)


@pytest.mark.few(1)
@pytest.mark.parametrize(("since", "printed"), [(1, False), (2, True)])
def test_an_open_record_in_an_old_copy_is_replayed_if_it_reads_all_that_the_sink_lacks(
    world: DiskWorld, since: int, printed: bool
) -> None:
    """A table that lacks an epoch before, too, would not get its rows from the replay of the newest one."""
    older, backup = world.folder / "older", world.folder / "backup"
    for number in (1, 2):
        if number > 1:
            epochs(world, number)
        if number == since:
            shutil.copytree(world.table("audit"), older)
    world.produce(3)
    copying: dict[str, Action] = {"decision.put": lambda: shutil.copytree(world.ledger_root, backup)}
    assert world.run(3, world.coordinator(copying)) is None
    restored(world.ledger_root, backup)
    restored(world.table("audit"), older)
    said = rebuilt_without_audit(world, EventTime("10 s"))
    assert ("backfill" in said) is printed
    if printed:
        opened = timed_by(EventTime("10 s"), renamed_audit(world, audit_2=3)).open(Run("dag", "next"))
        assert isinstance(opened, OpenRecord) and opened.sinks["audit_2"].replayed_from == 3


def test_a_sink_that_was_left_out_and_kept_its_name_stops_the_pipeline(torn: DiskWorld) -> None:
    """Else it would lack the epoch, and nobody would see it."""
    rebuild(torn, "audit")
    error = refused(torn)
    assert (error.code, error.sink) == (codes.LEDGER_BEHIND, "audit")


def test_a_sink_is_brought_back_and_all_of_them_agree_again(world: DiskWorld) -> None:
    older = shutil.copytree(world.table("audit"), world.folder / "older")
    assert world.run(2) is None
    newest = shutil.copytree(world.table("audit"), world.folder / "newest")
    lose(world)
    restored(world.table("audit"), older)
    with pytest.raises(Refused, match="Sink audit shows epoch 1"):
        rebuild(world)
    restored(world.table("audit"), newest)
    rebuild(world)
    assert_goes_on(world)


def test_a_table_that_is_gone_too_is_named_and_can_be_left_out(lost: DiskWorld) -> None:
    shutil.rmtree(lost.table("audit"))
    with pytest.raises(Refused, match="Sink audit shows no epoch of this pipeline, and lacks epochs 1 to 3"):
        rebuild(lost)
    plan = planning.plan(task(lost), ["audit"])
    assert plan and "It begins with epoch 4, and lacks earlier rows." in "\n".join(wording.announced(plan))


def test_two_ledgers_that_wrote_one_epoch_into_one_sink_each_are_told(world: DiskWorld) -> None:
    """Between two backups: epoch 2 of `audit` is of the first ledger, that of `orders` of the second."""
    ledger = shutil.copytree(world.ledger_root, world.folder / "ledger.backup")
    tables = {sink: shutil.copytree(world.table(sink), world.folder / f"{sink}.backup") for sink in world.sinks}
    assert world.run(2) is None
    first = shutil.copytree(world.table("audit"), world.folder / "audit.first")
    restored(world.ledger_root, ledger)
    for sink, backup in tables.items():
        restored(world.table(sink), backup)
    assert world.run(3) is None
    restored(world.table("audit"), first)
    lose(world)
    with pytest.raises(Refused, match="Two ledgers wrote to the sinks: of epoch 2"):
        rebuild(world)


@pytest.mark.parametrize(
    ("without", "told"),
    [
        (["nobody"], "nobody: no sinks of the DAG"),
        (["orders", "audit"], "all sinks of the DAG"),
        (["orders"], "which shows epoch 3, the newest one"),
    ],
)
def test_sinks_that_cannot_be_left_out_are_refused(lost: DiskWorld, without: list[str], told: str) -> None:
    with pytest.raises(Refused, match=told):
        rebuild(lost, *without)
    assert not lost.records.exists()


@pytest.fixture
def with_state(lost: DiskWorld) -> TaskTry:
    """As ``lost``, with a state table in the DAG that has no rows."""
    totals = StateTable("totals", table=str(lost.folder / "totals"), schema="page string, n bigint", keys=["page"])
    here = task(lost)
    here.pipeline = replace(here.pipeline, sinks=(*here.pipeline.sinks, totals))
    return here


def test_a_state_table_may_be_left_out_if_it_has_no_rows(lost: DiskWorld, with_state: TaskTry) -> None:
    """It begins anew, and the plan says so. The input of the newest epoch is known as before."""
    with pytest.raises(Refused, match="Sink totals shows no epoch") as error:
        planning.plan(with_state)
    assert "If there is none, type it with --without totals: the state begins anew" in error.value.remedy
    plan, without_state = planning.plan(with_state, ["totals"]), planning.plan(task(lost))
    assert plan and without_state and plan.input.ranges == without_state.input.ranges
    told = [line for line in wording.announced(plan) if "totals" in line]
    assert told[0] == "  left out: sink totals: no epoch"
    assert told[1].startswith("The state totals begins anew, in an empty table: it has seen no record before epoch 4.")
    assert len(told) == 2


@pytest.mark.parametrize("without", [[], ["totals"]])
def test_the_way_out_for_a_state_that_lacks_the_last_epoch_is_a_new_table(
    with_state: TaskTry, without: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows, it cannot be left out. Under another name, it would begin anew too, and no `backfill` fills it."""
    behind = LastEpoch(marker=Marker.of(TransactionId(with_state.pipeline.name, 2, 1, "b" * 32)))
    monkeypatch.setattr(StateTable, "last_epoch", lambda *_: behind)
    with pytest.raises(Refused) as error:
        planning.plan(with_state, without)
    assert error.value.sink == (None if without else "totals")
    assert "point the state to a new table in the DAG, and type" in error.value.remedy
    assert "name" not in error.value.remedy and "backfill" not in error.value.remedy
    monkeypatch.setattr(StateTable, "last_epoch", lambda *_: None)  # as of a new table
    assert planning.plan(with_state, ["totals"])


# -- ledgers that cannot be rebuilt -----------------------------------------------------------------------------------


def test_a_ledger_without_its_pipeline_record_is_not_rebuilt_over_the_rest(world: DiskWorld) -> None:
    epochs(world, 2)
    (world.records / "pipeline.json").unlink()
    shutil.rmtree(world.records / "epochs" / f"{2:020}")
    with pytest.raises(Refused) as error:
        rebuild(world)
    assert error.value.code is codes.LEDGER_IN_PARTS and "no pipeline.json" in error.value.what
    world.records.rename(world.folder / "away")
    rebuild(world)
    assert_goes_on(world)


def test_records_later_than_the_sinks_show_are_not_built_upon(world: DiskWorld) -> None:
    older = {sink: shutil.copytree(world.table(sink), world.folder / f"{sink}.backup") for sink in world.sinks}
    epochs(world, 2, 3)
    shutil.rmtree(world.records / "epochs" / f"{1:020}")
    for sink, backup in older.items():
        restored(world.table(sink), backup)
    with pytest.raises(Refused) as error:
        rebuild(world)
    assert error.value.code is codes.LEDGER_IN_PARTS and "records of epoch 3" in error.value.what


def test_tables_whose_logs_lack_the_last_commit_need_the_offsets(world: DiskWorld, tmp_path: Path) -> None:
    """Delta cleans its log up: then a table knows the epoch of its last commit, and nothing else of it."""
    epochs(world, 2, 3)
    newest = task(world).ledger.complete_record(3)
    assert newest
    lose(world)
    for sink in world.sinks:
        log_cleaned(world.table(sink))
    with pytest.raises(SystemExit, match="EPOCHS-ENDS-UNKNOWN") as error:
        typed_rebuild(lambda: task(world), refused(world), ledger_root=world.ledger_root)
    assert "type `airflow epochs rebuild orders --offsets FILE --why …`" in str(error.value)
    words = ("--offsets", offsets_file(tmp_path, newest.ranges))
    screen = typed_rebuild(lambda: task(world), refused(world), *words, ledger_root=world.ledger_root)
    assert "the sinks show epoch 3" in screen and "They are the offsets of the file." in screen
    assert "A partition that it does not name is read from offset 0 on" in screen
    assert_goes_on(world)


def test_offsets_of_a_topic_that_the_pipeline_does_not_read_are_refused(lost: DiskWorld) -> None:
    """As with a typing error: the topic that is meant would be read from its beginning, and its rows come twice."""
    for sink in lost.sinks:
        log_cleaned(lost.table(sink))
    here = task(lost)
    here.pipeline = replace(here.pipeline, source=KafkaSource(["orders"]))
    with pytest.raises(Refused, match="The file names order, which the source in the DAG does not read") as error:
        planning.plan(here, told=Told(ends={"orders": {"0": 2}, "order": {"0": 2}}))
    assert error.value.code is codes.OFFSETS_UNUSABLE


def test_a_watermark_that_no_sink_has_stored_is_not_made_up(lost: DiskWorld) -> None:
    """As with commits of an older version, or with topics and databases alone. An operator may say it."""
    here = task(lost)
    here.pipeline = replace(here.pipeline, event_time=EventTime("10 s"))
    with pytest.raises(Refused) as error:
        planning.plan(here)
    assert error.value.code is codes.WATERMARK_UNKNOWN
    told = Told(watermark=asking.instant_in("2026-01-31T00:00:00Z"))
    plan = planning.plan(here, told=told)
    assert plan and any("as typed: 2026-01-31T00:00:00+00:00. If" in line for line in wording.announced(plan))
    recording.carry_out(here, plan, by=BY)
    record = here.ledger.complete_record(3)
    assert record and record.watermarks == (told.watermark,)
    lost.produce(1)
    for event_time in (EventTime("10 s"), EventTime("10 s", depth=2), None):
        after = next_watermarks(event_time, record, "2026-02-01T00:00:00+00:00")
        assert after == (told.watermark,) * (event_time.depth + 1 if event_time else 1)
    opened = Coordinator(here).open(lost.run_of(4))
    assert isinstance(opened, OpenRecord) and opened.watermarks == (told.watermark,) * 2


@pytest.mark.parametrize(
    "text", ["yesterday", "2026-01-31T00:00:00", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00"]
)
def test_a_watermark_that_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"Write it like 2026-01-31T00:00:00Z\."):
        asking.instant_in(text)


def test_a_ledger_of_another_dag_is_not_rebuilt(world: DiskWorld) -> None:
    backup = shutil.copytree(world.ledger_root, world.folder / "backup")
    epochs(world, 2)
    restored(world.ledger_root, backup)
    with pytest.raises(Refused) as error:
        rebuild(replace(world, dag_id="other"))
    assert error.value.code is codes.PIPELINE_OF_OTHER_DAG


def test_a_ledger_that_has_all_that_the_sinks_show_is_left_alone(world: DiskWorld) -> None:
    begin(world)()
    before = world.snapshot()
    assert planning.plan(task(world)) is None
    assert world.snapshot() == before
