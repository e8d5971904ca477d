"""A pipeline that reads a Delta table, over Spark Connect. DuckDB looks at what comes out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from airflow_epochs.errors import NoNewData
from stack.connect import ConnectServer
from tests.support.table_lab import TableLab

pytestmark = pytest.mark.jvm


@pytest.fixture
def lab(tmp_path: Path, connect: ConnectServer) -> TableLab:
    return TableLab(tmp_path, connect.where)


def test_each_row_that_versions_append_comes_once_and_a_run_without_a_new_version_is_skipped(lab: TableLab) -> None:
    lab.write(1, 2)
    lab.write(3)
    lab.run()
    with pytest.raises(NoNewData):
        lab.run()
    lab.write(4)
    lab.write(5, 6)
    lab.run()
    assert lab.ids() == Counter(range(1, 7))
    assert lab.versions() == [(0, 2), (2, 4)]
