"""A preview shows what each sink would get of the next records, and leaves nothing behind: Delta tables on a disk."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pytest
import yaml

from airflow_epochs import DeltaSink, codes
from airflow_epochs.commands import preview as command
from airflow_epochs.commands.preview import show_preview
from airflow_epochs.contracts import StagedSample
from airflow_epochs.coordinator.admin.actions import Abort, Pause, Unpause
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.inspection import unpublished
from airflow_epochs.coordinator.inspection.dry_run import dry_run
from airflow_epochs.coordinator.inspection.preview import Preview, SinkPreview, preview
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import NoNewData, Refused
from airflow_epochs.model import OpenRecord
from airflow_epochs.names import DRY_RUN
from airflow_epochs.operators import definitions
from airflow_epochs.staged import parquet_batches
from tests.support.faults_world import DiskWorld, abort, found_by_commands

pytestmark = pytest.mark.proof

KEY = "the key of this ledger's owner"


def files(world: DiskWorld) -> set[Path]:
    return {path for path in world.folder.rglob("*") if path.is_file()}


def test_a_preview_shows_rows_and_columns_and_leaves_no_file(seven_unread: DiskWorld) -> None:
    before = files(seven_unread)
    told = preview(seven_unread.coordinator().task, 100, 1)
    assert files(seven_unread) == before
    assert told.epoch == 2
    assert [each.sink for each in told.sinks] == ["audit", "orders"]
    for each in told.sinks:
        assert each.problem is None and each.rows and each.sample
        assert len(each.sample.rows) == 1
        assert [name for name, _ in each.sample.columns] == list(each.sample.rows[0])
    assert seven_unread.ledger.view(2).open is None


def test_a_preview_of_a_delta_sink_reads_no_more_rows_than_it_shows(
    seven_unread: DiskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[pa.RecordBatch] = []

    def row_by_row(opened: BinaryIO) -> Iterator[pa.RecordBatch]:
        for batch in whole(opened):
            for number in range(batch.num_rows):
                read.append(batch.slice(number, 1))
                yield read[-1]

    whole = parquet_batches.batches
    monkeypatch.setattr(parquet_batches, "batches", row_by_row)
    told = preview(seven_unread.coordinator().task, 100, 1)
    assert all((each.rows or 0) > 1 for each in told.sinks)
    assert len(read) == len(told.sinks)


def test_the_next_epoch_takes_the_records_that_a_preview_has_shown(seven_unread: DiskWorld) -> None:
    told = preview(seven_unread.coordinator().task, 100, 1)
    assert seven_unread.run(2) is None
    record = seven_unread.ledger.complete_record(2)
    assert record and record.ranges == told.ranges
    assert {sink: receipt.rows for sink, receipt in record.receipts.items()} == {s.sink: s.rows for s in told.sinks}


@pytest.mark.parametrize("password", ["", KEY], ids=["unsigned", "signed"])
def test_a_preview_before_the_first_epoch_creates_no_table(tmp_path: Path, password: str) -> None:
    world = DiskWorld(tmp_path, password=password)
    world.produce(1)
    told = preview(world.coordinator().task, 100, 2)
    assert told.epoch == 1 and all(each.rows for each in told.sinks)
    assert not [path for path in files(world) if "_delta_log" in str(path)]


def test_a_preview_is_refused_while_an_epoch_is_open_or_in_doubt(seven_unread: DiskWorld) -> None:
    task, run = seven_unread.coordinator(), seven_unread.run_of(2)
    task.open(run)
    report = task.stage(run).stage
    with pytest.raises(Refused, match="Epoch 2 is open: run run 2 of DAG dag has taken its records") as open_yet:
        preview(seven_unread.coordinator().task, 100, 1)
    task.vote(run, report)
    with pytest.raises(Refused, match="Epoch 2 is in doubt") as in_doubt:
        preview(seven_unread.coordinator().task, 100, 1)
    assert {open_yet.value.code, in_doubt.value.code} == {codes.DRY_RUN_UNFINISHED}
    assert commands(open_yet.value) == ["pause", "abort", "unpause"]
    assert commands(in_doubt.value) == ["retry"]
    assert seven_unread.run(3) is None
    seven_unread.produce(1)
    assert preview(seven_unread.coordinator().task, 100, 1).epoch == 3


def commands(refused: Refused) -> list[str]:
    return re.findall(r"`airflow epochs (\w+) orders --why …`", refused.filled_remedy)


def test_an_open_epoch_is_previewed_as_the_error_says_and_no_other_run_takes_its_records(
    seven_unread: DiskWorld,
) -> None:
    opened = seven_unread.coordinator().open(seven_unread.run_of(2))
    assert isinstance(opened, OpenRecord)
    ada = Account(who="ada", why="to look first")
    Pause.of(seven_unread.ledger, "orders").do(seven_unread.ledger, ada)
    Abort.of(seven_unread.ledger, "orders").do(seven_unread.ledger, ada)
    with pytest.raises(NoNewData):
        seven_unread.coordinator().open(seven_unread.run_of(3))
    assert preview(seven_unread.coordinator().task, 100, 1).ranges == opened.ranges
    Unpause.of(seven_unread.ledger, "orders").do(seven_unread.ledger, ada)
    assert seven_unread.run(3) is None
    record = seven_unread.ledger.complete_record(2)
    assert record and record.ranges == opened.ranges


def test_a_preview_after_an_abort_shows_the_records_that_the_next_attempt_takes(seven_unread: DiskWorld) -> None:
    opened = seven_unread.coordinator().open(seven_unread.run_of(2))
    assert isinstance(opened, OpenRecord)
    abort(seven_unread.coordinator(), seven_unread.run_of(2))
    seven_unread.produce(3)
    told = preview(seven_unread.coordinator().task, 1, 1)
    assert (told.epoch, told.ranges) == (2, opened.ranges)
    assert told.warnings == ("Epoch 2 was aborted. These are all of its records, whatever --records says.",)
    assert seven_unread.run(3) is None
    record = seven_unread.ledger.complete_record(2)
    assert record and record.ranges == told.ranges


@pytest.mark.parametrize("play", [partial(preview, records=100), partial(dry_run, epoch=1)], ids=["preview", "dry run"])
def test_a_sink_that_no_task_could_read_from_a_record_is_refused_by_its_argument(
    seven_unread: DiskWorld, play: Callable[..., object]
) -> None:
    task = seven_unread.coordinator().task
    wrong = DeltaSink("orders", str(seven_unread.folder / "orders"), compact_every=cast(Any, 0.5))
    with pytest.raises(Refused, match=r"sink 'orders' .*compact_every: Expected `int`") as refused:
        play(replace(task, pipeline=replace(task.pipeline, sinks=(wrong,))), sample=1)
    assert refused.value.code is codes.SINK_MISCONFIGURED


def left_by_a_killed_preview(world: DiskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    task = world.coordinator().task
    task.writer = f"{'0' * 32}@elsewhere:1"
    with monkeypatch.context() as context:
        context.setattr(unpublished, "_clear", lambda *_: None)
        preview(task, 100, 1)


@pytest.mark.parametrize("password", ["", KEY], ids=["unsigned", "signed"])
def test_what_a_preview_killed_before_the_first_epoch_has_left_is_cleared_away_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    world = DiskWorld(tmp_path, password=password)
    world.produce(1)
    left_by_a_killed_preview(world, monkeypatch)
    assert world.run(1) is None
    world.produce(1)
    assert [path for path in files(world) if DRY_RUN in path.parent.name]
    monkeypatch.setattr(unpublished, "_is_over", lambda *_: True)
    told = preview(world.coordinator().task, 100, 1)
    assert told.epoch == 2
    assert not [path for path in files(world) if DRY_RUN in str(path.relative_to(world.folder))]


def test_without_new_records_the_error_names_the_dry_run(seven_unread: DiskWorld) -> None:
    assert seven_unread.run(2) is None
    with pytest.raises(NoNewData) as nothing:
        preview(seven_unread.coordinator().task, 100, 1)
    assert "airflow epochs dry-run orders --epoch" in nothing.value.remedy


def test_the_next_preview_clears_away_what_a_killed_one_has_left(
    seven_unread: DiskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(seven_unread)
    left_by_a_killed_preview(seven_unread, monkeypatch)
    assert files(seven_unread) > before
    monkeypatch.setattr(unpublished, "_is_over", lambda *_: True)
    preview(seven_unread.coordinator().task, 100, 1)
    assert files(seven_unread) == before


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def found(seven_unread: DiskWorld, monkeypatch: pytest.MonkeyPatch) -> TaskTry:
    """The task of the pipeline that the command finds in the DAGs."""
    return found_by_commands(seven_unread, monkeypatch)


def typed(capsys: pytest.CaptureFixture[str], **words: object) -> str:
    usual = {"records": 100, "transform": None, "sample": 1, "dag_id": None, "ledger_conn_id": None, "output": "table"}
    show_preview(Namespace(pipeline="orders", **{**usual, **words}))
    return capsys.readouterr().out


def test_the_command_prints_a_line_for_each_sink_and_its_rows(
    found: TaskTry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = typed(capsys)
    assert "Pipeline orders, epoch 2 to come: " in told
    assert told.count("\norders: {") == told.count("\naudit: {") == 1
    assert "Nothing was published, and the next epoch takes these records." in told
    assert told.count("| yes") == 2
    assert "orders: {" not in typed(capsys, sample=0)


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_the_command_prints_a_document_with_real_types(
    found: TaskTry, capsys: pytest.CaptureFixture[str], output: str, read: Callable[[str], Any]
) -> None:
    told = read(typed(capsys, output=output))
    assert told["epoch"] == 2
    assert told["ranges"] == {
        "orders": [{"partition": 0, "start": 2, "end": 6}, {"partition": 1, "start": 2, "end": 5}],
    }
    sink = next(each for each in told["sinks"] if each["sink"] == "orders")
    assert isinstance(sink["rows"], int) and sink["problem"] is None and sink["creates"] is None
    assert {"name", "type"} == set(sink["columns"][0])
    assert sink["fit"] == "yes"
    assert len(sink["sample"]) == 1


@pytest.mark.parametrize(
    ("value", "shown"), [(b"not json \xc3\xa9", "not json é"), (b"\xff\x00", "0xff00"), (1.5, 1.5)]
)
def test_a_binary_value_is_shown_as_the_text_that_it_is_or_else_by_its_bytes(
    found: TaskTry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, value: object, shown: object
) -> None:
    sample = StagedSample(columns=(("value", "binary"),), count=1, rows=({"value": value},))
    sink = SinkPreview(sink="own", rows=1, sample=sample, problem=None)
    told = Preview(pipeline="orders", epoch=2, ranges={}, sinks=(sink,), warnings=())
    monkeypatch.setattr(command, "preview", lambda *_: told)
    assert json.loads(typed(capsys, output="json"))["sinks"][0]["sample"] == [{"value": shown}]
    assert f"own: {json.dumps({'value': shown})}\n" in typed(capsys)


@pytest.mark.parametrize(("problem", "fit"), [(None, "unknown"), ("It has no column day.", "no")])
@pytest.mark.parametrize("output", ["table", "json"])
def test_of_a_sink_that_shows_no_rows_the_command_says_whether_anything_is_known(
    found: TaskTry,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    problem: str | None,
    fit: str,
    output: str,
) -> None:
    shown = SinkPreview(sink="own", rows=7, sample=None, problem=problem)
    told = Preview(pipeline="orders", epoch=2, ranges={}, sinks=(shown,), warnings=())
    monkeypatch.setattr(command, "preview", lambda *_: told)
    monkeypatch.setenv("COLUMNS", "200")
    printed = typed(capsys, output=output)
    assert (json.loads(printed)["sinks"][0]["fit"] == fit) if output == "json" else (f"| {fit}" in printed)


def test_the_command_ends_with_the_error_where_there_is_nothing_to_show(
    seven_unread: DiskWorld, found: TaskTry
) -> None:
    assert seven_unread.run(2) is None
    task = replace(seven_unread.coordinator().task)
    with pytest.raises(SystemExit, match="EPOCHS-NO-NEW-DATA") as ended, pytest.MonkeyPatch.context() as context:
        context.setattr(definitions, "find", lambda *_, **__: SimpleNamespace(task=lambda: task))
        typed_quietly()
    assert "dry-run orders" in str(ended.value)


def typed_quietly() -> None:
    usual = {"records": 100, "transform": None, "sample": 1, "dag_id": None, "ledger_conn_id": None, "output": "table"}
    show_preview(Namespace(pipeline="orders", **usual))
