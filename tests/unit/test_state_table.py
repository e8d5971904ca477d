"""What a DAG may say of a state table, and what the ledger keeps of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import DeltaSink, StateTable
from airflow_epochs.coordinator import state_tables
from airflow_epochs.coordinator.agreement import require_marker
from airflow_epochs.coordinator.recorded_sinks import sink_of
from airflow_epochs.delta.log import entry_of, log_entry
from airflow_epochs.delta.shape import PHYSICAL_NAME, TableShape, metadata_of
from airflow_epochs.errors import BadArgument, Corrupt, Refused
from airflow_epochs.model import JsonDict, Receipt, SinkPlan, StatePin, TransactionId
from airflow_epochs.sinks import from_spec
from airflow_epochs.sinks.delta.state.columns import columns_of, types_of
from airflow_epochs.spark.driver.delta.plans import EPOCH
from airflow_epochs.testing import memory_ledger
from airflow_epochs.transforms.changes import DELETED
from tests.support.delta_world import attempt_of, stage, transaction
from tests.support.environment import Environment
from tests.support.records import complete, open_record, receipt
from tests.support.state_schemas import SCHEMAS

WINDOWS: dict[str, Any] = {
    "table": "/lake/open",
    "schema": "page string, window_start timestamp, window_end timestamp, n decimal(10, 2)",
    "keys": ["page", "window_start"],
    "expires": "window_end",
}


def test_what_the_ledger_keeps_makes_the_same_state_again() -> None:
    state = StateTable("open", **WINDOWS, fold_at=0.5, initial="/lake/old", properties={"delta.appendOnly": "false"})
    again = from_spec(state.spec())
    assert type(again) is StateTable and again.spec() == state.spec()


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        *SCHEMAS.items(),
        ("a int NOT NULL DEFAULT 3, b string DEFAULT 'x, y' COMMENT 'z', c int", ["a", "b", "c"]),
        ("", []),
    ],
)
def test_the_columns_of_a_schema_are_found(schema: str, names: list[str]) -> None:
    assert columns_of(schema) == names


def test_the_types_of_a_schema_are_found_and_those_that_only_spark_can_tell_are_left_out() -> None:
    inside = {"name": "a b", "type": "short", "nullable": True, "metadata": {}}
    read = types_of(
        "a INT NOT NULL, b: bigint COMMENT 'not, int', `c d` decimal(9), e dec(9, 2), f numeric, g "
        "array<map<string, tinyint>>, h struct<`a b`: smallint, c: array<timestamp_ltz>> -- the last one\n, i real"
    )
    assert read == {
        "a": "integer",
        "b": "long",
        "c d": "decimal(9,0)",
        "e": "decimal(9,2)",
        "f": "decimal(10,0)",
        "g": {
            "type": "array",
            "elementType": {"type": "map", "keyType": "string", "valueType": "byte", "valueContainsNull": True},
            "containsNull": True,
        },
        "h": {
            "type": "struct",
            "fields": [
                inside,
                {**inside, "name": "c", "type": {"type": "array", "elementType": "timestamp", "containsNull": True}},
            ],
        },
        "i": "float",
    }
    unread = (
        "a varchar(3), b string collate UTF8_LCASE, c struct<x: int not null>, d struct<>, e, f array<int, g int(3), h"
    )
    assert types_of(unread) == {}


@pytest.mark.parametrize("empty", [False, True])
def test_a_state_whose_column_gets_another_type_is_refused_before_spark(tmp_path: Path, empty: bool) -> None:
    table = str(tmp_path / "open")
    rows = pa.table({"page": ["a"], "n": [1]})
    write_deltalake(table, rows.slice(0, 0) if empty else rows)
    receipt = receipt_of_state()
    said = (
        f"EPOCHS-STATE-SCHEMA: The state table {table} has other types than the DAG declares: n is bigint there and int"
    )
    for schema, refused in (("page string, n int", True), ("page string, n bigint, more int", False)):
        state = StateTable("open", table, schema=schema, keys=["page"])
        with pytest.raises(Refused, match=re.escape(said)) if refused else nullcontext():
            state.pin(None if empty else receipt, "clicks", Environment())


def test_a_state_that_begins_with_columns_of_another_type_is_refused_before_spark(tmp_path: Path) -> None:
    table, old = str(tmp_path / "open"), str(tmp_path / "old")
    write_deltalake(old, pa.table({"page": ["a"], "n": [1]}))
    state = StateTable("open", table, schema="page string, n int", keys=["page"], initial=old)
    with pytest.raises(Refused, match=rf"EPOCHS-STATE-SCHEMA: .*{old}.*n is bigint there and int in `schema`"):
        state.pin(None, "clicks", Environment())


def test_a_column_behind_a_comment_is_one_that_the_table_lacks() -> None:
    def shape(*names: str) -> TableShape:
        schema = json.dumps({"type": "struct", "fields": [{"name": name, "type": "string"} for name in names]})
        metadata = {"id": "a", "schemaString": schema, "partitionColumns": [], "configuration": {}}
        return TableShape.of_actions({"minReaderVersion": 1, "minWriterVersion": 2}, metadata)

    state = StateTable("open", "/lake/open", schema="page string COMMENT 'a > b', n bigint", keys=["page"])
    assert state.adds_columns_to(shape("page", EPOCH, DELETED))
    assert not state.adds_columns_to(shape("page", "n", EPOCH, DELETED))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"keys": "page"}, "`keys` is 'page'. It must be a list"),
        ({"keys": []}, "`keys` is []. It must be a list"),
        ({"keys": ["page", "page"]}, "It must be a list of one or more different columns"),
        ({"keys": ["user"]}, "`schema` has no column user. Its columns are page, window_start, window_end, n"),
        ({"expires": "until"}, "`schema` has no column until."),
        ({"expires": "page"}, "`expires` is 'page', which is also a key"),
        ({"schema": "page string, __epoch bigint", "keys": ["page"]}, "has the column __epoch, which the state table"),
        ({"fold_at": 0}, "`fold_at` is 0. It must be a number above 0"),
        ({"table": "catalog.schema.table"}, "`table` is 'catalog.schema.table'. It must be an absolute path or a URL"),
        ({"initial": "old"}, "`initial` is 'old'. It must be an absolute path or a URL"),
    ],
)
def test_an_argument_that_is_not_valid_is_refused_by_its_name(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(BadArgument, match="State 'open': ") as refused:
        StateTable("open", **{**WINDOWS, **arguments})
    assert told in str(refused.value)


def test_nobody_is_told_to_begin_a_lost_state_anew_under_another_name(tmp_path: Path) -> None:
    state = StateTable("open", **{**WINDOWS, "table": str(tmp_path / "open")})
    expected = TransactionId("clicks", 3, 1, "0" * 32)
    with pytest.raises(Corrupt) as lost:
        require_marker(state, expected, "clicks", Environment(), in_doubt=expected)
    assert "Put the newest copy of the table back" in lost.value.remedy
    assert "Do not give the state another name" in lost.value.remedy
    assert "backfill" not in lost.value.remedy
    first, then = lost.value.remedy.split("`airflow epochs waive clicks 3 open --why …`")
    assert "If the table cannot come back" in first and "adopt-sink PIPELINE SINK --new-table" in then


def receipt_of_state() -> Receipt:
    return Receipt(
        txn_id=TransactionId("clicks", 7, 1, "0" * 32),
        sink="open",
        rows=1,
        files=1,
        bytes=1,
        version=0,
        committed_at="now",
    )


def pinned(
    folder: Path, known: JsonDict, version: int | None = 0, since: Callable[[str], None] = lambda table: None
) -> JsonDict:
    """What epoch 8 reads, when the receipt of epoch 7 knows so much. ``since``: what others do to the table then."""
    table = str(folder / "open")
    write_deltalake(table, pa.table({"page": ["a"]}))
    since(table)
    receipt = replace(receipt_of_state(), version=version, detail={"state": known} if known else {})
    pin = StateTable("open", **{**WINDOWS, "table": table}).pin(receipt, "clicks", Environment())
    return {"fold": pin.fold, "folded_in": pin.folded_in}


def test_the_rows_of_the_last_fold_are_known_by_their_epoch(tmp_path: Path) -> None:
    known = {"keys": WINDOWS["keys"], "expires": "window_end", "base": 100, "changes": 20, "epochs": 4}
    assert pinned(tmp_path, known) == {"fold": False, "folded_in": 3}
    assert pinned(tmp_path / "more", {**known, "changes": 25}) == {"fold": True, "folded_in": 3}


def test_a_state_of_which_nobody_knows_the_last_fold_is_folded(tmp_path: Path) -> None:
    assert pinned(tmp_path, {}) == {"fold": True, "folded_in": None}


def test_a_state_whose_last_receipt_names_no_version_is_begun_anew(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match=r"EPOCHS-STATE-GONE: The version of the state table .* cannot be read") as gone:
        pinned(tmp_path, {}, version=None)
    assert "`airflow epochs adopt-sink PIPELINE open --new-table --why …`" in gone.value.remedy


def rearranged_and_cleaned_up(table: str) -> None:
    """As a nightly OPTIMIZE leaves it, in a standstill longer than the log is kept: no row changes."""
    DeltaTable(table).optimize.z_order(["page"])
    DeltaTable(table).create_checkpoint()
    Path(table, log_entry(0)).unlink()


@pytest.mark.proof
def test_a_state_whose_version_the_log_has_lost_keeps_its_rows_by_initial(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match=r"EPOCHS-STATE-GONE: Version 0 of the state table .* cannot be read") as gone:
        pinned(tmp_path, {}, since=rearranged_and_cleaned_up)
    assert "write the newest state of the old table to another Delta table" in gone.value.remedy
    assert "`initial`" in gone.value.remedy and "--new-table" in gone.value.remedy
    assert "what other programs have changed in the table since version 0" in gone.value.remedy


def test_a_state_whose_table_has_gone_back_is_not_copied(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="EPOCHS-STATE-GONE: Version 7") as gone:
        pinned(tmp_path, {}, version=7)
    assert "write the newest state" not in gone.value.remedy


def test_a_state_that_was_waived_in_its_first_epoch_does_not_begin_unseen_and_one_that_was_adopted_does(
    tmp_path: Path,
) -> None:
    state = StateTable("open", **{**WINDOWS, "table": str(tmp_path / "open")})
    task = task_of(state)
    waived = replace(complete(1), waived=("open",))
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SKIPPED: The state 'open' is as of epoch 0, and epochs 1 to 1"):
        state_tables.pins(task, waived, {})
    assert state_tables.pins(task, waived, {"open": None})["open"].version is None
    assert state_tables.pins(task, complete(1), {})["open"].version is None, "it is new to the pipeline"


def test_a_state_that_has_yet_to_begin_begins_as_a_corrected_initial_says_and_one_that_has_begun_stays(
    tmp_path: Path,
) -> None:
    old, corrected = (str(tmp_path / name) for name in ("old", "corrected"))
    state = StateTable("open", **{**WINDOWS, "table": str(tmp_path / "open")}, initial=old)
    task = task_of(state)
    write_deltalake(old, pa.table({"page": ["a"]}))
    first = state_tables.pins(task, None, {})
    write_deltalake(old, pa.table({"page": ["b"]}), mode="append")
    assert state_tables.pins(task, None, {}, first)["open"].initial == 1, "the table was corrected"
    write_deltalake(corrected, pa.table({"page": ["c"]}))
    state.initial = corrected
    second = state_tables.pins(task, None, {}, first)
    assert second["open"] == StatePin(version=None, initial=0, fold=True)
    begun = {"open": StatePin(version=7)}
    assert state_tables.pins(task, None, {}, begun) == begun


def test_an_attempt_that_is_staged_again_begins_its_state_as_its_own_record_says(tmp_path: Path) -> None:
    table = {**WINDOWS, "table": str(tmp_path / "open")}
    state = StateTable("open", **table, initial="/lake/old")
    opened = replace(
        open_record(),
        state={"open": StatePin(version=None, initial=3, fold=True)},
        sinks={"open": SinkPlan(spec=state.spec(), previous=None)},
    )
    read = state_tables.reads(task_of(StateTable("open", **table, initial="/lake/corrected")), opened)["open"]
    assert (read.initial, read.initial_version) == ("/lake/old", 3)


def test_a_state_begins_with_no_table_of_a_file_url_with_two_slashes_but_is_read_as_its_record_says(
    tmp_path: Path,
) -> None:
    state = StateTable("open", **{**WINDOWS, "table": str(tmp_path / "open")}, initial="file://lake/old")
    with pytest.raises(
        Refused, match=r"is file://lake/old, which names the host 'lake'.* So far it meant /old"
    ) as refused:
        state.pin(None, "orders", Environment())
    assert "Set `initial` to file:///old" in refused.value.remedy and "file:///lake/old" in refused.value.remedy
    recorded = from_spec(state.spec())
    assert isinstance(recorded, StateTable)
    assert recorded.plan_read(StatePin(version=None, initial=7, fold=True), (), Environment())["initial"] == "/old"


@pytest.mark.parametrize("initial", ["/lake/corrected", None], ids=["names another table", "is no longer there"])
def test_an_epoch_that_is_replayed_begins_its_state_with_the_table_that_initial_named_then(
    tmp_path: Path, initial: str | None
) -> None:
    table = {**WINDOWS, "table": str(tmp_path / "open")}
    then, today = StateTable("open", **table, initial="/lake/old"), StateTable("open", **table, initial=initial)
    opened = replace(
        open_record(),
        state={"open": StatePin(version=None, initial=3, fold=True)},
        sinks={"open": SinkPlan(spec=then.spec(), previous=None)},
    )
    later = replace(opened, sinks={"open": SinkPlan(spec=today.spec(), previous=None)})
    read = state_tables.reads(task_of(today), opened, by=later)["open"]
    assert (read.initial, read.initial_version) == ("/lake/old", 3)


def task_of(state: StateTable) -> Any:
    """As much of a task as is asked here."""
    pipeline = SimpleNamespace(name="p", sinks=(state,))
    task = SimpleNamespace(pipeline=pipeline, env=Environment(), ledger=memory_ledger("p"))
    task.sink_of = lambda opened, name: sink_of(opened, name, pipeline.sinks)
    return task


MAPPED = {"delta.columnMapping.mode": "name"}


def pin_of(table: Path, **more: Any) -> Any:
    return StateTable("open", **{**WINDOWS, "table": str(table), **more}).pin(None, "clicks", Environment())


def mapped_table(folder: Path, page: str, day: str, visited: str = "visit") -> Path:
    """An empty table with the columns ``page`` and ``visit.day``; what its files call them."""

    def field(number: int, name: str, kind: Any, physical: str) -> JsonDict:
        metadata = {PHYSICAL_NAME: physical, "delta.columnMapping.id": number}
        return {"name": name, "type": kind, "nullable": True, "metadata": metadata}

    visit = {"type": "struct", "fields": [field(3, "day", "string", day)]}
    schema = {"type": "struct", "fields": [field(1, "page", "string", page), field(2, "visit", visit, visited)]}
    shape = TableShape(
        id="mapped",
        schema=schema,
        partition_by=(),
        properties=MAPPED,
        min_reader=2,
        min_writer=5,
        reader_features=None,
        writer_features=None,
    )
    (folder / "_delta_log").mkdir(parents=True)
    (folder / log_entry(0)).write_bytes(entry_of(shape.actions("mapped", 0)))
    return folder


def test_a_state_does_not_begin_in_a_table_whose_files_have_other_columns(tmp_path: Path) -> None:
    mapped = [mapped_table(tmp_path / "a", "col-1", "day"), mapped_table(tmp_path / "b", "page", "col-2")]
    for table in mapped:
        with pytest.raises(Refused, match=f"EPOCHS-STATE-SCHEMA: .*{table} has column mapping") as refused:
            pin_of(table)
        assert refused.value.remedy.startswith("Point `table`") and "name that in `initial`" in refused.value.remedy
    DeltaTable.create(tmp_path / "c", schema=pa.schema([("page", pa.string())]), partition_by=["page"])
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SCHEMA: .*/c is partitioned by page"):
        pin_of(tmp_path / "c")
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SCHEMA: .*`properties` set delta.columnMapping.mode=name"):
        pin_of(tmp_path / "new", properties=MAPPED)


def test_columns_that_somebody_has_renamed_get_their_old_names_again_if_nothing_else_has_these(tmp_path: Path) -> None:
    def remedy(table: Path, schema: str) -> str:
        with pytest.raises(Refused, match="its files have other names for page") as refused:
            pin_of(table, schema=schema, keys=["page"], expires=None)
        return refused.value.remedy

    renamed = mapped_table(tmp_path / "a", "n", "day")
    back = f"ALTER TABLE delta.`file://{renamed}` RENAME COLUMN `page` TO `n`."
    assert back in remedy(renamed, "page string, n bigint")
    assert "RENAME" not in remedy(renamed, "page string"), "the files' name is none of the state's"
    nested = mapped_table(tmp_path / "b", "n", "hour")
    assert "RENAME" not in remedy(nested, "page string, n bigint"), "a field would keep its new name"
    swapped = mapped_table(tmp_path / "c", "visit", "day", "page")
    assert "RENAME" not in remedy(swapped, "page string, visit string"), "another column has the name"


@pytest.mark.parametrize("sign", " ,;{}()\n\t=")
def test_a_state_is_refused_before_spark_if_only_tables_with_column_mapping_can_have_the_name_of_a_column(
    tmp_path: Path, sign: str
) -> None:
    schema = f"`the{sign}page` string, `the_page` string, n bigint"
    with pytest.raises(Refused, match="EPOCHS-STATE-SCHEMA: The state 'open' cannot have the column") as refused:
        pin_of(tmp_path, schema=schema, keys=["the_page"], expires=None)
    assert f"cannot have the column {f'the{sign}page'!r}" in refused.value.what
    assert f".withColumnRenamed({f'the{sign}page'!r}, 'the_page')" in refused.value.remedy
    DeltaTable.create(tmp_path / "table", schema=pa.schema([("the_page", pa.string())]))
    with pytest.raises(Refused, match="cannot have the column"):
        pin_of(tmp_path / "table", schema=schema, keys=["the_page"], expires=None)


def test_a_state_may_have_a_name_that_only_other_programs_give_to_a_column_of_a_table(tmp_path: Path) -> None:
    columns = pa.schema([("the page", pa.string()), ("n", pa.int64())])
    DeltaTable.create(tmp_path / "table", schema=columns)
    schema = "`the page` string, n bigint"
    assert pin_of(tmp_path / "table", schema=schema, keys=["the page"], expires=None).version is None


def test_a_state_is_refused_before_spark_for_the_name_of_a_field_inside_of_a_column(tmp_path: Path) -> None:
    schema = "page string, visits map<string, array<struct<n: int, `the day`: date>>>"
    with pytest.raises(Refused, match=r"cannot have the field 'visits\.value\.element\.the day'") as refused:
        pin_of(tmp_path, schema=schema, keys=["page"], expires=None)
    assert refused.value.remedy.startswith(
        "Name it 'the_day' in the arguments of the state table, and in the transform. "
    )
    with pytest.raises(Refused) as refused:
        pin_of(tmp_path, schema=schema, keys=["page"], expires=None, initial="/lake/old")
    assert "and in the transform, and in the table that `initial` names." in refused.value.remedy
    renamed = schema.replace("`the day`", "the_day")
    assert pin_of(tmp_path, schema=renamed, keys=["page"], expires=None).version is None


def test_a_state_with_a_name_that_delta_does_not_take_is_read_as_its_record_says(tmp_path: Path) -> None:
    state = StateTable("open", str(tmp_path), schema="`the page` string", keys=["the page"])
    recorded = from_spec(state.spec())
    assert isinstance(recorded, StateTable)
    assert recorded.plan_read(StatePin(version=None), (), Environment())["schema"] == state.schema


def test_a_state_begins_in_a_table_whose_files_have_the_same_columns_in_spite_of_a_mapping(tmp_path: Path) -> None:
    assert pin_of(mapped_table(tmp_path / "a", "page", "day")).version is None
    DeltaTable.create(tmp_path / "b", schema=pa.schema([("page", pa.string())]))
    assert pin_of(tmp_path / "b", properties=MAPPED).version is None, "properties are those of a new table"


@pytest.mark.parametrize(("pages", "problem"), [(["a", "b"], None), (["a", "b", "a"], "page='a'")])
def test_a_sample_of_changes_says_which_key_changes_twice(
    tmp_path: Path, pages: list[str], problem: str | None
) -> None:
    table, attempt = str(tmp_path / "open"), attempt_of(transaction(1))
    claim = stage(DeltaSink("open", table), attempt, pa.table({"page": pages}), Environment())
    seen = StateTable("open", table, schema="page string", keys=["page"]).sample(attempt, claim.place, 1, Environment())
    assert (seen.rows, seen.count) == (({"page": "a"},), len(pages))
    assert seen.problem is None if problem is None else problem in str(seen.problem)


MANIFESTS = "delta.compatibility.symlinkFormatManifest.enabled"


def with_manifests(table: str, value: str) -> None:
    """What ``ALTER TABLE … SET TBLPROPERTIES`` of Spark writes: an entry with the table's metadata."""
    metadata = metadata_of(DeltaTable(table))
    metadata["metaData"]["configuration"] |= {MANIFESTS: value}
    Path(table, log_entry(DeltaTable(table).version() + 1)).write_bytes(entry_of([metadata]))


def test_a_state_with_manifests_is_told_to_turn_them_off_and_goes_on_then(tmp_path: Path) -> None:
    table = str(tmp_path / "open")
    state, attempt, world = StateTable("open", **{**WINDOWS, "table": table}), attempt_of(transaction(1)), Environment()
    write_deltalake(table, pa.table({"page": ["a"]}))
    with_manifests(table, "true")
    for tried in (
        lambda: state.require_ready("clicks", None, world),
        lambda: state.plan_stage(attempt, "n", world),
    ):
        with pytest.raises(Refused, match="EPOCHS-DELTA-NEEDS-SPARK") as refused:
            tried()
        assert 'commit="spark"' not in refused.value.remedy
        assert f"ALTER TABLE delta.`file://{table}` SET TBLPROPERTIES ('{MANIFESTS}' = 'false')" in refused.value.remedy
    with_manifests(table, "false")
    state.require_ready("clicks", None, world)


def test_a_state_gets_no_column_whose_type_needs_a_feature_that_its_table_lacks(tmp_path: Path) -> None:
    table, attempt = str(tmp_path / "open"), attempt_of(transaction(1))
    changes = pa.table({"page": ["a"], "at": pa.array([datetime(2026, 1, 1)], pa.timestamp("us"))})
    claim = stage(DeltaSink("open", table), attempt, changes, Environment())
    DeltaTable.create(table, schema=pa.schema([("page", pa.string())]))
    state = StateTable("open", table, schema="page string, at timestamp_ntz", keys=["page"])
    assert "'delta.feature.timestampNtz' = 'supported'" in (state.vote(attempt, claim, Environment()).reason or "")


def test_what_a_state_is_closed_to_is_not_looked_for_in_receipts_of_other_sinks() -> None:
    told: dict[str, JsonDict] = {
        "mine": {"state": "stored"},
        "yours": {},
        "own": {"state": {"base": 1}},
        "open": {"state": {"closed": [5]}},
    }
    receipts = {name: replace(receipt(1), sink=name, detail=detail) for name, detail in told.items()}
    assert state_tables.closed_in(replace(complete(1), receipts=receipts)) == {"open": (5,)}
    assert state_tables.closed_in(None) == {}
