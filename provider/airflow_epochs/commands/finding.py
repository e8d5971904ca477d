"""``airflow epochs find``: which epoch a run worked on, read this record, made this version, or wrote this file.

It says which sinks do not show the epoch, too. It reads only.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from airflow.cli.cli_config import ActionCommand, Arg

from airflow_epochs import codes
from airflow_epochs.commands.asking import OUTPUT, end_with, of_each, tell_of_nothing, tells_refusals
from airflow_epochs.commands.printing import print_rows
from airflow_epochs.coordinator.runs import series
from airflow_epochs.errors import Refused
from airflow_epochs.hooks.epochs import EpochsHook
from airflow_epochs.hooks.ledgers import ledger_conn_ids
from airflow_epochs.ledger import run_ids
from airflow_epochs.ledger.finding import (
    epoch_that_wrote,
    epochs_that_made,
    epochs_that_read,
    unfinished_that_reads,
)
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import waivers
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import CompleteRecord, Run

_HISTORY = "unfinished before a rebuilding"
"""The state of an epoch that an older copy of the ledger had, and others came after. Its sinks may show it or not."""


def finding_command() -> ActionCommand:
    """The command, for the command line."""
    return ActionCommand(
        name="find",
        help="Find the epoch of a run, a Kafka record, a table version or a data file; and which sinks do not show it",
        func=find,
        args=(
            Arg(("--run-id",), metavar="RUN", help="A run, as Airflow names it"),
            Arg(("--dag-id",), metavar="DAG", help="DAG of --run-id; without it, every DAG that has such a run"),
            Arg(("--topic",), help="With --partition and --offset: the record"),
            Arg(("--partition",), type=int, help="Partition of --topic"),
            Arg(("--offset",), type=int, help="Offset of the record"),
            Arg(("--table",), help="With --version: path or URL of a Delta table"),
            Arg(("--version",), type=int, help="Version of --table"),
            Arg(("--row-file",), metavar="FILE", help="A data file of a Delta table, as queries tell it for a row"),
            Arg(("--ledger-conn-id",), help="Connection of type epochs; without it, all of them"),
            OUTPUT,
        ),
    )


@tells_refusals
def find(args: Namespace) -> None:
    """``airflow epochs find``: print the epochs, of all pipelines."""
    _require_one_question(args)
    chosen = [args.ledger_conn_id] if args.ledger_conn_id else ledger_conn_ids()
    found, failed = of_each(chosen, lambda conn_id: _of_connection(conn_id, args))
    if not found and args.topic is None and args.run_id is None:
        found, failed = of_each(chosen, lambda conn_id: _of_connection(conn_id, args, thoroughly=True))
    if not found:
        tell_of_nothing(each for each in chosen if each not in failed)
        nothing = _nothing(args, "pipeline of the other ledgers" if failed else "pipeline")
        end_with(failed, nothing)
        raise nothing
    print_rows(found, args.output)
    end_with(failed)


def _nothing(args: Namespace, pipeline: str) -> Refused:
    if args.run_id is not None:
        of_dag = f" of DAG {args.dag_id}" if args.dag_id else ""
        return Refused(f"No {pipeline} has an epoch of run {args.run_id}{of_dag}.", code=codes.RUN_WITHOUT_EPOCH)
    return Refused(f"No complete epoch of any {pipeline} has {_question(args)}.", code=codes.NOTHING_FOUND)


def _question(args: Namespace) -> str:
    if args.row_file is not None:
        return f"written the file {args.row_file}"
    if args.table is not None:
        return f"made version {args.version} of the table {args.table}"
    return f"read offset {args.offset} of partition {args.partition} of topic {args.topic}"


def _require_one_question(args: Namespace) -> None:
    record = [args.topic, args.partition, args.offset]
    version, file = [args.table, args.version], [args.row_file]
    run = [args.run_id, args.dag_id] if args.dag_id is not None else [args.run_id]
    asked = [question for question in (run, record, version, file) if any(part is not None for part in question)]
    if len(asked) != 1 or None in asked[0]:
        raise Refused(
            "The command needs either --run-id, or --topic, --partition and --offset, or --table and --version, or "
            "--row-file.",
            code=codes.COMMAND_OPTIONS,
            remedy="Type `airflow epochs find --run-id manual__2026-01-31T00:00:00+00:00`, or `airflow epochs find "
            "--topic orders --partition 0 --offset 1234`, or `airflow epochs find --table /lake/orders --version 12`, "
            "with your names.",
        )


def _of_connection(conn_id: str, args: Namespace, *, thoroughly: bool = False) -> Iterator[dict[str, object]]:
    hook = EpochsHook(conn_id)
    for name in hook.pipelines():
        ledger = hook.ledger(name)
        if args.run_id is not None:
            yield from ({"pipeline": name, **row} for row in _of_run(ledger, args, conn_id))
            continue
        if args.topic is not None and (view := unfinished_that_reads(ledger, *_record(args))):
            yield {"pipeline": name, **_unfinished(view, conn_id)}
        for sink, record in _found(ledger, args, thoroughly):
            yield {"pipeline": name, **_complete(ledger, sink, record, conn_id)}


def _of_run(ledger: Ledger, args: Namespace, conn_id: str) -> Iterator[dict[str, object]]:
    """A row for each epoch of the run, with the runs that opened its attempts, and the one that completed it."""
    identity, newest = ledger.identity(), ledger.newest_complete()
    dags = [args.dag_id] if args.dag_id else ledger.owners(identity) if identity else ()
    for number in sorted({epoch for dag in dags for epoch in series.epochs_of(ledger, Run(dag, args.run_id))}):
        view = ledger.view(number)
        done = view.complete
        if not (done or view.open):  # the ledger was restored, and has only the run's index
            continue
        row = _complete(ledger, None, done, conn_id) if done else _unfinished(view, conn_id)
        if not done and number <= newest:
            row |= {"state": _HISTORY, "not_shown_by": None}
        runs = [run.run_id for run in run_ids.runs_of_attempts(ledger, view)]
        by = run_ids.airflow_run(ledger, done.completed_by).run_id if done else None
        yield {**row, "attempts_by": runs, "completed_by": by}


def _complete(ledger: Ledger, sink: str | None, record: CompleteRecord, conn_id: str) -> dict[str, object]:
    view = EpochView(number=record.txn_id.epoch, complete=record)
    return {
        "epoch": view.number,
        "sink": sink,
        "transaction": str(record.txn_id),
        "dag": record.opened_by.dag_id,
        "run": record.opened_by.run_id,
        "completed_at": record.completed_at,
        "ledger": conn_id,
        "state": view.state.value,
        "not_shown_by": sorted(waivers(ledger, view)),
    }


def _unfinished(view: EpochView, conn_id: str) -> dict[str, object]:
    opened = view.opened
    return {
        "epoch": view.number,
        "sink": None,
        "transaction": str(opened.txn_id),
        "dag": opened.dag_id,
        "run": opened.run.run_id,
        "completed_at": None,
        "ledger": conn_id,
        "state": view.state.value,
        "not_shown_by": sorted(opened.sinks.keys() - view.receipts.keys()),
    }


def _record(args: Namespace) -> tuple[str, int, int]:
    return args.topic, args.partition, args.offset


def _found(ledger: Ledger, args: Namespace, thoroughly: bool) -> Iterator[tuple[str | None, CompleteRecord]]:
    if args.row_file is not None:
        if found := epoch_that_wrote(ledger, args.row_file, thoroughly=thoroughly):
            yield found
    elif args.table is not None:
        yield from epochs_that_made(ledger, args.table, args.version, removed=thoroughly)
    else:
        for record in epochs_that_read(ledger, *_record(args)):
            yield None, record
