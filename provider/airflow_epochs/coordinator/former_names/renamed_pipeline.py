"""A pipeline that has another name in the DAG now would write once more what its tables and topics have.

Ledger and markers go by names. So a pipeline that was renamed counts as new, and begins at the source's ``starting``.
One that comes back under its old name begins where it ended, though the one with the new name has gone on since.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_epochs.contracts import PlannedEpoch, Position, is_by_interval
from airflow_epochs.coordinator.former_names import wording
from airflow_epochs.coordinator.former_names.former_pipelines import Former, Partition, Rows, formers
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.model import OpenRecord, starts_of


def require_new_input(
    task: TaskTry, epoch: int, planned: PlannedEpoch, after: OpenRecord | None = None, starting: object = None
) -> None:
    """Raise Refused if the epoch reads again, or leaves out, what another pipeline has read for the same place.

    Also if that one may come back, and would then read again what this one reads.

    Only a pipeline's first epoch is looked at, and the first one after a takeover. The other one has left the DAG, or
    is in another DAG and has the same transform. Pipelines that stand in one DAG share the place on purpose.

    Args:
        task: Of the pipeline.
        epoch: The number of the epoch.
        planned: Its input.
        after: The attempt before. In a first epoch it was checked already, or is a command that says where to begin.
        starting: What the run says in place of the source's ``starting``; None: nothing.
    """
    is_first = epoch == 1 and after is None
    if task.pipeline.in_dag is None or not (is_first or _is_back(task, epoch)):
        return
    now = Position(ranges=planned.ranges, state=planned.state)
    found = formers(task, task.pipeline.in_dag)
    _require_unread(task, epoch, found, now)
    if is_first:
        _require_none_comes_back(task, found, now, is_earliest=_is_earliest(task, starting))


def _is_back(task: TaskTry, epoch: int) -> bool:
    """Whether the pipeline has completed no epoch that it opened since another DAG, or nobody, owned it."""
    last = next((each.epoch for each in reversed(task.ledger.takeovers())), None)
    return last is not None and epoch - 1 <= last


def _require_unread(task: TaskTry, epoch: int, found: Sequence[Former], now: Position) -> None:
    for former in found:
        for rows in former.coming:
            if again := _again(rows, now) or (_common(rows, now) if former.is_open else None):
                raise wording.unfinished(task, epoch, former, rows, again, now)
        for rows in () if former.ended else former.rows:
            if again := _again(rows, now):
                raise wording.read_again(task, epoch, former, rows, again, now)


def _again(rows: Rows, now: Position) -> Partition | None:
    """A partition that both read, where the new input begins before the end of the former one; None if there is none.

    A partition that the former pipeline has not read does not count.
    """
    ends = rows.ends(now)
    return next((at for at, start in starts_of(now.ranges).items() if start < ends.get(at, 0)), None)


def _common(rows: Rows, now: Position) -> Partition | None:
    return next((at for at in rows.ends(now) if at in starts_of(now.ranges)), None)


def _require_none_comes_back(task: TaskTry, found: Sequence[Former], now: Position, *, is_earliest: bool) -> None:
    """Raise Refused if a former pipeline of the DAG that read the same partitions has not been ended.

    It goes on at its end under its old name, and would read once more what the new one has read since.

    Args:
        task: Of the new pipeline.
        found: The former pipelines.
        now: The input of the new one.
        is_earliest: Whether that begins at the oldest record that there is. Then what is left out is gone.
    """
    starts, ends = starts_of(now.ranges), _furthest(found, now)
    for former in (each for each in found if each.is_ours and not each.ended):
        own = {at: end for at, end in _furthest([former], now).items() if at in starts}
        left = {at: (end, starts[at]) for at, end in own.items() if ends[at] == end < starts[at]}
        if under_way := [(rows, at) for rows in former.coming for at in own if at in rows.ends(now)]:
            raise wording.unfinished(task, 1, former, *under_way[0], now)
        elif left and not is_earliest:
            raise wording.left_out(task, former, left, now)
        elif own:
            raise wording.may_come_back(task, former, own, left, now)


def _furthest(found: Sequence[Former], now: Position) -> dict[Partition, int]:
    """Per partition, where the last of all former pipelines has ended."""
    ends: dict[Partition, int] = {}
    for each in (end for former in found for rows in (*former.rows, *former.coming) for end in rows.ends(now).items()):
        ends[each[0]] = max(each[1], ends.get(each[0], 0))
    return ends


def _is_earliest(task: TaskTry, starting: object) -> bool:
    source = task.pipeline.source
    if is_by_interval(source):
        return False  # the interval of the run says where the input begins
    return str(starting or source.spec().get("starting", "")).strip().lower() == "earliest"
