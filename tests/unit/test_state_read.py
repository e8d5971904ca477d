"""A state table as of any complete epoch, read by DuckDB with our SQL, and by us."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.ledger.signing import Keys
from airflow_epochs.read import state
from airflow_epochs.sinks.delta.state.view import ReadableState
from orders_demo.duck import duck
from tests.support.state_written import DELETED, LOG, WrittenState, at, mark

Rows = list[tuple[Any, ...]]


@pytest.fixture
def written(tmp_path: Path) -> WrittenState:
    return WrittenState(tmp_path)


def read(written: WrittenState, epoch: int | None = None) -> ReadableState:
    return state("p", written.name, epoch, ledger_root=written.root)


def by_duckdb(found: ReadableState) -> Rows:
    """What a stranger sees who pastes the statement of the view."""
    with duck() as db:
        db.execute(found.view_duckdb())
        return db.execute(f'SELECT page, epoch_us(until), n FROM "{found.name}" ORDER BY ALL').fetchall()


def by_us(found: ReadableState) -> Rows:
    rows = found.to_arrow().to_pylist()
    return sorted((row["page"], mark((row["until"] - at(0)).total_seconds()), row["n"]) for row in rows)


READERS = pytest.mark.parametrize("rows", [by_duckdb, by_us])


def expected(*rows: tuple[str, float, int]) -> Rows:
    return [(page, mark(second), n) for page, second, n in rows]


@READERS
def test_a_key_has_its_newest_row_and_a_deleted_key_has_none(
    written: WrittenState, rows: Callable[[ReadableState], Rows]
) -> None:
    written.epoch(("a", 10, 1), ("b", 10, 1), ("c", 10, 1))
    written.epoch(("a", 10, 2), ("b", 10, 2, DELETED))
    assert rows(read(written)) == expected(("a", 10, 2), ("c", 10, 1))
    written.epoch(("b", 10, 3))
    assert rows(read(written)) == expected(("a", 10, 2), ("b", 10, 3), ("c", 10, 1))


@READERS
def test_rows_up_to_the_watermark_that_the_next_epoch_hides_by_are_no_longer_state(
    written: WrittenState, rows: Callable[[ReadableState], Rows]
) -> None:
    written.epoch(("a", 10, 1), ("b", 10.000001, 1), ("c", 30, 1), watermarks=(None, None))
    assert len(rows(read(written))) == 3
    written.epoch(("d", 40, 1), watermarks=(10, None))
    assert rows(read(written)) == expected(("b", 10.000001, 1), ("c", 30, 1), ("d", 40, 1))
    written.epoch(("e", 40, 1), watermarks=(35, 20, 10))  # two operators, one behind the other: c waits for the second
    assert rows(read(written)) == expected(("c", 30, 1), ("d", 40, 1), ("e", 40, 1))


@READERS
def test_rows_that_an_operator_has_not_closed_are_state_wherever_it_stands(
    written: WrittenState, rows: Callable[[ReadableState], Rows]
) -> None:
    written.epoch(("a", 10, 1), ("b", 20, 1), ("c", 30, 1), watermarks=(25, 25), closed=15)
    assert rows(read(written)) == expected(("b", 20, 1), ("c", 30, 1))


@pytest.mark.proof
@READERS
def test_every_epoch_can_be_read_after_newer_ones_and_after_a_fold(
    written: WrittenState, rows: Callable[[ReadableState], Rows]
) -> None:
    written.epoch(("a", 10, 1), ("b", 20, 1), watermarks=(5, None))
    written.epoch(("a", 10, 2), watermarks=(15, 5))
    written.epoch(("b", 20, 1), ("c", 50, 1), watermarks=(15, 15), fold=True)
    DeltaTable(written.table).delete()  # by somebody else, after the newest epoch
    assert {number: rows(read(written, number)) for number in (1, 2, 3)} == {
        1: expected(("a", 10, 1), ("b", 20, 1)),
        2: expected(("b", 20, 1)),
        3: expected(("b", 20, 1), ("c", 50, 1)),
    }
    assert read(written) == read(written, 3)


def test_rows_without_an_end_and_states_without_one_never_expire(tmp_path: Path) -> None:
    ends, endless = WrittenState(tmp_path / "1"), WrittenState(tmp_path / "2", expires=None)
    for one in (ends, endless):
        one.epoch(("a", None, 1), ("b", 10, 1), watermarks=(20, None))
    with duck() as db:
        kept = [db.execute(read(one).sql_duckdb() + " ORDER BY page").fetchall() for one in (ends, endless)]
    assert [[row[0] for row in rows] for rows in kept] == [["a"], ["a", "b"]]
    assert [len(read(one).to_arrow()) for one in (ends, endless)] == [1, 2]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_zeros_of_both_signs_are_one_key_to_every_reader_of_an_older_table(tmp_path: Path, kind: pa.DataType) -> None:
    for epoch, zero in enumerate((-0.0, 0.0, -0.0), 1):
        columns = {"k": pa.array([zero, float("nan")], kind), "__epoch": [epoch] * 2, "__deleted": [False] * 2}
        write_deltalake(tmp_path, pa.table(columns), mode="append")
    found = ReadableState(
        name="open",
        table=str(tmp_path),
        version=2,
        epoch=3,
        columns=("k", "__epoch"),
        keys=("k",),
        expires=None,
        hidden_to=None,
        files=3,
        bytes=0,
    )
    with duck() as db:
        by_stranger = db.execute(found.sql_duckdb()).fetchall()
    for rows in (by_stranger, [tuple(row.values()) for row in found.to_arrow().to_pylist()]):
        assert sorted((str(k).strip("-"), epoch) for k, epoch in rows) == [("0.0", 3), ("nan", 3)]
    assert found.count() == (2, None)


def test_text_that_is_not_utf8_is_not_called_a_store_that_fails(written: WrittenState) -> None:
    written.epoch(("a\u00ff", 10, 1))
    [file] = written.table.glob("*.parquet")
    rows = pq.read_table(file)
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(struct.pack("<2i", 0, 2)), pa.py_buffer(b"a\xff")])
    pq.write_table(rows.set_column(0, rows.schema.field(0), text), file)
    log = written.table / "_delta_log" / f"{0:020}.json"
    log.write_text(re.sub(r'"size":\d+', f'"size":{file.stat().st_size}', log.read_text()))
    for ask in (read(written).to_arrow, read(written).count):
        with pytest.raises(
            Refused, match=r"EPOCHS-STATE-TEXT-UNREADABLE: Version 0 .* has a text that is not UTF-8"
        ) as refused:
            ask()
        assert "Read the state with Spark: `sql_spark()`" in refused.value.remedy


def test_pandas_gets_the_columns_of_the_state_alone(written: WrittenState) -> None:
    written.epoch(("a", 10, 7))
    frame = read(written).to_pandas()
    assert frame.to_dict("records") == [{"page": "a", "until": at(10), "n": 7}]


@READERS
def test_no_column_is_missing_behind_a_comment_of_the_schema(
    written: WrittenState, rows: Callable[[ReadableState], Rows]
) -> None:
    written.spec = {"schema": "page string COMMENT 'a > b, or (', until timestamp, n bigint"}
    written.epoch(("a", 10, 7))
    assert rows(read(written)) == expected(("a", 10, 7))


def test_arrow_gets_the_types_of_the_table(written: WrittenState) -> None:
    written.epoch(("a", 10, 7))
    assert read(written).to_arrow().schema.equals(pa.schema([LOG.field(name) for name in ("page", "until", "n")]))


def test_an_epoch_whose_records_were_pruned_is_read_with_the_keys_of_the_newest_one(written: WrittenState) -> None:
    written.epoch(("a", 10, 1), ("b", 10, 1), watermarks=(None, None))
    written.epoch(("a", 10, 2), watermarks=(None, None))
    written.ledger.pruning.prune(1)
    assert by_duckdb(read(written, 1)) == expected(("a", 10, 1), ("b", 10, 1))


def test_a_column_that_is_newer_than_the_epoch_is_left_out(written: WrittenState) -> None:
    written.epoch(("a", 10, 1))
    written.spec = {"schema": "page string, until timestamp, n bigint, newer decimal(10,2)"}
    written.epoch(("a", 10, 1))
    written.ledger.pruning.prune(1)
    assert read(written, 1).columns == ("page", "until", "n")


def test_an_epoch_whose_table_had_no_such_key_is_refused(written: WrittenState) -> None:
    written.epoch(("a", 10, 1))
    written.spec = {"keys": ["page", "shop"]}
    written.epoch(("a", 10, 1))
    written.ledger.pruning.prune(1)
    with pytest.raises(Refused, match=r"EPOCHS-STATE-EPOCH-GONE: Version 0 .* the table there has no column shop"):
        read(written, 1)


def test_a_state_that_was_removed_from_the_pipeline_is_read_at_its_own_last_epoch(written: WrittenState) -> None:
    written.epoch(("a", 10, 1))
    written.epoch_without_the_state()
    found = read(written)
    assert (found.epoch, by_duckdb(found)) == (1, expected(("a", 10, 1)))
    written.ledger.pruning.prune(1)
    with pytest.raises(Refused, match=r"EPOCHS-STATE-KEYS-UNKNOWN(.|\n)*\nWhere: pipeline p, sink open\n"):
        read(written)


def test_what_is_not_there_is_refused_with_its_name(written: WrittenState) -> None:
    for epoch in (None, 2):
        with pytest.raises(Refused, match=r"No epoch of the pipeline is complete\."):
            read(written, epoch)
    written.epoch(("a", 10, 1))
    with pytest.raises(
        Refused, match=r"Epoch 2 of the pipeline is not complete\. The newest complete one is 1\.\nWhere: "
    ):
        read(written, 2)
    with pytest.raises(Refused, match="Up to epoch 1, the pipeline had no state 'shut'"):
        state("p", "shut", ledger_root=written.root)
    written.spec = {"kind": "delta"}
    written.epoch(("a", 10, 1))
    with pytest.raises(Refused, match="'open' is a sink of the pipeline, but no state table"):
        read(written)


def vacuumed(table: Path) -> None:
    DeltaTable(table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def log_cleaned_up(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    for version in (0, 1):
        (table / "_delta_log" / f"{version:020}.json").unlink()


def replaced(table: Path) -> None:
    rows = DeltaTable(table).to_pyarrow_table()
    shutil.rmtree(table)
    write_deltalake(table, rows)
    write_deltalake(table, rows, mode="append")


def removed(table: Path) -> None:
    shutil.rmtree(table)


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (vacuumed, r"Version 1 of .* cannot be read any more: 2 of its files are gone, for example part-"),
        (log_cleaned_up, r"Version 1 of .* cannot be read any more: "),
        (replaced, r"Version 1 of .* cannot be read any more: another table has taken the place"),
        (removed, r"Version 1 of .* cannot be read any more: "),
    ],
)
def test_an_epoch_that_cannot_be_read_any_more_is_refused_and_a_way_out_named(
    written: WrittenState, harm: Callable[[Path], None], why: str
) -> None:
    written.epoch(("a", 10, 1))
    written.epoch(("b", 10, 1))
    written.epoch(("a", 10, 1), ("b", 10, 1), fold=True)
    harm(written.table)
    with pytest.raises(Refused, match=rf"EPOCHS-STATE-EPOCH-GONE: {why}(.|\n)*What to do: Read a newer epoch"):
        read(written, 2)


def test_files_that_vanish_after_the_look_at_the_version_are_told_of_in_the_same_way(written: WrittenState) -> None:
    written.epoch(("a", 10, 1))
    found = read(written)
    written.epoch(("a", 10, 1), fold=True)
    vacuumed(written.table)
    with pytest.raises(Refused, match=r"EPOCHS-STATE-EPOCH-GONE: Version 0 of"):
        found.to_arrow()


def test_a_store_that_does_not_answer_is_not_taken_for_one_that_has_lost_the_epoch(written: WrittenState) -> None:
    written.epoch(("a", 10, 1))
    options = {"aws_endpoint": "http://127.0.0.1:9", "allow_http": "true", "aws_region": "us-east-1"}
    secret = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "max_retries": "0"}
    found = replace(read(written), table="s3://bucket/open", options=options | secret)
    with pytest.raises(NotApplied, match="EPOCHS-DELTA-UNREACHABLE: The provider cannot reach the table s3://bucket"):
        found.to_arrow()


def test_an_unsigned_record_cannot_choose_the_connection_of_the_tables_store(
    written: WrittenState, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "epochs", "extra": {"ledger_root": written.root}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(connection))
    written.spec = {"storage_conn_id": "treasure"}
    written.epoch(("a", 10, 1))
    with pytest.raises(Refused, match=r"not signed says that the state table uses connection 'treasure'"):
        state("p", "open")
    assert by_duckdb(state("p", "open", storage_options={})) == expected(("a", 10, 1))


def test_a_signed_record_names_the_connection_of_the_tables_store(
    written: WrittenState, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = "a key that is long enough"
    connection = {"conn_type": "epochs", "password": password, "extra": {"ledger_root": written.root}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", "extra": {"region_name": "eu-north-1"}}))
    written.keys = Keys.parse(password)
    written.spec = {"storage_conn_id": "lake"}
    written.ledger.register("dag", at="now", writer="w")
    written.epoch(("a", 10, 1))
    assert state("p", "open").options == {"aws_region": "eu-north-1"}
