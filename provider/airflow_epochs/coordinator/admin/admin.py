"""An operator's commands: hand a pipeline to another DAG, waive a sink, sign the ledger.

The caller first shows what would change, and asks. So each command reads the ledger once more, and refuses if it has
changed since.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TypedDict

from airflow_epochs import codes
from airflow_epochs.coordinator.task import new_writer
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import SigningRecord, Staged, WaivedRecord
from airflow_epochs.protocol import State


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


REASON_MAX = 1000
"""Characters of a reason. The ledger keeps most of them for ever, and lists show them whole."""


class AccountFields(TypedDict):
    """The fields by which a record names an operator and the reason."""

    who: str
    why: str
    at: str
    host: str
    login: str


@dataclass(frozen=True, kw_only=True)
class Account:
    """The operator and the reason, recorded with the command. ``host``, ``login``: as in ``TakeoverRecord``.

    Raises:
        Refused: The reason is empty, or longer than ``REASON_MAX``. Nothing was changed.
    """

    who: str
    why: str
    host: str = ""
    login: str = ""
    at: str = field(default_factory=_now)

    def __post_init__(self) -> None:
        if not self.why.strip():
            raise Refused("The reason (--why) is empty. Nothing was changed.", code=codes.REASON_EMPTY)
        if len(self.why) > REASON_MAX:
            raise Refused(
                f"The reason (--why) has {len(self.why)} characters, and may have {REASON_MAX}. Nothing was changed.",
                code=codes.REASON_TOO_LONG,
            )

    @property
    def fields(self) -> AccountFields:
        """The keyword arguments of a record that names this operator."""
        return {"who": self.who, "why": self.why, "at": self.at, "host": self.host, "login": self.login}


def owner_of(ledger: Ledger, pipeline: str) -> str:
    """The id of the DAG that owns the pipeline. Raises Refused if there is no such pipeline."""
    identity = ledger.identity()
    if identity is None:
        raise Refused(
            "The ledger has no pipeline with this name, so there is nothing to take over.",
            code=codes.PIPELINE_UNKNOWN,
            pipeline=pipeline,
        )
    return ledger.owner(identity)


def require_owner(ledger: Ledger, pipeline: str, dag_id: str) -> None:
    """Raise Refused unless the DAG ``dag_id`` owns the pipeline."""
    if owner_of(ledger, pipeline) != dag_id:
        raise Refused(
            f"Somebody handed the pipeline to another DAG before this takeover was confirmed: it belonged to DAG "
            f"{dag_id!r}. Nothing was changed.",
            code=codes.TAKEOVER_RACE,
            pipeline=pipeline,
        )


def take_over(ledger: Ledger, pipeline: str, dag_id: str, *, owner: str, by: Account) -> None:
    """Hand a pipeline from the DAG ``owner`` to the DAG ``dag_id``. Runs of ``owner`` cannot open it from then on.

    Raises:
        Refused: ``owner`` does not own it any more, or another takeover was recorded at the same moment.
    """
    require_owner(ledger, pipeline, owner)
    ledger.take_over(dag_id, writer=new_writer(), **by.fields)


def with_promise(ledger: Ledger, epoch: int, sink: str) -> EpochView:
    """The epoch. Raises Refused unless it is in doubt and waits for the sink."""
    view = ledger.view(epoch)
    if view.state is not State.IN_DOUBT:
        stands = f"The pipeline has no epoch {epoch}" if view.state is State.NEW else f"The epoch is {view.state.value}"
        raise Refused(
            f"{stands}. Only an epoch in doubt has rows to waive.",
            code=codes.EPOCH_NOT_IN_DOUBT,
            epoch=epoch,
            sink=sink or None,
        )
    waited_for = view.epoch.unacknowledged or view.epoch.sinks  # if all have receipts, a sink has lost its commit since
    if sink not in waited_for:
        names = ", ".join(sorted(waited_for))
        raise Refused(
            f"Epoch {epoch} does not wait for sink {sink}. It waits for: {names}.",
            code=codes.SINK_NOT_AWAITED,
            epoch=epoch,
            sink=sink,
        )
    return view


def promised(ledger: Ledger, view: EpochView, sink: str) -> Staged:
    """The staged rows that a waiver would cost the sink, from the newest restaged record, else from the decision."""
    assert view.decision
    found = [view.decision.votes[sink].staged, *(again.staged for again in ledger.restaged(view.number, sink))][-1]
    assert found
    return found


def waive(ledger: Ledger, epoch: int, sink: str, *, by: Account) -> None:
    """Put a waiver in place of a receipt: the epoch can be completed, and the sink never gets its rows.

    If the sink has a receipt, the waiver counts only if the sink has lost its commit since. Idempotent.

    Raises:
        Refused: The epoch does not wait for the sink, or does not any more. Nothing was changed.
    """
    opened = with_promise(ledger, epoch, sink).opened
    ledger.put(WaivedRecord(txn_id=opened.txn_id, sink=sink, **by.fields))


def sign(ledger: Ledger, *, by: Account) -> SigningRecord:
    """Let the ledger's records count as they are now: their key was lost, or a task wrote them without it.

    Raises:
        Refused: There is no key, or another signing record was put at the same moment. Nothing was changed.
    """
    return ledger.signing.sign(writer=new_writer(), **by.fields)
