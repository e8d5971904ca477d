"""State by spark-submit, one application per epoch: the same as over Spark Connect, also when a task was killed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from airflow_epochs import SparkSubmit
from airflow_epochs.contracts import Connection
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.model import Run
from airflow_epochs.testing import run_epoch
from stack.connect import ConnectServer
from tests.support.delta_world import in_process
from tests.support.spark_world import APPS, MASTER
from tests.support.state_clicks import some_clicks
from tests.support.state_lab import Lab
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.long, pytest.mark.timeout(600)]


def halting(lab: Lab) -> Coordinator:
    return lab.windows(transform=f"{lab.folder}/windows.py:halting", tick=False)


def submitting(lab: Lab, conf: Mapping[str, str]) -> Lab:
    lab.spark = SparkSubmit("submit", conf=conf)
    lab.connections["submit"] = Connection(conn_id="submit", conn_type="spark", host=MASTER)
    return lab


def one_run(folder: Path, bootstrap: str, topic: str, conf: Mapping[str, str]) -> None:
    """A run in a process of its own."""
    broker = cast(Any, SimpleNamespace(bootstrap=bootstrap))
    nowhere = cast(ConnectServer, SimpleNamespace(where={}))
    lab = submitting(Lab(folder, broker, nowhere, topic=topic), conf)
    run_epoch(halting(lab), Run("dag", "killed"))


def test_windows_by_spark_submit_are_those_by_connect_and_a_task_killed_in_the_stage_changes_nothing(
    lab: Lab, submit_conf: dict[str, str]
) -> None:
    for app in ("clicks.py", "windows.py"):
        shutil.copy(APPS / app, lab.folder)
    by_connect, by_submit = lab.beside("by-connect"), submitting(lab, submit_conf)
    shutil.copytree(lab.folder, by_connect.folder, ignore=shutil.ignore_patterns("by-connect"))
    dice = random.Random(2)
    for epoch in range(3):
        lab.produce(*some_clicks(dice, epoch, pace=150))
        if epoch == 1:
            kill_in_the_stage(by_submit, submit_conf)
        else:
            by_submit.run(halting(by_submit))
        by_connect.run(halting(by_connect))
    tables = [
        {name: sorted(each.rows(name, "*")) for name in ("hourly", "late")} | {"open": each.open_windows(None)}
        for each in (by_submit, by_connect)
    ]
    assert tables[0] == tables[1]
    assert all(tables[0].values()), "a table is empty"
    by_submit.require_oracle()


def kill_in_the_stage(lab: Lab, conf: Mapping[str, str]) -> None:
    """A run whose process is killed, and one that ends what it has left, and does the epoch."""
    (lab.folder / "halt").touch()
    halted = lab.folder / "halted"
    process = in_process(one_run, lab.folder, lab.broker.bootstrap, lab.topic, conf)
    try:
        wait_until(lambda: not process.is_alive() or is_whole(halted), 120, "the transform halts")
    finally:
        process.kill()
        process.join()
    driver = psutil.Process(int(halted.read_text()))
    lab.run(halting(lab))
    assert not driver.is_running()
    (lab.folder / "halt").unlink()


def is_whole(halted: Path) -> bool:
    return halted.exists() and halted.read_text().endswith("\n")
