"""What is said of a pipeline that would read again, or leave out, what it has read under another name."""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import ByInterval, Position, Stateful, is_by_interval
from airflow_epochs.coordinator.former_names.former_pipelines import Former, Partition, Rows, ending
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.model import starts_of

_CLEAR = "Then clear the failed task."


def read_again(task: TaskTry, epoch: int, former: Former, rows: Rows, at: Partition, now: Position) -> Refused:
    """The error for input that complete epochs of ``former`` have read."""
    what = (
        f"It has read {_named(at)} up to offset {rows.ends(now)[at]}, and written to the place of the sink "
        f"{rows.sink!r}: {secrecy.shown(rows.place)}. This pipeline would read that again, from offset "
        f"{starts_of(now.ranges)[at]}, and write each row once more."
    )
    on = _GoingOn(task, epoch, former, now).told()
    return _refused(task, epoch, former, rows.sink, what, _remedy(task, epoch, former, on))


def unfinished(task: TaskTry, epoch: int, former: Former, rows: Rows, at: Partition, now: Position) -> Refused:
    """The error for input that an unfinished epoch of ``former`` has, whose rows are there, or may come."""
    what = (
        f"Its epoch {rows.until.txn_id.epoch}, which is {_state(former)}, has {_named(at)} up "
        f"to offset {rows.ends(now)[at]}, and writes to the place of the sink {rows.sink!r}: "
        f"{secrecy.shown(rows.place)}. This pipeline would read {_named(at)} from offset {starts_of(now.ranges)[at]}."
    )
    return _refused(task, epoch, former, rows.sink, what, _remedy_of_unfinished(task, epoch, former, rows, now))


def left_out(task: TaskTry, former: Former, left: Mapping[Partition, tuple[int, int]], now: Position) -> Refused:
    """The error for input that ``former`` has not read, and that the new pipeline would skip."""
    count, at = sum(start - end for end, start in left.values()), next(iter(left))
    rows = next(each for each in (*former.rows, *former.coming) if each.ends(now).get(at) == left[at][0])
    what = (
        f"It has read {_named(at)} up to offset {left[at][0]}, and written to the place of the sink {rows.sink!r}: "
        f"{secrecy.shown(rows.place)}. This pipeline would begin at offset {left[at][1]}. No pipeline would read the "
        f"offsets in between, {count} in all."
    )
    on = _GoingOn(task, 1, former, now).told(f"no pipeline reads these {count} offsets")
    return _refused(task, 1, former, rows.sink, what, _remedy(task, 1, former, on))


def may_come_back(
    task: TaskTry,
    former: Former,
    own: Mapping[Partition, int],
    gone: Mapping[Partition, tuple[int, int]],
    now: Position,
) -> Refused:
    """The error for a new pipeline that would read nothing again, while ``former`` is not ended.

    Args:
        task: Of the new pipeline.
        former: The other one.
        own: Where it ended.
        gone: From where to where, half-open, the source has no records any more, and neither of the two has read them.
        now: The input of the new one.
    """
    at, rows = next((at, rows) for at in own for rows in former.rows if rows.ends(now).get(at) == own[at])
    named = ", ".join(f"{_named(at)} [{end}, {start})" for at, (end, start) in sorted(gone.items()))
    lost = f"The source has no records any more that neither has read: {named}. " if gone else ""
    what = (
        f"It has read {_named(at)} up to offset {own[at]}, and written to the place of the sink {rows.sink!r}: "
        f"{secrecy.shown(rows.place)}. This pipeline would begin at offset {starts_of(now.ranges)[at]}. {lost}But "
        f"nobody has ended pipeline {former.name!r}. If it came back, it would read again what this one has read, and "
        "write each row once more."
    )
    return _refused(task, 1, former, rows.sink, what, _remedy(task, 1, former, ""))


def _refused(task: TaskTry, epoch: int, former: Former, sink: str, what: str, remedy: str) -> Refused:
    return Refused(
        f"{_begins(task, epoch)} {_who(former)} {what} Nothing was read or written.",
        code=codes.PIPELINE_RENAMED,
        remedy=remedy if former.believed else _with_its_key(former),
        pipeline=task.pipeline.name,
        sink=sink,
    )


def _named(at: Partition) -> str:
    return f"{at[0]}[{at[1]}]"


def _state(former: Former) -> str:
    return "open" if former.is_open else "in doubt"


def _begins(task: TaskTry, epoch: int) -> str:
    if epoch == 1:
        return "The pipeline is new in this ledger."
    by = task.ledger.takeovers()[-1]
    return f"{by.who} handed the pipeline to DAG {by.dag_id!r} at {by.at}, and it has completed no epoch since."


def _who(former: Former) -> str:
    by = "" if former.believed else " Its records are signed with a key that the ledger's connection does not have."
    if former.ended:
        return f"DAG {former.dag_id!r} had a pipeline {former.name!r}, which was ended.{by}"
    if former.is_ours:
        return f"DAG {former.dag_id!r} had a pipeline {former.name!r}, which is not in the DAG any more.{by}"
    return f"DAG {former.dag_id!r} has a pipeline {former.name!r} with the same transform.{by}"


# -- remedies ---------------------------------------------------------------------------------------------------------


def _remedy(task: TaskTry, epoch: int, former: Former, on: str) -> str:
    """The remedy. ``on``: how to go on after its rows."""
    return (
        f"{_old_name(task, epoch, former)} {_CLEAR} {_only_if(task, former)}type `{ending(former.name)}`: no DAG runs "
        f"pipeline {former.name!r} any more. {on}{_CLEAR}"
    )


def _remedy_of_unfinished(task: TaskTry, epoch: int, former: Former, rows: Rows, now: Position) -> str:
    number = rows.until.txn_id.epoch
    back = (
        f"{_old_name(task, epoch, former)} {_CLEAR} Epoch {number} of pipeline {former.name!r} is {_state(former)}, so "
        "keep that name at least until it is complete."
    )
    if not former.is_open:
        return back
    end = "" if former.ended else f"type `{ending(former.name)}`, then "
    on = _GoingOn(task, epoch, former, now).told() if former.rows else ""
    return (
        f"{back} {_only_if(task, former)}{end}type `airflow epochs abort {former.name} --why …`: the run of epoch "
        f"{number} can do nothing more. {on}{_CLEAR}"
    )


def _old_name(task: TaskTry, epoch: int, former: Former) -> str:
    """How the former pipeline goes on in today's DAG."""
    taken = f"airflow epochs takeover {former.name} --dag-id {task.pipeline.dag_id} --why …"
    over = "" if former.is_ours and not former.ended else f", and type `{taken}`"
    its = "its old name" if epoch == 1 else "the name"
    back = f"ive the pipeline {its} {former.name!r} again in the DAG{over}: it goes on where it ended."
    if former.is_ours:
        return f"G{back}"
    return (
        f"Give this pipeline a function of its own in `transform`, or another table or topic, if DAG {former.dag_id!r} "
        f"goes on. {_CLEAR} If DAG {former.dag_id!r} was renamed to this one: g{back}"
    )


def _only_if(task: TaskTry, former: Former) -> str:
    name = task.pipeline.name
    if former.is_ours:
        return f"Only if it is to have the name {name!r}, or is another pipeline, "
    return (
        f"Only if it is to have the name {name!r}, and DAG {former.dag_id!r} does not run pipeline {former.name!r} any "
        "more, "
    )


def _with_its_key(former: Former) -> str:
    return (
        "Set the password of the ledger's connection to the new key, a comma and the old key, which has signed the "
        f"records of pipeline {former.name!r}. Or, if the old key is lost, type `airflow epochs sign {former.name} "
        f"--why …`, which accepts these records as they are. {_CLEAR} `open` then says how to go on."
    )


class _GoingOn:
    """How the pipeline goes on after the rows of a former one, which has some."""

    def __init__(self, task: TaskTry, epoch: int, former: Former, now: Position) -> None:
        self.task, self.epoch, self.now = task, epoch, now
        assert former.newest
        self.newest = former.newest
        self.behind = [each for each in former.rows if each.until.txn_id.epoch < self.newest.until.txn_id.epoch]

    def told(self, otherwise: str = "") -> str:
        """``otherwise``: what happens without that, if no row is read again. Empty for a pipeline with state."""
        if any(isinstance(sink, Stateful) for sink in self.task.pipeline.sinks):
            return ""
        source = self.task.pipeline.source
        if self.epoch > 1:
            how = self._by_command()
        elif is_by_interval(source):
            how = self._by_time(source)
        else:
            how = f"To go on after its rows, also set `starting` of the source to {self._offsets()}"
        otherwise = otherwise or ("all rows are read again" if self.epoch == 1 else "they are read again")
        return f"{how}; else {otherwise}. {self._other_topics()}{self._behind()}"

    def _offsets(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for (topic, partition), end in sorted(self.newest.ends(self.now).items()):
            found.setdefault(topic, {})[str(partition)] = end
        return found

    def _by_command(self) -> str:
        return (
            f"To go on after its rows, also write {json.dumps(self._offsets())} into a file, and type `airflow epochs "
            f"skip {self.task.pipeline.name} --offsets FILE --why …`"
        )

    def _by_time(self, source: ByInterval) -> str:
        until = source.read_until(self.newest.until.source_state)
        if until is None:
            return (
                "To go on after its rows, also set `starting` of the source to the time of the first records behind "
                f"these offsets: {self._offsets()}"
            )
        return (
            f'To go on after its rows, also set `starting` of the source to "{until.isoformat()}", and delete the runs '
            "of earlier data intervals. Records that came late for these are not read"
        )

    def _other_topics(self) -> str:
        others = sorted(self.now.ranges.keys() - self._offsets().keys())
        if not others or self.epoch > 1:
            return ""
        return f"It has not read the topic {', '.join(others)} that is there now, which begins at its oldest record. "

    def _behind(self) -> str:
        return "".join(
            f"The place of sink {each.sink!r} has its rows up to epoch {each.until.txn_id.epoch} alone. "
            for each in self.behind
        )
