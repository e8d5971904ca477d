"""The Epochs page in Airflow's API server: every request, and a browser's first paint, with many pipelines and epochs.

50 pipelines have 200 epochs each, and one has 10,000. The completion records are those of a real epoch, with other
numbers; the newest epoch of each pipeline has all its records.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import httpx

from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import CompleteRecord, OffsetRange, Run, TransactionId
from airflow_epochs.testing import MemoryWorld, memory_coordinator, memory_ledger, memory_pipeline, run_epoch
from stack.airflow import USER, AirflowStack, connection, password_in
from tests.perf.figures import Figure, figure
from tests.support.browser import Browser, browser

PIPELINES, EPOCHS, LONG, LONG_EPOCHS = 50, 200, "long", 10_000
SAMPLES = 20
REQUEST_S, PAINT_S = 0.3, 1.0
SECONDS = {"open": 0.4, "stage": 2.5, "vote": 0.2, "commit.orders": 0.5, "commit.audit": 0.4, "complete": 0.2}


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number in range(PIPELINES):
            _pipeline(root / "ledger", f"p{number}", EPOCHS)
        _pipeline(root / "ledger", LONG, LONG_EPOCHS)
        (root / "dags").mkdir()
        connections = {"epochs_default": connection("epochs", extra={"ledger_root": str(root / "ledger")})}
        with AirflowStack(root / "airflow", root / "dags", connections=connections) as airflow:
            password = password_in(root / "airflow")
            return [*_requests(airflow.url, password), _first_paint(airflow.url, password)]


def _pipeline(root: Path, name: str, epochs: int) -> None:
    """A pipeline's ledger: completion records, and a last epoch that has all its records."""
    store, world = LocalStore(root), MemoryWorld()
    root.mkdir(exist_ok=True)
    world.produce("orders", 0, [0])
    pipeline = memory_pipeline(world, ("orders", "audit"), name=name, dag_id=f"{name}_dag")
    run_epoch(memory_coordinator(world, pipeline, store=store), Run(f"{name}_dag", "first"))
    ledger = memory_ledger(name, store)
    first = ledger.complete_record(1)
    assert first
    for number in range(2, epochs + 1):
        ledger.put(_numbered(first, number))


def _numbered(first: CompleteRecord, number: int) -> CompleteRecord:
    txn = TransactionId(first.txn_id.pipeline, number, first.txn_id.attempt, first.txn_id.nonce)
    at = datetime.fromisoformat(first.completed_at) + timedelta(seconds=5 * number)
    return replace(
        first,
        txn_id=txn,
        ranges={"orders": (OffsetRange(0, number - 1, number),)},
        receipts={sink: replace(each, txn_id=txn) for sink, each in first.receipts.items()},
        markers=dict.fromkeys(first.markers, txn),
        metrics={"seconds": SECONDS},
        completed_at=at.isoformat(),
    )


def _requests(url: str, password: str) -> list[Figure]:
    login = httpx.post(f"{url}/auth/token", json={"username": USER, "password": password})
    headers = {"Authorization": f"Bearer {login.raise_for_status().json()['access_token']}"}
    long = f"/epochs/pipelines/epochs_default/{LONG}"
    paths = {
        f"all of {PIPELINES + 1} pipelines": "/epochs/",
        f"a pipeline of {LONG_EPOCHS:,} epochs": long,
        "older epochs of it": f"{long}?before={LONG_EPOCHS // 2}",
        "one epoch": f"{long}/epochs/1",
        "a DAG's tab": f"/epochs/dags/{LONG}_dag",
    }
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        return [figure(f"page: {what}", "s", _sampled(client, path), most=REQUEST_S) for what, path in paths.items()]


def _sampled(client: httpx.Client, path: str) -> list[float]:
    samples = []
    for _ in range(SAMPLES + 1):
        started = time.perf_counter()
        assert client.get(path).status_code in (200, 307)
        samples.append(time.perf_counter() - started)
    return samples[1:]  # the first one imports the page


def _first_paint(url: str, password: str) -> Figure:
    with browser(url) as page:
        page.log_in(USER, password)
        samples = [_painted(page, path) for path in ("/epochs/", f"/epochs/pipelines/epochs_default/{LONG}") * 5]
    return figure("page: first paint in a browser", "s", samples, most=PAINT_S)


def _painted(page: Browser, path: str) -> float:
    page.open(path)
    page.wait("performance.getEntriesByName('first-contentful-paint').length === 1")
    told: Mapping[str, float] = page.script("performance.getEntriesByName('first-contentful-paint')[0].toJSON()")
    return told["startTime"] / 1000
