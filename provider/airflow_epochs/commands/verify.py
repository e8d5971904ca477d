"""``airflow epochs verify``: does every sink show what the ledger says? Reads only.

``operators.definitions`` finds the pipeline in today's DAGs. ``coordinator.inspection.verifying`` does the work.
"""

from __future__ import annotations

import sys
from argparse import Namespace

from airflow.cli.cli_config import ActionCommand, Arg
from rich.console import Console
from rich.progress import Progress

from airflow_epochs import codes
from airflow_epochs.commands.asking import OUTPUT, PIPELINE, at_least_one, tells_refusals
from airflow_epochs.commands.printing import DOCUMENTS, answer_alone, print_rows
from airflow_epochs.coordinator.inspection.verifying import Finding, FindingVerdict, verify
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.operators import definitions

EPOCHS = 100
FAULTS = (FindingVerdict.WRONG, FindingVerdict.NO_ANSWER)


def verify_command() -> ActionCommand:
    """The command of this module."""
    return ActionCommand(
        name="verify",
        help="Compare the ledger with every sink: markers, versions, gaps, row counts. Exit code 1 if one is wrong",
        func=show_verification,
        args=(
            PIPELINE,
            Arg(
                ("--epochs",),
                type=at_least_one,
                default=EPOCHS,
                help=f"How many of the newest epochs; {EPOCHS} by default",
            ),
            Arg(("--dag-id",), help="The pipeline's DAG; needed only if several DAGs have a pipeline of this name"),
            Arg(("--ledger-conn-id",), help="Connection of type epochs, instead of the one that the DAG names"),
            OUTPUT,
        ),
    )


@tells_refusals
def show_verification(args: Namespace) -> None:
    """Check, print a row for each check, and exit with 1 if something is wrong or a sink did not answer."""
    with answer_alone():
        task = definitions.find(args.pipeline, args.dag_id, args.ledger_conn_id).task()
        _require_complete_epoch(task)
        found = _found(task, args.epochs)
    print_rows([_printed(each) for each in found], args.output)
    faults = [each for each in found if each.verdict in FAULTS]
    if args.output not in DOCUMENTS:
        print(_summary(args.pipeline, found, faults))
    if faults:
        raise SystemExit(1)


def _require_complete_epoch(task: TaskTry) -> None:
    if not task.ledger.newest_complete():
        raise Refused(
            "The pipeline has no complete epoch, so there is nothing to compare.",
            code=codes.EPOCH_UNKNOWN,
            remedy="Start a run of the pipeline's DAG. Type the command again when a run has succeeded.",
        )


def _found(task: TaskTry, epochs: int) -> list[Finding]:
    """The findings. A terminal shows how many epochs have been counted meanwhile."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        counted = bar.add_task("epochs counted, over all sinks", total=None)
        return list(verify(task, epochs, lambda more: bar.advance(counted, more)))


def _printed(each: Finding) -> dict[str, object]:
    return {
        "of": each.about,
        "check": each.check,
        "result": each.verdict.value,
        "epochs": each.epochs,
        "details": list(each.details),
    }


def _summary(pipeline: str, found: list[Finding], faults: list[Finding]) -> str:
    if faults:
        return f"Pipeline {pipeline}: {len(faults)} of {len(found)} checks failed."
    unknown = sum(each.verdict is FindingVerdict.NOT_CHECKED for each in found)
    rest = f" Not checked: {unknown}; the details say why." if unknown else ""
    return f"Pipeline {pipeline}: {len(found) - unknown} of {len(found)} checks are in order.{rest}"
