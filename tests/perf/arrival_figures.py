"""How soon a run follows the arrival of data, on a real scheduler and triggerer that have nothing else to do.

Timed from the moment when the broker has acknowledged the record: to the start of the run that the asset of waiting
records starts; and to the moment when a deferred ``open`` opens the epoch, a look at ledger and brokers included.
"""

from __future__ import annotations

import tempfile
import time
from datetime import datetime
from pathlib import Path

from confluent_kafka import Producer

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from stack.airflow import AirflowStack, connection
from stack.airflow_api import AirflowApi
from stack.broker import Broker
from stack.connect import ConnectServer
from stack.jars import fetch
from tests.perf.airflow_figures import APPS, RUN_S
from tests.perf.figures import RUNS, Figure, figure
from tests.support.waiting import wait_until

DAGS = """
from airflow.sdk import DAG
from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect, records_waiting

source = KafkaSource(topics=["started"], max_wait=0)
with DAG("started", schedule=[records_waiting("started", source)], max_active_runs=1):
    EpochPipeline("started", source=source, transform="{apps}/parse.py:transform",
        sinks=[DeltaSink("table", "{lake}/started")], spark=SparkConnect())

with DAG("waits", schedule=None, max_active_runs=1):
    EpochPipeline("waits", source=KafkaSource(topics=["waits"], max_wait=3600), transform="{apps}/parse.py:transform",
        sinks=[DeltaSink("table", "{lake}/waits")], spark=SparkConnect(), deferrable=True)
"""


def figures() -> list[Figure]:
    jars = fetch("spark", "broker")
    with (
        tempfile.TemporaryDirectory() as root,
        Broker(Path(root, "broker"), jars) as broker,
        ConnectServer(Path(root, "connect"), jars, quick_start=False) as connect,
    ):
        for topic in ("started", "waits"):
            broker.create_topic(topic, partitions=2)
        dags, ledger = Path(root, "dags"), Path(root, "ledger")
        dags.mkdir()
        dags.joinpath("bench.py").write_text(DAGS.format(apps=APPS, lake=Path(root, "lake")))
        connections = {
            "kafka_default": connection("kafka", extra={"bootstrap.servers": broker.bootstrap}),
            "spark_connect_default": connection("spark_connect", **connect.where),
            "epochs_default": connection("epochs", extra={"ledger_root": str(ledger)}),
        }
        with AirflowStack(Path(root, "airflow"), dags, connections=connections) as airflow:
            return _measured(airflow.api(), broker.bootstrap, ledger)


def _measured(api: AirflowApi, bootstrap: str, ledger: Path) -> list[Figure]:
    wait_until(lambda: api.knows("started") and api.knows("waits"), RUN_S)
    # the first of each is a warm-up
    started = [_start(api, bootstrap, number) for number in range(1, RUNS + 2)]
    woken = [_wake(api, bootstrap, Ledger(LocalStore(ledger), "waits"), number) for number in range(1, RUNS + 2)]
    return [
        figure("data arrives → the run that it starts", "s", started[1:], most=2),
        figure("data arrives → a deferred open has opened the epoch", "s", woken[1:], note="its look included"),
    ]


def _start(api: AirflowApi, bootstrap: str, number: int) -> float:
    arrived = _arrived(bootstrap, "started")
    wait_until(lambda: len(api.runs("started", "success")) == number, RUN_S)
    return _seconds(arrived, api.runs("started")[0]["start_date"])


def _wake(api: AirflowApi, bootstrap: str, ledger: Ledger, number: int) -> float:
    run = f"r{number}"
    api.trigger("waits", run)
    wait_until(lambda: api.task("waits", run, "waits.open")["state"] == "deferred", RUN_S)
    arrived = _arrived(bootstrap, "waits")
    wait_until(lambda: api.state("waits", run) == "success", RUN_S)
    opened = ledger.open_record(number, 1)
    assert opened
    return _seconds(arrived, opened.opened_at)


def _arrived(bootstrap: str, topic: str) -> float:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value=b"{}")
    assert producer.flush(20) == 0
    return time.time()


def _seconds(arrived: float, then: str) -> float:
    return datetime.fromisoformat(then.replace("Z", "+00:00")).timestamp() - arrived
