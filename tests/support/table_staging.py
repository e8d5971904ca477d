"""What Spark would stage of a Delta table, without Spark: deltalake reads the planned versions, as Spark would."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from airflow_epochs.contracts import Environment, SparkJob
from airflow_epochs.model import JsonDict
from airflow_epochs.spark.driver.plans import Claim, StageOutcome, StagePlan, TableRead
from airflow_epochs.spark.driver.wire import as_json, from_json
from tests.support.delta_world import stage_with_deltalake
from tests.support.faults_disk import DiskSpark


class TableSpark(DiskSpark):
    """Stages the ids of the rows that a pipeline reads of a table. It runs no transform."""

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        plan = from_json(StagePlan, job.args)
        assert plan.table
        rows = _read(plan.table).select(["id"])
        claims = {name: Claim(place=stage_with_deltalake(told, rows).place) for name, told in plan.sinks.items()}
        return as_json(StageOutcome(sinks=claims))


class WithoutSpark:
    """In place of ``SparkConnect``."""

    def runner(self, env: Environment) -> TableSpark:
        return TableSpark(env.reached)


def _read(read: TableRead) -> pa.Table:
    if read.start == 0:
        return DeltaTable(read.location, version=read.end - 1).to_pyarrow_table()
    if read.feed:
        changes = DeltaTable(read.location).load_cdf(starting_version=read.start, ending_version=read.end - 1)
        return pa.table(changes.read_all())
    return pa.concat_tables([pq.read_table(f"{read.location}/{file}") for file in read.files])
