"""``airflow epochs adopt-sink`` after an epoch that was completed without the sink: what it says is what is missing."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_epochs import DeltaSink, SqlSink, codes
from airflow_epochs.contracts import Connection, Sink
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import EpochError
from airflow_epochs.model import Run, WaivedRecord
from airflow_epochs.testing import Crash
from tests.support.faults_world import crash
from tests.support.table_lab import TableLab
from tests.support.table_staging import WithoutSpark


@dataclass
class Moving(TableLab):
    """The DAG may point the sink ``rows``, or one in its place, to another folder."""

    at: str = "rows"
    name: str = "rows"

    @property
    def sinks(self) -> tuple[Sink, ...]:
        return DeltaSink(self.name, str(self.folder / self.at)), DeltaSink("copy", str(self.folder / "copy"))


@pytest.fixture
def lab(tmp_path: Path) -> TableLab:
    """Two sinks, and one complete epoch; Spark is not needed."""
    lab = TableLab(tmp_path, spark=WithoutSpark(), more_sinks=("copy",))
    lab.write(1)
    lab.run()
    return lab


def behind(lab: TableLab) -> EpochError:
    with pytest.raises(EpochError) as error:
        lab.run()
    assert error.value.code is codes.SINK_BEHIND and error.value.sink == "rows"
    return error.value


def waived(lab: TableLab, *, lands: bool = False) -> None:
    """An epoch whose commit to the table hangs until somebody has waived the sink, and the epoch is complete."""
    run, tasks = Run("dag", "the run that hangs"), Coordinator(lab.task())
    opened = tasks.open(run)
    tasks.vote(run, tasks.stage(run).stage)

    def meanwhile() -> None:
        lab.ledger.put(WaivedRecord(txn_id=opened.txn_id, sink="rows", who="me", why="it hangs", at="now"))
        tasks.commit(run, "copy")
        tasks.complete(run)

    if lands:
        Coordinator(lab.task(at={"delta.commit.before": meanwhile})).commit(run, "rows")
    else:
        meanwhile()


def test_what_a_sink_lacks_ends_with_the_newest_epoch_that_was_waived(lab: TableLab) -> None:
    rows = lab.folder / "rows"
    older = shutil.copytree(rows, lab.folder / "older")
    lab.write(2)
    lab.run()
    shutil.rmtree(rows)
    older.rename(rows)
    lab.write(3)
    assert "the rows of epoch 2 (1 by their receipts)" in lab.typed(behind(lab), "adopt-sink")
    waived(lab)
    lab.write(4)
    screen = lab.typed(behind(lab), "adopt-sink")
    assert "the rows of epochs 2 to 3 (1 by their receipts; no receipt in 1 of 2 epochs)" in screen
    lab.run()
    assert lab.ids() == Counter([1, 4])
    assert sorted(lab.asked("SELECT id FROM t", "copy")) == [(1,), (2,), (3,), (4,)]


def test_a_command_at_a_sink_that_is_no_table_says_to_run_the_command_again(lab: TableLab) -> None:
    log = lab.folder / "rows" / "_delta_log"
    (lab.folder / "rows" / "more").touch()
    away = log.rename(lab.folder / "away")
    with pytest.raises(SystemExit, match=codes.DELTA_NOT_A_TABLE.name) as ended:
        lab.ordered("adopt-sink", "rows")
    remedy = str(ended.value.code).splitlines()[-1]
    assert remedy.endswith(" run the command again.") and "clear" not in remedy
    away.rename(log)
    assert "Nothing to do: sink rows shows what the ledger expects" in lab.ordered("adopt-sink", "rows")


def test_a_waived_commit_that_landed_late_is_nothing_to_adopt(lab: TableLab) -> None:
    lab.write(2)
    waived(lab, lands=True)
    assert "Nothing to do: sink rows shows what the ledger expects" in lab.ordered("adopt-sink", "rows")
    lab.write(3)
    lab.run()
    assert lab.ids() == Counter([1, 2, 3])


def test_a_table_with_a_late_commit_that_the_dag_points_to_again_takes_an_adoption_back(lab: TableLab) -> None:
    lab.write(2)
    waived(lab, lands=True)
    lab.ordered("adopt-sink", "rows", "--new-table")
    lab.write(3)
    with pytest.raises(EpochError) as error:
        lab.run()
    assert error.value.code is codes.ADOPTION_OUTDATED
    assert "it lacks nothing. The earlier `adopt-sink`" in lab.typed(error.value, "adopt-sink")
    lab.run()
    assert lab.ids() == Counter([1, 2, 3])


def moved_back(lab: Moving) -> None:
    """The sink went on in another table, and the DAG points it back to the first one."""
    lab.at = "other"
    lab.write(2)
    lab.typed(elsewhere(lab), "adopt-sink")
    lab.run()
    lab.at = "rows"


def to_a_copy(lab: Moving) -> None:
    """The DAG points the sink to a copy of its table, which is older."""
    shutil.copytree(lab.folder / "rows", lab.folder / "older")
    lab.write(2)
    lab.run()
    lab.at = "older"


def elsewhere(lab: TableLab) -> EpochError:
    with pytest.raises(EpochError) as error:
        lab.run()
    assert error.value.code is codes.TABLE_ELSEWHERE and error.value.sink == "rows"
    return error.value


@pytest.fixture
def moving(tmp_path: Path, request: pytest.FixtureRequest) -> Moving:
    """Epoch 1 is in the table of the DAG and epoch 2 in another one; both are in the sink ``copy``."""
    lab = Moving(tmp_path, spark=WithoutSpark(), more_sinks=("copy",))
    lab.write(1)
    lab.run()
    request.param(lab)
    lab.write(3)
    return lab


@pytest.mark.parametrize("moving", [moved_back, to_a_copy], indirect=True)
def test_a_sink_that_the_dag_points_to_a_table_with_an_older_epoch_goes_on_there_after_the_command_in_the_error(
    moving: Moving,
) -> None:
    error = elsewhere(moving)
    assert f"points to {moving.folder / moving.at}, which shows epoch 1, but epoch 2 was committed to " in error.what
    screen = moving.typed(error, "adopt-sink")
    assert "shows epoch 1, and the ledger expects epoch 2." in screen
    assert "the rows of epoch 2 (1 by their receipts)" in screen
    moving.run()
    assert ids_in(moving, moving.at) == [1, 3]
    assert ids_in(moving, "copy") == [1, 2, 3]


@pytest.mark.parametrize("moving", [moved_back, to_a_copy], indirect=True)
def test_a_sink_that_the_dag_points_to_a_table_with_an_older_epoch_gets_the_others_under_another_name(
    moving: Moving,
) -> None:
    named = re.search(
        r'another name, with EpochPipeline\(…, backfill=\{"<the new name>": (\d+)\}\)', str(elsewhere(moving))
    )
    assert named
    moving.name, moving.backfill = "rows_2", {"rows_2": int(named[1])}
    moving.run()
    assert ids_in(moving, moving.at) == ids_in(moving, "copy") == [1, 2, 3]


class InSqlite(TableLab):
    """The sink ``rows`` is a table of the file that its connection names."""

    @property
    def sinks(self) -> tuple[Sink, ...]:
        return (SqlSink("rows", "db", "rows", staging=str(self.folder / "staging")),)

    def connect(self, file: str) -> Path:
        path = self.folder / file
        self.connections["db"] = Connection(conn_id="db", conn_type="sqlite", host=str(path))
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS rows (id bigint, amount double precision)")
        return path


def test_a_connection_that_leads_back_to_a_database_with_an_older_epoch_goes_on_there_after_the_command_in_the_error(
    tmp_path: Path,
) -> None:
    lab = InSqlite(tmp_path, spark=WithoutSpark())
    first = lab.connect("first.db")
    lab.write(1)
    lab.run()
    other = lab.connect("other.db")
    lab.write(2)
    lab.typed(elsewhere(lab), "adopt-sink")
    lab.run()
    lab.connect("first.db")
    lab.write(3)
    error = elsewhere(lab)
    assert "leads to another database than the last epoch was committed to" in error.what
    screen = lab.typed(error, "adopt-sink")
    assert "shows epoch 1, and the ledger expects epoch 2." in screen
    assert "the rows of epoch 2 (1 by their receipts)" in screen
    lab.run()
    assert [ids_in_sqlite(path) for path in (first, other)] == [[1, 3], [2]]


def ids_in_sqlite(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as database:
        return [number for (number,) in database.execute("SELECT id FROM rows ORDER BY id")]


@pytest.mark.parametrize("moving", [moved_back], indirect=True)
def test_a_command_for_a_new_table_that_shows_an_epoch_is_outdated_and_its_error_says_what_to_add(
    moving: Moving,
) -> None:
    moving.ordered("adopt-sink", "rows", "--new-table")
    with pytest.raises(EpochError) as error:
        moving.run()
    assert error.value.code is codes.ADOPTION_OUTDATED
    added = re.search(r"If that is not the table of the DAG, add `(--shows 1)`\.", error.value.remedy)
    assert added
    assert "shows epoch 1, and the ledger expects epoch 2." in moving.typed(
        error.value, "adopt-sink", *added[1].split()
    )
    moving.run()
    assert ids_in(moving, "rows") == [1, 3]


def test_a_command_for_an_older_table_that_is_new_is_outdated_and_its_error_says_what_to_add(tmp_path: Path) -> None:
    lab = two_epochs(tmp_path)
    lab.ordered("adopt-sink", "rows", "--shows", "1")
    lab.at = "new"
    with pytest.raises(EpochError) as error:
        lab.run()
    assert error.value.code is codes.ADOPTION_OUTDATED
    assert "If that is not the table of the DAG, add `--new-table`." in error.value.remedy
    lab.typed(error.value, "adopt-sink", "--new-table")
    lab.run()
    assert (ids_in(lab, "new"), ids_in(lab, "copy")) == ([3], [1, 2, 3])


def two_epochs(folder: Path) -> Moving:
    """A pipeline with two complete epochs and one row more, in a folder that may be new."""
    folder.mkdir(exist_ok=True)
    lab = Moving(folder, spark=WithoutSpark(), more_sinks=("copy",))
    for number in (1, 2):
        lab.write(number)
        lab.run()
    lab.write(3)
    return lab


@pytest.fixture
def stranger(tmp_path: Path) -> Moving:
    """The DAG points the sink to the table of another ledger, which the command has taken unseen."""
    lab, other = two_epochs(tmp_path / "lab"), Moving(tmp_path, spark=WithoutSpark(), more_sinks=("copy",))
    other.write(7)
    other.run()
    shutil.copytree(tmp_path / "rows", lab.folder / "strange")
    lab.at = "strange"
    lab.typed(elsewhere(lab), "adopt-sink")
    return lab


def of_two_ledgers(lab: Moving) -> EpochError:
    with pytest.raises(EpochError) as error:
        lab.run()
    assert (error.value.code, error.value.sink) == (codes.TWO_LEDGERS, "rows")
    assert "adopt-sink" not in error.value.remedy, "it would take the table again, and the next run would refuse it"
    return error.value


def test_a_table_of_another_ledger_is_not_taken_and_the_run_goes_on_under_another_name(stranger: Moving) -> None:
    assert "give this pipeline's sink another name: it begins with the next epoch" in of_two_ledgers(stranger).remedy
    stranger.name = "rows_2"
    stranger.run()
    assert (ids_in(stranger, "strange"), ids_in(stranger, "copy")) == ([3, 7], [1, 2, 3])


def test_a_table_of_another_ledger_is_not_taken_and_the_run_goes_on_in_the_table_before(stranger: Moving) -> None:
    assert of_two_ledgers(stranger).remedy.startswith("Correct the DAG if it should point the sink to another table,")
    stranger.at = "rows"
    with pytest.raises(EpochError) as error:
        stranger.run()
    assert error.value.code is codes.ADOPTION_OUTDATED
    assert "it lacks nothing" in stranger.typed(error.value, "adopt-sink")
    stranger.run()
    assert ids_in(stranger, "rows") == ids_in(stranger, "copy") == [1, 2, 3]


def test_a_waived_sink_that_the_dag_points_to_an_older_copy_goes_on_there_with_what_the_error_adds(
    tmp_path: Path,
) -> None:
    """Without a receipt, nobody can tell that it is another table."""
    lab = two_epochs(tmp_path)
    shutil.copytree(lab.folder / "rows", lab.folder / "older")
    lab.run()
    lab.write(4)
    with pytest.raises(Crash):
        lab.run(at={"decision.landed": crash})
    txn_id = lab.ledger.view(4).opened.txn_id
    lab.ledger.put(WaivedRecord(txn_id=txn_id, sink="rows", who="me", why="dropped", at="now"))
    lab.run()
    lab.at = "older"
    lab.write(5)
    with pytest.raises(EpochError) as error:
        lab.run()
    assert error.value.code is codes.SINK_BEHIND
    added = re.search(r"another place for the sink than before, add `(--shows 2)` to the command", str(error.value))
    assert added
    lab.typed(error.value, "adopt-sink", *added[1].split())
    lab.run()
    assert (ids_in(lab, "older"), ids_in(lab, "copy")) == ([1, 2, 5], [1, 2, 3, 4, 5])


@pytest.mark.parametrize("epoch", ["0", "2", "9"])
def test_a_table_that_shows_an_epoch_which_the_ledger_has_no_rows_of_is_not_taken(lab: TableLab, epoch: str) -> None:
    with pytest.raises(SystemExit, match=rf"EPOCHS-SINK-NOT-ADOPTED: The ledger has no rows of epoch {epoch} in this"):
        lab.ordered("adopt-sink", "rows", "--shows", epoch)


def ids_in(lab: TableLab, table: str) -> list[int]:
    """As DuckDB reads them."""
    return sorted(number for (number,) in lab.asked("SELECT id FROM t", table))
