"""``vote=``: a function of the user's own, which is asked before an epoch is decided.

It sees what was staged, where no reader sees it yet. It is asked last, when every sink has voted VOTE_COMMIT. What it
says against an epoch aborts it in every sink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_epochs.model import JsonDict, Ranges

FUNCTION = "vote="
"""How the reason begins if the function made the decision. No sink can have this name."""
TEXT_LENGTH_MAX = 2_000
"""The longest text that is kept of what the function says: it stands in the ledger, and travels through XCom."""


@dataclass(frozen=True, kw_only=True)
class Ballot:
    """An epoch that waits for its decision.

    Attributes:
        pipeline: The pipeline's name.
        epoch: The epoch, from 1.
        attempt: The attempt of the epoch, from 1.
        ranges: Topic -> the offsets that the epoch reads, half-open.
        rows: Sink -> how many rows are staged for it.
        rows_before: Sink -> how many rows it got in the epoch before. A sink that was not in it is left out.
        places: Sink -> the path or URL of a Delta table with the staged rows. It exists until the epoch is complete or
            aborted. Reading it needs the credentials of its store.
        metrics: What the stage task measured: ``rows_in`` and ``max_timestamp`` with ``measure_input``, ``broken`` with
            ``expectations``.
    """

    pipeline: str
    epoch: int
    attempt: int
    ranges: Ranges
    rows: Mapping[str, int]
    rows_before: Mapping[str, int]
    places: Mapping[str, str]
    metrics: JsonDict = field(default_factory=dict)


VoteFunction = Callable[[Ballot], object]
"""A function that returns why the epoch must not be shown; None if it may be."""
