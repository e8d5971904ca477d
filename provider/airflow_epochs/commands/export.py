"""``airflow epochs export``: a pipeline's epochs as a Parquet file, or as JSON lines. Reads the ledger alone."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from airflow.cli.cli_config import ActionCommand, Arg
from rich.console import Console
from rich.progress import track

from airflow_epochs import codes
from airflow_epochs.commands.asking import CONN, PIPELINE, at_least_one, known_ledger_of, tells_refusals
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.documents import document, oldest_first, summary
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.view import EpochView

if TYPE_CHECKING:
    import pyarrow as pa

AT_ONCE = 1_000
"""How many epochs make a row group."""


def export_command() -> ActionCommand:
    """The command of this module."""
    return ActionCommand(
        name="export",
        help="Write a pipeline's epochs to a file: .parquet has a row per epoch, .jsonl a line with all its records",
        func=export,
        args=(
            PIPELINE,
            Arg(("file",), help="A new file, whose name ends in .parquet or .jsonl"),
            Arg(("--epochs",), type=at_least_one, help="How many of the newest epochs; without it, all"),
            CONN,
        ),
    )


@tells_refusals
def export(args: Namespace) -> None:
    """Write the file, and say how many epochs it has. If that fails, there is no file."""
    ledger, path = known_ledger_of(args), Path(args.file)
    write = {".parquet": _write_parquet, ".jsonl": _write_lines}.get(path.suffix)
    if write is None or path.exists():
        what = "exists already" if write else "has another ending than .parquet and .jsonl"
        raise Refused(
            f"The file {path} {what}. Nothing was written.",
            code=codes.COMMAND_OPTIONS,
            remedy="Name a new file, such as epochs.parquet or epochs.jsonl.",
        )
    views = list(_shown(oldest_first(ledger, args.epochs)))
    try:
        with TemporaryDirectory(dir=path.parent) as folder:
            write(Path(folder, "new"), args.pipeline, ledger, views)
            os.link(Path(folder, "new"), path)  # fails if somebody has made the file meanwhile
    except OSError as error:
        raise Refused(
            f"The file {path} cannot be written: {error.strerror or error}. Nothing was written.",
            code=codes.COMMAND_OPTIONS,
            remedy="Name a file in a folder in which you may write.",
        ) from error
    print(f"{path} has {len(views)} epochs of pipeline {args.pipeline}.")


def _shown(views: Iterator[EpochView]) -> Iterator[EpochView]:
    """The same epochs. A terminal shows how many there have been."""
    console = Console(stderr=True)
    yield from track(views, "epochs", console=console, transient=True, disable=not sys.stderr.isatty())


def _write_lines(path: Path, pipeline: str, ledger: Ledger, views: list[EpochView]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for view in views:
            file.write(f"{json.dumps({'pipeline': pipeline, **document(ledger, view)})}\n")


def _write_parquet(path: Path, pipeline: str, ledger: Ledger, views: list[EpochView]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, rows = _schema(), (summary(pipeline, ledger, view) for view in views)
    with pq.ParquetWriter(path, schema) as writer:
        while chunk := list(islice(rows, AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(chunk, schema=schema))


def _schema() -> pa.Schema:
    import pyarrow as pa

    def fields(kind: Callable[[], pa.DataType], *names: str) -> list[pa.Field]:
        return [pa.field(name, kind()) for name in names]

    ranges = pa.struct([*fields(pa.string, "topic"), *fields(pa.int64, "partition", "start", "end")])
    sinks = pa.struct(
        [
            *fields(pa.string, "sink"),
            *fields(pa.int64, "rows", "files", "bytes", "version"),
            *fields(pa.bool_, "waived"),
        ]
    )
    return pa.schema(
        [
            *fields(pa.string, "pipeline"),
            *fields(pa.int64, "epoch"),
            *fields(pa.string, "state"),
            *fields(pa.int64, "attempt"),
            *fields(pa.string, "transaction", "dag", "run", "at"),
            *fields(pa.int64, "offsets", "read", "rows", "dead_letters"),
            *fields(pa.float64, "seconds"),
            *fields(pa.string, "code"),
            pa.field("ranges", pa.list_(ranges)),
            pa.field("sinks", pa.list_(sinks)),
        ]
    )
