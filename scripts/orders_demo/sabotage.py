"""Kills what is in the middle of an epoch, and proves from the ledger that it was."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import psutil

from airflow_epochs.model import OpenRecord, TryRecord
from orders_demo.watch import Watch

FIND_S = 120.0
SPARK_AT_WORK_S = 0.2


class Missed(RuntimeError):
    """No running stage could be hit in time. Nothing is shown."""


@dataclass(frozen=True)
class Hit:
    """What was killed in which epoch, while that epoch was staged and undecided."""

    what: str
    pid: int
    epoch: int
    attempt: int
    stage_pid: int

    def __str__(self) -> str:
        return (
            f"kill -9 {self.pid} ({self.what}) while epoch {self.epoch}, attempt {self.attempt}, was being staged by "
            f"process {self.stage_pid}, undecided"
        )


def kill_stage_task(watch: Watch) -> Hit:
    """SIGKILL the process of a running stage task. Raises Missed."""
    return _kill(watch, "the stage task", lambda stage_pid: stage_pid)


def kill_spark_server(watch: Watch, server_pid: Callable[[], int], *, after_epoch: int) -> Hit:
    """SIGKILL the Spark Connect server that a running stage task of a later epoch uses. Raises Missed."""
    return _kill(watch, "the Spark Connect server", lambda _stage_pid: server_pid(), after_epoch)


def _kill(watch: Watch, what: str, victim: Callable[[int], int], after_epoch: int = 0) -> Hit:
    end = time.monotonic() + FIND_S
    while time.monotonic() < end:
        found = watch.staging()
        if found and found[0].txn_id.epoch > after_epoch and (stage_pid := _running_stage(watch, *found)):
            time.sleep(SPARK_AT_WORK_S)
            pid = victim(stage_pid)
            if watch.staging() == found and _alive(stage_pid) and _alive(pid):
                os.kill(pid, signal.SIGKILL)
                if not _decided(watch, found[0]):
                    txn = found[0].txn_id
                    return Hit(what, pid, txn.epoch, txn.attempt, stage_pid)
        time.sleep(0.05)
    raise Missed(f"{what} could not be killed in the middle of an epoch within {FIND_S:.0f} s")


def _running_stage(watch: Watch, opened: OpenRecord, attempted: TryRecord) -> int | None:
    """The process id of the stage task, if it is this try that runs now."""
    task = watch.stage_task(opened.run_id)
    pid, began = task["pid"], task["start_date"]
    if task["state"] != "running" or not pid or not began or _time(attempted.started_at) < _time(began):
        return None
    return int(pid) if _alive(int(pid)) else None


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _decided(watch: Watch, opened: OpenRecord) -> bool:
    txn = opened.txn_id
    return watch.ledger.decision_record(txn.epoch, txn.attempt) is not None


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
