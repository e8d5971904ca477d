"""The vote on Delta rows: each thing that could break the promise is a VOTE_ABORT that names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from airflow_epochs.contracts import SinkAttempt, SparkJob
from airflow_epochs.delta.log import log_entry
from airflow_epochs.delta.replay import newest_schema
from airflow_epochs.delta.shape import metadata_of
from airflow_epochs.delta.table import App, TableLocation
from airflow_epochs.errors import BadArgument, NotApplied, OutcomeUnknown, Refused, cause_and_remedy
from airflow_epochs.model import JsonDict, StagedClaim, VoteKind
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.delta.target import Target
from airflow_epochs.spark.driver.delta import schema as delta_schema
from airflow_epochs.spark.driver.delta.plans import SeenTable
from airflow_epochs.spark.driver.wire import as_json
from airflow_epochs.storage.local import LocalFiles
from tests.support.delta_world import (
    attempt_of,
    ids_in,
    log_of,
    promised,
    rows,
    run_epoch,
    seen,
    stage,
    stage_with_deltalake,
    transaction,
)
from tests.support.environment import Environment


@pytest.fixture
def table_path(tmp_path: Path) -> Path:
    path = tmp_path / "orders"
    write_deltalake(str(path), rows(0, p=["a"]), partition_by=["p"])
    return path


@pytest.fixture
def attempt() -> SinkAttempt:
    return attempt_of(transaction(1))


@pytest.fixture
def claim(sink: DeltaSink, attempt: SinkAttempt, world: Environment) -> StagedClaim:
    return stage(sink, attempt, rows(1, 2, p=["a", "b"]), world)


def reason_of(sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment) -> str:
    vote = sink.vote(attempt, claim, world)
    assert vote.vote is VoteKind.VOTE_ABORT
    return vote.reason or ""


def edit(claim: StagedClaim, change: Callable[[JsonDict], None]) -> None:
    """Change every action of the staging append."""
    entry = Path(claim.place, "_delta_log", f"{1:020}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        change(action)
    entry.write_text("\n".join(json.dumps(action) for action in actions))


def of_add(key: str, value: object) -> Callable[[JsonDict], None]:
    def change(action: JsonDict) -> None:
        if "add" in action:
            action["add"][key] = value

    return change


def lose(action: JsonDict) -> None:
    if "add" in action:
        action["add"]["path"] += ".gone"


def of_count(name: str, rows: object) -> Callable[[JsonDict], None]:
    def change(action: JsonDict) -> None:
        if "commitInfo" in action:
            action["commitInfo"]["operationMetrics"] = {name: rows}

    return change


def test_sound_rows_are_voted_for_with_their_numbers(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment
) -> None:
    staged = promised(sink.vote(attempt, claim, world))
    assert (staged.rows, staged.files, staged.version) == (2, 2, 1)
    assert staged.bytes == sum(path.stat().st_size for path in Path(claim.place).rglob("*.parquet"))
    assert promised(sink.vote(attempt, claim, world)) == staged


def test_a_problem_that_spark_reports_is_the_reason(sink: DeltaSink, attempt: SinkAttempt, world: Environment) -> None:
    claim = StagedClaim(place="anywhere", problem="column 'x' is not in the table")
    cause, remedy = cause_and_remedy(reason_of(sink, attempt, claim, world))
    assert cause == "EPOCHS-ROWS-UNFIT: column 'x' is not in the table"
    assert remedy == "Correct the transform or the table. Then clear the stage task."


def test_nothing_staged(sink: DeltaSink, attempt: SinkAttempt, world: Environment) -> None:
    plan = sink.plan_stage(attempt, "n", world)
    cause, remedy = cause_and_remedy(reason_of(sink, attempt, StagedClaim(place=plan["place"]), world))
    assert f"this worker sees no finished staging table at {plan['place']}" in cause
    assert "share" in remedy and remedy.endswith("Then clear the stage task: it stages into a new folder.")


def test_rows_of_another_transaction(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment
) -> None:
    other = attempt_of(transaction(1))
    assert f"belongs to transaction {attempt.txn}" in reason_of(sink, other, claim, world)


@pytest.mark.parametrize(
    ("stats", "what"),
    [
        ('{"numRecords":1,"maxValues":{"f":NaN}}', "not strict JSON"),
        ('{"numRecords":1,"maxValues":{"f":Infinity}}', "not strict JSON"),
        ('{"maxValues":{}}', "damaged"),
        ('{"numRecords":"1"}', "damaged"),
        ('{"numRecords":-1}', "damaged"),
        ('{"numRecords":true}', "damaged"),
        ("[]", "damaged"),
        ("{", "not strict JSON"),
    ],
)
def test_statistics_that_would_poison_the_table(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment, stats: str, what: str
) -> None:
    edit(claim, of_add("stats", stats))
    assert what in reason_of(sink, attempt, claim, world)


@pytest.mark.parametrize("stats", [None, ""])
def test_statistics_that_spark_did_not_collect_are_those_of_the_files_and_get_into_the_table(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment, stats: str | None
) -> None:
    by_deltalake = statistics_in(log_of(claim.place)[1])
    edit(claim, of_add("stats", stats))
    staged = promised(sink.vote(attempt, claim, world))
    assert (staged.rows, staged.files) == (2, 2)
    sink.commit(attempt, staged, world)
    assert statistics_in(log_of(sink.target)[-1]) == by_deltalake != []


def statistics_in(entry: list[JsonDict]) -> list[JsonDict]:
    """Those of the files that a log entry adds."""
    found = [json.loads(action["add"]["stats"]) for action in entry if "add" in action]
    return sorted(found, key=lambda each: str(each["minValues"]))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (of_add("size", 1), "bytes instead of 1"),
        (lose, "is gone"),
        (of_add("path", "../../part.parquet"), "leads out"),
        (of_add("path", "file:///etc/passwd"), "leads out"),
        (of_add("path", "/etc/passwd"), "leads out"),
        (of_add("path", "%2E%2E/x.parquet"), "leads out"),
        (of_add("partitionValues", {}), "partitioned by ['p']"),
        (of_add("deletionVector", {"storageType": "u"}), "deletion vector"),
        (of_count("numOutputRows", "3"), "3 rows were written"),
        (of_count("num_added_rows", 3), "3 rows were written"),
        (lambda action: action.pop("add", None), "its files have 0"),
        (lambda action: action.update({"remove": {"path": "x"}}), "'remove' action"),
        (lambda action: action.update({"cdc": {"path": "x"}}), "'cdc' action"),
    ],
)
def test_a_staging_log_that_no_append_writes(
    sink: DeltaSink,
    attempt: SinkAttempt,
    claim: StagedClaim,
    world: Environment,
    change: Callable[[JsonDict], None],
    what: str,
) -> None:
    edit(claim, change)
    assert what in reason_of(sink, attempt, claim, world)


def test_a_damaged_staging_log(sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment) -> None:
    entry = Path(claim.place, "_delta_log", f"{1:020}.json")
    entry.write_bytes(entry.read_bytes()[:-9])
    assert "version 1 of its log is damaged" in reason_of(sink, attempt, claim, world)
    entry.rename(entry.with_name(f"{2:020}.json"))
    assert "entries of its log are missing" in reason_of(sink, attempt, claim, world)


def test_a_second_append_to_the_same_place(sink: DeltaSink, attempt: SinkAttempt, world: Environment) -> None:
    plan = sink.plan_stage(attempt, "n", world)
    claim = stage_with_deltalake(plan, rows(1, p=["a"]))
    stage_with_deltalake(plan, rows(2, p=["a"]))
    assert "more than one append" in reason_of(sink, attempt, claim, world)


def test_a_parquet_file_that_lost_its_end(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment
) -> None:
    file = next(Path(claim.place).rglob("*.parquet"))
    content = file.read_bytes()
    file.write_bytes(content[:-4] + b"\0\0\0\0")
    assert "is cut off or damaged" in reason_of(sink, attempt, claim, world)
    file.write_bytes(content[:-100])
    assert "bytes instead of" in reason_of(sink, attempt, claim, world)


def test_a_table_replaced_since_staging(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment, table_path: Path
) -> None:
    log = table_path / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace(DeltaTable(str(table_path)).metadata().id, "another-id"))
    assert "is not the table" in reason_of(sink, attempt, claim, world)


def test_a_table_that_got_a_constraint_since_staging(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment, table_path: Path
) -> None:
    DeltaTable(str(table_path)).alter.add_constraint({"small": "id < 2"})
    assert "delta.constraints.small" in reason_of(sink, attempt, claim, world)


@pytest.mark.proof
def test_a_table_that_got_a_nullable_column_since_staging_is_fine(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment, table_path: Path
) -> None:
    more = rows(9, p=["a"]).append_column("note", rows(1).column("id"))
    write_deltalake(str(table_path), more, mode="append", schema_mode="merge")
    staged = promised(sink.vote(attempt, claim, world))
    sink.commit(attempt, staged, world)
    assert ids_in(table_path) == [0, 1, 2, 9]


def test_a_table_that_forgets_transactions(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment, table_path: Path
) -> None:
    log = table_path / "_delta_log" / f"{0:020}.json"
    retention = '"configuration":{"delta.setTransactionRetentionDuration":"interval 7 days"}'
    log.write_text(log.read_text().replace('"configuration":{}', retention))
    assert "interval 7 days" in reason_of(sink, attempt, claim, world)


def test_a_table_that_already_shows_an_epoch_of_this_name(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment, table_path: Path
) -> None:
    signed = CommitProperties(app_transactions=[Transaction("airflow_epochs/orders/bronze", 4, 1)])
    write_deltalake(str(table_path), rows(5, p=["a"]), mode="append", commit_properties=signed)
    assert "shows epoch 4" in reason_of(sink, attempt, claim, world)


def test_a_store_that_overwrites_in_spite_of_put_if_absent(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overwrites(self: LocalFiles, path: str, value: bytes) -> bool:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(value)
        return True

    monkeypatch.setattr(LocalFiles, "write_new", overwrites)
    assert "replaced an object although" in reason_of(sink, attempt, claim, world)


def test_the_vote_leaves_nothing_behind(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment, table_path: Path
) -> None:
    before = sorted(table_path.rglob("*"))
    sink.vote(attempt, claim, world)
    assert sorted(table_path.rglob("*")) == before


def test_a_place_that_is_not_this_sinks(
    sink: DeltaSink, attempt: SinkAttempt, world: Environment, table_path: Path
) -> None:
    assert "not a staging place" in reason_of(sink, attempt, StagedClaim(place=str(table_path)), world)


def test_a_folder_with_other_files_is_no_delta_table(tmp_path: Path, attempt: SinkAttempt, world: Environment) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.csv").write_text("a")
    with pytest.raises(Refused, match=r"not a Delta table, and not empty: it has a.csv"):
        DeltaSink("bronze", str(folder)).plan_stage(attempt, "n", world)


DATA = "part-00001-bc0bf062-0ee3-4a3c-a12e-686dcd9dfb0a"
LEFT = (f"{DATA}-c000.zstd.parquet", f".{DATA}-c000.zstd.parquet.crc", f"p=1/q=2/{DATA}.c000.snappy.parquet", "p=3/")


def left(folder: Path, *names: str) -> None:
    """Folders, whose names end in a slash, and empty files."""
    for name in names:
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()


def awaited(folder: Path, **ours: Any) -> None:
    """Rows that are staged below the folder, and wait for Spark; ``ours``: what else their log says."""
    told = {"airflow_epochs": {"committer": "spark", "table_id": None, **ours}}
    log = folder / "epochs" / "0f1e2d3c.bronze" / "1-1-n" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text(json.dumps({"commitInfo": {"userMetadata": json.dumps(told)}}))


def test_files_of_sparks_first_commit_that_died_do_not_make_the_folder_a_strangers(
    tmp_path: Path, attempt: SinkAttempt, world: Environment
) -> None:
    folder, sink = tmp_path / "files", DeltaSink("bronze", str(tmp_path / "files"), commit="spark")
    awaited(folder)
    half = f"_delta_log/.{0:020}.json.bc0bf062-0ee3-4a3c-a12e-686dcd9dfb0a.tmp"
    left(folder, *LEFT, "_delta_log/_staged_commits/", half)
    assert sink.last_committed("orders", world) is None
    sink.plan_stage(attempt, "n", world)


LOG = ("_delta_log/_staged_commits/0.json", f"_delta_log/{0:020}.checkpoint.parquet", "_delta_log/_last_checkpoint")


@pytest.mark.parametrize("name", ["a.csv", "_SUCCESS", "p=1/a.csv", "orders.parquet", "epochs/ledger/", *LOG], ids=str)
def test_a_strangers_file_or_a_log_beside_them_does(tmp_path: Path, world: Environment, name: str) -> None:
    folder, sink = tmp_path / "files", DeltaSink("bronze", str(tmp_path / "files"), commit="spark")
    awaited(folder)
    left(folder, *LEFT, name)
    with pytest.raises(Refused, match="not a Delta table, and not empty"):
        sink.last_committed("orders", world)


@pytest.mark.parametrize("ours", [{"committer": "deltalake"}, {"table_id": "another"}], ids=str)
def test_such_files_are_a_tables_that_has_lost_its_log_where_no_rows_wait_for_a_table(
    tmp_path: Path, world: Environment, ours: dict[str, str]
) -> None:
    folder, sink = tmp_path / "files", DeltaSink("bronze", str(tmp_path / "files"), commit="spark")
    awaited(folder, **ours)
    left(folder, *LEFT)
    with pytest.raises(Refused, match="not a Delta table, and not empty") as refused:
        sink.last_committed("orders", world)
    assert "restore its `_delta_log`" in refused.value.remedy and "delete these files" in refused.value.remedy


def test_such_files_are_a_strangers_where_the_sink_has_staged_nothing(
    tmp_path: Path, attempt: SinkAttempt, world: Environment
) -> None:
    left(tmp_path / "files", *LEFT)
    with pytest.raises(Refused, match="not a Delta table, and not empty"):
        DeltaSink("bronze", str(tmp_path / "files"), commit="spark").plan_stage(attempt, "n", world)


@pytest.mark.parametrize("table", ["relative/path", "orders", "a.b.c.d", "", "./x"])
def test_a_table_that_is_neither_a_place_nor_a_name_is_refused(
    table: str, attempt: SinkAttempt, world: Environment
) -> None:
    with pytest.raises(Refused, match="neither an absolute path, nor a URL"):
        DeltaSink("bronze", table).plan_stage(attempt, "n", world)


def test_a_partitioning_that_the_table_does_not_have_is_refused(
    table_path: Path, attempt: SinkAttempt, world: Environment
) -> None:
    with pytest.raises(Refused, match=r"partitioned by \['p'\], but the sink has partition_by=\['id'\]"):
        DeltaSink("bronze", str(table_path), partition_by=["id"]).plan_stage(attempt, "n", world)


def test_an_unknown_connection_is_refused(table_path: Path, attempt: SinkAttempt, world: Environment) -> None:
    with pytest.raises(Refused, match="no connection 'nope'"):
        DeltaSink("bronze", str(table_path), storage_conn_id="nope").plan_stage(attempt, "n", world)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "a b"}, "The sink name 'a b' is not valid"),
        ({"mode": "replace"}, "`mode` is 'replace'. It must be 'append' or 'upsert'"),
        ({"commit": "magic"}, "`commit` is 'magic'. It must be None or 'deltalake' or 'spark'"),
        ({"partition_by": "day"}, "`partition_by` is the text 'day'. It must be a list of columns"),
        ({"compact_every": -1}, "`compact_every` is -1. It must be 0 or larger"),
        ({"checkpoint_every": -1}, "`checkpoint_every` is -1. It must be 0 or larger"),
        ({"on_foreign_change": "x"}, "`on_foreign_change` is 'x'. It must be 'warn' or 'stop'"),
    ],
)
def test_arguments_that_make_no_sense_are_named_with_what_is_allowed(arguments: JsonDict, said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        DeltaSink(**{"name": "bronze", "table": "/x", **arguments})


def set_property(path: str, key: str, value: str) -> None:
    """As another program does: an entry with the table's metadata."""
    table = DeltaTable(path)
    metadata = metadata_of(table)
    metadata["metaData"]["configuration"] |= {key: value}
    Path(path, log_entry(table.version() + 1)).write_text(json.dumps(metadata))


@pytest.mark.parametrize(
    ("feature", "kind"),
    [
        ("identityColumns", "writer"),
        ("rowTracking", "writer"),
        ("clustering", "writer"),
        ("inCommitTimestamp", "writer"),
        ("typeWidening", "reader"),
    ],
)
def test_a_table_with_a_feature_that_deltalake_refuses_is_left_to_spark(
    tmp_path: Path, attempt: SinkAttempt, world: Environment, feature: str, kind: str
) -> None:
    path = with_protocol(tmp_path, feature, kind)
    assert DeltaSink("bronze", path).plan_stage(attempt, "n", world)["committer"] == "spark"
    with pytest.raises(Refused, match=feature):
        DeltaSink("bronze", path, commit="deltalake").plan_stage(attempt, "n", world)


def test_a_table_with_manifests_that_only_spark_writes_is_left_to_spark(
    tmp_path: Path, attempt: SinkAttempt, world: Environment
) -> None:
    path = str(tmp_path / "manifests")
    write_deltalake(path, rows(0))
    set_property(path, "delta.compatibility.symlinkFormatManifest.enabled", "true")
    assert DeltaSink("bronze", path).plan_stage(attempt, "n", world)["committer"] == "spark"
    with pytest.raises(Refused, match="symlinkFormatManifest"):
        DeltaSink("bronze", path, commit="deltalake").plan_stage(attempt, "n", world)


def test_manifests_that_are_turned_on_after_the_vote_leave_the_commit_to_spark(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment, table_path: Path
) -> None:
    staged = promised(sink.vote(attempt, claim, world))
    set_property(str(table_path), "delta.compatibility.symlinkFormatManifest.enabled", "true")
    with pytest.raises(AssertionError, match="Spark was asked for delta_commit"):
        sink.commit(attempt, staged, world)
    assert ids_in(table_path) == [0]


def test_a_table_that_deltalake_cannot_open_is_left_to_spark(
    tmp_path: Path, attempt: SinkAttempt, world: Environment
) -> None:
    path = with_protocol(tmp_path, "somethingNew", "reader")
    plan = DeltaSink("bronze", path).plan_stage(attempt, "n", world)
    assert plan["committer"] == "spark"
    assert [field["name"] for field in plan["schema"]["fields"]] == ["id"], "as the log has it"
    with pytest.raises(Refused, match="deltalake cannot open"):
        DeltaSink("bronze", path, commit="deltalake").plan_stage(attempt, "n", world)


def with_protocol(folder: Path, feature: str, kind: str) -> str:
    path = folder / feature
    write_deltalake(str(path), rows(1))
    log = path / "_delta_log" / f"{0:020}.json"
    protocol: JsonDict = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
    if kind == "reader":
        protocol |= {"minReaderVersion": 3, "readerFeatures": [feature]}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("\n".join(json.dumps({"protocol": protocol} if "protocol" in line else line) for line in lines))
    return str(path)


def with_long_log(folder: Path, *, checkpoint: int, entries: int) -> str:
    """A table that deltalake cannot open, whose log was cleaned up to its checkpoint."""
    path = folder / "long"
    write_deltalake(str(path), rows(1))
    log = path / "_delta_log"
    for number in range(1, checkpoint + 1):
        (log / f"{number:020}.json").write_text(json.dumps({"commitInfo": {"timestamp": number}}))
    DeltaTable(path).create_checkpoint()
    for number in range(checkpoint):
        (log / f"{number:020}.json").unlink()
    unknown = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["new"], "writerFeatures": ["new"]}
    for number in range(checkpoint + 1, checkpoint + entries + 1):
        (log / f"{number:020}.json").write_text(json.dumps({"protocol": unknown}))
    return str(path)


@pytest.fixture
def entries_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The entries and checkpoints of logs that were read."""
    found: list[str] = []

    def noting(read: Callable[[LocalFiles, str], object]) -> Callable[[LocalFiles, str], object]:
        def noted(files: LocalFiles, path: str) -> object:
            if path.startswith("_delta_log/0"):
                found.append(path)
            return read(files, path)

        return noted

    for name in ("read", "open"):
        monkeypatch.setattr(LocalFiles, name, noting(getattr(LocalFiles, name)))
    return found


@pytest.mark.proof
def test_the_schema_of_a_table_that_deltalake_cannot_open_is_sought_back_to_the_checkpoint_only(
    tmp_path: Path, attempt: SinkAttempt, world: Environment, entries_read: list[str]
) -> None:
    path = with_long_log(tmp_path, checkpoint=300, entries=3)
    for number in range(300):  # those before the checkpoint may still be there
        Path(path, "_delta_log", f"{number:020}.json").write_text(json.dumps({"commitInfo": {}}))
    plan = DeltaSink("bronze", path, commit="spark").plan_stage(attempt, "n", world)
    assert [field["name"] for field in plan["schema"]["fields"]] == ["id"]
    assert len(entries_read) == 4


@pytest.mark.parametrize(("searched", "found"), [(5, ["id", "added"]), (4, None)])
def test_the_schema_of_such_a_table_is_unknown_if_entries_after_the_checkpoint_are_too_many_to_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, searched: int, found: list[str] | None
) -> None:
    monkeypatch.setattr("airflow_epochs.delta.replay._ENTRIES_SEARCHED_MAX", searched)
    path = with_long_log(tmp_path, checkpoint=3, entries=5)
    altered = json.dumps({"type": "struct", "fields": [{"name": "id"}, {"name": "added"}]})
    Path(path, "_delta_log", f"{4:020}.json").write_text(json.dumps({"metaData": {"schemaString": altered}}))
    schema = newest_schema(LocalFiles(Path(path)))
    assert (schema and [field["name"] for field in schema["fields"]]) == found


def test_the_schema_of_such_a_table_is_sought_below_a_checkpoint_whose_part_with_the_schema_is_missing(
    tmp_path: Path, attempt: SinkAttempt, world: Environment
) -> None:
    path = with_protocol(tmp_path, "somethingNew", "reader")
    log = Path(path, "_delta_log")
    for number in range(1, 13):
        (log / f"{number:020}.json").write_text(json.dumps({"commitInfo": {"timestamp": number}}))
    part = pa.table({"add": pa.array([None], pa.struct({"path": pa.string()}))})
    pq.write_table(part, log / f"{10:020}.checkpoint.{2:010}.{2:010}.parquet")
    plan = DeltaSink("bronze", path, commit="spark").plan_stage(attempt, "n", world)
    assert [field["name"] for field in plan["schema"]["fields"]] == ["id"]


def test_the_id_of_a_table_that_deltalake_cannot_open_is_told_without_a_search_for_its_schema(
    tmp_path: Path, entries_read: list[str]
) -> None:
    path = with_long_log(tmp_path, checkpoint=2, entries=3)
    spark = Environment(spark=Answering(seen(table_id="mine")))
    target = Target.seen(TableLocation(path, path, {}), App.of("orders", "bronze"), spark)
    assert target.problem
    assert (target.table_id, entries_read) == ("mine", [])
    assert target.shape
    assert [field["name"] for field in target.shape.schema["fields"]] == ["id"]


def test_a_clean_up_in_a_table_that_deltalake_cannot_open_seeks_no_schema(
    tmp_path: Path, attempt: SinkAttempt, world: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spoilt"
    write_deltalake(str(path), rows(0, note=["x"]))
    table_id, sink = str(DeltaTable(path).metadata().id), DeltaSink("bronze", str(path))
    claim = stage(sink, attempt, rows(1, note=["x"]), world)
    with_text(path)
    sought: list[object] = []
    monkeypatch.setattr("airflow_epochs.sinks.delta.target.newest_schema", sought.append)
    spark = Environment(spark=Answering(seen(table_id=table_id)))
    sink.discard(attempt, claim.place, spark, published=False)
    assert (sought, Path(claim.place).exists()) == ([], False)


def test_a_feature_added_after_the_vote_leaves_the_commit_to_spark(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment, table_path: Path
) -> None:
    staged = promised(sink.vote(attempt, claim, world))
    upgrade = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}}
    (table_path / "_delta_log" / f"{1:020}.json").write_text(json.dumps(upgrade))
    with pytest.raises(AssertionError, match="Spark was asked for delta_commit"):
        sink.commit(attempt, staged, world)
    assert ids_in(table_path) == [0]


def test_a_file_system_that_does_not_answer_is_no_vote_and_leaves_a_commit_unknown(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = promised(sink.vote(attempt, claim, world))

    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.listdir", fails)
    with pytest.raises(NotApplied, match="Input/output error"):
        sink.vote(attempt, claim, world)
    with pytest.raises(OutcomeUnknown, match="Input/output error"):
        sink.commit(attempt, staged, world)


def test_the_staging_table_carries_the_targets_rules_but_not_its_upkeep(
    table_path: Path, attempt: SinkAttempt, world: Environment
) -> None:
    DeltaTable(str(table_path)).alter.add_constraint({"small": "id < 200"})
    DeltaTable(str(table_path)).alter.set_table_properties({"delta.autoOptimize.autoCompact": "true"}, False)
    place = DeltaSink("bronze", str(table_path)).plan_stage(attempt, "n", world)["place"]
    staging = DeltaTable(place)
    configuration = staging.metadata().configuration
    assert configuration["delta.constraints.small"] == "id < 200"
    assert configuration["delta.randomizeFilePrefixes"] == "true"
    assert "delta.autoOptimize.autoCompact" not in configuration
    assert staging.metadata().partition_columns == ["p"]
    assert staging.metadata().id != DeltaTable(str(table_path)).metadata().id
    assert staging.schema().to_json() == DeltaTable(str(table_path)).schema().to_json()


def test_epochs_of_two_pipelines_in_one_table_do_not_disturb_each_other(table_path: Path, world: Environment) -> None:
    sink = DeltaSink("bronze", str(table_path))
    ours, theirs = transaction(1), transaction(1, pipeline="returns")
    run_epoch(sink, ours, None, rows(1, p=["a"]), world)
    run_epoch(sink, theirs, None, rows(2, p=["a"]), world)
    assert ids_in(table_path) == [0, 1, 2]
    first, second = sink.last_committed("orders", world), sink.last_committed("returns", world)
    assert first is not None and second is not None
    assert (first.token, second.token) == (ours.token, theirs.token)


# -- types that only Spark knows --------------------------------------------------------------------------------------

COLLATED = "string collate UTF8_BINARY"


def with_text(place: str | Path) -> None:
    """Spell the type of the column ``note`` as Spark Connect once did."""
    for entry in Path(place, "_delta_log").glob("*.json"):
        # in a schema within a line of JSON within JSON
        entry.write_text(entry.read_text().replace('\\"type\\":\\"string\\"', f'\\"type\\":\\"{COLLATED}\\"'))


@pytest.mark.parametrize("commit", ["deltalake", "spark"])
def test_a_new_table_that_only_spark_could_open_is_a_vote_abort_with_column_and_type(
    tmp_path: Path, attempt: SinkAttempt, world: Environment, commit: str
) -> None:
    sink = DeltaSink("bronze", str(tmp_path / "new"), commit=commit)
    claim = stage(sink, attempt, rows(1, note=["x"]), world)
    with_text(claim.place)
    reason = reason_of(sink, attempt, claim, world)
    assert f"column 'note' is {COLLATED}" in reason
    assert '.cast("string")' in reason


@pytest.mark.parametrize("commit", [None, "deltalake"])
def test_a_spoilt_table_takes_no_epoch_and_the_message_has_the_command_that_repairs_it(
    tmp_path: Path, attempt: SinkAttempt, world: Environment, commit: str | None
) -> None:
    path = tmp_path / "spoilt"
    write_deltalake(str(path), rows(0, note=["x"]))
    with_text(path)
    sink = DeltaSink("bronze", str(path), commit=commit)
    with pytest.raises(Refused, match=f"column 'note' is {COLLATED}") as caught:
        stage(sink, attempt, rows(1, note=["y"]), world)
    assert f"ALTER TABLE delta.`file://{path}` REPLACE COLUMNS (`id` bigint, `note` string)" in caught.value.remedy


@pytest.mark.parametrize("options", [{"commit": "spark"}, {"mode": "upsert", "keys": ["id"]}], ids=["append", "upsert"])
def test_a_spoilt_table_takes_rows_with_text_where_spark_commits_them(
    tmp_path: Path, attempt: SinkAttempt, world: Environment, options: JsonDict
) -> None:
    path = tmp_path / "spoilt"
    write_deltalake(str(path), rows(0, note=["x"]))
    given = json.loads(DeltaTable(path).schema().to_json())
    with_text(path)
    plan = DeltaSink("bronze", str(path), **options).plan_stage(attempt, "n", world)
    assert (plan["committer"], delta_schema.problems(plan["schema"], given)) == ("spark", [])


def test_whose_commit_it_is_stands_in_the_commit_and_is_not_guessed_from_who_was_asked(
    tmp_path: Path, world: Environment
) -> None:
    path = tmp_path / "spoilt"
    sink, attempt = DeltaSink("bronze", str(path)), attempt_of(transaction(1))
    claim = stage(sink, attempt, rows(1, note=["x"]), world)
    staged = promised(sink.vote(attempt, claim, world))
    sink.commit(attempt, staged, world)
    (entry,) = Path(path, "_delta_log").glob("*.json")
    note = json.loads(json.loads(entry.read_text().splitlines()[0])["commitInfo"]["userMetadata"])["airflow_epochs"]
    with_text(path)
    shown = {name: note[name] for name in ("txn", "committer", "place")}
    asked = Environment(spark=Answering(seen(epoch=1, version=0, timestamp_ms=1, **shown)))
    sink.discard(attempt, staged.place, asked, published=True)
    assert list(Path(staged.place).glob("*.parquet"))


class Answering:
    """A Spark that knows one answer."""

    def __init__(self, report: SeenTable) -> None:
        self.report = report

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        return as_json(self.report)


def test_a_digest_that_another_version_reported_is_a_vote_against(
    sink: DeltaSink, attempt: SinkAttempt, claim: StagedClaim, world: Environment
) -> None:
    told = replace(claim, content={"rows": 2, "hash": "x"})
    reason = reason_of(sink, attempt, told, world)
    assert reason.startswith("EPOCHS-SPARK-REPORT-UNFIT: ") and "columns is missing, sums is missing" in reason
    assert "\nWhat to do: Install the same version for tasks and for Spark." in reason
