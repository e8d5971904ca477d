"""From SIGKILL at each step to the epoch complete, and what is read from Kafka again meanwhile.

A run is a process; killed at a step, it is followed at once by another one, as after ``airflow tasks clear``. Beside
it runs one that nobody kills: the time to recover is given as a part of that one's time, which holds the start of
Python and of a Spark session, as it does for the process that recovers. The broker's own log of requests says how
many bytes of records were fetched. (How soon Airflow misses a dead task is its own affair: see docs/operations.md.)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from stack.broker import Broker
from stack.connect import ConnectServer
from stack.jars import fetch
from tests.perf.figures import RUNS, Figure, figure
from tests.perf.spark_figures import create_topic, produce

RECORDS = 50_000
BEFORE_DECISION = ("open.landed", "stage.start", "stage.done", "decision.put")
AFTER_DECISION = ("decision.landed", "delta.commit.before", "delta.commit.after", "committed.table", "complete.put")
ONE_RUN = Path(__file__).parent / "apps" / "one_run.py"
RUN_S = 120
REQUEST_LOG = """\
appender.requests.type=File
appender.requests.name=requests
appender.requests.fileName={file}
appender.requests.layout.type=PatternLayout
appender.requests.layout.pattern=%m%n
logger.requests.name=kafka.request.logger
logger.requests.level=DEBUG
logger.requests.additivity=false
logger.requests.appenderRef.requests.ref=requests
"""


def figures() -> list[Figure]:
    jars = fetch("spark", "broker")
    with tempfile.TemporaryDirectory() as root:
        requests = Path(root, "requests.log")
        with (
            Broker(Path(root, "broker"), jars, log4j=REQUEST_LOG.format(file=requests)) as broker,
            ConnectServer(Path(root, "connect"), jars, quick_start=False) as connect,
        ):
            create_topic(broker.bootstrap)
            bench = Bench(Path(root), broker.bootstrap, connect, Requests(requests))
            return _measured(bench)


def _measured(bench: Bench) -> list[Figure]:
    undisturbed: list[float] = []
    parts: dict[str, list[float]] = {step: [] for step in (*BEFORE_DECISION, *AFTER_DECISION)}
    reread: dict[str, list[float]] = {step: [] for step in parts}
    for number in range(RUNS + 1):  # the first round is a warm-up
        whole, size = bench.epoch(f"undisturbed-{number}")
        for step in parts:
            seconds, again = bench.recovery(f"{step}-{number}", step)
            if number:
                parts[step].append(seconds / whole)
                reread[step].append(again / size)
        undisturbed += [whole] if number else []
    return [
        figure("a run of 50,000 records that nobody kills", "s", undisturbed),
        *(figure(f"killed at {step}: until complete", "of a run", parts[step]) for step in parts),
        *_bytes_again(reread),
    ]


def _bytes_again(reread: dict[str, list[float]]) -> list[Figure]:
    before = [part for step in BEFORE_DECISION for part in reread[step]]
    after = [part for step in AFTER_DECISION for part in reread[step]]
    return [
        figure("bytes read from Kafka again, no decision yet", "of the epoch's", before),
        figure("bytes read from Kafka again after GLOBAL_COMMIT", "of the epoch's", [max(after), *after], most=0,
               note="most of all steps"),
    ]  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """One pipeline and its servers."""

    folder: Path
    bootstrap: str
    connect: ConnectServer
    requests: Requests

    def epoch(self, run: str) -> tuple[float, int]:
        """An epoch of new records: seconds of its process, and bytes of records fetched."""
        produce(self.bootstrap, RECORDS)
        self.requests.new_bytes()
        started = time.perf_counter()
        self._require_complete(self._process(run).wait(RUN_S))
        return time.perf_counter() - started, self.requests.new_bytes()

    def recovery(self, run: str, step: str) -> tuple[float, int]:
        """An epoch killed at a step: from then on, seconds until it is complete, and bytes of records fetched."""
        produce(self.bootstrap, RECORDS)
        ended = self._process(run, step).wait(RUN_S)
        killed = time.perf_counter()
        assert ended == -signal.SIGKILL, f"{step} was not reached: exit code {ended}"
        self.requests.new_bytes()
        self._require_complete(self._process(f"{run}-again").wait(RUN_S))
        return time.perf_counter() - killed, self.requests.new_bytes()

    def _process(self, run: str, *step: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, str(ONE_RUN), str(self.folder), self.bootstrap, str(self.connect.port), run, *step]
        return subprocess.Popen(argv, env={**os.environ, "CONNECT_TOKEN": self.connect.token})

    def _require_complete(self, ended: int) -> None:
        ledger = Ledger(LocalStore(self.folder / "ledger"), "bench")
        newest = ledger.newest_complete()
        assert ended == 0 and not ledger.view(newest + 1).open, f"epoch {newest + 1} is not complete"


@dataclass
class Requests:
    """The broker's log of requests, a JSON object each."""

    file: Path
    read: int = field(default=0)

    def new_bytes(self) -> int:
        """Bytes of records in all answers to FETCH since the last call."""
        return sum(_records(line) for line in self._new_lines() if '"FETCH"' in line)

    def _new_lines(self) -> Iterator[str]:
        with self.file.open() as log:
            log.seek(self.read)
            yield from log
            self.read = log.tell()


def _records(line: str) -> int:
    response = json.loads(line[line.index("{") :])["response"]
    return sum(part["recordsSizeInBytes"] for topic in response["responses"] for part in topic["partitions"])
