"""Staging by real spark-submits: local[2], and a standalone cluster with two workers."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_epochs import codes
from airflow_epochs.contracts import Connection, SparkJob
from airflow_epochs.errors import EpochError, NotApplied, Refused
from airflow_epochs.spark.driver import kafka_read
from airflow_epochs.spark.runners import SparkSubmit
from airflow_epochs.spark.submit import SubmitRunner
from stack.jars import Jars
from stack.ports import free_port
from stack.spark import QUICK_START, with_class_archive
from stack.standalone import StandaloneCluster
from tests.support import spark_world
from tests.support.environment import connected
from tests.support.protobuf_world import files
from tests.support.spark_world import (
    APPS,
    SLOW,
    Topic,
    hasty,
    stage_job,
    staged_rows,
    tells_of_unreached_brokers,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(240)]

ORDERS = f"{APPS / 'orders.py'}:orders"
PASSWORD = "hunter2-secret"


@pytest.fixture(scope="module")
def settings(jars: Jars) -> dict[str, str]:
    return {
        "spark.jars": ",".join(str(path) for path in jars.paths("spark")),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        **spark_world.FEW_ROWS,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "700m",
        "spark.driver.extraJavaOptions": with_class_archive(QUICK_START),
        "spark.executor.extraJavaOptions": QUICK_START,
    }


@pytest.fixture(autouse=True)
def _spark_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "spark"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


def runner_on(
    master: str, monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], work_url: str | None = None
) -> SubmitRunner:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": master}))
    env = connected(Connection(conn_id="spark", conn_type="spark", host=master))
    return SparkSubmit("spark", conf=conf, work_url=work_url).runner(env)


class Watcher:
    """Collects the arguments of every process of a session while a test runs."""

    def __init__(self, token: str) -> None:
        self.token, self.seen, self.done = token, set[str](), threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watcher:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.done.wait(0.05):
            self.seen.update(" ".join(process.info["cmdline"]) for process in with_token(self.token))


def with_token(token: str) -> Iterator[psutil.Process]:
    """Processes with ``token`` in an argument. ``info`` has the arguments: a process may end before a second look."""
    for process in psutil.process_iter(["cmdline"]):
        if any(token in argument for argument in process.info["cmdline"] or []):
            yield process


def test_an_epoch_is_staged_by_spark_submit_and_no_credential_shows(
    numbers: Topic, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    conf = {**settings, "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{events}"}
    conf["spark.eventLog.compress"] = "false"
    runner = runner_on("local[2]", monkeypatch, conf, work_url=f"file://{tmp_path / 'work'}")
    session = runner.new_session()
    tables = {"orders": tmp_path / "orders", "rejected": tmp_path / "rejected"}
    job = stage_job(numbers, ORDERS, tables, secrets={"kafka.ssl.keystore.password": PASSWORD})
    with Watcher(session["session_id"]) as watcher:
        report = runner.run(job, session)
    assert report["metrics"]["rows_in"] == 100
    assert len(staged_rows(tables["orders"])) == 90
    assert 13 in {row["amount"] for row in staged_rows(tables["orders"])}
    assert any("airflow_epochs_main.py" in arguments for arguments in watcher.seen)
    assert not [arguments for arguments in watcher.seen if PASSWORD in arguments]
    told = "".join(path.read_text(errors="replace") for path in events.rglob("*") if path.is_file())
    assert "SparkListenerSQLExecutionStart" in told
    assert json.dumps({kafka_read.REDACTION_CONF: kafka_read.REDACTION})[1:-1].replace(": ", ":") in told
    assert PASSWORD not in told
    assert list((tmp_path / "work").iterdir()) == []
    assert list(with_token(session["session_id"])) == []


@pytest.mark.long
def test_what_spark_submit_starts_parses_json_and_protobuf_in_its_workers_and_avro(
    numbers: Topic,
    settings: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "app.py"
    path.write_text(
        dedent("""
        from airflow_epochs.transforms import parse_avro, parse_json, parse_protobuf
        from pyspark.sql import functions as F

        SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "digits", "type": "string"}]}'
        FILES = %r

        def f(batch, epoch):
            text = F.concat(F.lit('{"n":'), "value", F.lit("}"))
            parsed = parse_json(batch.withColumn("value", text), "n bigint", engine="auto")
            size = F.unhex(F.hex(2 * F.length("value")))  # of a text, as Avro writes it: zigzag
            framed = F.concat(F.lit(b"\\0\\0\\0\\0\\1"), size, "value")
            avro = parse_avro(batch.withColumn("value", framed), SCHEMA, schemas={1: SCHEMA})
            size = F.unhex(F.lpad(F.hex(F.length("value")), 2, "0"))
            framed = F.concat(F.lit(b"\\0\\0\\0\\0\\1\\0\\x0a"), size, "value")
            protobuf = parse_protobuf(batch.withColumn("value", framed), "shop.R", FILES, schemas={1: FILES})
            return {"rows": parsed.rows, "corrupt": parsed.corrupt, "avro": avro.rows, "protobuf": protobuf.rows}
        """)
        % files("message R { string digits = 1; }")
    )
    places = {name: tmp_path / name for name in ("rows", "corrupt", "avro", "protobuf")}
    monkeypatch.setattr(SparkSubmitHook, "_log", logging.getLogger("hook"))
    with caplog.at_level(logging.INFO):
        runner_on("local[2]", monkeypatch, settings).run(stage_job(numbers, f"{path}:f", places))
    assert "parse_json: the engine is arrow: engine='auto'" in caplog.text
    digits = Counter(str(n) if n % 10 else "bad" for n in range(100))
    for name in ("avro", "protobuf"):
        assert Counter(row["digits"] for row in staged_rows(places[name])) == digits
    assert sorted(row["n"] for row in staged_rows(places["rows"])) == [n for n in range(100) if n % 10]
    assert {row["raw"] for row in staged_rows(places["corrupt"])} == {b'{"n":bad}'}


@pytest.mark.long
def test_an_error_of_the_transform_comes_back_as_refused_with_the_users_lines(
    numbers: Topic, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "app.py"
    path.write_text("def f(batch, epoch):\n    factor = 1 / 0\n")
    runner = runner_on("local[2]", monkeypatch, settings)
    with pytest.raises(Refused) as refused:
        runner.run(stage_job(numbers, f"{path}:f", {"one": tmp_path / "t"}))
    assert "factor = 1 / 0" in refused.value.what
    assert "clear the failed task" in refused.value.remedy


@pytest.mark.long
def test_brokers_that_spark_does_not_reach_are_told_with_their_connection(
    numbers: Topic, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    servers = f"127.0.0.1:{free_port()}"
    job = stage_job(
        numbers,
        ORDERS,
        {"orders": tmp_path / "o", "rejected": tmp_path / "r"},
        read=hasty(numbers.read(), servers),
        connection="kafka_default",
    )
    with pytest.raises(EpochError) as failed:
        runner_on("local[2]", monkeypatch, settings).run(job)
    assert tells_of_unreached_brokers(failed.value, servers)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("master", "says"), [("lcoal[2]", "Master must either be yarn or"), ("local[x]", "Could not parse Master URL")]
)
def test_a_master_that_spark_does_not_know_is_refused_by_the_name_of_the_connection(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, master: str, says: str
) -> None:
    job = SparkJob(kind="delta_describe", args={"target": str(tmp_path)})
    with pytest.raises(Refused) as refused:
        runner_on(master, monkeypatch, settings).run(job)
    assert refused.value.code is codes.SPARK_CONNECTION
    told = f"Spark does not take the master of connection spark, whose host is {master!r}: {says}"
    assert refused.value.what.startswith(told)


@pytest.mark.long
def test_native_code_that_crashes_in_a_worker_is_told_with_the_lines_of_python_once_the_remedy_was_followed(
    numbers: Topic, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "app.py"
    path.write_text(
        "import ctypes\n"
        "from pyspark.sql import functions as F\n"
        "@F.udf('int')\n"
        "def tax(n):\n"
        "    return ctypes.string_at(0)\n"
        "def f(batch, epoch): return batch.select(tax('offset').alias('t'))\n"
    )
    conf = {**settings, "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true"}
    with pytest.raises(NotApplied) as failed:
        runner_on("local[2]", monkeypatch, conf).run(stage_job(numbers, f"{path}:f", {"one": tmp_path / "t"}))
    assert failed.value.code is codes.SPARK_WORKER_DIED
    assert "Segmentation fault" in failed.value.what and "line 5 in tax" in failed.value.what


def on_both_workers(
    settings: dict[str, str], standalone: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    monkeypatch.setenv("SPARK_CONF_DIR", str(standalone.conf))
    executors = {"spark.executor.memory": "600m", "spark.cores.max": "2", "spark.executor.cores": "1"}
    return {**settings, **executors, "spark.scheduler.minRegisteredResourcesRatio": "1.0"}


@pytest.mark.long
def test_two_workers_stage_an_epoch_with_udfs_and_sibling_modules(
    numbers: Topic,
    settings: dict[str, str],
    standalone: StandaloneCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    conf = on_both_workers(settings, standalone, monkeypatch)
    tables = {"orders": tmp_path / "orders", "rejected": tmp_path / "rejected"}
    report = runner_on(standalone.master, monkeypatch, conf).run(stage_job(numbers, ORDERS, tables))
    assert report["metrics"]["rows_in"] == 100
    assert {(row["partition"], row["offset"]) for table in tables.values() for row in staged_rows(table)} == {
        (partition, offset) for partition in (0, 1) for offset in range(50)
    }
    workers = re.findall(r"Launching executor app-\S+ on worker (\S+)", standalone_log(standalone))
    assert len(set(workers)) == 2


@pytest.mark.long
def test_the_operators_of_a_transform_are_shipped_and_run_in_two_workers(
    numbers: Topic,
    settings: dict[str, str],
    standalone: StandaloneCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    conf = {**on_both_workers(settings, standalone, monkeypatch), "spark.sql.session.timeZone": "UTC"}
    job = stage_job(numbers, f"{APPS / 'counting.py'}:counted", {"counts": tmp_path / "counts"})
    assert runner_on(standalone.master, monkeypatch, conf).run(job)["warnings"] == []
    counted = {"windowed": 50, "dedupe": 1, "sessionize": 50, "interval_join": 50 * 50, "stateful": 50}
    found = [(row["operator"], row["partition"], row["n"]) for row in staged_rows(tmp_path / "counts")]
    assert sorted(found) == sorted((name, partition, n) for name, n in counted.items() for partition in (0, 1))


def standalone_log(cluster: StandaloneCluster) -> str:
    return "".join(process.log.read_text() for process in cluster.processes)


@pytest.mark.long
def test_what_a_killed_submit_left_running_is_ended_by_its_session(
    numbers: Topic, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flag, path, table = tmp_path / "started", tmp_path / "app.py", tmp_path / "t"
    path.write_text(dedent(SLOW.format(flag=str(flag))))
    runner = runner_on("local[2]", monkeypatch, settings)
    session = runner.new_session()
    program = f"""
import sys
sys.path.insert(0, {str(Path(spark_world.__file__).parents[2])!r})
from pathlib import Path
from tests.support import environment, spark_world
from airflow_epochs.contracts import Connection
from airflow_epochs.spark.runners import SparkSubmit
topic = spark_world.Topic(**{vars(numbers)!r})
job = spark_world.stage_job(topic, {f"{path}:f"!r}, {{"one": Path({str(table)!r})}})
env = environment.connected(Connection(conn_id="spark", conn_type="spark", host="local[2]"))
import json
session = json.loads(sys.stdin.read())
SparkSubmit("spark", conf={settings!r}).runner(env).run(job, session)
"""
    task = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert task.stdin is not None
        task.stdin.write(json.dumps(session).encode())
        task.stdin.close()
        wait_until(flag.exists, 120)
    finally:
        task.send_signal(signal.SIGKILL)
        task.wait()
    orphans = list(with_token(session["session_id"]))
    assert any("java" in os.path.basename(orphan.cmdline()[0]) for orphan in orphans)
    runner.stop({**session, "host": "another-host"})
    assert all(orphan.is_running() for orphan in orphans)
    runner.stop(session)
    assert list(with_token(session["session_id"])) == []
    assert not list(table.rglob("_delta_log/*.json"))
    runner.stop(session)  # a repeat is fine


@pytest.mark.long
def test_neither_a_batch_that_the_optimizer_drops_nor_a_thread_of_the_transform_holds_the_driver(
    numbers: Topic,
    settings: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "app.py"
    path.write_text(
        "import threading\n"
        "def f(batch, epoch):\n"
        "    threading.Thread(target=threading.Event().wait, name='endless').start()\n"
        "    return batch.select('offset').limit(0)\n"
    )
    monkeypatch.setattr(SparkSubmitHook, "_log", logging.getLogger("hook"))
    with caplog.at_level(logging.INFO):
        report = runner_on("local[1]", monkeypatch, settings).run(
            stage_job(numbers, f"{path}:f", {"one": tmp_path / "t"})
        )
    assert report["metrics"] == dict.fromkeys(("rows_in", "max_timestamp", "rows_late"))
    assert report["sinks"]["one"]["problem"] is None
    assert "Threads that still run end with it, unfinished: endless" in caplog.text
    assert list(tmp_path.glob("spark/*")) == []


@pytest.mark.long
def test_cancel_ends_a_running_submit(
    numbers: Topic, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flag, path = tmp_path / "started", tmp_path / "app.py"
    path.write_text(dedent(SLOW.format(flag=str(flag))))
    runner = runner_on("local[2]", monkeypatch, settings)
    session = runner.new_session()

    def cancel_when_it_runs() -> None:
        wait_until(flag.exists, 120)
        runner.cancel()

    canceller = threading.Thread(target=cancel_when_it_runs)
    canceller.start()
    with pytest.raises(NotApplied):
        runner.run(stage_job(numbers, f"{path}:f", {"one": tmp_path / "t"}), session)
    canceller.join()
    assert list(with_token(session["session_id"])) == []
