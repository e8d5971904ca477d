"""Backfill: a sink that is new to its pipeline takes the input of earlier epochs together with its first epoch.

The protocol does not know of backfills. The open record holds the sink's own ranges: they start where the earlier epoch
started and end where this epoch ends. So the sink's rows are staged, voted on and committed like all others.

Rows that depend on state or on a watermark must come out as in their own epoch. So with state or event time the
transform runs once for each epoch, with the input, the state, the watermarks, ``now`` and ``seed`` that this epoch had.
All these are facts of open records. One Spark job stages what all the runs return.

It does so in any pipeline for a sink whose later rows replace earlier ones by their keys: only the epochs tell which of
two rows is the later one. Where that is impossible, such a sink takes all epochs as one, and a key that two of them
share may abort it. That is no reason to refuse it, because it works if they share no key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import PlannedEpoch, Position, Stateful, Versioned, replaces_by
from airflow_epochs.coordinator import state_tables
from airflow_epochs.coordinator.former_names import renamed_sink
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, Refused, with_more
from airflow_epochs.model import (
    CompleteRecord,
    OpenRecord,
    Ranges,
    SinkPlan,
    TransactionId,
    Vote,
    VoteKind,
    records_upper_bound,
    starts_of,
)

log = secrecy.logger(__name__)

REPLAYED_MAX = 100
"""How many earlier epochs a backfill may replay: Spark plans all of them as one job."""

_WITHOUT_BACKFILL = (
    "If only rows of earlier epochs are the cause, you may let `backfill` name a later epoch, or remove the sink from "
    "it: the sink then begins with this epoch, and lacks the rows of those before. Then clear the failed task."
)


def with_backfill(
    task: TaskTry,
    plans: dict[str, SinkPlan],
    epoch: int,
    planned: PlannedEpoch,
    *,
    known: Collection[str],
    moved: bool,
) -> dict[str, SinkPlan]:
    """``plans`` for an attempt of ``epoch``, with the wider ranges of sinks that the pipeline backfills.

    Only a sink that shows no epoch yet is backfilled. One in ``known`` may have the rows and lack only the marker: it
    had epochs before, or is taken as it is. ``planned`` is the input of ``epoch``; ``moved``: whether a command moved
    it.

    Raises:
        Refused: The epoch to begin with does not exist yet, or the earlier epochs cannot be replayed. Nothing was
            opened.
        Corrupt: Some of the earlier input, or of its state, cannot be read any more; says which. Nothing was opened.
    """
    return {
        name: _backfilled(task, name, plan, epoch, planned, moved)
        if name not in known and shows_no_epoch(task, name, plan.previous, epoch)
        else plan
        for name, plan in plans.items()
    }


def shows_no_epoch(task: TaskTry, sink: str, previous: TransactionId | None, epoch: int) -> bool:
    """Whether a sink without an epoch in the ledger shows no epoch. ``previous``: what it shows before ``epoch``.

    A fence is no epoch: it stands for an epoch that was waived, and never landed.
    """
    before = task.ledger.complete_record(epoch - 1) if previous else None
    return previous is None or (before is not None and previous not in before.may_show(sink))


def _backfilled(task: TaskTry, sink: str, plan: SinkPlan, epoch: int, planned: PlannedEpoch, moved: bool) -> SinkPlan:
    first = task.pipeline.backfill.get(sink, epoch)
    if first > epoch:
        raise Refused(
            f"`backfill` lets sink {sink!r} begin with epoch {first}, but the run is opening epoch {epoch}.",
            code=codes.BACKFILL_TOO_LATE,
            remedy=f"Let `backfill` name epoch {epoch} or an earlier one, or remove the sink from `backfill`: the sink "
            f"then begins with epoch {epoch}. Then clear the failed task.",
            pipeline=task.pipeline.name,
            epoch=epoch,
            sink=sink,
        )
    if first == epoch:
        return plan
    renamed_sink.require_new_rows(task, task.pipeline.sink(sink), epoch)
    _require_known(task, sink, first, epoch)
    _require_contiguous(task, sink, first, epoch, moved)
    wide = widened(planned.ranges, _earlier(task, first, epoch, planned))
    replays = depends_on_epochs(task)
    try:
        earlier = _replayable(task, sink, first, epoch) if replays else _replaced(task, sink, first, epoch, planned)
        require_input(task, wide, planned, earlier)
    except Corrupt as gone:
        raise Corrupt(
            f"Sink {sink!r} cannot begin with epoch {first}. {gone.what}",
            code=codes.BACKFILL_GONE,
            remedy="Let `backfill` name a later epoch that still has everything it needs, or remove the sink from "
            f"`backfill`: the sink then begins with epoch {epoch}. Then clear the failed task.",
            pipeline=task.pipeline.name,
            epoch=epoch,
            sink=sink,
        ) from gone
    log.info("sink %s begins with epoch %s: %s offsets to read", sink, first, records_upper_bound(wide))
    return replace(plan, ranges=wide, replayed_from=first if replays or earlier else None, backfilled_from=first)


def _require_contiguous(task: TaskTry, sink: str, first: int, epoch: int, moved: bool) -> None:
    """Raise Refused if a command moved the input between ``first`` and ``epoch``: no range covers both sides."""
    before = task.ledger.complete_record(epoch - 1)
    since = epoch if moved else before.moved_in if before else 0
    if first < since:
        raise Refused(
            f"`backfill` lets sink {sink!r} begin with epoch {first}. A command moved the input in "
            f"epoch {since}, so the offsets of the epochs before do not lead up to it.",
            code=codes.BACKFILL_MOVED,
            remedy=f"Let `backfill` name epoch {since} or a later one. Then clear the failed task.",
            pipeline=task.pipeline.name,
            epoch=epoch,
            sink=sink,
        )


def _require_known(task: TaskTry, sink: str, first: int, epoch: int) -> None:
    """Raise Refused if the ledger was rebuilt, and does not know the input of the epochs from ``first`` on."""
    rebuilt = task.ledger.rebuilt()
    if rebuilt and first < rebuilt.backfill_from:
        raise Refused(
            f"`backfill` lets sink {sink!r} begin with epoch {first}, but the ledger was rebuilt at epoch "
            f"{rebuilt.epoch}, and does not know the input of epochs before {rebuilt.backfill_from}.",
            code=codes.BACKFILL_UNKNOWN,
            remedy=f"Let `backfill` name epoch {rebuilt.backfill_from} or a later one, or remove the sink from "
            f"`backfill`: the sink then begins with epoch {epoch}. Then clear the failed task.",
            pipeline=task.pipeline.name,
            epoch=epoch,
            sink=sink,
        )


def explained(opened: OpenRecord, votes: Mapping[str, Vote]) -> dict[str, Vote]:
    """The votes. Each VOTE_ABORT of a backfilled sink also says so, and how to go on without the backfill."""
    return {name: _explained(opened.sinks[name], vote) for name, vote in votes.items()}


def _explained(plan: SinkPlan, vote: Vote) -> Vote:
    if plan.ranges is None or vote.vote is not VoteKind.VOTE_ABORT:
        return vote
    as_one = " as the rows of one epoch" if plan.replayed_from is None else ""
    cause = f"`backfill` gives the sink the rows of earlier epochs together with this one's{as_one}."
    return replace(vote, reason=with_more(vote.reason or "", cause, _WITHOUT_BACKFILL))


# -- epochs that are replayed ----------------------------------------------------------------------------------------


def depends_on_epochs(task: TaskTry) -> bool:
    """Whether the rows that the transform returns may depend on the epoch whose input it gets."""
    return task.pipeline.event_time is not None or any(isinstance(sink, Stateful) for sink in task.pipeline.sinks)


def _replayable(task: TaskTry, sink: str, first: int, epoch: int) -> list[OpenRecord]:
    """As ``replayed``. Raises Refused or Corrupt unless the transform can be run with each one's state."""
    if why := _not_together(task, sink, epoch - first):
        raise Refused(
            f"`backfill` lets sink {sink!r} begin with epoch {first}, and the run is opening epoch {epoch}. {why}",
            code=codes.BACKFILL_WITH_STATE,
            pipeline=task.pipeline.name,
            epoch=epoch,
            sink=sink,
        )
    states = [each.name for each in task.pipeline.sinks if isinstance(each, Stateful)]
    earlier = replayed(task, first, epoch)
    for opened in earlier:
        if missing := [name for name in states if name not in opened.state]:
            raise _gone(task, opened.txn_id.epoch, f"read no state {missing[0]!r}, which the pipeline has today")
        state_tables.reads(task, opened)
    _require_marks(task, sink, earlier, epoch)
    return earlier


def _require_marks(task: TaskTry, sink: str, earlier: Sequence[OpenRecord], epoch: int) -> None:
    """Raise Refused if an epoch was opened with a smaller ``depth``: what each operator closed in it is not known.

    An operator may stand further behind today, and the record has no watermark for that place.
    """
    unknown = [opened for opened in earlier if _lacks_marks(task, opened)]
    if not unknown:
        return
    first = unknown[-1].txn_id.epoch + 1
    later = f"Let `backfill` name epoch {first} or a later one, or remove" if first < epoch else "Remove"
    raise Refused(
        f"`backfill` lets sink {sink!r} begin with epoch {earlier[0].txn_id.epoch}. EventTime of the pipeline has "
        f"depth={_depth(task)}, and epoch {unknown[-1].txn_id.epoch} was opened with depth="
        f"{len(unknown[-1].watermarks) - 1}: so what each operator would have closed in it is not known. Nothing was "
        "opened.",
        code=codes.BACKFILL_WITH_STATE,
        remedy=f"{later} the sink from `backfill`: it then begins with epoch {epoch}. Then clear the failed task.",
        pipeline=task.pipeline.name,
        epoch=epoch,
        sink=sink,
    )


def _lacks_marks(task: TaskTry, opened: OpenRecord) -> bool:
    told = state_tables.closed_in(task.ledger.complete_record(opened.txn_id.epoch))
    return 0 < len(opened.watermarks) <= _depth(task) and bool(opened.state) and not told


def _depth(task: TaskTry) -> int:
    return task.pipeline.event_time.depth if task.pipeline.event_time else 0


def _replaced(task: TaskTry, sink: str, first: int, epoch: int, planned: PlannedEpoch) -> list[OpenRecord]:
    """As ``replayed``, for a sink whose later rows replace earlier ones; empty if the sink takes all epochs as one."""
    if not replaces_by(task.pipeline.sink(sink)):
        return []
    why = _not_together(task, sink, epoch - first)
    if why is None:
        try:
            earlier = replayed(task, first, epoch)
            require_input(task, planned.ranges, planned, earlier)
        except (Corrupt, Refused) as gone:  # Refused: for example, the user may not read a topic that was taken out
            why = gone.what
        else:
            return earlier
    log.warning("sink %s takes epochs %s to %s as one, in which no key may come twice. %s", sink, first, epoch, why)
    return []


def require_input(task: TaskTry, ranges: Ranges, planned: PlannedEpoch, earlier: Sequence[OpenRecord]) -> None:
    """Raise Corrupt unless what a sink reads can still be read. Reads only.

    Args:
        task: The try of the task.
        ranges: All that the sink reads.
        planned: The input of the epoch.
        earlier: The epochs that are replayed for the sink: the transform gets the input of each one by itself.
    """
    source = task.pipeline.source
    if earlier and isinstance(source, Versioned):
        inputs = [PlannedEpoch(ranges=each.ranges, state=each.source_state) for each in earlier]
        source.check_each([*inputs, planned], task.env)
        return
    for each in (PlannedEpoch(ranges=ranges, state=planned.state), *_taken_out(ranges, earlier)):
        source.check(each.ranges, each.state, task.env)


def _taken_out(ranges: Ranges, earlier: Sequence[OpenRecord]) -> Iterable[PlannedEpoch]:
    """What the epochs together read of topics that ``ranges`` lacks: these were taken out of the source since."""
    found = set(ranges)
    for last in reversed(earlier):
        gone = {topic: of for topic, of in last.ranges.items() if topic not in found}
        if gone:
            yield PlannedEpoch(ranges=widened(gone, [each.ranges for each in earlier]), state=last.source_state)
        found |= gone.keys()


def require_input_of(task: TaskTry, opened: OpenRecord, sink: str) -> None:
    """Raise Corrupt unless what a sink of an attempt reads can still be read. Reads only."""
    first = opened.sinks[sink].replayed_from
    earlier = [] if first is None else replayed(task, first, opened.txn_id.epoch)
    planned = PlannedEpoch(ranges=opened.ranges, state=opened.source_state)
    require_input(task, opened.ranges_of(sink), planned, earlier)


def _not_together(task: TaskTry, sink: str, earlier: int) -> str | None:
    if replaces_by(task.pipeline.sink(sink)) is None:
        return "A sink of its mode takes each epoch by itself."
    if earlier > REPLAYED_MAX:
        return f"These are {earlier} epochs, and one Spark job replays at most {REPLAYED_MAX}."
    return None


def replayed(task: TaskTry, first: int, epoch: int) -> list[OpenRecord]:
    """The attempts that completed the epochs from ``first`` up to ``epoch``, without ``epoch``.

    Those that only brought earlier versions of tables back are left out: their sinks got no rows.

    Raises:
        Corrupt: The record of one of them is gone, or reads less than a backfill of its epoch has to.
    """
    attempts = [_whole(task, number) for number in range(first, epoch)]
    return [opened for opened in attempts if not opened.restored_to]


def _whole(task: TaskTry, number: int) -> OpenRecord:
    opened, complete = _completed(task, number)
    if not begins_as(opened, complete.ranges):
        raise _gone(task, number, "was rebuilt `--without` a sink, and its open record lacks rows that this sink lacks")
    return opened


def completed_by(task: TaskTry, number: int) -> OpenRecord:
    """The attempt that completed the epoch.

    Raises:
        Corrupt: Its record is gone.
    """
    return _completed(task, number)[0]


def _completed(task: TaskTry, number: int) -> tuple[OpenRecord, CompleteRecord]:
    complete = task.ledger.complete_record(number)
    opened = task.ledger.open_record(number, complete.txn_id.attempt) if complete else None
    if complete is None or opened is None:
        raise _gone(task, number, "has no open record any more: it was pruned (`keep_epochs`)")
    if opened.txn_id != complete.txn_id:
        raise _gone(task, number, "was rebuilt, and its open record belongs to another transaction")
    return opened, complete


def begins_as(opened: OpenRecord, ranges: Ranges) -> bool:
    """Whether the attempt begins where ``ranges`` do. A rebuilt epoch may begin where a sink left out had ended."""
    return starts_of(opened.ranges) == starts_of(ranges)


def _gone(task: TaskTry, number: int, what: str) -> Corrupt:
    return Corrupt(
        f"Epoch {number} {what}.",
        code=codes.BACKFILL_GONE,
        pipeline=task.pipeline.name,
        epoch=number,
    )


# -- the input of all of them ----------------------------------------------------------------------------------------


def _earlier(task: TaskTry, first: int, epoch: int, planned: PlannedEpoch) -> Iterable[Ranges]:
    now = Position(ranges=planned.ranges, state=planned.state)
    for number in range(first, epoch):
        if record := task.ledger.complete_record(number):  # always true from ``RebuiltRecord.backfill_from`` on
            yield Position.of(record).named_as_in(now)


def widened(ranges: Ranges, earlier: Iterable[Ranges]) -> Ranges:
    """``ranges``, where each partition starts as in the first of ``earlier`` that has it.

    Ranges are half-open, and each epoch starts where the one before ended. So the result is what all these epochs read
    together. ``earlier`` has the oldest epoch first; it is read only until every partition is found.
    """
    missing = {(topic, r.partition) for topic in ranges for r in ranges[topic]}
    starts: dict[tuple[str, int], int] = {}
    for before in earlier:
        found = {(topic, r.partition): r.start for topic in before for r in before[topic]}
        starts |= {key: found[key] for key in missing & found.keys()}
        missing -= found.keys()
        if not missing:
            break
    return {
        topic: tuple(r._replace(start=starts.get((topic, r.partition), r.start)) for r in ranges[topic])
        for topic in ranges
    }
