"""``airflow epochs …``: all commands, and those that no other module of ``commands`` has.

This module only parses and prints. A command that changes a ledger first prints what will change, and asks; only
``savepoint``, which adds a name, does not ask. ``coordinator.admin`` and ``coordinator.rebuilding`` do the work.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

from airflow.cli.cli_config import ARG_YES, ActionCommand, Arg, CLICommand, GroupCommand

from airflow_epochs import codes
from airflow_epochs.commands.asking import (
    CONN,
    EPOCH,
    OUTPUT,
    PIPELINE,
    WHY,
    account_of,
    at_least_one,
    confirm,
    known_ledger_of,
    ledger_of,
    tells_refusals,
)
from airflow_epochs.commands.check import check_command
from airflow_epochs.commands.code import code_command
from airflow_epochs.commands.dry_run import dry_run_command
from airflow_epochs.commands.export import export_command
from airflow_epochs.commands.finding import finding_command
from airflow_epochs.commands.history import history_command
from airflow_epochs.commands.looking import looking_commands
from airflow_epochs.commands.migration import migration_commands
from airflow_epochs.commands.orders import order_commands
from airflow_epochs.commands.preview import preview_command
from airflow_epochs.commands.printing import print_rows
from airflow_epochs.commands.rebuild import rebuild_command
from airflow_epochs.commands.savepoints import savepoint_commands
from airflow_epochs.commands.verify import verify_command
from airflow_epochs.commands.waiving import WaiveWithDags
from airflow_epochs.coordinator.admin import admin
from airflow_epochs.coordinator.admin.actions import Abort, Action, Pause, Unpause, require_possible
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.reasons import reason_and_remedy
from airflow_epochs.errors import Refused, located
from airflow_epochs.event_time import instant_text, micros
from airflow_epochs.hooks.audit import caller, logged
from airflow_epochs.hooks.epochs import AirflowEnvironment, connection
from airflow_epochs.hooks.informed_actions import InformedTakeOver
from airflow_epochs.hooks.retrying import Retry
from airflow_epochs.kafka.connection import read_connection
from airflow_epochs.ledger.documents import document
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import (
    EpochRow,
    in_words,
    newest_epochs,
    newest_opened,
    unfinished,
)
from airflow_epochs.ledger.signing import RANDOM_KEY
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import SHORT_CODE
from airflow_epochs.protocol import State
from airflow_epochs.read import options_of
from airflow_epochs.sinks.delta.state import recorded_states
from airflow_epochs.sinks.delta.state.figures import StateFigures, figures
from airflow_epochs.sinks.delta.state.recorded_states import StateRecords
from airflow_epochs.sinks.delta.state.view import ReadableState, readable
from airflow_epochs.sources import on_record
from airflow_epochs.sources.kafka.source import KIND as KAFKA
from airflow_epochs.sources.kafka.source import KafkaSource
from airflow_epochs.spark.kafka_credentials import properties
from airflow_epochs.spark.runners import SparkConnect
from airflow_epochs.storage.options import storage_options


def get_cli_commands() -> list[CLICommand]:
    """The commands that Airflow adds to its command line."""
    moving = [*order_commands(), *savepoint_commands(), *migration_commands()]
    commands = [*_reading(), *_changing(), *moving, _kafka_credentials()]
    return [GroupCommand(name="epochs", help="Exactly-once epoch pipelines", subcommands=commands)]


def _reading() -> list[ActionCommand]:
    return [
        *looking_commands(),
        ActionCommand(
            name="list",
            help="The newest epochs of a pipeline, newest first",
            func=list_epochs,
            args=(PIPELINE, CONN, Arg(("--limit",), type=at_least_one, default=20, help="How many"), OUTPUT),
        ),
        ActionCommand(
            name="show",
            help="One epoch, as JSON: all its records, of aborted attempts too, as far as they are kept",
            func=show_epoch,
            args=(PIPELINE, Arg(("epoch",), nargs="?", type=int, help="Its number; without it, the newest"), CONN),
        ),
        ActionCommand(
            name="in-doubt",
            help="What a pipeline waits for: sinks of an epoch in doubt, open transactions in its topics",
            func=show_in_doubt,
            args=(PIPELINE, CONN),
        ),
        _state(),
        history_command(),
        finding_command(),
        verify_command(),
        export_command(),
        dry_run_command(),
        preview_command(),
        check_command(),
    ]


def _state() -> ActionCommand:
    return ActionCommand(
        name="state",
        help="The state tables of a pipeline: size, changes, watermark; or the SQL that reads one",
        func=show_state,
        args=(
            PIPELINE,
            Arg(("name",), nargs="?", help="A state table; without it, all of the newest complete epoch"),
            Arg(("--epoch",), type=int, help="A complete epoch; without it, the newest one"),
            Arg(("--sql",), choices=["duckdb", "spark"], help="Print the statement that makes a view of the state"),
            Arg(("--storage-conn-id",), help="Connection of the tables' store, instead of the one on record"),
            CONN,
            OUTPUT,
        ),
    )


def _changing() -> list[ActionCommand]:
    return [
        ActionCommand(
            name="takeover",
            help="Hand a pipeline to another DAG",
            func=take_over,
            args=(
                PIPELINE,
                Arg(("--dag-id",), required=True, help="The DAG that runs it from now on"),
                WHY,
                ARG_YES,
                CONN,
            ),
        ),
        ActionCommand(
            name="waive",
            help="Last resort: let an epoch in doubt be completed without one of its sinks",
            func=waive,
            args=(
                PIPELINE,
                EPOCH,
                Arg(("sink",), help="The sink that cannot keep its promise"),
                WHY,
                ARG_YES,
                CONN,
            ),
        ),
        ActionCommand(
            name="abort",
            help="Abort the attempt that is not decided; the next run takes the same input",
            func=abort,
            args=(PIPELINE, WHY, ARG_YES, CONN),
        ),
        ActionCommand(
            name="pause",
            help="Let the pipeline take no new epoch; running epochs continue, epochs in doubt are completed",
            func=pause,
            args=(PIPELINE, WHY, ARG_YES, CONN),
        ),
        ActionCommand(
            name="unpause",
            help="Let a paused pipeline take new epochs again",
            func=unpause,
            args=(PIPELINE, WHY, ARG_YES, CONN),
        ),
        ActionCommand(
            name="retry",
            help="Run the pipeline once more, now: clear the run in charge of the unfinished epoch, or the newest run "
            "if it failed; else start one",
            func=retry,
            args=(PIPELINE, WHY, ARG_YES, CONN),
        ),
        ActionCommand(
            name="sign",
            help="Accept the ledger's unsigned records as they are; from now on accept only signed records",
            func=sign,
            args=(PIPELINE, WHY, ARG_YES, CONN),
        ),
        rebuild_command(),
        code_command(),
    ]


def _kafka_credentials() -> ActionCommand:
    return ActionCommand(
        name="kafka-credentials",
        help="Write the kafka_credentials_file of a Spark Connect server: passwords and keys",
        func=write_kafka_credentials,
        args=(
            Arg(("conn_id",), nargs="+", help="Connections of type kafka"),
            Arg(("--file",), required=True, help="The file to write; an existing file is replaced"),
        ),
    )


@tells_refusals
def list_epochs(args: Namespace) -> None:
    """``airflow epochs list``: print the newest epochs of a pipeline. Reads only."""
    ledger = known_ledger_of(args)
    views = newest_epochs(ledger, args.limit)
    rows = [
        _printed(EpochRow.of(ledger, view, ledger.complete_record(view.number - 1)), _reason(view)) for view in views
    ]
    print_rows(rows, args.output)


def _reason(view: EpochView) -> str | None:
    """Why the newest attempt was aborted; None if it was not."""
    return reason_and_remedy(view.decision)[0] if view.state is State.ABORTED and view.decision else None


@tells_refusals
def show_epoch(args: Namespace) -> None:
    """``airflow epochs show``: print all records of one epoch as JSON. Reads only."""
    ledger = known_ledger_of(args)
    view = next(newest_epochs(ledger, 1), None) if args.epoch is None else ledger.view(args.epoch)
    if view is None or not (view.open or view.complete):
        raise Refused(
            f"The pipeline has no epoch {'yet' if args.epoch is None else args.epoch}.",
            code=codes.EPOCH_UNKNOWN,
            remedy=f"Choose an epoch that `airflow epochs list {args.pipeline}` prints.",
        )
    print(json.dumps(document(ledger, view), indent=2))


@tells_refusals
def show_in_doubt(args: Namespace) -> None:
    """``airflow epochs in-doubt``: print the unfinished epoch, and open transactions that keep records unreadable."""
    ledger = known_ledger_of(args)
    view = unfinished(ledger)
    print(in_words(view) if view else f"No epoch is unfinished; the newest complete one is {ledger.newest_complete()}.")
    opened = newest_opened(ledger)
    if not opened:
        print("What the pipeline reads is not known: it has no open record.")
    elif opened.source.get("kind") == KAFKA:
        with located(args.pipeline):
            source = on_record(opened.source)
        assert isinstance(source, KafkaSource), "the record says so"
        waiting = source.waiting(AirflowEnvironment(SparkConnect()))
        print("\n".join(waiting) or "No open transaction keeps records of its topics from being read.")


@tells_refusals
def show_state(args: Namespace) -> None:
    """``airflow epochs state``: print figures of state tables, or the SQL of a view of one. Reads only."""
    if args.sql and not args.name:
        raise Refused(
            "The command does not know which state table the SQL is for.",
            code=codes.STATE_UNKNOWN,
            remedy=f"Type airflow epochs state {args.pipeline} NAME --sql {args.sql}.",
        )
    ledger = known_ledger_of(args)
    chosen = [args.name] if args.name else recorded_states.names(ledger)
    found = [_state_of(ledger, args, name) for name in chosen]
    if args.sql:
        [(_, state)] = found
        print(state.view_duckdb() if args.sql == "duckdb" else state.view_spark())
    else:
        now = micros(datetime.now(timezone.utc))
        rows = [_printed_state(figures(records, state), now) for records, state in found]
        print_rows(rows, args.output)


def _state_of(ledger: Ledger, args: Namespace, name: str) -> tuple[StateRecords, ReadableState]:
    with located(args.pipeline, args.epoch, sink=name):
        records = recorded_states.find(ledger, name, args.epoch)
        chosen = args.storage_conn_id
        options = storage_options(connection(chosen)) if chosen else options_of(records)
        return records, readable(name, records.shown, records.spec, options)


def _printed_state(row: StateFigures, now: int) -> dict[str, object]:
    return {
        "state": row.name,
        "epoch": row.epoch,
        "version": row.version,
        "keys": row.keys,
        "files": row.files,
        "bytes": row.bytes,
        "rows changed": row.changed,
        "files dropped": row.dropped,
        "rows late": row.late,
        "watermark": None if row.watermark is None else instant_text(row.watermark),
        "lag": None if row.watermark is None else f"{(now - row.watermark) // 1_000_000} s",
        "next expiry": None if row.next_expiry is None else instant_text(row.next_expiry),
    }


@tells_refusals
def take_over(args: Namespace) -> None:
    """``airflow epochs takeover``: hand a pipeline to another DAG, after a look at its owner and a yes."""
    by, ledger = account_of(args), known_ledger_of(args)
    owner = admin.owner_of(ledger, args.pipeline)
    _done(args, ledger, InformedTakeOver(args.pipeline, args.dag_id, owner), by, dag_id=args.dag_id)


@tells_refusals
def waive(args: Namespace) -> None:
    """``airflow epochs waive``: put a waiver in place of a receipt, after a look at the rows it costs and a yes."""
    by, ledger = account_of(args), known_ledger_of(args)
    opened = admin.with_promise(ledger, args.epoch, args.sink).opened
    _done(
        args, ledger, WaiveWithDags(args.pipeline, args.epoch, args.sink, args.ledger_conn_id), by, dag_id=opened.dag_id
    )


@tells_refusals
def abort(args: Namespace) -> None:
    """``airflow epochs abort``: abort the attempt that is not decided, after a look at it and a yes."""
    by, ledger = account_of(args), known_ledger_of(args)
    _done(args, ledger, Abort.of(ledger, args.pipeline), by, dag_id="")


@tells_refusals
def pause(args: Namespace) -> None:
    """``airflow epochs pause``: let the pipeline take no new epoch, after a look at what is unfinished and a yes."""
    _set_pause(args, Pause)


@tells_refusals
def unpause(args: Namespace) -> None:
    """``airflow epochs unpause``: let a paused pipeline take new epochs again, after a yes."""
    _set_pause(args, Unpause)


@tells_refusals
def retry(args: Namespace) -> None:
    """``airflow epochs retry``: let Airflow run the pipeline once more, after a look at which run and a yes."""
    by, ledger = account_of(args), known_ledger_of(args)
    action = Retry.of(ledger, args.pipeline, args.ledger_conn_id)
    _done(args, ledger, action, by, dag_id=action.dag_id)


def _set_pause(args: Namespace, kind: type[Pause] | type[Unpause]) -> None:
    """Pause or unpause. Nothing to do is no failure: a script may say twice how it wants the pipeline to be."""
    by, ledger = account_of(args), known_ledger_of(args)
    try:
        action = kind.of(ledger, args.pipeline)
    except Refused as as_it_is:
        if as_it_is.code is not codes.NOTHING_TO_PAUSE:
            raise
        print(as_it_is.what)
        return
    _done(args, ledger, action, by, dag_id=admin.owner_of(ledger, args.pipeline))


def _done(args: Namespace, ledger: Ledger, action: Action, by: Account, *, dag_id: str) -> None:
    """Tell what the action changes, ask, and do it, with an entry in Airflow's audit log."""
    confirm(args, *action.told(ledger), f"Will be recorded: {caller()}, because: {by.why}")
    require_possible(action, ledger)  # the ledger may have moved on meanwhile: then it is refused, and not logged
    with logged(action.name, dag_id=dag_id, by=caller()):
        print(action.do(ledger, by))


@tells_refusals
def sign(args: Namespace) -> None:
    """``airflow epochs sign``: let unsigned records count, after a look at their keys and a yes."""
    by, ledger = account_of(args), ledger_of(args)
    unsigned = ledger.signing.unsigned()
    if not unsigned:
        known_ledger_of(args)  # else the ledger's own record may be among the unsigned ones
    if not ledger.signing.has_keys:
        raise Refused(
            f"Connection {args.ledger_conn_id} has no password, so there is no key to sign with. Nothing was changed.",
            code=codes.SIGNING_PASSWORD_MISSING,
            remedy="Set the connection's password to the key that signed the ledger, or to a new random key "
            f"(`{RANDOM_KEY}`). Then type the command again.",
        )
    if not unsigned:
        print(f"Nothing to do: today's keys vouch for all that the next epoch of pipeline {args.pipeline} rests on.")
        return
    confirm(
        args,
        f"These records of pipeline {args.pipeline} are signed with no key of connection {args.ledger_conn_id}:",
        *(f"  {key}" for key in unsigned),
        "They will be accepted as they are now, no matter who wrote them. Read them first.",
        "Records that are written from now on count only if they are signed.",
        f"Will be recorded: {caller()}, because: {by.why}",
    )
    with logged("sign", dag_id="", by=caller()):
        record = admin.sign(ledger, by=by)
    print(f"Pipeline {args.pipeline} is signed from epoch {record.epoch + 1} on.")


@tells_refusals
def write_kafka_credentials(args: Namespace) -> None:
    """``airflow epochs kafka-credentials``: write the file with which a Spark server logs in to Kafka, mode 0600."""
    text = "".join(_credentials_of(conn_id) for conn_id in args.conn_id)
    _write_privately(Path(args.file), text)
    print(f"{args.file} has the credentials of {', '.join(args.conn_id)}, and only {caller().who} can read it.")


def _credentials_of(conn_id: str) -> str:
    secrets = read_connection(connection(conn_id)).spark_secrets()
    if not secrets:
        raise Refused(
            f"Connection {conn_id} has no password and no key, so Spark needs no credentials file for it. Nothing was "
            "written.",
            code=codes.CREDENTIALS_EMPTY,
        )
    return properties(conn_id, secrets)


def _write_privately(path: Path, text: str) -> None:
    """Write a file of mode 0600. An older file is replaced in one step, because Spark may be reading it."""
    try:
        with TemporaryDirectory(dir=path.parent) as folder:
            with open(Path(folder, "new"), "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(text)
            Path(folder, "new").replace(path)
    except OSError as error:
        raise Refused(
            f"The credentials file {path} cannot be written: {error.strerror}.", code=codes.CREDENTIALS_NOT_WRITTEN
        ) from None


def _printed(row: EpochRow, reason: str | None) -> dict[str, object]:
    return {
        "epoch": row.number,
        "state": row.state.value,
        "attempt": row.attempt,
        "offsets": row.offsets,
        "read": row.read,
        "rows": row.rows,
        "dead letters": row.dead_letters,
        "waits for": list(row.waits_for),
        "waived": {sink: f"by {said.who}: {said.why}" for sink, said in row.waived.items()},
        "reason": reason,
        "commands": list(row.commands),
        "code": f"{row.code[:SHORT_CODE]}{'*' if row.code_changed else ''}" if row.code else None,
        "versions": row.versions,
        "at": row.at,
        "transaction": str(row.txn_id),
    }
