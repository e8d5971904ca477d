"""A sink that is new to a pipeline with state takes earlier epochs of a table, as they were. No Spark is asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_epochs import StateTable, codes
from airflow_epochs.config import Pipeline
from airflow_epochs.coordinator.backfills.backfill import require_input_of
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import OpenRecord, Run
from tests.support.table_lab import TableLab, renamed_in
from tests.support.table_staging import WithoutSpark

pytestmark = pytest.mark.proof


@pytest.fixture
def lab(tmp_path: Path) -> TableLab:
    return TableLab(tmp_path, spark=WithoutSpark())


def with_state(lab: TableLab) -> Pipeline:
    seen = StateTable("seen", str(lab.folder / "seen"), schema="id bigint", keys=["id"])
    return replace(lab.pipeline, sinks=(*lab.sinks, seen))


def epochs(lab: TableLab, *ids: int) -> None:
    for number in ids:
        lab.write(number)
        lab.run(pipeline=with_state(lab))


def again(lab: TableLab, first: int) -> Pipeline:
    lab.more_sinks, lab.backfill = ("gold",), {"gold": first}
    return with_state(lab)


def test_a_backfill_whose_epochs_cannot_each_be_read_opens_nothing_and_its_remedy_ends_in_rows(lab: TableLab) -> None:
    epochs(lab, 1, 2)
    lab.delta.optimize.compact()
    lab.delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    epochs(lab, 3)
    lab.write(4)
    with pytest.raises(Corrupt, match=r"Sink 'gold' cannot begin with epoch 1\. .* of its files are gone") as gone:
        lab.run(pipeline=again(lab, 1))
    assert gone.value.code is codes.BACKFILL_GONE
    assert lab.ledger.open_record(4, 1) is None
    lab.run(pipeline=again(lab, 3))
    gold = Counter(row[0] for row in lab.asked("SELECT id FROM t", of="gold"))
    assert (gold, lab.ids()) == (Counter([3, 4]), Counter([1, 2, 3, 4]))


def test_epochs_that_are_read_one_by_one_may_lie_on_both_sides_of_a_renamed_column(lab: TableLab) -> None:
    lab.options["changes"] = "feed"
    lab.write(1, configuration={"delta.enableChangeDataFeed": "true"})
    lab.run(pipeline=with_state(lab))
    epochs(lab, 2, 3)
    lab.write(4)
    renamed_in(lab, 3)
    opened = Coordinator(lab.task(again(lab, 2))).open(Run("dag", "run"))
    assert isinstance(opened, OpenRecord) and opened.sinks["gold"].replayed_from == 2
    require_input_of(lab.task(again(lab, 2)), opened, "gold")
