"""An asset that stands for waiting records: a DAG that is scheduled on it runs when there is something to read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_epochs import codes, secrecy
from airflow_epochs.config import require_name
from airflow_epochs.errors import BadArgument
from airflow_epochs.hooks.epochs import EpochsHook
from airflow_epochs.names import is_template
from airflow_epochs.sources.kafka.config import read_config
from airflow_epochs.sources.kafka.starting import bad, parse_starting, starting_json

if TYPE_CHECKING:
    from airflow_epochs.model import JsonDict
    from airflow_epochs.sources.kafka.poller import Watch
    from airflow_epochs.sources.kafka.source import KafkaSource

log = secrecy.logger(__name__)

AGAIN_S = 60.0
LOOK_S = 1.0
"""How many seconds old a look at the ledger may be, while enough records seem to wait."""


def records_waiting(
    pipeline: str, source: KafkaSource, *, ledger_conn_id: str = EpochsHook.default_conn_name, again: float = AGAIN_S
) -> Asset:
    """An asset for the ``schedule`` of a pipeline's DAG: a run starts when the source's next epoch may begin.

    Its events only say that at least ``min_records`` are there that no epoch has read, or that one is older than
    ``max_delay``. What a run reads, it decides by itself.

    Args:
        pipeline: The name of the ``EpochPipeline``.
        source: Its source. ``topics``, ``conn_id``, ``starting``, ``min_records`` and ``max_delay`` must not be
            templates: no DAG run is there yet, for which they could be rendered.
        ledger_conn_id: The pipeline's connection of type ``epochs``. The triggerer must reach the ledger, too.
        again: If no epoch is complete this many seconds after an event, another is sent: the first may have been lost.

    Raises:
        BadArgument: An argument is not valid.
    """
    _require_topics(source)
    named = {name: getattr(source, name) for name in ("topics", "conn_id", "starting", "min_records", "max_delay")}
    if templates := [name for name, value in named.items() if is_template(value)]:
        raise bad(f"`{templates[0]}` is a template. An asset is watched before there is a run to render it for.")
    if isinstance(again, bool) or not isinstance(again, (int, float)) or not again >= 1:
        raise bad(f"`again` is {again!r}. It must be a number of seconds, 1 or larger.")
    config = read_config(named)
    trigger = RecordsWaitingTrigger(
        pipeline=require_name("pipeline", pipeline),
        topics=list(config.topics),
        conn_id=config.conn_id,
        starting=starting_json(source.starting),
        min_records=config.min_records,
        max_delay_s=config.max_delay_s,
        ledger_conn_id=ledger_conn_id,
        again_s=float(again),
    )
    name = _name_of(pipeline, ledger_conn_id)
    return Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])


def _name_of(pipeline: str, ledger_conn_id: str) -> str:
    """The asset's name, with the ledger: two pipelines may have one name, and Airflow watches one asset of a name."""
    name = f"{pipeline}-records-waiting"
    return name if ledger_conn_id == EpochsHook.default_conn_name else f"{name}@{ledger_conn_id}"


def _require_topics(source: object) -> None:
    from airflow_epochs.sources.kafka.source import KafkaSource

    if not isinstance(source, KafkaSource):
        raise BadArgument(
            f"`source` is a {type(source).__name__}. Records are counted in topics only, so it must be a KafkaSource. "
            "Schedule a DAG that reads a table on the asset of the table, or on a timetable.",
            code=codes.DELTA_SOURCE_ARGUMENT,
        )


class RecordsWaitingTrigger(BaseEventTrigger):
    """Fires when a pipeline has enough to read: once for each place where it stands, and again after ``again_s``.

    It never fails. If the ledger or the brokers give no answer that it can use, it fires, too: the run then says what
    is wrong where people see it.

    It does not use ``shared_stream_key``: all that can be shared is the poller of a cluster, and deferred tasks share
    that one as well.
    """

    def __init__(
        self,
        pipeline: str,
        topics: Sequence[str],
        conn_id: str,
        starting: str | JsonDict,
        min_records: int,
        max_delay_s: float | None,
        ledger_conn_id: str,
        again_s: float,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline, self.topics, self.conn_id, self.starting = pipeline, list(topics), conn_id, starting
        self.min_records, self.max_delay_s = min_records, max_delay_s
        self.ledger_conn_id, self.again_s = ledger_conn_id, again_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Path and arguments, without secrets: they are kept in Airflow's database."""
        names = ("pipeline", "topics", "conn_id", "starting", "min_records", "max_delay_s", "ledger_conn_id", "again_s")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event whenever a run is worth its while, until the triggerer ends this."""
        while True:
            try:
                async with aclosing(self._events()) as events:
                    async for event in events:
                        yield TriggerEvent({"pipeline": self.pipeline, **event})
            except Exception as error:
                log.warning("pipeline %s: cannot look for waiting records: %s", self.pipeline, error)
                yield TriggerEvent({"pipeline": self.pipeline, "why": "trouble"})
            await asyncio.sleep(self.again_s)

    async def _events(self) -> AsyncGenerator[JsonDict, None]:
        from airflow_epochs.sources.kafka.poller import Watch
        from airflow_epochs.triggers.lookout import access_to

        watching = Watch(await access_to(self.conn_id), self.topics)
        try:
            async for event in self._seen_by(watching):
                yield event
        finally:
            watching.close()

    async def _seen_by(self, watching: Watch) -> AsyncIterator[JsonDict]:
        from airflow_epochs.sources.kafka.arrivals import count
        from airflow_epochs.triggers.lookout import ENOUGH, Lookout
        from airflow_epochs.triggers.standing import LEDGER_S, NextEpoch

        lookout = Lookout(watching, self.min_records, self.max_delay_s)
        upcoming = NextEpoch(self.pipeline, self.ledger_conn_id, watching, parse_starting(self.starting))
        told = _Told(self.again_s)
        async for ends in lookout.answers():
            for age_s in (LEDGER_S, LOOK_S):  # only if enough seem to wait, the ledger is asked how it is now
                stands = await upcoming.standing(age_s, ends or {})
                why = ENOUGH if stands.records_start else await lookout.why(stands.begins, ends)
                if why is None:
                    break
            if why and told.is_news(stands) and not stands.paused:  # the end of a pause is news
                yield {"why": why, "records": count(stands.begins, ends or {}), "past_epoch": stands.epoch}


class _Told:
    """Where the pipeline stood at the last event."""

    def __init__(self, again_s: float) -> None:
        self._again_s, self._at = again_s, 0.0
        self._stood: object = None

    def is_news(self, stands: object) -> bool:
        """Whether it stands elsewhere now, or has stood there for too long. From this call on, that is known."""
        if stands == self._stood and time.monotonic() < self._at + self._again_s:
            return False
        self._stood, self._at = stands, time.monotonic()
        return True
