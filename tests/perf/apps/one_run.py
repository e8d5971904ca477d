"""One run of a pipeline with one sink in a process of its own, killed at a step if told to.

Usage: one_run.py FOLDER BOOTSTRAP SPARK_PORT RUN [STEP]. What it does is what the tasks of an Airflow run do, one
after the other; at the first arrival at STEP it ends by SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from airflow_epochs import DeltaSink, KafkaSource, SparkConnect
from airflow_epochs.contracts import Connection, SparkRunner
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run
from airflow_epochs.testing import run_epoch


@dataclass
class KilledAt:
    """The world of one process: two connections, and the step at which it ends."""

    bootstrap: str
    port: int
    step: str | None

    def connection(self, conn_id: str) -> Connection:
        if conn_id == "kafka":
            return Connection(conn_id=conn_id, conn_type="kafka", extra={"bootstrap.servers": self.bootstrap})
        token = os.environ["CONNECT_TOKEN"]
        return Connection(conn_id=conn_id, conn_type="spark_connect", host="localhost", port=self.port, password=token)

    def reached(self, phase: str) -> None:
        if phase == self.step:
            os.kill(os.getpid(), signal.SIGKILL)

    @cached_property
    def spark(self) -> SparkRunner:
        return SparkConnect("spark").runner(self)


def main(folder: str, bootstrap: str, port: str, run: str, step: str | None = None) -> None:
    coordinator = Coordinator(
        TaskTry(
            pipeline=Pipeline(
                wait_for_others=0,
                name="bench",
                dag_id="bench",
                source=KafkaSource(topics=["bench"], conn_id="kafka", max_wait=0),
                sinks=(DeltaSink("table", f"{folder}/table"),),
                transform=Transform(path=str(Path(__file__).parent / "parse.py"), function="transform"),
            ),
            ledger=Ledger(LocalStore(Path(folder, "ledger")), "bench"),
            env=KilledAt(bootstrap, int(port), step),
        )
    )
    run_epoch(coordinator, Run("bench", run))


if __name__ == "__main__":
    main(*sys.argv[1:])
