"""Checkers for what "exactly once" means, I1 to I14, over the history of any run.

``check(history)`` runs all of them. Each answers PASS; or FAIL with its violations, each a sentence and a minimal
witness; or UNKNOWN if the history lacks what the check needs. UNKNOWN is not PASS: ``Report.verdict`` is PASS only if
every invariant passes. Otherwise ``Report.require`` raises.

===  ===================== =======================================================================================
I1   no_loss               every acknowledged record up to the newest complete epoch is in every sink (or group)
I2   no_duplicate          a record is in a sink, or a group of sinks, once; an epoch is committed once
I3   atomic_across_sinks   an epoch is in all its sinks or in none, also for a reader bounded by complete epochs
I4   contiguous_offsets    an epoch starts where the one before ended; the newest complete epoch never falls
I5   aborted_never_visible no sink ever shows an aborted attempt, or a record that its producer aborted
I6   one_decision          one decision per attempt, never changed; no sink shows anything without GLOBAL_COMMIT
I7   content_of_the_range  every attempt has the same input; rows are the records of their epoch's ranges
I8   repeat_is_a_no_op     doing again what was done changes nothing
I9   liveness              once faults stop, few runs bring everything to rest, and nothing stays open
I10  no_litter             at rest no staging place is left, and none that is part of a table was deleted
I11  fencing               a late process changes neither the ledger nor any sink
I12  accounting            records read = rows written + filtered, per epoch and group; receipts tell the truth
I13  unknown_stays_unknown nothing is deleted or decided on a result that was not known
I14  ledger_replays        the ledger's records replay to its state; none was ever changed or removed early
===  ===================== =======================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from airflow_epochs.testing import _ledger_checks as of_ledger
from airflow_epochs.testing import _row_checks as of_rows
from airflow_epochs.testing._violations import Violation
from airflow_epochs.testing.history import History

__all__ = ["INVARIANTS", "Report", "Result", "Verdict", "Violation", "check"]

VIOLATIONS_SHOWN = 5
"""How many violations of one invariant a report prints."""


class Verdict(str, Enum):
    """The outcome of one check, or of a whole report."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One invariant's verdict. ``lacking``: what the history would need, if the verdict is UNKNOWN."""

    invariant: str
    name: str
    verdict: Verdict
    violations: tuple[Violation, ...] = ()
    lacking: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.invariant:<4} {self.name:<22} {self.verdict.value}"]
        if self.lacking:
            lines[0] += f"  (the history has no {', '.join(self.lacking)})"
        lines += [f"       {violation}" for violation in self.violations[:VIOLATIONS_SHOWN]]
        if len(self.violations) > VIOLATIONS_SHOWN:
            lines.append(f"       … and {len(self.violations) - VIOLATIONS_SHOWN} more")
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """The results of all requested checks."""

    results: tuple[Result, ...]

    @property
    def verdict(self) -> Verdict:
        """FAIL if any check failed; else UNKNOWN if any check lacked data; else PASS."""
        verdicts = {result.verdict for result in self.results}
        return next(v for v in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS) if v in verdicts or v is Verdict.PASS)

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The violations of all checks."""
        return tuple(violation for result in self.results for violation in result.violations)

    def named(self, verdict: Verdict) -> set[str]:
        """The invariants ("I1" …) with this verdict."""
        return {result.invariant for result in self.results if result.verdict is verdict}

    def require(self, *, unknown: Collection[str] = ()) -> None:
        """Raise AssertionError unless every invariant is PASS. Invariants in ``unknown`` may be UNKNOWN, not FAIL."""
        if self.named(Verdict.FAIL) or self.named(Verdict.UNKNOWN) - set(unknown):
            raise AssertionError(f"\n{self}")

    def __str__(self) -> str:
        return "\n".join([*map(str, self.results), f"verdict: {self.verdict.value}"])


Needs = Callable[[History], object]

_NEEDS: dict[str, Needs] = {
    "ledger": lambda h: h.ledger is not None,
    "sinks' rows": lambda h: h.rows is not None,
    "sinks' commits": lambda h: h.commits is not None,
    "produced": lambda h: h.produced is not None,
    "payloads": lambda h: of_rows.has_payloads(h),
    "produced, or rows_in in the ledger": lambda h: of_rows.has_counts(h),
    "repeats": lambda h: h.repeats,
    "copies or zombies": lambda h: h.zombies or len(h.timeline) > 1,
    "rest": lambda h: h.rest is not None,
    "places": lambda h: h.places is not None,
    "referenced": lambda h: h.referenced is not None,
    "trace": lambda h: h.trace is not None,
}


@dataclass(frozen=True)
class Invariant:
    """A checker. Call it with a history."""

    key: str
    name: str
    needs: tuple[str, ...]
    find: Callable[[History], Iterator[Violation]]

    def __call__(self, history: History) -> Result:
        lacking = tuple(need for need in self.needs if not _NEEDS[need](history))
        if lacking:
            return Result(invariant=self.key, name=self.name, verdict=Verdict.UNKNOWN, lacking=lacking)
        found = tuple(self.find(history))
        verdict = Verdict.FAIL if found else Verdict.PASS
        return Result(invariant=self.key, name=self.name, verdict=verdict, violations=found)


def _invariant(key: str, name: str, find: Callable[[History], Iterator[Violation]], *needs: str) -> Invariant:
    return Invariant(key, name, needs, find)


no_loss = _invariant("I1", "no_loss", of_rows.lost, "ledger", "sinks' rows", "produced")
no_duplicate = _invariant("I2", "no_duplicate", of_rows.duplicated, "sinks' rows")
atomic_across_sinks = _invariant("I3", "atomic_across_sinks", of_rows.torn, "ledger", "sinks' rows")
contiguous_offsets = _invariant("I4", "contiguous_offsets", of_ledger.gaps, "ledger")
aborted_never_visible = _invariant(
    "I5", "aborted_never_visible", of_ledger.aborted_visible, "ledger", "sinks' rows", "sinks' commits"
)
one_decision = _invariant("I6", "one_decision", of_ledger.undecided_or_redecided, "ledger", "sinks' commits")
content_of_the_range = _invariant(
    "I7", "content_of_the_range", of_rows.foreign_content, "ledger", "sinks' rows", "payloads"
)
repeat_is_a_no_op = _invariant("I8", "repeat_is_a_no_op", of_ledger.changed_by_repeating, "repeats")
liveness = _invariant("I9", "liveness", of_ledger.not_at_rest, "ledger", "rest")
no_litter = _invariant("I10", "no_litter", of_ledger.litter, "rest", "places", "referenced")
fencing = _invariant("I11", "fencing", of_ledger.changed_by_the_late, "ledger", "sinks' commits", "copies or zombies")
accounting = _invariant(
    "I12", "accounting", of_rows.miscounted, "ledger", "sinks' rows", "produced, or rows_in in the ledger"
)
unknown_stays_unknown = _invariant("I13", "unknown_stays_unknown", of_ledger.guessed, "trace")
ledger_replays = _invariant("I14", "ledger_replays", of_ledger.not_replayable, "ledger")

INVARIANTS: tuple[Invariant, ...] = (
    no_loss,
    no_duplicate,
    atomic_across_sinks,
    contiguous_offsets,
    aborted_never_visible,
    one_decision,
    content_of_the_range,
    repeat_is_a_no_op,
    liveness,
    no_litter,
    fencing,
    accounting,
    unknown_stays_unknown,
    ledger_replays,
)


def check(history: History, only: Collection[str] | None = None) -> Report:
    """Run all checks, or only those named ("I1" …). Raises ValueError for a name that is not an invariant's."""
    if unheard := set(only or ()) - {invariant.key for invariant in INVARIANTS}:
        raise ValueError(f"unknown invariants: {sorted(unheard)}")
    return Report(tuple(each(history) for each in INVARIANTS if only is None or each.key in only))
