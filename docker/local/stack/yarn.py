"""YARN on one node: a ResourceManager and a NodeManager, for spark-submit in cluster mode."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from stack import private
from stack.jars import Jars, pyspark_home
from stack.ports import free_port
from stack.processes import Server, StackError

MEMORY_MB = 4096
HEAP = "-Xmx192m"
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
LOG4J = """\
log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n
"""


class YarnCluster(Server):
    """The cluster whose ResourceManager answers at ``address``. Ready when it counts the node as running.

    ``conf`` is the HADOOP_CONF_DIR of those who submit. Files are those of the local disk.
    """

    def __init__(self, folder: Path, jars: Jars) -> None:
        super().__init__(folder)
        self.jars, self.conf = jars, folder / "conf"
        self.address = f"http://127.0.0.1:{free_port()}"

    def start(self) -> None:
        private.make_folder(self.conf)
        private.write(self.conf / "core-site.xml", _xml(self._core()))
        private.write(self.conf / "yarn-site.xml", _xml(self._site()))
        private.write(self.conf / "log4j.properties", LOG4J)
        self._spawn("resourcemanager", "resourcemanager.ResourceManager")
        self._spawn("nodemanager", "nodemanager.NodeManager")

    def wait_ready(self) -> None:
        for process in self.processes:
            process.wait_ready(lambda: self._nodes() == 1)

    def submit_conf(self, jars: Jars) -> dict[str, str]:
        """Spark's settings for small and quick applications, which find all jars where they lie."""
        files = [f"local:{path}" for path in jars.paths("spark")]
        return {
            "spark.jars": ",".join(files),
            "spark.driver.memory": "700m",
            "spark.executor.memory": "500m",
            "spark.driver.extraJavaOptions": QUICK_START,
            "spark.executor.extraJavaOptions": QUICK_START,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.yarn.jars": f"local:{pyspark_home() / 'jars'}/*",
            "spark.yarn.stagingDir": f"file://{self.folder / 'staging'}",
            "spark.yarn.am.waitTime": "60s",
            "spark.yarn.scheduler.heartbeat.interval-ms": "200",
            "spark.yarn.scheduler.initial-allocation.interval": "50ms",
            "spark.executor.instances": "1",
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        }

    def applications(self) -> list[dict[str, str]]:
        """What the ResourceManager lists, oldest first."""
        told = _told(f"{self.address}/ws/v1/cluster/apps")
        return sorted((told.get("apps") or {}).get("app") or [], key=lambda app: app["startedTime"])

    def _spawn(self, name: str, main: str) -> None:
        java = shutil.which("java")
        if java is None:
            raise StackError("java is not on the PATH. What to do: install Java 17 or newer.")
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util")]
        classpath = os.pathsep.join([str(self.conf), self.jars.classpath("yarn"), *_of_spark()])
        argv = [java, HEAP, *QUICK_START.split(), *opens, f"-Djava.io.tmpdir={self._made('tmp')}", "-cp", classpath]
        home = str(Path(java).resolve().parents[1])  # containers start Java from there
        self.spawn(name, [*argv, f"org.apache.hadoop.yarn.server.{main}"], env={"JAVA_HOME": home})

    def _made(self, name: str) -> Path:
        return private.make_folder(self.folder / name)

    def _core(self) -> dict[str, str]:
        return {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(self._made("hadoop"))}

    def _site(self) -> dict[str, str]:
        manager, node = "yarn.resourcemanager", "yarn.nodemanager"
        ports = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        return {
            f"{manager}.hostname": "127.0.0.1",
            f"{manager}.webapp.address": self.address.removeprefix("http://"),
            **{f"{manager}.{each}": f"127.0.0.1:{free_port()}" for each in ports},
            f"{manager}.scheduler.class": f"org.apache.hadoop.{_FIFO}",
            f"{manager}.nodemanagers.heartbeat-interval-ms": "200",
            "yarn.scheduler.minimum-allocation-mb": "64",
            f"{node}.hostname": "127.0.0.1",
            **{f"{node}.{each}": f"127.0.0.1:{free_port()}" for each in ("address", "localizer.address")},
            f"{node}.webapp.address": f"127.0.0.1:{free_port()}",
            f"{node}.local-dirs": str(self._made("local")),
            f"{node}.log-dirs": str(self._made("containers")),
            f"{node}.resource.memory-mb": str(MEMORY_MB),
            f"{node}.resource.cpu-vcores": "8",
            f"{node}.vmem-check-enabled": "false",
            f"{node}.pmem-check-enabled": "false",
            f"{node}.disk-health-checker.enable": "false",
        }

    def _nodes(self) -> int:
        with contextlib.suppress(OSError, json.JSONDecodeError):
            told = _told(f"{self.address}/ws/v1/cluster/metrics")
            return int(told["clusterMetrics"]["activeNodes"])
        return 0


def _of_spark() -> list[str]:
    """What the jar of YARN's servers needs of the jars that pyspark has: Hadoop's client, and logging."""
    names = ("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "commons-logging", "log4j", "jcl-over")
    return [str(jar) for name in names for jar in sorted((pyspark_home() / "jars").glob(f"{name}*.jar"))]


_FIFO = "yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"


def _told(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def _xml(properties: Mapping[str, str]) -> str:
    lines = [
        f"  <property><name>{name}</name><value>{escape(value)}</value></property>\n"
        for name, value in properties.items()
    ]
    return f"<configuration>\n{''.join(lines)}</configuration>\n"
