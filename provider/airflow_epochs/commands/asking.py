"""What the commands of ``airflow epochs`` share: arguments, refusals as texts, and the question before a change."""

from __future__ import annotations

import json
import logging
import os
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import wraps
from pathlib import Path
from typing import TypeVar

from airflow.cli.cli_config import Arg
from airflow.utils.helpers import ask_yesno

from airflow_epochs import codes
from airflow_epochs.config import require_name
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.errors import BadArgument, EpochError, Refused, filled, with_remedy
from airflow_epochs.event_time import micros
from airflow_epochs.hooks.audit import as_text, caller
from airflow_epochs.hooks.epochs import REMEDY_OF_NOTHING, EpochsHook
from airflow_epochs.hooks.packages import missing_named
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.operators.telling import quiet_clients
from airflow_epochs.operators.wording import of_command
from airflow_epochs.sources.kafka.logs import Offsets
from airflow_epochs.sources.kafka.starting import AtOffsets, parse_starting

PIPELINE = Arg(("pipeline",), help="The pipeline's name")
EPOCH = Arg(("epoch",), type=int, help="The epoch's number")
WHY = Arg(("--why",), required=True, help="The reason; it is recorded in the ledger")
CONN = Arg(("--ledger-conn-id",), default=EpochsHook.default_conn_name, help="Connection of type epochs")
OUTPUT = Arg(("-o", "--output"), default="table", choices=["table", "json", "yaml", "plain"], help="Output format")


_UNKNOWN = (
    codes.PIPELINE_UNKNOWN,
    codes.PIPELINE_NOT_IN_DAGS,
    codes.CONNECTION_MISSING,
    codes.DAG_UNKNOWN,
    codes.DAG_NOT_IMPORTED,
)
"""Errors that say: the command names something that does not exist."""
_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"
_MOST = 10**18
"""Stands for "all". Python's ``islice`` and SQLite, which shows samples of rows, take no number beyond 64 bits."""
CommandFunction = Callable[[Namespace], None]
T = TypeVar("T")


def tells_refusals(command: CommandFunction) -> CommandFunction:
    """Let the command end with the text of the error, and with exit code 1; 2 if it names what is not there."""

    @wraps(command)
    def telling(args: Namespace) -> None:
        pipeline = getattr(args, "pipeline", None)
        try:
            if pipeline is not None:
                require_name("pipeline", pipeline)
            with _connections_of_the_database(), _quiet_clients(), missing_named():
                command(args)
        except BadArgument as error:
            remedy = filled(error.code.remedy, PIPELINE=pipeline)
            raise SystemExit(with_remedy(str(error), remedy)) from error
        except EpochError as error:
            error.pipeline = error.pipeline or pipeline
            raise _ending(error) from error

    return telling


def of_each(conn_ids: Sequence[str], rows: Callable[[str], Iterable[T]]) -> tuple[list[T], dict[str, EpochError]]:
    """The rows of all ledger connections; and of those that cannot be read, why.

    Raises:
        EpochError: There is only one connection, and it cannot be read.
    """
    found: list[T] = []
    failed: dict[str, EpochError] = {}
    for conn_id in conn_ids:
        try:
            found += rows(conn_id)
        except EpochError as error:
            if len(conn_ids) == 1:
                raise
            failed[conn_id] = error
    return found, failed


def tell_of_nothing(conn_ids: Iterable[str]) -> None:
    """Say on stderr at which of these connections nothing is stored: a ledger that is lost looks like a new one."""
    for conn_id in conn_ids:
        if nothing := EpochsHook(conn_id).nothing_stored():
            print(with_remedy(nothing, REMEDY_OF_NOTHING), file=sys.stderr)


def end_with(failed: Mapping[str, EpochError], nothing: Refused | None = None) -> None:
    """End the command with exit code 1, and say which ledgers could not be read; do nothing if all could be.

    ``nothing``: the error that the other ledgers have nothing to print; None if they have.
    """
    if not failed:
        return
    left_out = [
        f"The ledger of connection {conn_id} was left out.\n{of_command(error)}" for conn_id, error in failed.items()
    ]
    others = "To ask one ledger alone, type the command with `--ledger-conn-id` and its connection."
    raise SystemExit("\n\n".join([*([str(nothing)] if nothing else []), *left_out, others]))


def _ending(error: EpochError) -> SystemExit:
    """Python prints the text of an exit only if its code is the text, and then exits with 1."""
    told = of_command(error)
    if told.code in _UNKNOWN:
        return _misspelled(with_remedy(told.cause, told.filled_remedy))
    return _misspelled(str(told)) if told.code is codes.SOURCE_NOT_MOVABLE else SystemExit(str(told))


def _misspelled(text: str) -> SystemExit:
    """Exit code 2, as for a command that is spelled wrong."""
    print(text, file=sys.stderr)
    return SystemExit(2)


@contextmanager
def _connections_of_the_database() -> Iterator[None]:
    """Let Airflow look for connections and variables in its database too, as its own commands do.

    Outside of a task, it would look at the environment alone.
    """
    before = os.environ.get(_CONTEXT)
    os.environ[_CONTEXT] = "server"
    try:
        yield
    finally:
        os.environ.pop(_CONTEXT)
        if before is not None:
            os.environ[_CONTEXT] = before


@contextmanager
def _quiet_clients() -> Iterator[None]:
    """Let clients log no lines between the command and its question, unless somebody has set their levels."""
    quieted = quiet_clients()
    try:
        yield
    finally:
        for client in quieted:
            client.setLevel(logging.NOTSET)


def ledger_of(args: Namespace) -> Ledger:
    """The ledger of the pipeline that the command names."""
    return EpochsHook(args.ledger_conn_id).ledger(args.pipeline)


def known_ledger_of(args: Namespace) -> Ledger:
    """As ``ledger_of``. Raises Refused if there is no such pipeline, and names those that there are."""
    return known_ledger(args.ledger_conn_id, args.pipeline)


def known_ledger(conn_id: str, pipeline: str) -> Ledger:
    """As ``known_ledger_of``, for a command whose connection may come from a DAG."""
    hook = EpochsHook(conn_id)
    ledger = hook.ledger(pipeline)
    if ledger.identity() is None and not ledger.newest_complete():
        known = ", ".join(hook.pipelines())
        nothing = "" if known else hook.nothing_stored()
        there = nothing or f"It has: {known or 'none'}."
        raise Refused(
            f"The ledger of connection {conn_id} has no pipeline {pipeline!r}. {there}",
            code=codes.PIPELINE_UNKNOWN,
            remedy=REMEDY_OF_NOTHING if nothing else None,
            pipeline=pipeline,
        )
    return ledger


def account_of(args: Namespace) -> Account:
    """The user who typed the command, as the operating system knows it, and the reason after ``--why``."""
    by = caller()
    return Account(who=by.who, host=by.host, login=by.login, why=as_text(args.why).strip())


def confirm(args: Namespace, *change: str) -> None:
    """Print what will change. Returns only after a yes, or with ``--yes``."""
    print("\n".join(map(_printable, change)))
    if args.yes:
        return
    if not all(stream and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        raise Refused(
            "The command asks for a confirmation, and it has no terminal to ask at. Nothing was changed.",
            code=codes.NOT_CONFIRMED,
        )
    if not _says_yes():
        raise Refused("The answer was no. Nothing was changed.", code=codes.NOT_CONFIRMED)


def count(text: str, least: int = 0) -> int:
    """A number of things, for an option. Raises ArgumentTypeError for any other text."""
    if not text.isdecimal() or len(text) > len(str(_MOST)) or not least <= int(text) <= _MOST:
        raise ArgumentTypeError(f"{text[:40]!r} is no whole number from {least} to {_MOST}")
    return int(text)


def at_least_one(text: str) -> int:
    """As ``count``, but not 0."""
    return count(text, least=1)


def offsets_in(file: str) -> Offsets:
    """The offsets in a JSON file, in the form of ``starting``. Raises Refused if it has none."""
    try:
        parsed = parse_starting(json.loads(Path(file).read_text()))
    except (OSError, ValueError) as error:
        raise Refused(f"The offsets in the file {file} cannot be read: {error}", code=codes.OFFSETS_UNUSABLE) from error
    if not isinstance(parsed, AtOffsets):
        raise Refused(f"The file {file} has no offsets.", code=codes.OFFSETS_UNUSABLE)
    return parsed.offsets


def instant_in(text: str) -> int:
    """An instant such as ``2026-01-31T00:00:00Z``, as microseconds since 1970. Raises Refused for any other text."""
    try:
        # Python 3.10 does not know the Z.
        at = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)
        found = micros(at)
        at.astimezone(timezone.utc)  # else nothing could tell it
    except (ValueError, TypeError, OverflowError) as error:
        raise Refused(
            f"{text!r} is not an instant with its zone, of the years 1 to 9999 in UTC.",
            code=codes.COMMAND_OPTIONS,
            remedy="Write it like 2026-01-31T00:00:00Z.",
        ) from error
    return found


def _printable(line: str) -> str:
    """``line`` without control characters: text from a forged record could clear the screen or move the cursor."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)


def _says_yes() -> bool:
    try:
        return ask_yesno("Proceed? [y/n]")
    except EOFError:  # Ctrl-D
        return False
