"""A one-node Kafka (KRaft): up in about two seconds, 300 MB."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stack import private
from stack.jars import Jars
from stack.ports import answers, free_port
from stack.processes import Server
from stack.properties import escaped

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
LOG4J = """\
rootLogger.level=WARN
rootLogger.appenderRefs=console
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1} %m%n
"""


class Broker(Server):
    """Kafka on ``bootstrap``. Its data outlives it: the same folder can be started again, on the same port.

    ``settings`` are added to, or replace, lines of ``server.properties``; ``log4j`` is added to ``log4j2.properties``.
    """

    def __init__(self, folder: Path, jars: Jars, *, settings: Mapping[str, str] | None = None, log4j: str = "") -> None:
        super().__init__(folder)
        self.jars, self.settings, self.log4j = jars, dict(settings or {}), log4j
        self.port = free_port()
        self.controller_port = free_port()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        private.make_folder(self.folder)
        properties = self.folder / "server.properties"
        private.write(properties, "".join(f"{key}={escaped(value)}\n" for key, value in self._properties().items()))
        log4j = self.folder / "log4j2.properties"
        private.write(log4j, LOG4J + self.log4j)
        java = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
        java += [f"-Dlog4j2.configurationFile={log4j}", "-cp", self.jars.classpath("broker")]
        if not (self.folder / "log" / "meta.properties").exists():
            tool = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
            self.spawn("format", tool).wait_success()
        self.spawn("broker", [java[0], "-Xms128m", "-Xmx400m", *java[1:], "kafka.Kafka", str(properties)])

    def wait_ready(self) -> None:
        broker = self.processes[-1]
        broker.wait_ready(lambda: answers(self.port))
        broker.wait_ready(self._lists_itself)

    def create_topic(self, name: str, *, partitions: int) -> None:
        """Create a topic; no error if there is one of that name."""
        from confluent_kafka.admin import NewTopic

        admin = self._admin()
        if name not in admin.list_topics(timeout=10).topics:
            admin.create_topics([NewTopic(name, partitions, 1)])[name].result()

    def _lists_itself(self) -> bool:
        from confluent_kafka import KafkaException

        try:
            return bool(self._admin().list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def _properties(self) -> dict[str, str]:
        plain, controller = self.bootstrap, f"127.0.0.1:{self.controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{plain},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{plain}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.folder / "log"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            **self.settings,
        }
