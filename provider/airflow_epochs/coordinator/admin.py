"""What an operator does to a pipeline beside its runs: hand it to another DAG, give up on a sink, sign its ledger.

A command line or a page shows first what would change, and asks. So each act looks once more, and refuses if what was
shown is not so any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone

from airflow_epochs import codes
from airflow_epochs.coordinator.task import new_writer
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import SigningRecord, Staged, WaivedRecord
from airflow_epochs.protocol import State


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


@dataclass(frozen=True, kw_only=True)
class Account:
    """Who does it, and why: recorded with the act. ``host``, ``login``: as in ``TakeoverRecord``.

    Raises:
        Refused: The reason is empty.
    """

    who: str
    why: str
    host: str = ""
    login: str = ""
    at: str = field(default_factory=_now)

    def __post_init__(self) -> None:
        if not self.why.strip():
            raise Refused("The reason of the command (--why) is empty. Nothing was changed.", code=codes.REASON_EMPTY)


def owner_of(ledger: Ledger, pipeline: str) -> str:
    """The DAG that a pipeline belongs to. Raises Refused if there is no such pipeline."""
    identity = ledger.identity()
    if identity is None:
        raise Refused(
            "The ledger has no pipeline with this name, so there is nothing to take over.",
            code=codes.PIPELINE_UNKNOWN,
            pipeline=pipeline,
        )
    return ledger.owner(identity)


def require_owner(ledger: Ledger, pipeline: str, dag_id: str) -> None:
    """Raise Refused unless the pipeline still belongs to that DAG."""
    if owner_of(ledger, pipeline) != dag_id:
        raise Refused(
            f"Somebody handed the pipeline to another DAG while this command waited for a confirmation: it belonged to "
            f"DAG {dag_id!r}. Nothing was changed.",
            code=codes.TAKEOVER_RACE,
            pipeline=pipeline,
        )


def take_over(ledger: Ledger, pipeline: str, dag_id: str, *, owner: str, by: Account) -> None:
    """Hand a pipeline from ``owner`` to another DAG. Its next run is that DAG's.

    Raises:
        Refused: It does not belong to ``owner`` any more, or somebody else hands it over at this moment.
    """
    require_owner(ledger, pipeline, owner)
    ledger.take_over(dag_id, who=by.who, host=by.host, login=by.login, why=by.why, at=by.at, writer=new_writer())


def with_promise(ledger: Ledger, epoch: int, sink: str) -> EpochView:
    """The epoch, which waits for the sink. Raises Refused if it does not."""
    view = ledger.view(epoch)
    if view.state is not State.IN_DOUBT:
        raise Refused(
            f"The epoch is {view.state.value}. Only an epoch in doubt has rows to waive.",
            code=codes.EPOCH_NOT_IN_DOUBT,
            epoch=epoch,
            sink=sink,
        )
    waited_for = view.epoch.unacknowledged or view.epoch.sinks  # all have receipts: one must have lost its commit since
    if sink not in waited_for:
        names = ", ".join(sorted(waited_for))
        raise Refused(
            f"The epoch does not wait for this sink. It waits for: {names}.",
            code=codes.SINK_NOT_AWAITED,
            epoch=epoch,
            sink=sink,
        )
    return view


def promised(ledger: Ledger, view: EpochView, sink: str) -> Staged:
    """What the sink would lose: what was staged for it, by the decision or by the newest record since."""
    assert view.decision
    found = [view.decision.votes[sink].staged, *(again.staged for again in ledger.restaged(view.number, sink))][-1]
    assert found
    return found


def waive(ledger: Ledger, epoch: int, sink: str, *, by: Account) -> None:
    """Put a waiver in place of a receipt: the sink lacks the epoch's rows, for good.

    Of a sink that has a receipt it counts only if the sink has lost its commit since.

    Raises:
        Refused: The epoch does not wait for the sink (any more).
    """
    opened = with_promise(ledger, epoch, sink).opened
    ledger.put_waived(
        WaivedRecord(txn_id=opened.txn_id, sink=sink, who=by.who, host=by.host, login=by.login, why=by.why, at=by.at)
    )


def sign(ledger: Ledger, *, by: Account) -> SigningRecord:
    """Vouch for records that no key vouches for: the key was lost, or a task wrote them without it.

    Raises:
        Refused: There is no key, or somebody else does the same at this moment.
    """
    return ledger.signing.sign(who=by.who, host=by.host, login=by.login, why=by.why, at=by.at, writer=new_writer())
