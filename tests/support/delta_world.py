"""A world for tests of the Delta sink: connections, phases that can be watched, Spark if the test has one."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from airflow_epochs.contracts import Sink, SinkAttempt, SparkJob
from airflow_epochs.model import JsonDict, Receipt, Staged, StagedClaim, TransactionId, Vote
from airflow_epochs.sinks.delta.modes import Mode
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver.delta.layout import DEFAULT
from airflow_epochs.spark.driver.delta.plans import (
    Change,
    ChangePlan,
    CommitPlan,
    Described,
    DescribedTable,
    FoundMarker,
    SeenTable,
)
from airflow_epochs.spark.driver.wire import as_json
from orders_demo.duck import duck
from tests.support.environment import Environment

LEDGER = "0f1e2d3c"


def transaction(epoch: int, attempt: int = 1, pipeline: str = "orders") -> TransactionId:
    return TransactionId(pipeline, epoch, attempt, uuid.uuid4().hex)


def attempt_of(txn: TransactionId, previous: TransactionId | None = None) -> SinkAttempt:
    return SinkAttempt(txn=txn, ledger_id=LEDGER, previous=previous)


def rows(*ids: int, **columns: list[Any]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), **columns})


def not_utf8(value: bytes) -> pa.Array:
    """A text of these bytes, as Spark makes one by a cast, which pyarrow's own constructors do not."""
    offsets = b"\0\0\0\0" + len(value).to_bytes(4, "little")
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(value)])


def stage_with_deltalake(plan: JsonDict, data: pa.Table, options: Mapping[str, str] | None = None) -> StagedClaim:
    """Do what Spark does when it stages, with deltalake's writer: append once, leave the note."""
    write_deltalake(
        plan["place"],
        data,
        mode="append",
        partition_by=None if plan["has_version_0"] else plan["partition_by"] or None,
        configuration=None if plan["has_version_0"] else plan["properties"] or None,
        storage_options=dict(options or {}) or None,
        commit_properties=CommitProperties(custom_metadata={"userMetadata": plan["user_metadata"]}),
    )
    return StagedClaim(place=plan["place"])


def stage(sink: DeltaSink, attempt: SinkAttempt, data: pa.Table, world: Environment) -> StagedClaim:
    plan = sink.plan_stage(attempt, uuid.uuid4().hex, world)
    return stage_with_deltalake(plan, data)


def promised(vote: Vote) -> Staged:
    assert vote.staged is not None, vote.reason
    return vote.staged


def run_epoch(
    sink: DeltaSink, txn: TransactionId, previous: TransactionId | None, data: pa.Table, world: Environment
) -> tuple[Staged, Receipt]:
    attempt = attempt_of(txn, previous)
    staged = promised(sink.vote(attempt, stage(sink, attempt, data, world), world))
    return staged, sink.commit(attempt, staged, world)


def ids_in(table: str | Path) -> list[int]:
    """Every id, read by deltalake."""
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist())


def seen_by_duckdb(table: str) -> list[int]:
    """Every id, read by DuckDB through delta-kernel: a reader that shares no code with deltalake or Spark."""
    with duck() as database:
        return sorted(row[0] for row in database.execute("SELECT id FROM delta_scan(?)", [table]).fetchall())


def rows_by_duckdb(table: str | Path) -> list[str]:
    """All columns of all rows."""
    with duck() as database:
        return sorted(map(repr, database.execute("SELECT * FROM delta_scan(?)", [str(table)]).fetchall()))


def log_of(table: str | Path) -> list[list[JsonDict]]:
    """The table's log, entry by entry, as it lies on disk."""
    entries = sorted(Path(table, "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in entry.read_text().splitlines() if line] for entry in entries]


class SparkOn:
    """Runs jobs in a Spark session of the test."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.jobs: list[SparkJob] = []

    def new_session(self) -> JsonDict:
        return {}

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        from airflow_epochs.spark.driver import failures, jobs
        from airflow_epochs.spark.driver.delta.session import STATISTICS

        self.jobs.append(job)
        try:
            report = jobs.run(self.session, job.kind, json.loads(json.dumps(job.args)), job.secrets)
        except Exception as error:
            raise failures.of_spark(error, job.description) from error
        finally:
            self.session.conf.unset(STATISTICS)  # a stage job has a session of its own, but for tests
        return dict(json.loads(json.dumps(report)))

    def stop(self, session: JsonDict) -> None:
        return


def stage_with_spark(sink: Sink, attempt: SinkAttempt, frame: Any, world: Environment) -> StagedClaim:
    return fill_with_spark(world.spark.session, sink.plan_stage(attempt, uuid.uuid4().hex, world), frame)


def fill_with_spark(
    session: Any,
    plan: JsonDict,
    frame: Any,
    *,
    files_of_0_1: bool = False,
    statistics: bool = False,
    again: bool = False,
) -> StagedClaim:
    """Do what the stage job does with the plan of one sink."""
    from airflow_epochs.spark.driver import stagers
    from airflow_epochs.spark.driver.delta.session import STATISTICS, prepare_staging

    job = prepare_staging(session, records=0, files_of_0_1=files_of_0_1, statistics=statistics, again=again)
    fill = stagers.STAGERS[plan["kind"]](json.loads(json.dumps(plan)), None)
    try:
        return StagedClaim(**as_json(fill(session, job, frame)))
    finally:
        session.conf.unset(STATISTICS)


def seen(*, exists: bool = True, table_id: str = "t", partition_by: tuple[str, ...] = (), **marker: Any) -> SeenTable:
    """What Spark sees of a table and of our marker in it."""
    table = DescribedTable(
        location="/t",
        id=table_id,
        schema={"type": "struct", "fields": []},
        partition_by=partition_by,
        properties={},
        min_reader=1,
        min_writer=2,
        features=(),
    )
    return SeenTable(about=Described(table=table if exists else None), marker=FoundMarker(**marker))


def commit_plan(**fields: Any) -> CommitPlan:
    """A plan with these fields, for epoch 1 of a table that does not exist."""
    plan = CommitPlan(
        target="/t",
        place="/t/p",
        app="a",
        epoch=1,
        previous=None,
        previous_epoch=None,
        table_id=None,
        partition_by=(),
        properties={},
        layout=DEFAULT,
        user_metadata="{}",
    )
    return replace(plan, **fields)


def change_plan(*, mode: str, schema_evolution: str | None = None, **fields: Any) -> ChangePlan:
    """The same for a change, without keys."""
    how = Mode(mode=mode, schema_evolution=schema_evolution).plan()
    return ChangePlan.of(commit_plan(**fields), Change(how=how, rows=1, notes="/t/notes", all_notes=()))


def spark_epoch(
    sink: DeltaSink, txn: TransactionId, previous: TransactionId | None, frame: Any, world: Environment
) -> tuple[Staged, Receipt]:
    attempt = attempt_of(txn, previous)
    staged = promised(sink.vote(attempt, stage_with_spark(sink, attempt, frame, world), world))
    receipt = sink.commit(attempt, staged, world)
    sink.discard(attempt, staged.place, world, published=True)
    return staged, receipt


def feed(spec: JsonDict, first_id: int, epochs: int) -> None:
    """Run epochs one after the other with one row each. Runs in a process of its own."""
    sink, previous, world = DeltaSink.from_spec(spec), None, Environment()
    for epoch in range(1, epochs + 1):
        txn = transaction(epoch)
        run_epoch(sink, txn, previous, rows(first_id + epoch), world)
        previous = txn


def commit_and_die(spec: JsonDict, txn: str, place: str, previous: str | None, phase: str) -> None:
    """Vote and commit what is staged at ``place``, and be killed when ``phase`` is reached."""
    sink = DeltaSink.from_spec(spec)
    attempt = attempt_of(TransactionId.parse(txn), TransactionId.parse(previous) if previous else None)
    world = Environment(at={phase: lambda: os.kill(os.getpid(), signal.SIGKILL)})
    staged = promised(sink.vote(attempt, StagedClaim(place=place), world))
    sink.commit(attempt, staged, world)


def in_process(target: Callable[..., None], *args: Any) -> SpawnProcess:
    """Start ``target`` in a fresh process: deltalake does not survive a fork."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=args)
    process.start()
    return process
