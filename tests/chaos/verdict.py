"""What a chaos run comes to: PASS, FAIL or UNKNOWN, and the table that is printed."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from airflow_epochs.testing.checkers import Report, Verdict
from tests.chaos.nemesis import DECK, KILLS

TOLD_FROM_OUTSIDE = {"I13"}
"""Not to be seen from outside: whether a process acted on what it did not know. The model (L0) checks it."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Everything that was measured, and the judgement.

    Attributes:
        fired, missed: Faults per kind.
        recoveries_s: Per fault, seconds until the next epoch was complete.
        wrong: Violations that no checker of the package names.
        windows: What ``bank_windows`` has shown, and what its state table went through.
        unclear: Why there can be no PASS, if nothing is wrong.
    """

    seed: int
    minutes: float
    commit: str
    fired: dict[str, int]
    missed: dict[str, int]
    recoveries_s: Sequence[float]
    epochs: dict[str, int]
    attempts: dict[str, int]
    records: dict[str, int]
    transactions: dict[str, int]
    looks: int
    reports: dict[str, Report]
    windows: dict[str, int]
    wrong: Sequence[str] = ()
    unclear: Sequence[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        if self.wrong or any(report.named(Verdict.FAIL) for report in self.reports.values()):
            return Verdict.FAIL
        return Verdict.UNKNOWN if self.open_questions else Verdict.PASS

    @property
    def open_questions(self) -> list[str]:
        questions = list(self.unclear)
        for pipeline, report in self.reports.items():
            if unknown := report.named(Verdict.UNKNOWN) - TOLD_FROM_OUTSIDE:
                questions.append(f"{pipeline}: {', '.join(sorted(unknown))} could not be checked")
        if never := sorted(set(DECK) - {kind for kind, times in self.fired.items() if times}):
            questions.append(f"never fired: {', '.join(never)}")
        if not self.recoveries_s:
            questions.append("no epoch was complete after a fault")
        return questions

    @property
    def kills(self) -> int:
        return sum(times for kind, times in self.fired.items() if kind in KILLS or kind.startswith("kill"))


def recoveries(faults: Sequence[float], completed: Sequence[float]) -> list[float]:
    """Seconds from each fault to the first epoch that was complete after it; of those that have one."""
    after = [(at, bisect(completed, at)) for at in faults]
    return [completed[index] - at for at, index in after if index < len(completed)]


def as_markdown(outcome: Outcome) -> str:
    """The run as a section of docs/chaos.md, and as it is printed."""
    slowest = max(outcome.recoveries_s, default=float("nan"))
    middle = median(outcome.recoveries_s or [float("nan")])
    rows = [f"| {kind} | {outcome.fired.get(kind, 0)} | {outcome.missed.get(kind, 0)} |" for kind in DECK]
    lines = [
        f"Verdict: **{outcome.verdict.value}** · {outcome.minutes:g} minutes · seed {outcome.seed} · {outcome.commit}",
        "",
        f"- {outcome.records['in']} transfers in (committed), {outcome.records['withdrawn']} withdrawn by aborted "
        f"producer transactions; transactions: {_counts(outcome.transactions)}",
        f"- complete epochs: {_counts(outcome.epochs)}; attempts: {_counts(outcome.attempts)}",
        f"- {sum(outcome.fired.values())} faults fired, {outcome.kills} of them kills; {len(outcome.recoveries_s)} "
        f"recoveries, half of them within {middle:.0f} s, the slowest {slowest:.0f} s (from a fault to the next "
        "complete epoch; further faults strike meanwhile)",
        f"- concurrent readers looked {outcome.looks} times at complete epochs",
        f"- `bank_windows`: {_counts(outcome.windows)}",
        "",
        "| fault | fired | nothing to hit |",
        "|---|---:|---:|",
        *rows,
        "",
    ]
    for pipeline, report in outcome.reports.items():
        checked = ", ".join(f"{result.invariant} {result.verdict.value}" for result in report.results)
        lines.append(f"- `{pipeline}`: {checked}")
        lines += [f"    - {violation}" for violation in report.violations]
    lines += [f"- WRONG: {each}" for each in outcome.wrong]
    lines += [f"- open: {each}" for each in outcome.open_questions]
    return "\n".join(lines) + "\n"


def _counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in numbers.items())
