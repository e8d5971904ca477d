"""What Java reads and checks as Spark starts, kept for the next start: "Class Data Sharing" in Java's docs.

A start then takes half the processor time. The archive lies in the virtual environment, as it is good for the
jars of that pyspark and for that Java only: another Java ignores it, and so does a Spark whose class path begins with
something else (``spark.archived_class_path``). Without an archive Spark starts all the same.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from stack.connect import ConnectServer
from stack.jars import fetch
from stack.spark import CLASS_ARCHIVE, DRIVER_OPTIONS, QUICK_START

WRITTEN_S = 180
"""Java writes the archive as it ends."""


def make() -> Path:
    """Let a Spark Connect server work a little and write down its classes as it ends (a minute); return the archive.

    One that is there already is kept. It appears by one rename: a killed call leaves none.
    """
    if CLASS_ARCHIVE.exists():
        return CLASS_ARCHIVE
    with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:
        new = Path(folder) / CLASS_ARCHIVE.name
        conf = {DRIVER_OPTIONS: f'{QUICK_START} -XX:ArchiveClassesAtExit="{new}" -Xlog:cds*=off'}
        with ConnectServer(Path(folder) / "connect", fetch("spark"), conf=conf) as server:
            server.processes[-1].stop(grace_s=WRITTEN_S)
        os.replace(new, CLASS_ARCHIVE)
    return CLASS_ARCHIVE
