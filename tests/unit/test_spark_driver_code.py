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
from typing import Any

import psutil
import pytest

from airflow_epochs import secrecy
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
        told = json.loads(json.dumps(main.error_as_json(error)))
        back = main.error_from_json(told)
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
