"""``airflow epochs rebuild``: where a pipeline goes on whose ledger was lost, or restored from an older copy.

Every sink stores transaction and end offsets with its commit. So the sinks know where the pipeline is, if they all show
the same transaction. The command puts two records: ``RebuiltRecord``, and the completion record of the newest epoch,
from which the next one goes on. The completion record comes last and puts the other one in force. So a command that was
killed has changed nothing that counts, and can be typed again.

The caller first shows the plan, and asks. Then the plan is made once more, and must be the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from airflow_epochs import codes
from airflow_epochs.config import Pipeline
from airflow_epochs.contracts import Ends, LastEpoch, LeavingOut, Positioned, Sink, Source, Stateful
from airflow_epochs.coordinator.admin import Account
from airflow_epochs.coordinator.backfill import depends_on_epochs
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, Refused, located
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import (
    CompleteRecord,
    JsonDict,
    Marker,
    OffsetRange,
    Ranges,
    RebuiltRecord,
    Run,
    TransactionId,
    Watermarks,
    agree,
    described_epochs,
    moved_in,
    starting_at_ends,
    starts_of,
)
from airflow_epochs.protocol import State
from airflow_epochs.spark.driver.event_times import instant

COMMAND = "airflow epochs rebuild"
"""Stands for the run in the completion record that the command puts."""
PRINTED_MAX = 20
"""How many partitions a plan prints."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What an operator says of the newest epoch.

    Attributes:
        ends: Where it ended; empty: not said.
        watermark: Its watermark, in microseconds since 1970; None: not said.
    """

    ends: Ends = field(default_factory=dict)
    watermark: int | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the command will record.

    Attributes:
        number: The number of the record, the next one.
        is_new: Whether the ledger does not have the pipeline: it is registered anew.
        newest: The newest epoch that the ledger has complete, without a gap before it; 0 if there is none.
        txn: The transaction that all sinks of ``shown`` show.
        shown: The sinks that the plan rests on.
        without: The sinks that are left out, with what they show.
        anew: Those of ``without`` that are state tables without rows: they begin anew.
        told: What an operator said because no sink knows it.
        ranges: The ranges of the newest epoch. They are empty, at its ends, if nobody knows where it began.
        source_state: What the source recorded with it; empty if it is not known.
        backfill_from: As in ``RebuiltRecord``.
        moved_in: As in ``CompleteRecord``, as far as it is known.
        carried: The markers of sinks that today's DAG does not have, as far as the ledger knows them.
        adopted_in: As in ``CompleteRecord``, as far as the ledger knows it.
    """

    pipeline: str
    dag_id: str
    number: int
    is_new: bool
    newest: int
    txn: TransactionId
    shown: Mapping[str, LastEpoch]
    without: Mapping[str, LastEpoch | None]
    anew: frozenset[str]
    told: Told
    ranges: Ranges
    source_state: JsonDict = field(default_factory=dict)
    backfill_from: int
    moved_in: int = 0
    carried: Mapping[str, str]
    adopted_in: Mapping[str, int] = field(default_factory=dict)


# -- the plan ---------------------------------------------------------------------------------------------------------


def plan(task: TaskTry, without: Collection[str] = (), told: Told | None = None) -> Plan | None:
    """What there is to record; None if no sink shows a later epoch than the ledger has. Changes nothing.

    Args:
        task: It has today's pipeline.
        without: The sinks that the rebuilding shall not rest on.
        told: What an operator says. Counts only where no sink stored it.

    Raises:
        Refused: The sinks do not show one transaction, or what they show is not enough; or the ledger has records that
            do not fit.
        Corrupt: The marker of a sink is of rows in another place.
    """
    with located(task.pipeline.name):
        return _plan(task, frozenset(without), told or Told())


def _plan(task: TaskTry, without: frozenset[str], told: Told) -> Plan | None:
    ledger, identity = task.ledger, task.ledger.identity()
    if identity:
        ledger.require_owned_by(task.pipeline.dag_id, identity)
    completed = ledger.epochs_completed()
    newest = _dense(completed, ledger.rebuilt_to)
    everything = {sink.name: _last_epoch(sink, task, sink.name in without) for sink in task.pipeline.sinks}
    if not _is_behind(ledger, newest, [each.marker for each in everything.values() if each]):
        return None
    _require_names(task, without, everything)
    shown = {name: each for name, each in everything.items() if name not in without and each}
    _require_own(shown)
    txn = _transaction(task.pipeline, everything, without)
    _require_whole_id(task.pipeline.sinks, shown)
    told = _needed(told, shown)
    _require_read(task.pipeline.source, told.ends)
    _require_recoverable(task, shown, newest, told)
    _require_fitting(ledger, txn, frozenset(shown), has_identity=identity is not None)
    anew = without & {sink.name for sink in task.pipeline.sinks if isinstance(sink, Stateful)}
    read = _input(ledger, completed, txn, shown, {name: everything[name] for name in without - anew}, told.ends)
    return Plan(
        pipeline=task.pipeline.name,
        dag_id=task.pipeline.dag_id,
        number=ledger.rebuildings() + 1,
        is_new=identity is None,
        newest=newest,
        txn=txn,
        shown=shown,
        without={name: everything[name] for name in sorted(without)},
        anew=anew,
        told=told,
        ranges=read.ranges,
        source_state=read.source_state,
        backfill_from=read.backfill_from if _is_backfilled(task, txn, read.ranges) else txn.epoch + 1,
        moved_in=read.moved_in,
        carried=_carried(ledger, newest, frozenset(everything)),
        adopted_in=_adopted_in(ledger, newest, txn),
    )


def _is_backfilled(task: TaskTry, txn: TransactionId, ranges: Ranges) -> bool:
    """Whether a backfill can have the newest epoch. With state or event time, its open record alone is replayed."""
    if not depends_on_epochs(task):
        return True
    opened = task.ledger.open_record(txn.epoch, txn.attempt)
    return opened is not None and opened.txn == txn and starts_of(opened.ranges) == starts_of(ranges)


def _needed(told: Told, shown: Mapping[str, LastEpoch]) -> Told:
    """``told`` without what the sinks know."""
    return Told(
        ends={} if any(each.ends for each in shown.values()) else told.ends,
        watermark=None if any(each.watermarks for each in shown.values()) else told.watermark,
    )


def _dense(completed: frozenset[int], base: int) -> int:
    """The newest of the epochs that are complete without a gap. Up to ``base`` a gap is known."""
    newest = base
    while newest + 1 in completed:
        newest += 1
    return newest


def _last_epoch(sink: Sink, task: TaskTry, left_out: bool) -> LastEpoch | None:
    """What the sink shows. A sink that cannot tell where its last epoch ended shows its marker alone.

    ``left_out``: by --without. Then another pipeline's marker counts as none.
    """
    with located(task.pipeline.name, sink=sink.name):
        if isinstance(sink, Positioned):
            found = sink.last_epoch(task.pipeline.name, task.env)
            return None if found and found.elsewhere and left_out else found
        marker = sink.last_committed(task.pipeline.name, task.env)
        return LastEpoch(marker=marker) if marker else None


def _is_behind(ledger: Ledger, newest: int, markers: list[Marker]) -> bool:
    """Whether a sink shows an epoch that the ledger does not have, not even in doubt."""
    later = [marker for marker in markers if marker.epoch > newest]
    return any(marker.epoch > newest + 1 or not _is_in_doubt(ledger, newest + 1, marker) for marker in later)


def _is_in_doubt(ledger: Ledger, number: int, marker: Marker) -> bool:
    """Whether the epoch is in doubt in this ledger with what the sink shows: the next run completes it."""
    try:
        view = ledger.view(number)
    except Corrupt as error:
        if error.code is codes.LEDGER_RECORD_LOST:
            return False
        raise
    return view.state is State.IN_DOUBT and agree(marker, view.opened.txn)


def _require_names(task: TaskTry, without: frozenset[str], everything: Mapping[str, LastEpoch | None]) -> None:
    """Raise Refused unless the sinks left out are sinks of the DAG, no state that has rows, and not all."""
    states = {name for name in _states(task.pipeline) if everything[name]}
    wrong = {
        "no sinks of the DAG": without - everything.keys(),
        "state tables with rows, without which later results would lack rows": without & states,
        "all sinks of the DAG": without if without >= everything.keys() else frozenset(),
    }
    for what, names in wrong.items():
        if names:
            leave_out = f"Leave them out of --without. The DAG's sinks are: {', '.join(everything)}."
            raise Refused(
                f"--without names {', '.join(sorted(names))}: {what}. Nothing was changed.",
                code=codes.SINKS_DISAGREE,
                remedy=_kept_states(everything) if names <= states else leave_out,
            )


def _states(pipeline: Pipeline) -> frozenset[str]:
    return frozenset(sink.name for sink in pipeline.sinks if isinstance(sink, Stateful))


def _kept_states(everything: Mapping[str, LastEpoch | None]) -> str:
    newest = _newest(everything)
    return (
        f"Take a state that shows epoch {newest} out of --without. Of one that shows an earlier epoch, restore a copy "
        f"that shows epoch {newest}. If there is none, point the state to a new table in the DAG, and type the command "
        f"again: the state begins anew there. The sinks show: {_listed(everything)}."
    )


def _require_own(shown: Mapping[str, LastEpoch]) -> None:
    """Raise Corrupt if a marker is another pipeline's: with its offsets, this pipeline would skip records."""
    for name, each in shown.items():
        if each.elsewhere:
            found = each.elsewhere
            renamed = f" {found.renamed}" if found.renamed else ""
            own = "give this sink another name, or a `marker_table` or `marker_topic` of its own"
            anothers = f"{own}, and do not rebuild from this marker"
            if not all(other.elsewhere for other in shown.values()):
                anothers = f"type the command again with `--without {name}`, and then {own}"
            raise Corrupt(
                f"The marker of sink {name} is of epoch {each.marker.epoch}, whose rows went to {found.there}. But the "
                f"sink in the DAG has {found.here}. Another pipeline with these names of pipeline and sink keeps its "
                "marker in the same place, or the DAG points the sink to a wrong place. Nothing was changed.",
                code=codes.TABLE_ELSEWHERE,
                remedy=f"Look whose rows {found.there} has. If they are this pipeline's, point the sink back to it, "
                f"and type the command again.{renamed} If they are another pipeline's, {anothers}.",
                sink=name,
            )


# -- do the sinks agree -----------------------------------------------------------------------------------------------


def _transaction(
    pipeline: Pipeline, everything: Mapping[str, LastEpoch | None], without: frozenset[str]
) -> TransactionId:
    """The transaction that all sinks but those left out show. Raises Refused if there is none."""
    newest = _newest(everything)
    behind = {name: each for name, each in everything.items() if not each or each.marker.epoch < newest}
    if missing := sorted(behind.keys() - without):
        raise _disagree(missing[0], everything, is_state=missing[0] in _states(pipeline))
    if needless := sorted(without - behind.keys()):
        raise Refused(
            f"--without names {', '.join(needless)}, which shows epoch {newest}, the newest one. Left out, it would "
            "get rows of that epoch twice. Nothing was changed.",
            code=codes.SINKS_DISAGREE,
            remedy="Leave out the sinks that show an earlier epoch, or bring them to this epoch: "
            f"{_listed(everything)}.",
        )
    shown = {name: each for name, each in everything.items() if each and name not in without}
    return _only_transaction(pipeline.name, shown)


def _newest(everything: Mapping[str, LastEpoch | None]) -> int:
    return max(each.marker.epoch for each in everything.values() if each)


def _disagree(name: str, everything: Mapping[str, LastEpoch | None], *, is_state: bool) -> Refused:
    shows, newest = everything[name], _newest(everything)
    has = f"epoch {shows.marker.epoch}" if shows else "no epoch of this pipeline"
    since = shows.marker.epoch + 1 if shows else 1
    lacks = described_epochs(since, newest)
    return Refused(
        f"The sinks do not show the same epoch: {_listed(everything)}. Sink {name} shows {has}, and lacks {lacks}. The "
        "ledger was lost while the epoch was in doubt, or the sink was restored from an older copy. Nothing was "
        "changed.",
        code=codes.SINKS_DISAGREE,
        remedy=f"Restore a copy of sink {name} that shows epoch {newest}, and type the command again. If there is "
        f"none, {_without_state(name, shows) if is_state else _without_sink(name)} "
        "See docs/operations.md#rebuild-a-lost-ledger.",
        sink=name,
    )


def _without_sink(name: str) -> str:
    return (
        f"type it with --without {name}; then give that sink another name in the DAG. The command prints from which "
        "epoch `backfill` can fill it, or that it lacks its earlier rows."
    )


def _without_state(name: str, shows: LastEpoch | None) -> str:
    new_table = "point the state to a new table in the DAG, and " if shows else ""
    return f"{new_table}type it with --without {name}: the state begins anew, in an empty table."


def _listed(everything: Mapping[str, LastEpoch | None]) -> str:
    return ", ".join(
        f"{name} {'epoch ' + str(each.marker.epoch) if each else 'none'}" for name, each in everything.items()
    )


def _only_transaction(pipeline: str, shown: Mapping[str, LastEpoch]) -> TransactionId:
    """The transaction of sinks that show the same epoch."""
    known = {each.txn: name for name, each in shown.items() if each.txn} or _fitting(pipeline, shown)
    txn, *_ = known
    for name, each in shown.items():
        if not agree(each.marker, txn) or each.txn not in (None, txn):
            raise Refused(
                f"Two ledgers wrote to the sinks: of epoch {txn.epoch}, sink {known[txn]} shows transaction {txn}, and "
                f"sink {name} shows {each.txn or each.marker}. Nothing was changed.",
                code=codes.SINKS_DISAGREE,
                remedy="Find out which ledger wrote to which sink, and give each of the two pipelines a name and sinks "
                "of its own. Or restore the sinks of one of them to one epoch, and type the command again.",
                sink=name,
            )
    return txn


def _fitting(pipeline: str, shown: Mapping[str, LastEpoch]) -> dict[TransactionId, str]:
    """An id that agrees with a marker, where the logs no longer have the commits with the whole id.

    A marker has at most a token, the first bits of the nonce. The other bits are zeros, so every plan has the same id.
    """
    name = next((name for name, each in shown.items() if each.marker.token is not None), next(iter(shown)))
    marker = shown[name].marker
    nonce = f"{(marker.token or 0) << 1:016x}".ljust(32, "0")
    return {TransactionId(pipeline, marker.epoch, 1, nonce): name}


def _require_whole_id(sinks: Iterable[Sink], shown: Mapping[str, LastEpoch]) -> None:
    """Raise Refused if the id had to be made up, and a sink of somebody's own cannot have it: it compares whole ids."""
    if any(each.txn for each in shown.values()):
        return
    for sink in sinks:
        if sink.name in shown and not isinstance(sink, Positioned):
            raise Refused(
                f"No sink tells the whole id of its last transaction, and sink {sink.name} has no `last_epoch` to tell "
                "it. With another id, the sink would vote against each epoch. Nothing was changed.",
                code=codes.ENDS_UNKNOWN,
                remedy="Give the sink's class a `last_epoch` that returns `LastEpoch(marker=…, txn=…)` "
                "(docs/write-your-own-sink.md#optional-methods). Then type the command again.",
                sink=sink.name,
            )


def _require_recoverable(task: TaskTry, shown: Mapping[str, LastEpoch], newest: int, told: Told) -> None:
    """Raise Refused if the next epoch needs what nobody tells: offsets, the version of a state, a watermark."""
    if not told.ends and not any(each.ends for each in shown.values()):
        raise Refused(
            "No sink knows the offsets where its last epoch ended: version 0.1 committed it, somebody put its marker "
            "back by hand, or the table's log no longer has the commit. Nothing was changed.",
            code=codes.ENDS_UNKNOWN,
        )
    before = task.ledger.complete_record(newest)
    has_watermark = told.watermark is not None or any(each.watermarks for each in shown.values())
    if (task.pipeline.event_time or (before and before.watermarks)) and not has_watermark:
        raise Refused(
            "The pipeline has an event time, and no sink knows the watermark of its last epoch: only Delta tables "
            "store it, as long as their logs have the commit. Nothing was changed.",
            code=codes.WATERMARK_UNKNOWN,
        )
    for sink in task.pipeline.sinks:
        receipt = shown[sink.name].receipt if sink.name in shown else None
        if isinstance(sink, Stateful) and sink.name in shown and (receipt is None or receipt.version is None):
            raise Refused(
                f"The log of the state table {sink.name} no longer has the commit of its last epoch. So nobody knows "
                "which of its versions the next epoch must read. Nothing was changed.",
                code=codes.STATE_COMMIT_GONE,
                sink=sink.name,
            )


def _require_read(source: Source, told: Ends) -> None:
    """Raise Refused if the file names a topic that is not read: the one that is meant would be read from its start."""
    if isinstance(source, LeavingOut) and (others := [topic for topic in told if source.leaves_out(topic)]):
        raise Refused(
            f"The file names {', '.join(sorted(others))}, which the source in the DAG does not read. Nothing was "
            "changed.",
            code=codes.OFFSETS_UNUSABLE,
            remedy="Correct the names of the topics in the file. It must name all that the pipeline has read.",
        )


def _require_fitting(ledger: Ledger, txn: TransactionId, sinks: frozenset[str], *, has_identity: bool) -> None:
    """Raise Refused if the ledger has records that contradict the sinks."""
    epochs = ledger.epochs_known()
    if epochs and not has_identity:
        raise _in_parts("The pipeline's folder in the ledger has records of epochs, but no pipeline.json.")
    done = ledger.complete_record(txn.epoch)
    if done and done.txn_id != str(txn):
        raise _in_parts(f"The ledger completed epoch {txn.epoch} with {done.txn_id}, and the sinks show {txn}.")
    later = max(epochs, default=0)
    opened = ledger.open_record(later, 1) if later == txn.epoch + 1 else None
    if later > txn.epoch and (
        opened is None
        or any(
            plan.previous != str(txn)
            for name, plan in opened.sinks.items()
            if name in sinks and not opened.command  # a command has the plans of the epoch before
        )
    ):
        raise _in_parts(f"The ledger has records of epoch {later}, and the sinks show none after epoch {txn.epoch}.")


def _in_parts(why: str) -> Refused:
    return Refused(f"{why} Nothing was changed.", code=codes.LEDGER_IN_PARTS)


# -- where the next epoch goes on -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Input:
    """What is known of the newest epoch's input: the fields of ``Plan`` with these names."""

    ranges: Ranges
    backfill_from: int
    source_state: JsonDict = field(default_factory=dict)
    moved_in: int = 0


def _input(
    ledger: Ledger,
    completed: frozenset[int],
    txn: TransactionId,
    shown: Mapping[str, LastEpoch],
    without: Mapping[str, LastEpoch | None],
    told: Ends,
) -> _Input:
    ends = next((each.ends for each in shown.values() if each.ends), told)
    unknown = _Input(ranges=ranges_between(ends, ends) or {}, backfill_from=txn.epoch + 1)
    if without:
        starts = _one_start(without)
        ranges = ranges_between(starts, ends) if starts else None
        return _Input(ranges=ranges, backfill_from=txn.epoch) if ranges else unknown
    first, before = _first_known(ledger, completed, txn.epoch), ledger.complete_record(txn.epoch - 1)
    if known := _recorded(ledger, txn, before, first):
        return known
    ranges = ranges_between(starting_at_ends(before.ranges), ends) if before else None
    if before is None or ranges is None:
        return unknown
    return _Input(ranges=ranges, backfill_from=first, moved_in=before.moved_in)


def _recorded(ledger: Ledger, txn: TransactionId, before: CompleteRecord | None, first: int) -> _Input | None:
    """The input as the ledger has it; None if it does not know the transaction. ``first``: see ``_first_known``."""
    complete, opened = ledger.complete_record(txn.epoch), ledger.open_record(txn.epoch, txn.attempt)
    record = next((each for each in (complete, opened) if each and each.txn_id == str(txn)), None)
    if record is None:
        return None
    moved = record.moved_in if isinstance(record, CompleteRecord) else moved_in(record, before)
    return _Input(ranges=record.ranges, backfill_from=first, source_state=record.source_state, moved_in=moved)


def _one_start(without: Mapping[str, LastEpoch | None]) -> Ends | None:
    """Where all sinks that are left out ended; None if one of them shows no epoch, or does not know where it ended."""
    starts = [each.ends if each else None for each in without.values()]
    if any(each != starts[0] for each in starts):
        raise Refused(
            f"The sinks {', '.join(without)} that --without names ended at different offsets: {_listed(without)}. Only "
            "one of these can be where they begin again. Nothing was changed.",
            code=codes.SINKS_DISAGREE,
            remedy="Restore newer copies of some of them, or copies of all of them that show one epoch. Then "
            "type the command again.",
        )
    return starts[0]


def ranges_between(starts: Ends, ends: Ends) -> Ranges | None:
    """Half-open ranges up to ``ends``. A partition that ``starts`` lacks was new in its topic, and began at 0.

    None if ``starts`` cannot be where the epoch began: a topic was new, or a command moved the input.
    """
    found = {
        topic: tuple(
            OffsetRange(int(partition), starts.get(topic, {}).get(partition, 0), end)
            for partition, end in sorted(per_topic.items(), key=lambda each: int(each[0]))
        )
        for topic, per_topic in sorted(ends.items())
    }
    backwards = any(r.start > r.end for per_topic in found.values() for r in per_topic)
    return None if backwards or ends.keys() - starts.keys() else found


def _first_known(ledger: Ledger, completed: frozenset[int], epoch: int) -> int:
    """The first epoch from which on all completion records are there, with true ranges."""
    rebuilt = ledger.rebuilt()
    least = rebuilt.backfill_from if rebuilt else 1
    while epoch > least and epoch - 1 in completed:
        epoch -= 1
    return epoch


def _carried(ledger: Ledger, newest: int, today: frozenset[str]) -> dict[str, str]:
    before = ledger.complete_record(newest)
    return {name: txn for name, txn in before.markers.items() if name not in today} if before else {}


def _adopted_in(ledger: Ledger, newest: int, txn: TransactionId) -> dict[str, int]:
    """What the newest completion record tells, and what commands asked of the transaction's own attempt."""
    before, opened = ledger.complete_record(newest), ledger.open_record(txn.epoch, txn.attempt)
    asked = opened.adopted if opened and opened.txn == txn else {}
    return {**(before.adopted_in if before else {}), **dict.fromkeys(asked, txn.epoch)}


# -- what is shown before the question --------------------------------------------------------------------------------


def announced(plan: Plan) -> Iterator[str]:
    """What the command will record, and what it costs, for people."""
    has = f"ends with epoch {plan.newest}" if plan.newest else "has no epoch of it"
    yield f"Pipeline {plan.pipeline} of DAG {plan.dag_id}: the ledger {has}, and the sinks show epoch {plan.txn.epoch}:"
    for name, each in plan.shown.items():
        yield f"  sink {name}: epoch {each.marker.epoch}, transaction {each.txn or plan.txn}"
    for name, left in plan.without.items():
        yield f"  left out: sink {name}: {f'epoch {left.marker.epoch}' if left else 'no epoch'}"
    yield f"The next epoch is {plan.txn.epoch + 1}. It goes on from these offsets:"
    yield from _positions(plan.ranges)
    if plan.told.ends:
        yield "They are those of the file. If they are too early, rows come twice; if too late, rows are missing."
        yield (
            "The file must name every topic and partition that the pipeline has read. A partition that it does not "
            "name is read from offset 0 on, and a topic from where `starting` says: their rows would come twice."
        )
    yield from _watermark(plan)
    yield from _lost(plan)
    yield from _consequences(plan)


def _watermark(plan: Plan) -> Iterator[str]:
    stored = next((each.watermarks[0] for each in plan.shown.values() if each.watermarks), None)
    if stored is not None:
        yield f"The watermark of epoch {plan.txn.epoch}: {instant(stored).isoformat()}."
    if plan.told.watermark is not None:
        yield (
            f"The watermark of epoch {plan.txn.epoch}, as typed: {instant(plan.told.watermark).isoformat()}. If it is "
            "too early, late rows open windows again, and their results take the place of right ones; if too late, "
            "rows in time count as late."
        )


def _positions(ranges: Ranges) -> Iterator[str]:
    flat = [(topic, r) for topic, per_topic in ranges.items() for r in per_topic]
    for topic, r in flat[:PRINTED_MAX]:
        yield f"  {topic}[{r.partition}]: {r.end}"
    if len(flat) > PRINTED_MAX:
        yield f"  … and {len(flat) - PRINTED_MAX} more partitions"


def _lost(plan: Plan) -> Iterator[str]:
    epochs = described_epochs(plan.newest + 1, plan.txn.epoch)
    yield f"Lost for good: what the ledger recorded of {epochs} (receipts, votes, who opened them). XComs stay."
    yield f"No sink can `backfill` from an epoch before {plan.backfill_from}: the ledger lacks records that this needs."
    if plan.is_new:
        yield f"The ledger is begun anew, and belongs to DAG {plan.dag_id}."


def _consequences(plan: Plan) -> Iterator[str]:
    for name in sorted(plan.anew):
        yield (
            f"The state {name} begins anew, in an empty table: it has seen no record before epoch "
            f"{plan.txn.epoch + 1}. To let it see them again, see docs/state.md, 'A state that is lost'."
        )
    for name in (name for name in plan.without if name not in plan.anew):
        if plan.backfill_from > plan.txn.epoch:
            begins = f"It begins with epoch {plan.txn.epoch + 1}, and lacks earlier rows."
            yield f"Give sink {name} another name in the DAG. {begins}"
        else:
            yield (
                f'Give sink {name} another name in the DAG, with backfill={{"<the new name>": {plan.backfill_from}}}: '
                "it then gets the rows that it lacks."
            )


# -- recording it -----------------------------------------------------------------------------------------------------


def carry_out(task: TaskTry, planned: Plan, *, by: Account) -> RebuiltRecord:
    """Record what was planned. A repeat after a crash records the same again, and nothing that counts twice.

    ``task`` is another one than that of ``plan``, so that it reads everything anew.

    Raises:
        Refused: The ledger or a sink has changed since. Nothing that counts was put.
    """
    with located(task.pipeline.name):
        if plan(task, planned.without, planned.told) != planned:
            raise _changed(planned)
        task.ledger.register(planned.dag_id, at=by.at, writer=task.writer)
        task.env.reached("rebuild.put")
        record = _record(planned, task.pipeline, task.writer, by)
        if task.ledger.put(record).writer != task.writer:
            raise _changed(planned)
        task.env.reached("rebuild.complete.put")
        if task.ledger.put(_completion(planned, task.writer, by)).txn_id != str(planned.txn):
            raise _changed(planned)
        return record


def _changed(planned: Plan) -> Refused:
    return Refused(
        "The ledger or a sink has changed while the command was at work: a run of the pipeline, or another such "
        "command. Nothing that counts was recorded.",
        code=codes.LEDGER_CHANGED,
        pipeline=planned.pipeline,
    )


def _record(planned: Plan, today: Pipeline, writer: str, by: Account) -> RebuiltRecord:
    return RebuiltRecord(
        pipeline=planned.pipeline,
        number=planned.number,
        txn_id=str(planned.txn),
        backfill_from=planned.backfill_from,
        dag_id=planned.dag_id,
        source=today.source.spec(),
        transform=str(today.transform),
        sinks={sink.name: sink.spec() for sink in today.sinks if sink.name in planned.shown},
        without={name: left.marker.epoch if left else 0 for name, left in planned.without.items()},
        writer=writer,
        **by.fields,
    )


def _as_watermarks(told: Told) -> Watermarks:
    return () if told.watermark is None else (told.watermark,)


def _completion(planned: Plan, writer: str, by: Account) -> CompleteRecord:
    """The completion record of the newest epoch: as much as the sinks tell."""
    run = Run(planned.dag_id, COMMAND)
    timed = next((each for each in planned.shown.values() if each.watermarks), None)
    return CompleteRecord(
        txn_id=str(planned.txn),
        ranges=planned.ranges,
        source_state=planned.source_state,
        receipts={name: each.receipt for name, each in planned.shown.items() if each.receipt},
        markers={**planned.carried, **dict.fromkeys(planned.shown, str(planned.txn))},
        opened_by=run,
        completed_by=run,
        metrics={},
        completed_at=by.at,
        writer=writer,
        watermarks=timed.watermarks if timed else _as_watermarks(planned.told),
        event_times=timed.event_times if timed else {},
        moved_in=planned.moved_in,
        adopted_in=dict(planned.adopted_in),
    )
