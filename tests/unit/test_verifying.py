"""``airflow epochs verify`` notices whatever is not as the ledger says: real records, real Delta tables on a disk."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_epochs import codes
from airflow_epochs.commands.verify import show_verification
from airflow_epochs.coordinator.admin import admin
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.inspection.verifying import Finding, FindingVerdict, verify
from airflow_epochs.coordinator.rebuilding import planning, recording
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.ledger.codec import encode
from airflow_epochs.ledger.keys import complete_key
from airflow_epochs.model import CompleteRecord, OffsetRange, Receipt, empty_at_ends
from airflow_epochs.operators import definitions
from airflow_epochs.sinks.delta.sink import DeltaSink
from tests.support.faults_world import DiskWorld, start

pytestmark = pytest.mark.proof

BY = Account(who="ann", why="a test")
WRONG, OK = FindingVerdict.WRONG, FindingVerdict.OK


@pytest.fixture
def world(tmp_path: Path) -> DiskWorld:
    """Four complete epochs in two tables."""
    world = start(DiskWorld(tmp_path))
    for number in range(2, 5):
        world.one_more_epoch(number)
    return world


def checked(world: DiskWorld, epochs: int = 100) -> dict[tuple[str, str], Finding]:
    before = world.snapshot()
    found = list(verify(world.coordinator().task, epochs))
    assert world.snapshot() == before, "a check has written"
    return {(each.about, each.check): each for each in found}


def only_fault(world: DiskWorld) -> Finding:
    [fault] = [each for each in checked(world).values() if each.verdict is WRONG]
    return fault


def complete(world: DiskWorld, epoch: int) -> CompleteRecord:
    record = world.ledger.complete_record(epoch)
    assert record
    return record


def edited(world: DiskWorld, epoch: int, **changes: Any) -> None:
    """A completion record that says something else, with a checksum that fits; this ledger is not signed."""
    record = replace(complete(world, epoch), **changes)
    file_of(world, epoch).write_bytes(encode(record))


def file_of(world: DiskWorld, epoch: int) -> Path:
    return world.ledger_root / world.name / complete_key(epoch)


def receipts_of(world: DiskWorld, epoch: int, **changes: Any) -> dict[str, Receipt]:
    """The epoch's receipts. That of ``orders`` says something else."""
    known = complete(world, epoch).receipts
    return {**known, "orders": replace(known["orders"], **changes)}


def one_later(world: DiskWorld) -> tuple[str, OffsetRange, dict[str, tuple[OffsetRange, ...]]]:
    """The ranges of epoch 3, the first of which begins one offset later."""
    [(topic, (first, *rest))] = complete(world, 3).ranges.items()
    return topic, first, {topic: (first._replace(start=first.start + 1), *rest)}


def test_where_all_agree_every_check_says_so(world: DiskWorld) -> None:
    found = checked(world)
    assert {each.verdict for each in found.values()} == {OK}
    assert [check for about, check in found if about == "ledger"] == ["complete", "offsets", "receipts"]
    checks = ["marker", "versions", "files", "other writers", "rows"]
    assert [check for about, check in found if about == "orders"] == checks
    assert found["orders", "rows"].epochs == 4


def test_only_so_many_epochs_are_looked_at_as_it_is_told(world: DiskWorld) -> None:
    counted: list[int] = []
    found = list(verify(world.coordinator().task, 2, counted.append))
    assert {each.epochs for each in found if each.check in ("complete", "rows", "files")} == {2}
    assert counted == [1] * 4


def test_a_lost_completion_record_is_a_gap_and_the_sinks_are_not_asked(world: DiskWorld) -> None:
    file_of(world, 2).unlink()
    file_of(world, 3).unlink()
    found = checked(world)
    gap = found["ledger", "complete"]
    assert gap.verdict is WRONG and {about for about, _ in found} == {"ledger"}
    assert "epochs/00000000000000000002/complete.json" in gap.details[0] and "Restore this file" in gap.details[0]


def test_a_damaged_completion_record_is_told_with_its_remedy(world: DiskWorld) -> None:
    file_of(world, 2).write_bytes(file_of(world, 2).read_bytes()[:-9])
    damaged = checked(world)["ledger", "complete"]
    assert damaged.verdict is WRONG and "EPOCHS-LEDGER-RECORD-DAMAGED" in damaged.details[0]


def test_an_epoch_that_does_not_begin_where_the_one_before_ended_is_named(world: DiskWorld) -> None:
    topic, first, ranges = one_later(world)
    edited(world, 3, ranges=ranges)
    fault = only_fault(world)
    assert (fault.about, fault.check) == ("ledger", "offsets")
    at = f"{topic}-{first.partition}"
    assert fault.details == (
        f"Epoch 3 begins at {first.start + 1} in {at}, and the epoch before ended at {first.start}.",
    )


def test_an_epoch_without_a_range_of_a_partition_that_was_read_is_named(world: DiskWorld) -> None:
    [(topic, (first, *rest))] = complete(world, 4).ranges.items()
    edited(world, 4, ranges={topic: tuple(rest)})
    assert f"Epoch 4 has no range in {topic}-{first.partition}" in only_fault(world).details[0]


def test_an_epoch_that_a_command_has_moved_may_begin_elsewhere(world: DiskWorld) -> None:
    _, _, ranges = one_later(world)
    edited(world, 3, ranges=ranges, moved_in=3)
    assert checked(world)["ledger", "offsets"].verdict is OK


def test_a_sink_without_receipt_and_waiver_is_named(world: DiskWorld) -> None:
    edited(world, 3, receipts={"audit": complete(world, 3).receipts["audit"]})
    fault = only_fault(world)
    assert fault.details == ("Epoch 3 is complete without a receipt or a waiver of sink orders.",)


def test_a_waived_sink_is_no_fault(world: DiskWorld) -> None:
    edited(world, 3, receipts={"audit": complete(world, 3).receipts["audit"]}, waived=("orders",))
    assert checked(world)["ledger", "receipts"].verdict is OK


def test_a_waived_sink_is_told_with_the_epoch_and_who_waived_it(world: DiskWorld) -> None:
    world.produce(1)
    world.crash_at("commit.orders", 5)
    admin.waive(world.ledger, 5, "orders", by=BY)
    assert world.run(5) is None
    world.one_more_epoch(6)
    receipts = checked(world)["ledger", "receipts"]
    assert receipts.verdict is OK
    assert receipts.details == (
        f"Epoch 5: sink orders was waived by {BY.who} ({BY.why}), so it lacks the epoch's rows.",
    )


@pytest.mark.parametrize("later", [0, 1], ids=["the newest epoch", "an earlier epoch"])
def test_a_waived_sink_whose_commit_landed_all_the_same_is_not_said_to_lack_rows(world: DiskWorld, later: int) -> None:
    world.produce(1)
    world.crash_at("delta.commit.after", 5)
    admin.waive(world.ledger, 5, "orders", by=BY)
    assert world.run(5) is None
    for number in range(later):
        world.one_more_epoch(6 + number)
    receipts = checked(world)["ledger", "receipts"]
    assert receipts.details == (
        f"Epoch 5: sink orders was waived by {BY.who} ({BY.why}), but its commit landed all the same, so it has the "
        "epoch's rows.",
    )


def test_a_waived_sink_that_cannot_be_asked_is_told_so(world: DiskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.produce(1)
    world.crash_at("commit.orders", 5)
    admin.waive(world.ledger, 5, "orders", by=BY)
    assert world.run(5) is None

    def down(self: DeltaSink, pipeline: str, env: object) -> None:
        raise NotApplied("It is down.", code=codes.CONNECTION_MISSING)

    monkeypatch.setattr(DeltaSink, "last_committed", down)
    assert checked(world)["ledger", "receipts"].details == (
        f"Epoch 5: sink orders was waived by {BY.who} ({BY.why}). It is not known whether its commit landed all "
        "the same.",
    )


@pytest.mark.parametrize("sinks", [("orders", "audit"), ("audit",)], ids=["in the DAG", "left the DAG"])
def test_a_waived_sink_that_is_down_is_asked_once_however_many_epochs_were_waived(
    world: DiskWorld, monkeypatch: pytest.MonkeyPatch, sinks: tuple[str, ...]
) -> None:
    for number in (5, 6, 7):
        world.produce(1)
        world.crash_at("commit.orders", number)
        admin.waive(world.ledger, number, "orders", by=BY)
        assert world.run(number) is None
    asked = []

    def down(self: DeltaSink, pipeline: str, env: object) -> None:
        asked.append(self.name)
        raise NotApplied("It is down.", code=codes.CONNECTION_MISSING)

    monkeypatch.setattr(DeltaSink, "last_committed", down)
    found = verify(replace(world, sinks=sinks).coordinator().task, 10)
    receipts = next(each for each in found if each.check == "receipts")
    assert [told.partition(": ")[0] for told in receipts.details] == ["Epoch 7", "Epoch 6", "Epoch 5"]
    assert all("It is not known whether its commit landed" in told for told in receipts.details)
    assert asked == ["orders"], "no check of the sink itself has begun yet"


def test_a_receipt_of_another_transaction_is_named(world: DiskWorld) -> None:
    edited(world, 3, receipts=receipts_of(world, 3, txn_id=complete(world, 2).txn_id))
    found = checked(world)["ledger", "receipts"]
    assert found.details == ("Epoch 3 has a receipt of another transaction for sink orders.",)


def test_a_receipt_with_another_number_of_rows_is_named(world: DiskWorld) -> None:
    rows = complete(world, 3).receipts["orders"].rows
    edited(world, 3, receipts=receipts_of(world, 3, rows=99))
    fault = only_fault(world)
    assert (fault.about, fault.check) == ("orders", "rows")
    assert fault.details == (f"Epoch 3 has {rows} rows, and its receipt says 99.",)


def test_versions_that_fall_are_named(world: DiskWorld) -> None:
    edited(world, 3, receipts=receipts_of(world, 3, version=0))
    assert checked(world)["orders", "versions"].details == (
        "Epoch 3 is version 0 of the table, and an earlier epoch is 1.",
    )


def test_a_table_that_is_gone_is_wrong_and_the_finding_says_what_to_do(world: DiskWorld) -> None:
    shutil.rmtree(world.table("orders"))
    found = checked(world)["orders", "marker"]
    assert found.verdict is WRONG
    [told] = found.details
    assert told.startswith("EPOCHS-") and "adopt-sink orders orders" in told


def test_an_older_copy_of_a_table_is_wrong(world: DiskWorld, tmp_path: Path) -> None:
    shutil.copytree(world.table("orders"), tmp_path / "copy")
    world.one_more_epoch(5)
    shutil.rmtree(world.table("orders"))
    shutil.copytree(tmp_path / "copy", world.table("orders"))
    assert checked(world)["orders", "marker"].verdict is WRONG
    assert checked(world)["audit", "marker"].verdict is OK


def test_data_files_that_are_gone_are_wrong(world: DiskWorld) -> None:
    for uri in DeltaTable(str(world.table("orders"))).file_uris():
        Path(uri).unlink()
    found = checked(world)
    assert found["orders", "files"].verdict is WRONG
    assert (
        "Files of epoch 4 (version 3) are gone, and the table still refers to them." in found["orders", "files"].details
    )
    assert found["orders", "rows"].verdict is FindingVerdict.NOT_CHECKED


def test_files_that_were_compacted_and_vacuumed_are_no_fault(world: DiskWorld) -> None:
    table = DeltaTable(str(world.table("orders")))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    world.one_more_epoch(5)
    found = checked(world)
    assert {each.verdict for each in found.values()} == {OK}
    assert found["orders", "rows"].epochs == 1
    assert "Earlier epochs were not checked." in found["orders", "rows"].details[0]


def test_a_restore_by_somebody_else_is_wrong(world: DiskWorld) -> None:
    DeltaTable(str(world.table("orders"))).restore(1)
    found = checked(world)
    assert WRONG in (found["orders", "marker"].verdict, found["orders", "other writers"].verdict)


@pytest.mark.parametrize("phase", ["commit.orders", "committed.orders", "complete.put"])
def test_an_epoch_in_doubt_is_no_fault(world: DiskWorld, phase: str) -> None:
    world.produce(1)
    world.crash_at(phase, 5)
    assert {each.verdict for each in checked(world).values()} == {OK}


def test_a_sink_that_is_waived_in_an_epoch_in_doubt_may_be_gone(world: DiskWorld) -> None:
    world.produce(1)
    world.crash_at("commit.orders", 5)
    shutil.rmtree(world.table("orders"))
    assert checked(world)["orders", "marker"].verdict is WRONG
    admin.waive(world.ledger, 5, "orders", by=BY)
    assert checked(world)["orders", "marker"].verdict is OK


def test_the_rows_of_an_epoch_that_read_nothing_are_not_counted(world: DiskWorld) -> None:
    edited(world, 4, ranges=empty_at_ends(complete(world, 3).ranges), receipts=receipts_of(world, 4, rows=0))
    rows = checked(world)["orders", "rows"]
    assert (rows.verdict, rows.epochs) == (OK, 3)


def test_epochs_before_the_sink_was_taken_as_it_is_are_not_compared_with_its_table(world: DiskWorld) -> None:
    edited(world, 2, receipts=receipts_of(world, 2, rows=99))
    edited(world, 4, adopted_in={"orders": 3})
    rows = checked(world)["orders", "rows"]
    assert (rows.verdict, rows.epochs) == (OK, 2)


def rebuild(world: DiskWorld) -> None:
    plan = planning.plan(world.coordinator().task)
    assert plan
    recording.carry_out(world.coordinator().task, plan, by=BY)


def test_epochs_before_a_rebuilding_are_not_missed(world: DiskWorld) -> None:
    shutil.rmtree(world.ledger_root)
    rebuild(world)
    world.one_more_epoch(5)
    found = checked(world)
    assert {each.verdict for each in found.values()} == {OK}
    assert found["ledger", "complete"].epochs == 2


def test_the_rows_of_an_epoch_that_a_rebuilding_recorded_are_not_counted(world: DiskWorld, tmp_path: Path) -> None:
    """Its receipt does not know how many they are, though its ranges are those of the epoch."""
    older = shutil.copytree(world.ledger_root, tmp_path / "older copy")
    world.one_more_epoch(5)
    shutil.rmtree(world.ledger_root)
    older.rename(world.ledger_root)
    rebuild(world)
    world.one_more_epoch(6)
    found = checked(world)
    assert {each.verdict for each in found.values()} == {OK}
    assert found["orders", "rows"].epochs == 1


def test_no_more_than_five_faults_of_a_check_are_told(world: DiskWorld) -> None:
    for number in range(5, 9):
        world.one_more_epoch(number)
    for number in range(1, 9):
        edited(world, number, receipts=receipts_of(world, number, rows=99))
    assert len(checked(world)["orders", "rows"].details) == 5


def test_a_sink_that_today_s_dag_does_not_have_is_not_checked(world: DiskWorld) -> None:
    found = checked(replace(world, sinks=("orders",)))
    assert found["audit", "marker"].verdict is FindingVerdict.NOT_CHECKED
    assert found["audit", "marker"].details == ("No sink of today's DAG has this name.",)
    assert ("audit", "rows") not in found and found["audit", "versions"].verdict is OK


def test_rows_of_an_upsert_are_not_checked(tmp_path: Path) -> None:
    world = start(DiskWorld(tmp_path))
    task = world.coordinator().task
    upserts = DeltaSink("orders", str(world.table("orders")), mode="upsert", keys=["offset"])
    task.pipeline = replace(task.pipeline, sinks=(upserts,))
    [rows] = [each for each in verify(task, 10) if (each.about, each.check) == ("orders", "rows")]
    assert rows.verdict is FindingVerdict.NOT_CHECKED and "its mode is 'upsert'" in rows.details[0]


def command(world: DiskWorld, monkeypatch: pytest.MonkeyPatch, output: str = "json") -> int:
    found = SimpleNamespace(task=lambda: world.coordinator().task)
    monkeypatch.setattr(definitions, "find", lambda *names, **more: found)
    args = Namespace(pipeline="orders", epochs=10, dag_id=None, ledger_conn_id=None, output=output)
    try:
        show_verification(args)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def test_the_command_ends_with_0_if_nothing_is_wrong_and_with_1_if_something_is(
    world: DiskWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(world, monkeypatch) == 0
    assert {row["result"] for row in json.loads(capsys.readouterr().out)} == {"ok"}
    assert command(world, monkeypatch, "plain") == 0
    assert "Pipeline orders: 13 of 13 checks are in order." in capsys.readouterr().out
    shutil.rmtree(world.table("audit"))
    assert command(world, monkeypatch, "plain") == 1
    assert "of 13 checks failed." in capsys.readouterr().out


def test_a_sink_that_does_not_answer_is_no_fault_of_its_own_and_still_ends_with_1(
    world: DiskWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent(*of: object) -> None:
        raise NotApplied("The store does not answer.", remedy="Wait.")

    monkeypatch.setattr(DeltaSink, "last_committed", silent)
    assert command(world, monkeypatch) == 1
    rows = {(row["of"], row["check"]): row for row in json.loads(capsys.readouterr().out)}
    assert rows["orders", "marker"]["result"] == "no answer"
    assert rows["orders", "rows"]["result"] == "ok"


def test_a_missing_right_to_read_a_topic_is_no_lost_row(
    world: DiskWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forbidden(*of: object) -> None:
        raise Refused("The user may not read the topic.", code=codes.KAFKA_FORBIDDEN)

    monkeypatch.setattr(DeltaSink, "rows_of", forbidden)
    assert command(world, monkeypatch) == 1
    rows = {(row["of"], row["check"]): row for row in json.loads(capsys.readouterr().out)}
    assert rows["orders", "rows"]["result"] == "no answer"
    assert rows["orders", "marker"]["result"] == "ok"


def test_a_pipeline_without_a_complete_epoch_has_nothing_to_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(DiskWorld(tmp_path), monkeypatch) == 1
