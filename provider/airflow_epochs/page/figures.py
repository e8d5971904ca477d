"""Figures of epochs for bars and charts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from airflow_epochs.ledger.overview import seconds_of
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import ACKNOWLEDGE_CODE
from airflow_epochs.page.render import instant
from airflow_epochs.protocol import State

PHASES = ("open", "stage", "vote", "commit", "complete")


@dataclass(frozen=True)
class Bars:
    """How long the phases of an epoch took.

    Attributes:
        phases: Phase -> its part of the longest epoch on the page, in percent, and its seconds.
        total: Seconds; None if they were not measured.
        aborts: How many attempts were aborted.
    """

    phases: dict[str, tuple[float, float]]
    total: float | None
    aborts: int

    @classmethod
    def of(cls, views: Sequence[EpochView]) -> list[Bars]:
        """The bars of the epochs on a page."""
        measured = [_phases(view) for view in views]
        longest = max((sum(each.values()) for each in measured), default=0.0) or 1.0
        return [
            cls(
                phases={phase: (100 * took / longest, took) for phase, took in each.items()},
                total=sum(each.values()) if each else None,
                aborts=_aborts(view),
            )
            for view, each in zip(views, measured, strict=True)
        ]


def _phases(view: EpochView) -> dict[str, float]:
    """Phase -> seconds. Sinks commit side by side: the longest counts."""
    steps = seconds_of(view.complete) if view.complete else {}
    found = {phase: steps[phase] for phase in PHASES if phase in steps}
    if commits := [took for step, took in steps.items() if step.startswith("commit.")]:
        found["commit"] = max(commits)
    return {phase: found[phase] for phase in PHASES if phase in found}


def _aborts(view: EpochView) -> int:
    """An operator's command is an attempt, too, and counts as aborted; but it is no failure."""
    if view.complete:
        commands = sum(command.name != ACKNOWLEDGE_CODE for command in view.complete.commands)
        return view.complete.txn_id.attempt - 1 - commands
    commands = 1 if view.opened.obeys else 0
    return view.opened.txn_id.attempt - commands - (0 if view.state is State.ABORTED else 1)


@dataclass(frozen=True, kw_only=True)
class Charted:
    """A point in each chart: a complete epoch. What was not measured is None.

    Attributes:
        at: When it was completed, in seconds since 1970.
        left: As in ``Backlog.offsets``.
        waited: As in ``Backlog.seconds``.
    """

    at: float
    epoch: int
    rows: int
    seconds: float | None
    rate: float | None
    left: int | None
    waited: float | None

    @classmethod
    def of(cls, view: EpochView) -> Charted | None:
        """The point of an epoch; None if it is not complete."""
        if view.complete is None or (at := instant(view.complete.completed_at)) is None:
            return None
        rows = sum(receipt.rows for receipt in view.complete.receipts.values())
        took = sum(_phases(view).values()) or None
        backlog = view.complete.backlog
        return cls(
            at=at.timestamp(),
            epoch=view.number,
            rows=rows,
            seconds=took,
            rate=rows / took if took else None,
            left=backlog.offsets if backlog else None,
            waited=backlog.seconds if backlog else None,
        )


def charts(views: Iterable[EpochView]) -> dict[str, list[Any]]:
    """Columns for the charts, oldest epoch first; without columns that have no value in any epoch."""
    points = [point for view in views if (point := Charted.of(view))]
    columns = {each.name: [getattr(point, each.name) for point in reversed(points)] for each in fields(Charted)}
    return {name: values for name, values in columns.items() if any(value is not None for value in values)}
