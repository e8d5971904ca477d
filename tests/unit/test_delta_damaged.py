"""Which file of a table is damaged, by Spark's error: since which version, and which epochs go with it."""

from __future__ import annotations

from pathlib import Path

from airflow_epochs.delta.table import App, TableLocation
from airflow_epochs.sinks.delta.damaged_files import Damage, damage_told
from airflow_epochs.sinks.delta.sink import DeltaSink
from tests.support.delta_world import log_of, rows, run_epoch, transaction
from tests.support.environment import Environment


def test_the_damaged_file_is_told_with_its_version_and_the_first_epoch_since_then(
    tmp_path: Path, world: Environment
) -> None:
    table, previous = tmp_path / "a table", None
    for number in range(1, 5):
        txn = transaction(number)
        run_epoch(DeltaSink("silver", str(table)), txn, previous, rows(number), world)
        previous = txn
    path = next(action["add"]["path"] for action in log_of(table)[1] if "add" in action)
    spark_says = f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file://{tmp_path}/a%20table/{path}. "

    def told() -> Damage | None:
        return damage_told(TableLocation(str(table), str(table), {}), App.of("orders", "silver"), spark_says)

    assert told() is None, "it is whole"
    (table / path).write_bytes(b"")
    found = told()
    assert found and (found.path, found.version, found.first_epoch) == (path, 1, 2)
    (table / path).unlink()
    assert told() == Damage(path, "is gone", 1, 2)
