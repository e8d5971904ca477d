"""Staging through a real Spark Connect server, from a real broker, into real Delta tables."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_epochs import codes
from airflow_epochs.contracts import Connection, SparkJob
from airflow_epochs.errors import EpochError, NotApplied, Refused
from airflow_epochs.model import OffsetRange
from airflow_epochs.sources.kafka.source import KafkaSource
from airflow_epochs.spark.connect import ConnectRunner
from airflow_epochs.spark.driver import kafka_read
from airflow_epochs.spark.driver.wire import as_json
from airflow_epochs.spark.kafka_credentials import properties
from airflow_epochs.spark.runners import SparkConnect
from airflow_epochs.transforms import parse_avro
from stack.connect import ConnectServer
from stack.jars import Jars
from stack.ports import answers, free_port
from stack.spark import QUICK_START, with_class_archive
from tests.support.delta_world import commit_plan
from tests.support.environment import Environment, connected
from tests.support.kafka_secured import PLAIN_PASSWORD, Secured, secured_topic
from tests.support.spark_world import (
    APPS,
    COMPILED,
    FEW_ROWS,
    MANY,
    SLOW,
    Topic,
    batch_of,
    hasty,
    stage_job,
    staged_rows,
    tells_of_unreached_brokers,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm

ORDERS = f"{APPS / 'orders.py'}:orders"
READER = "KafkaBatchReaderFactory: Creating Kafka reader"


def env_of(server: ConnectServer) -> Environment:
    return connected(Connection(conn_id="spark", conn_type="spark_connect", **server.where))


LOG4J = """\
rootLogger.level=INFO
rootLogger.appenderRefs=console
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%p %c{1}: %m%n
"""


@pytest.fixture(scope="module")
def connect(servers: Path, jars: Jars) -> Iterator[ConnectServer]:
    """A server that tells all it does: what Spark ran, and what an event log shows, is what is tested here."""
    folder = servers / "telling"
    events, log4j = folder / "events", folder / "log4j2.properties"
    events.mkdir(parents=True)
    log4j.write_text(LOG4J)
    told = f"-Dlog4j2.configurationFile={log4j} -Dderby.system.home={folder}"
    conf = {
        **FEW_ROWS,
        **COMPILED,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.driver.extraJavaOptions": with_class_archive(f"{QUICK_START} {told}"),
    }
    with ConnectServer(folder, jars, memory="1g", conf=conf) as server:
        yield server


@pytest.fixture(scope="module")
def env(connect: ConnectServer) -> Environment:
    return env_of(connect)


@pytest.fixture
def runner(env: Environment) -> ConnectRunner:
    return SparkConnect("spark").runner(env)


def app(folder: Path, body: str) -> str:
    """A transform file with one function ``f``."""
    path = folder / "app.py"
    path.write_text("from pyspark.sql import functions as F\n" + dedent(body))
    return f"{path}:f"


def test_two_sinks_are_staged_from_one_read_of_kafka(
    connect: ConnectServer, runner: ConnectRunner, numbers: Topic, tmp_path: Path
) -> None:
    places = {"orders": tmp_path / "orders", "rejected": tmp_path / "rejected"}
    log = connect.processes[0].log
    before = log.read_text().count(READER)
    report = runner.run(stage_job(numbers, ORDERS, places))
    assert log.read_text().count(READER) - before == len(numbers.ends)
    assert report["metrics"]["rows_in"] == 100
    assert report["metrics"]["max_timestamp"].endswith("+00:00")
    claim = report["sinks"]["orders"]
    assert (claim["problem"], Path(claim["place"]).is_relative_to(places["orders"])) == (None, True)
    assert report["warnings"] == []
    assert {(row["partition"], row["offset"]) for place in places.values() for row in staged_rows(place)} == {
        (partition, offset) for partition in (0, 1) for offset in range(50)
    }
    assert {row["epoch"] for row in staged_rows(places["rejected"])} == {3}


@pytest.mark.parametrize("token", [None, "wrong"])
def test_a_server_that_wants_another_token_is_refused_and_the_connections_field_is_named(
    connect: ConnectServer, numbers: Topic, tmp_path: Path, token: str | None
) -> None:
    server = Connection(conn_id="spark", conn_type="spark_connect", **{**connect.where, "password": token})
    with pytest.raises(Refused, match="does not accept the task's token") as refused:
        SparkConnect("spark").runner(connected(server)).run(stage_job(numbers, ORDERS, {"orders": tmp_path / "orders"}))
    assert "the password of the connection of type spark_connect" in refused.value.remedy
    assert connect.token not in str(refused.value)


def test_udfs_use_the_modules_beside_their_file(runner: ConnectRunner, numbers: Topic, tmp_path: Path) -> None:
    places = {"orders": tmp_path / "orders", "rejected": tmp_path / "rejected"}
    runner.run(stage_job(numbers, ORDERS, places))
    assert {row["amount"] for row in staged_rows(places["orders"]) if row["partition"] == 1 and row["offset"] == 5} == {
        13
    }
    assert "prices" not in sys.modules


@pytest.mark.few(1)
@pytest.mark.parametrize("measured", [True, False], ids=["measured", "not measured"])
def test_a_batch_used_twice_by_one_sink_is_read_once(
    connect: ConnectServer, runner: ConnectRunner, numbers: Topic, tmp_path: Path, measured: bool
) -> None:
    twice = app(tmp_path, "def f(batch, epoch): return batch.select('offset').union(batch.select('offset'))")
    before = connect.processes[0].log.read_text().count(READER)
    report = runner.run(stage_job(numbers, twice, {"one": tmp_path / "t"}, measure_input=measured))
    assert connect.processes[0].log.read_text().count(READER) - before == len(numbers.ends)
    assert len(staged_rows(tmp_path / "t")) == 200
    assert (report["metrics"] or {}).get("rows_in") == (100 if measured else None)


def test_input_that_is_not_to_be_measured_flows_through_uncounted(
    runner: ConnectRunner, numbers: Topic, tmp_path: Path
) -> None:
    path = app(tmp_path, "def f(batch, epoch): return batch.select('offset')")
    report = runner.run(stage_job(numbers, path, {"one": tmp_path / "t"}, measure_input=False))
    assert len(staged_rows(tmp_path / "t")) == 100
    assert (set(report["metrics"].values()), report["warnings"]) == ({None}, [])


def test_a_transform_that_ignores_the_batch_neither_hangs_nor_passes_in_silence(
    runner: ConnectRunner, numbers: Topic, tmp_path: Path
) -> None:
    ignoring = app(tmp_path, "def f(batch, epoch): return batch.sparkSession.range(7)")
    report = runner.run(stage_job(numbers, ignoring, {"one": tmp_path / "t"}))
    assert set(report["metrics"].values()) == {None}
    assert "did not use the batch" in report["warnings"][0]
    again = runner.run(stage_job(numbers, ignoring, {"one": tmp_path / "again"}, again=True))
    assert again["warnings"] == [], "the rows of other sinks are not staged then: they may be made of the batch"


def test_a_plan_that_is_not_deterministic_is_warned_about(
    runner: ConnectRunner, numbers: Topic, tmp_path: Path
) -> None:
    body = """
        import random
        def drawn(n): return random.random()
        unsteady = F.udf(drawn, "double").asNondeterministic()
        steady = F.udf(lambda n: n, "long")
        def f(batch, epoch):
            wild = batch.select(F.rand(), F.uuid(), F.current_timestamp(), F.expr("now() as n"),
                                unsteady("offset").alias("u"), "timestamp").toDF(*"abcdef")
            seeded = F.rand(epoch.seed).alias("r")
            calm = batch.select("timestamp", F.lit(epoch.now).alias("now"), seeded, steady("offset").alias("s"))
            return {"wild": wild, "calm": calm.sample(fraction=0.5, seed=epoch.seed).where("r < 2")}
    """
    places = {"wild": tmp_path / "wild", "calm": tmp_path / "calm"}
    warnings = runner.run(stage_job(numbers, app(tmp_path, body), places))["warnings"]
    assert len(warnings) == 1, warnings
    (warning,) = warnings
    assert "sink 'wild'" in warning
    assert "(current_timestamp, drawn, now, rand, uuid)" in warning
    assert "epoch.now" in warning
    assert "epoch.seed" in warning


def test_kafka_is_read_by_the_fast_source_and_settings_can_be_overridden(
    env: Environment, numbers: Topic, tmp_path: Path
) -> None:
    body = """
        def f(batch, epoch):
            conf = batch.sparkSession.conf
            settings = [conf.get(key) for key in ("spark.sql.sources.useV1SourceList", "spark.sql.session.timeZone")]
            return batch.limit(1).select(F.lit(";".join(settings)).alias("settings"))
    """
    settings = {"spark.sql.session.timeZone": "Asia/Tokyo"}
    for number, (conf, expected) in enumerate(
        [
            (settings, "avro,csv,json,orc,parquet,text;Asia/Tokyo"),
            ({**settings, "spark.sql.sources.useV1SourceList": "kafka"}, "kafka;Asia/Tokyo"),
        ]
    ):
        place = tmp_path / f"t{number}"
        SparkConnect("spark", session_conf=conf).runner(env).run(
            stage_job(numbers, app(tmp_path, body), {"one": place})
        )
        assert staged_rows(place) == [{"settings": expected}]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def f(batch, epoch): return None", "returned None"),
        ("def f(batch, epoch): return {'one': 5}", "type int for sink 'one'"),
        ("def f(batch, epoch): return {'two': batch}", "no DataFrame for sink 'one'; a DataFrame for 'two'"),
        ("def f(batch, epoch): return batch.select('nothing')", "nothing"),
        ("def f(batch, epoch): return batch.where('no such syntax')", "syntax"),
        ("def f(batch, epoch):\n    factor = 1 / 0\n", "factor = 1 / 0"),
        ("def f(batch, epoch): raise SystemExit(0)", "SystemExit: 0"),
        (
            "def f(batch, epoch): return batch.sparkSession.readStream.format('rate').load()",
            "a streaming DataFrame",
        ),
    ],
)
def test_a_wrong_transform_is_refused_with_its_reason_and_writes_nothing(
    runner: ConnectRunner, numbers: Topic, tmp_path: Path, body: str, said: str
) -> None:
    with pytest.raises(Refused) as refused:
        runner.run(stage_job(numbers, app(tmp_path, body), {"one": tmp_path / "t"}))
    assert said in refused.value.what
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_udf_that_raises_shows_the_users_lines_and_no_credentials(
    runner: ConnectRunner, numbers: Topic, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
        @F.udf("int")
        def tax(n):
            raise ValueError("no tax for hunter2-secret")
        def f(batch, epoch): return batch.select(tax("offset").alias("t"))
    """
    secrets = {"kafka.ssl.keystore.password": "hunter2-secret"}
    with pytest.raises(Refused, match="EPOCHS-UDF-RAISED") as failed:
        runner.run(stage_job(numbers, app(tmp_path, body), {"one": tmp_path / "t"}, secrets=secrets))
    assert "ValueError: no tax for ******" in failed.value.what
    assert "app.py" in failed.value.what
    assert "hunter2" not in str(failed.value)
    assert failed.value.__cause__ is None
    assert "hunter2" not in "".join(capfd.readouterr())


def test_the_cause_that_connect_does_not_tell_stands_where_the_error_says(
    connect: ConnectServer, runner: ConnectRunner, numbers: Topic, tmp_path: Path
) -> None:
    body = """
        import os
        @F.udf("int")
        def tax(n): os._exit(7)
        def f(batch, epoch): return batch.select(tax("offset").alias("t"))
    """
    with pytest.raises(NotApplied, match="failed, and Spark Connect does not tell the cause") as failed:
        runner.run(stage_job(numbers, app(tmp_path, body), {"one": tmp_path / "t"}))
    told = connect.processes[0].log.read_text(errors="replace")
    *_, lost = (line for line in told.splitlines() if line.startswith("WARN ") and "Lost task" in line)
    assert "Look for 'Lost task' in the log" in failed.value.remedy
    assert all("Python worker exited unexpectedly" in text for text in (lost, failed.value.remedy))


def test_no_credential_gets_into_the_servers_log_or_event_log(
    connect: ConnectServer, runner: ConnectRunner, numbers: Topic, tmp_path: Path
) -> None:
    secrets = {"kafka.ssl.keystore.password": "keystore-word", "kafka.sasl.jaas.config": 'x password="jaas-word";'}
    transform = app(tmp_path, "def f(batch, epoch): return batch")
    session = runner.new_session()
    runner.run(stage_job(numbers, transform, {"one": tmp_path / "t"}, secrets=secrets), session)
    wait_until(lambda: closed(session) in events_of(connect), 20)
    assert events_of(connect).count(session["session_id"]) > 3
    assert "-word" not in events_of(connect) + connect.processes[0].log.read_text(errors="replace")


def events_of(connect: ConnectServer) -> str:
    return "".join(path.read_text(errors="replace") for path in (connect.folder / "events").rglob("events_*"))


def closed(session: dict[str, str]) -> str:
    event = "org.apache.spark.sql.connect.service.SparkListenerConnectSessionClosed"
    return f'"Event":"{event}","sessionId":"{session["session_id"]}"'


READS_FOR_HOURS = f"""
    from pathlib import Path
    def f(batch, epoch):
        Path({{flag!r}}).touch()
        return batch.select("offset").crossJoin(batch.sparkSession.sql("{MANY}"))
"""
KILLED = """
import pickle, sys
sys.path[:0] = pickle.load(sys.stdin.buffer)
from airflow_epochs.spark.kafka_credentials import properties
from airflow_epochs.spark.runners import SparkConnect
from tests.support.kafka_secured import PLAIN_PASSWORD, Secured, secured_topic
env, job, session = pickle.load(sys.stdin.buffer)
SparkConnect("spark").runner(env).run(job, session)
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("by", ["a file of the server", "value"])
def test_a_killed_clients_credentials_are_in_no_file_of_the_server_once_the_next_try_has_stopped_its_session(
    by: str, connect: ConnectServer, env: Environment, secured: Secured, tmp_path: Path
) -> None:
    key = secured.client.key_pem()
    kafka = secured.env(**{"ssl.certificate.pem": secured.client.certificate_pem, "ssl.key.pem": key})
    with secured_topic(secured, 3) as topic:
        source = KafkaSource([topic.name], max_wait=0)
        read = source.spark_read({topic.name: (OffsetRange(0, 0, 3),)}, kafka)
    assert read.secrets.keys() == {"kafka.sasl.jaas.config", "kafka.ssl.keystore.key"}
    if by != "value":
        env = connected(
            replace(env.connection("spark"), extra={"kafka_credentials_file": str(tmp_path / "kafka.properties")})
        )
        (tmp_path / "kafka.properties").write_text(properties(read.secrets_of, read.secrets))
    runner, flag = SparkConnect("spark").runner(env), tmp_path / "started"
    session = runner.new_session()
    slow = app(tmp_path, READS_FOR_HOURS.format(flag=str(flag)))
    killed_when(
        lambda: flag.exists() and busy(connect, session),
        env,
        stage_job(
            None, slow, {"one": tmp_path / "t"}, read=read.options, secrets=read.secrets, secrets_of=read.secrets_of
        ),
        session,
    )
    runner.stop(session)
    wait_until(lambda: not busy(connect, session) and closed(session) in events_of(connect), 20)
    texts = {str(path): path.read_bytes() for path in connect.folder.rglob("*") if path.is_file()}
    assert sum(session["session_id"].encode() in text for text in texts.values()) >= 2  # the log and the event log
    canaries = [PLAIN_PASSWORD.encode(), *(line.encode() for line in key.splitlines()[1:-2])]
    assert not {name for name, text in texts.items() if any(canary in text for canary in canaries)}


def killed_when(condition: Callable[[], bool], env: Environment, job: SparkJob, session: dict[str, str]) -> None:
    """Run the job in a process of its own, which is killed in the midst of it."""
    client = subprocess.Popen([sys.executable, "-c", KILLED], stdin=subprocess.PIPE)
    try:
        assert client.stdin
        client.stdin.write(pickle.dumps(sys.path) + pickle.dumps((env, job, session)))
        client.stdin.close()
        wait_until(condition, 60)
    finally:
        client.kill()
        client.wait()


def test_an_error_with_credentials_is_not_written_to_standard_error(
    runner: ConnectRunner, numbers: Topic, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = "def f(batch, epoch): return batch.select(F.lit('hunter2-secret').cast('int').alias('t'))"
    secrets = {"kafka.ssl.keystore.password": "hunter2-secret"}
    with pytest.raises(Refused, match=r"EPOCHS-SPARK-VALUE-INVALID(.|\n)*CAST_INVALID_INPUT(.|\n)*\*\*\*\*\*\*"):
        runner.run(stage_job(numbers, app(tmp_path, body), {"one": tmp_path / "t"}, secrets=secrets))
    assert "hunter2" not in "".join(capfd.readouterr())


def test_a_static_setting_is_refused_by_its_name(env: Environment, numbers: Topic, tmp_path: Path) -> None:
    runner = SparkConnect("spark", session_conf={"spark.sql.warehouse.dir": "/x"}).runner(env)
    with pytest.raises(Refused, match=r"spark\.sql\.warehouse\.dir=/x"):
        runner.run(stage_job(numbers, ORDERS, {"one": tmp_path / "t"}))


def test_a_failing_sink_interrupts_the_others(runner: ConnectRunner, numbers: Topic, tmp_path: Path) -> None:
    body = f"""
        broken = F.udf(lambda n: 1 // 0, "int")
        def f(batch, epoch):
            many = "{MANY}"
            return {{"slow": batch.sparkSession.sql(many), "broken": batch.select(broken("offset").alias("b"))}}
    """
    began = time.monotonic()
    with pytest.raises(Refused, match="raised ZeroDivisionError"):
        runner.run(stage_job(numbers, app(tmp_path, body), {"slow": tmp_path / "s", "broken": tmp_path / "b"}))
    assert time.monotonic() - began < 60  # alone, the slow one takes hours


def test_a_session_is_released_after_its_job(runner: ConnectRunner, numbers: Topic, tmp_path: Path) -> None:
    session = runner.new_session()
    job = stage_job(numbers, app(tmp_path, "def f(batch, epoch): return batch"), {"one": tmp_path / "t"})
    runner.run(job, session)
    with pytest.raises(NotApplied, match="SESSION_CLOSED"):
        runner.run(job, session)


def test_a_killed_clients_work_is_stopped_by_its_session_id(
    connect: ConnectServer, env: Environment, runner: ConnectRunner, numbers: Topic, tmp_path: Path
) -> None:
    flag, table, session = tmp_path / "started", tmp_path / "t", runner.new_session()
    slow = app(tmp_path, SLOW.format(flag=str(flag)))
    job = stage_job(numbers, slow, {"one": table})
    killed_when(lambda: flag.exists() and busy(connect, session), env, job, session)
    wait_until(lambda: busy(connect, session), 20)  # it goes on without its client
    runner.stop(session)
    wait_until(lambda: not busy(connect, session), 20)
    assert not list(table.rglob("_delta_log/*.json"))
    runner.stop(session)  # a repeat is fine


def test_cancel_ends_the_running_job_at_once(
    connect: ConnectServer, runner: ConnectRunner, numbers: Topic, tmp_path: Path
) -> None:
    flag, session = tmp_path / "started", runner.new_session()
    failures: list[EpochError] = []

    def work() -> None:
        try:
            slow = app(tmp_path, SLOW.format(flag=str(flag)))
            runner.run(stage_job(numbers, slow, {"one": tmp_path / "t"}), session)
        except EpochError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: flag.exists() and busy(connect, session), 30)
    runner.cancel()
    thread.join(20)
    assert [type(failure) for failure in failures] == [NotApplied]


def busy(connect: ConnectServer, session: dict[str, str]) -> bool:
    """Whether Spark runs a job of the session, by the server's log."""
    text = connect.processes[0].log.read_text()
    mine = rf'Spark Connect - session_id: "{session["session_id"]}"'
    started = re.findall(rf"Got (?:map stage )?job (\d+) \({mine}", text)
    return any(not re.search(rf"Job {job} (?:finished:|cancelled)", text) for job in started)


@pytest.mark.long
@pytest.mark.filterwarnings(r"ignore:\[RETRIES_EXCEEDED\]")
def test_a_server_that_dies_under_a_transform_is_not_taken_for_the_transforms_error_and_a_retry_helps(
    jars: Jars, numbers: Topic, tmp_path: Path
) -> None:
    with ConnectServer(tmp_path / "server", jars, memory="700m", conf=FEW_ROWS) as server:
        dies = app(
            tmp_path,
            f"""
            import os, signal
            from pathlib import Path

            def f(batch, epoch):
                if not Path("{tmp_path}/died").exists():
                    Path("{tmp_path}/died").touch()
                    os.killpg({server.processes[-1].pid}, signal.SIGKILL)
                return batch.select(*batch.columns)
            """,
        )
        runner = SparkConnect("spark").runner(env_of(server))
        job = stage_job(numbers, dies, {"orders": tmp_path / "orders"})
        with pytest.raises(NotApplied) as lost:
            runner.run(job)
        assert lost.value.code is codes.SPARK_UNREACHABLE
        server.start()
        server.wait_ready()
        assert runner.run(job)["metrics"]["rows_in"] == 100


class BareServer(ConnectServer):
    """A Spark Connect server as pip installs it: no Delta, no Kafka, no redaction."""

    def wait_ready(self) -> None:
        self.processes[-1].wait_ready(lambda: answers(self.port))


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("broker.invalid", marks=pytest.mark.long)])
def test_brokers_that_spark_does_not_reach_are_told_with_their_connection(
    runner: ConnectRunner, numbers: Topic, tmp_path: Path, host: str
) -> None:
    """Airflow's machines may reach them: the connection is right for those."""
    servers = f"{host}:{free_port()}"
    places = {"orders": tmp_path / "o", "rejected": tmp_path / "r"}
    job = stage_job(numbers, ORDERS, places, read=hasty(numbers.read(), servers), connection="kafka_default")
    with pytest.raises(EpochError) as failed:
        runner.run(job)
    assert tells_of_unreached_brokers(failed.value, servers)
    runner.run(stage_job(numbers, ORDERS, places, connection="kafka_default"))  # now it does
    assert sum(len(staged_rows(place)) for place in places.values()) == 100


@pytest.fixture(scope="module")
def bare_server(servers: Path, jars: Jars) -> Iterator[BareServer]:
    unset = ("spark.jars", "spark.sql.extensions", "spark.redaction.string.regex")
    server = BareServer(servers / "bare", jars, memory="600m")
    for key in (*unset, "spark.sql.catalog.spark_catalog"):
        server.settings.pop(key)
    with server:
        yield server


@pytest.fixture
def bare(bare_server: BareServer) -> Environment:
    return env_of(bare_server)


def test_a_server_that_would_log_credentials_is_refused(bare: Environment, numbers: Topic, tmp_path: Path) -> None:
    job = stage_job(numbers, ORDERS, {"one": tmp_path / "t"}, secrets={"kafka.sasl.jaas.config": "x y z"})
    with pytest.raises(Refused, match=r"spark\.redaction\.string\.regex") as refused:
        SparkConnect("spark").runner(bare).run(job)
    for way in ("kafka_credentials_file", kafka_read.REDACTION, f"logger.plans.name={kafka_read.LOGGER}"):
        assert way in refused.value.remedy


def test_a_session_setting_that_would_log_credentials_is_refused(
    env: Environment, numbers: Topic, tmp_path: Path
) -> None:
    runner = SparkConnect("spark", session_conf={"spark.sql.redaction.string.regex": "x"}).runner(env)
    job = stage_job(numbers, ORDERS, {"one": tmp_path / "t"}, secrets={"kafka.sasl.jaas.config": "x y z"})
    with pytest.raises(Refused, match=r"spark\.sql\.redaction\.string\.regex"):
        runner.run(job)


def test_a_server_without_the_kafka_jar_is_refused_by_the_jars_name(
    bare: Environment, numbers: Topic, tmp_path: Path
) -> None:
    transform = app(tmp_path, "def f(batch, epoch): return batch")
    with pytest.raises(Refused) as refused:
        SparkConnect("spark").runner(bare).run(stage_job(numbers, transform, {"one": tmp_path / "t"}))
    assert "spark-sql-kafka-0-10" in refused.value.remedy


def test_a_server_without_the_delta_jar_is_refused_by_the_jars_name(bare: Environment) -> None:
    plan = commit_plan(target="/nowhere/t", place="/nowhere/p")
    job = SparkJob(kind=plan.JOB, args=as_json(plan))
    with pytest.raises(Refused) as refused:
        SparkConnect("spark").runner(bare).run(job)
    assert "io.delta:delta-spark" in refused.value.remedy


@pytest.mark.long
def test_a_server_without_the_avro_jar_is_refused_by_the_jars_name(bare_server: BareServer) -> None:
    session = bare_server.session()
    schema = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}'
    with pytest.raises(Refused) as refused:
        parse_avro(batch_of(session, [b""]), schema, schemas={1: schema})
    session.stop()
    assert "spark-avro_2.13" in refused.value.remedy


READS_A_TABLE_AND_A_FILE = """
    def f(batch, epoch):
        spark = batch.sparkSession
        table = spark.read.format("delta").load({table!r}).cache()
        file = spark.read.csv({file!r}, schema="y int").persist()
        rows = table.crossJoin(file).cache()
        rows.count()  # fills all three
        return {{"one": rows}}
"""


def test_what_a_transform_caches_is_gone_at_its_end_so_the_next_epoch_and_other_pipelines_see_what_is_there(
    connect: ConnectServer, runner: ConnectRunner, numbers: Topic, tmp_path: Path
) -> None:
    table, file = tmp_path / "table", tmp_path / "file.csv"
    body = READS_A_TABLE_AND_A_FILE.format(table=f"file://{table}", file=f"file://{file}")
    for number in (1, 2):
        write_deltalake(str(table), pa.table({"x": [number]}), mode="overwrite")
        file.write_text(f"{number}\n")
        runner.run(stage_job(numbers, app(tmp_path, body), {"one": tmp_path / f"t{number}"}))
        assert staged_rows(tmp_path / f"t{number}") == [{"x": number, "y": number}]
    with pytest.raises(Refused, match="ZeroDivisionError"):
        raising = app(tmp_path, body.replace("return", "1 / 0, "))
        runner.run(stage_job(numbers, raising, {"one": tmp_path / "t"}))
    write_deltalake(str(table), pa.table({"x": [3]}), mode="overwrite")
    other = connect.session()
    try:
        assert other.read.format("delta").load(f"file://{table}").collect()[0].x == 3
    finally:
        other.stop()
