"""What a pipeline in a DAG file costs every task: parse time over an empty DAG's, both in fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.perf.figures import Figure, figure

EMPTY = "from airflow.sdk import DAG\nwith DAG('bench', schedule=None):\n    pass\n"
PIPELINE = """
from airflow.sdk import DAG
from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect

with DAG("bench", schedule=None, max_active_runs=1):
    EpochPipeline("orders", source=KafkaSource(topics=["orders"]), transform="orders.py:orders",
        sinks=[DeltaSink("orders", "/tmp/orders"), DeltaSink("rejected", "/tmp/rejected")], spark=SparkConnect())
"""
# Like a task process: Airflow's machinery and the operators every DAG has are loaded before the DAG file is.
CLOCK = """
import runpy, sys, time
import airflow.sdk.execution_time.task_runner
from airflow.sdk import DAG, BaseOperator, TaskGroup, Param, Asset, BaseHook
started = time.perf_counter()
runpy.run_path(sys.argv[1])
print(time.perf_counter() - started)
"""


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        empty, pipeline = _file(folder, "empty.py", EMPTY), _file(folder, "pipeline.py", PIPELINE)
        _parse(pipeline, folder)  # writes the byte code
        samples = [1e3 * (_parse(pipeline, folder) - _parse(empty, folder)) for _ in range(7)]
    return [figure("DAG parse time over an empty DAG", "ms", samples, most=50)]


def _file(folder: str, name: str, text: str) -> Path:
    path = Path(folder, name)
    path.write_text(text)
    return path


def _parse(dag: Path, home: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", CLOCK, str(dag)],
        env={**os.environ, "AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])
