"""A file of the table is damaged, so that Spark can commit no MERGE: the error names it, and its ways out lead out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_epochs import DeltaSink, SparkConnect, codes
from airflow_epochs.contracts import Sink
from airflow_epochs.errors import Corrupt, OutcomeUnknown
from orders_demo.duck import duck
from stack.connect import ConnectServer
from tests.support.delta_world import log_of
from tests.support.spark_world import IGNORING
from tests.support.table_lab import TableLab

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

COUNT = "WHEN MATCHED THEN UPDATE SET t.amount = t.amount + s.amount WHEN NOT MATCHED THEN INSERT *"


@dataclass
class Counting(TableLab):
    """Its sink adds up the amounts of each id, unless it has another mode."""

    sink: str = "rows"
    into: str = "sums"
    mode: dict[str, Any] = field(default_factory=lambda: {"mode": "merge", "keys": ["id"], "merge": COUNT})

    @property
    def sinks(self) -> tuple[Sink, ...]:
        return (DeltaSink(self.sink, self.target, **self.mode),)

    @property
    def target(self) -> str:
        return str(self.folder / self.into)

    def epoch(self, *ids: int) -> None:
        self.write(*ids)
        self.run()

    def sums(self) -> dict[int, float]:
        """As DuckDB reads them."""
        with duck() as database:
            return dict(database.execute("SELECT id, amount FROM delta_scan(?)", [self.target]).fetchall())

    def added(self, version: int) -> list[Path]:
        """The files that a version of the target added."""
        return [Path(self.target, action["add"]["path"]) for action in log_of(self.target)[version] if "add" in action]

    def stopped(self) -> Corrupt:
        with pytest.raises(Corrupt) as caught:
            self.run()
        assert caught.value.code is codes.DELTA_FILE_DAMAGED
        assert "Nothing is lost" not in str(caught.value)
        return caught.value


@pytest.fixture
def lab(tmp_path: Path, connect: ConnectServer) -> Counting:
    return Counting(tmp_path, connect.where)


def restored(session: Any, error: Corrupt) -> None:
    """Do what the error says of the table."""
    statement = re.search(r"RESTORE TABLE \S+ TO VERSION AS OF \d+", error.remedy)
    assert statement
    session.sql(statement[0]).collect()


@pytest.mark.long
def test_a_new_table_gets_all_epochs_again_after_a_file_of_the_old_one_was_damaged(lab: Counting) -> None:
    lab.mode = {"mode": "upsert", "keys": ["id"]}
    for ids in ((1, 2), (3, 4), (5, 6)):
        lab.epoch(*ids)
    (file,) = lab.added(2)  # version 0 created the table
    file.write_bytes(b"")
    lab.write(1, 3, 7)
    error = lab.stopped()
    assert file.name in error.what and "has 0 bytes" in error.what
    assert 'backfill={"<the new name>": <the first epoch of the table>}' in error.remedy
    lab.typed(error, "waive")
    lab.run()
    lab.sink, lab.into, lab.backfill = "rows_2", "sums_2", {"rows_2": 1}
    lab.epoch(8)
    assert lab.sums() == {number: number / 4 for number in range(1, 9)}


def test_a_damaged_file_of_a_compaction_is_named_and_without_it_the_commit_goes_on(session: Any, lab: Counting) -> None:
    for ids in ((1, 2), (3, 4)):
        lab.epoch(*ids)
    session.sql(f"OPTIMIZE delta.`file://{lab.target}`").collect()
    (file,) = lab.added(DeltaTable(lab.target).version())
    file.write_bytes(file.read_bytes()[:-100])
    lab.write(1, 5)
    error = lab.stopped()
    assert file.name in error.what and "bytes, of the" in error.what
    assert "No row is lost by that" in error.remedy and "airflow epochs waive" not in error.remedy
    restored(session, error)
    lab.run()
    assert lab.sums() == {1: 0.5, 2: 0.5, 3: 0.75, 4: 1.0, 5: 1.25}


@pytest.mark.long
def test_a_file_that_is_damaged_inside_is_not_said_to_be_nothing_lost(lab: Counting) -> None:
    lab.epoch(1, 2)
    (file,) = lab.added(DeltaTable(lab.target).version())
    content = file.read_bytes()
    file.write_bytes(content[:4] + bytes(len(content) - 12) + content[-8:])
    lab.write(1, 4)
    with pytest.raises(OutcomeUnknown) as caught:
        lab.run()
    assert file.name in caught.value.what and "Nothing is lost" not in caught.value.what
    assert "'Power cuts, and damaged files'" in caught.value.remedy
    file.write_bytes(content)
    lab.run()
    assert lab.sums() == {1: 0.5, 2: 0.5, 4: 1.0}


@pytest.mark.long
def test_a_damaged_file_that_comes_back_from_a_backup_lets_the_commit_go_on(lab: Counting) -> None:
    lab.epoch(1, 2)
    (file,) = lab.added(DeltaTable(lab.target).version())
    backup = file.rename(lab.folder / "backup")
    lab.write(1, 4)
    assert "is gone" in lab.stopped().what
    backup.rename(file)
    lab.run()
    assert lab.sums() == {1: 0.5, 2: 0.5, 4: 1.0}


# -- a server that is set up to leave out what it cannot read --------------------------------------------------------


@pytest.fixture
def ignoring(lab: Counting) -> Counting:
    lab.spark = SparkConnect("spark", session_conf=IGNORING)
    return lab


def damaged(file: Path) -> None:
    file.write_bytes(b"x" * file.stat().st_size)


@pytest.mark.few(1)
@pytest.mark.parametrize("strike", [damaged, Path.unlink])
@pytest.mark.parametrize(
    "mode", [{"mode": "upsert", "keys": ["id"]}, {"mode": "merge", "keys": ["id"], "merge": COUNT}]
)
def test_a_file_that_cannot_be_read_stops_the_commit_whatever_the_server_ignores(
    ignoring: Counting, mode: dict[str, Any], strike: Callable[[Path], None]
) -> None:
    ignoring.mode = {"keys": ["id"], **mode}
    ignoring.epoch(1, 2)
    (file,) = ignoring.added(DeltaTable(ignoring.target).version())
    whole = file.read_bytes()
    strike(file)
    ignoring.write(1, 4)
    error = ignoring.stopped()
    assert file.name in error.what and error.remedy.startswith("Restore the file from a backup")
    file.write_bytes(whole)
    ignoring.run()
    assert ignoring.asked("SELECT id FROM t ORDER BY id", of=ignoring.into) == [(1,), (2,), (4,)]


def test_a_compaction_leaves_a_damaged_file_in_the_table_whatever_the_server_ignores(ignoring: Counting) -> None:
    ignoring.mode = {"commit": "spark", "compact_every": 2}
    ignoring.epoch(1, 2)
    (file,) = ignoring.added(0)
    whole = file.read_bytes()
    damaged(file)
    ignoring.epoch(3)
    file.write_bytes(whole)
    assert ignoring.asked("SELECT id FROM t ORDER BY id", of=ignoring.into) == [(1,), (2,), (3,)]
