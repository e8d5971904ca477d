"""Configuration of the two ways to run Spark, and what they refuse without starting anything."""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
import time
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Connection, SparkJob
from airflow_epochs.errors import BadArgument, NotApplied, Refused
from airflow_epochs.spark import connect, connect_address
from airflow_epochs.spark.connect_caches import Caches
from airflow_epochs.spark.driver import kafka_read
from airflow_epochs.spark.runners import SparkConnect, SparkSubmit
from tests.support.environment import Environment, connected

JOB = SparkJob(kind="delta_describe", args={"target": "/t"})
SECRET_JOB = SparkJob(kind="delta_describe", args={"target": "/t"}, secrets={"kafka.sasl.jaas.config": "x"})

AZURE_KEY = "fs.azure.account.key.lake.dfs.core.windows.net"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server


def connect_to(port: int) -> Environment:
    return connected(Connection(conn_id="spark", conn_type="spark_connect", host="127.0.0.1", port=port))


def submit_to(master: str, **extra: str) -> Environment:
    return connected(Connection(conn_id="spark", conn_type="spark", host=master, extra=extra))


def test_configurations_import_no_spark_and_no_airflow() -> None:
    program = "import sys, airflow_epochs.spark.runners as r; r.SparkConnect(); r.SparkSubmit();"
    program += "print([m for m in ('pyspark', 'airflow', 'grpc') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("host", "port", "conn_type", "says"),
    [
        ("spark://master", 7077, "spark", "has the type spark, which is for spark-submit"),
        ("local[*]", None, "spark_connect", "no address of a Spark Connect server"),
        ("sc://spark:15002", 15002, "spark_connect", "no address of a Spark Connect server"),
    ],
)
def test_a_connection_that_is_none_of_spark_connect_is_refused_before_anything_is_sent(
    host: str, port: int | None, conn_type: str, says: str
) -> None:
    env = connected(Connection(conn_id="spark", conn_type=conn_type, host=host, port=port))
    with pytest.raises(Refused, match=says) as refused:
        SparkConnect("spark").runner(env).run(JOB)
    assert refused.value.code is codes.SPARK_CONNECTION


def test_settings_are_given_to_spark_as_texts() -> None:
    assert SparkSubmit(conf={"a": True, "b": 2}).conf == {"a": "true", "b": "2"}


def test_settings_that_templates_turned_into_other_types_are_given_to_spark_as_texts() -> None:
    config = SparkConnect("spark")
    config.session_conf = {"a": True, "b": 2}  # type: ignore[dict-item]
    assert {"a": "true", "b": "2"}.items() <= config.runner(connect_to(1))._conf.items()


@pytest.mark.parametrize("config", [SparkConnect(), SparkSubmit()])
def test_templated_fields_are_attributes(config: SparkConnect | SparkSubmit) -> None:
    assert all(hasattr(config, name) for name in config.template_fields)


@pytest.mark.parametrize(
    ("connection", "url"),
    [
        ({"host": "h"}, "sc://h/;user_id=airflow"),
        ({"host": "sc://h", "port": 15003}, "sc://h:15003/;user_id=airflow"),
        (
            {"host": "h", "port": 1, "login": "me@x", "password": "a;b=c", "extra": {"use_ssl": True}},
            "sc://h:1/;user_id=me%40x;token=a%3Bb%3Dc;use_ssl=True",
        ),
    ],
)
def test_the_address_is_that_of_the_spark_providers_hook(
    connection: dict[str, Any], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

    plain = Connection(conn_id="spark", conn_type="spark_connect", **connection)
    assert connect_address.connection_url(plain) == url
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK",
        json.dumps({"conn_type": "spark_connect", **connection, "login": plain.login or connect_address.DEFAULT_USER}),
    )
    assert SparkConnectHook("spark").get_connection_url() == url


def test_a_connection_for_spark_submit_whose_host_is_an_address_of_spark_connect_is_taken() -> None:
    given = Connection(conn_id="spark", conn_type="spark", host="sc://h", port=15003)
    assert connect_address.connection_url(given) == "sc://h:15003/;user_id=airflow"


def test_a_token_with_slashes_reaches_the_server_as_it_is() -> None:
    from pyspark.sql.connect.client import DefaultChannelBuilder

    plain = Connection(conn_id="spark", conn_type="spark_connect", host="h", login="me/x", password="a/b+c==")
    sent = DefaultChannelBuilder(connect_address.connection_url(plain))
    assert (sent.token, sent.userId) == ("a/b+c==", "me/x")


def test_an_address_with_a_path_or_without_a_host_is_refused() -> None:
    for host in (None, "sc://h/path"):
        with pytest.raises(Refused):
            connect_address.connection_url(Connection(conn_id="spark", conn_type="spark_connect", host=host))


def test_a_connect_server_that_is_down_is_named_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        runner, began = SparkConnect("spark").runner(connect_to(port)), time.monotonic()
        with pytest.raises(NotApplied, match=rf"127\.0\.0\.1:{port} \(connection spark\)"):
            runner.run(JOB)
        runner.stop(runner.new_session())
    assert time.monotonic() - began < 5


@pytest.mark.proof
def test_a_connect_server_that_never_answers_is_given_up_in_bounded_time(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "RELEASE_AFTER_FAILURE_S", 0.2)
    config = SparkConnect("spark", connect_timeout_s=0.5)
    began = time.monotonic()
    with pytest.raises(NotApplied, match=r"longer than 0\.5 s"):
        config.runner(connect_to(listener.getsockname()[1])).run(JOB)
    assert time.monotonic() - began < 10


@pytest.mark.proof
def test_the_client_of_an_ended_session_leaves_the_process_and_takes_the_token_along() -> None:
    def ended() -> weakref.ref[Any]:
        spark = connect._client("sc://127.0.0.1:9")  # nobody is asked before the first answer is wanted
        spark.release_session_on_close = False
        connect._release(spark, Caches(), 5.0)
        return weakref.ref(spark.client)

    client = ended()
    gc.collect()
    assert client() is None


@pytest.mark.parametrize(
    ("conf", "job", "named"),
    [
        ({}, SECRET_JOB, "kafka.sasl.jaas.config"),
        ({"fs.s3a.secret.key": "hunter2", "fs.s3a.endpoint": "x"}, JOB, "fs.s3a.secret.key"),
        ({AZURE_KEY: "hunter2"}, JOB, AZURE_KEY),
    ],
)
def test_a_job_with_secrets_reaches_no_server_on_another_machine_without_tls(
    conf: dict[str, str], job: SparkJob, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(socket, "create_connection", reached)
    env = connected(Connection(conn_id="spark", conn_type="spark_connect", host="spark.example.com"))
    with pytest.raises(Refused, match=rf"could read {named}: ") as refused:
        SparkConnect("spark", session_conf=conf).runner(env).run(job)
    assert "hunter2" not in str(refused.value)


def test_an_unknown_connection_is_refused_by_both() -> None:
    for config in (SparkConnect("nope"), SparkSubmit("nope")):
        with pytest.raises(Refused, match="'nope'"):
            config.runner(connected()).run(JOB)


def test_sessions_are_json_without_secrets_and_never_the_same() -> None:
    for runner in (SparkConnect("spark").runner(connected()), SparkSubmit("spark").runner(connected())):
        first, second = runner.new_session(), runner.new_session()
        assert json.loads(json.dumps(first)) == first
        assert first["session_id"] != second["session_id"]


def test_each_runner_stops_sessions_of_the_other_kind() -> None:
    env = connected()
    by_connect, by_submit = SparkConnect("spark").runner(env), SparkSubmit("spark").runner(env)
    code = "import sys; sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, "--session", (session := by_submit.new_session())["session_id"]],
        stdin=subprocess.PIPE,
    )
    try:
        by_connect.stop(session)
        child.wait(10)
    finally:
        assert child.stdin is not None
        child.stdin.close()
    by_submit.stop(by_connect.new_session())  # of a connection that is gone: nothing to stop
    by_submit.stop({"kind": "another"})


def test_a_session_on_a_connection_that_is_not_sparks_is_left_alone(
    listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = listener.getsockname()[:2]
    env = connected(Connection(conn_id="bank", conn_type="postgres", host=host, port=port, password="secret"))
    caplog.set_level("INFO")
    session = {"kind": "spark_connect", "conn_id": "bank", "session_id": str(uuid.uuid4())}
    for config in (SparkConnect("spark"), SparkSubmit("spark"), SparkConnect("bank")):
        config.runner(env).stop(session)
    listener.settimeout(0.1)
    with pytest.raises(TimeoutError):
        listener.accept()
    assert caplog.text.count("names connection bank as a Spark Connect server, but its type is postgres") == 3
    first = "What to do: Name a connection of type spark_connect in the DAG, if the DAG names this one."
    assert caplog.text.count(first) == 3, "a wrong connection in the DAG is nobody's forgery"


def test_cluster_mode_is_refused_where_it_cannot_work() -> None:
    cluster = {"deploy-mode": "cluster"}
    for env, config, job, said in (
        (submit_to("spark://h:7077", **cluster), SparkSubmit("spark", work_url="file:///w"), JOB, "standalone"),
        (submit_to("yarn", **cluster), SparkSubmit("spark"), JOB, "work_url"),
        (submit_to("yarn"), SparkSubmit("spark", deploy_mode="cluster"), JOB, "work_url"),
        (submit_to("yarn"), SparkSubmit("spark", conf={"spark.submit.deployMode": "cluster"}), JOB, "work_url"),
        (submit_to("yarn", **cluster), SparkSubmit("spark", work_url="hdfs://nn:8020/w"), JOB, "hdfs://nn:8020/w"),
        (submit_to("yarn", **cluster), SparkSubmit("spark", work_url="file:///w"), SECRET_JOB, "secrets_conf"),
    ):
        with pytest.raises(Refused) as refused:
            config.runner(env).run(job)
        assert said in str(refused.value)


@pytest.mark.parametrize(
    ("work_url", "flaw"),
    [
        ("file://lake/work", "names the host 'lake'"),
        ("file:///lake/w#1", "names a file with '#'"),
        ("file:///lake/w%201", "has '%20' in it"),
        ("s3://lake/w%201", "has '%20' in it"),
        ("s3a://lake/w?1", "has '?' in it"),
    ],
)
def test_a_work_url_that_driver_and_task_would_read_differently_is_refused(work_url: str, flaw: str) -> None:
    """The driver would leave its report in one folder, and the task look for it in another."""
    config = SparkSubmit("spark", deploy_mode="cluster", work_url=work_url)
    with pytest.raises(Refused, match="work_url") as refused:
        config.runner(submit_to("yarn")).run(JOB)
    assert refused.value.code is codes.SPARK_CONNECTION
    assert work_url in refused.value.what and flaw in refused.value.what
    assert "file:///folder, with three slashes and without '#'" in refused.value.remedy


@pytest.mark.parametrize("work_url", ["file:///lake/w 1", "/lake/w%201", "/lake/w#1", "s3://lake/50 %"])
def test_a_work_url_that_both_read_alike_is_taken(work_url: str) -> None:
    config = SparkSubmit("spark", deploy_mode="cluster", work_url=work_url)
    with pytest.raises(Refused, match="secrets_conf"):
        config.runner(submit_to("yarn")).run(SECRET_JOB)


def test_a_work_url_with_a_login_is_not_made_an_argument() -> None:
    config = SparkSubmit("spark", work_url="s3a://me:hunter2@lake/work")
    with pytest.raises(Refused, match=r"s3a://lake/work contains a login") as refused:
        config.runner(submit_to("local[1]")).run(JOB)
    assert "hunter2" not in str(refused.value)


def test_an_unknown_deploy_mode_is_an_error() -> None:
    with pytest.raises(BadArgument, match=r"is 'Client'. It must be 'client' or 'cluster'"):
        SparkSubmit(deploy_mode="Client")


def test_a_prefix_of_settings_that_spark_submit_ignores_is_an_error() -> None:
    with pytest.raises(BadArgument, match=r"is 'kafka.orders.'. It must begin with 'spark.'"):
        SparkSubmit(secrets_conf="kafka.orders.")


def test_a_worker_without_spark_submit_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(Refused, match="This worker has no spark-submit on its PATH"):
        SparkSubmit("spark").runner(submit_to("local[1]")).run(JOB)


@pytest.mark.parametrize(
    ("pattern", "covers"),
    [
        (kafka_read.REDACTION, True),
        (r"(?s).*kafka\.(sasl|ssl)\..*", True),
        (r"(?s)\A.*kafka\.(sasl|ssl)\..*", True),
        (r".*kafka\.(sasl|ssl)\..*", True),
        (r"kafka\.sasl\..*", False),
        (r"password=\S+", False),
        ("x", False),
        ("", False),
        (r"(?<name>kafka.*", False),
    ],
)
def test_a_redaction_pattern_covers_kafkas_credentials_or_not(pattern: str, covers: bool) -> None:
    assert kafka_read._covers(pattern) is covers


def test_our_redaction_pattern_takes_no_time_on_a_plan_of_a_megabyte() -> None:
    import re

    began = time.monotonic()
    assert re.sub(kafka_read.REDACTION, "", "project [a, b]\n" * 70_000)
    assert time.monotonic() - began < 1
