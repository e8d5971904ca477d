"""``airflow epochs history``: what people have done to a pipeline."""

from __future__ import annotations

from argparse import Namespace

from airflow.cli.cli_config import ActionCommand, Arg

from airflow_epochs.commands.asking import CONN, OUTPUT, PIPELINE, at_least_one, known_ledger_of, tells_refusals
from airflow_epochs.commands.printing import print_rows
from airflow_epochs.ledger.deeds import Deed, deeds


def history_command() -> ActionCommand:
    """The command of this module."""
    limit = Arg(
        ("--limit",), type=at_least_one, default=100, help="How many of the newest epochs to look for commands in"
    )
    return ActionCommand(
        name="history",
        help="What people have done to a pipeline, but for `abort`: who, why and when, also of epochs that were pruned",
        func=show_history,
        args=(PIPELINE, limit, CONN, OUTPUT),
    )


@tells_refusals
def show_history(args: Namespace) -> None:
    """``airflow epochs history``: print takeovers, waivers and commands, newest first. Reads only."""
    rows = [_row(each) for each in deeds(known_ledger_of(args), args.limit)]
    print_rows(rows, args.output)


def _row(deed: Deed) -> dict[str, object]:
    who = f"{deed.who}@{deed.host}" if deed.host else deed.who
    return {
        "at": deed.at,
        "command": deed.what,
        "epoch": "" if deed.epoch is None else deed.epoch,
        "who": f"{who} (login {deed.login})" if deed.login else who,
        "why": deed.why,
    }
