"""The records of one epoch, read together, and the protocol's state that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from airflow_epochs import protocol
from airflow_epochs.model import (
    FORMAT,
    CompleteRecord,
    DecisionKind,
    DecisionRecord,
    OpenRecord,
    Receipt,
    VoteKind,
    WaivedRecord,
)
from airflow_epochs.protocol import Epoch, State


@dataclass(frozen=True, kw_only=True)
class EpochView:
    """The records of an epoch: of its newest attempt, or the completion record alone if it is complete."""

    number: int
    open: OpenRecord | None = None
    decision: DecisionRecord | None = None
    receipts: dict[str, Receipt] = field(default_factory=dict)
    waived: dict[str, WaivedRecord] = field(default_factory=dict)
    complete: CompleteRecord | None = None

    @cached_property
    def epoch(self) -> Epoch:
        """The protocol's view of these records. Raises IllegalTransition if they contradict each other."""
        if self.complete:
            return Epoch(self.number, State.COMPLETE, self.complete.txn_id.attempt, self.complete.txn_id)
        if not self.open:
            return Epoch(self.number)
        attempt = self.open.txn_id.attempt
        before = Epoch(self.number, State.NEW if attempt == 1 else State.ABORTED, attempt - 1)
        return protocol.replay(before, self._messages(self.open))

    @property
    def state(self) -> State:
        """The state of the epoch. Raises as ``epoch``."""
        return self.epoch.state

    @property
    def opened(self) -> OpenRecord:
        """The open record. Only for an epoch that is known to have one: not new, not complete."""
        if self.open is None:
            raise AssertionError(f"epoch {self.number} has no open record")
        return self.open

    @property
    def is_signed(self) -> bool:
        """Whether there are records, and the signature of every one was checked."""
        records = (self.complete or self.open, self.decision, *self.receipts.values(), *self.waived.values())
        return records[0] is not None and all(record.format == FORMAT for record in records if record)

    def _messages(self, opened: OpenRecord) -> list[protocol.Message]:
        txn = opened.txn_id
        messages: list[protocol.Message] = [protocol.VoteRequest(txn, frozenset(opened.sinks))]
        if opened.command:
            messages.append(protocol.GlobalAbort(txn))
            if self.decision and self.decision.decision is DecisionKind.GLOBAL_ABORT:
                return messages  # an older version of the provider has put it: it takes a command for an open attempt
        if not self.decision:
            return messages
        decided = self.decision.txn_id
        for sink, vote in self.decision.votes.items():
            kind = protocol.VoteCommit if vote.vote is VoteKind.VOTE_COMMIT else protocol.VoteAbort
            messages.append(kind(decided, sink))
        if self.decision.decision is DecisionKind.GLOBAL_ABORT:
            return [*messages, protocol.GlobalAbort(decided)]
        messages.append(protocol.GlobalCommit(decided))
        messages += [protocol.Acknowledge(receipt.txn_id, sink) for sink, receipt in self.receipts.items()]
        return messages + [protocol.Acknowledge(waiver.txn_id, sink) for sink, waiver in self.waived.items()]
