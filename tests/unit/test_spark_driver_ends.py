"""Spark's driver ends with its job, whatever the user's code leaves running: the task waits for its process."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_epochs.spark.driver import main

pytestmark = pytest.mark.proof

LEAVES = """
import atexit, runpy, sys, tempfile, threading
from pathlib import Path
from types import SimpleNamespace
from pyspark import SparkFiles
from pyspark.sql import SparkSession
from airflow_epochs.spark.driver import jobs

def stopped():
    {stopped}

def run(*_):
    {left}
    return {{"rows": 7}}

SparkSession.builder = SimpleNamespace(getOrCreate=lambda: {starts})
SparkFiles.get = str
jobs.run = run
folder = Path(sys.argv.pop(1))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
THREAD = "threading.Thread(target=threading.Event().wait, name='left behind').start()"
POOL = "from concurrent.futures import ThreadPoolExecutor as Pool; Pool(1).submit(threading.Event().wait)"
TEMPORARY = "globals()['kept'] = tempfile.TemporaryDirectory(dir=folder); atexit.register((folder / 'tidied').touch)"


def ended(
    folder: Path, left: str, stopped: str = "pass", starts: str = "SimpleNamespace(stop=stopped)"
) -> subprocess.CompletedProcess[str]:
    """What the program of spark-submit left, whose job leaves something running; Spark itself is none."""
    plan, report = folder / "plan.json", folder / "report.json"
    plan.write_text(json.dumps({"kind": "stage", "args": {}}))
    digest = hashlib.sha256(plan.read_bytes()).hexdigest()
    given = ["--plan", str(plan), "--digest", digest, "--report", str(report), "--session", "x"]
    (folder / "temporary").mkdir()
    program = LEAVES.format(left=left, stopped=stopped, starts=starts).replace("sys.argv[0]", repr(main.__file__))
    command = [sys.executable, "-c", program, str(folder / "temporary"), *given]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize(
    ("left", "name"), [(THREAD, "left behind"), (POOL, "ThreadPoolExecutor-0_0")], ids=["thread", "pool"]
)
def test_a_thread_that_never_ends_holds_the_driver_no_longer_than_its_job_and_is_named(
    tmp_path: Path, left: str, name: str
) -> None:
    done = ended(tmp_path, left)
    assert (done.returncode, json.loads((tmp_path / "report.json").read_text())) == (0, {"result": {"rows": 7}})
    assert f"Threads that still run end with it, unfinished: {name}\n" in done.stderr


@pytest.mark.parametrize("left", ["pass", THREAD], ids=["nothing", "a thread"])
def test_temporary_files_are_deleted_and_what_was_printed_is_there_when_the_driver_ends(
    tmp_path: Path, left: str
) -> None:
    done = ended(tmp_path, f"print('rows', end=''); {TEMPORARY}; {left}")
    assert [each.name for each in (tmp_path / "temporary").iterdir()] == ["tidied"]
    assert (done.returncode, done.stdout) == (0, "rows")
    assert ("Threads that still run" in done.stderr) == (left == THREAD)


@pytest.mark.parametrize(("then", "code"), [("pass", 0), ("raise ValueError('wrong')", 1)])
def test_a_driver_whose_streams_are_closed_ends_with_the_exit_code_of_its_job(
    tmp_path: Path, then: str, code: int
) -> None:
    assert ended(tmp_path, f"{THREAD}; sys.stdout.close(); sys.stderr.close()\n    {then}").returncode == code


def test_a_driver_that_fails_behind_its_report_tells_why_and_ends(tmp_path: Path) -> None:
    done = ended(tmp_path, THREAD, stopped="raise OSError('no Spark to stop')")
    assert done.returncode == 1 and "OSError: no Spark to stop\n" in done.stderr


def test_a_spark_that_does_not_start_leaves_a_report_that_says_why(tmp_path: Path) -> None:
    done = ended(tmp_path, "pass", starts="(_ for _ in ()).throw(ValueError('no master'))")
    error = json.loads((tmp_path / "report.json").read_text())["error"]
    assert (error["type"], error["what"]) == ("NotApplied", "The start of Spark failed: ValueError: no master")
    assert done.returncode == 1 and "ValueError: no master\n" in done.stderr


NEVER_TIDY = """
import atexit, threading
from airflow_epochs.spark.driver import main
main._TIDYING_S = 0.1
atexit.register(threading.Event().wait)
print("told")
main._end(3)
"""


def test_a_handler_of_the_end_that_never_ends_holds_the_driver_for_a_while_only() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NEVER_TIDY], stdout=subprocess.PIPE, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (3, "told\n")
