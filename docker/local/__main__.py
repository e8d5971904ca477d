"""``python docker/local jars|classes|digests|up|down|status``: the local stack from the command line."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from stack import class_archive, control, proxy, shell
from stack.airflow import PASSWORDS, USER, password_in
from stack.connect import TOKEN
from stack.digests import RECORDED, record
from stack.jars import CONFS, fetch, fetch_unknown
from stack.processes import StackError
from stack.whole import AIRFLOW, CONNECT, PROJECT, State


def main() -> int:
    arguments = _parser().parse_args()
    folder: Path = arguments.folder.resolve()
    os.environ.update(proxy.bypass())
    control.leave_on_signals()  # so that `up` ends what it has started
    try:
        return COMMANDS[arguments.command](folder)
    except StackError as problem:
        print(problem, file=sys.stderr)
        return 1


def _jars(_folder: Path) -> int:
    print(fetch().root)
    return 0


def _classes(_folder: Path) -> int:
    """For quicker starts of Spark in tests."""
    print(class_archive.make())
    return 0


def _digests(_folder: Path) -> int:
    """After a change of ``ivy.xml`` or of pyspark."""
    record(fetch_unknown().root, CONFS)
    print(RECORDED)
    return 0


def _up(folder: Path) -> int:
    """Shows the password once: when it is new. What is in the folder from now on is nothing that a demo may delete."""
    new = not (folder / AIRFLOW / PASSWORDS).exists()
    state = control.up(folder)
    demos = (folder / control.OF_THE_DEMO).exists()
    (folder / control.OF_THE_DEMO).unlink(missing_ok=True)
    _show(folder, state)
    if demos:
        print("A demo made it. Now `make demo` no longer deletes this folder: it refuses until you move or delete it.")
    if new:
        print(f"password       {password_in(folder / AIRFLOW)}")
    return 0


def _down(folder: Path) -> int:
    print("stopped" if control.down(folder) else f"nothing runs in {folder}")
    return 0


def _status(folder: Path) -> int:
    state = control.running(folder)
    if state is None:
        print(f"nothing runs in {folder}")
        return 3
    _show(folder, state)
    if lacking := control.dead(folder, state):
        print(f"not running    {', '.join(lacking)}: `make stack-up` starts them again; the logs are in {folder}")
        return 1
    return 0


def _supervise(folder: Path) -> int:
    control.supervise(folder)
    return 0


def _show(folder: Path, state: State) -> None:
    print(f"Airflow        {state.airflow}")
    print(f"login          {USER}, its password is in {folder / AIRFLOW / PASSWORDS}")
    print(f"Kafka          {state.bootstrap}")
    print(f"Spark Connect  {state.connect}, its token is in {folder / CONNECT / TOKEN}")
    print(f"tables         {state.lake}")
    print(f"ledger         {state.ledger}")
    print(f"in a shell     {shell.hint(folder)}   # then, for example: airflow epochs list orders")


COMMANDS = {
    "jars": _jars,
    "classes": _classes,
    "digests": _digests,
    "up": _up,
    "down": _down,
    "status": _status,
    "supervise": _supervise,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python docker/local", description=__doc__)
    parser.add_argument(
        "command",
        choices=COMMANDS,
        help="digests: write jars.sha256 anew; supervise: stay in the foreground, what `up` starts",
    )
    parser.add_argument(
        "--folder", type=Path, default=PROJECT / ".stack", help="data, logs and state (default: .stack)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
