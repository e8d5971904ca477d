"""What is left of processes."""

from __future__ import annotations

import psutil


def alive(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
