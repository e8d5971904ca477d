"""Spark takes rows away, clones, and stages: what the sink sees of it, and what it leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_epochs.delta.table import App, TableLocation
from airflow_epochs.sinks.delta import publish as delta_publish
from airflow_epochs.sinks.delta.foreign_changes import foreign_changes
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.staged.owner import OWNER
from tests.support.delta_world import attempt_of, promised, rows, run_epoch, spark_epoch, stage_with_spark, transaction
from tests.support.environment import Environment
from tests.support.lanes import long_but

pytestmark = pytest.mark.jvm

APP = App.of("orders", "bronze")


def told(table: str, since: int = 0) -> list[str]:
    return [change.what for change in foreign_changes(TableLocation(table, table, {}).files, APP, since)]


STATEMENTS = {
    "RESTORE TABLE {t} TO VERSION AS OF 0": "RESTORE to version 0",
    # of a path, and with the schema that it has, Delta only verifies the table: no entry, no row is taken away
    "CREATE OR REPLACE TABLE {t} (id BIGINT) USING delta": None,
    "CREATE OR REPLACE TABLE {t} USING delta AS SELECT 5L AS id": "CREATE OR REPLACE TABLE AS SELECT",
    "INSERT OVERWRITE {t} SELECT 6L AS id": "WRITE, overwrite",
    "INSERT INTO {t} REPLACE WHERE id < 9 SELECT 6L AS id": None,
    "DELETE FROM {t} WHERE id = 1": None,
    "UPDATE {t} SET id = 7 WHERE id = 1": None,
    "OPTIMIZE {t}": None,
}


@pytest.mark.long
@pytest.mark.parametrize("statement", STATEMENTS)
def test_what_spark_takes_away_is_told_and_what_it_corrects_is_not(
    session: Any, world: Environment, tmp_path: Path, statement: str
) -> None:
    table, first, second = str(tmp_path / "orders"), transaction(1), transaction(2)
    sink = DeltaSink("bronze", table)
    run_epoch(sink, first, None, rows(1), world)
    run_epoch(sink, second, first, rows(2), world)
    session.sql(statement.format(t=f"delta.`file://{table}`")).collect()
    expected = STATEMENTS[statement]
    assert told(table, since=1) == ([expected] if expected else [])
    assert sink.last_committed("orders", world) is not None, "markers stay"


@pytest.fixture(params=["managed", pytest.param("on a path", marks=pytest.mark.long)])
def named(request: pytest.FixtureRequest, session: Any, tmp_path: Path) -> Iterator[str]:
    """A table in the catalog."""
    name = f"spark_catalog.default.t{uuid.uuid4().hex[:12]}"
    at = "" if request.param == "managed" else f"LOCATION 'file://{tmp_path}/orders'"
    session.sql(f"CREATE TABLE {name} (id BIGINT) USING delta {at}").collect()
    yield name
    session.sql(f"DROP TABLE {name}").collect()


OF_THE_CATALOG = {
    "CREATE OR REPLACE TABLE {t} (id BIGINT) USING delta": "CREATE OR REPLACE TABLE",
    "CREATE OR REPLACE TABLE {t} (id BIGINT, note STRING) USING delta": "CREATE OR REPLACE TABLE",
    "REPLACE TABLE {t} (id BIGINT) USING delta": "REPLACE TABLE",
    "RESTORE TABLE {t} TO VERSION AS OF 1": "RESTORE to version 1",
    "TRUNCATE TABLE {t}": None,
}


# Delta writes the others into the table's log in the same way.
@pytest.mark.long
@pytest.mark.parametrize("statement", long_but(["CREATE OR REPLACE TABLE {t} (id BIGINT) USING delta"], OF_THE_CATALOG))
def test_a_table_of_the_catalog_that_is_replaced_is_told_of_once_and_takes_the_next_epoch(
    session: Any, world: Environment, named: str, statement: str
) -> None:
    sink, first, second = DeltaSink("bronze", named), transaction(1), transaction(2)
    spark_epoch(sink, first, None, session.range(2), world)
    _, since = spark_epoch(sink, second, first, session.range(2, 4), world)
    session.sql(statement.format(t=named)).collect()
    assert session.table(named).count() == (2 if "RESTORE" in statement else 0)
    found = sink.foreign_changes(since, "orders", (), world)
    expected = OF_THE_CATALOG[statement]
    assert [text.split(" in version 3 ")[1] for text in found] == ([f"({expected})"] if expected else [])
    assert sink.foreign_changes(since, "orders", found, world) == []
    before = session.table(named).count()
    spark_epoch(sink, transaction(3), second, session.range(4, 5), world)
    assert session.table(named).count() == before + 1


@pytest.mark.long
def test_a_vacuum_of_spark_spares_old_staged_files_from_their_renewal_on(
    session: Any, world: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, first = str(tmp_path / "orders"), transaction(1)
    sink, attempt = DeltaSink("bronze", table), attempt_of(transaction(2), first)
    run_epoch(sink, first, None, rows(1), world)
    staged = promised(sink.vote(attempt, stage_with_spark(sink, attempt, session.range(2, 4), world), world))
    eight_days = 8 * 86_400
    for path in Path(staged.place).rglob("*"):
        os.utime(path, (time.time() - eight_days, time.time() - eight_days))
    monkeypatch.setattr(delta_publish, "now_ms", lambda: int((time.time() + eight_days) * 1000))
    not_renewed = Path(shutil.copytree(staged.place, f"{staged.place}0"))  # with the times that the files have

    def vacuum() -> None:
        world.at.clear()  # it writes to the log, so that the commit comes here again
        session.sql(f"VACUUM delta.`file://{table}`").collect()  # keeps what is younger than a week

    world.at["delta.commit.before"] = vacuum
    assert sink.commit(attempt, staged, world).place == staged.place
    assert list(not_renewed.rglob("*.parquet")) == []
    vacuum()
    read = session.read.format("delta").load(f"file://{table}")
    assert sorted(row.id for row in read.collect()) == [1, 2, 3]


@pytest.mark.long
def test_a_shallow_clone_keeps_its_files_whatever_the_ledger_says_of_their_place(
    session: Any, world: Environment, tmp_path: Path
) -> None:
    table, clone, txn = str(tmp_path / "orders"), str(tmp_path / "clone"), transaction(1)
    sink = DeltaSink("bronze", table)
    staged, _ = run_epoch(sink, txn, None, rows(1, 2), world)
    session.sql(f"CREATE TABLE delta.`file://{clone}` SHALLOW CLONE delta.`file://{table}`").collect()
    DeltaTable(table).delete()
    sink.discard(attempt_of(txn), staged.place, world, published=False)
    assert session.read.format("delta").load(f"file://{clone}").count() == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("commit", ["deltalake", "spark"])
def test_spark_stages_beside_the_owners_name_and_each_commit_has_table_id_and_ends(
    session: Any, world: Environment, tmp_path: Path, commit: str
) -> None:
    table, previous = str(tmp_path / "orders"), None
    sink, ends = DeltaSink("bronze", table, commit=commit), {"orders": {"0": 42, "1": 7}}
    for epoch in (1, 2):
        txn = transaction(epoch)
        attempt = replace(attempt_of(txn, previous), ends=ends)
        claim = stage_with_spark(sink, attempt, session.range(2).selectExpr("id"), world)
        receipt = sink.commit(attempt, promised(sink.vote(attempt, claim, world)), world)
        previous = txn
    assert Path(claim.place).parent.joinpath(OWNER).exists()
    [info] = DeltaTable(table).history(1)
    assert json.loads(info["userMetadata"])["airflow_epochs"]["ends"] == ends
    assert receipt.detail["table_id"] == str(DeltaTable(table).metadata().id)
    assert session.read.format("delta").load(f"file://{table}").count() == 4
