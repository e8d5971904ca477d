"""State tables that got features which deltalake does not know: some change nothing for states, some must go."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_epochs import DeltaSink, StateTable
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.delta.log import entry_of, log_entry
from airflow_epochs.delta.shape import TableShape, metadata_of
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import RestorePoint, Staged, StatePin, TransactionId
from airflow_epochs.sinks.delta import checks
from tests.support.delta_world import LEDGER, attempt_of, promised, rows_by_duckdb, stage, transaction
from tests.support.environment import Environment

HARMLESS = ["allowColumnDefaults", "checkpointProtection", "clustering", "domainMetadata"]
WORLD = Environment()


def state_at(table: Path, **options: Any) -> StateTable:
    return StateTable("open", str(table), schema="page string", keys=["page"], **options)


def with_features(table: Path, *features: str) -> None:
    """What Spark writes for them: the protocol and, for a clustered table, its columns in a domain."""
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "invariants", *features]}
    domain = {"domain": "delta.clustering", "configuration": '{"clusteringColumns":[["page"]]}', "removed": False}
    actions = [{"protocol": protocol}, *([{"domainMetadata": domain}] if "clustering" in features else [])]
    Path(table, log_entry(DeltaTable(table).version() + 1)).write_bytes(entry_of(actions))


def decided(state: StateTable, previous: TransactionId | None = None) -> tuple[SinkAttempt, Staged]:
    """An epoch whose changes are staged and promised; it reads what the epoch before has committed."""
    epoch, pin = (previous.epoch + 1, 0) if previous else (1, None)
    attempt = SinkAttempt(txn=transaction(epoch), ledger_id=LEDGER, previous=previous, state=StatePin(version=pin))
    changes = pa.table({"page": [f"page {epoch}"], "__epoch": [epoch], "__deleted": [False]})
    return attempt, promised(state.vote(attempt, stage(state, attempt, changes, WORLD), WORLD))


def begun(state: StateTable) -> TransactionId:
    """The first epoch is in the table."""
    attempt, staged = decided(state)
    state.commit(attempt, staged, WORLD)
    return attempt.txn


def test_a_state_goes_on_in_a_table_that_was_clustered_after_the_decision(tmp_path: Path) -> None:
    state = state_at(tmp_path / "open", checkpoint_every=1)
    attempt, staged = decided(state, begun(state))
    with_features(tmp_path / "open", *HARMLESS)
    state.commit(attempt, staged, WORLD)
    assert rows_by_duckdb(tmp_path / "open") == ["('page 1', 1, False)", "('page 2', 2, False)"]
    state.require_ready("p", None, WORLD)
    assert state.maintain("p", 2, WORLD) == {"checkpoint": 2}
    (checkpoint,) = (tmp_path / "open" / "_delta_log").glob("*.checkpoint.parquet")
    assert b"clusteringColumns" in checkpoint.read_bytes(), "what it is clustered by is not forgotten"


def with_notes(table: Path, **notes: str) -> None:
    """What Spark writes for ALTER TABLE … ALTER COLUMN page SET DEFAULT, or COMMENT."""
    now = DeltaTable(table)
    action = metadata_of(now)
    schema = json.loads(action["metaData"]["schemaString"])
    schema["fields"][0]["metadata"] |= notes
    action["metaData"]["schemaString"] = json.dumps(schema)
    Path(table, log_entry(now.version() + 1)).write_bytes(entry_of([action]))


NOTES = {"CURRENT_DEFAULT": "'zzz'", "comment": "the page"}


def test_a_state_goes_on_in_a_table_whose_column_got_a_default_and_a_comment_after_the_decision(tmp_path: Path) -> None:
    state = state_at(tmp_path / "open")
    attempt, staged = decided(state, begun(state))
    with_features(tmp_path / "open", "allowColumnDefaults")
    with_notes(tmp_path / "open", **NOTES)
    state.commit(attempt, staged, WORLD)
    assert rows_by_duckdb(tmp_path / "open") == ["('page 1', 1, False)", "('page 2', 2, False)"]
    assert DeltaTable(tmp_path / "open").schema().fields[0].metadata == NOTES


def test_a_default_and_a_comment_keep_a_state_neither_from_its_vote_nor_from_going_back(tmp_path: Path) -> None:
    state = state_at(tmp_path / "open")
    first = begun(state)
    attempt = SinkAttempt(txn=transaction(2), ledger_id=LEDGER, previous=first, state=StatePin(version=0))
    changes = pa.table({"page": ["page 2"], "__epoch": [2], "__deleted": [False]})
    claim = stage(state, attempt, changes, WORLD)
    with_features(tmp_path / "open", "allowColumnDefaults")
    with_notes(tmp_path / "open", **NOTES)
    state.commit(attempt, promised(state.vote(attempt, claim, WORLD)), WORLD)
    state.require_restorable(RestorePoint(epoch=1, version=0), "orders", WORLD)


def test_another_change_of_a_column_in_doubt_is_undone_by_restore(tmp_path: Path) -> None:
    state = state_at(tmp_path / "open")
    attempt, staged = decided(state, begun(state))
    with_notes(tmp_path / "open", other="x")
    with pytest.raises(Corrupt, match="its column 'page' was changed") as altered:
        state.commit(attempt, staged, WORLD)
    assert f"RESTORE TABLE delta.`file://{tmp_path}/open` TO VERSION AS OF the version before" in altered.value.remedy


@pytest.mark.parametrize("protected", [True, False])
def test_the_log_keeps_the_entries_that_protected_checkpoints_need(tmp_path: Path, protected: bool) -> None:
    state = state_at(
        tmp_path / "open", checkpoint_every=1, properties={"delta.logRetentionDuration": "interval 0 days"}
    )
    begun(state)
    with_features(tmp_path / "open", *(["checkpointProtection"] if protected else []))
    assert state.maintain("p", 1, WORLD) == {"checkpoint": 1}
    assert (tmp_path / "open" / log_entry(0)).exists() is protected


def shape_with(*features: str) -> TableShape:
    return TableShape.of_actions(
        {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features},
        {"id": "1", "schemaString": '{"fields": []}', "partitionColumns": []},
    )


def test_only_a_state_goes_on_in_spite_of_these_features(tmp_path: Path) -> None:
    checks.require_committable(shape_with(*HARMLESS), "/lake/open", state_at(tmp_path / "open"))
    with pytest.raises(Refused, match="EPOCHS-DELTA-NEEDS-SPARK") as refused:
        checks.require_committable(shape_with(*HARMLESS), "/lake/open", DeltaSink("open", "/lake/open"))
    assert 'commit="spark"' in refused.value.remedy


def test_a_feature_that_a_state_cannot_have_is_to_be_dropped_and_if_not_the_state_begins_anew(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        checks.require_committable(shape_with(*HARMLESS, "rowTracking"), "/lake/open", state_at(tmp_path / "open"))
    assert "features of the table: rowTracking." in refused.value.what
    first, anew = refused.value.remedy.split("If Spark cannot drop one, the state must begin anew. ")
    assert (
        first.startswith("Let Spark drop") and "ALTER TABLE delta.`file:///lake/open` DROP FEATURE rowTracking" in first
    )
    assert "adopt-sink PIPELINE open --new-table" in anew and "`initial`" in anew


def test_nobody_is_told_to_drop_a_feature_of_a_table_that_does_not_exist_yet(tmp_path: Path) -> None:
    state = state_at(tmp_path / "open", properties={"delta.enableRowTracking": "true"})
    staging: Any = SimpleNamespace(shape=shape_with("rowTracking"))
    with pytest.raises(Refused, match="EPOCHS-DELTA-NEEDS-SPARK") as refused:
        checks.require_addable(None, staging, "/lake/open", state)
    assert refused.value.remedy.startswith("Leave what asks for rowTracking out of `properties` of the state")
    assert "DROP FEATURE" not in refused.value.remedy


def test_an_old_writer_version_is_no_feature_to_drop(tmp_path: Path) -> None:
    shape = replace(shape_with(), min_writer=6, writer_features=None)
    with pytest.raises(Refused, match="writer version 6") as refused:
        checks.require_committable(shape, "/lake/open", state_at(tmp_path / "open"))
    assert refused.value.remedy.startswith("Point `table`") and "DROP FEATURE" not in refused.value.remedy


def test_a_change_in_doubt_that_cannot_be_undone_has_a_way_on_that_keeps_the_rows(tmp_path: Path) -> None:
    state = state_at(tmp_path / "open")
    attempt, staged = decided(state, begun(state))
    with_features(tmp_path / "open", "rowTracking")
    with pytest.raises(Corrupt, match="it now has rowTracking, which deltalake does not support") as altered:
        state.commit(attempt, staged, WORLD)
    first, then = altered.value.remedy.split(f"`airflow epochs waive {attempt.txn.pipeline} 2 open --why …`")
    assert "DROP FEATURE" in first and f"{staged.place}`: to keep the rows" in then


def test_a_plain_table_that_only_spark_can_commit_to_is_not_told_that_spark_could_bring_it_back(tmp_path: Path) -> None:
    """An epoch that brings versions back is committed without Spark, whatever `commit` says."""
    sink, attempt = DeltaSink("orders", str(tmp_path / "orders")), attempt_of(transaction(1))
    claim = stage(sink, attempt, pa.table({"id": [1]}), WORLD)
    sink.commit(attempt, promised(sink.vote(attempt, claim, WORLD)), WORLD)
    with_features(tmp_path / "orders", "clustering", "domainMetadata")
    with pytest.raises(Refused, match="only Spark can commit to it, because it has clustering") as refused:
        sink.require_restorable(RestorePoint(epoch=1, version=0), "orders", WORLD)
    assert "without `--restore-tables`" in refused.value.remedy and "commit=" not in refused.value.remedy
