"""``airflow epochs dry-run``: play a complete epoch again with today's code, and show what would differ.

``operators.definitions`` finds the pipeline in today's DAGs. ``coordinator.inspection.dry_run`` does the work.
"""

from __future__ import annotations

import signal
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from airflow.cli.cli_config import ActionCommand, Arg

from airflow_epochs.commands.asking import OUTPUT, PIPELINE, count, tells_refusals
from airflow_epochs.commands.printing import DOCUMENTS, answer_alone, print_document, print_rows
from airflow_epochs.config import Transform
from airflow_epochs.coordinator.inspection.dry_run import DryRun, SinkResult, dry_run
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import cause_and_remedy
from airflow_epochs.model import SHORT_CODE, DecisionKind
from airflow_epochs.operators import definitions
from airflow_epochs.operators.transform_file import find_transform

SAMPLE = 5


def dry_run_command() -> ActionCommand:
    """The command of this module."""
    return ActionCommand(
        name="dry-run",
        help="Play a complete epoch again with today's code, or other code: what would differ? Publishes nothing",
        func=show_dry_run,
        args=(
            PIPELINE,
            Arg(("--epoch",), type=int, required=True, help="A complete epoch"),
            Arg(
                ("--transform",),
                metavar="FILE",
                help="Other code: a file, or FILE.py:FUNCTION; without it, the transform of today's DAG",
            ),
            Arg(("--sample",), type=count, default=SAMPLE, help="How many rows of each side to show for each sink"),
            Arg(("--dag-id",), help="The pipeline's DAG; needed only if several DAGs have a pipeline of this name"),
            Arg(("--ledger-conn-id",), help="Connection of type epochs, instead of the one that the DAG names"),
            OUTPUT,
        ),
    )


@tells_refusals
def show_dry_run(args: Namespace) -> None:
    """Stage the epoch's input again, compare, and clear away what was staged. It changes nothing, so does not ask."""
    with answer_alone():
        task = todays_task(args)
        with ended_in_order():
            told = dry_run(task, args.epoch, args.sample)
    if args.output in DOCUMENTS:
        print_document(_as_json(told), args.output)
    else:
        _print(told, args.output)


def todays_task(args: Namespace) -> TaskTry:
    """A task of the pipeline as its DAG defines it today, with the code of ``--transform`` if that is given."""
    task = definitions.find(args.pipeline, args.dag_id, args.ledger_conn_id, step="stage").task()
    return _with_transform(task, args.transform) if args.transform else task


def _with_transform(task: TaskTry, text: str) -> TaskTry:
    """The task with the code in another file; its function has the name of today's if ``text`` names no function."""
    named = text if ":" in Path(text).name else f"{text}:{task.pipeline.transform.function}"
    transform: Transform = find_transform(named, [Path.cwd()])
    return replace(task, pipeline=replace(task.pipeline, transform=transform))


@contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: what was staged is cleared away."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# -- what is printed -------------------------------------------------------------------------------------------------


def _print(told: DryRun, output: str) -> None:
    codes = f"code {_code(told.code_then)} then, {_code(told.code_now)} now"
    print(f"Epoch {told.epoch} of pipeline {told.pipeline}: {codes}.")
    print_rows([_row(each) for each in told.sinks], output)
    for each in told.sinks:
        print("\n".join(_details(each)), end="\n" if _details(each) else "")
    for warning in told.warnings:
        print(f"Warning: {warning}")
    print(_verdict(told))


def _row(each: SinkResult) -> dict[str, object]:
    found = each.difference
    return {
        "sink": each.sink,
        "rows then": _or_unknown(each.rows_then),
        "rows now": _or_unknown(each.rows_now),
        "only then": _or_unknown(found.only_then if found else None),
        "only now": _or_unknown(found.only_now if found else None),
        "dead letters": each.dead_letters,
        "vote": each.vote.vote.value if each.vote else "-",
    }


def _or_unknown(number: int | None) -> object:
    return "-" if number is None else number


def _details(each: SinkResult) -> list[str]:
    lines = [f"{each.sink}: {each.note}"] if each.note else []
    if each.deleted_then is not None:
        lines.append(
            f"{each.sink}: a state; of its changes, {each.deleted_then} then and {each.deleted_now} now delete a key"
        )
    lines += [f"{each.sink}: {rows} rows break {rule!r}" for rule, rows in sorted(each.broken.items())]
    if each.difference:
        lines += [f"{each.sink}, only then: {row}" for row in each.difference.sample_then]
        lines += [f"{each.sink}, only now:  {row}" for row in each.difference.sample_now]
    return lines


def _verdict(told: DryRun) -> str:
    if told.decision is DecisionKind.GLOBAL_COMMIT:
        return "The vote on these rows: GLOBAL_COMMIT. Nothing was published. The sinks themselves were not asked."
    return "\n".join(["The vote on these rows: GLOBAL_ABORT. Nothing was published.", *told.reasons])


def _code(digest: str | None) -> str:
    return (digest or "unknown")[:SHORT_CODE]


def _as_json(told: DryRun) -> dict[str, object]:
    return {
        "pipeline": told.pipeline,
        "epoch": told.epoch,
        "code_then": told.code_then,
        "code_now": told.code_now,
        "decision": told.decision.value,
        "reasons": list(told.reasons),
        "sinks": [_sink_as_json(each) for each in told.sinks],
        "metrics": told.metrics,
        "warnings": list(told.warnings),
    }


def _sink_as_json(each: SinkResult) -> dict[str, object]:
    found, vote = each.difference, each.vote
    return {
        "sink": each.sink,
        "rows_then": each.rows_then,
        "rows_now": each.rows_now,
        "only_then": found.only_then if found else None,
        "only_now": found.only_now if found else None,
        "sample_then": list(found.sample_then) if found else [],
        "sample_now": list(found.sample_now) if found else [],
        "deleted_then": each.deleted_then,
        "deleted_now": each.deleted_now,
        "broken": dict(each.broken),
        "dead_letters": each.dead_letters,
        "vote": vote.vote.value if vote else None,
        "reason": cause_and_remedy(vote.reason)[0] if vote and vote.reason else None,
        "note": each.note,
    }
