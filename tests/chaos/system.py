"""The system under test: broker, Spark Connect with its own executor, PostgreSQL, two Airflows with the same DAGs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import psutil

from airflow_epochs.delta.table import App
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from stack import postgres, private, spark
from stack.airflow import AirflowStack, connection
from stack.connect import TOKEN
from stack.jars import Jars
from stack.postgres import Postgres
from stack.processes import Process, Server
from stack.whole import LEDGER_KEY, Stack
from tests.chaos import books
from tests.chaos.books import Book, ClosedBook, DeltaBook, LateBook, OpenBook, TopicBook, WindowBooks
from tests.chaos.canaries import Canaries
from tests.chaos.transfers import create_topic
from tests.support.kafka_world import SUDDEN
from tests.support.spark_world import FEW_ROWS

PROJECT = Path(__file__).parent / "project"
PIPELINES = ("bank", "bank_submit", "bank_windows")
TRIGGERED = ("bank_submit", "bank_windows")
"""Those without a schedule."""
STATE = "open"
"""The state table of ``bank_windows``."""
TABLES = {"bank": ("debits",), "bank_submit": ("debits", "credits"), "bank_windows": ("closed", "late", STATE)}
"""The Delta tables of each pipeline."""
CANARIES = (
    "kafka_default.password",
    "kafka_default.sasl.password",
    "kafka_default.key",
    "spark_default.password",
    "epochs_default.storage_options",
    "till_db.password",
)
"""Fields of connections that nothing here needs; a secret in them must not come out either."""
SCHEDULING = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "600",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
}
"""By default Airflow takes five minutes to miss a task that died, and as long for those of a scheduler that died. Two
schedulers that look every 0.1 s, as those of the local stack do, keep half a processor busy with nothing, and so do
two DAG processors that read again and again what does not change."""
LOOK_S = 1.0
"""Airflow's API server needs a tenth of a second of a processor to answer."""


class System(Stack):
    """Everything; what was killed is brought back by ``mend``."""

    def __init__(self, folder: Path, jars: Jars) -> None:
        self.postgres = Postgres(folder / "postgres")
        self.till = folder / "till" / "till.db"
        self._drawn = {name: private.new_secret() for name in CANARIES}
        project = folder / "project"
        shutil.copytree(PROJECT, project)
        dags = project / "dags"
        scheduled = {"BANK_SCHEDULE": "@continuous", **SCHEDULING}
        conf = {**FEW_ROWS, spark.EXECUTOR_OPTIONS: spark.with_class_archive(spark.QUICK_START)}
        super().__init__(folder, jars, dags=dags, env=scheduled, master="local-cluster[1,2,1024]", spark_conf=conf)
        self.broker.settings.update(SUDDEN)
        env = {**self._task_env(), **SCHEDULING}
        self.other = AirflowStack(folder / "other", dags, connections=self._connections(), env=env)
        self.api, self.other_api = self.airflow.api(), self.other.api()
        self.leftovers: list[int] = []
        self.books: dict[str, dict[str, Book]] = {}

    @property
    def servers(self) -> tuple[Server, ...]:
        return self.airflow, self.other, self.connect, self.broker, self.postgres

    def wait_ready(self) -> None:
        self.broker.wait_ready()
        self.postgres.wait_ready()
        create_topic(self.broker.bootstrap)
        self.broker.create_topic("payments", partitions=2)
        self.books = self._opened_books()
        for server in (self.connect, self.airflow, self.other):
            server.wait_ready()

    def _opened_books(self) -> dict[str, dict[str, Book]]:
        found: dict[str, dict[str, Book]] = {
            pipeline: {name: DeltaBook(self.table(pipeline, name), App.of(pipeline, name)) for name in names}
            for pipeline, names in TABLES.items()
        }
        found["bank_windows"] = dict(self.windows._asdict())
        found["bank"] |= {
            "payments": TopicBook(self.broker.bootstrap, "payments"),
            "withdrawals": books.of_postgres(self.postgres, "withdrawals"),
            "deposits": books.of_sqlite(self.till, "deposits"),
        }
        return found

    def _connections(self) -> dict[str, str]:
        where = {"host": "127.0.0.1", "port": self.postgres.port, "schema": postgres.DATABASE}
        bank = {"conn_type": "postgres", "login": postgres.USER, "password": self.postgres.password, **where}
        drawn = self._drawn
        unused = {"sasl.password": drawn["kafka_default.sasl.password"], "ssl.key.password": drawn["kafka_default.key"]}
        options = {"aws_secret_access_key": drawn["epochs_default.storage_options"]}
        return {
            **super()._connections(),
            "kafka_default": connection(
                "kafka",
                password=drawn["kafka_default.password"],
                extra={"bootstrap.servers": self.broker.bootstrap, "group.id": "epochs", **unused},
            ),
            "spark_default": connection(
                "spark", host="local[2]", password=drawn["spark_default.password"], extra={"deploy-mode": "client"}
            ),
            "epochs_default": connection(
                "epochs",
                password=self.ledger_key,
                extra={"ledger_root": str(self.ledger), "storage_options": options},
            ),
            "bank_db": json.dumps(bank),
            "till_db": connection("sqlite", host=str(self.till), password=drawn["till_db.password"]),
        }

    def canaries(self) -> Canaries:
        """The secrets of all connections, and the files that keep those which are needed."""
        secrets = {
            **self._drawn,
            "epochs_default.password": self.ledger_key,
            "spark_connect_default.password": self.connect.token,
            "bank_db.password": self.postgres.password,
        }
        return Canaries(secrets, {self.folder / LEDGER_KEY, self.connect.folder / TOKEN})

    def ledger_of(self, pipeline: str) -> Ledger:
        return Ledger(LocalStore(self.ledger), pipeline, checked=False)

    @property
    def windows(self) -> WindowBooks:
        """The books of ``bank_windows``."""
        where = {name: (self.table("bank_windows", name), App.of("bank_windows", name)) for name in WindowBooks._fields}
        ledger = partial(self.ledger_of, "bank_windows")
        return WindowBooks(ClosedBook(*where["closed"]), LateBook(*where["late"]), OpenBook(*where["open"], ledger))

    def table(self, pipeline: str, sink: str) -> Path:
        return self.lake / pipeline / sink

    @property
    def staging(self) -> Path:
        """Where rows are staged for the topic and the databases."""
        return self.lake / "staging"

    # -- breaking ---------------------------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """SIGKILL the process alone: what it started lives on for a while, as it does after an OOM kill."""
        os.kill(process.pid, signal.SIGKILL)
        self.leftovers.append(process.pid)

    def part(self, name: str) -> Process:
        """The newest process of a name: broker, connect, scheduler, api-server, dag-processor, triggerer."""
        found = [p for server in (self.broker, self.connect, self.airflow) for p in server.processes if p.name == name]
        return found[-1]

    def task_processes(self) -> list[psutil.Process]:
        """Running tasks of both Airflows and the executor processes that watch over them.

        Not an idle executor process: one of them holds the lock of LocalExecutor's queue while it waits there, and
        killed, it keeps the lock, so that the scheduler never runs a task again until it is restarted.
        """
        titles = {p: " ".join(p.cmdline()) for p in self.descendants()}
        return [p for p, title in titles.items() if title.startswith("airflow worker -- ") and "<idle>" not in title]

    def executors(self) -> list[psutil.Process]:
        return [p for p in self.descendants() if "CoarseGrainedExecutorBackend" in " ".join(p.cmdline())]

    def submit_drivers(self) -> list[psutil.Process]:
        """JVMs of spark-submit that tasks have started."""
        server = self.part("connect").pid
        found = [p for p in self.descendants() if "org.apache.spark.deploy.SparkSubmit" in " ".join(p.cmdline())]
        return [p for p in found if os.getpgid(p.pid) != server]

    def descendants(self) -> list[psutil.Process]:
        """All processes of the system that are alive, also those whose parent was killed."""
        found = []
        groups = {p.pid for server in self.servers for p in server.processes}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                ours = os.getpgid(process.pid) in groups or process.environ().get("LAKE") == str(self.lake)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    process.cmdline()
                    found.append(process)
        return found

    # -- mending ----------------------------------------------------------------------------------------------------

    def mend(self) -> None:
        """Start again what is not running, and wait for it."""
        self.bury()
        if not self.part("broker").running:
            self.broker.start()
            self.broker.wait_ready()
        if not self.postgres.processes[-1].running:
            self.postgres.start_again()
            self.postgres.wait_ready()
        self.restart_dead_connect()
        self.airflow.restart_dead()

    def bury(self) -> None:
        """End what processes left that were killed a while ago."""
        for group in self.leftovers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self.leftovers.clear()

    def wipe_metadata(self) -> None:
        """Airflow's metadata database is gone: all runs, task instances and XComs."""
        self.airflow.stop()
        for file in self.airflow.folder.glob("airflow.db*"):
            file.unlink()
        self.airflow.processes.clear()
        self.airflow.start()
        self.airflow.wait_ready()


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true in time. What raises is not true yet."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError, OSError):
            if condition():
                return True
        time.sleep(LOOK_S)
    return False


@contextlib.contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """SIGSTOP for the time of the block."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
