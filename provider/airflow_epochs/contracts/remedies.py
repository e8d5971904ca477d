"""What an operator does about a sink that the ledger disagrees with."""

from __future__ import annotations

from airflow_epochs.model import TransactionId

FIRST_AGAIN = "<the first epoch to read again>"


def backfill_from(first: int | str) -> str:
    """What the DAG says if a sink with a new name is to get the input from this epoch on."""
    return f'EpochPipeline(…, backfill={{"<the new name>": {first}}})'


def waive_command(txn: TransactionId, sink: str) -> str:
    """The command with which an operator completes the epoch without this sink's rows."""
    return f"airflow epochs waive {txn.pipeline} {txn.epoch} {sink} --why …"


def rename_in_doubt(txn: TransactionId, sink: str) -> str:
    """How a sink gets another name while an epoch is in doubt: today's DAG has no effect before it is complete.

    Under its old name, with another place for its marker, it would lack the rows of that epoch.
    """
    return (
        f"complete epoch {txn.epoch}, which is in doubt, without this sink's rows: `{waive_command(txn, sink)}`. Clear "
        f"the failed task. Then give this sink another name, with {backfill_from(txn.epoch)}"
    )


def rebuild_remedy(pipeline: str, see: str = "docs/failures.md#the-ledger-is-behind") -> str:
    """What to do where a ledger is behind its sinks. ``see``: the chapter to read."""
    return (
        "Set `ledger_conn_id` of the DAG, or `ledger_root` of its connection, to the ledger that has the newest "
        "records if it was changed, and clear the failed task. Otherwise restore the newest copy of the ledger. If "
        "another worker has it, in a folder of its own, see EPOCHS-LEDGER-NOT-SHARED. If there is none, pause the DAG, "
        f"run `airflow epochs rebuild {pipeline} --why …`, unpause the DAG and clear the failed task: the pipeline "
        f"goes on where its sinks end, in the same tables and topics. See {see}."
    )
