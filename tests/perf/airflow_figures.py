"""An epoch of 50,000 records in Airflow beside one SparkSubmitOperator task that runs ``availableNow`` over as many.

Both on the real scheduler, in turn, with the same broker. The epoch is timed from the start of ``open`` to the end
of ``complete``, the other from the start to the end of its one task. Task processes' peak memory is read from
/proc during further epochs.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from datetime import datetime
from pathlib import Path

import psutil

from stack import spark as stack_spark
from stack.airflow import AirflowStack, connection
from stack.airflow_api import AirflowApi
from stack.broker import Broker
from stack.connect import ConnectServer
from stack.jars import fetch
from tests.perf.figures import RUNS, Figure, figure
from tests.perf.spark_figures import create_topic, produce
from tests.support.waiting import wait_until

RECORDS = 50_000
APPS = Path(__file__).parent / "apps"
RUN_S = 240
TASK_PROCESS = re.compile(r"airflow worker -- [0-9a-f-]{36}")
DAGS = """
import os
from airflow.sdk import DAG
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect

with DAG("epoch", schedule=None, max_active_runs=1):
    EpochPipeline("bench", source=KafkaSource(topics=["bench"]), transform="{apps}/parse.py:transform",
        sinks=[DeltaSink("table", "{lake}/epoch")], spark=SparkConnect())

with DAG("submit", schedule=None, max_active_runs=1):
    SparkSubmitOperator(task_id="submit", application="{apps}/available_now.py", conn_id="spark_default",
        application_args=["{bootstrap}", "{lake}/submit"], conf={conf!r})
"""


def figures() -> list[Figure]:
    jars = fetch("spark", "broker")
    with (
        tempfile.TemporaryDirectory() as root,
        Broker(Path(root, "broker"), jars) as broker,
        ConnectServer(Path(root, "connect"), jars, quick_start=False) as connect,
    ):
        create_topic(broker.bootstrap)
        dags, lake = Path(root, "dags"), Path(root, "lake")
        dags.mkdir()
        dags.joinpath("bench.py").write_text(
            DAGS.format(apps=APPS, lake=lake, bootstrap=broker.bootstrap, conf=stack_spark.settings(jars))
        )
        connections = {
            "kafka_default": connection("kafka", extra={"bootstrap.servers": broker.bootstrap}),
            "spark_connect_default": connection("spark_connect", **connect.where),
            "spark_default": connection("spark", host="local[2]"),
            "epochs_default": connection("epochs", extra={"ledger_root": f"{root}/ledger"}),
        }
        env = stack_spark.environment(Path(root))
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)  # left by the warm-up; spark-submit would obey it
        with AirflowStack(Path(root, "airflow"), dags, connections=connections, env=env) as airflow:
            return _compare(airflow.api(), broker.bootstrap)


def _compare(api: AirflowApi, bootstrap: str) -> list[Figure]:
    epochs: list[float] = []
    submits: list[float] = []
    peaks: list[float] = []
    for number in range(RUNS + 1):  # the first of each is a warm-up
        produce(bootstrap, RECORDS)  # both take what is new
        epochs.append(run_seconds(api, "epoch", f"r{number}", "bench.open", "bench.complete"))
        submits.append(run_seconds(api, "submit", f"r{number}", "submit", "submit"))
    for number in range(RUNS):  # not the timed ones: looking into /proc all the time costs processor time
        produce(bootstrap, RECORDS)
        with PeakMemory() as memory:
            run_seconds(api, "epoch", f"m{number}", "bench.open", "bench.complete")
        peaks.append(memory.peak)
    ratio = [epoch / submit for epoch, submit in zip(epochs[1:], submits[1:], strict=True)]
    return [
        figure("epoch in Airflow ÷ SparkSubmitOperator availableNow", "ratio", ratio, most=0.5, note="50,000 records"),
        figure("epoch in Airflow, open to complete", "s", epochs[1:], note="Connect"),
        figure("SparkSubmitOperator task, availableNow", "s", submits[1:], note="local[2]"),
        figure("peak memory of an epoch's task process", "MB", peaks, most=350, note="VmHWM, highest task of a run"),
    ]


def run_seconds(api: AirflowApi, dag: str, run: str, first: str, last: str) -> float:
    """Trigger a run, wait for its success; seconds from the start of one task to the end of another."""
    wait_until(lambda: api.knows(dag), RUN_S, f"DAG {dag} is known")
    api.trigger(dag, run)
    wait_until(lambda: _succeeded(api, dag, run), RUN_S, f"{dag} {run} succeeds")
    tasks = api.tasks(dag, run)
    started, ended = (datetime.fromisoformat(tasks[t][k]) for t, k in ((first, "start_date"), (last, "end_date")))
    return (ended - started).total_seconds()


def _succeeded(api: AirflowApi, dag: str, run: str) -> bool:
    state = api.state(dag, run)
    assert state != "failed", f"{dag} {run} failed; the logs are in the folder of Airflow"
    return state == "success"


class PeakMemory:
    """Watches all task processes within the block, and keeps the highest of their high-water marks, in MB."""

    def __init__(self) -> None:
        self.peak = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.peak, "no task process was seen"

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            for process in psutil.process_iter(["cmdline"]):
                if TASK_PROCESS.fullmatch(" ".join(process.info["cmdline"] or []).strip()):
                    self.peak = max(self.peak, _high_water_mark(process.pid))


def _high_water_mark(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0  # it ended meanwhile
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)
