"""A pipeline that reads tables of every kind: odd names, features of Delta, an object store. DuckDB counts the rows."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import DeltaSource, codes
from airflow_epochs.contracts import Limits
from airflow_epochs.errors import Corrupt, NoNewData, Refused, located
from airflow_epochs.spark.driver.delta import table_read
from airflow_epochs.spark.driver.plans import TableRead
from airflow_epochs.storage.options import storage_options
from stack.connect import ConnectServer
from tests.support.delta_world import log_of
from tests.support.environment import Environment
from tests.support.s3_access import connection
from tests.support.table_lab import PIPELINE, TableLab

pytestmark = pytest.mark.jvm
FEED = "delta.enableChangeDataFeed = true"


def sql(session: Any, lab: TableLab, statement: str) -> None:
    """A statement of Spark's about the table ``t``."""
    session.sql(statement.replace(" t ", f" delta.`{lab.table}` "))


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_only_the_tables_own_files_are_read_wherever_it_lies_and_whatever_its_partitions_are(
    table_lab: TableLab, session: Any
) -> None:
    places = ["50 %", "a=b", "c/d", "day=1/e%2Ff g", "[x]{1}*?", None]
    table_lab.table = table_lab.folder / "orders [a]{1}"
    rows = session.createDataFrame([(0, 0.0, "first")], "id long, amount double, place string")
    rows.write.format("delta").partitionBy("place").save(str(table_lab.table))
    table_lab.run()
    for number, place in enumerate(places, 1):
        row = session.createDataFrame([(number, number / 4, place)], "id long, amount double, place string")
        row.write.format("delta").mode("append").save(str(table_lab.table))
    stray = pa.table({"id": pa.array([99], pa.int64()), "amount": pa.array([9.0])})
    for folder in (table_lab.table, *table_lab.table.glob("place=*"), table_lab.folder / "orders a1"):
        folder.mkdir(exist_ok=True)
        pq.write_table(stray, folder / "stray.parquet")
    table_lab.run()
    expected = [(0, "first"), *enumerate(places, 1)]
    assert table_lab.asked("SELECT id, place FROM t ORDER BY id") == expected
    assert table_lab.asked("SELECT sum(amount) FROM t") == [(sum(range(len(places) + 1)) / 4,)]


# -- an object store -------------------------------------------------------------------------------------------------


@dataclass
class BucketLab(TableLab):
    """What the pipeline reads is at ``url`` on S3; what it writes is on the disk."""

    url: str = ""

    @property
    def source(self) -> DeltaSource:
        return DeltaSource(self.url, storage_conn_id="s3", **{"max_wait": 0, **self.options})

    @property
    def stored(self) -> dict[str, str]:
        return storage_options(self.connections["s3"])

    def write(self, *ids: int, mode: Any = "append", **options: Any) -> None:
        write_deltalake(
            self.url, pa.table({"id": pa.array(ids, pa.int64())}), mode=mode, storage_options=self.stored, **options
        )


@pytest.mark.long
@pytest.mark.parametrize("changes", [pytest.param("appends", marks=pytest.mark.long), "feed"])
def test_versions_of_a_table_on_s3_come_once(tmp_path: Path, connect: ConnectServer, s3: Any, changes: str) -> None:
    lab = BucketLab(tmp_path, connect.where, {"changes": changes}, url=f"s3://{s3.bucket}/{uuid.uuid4().hex}/orders")
    lab.connections["s3"] = connection(s3)
    lab.write(1, 2, configuration={"delta.enableChangeDataFeed": "true"})
    lab.run()
    lab.write(3)
    lab.write(4)
    lab.run()
    assert lab.ids() == Counter([1, 2, 3, 4])
    assert lab.versions() == [(0, 1), (1, 3)]


# -- features of Delta -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_deletion_vectors_hide_rows_of_a_whole_table_and_are_deletes_in_a_feed_and_an_error_among_appends(
    table_lab: TableLab, session: Any
) -> None:
    table_lab.write(*range(6))
    sql(session, table_lab, f"ALTER TABLE t SET TBLPROPERTIES (delta.enableDeletionVectors = true, {FEED})")
    sql(session, table_lab, "DELETE FROM t WHERE id = 0")
    table_lab.options["changes"] = "feed"
    table_lab.run()
    sql(session, table_lab, "DELETE FROM t WHERE id IN (1, 2)")
    sql(session, table_lab, "UPDATE t SET amount = 7 WHERE id = 3")
    table_lab.run()
    counted = table_lab.asked("SELECT _change_type, count(*), sum(id) FROM t GROUP BY ALL ORDER BY ALL")
    assert counted == [("delete", 2, 3), ("insert", 5, 15), ("update_postimage", 1, 3), ("update_preimage", 1, 3)]
    table_lab.options = {"starting": 3}
    with pytest.raises(Corrupt, match="it updates or deletes rows"):
        table_lab.source.check(
            {str(table_lab.table): table_lab.opened(2).ranges[str(table_lab.table)]},
            {},
            Environment(table_lab.connections),
        )


@pytest.mark.long
def test_a_table_with_column_mapping_is_read_through_its_feed_and_refused_among_appends(
    table_lab: TableLab, session: Any
) -> None:
    properties = f"'delta.columnMapping.mode' = 'name', {FEED}"
    sql(
        session,
        table_lab,
        f"CREATE TABLE t (`an id` long, amount double, day string) USING delta "
        f"PARTITIONED BY (day) TBLPROPERTIES ({properties})",
    )
    sql(session, table_lab, "INSERT INTO t VALUES (1, 1, 'mon'), (2, 2, 'tue')")
    table_lab.transform = "renamed"
    with pytest.raises(Refused) as error:
        table_lab.run()
    assert error.value.code is codes.DELTA_SOURCE_UNREADABLE
    assert "has column mapping" in str(error.value)
    table_lab.options["changes"] = "feed"
    table_lab.run()
    sql(session, table_lab, "INSERT INTO t VALUES (3, 3, 'mon')")
    sql(session, table_lab, "DELETE FROM t WHERE `an id` = 1")
    table_lab.run()
    counted = table_lab.asked("SELECT id, day, _change_type FROM t ORDER BY ALL")
    assert counted == [(1, "mon", "delete"), (1, "mon", "insert"), (2, "tue", "insert"), (3, "mon", "insert")]


FILLED = """
    CREATE TABLE t (id LONG COMMENT 'kept', at TIMESTAMP, day DATE GENERATED ALWAYS AS (CAST(at AS DATE)),
        n INT DEFAULT 5, number BIGINT GENERATED BY DEFAULT AS IDENTITY) USING delta
    TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported', delta.enableChangeDataFeed = true)
"""
"""A table that fills columns by itself."""


def fill(session: Any, lab: TableLab, *ids: int) -> None:
    for id_ in ids:
        sql(session, lab, f"INSERT INTO t (id, at) VALUES ({id_}, TIMESTAMP'2026-01-0{id_} 12:00:00Z')")


@pytest.mark.few(1)
@pytest.mark.parametrize("changes", [pytest.param("appends", marks=pytest.mark.long), "feed"])
@pytest.mark.parametrize("transform", ["days", "copied"])
def test_how_a_table_fills_its_columns_is_no_rule_of_the_sinks_table(
    table_lab: TableLab, session: Any, changes: str, transform: str
) -> None:
    table_lab.options, table_lab.transform = {"changes": changes, "starting": 1}, transform
    sql(session, table_lab, FILLED)
    for id_ in (1, 2):
        fill(session, table_lab, id_)
        table_lab.run()
    assert table_lab.asked("SELECT id, day::text FROM t ORDER BY id") == [(1, "2026-01-01"), (2, "2026-01-02")]
    told = [field.metadata for field in DeltaTable(str(table_lab.folder / "rows")).schema().fields]
    assert [metadata for metadata in told if metadata] == [{"comment": "kept"}]


NOTED: dict[str, Any] = {"delta.columnMapping.id": 7, "comment": "kept"}
INSIDE = {"name": "inside", "type": "long", "nullable": True, "metadata": NOTED}
ADDED = {
    "name": "added",
    "type": {"type": "array", "elementType": {"type": "struct", "fields": [INSIDE]}, "containsNull": True},
    "nullable": True,
    "metadata": NOTED,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("feed", [False, True], ids=["appends", "feed"])
def test_no_batch_has_properties_of_columns_that_are_for_writers(table_lab: TableLab, session: Any, feed: bool) -> None:
    sql(session, table_lab, FILLED)
    fill(session, table_lab, 1, 2)
    schema = json.loads(table_lab.delta.schema().to_json())
    read = TableRead(location=str(table_lab.table), start=2, end=3, feed=feed, schema=schema)
    last = [action["add"]["path"] for action in log_of(table_lab.table)[2] if "add" in action]
    none = replace(read, end=2, schema={**schema, "fields": [*schema["fields"], ADDED]})
    added = replace(read, files={} if feed else dict.fromkeys(last, ()))
    for number, each in ((0, none), (1, added), (0, replace(added, files={})), (2, replace(read, start=0))):
        batch = table_read.batch(session, each)
        told = batch.schema.json()
        assert batch.schema["id"].metadata == {"comment": "kept"}
        assert [word for word in ("delta.", "CURRENT_DEFAULT", "EXISTS_DEFAULT") if word in told] == []
        assert feed or batch.count() == number


@pytest.mark.long
@pytest.mark.parametrize("changes", [pytest.param("appends", marks=pytest.mark.long), "feed"])
def test_rows_from_before_and_after_a_change_of_the_schema_are_in_one_epoch(
    table_lab: TableLab, session: Any, changes: str
) -> None:
    table_lab.options |= {"changes": changes, "starting": 1}
    table_lab.write(0, configuration={"delta.enableChangeDataFeed": "true"})
    table_lab.write(1)
    table_lab.write(2)
    sql(session, table_lab, "ALTER TABLE t ADD COLUMNS (note string FIRST)")
    sql(session, table_lab, "INSERT INTO t VALUES ('new', 3, 3)")
    sql(session, table_lab, "OPTIMIZE t ")
    table_lab.run()
    assert table_lab.asked("SELECT id, amount, note FROM t ORDER BY id") == [
        (1, 0.25, None),
        (2, 0.5, None),
        (3, 3.0, "new"),
    ]
    with pytest.raises(NoNewData):
        table_lab.run()


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "row"),
    [pytest.param("RENAME COLUMN id TO number", "3, 3", marks=pytest.mark.long), ("DROP COLUMN amount", "3")],
    ids=["renamed", "dropped"],
)
def test_an_epoch_of_a_feed_ends_before_a_version_that_changes_a_column(
    table_lab: TableLab, session: Any, change: str, row: str
) -> None:
    table_lab.options |= {"changes": "feed", "starting": 1}
    table_lab.transform = "ids_as_text"
    table_lab.write(0, configuration={"delta.enableChangeDataFeed": "true"})
    sql(session, table_lab, "ALTER TABLE t SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    sql(session, table_lab, "INSERT INTO t VALUES (1, 1)")
    sql(session, table_lab, "INSERT INTO t VALUES (2, 2)")
    sql(session, table_lab, f"ALTER TABLE t {change}")
    sql(session, table_lab, f"INSERT INTO t VALUES ({row})")
    while True:
        try:
            table_lab.run()
        except NoNewData:
            break
    assert table_lab.versions() == [(1, 4), (4, 6)]
    assert table_lab.asked("SELECT id, _change_type FROM t ORDER BY ALL") == [(str(n), "insert") for n in (1, 2, 3)]


@pytest.mark.long
def test_a_feed_goes_on_after_a_change_of_type_with_the_version_that_the_command_finds(
    table_lab: TableLab, session: Any
) -> None:
    table_lab.options["changes"] = "feed"
    table_lab.transform = "ids_as_text"
    table_lab.write(1, configuration={"delta.enableChangeDataFeed": "true"})
    table_lab.run()
    table_lab.write(2)
    session.sql("SELECT 'x' AS id").write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(
        str(table_lab.table)
    )
    sql(session, table_lab, "INSERT INTO t VALUES ('y')")
    with pytest.raises(Corrupt) as error, located(PIPELINE):  # as a task does
        table_lab.run()
    assert error.value.code is codes.COLUMNS_CHANGED
    shown = table_lab.typed(error.value, "skip")
    assert f"lost for good: 2 offsets, {table_lab.table}[0] [1, 3)" in shown
    table_lab.run()
    assert table_lab.asked("SELECT id, _change_type FROM t ORDER BY ALL") == [("1", "insert"), ("y", "insert")]


@pytest.mark.long
def test_an_optimize_alone_brings_no_row_again(table_lab: TableLab, session: Any) -> None:
    table_lab.write(1)
    table_lab.write(2)
    table_lab.run()
    sql(session, table_lab, "OPTIMIZE t ")
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2])
    assert table_lab.versions() == [(0, 2), (2, 3)]


@pytest.mark.long
def test_a_restore_of_the_source_stops_the_appends_and_is_read_from_the_feed(table_lab: TableLab, session: Any) -> None:
    table_lab.write(1, configuration={"delta.enableChangeDataFeed": "true"})
    table_lab.write(2)
    table_lab.run()
    sql(session, table_lab, "RESTORE TABLE t TO VERSION AS OF 0")
    with pytest.raises(Corrupt, match="it takes the table back to version 0") as error:
        table_lab.run()
    assert error.value.code is codes.ROWS_CHANGED
    table_lab.options["changes"] = "feed"
    planned = table_lab.source.plan(None, Limits(starting="2"), Environment(table_lab.connections))
    assert planned is not None


@pytest.mark.long
def test_a_log_that_was_checkpointed_and_cleaned_up_behind_the_pipeline_loses_no_row(table_lab: TableLab) -> None:
    table_lab.write(1)
    table_lab.write(2)
    table_lab.run()
    table_lab.delta.create_checkpoint()
    table_lab.write(3)
    for number in (0, 1):
        (table_lab.table / "_delta_log" / f"{number:020}.json").unlink()
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2, 3])
    other = TableLab(table_lab.folder / "other", table_lab.where)
    other.folder.mkdir()
    other.table = table_lab.table
    other.run()
    assert other.ids() == Counter([1, 2, 3])


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_table_with_a_day_that_only_spark_knows_is_read_after_the_statement_that_the_error_names(
    table_lab: TableLab, session: Any
) -> None:
    """The row with that day becomes a dead letter."""
    table_lab.letters = True
    rows = session.sql("SELECT 1L AS id, 1.0D AS amount, date'2026-01-31' AS day")
    rows.write.format("delta").partitionBy("day").save(str(table_lab.table))
    table_lab.run()
    far = "(2L, 2.0D, date'2026-01-31'), (3L, 3.0D, date_from_unix_date(2147483647))"
    sql(session, table_lab, f"INSERT INTO t VALUES {far}")
    with pytest.raises(Refused) as unreadable, located(PIPELINE):
        table_lab.run()
    [statement] = re.findall("DELETE FROM .+?'9999-12-31'", unreadable.value.remedy)
    session.sql(statement).collect()
    sql(session, table_lab, "INSERT INTO t VALUES (4L, 4.0D, date'2026-01-31')")
    table_lab.run()
    with pytest.raises(Corrupt) as changed, located(PIPELINE):
        table_lab.run()
    table_lab.typed(changed.value, "skip")
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2, 4])
    [(error, row)] = table_lab.asked("SELECT error, row FROM t", of="rejected")
    assert error == "column day is outside of the years 1 to 9999" and json.loads(row)["id"] == 3
