"""The transition table, exhaustively: every state, every message, every sender."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_epochs.model import DecisionKind, TransactionId, VoteKind
from airflow_epochs.protocol import (
    RECOVERY,
    TRANSITIONS,
    Acknowledge,
    Complete,
    Epoch,
    GlobalAbort,
    GlobalCommit,
    IllegalTransition,
    Message,
    State,
    Step,
    VoteAbort,
    VoteCommit,
    VoteRequest,
    apply,
    decide,
    replay,
)

SINKS = frozenset({"a", "b"})
TXN = TransactionId("p", 7, 1, "1" * 32)
NEXT = TransactionId("p", 7, 2, "2" * 32)
TWIN = TransactionId("p", 7, 1, "3" * 32)
"""The same numbers under another nonce: what a restored ledger would issue."""
OTHERS = [
    NEXT,
    TWIN,
    TransactionId("p", 8, 1, "1" * 32),
    TransactionId("p", 6, 1, "1" * 32),
    TransactionId("q", 7, 1, "1" * 32),
]
KINDS: list[type[Message]] = [VoteRequest, VoteCommit, VoteAbort, GlobalCommit, GlobalAbort, Acknowledge, Complete]


def in_state(state: State) -> Epoch:
    """An epoch in ``state`` in which every message that the table accepts also has its other preconditions."""
    all_votes = [VoteCommit(TXN, sink) for sink in SINKS]
    history: dict[State, list[Message]] = {
        State.NEW: [],
        State.OPEN: [VoteRequest(TXN, SINKS)],
        State.ABORTED: [VoteRequest(TXN, SINKS), GlobalAbort(TXN)],
        State.IN_DOUBT: [VoteRequest(TXN, SINKS), *all_votes, GlobalCommit(TXN)],
        State.COMPLETE: [
            VoteRequest(TXN, SINKS),
            *all_votes,
            GlobalCommit(TXN),
            *[Acknowledge(TXN, sink) for sink in SINKS],
            Complete(TXN),
        ],
    }
    epoch = replay(Epoch(7), history[state])
    assert epoch.state is state
    return epoch


def ready_for(state: State, kind: type[Message]) -> Epoch:
    epoch = in_state(state)
    if kind is GlobalCommit and state is State.OPEN:
        return replay(epoch, [VoteCommit(TXN, sink) for sink in SINKS])
    if kind is Complete and state is State.IN_DOUBT:
        return replay(epoch, [Acknowledge(TXN, sink) for sink in SINKS])
    return epoch


def message(kind: type[Message], txn: TransactionId) -> Message:
    if kind is VoteRequest:
        return VoteRequest(txn, SINKS)
    if kind in (VoteCommit, VoteAbort, Acknowledge):
        return kind(txn, "a")
    return kind(txn)  # type: ignore[call-arg]  # those that are left have no other field


def own_txn(state: State, kind: type[Message]) -> TransactionId:
    return NEXT if kind is VoteRequest and state is not State.NEW else TXN


def unchanged(epoch: Epoch, sent: Message) -> None:
    copy = replace(epoch, votes=dict(epoch.votes))
    with pytest.raises(IllegalTransition):
        apply(epoch, sent)
    assert epoch == copy


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_accepts_a_message_exactly_if_the_table_says_so_and_else_nothing_changes(
    state: State, kind: type[Message]
) -> None:
    epoch, sent = ready_for(state, kind), message(kind, own_txn(state, kind))
    expected = TRANSITIONS[state].get(kind)
    if expected is None:
        unchanged(epoch, sent)
    else:
        before = replace(epoch, votes=dict(epoch.votes))
        assert apply(epoch, sent).state is expected
        assert epoch == before, "the old value is not changed in place"


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not VoteRequest])
@pytest.mark.parametrize("txn", OTHERS, ids=str)
def test_a_message_of_another_transaction_is_fenced_in_every_state(
    state: State, kind: type[Message], txn: TransactionId
) -> None:
    unchanged(ready_for(state, kind), message(kind, txn))


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("attempt", [1, 2, 3, 4])
@pytest.mark.parametrize("epoch", [6, 7, 8])
def test_a_vote_request_is_accepted_only_for_the_attempt_that_follows(state: State, attempt: int, epoch: int) -> None:
    sent = VoteRequest(TransactionId("p", epoch, attempt, "4" * 32), SINKS)
    follows = {State.NEW: 1, State.ABORTED: 2}.get(state)
    if epoch == 7 and attempt == follows:
        opened = apply(in_state(state), sent)
        assert (opened.state, opened.txn, opened.attempt) == (State.OPEN, sent.txn, attempt)
        assert not opened.votes and not opened.acknowledged, "nothing of the attempt before counts"
    else:
        unchanged(in_state(state), sent)


def test_an_attempt_without_sinks_is_refused() -> None:
    unchanged(Epoch(7), VoteRequest(TXN, frozenset()))


def votes() -> Iterator[dict[str, VoteKind]]:
    for answers in itertools.product([None, *VoteKind], repeat=len(SINKS)):
        yield {sink: vote for sink, vote in zip(sorted(SINKS), answers, strict=True) if vote}


@pytest.mark.parametrize("given", list(votes()), ids=str)
def test_global_commit_needs_vote_commit_of_every_sink_and_global_abort_needs_nothing(
    given: dict[str, VoteKind],
) -> None:
    opened = replay(
        in_state(State.OPEN),
        [VoteCommit(TXN, s) if v is VoteKind.VOTE_COMMIT else VoteAbort(TXN, s) for s, v in given.items()],
    )
    unanimous = len(given) == len(SINKS) and set(given.values()) == {VoteKind.VOTE_COMMIT}
    if unanimous:
        assert apply(opened, GlobalCommit(TXN)).state is State.IN_DOUBT
    else:
        unchanged(opened, GlobalCommit(TXN))
    assert apply(opened, GlobalAbort(TXN)).state is State.ABORTED


@pytest.mark.parametrize("sinks", [(), ("a",), ("a", "b"), ("a", "b", "c")], ids=str)
def test_decide_is_total_and_commits_only_unanimously(sinks: tuple[str, ...]) -> None:
    for answers in itertools.product([None, *VoteKind], repeat=3):
        given = {sink: vote for sink, vote in zip("abc", answers, strict=True) if vote}
        before = dict(given)
        decision = decide(frozenset(sinks), given)
        assert given == before
        unanimous = bool(sinks) and all(given.get(sink) is VoteKind.VOTE_COMMIT for sink in sinks)
        assert decision is (DecisionKind.GLOBAL_COMMIT if unanimous else DecisionKind.GLOBAL_ABORT)
        assert decide(frozenset(sinks), given) is decision


def test_a_sink_votes_once_and_only_if_it_takes_part() -> None:
    voted = apply(in_state(State.OPEN), VoteCommit(TXN, "a"))
    unchanged(voted, VoteAbort(TXN, "a"))
    unchanged(voted, VoteCommit(TXN, "a"))
    unchanged(voted, VoteCommit(TXN, "stranger"))


def test_complete_needs_an_acknowledgement_of_every_sink() -> None:
    in_doubt = in_state(State.IN_DOUBT)
    unchanged(in_doubt, Complete(TXN))
    one = apply(in_doubt, Acknowledge(TXN, "a"))
    assert one.unacknowledged == {"b"}
    unchanged(one, Complete(TXN))
    unchanged(one, Acknowledge(TXN, "stranger"))
    assert apply(apply(one, Acknowledge(TXN, "b")), Complete(TXN)).state is State.COMPLETE


def test_an_acknowledgement_may_be_repeated() -> None:
    once = apply(in_state(State.IN_DOUBT), Acknowledge(TXN, "a"))
    assert apply(once, Acknowledge(TXN, "a")) == once


def test_replay_of_a_whole_history_with_an_aborted_attempt_ends_complete() -> None:
    history: list[Message] = [
        VoteRequest(TXN, SINKS),
        VoteCommit(TXN, "a"),
        VoteAbort(TXN, "b"),
        GlobalAbort(TXN),
        VoteRequest(NEXT, frozenset({"a", "c"})),
        VoteCommit(NEXT, "a"),
        VoteCommit(NEXT, "c"),
        GlobalCommit(NEXT),
        Acknowledge(NEXT, "c"),
        Acknowledge(NEXT, "a"),
        Complete(NEXT),
    ]
    end = replay(Epoch(7), history)
    assert (end.state, end.txn, end.attempt) == (State.COMPLETE, NEXT, 2)
    for index in range(len(history) - 1):
        without = history[:index] + history[index + 1 :]
        if isinstance(history[index], (VoteCommit, VoteAbort)) and history[index].txn == TXN:
            assert replay(Epoch(7), without) == end, "an abort needs no votes"
        else:
            with pytest.raises(IllegalTransition):
                replay(Epoch(7), without)


def test_every_state_is_in_the_table_and_reachable_and_has_a_recovery_step() -> None:
    assert set(TRANSITIONS) == set(RECOVERY) == set(State)
    reached, found = {State.NEW}, {State.NEW}
    while found:
        found = {target for state in found for target in TRANSITIONS[state].values()} - reached
        reached |= found
    assert reached == set(State)
    assert set(RECOVERY.values()) == set(Step)


def test_only_a_final_state_accepts_nothing() -> None:
    assert [state for state in State if not TRANSITIONS[state]] == [state for state in State if state.is_final]


def test_after_global_commit_no_message_leads_anywhere_but_forward() -> None:
    reachable, found = set[State](), {State.IN_DOUBT}
    while found:
        reachable |= found
        found = {target for state in found for target in TRANSITIONS[state].values()} - reachable
    assert reachable == {State.IN_DOUBT, State.COMPLETE}
