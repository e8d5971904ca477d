"""How much the models have seen, told at the end of a session, also of one on several workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.support.schedules import Exploration

EXPLORED = "explored"
"""The property of the report of a test that explored every schedule."""

SCHEDULED = "scheduled"
"""The property of the report of a test that drew schedules at random."""

Counts = tuple[int, int, int, float]


def explored(exploration: Exploration) -> Counts:
    return exploration.states, exploration.transitions, exploration.worlds, float(exploration.schedules)


def summary(reports: Iterable[pytest.TestReport]) -> Iterator[str]:
    """A line about all explorations of the session, and one about all random schedules."""
    properties: list[tuple[str, Any]] = [each for report in reports for each in report.user_properties]
    if seen := [value for name, value in properties if name == EXPLORED]:
        states, steps, worlds, schedules = (sum(column) for column in zip(*seen, strict=True))
        yield (
            f"every schedule of two actors: {len(seen)} models, {states:,} states, {steps:,} steps, {worlds:,} worlds "
            f"in each of which both died, {schedules:.1e} schedules"
        )
    if drawn := [value for name, value in properties if name == SCHEDULED]:
        seeds = " ".join(sorted({f"EPOCHS_SEED={counts['seed']}" for counts in drawn}))
        total = Counter[str]()
        for counts in drawn:
            total.update({name: count for name, count in counts.items() if name != "seed"})
        yield f"random schedules: {', '.join(f'{name} {count:,}' for name, count in sorted(total.items()))}; {seeds}"
