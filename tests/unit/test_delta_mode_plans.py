"""The modes of the Delta sink before Spark is asked for anything: what may be said, what is planned and promised."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from airflow_epochs.contracts import SparkJob
from airflow_epochs.errors import BadArgument, NotApplied, OutcomeUnknown
from airflow_epochs.model import JsonDict, StagedClaim, VoteKind
from airflow_epochs.sinks import from_spec
from airflow_epochs.sinks.delta.modes import Mode
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver.delta import comparison, conditions
from airflow_epochs.spark.driver.delta import jobs as delta_jobs
from airflow_epochs.spark.driver.delta import schema as delta_schema
from airflow_epochs.spark.driver.delta.merge import _Merge
from airflow_epochs.spark.driver.delta.plans import Change
from airflow_epochs.spark.driver.stagers import STAGERS
from airflow_epochs.spark.driver.wire import as_json
from tests.support.delta_world import (
    attempt_of,
    commit_plan,
    promised,
    rows,
    seen,
    stage,
    stage_with_deltalake,
    transaction,
)
from tests.support.environment import Environment

COUNT = "WHEN MATCHED THEN UPDATE SET t.n = t.n + s.n WHEN NOT MATCHED THEN INSERT *"
COPY = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
MODES: list[JsonDict] = [
    {"mode": "upsert", "keys": ["id"]},
    {"mode": "upsert", "keys": ["id", "p"], "sequence_by": "v", "delete_when": "op = 'D'"},
    {"mode": "merge", "keys": ["id"], "merge": COUNT, "on": "t.day > '2026-01-01'"},
    {"mode": "overwrite", "empty": "truncate", "schema_evolution": "add_columns"},
    {"mode": "overwrite_partitions", "replaces_others": True},
    {"schema_evolution": "add_columns", "commit": "spark"},
]

REPLACED_BY = [("id",), ("id", "p", "v"), None, None, None, ()]


@pytest.mark.parametrize("options", MODES)
def test_a_mode_survives_the_ledger_and_is_committed_by_spark(options: JsonDict) -> None:
    sink = DeltaSink("silver", "/lake/silver", **options)
    again = from_spec(json.loads(json.dumps(sink.spec())))
    assert isinstance(again, DeltaSink)
    assert (again.how, again.commit_by) == (sink.how, "spark")
    assert {key: again.spec()[key] for key in options} == options


@pytest.mark.parametrize(("options", "columns"), [*zip(MODES, REPLACED_BY, strict=True)])
def test_rows_of_a_later_epoch_replace_those_with_the_keys_of_an_upsert(
    options: JsonDict, columns: tuple[str, ...] | None
) -> None:
    assert DeltaSink("silver", "/lake/silver", **options).replaces_by() == columns


def test_a_plain_append_is_described_as_before_there_were_modes() -> None:
    spec = DeltaSink("bronze", "/lake/bronze").spec()
    assert spec["mode"] == "append"
    assert not spec.keys() & {"keys", "sequence_by", "delete_when", "merge", "on", "schema_evolution", "empty"}
    assert DeltaSink.from_spec(spec).how.is_plain_append


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"mode": "replace"}, "`mode` is 'replace'. It must be 'append' or"),
        ({"mode": "upsert"}, "`keys` is empty. This mode needs the columns"),
        ({"mode": "upsert", "keys": "id"}, r"`keys` is the text 'id'. It must be a list of columns, like \['id'\]"),
        ({"mode": "upsert", "keys": ["id", "ID"]}, r"`keys` is \['id', 'ID'\]. It must name each column only once"),
        ({"mode": "upsert", "keys": ["id"], "sequence_by": "ID"}, "`sequence_by` is 'ID', which is one of the keys"),
        ({"mode": "upsert", "keys": ["id"], "sequence_by": " "}, "`sequence_by` is ' '. It must not be empty"),
        ({"mode": "upsert", "keys": ["id"], "delete_when": ""}, "`delete_when` is ''. It must not be empty"),
        ({"mode": "upsert", "keys": ["id"], "commit": "deltalake"}, "Spark commits mode 'upsert': leave `commit` out"),
        (
            {"mode": "upsert", "keys": ["id"], "properties": {"delta.appendOnly": "true"}},
            "sets delta.appendOnly=true, which forbids it",
        ),
        (
            {"mode": "upsert", "keys": ["id"], "merge": COUNT},
            "`mode` is 'upsert'. `merge` is valid only with mode 'merge'",
        ),
        ({"mode": "merge", "merge": COUNT}, "`keys` is empty. This mode needs the columns"),
        ({"mode": "merge", "keys": ["id"]}, "`merge` is None. It must have the clauses"),
        ({"mode": "merge", "keys": ["id"], "merge": "UPDATE SET t.n = 1"}, "must have the clauses of MERGE"),
        (
            {"mode": "merge", "keys": ["id"], "merge": COUNT, "sequence_by": "v"},
            "`sequence_by` is valid only with mode 'upsert'",
        ),
        ({"keys": ["id"]}, "`mode` is 'append'. `keys` is valid only with mode 'upsert' or 'merge'"),
        ({"mode": "overwrite", "delete_when": "true"}, "`delete_when` is valid only with mode 'upsert'"),
        ({"mode": "overwrite", "empty": "drop"}, "`empty` is 'drop'. It must be 'keep' or 'truncate'"),
        ({"mode": "overwrite_partitions", "empty": "truncate"}, "`empty` is valid only with mode 'overwrite'"),
        ({"replaces_others": True}, "`replaces_others` is valid only with mode 'overwrite' or 'overwrite_partitions'"),
        ({"schema_evolution": "anything"}, "`schema_evolution` is 'anything'. It must be 'add_columns' or None"),
        ({"schema_evolution": "add_columns"}, "needs commit='spark'"),
    ],
)
def test_options_that_do_not_go_together_are_refused_when_the_dag_is_parsed(options: JsonDict, names: str) -> None:
    with pytest.raises(BadArgument, match=f"Sink 'silver': .*{names}"):
        DeltaSink("silver", "/lake/silver", **options)


def test_spark_is_told_the_mode_and_an_append_is_planned_as_ever(table_path: Path, world: Environment) -> None:
    attempt = attempt_of(transaction(1))
    plain = DeltaSink("bronze", str(table_path), commit="spark").plan_stage(attempt, "n", world)
    assert (plain["kind"], "how" in plain) == ("delta", False)
    sink = DeltaSink("silver", str(table_path), mode="upsert", keys=["id"], sequence_by="v")
    plan = sink.plan_stage(attempt, "n", world)
    assert plan["committer"] == "spark"
    assert {plan["kind"], plain["kind"]} < STAGERS.keys()
    assert json.loads(json.dumps(plan)) == plan
    assert plan["how"] == {
        "mode": "upsert",
        "keys": ["id"],
        "sequence_by": "v",
        "delete_when": None,
        "merge": None,
        "on": None,
        "schema_evolution": None,
        "empty": "keep",
    }


def test_no_warning_that_spark_commits_where_nobody_else_can(
    table_path: Path, world: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    write_deltalake(str(table_path), rows(0))
    with caplog.at_level(logging.WARNING):
        DeltaSink("silver", str(table_path), mode="overwrite").plan_stage(attempt_of(transaction(1)), "n", world)
    assert not caplog.records


def staged_as_spark_does(sink: DeltaSink, table: Path, world: Environment, data: Any) -> tuple[Any, StagedClaim]:
    """Staged by deltalake, with the note that Spark leaves about the table."""
    attempt = attempt_of(transaction(1))
    plan = sink.plan_stage(attempt, uuid.uuid4().hex, world)
    return attempt, stage_with_deltalake(plan, data)


def test_a_table_that_takes_new_rows_only_is_a_vote_abort_for_changes(table_path: Path, world: Environment) -> None:
    write_deltalake(str(table_path), rows(0), configuration={"delta.appendOnly": "true"})
    for sink, kind in (
        (DeltaSink("silver", str(table_path), mode="overwrite"), VoteKind.VOTE_ABORT),
        (DeltaSink("silver", str(table_path), commit="spark", schema_evolution="add_columns"), VoteKind.VOTE_COMMIT),
    ):
        attempt, claim = staged_as_spark_does(sink, table_path, world, rows(1))
        vote = sink.vote(attempt, claim, world)
        assert vote.vote is kind
        assert kind is VoteKind.VOTE_COMMIT or "takes new rows only" in (vote.reason or "")


def test_partitions_are_overwritten_only_where_there_are_any(table_path: Path, world: Environment) -> None:
    plain = DeltaSink("silver", str(table_path), mode="overwrite_partitions")
    attempt, claim = staged_as_spark_does(plain, table_path, world, rows(1))
    assert "which partitions" in (plain.vote(attempt, claim, world).reason or "")
    parted = DeltaSink("silver", str(table_path), mode="overwrite_partitions", partition_by=["p"])
    attempt, claim = staged_as_spark_does(parted, table_path, world, rows(1, p=["a"]))
    assert promised(parted.vote(attempt, claim, world)).rows == 1


def test_rows_without_the_partition_columns_say_not_which_partitions_they_replace(
    table_path: Path, world: Environment
) -> None:
    write_deltalake(str(table_path), rows(0, p=["a"]), partition_by=["p"])
    sink = DeltaSink("silver", str(table_path), mode="overwrite_partitions")
    attempt = attempt_of(transaction(1))
    plan = {**sink.plan_stage(attempt, "1", world), "partition_by": []}
    vote = sink.vote(attempt, stage_with_deltalake(plan, rows(1)), world)
    assert "which partitions" in (vote.reason or "")


@pytest.mark.parametrize("options", [{"commit": "spark"}, {"mode": "overwrite"}], ids=["append", "overwrite"])
def test_rows_without_a_partition_column_are_a_vote_abort_that_names_it(
    table_path: Path, world: Environment, options: JsonDict
) -> None:
    write_deltalake(str(table_path), rows(0, p=["a"]), partition_by=["p"])
    sink, attempt = DeltaSink("silver", str(table_path), **options), attempt_of(transaction(1))
    plan = {**sink.plan_stage(attempt, "1", world), "partition_by": []}
    vote = sink.vote(attempt, stage_with_deltalake(plan, rows(1)), world)
    assert "column 'p' partitions the table and is missing in the rows" in (vote.reason or "")


def test_partitions_that_were_changed_since_the_stage_are_a_vote_abort(table_path: Path, world: Environment) -> None:
    found = rows(0, p=["a"], q=["b"])
    write_deltalake(str(table_path), found, partition_by=["p"])
    sink = DeltaSink("silver", str(table_path), mode="overwrite_partitions")
    attempt, claim = staged_as_spark_does(sink, table_path, world, found)
    write_deltalake(str(table_path), found, mode="overwrite", schema_mode="overwrite", partition_by=["q"])
    vote = sink.vote(attempt, claim, world)
    assert "it is partitioned by ['q'] now, and was by ['p'] when the rows were staged" in (vote.reason or "")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"mode": "overwrite"}, VoteKind.VOTE_ABORT),
        ({"mode": "overwrite", "schema_evolution": "add_columns"}, VoteKind.VOTE_COMMIT),
        ({"mode": "merge", "keys": ["id"], "merge": COUNT}, VoteKind.VOTE_COMMIT),
    ],
)
def test_the_vote_looks_at_new_columns_as_the_mode_does(
    table_path: Path, world: Environment, options: JsonDict, kind: VoteKind
) -> None:
    write_deltalake(str(table_path), rows(0))
    sink = DeltaSink("silver", str(table_path), **options)
    attempt, claim = staged_as_spark_does(sink, table_path, world, rows(1, extra=["x"]))
    vote = sink.vote(attempt, claim, world)
    assert vote.vote is kind
    assert kind is VoteKind.VOTE_COMMIT or "'extra'" in (vote.reason or "")


TIMES = pa.array([datetime(2026, 1, 1)], pa.timestamp("us"))
NEW_TIMES = {"alone": TIMES, "in a struct of an array": pa.array([[{"at": datetime(2026, 1, 1)}]])}


@pytest.mark.parametrize("times", NEW_TIMES.values(), ids=NEW_TIMES)
@pytest.mark.parametrize(
    "options",
    [
        {"commit": "spark"},
        {"mode": "upsert", "keys": ["id"]},
        {"mode": "overwrite"},
        {"mode": "merge", "keys": ["id"], "merge": COPY},
    ],
    ids=["append", "upsert", "overwrite", "merge"],
)
def test_a_new_column_whose_type_needs_a_feature_is_a_vote_abort_with_the_command_that_adds_it(
    table_path: Path, world: Environment, options: JsonDict, times: pa.Array
) -> None:
    write_deltalake(str(table_path), rows(0))
    sink = DeltaSink("silver", str(table_path), **options, schema_evolution="add_columns")
    attempt, claim = staged_as_spark_does(sink, table_path, world, rows(1, times=times))
    vote = sink.vote(attempt, claim, world)
    command = f"ALTER TABLE delta.`file://{table_path}` SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
    assert vote.vote is VoteKind.VOTE_ABORT and command in (vote.reason or "")
    feature = TableFeatures.TimestampWithoutTimezone
    DeltaTable(str(table_path)).alter.add_feature(feature, allow_protocol_versions_increase=True)
    assert promised(sink.vote(attempt, claim, world)).rows == 1


def test_a_merge_whose_clauses_copy_no_rows_adds_no_feature(table_path: Path, world: Environment) -> None:
    write_deltalake(str(table_path), rows(0))
    clauses = "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    sink = DeltaSink(
        "silver", str(table_path), mode="merge", keys=["id"], merge=clauses, schema_evolution="add_columns"
    )
    attempt, claim = staged_as_spark_does(sink, table_path, world, rows(1, times=TIMES))
    assert promised(sink.vote(attempt, claim, world)).rows == 1


def test_a_table_that_appeared_since_the_rows_were_staged_is_a_vote_abort(table_path: Path, world: Environment) -> None:
    sink = DeltaSink("silver", str(table_path), mode="merge", keys=["id"], merge=COUNT)
    attempt = attempt_of(transaction(1))
    claim = stage(sink, attempt, rows(1), world)
    write_deltalake(str(table_path), rows(0))
    assert "was created after its rows were staged" in (sink.vote(attempt, claim, world).reason or "")


def test_notes_about_deleted_keys_are_not_taken_for_somebody_elses_files(table_path: Path, world: Environment) -> None:
    (table_path / "_epochs" / "x").mkdir(parents=True)
    sink = DeltaSink("silver", str(table_path), mode="upsert", keys=["id"])
    assert sink.plan_stage(attempt_of(transaction(1)), "n", world)["schema"] is None


class CommitOnly:
    """A Spark that is asked for nothing but a commit, and gives no answer."""

    def __init__(self) -> None:
        self.jobs: list[SparkJob] = []

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        self.jobs.append(job)
        raise NotApplied("the server is down", remedy="start it")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"commit": "spark"}, "delta_commit"),
        ({"mode": "upsert", "keys": ["id"]}, "delta_change"),
        ({"mode": "upsert", "keys": ["id"], "sequence_by": "v"}, "delta_change"),
        ({"mode": "upsert", "keys": ["id"], "sequence_by": "v", "delete_when": "v < 0"}, "delta_change"),
    ],
)
def test_the_commit_tells_spark_what_to_do_with_which_rows_and_with_which_notes(
    table_path: Path, world: Environment, options: JsonDict, kind: str
) -> None:
    sink = DeltaSink("silver", str(table_path), **options)
    others = table_path / "_epochs/other.gold/deleted-1"
    others.mkdir(parents=True)
    attempt, claim = staged_as_spark_does(sink, table_path, world, rows(1, 2))
    staged = promised(sink.vote(attempt, claim, world))
    world.spark = CommitOnly()
    with pytest.raises(OutcomeUnknown, match="Spark did not confirm the commit"):
        sink.commit(attempt, staged, world)
    [job] = world.spark.jobs
    assert (job.kind, job.args["epoch"], job.args["previous_epoch"], job.args["previous"]) == (kind, 1, None, None)
    notes = f"{table_path}/_epochs/{attempt.ledger_id}.silver"
    all_notes = (str(others),) if "sequence_by" in options else ()
    change = Change(how=sink.how.plan(), rows=2, notes=notes, all_notes=all_notes)
    assert kind == "delta_commit" or job.args["change"] == as_json(change)


@pytest.mark.parametrize(
    ("shown", "may"),
    [
        ((1, "orders/1/1/aa"), True),
        ((1, None), True),  # the log was cleaned up, the epoch alone is left
        ((2, "orders/2/1/bb"), True),  # this one, or who it is turns out afterwards
        ((1, "orders/1/1/ff"), False),
        ((3, "orders/3/1/cc"), False),
        ((None, None), False),
    ],
)
def test_spark_commits_to_a_table_that_shows_the_epoch_before_by_its_transaction(
    shown: tuple[int | None, str | None], may: bool
) -> None:
    before = seen(epoch=shown[0], txn=shown[1])
    plan = commit_plan(table_id="t", epoch=2, previous_epoch=1, previous="orders/1/1/aa")
    assert (delta_jobs.refusal(before, plan) is None) is may


def test_new_columns_are_no_problem_where_they_are_asked_for() -> None:
    table: JsonDict = {"fields": [{"name": "id", "type": "long", "nullable": True}]}
    given: JsonDict = {"fields": [{"name": "ID", "type": "string"}, {"name": "extra", "type": "long"}]}
    assert len(delta_schema.problems(table, given)) == 2
    assert delta_schema.problems(table, given, add_columns=True) == [
        "column 'id' is string in the rows and long in the table"
    ]


@pytest.mark.parametrize(
    ("clauses", "problems"),
    [
        (COPY, ["column 'D' is decimal(12,4) in the rows and decimal(12,2) in the table"]),
        ("when not matched then insert\n*", ["column 'D' is decimal(12,4) in the rows and decimal(12,2) in the table"]),
        ("WHEN MATCHED THEN UPDATE SET t.d = s.d", []),
    ],
)
def test_clauses_of_a_merge_that_copy_columns_change_no_value(clauses: str, problems: list[str]) -> None:
    table: JsonDict = {"fields": [{"name": "id", "type": "long"}, {"name": "D", "type": "decimal(12,2)"}]}
    kinds = {"ID": "integer", "d": "decimal(12,4)", "x": "long"}
    given: JsonDict = {"fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    assert delta_schema.problems_of_merge(table, given, clauses, []) == problems


@pytest.mark.parametrize(
    ("kind", "column", "copied"),
    [
        ("double", "integer", False),
        ("long", "integer", False),
        ("timestamp", "timestamp_ntz", False),
        ("long", "string", False),
        ("long", {"type": "array", "elementType": "long"}, False),
        ("integer", "long", True),
        ("void", "integer", True),
        ("decimal(10,2)", "decimal(12,2)", True),
        ({"type": "array", "elementType": "integer"}, {"type": "array", "elementType": "long"}, True),
        ({"type": "array", "elementType": "long"}, {"type": "array", "elementType": "integer"}, False),
        (
            {"type": "struct", "fields": [{"name": "A", "type": "date"}, {"name": "new", "type": "long"}]},
            {"type": "struct", "fields": [{"name": "a", "type": "date"}]},
            True,
        ),
        (
            {"type": "struct", "fields": [{"name": "A", "type": "double"}]},
            {"type": "struct", "fields": [{"name": "a", "type": "float"}]},
            False,
        ),
    ],
)
def test_a_merge_copies_a_column_into_the_same_type_or_a_wider_one(kind: Any, column: Any, copied: bool) -> None:
    table, given = ({"fields": [{"name": "d", "type": each}]} for each in (column, kind))
    assert (delta_schema.problems_of_merge(table, given, COPY, []) == []) is copied


AB, BA = ({"type": "struct", "fields": [{"name": name, "type": "long"} for name in names]} for names in ("aB", "ba"))


@pytest.mark.parametrize(
    ("kind", "column", "fits"),
    [
        ("integer", "long", True),
        ("long", "integer", False),
        ("string", "long", False),
        (AB, BA, True),
        (AB, {"type": "struct", "fields": [{"name": "a", "type": "long"}]}, False),
        ({"type": "array", "elementType": AB}, {"type": "array", "elementType": BA}, True),
    ],
)
def test_a_key_of_a_merge_needs_the_type_of_the_table_or_a_narrower_one_whatever_the_clauses(
    kind: Any, column: Any, fits: bool
) -> None:
    table, given = ({"fields": [{"name": name, "type": each} for name in ("d", "n")]} for each in (column, kind))
    found = delta_schema.problems_of_merge(table, given, COUNT.replace("INSERT *", "INSERT (d) VALUES (s.d)"), ["D"])
    assert (found == []) is fits
    assert fits or "column 'd' is" in found[0]


def test_the_vote_refuses_rows_that_a_merge_would_cast(table_path: Path, world: Environment) -> None:
    write_deltalake(str(table_path), rows(0, n=["a"]))
    sink = DeltaSink("silver", str(table_path), mode="merge", keys=["id"], merge=COPY)
    attempt, claim = staged_as_spark_does(sink, table_path, world, rows(1, n=[7]))
    vote = sink.vote(attempt, claim, world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "column 'n' is long in the rows and string in the table" in (vote.reason or "")


def statement(columns: list[str], rows: int | None = None, **options: Any) -> str:
    schema = {"fields": [{"name": name, "type": "long"} for name in columns]}
    return _Merge.of(Mode.of(**options).plan(), "/lake/t", schema, "v", no_rows=rows == 0).statement


def test_an_upsert_names_its_columns_and_lets_no_older_row_win() -> None:
    assert statement(["id", "n`m", "v"], mode="upsert", keys=["id"], sequence_by="v", delete_when="n = 0") == (
        "MERGE INTO delta.`file:///lake/t` AS t USING v AS s ON t.`id` = s.`id` "
        "WHEN MATCHED AND (t.`v` IS NULL OR s.`v` >= t.`v`) AND s.`__epochs_deleted` THEN DELETE "
        "WHEN MATCHED AND (t.`v` IS NULL OR s.`v` >= t.`v`) THEN UPDATE SET `n``m` = s.`n``m`, `v` = s.`v` "
        "WHEN NOT MATCHED AND NOT s.`__epochs_deleted` THEN INSERT (`id`, `n``m`, `v`) "
        "VALUES (s.`id`, s.`n``m`, s.`v`)"
    )


def test_an_upsert_of_nothing_but_keys_updates_nothing() -> None:
    found = statement(["ID", "p"], mode="upsert", keys=["id", "p"], schema_evolution="add_columns")
    assert found.startswith("MERGE WITH SCHEMA EVOLUTION INTO")
    assert "ON t.`id` = s.`id` AND t.`p` = s.`p` WHEN NOT MATCHED" in found


def test_a_merge_runs_the_users_clauses_but_not_for_an_epoch_without_rows() -> None:
    options = {"mode": "merge", "keys": ["id"], "merge": COUNT, "on": "t.day = s.day OR true"}
    assert statement(["id"], 3, **options).endswith(f"ON t.`id` = s.`id` AND (t.day = s.day OR true) {COUNT}")
    assert statement(["id"], 0, **options).endswith("WHEN MATCHED AND false THEN DELETE")


def test_a_struct_is_compared_by_the_names_of_its_fields() -> None:
    of_table = comparison.in_order_of({"type": "array", "elementType": AB}, "t.`k`")
    assert of_table == "transform(t.`k`, e0 -> IF(e0 IS NULL, NULL, struct(e0.`a` AS `a`, e0.`B` AS `B`)))"
    for kind in ("long", {"type": "array", "elementType": AB}):
        assert comparison.in_order_of({"type": "array", "elementType": kind}, "t.`k`") == "t.`k`"


@pytest.mark.parametrize(
    ("sequence", "told"),
    [("seq", "ALTER TABLE delta.`file:///t` ALTER COLUMN `Seq`.element.`a` FIRST"), ("other", ""), (None, "")],
)
def test_the_order_of_fields_counts_in_the_sequence_alone(sequence: str | None, told: str) -> None:
    table, given = (
        {"fields": [{"name": name, "type": {"type": "array", "elementType": kind}}, {"name": "k", "type": kind}]}
        for name, kind in (("Seq", BA), ("seq", AB))
    )
    found = comparison.problems_of_order("/t", table, given, sequence)
    assert [text.partition("Or type ")[2].partition(" in Spark")[0] for text in found] == ([told] if told else [])
    assert comparison.problems_of_order("/t", given, given, sequence) == []


def array_of(kind: Any) -> JsonDict:
    return {"type": "array", "elementType": kind}


def map_of(kind: Any) -> JsonDict:
    return {"type": "map", "keyType": "string", "valueType": kind}


@pytest.mark.parametrize("mode", ["upsert", "merge", "append", "overwrite_partitions"])
@pytest.mark.parametrize(
    ("wrap", "exchanged"),
    [
        (lambda kind: kind, False),
        (array_of, False),
        (lambda kind: map_of(array_of(kind)), False),
        (lambda kind: array_of(array_of(kind)), True),
        (lambda kind: array_of(map_of(kind)), True),
        (lambda kind: {"type": "struct", "fields": [{"name": "o", "type": array_of(array_of(kind))}]}, True),
    ],
    ids=["struct", "array", "map of arrays", "array of arrays", "array of maps", "in a struct"],
)
def test_a_merge_takes_no_fields_in_another_order_where_delta_goes_by_their_places(
    wrap: Callable[[Any], Any], exchanged: bool, mode: str
) -> None:
    table, rows = ({"fields": [{"name": name, "type": wrap(kind)}]} for name, kind in (("V", BA), ("v", AB)))
    found = comparison.problems_of_places(mode, table, rows)
    assert bool(found) == (exchanged and mode in ("upsert", "merge"))
    assert comparison.problems_of_places(mode, rows, rows) == []


@pytest.mark.parametrize("wanted", ["abcd", "dcba", "bdac", "cabd"])
def test_the_statements_of_a_vote_bring_the_fields_into_the_order_of_the_rows(wanted: str) -> None:
    table, given = (
        {"fields": [{"name": "v", "type": {"type": "struct", "fields": [{"name": n, "type": "long"} for n in names]}}]}
        for names in ("abcd", wanted)
    )
    now = list("abcd")
    for text in comparison.problems_of_order("/t", table, given, "v"):
        for moved, behind in re.findall(r"ALTER COLUMN `v`\.`(.)` (?:FIRST|AFTER `(.)`)", text):
            now.remove(moved)
            now.insert(now.index(behind) + 1 if behind else 0, moved)
    assert now == list(wanted)


def test_columns_that_are_named_and_missing_are_told_with_the_option_that_names_them() -> None:
    how = Mode.of(mode="upsert", keys=["ID", "p"], sequence_by="v").plan()
    assert conditions.missing(how, ["id", "n"]) == "column 'p' (see `keys`) and column 'v' (see `sequence_by`)"
