"""The records of an epoch that is decided: receipts, waivers, its completion."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field

from airflow_epochs.model.attempt import OpenRecord
from airflow_epochs.model.command import REWIND, Command
from airflow_epochs.model.event_times import EventTimes, Watermarks
from airflow_epochs.model.ranges import Backlog, Ranges
from airflow_epochs.model.record import FORMAT_UNSIGNED, JsonDict, Run
from airflow_epochs.model.transaction import TransactionId

RAN_AS = "spark"
"""The metric that says which Spark application staged the rows, where that is known: ``id``, and ``url`` of its UI."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """``<sink>.receipt.json``: the sink shows the epoch. ``version`` is the Delta version of the commit.

    ``place`` is the staging place whose rows the sink committed; None if the sink no longer knows it.
    """

    txn_id: TransactionId
    sink: str
    rows: int
    files: int
    bytes: int
    version: int | None
    committed_at: str
    place: str | None = None
    detail: JsonDict = field(default_factory=dict)
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class WaivedRecord:
    """``<sink>.waived.json``, in place of a receipt: an operator states that the sink cannot keep its promise.

    ``who``, ``host``, ``login``: as in ``TakeoverRecord``.
    """

    txn_id: TransactionId
    sink: str
    who: str
    why: str
    at: str
    host: str = ""
    login: str = ""
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class CompleteRecord:
    """``complete.json``: closes its epoch and is never deleted.

    It holds all that the next epoch needs, because the epoch's other records may be pruned.

    Attributes:
        markers: For every sink that ever took part, the transaction id of its last complete epoch.
        waived: The sinks that were waived and have had no receipt since.
        waived_ids: For each of them, the transactions waived since its last receipt, oldest first. The sink may have
            committed any of them late.
        watermarks: As in ``OpenRecord``.
        event_times: Per partition, the newest event time up to this epoch.
        moved_in: The newest epoch whose input a command moved, up to this epoch; 0 if there is none. Since then, each
            epoch begins where the one before ended.
        commands: The commands that this epoch obeyed, oldest first. If its code was acknowledged, that comes last.
        code: The transform that made the rows, as in ``OpenRecord``.
        adopted_in: Sink -> the newest epoch that took it as it was: versions of earlier epochs may be of another table.
            Also the states that a command let begin then, and no other sink that was new.
        backlog: As in ``OpenRecord``.
    """

    txn_id: TransactionId
    ranges: Ranges
    source_state: JsonDict
    receipts: dict[str, Receipt]
    markers: dict[str, TransactionId]
    opened_by: Run
    completed_by: Run
    metrics: JsonDict
    completed_at: str
    writer: str
    waived: tuple[str, ...] = ()
    waived_ids: dict[str, tuple[TransactionId, ...]] = field(default_factory=dict)
    watermarks: Watermarks = ()
    event_times: EventTimes = field(default_factory=dict)
    moved_in: int = 0
    commands: tuple[Command, ...] = ()
    adopted_in: dict[str, int] = field(default_factory=dict)
    code: str | None = None
    backlog: Backlog | None = None
    format: int = FORMAT_UNSIGNED

    @property
    def only_restored(self) -> bool:
        """Whether the epoch brought tables back by a command, and read nothing. Another `rewind` may call that off."""
        rewinds = [each for each in self.commands if each.name == REWIND]
        return bool(rewinds and rewinds[-1].restores)

    def has_had(self, sink: str) -> bool:
        """Whether this epoch, or one before, had a sink of this name, also if the sink was waived in it."""
        return sink in self.markers or sink in self.waived

    def may_show(self, sink: str) -> list[TransactionId]:
        """The waived transactions that a waived sink may have committed late, newest first; empty for other sinks."""
        if sink not in self.waived:
            return []
        return list(reversed(self.waived_ids.get(sink) or (self.txn_id,)))


def adopted_in(opened: OpenRecord, before: CompleteRecord | None, sinks: Collection[str]) -> dict[str, int]:
    """``CompleteRecord.adopted_in`` of the epoch that ``opened`` opened, if ``sinks`` have shown it.

    ``adopt-sink`` may have named a sink that is new, and no state: that one has simply begun.
    """
    begun = {sink for sink in opened.adopted if before and not before.has_had(sink)} - opened.state.keys()
    taken = (opened.adopted.keys() & set(sinks)) - begun
    return {**(before.adopted_in if before else {}), **dict.fromkeys(sorted(taken), opened.txn_id.epoch)}


def moved_in(opened: OpenRecord, before: CompleteRecord | None) -> int:
    """``CompleteRecord.moved_in`` of the epoch that ``opened`` opened. ``before``: the epoch before."""
    if opened.moved:
        return opened.txn_id.epoch
    return before.moved_in if before else 0


@dataclass(frozen=True, kw_only=True)
class RunIndex:
    """``runs/<hash>.json``: the one epoch that a run works on, because it opened it or rolled it forward.

    Put after ``open.json``, so a run that dies in between is found by its open record alone. Put before the
    ``complete.json`` of a roll-forward, so a run that dies in between finds the epoch again.
    """

    dag_id: str
    run_id: str
    epoch: int
    format: int = FORMAT_UNSIGNED

    @staticmethod
    def key_of(run: Run) -> str:
        """160 bits of the SHA-256 of both ids, in hex: they may be too long, or not valid, as a key."""
        return hashlib.sha256(f"{run.dag_id}\0{run.run_id}".encode()).hexdigest()[:40]
