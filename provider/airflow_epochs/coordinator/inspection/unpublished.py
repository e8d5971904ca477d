"""Stages rows that are only looked at, for dry runs and previews, and clears them away.

They are staged as for an attempt of a ledger that does not exist, in folders that no step and no clean-up of an epoch
knows, and that are deleted in the end.

A record of what is staged is put before and deleted after. If the command is killed, the next one finds the record. It
deletes a place only if its folder, too, says that it is a dry run's, and only if the process is gone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from airflow_epochs import secrecy
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.coordinator.recorded_sinks import is_own_place, may_stop
from airflow_epochs.coordinator.staging import outliving, stage_attempt
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import tolerated
from airflow_epochs.model import DryRunRecord, OpenRecord, StageReport, TryRecord

log = secrecy.logger(__name__)

GIVEN_UP = timedelta(days=1)
"""After that time a dry run counts as killed, wherever it was started."""


@contextmanager
def staged(task: TaskTry, played: OpenRecord) -> Iterator[StageReport]:
    """Stage all sinks of an attempt that belongs to no ledger. At the end of the block, nothing is left of it.

    Raises as ``staging.stage_attempt`` does.
    """
    mine: list[DryRunRecord] = []
    try:
        yield stage_attempt(task, played, lambda tried: mine.append(_put(task, played, tried)))
    finally:
        for record in mine:
            _clear(task, record)


def _put(task: TaskTry, played: OpenRecord, tried: TryRecord) -> DryRunRecord:
    record = DryRunRecord(pipeline=task.pipeline.name, opened=played, tried=tried, writer=task.writer)
    return task.ledger.put(record)


def clear_away(task: TaskTry) -> None:
    """Clear away what killed dry runs have left. A dry run that may still be running is not touched."""
    for record in task.ledger.dry_runs():
        if _is_over(task, record):
            _clear(task, record)
        else:
            log.info("the dry run %s by %s may be running: left alone", record.tried.try_id, record.writer)


def _is_over(task: TaskTry, record: DryRunRecord) -> bool:
    """Whether its process is gone, as far as this machine can tell; or it began long ago."""
    host, _, process = record.writer.partition("@")[2].rpartition(":")
    if task.clock() - datetime.fromisoformat(record.tried.started_at) > GIVEN_UP:
        return True
    return host == socket.gethostname() and process.isdigit() and not _is_alive(int(process))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _clear(task: TaskTry, record: DryRunRecord) -> None:
    """Stop its job, delete its places, then its record. What fails is logged, and the record stays."""
    tried = record.tried
    with tolerated(f"stopping the dry run {tried.try_id}"):
        _stop(task, tried)
    cleared = [_cleared(task, record, name, place) for name, place in sorted(tried.places.items())]
    if all(cleared):
        with tolerated(f"deleting the record of the dry run {tried.try_id}"):
            task.ledger.forget_dry_run(record)


def _stop(task: TaskTry, tried: TryRecord) -> None:
    """Stop its job, also one that outlives its task, and forget what that has told."""
    spark = task.env.spark
    if not may_stop(tried, spark.new_session()):
        return
    spark.stop(tried.session)
    if lasting := outliving(task):
        lasting.end(tried.session)
        lasting.release(tried.session)


def _cleared(task: TaskTry, record: DryRunRecord, name: str, place: str) -> bool:
    with tolerated(f"deleting {place}"):
        sink, attempt = task.sink_of(record.opened, name), SinkAttempt.of(record.opened, name)
        if is_own_place(sink, attempt, place, task.env):
            sink.discard(attempt, place, task.env, published=False)
            return True
        log.warning("%s is not deleted: its path is not one of dry run %s", place, record.tried.try_id)
    return False
