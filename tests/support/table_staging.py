"""What Spark would stage of a Delta table, without Spark: deltalake reads the planned versions, as Spark would."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from airflow_epochs.contracts import Environment, SparkJob
from airflow_epochs.model import JsonDict
from airflow_epochs.spark.driver.delta.plans import EPOCH, StateStaging
from airflow_epochs.spark.driver.plans import SinkOutcome, StageOutcome, StagePlan, TableRead
from airflow_epochs.spark.driver.wire import as_json, from_json
from airflow_epochs.transforms.changes import DELETED
from tests.support.delta_world import stage_with_deltalake
from tests.support.faults_disk import DiskSpark


class TableSpark(DiskSpark):
    """Stages the ids of the rows that a pipeline reads of a table. It runs no transform. A state gets no changes."""

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        plan = from_json(StagePlan, job.args)
        rows = pa.concat_tables([_read(each.table).select(["id"]) for each in (*plan.earlier, plan) if each.table])
        claims = {}
        for name, told in plan.sinks.items():
            data = _no_changes() if told["kind"] == StateStaging.kind else rows
            claims[name] = SinkOutcome(place=stage_with_deltalake(told, data).place)
        return as_json(StageOutcome(sinks=claims))


class WithoutSpark:
    """In place of ``SparkConnect``."""

    def runner(self, env: Environment) -> TableSpark:
        return TableSpark(env.reached)


def _no_changes() -> pa.Table:
    """Of a state whose only column is the id."""
    return pa.schema([("id", pa.int64()), (EPOCH, pa.int64()), (DELETED, pa.bool_())]).empty_table()


def _read(read: TableRead) -> pa.Table:
    if read.start == 0:
        return DeltaTable(read.location, version=read.end - 1).to_pyarrow_table()
    if read.feed:
        changes = DeltaTable(read.location).load_cdf(starting_version=read.start, ending_version=read.end - 1)
        return pa.table(changes.read_all())
    if not read.files:
        return DeltaTable(read.location).to_pyarrow_table().slice(0, 0)
    return pa.concat_tables([pq.read_table(f"{read.location}/{file}") for file in read.files])
