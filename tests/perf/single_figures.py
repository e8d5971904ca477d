"""The layout with one task: how soon rows are visible after they were produced, and how many epochs fit into a minute.

The operator runs in a thread of this process, as in an Airflow task that has started already. Broker and Spark Connect
server are those of the local stack; an epoch has 500 JSON records or a few times as many, and one Delta table. A row is
visible when the table's log has the version that holds it. Spark compiles code for every session anew, which costs more
than such an epoch: so there is a second pipeline, whose sessions interpret the plan.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from airflow.sdk import DAG, Asset, Context

from airflow_epochs import DeltaSink, KafkaSource, SparkConnect
from airflow_epochs.operators.single import EpochsOperator
from stack.broker import Broker
from stack.connect import ConnectServer
from stack.jars import fetch
from tests.perf.figures import Figure, figure
from tests.perf.spark_figures import TOPIC, TRANSFORM, create_topic, produce
from tests.support.waiting import wait_until

EPOCHS, WARM_UP = 8, 4
RECORDS = 500
EPOCH_S = 60
INTERPRETED = {"spark.sql.codegen.wholeStage": False, "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def figures() -> list[Figure]:
    jars = fetch("spark", "broker")
    with (
        tempfile.TemporaryDirectory() as root,
        Broker(Path(root, "broker"), jars) as broker,
        ConnectServer(Path(root, "connect"), jars) as connect,
    ):
        create_topic(broker.bootstrap)
        produce(broker.bootstrap, RECORDS)
        connections = {
            "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": broker.bootstrap}},
            "spark_connect_default": {"conn_type": "spark_connect", **connect.where},
            "epochs_default": {"conn_type": "epochs", "extra": {"ledger_root": f"{root}/ledger"}},
        }
        known = {f"AIRFLOW_CONN_{name.upper()}": json.dumps(each) for name, each in connections.items()}
        with patch.dict(os.environ, known):
            return [
                *_measured("one task", Path(root, "compiled"), broker.bootstrap, {}),
                *_measured("one task, interpreted", Path(root, "interpreted"), broker.bootstrap, INTERPRETED),
            ]


def _measured(what: str, lake: Path, bootstrap: str, conf: Mapping[str, object]) -> list[Figure]:
    delays = _delays(lake, bootstrap, conf)
    with _steady(bootstrap):
        rates = _rates(lake, conf)
    return [
        figure(f"{what}: produced until visible", "s", delays, most=1.5),
        figure(f"{what}: epochs while data comes", "per minute", rates, least=20),
    ]


def _delays(lake: Path, bootstrap: str, conf: Mapping[str, object]) -> list[float]:
    """Produce, wait until visible, and again."""
    samples = []
    with _running("delays", lake, conf):
        for version in range(WARM_UP + EPOCHS):
            if version:  # the first epoch takes what was there
                produce(bootstrap, RECORDS)
            started = time.perf_counter()
            wait_until(_log_of(lake, version).exists, EPOCH_S, f"version {version} is visible")
            samples.append(time.perf_counter() - started)
    return samples[WARM_UP:]


def _rates(lake: Path, conf: Mapping[str, object]) -> list[float]:
    """Epochs per minute, from each commit to the next."""
    first = WARM_UP + EPOCHS
    with _running("rates", lake, conf):
        last = first + WARM_UP + EPOCHS - 1
        wait_until(_log_of(lake, last).exists, EPOCH_S * EPOCHS, f"version {last} is visible")
    commits = [_log_of(lake, version).stat().st_mtime for version in range(first + WARM_UP, last + 1)]
    return [60 / (after - before) for before, after in pairwise(commits)]


@contextmanager
def _running(run: str, lake: Path, conf: Mapping[str, object]) -> Iterator[None]:
    """The task, which ends after its epochs."""
    with DAG("bench", schedule=None, max_active_runs=1):
        operator = EpochsOperator(
            task_id="epochs",
            pipeline=f"bench-{lake.name}",
            source=KafkaSource(topics=[TOPIC], max_wait=EPOCH_S),
            transform=f"{TRANSFORM}:transform",
            sinks=[DeltaSink("table", f"{lake}/table")],
            spark=SparkConnect(session_conf=conf),
            max_epochs=WARM_UP + EPOCHS,
            for_seconds=EPOCH_S * EPOCHS,
        )
    dag = SimpleNamespace(
        dag_id="bench", fileloc=__file__, max_active_runs=1, tasks=[], render_template_as_native_obj=False
    )
    context: dict[str, Any] = {"dag": dag, "run_id": run, "params": {}, "outlet_events": _Anything()}
    task = Thread(target=operator.execute, args=(cast(Context, context),), daemon=True)
    task.start()
    yield
    task.join(EPOCH_S)
    assert not task.is_alive()


class _Anything:
    """What an asset event would be told."""

    def __getitem__(self, asset: Any) -> SimpleNamespace:
        return SimpleNamespace(extra={}, key=Asset(asset.uri))


@contextmanager
def _steady(bootstrap: str) -> Iterator[None]:
    """Records come several times a second."""
    over = Event()

    def feed() -> None:
        while not over.wait(0.2):
            produce(bootstrap, RECORDS)

    feeder = Thread(target=feed, daemon=True)
    feeder.start()
    yield
    over.set()
    feeder.join()


def _log_of(lake: Path, version: int) -> Path:
    return lake / "table" / "_delta_log" / f"{version:020}.json"
