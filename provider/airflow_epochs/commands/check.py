"""``airflow epochs check``: finds out what a run of a DAG would find out, before it runs.

``operators.definitions`` finds the DAG's pipelines. ``coordinator.inspection.checking`` makes the checks.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass

from airflow.cli.cli_config import ARG_VERBOSE, ActionCommand, Arg
from airflow.utils.cli import suppress_logs_and_warning
from rich.console import Console
from rich.progress import Progress

from airflow_epochs.commands.asking import OUTPUT, tells_refusals
from airflow_epochs.commands.printing import DOCUMENTS, print_rows
from airflow_epochs.coordinator.inspection.checking import CheckedPipeline, looks_at
from airflow_epochs.coordinator.looks import Checked, CheckResult, PlannedCheck, made
from airflow_epochs.errors import EpochError
from airflow_epochs.hooks.epochs import EpochsHook
from airflow_epochs.operators import definitions
from airflow_epochs.operators.base import EpochOperator
from airflow_epochs.operators.wording import of_command


def check_command() -> ActionCommand:
    """The command of this module."""
    return ActionCommand(
        name="check",
        help="Ask everything that a run of a DAG would ask, and change nothing. Exit code 1 if a check failed",
        func=show_checks,
        args=(Arg(("dag_id",), help="The DAG, with one pipeline or several"), OUTPUT, ARG_VERBOSE),
    )


@dataclass(frozen=True)
class _Row:
    """A check of a pipeline."""

    pipeline: str
    checked: Checked


@tells_refusals
@suppress_logs_and_warning
def show_checks(args: Namespace) -> None:
    """Make all checks of all pipelines of a DAG, print a row for each, and exit with 1 if one has failed."""
    with redirect_stdout(sys.stderr):  # DAG files and transforms may print
        rows = list(_rows(definitions.in_dag(args.dag_id)))
    failed = [row for row in rows if row.checked.result is CheckResult.FAILED]
    if args.output in DOCUMENTS:
        print_rows([_as_json(row) for row in rows], args.output)
    else:
        print_rows([_as_cells(row) for row in rows], args.output)
        print("\n".join([*(_explained(row) for row in failed), _summary(args.dag_id, rows, failed)]))
    if failed:
        raise SystemExit(1)


def _rows(operators: Iterable[EpochOperator]) -> Iterator[_Row]:
    """All checks. A terminal shows meanwhile how many have been made, and which one is being made."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        for operator in operators:
            name = operator.pipeline
            looks = _looks(name, operator)
            if isinstance(looks, Checked):
                yield _Row(name, looks)
                continue
            task = bar.add_task(f"checks of pipeline {name}", total=len(looks))
            for checked in made(name, looks):
                bar.advance(task)
                yield _Row(name, checked)


def _looks(name: str, operator: EpochOperator) -> list[PlannedCheck] | Checked:
    """The checks of a pipeline; or the one that failed, if it is not known what there is to check."""
    try:
        found, transform = definitions.without_file(operator)
    except EpochError as error:
        error.pipeline = error.pipeline or name
        return Checked(
            about="definition", check="arguments", where=operator.dag_id, result=CheckResult.FAILED, error=error
        )
    hook = EpochsHook(found.ledger_conn_id)
    return looks_at(
        CheckedPipeline(
            pipeline=found.pipeline,
            env=operator.environment,
            ledger_conn_id=found.ledger_conn_id,
            ledger=lambda: hook.ledger(name),
            probe=hook.probe,
            keys=hook.told_of_keys,
            transform=transform,
        )
    )


# -- what is printed -------------------------------------------------------------------------------------------------


def _as_cells(row: _Row) -> dict[str, object]:
    told = row.checked
    return {
        "pipeline": row.pipeline,
        "of": told.about,
        "check": told.check,
        "where": told.where,
        "result": told.result.value,
        "details": "see below" if told.error else told.details,
    }


def _as_json(row: _Row) -> dict[str, object]:
    error = of_command(row.checked.error) if row.checked.error else None
    return {
        **_as_cells(row),
        "details": row.checked.details or None,
        "code": error.code.name if error and error.code else None,
        "cause": error.what if error else None,
        "remedy": error.filled_remedy if error else None,
    }


def _explained(row: _Row) -> str:
    """Cause, place and remedy, as the log of a task would have them."""
    told = row.checked
    return f"{told.about}, {told.check}: {of_command(told.error) if told.error else told.details}"


def _summary(dag_id: str, rows: list[_Row], failed: list[_Row]) -> str:
    unknown = sum(row.checked.result is CheckResult.NOT_CHECKED for row in rows)
    rest = f" Not checked: {unknown}; the details say why." if unknown else ""
    if failed:
        return f"DAG {dag_id}: {len(failed)} of {len(rows)} checks failed.{rest} Nothing was changed."
    return f"DAG {dag_id}: {len(rows) - unknown} of {len(rows)} checks are in order.{rest} Nothing was changed."
