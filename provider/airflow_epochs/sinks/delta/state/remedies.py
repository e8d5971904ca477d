"""What errors say of a state whose table can no longer be used: it begins anew in another table, with its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_epochs.contracts import waive_command
from airflow_epochs.spark.driver.delta.spelling import identifier

if TYPE_CHECKING:
    from airflow_epochs.delta.table import TableLocation
    from airflow_epochs.model import TransactionId
    from airflow_epochs.staged.staging import Staging

HOW = "docs/state.md, 'Keep the rows of a state'"


def with_its_rows(state: str) -> str:
    """What to do while no epoch is in doubt, as sentences."""
    return (
        f"Point `table` of the state to a new table, and run `airflow epochs adopt-sink PIPELINE {state} --new-table "
        "--why …`: the state begins anew there. To keep its rows, write the newest state of the old table to another "
        f"Delta table first ({HOW}), and name that in `initial`. Then clear the failed task."
    )


def if_not_dropped(features: list[str], table: str, state: str) -> str:
    """What to do about features of a state's table to which only Spark could commit: sentences."""
    drops = "; ".join(f"ALTER TABLE {identifier(table)} DROP FEATURE {name}" for name in features if " " not in name)
    first = f"Let Spark drop the features, since it does not write state tables: {drops}. "
    anew = f"If Spark cannot drop one, the state must begin anew. {with_its_rows(state)}"
    return f"{first}Then clear the failed task. {anew}" if drops else with_its_rows(state)


def in_doubt(location: TableLocation, staging: Staging, txn: TransactionId, state: str) -> str:
    """What to do about a table that was altered after the decision: sentences."""
    return (
        "Undo the change that the message names, in Spark: of a feature, by ALTER TABLE "
        f"{identifier(location.name)} DROP FEATURE …; of a column or a property, by RESTORE TABLE "
        f"{identifier(location.name)} TO VERSION AS OF the version before the change, which DESCRIBE HISTORY tells. "
        "Then clear the commit task: nothing is lost. If the change cannot be undone, "
        f"{without_it(location, staging, txn, state)}"
    )


def without_it(location: TableLocation, staging: Staging, txn: TransactionId, state: str) -> str:
    """How an epoch in doubt is completed without the state, whose rows can be kept: the end of a sentence, and more."""
    what = "the whole state" if staging.user_metadata["state"]["fold"] else "its changes of the state"
    place = identifier(f"{location.name}/{staging.place}")
    return (
        f"complete the epoch without the state: `{waive_command(txn, state)}`. The epoch has staged {what} at {place}: "
        f"to keep the rows, copy them before that command ({HOW})."
    )


def decided(txn: TransactionId, state: str) -> str:
    """As ``without_it``, if the epoch's staged rows are gone: the end of a sentence, and one more."""
    waive = f"complete the epoch without the state: `{waive_command(txn, state)}`."
    return f"{waive} The next run then says how the state begins anew."


UNDECIDED = (
    "type `airflow epochs abort PIPELINE --why …`, and clear the task that opens the epoch: its error says how the "
    "state begins anew."
)
"""What to do if the epoch is neither decided nor aborted: the end of a sentence."""
