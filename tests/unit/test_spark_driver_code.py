"""What travels to Spark's driver runs there without Airflow; what travels back is understood."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import NotApplied, OutcomeUnknown, Refused
from airflow_epochs.spark import processes, reports, submit
from airflow_epochs.spark.driver import failures, main
from stack.spark import S3Access

IMPORTS = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("airflow", "msgspec", "obstore", "deltalake", "kafka", "psutil"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
sys.path.insert(0, sys.argv[1])
import airflow_epochs.spark.driver.delta.merge, airflow_epochs.spark.driver.main, airflow_epochs.spark.driver.stage
import airflow_epochs.transforms
for module in (airflow_epochs, airflow_epochs.transforms):
    assert module.__file__.startswith(sys.argv[1]), module.__file__
"""


@pytest.mark.proof
def test_the_drivers_code_needs_neither_airflow_nor_this_projects_other_libraries(tmp_path: Path) -> None:
    packed = tmp_path / "code.zip"
    packed.write_bytes(submit.driver_code())
    subprocess.run([sys.executable, "-I", "-c", IMPORTS, str(packed)], check=True, timeout=30)


def test_an_error_of_the_driver_keeps_what_it_means_for_a_retry() -> None:
    for error, kind in (
        (Refused("a", remedy="b"), Refused),
        (NotApplied("a", remedy="b"), NotApplied),
        (OutcomeUnknown("a", remedy="b"), NotApplied),
    ):
        told = json.loads(json.dumps(failures.error_as_json(error)))
        back = failures.error_from_json(told)
        assert (type(back), back.what, back.remedy) == (kind, "a", "b")


def test_a_plan_that_is_not_the_tasks_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    monkeypatch.setattr(pyspark.SparkFiles, "get", lambda name: str(tmp_path / "elsewhere" / name))
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    digest = hashlib.sha256(b"{}").hexdigest()
    assert main._plan(str(plan), digest) == {}
    plan.write_text("{ }")
    for where in (plan, tmp_path / "absent.json"):
        with pytest.raises(NotApplied, match="did not get the plan"):
            main._plan(str(where), digest)


def test_the_file_of_credentials_is_private_and_gone_once_it_is_read(tmp_path: Path) -> None:
    path = submit._write(tmp_path / "secrets.json", b'{"kafka.sasl.jaas.config": "x"}')
    assert path.stat().st_mode & 0o777 == 0o600
    given = argparse.Namespace(secrets=str(path), secrets_conf=None)
    unused: Any = None
    assert main._secrets(unused, given) == {"kafka.sasl.jaas.config": "x"}
    assert not path.exists()


def test_credentials_come_from_settings_with_the_prefix() -> None:
    spark = with_settings({"spark.orders.kafka.sasl.jaas.config": "x", "spark.app.name": "y"})
    given = argparse.Namespace(secrets=None, secrets_conf="spark.orders.", secrets_needed=True)
    assert main._secrets(spark, given) == {"kafka.sasl.jaas.config": "x"}


def test_a_prefix_that_no_setting_has_is_refused_if_the_job_needs_credentials() -> None:
    given = argparse.Namespace(secrets=None, secrets_conf="spark.order.", secrets_needed=True)
    with pytest.raises(Refused, match=r"No setting of the Spark application begins with 'spark\.order\.'") as refused:
        main._secrets(with_settings({"spark.app.name": "y"}), given)
    assert "spark.order.kafka.sasl.jaas.config" in refused.value.remedy


def test_a_prefix_that_no_setting_has_does_not_matter_to_a_job_without_credentials() -> None:
    given = argparse.Namespace(secrets=None, secrets_conf="spark.order.", secrets_needed=False)
    assert main._secrets(with_settings({"spark.app.name": "y"}), given) == {}


def with_settings(settings: dict[str, str]) -> Any:
    context = SimpleNamespace(getConf=lambda: SimpleNamespace(getAll=settings.items))
    return SimpleNamespace(sparkContext=context)


@pytest.mark.proof
def test_only_processes_that_a_submit_gave_the_exact_token_are_ended(tmp_path: Path) -> None:
    token = str(uuid.uuid4())
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    ours = [["--session", token], ["--conf", f"spark.airflow_epochs.session={token}"]]
    arguments = [
        *ours,
        ["--session", f"x{token}"],
        ["--session", token[:-1]],
        [token],
        ["--id", token],
        [f"id={token}"],
    ]
    started = [subprocess.Popen([*waiting, *given], stdin=subprocess.PIPE) for given in arguments]
    try:
        assert processes.end_all_with(token) == 2
        alive = [psutil.pid_exists(child.pid) and child.poll() is None for child in started]
        assert alive == [False, False, True, True, True, True, True]
        assert processes.end_all_with(token) == 0
    finally:
        for child in started:
            child.kill()
            assert child.stdin is not None
            child.stdin.close()
            child.wait()


def test_a_report_written_by_spark_is_taken_once_it_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "part-00000-x.txt").write_text('{"result": 1}\n')
    where = folder.as_uri()
    assert reports.take(where, None) is None
    (folder / "_SUCCESS").touch()
    assert reports.take(where, None) == {"result": 1}
    assert reports.take(where, None) is None


def test_a_report_below_a_plain_path_is_taken_although_its_folder_did_not_exist(tmp_path: Path) -> None:
    unused: Any = None
    where = reports.place_of(str(tmp_path / "shared" / "work"), str(uuid.uuid4()))
    main._leave(unused, where, {"result": 1})
    assert reports.take(where, None) == {"result": 1}
    assert list((tmp_path / "shared" / "work").iterdir()) == []
    assert reports.take(where, None) is None


def test_a_report_that_cannot_be_deleted_is_taken_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "of another user")

    (tmp_path / "report.json").write_text('{"result": 1}')
    monkeypatch.setattr(Path, "unlink", refuse)
    assert reports.take(str(tmp_path / "report.json"), None) == {"result": 1}
    assert "deleting a report of Spark's driver failed" in caplog.text


@pytest.mark.proof
def test_a_report_on_an_object_store_is_taken_with_the_connections_credentials(s3: S3Access) -> None:
    from airflow_epochs.storage.files import open_files
    from airflow_epochs.storage.options import storage_options

    extra = {"region_name": s3.region, "endpoint_url": s3.endpoint}
    connection = Connection(conn_id="s3", conn_type="aws", login=s3.key, password=s3.secret, extra=extra)
    work, token = f"s3a://{s3.bucket}/work", str(uuid.uuid4())
    files = open_files(work, storage_options(connection))
    files.write_new(f"{token}/part-00000-x.txt", b'{"result": 1}\n')
    assert reports.take(f"{work}/{token}", connection) is None
    files.write_new(f"{token}/_SUCCESS", b"")
    assert reports.take(f"{work}/{token}", connection) == {"result": 1}
    assert files.names(token) == set()


def test_secrets_are_blotted_out_of_messages() -> None:
    secrecy.keep_options({"kafka.a": "hunter2", "kafka.b": "hunter2-long", "kafka.c": "a"})
    error = failures.of_spark(ValueError("pass=hunter2 long=hunter2-long"), "It")
    assert "pass=****** long=******" in error.what


def test_a_message_that_is_cut_within_a_secret_shows_no_half_of_it() -> None:
    secrecy.keep_options({"kafka.a": "hunter2-correct-horse"})
    error = failures.of_spark(ValueError("x" * 3_995 + "hunter2-correct-horse"), "It")
    assert "hunt" not in error.what


def raised_in_a_worker(last: str, frames: int = 1) -> str:
    """What Spark says of an exception in a Python worker."""
    frame = '  File "app.py", line 8, in tax\n    raise Odd("Timeout: no")\n    ^^^^^^^^^^^\n'
    return (
        f"An exception was thrown from the Python worker:\nTraceback (most recent call last):\n{frame * frames}{last}"
    )


@pytest.mark.parametrize(
    "last", ["ZeroDivisionError: by zero", "my.Odd: two\nlines: of text", "KeyError", "FileNotFoundError: x"]
)
def test_a_function_that_raises_in_a_python_worker_is_not_retried(last: str) -> None:
    error = failures.of_spark(ValueError(raised_in_a_worker(last)), "It")
    assert isinstance(error, Refused) and error.code is codes.UDF_RAISED
    assert error.what.startswith(f"It failed: a Python function of the transform raised {last.partition(':')[0]}. ")
    assert last in error.what


@pytest.mark.parametrize(
    "last",
    [
        "urllib.error.URLError: <urlopen error>",
        "ConnectionRefusedError: [Errno 111]",
        "requests.exceptions.ReadTimeout: x",
        "MemoryError",
        "EOFError",
    ],
)
def test_a_service_that_does_not_answer_a_function_in_a_python_worker_is_asked_again_by_a_retry(last: str) -> None:
    error = failures.of_spark(ValueError(raised_in_a_worker(last)), "It")
    assert type(error) is NotApplied and error.code is codes.SPARK_JOB_FAILED


def test_the_exception_that_counts_is_the_last_one_of_a_chain_however_long_its_traceback_is() -> None:
    first = raised_in_a_worker("ConnectionError: no")
    text = f"{first}\n\nDuring handling of the above exception, another exception occurred:\n\n"
    error = failures.of_spark(ValueError(text + raised_in_a_worker("my.Odd: at the end", frames=300)), "It")
    assert error.code is codes.UDF_RAISED
    assert "ConnectionError: no" in error.what and error.what.endswith("my.Odd: at the end")
    assert len(error.what) < 4_200


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("22018", codes.SPARK_VALUE_INVALID),
        ("22012", codes.SPARK_VALUE_INVALID),
        ("P0001", codes.SPARK_VALUE_INVALID),
        ("22000", codes.SPARK_JOB_FAILED),
        ("KD001", codes.SPARK_JOB_FAILED),
        ("220189", codes.SPARK_JOB_FAILED),
    ],
)
def test_a_value_that_spark_cannot_compute_is_not_retried_and_lost_records_are(state: str, code: object) -> None:
    error = failures.of_spark(ValueError(f"[SOME_ERROR] The value is wrong. SQLSTATE: {state}"), "It")
    assert error.code is code
    assert isinstance(error, Refused) == (code is codes.SPARK_VALUE_INVALID)


ACCESSOR = "org.apache.spark.sql.vectorized.ArrowColumnVector$ArrowVectorAccessor"


@pytest.mark.parametrize(
    ("told", "remedy"),
    [
        ("java.lang.IllegalStateException: Value at index is null", "without NOT NULL"),
        (
            "[DUPLICATED_MAP_KEY] Duplicate map key 1.10 was found, please check the input data. SQLSTATE: 23505",
            "LAST_WIN",
        ),
        ("[UNSUPPORTED_ARROWTYPE] Unsupported arrow type Timestamp(NANOSECOND, UTC). SQLSTATE: 0A000", "cast"),
        (
            f'[UNSUPPORTED_CALL.WITHOUT_SUGGESTION] Cannot call the method "getInt" of the class "{ACCESSOR}". '
            "SQLSTATE: 0A000",
            "cast",
        ),
    ],
    ids=[
        "NULL in a column that is NOT NULL",
        "equal keys of a map",
        "an Arrow type that Spark has not",
        "another Arrow type than declared",
    ],
)
def test_rows_of_the_transform_that_spark_cannot_take_are_not_retried(told: str, remedy: str) -> None:
    text = f"Job aborted.\n\nJVM stacktrace:\nX\n\tat a.B.c(D:1)\nCaused by: o.a.s.SparkException: {told}\n\tat e.F"
    error = failures.of_spark(ValueError(text), "It")
    assert isinstance(error, Refused) and error.code is codes.SPARK_VALUE_INVALID
    assert told in error.what and error.remedy and remedy in error.remedy


def test_a_call_that_spark_has_not_is_no_matter_of_the_rows() -> None:
    told = 'Cannot call the method "merge" of the class "org.apache.spark.sql.Aggregator". SQLSTATE: 0A000'
    error = failures.of_spark(ValueError(f"[UNSUPPORTED_CALL.WITHOUT_SUGGESTION] {told}"), "It")
    assert error.code is codes.SPARK_JOB_FAILED


@pytest.mark.parametrize(
    ("told", "is_rule"),
    [
        (
            "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint c (a > 0) violated by row with values:\n - a : 0",
            True,
        ),
        ("[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: a.\n", True),
        ('[DELTA_EXCEED_CHAR_VARCHAR_LIMIT] Value "abc" exceeds char/varchar type length limitation.', True),
        ("[EXCEED_LIMIT_LENGTH] Exceeds char/varchar type length limitation: 2. SQLSTATE: 54006", True),
        ("[DELTA_VIOLATE_TABLE_PROPERTY_VALIDATION_FAILED] The validation of the properties has been violated", False),
        ("[DELTA_COMMAND_INVARIANT_VIOLATION] A command internal invariant was violated. Please retry", False),
    ],
)
def test_a_row_that_breaks_a_rule_of_the_table_is_not_retried(told: str, is_rule: bool) -> None:
    text = (
        f"Job aborted.\n\nJVM stacktrace:\nX\n\tat a.B.c(D:1)\nCaused by: d.DeltaInvariantViolation: {told}\n\tat e.F"
    )
    error = failures.of_spark(ValueError(text), "It")
    assert told.strip() in error.what
    assert (type(error), error.code) == (
        (Refused, codes.DELTA_ROWS_UNFIT) if is_rule else (NotApplied, codes.SPARK_JOB_FAILED)
    )


@pytest.mark.parametrize("state", ["", " SQLSTATE: 22008"])
def test_a_record_whose_time_spark_cannot_hold_is_no_matter_of_the_transform(state: str) -> None:
    text = "Task failed.\n\nJVM stacktrace:\nX\n\tat a.B.c(D:1)\nCaused by: o.a.s.KafkaIllegalStateException: Record "
    text += "at topic orders partition 0 offset 4711 has timestamp value 1700000000000000000 that overflows when "
    text += f"converting to Spark's microsecond-precision TimestampType.{state}\n\tat e.F\n"
    text += "Caused by: j.A: long overflow\n\tat g.H"
    error = failures.of_spark(ValueError(text), "It")
    assert isinstance(error, Refused) and error.code is codes.RECORD_TIME_INVALID
    assert "topic orders partition 0 offset 4711" in error.what


def test_a_record_that_does_not_come_in_time_may_be_one_of_a_tiered_topic() -> None:
    text = "Job aborted.\n\nJVM stacktrace:\nX\n\tat a.B.c(D:1)\nCaused by: java.util.concurrent.TimeoutException: "
    text += "Cannot fetch record for offset 4711 in 120000 milliseconds\n\tat e.F"
    error = failures.of_spark(ValueError(text), "It")
    assert type(error) is NotApplied and error.code is codes.SPARK_JOB_FAILED
    assert error.remedy and 'KafkaSource(options={"kafka.fetch.max.wait.ms": "5000"})' in error.remedy


@pytest.mark.parametrize(
    "cause",
    [
        "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. Call: listNodes",
        "org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls given in bootstrap.servers",
    ],
)
@pytest.mark.parametrize("args", [None, {"read": {}}, {"read": {"kafka.bootstrap.servers": "a:9092,b:9092"}}])
def test_brokers_that_spark_does_not_reach_are_told(cause: str, args: dict[str, Any] | None) -> None:
    text = f"An error occurred while calling o145.collectToPython.\n: java.X: {cause}\n\tat a.B.c(D:1)"
    error = failures.of_spark(ValueError(text), "It", args and {**args, "connection": "kafka_main"})
    assert type(error) is NotApplied and error.code is codes.KAFKA_UNREACHABLE
    where = " at a:9092,b:9092 (connection 'kafka_main')" if args and args["read"] else ""
    assert error.what.startswith(f"It failed: Spark gets no answer from Kafka{where}. ")
    assert cause in error.what
    assert error.remedy and "(advertised.listeners)" in error.remedy


def test_two_versions_of_python_are_not_retried() -> None:
    last = (
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
        "version: 3.11 than that in driver: 3.9, PySpark cannot run with different minor versions."
    )
    error = failures.of_spark(ValueError(raised_in_a_worker(last)), "It")
    assert error.code is codes.SPARK_PYTHON_MIXED
    assert error.what == "It failed: Python in worker has different version: 3.11 than that in driver: 3.9."


SEGFAULT = ": Fatal Python error: Segmentation fault\n\n  File x.py, line 3 in tax"


@pytest.mark.parametrize("end", ["", SEGFAULT], ids=["killed", "crashed"])
def test_a_python_worker_that_died_is_the_cause_wherever_it_stands_in_the_chain_and_may_not_die_again(end: str) -> None:
    died = f"o.a.s.SparkException: Python worker exited unexpectedly (crashed){end}"
    text = "[TASK_WRITE_FAILED] Task failed while writing rows to s3://lake.\n\nJVM stacktrace:\nX\n\tat a.B.c(D:1)\n"
    text += f"Caused by: {died}\n\tat e.F(G:2)\nCaused by: java.io.EOFException\n\tat h.I(J:3)"
    error = failures.of_spark(ValueError(text), "It")
    assert type(error) is NotApplied and error.code is codes.SPARK_WORKER_DIED
    assert error.what.startswith("It failed: a Python worker ended in the middle of its work. [TASK_WRITE_FAILED]")
    assert error.what.endswith(f"Caused by: {died}")


@pytest.mark.parametrize("trace", [None, "o.a.s.SparkException\n\tat a.B.c(D:1)"], ids=["no details", "details"])
def test_an_error_of_connect_without_its_causes_says_where_they_stand(trace: str | None) -> None:
    from pyspark.errors.exceptions.connect import SparkException

    error = failures.of_spark(SparkException("Job aborted.", server_stacktrace=trace), "It")
    assert type(error) is NotApplied and error.code is codes.SPARK_JOB_FAILED
    assert ("and Spark Connect does not tell the cause. SparkException: Job aborted." in error.what) == (trace is None)
    assert ("EPOCHS-SPARK-WORKER-DIED" in error.remedy) == (trace is None)


def test_a_message_keeps_the_cause_and_drops_the_jvms_frames() -> None:
    text = "Job aborted.\n\nJVM stacktrace:\nX\n\tat a.B.c(D:1)\n"
    text += "Caused by: e.F: first\n\tat g\nCaused by: h.I: root\n\tat j"
    error = failures.of_spark(ValueError(text), "It")
    assert error.what == "It failed: ValueError: Job aborted.\nCaused by: h.I: root"


def test_a_python_traceback_among_the_causes_is_preferred() -> None:
    text = "A.\n\nJVM stacktrace:\nX\nCaused by: P: Traceback (most recent call last):\n  f()\nValueError: v\n"
    text += "\tat g\nCaused by: E"
    error = failures.of_spark(ValueError(text), "It")
    assert error.what.endswith("Caused by: P: Traceback (most recent call last):\n  f()\nValueError: v")


def test_the_submits_environment_is_not_that_of_a_connect_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    monkeypatch.setenv("SPARK_REMOTE", "sc://x")
    environment = submit._environment()
    assert not {"SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"} & set(environment)
    assert environment["PATH"].startswith(os.path.dirname(sys.executable))


@pytest.mark.parametrize("shape", ["{}x", "x{}", "{}; x"])
def test_no_process_is_ended_by_what_is_no_session(shape: str) -> None:
    # such as no other process of the machine has, should this test fail
    forged, code = shape.format(uuid.uuid4()), "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, "--session", forged], stdin=subprocess.PIPE) as child:
        assert processes.end_all_with(forged) == 0
        assert child.poll() is None
        child.kill()
