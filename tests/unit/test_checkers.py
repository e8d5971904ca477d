"""Each checker passes good histories, catches its planted violation, and says UNKNOWN when it cannot know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_epochs.ledger.codec import encode
from airflow_epochs.ledger.keys import attempt_key, complete_key, key_of
from airflow_epochs.model import (
    CompleteRecord,
    DecisionKind,
    DecisionRecord,
    Marker,
    OffsetRange,
    OpenRecord,
    StatePin,
    TransactionId,
)
from airflow_epochs.testing import (
    History,
    Origin,
    SinkState,
    Verdict,
    check,
)
from airflow_epochs.testing._row_checks import _changed_input
from airflow_epochs.testing.ledger_facts import LedgerFacts
from tests.support.good_history import (
    EPOCHS,
    EVERY,
    SINKS,
    good,
    rows,
    shown,
    with_record,
    with_rows,
    with_sink,
    without_record,
)
from tests.support.records import rebuilt_to
from tests.support.spoiled import PLANTED, Plant, a_batch_committed_twice


def test_a_good_history_passes_every_check() -> None:
    report = check(good())
    assert report.verdict is Verdict.PASS, str(report)
    assert report.named(Verdict.PASS) == EVERY
    report.require()


@pytest.mark.parametrize(("plant", "caught"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_violation_is_caught_by_these_checkers_and_no_others(plant: Plant, caught: set[str]) -> None:
    report = check(plant(good()))
    assert report.named(Verdict.FAIL) == caught, str(report)
    assert report.verdict is Verdict.FAIL
    for violation in report.violations:
        assert violation.sentence.endswith(".") and violation.witness is not None
    with pytest.raises(AssertionError, match=r"verdict: FAIL"):
        report.require()


def test_every_invariant_has_a_planted_violation() -> None:
    assert set().union(*(caught for _, caught in PLANTED)) == EVERY


LACKING: list[tuple[dict[str, Any], set[str]]] = [
    ({"ledger": None, "copies": (), "observations": ()}, EVERY - {"I2", "I8", "I10", "I13"}),
    ({"sinks": None}, {"I1", "I2", "I3", "I5", "I6", "I7", "I11", "I12"}),
    ({"produced": None}, {"I1"}),  # of I12, the ledger knows how many records each epoch read
    ({"repeats": ()}, {"I8"}),
    ({"rest": None}, {"I9", "I10"}),
    ({"places": None}, {"I10"}),
    ({"referenced": None}, {"I10"}),
    ({"trace": None}, {"I13"}),
    ({"copies": (), "observations": (), "zombies": ()}, {"I11"}),
]


@pytest.mark.parametrize(("missing", "unknown"), LACKING, ids=lambda value: " ".join(sorted(value)))
def test_a_check_that_lacks_what_it_needs_says_unknown_which_is_no_pass(
    missing: dict[str, Any], unknown: set[str]
) -> None:
    report = check(replace(good(), **missing))
    assert report.named(Verdict.UNKNOWN) == unknown, str(report)
    assert not report.named(Verdict.FAIL)
    assert report.verdict is Verdict.UNKNOWN
    with pytest.raises(AssertionError, match=r"the history has no"):
        report.require()
    report.require(unknown=unknown)


def test_without_a_count_of_the_records_read_nobody_knows_whether_all_are_accounted_for() -> None:
    report = check(replace(with_record(good(), complete_key(1), CompleteRecord, metrics={}), produced=None))
    assert "I12" in report.named(Verdict.UNKNOWN)


def test_an_empty_history_is_not_a_pass_for_any_invariant() -> None:
    assert check(History(pipeline="orders")).named(Verdict.UNKNOWN) == EVERY


def test_one_sink_without_commits_or_rows_makes_what_needs_them_unknown() -> None:
    assert check(with_sink(good(), "audit", commits=None)).named(Verdict.UNKNOWN) == {"I5", "I6", "I11"}
    assert {"I1", "I2", "I3"} <= check(with_sink(good(), "audit", rows=None)).named(Verdict.UNKNOWN)


def test_rows_without_payloads_leave_their_content_unknown() -> None:
    bare = good()
    for sink in SINKS:
        bare = with_rows(bare, sink, lambda all_rows: [row._replace(payload="") for row in all_rows])
    assert check(bare).named(Verdict.UNKNOWN) == {"I7"}


def test_a_payload_that_the_producer_does_not_know_is_compared_between_the_sinks() -> None:
    history = replace(good(), produced=dict.fromkeys(good().produced or {}, ""))
    assert check(history, only={"I7"}).verdict is Verdict.PASS
    other = with_rows(history, "audit", lambda all_rows: [all_rows[0]._replace(payload="other"), *all_rows[1:]])
    assert check(other, only={"I7"}).verdict is Verdict.FAIL


def test_checks_can_be_asked_for_by_name_and_unheard_ones_are_refused() -> None:
    assert [result.invariant for result in check(good(), only={"I2", "I4"}).results] == ["I2", "I4"]
    with pytest.raises(ValueError, match="I99"):
        check(good(), only={"I99"})


def test_a_failure_is_not_excused_by_naming_it_as_unknown() -> None:
    with pytest.raises(AssertionError):
        check(a_batch_committed_twice(good())).require(unknown=EVERY)


def test_markers_are_as_good_as_transaction_ids() -> None:
    history = good()
    for sink in SINKS:
        markers = [Marker.of(TransactionId.parse(txn)) for txn in shown(history, sink)]
        history = with_sink(history, sink, commits=[*markers[:-1], Marker(EPOCHS, None)])
    check(history).require()


def test_sinks_of_a_group_share_the_records_and_filtered_ones_are_in_none() -> None:
    history = replace(good(), observations=(), groups=[set(SINKS)])
    dropped = rows(history, "orders")[0].origin
    split = with_rows(history, "orders", lambda all_rows: [row for row in all_rows[1:] if row.offset % 2])
    split = with_rows(split, "audit", lambda all_rows: [row for row in all_rows[1:] if not row.offset % 2])
    only = {"I1", "I2", "I3", "I7"}
    check(replace(split, filtered={dropped}), only=only).require()
    assert check(split, only=only).named(Verdict.FAIL) == {"I1"}


def test_a_sink_that_rewrites_its_rows_is_judged_by_its_commits_alone() -> None:
    history = with_sink(replace(good(), observations=(), rewritten={"audit"}), "audit", rows=None)
    check(history).require()
    torn = with_sink(history, "audit", commits=shown(history, "audit")[:2])
    assert check(torn).named(Verdict.FAIL) == {"I3"}


def test_a_state_that_has_yet_to_begin_may_begin_otherwise_in_a_later_attempt() -> None:
    history = good()
    for attempt in (1, 2):
        pins = {"open": StatePin(version=None, initial=attempt, fold=True)}
        history = with_record(history, attempt_key(2, attempt, "open"), OpenRecord, state=pins)
    check(history, only={"I7"}).require()


@pytest.mark.parametrize("rewritten", [set(), {"audit"}], ids=["keeps its rows", "rewrites them"])
def test_what_needs_a_sink_that_nobody_looked_at_is_unknown(rewritten: set[str]) -> None:
    looked = {"orders": SinkState(rows=rows(good(), "orders"), commits=shown(good(), "orders"))}
    report = check(replace(good(), observations=(), sinks=looked, rewritten=rewritten))
    assert report.named(Verdict.UNKNOWN) == {"I1", "I2", "I3", "I5", "I6", "I7", "I11", "I12"}


def test_rows_that_the_epoch_of_a_rebuilding_lacks_are_missed_without_a_receipt_too() -> None:
    history = rebuilt_without_receipts(good())
    only = {"I1", "I3", "I12"}
    check(history, only=only).require()
    for sink in SINKS:
        history = with_rows(history, sink, lambda all_rows: all_rows[1:])
    assert check(history, only=only).named(Verdict.FAIL) == {"I1", "I12"}
    history = with_rows(history, "audit", lambda all_rows: [])
    assert check(history, only=only).named(Verdict.FAIL) == only


def rebuilt_without_receipts(history: History) -> History:
    """The ledger was lost, and rebuilt from sinks of which none could tell more than its epoch."""
    newest = replace(history.facts.complete[EPOCHS], receipts={})
    ledger = {key_of(record): encode(record) for record in (newest, rebuilt_to(newest))}
    return replace(history, ledger=ledger, copies=(), observations=())


def test_records_before_the_start_are_not_missed() -> None:
    first = good().facts.complete[1].ranges["orders"]
    extra = {Origin("orders", 5, 0): "x"}
    history = replace(good(), produced={**(good().produced or {}), **extra}, starts={("orders", 5): 1})
    assert first[0] == OffsetRange(0, 0, 5)
    check(history, only={"I1"}).require()


def test_a_decision_kind_other_than_commit_is_never_taken_for_one() -> None:
    history = with_record(good(), attempt_key(3, 1, "decision"), DecisionRecord, decision=DecisionKind.GLOBAL_ABORT)
    history = without_record(history, complete_key(3))
    assert {"I5", "I6"} <= check(history).named(Verdict.FAIL)


def test_a_report_shows_sentence_and_witness_of_a_few_violations() -> None:
    text = str(check(a_batch_committed_twice(good())))
    assert "I2   no_duplicate           FAIL" in text
    assert "Sink orders shows 4 records more than once. [('orders', 0, 5)" in text
    assert text.endswith("verdict: FAIL")
    assert SinkState().origins == frozenset()


@pytest.mark.parametrize(
    ("epoch", "planned", "opened", "verdict"),
    [
        (1, (0, 0, 5), (0, 3, 5), Verdict.PASS),
        (1, (0, 0, 5), (0, 7, 7), Verdict.PASS),
        (1, (0, 3, 5), (0, 0, 5), Verdict.FAIL),
        (1, (0, 0, 5), (0, 3, 6), Verdict.FAIL),
        (2, (0, 5, 7), (0, 6, 7), Verdict.FAIL),
    ],
)
def test_only_a_partition_that_was_never_read_may_begin_later_in_a_later_attempt(
    epoch: int, planned: tuple[int, int, int], opened: tuple[int, int, int], verdict: Verdict
) -> None:
    history = good()
    opens = history.facts.opens
    newest = max(attempt for number, attempt in opens if number == epoch)
    changed = {
        key: replace(record, ranges={"orders": (OffsetRange(*(planned if key[1] < newest + 1 else opened)),)})
        for key, record in opens.items()
        if key[0] == epoch
    }
    record = replace(opens[epoch, newest], ranges={"orders": (OffsetRange(*opened),)})
    changed[epoch, newest + 1] = record
    complete = {number: done for number, done in history.facts.complete.items() if number < epoch}
    facts = replace(history.facts, opens={**opens, **changed}, complete=complete)
    assert bool(list(_changed_input(_Facts(facts)))) is (verdict is Verdict.FAIL)  # type: ignore[arg-type]  # see _Facts


class _Facts:
    """As much of a history as that checker looks at."""

    def __init__(self, facts: LedgerFacts) -> None:
        self.facts = facts


@pytest.mark.parametrize("now", ["one", "another"])
def test_offsets_of_a_table_that_was_moved_are_compared_under_its_new_name(now: str) -> None:
    history, last = good(), good().facts.newest_complete
    for epoch, record in history.facts.complete.items():
        (of,) = record.ranges.values()
        known = {"table_id": now if epoch == last else "one"}
        ranges = {"/elsewhere" if epoch == last else "/table": of}
        history = with_record(history, complete_key(epoch), CompleteRecord, ranges=ranges, source_state=known)
    told = check(replace(history, starts={}), only={"I4"})
    assert told.verdict is (Verdict.PASS if now == "one" else Verdict.FAIL)
