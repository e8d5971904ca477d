"""``airflow epochs adopt-sink`` after an epoch that was completed without the sink: what it says is what is missing."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from airflow_epochs import codes
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import EpochError
from airflow_epochs.model import Run, WaivedRecord
from tests.support.table_lab import TableLab
from tests.support.table_staging import WithoutSpark


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
