"""A change of a Delta table by Spark, seen from the task: when it may begin, what it leaves, what is kept up.

Spark is played by deltalake's writer here, which leaves in the log what the sink's jobs leave there.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake

from airflow_epochs import codes
from airflow_epochs.contracts import SinkAttempt, SparkJob
from airflow_epochs.delta.table import newest_after_checkpoint
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import JsonDict, Marker, Staged, TransactionId, VoteKind
from airflow_epochs.sinks.delta import deleted_keys
from airflow_epochs.sinks.delta import flush as delta_flush
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver.delta import deletions
from airflow_epochs.spark.driver.delta.jobs import refusal
from airflow_epochs.spark.driver.delta.merge import _of_overwrite, _options, _replaced, _telling
from airflow_epochs.spark.driver.delta.plans import (
    ChangePlan,
    CommitPlan,
    Committed,
    ForgetPlan,
    Forgotten,
    Optimized,
    OptimizePlan,
    ThinnedNotes,
    ThinNotesPlan,
)
from airflow_epochs.spark.driver.wire import as_json, from_json
from airflow_epochs.storage.local import LocalFiles
from tests.support.delta_world import (
    attempt_of,
    change_plan,
    commit_plan,
    ids_in,
    promised,
    rows,
    seen,
    stage,
    transaction,
)
from tests.support.environment import Environment

DELETING: dict[str, Any] = {"mode": "upsert", "keys": ["id"], "sequence_by": "v", "delete_when": "v < 0"}


@dataclass
class LikeSpark:
    """Commits what is staged, by appending it. ``deletions``: what the commit tells of its notes."""

    deletions: str | None = None
    jobs: list[SparkJob] = field(default_factory=list)

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        self.jobs.append(job)
        if job.kind not in ("delta_change", "delta_commit"):
            return as_json(UPKEEP[job.kind])
        plan = from_json(ChangePlan if job.kind == ChangePlan.JOB else CommitPlan, job.args)
        user_metadata = plan.user_metadata
        if self.deletions and isinstance(plan, ChangePlan):
            notes = f"{plan.change.notes}/{self.deletions}"
            write_deltalake(notes, rows(7, v=pa.array([1])), mode="append")
            user_metadata = _telling(user_metadata, deletions=self.deletions)
        signed = CommitProperties(
            app_transactions=[Transaction(plan.app, plan.epoch, 1)], custom_metadata={"userMetadata": user_metadata}
        )
        data, partitions = DeltaTable(plan.place).to_pyarrow_table(), list(plan.partition_by) or None
        write_deltalake(plan.target, data, mode="append", partition_by=partitions, commit_properties=signed)
        return report(epoch=plan.epoch, txn=json.loads(user_metadata)["airflow_epochs"]["txn"])


UPKEEP: dict[str, Forgotten | Optimized | ThinnedNotes] = {
    ForgetPlan.JOB: Forgotten(rows_deleted=1),
    OptimizePlan.JOB: Optimized(files_added=1, files_removed=2),
    ThinNotesPlan.JOB: ThinnedNotes(notes_removed=0),
}


def report(refused: str | None = None, **marker: Any) -> JsonDict:
    found = seen(**marker)
    return as_json(Committed(about=found.about, marker=found.marker, refused=refused))


@pytest.fixture
def spark() -> LikeSpark:
    return LikeSpark()


@pytest.fixture
def world(spark: LikeSpark) -> Environment:
    return Environment(spark=spark)


def data(*ids: int) -> pa.Table:
    return rows(*ids, v=pa.array([1] * len(ids)))


def voted(sink: DeltaSink, attempt: SinkAttempt, world: Environment, *ids: int) -> Any:
    return sink.vote(attempt, stage(sink, attempt, data(*ids), world), world)


def epoch(sink: DeltaSink, world: Environment, previous: TransactionId | None, *ids: int) -> tuple[SinkAttempt, Staged]:
    attempt = attempt_of(transaction(previous.epoch + 1 if previous else 1), previous)
    staged = promised(voted(sink, attempt, world, *ids))
    sink.commit(attempt, staged, world)
    return attempt, staged


# -- whether it may begin ----------------------------------------------------------------------------------------

MINE, BEFORE, OTHER = "orders/5/1/aa", "orders/4/1/bb", "orders/4/1/cc"
PROMISED = commit_plan(table_id="t", epoch=5, previous_epoch=4, previous=BEFORE)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"exists": True, "table_id": "t", "epoch": 4, "txn": BEFORE}, None),
        ({"exists": True, "table_id": "t", "epoch": 4, "txn": None}, None),
        ({"exists": True, "table_id": "t", "epoch": 5, "txn": MINE}, None),
        (
            {"exists": True, "table_id": "t", "epoch": 4, "txn": OTHER},
            f"have different transactions of epoch 4: {OTHER} in the table, {BEFORE} in the ledger",
        ),
        (
            {"exists": True, "table_id": "t", "epoch": 3, "txn": "orders/3/1/dd"},
            "the table shows epoch 3, but before this commit it must show epoch 4",
        ),
        (
            {"exists": True, "table_id": "t", "epoch": 6, "txn": "orders/6/1/dd"},
            "the table shows epoch 6, but",
        ),
        ({"exists": True, "table_id": "t", "epoch": None, "txn": None}, "the table shows no epoch, but"),
        ({"exists": True, "table_id": "u", "epoch": 4, "txn": BEFORE}, "somebody replaced the table with another one"),
        ({"exists": False, "epoch": None, "txn": None}, "the table is gone"),
    ],
)
def test_spark_changes_only_the_promised_table_after_its_previous_epoch(found: JsonDict, why: str | None) -> None:
    said = refusal(seen(**found), PROMISED)
    assert said is None if why is None else why in (said or "")


@pytest.mark.parametrize(
    ("mode", "found", "refused"),
    [
        ("overwrite", {"exists": True, "epoch": None}, True),
        ("overwrite_partitions", {"exists": True, "epoch": None}, True),
        ("overwrite", {"exists": True, "epoch": 1}, False),
        ("overwrite", {"exists": False, "epoch": None}, False),
        ("upsert", {"exists": True, "epoch": None}, False),
    ],
)
def test_a_table_that_somebody_else_has_created_meanwhile_is_not_replaced(
    mode: str, found: JsonDict, refused: bool
) -> None:
    assert bool(_replaced(seen(**found), change_plan(mode=mode))) == refused
    assert _replaced(seen(**found), change_plan(mode=mode, table_id="t")) is None


@pytest.mark.parametrize(
    ("mode", "partition_by", "staged", "epoch", "why"),
    [
        (
            "overwrite_partitions",
            ("month",),
            1,
            4,
            "it is partitioned by ['month'] now, and was by ['day'] when the rows were staged",
        ),
        ("overwrite_partitions", (), 1, 4, "it is partitioned by [] now"),
        ("overwrite_partitions", ("DAY",), 1, 4, None),
        ("overwrite_partitions", ("month",), 0, 4, None),
        ("overwrite_partitions", ("month",), 1, 5, None),
        ("overwrite", ("month",), 1, 4, None),
        ("upsert", ("month",), 1, 4, None),
    ],
    ids=["other", "none", "same", "no rows", "done", "all rows", "by keys"],
)
def test_partitions_that_the_vote_did_not_mean_are_not_replaced(
    mode: str, partition_by: tuple[str, ...], staged: int, epoch: int, why: str | None
) -> None:
    plan = change_plan(mode=mode, table_id="t", partition_by=("day",), epoch=5, previous_epoch=4)
    plan = replace(plan, change=replace(plan.change, rows=staged))
    said = _replaced(seen(epoch=epoch, partition_by=partition_by), plan)
    assert said is None if why is None else why in (said or "")


def test_spark_is_told_which_transaction_was_the_one_before(
    table_path: Path, world: Environment, spark: LikeSpark
) -> None:
    sink = DeltaSink("silver", str(table_path), mode="upsert", keys=["id"])
    first, _ = epoch(sink, world, None, 1)
    epoch(sink, world, first.txn, 2)
    assert [job.args["previous"] for job in spark.jobs] == [None, str(first.txn)]
    assert ids_in(table_path) == [1, 2]


@pytest.mark.parametrize(("asked", "merged"), [(None, "false"), ("add_columns", "true")])
def test_whether_columns_are_added_is_said_whatever_the_servers_default(asked: str | None, merged: str) -> None:
    assert _options(change_plan(mode="upsert", schema_evolution=asked))["mergeSchema"] == merged


@pytest.mark.parametrize(("mode", "rows_that_go"), [("overwrite", "static"), ("overwrite_partitions", "dynamic")])
def test_which_rows_an_overwrite_replaces_is_said_whatever_the_servers_default(mode: str, rows_that_go: str) -> None:
    assert _of_overwrite(change_plan(mode=mode))["partitionOverwriteMode"] == rows_that_go


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"txn": "orders/1/1/aa", "epoch": 1}, "has epoch 1 of transaction orders/1/1/aa, not of"),
        ({"txn": None, "epoch": 1}, "has epoch 1, but a clean-up of its log has removed the commit"),
        ({"refused": "the table is gone"}, "cannot insert the rows of .*: the table is gone"),
    ],
)
def test_what_spark_says_of_its_commit_is_compared(
    table_path: Path, world: Environment, monkeypatch: pytest.MonkeyPatch, answer: JsonDict, why: str
) -> None:
    sink, attempt = DeltaSink("silver", str(table_path), mode="overwrite"), attempt_of(transaction(1))
    staged = promised(voted(sink, attempt, world, 1))
    monkeypatch.setattr(world.spark, "run", lambda job: report(**answer))
    with pytest.raises(Corrupt, match=why):
        sink.commit(attempt, staged, world)


def test_a_repeat_finds_the_other_transaction_again_so_the_error_itself_says_how_to_tell_the_ledgers_apart(
    table_path: Path, world: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, attempt = DeltaSink("silver", str(table_path), mode="overwrite"), attempt_of(transaction(1))
    staged = promised(voted(sink, attempt, world, 1))
    monkeypatch.setattr(world.spark, "run", lambda job: report(txn="orders/1/1/aa", epoch=1))
    for _ in range(2):
        with pytest.raises(Corrupt) as caught:
            sink.commit(attempt, staged, world)
        assert caught.value.code is codes.TWO_LEDGERS
        assert "`airflow epochs show orders 1` prints the `txn_id`" in caught.value.remedy
        assert "`airflow epochs waive orders 1 silver --why …`" in caught.value.remedy


@pytest.mark.parametrize("partition_by", [[], ["id"]], ids=["in a file", "of a partition"])
@pytest.mark.parametrize(
    ("options", "given", "named"),
    [
        ({"mode": "upsert", "keys": ["ID"]}, {"id": [1, None], "v": [1, 1]}, "'ID'"),
        (
            {"mode": "merge", "keys": ["id"], "merge": "WHEN MATCHED THEN DELETE"},
            {"id": [1, None], "v": [1, 1]},
            "'id'",
        ),
        ({"mode": "upsert", "keys": ["id"], "sequence_by": "v"}, {"id": [1, 2], "v": [1, None]}, "'v'"),
        ({"mode": "upsert", "keys": ["id"]}, {"id": [1, 2], "v": [1, None]}, None),
        ({"mode": "overwrite"}, {"id": [1, None], "v": [1, 1]}, None),
    ],
)
def test_null_keys_that_spark_overlooked_are_a_vote_abort(
    table_path: Path,
    world: Environment,
    options: dict[str, Any],
    given: JsonDict,
    named: str | None,
    partition_by: list[str],
) -> None:
    sink, attempt = (
        DeltaSink("silver", str(table_path), **options, partition_by=partition_by),
        attempt_of(transaction(1)),
    )
    columns = {name: pa.array(value, pa.int64()) for name, value in given.items()}
    vote = sink.vote(attempt, stage(sink, attempt, pa.table(columns), world), world)
    assert (vote.reason is None) == (named is None), vote.reason
    if named:
        assert f"NULL in column {named}" in (vote.reason or "")


# -- what it leaves ----------------------------------------------------------------------------------------------


def test_what_spark_wrote_has_been_fsynced_before_the_receipt(
    table_path: Path, world: Environment, synced: set[str | int]
) -> None:
    sink = DeltaSink("silver", str(table_path), mode="upsert", keys=["id"], partition_by=["id"])
    first, _ = epoch(sink, world, None, 1)
    attempt = attempt_of(transaction(2), first.txn)
    staged = promised(voted(sink, attempt, world, 2, 3))
    for _ in ("made", "found by a repeat, whose first try may have died before it synced"):
        synced.clear()
        sink.commit(attempt, staged, world)
        added = {str(path) for path in table_path.glob("id=[23]/*.parquet")}
        log = {str(path) for path in (table_path / "_delta_log").glob("*.json")}
        assert len(added) == len(log) == 2
        assert added | log | {str(table_path), f"{table_path}/id=2", f"{table_path}/_delta_log"} <= synced


def test_a_repeat_long_after_does_not_miss_files_that_were_vacuumed_since(table_path: Path, world: Environment) -> None:
    sink = DeltaSink("silver", str(table_path), mode="upsert", keys=["id"])
    attempt, staged = epoch(sink, world, None, 1)
    DeltaTable(str(table_path)).delete()
    for file in table_path.glob("*.parquet"):
        file.unlink()
    assert sink.commit(attempt, staged, world).version == 0


def test_the_files_of_a_log_entry_are_its_data_its_changes_and_its_deletion_vectors() -> None:
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4}
    inline = {"storageType": "i", "pathOrInlineDv": "wi5b"}
    actions: list[JsonDict] = [
        {"commitInfo": {}},
        {"add": {"path": "p=a%20b/1.parquet", "deletionVector": vector}},
        {"add": {"path": "2.parquet", "deletionVector": {**vector, "pathOrInlineDv": "^-aqEH.-t@S}K{vb[*k^"}}},
        {
            "add": {
                "path": "file:/elsewhere/3.parquet",
                "deletionVector": inline,
            }
        },
        {"cdc": {"path": "_change_data/4.parquet"}},
        {"remove": {"path": "5.parquet"}},
    ]
    assert delta_flush.files_of("\n".join(map(json.dumps, actions)).encode()) == [
        "p=a b/1.parquet",
        "2.parquet",
        "_change_data/4.parquet",
        "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin",
        "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin",
    ]


# -- notes about deleted keys ------------------------------------------------------------------------------------


def notes_of(table: Path, attempt: SinkAttempt) -> Path:
    return table / "_epochs" / f"{attempt.ledger_id}.silver" / "deleted-1"


def test_lost_notes_about_deleted_keys_are_a_vote_abort_until_they_are_back(
    table_path: Path, world: Environment, spark: LikeSpark
) -> None:
    sink = DeltaSink("silver", str(table_path), **DELETING)
    spark.deletions = "deleted-1"
    first, _ = epoch(sink, world, None, 1)
    notes = notes_of(table_path, first)
    notes.rename(table_path.parent / "aside")
    attempt = attempt_of(transaction(2), first.txn)
    vote = voted(sink, attempt, world, 2)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "notes about keys" in vote.reason and str(notes) in vote.reason
    (table_path.parent / "aside").rename(notes)
    assert voted(sink, attempt, world, 2).vote is VoteKind.VOTE_COMMIT


def test_notes_of_a_ledger_that_was_rebuilt_since_are_found_and_missed_where_they_were_made(
    table_path: Path, world: Environment, spark: LikeSpark
) -> None:
    sink = DeltaSink("silver", str(table_path), **DELETING)
    spark.deletions = "deleted-1"
    first, _ = epoch(sink, world, None, 1)
    attempt = replace(attempt_of(transaction(2), first.txn), ledger_id="rebuilt")
    sink.commit(attempt, promised(voted(sink, attempt, world, 2)), world)
    notes_of(table_path, first).rename(table_path.parent / "aside")
    later = replace(attempt_of(transaction(3), attempt.txn), ledger_id="rebuilt")
    assert voted(sink, later, world, 3).vote is VoteKind.VOTE_COMMIT, "its own notes are there"
    notes_of(table_path, attempt).rename(table_path.parent / "aside too")
    assert str(notes_of(table_path, attempt)) in voted(sink, later, world, 3).reason


def test_notes_that_vanish_after_the_vote_stop_the_commit(
    table_path: Path, world: Environment, spark: LikeSpark
) -> None:
    sink = DeltaSink("silver", str(table_path), **DELETING)
    spark.deletions = "deleted-1"
    first, _ = epoch(sink, world, None, 1)
    attempt = attempt_of(transaction(2), first.txn)
    staged = promised(voted(sink, attempt, world, 2))
    notes_of(table_path, first).rename(table_path.parent / "aside")
    with pytest.raises(Corrupt, match="notes about keys"):
        sink.commit(attempt, staged, world)
    assert sink.last_committed("orders", world) == Marker.of(first.txn)
    (table_path.parent / "aside").rename(notes_of(table_path, first))
    sink.commit(attempt, staged, world)
    assert ids_in(table_path) == [1, 2]


RENAMED: list[JsonDict] = [{"keys": ["the id"]}, {"sequence_by": "w"}, {"keys": ["the id"], "sequence_by": "w"}]


@pytest.mark.parametrize("columns", RENAMED, ids=["a key", "the sequence", "both"])
def test_notes_of_deletions_under_other_names_than_the_keys_have_are_a_vote_abort_until_they_are_copied(
    table_path: Path, world: Environment, spark: LikeSpark, columns: JsonDict
) -> None:
    spark.deletions = "deleted-1"
    given = rows(1, v=pa.array([1]), w=pa.array([1]), **{"the id": pa.array([1])})
    sink, attempt = DeltaSink("silver", str(table_path), **DELETING), attempt_of(transaction(1))
    sink.commit(attempt, promised(sink.vote(attempt, stage(sink, attempt, given, world), world)), world)
    renamed = DeltaSink("silver", str(table_path), **{**DELETING, **columns})
    later = attempt_of(transaction(2), attempt.txn)
    claim = stage(renamed, later, given, world)
    reason = renamed.vote(later, claim, world).reason or ""
    key, sequence = renamed.how.keys[0], renamed.how.sequence_by
    notes = notes_of(table_path, attempt)
    assert f"have the columns ['id', 'v'], but its keys and `sequence_by` are ['{key}', '{sequence}'] now" in reason
    copy = re.search(r"CREATE TABLE delta\.`file://(.*?)` USING delta(.*?) AS (SELECT .*?)\. ", reason)
    assert copy and copy[3] == f"SELECT `id` AS `{key}`, `v` AS `{sequence}` FROM delta.`file://{notes}`"
    assert ("columnMapping" in copy[2]) == (key == "the id")
    assert f"CREATE TABLE delta.`file://{copy[1]}` (`{key}` bigint, `{sequence}` bigint) USING delta" in reason
    write_deltalake(copy[1], pa.table({key: pa.array([7]), sequence: pa.array([1])}))
    assert promised(renamed.vote(later, claim, world)).rows == 1


def test_notes_of_deletions_by_fewer_keys_than_now_can_only_be_begun_anew(
    table_path: Path, world: Environment, spark: LikeSpark
) -> None:
    spark.deletions = "deleted-1"
    first, _ = epoch(DeltaSink("silver", str(table_path), **DELETING), world, None, 1)
    sink = DeltaSink("silver", str(table_path), **{**DELETING, "keys": ["id", "p"]}, schema_evolution="add_columns")
    attempt = attempt_of(transaction(2), first.txn)
    claim = stage(sink, attempt, rows(1, p=["a"], v=pa.array([1])), world)
    reason = sink.vote(attempt, claim, world).reason or ""
    assert "(`id` bigint, `p` string, `v` bigint) USING delta" in reason and "AS SELECT" not in reason


def test_notes_whose_name_tells_of_the_keys_are_not_read_for_the_vote(
    table_path: Path, world: Environment, spark: LikeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.deletions = deletions.named([("id", "bigint"), ("v", "bigint")])
    sink = DeltaSink("silver", str(table_path), **DELETING)
    first, _ = epoch(sink, world, None, 1)
    monkeypatch.setattr(deleted_keys, "newest_schema", None)
    assert voted(sink, attempt_of(transaction(2), first.txn), world, 2).vote is VoteKind.VOTE_COMMIT


@pytest.mark.parametrize(
    "options", [{"mode": "upsert", "keys": ["id"], "sequence_by": "v"}, DELETING], ids=["no deletions", "none yet"]
)
def test_notes_that_nobody_made_are_not_missed(table_path: Path, world: Environment, options: dict[str, Any]) -> None:
    sink = DeltaSink("silver", str(table_path), **options)
    first, _ = epoch(sink, world, None, 1)
    epoch(sink, world, first.txn, 2)
    assert ids_in(table_path) == [1, 2]


def test_a_commit_asks_for_rows_to_forget_only_if_another_sink_has_noted_deletions_meanwhile(
    table_path: Path, world: Environment, spark: LikeSpark
) -> None:
    sink, notes = (
        DeltaSink("silver", str(table_path), **DELETING),
        str(table_path / "_epochs" / "other.gold" / "deleted-2"),
    )
    spark.deletions = "deleted-1"
    write_deltalake(notes, rows(7, v=pa.array([1])))
    first, _ = epoch(sink, world, None, 1)
    assert [job.kind for job in spark.jobs] == ["delta_change"]
    world.at["delta.commit.after"] = lambda: write_deltalake(notes, rows(8, v=pa.array([1])), mode="append")
    attempt, staged = epoch(sink, world, first.txn, 2)
    assert [job.kind for job in spark.jobs] == ["delta_change", "delta_change", "delta_forget"]
    assert spark.jobs[-1].args["notes"] == [notes]
    sink.commit(attempt, staged, world)
    assert [job.kind for job in spark.jobs[3:]] == ["delta_forget"], "an earlier try may have died before it asked"


def many_notes(table: Path) -> Path:
    """Another sink's notes, in 24 commits. The log has a checkpoint after 4."""
    notes = table / "_epochs" / "other.gold" / "deleted-2"
    for number in range(24):
        no_checkpoint = PostCommitHookProperties(create_checkpoint=False)
        note = rows(number, v=pa.array([1]))
        write_deltalake(str(notes), note, mode="append", post_commithook_properties=no_checkpoint)
        if number == 3:
            DeltaTable(str(notes)).create_checkpoint()
    return notes


@pytest.mark.proof
def test_a_commit_finds_a_new_deletion_by_another_sink_without_a_list_of_the_log_of_its_notes(
    table_path: Path, world: Environment, spark: LikeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, notes, listed = DeltaSink("silver", str(table_path), **DELETING), many_notes(table_path), list[str]()
    names = LocalFiles.names

    def listing(files: LocalFiles, folder: str) -> set[str]:
        listed.append(folder)
        return names(files, folder)

    monkeypatch.setattr(LocalFiles, "names", listing)
    world.at["delta.commit.after"] = lambda: write_deltalake(str(notes), rows(8, v=pa.array([1])), mode="append")
    epoch(sink, world, None, 1)
    assert [job.kind for job in spark.jobs] == ["delta_change", "delta_forget"]
    assert "_epochs/other.gold" in listed and "_epochs/other.gold/deleted-2/_delta_log" not in listed


def without_hint(log: Path) -> None:
    (log / "_last_checkpoint").unlink()


def with_damaged_hint(log: Path) -> None:
    (log / "_last_checkpoint").write_text("{")


def with_old_hint(log: Path) -> None:
    """As if a younger checkpoint had been made whose hint was lost, and the log had been cleaned up since."""
    for version in range(10):
        (log / f"{version:020}.json").unlink()


@pytest.mark.proof
@pytest.mark.parametrize(
    "changed", [lambda log: None, without_hint, with_damaged_hint, with_old_hint], ids=["", "no", "damaged", "old"]
)
def test_the_newest_entry_of_a_log_is_found_with_any_hint_about_its_checkpoint(
    table_path: Path, changed: Callable[[Path], None]
) -> None:
    notes = many_notes(table_path)
    changed(notes / "_delta_log")
    assert newest_after_checkpoint(LocalFiles(table_path), "_epochs/other.gold/deleted-2") == 23
    assert newest_after_checkpoint(LocalFiles(table_path), "_epochs/other.gold/none") == -1


def test_a_vacuum_of_the_table_leaves_the_notes(table_path: Path, world: Environment, spark: LikeSpark) -> None:
    sink = DeltaSink("silver", str(table_path), **DELETING)
    spark.deletions = "deleted-1"
    first, _ = epoch(sink, world, None, 1)
    before = sorted(notes_of(table_path, first).rglob("*"))
    swept = DeltaTable(str(table_path)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert any("epochs/" in path for path in swept), "it looks at all files"
    assert sorted(notes_of(table_path, first).rglob("*")) == before


def test_upkeep_optimizes_the_table_and_thins_its_notes_out(
    table_path: Path, world: Environment, spark: LikeSpark
) -> None:
    sink = DeltaSink("silver", str(table_path), **DELETING, compact_every=2)
    spark.deletions = "deleted-1"
    first, _ = epoch(sink, world, None, 1)
    (table_path / "_epochs" / "other.gold" / "deleted-2").mkdir(parents=True)
    spark.jobs.clear()
    assert sink.maintain("orders", 1, world) == {}
    sink.maintain("orders", 2, world)
    assert [(job.kind, job.args) for job in spark.jobs] == [
        ("delta_optimize", {"target": str(table_path), "layout": {"file_bytes": 128 * 2**20, "codec": "zstd"}}),
        ("delta_thin_notes", {"places": [str(notes_of(table_path, first))]}),
    ]


def test_upkeep_asks_for_no_notes_where_there_are_none(table_path: Path, world: Environment, spark: LikeSpark) -> None:
    for options in (DELETING, {"mode": "overwrite"}):
        spark.jobs.clear()
        DeltaSink("silver", str(table_path), **options).maintain("orders", 50, world)
        assert [job.kind for job in spark.jobs] == ["delta_optimize"]


@pytest.mark.parametrize(
    "options", [{}, {"commit": "spark"}, {"mode": "upsert", "keys": ["id"]}, {"mode": "overwrite"}], ids=str
)
def test_a_table_that_a_late_first_commit_filled_takes_the_epoch_again_after_what_is_told_of_its_log(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Where Spark committed, its files would be left beside the log: nothing is told."""
    world, sink = Environment(spark=LikeSpark()), DeltaSink("gold", str(tmp_path / "gold"), **options)
    late, second = attempt_of(transaction(1)), attempt_of(transaction(2))
    staged, again = (promised(voted(sink, *epoch)) for epoch in ((late, world, 1), (second, world, 1, 2)))
    sink.commit(late, staged, world)
    told = sink.how_to_vacate(late.txn, world)
    assert (told is None) == bool(options)
    if told:
        shutil.move(tmp_path / "gold" / "_delta_log", tmp_path / "aside")
        sink.commit(second, again, world)
        assert ids_in(tmp_path / "gold") == [1, 2]
