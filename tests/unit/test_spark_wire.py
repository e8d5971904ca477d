"""Plans and reports of Spark's jobs travel as JSON, whole, and what is none of them is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_epochs.expectations import ExpectedRowCount, ExpectedRows
from airflow_epochs.sinks.delta.modes import Mode
from airflow_epochs.spark.driver.delta.layout import FileLayout
from airflow_epochs.spark.driver.delta.plans import (
    ChangePlan,
    CommitPlan,
    Committed,
    DeltaChangeStaging,
    DeltaStaging,
    Described,
    DescribePlan,
    FencePlan,
    ForgetPlan,
    Forgotten,
    MarkerPlan,
    NewestStaging,
    Optimized,
    OptimizePlan,
    StateStaging,
    ThinnedNotes,
    ThinNotesPlan,
)
from airflow_epochs.spark.driver.jobs import JOBS
from airflow_epochs.spark.driver.plans import (
    EventTimePlan,
    InputMetrics,
    JobPlan,
    RowDigest,
    Rules,
    SinkOutcome,
    StageOutcome,
    StagePlan,
    StateRead,
    TransformFile,
)
from airflow_epochs.spark.driver.readiness import CheckOutcome, CheckPlan, ReadOutcome, ReadPlan, ReportedError
from airflow_epochs.spark.driver.stagers import STAGERS
from airflow_epochs.spark.driver.wire import as_json, from_json
from tests.support.delta_world import change_plan, commit_plan, seen
from tests.support.spark_world import stage_job

STAGE = from_json(StagePlan, stage_job(None, "/app.py:f", {}, read={"assign": "{}"}, outputs=("a", "b")).args)
APPEND = DeltaStaging(
    committer="spark",
    place="/t/p",
    target="/t",
    epoch=1,
    has_version_0=False,
    schema={"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]},
    partition_by=("p",),
    properties={"delta.appendOnly": "true"},
    optimize_write=None,
    layout=FileLayout(file_bytes=64 * 2**20, codec="snappy"),
    user_metadata="{}",
)
UPSERT = DeltaChangeStaging.of(APPEND, Mode(mode="upsert", keys=("id", "p")).plan())
NEWEST = NewestStaging.of(APPEND, Mode(mode="upsert", keys=("id",), sequence_by="v", delete_when="op = 'd'").plan())
READ = StateRead(
    location="/t",
    files={"part-1.parquet": (1, 3), "part-2.parquet": ()},
    stored={"type": "struct", "fields": []},
    schema="k string, until timestamp",
    keys=("k",),
    expires="until",
    hidden_to=10**15,
)
STATE = StateStaging.of(APPEND, fold=True, expired_to=None)
TIMES = EventTimePlan(partitions={"clicks": (0, 1)}, newest_allowed=10**15, depth=2)
RULES = Rules(
    rows=(ExpectedRows(condition="n > 0", max_fraction=0.5, otherwise="warn", show=("id",)),),
    counts=(ExpectedRowCount(least=1, most=None, otherwise="abort"),),
)
DIGEST = RowDigest(rows=3, sums=(2**62, -1), columns="c")
FLAW = ReportedError(type="NotApplied", code=None, what="no jar", remedy="Add it.")
AFTER = seen(epoch=2, txn="orders/2/1/aa", version=7)
PLANS: list[JobPlan] = [
    replace(
        STAGE,
        sinks={"a": as_json(APPEND), "b": as_json(UPSERT), "s": as_json(STATE)},
        watermarks=(2, 1, None),
        event_time=TIMES,
        state={"s": READ},
        expectations={"a": RULES},
    ),
    commit_plan(partition_by=("p",), previous="orders/1/1/aa", previous_epoch=1),
    change_plan(mode="overwrite"),
    FencePlan(target="/t", app="a", epoch=2, over=(None, "orders/1/1/aa"), user_metadata="{}"),
    DescribePlan(target="/t"),
    MarkerPlan(target="/t", app="a"),
    OptimizePlan(target="c.s.t", layout=FileLayout()),
    ThinNotesPlan(places=("/t/_epochs/1", "/t/_epochs/2")),
    ForgetPlan(target="/t", place="/t/p", how=UPSERT.how, notes=("/t/_epochs/1",), layout=FileLayout()),
    CheckPlan(transform=TransformFile(path="app.py", function="f"), formats=("delta", "kafka")),
    ReadPlan(read={"subscribe": "t"}),
]
OTHERS: list[Any] = [
    APPEND,
    UPSERT,
    NEWEST,
    STATE,
    StageOutcome(
        sinks={"a": SinkOutcome(place="/p", content=DIGEST), "b": SinkOutcome(place="/q", problem="no", unmet="n")}
    ),
    StageOutcome(sinks={}, metrics=InputMetrics(rows_in=3), warnings=("it is not deterministic",)),
    StageOutcome(sinks={}, event_times={"clicks": {"0": 10**15}}, broken={"a": {"n > 0": 3}}),
    Described(format="parquet"),
    AFTER,
    Committed(about=AFTER.about, marker=AFTER.marker, refused="the table is gone"),
    Optimized(files_added=1, files_removed=9),
    ThinnedNotes(notes_removed=0),
    Forgotten(rows_deleted=2),
    CheckOutcome(spark="4", pyspark="4", python="3", workers=None, flaws={"delta": FLAW}),
    ReadOutcome(records=1),
]


@pytest.mark.parametrize("value", [*PLANS, *OTHERS], ids=lambda value: type(value).__name__)
def test_what_arrives_as_json_is_what_was_sent(value: Any) -> None:
    told = as_json(value)
    assert json.loads(json.dumps(told)) == told
    assert from_json(type(value), told) == value


def test_a_number_that_a_dag_has_for_a_text_stays_a_number() -> None:
    told = {**as_json(APPEND), "properties": {"delta.checkpointInterval": 10}}
    assert as_json(from_json(DeltaStaging, told)) == told


def test_every_job_has_one_plan_and_every_kind_of_sinks_plan_a_stager() -> None:
    assert {plan.JOB for plan in PLANS} == JOBS.keys()
    assert len(PLANS) == len(JOBS)
    assert {APPEND.kind, UPSERT.kind, NEWEST.kind, STATE.kind} == STAGERS.keys()


@pytest.mark.parametrize(
    ("kind", "told", "why"),
    [
        (MarkerPlan, {"target": "/t"}, "This is no MarkerPlan: app is missing."),
        (DescribePlan, {"target": "/t", "app": "a"}, "This is no DescribePlan: app is unknown."),
        (DescribePlan, {"table": "/t"}, "This is no DescribePlan: target is missing, table is unknown."),
        (ThinNotesPlan, {"places": "/t"}, "ThinNotesPlan.places is of type str."),
        (DeltaStaging, {**as_json(APPEND), "properties": None}, "DeltaStaging.properties is of type NoneType."),
        (CommitPlan, as_json(change_plan(mode="merge")), "This is no CommitPlan: change is unknown."),
        (ChangePlan, {**as_json(change_plan(mode="merge")), "change": 1}, "ChangePlan.change is of type int."),
        (
            Described,
            {"table": {"id": "t"}, "format": None},
            "This is no DescribedTable: features is missing, location is",
        ),
        (
            StageOutcome,
            {**as_json(StageOutcome(sinks={})), "sinks": {"a": {}}},
            "This is no SinkOutcome: content is missing",
        ),
    ],
)
def test_what_is_no_such_plan_or_report_is_refused_by_its_fields(kind: type[Any], told: Any, why: str) -> None:
    with pytest.raises(ValueError) as refused:
        from_json(kind, told)
    assert str(refused.value).startswith(why)
