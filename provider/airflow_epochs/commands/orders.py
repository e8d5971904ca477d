"""``airflow epochs skip``, ``reset-source``, ``rewind``, ``replan``, ``adopt-sink``: the next epoch obeys them.

Each prints what will be read, what will come twice and what will be missing, and asks. ``coordinator.orders`` does the
work. Those that move the source take it from today's DAG, where one is found: the next run reads that source, perhaps
since an error said to change it.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from airflow.cli.cli_config import ARG_YES, ActionCommand, Arg

from airflow_epochs import codes
from airflow_epochs.commands.asking import (
    CONN,
    PIPELINE,
    WHY,
    account_of,
    confirm,
    known_ledger_of,
    offsets_in,
    tells_refusals,
)
from airflow_epochs.commands.printing import answer_alone
from airflow_epochs.contracts import Movable, Move, backfill_from
from airflow_epochs.coordinator.admin import admin, savepoints
from airflow_epochs.coordinator.orders import orders, rewinding
from airflow_epochs.coordinator.orders.orders import NO_RESTORATION, Adoption, BetweenEpochs, Restoration
from airflow_epochs.coordinator.orders.outlook import Outlook, outlook
from airflow_epochs.coordinator.orders.wording import outcome, planned_anew, told
from airflow_epochs.errors import EpochError, Refused, located
from airflow_epochs.hooks.audit import caller, logged
from airflow_epochs.hooks.epochs import AirflowEnvironment
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import REWIND, JsonDict, described_epochs
from airflow_epochs.operators import definitions
from airflow_epochs.sources import on_record
from airflow_epochs.spark.runners import SparkConnect

_TOPIC = Arg(("--topic",), action="append", help="A topic; may be repeated. Default: all topics")
_SOURCE_CONN = Arg(("--source-conn-id",), help="The source's connection, if it is not the one that the DAG names")
_WRITTEN = (WHY, ARG_YES, CONN)


def order_commands() -> list[ActionCommand]:
    """The commands of this module."""
    return [*_moving(), *_staying()]


def _moving() -> list[ActionCommand]:
    return [
        ActionCommand(
            name="skip",
            help="Continue after records that the source has lost, or at given offsets; the loss is recorded",
            func=skip,
            args=(
                PIPELINE,
                _TOPIC,
                Arg(("--to-available",), action="store_true", help="Go on with the oldest records after each loss"),
                Arg(("--offsets",), help='A JSON file with offsets to go on at: {"orders": {"0": 4711}}'),
                _SOURCE_CONN,
                *_WRITTEN,
            ),
        ),
        ActionCommand(
            name="reset-source",
            help="Go on in topics or a table that were created again, or in another cluster",
            func=reset_source,
            args=(
                PIPELINE,
                _TOPIC,
                Arg(
                    ("--starting",),
                    help="Where to begin there: earliest, latest, a time like 2026-01-31T00:00Z, or a table's version",
                ),
                Arg(("--offsets",), help='A JSON file with offsets to begin at: {"orders": {"0": 4711}}'),
                _SOURCE_CONN,
                *_WRITTEN,
            ),
        ),
        ActionCommand(
            name="rewind",
            help="Read records once more: go back to where an epoch ended, to a time, or to offsets",
            func=rewind,
            args=(
                PIPELINE,
                Arg(("--to-epoch",), type=int, help="Go back to where this complete epoch ended"),
                Arg(("--to-savepoint",), help="Go back to where the epoch of this savepoint ended"),
                Arg(("--to-timestamp",), help="Go back to the first records of this time, such as 2026-01-31T00:00Z"),
                Arg(("--offsets",), help='A JSON file with offsets to go back to: {"orders": {"0": 4711}}'),
                Arg(
                    ("--restore-tables",),
                    action="store_true",
                    help="Bring the Delta tables back to that epoch, too: all of them, in an epoch of its own",
                ),
                _SOURCE_CONN,
                *_WRITTEN,
            ),
        ),
    ]


def _staying() -> list[ActionCommand]:
    return [
        ActionCommand(
            name="replan",
            help="Plan an aborted epoch anew: with the topics of today's DAG, and the next run's max_records",
            func=replan,
            args=(PIPELINE, *_WRITTEN),
        ),
        ActionCommand(
            name="adopt-sink",
            help="Take a sink as it is from now on: its table was restored, created again or replaced",
            func=adopt_sink,
            args=(
                PIPELINE,
                Arg(("sink",), help="The sink's name"),
                Arg(("--new-table",), action="store_true", help="The DAG points the sink to a new table now"),
                Arg(
                    ("--shows",),
                    type=int,
                    metavar="EPOCH",
                    help="The DAG points the sink to another table now, which shows this epoch",
                ),
                *_WRITTEN,
            ),
        ),
    ]


@tells_refusals
def skip(args: Namespace) -> None:
    """``airflow epochs skip``: accept that records are lost, after a look at their offsets and a yes."""
    if args.to_available == bool(args.offsets) or (args.topic and args.offsets):
        raise wrong_options("Give either --to-available, with or without --topic, or --offsets FILE.")

    def moved(source: Movable, at: BetweenEpochs) -> Move:
        position, env = at.position(source), environment()
        if args.to_available:
            move = source.past_losses(position, args.topic or [], env)
        else:
            move = source.to_offsets(position, offsets_in(args.offsets), env)
        return orders.with_cut(at, source, move, env)

    _order(args, "skip", moved, plans_anew=args.to_available)


@tells_refusals
def reset_source(args: Namespace) -> None:
    """``airflow epochs reset-source``: go on in other topics of the same names, after a look at them and a yes."""
    if bool(args.starting) == bool(args.offsets):
        raise wrong_options("Give either --starting or --offsets FILE.")

    def moved(source: Movable, at: BetweenEpochs) -> Move:
        starting: object = offsets_in(args.offsets) if args.offsets else args.starting
        return source.to_another(at.position(source), args.topic or [], starting, environment())

    _order(args, "reset-source", moved)


@tells_refusals
def rewind(args: Namespace) -> None:
    """``airflow epochs rewind``: read records once more, after a look at which ones and a yes."""
    given = [args.to_epoch is not None, bool(args.to_savepoint), bool(args.to_timestamp), bool(args.offsets)]
    if sum(given) != 1:
        raise wrong_options("Give one of --to-epoch N, --to-savepoint NAME, --to-timestamp T and --offsets FILE.")
    if args.restore_tables and (args.to_timestamp or args.offsets):
        raise wrong_options("Give --restore-tables with --to-epoch N or --to-savepoint NAME: they name versions.")
    ledger = known_ledger_of(args)

    def moved(source: Movable, at: BetweenEpochs) -> Move:
        position = at.position(source)
        if args.to_timestamp:
            return rewinding.to_time(source, position, args.to_timestamp, environment())
        if args.offsets:
            return source.to_offsets(position, offsets_in(args.offsets), environment())
        return rewinding.to_epoch(ledger, at, source, _named_epoch(args), environment())

    def restored(at: BetweenEpochs) -> Restoration:
        return (
            orders.restoration(ledger, at, _named_epoch(args), environment()) if args.restore_tables else NO_RESTORATION
        )

    _order(args, REWIND, moved, restored)


def _named_epoch(args: Namespace) -> int:
    if args.to_savepoint:
        return savepoints.find(known_ledger_of(args), args.pipeline, args.to_savepoint).epoch
    return int(args.to_epoch)


@tells_refusals
def replan(args: Namespace) -> None:
    """``airflow epochs replan``: plan an aborted epoch anew, after a yes."""
    by, ledger = account_of(args), known_ledger_of(args)
    at = orders.standing(ledger, args.pipeline)
    source = on_record(at.newest.source)
    look = outlook(ledger, at, source, orders.replan(at, source))
    confirm(args, *planned_anew(ledger, at, look), f"Will be recorded: {caller()}, because: {by.why}")
    with logged("replan", dag_id=at.newest.dag_id, by=caller()):
        orders.put(ledger, at, "replan", by, look.move)
    print(rewinding.next_step(args.pipeline, source, look.restoration))


@tells_refusals
def adopt_sink(args: Namespace) -> None:
    """``airflow epochs adopt-sink``: take a sink as it is, after a look at what it lacks and a yes."""
    if args.new_table and args.shows is not None:
        raise wrong_options("Give either --new-table or --shows EPOCH.")
    by, ledger = account_of(args), known_ledger_of(args)
    at = orders.standing(ledger, args.pipeline)
    with located(args.pipeline, sink=args.sink):
        adoption = orders.adopt(ledger, at, args.sink, environment(), new_table=args.new_table, shows=args.shows)
    if adoption is None:
        print(
            f"Nothing to do: sink {args.sink} shows what the ledger expects. If the DAG points it to a new table now, "
            "add --new-table; if that table shows an epoch of the sink, --shows EPOCH."
        )
        return
    source = on_record(at.newest.source)
    look = outlook(ledger, at, source, Move(position=at.position(source)), adoption=adoption)
    confirm(args, *_adopted(ledger, at, adoption, look), f"Will be recorded: {caller()}, because: {by.why}")
    with logged("adopt-sink", dag_id=at.newest.dag_id, by=caller()):
        orders.put(ledger, at, "adopt-sink", by, look.move, adoption=adoption)
    print(rewinding.next_step(args.pipeline, source, look.restoration))


def _order(
    args: Namespace,
    name: str,
    moved: Callable[[Movable, BetweenEpochs], Move],
    restored: Callable[[BetweenEpochs], Restoration | None] = lambda at: None,
    *,
    plans_anew: bool = False,
) -> None:
    """Record the command, after a yes.

    ``plans_anew``: it is also for an aborted epoch that begins there, but cannot be read to its end.
    """
    by, ledger = account_of(args), known_ledger_of(args)
    at = orders.standing(ledger, args.pipeline)
    with located(args.pipeline):
        source = on_record(_source_spec(args, ledger, at), args.source_conn_id)
        move, restoration = moved(source, at), restored(at)
    anew = plans_anew and at.is_aborted and not move.moves
    if rewinding.is_nothing(at, move, restoration) and not anew:
        print("Nothing to do: the pipeline goes on there in any case.")
        return
    look = outlook(ledger, at, source, move, restoration=restoration)
    lines = planned_anew(ledger, at, look) if anew else told(ledger, at, look)
    confirm(args, *lines, f"Will be recorded: {caller()}, because: {by.why}")
    with logged(name, dag_id=at.newest.dag_id, by=caller()):
        orders.put(ledger, at, name, by, look.move, restoration=restoration)
    print(rewinding.next_step(args.pipeline, source, look.restoration))


def _source_spec(args: Namespace, ledger: Ledger, at: BetweenEpochs) -> JsonDict:
    """The source as its DAG describes it today; as the last epoch did, if no DAG here describes it.

    Looking for the DAG runs every bundle and DAG file, so it may fail for any reason. The command must go on.
    """
    newest, pipeline = at.newest, at.newest.txn_id.pipeline
    try:
        owner = admin.owner_of(ledger, pipeline)
        with answer_alone():
            return definitions.find(pipeline, owner, args.ledger_conn_id).pipeline.source.spec()
    except Exception as error:
        code = error.code if isinstance(error, EpochError) else None
        told = code.name if code else type(error).__name__
        print(
            f"The source cannot be read from a DAG here ({told}): it is taken as epoch {newest.txn_id.epoch} has it on "
            "record."
        )
        return newest.source


def _adopted(ledger: Ledger, at: BetweenEpochs, adoption: Adoption, look: Outlook) -> list[str]:
    return [*_taken(ledger, at, adoption, look), *outcome(ledger, at, look)]


def _taken(ledger: Ledger, at: BetweenEpochs, adoption: Adoption, look: Outlook) -> list[str]:
    if adoption.is_new:
        return _new_state(at, adoption)
    if adoption.lacks is None:
        return _taken_back(at, adoption)
    shows = f"epoch {adoption.shown.epoch}" if adoption.shown else "no epoch"
    expected = f"the ledger expects epoch {adoption.expected.epoch}" if adoption.expected else "it never got one"
    return [
        f"Sink {adoption.sink} of pipeline {at.newest.txn_id.pipeline} shows {shows}, and {expected}. It will be taken "
        f"as it is, and goes on with epoch {at.epoch}.",
        *_lacking(ledger, adoption, adoption.lacks, look),
    ]


def _lacking(ledger: Ledger, adoption: Adoption, lacks: tuple[int, int], look: Outlook) -> list[str]:
    if look.elsewhere:
        missing, again = "  It lacks rows up to there, unless its table has them, as the lines below say of it.", []
    else:
        rows = f"{described_epochs(*lacks)}{_rows(ledger, adoption, lacks)}"
        missing, again = f"  missing for good, unless its table has them: the rows of {rows}", _read_again(lacks[0])
    return [missing, *(_state_anew() if adoption.is_state else again)]


def _read_again(first: int) -> list[str]:
    return [
        "  To read them again, answer no, and give the sink another name, with "
        f"{backfill_from(first)} in the DAG instead."
    ]


def _state_anew() -> list[str]:
    """The lines for a state: `backfill` cannot bring what it lacks, because each epoch rests on the one before."""
    return [
        "  It is a state table: in a new table it begins empty, or with the rows of `initial`. Later results lack what "
        "is not among these rows.",
        "  Do not give the state another name: `backfill` does not fill a state. To give it its rows, or to let it see "
        "earlier records again, see docs/state.md, 'A state that is lost'.",
    ]


def _new_state(at: BetweenEpochs, adoption: Adoption) -> list[str]:
    return [
        f"No complete epoch of pipeline {at.newest.txn_id.pipeline} has a sink {adoption.sink}. As a new state table "
        f"it begins with epoch {at.epoch}: empty, or with the rows of `initial`. For a sink of another kind, the "
        "command changes nothing.",
        "  If it takes the place of another state, later results lack what that state holds. To keep that, answer no, "
        "and give the state its old name and table again, or name its rows in `initial`.",
    ]


def _taken_back(at: BetweenEpochs, adoption: Adoption) -> list[str]:
    assert adoption.expected, "a sink that lacks nothing shows an epoch"
    lines = [
        f"Sink {adoption.sink} of pipeline {at.newest.txn_id.pipeline} shows epoch {adoption.expected.epoch}, as the "
        "ledger expects: it lacks nothing. The earlier `adopt-sink`, which the next epoch would obey, will be taken "
        "back.",
    ]
    if at.order and at.order.restored_to:
        lines.append(
            f"  The next epoch brings the tables of epoch {at.order.restored_to} back, but not the table of this sink. "
            "To bring it back too, type the `rewind` again after this command."
        )
    return lines


def _rows(ledger: Ledger, adoption: Adoption, lacks: tuple[int, int]) -> str:
    """How many rows these are by their receipts; empty if there are no rows, or too many epochs to read.

    An epoch in which the sink was waived, or took no part, has no receipt of it.
    """
    first, last = lacks
    if last - first >= orders.EPOCHS_COUNTED_MAX:
        return ""
    records = [ledger.complete_record(number) for number in range(first, last + 1)]
    rows = [record.receipts[adoption.sink].rows for record in records if record and adoption.sink in record.receipts]
    without = f"; no receipt in {len(records) - len(rows)} of {len(records)} epochs" if len(rows) < len(records) else ""
    return f" ({sum(rows)} by their receipts{without})" if rows else ""


def environment() -> AirflowEnvironment:
    """Connections, for a command that runs nothing on Spark."""
    return AirflowEnvironment(SparkConnect())


def wrong_options(remedy: str) -> Refused:
    """The error for options that contradict each other, or lack another one."""
    return Refused("The options of the command do not fit each other.", code=codes.COMMAND_OPTIONS, remedy=remedy)
