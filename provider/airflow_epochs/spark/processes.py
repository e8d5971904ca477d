"""Finds and ends the processes of one submit by the token that ``submit`` puts among their arguments.

A token must be a UUID: it comes from a record, and another text might be an argument of any process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
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


def end_submits_with(token: str) -> int:
    """As ``end_all_with``, but ends only spark-submit: a driver in cluster mode may be on this host, and goes on."""
    return _end(token, _submits)


def end_all_with(token: str) -> int:
    """End every process on this host that got ``token`` from ``submit``; return their number. Idempotent."""
    return _end(token, _was_given)


def _end(token: str, is_meant: Callable[[list[str], str], bool]) -> int:
    """End the processes with ``token`` whose arguments ``is_meant`` accepts; return their number.

    It works in rounds, because spark-submit's shell starts a JVM, which starts Python. psutil checks a process's start
    time before it signals, so it spares another program that has got the same process id.
    """
    import psutil

    if not _UUID.fullmatch(token):
        log.warning("%r is not the id of a session: no process is ended", token)
        return 0
    ended = 0
    for _ in range(ROUNDS_MAX):
        found = list(_with_token(token, is_meant))
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


def _with_token(token: str, is_meant: Callable[[list[str], str], bool]) -> Iterator[psutil.Process]:
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if is_meant(process.info["cmdline"] or [], token) and process.pid != os.getpid():
            yield process


def _was_given(arguments: list[str], token: str) -> bool:
    """Whether ``submit`` put the token there: as the argument of its program or as its Spark setting."""
    return (ARGUMENT, token) in pairwise(arguments) or _submits(arguments, token)


def _submits(arguments: list[str], token: str) -> bool:
    return any(argument.endswith(f"{SETTING}={token}") for argument in arguments)


def _signal(process: psutil.Process, send: object) -> None:
    import psutil

    try:
        send()  # type: ignore[operator]
    except psutil.NoSuchProcess:
        log.debug("process %s had already ended", process.pid)
    except psutil.AccessDenied:
        log.warning("process %s of an earlier try belongs to another user and goes on", process.pid)
