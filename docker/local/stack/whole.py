"""The whole stack for one DAG folder: Kafka, Spark Connect and Airflow, connected with one another.

``Stack.state`` is what others need to know of it; ``up`` leaves it in ``state.json``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from stack import private, shell, spark
from stack.airflow import USER, AirflowStack, connection, password_in
from stack.airflow_api import AirflowApi
from stack.broker import Broker
from stack.connect import ConnectServer
from stack.jars import Jars
from stack.processes import Server

PROJECT = Path(__file__).parents[3]
TOPIC, PARTITIONS = "orders", 4  # of dags/orders.py
AIRFLOW, CONNECT = "airflow", "connect"  # folders that keep secrets
LEDGER_KEY = "ledger-key"
PARTS = ("broker", "connect", "api-server", "scheduler", "dag-processor", "triggerer")
"""The processes that run as long as the stack does, by their names in ``State.pids``."""


@dataclass(frozen=True)
class State:
    """Addresses, folders and process ids of a running stack. ``supervisor`` ends it all on SIGTERM."""

    supervisor: int
    airflow: str
    bootstrap: str
    connect: str
    lake: str
    ledger: str
    pids: dict[str, int]

    @classmethod
    def read(cls, folder: Path) -> State | None:
        """The state that ``up`` left in ``folder``, or None."""
        try:
            return cls(**json.loads((folder / "state.json").read_text()))
        except FileNotFoundError:
            return None

    def write(self, folder: Path) -> None:
        private.write(folder / "state.json", json.dumps(asdict(self), indent=2) + "\n")

    def api(self, folder: Path) -> AirflowApi:
        """Airflow's REST API, as its user. ``folder`` is the stack's."""
        return AirflowApi(self.airflow, USER, password_in(folder / AIRFLOW))


class Stack(Server):
    """Kafka, Spark Connect and Airflow, started side by side; all data below ``folder``, closed to other accounts.

    The lake and the ledger are ``folder/lake`` and ``folder/ledger``; DAGs find the lake in ``$LAKE``. ``spark_conf``:
    more settings of Spark, also for the spark-submits of tasks.
    """

    def __init__(
        self,
        folder: Path,
        jars: Jars,
        *,
        dags: Path = PROJECT / "dags",
        env: Mapping[str, str] | None = None,
        master: str = "local[2]",
        spark_conf: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(private.make_folder(folder))
        self.spark_conf = spark_conf or {}
        self.jars = jars
        self.lake, self.ledger = folder / "lake", folder / "ledger"
        self.broker = Broker(folder / "broker", jars)
        self.connect = ConnectServer(folder / CONNECT, jars, master=master, conf=self.spark_conf)
        self.airflow = AirflowStack(
            folder / AIRFLOW, dags, connections=self._connections(), env={**self._task_env(), **(env or {})}
        )

    @property
    def servers(self) -> tuple[Server, ...]:
        return self.airflow, self.connect, self.broker

    @property
    def state(self) -> State:
        running = (process for server in self.servers for process in server.processes if process.running)
        return State(
            supervisor=os.getpid(),
            airflow=self.airflow.url,
            bootstrap=self.broker.bootstrap,
            connect=self.connect.url,
            lake=str(self.lake),
            ledger=str(self.ledger),
            pids={process.name: process.pid for process in running},
        )

    def write_env(self) -> None:
        """Let a shell have what the tasks have, and the broker's address in ``$BOOTSTRAP``."""
        env = {**self.airflow.env, "BOOTSTRAP": self.broker.bootstrap}
        shell.write_env(self.folder, env, programs=Path(sys.executable).parent)

    def start(self) -> None:
        for folder in (self.lake, self.ledger):
            private.make_folder(folder)
        for server in self.servers:
            server.start()

    def wait_ready(self) -> None:
        self.broker.wait_ready()
        self.broker.create_topic(TOPIC, partitions=PARTITIONS)  # before the first run looks for it
        self.connect.wait_ready()
        self.airflow.wait_ready()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def restart_dead_connect(self) -> bool:
        """If the Spark Connect server has died, start it again at the same address. Returns whether it had."""
        if self.connect.processes[-1].running:
            return False
        self.connect.start()
        self.connect.wait_reachable()  # no warm-up: somebody is waiting
        return True

    def restart_dead(self) -> None:
        """Start again all that has died, at the same addresses, and wait until it is well."""
        if not self.broker.processes[-1].running:
            self.broker.start()
            self.broker.wait_ready()
        self.restart_dead_connect()
        self.airflow.restart_dead()

    def _connections(self) -> dict[str, str]:
        kafka = {"bootstrap.servers": self.broker.bootstrap, "group.id": "epochs"}
        return {
            "kafka_default": connection("kafka", extra=kafka),
            "spark_connect_default": connection("spark_connect", **self.connect.where),
            "spark_default": connection("spark", host="local[2]", extra={"deploy-mode": "client"}),
            "epochs_default": connection("epochs", password=self.ledger_key, extra={"ledger_root": str(self.ledger)}),
        }

    @property
    def ledger_key(self) -> str:
        """What the ledger's records are signed with."""
        return private.kept(self.folder / LEDGER_KEY)

    def _task_env(self) -> dict[str, str]:
        """For the tasks. A spark-submit of theirs finds the jars in ``SPARK_CONF_DIR``."""
        defaults = {
            **spark.settings(self.jars),
            "spark.driver.memory": "1g",
            spark.DRIVER_OPTIONS: spark.with_class_archive(f"{spark.QUICK_START} {spark.AVRO_LIMITS}"),
            **spark.archived_class_path(),
            **self.spark_conf,
        }
        conf = spark.write_conf(self.folder / "spark-conf", defaults)
        return {
            **spark.environment(self.folder / "spark-submit"),
            "SPARK_CONF_DIR": str(conf),
            "LAKE": str(self.lake),
        }
