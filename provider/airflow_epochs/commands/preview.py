"""``airflow epochs preview``: run today's code on the next records, and show what each sink would get.

``commands.dry_run.todays_task`` finds the pipeline in today's DAGs. ``coordinator.inspection.preview`` does the work.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping

from airflow.cli.cli_config import ActionCommand, Arg

from airflow_epochs.commands.asking import OUTPUT, PIPELINE, at_least_one, count, tells_refusals
from airflow_epochs.commands.dry_run import SAMPLE, ended_in_order, todays_task
from airflow_epochs.commands.printing import DOCUMENTS, answer_alone, print_document, print_rows
from airflow_epochs.coordinator.inspection.preview import Preview, SinkPreview, preview
from airflow_epochs.model import records_upper_bound

RECORDS = 100


def preview_command() -> ActionCommand:
    """The command of this module."""
    return ActionCommand(
        name="preview",
        help="Run the transform on the next records, and show each sink's rows and columns. Publishes nothing",
        func=show_preview,
        args=(
            PIPELINE,
            Arg(
                ("--records",),
                type=at_least_one,
                default=RECORDS,
                help=f"The largest number of records; {RECORDS} by default",
            ),
            Arg(
                ("--transform",),
                metavar="FILE",
                help="Other code: a file, or FILE.py:FUNCTION; without it, the transform of today's DAG",
            ),
            Arg(("--sample",), type=count, default=SAMPLE, help="How many rows to show for each sink"),
            Arg(("--dag-id",), help="The pipeline's DAG; needed only if several DAGs have a pipeline of this name"),
            Arg(("--ledger-conn-id",), help="Connection of type epochs, instead of the one that the DAG names"),
            OUTPUT,
        ),
    )


@tells_refusals
def show_preview(args: Namespace) -> None:
    """Stage the next records, show the rows, and clear them away. It changes nothing, so does not ask."""
    with answer_alone():
        task = todays_task(args)
        with ended_in_order():
            told = preview(task, args.records, args.sample)
    if args.output in DOCUMENTS:
        print_document(_as_json(told), args.output)
    else:
        _print(told, args.output)


def _print(told: Preview, output: str) -> None:
    print(f"Pipeline {told.pipeline}, epoch {told.epoch} to come: {records_upper_bound(told.ranges)} offsets.")
    print_rows([_row(each) for each in told.sinks], output)
    for each in told.sinks:
        print("\n".join(_details(each)), end="\n" if _details(each) else "")
    for warning in told.warnings:
        print(f"Warning: {warning}")
    print("Nothing was published, and the next epoch takes these records. The sinks themselves were not asked to vote.")


def _row(each: SinkPreview) -> dict[str, object]:
    columns = each.sample.columns if each.sample else ()
    return {
        "sink": each.sink,
        "rows": "-" if each.rows is None else each.rows,
        "columns": ", ".join(f"{name} {kind}" for name, kind in columns) or "-",
        "dead letters": each.dead_letters,
        "fit": _fit(each),
    }


def _fit(each: SinkPreview) -> str:
    return "no" if each.problem else "yes" if each.sample else "unknown"


def _details(each: SinkPreview) -> list[str]:
    lines = [f"{each.sink}: {each.problem}"] if each.problem else []
    lines += [f"{each.sink}: {rows} rows break {rule!r}" for rule, rows in sorted(each.broken.items())]
    if each.sample:
        lines += [f"{each.sink}: {_as_text(row)}" for row in each.sample.rows]
    if each.sample and each.sample.creates:
        lines.append(f"{each.sink}: its table does not exist. To create it, for example: {each.sample.creates}")
    return lines


def _as_text(row: Mapping[str, object]) -> str:
    return json.dumps(dict(row), default=_shown)


def _shown(value: object) -> str:
    """A value without a form in JSON, as text. Binary values are mostly text, such as a Kafka record's."""
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def _as_json(told: Preview) -> dict[str, object]:
    return {
        "pipeline": told.pipeline,
        "epoch": told.epoch,
        "ranges": {topic: [each._asdict() for each in ranges] for topic, ranges in told.ranges.items()},
        "sinks": [_sink_as_json(each) for each in told.sinks],
        "warnings": list(told.warnings),
    }


def _sink_as_json(each: SinkPreview) -> dict[str, object]:
    sample = each.sample
    return {
        "sink": each.sink,
        "rows": each.rows,
        "columns": [{"name": name, "type": kind} for name, kind in sample.columns] if sample else None,
        "sample": [json.loads(_as_text(row)) for row in sample.rows] if sample else [],
        "creates": sample.creates if sample else None,
        "broken": dict(each.broken),
        "dead_letters": each.dead_letters,
        "fit": _fit(each),
        "problem": each.problem,
    }
