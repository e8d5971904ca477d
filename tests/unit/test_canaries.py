"""The search for secrets that have come out finds them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.chaos.canaries import Canaries
from tests.support.waiting import wait_until

SECRET = "a-secret-that-stands-nowhere-else"
ENDLESS = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def test_files_with_a_secret_are_found_but_those_that_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    folder = tmp_path / "run"
    for name in ("logs/task.log", "token", "clean", "tmp/spark-1/plan", "tmp/other/plan"):
        path = folder / name if not name.startswith("tmp") else tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff" + (b"nothing" if name == "clean" else SECRET.encode()))
    canaries = Canaries({"the password": SECRET}, [folder / "token"])
    assert canaries.found(folder) == [
        f"{folder / 'logs/task.log'}: the password",
        f"{tmp_path / 'tmp/spark-1/plan'}: the password",
    ]


@pytest.mark.proof
@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        ([SECRET], {}, "an argument of"),
        (["pyspark.daemon"], {"AIRFLOW_CONN_X": SECRET}, "AIRFLOW_CONN_X of"),
    ],
)
def test_a_process_that_shows_a_secret_is_seen(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], told: str
) -> None:
    canaries = Canaries({"the password": SECRET}, [])
    with subprocess.Popen([*ENDLESS, *arguments], env=environment, stdin=subprocess.PIPE) as process:
        try:
            with canaries.watching(lambda: [psutil.Process(process.pid)]):
                wait_until(lambda: canaries.found(tmp_path) != [], 30)
        finally:
            process.terminate()
    [found] = canaries.found(tmp_path)
    assert found.startswith(told) and found.endswith("the password")
