"""What a dry run leaves if it is killed, and who deletes it; and which rows are only on one side."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_epochs.commands.dry_run import show_dry_run
from airflow_epochs.coordinator.inspection import unpublished
from airflow_epochs.coordinator.inspection.dry_run import dry_run
from airflow_epochs.coordinator.inspection.row_difference import difference, shown
from airflow_epochs.coordinator.task import TaskTry, new_writer
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import DryRunRecord
from airflow_epochs.operators import definitions
from tests.support.faults_world import DiskWorld, found_by_commands
from tests.support.spark_world import APPS

pytestmark = pytest.mark.proof

HEX = "0123456789abcdef" * 2


@pytest.fixture
def ended() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def killed(world: DiskWorld, monkeypatch: pytest.MonkeyPatch, writer: str) -> DryRunRecord:
    """A dry run that has staged all, and clears nothing away."""
    task = world.coordinator().task
    task.writer = writer
    with monkeypatch.context() as context:
        context.setattr(unpublished, "_clear", lambda *_: None)
        dry_run(task, 2, 1)
    (record,) = world.ledger.dry_runs()
    assert all(Path(place, "_delta_log").exists() for place in record.tried.places.values())
    return record


def files(world: DiskWorld) -> set[Path]:
    return {path for path in world.folder.rglob("*") if path.is_file()}


def local(process: int) -> str:
    """As the process would sign on this machine."""
    host = new_writer().partition("@")[2].rpartition(":")[0]
    return f"{HEX}@{host}:{process}"


def test_a_dry_run_leaves_no_file_and_shows_the_rows_of_the_epoch(all_read: DiskWorld) -> None:
    before = files(all_read)
    told = dry_run(all_read.coordinator().task, 2, 1)
    assert files(all_read) == before
    assert not list(all_read.folder.glob("*/epochs/dry-*"))
    for each in told.sinks:
        assert each.difference
        assert each.rows_then == each.rows_now > 0  # type: ignore[operator]
        assert (each.difference.only_then, each.difference.only_now) == (0, 0)


def test_the_next_dry_run_clears_away_what_a_killed_one_has_left(
    all_read: DiskWorld, monkeypatch: pytest.MonkeyPatch, ended: int
) -> None:
    before = files(all_read)
    killed(all_read, monkeypatch, local(ended))
    all_read.produce(3)
    assert all_read.run(3) is None
    assert all_read.ledger.newest_complete() == 3, "an epoch does not mind"
    assert len(all_read.ledger.dry_runs()) == 1
    since = {path for path in files(all_read) - before if "dry-" not in str(path)}
    dry_run(all_read.coordinator().task, 1, 1)
    assert files(all_read) == before | since


@pytest.mark.parametrize("where", ["here, alive", "elsewhere"])
def test_what_may_be_running_is_left_alone_for_a_day(
    all_read: DiskWorld, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    record = killed(all_read, monkeypatch, new_writer() if where == "here, alive" else f"{HEX}@elsewhere:1")
    unpublished.clear_away(all_read.coordinator().task)
    assert all_read.ledger.dry_runs() == [record]
    assert all(Path(place).exists() for place in record.tried.places.values())
    task = all_read.coordinator().task
    tomorrow = task.clock() + timedelta(days=1, seconds=1)
    task.clock = lambda: tomorrow
    unpublished.clear_away(task)
    assert all_read.ledger.dry_runs() == []
    assert not any(Path(place).exists() for place in record.tried.places.values())


def test_a_record_alone_deletes_nothing(all_read: DiskWorld, monkeypatch: pytest.MonkeyPatch, ended: int) -> None:
    """Neither a staged epoch that it names, nor a folder that says that it is somebody else's, or says nothing."""
    record = killed(all_read, monkeypatch, local(ended))
    all_read.produce(3)
    all_read.crash_at("decision.landed", 3)
    real = all_read.ledger.tries(3)[0].places["orders"]
    audit = Path(record.tried.places["audit"])
    (audit.parent / "_owner.json").unlink()
    _replaced(all_read.ledger, record, replace(record.tried, places={**record.tried.places, "orders": real}))
    unpublished.clear_away(all_read.coordinator().task)
    assert Path(real, "_delta_log").exists()
    assert Path(audit, "_delta_log").exists()
    assert len(all_read.ledger.dry_runs()) == 1, "it is tried again"
    assert all_read.run(3) is None


def test_no_record_of_a_dry_run_can_have_the_id_of_a_ledger(
    all_read: DiskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = killed(all_read, monkeypatch, new_writer())
    identity = all_read.ledger.identity()
    assert identity
    with pytest.raises(ValueError, match="not a dry run"):
        replace(record, opened=replace(record.opened, ledger_id=identity.ledger_id))


def _replaced(ledger: Ledger, record: DryRunRecord, tried: object) -> None:
    ledger.forget_dry_run(record)
    ledger.put(replace(record, tried=tried))  # type: ignore[arg-type]


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def found(all_read: DiskWorld, monkeypatch: pytest.MonkeyPatch) -> TaskTry:
    """The task of the pipeline that the command finds in the DAGs."""
    return found_by_commands(all_read, monkeypatch)


def typed(**words: object) -> None:
    usual = {"epoch": 2, "transform": None, "sample": 2, "dag_id": None, "ledger_conn_id": None, "output": "table"}
    show_dry_run(Namespace(pipeline="orders", **{**usual, **words}))


def test_the_command_prints_a_table_samples_and_the_reasons_of_the_vote(
    all_read: DiskWorld, found: TaskTry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    typed(transform=str(APPS / "letters.py"))
    told = capsys.readouterr().out
    published = all_read.ledger.complete_record(2)
    assert published
    rows = published.receipts["orders"].rows
    assert re.search(rf"orders +\| {rows} +\| {rows} +\| 0 +\| 0 +\| 0 +\| VOTE_COMMIT", told)
    assert "GLOBAL_COMMIT. Nothing was published. The sinks themselves were not asked." in told
    lost = next(all_read.table("orders").glob(f"epochs/*/{2}-*/*.parquet"))
    lost.unlink()
    found.pipeline = replace(found.pipeline, vote=lambda ballot: f"{ballot.rows['orders']} rows are too few")
    typed()
    told = capsys.readouterr().out
    assert re.search(rf"orders +\| {rows} +\| {rows} +\| - +\| - +\| 0 +\| VOTE_COMMIT", told)
    assert "orders: The rows of one commit to" in told
    assert "files of its commit are gone" in told
    assert "GLOBAL_ABORT. Nothing was published." in told
    assert f"EPOCHS-VOTED-AGAINST: {rows} rows are too few" in told


def test_the_command_says_what_is_wrong_with_its_words(found: TaskTry) -> None:
    with pytest.raises(SystemExit, match=r"EPOCHS-TRANSFORM-MISSING.*nowhere\.py"):
        typed(transform="nowhere.py")
    with pytest.raises(SystemExit, match="EPOCHS-EPOCH-UNKNOWN: The pipeline has no epoch 7"):
        typed(epoch=7)


def test_the_command_clears_away_when_it_is_told_to_end(all_read: DiskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    task = all_read.coordinator({"stage.done": lambda: os.kill(os.getpid(), signal.SIGTERM)}).task
    monkeypatch.setattr(definitions, "find", lambda *_, **__: SimpleNamespace(task=lambda: task))
    before = files(all_read)
    with pytest.raises(KeyboardInterrupt):
        typed()
    assert files(all_read) == before
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# -- rows of one side ------------------------------------------------------------------------------------------------

VALUES = st.one_of(st.none(), st.integers(-2, 2), st.sampled_from(["a", "", b"a", b"\xff", math.nan, 1.5, (1, 2)]))
ROWS = st.lists(st.fixed_dictionaries({"a": VALUES, "b": VALUES}), max_size=12)


@given(ROWS, ROWS)
def test_the_difference_is_that_of_multisets(then: list[dict[str, object]], now: list[dict[str, object]]) -> None:
    def counted(rows: list[dict[str, object]]) -> Counter[str]:
        return Counter(repr((row["a"], row["b"])) for row in rows)

    found = difference(then, now, 3)
    assert found.only_then == (counted(then) - counted(now)).total()
    assert found.only_now == (counted(now) - counted(then)).total()
    assert len(found.sample_now) == min(3, len(counted(now) - counted(then)))


def test_a_column_that_a_row_lacks_is_null() -> None:
    found = difference([{"a": 1}], [{"b": None, "a": 1}], 5)
    assert (found.only_then, found.only_now) == (0, 0)


def test_a_long_row_is_cut_off_and_bytes_are_shown_as_text() -> None:
    assert shown({"b": b"caf\xc3\xa9 \xff", "a": None}) == '{"b": "café \\\\xff"}'
    assert len(shown({"a": "x" * 5_000})) == 1_000
