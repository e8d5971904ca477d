"""Prints rows as ``-o`` says: JSON and YAML with real numbers, lists and nulls; tables for people."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml
from airflow.cli.simple_table import AirflowConsole

PrintedRow = Mapping[str, Any]
DOCUMENTS = ("json", "yaml")


@contextmanager
def answer_alone() -> Iterator[None]:
    """What is printed or logged meanwhile goes to stderr, so that stdout has the command's answer alone.

    DAG files and transforms may print, and so may a child process. Airflow's log holds on to stdout, and so is moved
    with its file descriptor only.
    """
    print(end="", flush=True)
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        print(end="", flush=True)
        os.dup2(stdout, 1)
        os.close(stdout)


def print_rows(rows: Iterable[PrintedRow], output: str) -> None:
    """Print the rows. ``output``: the format. Values have JSON's types."""
    found = [dict(row) for row in rows]
    if output in DOCUMENTS:
        print_document(found, output)
    else:
        cells = [{name: _cell(value) for name, value in row.items()} for row in found]
        # Reasons and names are text of users: [id] is no style, and [/lake] ends no style.
        AirflowConsole(markup=False, emoji=False).print_as(data=cells, output=output)


def print_document(value: Any, output: str) -> None:
    """Print a value of JSON. ``output``: one of ``DOCUMENTS``."""
    document = json.dumps(value, indent=2)
    if output == "json":
        print(document)
    else:  # of the same document: YAML's own writer refuses what is only like a list, a text or a number
        print(yaml.safe_dump(json.loads(document), sort_keys=False, allow_unicode=True), end="")


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_cell(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value))
    return "" if value is None else str(value)
