"""What is left of a command if others are typed before the same epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from airflow_epochs.model.attempt import OpenRecord
from airflow_epochs.model.command import Command
from airflow_epochs.model.overlap import Spans, added, in_two
from airflow_epochs.model.ranges import OffsetRange, Ranges, ends_of


def obeyed(order: OpenRecord, later: Sequence[OpenRecord]) -> Command:
    """The command that ``order`` holds, as far as the epoch obeys it together with the commands of ``later`` attempts.

    What is lost or read again follows from where the newest command lets the epoch begin. What is lost is taken from
    the last command that counts it. What was lost behind the place where the command's own epoch would begin stays
    lost. A table goes back only if the newest command says so; a command that changes which tables go back has counted
    anew what is passed over. A time counts as long as some partition begins where the command has put it.
    """
    command = order.command
    assert command, "an attempt that holds a command"
    if not later:
        return command
    began, begins = ends_of(order.ranges), ends_of(later[-1].ranges)
    lost = in_two(command.lost, _lost_by(later))[0]
    passed = lost if later[-1].restores == order.restores else {}
    return replace(
        command,
        lost=added(
            _each(passed, lambda at, r: r._replace(end=min(r.end, begins.get(at, r.start))), later),
            _each(lost, lambda at, r: r._replace(start=max(r.start, began.get(at, r.end))), later),
        ),
        again=_each(command.again, lambda at, r: r._replace(start=max(r.start, begins.get(at, r.end))), later),
        lacks={sink: of for sink, of in command.lacks.items() if all(sink in each.adopted for each in later)},
        restores={
            sink: version
            for sink, version in command.restores.items()
            if all(sink in each.restores and each.restores[sink].version == version for each in later)
        },
        back_to=command.back_to if _holds(order, later) else "",
    )


def _lost_by(later: Sequence[OpenRecord]) -> Iterator[Spans]:
    commands = [each.command for each in later if each.command]
    return ({(topic, r.partition): r} for each in commands for topic, of in each.lost.items() for r in of)


def _each(
    ranges: Ranges, part: Callable[[tuple[str, int], OffsetRange], OffsetRange], later: Sequence[OpenRecord]
) -> Ranges:
    """A part of each range, without those that are empty then, and without topics that a later command has left."""
    left = {topic for each in later if each.command for topic in each.command.left}
    kept = {
        topic: tuple(kept for r in of if (kept := part((topic, r.partition), r)).start < kept.end)
        for topic, of in ranges.items()
        if topic not in left
    }
    return {topic: of for topic, of in kept.items() if of}


def _holds(order: OpenRecord, later: Sequence[OpenRecord]) -> bool:
    """Whether some partition still begins where the command has put it."""
    here = ends_of(order.ranges)
    return any(all(ends_of(each.ranges).get(at) == end for each in later) for at, end in here.items())
