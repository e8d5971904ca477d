"""``airflow epochs savepoint``, ``savepoints``, ``describe-savepoint``, ``dispose-savepoint``."""

from __future__ import annotations

import json
from argparse import Namespace

from airflow.cli.cli_config import ARG_YES, ActionCommand, Arg

from airflow_epochs.commands.asking import (
    CONN,
    OUTPUT,
    PIPELINE,
    WHY,
    account_of,
    confirm,
    known_ledger_of,
    tells_refusals,
)
from airflow_epochs.commands.printing import print_rows
from airflow_epochs.coordinator.admin import savepoints
from airflow_epochs.coordinator.admin.savepoint_actions import DisposeSavepoint
from airflow_epochs.hooks.audit import caller, logged
from airflow_epochs.ledger.codec import to_plain
from airflow_epochs.model import SavepointRecord, starting_at_ends

_NAME = Arg(("name",), help="The savepoint's name")


def savepoint_commands() -> list[ActionCommand]:
    """The commands of this module."""
    return [
        ActionCommand(
            name="savepoint",
            help="Name a complete epoch, to go back to it later",
            func=make_savepoint,
            args=(
                PIPELINE,
                _NAME,
                Arg(("--epoch",), type=int, help="A complete epoch; without it, the newest one"),
                WHY,
                Arg(("--yes",), action="store_true", help="Without effect: the command does not ask"),
                CONN,
            ),
        ),
        ActionCommand(
            name="savepoints",
            help="The savepoints of a pipeline",
            func=list_savepoints,
            args=(PIPELINE, CONN, OUTPUT),
        ),
        ActionCommand(
            name="describe-savepoint",
            help="A savepoint, as JSON: offsets as `starting` takes them; receipts, source, sinks, code of its epoch",
            func=describe_savepoint,
            args=(PIPELINE, _NAME, CONN),
        ),
        ActionCommand(
            name="dispose-savepoint",
            help="End a savepoint; its name cannot be used again",
            func=dispose_savepoint,
            args=(PIPELINE, _NAME, WHY, ARG_YES, CONN),
        ),
    ]


@tells_refusals
def make_savepoint(args: Namespace) -> None:
    """``airflow epochs savepoint``: name a complete epoch. It changes nothing else, so it does not ask."""
    by, ledger = account_of(args), known_ledger_of(args)
    with logged("savepoint", dag_id="", by=caller()):
        made = savepoints.make(ledger, args.pipeline, args.name, args.epoch, by)
    print(f"Savepoint {made.name} is epoch {made.epoch} of pipeline {args.pipeline}.")


@tells_refusals
def list_savepoints(args: Namespace) -> None:
    """``airflow epochs savepoints``: print the savepoints. Reads only."""
    print_rows([_row(each) for each in known_ledger_of(args).savepoints()], args.output)


def _row(savepoint: SavepointRecord) -> dict[str, object]:
    versions = {name: receipt.version for name, receipt in sorted(savepoint.complete.receipts.items())}
    return {
        "name": savepoint.name,
        "epoch": savepoint.epoch,
        "completed": savepoint.complete.completed_at,
        "versions": ", ".join(f"{sink}={version}" for sink, version in versions.items() if version is not None),
        "by": savepoint.who,
        "why": savepoint.why,
        "at": savepoint.at,
    }


@tells_refusals
def describe_savepoint(args: Namespace) -> None:
    """``airflow epochs describe-savepoint``: print a savepoint as JSON. Reads only."""
    found = savepoints.find(known_ledger_of(args), args.pipeline, args.name)
    starting = starting_at_ends(found.complete.ranges)
    print(json.dumps({"epoch": found.epoch, "starting": starting, **to_plain(found)}, indent=2))


@tells_refusals
def dispose_savepoint(args: Namespace) -> None:
    """``airflow epochs dispose-savepoint``: let a savepoint not count any more, after a yes."""
    by, ledger = account_of(args), known_ledger_of(args)
    action = DisposeSavepoint(args.pipeline, args.name)
    confirm(args, *action.told(ledger), f"Will be recorded: {caller()}, because: {by.why}")
    with logged(action.name, dag_id="", by=caller()):
        print(action.do(ledger, by))
