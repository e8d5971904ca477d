"""What tells where the pipeline is: what its sinks show, what is left of its ledger, and what an operator says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from airflow_epochs import codes
from airflow_epochs.contracts import Ends, LastEpoch, Positioned, Sink
from airflow_epochs.coordinator import sink_calls
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, located
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import Marker, agree
from airflow_epochs.protocol import State

LastEpochs = Mapping[str, LastEpoch | None]
"""Sink -> what it shows of its last epoch; None: it shows no epoch of this pipeline."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What an operator says of the newest epoch.

    Attributes:
        ends: Where it ended; empty: not said.
        watermark: Its watermark, in microseconds since 1970; None: not said.
    """

    ends: Ends = field(default_factory=dict)
    watermark: int | None = None

    def where_unknown(self, shown: Mapping[str, LastEpoch]) -> Told:
        """What an operator said, without what the sinks in ``shown`` know themselves."""
        return Told(
            ends={} if any(each.ends for each in shown.values()) else self.ends,
            watermark=None if any(each.watermarks for each in shown.values()) else self.watermark,
        )


# -- the sinks --------------------------------------------------------------------------------------------------------


def last_epochs(task: TaskTry, without: Collection[str]) -> dict[str, LastEpoch | None]:
    """What every sink of today's DAG shows. If a sink is left out, another pipeline's marker in it does not count."""
    return {sink.name: _last_epoch(sink, task, sink.name in without) for sink in task.pipeline.sinks}


def _last_epoch(sink: Sink, task: TaskTry, left_out: bool) -> LastEpoch | None:
    """What the sink shows. A sink that cannot tell where its last epoch ended shows its marker alone."""
    with located(task.pipeline.name, sink=sink.name):
        if isinstance(sink, Positioned):
            found = sink_calls.last_epoch_of(sink, task.pipeline.name, task.env)
            return None if found and found.elsewhere and left_out else found
        marker = sink_calls.marker_of(sink, task.pipeline.name, task.env)
        return LastEpoch(marker=marker) if marker else None


def is_fence(each: LastEpoch | None) -> bool:
    """Whether a sink shows a fence, which has no rows of the epoch."""
    return each is not None and each.marker.is_fence


def newest_epoch(shows: LastEpochs) -> int:
    """The newest epoch that a sink shows; at least one shows one. A fence counts only if there is nothing else."""
    there = [each for each in shows.values() if each]
    return max(each.marker.epoch for each in [each for each in there if not is_fence(each)] or there)


def lacks_newest(shows: LastEpochs) -> frozenset[str]:
    """The sinks that do not show the newest epoch, or only a fence where another one shows an epoch."""
    newest, only_fences = newest_epoch(shows), all(map(is_fence, filter(None, shows.values())))
    return frozenset(
        name
        for name, each in shows.items()
        if not each or each.marker.epoch < newest or (is_fence(each) and not only_fences)
    )


def in_words(each: LastEpoch | None) -> str:
    """What a sink shows."""
    if each is None:
        return "none"
    return f"the fence of epoch {each.marker.epoch}" if is_fence(each) else f"epoch {each.marker.epoch}"


def listed(shows: LastEpochs) -> str:
    """Each sink and its epoch, in words."""
    return ", ".join(f"{name} {in_words(each)}" for name, each in shows.items())


# -- the ledger -------------------------------------------------------------------------------------------------------


def newest_without_gap(completed: frozenset[int], base: int) -> int:
    """The newest of the epochs that are complete without a gap. Up to ``base`` a gap is known."""
    newest = base
    while newest + 1 in completed:
        newest += 1
    return newest


def is_behind(ledger: Ledger, newest: int, shows: LastEpochs) -> bool:
    """Whether a sink shows an epoch that the ledger does not have, not even in doubt.

    Args:
        ledger: The ledger.
        newest: As ``newest_without_gap`` says of it.
        shows: What the sinks show.
    """
    later = [each.marker for each in shows.values() if each and each.marker.epoch > newest]
    return any(marker.epoch > newest + 1 or not _is_in_doubt(ledger, newest + 1, marker) for marker in later)


def _is_in_doubt(ledger: Ledger, number: int, marker: Marker) -> bool:
    """Whether the epoch is in doubt in this ledger with what the sink shows: the next run completes it."""
    try:
        view = ledger.view(number)
    except Corrupt as error:
        if error.code is codes.LEDGER_RECORD_LOST:
            return False
        raise
    return view.state is State.IN_DOUBT and agree(marker, view.opened.txn_id)
