"""Makes the folder of one submit. Only this user can read it, and it does not outlive its task for long.

A task locks its folder while it lives. A killed task leaves its folder unlocked, maybe with credentials in it. The next
submit on the same host deletes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_epochs.errors import tolerated

PREFIX = "airflow-epochs-submit-"
_YOUNG_S = 10.0
"""Seconds for which other tasks spare a new folder: until its own task locks it, it looks abandoned."""


@contextmanager
def work_folder() -> Iterator[Path]:
    """Make a folder, and delete it at the end. First deletes the folders of killed tasks."""
    with tolerated("deleting the folders of killed submits"):
        _delete_abandoned()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder, _locked(Path(folder)):
        yield Path(folder)


def _delete_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if not _is_mine(folder):
            continue
        try:
            with _locked(folder):
                shutil.rmtree(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # its task is alive, or another task deletes it


def _is_mine(folder: Path) -> bool:
    try:
        seen = folder.lstat()
    except FileNotFoundError:
        return False
    private = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and not seen.st_mode & 0o077
    return private and time.time() - seen.st_ctime > _YOUNG_S


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder. The lock ends with this process, since programs that it starts do not inherit it.

    Raises:
        BlockingIOError: Another process holds the lock.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)
