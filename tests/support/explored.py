"""How much the exhaustive models have seen, told at the end of a session, also of one on several workers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from schedules import Exploration

EXPLORED = "explored"
"""The property of a test's report."""

Counts = tuple[int, int, int, float]


def explored(exploration: Exploration) -> Counts:
    return exploration.states, exploration.transitions, exploration.worlds, float(exploration.schedules)


def summary(reports: Iterable[pytest.TestReport]) -> str | None:
    """One line about all explorations of the session; None if there were none."""
    seen = [value for report in reports for name, value in report.user_properties if name == EXPLORED]
    if not seen:
        return None
    states, steps, worlds, schedules = (sum(column) for column in zip(*seen, strict=True))  # type: ignore[arg-type]
    return (
        f"two actors, exhaustively: {len(seen)} models, {states:,} states, {steps:,} steps, {worlds:,} worlds in each "
        f"of which both died, {schedules:.1e} schedules"
    )
