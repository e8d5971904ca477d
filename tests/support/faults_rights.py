"""Taking rights away from a process: what root may do to every file hides what a worker may not."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_VERSION_3 = 0x20080522


def forbid_writing_to(folder: Path) -> None:
    """Make a folder and all below it read-only for this process, also if it is root's. Undone by ``allow``."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    if os.geteuid() == 0:
        _drop_capabilities()


def allow(folder: Path) -> None:
    """Let the owner write again."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)


def _drop_capabilities() -> None:
    """Root without its capabilities is an ordinary owner of files."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capset")
