"""``airflow epochs acknowledge-code``: let a pipeline with ``on_code_change="stop"`` go on with a changed transform.

``operators.definitions`` finds the transform in today's DAGs. ``coordinator.code_changes`` does the work.
"""

from __future__ import annotations

import re
from argparse import Namespace

from airflow.cli.cli_config import ARG_YES, ActionCommand, Arg

from airflow_epochs import codes
from airflow_epochs.commands.asking import PIPELINE, WHY, account_of, confirm, known_ledger, tells_refusals
from airflow_epochs.commands.printing import answer_alone
from airflow_epochs.coordinator import code_changes
from airflow_epochs.coordinator.code_changes import TransformCode
from airflow_epochs.errors import Refused
from airflow_epochs.hooks.audit import caller, logged
from airflow_epochs.hooks.epochs import EpochsHook
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.operators import definitions

_CODE = re.compile(r"([0-9a-f]{64})(?::(\w+))?")


def code_command() -> ActionCommand:
    """The command of this module."""
    return ActionCommand(
        name="acknowledge-code",
        help='Let a pipeline with on_code_change="stop" go on with a changed transform',
        func=acknowledge_code,
        args=(
            PIPELINE,
            Arg(
                ("--code",),
                help="The code that the error names; without it, the transform of today's DAG",
            ),
            Arg(("--dag-id",), help="The pipeline's DAG; needed only if several DAGs have a pipeline of this name"),
            WHY,
            ARG_YES,
            Arg(("--ledger-conn-id",), help="Connection of type epochs, instead of the one that the DAG names"),
        ),
    )


@tells_refusals
def acknowledge_code(args: Namespace) -> None:
    """Record that the code may be run, after a look at both digests and a yes."""
    by = account_of(args)
    ledger, code = _ledger_and_code(args)
    if code_changes.is_known(ledger, code):
        print(f"Nothing to do: the newest complete epoch of pipeline {args.pipeline} has this code.")
        return
    confirm(
        args,
        f"The code of the transform of pipeline {args.pipeline} has changed:",
        f"  in its newest complete epoch  {code_changes.newest_code(ledger)}",
        f"  from the next attempt on      {code}",
        f"Will be recorded: {caller()}, because: {by.why}",
    )
    with logged("acknowledge-code", dag_id=args.dag_id or "", by=caller()):
        code_changes.acknowledge(ledger, args.pipeline, code.digest or "", by=by, function=code.function)
    print(
        "The next run opens an epoch with it. Start one, or, if the last one failed, type "
        f"`airflow epochs retry {args.pipeline} --why …`."
    )


def _ledger_and_code(args: Namespace) -> tuple[Ledger, TransformCode]:
    if args.code is None:
        with answer_alone():
            found = definitions.find(args.pipeline, args.dag_id, args.ledger_conn_id, step="open")
        assert found.pipeline.transform.digest, "the step `open` finds the file"
        return found.task().ledger, TransformCode.of(found.pipeline.transform)
    if not (named := _CODE.fullmatch(args.code)):
        raise Refused(
            f"{args.code!r} is not a digest: it must have 64 hexadecimal digits, and may name a function after a "
            "colon. Nothing was changed.",
            code=codes.COMMAND_OPTIONS,
            remedy="Give what the error of `open` names, or leave --code out.",
        )
    return known_ledger(args.ledger_conn_id or EpochsHook.default_conn_name, args.pipeline), TransformCode(
        named[1], named[2]
    )
