"""The servers of the local stack answer real requests and leave nothing behind."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from stack import class_archive
from stack.broker import Broker
from stack.connect import ConnectServer
from stack.jars import Jars
from stack.spark import CLASS_ARCHIVE, DEFAULTS_FILE, S3Access, home
from stack.standalone import StandaloneCluster
from stack.whole import Stack
from tests.support.processes import alive
from tests.support.spark_world import COMPILED, settings
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm


def test_records_given_to_the_broker_can_be_read_through_spark_connect(broker: Broker, connect: ConnectServer) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"t-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(100):
        producer.produce(topic, value=str(number))
    assert producer.flush(10) == 0
    session = connect.session()
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    assert session.read.format("kafka").options(**options).load().count() == 100
    session.stop()


def test_spark_writes_and_reads_delta_tables_on_s3(connect: ConnectServer, s3: S3Access) -> None:
    session = connect.session()
    table = f"s3a://{s3.bucket}/{uuid.uuid4()}"
    for _ in range(2):
        session.range(10).write.format("delta").mode("append").save(table)
    assert session.read.format("delta").load(table).count() == 20
    session.stop()


def test_spark_connect_starts_with_the_archive_of_its_classes(connect: ConnectServer) -> None:
    mapped = Path(f"/proc/{connect.processes[-1].pid}/maps").read_text()
    assert str(CLASS_ARCHIVE) in mapped


@pytest.mark.long
def test_an_application_with_settings_of_its_own_starts_with_the_archive_too(jars: Jars, tmp_path: Path) -> None:
    class_archive.make()
    log, application = tmp_path / "classes", tmp_path / "application.py"
    application.write_text(
        "from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate().range(3).count()\n"
    )
    env = Stack(tmp_path / "stack", jars).airflow.env
    conf = Path(env["SPARK_CONF_DIR"]) / DEFAULTS_FILE
    conf.write_text(conf.read_text().replace("-Xlog:cds*=off", f"-Xlog:cds*=off -Xlog:class+load:file={log}"))
    argv = [str(home() / "bin" / "spark-submit"), "--master", "local[1]", str(application)]
    # pyspark leaves variables in this process, by which an application would look for a Spark Connect server
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    subprocess.run(argv, env={**own, **env}, check=True, capture_output=True, timeout=100)
    [loaded] = [line for line in log.read_text().splitlines() if "org.apache.spark.deploy.SparkSubmit source:" in line]
    assert "shared objects file" in loaded


def test_python_workers_import_pyspark_with_its_compiled_modules(connect: ConnectServer) -> None:
    def imported(_rows: Any) -> Any:
        import pandas
        import pyspark

        yield pandas.DataFrame({"module": [pyspark.__cached__]})

    session = connect.session()
    [[module]] = session.range(1, numPartitions=1).mapInPandas(imported, "module string").collect()
    session.stop()
    assert Path(module).is_file(), "a zip has none, so that each session compiles pyspark anew"


def test_a_short_job_does_not_wait_for_a_long_one_of_another_pipeline(connect: ConnectServer, tmp_path: Path) -> None:
    long, short = connect.session(), connect.session()
    begun, answered = tmp_path / "begun", tmp_path / "answered"
    begun.mkdir()

    def slowly(rows: Any) -> Any:
        for batch in rows:
            (begun / str(batch["id"][0])).touch()
            if not answered.exists():
                time.sleep(0.2)
            yield batch

    try:
        with ThreadPoolExecutor() as pool:
            # As many tasks as keep the server's two cores busy for some seconds; the last ones need not.
            job = pool.submit(long.range(0, 40, 1, 40).mapInArrow(slowly, "id bigint").count)
            wait_until(lambda: list(begun.iterdir()), what="the long job has begun")
            assert short.range(0, 10, 1, 1).where("id % 2 = 0").count() == 5
            assert len(list(begun.iterdir())) < 40
            answered.touch()
            assert job.result() == 40
    finally:
        for session in (long, short):
            session.stop()  # or they would ask a dead server for minutes when Python ends


def test_a_session_that_was_set_up_otherwise_for_a_while_is_as_the_server_says_again(session: Any) -> None:
    def values() -> dict[str, str]:
        return {key: session.conf.get(key) for key in COMPILED}

    before = values()
    with settings(session, COMPILED):
        assert values() == COMPILED
    assert values() == before != COMPILED


@pytest.mark.parametrize("given", ["", "/;token=wrong"], ids=["no token", "a wrong token"])
def test_a_spark_connect_client_without_the_servers_token_is_refused(connect: ConnectServer, given: str) -> None:
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException
    from pyspark.sql import SparkSession

    stranger = SparkSession.builder.remote(connect.url + given).create()
    try:
        with pytest.raises(SparkConnectGrpcException, match="UNAUTHENTICATED"):
            stranger.range(1).count()
    finally:
        stranger.stop()  # or it would ask a dead server when Python ends


def test_sparks_own_ports_take_no_work_from_strangers(connect: ConnectServer) -> None:
    listening = [c.laddr.port for c in psutil.Process(connect.processes[-1].pid).net_connections("tcp") if not c.raddr]
    own = set(listening) - {connect.port}
    assert own
    for port in own:
        assert b"Sasl" in asked(port), port


def asked(port: int) -> bytes:
    """What Spark's RPC answers to a request of four bytes that come without a login."""
    body = b"work"
    message = struct.pack(">bqi", 3, 1, len(body)) + body  # RpcRequest, its number, its size
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        stranger.sendall(struct.pack(">q", 8 + len(message)) + message)
        return stranger.recv(1 << 16)


@pytest.mark.long
def test_a_standalone_cluster_has_two_workers(standalone: StandaloneCluster) -> None:
    assert standalone._alive() == 2


@pytest.mark.long
def test_a_stopped_server_leaves_no_process_behind(tmp_path: Path) -> None:
    with StandaloneCluster(tmp_path) as cluster:
        family = [psutil.Process(process.pid) for process in cluster.processes]
        family += [child for process in family for child in process.children(recursive=True)]
    assert family and not any(map(alive, family))
