"""Histories in which something went wrong, some of them known from other systems, and who must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_epochs.ledger.codec import encode
from airflow_epochs.ledger.keys import attempt_key, complete_key
from airflow_epochs.model import (
    Backlog,
    CompleteRecord,
    DecisionRecord,
    Marker,
    OpenRecord,
    Receipt,
    StatePin,
)
from airflow_epochs.testing import (
    Act,
    Event,
    History,
    Origin,
    Repeat,
    Rest,
    VisibleRow,
)
from tests.support.good_history import (
    SINKS,
    aborted_id,
    committed,
    in_epoch,
    rows,
    shown,
    with_record,
    with_rows,
    with_sink,
    without_epoch,
    without_record,
)

Plant = Callable[[History], History]


def a_row_lost_in_every_sink(history: History) -> History:
    for sink in SINKS:
        history = with_rows(history, sink, lambda all_rows: all_rows[1:])
    return replace(history, observations=())


def an_epoch_skipped_by_a_sink_that_was_late(history: History) -> History:
    """delta-io/connectors #473: committables older than the newest version were skipped."""
    return replace(without_epoch(history, "audit", 2), observations=())


def a_record_never_read(history: History) -> History:
    return replace(history, produced={**(history.produced or {}), Origin("orders", 0, 99): "99"})


def a_batch_committed_twice(history: History) -> History:
    """Paimon #9666: a crash after the sink's commit and before its own note of it."""
    again = in_epoch(history, "orders", 2)
    return replace(
        with_rows(history, "orders", lambda all_rows: [*all_rows, *(r for r in all_rows if r.origin in again)]),
        observations=(),
    )


def an_empty_epoch_committed_twice_after_a_lost_acknowledgement(history: History) -> History:
    """Delta's IdempotentCommitRetrySuite: the retry of a commit that had landed commits a second version."""
    first, *others = shown(history, "orders")
    return with_sink(history, "orders", commits=[first, first, *others])


def a_record_in_two_sinks_of_a_group(history: History) -> History:
    return replace(history, groups=[set(SINKS)], observations=())


def a_multi_sink_tear(history: History) -> History:
    """Iceberg #8809: the second sink failed, so the first got the batch again, or alone."""
    return replace(
        with_sink(without_epoch(history, "audit", 3), "audit", commits=shown(history, "audit")[:2]),
        observations=(),
    )


def a_reader_that_saw_half_of_a_complete_epoch(history: History) -> History:
    last = history.observations[-1]
    half = replace(last.sinks["orders"], rows=rows(history, "orders")[1:])
    return replace(history, observations=[replace(last, sinks={**last.sinks, "orders": half})])


def a_balance_that_does_not_add_up(history: History) -> History:
    return replace(history, balance=0, observations=[replace(history.observations[-1], balance=7)])


def rows_of_no_epoch_at_rest(history: History) -> History:
    beyond = VisibleRow("orders", 0, 99, "99")
    return replace(
        with_rows(history, "orders", lambda all_rows: [*all_rows, beyond]),
        produced={**(history.produced or {}), beyond.origin: "99"},
        observations=(),
    )


def a_gap_between_epochs(history: History) -> History:
    ranges = history.facts.complete[2].ranges["orders"]
    moved = (ranges[0]._replace(start=ranges[0].start + 1), *ranges[1:])
    return with_record(history, complete_key(2), CompleteRecord, ranges={"orders": moved})


def an_epoch_missing_from_the_ledger(history: History) -> History:
    assert history.ledger is not None
    left = {key: value for key, value in history.ledger.items() if f"{2:020d}/" not in key}
    return replace(history, ledger=left, copies=(), observations=())


def a_partition_forgotten(history: History) -> History:
    return with_record(
        history, complete_key(3), CompleteRecord, ranges={"orders": history.facts.complete[3].ranges["orders"][:1]}
    )


def a_ledger_that_went_back(history: History) -> History:
    assert history.ledger is not None
    gone = {key: value for key, value in history.ledger.items() if f"{3:020d}/" not in key}
    return replace(history, copies=[history.ledger, gone])


def an_aborted_attempt_shown(history: History) -> History:
    return with_sink(
        history, "orders", commits=[c if "/2/" not in c else aborted_id(history) for c in shown(history, "orders")]
    )


def a_late_abort_that_hit_the_next_transaction(history: History) -> History:
    """Kafka before KIP-890, found in Bufstream: a delayed commit acts on another transaction than it was sent for."""
    first, _, third = shown(history, "orders")
    return with_sink(history, "orders", commits=[first, aborted_id(history), third])


def an_aborted_attempt_seen_for_a_moment(history: History) -> History:
    seen = [s for s in history.observations if s.complete == 1][-1]
    torn = replace(seen.sinks["orders"], commits=[*(seen.sinks["orders"].commits or ()), aborted_id(history)])
    return replace(history, observations=[replace(seen, sinks={**seen.sinks, "orders": torn})])


def records_that_their_producer_aborted(history: History) -> History:
    return replace(history, withdrawn={rows(history, "orders")[0].origin})


def an_epoch_of_another_history(history: History) -> History:
    return with_sink(history, "orders", commits=[Marker(1, 77), *shown(history, "orders")[1:]])


def a_decision_that_changed(history: History) -> History:
    key = attempt_key(2, 1, "decision")
    return replace(
        with_record(history, key, DecisionRecord, reason="another one came later"), copies=[history.ledger or {}]
    )


def a_commit_without_a_decision(history: History) -> History:
    key = attempt_key(3, 1, "decision")
    return without_record(without_record(history, key), complete_key(3))


def a_commit_before_its_decision(history: History) -> History:
    return replace(history, trace=[Event("commit", Act.COMMITTED, "orders", shown(history, "orders")[0])])


def a_decision_against_a_missing_vote(history: History) -> History:
    key = attempt_key(3, 1, "decision")
    votes = {"orders": history.facts.decisions[3, 1].votes["orders"]}
    return with_record(history, key, DecisionRecord, votes=votes)


def an_attempt_after_an_undecided_one(history: History) -> History:
    return without_record(history, attempt_key(2, 1, "decision"))


def a_commit_shown_before_it_was_decided(history: History) -> History:
    decided = attempt_key(3, 1, "decision")
    seen = [s for s in history.observations if decided not in (s.ledger or {})][-1]
    early = replace(seen.sinks["audit"], commits=[*(seen.sinks["audit"].commits or ()), str(committed(history, 3))])
    return replace(history, observations=[replace(seen, sinks={**seen.sinks, "audit": early})])


def other_content(history: History) -> History:
    return with_rows(history, "audit", lambda all_rows: [all_rows[0]._replace(payload="other"), *all_rows[1:]])


def other_content_seen_by_a_reader(history: History) -> History:
    last = history.observations[-1]
    changed = [row._replace(payload="other") for row in rows(history, "orders")]
    other = replace(last.sinks["orders"], rows=changed)
    return replace(history, produced=None, observations=[replace(last, sinks={**last.sinks, "orders": other})])


def a_record_that_nobody_produced(history: History) -> History:
    known = dict(history.produced or {})
    known.pop(rows(history, "orders")[0].origin)
    return replace(history, produced=known)


def a_second_attempt_with_other_ranges(history: History) -> History:
    ranges = {"orders": tuple(r._replace(end=r.end - 1) for r in history.facts.opens[2, 2].ranges["orders"])}
    return with_record(history, attempt_key(2, 2, "open"), OpenRecord, ranges=ranges)


def a_second_attempt_with_another_seed(history: History) -> History:
    return with_record(history, attempt_key(2, 2, "open"), OpenRecord, seed=1)


def a_second_attempt_with_another_watermark(history: History) -> History:
    later = with_record(history, attempt_key(2, 2, "open"), OpenRecord, watermarks=(5, None))
    return with_record(later, complete_key(2), CompleteRecord, watermarks=(5, None))


def a_second_attempt_that_reads_another_state(history: History) -> History:
    return with_record(history, attempt_key(2, 2, "open"), OpenRecord, state={"open": StatePin(version=3)})


def an_epoch_completed_with_another_watermark(history: History) -> History:
    return with_record(history, complete_key(2), CompleteRecord, watermarks=(5, None))


def a_second_attempt_with_another_backlog(history: History) -> History:
    later = with_record(history, attempt_key(2, 2, "open"), OpenRecord, backlog=Backlog(offsets=5))
    return with_record(later, complete_key(2), CompleteRecord, backlog=Backlog(offsets=5))


def an_epoch_completed_with_another_backlog(history: History) -> History:
    return with_record(history, complete_key(2), CompleteRecord, backlog=Backlog(offsets=5))


def a_rerun_that_changed_a_table(history: History) -> History:
    return replace(history, repeats=[Repeat(what="run 1", before={"orders": 3}, after={"orders": 4})])


def too_many_recoveries(history: History) -> History:
    return replace(history, rest=Rest(recoveries=5))


def a_hanging_transaction(history: History) -> History:
    return replace(history, rest=Rest(recoveries=1, hanging=["transaction orders.kafka"]))


def an_epoch_that_never_ends(history: History) -> History:
    return without_record(history, complete_key(3))


def a_staging_place_left_behind(history: History) -> History:
    return replace(history, places={*(history.places or ()), "orders/epochs/1-1-dead"})


def table_files_swept_away(history: History) -> History:
    """A clean-up by pattern over epochs takes what the table consists of."""
    return replace(history, places=set(list(history.places or ())[1:]))


def a_zombie_that_wrote(history: History) -> History:
    return replace(history, zombies=[Repeat(what="a woken commit", before={"orders": 3}, after={"orders": 4})])


def a_decision_after_the_end(history: History) -> History:
    assert history.ledger is not None
    late = attempt_key(2, 3, "decision")
    return replace(
        history, copies=[history.ledger], ledger={**history.ledger, late: encode(history.facts.decisions[2, 2])}
    )


def an_old_epoch_committed_after_a_newer_one(history: History) -> History:
    """Qbeast #274: compared the version for equality only, so that an older epoch was written again."""
    return with_sink(history, "orders", commits=[*shown(history, "orders"), shown(history, "orders")[0]])


def rows_filtered_in_silence(history: History) -> History:
    dropped = rows(history, "orders")[0].origin
    for sink in SINKS:
        history = with_rows(history, sink, lambda all_rows: [row for row in all_rows if row.origin != dropped])
    return replace(history, observations=())


def a_receipt_that_lies(history: History) -> History:
    record = history.facts.complete[1]
    receipts = {**record.receipts, "audit": replace(record.receipts["audit"], rows=3)}
    changed = with_record(history, complete_key(1), CompleteRecord, receipts=receipts)
    return with_record(changed, "epochs/00000000000000000001/audit.receipt.json", Receipt, rows=3)


def a_read_that_was_miscounted(history: History) -> History:
    return with_record(history, complete_key(1), CompleteRecord, metrics={"rows_in": 9})


def a_clean_up_on_an_unknown_outcome(history: History) -> History:
    return replace(
        history,
        trace=[
            Event("vote", Act.LOST, attempt_key(1, 1, "decision")),
            Event("vote", Act.DISCARDED, "a place"),
        ],
    )


def a_clean_up_without_having_read_the_decision(history: History) -> History:
    txn = shown(history, "orders")[0]
    other = Event("vote", Act.LOOKED, attempt_key(1, 1, "decision"))
    return replace(history, trace=[other, Event("abort", Act.DISCARDED, "a place", txn)])


def a_damaged_record(history: History) -> History:
    assert history.ledger is not None
    key = attempt_key(2, 1, "decision")
    damaged = {**history.ledger, key: history.ledger[key][:-9]}
    return replace(history, ledger=damaged, copies=(), observations=())


def a_record_removed_early(history: History) -> History:
    return replace(without_record(history, complete_key(3)), copies=[history.ledger or {}])


def complete_json_pruned(history: History) -> History:
    assert history.ledger is not None
    left = {key: value for key, value in history.ledger.items() if f"{1:020d}/" not in key}
    return replace(history, ledger=left, copies=[history.ledger], observations=())


def complete_without_a_receipt(history: History) -> History:
    return without_record(history, "epochs/00000000000000000002/audit.receipt.json")


def a_decision_for_another_transaction(history: History) -> History:
    record = history.facts.decisions[3, 1]
    return with_record(
        without_record(history, complete_key(3)),
        attempt_key(3, 1, "decision"),
        DecisionRecord,
        txn_id=record.txn_id.with_nonce("f" * 32),
    )


PLANTED: list[tuple[Plant, set[str]]] = [
    (a_row_lost_in_every_sink, {"I1", "I12"}),
    (an_epoch_skipped_by_a_sink_that_was_late, {"I1", "I3", "I12"}),
    (a_record_never_read, {"I1"}),
    (a_batch_committed_twice, {"I2", "I12"}),
    (an_empty_epoch_committed_twice_after_a_lost_acknowledgement, {"I2"}),
    (a_record_in_two_sinks_of_a_group, {"I2", "I12"}),
    (a_multi_sink_tear, {"I1", "I3", "I12"}),
    (a_reader_that_saw_half_of_a_complete_epoch, {"I3"}),
    (a_balance_that_does_not_add_up, {"I3"}),
    (rows_of_no_epoch_at_rest, {"I1", "I3"}),
    (a_gap_between_epochs, {"I1", "I3", "I4", "I7", "I12"}),
    (an_epoch_missing_from_the_ledger, {"I1", "I3", "I4", "I5"}),
    (a_partition_forgotten, {"I1", "I3", "I4", "I7", "I12"}),
    (a_ledger_that_went_back, {"I4", "I14"}),
    (an_aborted_attempt_shown, {"I3", "I5", "I6"}),
    (a_late_abort_that_hit_the_next_transaction, {"I3", "I5", "I6"}),
    (an_aborted_attempt_seen_for_a_moment, {"I5", "I6"}),
    (records_that_their_producer_aborted, {"I5"}),
    (an_epoch_of_another_history, {"I3", "I5"}),
    (a_decision_that_changed, {"I6", "I14"}),
    (a_commit_without_a_decision, {"I1", "I3", "I6", "I9"}),
    (a_commit_before_its_decision, {"I6"}),
    (a_decision_against_a_missing_vote, {"I6"}),
    (an_attempt_after_an_undecided_one, {"I6"}),
    (a_commit_shown_before_it_was_decided, {"I6"}),
    (other_content, {"I7"}),
    (other_content_seen_by_a_reader, {"I7"}),
    (a_record_that_nobody_produced, {"I7", "I12"}),
    (a_second_attempt_with_other_ranges, {"I7"}),
    (a_second_attempt_with_another_seed, {"I7"}),
    (a_second_attempt_with_another_watermark, {"I7"}),
    (a_second_attempt_that_reads_another_state, {"I7"}),
    (an_epoch_completed_with_another_watermark, {"I7"}),
    (an_epoch_completed_with_another_backlog, {"I7"}),
    (a_second_attempt_with_another_backlog, {"I7"}),
    (a_rerun_that_changed_a_table, {"I8"}),
    (too_many_recoveries, {"I9"}),
    (a_hanging_transaction, {"I9"}),
    (an_epoch_that_never_ends, {"I1", "I3", "I9"}),
    (a_staging_place_left_behind, {"I10"}),
    (table_files_swept_away, {"I10"}),
    (a_zombie_that_wrote, {"I11"}),
    (a_decision_after_the_end, {"I11"}),
    (an_old_epoch_committed_after_a_newer_one, {"I2", "I11"}),
    (rows_filtered_in_silence, {"I1", "I12"}),
    (a_receipt_that_lies, {"I12"}),
    (a_read_that_was_miscounted, {"I12"}),
    (a_clean_up_on_an_unknown_outcome, {"I13"}),
    (a_clean_up_without_having_read_the_decision, {"I13"}),
    (a_damaged_record, {"I6", "I14"}),
    (a_record_removed_early, {"I1", "I3", "I4", "I9", "I14"}),
    (complete_json_pruned, {"I1", "I3", "I4", "I5", "I14"}),
    (complete_without_a_receipt, {"I14"}),
    (a_decision_for_another_transaction, {"I1", "I3", "I6", "I9", "I14"}),
]
