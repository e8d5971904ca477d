"""Files of tests lie in memory where there is room: most tests wait for a disk, which keeps what they flush.

All that makes temporary files asks ``TMPDIR``, as do the processes that tests start.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import psutil

DISK = Path("/dev/shm")
"""Linux's disk in memory."""
ROOM_BYTES = 6 * 2**30
"""What two lanes of tests have at once, at most, is a third of it."""
MEMORY_BYTES = ROOM_BYTES + 8 * 2**30
"""Servers need some, too."""


def use() -> None:
    """Let temporary files be made there, if there is room and the user does not name another place."""
    if "TMPDIR" not in os.environ and _has_room():
        os.environ["TMPDIR"] = str(DISK)
        tempfile.tempdir = None  # it is found anew


def _has_room() -> bool:
    if not (DISK.is_dir() and os.access(DISK, os.W_OK)):
        return False
    disk = os.statvfs(DISK)
    runs_programs = not disk.f_flag & os.ST_NOEXEC  # tests write some
    return (
        runs_programs
        and disk.f_bavail * disk.f_frsize >= ROOM_BYTES
        and psutil.virtual_memory().available >= MEMORY_BYTES
    )
