"""The case of names of a state's columns. To Delta it makes no difference; a state is read by names as they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import StateTable
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.delta.log import entry_of, log_entry
from airflow_epochs.delta.shape import PHYSICAL_NAME, metadata_of
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import Receipt, StatePin, TransactionId
from tests.support.delta_world import LEDGER, promised, rows_by_duckdb, stage, transaction
from tests.support.environment import Environment

WORLD = Environment()
STORED = "page string, n bigint"


def state_at(table: Path, schema: str = STORED, **options: Any) -> StateTable:
    return StateTable("open", str(table), **{"schema": schema, "keys": ["page"], **options})


def attempt_at(epoch: int, previous: TransactionId | None = None) -> SinkAttempt:
    pin = StatePin(version=epoch - 2 if previous else None)
    return SinkAttempt(txn=transaction(epoch), ledger_id=LEDGER, previous=previous, state=pin)


def changes(epoch: int, **columns: Any) -> pa.Table:
    values = {name: [value] for name, value in columns.items()}
    return pa.table({"page": [f"page {epoch}"], **values, "__epoch": [epoch], "__deleted": [False]})


def receipt_of_first(state: StateTable) -> Receipt:
    """The first epoch is in the table."""
    attempt = attempt_at(1)
    staged = promised(state.vote(attempt, stage(state, attempt, changes(1, n=1), WORLD), WORLD))
    return state.commit(attempt, staged, WORLD)


def begun(state: StateTable) -> TransactionId:
    """The same; its transaction."""
    return receipt_of_first(state).txn_id


def with_column(table: Path, name: str) -> None:
    """What Spark writes for ALTER TABLE … ADD COLUMN."""
    now = DeltaTable(table)
    action = metadata_of(now)
    schema = json.loads(action["metaData"]["schemaString"])
    schema["fields"].append({"name": name, "type": "long", "nullable": True, "metadata": {}})
    action["metaData"]["schemaString"] = json.dumps(schema)
    Path(table, log_entry(now.version() + 1)).write_bytes(entry_of([action]))


def test_a_state_with_another_case_of_a_name_of_its_table_is_refused_before_spark_and_not_as_the_table_has_it(
    tmp_path: Path,
) -> None:
    table = tmp_path / "open"
    previous = begun(state_at(table))
    wrong, attempt = state_at(table, "page string, N bigint, more int"), attempt_at(2, previous)
    for tried in (lambda: wrong.pin(None, "orders", WORLD), lambda: wrong.plan_stage(attempt, "n", WORLD)):
        with pytest.raises(
            Refused, match=r"EPOCHS-STATE-SCHEMA: .*the column 'N', which is 'n' in its table"
        ) as refused:
            tried()
        assert refused.value.remedy.startswith("Write 'n' as in the table, in the arguments of the state table, and in")
    assert not list(table.glob("epochs/*/2-*"))
    right = state_at(table, "page string, n bigint, more int")
    staged = promised(
        right.vote(attempt, stage(right, attempt, changes(2, n=2, more=pa.scalar(3, pa.int32())), WORLD), WORLD)
    )
    right.commit(attempt, staged, WORLD)
    assert rows_by_duckdb(table) == ["('page 1', 1, 1, False, None)", "('page 2', 2, 2, False, 3)"]


def test_another_case_of_a_key_is_refused_in_the_same_way(tmp_path: Path) -> None:
    begun(state_at(tmp_path / "open"))
    with pytest.raises(Refused, match="the column 'PAGE', which is 'page' in its table"):
        state_at(tmp_path / "open", "PAGE string, n bigint", keys=["PAGE"]).pin(None, "orders", WORLD)


@pytest.mark.parametrize("decided", [False, True])
def test_a_column_that_others_add_in_another_case_while_an_epoch_adds_it_does_not_spoil_the_table(
    tmp_path: Path, decided: bool
) -> None:
    table = tmp_path / "open"
    previous = begun(state_at(table))
    state, attempt = state_at(table, "page string, n bigint, more bigint"), attempt_at(2, previous)
    claim = stage(state, attempt, changes(2, n=2, more=3), WORLD)
    if not decided:
        with_column(table, "More")
        vote = state.vote(attempt, claim, WORLD)
        assert vote.reason and "the column 'more', which is 'More' in its table" in vote.reason
    else:
        staged = promised(state.vote(attempt, claim, WORLD))
        with_column(table, "More")
        with pytest.raises(
            Corrupt, match="it has the column 'More', and the rows have 'more', which is the same"
        ) as no:
            state.commit(attempt, staged, WORLD)
        assert "TO VERSION AS OF the version before the change" in no.value.remedy
    assert rows_by_duckdb(table) == ["('page 1', 1, 1, False, None)"]
    if decided:
        DeltaTable(table).restore(0)
        state.commit(attempt, staged, WORLD)
        assert rows_by_duckdb(table) == ["('page 1', 1, 1, False, None)", "('page 2', 2, 2, False, 3)"]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("page string, n bigint, N bigint", "both columns 'n' and 'N': Delta takes"),
        ("page string, n bigint, `n` int", "both columns 'n' and 'n': Delta takes"),
        (
            "page string, __EPOCH bigint",
            "both columns '__epoch' and '__EPOCH'.* The state table adds '__epoch' itself.",
        ),
    ],
)
def test_two_columns_of_one_name_are_refused_before_spark(tmp_path: Path, schema: str, told: str) -> None:
    state = state_at(tmp_path / "open", schema)
    with pytest.raises(Refused, match=rf"EPOCHS-STATE-SCHEMA: .*{told}") as refused:
        state.pin(None, "orders", WORLD)
    assert "another name, in the arguments of the state table, and in the transform." in refused.value.remedy


def test_a_state_does_not_begin_with_null_in_a_column_that_initial_has_in_another_case(tmp_path: Path) -> None:
    kept, renamed = str(tmp_path / "kept"), str(tmp_path / "renamed")
    rows = pa.table({"page": ["a"], "N": [5]})
    write_deltalake(kept, rows)
    with pytest.raises(Refused, match=f"EPOCHS-STATE-SCHEMA: .*'n', which is 'N' in the table {kept}") as refused:
        state_at(tmp_path / "open", initial=kept).pin(None, "orders", WORLD)
    assert (
        refused.value.remedy.startswith("Write 'N' as in the table")
        and "to another Delta table" in refused.value.remedy
    )
    assert state_at(tmp_path / "open", "page string, N bigint", initial=kept).pin(None, "orders", WORLD).initial == 0
    write_deltalake(renamed, rows.rename_columns(["page", "n"]))
    assert state_at(tmp_path / "open", initial=renamed).pin(None, "orders", WORLD).initial == 0


def test_a_state_does_not_begin_with_null_in_a_column_that_initial_has_under_another_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, renamed, thin = str(tmp_path / "kept"), str(tmp_path / "renamed"), str(tmp_path / "thin")
    rows = pa.table({"page": ["a"], "num": [5]})
    write_deltalake(kept, rows)
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SCHEMA: .*NULL in 'n'.* Nothing reads its 'num'") as refused:
        state_at(tmp_path / "open", initial=kept).pin(None, "orders", WORLD)
    assert "with the names that `schema` has, or without 'num'" in refused.value.remedy
    write_deltalake(renamed, rows.rename_columns(["page", "n"]))
    write_deltalake(thin, rows.select(["page"]))
    assert state_at(tmp_path / "open", initial=renamed).pin(None, "orders", WORLD).initial == 0
    assert caplog.text == ""
    assert state_at(tmp_path / "open", initial=thin).pin(None, "orders", WORLD).initial == 0
    assert f"begins with NULL in 'n': the table {thin}, which `initial` names, has no such column." in caplog.text


def test_a_table_made_by_others_with_the_states_own_columns_in_another_case_is_refused(tmp_path: Path) -> None:
    rows = changes(1, n=1).slice(0, 0).rename_columns(["page", "n", "__EPOCH", "__deleted"])
    write_deltalake(str(tmp_path / "open"), rows)
    with pytest.raises(Refused, match=r"'__epoch', which is '__EPOCH' in its table"):
        state_at(tmp_path / "open").pin(None, "orders", WORLD)


def mapped(table: Path) -> None:
    """What Spark writes to turn column mapping on; all names stay."""
    action = metadata_of(DeltaTable(table))
    schema = json.loads(action["metaData"]["schemaString"])
    for number, column in enumerate(schema["fields"], 1):
        column["metadata"] = {"delta.columnMapping.id": number, PHYSICAL_NAME: column["name"]}
    mode = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(len(schema["fields"]))}
    action["metaData"] |= {"schemaString": json.dumps(schema), "configuration": mode}
    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    Path(table, log_entry(1)).write_bytes(entry_of([protocol, action]))


def test_a_state_with_column_mapping_gets_no_column_and_goes_on_without_it(tmp_path: Path) -> None:
    table = tmp_path / "open"
    receipt = receipt_of_first(state_at(table))
    mapped(table)
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SCHEMA: .*cannot get the columns more") as refused:
        state_at(table, f"{STORED}, more bigint").pin(receipt, "orders", WORLD)
    assert refused.value.remedy.startswith("Take more out of `schema` again.")
    assert state_at(table).pin(receipt, "orders", WORLD).version == 1


def test_the_epochs_own_commit_is_no_change_by_others_where_its_rows_are_staged_again(tmp_path: Path) -> None:
    table = tmp_path / "open"
    state, attempt = state_at(table), replace(attempt_at(2, begun(state_at(table))), promised=True)
    staged = promised(state.vote(attempt, stage(state, attempt, changes(2, n=2), WORLD), WORLD))
    state.commit(attempt, staged, WORLD)
    assert promised(state.vote(attempt, stage(state, attempt, changes(2, n=2), WORLD), WORLD)).has_rows_of(staged)


def test_a_change_by_others_names_the_waiver_where_rows_of_a_decided_epoch_are_staged_again(tmp_path: Path) -> None:
    table = tmp_path / "open"
    state, attempt = state_at(table), attempt_at(2, begun(state_at(table)))
    DeltaTable(table).delete()
    for each, way in ((attempt, "airflow epochs abort"), (replace(attempt, promised=True), "airflow epochs waive")):
        with pytest.raises(Corrupt, match="EPOCHS-STATE-CHANGED") as changed:
            state.vote(each, stage(state, each, changes(2, n=2), WORLD), WORLD)
        assert way in changed.value.remedy
