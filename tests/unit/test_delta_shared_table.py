"""Two pipelines on one table, one of which overwrites it: its vote spares what the other has brought in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.delta.log import log_entry
from airflow_epochs.delta.table import App
from airflow_epochs.errors import Refused
from airflow_epochs.model import RestorePoint, Vote, VoteKind
from airflow_epochs.sinks.delta.other_pipelines import ENTRIES_MAX, newest_of_others
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.storage.local import LocalFiles
from tests.support.delta_world import LEDGER, attempt_of, ids_in, promised, rows, run_epoch, stage, transaction
from tests.support.environment import Environment

THEIRS = rows(1, 2, p=["a", "b"])
OURS = rows(3, p=["b"])


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "stock")


@pytest.fixture
def fed(table: str, world: Environment) -> DeltaSink:
    """The sink of another pipeline, which has brought in its first epoch."""
    sink = DeltaSink("fixes", table, partition_by=["p"])
    run_epoch(sink, transaction(1, pipeline="corrections"), None, THEIRS, world)
    return sink


def overwriting(table: str, **options: Any) -> DeltaSink:
    return DeltaSink("stock", table, **{"mode": "overwrite", **options})


def vote_of(
    sink: DeltaSink, world: Environment, data: pa.Table = OURS, attempt: SinkAttempt | None = None, **changed: Any
) -> Vote:
    attempt = attempt or attempt_of(transaction(1))
    claim = stage(sink, attempt, data, world)
    return sink.vote(replace(attempt, **changed), claim, world)


def require_against(vote: Vote, mode: str = "overwrite", version: int = 0) -> None:
    assert vote.vote is VoteKind.VOTE_ABORT
    assert vote.reason
    assert vote.reason.startswith(
        "EPOCHS-DELTA-OTHER-PIPELINE: Pipeline 'corrections' has put rows of its epoch 1 into "
    )
    assert f"(version {version}, sink 'fixes'). Mode '{mode}' would delete these rows." in vote.reason
    assert "Give each pipeline a table of its own" in vote.reason


def require_for(vote: Vote) -> None:
    assert vote.vote is VoteKind.VOTE_COMMIT, vote.reason


def test_an_overwrite_that_would_take_rows_of_another_pipeline_away_is_a_vote_against(
    table: str, world: Environment, fed: DeltaSink
) -> None:
    require_against(vote_of(overwriting(table), world))


def test_it_is_one_too_after_the_rows_were_compacted_and_in_part_corrected(
    table: str, world: Environment, fed: DeltaSink
) -> None:
    DeltaTable(table).optimize.compact()
    DeltaTable(table).update(predicate="id = 1", new_values={"id": "7"})
    require_against(vote_of(overwriting(table), world))


def deleted(table: str) -> None:
    DeltaTable(table).delete()


def overwritten(table: str) -> None:
    write_deltalake(table, rows(9, p=["z"]), mode="overwrite")


def restored(table: str) -> None:
    write_deltalake(table, rows(9, p=["z"]), mode="overwrite")
    write_deltalake(table, rows(8, p=["z"]), mode="append")
    DeltaTable(table).restore(1)


def deleted_after_compaction(table: str) -> None:
    compacted_with_others(table)
    DeltaTable(table).delete()


def restored_to_before_them(table: str) -> None:
    """The rows were brought back in between."""
    DeltaTable(table).delete()
    DeltaTable(table).restore(0)
    DeltaTable(table).restore(1)


def replaced_where_all_are(table: str) -> None:
    write_deltalake(table, rows(9, p=["z"]).slice(0, 0), mode="overwrite", predicate="id > 0")


GONE = [deleted, overwritten, restored, deleted_after_compaction, restored_to_before_them, replaced_where_all_are]


@pytest.mark.parametrize("change", GONE)
def test_rows_that_are_gone_already_are_none(
    table: str, world: Environment, fed: DeltaSink, change: Callable[[str], None]
) -> None:
    change(table)
    require_for(vote_of(overwriting(table), world))


def deleted_and_restored(table: str) -> None:
    DeltaTable(table).delete()
    DeltaTable(table).restore(0)


def overwritten_and_restored(table: str) -> None:
    write_deltalake(table, rows(9, p=["z"]), mode="overwrite")
    DeltaTable(table).restore(0)


def restored_to_before_and_after_their_compaction(table: str) -> None:
    compacted_with_others(table)
    DeltaTable(table).restore(0)
    DeltaTable(table).restore(3)


def replaced_in_part(table: str) -> None:
    compacted_with_others(table)
    write_deltalake(table, rows(9, p=["a"]), mode="overwrite", predicate="id > 7 AND p = 'a'")


def compacted_with_others(table: str) -> None:
    DeltaTable(table).delete("p = 'b'")
    write_deltalake(table, rows(8, p=["a"]), mode="append")
    assert DeltaTable(table).optimize.compact()["numFilesRemoved"] == 2


def compacted_by_an_overwrite(table: str) -> None:
    """With Spark's option ``dataChange=false``, as Delta's documentation once told users to compact."""
    write_deltalake(table, DeltaTable(table).to_pyarrow_table(), mode="overwrite")
    entry = Path(table, log_entry(1))
    entry.write_text(entry.read_text().replace('"dataChange":true', '"dataChange":false'))


def deleted_in_part(table: str) -> None:
    DeltaTable(table).delete("p = 'a'")


LIVE = [
    deleted_and_restored,
    overwritten_and_restored,
    restored_to_before_and_after_their_compaction,
    replaced_in_part,
    compacted_by_an_overwrite,
    deleted_in_part,
]


@pytest.mark.parametrize("change", LIVE)
def test_rows_that_were_brought_back_or_copied_into_other_files_are_still_theirs(
    table: str, world: Environment, fed: DeltaSink, change: Callable[[str], None]
) -> None:
    change(table)
    assert 1 in ids_in(table) or 2 in ids_in(table)
    require_against(vote_of(overwriting(table), world))


def test_rows_that_an_overwrite_in_part_has_kept_are_still_theirs(table: str, world: Environment) -> None:
    """On a table without partitions, where the kept rows are copied into a file of the overwrite."""
    run_epoch(DeltaSink("fixes", table), transaction(1, pipeline="corrections"), None, THEIRS, world)
    write_deltalake(table, rows(9, p=["b"]), mode="overwrite", predicate="p = 'b'")
    assert ids_in(table) == [1, 9]
    require_against(vote_of(overwriting(table), world))


@pytest.mark.parametrize("change", [*GONE, *LIVE])
def test_a_sink_that_is_alone_on_its_table_goes_on_whatever_its_owner_does(
    table: str, world: Environment, change: Callable[[str], None]
) -> None:
    sink = DeltaSink("stock", table, partition_by=["p"])
    run_epoch(sink, first := transaction(1), None, THEIRS, world)
    change(table)
    require_for(vote_of(overwriting(table), world, attempt=attempt_of(transaction(2), first)))


def test_a_sink_that_replaces_what_others_bring_in_may_do_so(table: str, world: Environment, fed: DeltaSink) -> None:
    require_for(vote_of(overwriting(table, replaces_others=True), world))


def test_an_epoch_without_rows_takes_nothing_away_unless_it_truncates(
    table: str, world: Environment, fed: DeltaSink
) -> None:
    none = OURS.slice(0, 0)
    require_for(vote_of(overwriting(table), world, none))
    require_against(vote_of(overwriting(table, empty="truncate"), world, none))
    require_for(vote_of(overwriting(table, mode="overwrite_partitions"), world, none))


@pytest.mark.parametrize(("partition", "refused"), [("a", True), ("b", True), ("c", False), (None, False)])
def test_an_overwrite_of_partitions_spares_those_in_which_others_have_rows(
    table: str, world: Environment, fed: DeltaSink, partition: str | None, refused: bool
) -> None:
    vote = vote_of(overwriting(table, mode="overwrite_partitions"), world, rows(3, 4, p=[partition, "d"]))
    if refused:
        require_against(vote, "overwrite_partitions")
    else:
        require_for(vote)


def test_rows_of_the_same_pipeline_and_of_strangers_may_go(table: str, world: Environment) -> None:
    write_deltalake(table, THEIRS, partition_by=["p"])
    run_epoch(DeltaSink("old_name", table), transaction(1), None, THEIRS, world)
    require_for(vote_of(overwriting(table), world))


OTHER_LEDGER = "1c0ffee1"


def fed_from_another_ledger(table: str, world: Environment) -> str:
    """A pipeline with our name and a ledger of its own brings in its first epoch. Returns the name of its sink."""
    sink, attempt = DeltaSink("copy", table), attempt_of(transaction(1))
    attempt = replace(attempt, ledger_id=OTHER_LEDGER)
    sink.commit(attempt, promised(sink.vote(attempt, stage(sink, attempt, THEIRS, world), world)), world)
    return sink.name


def test_rows_of_a_pipeline_with_the_same_name_in_another_ledger_are_not_overwritten(
    table: str, world: Environment
) -> None:
    name = fed_from_another_ledger(table, world)
    vote = vote_of(overwriting(table), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert vote.reason
    assert vote.reason.startswith(
        "EPOCHS-DELTA-OTHER-PIPELINE: Pipeline 'orders' of another ledger has put rows of its epoch 1 into "
    )
    assert f"(version 0, sink {name!r})" in vote.reason
    require_for(vote_of(overwriting(table, replaces_others=True), world))


def test_a_dry_run_which_has_no_ledger_goes_by_the_name_of_the_pipeline(table: str, world: Environment) -> None:
    run_epoch(DeltaSink("old_name", table), transaction(1), None, THEIRS, world)
    require_for(vote_of(overwriting(table), world, attempt=replace(attempt_of(transaction(1)), ledger_id="dry-0123")))


def test_a_commit_that_names_no_place_goes_by_the_name_of_its_pipeline(table: str, world: Environment) -> None:
    run_epoch(DeltaSink("old_name", table), transaction(1), None, THEIRS, world)
    entry = Path(table, log_entry(0))
    entry.write_text(entry.read_text().replace('\\"place\\"', '\\"was\\"'))
    assert (
        newest_of_others(LocalFiles(Path(table)), App.of("orders", "stock"), OTHER_LEDGER, 0, lambda add: True) is None
    )


def test_an_overwrite_by_a_pipeline_with_the_same_name_in_another_ledger_is_told(
    table: str, world: Environment
) -> None:
    sink = DeltaSink("stock", table)
    _, since = run_epoch(sink, transaction(1), None, THEIRS, world)
    for ledger in (LEDGER, OTHER_LEDGER):
        note = {"app": "airflow_epochs/orders/copy", "place": f"epochs/{ledger}.copy/1-1-0"}
        told = {"userMetadata": json.dumps({"airflow_epochs": note})}
        write_deltalake(table, THEIRS, mode="overwrite", commit_properties=CommitProperties(custom_metadata=told))
    assert sink.foreign_changes(since, "orders", (), world) == [
        f"sink stock: {table} may have lost rows of complete epochs in version 2 "
        "(WRITE, overwrite by pipeline 'orders' of another ledger)"
    ]


def test_a_table_does_not_go_back_to_before_rows_of_the_same_pipeline_in_another_ledger(
    table: str, world: Environment
) -> None:
    sink = DeltaSink("stock", table)
    run_epoch(sink, transaction(1), None, THEIRS, world)
    run_epoch(DeltaSink("old_name", table), transaction(1), None, THEIRS, world)
    sink.require_restorable(RestorePoint(epoch=1, version=0), "orders", world)
    fed_from_another_ledger(table, world)
    with pytest.raises(Refused, match=r"pipeline 'orders' of another ledger has put rows of its epoch 1 .* version 2"):
        sink.require_restorable(RestorePoint(epoch=1, version=0), "orders", world)


def test_a_promise_is_kept_whoever_has_come_since(table: str, world: Environment, fed: DeltaSink) -> None:
    """Rows that are staged again after GLOBAL_COMMIT are voted on once more."""
    require_for(vote_of(overwriting(table), world, promised=True))


def test_modes_that_add_or_change_rows_go_with_those_of_others(table: str, world: Environment, fed: DeltaSink) -> None:
    require_for(vote_of(DeltaSink("more", table), world))
    require_for(vote_of(DeltaSink("more", table, mode="upsert", keys=["id"]), world))


class Counted(LocalFiles):
    """Files whose reads are counted."""

    reads = 0

    def read(self, path: str) -> bytes | None:
        self.reads += 1
        return super().read(path)


@pytest.mark.proof
def test_no_more_entries_are_read_than_have_come_since_the_last_commit(table: str, world: Environment) -> None:
    sink, previous = DeltaSink("fixes", table), None
    for epoch in range(1, 6):
        run_epoch(sink, txn := transaction(epoch, pipeline="corrections"), previous, rows(epoch), world)
        previous = txn
    run_epoch(DeltaSink("stock", table), transaction(1), None, rows(6), world)
    write_deltalake(table, rows(7), mode="append")
    files = Counted(Path(table))
    assert newest_of_others(files, App.of("orders", "stock"), LEDGER, 6, lambda add: True) is None
    assert files.reads == 2
    run_epoch(sink, transaction(6, pipeline="corrections"), previous, rows(8), world)
    found = newest_of_others(files, App.of("orders", "stock"), LEDGER, 7, lambda add: True)
    assert found is not None
    assert (found.version, found.pipeline, found.sink, found.epoch) == (7, "corrections", "fixes", 6)
    assert ENTRIES_MAX == 1_000


def test_rows_in_the_partition_of_null_are_found_however_it_is_written(table: str, world: Environment) -> None:
    fixes = DeltaSink("fixes", table, partition_by=["p"])
    run_epoch(fixes, transaction(1, pipeline="corrections"), None, rows(2, 5, p=[None, "q"]), world)
    entry = Path(table, log_entry(0))
    as_spark_writes_it = re.sub(r'("partitionValues":\s*\{"p":\s*)null', r'\1""', entry.read_text())
    assert as_spark_writes_it != entry.read_text()
    entry.write_text(as_spark_writes_it)
    require_against(
        vote_of(overwriting(table, mode="overwrite_partitions"), world, rows(3, 4, p=[None, "z"])),
        "overwrite_partitions",
    )


NOON = datetime(2026, 1, 1, 12)


@pytest.mark.parametrize(
    ("kind", "theirs", "ours", "spelled", "refused"),
    [
        (pa.float64(), 0.0, -0.0, None, True),
        (pa.float64(), 1.0, 1.0, "1.0", True),
        (pa.int64(), 1, 1, "01", True),
        (pa.timestamp("us"), NOON, NOON, "2026-01-01 12:00:00", True),
        (pa.timestamp("us", "UTC"), NOON, NOON, "2026-01-01T12:00:00.000000Z", True),
        (pa.timestamp("us", "UTC"), NOON, NOON, "2026-01-01 12:00:00.000000", True),
        (pa.timestamp("us", "UTC"), NOON, NOON, "2026-01-01 12:00:00.1", False),
        (pa.float64(), 1.0, 1.5, None, False),
        (pa.string(), "1", "1.0", None, False),
    ],
)
def test_an_overwrite_of_partitions_spares_the_equal_value_however_it_is_written(
    table: str, world: Environment, kind: pa.DataType, theirs: object, ours: object, spelled: str | None, refused: bool
) -> None:
    def data(value: object) -> pa.Table:
        return pa.table({"id": [1], "p": pa.array([value], kind)})

    fixes = DeltaSink("fixes", table, partition_by=["p"])
    run_epoch(fixes, transaction(1, pipeline="corrections"), None, data(theirs), world)
    if spelled:
        entry = Path(table, log_entry(0))
        text = re.sub(r'("partitionValues":\s*\{"[^"]+":\s*)"[^"]*"', rf'\1"{spelled}"', entry.read_text())
        entry.write_text(text)
        assert f'"{spelled}"' in text
    vote = vote_of(overwriting(table, mode="overwrite_partitions"), world, data(ours))
    if refused:
        require_against(vote, "overwrite_partitions")
    else:
        require_for(vote)


def test_an_overwrite_that_only_compacts_is_not_told_as_a_loss(table: str, world: Environment) -> None:
    sink = DeltaSink("stock", table)
    _, since = run_epoch(sink, transaction(1), None, THEIRS, world)
    compacted_by_an_overwrite(table)
    assert sink.foreign_changes(since, "orders", (), world) == []
    write_deltalake(table, THEIRS, mode="overwrite")
    assert len(sink.foreign_changes(since, "orders", (), world)) == 1
