"""Where a pipeline's next epoch begins: by its ledger, and for topics that it has not read yet, by the brokers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from airflow_epochs.contracts import Position
from airflow_epochs.hooks.epochs import EpochsHook
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import position_of_next
from airflow_epochs.sources.kafka.arrivals import PartitionEnds
from airflow_epochs.sources.kafka.brokers import Brokers
from airflow_epochs.sources.kafka.intake import time_index
from airflow_epochs.sources.kafka.logs import Offsets, offsets_at_ends
from airflow_epochs.sources.kafka.plan import started
from airflow_epochs.sources.kafka.poller import Watch
from airflow_epochs.sources.kafka.starting import Latest, Starting

LEDGER_S = 30.0
"""After this many seconds, the ledger is opened anew, from its connection on: it may have been restored or rebuilt."""


@dataclass(frozen=True)
class Standing:
    """The newest complete epoch, and where the next one begins in the topics that there are.

    ``records_start``: the next epoch records where a topic begins that is read from its latest record on.
    ``paused``: an operator has paused the pipeline, so a run would be skipped.
    """

    epoch: int
    begins: Offsets
    records_start: bool = False
    paused: bool = False


class NextEpoch:
    """Reads where the next epoch of a pipeline begins. Raises what the ledger and the brokers raise."""

    def __init__(self, pipeline: str, ledger_conn_id: str, watch: Watch, starting: Starting) -> None:
        self._pipeline, self._ledger_conn_id, self._watch, self._starting = pipeline, ledger_conn_id, watch, starting
        self._ledger: Ledger | None = None
        self._opened_at = self._read_at = 0.0
        self._read: tuple[int, Position | None, bool] = (0, None, False)
        self._new: dict[str, dict[int, int]] = {}

    async def standing(self, age_s: float, ends: PartitionEnds) -> Standing:
        """Where the pipeline stood at most ``age_s`` seconds ago. ``ends``: of the partitions that there are."""
        if self._ledger is None or time.monotonic() > self._read_at + age_s:
            self._read = await asyncio.to_thread(self._from_ledger)
            self._read_at = time.monotonic()
        epoch, position, paused = self._read
        known = offsets_at_ends(position.ranges) if position else {}
        new = sorted({topic for topic, _ in ends} - known.keys())
        if new and isinstance(self._starting, Latest):
            return Standing(epoch, _of(known, self._watch.topics), records_start=True, paused=paused)
        begins = {**known, **{topic: await self._begin_of(topic) for topic in new}}
        return Standing(epoch, _of(begins, self._watch.topics), paused=paused)

    def _from_ledger(self) -> tuple[int, Position | None, bool]:
        if self._ledger is None or time.monotonic() > self._opened_at + LEDGER_S:
            self._ledger = EpochsHook(self._ledger_conn_id).ledger(self._pipeline)
            self._opened_at = time.monotonic()
            self._new.clear()
        return *position_of_next(self._ledger), self._ledger.pause_in_force() is not None

    async def _begin_of(self, topic: str) -> dict[int, int]:
        if topic not in self._new:
            self._new[topic] = await self._watch.ask(lambda brokers: _begin(brokers, topic, self._starting))
        return self._new[topic]


def _begin(brokers: Brokers, topic: str, starting: Starting) -> dict[int, int]:
    cluster = brokers.look([topic])
    index = time_index(brokers, cluster, starting, None)
    there = cluster.topics.get(topic)
    return {r.partition: r.start for r in started(topic, there, starting, index)} if there else {}


def _of(offsets: Offsets, topics: frozenset[str]) -> Offsets:
    return {topic: offsets[topic] for topic in offsets if topic in topics}
