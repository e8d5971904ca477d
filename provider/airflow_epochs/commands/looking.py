"""``airflow epochs pipelines`` and ``lag``: what there is, and how far it is behind. They read only."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator

from airflow.cli.cli_config import ActionCommand, Arg

from airflow_epochs import codes
from airflow_epochs.commands.asking import (
    CONN,
    OUTPUT,
    PIPELINE,
    end_with,
    known_ledger_of,
    of_each,
    tell_of_nothing,
    tells_refusals,
)
from airflow_epochs.commands.printing import print_rows
from airflow_epochs.coordinator.admin import pausing
from airflow_epochs.coordinator.inspection.lag import Lag, lag_of
from airflow_epochs.errors import Refused
from airflow_epochs.hooks.epochs import AirflowEnvironment, EpochsHook
from airflow_epochs.hooks.ledgers import ledger_conn_ids
from airflow_epochs.ledger.overview import PipelineRow, overview
from airflow_epochs.spark.runners import SparkConnect

_CONN = Arg(("--ledger-conn-id",), help="Connection of type epochs; without it, all of them")


def looking_commands() -> list[ActionCommand]:
    """The commands, for the command line."""
    return [
        ActionCommand(
            name="pipelines",
            help="All pipelines: their state, newest complete epoch and owner",
            func=list_pipelines,
            args=(_CONN, OUTPUT),
        ),
        ActionCommand(
            name="lag",
            help="What a pipeline has not read yet, per partition, and how long it has waited",
            func=show_lag,
            args=(PIPELINE, CONN, OUTPUT),
        ),
    ]


@tells_refusals
def list_pipelines(args: Namespace) -> None:
    """``airflow epochs pipelines``: print a row for each pipeline of one connection, or of all. Reads only."""
    chosen = [args.ledger_conn_id] if args.ledger_conn_id else ledger_conn_ids()
    rows, failed = of_each(chosen, _rows)
    print_rows(rows, args.output)
    tell_of_nothing(sorted({*chosen} - failed.keys() - {row["ledger"] for row in rows}))
    end_with(failed)


def _rows(conn_id: str) -> Iterator[dict[str, object]]:
    hook = EpochsHook(conn_id)
    return (_printed(conn_id, row) for row in overview(hook.pipelines(), hook.ledger))


def _printed(conn_id: str, row: PipelineRow) -> dict[str, object]:
    return {
        "pipeline": row.name,
        "state": row.condition.value,
        "epoch": row.epoch or None,
        "completed_at": row.completed_at,
        "rows": row.rows if row.epoch else None,
        "seconds": row.seconds,
        "waits_for": list(row.waits_for),
        "dag": row.dag_id,
        "ledger": conn_id,
        "problem": row.problem or None,
        "paused": pausing.in_words(row.pause) if row.pause else None,
    }


@tells_refusals
def show_lag(args: Namespace) -> None:
    """``airflow epochs lag``: print what no epoch has read, per partition. Asks the source; reads only."""
    ledger = known_ledger_of(args)
    lag = lag_of(ledger, AirflowEnvironment(SparkConnect()))
    if lag is None:
        raise Refused(
            "The lag is not known: no epoch is complete yet, or the source is a DeltaSource.",
            code=codes.LAG_UNKNOWN,
            pipeline=args.pipeline,
        )
    print_rows(_partitions(lag), args.output)


def _partitions(lag: Lag) -> list[dict[str, object]]:
    now_ms = int(time.time() * 1000)
    return [
        {
            "topic": each.topic,
            "partition": each.partition,
            "position": each.start,
            "end": each.end,
            "offsets": each.end - each.start,
            "waits_s": None if each.ms is None else round(max(0, now_ms - each.ms) / 1000, 1),
        }
        for each in lag.partitions
    ]
