"""Find and end the processes of one submit, by a token that stands among their arguments as ``submit`` puts it there.

Anything else than a UUID is no token: it comes out of a record, and might stand among anybody's arguments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from airflow_epochs import secrecy

if TYPE_CHECKING:
    import psutil

log = secrecy.logger(__name__)

ARGUMENT = "--session"
SETTING = "spark.airflow_epochs.session"
TERM_WAIT_S = 5.0
ROUNDS_MAX = 5
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def end_all_with(token: str) -> int:
    """End every process of this host that ``token`` was given to by ``submit``; return how many there were.

    In rounds, since spark-submit's shell starts a JVM, which starts Python. psutil checks a process's start time
    before it signals, so that a process id that was given to another program meanwhile is left alone.
    """
    import psutil

    if not _UUID.fullmatch(token):
        log.warning("%r is no session of ours: no process is ended", token)
        return 0
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
        if _was_given(process.info["cmdline"] or [], token) and process.pid != os.getpid():
            yield process


def _was_given(arguments: list[str], token: str) -> bool:
    """Whether these are a submit's: the token as our main's argument or as our setting, and not just somewhere."""
    return (ARGUMENT, token) in pairwise(arguments) or any(a.endswith(f"{SETTING}={token}") for a in arguments)


def _signal(process: psutil.Process, send: object) -> None:
    import psutil

    try:
        send()  # type: ignore[operator]
    except psutil.NoSuchProcess:
        log.debug("process %s had already ended", process.pid)
    except psutil.AccessDenied:
        log.warning("process %s of an earlier try belongs to another user and goes on", process.pid)
