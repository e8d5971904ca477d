"""A Spark Connect server with Delta and Kafka, for those who have its token."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stack import private, spark
from stack.jars import Jars
from stack.ports import answers, free_port, hold
from stack.processes import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOST = "localhost"
"""The one name to which pyspark sends a token without TLS; not 127.0.0.1."""
TOKEN = "token"
"""The file that has it."""


class ConnectServer(Server):
    """Spark Connect on ``url`` with ``token``, which outlives it. Ready when it has written and read a Delta table.

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
        self._other_address: socket.socket | None = None
        self.settings = {
            **spark.settings(jars, s3=s3),
            "spark.master": master,
            "spark.authenticate.secret": private.new_secret(),  # for executors of their own, in local-cluster mode
            "spark.driver.memory": memory,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            spark.DRIVER_OPTIONS: spark.with_class_archive(spark.QUICK_START) if quick_start else "",
            **(conf or {}),
        }

    @property
    def url(self) -> str:
        return f"sc://{HOST}:{self.port}"

    @property
    def token(self) -> str:
        return private.kept(self.folder / TOKEN)

    @property
    def where(self) -> dict[str, Any]:
        """Fields of a connection of type ``spark_connect``."""
        return {"host": HOST, "port": self.port, "password": self.token}

    def start(self) -> None:
        # localhost may mean ::1 first: nobody else may answer there, and be told the token
        self._other_address = self._other_address or hold("::1", self.port)
        # no SPARK_CONF_DIR: it would be part of the class path, and no class archive would fit
        argv = [str(spark.home() / "bin" / "spark-submit"), "--name", "connect"]
        argv += ["--properties-file", str(self._written_settings())]
        argv += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        # not in the settings, which every session can read
        given = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": self.token}
        self.spawn("connect", argv, env={**spark.environment(self.folder), **given})

    def _written_settings(self) -> Path:
        conf = self.folder / "conf"
        log4j, own = f'-Dlog4j2.configurationFile="{conf / spark.LOG4J_FILE}"', self.settings[spark.DRIVER_OPTIONS]
        spark.write_conf(conf, {**self.settings, spark.DRIVER_OPTIONS: f"{log4j} {spark.AVRO_LIMITS} {own}"})
        return conf / spark.DEFAULTS_FILE

    def stop(self) -> None:
        super().stop()
        if self._other_address:
            self._other_address.close()
            self._other_address = None

    def wait_ready(self) -> None:
        self.wait_reachable()
        self.warm_up()

    def wait_reachable(self) -> None:
        """Wait until it accepts connections. Its first jobs will take a while."""
        self.processes[-1].wait_ready(lambda: answers(self.port))

    def session(self) -> SparkSession:
        """A new session of its own; the caller stops it."""
        from pyspark.sql import SparkSession

        return SparkSession.builder.remote(f"{self.url}/;token={self.token}").create()

    def warm_up(self) -> None:
        """Write and read a first Delta table, so that the next caller does not wait for the classes to load."""
        table = str(self.folder / "warm-up")
        session = self.session()
        try:
            session.range(3).write.format("delta").mode("overwrite").save(table)
            session.read.format("delta").load(table).count()
        finally:
            session.stop()
