"""The trigger of a deferred ``open``: it waits for data in Airflow's triggerer, where no worker slot is held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timezone
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_epochs import secrecy
from airflow_epochs.contracts import Awaited
from airflow_epochs.sources.kafka.poller import Watch
from airflow_epochs.triggers.lookout import TROUBLE, Lookout, access_to

log = secrecy.logger(__name__)

OVER = "over"
"""The event's ``why`` if the time is over. ``lookout`` has the other values."""


class RecordsTrigger(BaseTrigger):
    """Fires once: when there is enough data for an epoch, when only a task can say what is wrong, or at ``until``.

    It never fails, and its event is only a hint: ``open`` decides anew, from the ledger and the brokers.

    Args:
        conn_id: The connection of the Kafka cluster.
        begins: Topic -> partition (as text, as in JSON) -> the first offset that no epoch has read.
        min_records: So many are enough.
        max_delay_s: A record of this age is enough; None: age does not count.
        until: When the wait is over: ISO 8601 with its zone.
        quiet_s: It does not fire sooner than this after it began, except at ``until``.
    """

    def __init__(
        self,
        conn_id: str,
        begins: Mapping[str, Mapping[str, int]],
        min_records: int,
        max_delay_s: float | None,
        until: str,
        quiet_s: float = 0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.conn_id = conn_id
        self.begins = {topic: dict(of) for topic, of in begins.items()}
        self.min_records = min_records
        self.max_delay_s = max_delay_s
        self.until = until
        self.quiet_s = quiet_s

    @classmethod
    def of(cls, awaited: Awaited, until: datetime, quiet_s: float) -> RecordsTrigger:
        """The trigger that looks out for what a source waits for."""
        return cls(
            conn_id=awaited.conn_id,
            begins={topic: {str(p): at for p, at in of.items()} for topic, of in awaited.begins.items()},
            min_records=awaited.min_records,
            max_delay_s=awaited.max_delay_s,
            until=until.isoformat(),
            quiet_s=quiet_s,
        )

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Path and arguments, without secrets: they are kept in Airflow's database."""
        names = ("conn_id", "begins", "min_records", "max_delay_s", "until", "quiet_s")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, then yield the one event."""
        yield TriggerEvent({"why": await self._why()})

    async def _why(self) -> str:
        left = (datetime.fromisoformat(self.until) - datetime.now(timezone.utc)).total_seconds()
        try:
            return await asyncio.wait_for(self._worth_a_look(), max(left, 0))
        except asyncio.TimeoutError:
            return OVER

    async def _worth_a_look(self) -> str:
        quiet_until = time.monotonic() + self.quiet_s
        try:
            why = await self._first_reason(quiet_until)
        except Exception as error:  # `open` meets the same, and reports it where its users look
            log.warning("the trigger cannot wait for records; the `open` task will look: %s", error)
            why = TROUBLE
        await asyncio.sleep(quiet_until - time.monotonic())
        return why

    async def _first_reason(self, quiet_until: float) -> str:
        watching = Watch(await access_to(self.conn_id), list(self.begins))
        try:
            return await self._reason(watching, quiet_until)
        finally:
            watching.close()

    async def _reason(self, watching: Watch, quiet_until: float) -> str:
        lookout = Lookout(watching, self.min_records, self.max_delay_s)
        begins = {topic: {int(p): at for p, at in of.items()} for topic, of in self.begins.items()}
        async for ends in lookout.answers():
            if time.monotonic() >= quiet_until and (why := await lookout.why(begins, ends)):
                return why
        raise AssertionError("polls never end")
