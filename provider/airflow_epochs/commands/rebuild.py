"""``airflow epochs rebuild``: after the loss of the ledger, the pipeline goes on where its sinks end.

``operators.definitions`` finds the pipeline in today's DAGs. ``coordinator.rebuilding`` does the work.
"""

from __future__ import annotations

from argparse import Namespace

from airflow.cli.cli_config import ARG_YES, ActionCommand, Arg

from airflow_epochs.commands.asking import PIPELINE, WHY, account_of, confirm, instant_in, offsets_in, tells_refusals
from airflow_epochs.commands.printing import answer_alone
from airflow_epochs.coordinator.rebuilding import planning, recording, wording
from airflow_epochs.coordinator.rebuilding.evidence import Told
from airflow_epochs.hooks.audit import caller, logged
from airflow_epochs.operators import definitions


def rebuild_command() -> ActionCommand:
    """The command of this module."""
    return ActionCommand(
        name="rebuild",
        help="After the loss of the ledger: go on where the sinks end, in the same tables and topics",
        func=rebuild,
        args=(
            PIPELINE,
            Arg(("--dag-id",), help="The pipeline's DAG; needed only if several DAGs have a pipeline of this name"),
            Arg(
                ("--without",),
                action="append",
                default=[],
                metavar="SINK",
                help="Leave out a sink that shows an earlier epoch; may be repeated",
            ),
            Arg(("--offsets",), help="A JSON file with the offsets where the sinks end, if no sink stored them"),
            Arg(
                ("--watermark",),
                metavar="TIME",
                help="The watermark of the last epoch, with its zone, if no sink stored it",
            ),
            WHY,
            ARG_YES,
            Arg(("--ledger-conn-id",), help="Connection of type epochs, instead of the one that the DAG names"),
        ),
    )


@tells_refusals
def rebuild(args: Namespace) -> None:
    """Record where the sinks end, after a look at the plan and a yes."""
    by = account_of(args)
    with answer_alone():
        found = definitions.find(args.pipeline, args.dag_id, args.ledger_conn_id)
    ends = offsets_in(args.offsets) if args.offsets else {}
    told = Told(
        ends={topic: {str(partition): at for partition, at in of.items()} for topic, of in ends.items()},
        watermark=instant_in(args.watermark) if args.watermark else None,
    )
    plan = planning.plan(found.task(), args.without, told)
    if plan is None:
        print(f"Nothing to rebuild: no sink of pipeline {args.pipeline} shows a later epoch than the ledger has.")
        return
    confirm(args, *wording.announced(plan), f"Will be recorded: {caller()}, because: {by.why}")
    with logged("rebuild", dag_id=plan.dag_id, by=caller()):
        recording.carry_out(found.task(), plan, by=by)
    print(f"Pipeline {args.pipeline} goes on with epoch {plan.txn.epoch + 1}: clear the failed `open`, or start a run.")
