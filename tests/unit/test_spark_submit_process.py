"""What a spark-submit process gets to see and what is left of it, told by a script in its place."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Connection, SparkJob
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.spark import work_folder
from airflow_epochs.spark.runners import SparkSubmit
from tests.support.environment import connected
from tests.support.processes import alive
from tests.support.waiting import wait_until

SECRET = 'Canäry"7\\x'
JOB = SparkJob(
    kind="delta_describe",
    args={"target": "/t"},
    secrets={"kafka.sasl.jaas.config": f"LoginModule required password={json.dumps(SECRET, ensure_ascii=False)};"},
)
SCRIPT = """#!/bin/sh
env > "$SEEN/environment"
printf '%%s\n' "$@" > "$SEEN/arguments"
while [ $# -gt 0 ]; do
    case "$1" in
        --report) report=$2 ;;
        --secrets) ls -ld "$(dirname "$2")" "$2" > "$SEEN/modes"; cp "$2" "$SEEN/secrets" ;;
    esac
    shift
done
%s
"""


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the script leaves what it has seen. Temporary folders are the test's own."""
    for name in ("bin", "seen", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    for name in ("SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", "")
    return tmp_path / "seen"


def submit(
    seen: Path, ends: str, job: SparkJob = JOB, binary: str = "spark-submit", host: str = "local[1]", **arguments: Any
) -> object:
    script = seen.parent / "bin" / binary
    script.write_text(SCRIPT % ends)
    script.chmod(0o755)
    env = connected(Connection(conn_id="spark", conn_type="spark", host=host, extra={"spark-binary": binary}))
    connection = {"conn_type": "spark", "host": host, "extra": {"spark-binary": binary}}
    os.environ["AIRFLOW_CONN_SPARK"] = json.dumps(connection)  # taken back by ``seen``
    return SparkSubmit("spark", **arguments).runner(env).run(job)


def submit_to_cluster(seen: Path, job: SparkJob = JOB, **arguments: Any) -> object:
    return submit(seen, RESULT, job, deploy_mode="cluster", work_url=str(seen), **arguments)


def arguments(seen: Path) -> list[str]:
    return (seen / "arguments").read_text().splitlines()


RESULT = """echo '{"result": {"ok": true}}' > "$report" """


def test_the_driver_inherits_what_spark_needs_and_nothing_of_airflows(
    seen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflows = ("AIRFLOW_CONN_X", "AIRFLOW__CORE__FERNET_KEY", "AIRFLOW_VAR_A", "_AIRFLOW_WWW_USER_PASSWORD")
    sparks = ("JAVA_HOME", "SPARK_HOME", "HADOOP_CONF_DIR", "PYSPARK_PYTHON", "LD_LIBRARY_PATH", "TZ", "AWS_REGION")
    for name in (*airflows, *sparks):
        monkeypatch.setenv(name, f"value of {name}")
    assert submit(seen, RESULT) == {"ok": True}
    inherited = (seen / "environment").read_text()
    assert all(f"{name}=value of {name}\n" in inherited for name in sparks)
    assert "AIRFLOW" not in inherited


@pytest.mark.parametrize("conf", [{}, {"spark.submit.deployMode": "client"}])
def test_the_deploy_mode_is_always_an_argument_so_that_no_default_of_sparks_differs(
    seen: Path, conf: dict[str, str]
) -> None:
    submit(seen, RESULT, conf=conf)
    assert "--deploy-mode client" in " ".join(arguments(seen))


SPARKS_OWN = "(?i)secret|password|token|access[.]?key"


@pytest.mark.parametrize(
    ("prefix", "conf", "pattern"),
    [
        ("spark.kafka.orders.", {}, rf"{SPARKS_OWN}|spark\.kafka\.orders\."),
        ("spark.kafka.orders.", {"spark.redaction.regex": "(?i)orders"}, "(?i)orders"),
        ("spark.orders.secret.", {}, None),
    ],
)
def test_spark_is_told_to_hide_the_settings_that_hold_credentials(
    seen: Path, prefix: str, conf: dict[str, str], pattern: str | None
) -> None:
    submit_to_cluster(seen, secrets_conf=prefix, conf=conf)
    assert hidden(seen) == ([pattern] if pattern else [])


def hidden(seen: Path) -> list[str]:
    name = "spark.redaction.regex="
    return [each.removeprefix(name) for each in arguments(seen) if each.startswith(name)]


SITE = "# ours\nspark.redaction.regex  (?i)secret|account\\\\.\\\n    key\nspark.redaction.regex.more  x\n"


@pytest.mark.parametrize("prefix", ["spark.kafka.orders.", "spark.secret."])
@pytest.mark.parametrize("place", ["file", "SPARK_CONF_DIR", "SPARK_HOME", "PATH", "pip"])
def test_what_the_site_hides_stays_hidden_beside_the_credentials(
    seen: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, prefix: str, place: str
) -> None:
    homes = {"SPARK_HOME": seen / "home", "PATH": seen.parent, "pip": seen / "pyspark"}
    (folder := homes[place] / "conf" if place in homes else seen / "site").mkdir(parents=True)
    (folder / "spark-defaults.conf").write_text(SITE)
    if place in ("SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.setenv(place, str(folder if place == "SPARK_CONF_DIR" else homes[place]))
    if place == "pip":
        (seen.parent / "bin" / "find_spark_home.py").write_text(f"print({str(homes[place])!r})")
    given: dict[str, Any] = {"properties_file": str(folder / "spark-defaults.conf")} if place == "file" else {}
    submit_to_cluster(seen, secrets_conf=prefix, **given)
    assert hidden(seen) == [rf"(?i)secret|account\.key|{re.escape(prefix)}"]
    assert "spark-defaults.conf" not in caplog.text


@pytest.mark.parametrize("binary", ["spark-submit", "spark3-submit"])
def test_of_a_program_outside_sparks_folder_it_is_told_once_that_what_the_site_hides_is_not_known(
    seen: Path, caplog: pytest.LogCaptureFixture, binary: str
) -> None:
    """A distribution's own script leads to Spark, or find_spark_home.py beside pip's finds no Spark."""
    if binary == "spark3-submit":
        (seen.parent / "bin" / "find_spark_home.py").write_text("raise SystemExit(255)")
    for _ in range(2):
        submit_to_cluster(seen, secrets_conf="spark.kafka.orders.", binary=binary)
    told = [each.getMessage() for each in caplog.records if "spark-defaults.conf" in each.getMessage()]
    assert len(told) == 1 and f"bin/{binary} " in told[0] and 'conf={"spark.redaction.regex": …}' in told[0]
    assert hidden(seen) == [rf"{SPARKS_OWN}|spark\.kafka\.orders\."]


def test_nothing_is_told_where_spark_has_no_file_of_the_site_or_the_dag_says_what_is_hidden(
    seen: Path, caplog: pytest.LogCaptureFixture
) -> None:
    submit_to_cluster(seen, secrets_conf="spark.kafka.orders.", conf={"spark.redaction.regex": "orders"})
    (seen.parent / "jars").mkdir()
    (seen.parent / "bin" / "spark-class").touch()
    submit_to_cluster(seen, secrets_conf="spark.kafka.orders.")
    assert "spark-defaults.conf" not in caplog.text


def test_nothing_is_said_of_what_is_hidden_where_no_setting_has_credentials(seen: Path) -> None:
    submit(seen, RESULT, secrets_conf="spark.kafka.orders.")
    assert hidden(seen) == []


@pytest.mark.parametrize(("job", "needed"), [(JOB, True), (replace(JOB, secrets={}), False)], ids=["read", "commit"])
def test_a_driver_on_a_cluster_is_told_whether_its_job_needs_credentials(
    seen: Path, job: SparkJob, needed: bool
) -> None:
    submit_to_cluster(seen, job, secrets_conf="spark.orders.")
    assert ("--secrets-needed" in arguments(seen)) is needed
    assert "--secrets-conf spark.orders." in " ".join(arguments(seen))


def test_credentials_lie_where_only_their_owner_reads_and_not_for_long(seen: Path) -> None:
    submit(seen, RESULT)
    assert json.loads((seen / "secrets").read_text()) == JOB.secrets
    folder, file = (seen / "modes").read_text().splitlines()
    assert folder.startswith("drwx------") and file.startswith("-rw-------")
    assert list((seen.parent / "tmp").iterdir()) == []


def test_a_driver_that_fails_without_a_report_is_told_of_without_its_secrets(seen: Path) -> None:
    with pytest.raises(NotApplied, match="delta_describe") as failed:
        submit(seen, 'cat "$SEEN/secrets"; exit 3')
    assert "7\\" not in str(failed.value)


def test_a_submit_that_fails_does_not_tell_the_key_of_an_azure_account(seen: Path) -> None:
    conf = {"spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": "hunter2=="}
    with pytest.raises(NotApplied, match="spark-submit") as failed:
        submit(seen, """grep 'account.key' "$SEEN/arguments"; exit 3""", conf=conf)
    assert "account.key.lake" in str(failed.value) and "hunter2" not in str(failed.value)


PRINTED = """echo 'WARN Utils: your hostname resolves to a loopback address'
echo 'Exception in thread "main" org.apache.spark.SparkException: %s'
printf '\\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)\\n%%.0s' $(seq 200)
exit 1"""


def test_a_submit_that_fails_is_told_of_by_what_it_has_printed_and_not_by_its_command(seen: Path) -> None:
    with pytest.raises(NotApplied) as failed:
        submit(seen, PRINTED % "Cannot load main class")
    assert failed.value.what == (
        "The Spark job 'delta_describe' through spark failed: spark-submit ended with exit code 1.\n"
        'Exception in thread "main" org.apache.spark.SparkException: Cannot load main class'
    )


def test_a_submit_that_gives_no_reason_is_told_of_by_its_last_lines(seen: Path) -> None:
    with pytest.raises(NotApplied, match="exit code 137") as failed:
        submit(seen, "seq 1000 1019; exit 137")
    assert failed.value.what.endswith("exit code 137.\n1015\n1016\n1017\n1018\n1019")


MASTERS = """case "$(sed -n '/^--master$/{n;p;q}' "$SEEN/arguments")" in
local[[]1]) %s;;
*) %s;;
esac"""
UNKNOWN = PRINTED % "Master must either be yarn or start with spark, k8s, or local"
REPORTED = """echo '{"error": {"type": "NotApplied", "code": null, "what": "%s", "remedy": "x"}}' > "$report"; exit 1"""
UNREAD = REPORTED % "The start of Spark failed: Py4JJavaError: o.a.s.SparkException: Could not parse Master URL: lcoal"


@pytest.mark.parametrize("fails", [UNKNOWN, UNREAD], ids=["spark-submit", "the driver"])
def test_a_master_that_spark_does_not_take_is_refused_until_the_host_of_the_connection_is_right(
    seen: Path, fails: str
) -> None:
    ends = MASTERS % (RESULT, fails)
    with pytest.raises(
        Refused, match="Spark does not take the master of connection spark, whose host is 'lcoal'"
    ) as no:
        submit(seen, ends, host="lcoal")
    assert no.value.code is codes.SPARK_CONNECTION and "Correct the host of the connection: local[2]" in no.value.remedy
    assert "--conf" not in no.value.what and "Master" in no.value.what
    assert submit(seen, ends) == {"ok": True}, "the remedy"


HADOOP = "When running with master 'yarn' either HADOOP_CONF_DIR or YARN_CONF_DIR must be set in the environment."


def test_a_worker_without_hadoops_configuration_is_refused_until_it_has_one(
    seen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    ends = f"""if [ -n "$HADOOP_CONF_DIR" ]; then {RESULT}; else {(PRINTED % HADOOP).replace("'yarn'", "yarn")}; fi"""
    with pytest.raises(Refused, match="whose host is 'yarn': When running with master") as no:
        submit(seen, ends, host="yarn")
    assert no.value.code is codes.SPARK_INCOMPLETE and "Set HADOOP_CONF_DIR or YARN_CONF_DIR" in no.value.remedy
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert submit(seen, ends, host="yarn") == {"ok": True}, "the remedy"


def test_a_master_that_does_not_answer_is_asked_again_by_a_retry(seen: Path) -> None:
    stopped = "The start of Spark failed: j.l.IllegalStateException: Cannot call methods on a stopped SparkContext. X"
    with pytest.raises(NotApplied, match="nobody answers as the master of connection spark, whose host is") as failed:
        submit(seen, REPORTED % stopped, host="spark://nobody:7077")
    assert type(failed.value) is NotApplied and failed.value.code is codes.SPARK_UNREACHABLE


@pytest.mark.parametrize("said", ["Invalid master URL", "Cannot call methods on a stopped SparkContext"])
def test_an_error_of_a_job_is_not_taken_for_one_of_the_start(seen: Path, said: str) -> None:
    what = f"The Spark job failed: ValueError: {said}"
    with pytest.raises(NotApplied) as failed:
        submit(seen, REPORTED % what)
    assert type(failed.value) is NotApplied and failed.value.what == what


def test_the_cause_behind_a_traceback_of_a_driver_without_a_report_is_quoted(seen: Path) -> None:
    printed = ("Traceback (most recent call last):", "py4j.protocol.Py4JJavaError: An error occurred.", ": o.Odd: x")
    ends = "\n".join(f"echo '{line}'" for line in (*printed, ": java.io.IOException: no folder")) + "\nexit 1"
    with pytest.raises(NotApplied) as failed:
        submit(seen, ends)
    assert failed.value.what.endswith("Py4JJavaError: An error occurred.\n: java.io.IOException: no folder")


def test_a_report_that_was_cut_off_is_as_good_as_none(seen: Path) -> None:
    with pytest.raises(NotApplied, match="failed: the driver left no complete report") as failed:
        submit(seen, """printf '{"result": {"ok"' > "$report" """)
    assert failed.value.code is codes.SPARK_JOB_FAILED


def test_a_report_without_a_result_is_refused_with_the_remedy_of_another_version(seen: Path) -> None:
    with pytest.raises(Refused, match="The report of the Spark job 'delta_describe' through spark has no result") as no:
        submit(seen, """echo '{"outcome": {"ok": true}}' > "$report" """)
    assert no.value.code is codes.SPARK_REPORT_UNFIT


class Timeout(BaseException):
    """As Airflow's own: no ``Exception``, so that nothing takes it for a failure of the job."""


def test_a_job_that_takes_longer_than_its_task_may_is_ended(seen: Path) -> None:
    def expire(*args: object) -> None:
        raise Timeout

    before = signal.signal(signal.SIGUSR1, expire)
    try:
        with pytest.raises(Timeout):
            submit(seen, f"""echo $$ > "$SEEN/pid"; kill -USR1 {os.getpid()}; sleep 60""")
    finally:
        signal.signal(signal.SIGUSR1, before)
    pid = int((seen / "pid").read_text())
    wait_until(lambda: not psutil.pid_exists(pid) or not alive(psutil.Process(pid)), what="the job ends")


HOLDS = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from airflow_epochs.spark.work_folder import work_folder
with work_folder() as folder:
    (folder / "secrets.json").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def holding(place: Path) -> tuple[subprocess.Popen[str], Path]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


@pytest.mark.proof
def test_what_a_killed_task_left_is_deleted_by_the_next_one_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(work_folder, "_YOUNG_S", 0.0)
    (killed, left), (alive, used) = holding(tmp_path), holding(tmp_path)
    others = tmp_path / f"{work_folder.PREFIX}readable"
    others.mkdir(mode=0o755)
    (tmp_path / f"{work_folder.PREFIX}link").symlink_to(others)
    try:
        killed.kill()
        killed.wait()
        assert (left / "secrets.json").exists()
        with work_folder.work_folder() as mine:
            kept = {used.name, others.name, f"{work_folder.PREFIX}link", mine.name}
            assert {path.name for path in tmp_path.iterdir()} == kept
    finally:
        for child in (killed, alive):
            child.communicate("")
    assert not used.exists()


def test_a_folder_that_was_just_made_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    young = tmp_path / f"{work_folder.PREFIX}young"
    young.mkdir(mode=0o700)
    with work_folder.work_folder():
        assert young.exists()
