"""An operator's commands about the next epoch: where its input begins, and which sinks are taken as they are.

A command is an attempt of the next epoch that nothing is staged for (``model.OpenRecord``). The run that opens the next
attempt obeys it. As an attempt has one record, a run that opens the epoch at the same moment cannot miss the command:
its record or the command's stands, and the other side is told.

The caller shows what a command would change, and asks, between ``standing`` and ``put``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_epochs import codes
from airflow_epochs.contracts import (
    Before,
    Environment,
    Movable,
    Move,
    Position,
    Restorable,
    Sink,
    Stateful,
    Truncatable,
)
from airflow_epochs.coordinator import sink_calls, state_tables
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.agreement import waived_in
from airflow_epochs.coordinator.recorded_sinks import built
from airflow_epochs.coordinator.task import new_writer
from airflow_epochs.errors import Refused, located
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import newest_opened, order_in_force
from airflow_epochs.model import (
    Command,
    CompleteRecord,
    Marker,
    OffsetRange,
    OpenRecord,
    RestorePoint,
    Shown,
    SinkPlan,
    TransactionId,
    agree,
    compare,
    described,
    ends_of,
    in_two,
)
from airflow_epochs.protocol import State
from airflow_epochs.sinks import GROUP

EPOCHS_COUNTED_MAX = 1_000
"""How many epochs' rows are counted, at most, before an operator is asked. Counting more would take too long."""


@dataclass(frozen=True, kw_only=True)
class BetweenEpochs:
    """A pipeline between two epochs.

    Attributes:
        epoch: The next epoch.
        attempt: Its newest attempt, which was aborted or holds a command; 0: no attempt.
        newest: The newest open record of the pipeline: it describes source and sinks.
        before: The completion record of the epoch before; None before the first one.
        order: The attempt of the next epoch that holds its newest command; None: there is none.
    """

    epoch: int
    attempt: int
    newest: OpenRecord
    before: CompleteRecord | None
    order: OpenRecord | None

    def position(self, source: Before) -> Position:
        """Where the next epoch begins now."""
        return self._before(source, Position.after(self.order or self.before))

    def without_commands(self, source: Before) -> Position:
        """Where the next epoch would begin if no command waited."""
        return self._before(source, Position.after(self.before))

    def _before(self, source: Before, base: Position | None) -> Position:
        planned = self.newest if self.attempt else None
        return source.before(base, planned.ranges if planned else {}, planned.source_state if planned else {})

    def recorded(self, name: str) -> TransactionId | None:
        """What the sink showed after the epoch before; None if no epoch of it is on record."""
        return self.before.markers.get(name) if self.before else None

    def awaited(self, name: str) -> TransactionId | None:
        """What the next run expects the sink to show: what was recorded, or what a command takes it as."""
        return self.adopted[name] if name in self.adopted else self.recorded(name)

    @property
    def adopted(self) -> Mapping[str, TransactionId | None]:
        """As in ``OpenRecord``, by the commands so far."""
        return self.order.adopted if self.order else {}

    def lacks_all(self, name: str) -> bool:
        """Whether the sink was waived in its first epoch, and no epoch of it was completed since."""
        return self.before is not None and name in self.before.waived and name not in self.before.markers

    def has_had(self, name: str) -> bool:
        """Whether an epoch was completed with a sink of this name, also if the sink was waived in it."""
        return self.before is not None and self.before.has_had(name)

    @property
    def is_aborted(self) -> bool:
        """Whether the next epoch keeps the input of an attempt that was aborted, unless a command comes."""
        return self.attempt > 0 and self.newest.command is None


def standing(ledger: Ledger, pipeline: str) -> BetweenEpochs:
    """Where the pipeline stands.

    Raises:
        Refused: It has opened no epoch yet; or an epoch is undecided or in doubt.
    """
    view, newest = ledger.view_of_next(), newest_opened(ledger)
    if newest is None:
        raise Refused(
            "The pipeline has not opened an epoch yet.",
            code=codes.POSITION_MISSING,
            pipeline=pipeline,
        )
    if view.state not in (State.NEW, State.ABORTED):
        raise Refused(
            f"The epoch is {view.state.value}. The command acts only after an epoch is complete or aborted. Nothing "
            "was changed.",
            code=codes.EPOCH_UNFINISHED,
            pipeline=pipeline,
            epoch=view.number,
        )
    return BetweenEpochs(
        epoch=view.number,
        attempt=view.epoch.attempt,
        newest=newest,
        before=ledger.complete_record(view.number - 1),
        order=order_in_force(ledger, view),
    )


def put(
    ledger: Ledger,
    at: BetweenEpochs,
    name: str,
    by: Account,
    move: Move,
    *,
    adoption: Adoption | None = None,
    restoration: Restoration | None = None,
) -> OpenRecord:
    """Record a command: the next attempt of ``at.epoch``.

    Args:
        ledger: The pipeline's ledger.
        at: Where the pipeline stood when the command was shown to the operator.
        name: The command.
        by: The operator.
        move: Where the next epoch begins. Without a move: ``Move(position=…)`` as it is.
        adoption: The sink that this command takes as it is.
        restoration: The versions of tables that come back; None: as an earlier command of this epoch says, if any.

    Raises:
        Refused: The epoch was opened, or another command recorded, since ``at``. Nothing was changed.
    """
    restoration = restoration or ordered_restoration(at, adoption)
    record = _attempt(ledger, at, move, _command(name, by, move, adoption, restoration), adoption, restoration)
    standing, complete = ledger.put(record), ledger.complete_record(at.epoch)
    if standing.writer != record.writer or complete:
        raise _race(at, standing, complete)
    return standing


def ordered_restoration(at: BetweenEpochs, adoption: Adoption | None = None) -> Restoration:
    """The tables that an earlier command of this epoch restores, without the sink that ``adoption`` takes as it is.

    NO_RESTORATION if no table is left: then the epoch reads input.
    """
    ordered = at.order.restores if at.order else {}
    left = {name: point for name, point in ordered.items() if not (adoption and name == adoption.sink)}
    if not (at.order and left):
        return NO_RESTORATION
    return Restoration(
        epoch=at.order.restored_to, points=left, stay=tuple(sorted(at.newest.sinks.keys() - left.keys()))
    )


def _race(at: BetweenEpochs, standing: OpenRecord, complete: CompleteRecord | None) -> Refused:
    """The error for a command that comes after another one, or after a run that has opened the epoch."""
    first, remedy = f"The epoch was opened by {complete.opened_by if complete else standing.run}", None
    if (other := standing.command) and not complete:
        first = f"Another command, `{other.name}` by {other.who}, was recorded"
        remedy = "Type the command again: it says what both change together, before you confirm it."
    return Refused(
        f"{first} before this was confirmed. Nothing was changed.",
        code=codes.COMMAND_RACE,
        remedy=remedy,
        pipeline=at.newest.txn_id.pipeline,
        epoch=at.epoch,
    )


def _attempt(
    ledger: Ledger, at: BetweenEpochs, move: Move, command: Command, adoption: Adoption | None, restoration: Restoration
) -> OpenRecord:
    """The attempt that holds the command.

    It copies the newest attempt, without what a run finds out: warnings, watermarks, versions of states, and backlog.
    """
    number = at.attempt + 1
    return replace(
        at.newest,
        txn_id=TransactionId(at.newest.txn_id.pipeline, at.epoch, number, uuid.uuid4().hex),
        ranges=move.position.ranges,
        source_state=move.position.state,
        sinks={sink: SinkPlan(spec=plan.spec, previous=plan.previous) for sink, plan in at.newest.sinks.items()},
        run_id=f"airflow epochs {command.name}",
        now=command.at,
        opened_at=command.at,
        writer=new_writer(),
        ledger=ledger.root,
        warnings=(),
        watermarks=(),
        state={},
        command=command,
        obeys=number,
        moved=move.moves or bool(restoration.epoch) or (at.order is not None and at.order.moved),
        adopted=adoption.onto(at.adopted) if adoption else dict(at.adopted),
        restored_to=restoration.epoch,
        restores=dict(restoration.points),
        backlog=None,
    )


def _command(name: str, by: Account, move: Move, adoption: Adoption | None, restoration: Restoration) -> Command:
    return Command(
        name=name,
        lost=move.lost,
        again=move.again,
        left=move.left,
        lacks={adoption.sink: adoption.lacks} if adoption and adoption.lacks else {},
        restores={sink: point.version for sink, point in restoration.points.items()},
        back_to=move.back_to,
        **by.fields,
    )


# -- the commands -------------------------------------------------------------------------------------------------


def replan(at: BetweenEpochs, source: Before) -> Move:
    """Plan an aborted epoch anew, from where it began, with the limits and topics of the next run. Reads only.

    Raises:
        Refused: No epoch was aborted.
    """
    if not at.is_aborted:
        raise Refused(
            "There is no aborted epoch to plan anew.",
            code=codes.NOTHING_TO_REPLAN,
            pipeline=at.newest.txn_id.pipeline,
            epoch=at.epoch,
        )
    return Move(position=at.position(source))


def with_cut(at: BetweenEpochs, source: Movable, move: Move, env: Environment) -> Move:
    """``move``, with what was cut off of an aborted epoch's input behind it. No run looks for it later. Reads only."""
    if not (at.is_aborted and isinstance(source, Truncatable)):
        return move
    cut, begins = source.cut_off(at.newest.ranges, at.newest.source_state, env), ends_of(move.position.ranges)
    passed = ({key: OffsetRange(key[1], 0, begin)} for key, begin in begins.items())
    return replace(move, cut=in_two(cut, passed)[0])


@dataclass(frozen=True, kw_only=True)
class Restoration:
    """The tables that come back.

    Attributes:
        epoch: The epoch whose tables come back; 0: no tables come back.
        points: Sink -> the version that comes back.
        stay: The sinks that stay as they are, because they had no table then, or are no tables.
    """

    epoch: int
    points: Mapping[str, RestorePoint]
    stay: tuple[str, ...] = ()


NO_RESTORATION = Restoration(epoch=0, points={})


def restoration(ledger: Ledger, at: BetweenEpochs, number: int, env: Environment) -> Restoration:
    """The versions that the pipeline's tables had after a complete epoch. Reads only.

    Raises:
        Refused: A table cannot go back, so no table does; or no sink is a table that had an epoch by then.
    """
    record = ledger.complete_record(number)
    points = {}
    for name, plan in at.newest.sinks.items():
        sink = built(plan.spec)
        if record and sink and isinstance(sink, Restorable) and name in record.markers:
            with located(at.newest.txn_id.pipeline, sink=name):
                points[name] = _point(ledger, at, record, name)
                sink.require_restorable(points[name], at.newest.txn_id.pipeline, env)
    if not points:
        raise Refused(
            f"No sink of the pipeline is a Delta table that showed an epoch when epoch {number} was complete. Nothing "
            "was changed.",
            code=codes.NOTHING_TO_RESTORE,
            pipeline=at.newest.txn_id.pipeline,
        )
    return Restoration(epoch=number, points=points, stay=tuple(sorted(at.newest.sinks.keys() - points.keys())))


def _point(ledger: Ledger, at: BetweenEpochs, record: CompleteRecord, name: str) -> RestorePoint:
    """The version of one table. Raises Refused if the ledger does not know it."""
    epoch = record.markers[name].epoch
    shown = ledger.complete_record(epoch)
    receipt = shown.receipts.get(name) if shown else None
    anew = at.epoch if name in at.adopted else at.before.adopted_in.get(name, 0) if at.before else 0
    if receipt is None or receipt.version is None or epoch < anew:
        why = f"epoch {anew} took another table" if epoch < anew else f"the ledger has no version of epoch {epoch}"
        raise Refused(
            f"The table cannot go back to epoch {record.txn_id.epoch}: {why}. Nothing was changed.",
            code=codes.DELTA_NOT_RESTORABLE,
        )
    return RestorePoint(epoch=epoch, version=receipt.version, state=receipt.detail.get("state") or {})


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """A sink that is to be taken as it is.

    Attributes:
        shown: The transaction that the sink shows; None: it shows no epoch.
        expected: The transaction that the last complete epoch expects it to show. None: it was waived in its first
            epoch, and in all since.
        lacks: The epochs ``[first, last]`` that the ledger says it got, or was waived in, and that it does not show.
            None: it lacks no epoch.
        is_state: Whether it is a state table.
        is_new: Whether no epoch was completed with a sink of this name: it simply begins.
    """

    sink: str
    shown: TransactionId | None
    expected: TransactionId | None
    lacks: tuple[int, int] | None
    is_state: bool = False
    is_new: bool = False

    @property
    def takes_back(self) -> bool:
        """Whether the sink no longer lacks an epoch, so that an earlier ``adopt-sink`` is not obeyed."""
        return self.lacks is None and not self.is_new

    def onto(self, adopted: Mapping[str, TransactionId | None]) -> dict[str, TransactionId | None]:
        """``adopted``, as in ``OpenRecord``, by this command too."""
        others = {name: shown for name, shown in adopted.items() if name != self.sink}
        return others if self.takes_back else {**others, self.sink: self.shown}


def adopt(
    ledger: Ledger, at: BetweenEpochs, name: str, env: Environment, *, new_table: bool = False, shows: int | None = None
) -> Adoption | None:
    """Look at a sink that does not show what the ledger expects, to take it as it is. Reads only.

    Args:
        ledger: The pipeline's ledger.
        at: Where the pipeline stands.
        name: The sink.
        env: The environment to ask the sink in.
        new_table: The DAG points the sink to a new table, which shows no epoch. The sink is not asked: the next run
            asks it. A name with which no epoch was completed is the name of a new state, if the pipeline has states;
            attempts that were aborted may have had it.
        shows: The DAG points the sink to another table, which shows this epoch. Else as ``new_table``.

    Returns:
        None if the sink shows what the ledger expects, and no ``adopt-sink`` waits that expects something else.

    Raises:
        Refused: The ledger does not know the sink, or not what the sink shows; or the sink is a state table that has
            rows.
    """
    if new_table and not at.has_had(name) and at.before and state_tables.of_epoch(ledger, at.before):
        return None if name in at.adopted else _new_state(name)
    sink = _known(ledger, at, name, new_table=new_table or shows is not None)
    is_state = _is_state(_describing(ledger, at, name), name)
    found = sink_calls.marker_of(sink, at.newest.txn_id.pipeline, env) if sink else _marker_in(ledger, at, name, shows)
    waived = at.before.may_show(name) if at.before else []
    expected = waived_in(found, waived) or at.recorded(name)
    if name not in at.adopted and at.lacks_all(name) and found is None and (new_table or isinstance(sink, Stateful)):
        return replace(_without_rows(at, name), is_state=is_state)
    if agree(found, at.awaited(name) if name in at.adopted else expected):
        return None
    if expected and agree(found, expected):
        return Adoption(sink=name, shown=expected, expected=expected, lacks=None)
    if expected is None or compare(found, expected) is Shown.AHEAD:
        raise _not_adopted(
            at,
            name,
            f"The sink shows {described(found)}, and the ledger has no such epoch: the ledger is behind the sink.",
            "Type `airflow epochs rebuild PIPELINE --why …` if the ledger was lost or restored from an older copy.",
        )
    shown = _shown(ledger, at, name, found) if found else None
    if shown and is_state:
        raise _not_adopted(
            at,
            name,
            f"The state shows epoch {shown.epoch}, and the ledger expects epoch {expected.epoch}. Later results would "
            "lack the rows of the epochs between.",
            "Put the newest copy of the table back. If there is none, point the state to a new table in the DAG, and "
            "type `airflow epochs adopt-sink PIPELINE SINK --new-table --why …`: the state begins anew there.",
        )
    first, last = (
        shown.epoch + 1 if shown else 1,
        max(txn.epoch for txn in (expected, *waived)),
    )
    return Adoption(sink=name, shown=shown, expected=expected, lacks=(first, last), is_state=is_state)


def _new_state(name: str) -> Adoption:
    """A state that begins empty although it may take the place of another one, which ``open`` would refuse."""
    return Adoption(sink=name, shown=None, expected=None, lacks=None, is_state=True, is_new=True)


def _without_rows(at: BetweenEpochs, name: str) -> Adoption:
    """A sink that lacks every epoch since it was waived in its first one."""
    assert at.before, "an epoch was completed without it"
    *_, oldest = at.before.may_show(name)
    return Adoption(sink=name, shown=None, expected=None, lacks=(oldest.epoch, at.epoch - 1))


def _known(ledger: Ledger, at: BetweenEpochs, name: str, *, new_table: bool) -> Sink | None:
    """The sink as its last epoch described it, in the DAG or removed from it; None if it need not be asked.

    Raises Refused if the ledger does not describe it.
    """
    if not _is_known(at, name):
        known = sorted({*at.newest.sinks, *(at.before.markers if at.before else ())})
        raise _not_adopted(at, name, f"The pipeline has no sink {name!r}. Its sinks are {', '.join(known)}.")
    if new_table:
        return None
    txn, last = at.recorded(name) or at.newest.txn_id, _describing(ledger, at, name)
    if last is None:
        raise _not_adopted(
            at,
            name,
            f"The sink is not in the DAG since epoch {txn.epoch}. The records that say where it is were pruned.",
            "Point the sink to a new table in the DAG, and add --new-table to the command.",
        )
    sink = built(last.sinks[name].spec)
    if sink is None:
        raise _not_adopted(
            at,
            name,
            f"The command cannot ask the sink: {last.sinks[name].spec['kind']!r} is a class of your own, which no "
            "installed package registers. The command does not load the DAG.",
            f"Register the class in the entry point group {GROUP} of a package that is installed here. Then type the "
            "command again.",
        )
    return sink


def _is_known(at: BetweenEpochs, name: str) -> bool:
    """Whether the pipeline has, or had, a sink of this name, or opened an epoch with it."""
    return name in at.newest.sinks or at.has_had(name)


def _describing(ledger: Ledger, at: BetweenEpochs, name: str) -> OpenRecord | None:
    """The newest record that says what the sink is; None if it was pruned."""
    txn = at.recorded(name) or at.newest.txn_id
    last = at.newest if name in at.newest.sinks else ledger.open_record(txn.epoch, txn.attempt)
    return last if last and name in last.sinks else None


def _is_state(described: OpenRecord | None, name: str) -> bool:
    return described is not None and isinstance(built(described.sinks[name].spec), Stateful)


def _marker_in(ledger: Ledger, at: BetweenEpochs, sink: str, epoch: int | None) -> Marker | None:
    """The marker of the sink's rows in this epoch; None: of no epoch. Raises Refused if the ledger has no marker."""
    if epoch is None:
        return None
    complete = ledger.complete_record(epoch)
    txn = complete.markers.get(sink) if complete else None
    if txn is None or txn.epoch != epoch:
        raise _not_adopted(at, sink, f"The ledger has no rows of epoch {epoch} in this sink.")
    return Marker.of(txn)


def _shown(ledger: Ledger, at: BetweenEpochs, sink: str, found: Marker) -> TransactionId:
    """The sink's transaction in the epoch that it shows. Raises Refused if the ledger has another one there."""
    complete = ledger.complete_record(found.epoch)
    txn = complete.markers.get(sink) if complete else None
    if txn is None or not agree(found, txn):
        raise _not_adopted(
            at, sink, f"The sink shows {described(found)}, and the ledger has another transaction for this epoch."
        )
    return txn


def _not_adopted(at: BetweenEpochs, sink: str, what: str, remedy: str | None = None) -> Refused:
    return Refused(
        f"{what} Nothing was changed.",
        code=codes.SINK_NOT_ADOPTED,
        remedy=remedy,
        pipeline=at.newest.txn_id.pipeline,
        sink=sink,
    )
