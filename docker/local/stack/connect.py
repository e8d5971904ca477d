"""A Spark Connect server with Delta and Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stack import spark
from stack.jars import Jars, pyspark_home
from stack.processes import Server, answers, free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ConnectServer(Server):
    """Spark Connect on ``url``. Ready when it has written and read a Delta table.

    Args:
        folder: For its data and log.
        jars: With ``spark``, and ``s3`` if ``s3`` is given.
        master, memory: Spark's master, and the heap of the server, which is the driver.
        s3: Where ``s3a://`` goes.
        quick_start: Start in half the time, and be slower on large data: for tests, not for measurements.
        conf: Added to, or replacing, settings.
    """

    def __init__(
        self,
        folder: Path,
        jars: Jars,
        *,
        master: str = "local[2]",
        memory: str = "2g",
        s3: spark.S3Access | None = None,
        quick_start: bool = True,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.settings = {
            **spark.settings(jars, s3=s3),
            "spark.master": master,
            "spark.driver.memory": memory,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.driver.extraJavaOptions": spark.QUICK_START if quick_start else "",
            **(conf or {}),
        }

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def start(self) -> None:
        conf = spark.write_conf(self.folder / "conf", self.settings)
        argv = [str(pyspark_home() / "bin" / "spark-submit"), "--name", "connect"]
        argv += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        self.spawn("connect", argv, env={**spark.environment(self.folder), "SPARK_CONF_DIR": str(conf)})

    def wait_ready(self) -> None:
        self.wait_reachable()
        self.warm_up()

    def wait_reachable(self) -> None:
        """Wait until it accepts connections. Its first jobs will take a while."""
        self.processes[-1].wait_ready(lambda: answers(self.port))

    def session(self) -> SparkSession:
        """A new session of its own; the caller stops it."""
        from pyspark.sql import SparkSession

        return SparkSession.builder.remote(self.url).create()

    def warm_up(self) -> None:
        """Write and read a first Delta table, so that the next caller does not wait for the classes to load."""
        table = str(self.folder / "warm-up")
        session = self.session()
        try:
            session.range(3).write.format("delta").mode("overwrite").save(table)
            session.read.format("delta").load(table).count()
        finally:
            session.stop()
