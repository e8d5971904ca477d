"""Checks of the ledger, and of the processes that act on it: I4 to I6, I8 to I11, I13, I14. See ``checkers``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from airflow_epochs.contracts import Position
from airflow_epochs.errors import EpochError
from airflow_epochs.ledger.keys import PIPELINE_KEY, attempt_key, complete_key
from airflow_epochs.model import (
    DecisionKind,
    Marker,
    OpenRecord,
    Receipt,
    RestagedRecord,
    TransactionId,
    VoteKind,
    ends_of,
)
from airflow_epochs.protocol import State
from airflow_epochs.testing._violations import Violation, some
from airflow_epochs.testing.history import Act, Event, History, LedgerCopy
from airflow_epochs.testing.ledger_facts import LedgerFacts, epoch_of_key, newest_complete_of

# -- I4 ---------------------------------------------------------------------------------------------------------


def gaps(history: History) -> Iterator[Violation]:
    """I4: contiguous offsets."""
    complete = history.facts.complete
    rebuilt_to = history.facts.rebuilt_to
    missing = set(range(rebuilt_to + 1, history.facts.newest_complete + 1)) - set(complete)
    if missing:
        yield Violation("Complete epochs are not dense.", some(missing))
    position = dict(history.starts)
    for epoch in sorted(complete):
        if complete[epoch].moved_in == epoch:
            position = _ordered(history.facts, epoch)
        elif before := complete.get(epoch - 1):  # a Delta table may have been moved to another place since
            ranges = Position.of(before).named_as_in(Position.of(complete[epoch]))
            position = position if ranges == before.ranges else ends_of(ranges)
        named = {(topic, r.partition): r for topic, per_topic in complete[epoch].ranges.items() for r in per_topic}
        for where, r in named.items():
            if r.start > r.end:
                yield Violation(f"Epoch {epoch} has a range that ends before it starts.", (where, r))
            if r.start != position.get(where, r.start) and epoch not in history.facts.rebuilt_epochs:
                yield Violation(f"Epoch {epoch} starts at {r.start} instead of {position[where]}.", (where, r))
        forgotten = set(position) - set(named) - (set(history.starts) if epoch == 1 else set())
        if forgotten:
            yield Violation(f"Epoch {epoch} has no range of partitions that earlier epochs read.", some(forgotten))
        position |= {where: r.end for where, r in named.items()}
    yield from _falling(history)


def _ordered(facts: LedgerFacts, epoch: int) -> dict[tuple[str, int], int]:
    """Where the newest command of the epoch moved its input; empty if the epoch was pruned."""
    opened = facts.opens.get((epoch, facts.complete[epoch].txn_id.attempt))
    order = facts.opens.get((epoch, opened.obeys)) if opened else None
    return ends_of(order.ranges) if order else {}


def _falling(history: History) -> Iterator[Violation]:
    copies = [newest_complete_of(copy) for copy in history.timeline]
    readings = [seen.complete for seen in history.observations] + [history.facts.newest_complete]
    for seen in (copies, readings):
        for before, after in pairwise(seen):
            if after < before:
                yield Violation(f"The newest complete epoch went back from {before} to {after}.", (before, after))


# -- I5 and I6 --------------------------------------------------------------------------------------------------


def _shown(history: History) -> Iterator[tuple[str, str | Marker, LedgerFacts]]:
    """Every commit that was ever seen in a sink, with the ledger's facts at that time or later.

    Leaves out commits whose records the ledger has lost, as it was rebuilt since.
    """
    for sink, commits in (history.commits or {}).items():
        for commit in commits:
            if not _is_lost(history.facts, commit):
                yield f"Sink {sink} shows", commit, history.facts
    for number, seen in enumerate(history.observations):
        for sink, state in seen.sinks.items():
            for commit in state.commits or ():
                if seen.facts and not _is_lost(seen.facts, commit):
                    yield f"Reader {number} saw in sink {sink}", commit, seen.facts


def _is_lost(facts: LedgerFacts, shown: str | Marker) -> bool:
    epoch = TransactionId.parse(shown).epoch if isinstance(shown, str) else shown.epoch
    return epoch <= facts.rebuilt_to and epoch not in facts.complete


def aborted_visible(history: History) -> Iterator[Violation]:
    """I5: aborted attempts are never visible."""
    for who, shown, facts in _shown(history):
        txn = history.transaction(shown)
        if txn is None and history.is_fence(shown):
            continue
        if txn is None:
            yield Violation(f"{who} an epoch that belongs to no attempt in the ledger.", shown)
            continue
        decision, complete = facts.decision_of(txn), facts.complete.get(txn.epoch)
        aborted = decision is not None and decision.decision is DecisionKind.GLOBAL_ABORT
        if aborted or (complete and complete.txn_id != txn):
            yield Violation(f"{who} an attempt that was aborted.", str(txn))
    withdrawn = frozenset(history.withdrawn)
    states = [*(history.sinks or {}).items(), *(pair for seen in history.observations for pair in seen.sinks.items())]
    for sink, state in states:
        if withdrawn & state.origins:
            yield Violation(f"Sink {sink} shows records that their producer aborted.", some(withdrawn & state.origins))


def undecided_or_redecided(history: History) -> Iterator[Violation]:
    """I6: one decision per attempt."""
    yield from _changed_decisions(history.timeline)
    yield from _decided_against_the_votes(history.facts)
    for who, shown, facts in _shown(history):
        txn = history.transaction(shown)
        if txn and not facts.is_committed(txn):
            yield Violation(f"{who} an attempt without GLOBAL_COMMIT.", str(txn))
    decided: set[str] = set()
    for event in history.trace or ():
        if event.act is Act.DECIDED:
            decided.add(event.txn_id)
        if event.act is Act.COMMITTED and event.txn_id not in decided:
            yield Violation(f"{event.actor} committed sink {event.about} before a decision.", event.txn_id)


def _changed_decisions(timeline: Sequence[LedgerCopy]) -> Iterator[Violation]:
    seen: dict[str, bytes] = {}
    for copy in timeline:
        for key, value in copy.items():
            if key.endswith(".decision.json") and seen.setdefault(key, value) != value:
                yield Violation("A decision was changed.", key)


def _decided_against_the_votes(facts: LedgerFacts) -> Iterator[Violation]:
    for (epoch, attempt), record in facts.opens.items():
        before = facts.decisions.get((epoch, attempt - 1))
        ordered = facts.opens.get((epoch, attempt - 1))
        aborted = before and before.decision is DecisionKind.GLOBAL_ABORT
        if attempt > 1 and not aborted and not (ordered and ordered.command):
            yield Violation(f"Attempt {attempt} of epoch {epoch} was opened without an abort of the one before.", epoch)
        decision = facts.decisions.get((epoch, attempt))
        if decision and decision.decision is DecisionKind.GLOBAL_COMMIT:
            voted = {sink for sink, vote in decision.votes.items() if vote.vote is VoteKind.VOTE_COMMIT}
            if voted != set(record.sinks):
                yield Violation(
                    f"{record.txn_id} got GLOBAL_COMMIT without all votes.", some(voted ^ set(record.sinks))
                )


# -- I8 and I11 -------------------------------------------------------------------------------------------------


def changed_by_repeating(history: History) -> Iterator[Violation]:
    """I8: a repeat changes nothing."""
    for repeat in history.repeats:
        if repeat.changed:
            yield Violation(f"Repeating {repeat.what} changed something.", repeat.changed)


def changed_by_the_late(history: History) -> Iterator[Violation]:
    """I11: late processes are fenced."""
    for zombie in history.zombies:
        if zombie.changed:
            yield Violation(f"A late process changed something: {zombie.what}.", zombie.changed)
    for before, after in pairwise(history.timeline):
        yield from _written_after_the_end(before, after)
    for sink, commits in (history.commits or {}).items():
        epochs = [int(c.split("/")[1]) if isinstance(c, str) else c.epoch for c in commits]
        if epochs != sorted(epochs):
            yield Violation(f"Sink {sink} committed an old epoch after a newer one.", epochs)


def _written_after_the_end(before: LedgerCopy, after: LedgerCopy) -> Iterator[Violation]:
    """Records put after the epoch was complete. Tries may be late, and a pruned epoch has nothing to compare with."""
    for key in sorted(set(after) - set(before)):
        epoch = epoch_of_key(key)
        if epoch is None or ".try." in key or complete_key(epoch) not in before:
            continue
        others = [k for k in before if epoch_of_key(k) == epoch and k != complete_key(epoch)]
        if others:
            yield Violation(f"A record of epoch {epoch} was written after the epoch was complete.", key)


# -- I9 and I10 -------------------------------------------------------------------------------------------------


def not_at_rest(history: History) -> Iterator[Violation]:
    """I9: liveness."""
    rest = history.rest
    assert rest is not None
    if rest.recoveries > rest.recoveries_max:
        yield Violation(
            f"The pipeline needed {rest.recoveries} runs to finish all epochs.", (rest.recoveries, rest.recoveries_max)
        )
    for what in rest.hanging:
        yield Violation("Something is still open.", what)
    epoch = history.facts.newest_complete + 1
    try:
        state = history.view(epoch).state
    except EpochError as error:
        yield Violation(f"Epoch {epoch} cannot be read at rest.", str(error))
        return
    if state is not State.NEW:
        yield Violation(f"At rest epoch {epoch} is {state.value}.", epoch)


def litter(history: History) -> Iterator[Violation]:
    """I10: no litter, and no loss."""
    present, referenced = set(history.places or ()), set(history.referenced or ())
    if present - referenced:
        yield Violation(f"{len(present - referenced)} staging places are left.", some(present - referenced))
    if referenced - present:
        yield Violation("Files that a table consists of were deleted.", some(referenced - present))


# -- I13 --------------------------------------------------------------------------------------------------------


def guessed(history: History) -> Iterator[Violation]:
    """I13: nobody acts on an unknown result."""
    lost: dict[str, set[str]] = {}
    looked: dict[str, set[str]] = {}
    for event in history.trace or ():
        unknown, known = lost.setdefault(event.actor, set()), looked.setdefault(event.actor, set())
        if event.act is Act.LOST:
            unknown.add(event.about)
        elif event.act is Act.LOOKED:
            unknown.discard(event.about)
            known.add(event.about)
        elif event.act is not Act.COMMITTED:
            yield from _acted_blindly(event, unknown, known)


def _acted_blindly(event: Event, unknown: set[str], known: set[str]) -> Iterator[Violation]:
    decisions = {key for key in unknown if key.endswith((".decision.json", ".open.json", "complete.json"))}
    decisions -= {event.about}
    if decisions:
        yield Violation(
            f"{event.actor} {event.act.value} {event.about} before it looked for the result of its own call.",
            some(decisions),
        )
    if event.act is Act.DISCARDED and event.txn_id:
        txn = TransactionId.parse(event.txn_id)
        if not known & {attempt_key(txn.epoch, txn.attempt, "decision"), complete_key(txn.epoch)}:
            yield Violation(f"{event.actor} deleted {event.about} before it read the decision.", event.txn_id)


# -- I14 --------------------------------------------------------------------------------------------------------


def not_replayable(history: History) -> Iterator[Violation]:
    """I14: the ledger replays."""
    facts = history.facts
    for key, why in facts.unreadable.items():
        yield Violation(f"A record cannot be read: {why}.", key)
    for epoch in sorted({epoch for epoch, _ in facts.opens} | set(facts.complete)):
        if not any(epoch_of_key(key) == epoch for key in facts.unreadable):
            yield from _contradictions(history, epoch)
    for before, after in pairwise(history.timeline):
        yield from _unfaithful(before, after)


def _contradictions(history: History, epoch: int) -> Iterator[Violation]:
    facts, complete = history.facts, history.facts.complete.get(epoch)
    try:
        history.view(epoch)
    except EpochError as error:
        yield Violation(f"The records of epoch {epoch} contradict each other.", str(error))
    opened = facts.opens.get((epoch, complete.txn_id.attempt)) if complete else None
    if complete and opened and epoch not in facts.rebuilt_epochs:
        yield from _incomplete(facts, opened)
        if opened.txn_id != complete.txn_id:
            yield Violation(f"Epoch {epoch} was completed by a transaction that was not opened.", complete.txn_id)
    if epoch > facts.newest_complete and (epoch, 1) in facts.opens and epoch > 1 and epoch != facts.newest_complete + 1:
        yield Violation(f"Epoch {epoch} was opened before epoch {epoch - 1} was complete.", epoch)


def _incomplete(facts: LedgerFacts, opened: OpenRecord) -> Iterator[Violation]:
    epoch = opened.txn_id.epoch
    if not facts.is_committed(opened.txn_id) or facts.decision_of(opened.txn_id) is None:
        yield Violation(f"Epoch {epoch} is complete without GLOBAL_COMMIT.", opened.txn_id)
    complete = facts.complete[epoch]
    for sink in opened.sinks:
        receipt = facts.receipts.get((epoch, sink))
        if receipt is None and (epoch, sink) not in facts.waived:
            yield Violation(f"Epoch {epoch} is complete without a receipt of sink {sink}.", opened.txn_id)
        elif receipt and not _is_of_the_same(complete.receipts.get(sink), receipt, facts.restaged):
            yield Violation(f"Epoch {epoch} was completed with another receipt of sink {sink}.", opened.txn_id)


def _is_of_the_same(final: Receipt | None, receipt: Receipt, again: list[RestagedRecord]) -> bool:
    """Whether ``final`` is ``receipt``, or the receipt of the same rows after they were staged again and put back."""
    places = {record.staged.place for record in again if (record.txn_id, record.sink) == (receipt.txn_id, receipt.sink)}
    if final is None or final.place not in places:
        return final == receipt
    return (final.txn_id, final.sink, final.rows) == (receipt.txn_id, receipt.sink, receipt.rows)


def _unfaithful(before: LedgerCopy, after: LedgerCopy) -> Iterator[Violation]:
    changed = {key for key in before if key in after and before[key] != after[key]}
    if changed:
        yield Violation("Records were changed.", some(changed))
    gone = {key for key in before if key not in after and not _may_go(key, after)}
    if gone:
        yield Violation("Records were removed.", some(gone))


def _may_go(key: str, after: Mapping[str, bytes]) -> bool:
    """Whether a record may be removed: probes may, and a complete epoch's records other than ``complete.json``."""
    epoch = epoch_of_key(key)
    if epoch is None:
        return key.startswith("probe/") and key != PIPELINE_KEY
    return key != complete_key(epoch) and complete_key(epoch) in after
