"""A standalone Spark cluster: one master, two workers with one core each."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from pathlib import Path

from stack import private, spark
from stack.ports import free_port
from stack.processes import Server

WORKERS = 2


class StandaloneCluster(Server):
    """The cluster at ``master``. Ready when the master counts both workers as alive.

    Jobs need its secret: ``conf`` is the SPARK_CONF_DIR that has it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.ui_port = free_port(), free_port()
        self.conf = folder / "conf"

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self) -> None:
        spark.write_defaults(self.conf, {**spark.PRIVATE, "spark.authenticate.secret": private.new_secret()})
        self._spawn("master", "master.Master", "--port", str(self.port), "--webui-port", str(self.ui_port))
        for number in range(1, WORKERS + 1):
            work = self.folder / f"worker-{number}"
            size = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(work)]
            self._spawn(f"worker-{number}", "worker.Worker", *size, self.master)

    def wait_ready(self) -> None:
        for process in self.processes:
            process.wait_ready(lambda: self._alive() == WORKERS)

    def _spawn(self, name: str, main: str, *args: str) -> None:
        argv = [str(spark.home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}"]
        env = {
            **spark.environment(self.folder),
            "SPARK_CONF_DIR": str(self.conf),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": spark.QUICK_START,
        }
        self.spawn(name, [*argv, "--host", "127.0.0.1", *args], env=env)

    def _alive(self) -> int:
        with contextlib.suppress(OSError, json.JSONDecodeError):
            url = f"http://127.0.0.1:{self.ui_port}/json/"
            with urllib.request.urlopen(url, timeout=2) as answer:
                return int(json.load(answer)["aliveworkers"])
        return 0
