"""The two-phase commit of one epoch: states, messages, the transition table, pure decisions.

Start reading here. Nothing in this file does I/O, reads a clock or draws a random number; the coordinator
reads the ledger, asks this file what the facts mean, performs one effect, and records it.

Theory of operation
    An epoch is tried in *attempts*, one after the other. Each is a transaction of the classic two-phase commit
    (Gray 1978; Skeen 1981; Bernstein, Hadzilacos, Goodman 1987, §7). VOTE_REQUEST is the put of the attempt's
    open record. Each sink answers VOTE_COMMIT or VOTE_ABORT. One immutable decision record says GLOBAL_COMMIT
    or GLOBAL_ABORT. After GLOBAL_COMMIT each sink's commit is acknowledged by a receipt, and the epoch is
    complete when every sink has one.

Rules that hold by construction
    1. A message is accepted only in a state that lists it; anything else is an error and changes nothing.
    2. A message belongs to one transaction id. A message of another attempt is *fenced*: it changes nothing.
    3. GLOBAL_COMMIT needs a VOTE_COMMIT of every sink of the attempt.
    4. The next attempt needs GLOBAL_ABORT of the one before: an undecided attempt is never skipped.
    5. COMPLETE is final. No message is accepted after it.
    6. A coordinator that finds another run's undecided attempt does not guess: it *writes* GLOBAL_ABORT.
       This is presumed abort (Mohan, Lindsay 1983), made explicit: the record fences a coordinator that wakes
       up later, because its own put loses. If the GLOBAL_ABORT loses to a GLOBAL_COMMIT, the epoch rolls forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from airflow_epochs.model import DecisionKind, TransactionId, VoteKind


class State(Enum):
    """The state of an epoch. Values are the words that users see."""

    NEW = "new"
    """No attempt was opened."""
    OPEN = "open"
    """VOTE_REQUEST is on record, the decision is not. Skeen's *wait* state."""
    ABORTED = "aborted"
    """The newest attempt got GLOBAL_ABORT; the same ranges may be tried again."""
    IN_DOUBT = "in doubt"
    """GLOBAL_COMMIT was decided; not every sink has a receipt or a waiver yet. The only way is forward."""
    COMPLETE = "complete"
    """Every sink has a receipt or a waiver, and the completion record says so."""

    @property
    def is_final(self) -> bool:
        """Whether this state accepts no message."""
        return self is State.COMPLETE


@dataclass(frozen=True)
class VoteRequest:
    """VOTE_REQUEST: an attempt begins. From the coordinator to all ``sinks``; recorded as the open record."""

    txn: TransactionId
    sinks: frozenset[str]


@dataclass(frozen=True)
class VoteCommit:
    """VOTE_COMMIT: the sink promises that its rows are durable and that its commit can always succeed in the end."""

    txn: TransactionId
    sink: str


@dataclass(frozen=True)
class VoteAbort:
    """VOTE_ABORT: the sink cannot give the promise of a VOTE_COMMIT."""

    txn: TransactionId
    sink: str


@dataclass(frozen=True)
class GlobalCommit:
    """GLOBAL_COMMIT, read from the decision record: every sink must show the epoch."""

    txn: TransactionId


@dataclass(frozen=True)
class GlobalAbort:
    """GLOBAL_ABORT, read from the decision record: a sink voted VOTE_ABORT, or the attempt was left undecided."""

    txn: TransactionId


@dataclass(frozen=True)
class Acknowledge:
    """ACK: a sink's receipt, or an operator's waiver in its place."""

    txn: TransactionId
    sink: str


@dataclass(frozen=True)
class Complete:
    """The completion record: every sink has acknowledged the epoch."""

    txn: TransactionId


Message = VoteRequest | VoteCommit | VoteAbort | GlobalCommit | GlobalAbort | Acknowledge | Complete

TRANSITIONS: Mapping[State, Mapping[type[Message], State]] = {
    State.NEW: {VoteRequest: State.OPEN},
    State.OPEN: {
        VoteCommit: State.OPEN,
        VoteAbort: State.OPEN,
        GlobalCommit: State.IN_DOUBT,
        GlobalAbort: State.ABORTED,
    },
    State.ABORTED: {VoteRequest: State.OPEN},
    State.IN_DOUBT: {Acknowledge: State.IN_DOUBT, Complete: State.COMPLETE},
    State.COMPLETE: {},
}
"""State -> message that it accepts -> next state. A message that is absent here is illegal."""


class IllegalTransition(Exception):
    """The message is not accepted in this state. Nothing changed."""


@dataclass(frozen=True)
class Epoch:
    """What the ledger says about one epoch, reduced to what the protocol needs."""

    number: int
    state: State = State.NEW
    attempt: int = 0
    """The newest attempt; 0 before the first."""
    txn: TransactionId | None = None
    """The newest attempt's transaction; None before the first."""
    sinks: frozenset[str] = frozenset()
    """The sinks of the newest attempt. Votes and acknowledgements below belong to the same attempt."""
    votes: Mapping[str, VoteKind] = field(default_factory=dict)
    acknowledged: frozenset[str] = frozenset()

    @property
    def unacknowledged(self) -> frozenset[str]:
        """The sinks of the newest attempt that have neither a receipt nor a waiver."""
        return self.sinks - self.acknowledged


def apply(epoch: Epoch, message: Message) -> Epoch:
    """The epoch after ``message``; ``epoch`` itself never changes.

    Raises:
        IllegalTransition: The state does not accept the message, the message belongs to another transaction, or its
            precondition does not hold. Nothing changed.
    """
    target = TRANSITIONS[epoch.state].get(type(message))
    if target is None:
        raise IllegalTransition(f"{type(message).__name__} in state {epoch.state.value!r} of epoch {epoch.number}")
    if isinstance(message, VoteRequest):
        return _begin(epoch, message, target)
    if message.txn != epoch.txn:
        raise IllegalTransition(f"{message.txn} is fenced: epoch {epoch.number} is at {epoch.txn}")
    return _within_attempt(epoch, message, target)


def _begin(epoch: Epoch, message: VoteRequest, target: State) -> Epoch:
    # Attempts are dense, so the newest one is found by probing keys, and no undecided one is skipped (rule 4).
    if message.txn.epoch != epoch.number or message.txn.attempt != epoch.attempt + 1:
        raise IllegalTransition(f"{message.txn} does not follow attempt {epoch.attempt} of epoch {epoch.number}")
    if not message.sinks:  # without sinks, an epoch would be complete although no sink has its rows
        raise IllegalTransition("an attempt needs at least one sink")
    return Epoch(epoch.number, target, message.txn.attempt, message.txn, message.sinks)


def _within_attempt(
    epoch: Epoch,
    message: VoteCommit | VoteAbort | GlobalCommit | GlobalAbort | Acknowledge | Complete,
    target: State,
) -> Epoch:
    match message:
        case VoteCommit(_, sink) | VoteAbort(_, sink):
            # A sink votes once: a second vote could turn a promise that was given into its opposite.
            _require(sink in epoch.sinks and sink not in epoch.votes, f"an unexpected vote of {sink!r}")
            kind = VoteKind.VOTE_COMMIT if isinstance(message, VoteCommit) else VoteKind.VOTE_ABORT
            return replace(epoch, state=target, votes={**epoch.votes, sink: kind})
        case GlobalCommit():
            _require(
                decide(epoch.sinks, epoch.votes) is DecisionKind.GLOBAL_COMMIT,
                "GLOBAL_COMMIT without all votes",
            )
            return replace(epoch, state=target)
        case GlobalAbort():  # needs no vote: until GLOBAL_COMMIT is on record, any coordinator may abort
            return replace(epoch, state=target)
        case Acknowledge(_, sink):
            _require(sink in epoch.sinks, f"a receipt of {sink!r}, which is no sink of the attempt")
            # Idempotent: a commit that is repeated acknowledges again.
            return replace(epoch, state=target, acknowledged=epoch.acknowledged | {sink})
        case Complete():
            _require(not epoch.unacknowledged, f"COMPLETE without receipts of {sorted(epoch.unacknowledged)}")
            return replace(epoch, state=target)


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise IllegalTransition(otherwise)


def replay(epoch: Epoch, messages: Iterable[Message]) -> Epoch:
    """The epoch after all messages, in order. Raises as ``apply`` does."""
    for message in messages:
        epoch = apply(epoch, message)
    return epoch


def decide(sinks: frozenset[str], votes: Mapping[str, VoteKind]) -> DecisionKind:
    """GLOBAL_COMMIT if, and only if, every one of at least one sink voted VOTE_COMMIT.

    A missing vote counts as VOTE_ABORT.
    """
    if sinks and all(votes.get(sink) is VoteKind.VOTE_COMMIT for sink in sinks):
        return DecisionKind.GLOBAL_COMMIT
    return DecisionKind.GLOBAL_ABORT


class Step(Enum):
    """What ``open`` does next, when it finds an epoch as an earlier run left it."""

    PLAN = "plan new ranges and open attempt 1"
    PRESUME_ABORT = "write GLOBAL_ABORT; obey the winner if the put loses"
    REOPEN = "open the next attempt with the same ranges"
    ROLL_FORWARD = "commit every sink without a receipt, then write the completion record"
    PROCEED = "go on to the next epoch"


RECOVERY: Mapping[State, Step] = {
    State.NEW: Step.PLAN,
    State.OPEN: Step.PRESUME_ABORT,  # its coordinator may be dead or late: the put decides which
    State.ABORTED: Step.REOPEN,
    State.IN_DOUBT: Step.ROLL_FORWARD,  # every sink voted VOTE_COMMIT, and some may show the epoch already
    State.COMPLETE: Step.PROCEED,
}
"""The next step of ``open``, by the state it finds."""
