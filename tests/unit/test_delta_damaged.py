"""Which file of a table is damaged, by Spark's error, and whether the table was only compacted since it has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_epochs.delta.table import TableLocation
from airflow_epochs.sinks.delta.damaged_files import Damage, _below, damage_told
from airflow_epochs.sinks.delta.sink import DeltaSink
from tests.support.delta_world import log_of, rows, run_epoch, transaction
from tests.support.environment import Environment


@pytest.fixture
def table(tmp_path: Path, world: Environment) -> Path:
    """A table with three epochs."""
    table, previous = tmp_path / "a table", None
    for number in range(1, 4):
        txn = transaction(number)
        run_epoch(DeltaSink("silver", str(table), compact_every=0), txn, previous, rows(number), world)
        previous = txn
    return table


def added(table: Path, version: int) -> str:
    return next(str(action["add"]["path"]) for action in log_of(table)[version] if "add" in action)


def told(table: Path, path: str) -> Damage | None:
    url = f"file://{str(table).replace(' ', '%20')}/{path}"
    what = f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {url}. "
    return damage_told(TableLocation(str(table), str(table), {}), what)


def test_a_damaged_file_is_told_and_a_whole_one_is_not(table: Path) -> None:
    path = added(table, 1)
    assert told(table, path) is None, "it is whole"
    (table / path).write_bytes(b"")
    found = told(table, path)
    assert found and found.path == path and found.is_now.startswith("has 0 bytes, of the ")
    (table / path).unlink()
    assert told(table, path) == Damage(path, "is gone", None), "epochs have come since"


def test_only_of_a_file_since_which_the_table_was_but_compacted_the_version_before_has_all_rows(table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()
    newest = DeltaTable(str(table)).version()
    path = added(table, newest)
    (table / path).unlink()
    assert told(table, path) == Damage(path, "is gone", newest)
    DeltaTable(str(table)).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    assert told(table, path) == Damage(path, "is gone", None), "RESTORE would take the property back"


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("s3://lake/silver", "s3a://lake/silver/part-1.parquet"),
        ("/lake/silver", "file:///lake/silver/part-1.parquet"),
        ("/lake/silver", "file:/lake/silver/part-1.parquet"),
    ],
)
def test_a_file_is_found_below_its_table_as_spark_spells_it(url: str, named: str) -> None:
    assert _below(TableLocation(url, url, {}), named) == "part-1.parquet"
