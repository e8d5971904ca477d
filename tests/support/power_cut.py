"""What a power cut leaves of a Delta table: what was flushed. The rest was in the machine's memory only."""

from __future__ import annotations

import shutil
from pathlib import Path


def left_by_power_cut(table: str | Path, synced: set[str | int], to: Path) -> str:
    """Copy to ``to`` what a table is after a power cut now. ``synced``: what was flushed, as the fixture tells.

    A log entry that nobody flushed is gone. A file of rows has its name, and is empty, as a disk may leave it.
    """
    shutil.rmtree(to, ignore_errors=True)
    for file in (path for path in Path(table).rglob("*") if path.is_file() and not path.name.startswith(".")):
        copy, whole = to / file.relative_to(table), file.stat().st_ino in synced
        in_log = "_delta_log" in file.parts
        if in_log and not whole:
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes() if whole else b"")
    return str(to)
