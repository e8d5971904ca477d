"""Finding the newest epoch: must not grow with the ledger."""

from __future__ import annotations

import tempfile
from pathlib import Path

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from tests.perf.figures import Figure, figure, timed


def figures() -> list[Figure]:
    return [_newest(epochs) for epochs in (10, 10_000)]


def _newest(epochs: int) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, epochs + 1):
            key = Path(folder, f"bench/epochs/{number:020d}/complete.json")
            key.parent.mkdir(parents=True)
            key.touch()  # only its existence is asked for
        ledger = Ledger(LocalStore(Path(folder)), "bench")
        assert ledger.newest_complete() == epochs
        samples = [1e3 * seconds for seconds in timed(ledger.newest_complete, runs=21)]
    return figure(f"newest epoch of {epochs:,}", "ms", samples, most=2)
