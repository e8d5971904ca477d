"""Find and end the processes of one submit, by a token that stands among their arguments and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_epochs import secrecy

if TYPE_CHECKING:
    import psutil

log = secrecy.logger(__name__)

TERM_WAIT_S = 5.0
ROUNDS_MAX = 5


def end_all_with(token: str) -> int:
    """End every process of this host that has ``token`` in an argument; return how many there were.

    In rounds, since spark-submit's shell starts a JVM, which starts Python. psutil checks a process's start time
    before it signals, so that a process id that was given to another program meanwhile is left alone.
    """
    import psutil

    ended = 0
    for _ in range(ROUNDS_MAX):
        found = list(_with_token(token))
        if not found:
            break
        ended += len(found)
        for process in found:
            _signal(process, process.terminate)
        for process in psutil.wait_procs(found, timeout=TERM_WAIT_S)[1]:
            _signal(process, process.kill)
        psutil.wait_procs(found, timeout=TERM_WAIT_S)
    if ended:
        log.info("ended %s processes of Spark session %s", ended, token)
    return ended


def _with_token(token: str) -> Iterator[psutil.Process]:
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        arguments = process.info["cmdline"] or []
        mine = any(token == argument or argument.endswith(f"={token}") for argument in arguments)
        if mine and process.pid != os.getpid():
            yield process


def _signal(process: psutil.Process, send: object) -> None:
    import psutil

    try:
        send()  # type: ignore[operator]
    except psutil.NoSuchProcess:
        log.debug("process %s had already ended", process.pid)
    except psutil.AccessDenied:
        log.warning("process %s of an earlier try belongs to another user and goes on", process.pid)
