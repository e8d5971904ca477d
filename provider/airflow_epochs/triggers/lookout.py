"""When waiting data is worth a look by a task. The task decides anew: what is said here is a hint, and may be wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta, timezone

from airflow_epochs import secrecy
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.hooks.epochs import connection
from airflow_epochs.kafka.connection import KafkaAccess, read_connection
from airflow_epochs.sources.kafka.arrivals import PartitionEnds, amiss, count, unread
from airflow_epochs.sources.kafka.intake import older_than
from airflow_epochs.sources.kafka.logs import Offsets, Partition
from airflow_epochs.sources.kafka.poller import Watch

log = secrecy.logger(__name__)

ENOUGH, OLD, TROUBLE = "enough", "old", "trouble"
"""Why to look: there are ``min_records``; one is older than ``max_delay``; something that only a task can explain."""
AGE_S_MIN, AGE_S_MAX = 0.25, 10.0
"""The age of records is asked for once in ``max_delay / 20``, within these bounds."""
CONNECTION_S = 30.0
"""After this many seconds, the connection is read anew: the brokers may have moved, or the login may be another one."""

_Since = dict[Partition, tuple[int, float]]
"""Per partition, its first unread offset, and since when it is that."""


async def access_to(conn_id: str) -> KafkaAccess:
    """The connection's settings, read on a thread: Airflow may ask a server for them. Raises Refused."""
    return await asyncio.to_thread(lambda: read_connection(connection(conn_id)))


class Lookout:
    """Looks out for ``min_records``, or for one that is older than ``max_delay``."""

    def __init__(self, watch: Watch, min_records: int, max_delay_s: float | None) -> None:
        self._watch, self._min_records, self._max_delay_s = watch, min_records, max_delay_s
        self._silent = False
        self._connection_read_at = time.monotonic()
        self._unread_since: _Since = {}
        self._is_old, self._age_asked_at = False, 0.0
        self._age_of: dict[Partition, int] = {}
        self._age_pause_s = min(max((max_delay_s or 0) / 20, AGE_S_MIN), AGE_S_MAX)

    async def answers(self) -> AsyncIterator[PartitionEnds | None]:
        """What each poll sees; None if this process cannot ask, or the brokers refuse to answer.

        While no broker answers, it waits, and says so once.
        """
        while True:
            seen = await self._watch.next()
            if await self._has_moved(seen.error):
                continue
            if isinstance(seen.error, Refused):
                yield None
                continue
            self._tell(seen.error)
            if not isinstance(seen.error, NotApplied):  # such as a missing package, which no wait brings
                yield None if seen.error else seen.ends

    async def _has_moved(self, error: Exception | None) -> bool:
        """Whether the connection has changed: from now on, what it leads to is watched."""
        if time.monotonic() < self._connection_read_at + CONNECTION_S:
            return False
        self._connection_read_at = time.monotonic()
        in_use = self._watch.access
        access = await self._access_now(in_use, error)
        if access == in_use:
            return False
        log.info("connection %s has changed; the brokers are asked anew", access.conn_id)
        self._watch.move(access)
        return True

    async def _access_now(self, in_use: KafkaAccess, error: Exception | None) -> KafkaAccess:
        try:
            return await access_to(in_use.conn_id)
        except Exception as unreadable:
            if error:
                raise
            log.warning("connection %s cannot be read now, and the brokers answer: %s", in_use.conn_id, unreadable)
            return in_use

    def _tell(self, error: Exception | None) -> None:
        if error and not self._silent:
            if isinstance(error, NotApplied):
                log.warning("the brokers do not answer; the wait goes on, and asks them again and again: %s", error)
            else:
                log.warning("this process cannot ask the brokers: %s", error)
        if self._silent and not error:
            log.info("the brokers answer again")
        self._silent = error is not None

    async def why(self, begins: Offsets, ends: PartitionEnds | None) -> str | None:
        """Why a task should look now, from where nothing has been read yet; None if it need not."""
        if ends is None or amiss(begins, ends):
            return TROUBLE
        if count(begins, ends) >= self._min_records:
            return ENOUGH
        return OLD if await self._old(begins, ends) else None

    async def _old(self, begins: Offsets, ends: PartitionEnds) -> bool:
        starts = unread(begins, ends)
        now = time.monotonic()
        self._unread_since = _unread_since(self._unread_since, starts, now)
        if self._max_delay_s is None or not starts:
            return False
        if now >= min(since for _, since in self._unread_since.values()) + self._max_delay_s:
            return True  # whatever their times are: producers may write times that lie ahead
        if starts != self._age_of or now >= self._age_asked_at + self._age_pause_s:
            self._is_old = await self._older_than(starts, timedelta(seconds=self._max_delay_s))
            self._age_of, self._age_asked_at = starts, now
        return self._is_old

    async def _older_than(self, starts: dict[Partition, int], delay: timedelta) -> bool:
        at = datetime.now(timezone.utc) - delay
        try:
            return await self._watch.ask(lambda brokers: bool(older_than(brokers, starts, at)))
        except NotApplied:  # the next poll meets the same trouble, and tells of it
            return False


def _unread_since(known: _Since, starts: Mapping[Partition, int], now: float) -> _Since:
    """A partition whose position has moved begins anew: another record is its first unread one."""
    return {at: known[at] if at in known and known[at][0] == first else (first, now) for at, first in starts.items()}
