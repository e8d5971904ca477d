"""Doing what an error says, to the letter: the command, the folder, the number are taken out of its text."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
from argparse import ArgumentParser
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from airflow.cli.cli_config import GroupCommand
from deltalake import DeltaTable

from airflow_epochs import cli
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import Corrupt, EpochError
from orders_demo.duck import duck
from tests.support.faults_world import DiskWorld
from tests.support.terminal import terminal


def stopped(world: DiskWorld, number: int = 80) -> Corrupt:
    """A run stops before it writes anything."""
    before, epochs = world.snapshot_of_tables(), sorted(world.records.glob("epochs/*/*"))
    error = refused(world, number)
    assert (world.snapshot_of_tables(), sorted(world.records.glob("epochs/*/*"))) == (before, epochs)
    assert error.sink == "orders"
    return error


def refused(world: DiskWorld, number: int = 80) -> Corrupt:
    """A run is red, and somebody must look."""
    error = world.run(number)
    assert isinstance(error, Corrupt), error
    return error


def assert_all_rows(world: DiskWorld, *tables: str) -> None:
    """DuckDB finds every record of the input once in each table."""
    expected = sorted((p, o) for p, o, _ in world.source.all_rows())
    for table in tables:
        assert seen_by_duckdb(world.folder / table) == expected


def seen_by_duckdb(table: Path) -> list[tuple[int, int]]:
    """Partition and offset of every row, read by a stranger."""
    with duck() as database:
        query = 'SELECT "partition", "offset" FROM delta_scan(?) ORDER BY ALL'
        found: list[tuple[int, int]] = database.execute(query, [str(table)]).fetchall()
    return found


def doomed_in(table: Path | str) -> list[str]:
    """What a VACUUM of the table would delete at once."""
    found: list[str] = DeltaTable(str(table)).vacuum(0, enforce_retention_duration=False, dry_run=True, full=True)
    return found


def log_cleaned(table: Path | str) -> None:
    """Delta cleans the log up, so all entries but the last one are gone, which is somebody's and changes no row."""
    found = DeltaTable(str(table))
    found.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    found.create_checkpoint()
    found.cleanup_metadata()
    assert len(list(Path(table).glob("_delta_log/*.json"))) == 1


def renamed(world: DiskWorld, table: str = "orders", **backfill: int) -> DiskWorld:
    """The DAG with another name for the sink."""
    return replace(world, sinks=("orders_2", "audit"), tables={**world.tables, "orders_2": table}, backfill=backfill)


def backfill_in(error: EpochError) -> int:
    """The epoch that a new name of the sink is to begin with."""
    named = re.search(r'another name, with EpochPipeline\(…, backfill=\{"<the new name>": (\d+)\}\)', error.remedy)
    assert named, error.remedy
    return int(named[1])


def starting_in(error: EpochError) -> dict[str, dict[str, int]]:
    """Where the source is to begin, as the error spells it."""
    named = re.search(r"set `starting` of the source to (\{.*?\}\})", error.remedy)
    assert named, error.remedy
    found: dict[str, dict[str, int]] = ast.literal_eval(named[1])
    return found


def in_the_environment(*connections: Connection) -> dict[str, str]:
    """Variables by which Airflow knows these connections."""
    found = {}
    for known in connections:
        fields = {"host": known.host, "port": known.port, "login": known.login, "password": known.password}
        described = {"conn_type": known.conn_type, "schema": known.schema, "extra": known.extra, **fields}
        found[f"AIRFLOW_CONN_{known.conn_id.upper()}"] = json.dumps(described)
    return found


def typed(ledger_root: Path, error: EpochError | str, command: str, *more: str, password: str = "") -> str:
    """``airflow epochs <command> …`` as the error has it, at a terminal, which asks, and is told yes; what it shows.

    ``more``: words that the error's own text tells to add. ``password``: of the ledger's connection.
    """
    named = re.search(rf"`airflow (epochs {command} [^`]*)`", str(error))
    assert named, str(error)
    words = shlex.split(named[1].replace("…", "'the remedy says so'"))
    return ordered(ledger_root, *words, *more, password=password)


def ordered(ledger_root: Path, *words: str, answer: str = "y", password: str = "") -> str:
    """``airflow <words>`` at a terminal, which asks, and is told yes, or no with ``answer``; what it shows."""
    connection = {"conn_type": "epochs", "password": password, "extra": {"ledger_root": str(ledger_root)}}
    with patch.dict("os.environ", {"AIRFLOW_CONN_EPOCHS_DEFAULT": json.dumps(connection)}):
        parsed = parser().parse_args([*words])
        with terminal(f"{answer}\n") as screen, nullcontext() if answer == "y" else pytest.raises(SystemExit):
            parsed.func(parsed)
    return screen.text


def parser() -> ArgumentParser:
    """What Airflow makes of our commands."""
    parser = ArgumentParser(prog="airflow")
    groups = parser.add_subparsers(required=True)
    for group in cli.get_cli_commands():
        assert isinstance(group, GroupCommand)
        commands = groups.add_parser(group.name).add_subparsers(required=True)
        for command in group.subcommands:
            one = commands.add_parser(command.name)
            one.set_defaults(func=command.func)
            for arg in command.args:
                arg.add_to_parser(one)
    return parser


def restored(folder: Path, backup: Path) -> None:
    """The folder as a whole, from a copy."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(backup, folder)


def taken_back(error: EpochError) -> None:
    """What the error says to do with a commit that has lost files, by deltalake."""
    named = re.search(r'DeltaTable\("([^"]+)"\)\.(restore|delete)\((\d*)\) of deltalake', error.remedy)
    assert named, error.remedy
    getattr(DeltaTable(named[1]), named[2])(*map(int, named[3].split()))
