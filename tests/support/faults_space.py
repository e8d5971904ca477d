"""Disks that run full: a small tmpfs where one may be mounted, else a limit on what a process may write.

Both make the kernel refuse real writes of real code, in the middle of a file as well as at its start.
"""

from __future__ import annotations

import errno
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

SIZE = "2m"
_BALLAST = "ballast"


def fill(disk: Path) -> None:
    """Leave no room on a small disk."""
    with (disk / _BALLAST).open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            _write_all(file.write, size)


def _write_all(write: Callable[[bytes], int | None], size: int) -> None:
    while True:
        try:
            write(b"\0" * size)
        except OSError as full:
            assert full.errno == errno.ENOSPC
            return


def free(disk: Path) -> None:
    """Make room again."""
    (disk / _BALLAST).unlink(missing_ok=True)


def forbid_writing(bytes_max: int = 64) -> None:
    """From now on no file of this process grows beyond a few bytes: EFBIG, after a partial write."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[], None]]:
    """Mount a small disk at ``folder``; what fills it, from a process of its own, is yielded.

    Where mounting is not permitted, that process is forbidden to write instead.
    """
    folder.mkdir(parents=True)
    if not _mounted(folder):
        yield forbid_writing
        return
    try:
        yield partial(fill, folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mounted(folder: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
