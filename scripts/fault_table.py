"""Writes docs/faults.md: which fault was seen to fire at which step, and what came of it.

The tests leave what they saw in ``build/cells`` (tests/support/cells.py). ``--check`` writes nothing: it fails if a
fault that applies never fired, or if something came of one that must not; it says so if the page is out of date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CELLS = ROOT / "build" / "cells"
PAGE = ROOT / "docs" / "faults.md"

FAULTS = {
    "F1": "the process of an Airflow task is killed (SIGKILL)",
    "F2": "the Spark driver or Connect server is killed",
    "F3": "a Spark executor is killed; tasks are retried or run twice",
    "F4": "a process is stopped for longer than any other process waits, and then wakes up (zombie)",
    "F5": "the ledger cannot be reached before, during or after a write",
    "F6": "an acknowledgement is lost: the effect happened, but its caller sees an error",
    "F7": "an effect of an abandoned attempt arrives after the recovery",
    "F8": "a disk is full",
    "F9": "a file or record is cut short",
    "F10": "a bit of a file or record is flipped",
    "F11": "a file or record cannot be read",
    "F12": "a clock jumps, or hosts disagree about the time",
    "F13": "the same task or run is running twice (clear, rerun, a second scheduler)",
    "F14": "a poison record, or a schema that changes within an epoch",
    "F15": "the ledger is restored from an older copy, or lost",
    "F16": "a Spark checkpoint is lost or rolled back",
    "F17": "the topic changes: retention, recreation, new partitions, gaps of control records",
    "F18": "the broker aborts an idle transaction between vote and commit",
    "F19": "VACUUM, OPTIMIZE, a log checkpoint or another writer works on the table meanwhile",
    "F20": "an upgrade with an epoch in flight: old code opens it, new code finishes it",
    "F21": "a process runs out of memory and is killed",
    "F22": "Airflow's scheduler is killed, or its metadata database is wiped",
}

NOT_APPLICABLE = {
    "F16": "there is no Spark checkpoint: an epoch's ranges are in the ledger, and staging is a batch job",
    "F21": "the kernel ends a process that is out of memory by SIGKILL: that is F1, F2 and F3",
}
"""Reviewed by hand. A fault leaves this list with the feature that it can strike."""

STEPS = {
    1: "before the attempt is opened",
    2: "opened, not confirmed",
    3: "staging: some sinks or files",
    4: "staged, not confirmed",
    5: "staged and reported, no vote",
    6: "votes collected, no decision",
    7: "the decision is being written, or not confirmed",
    8: "GLOBAL_COMMIT, no sink shows the epoch",
    9: "a sink shows the epoch, no receipt",
    10: "a sink's transaction expired at the broker",
    11: "some sinks show the epoch, others do not",
    12: "all sinks show the epoch, not complete",
    13: "complete",
    14: "GLOBAL_ABORT, clean-up under way",
    15: "a recovery dies at any of these steps",
    16: "the ledger is older than the sinks",
    17: "the Spark checkpoint is older than the ledger",
    18: "offsets are gone, or the topic was created again",
    19: "clocks disagree",
    20: "an epoch of an older version is in flight",
}

OUTCOMES = {
    "A": "the attempt was aborted, and the epoch was opened again with the same ranges",
    "C": "the attempt was committed: the run went on, or a later run rolled GLOBAL_COMMIT forward",
    "=": "nothing changed; there was nothing to abort or to roll forward",
    "X": "an error refused the task; nothing changed",
}

Allowed = Mapping[int, frozenset[str]]


def _allowed(**rows: str) -> Allowed:
    """Per row, the outcomes that may be: ``r1_2="A="`` stands for rows 1 to 2."""
    found = {}
    for name, outcomes in rows.items():
        first, _, last = name.removeprefix("r").partition("_")
        found.update({row: frozenset(outcomes) for row in range(int(first), int(last or first) + 1)})
    return found


_KILLED = _allowed(r1="C=", r2_7="AC=", r8_12="C=", r13="=", r14="A=", r15="AC=")
"""Nobody else is there: nothing is refused, and what was decided is not aborted."""
_LATE = _allowed(r1_7="AX=", r8_12="CX=", r13="X=", r14="AX=", r15="X=")
_DAMAGED = _allowed(r1="CX=", r2_7="ACX=", r8_12="CX=", r13="X=", r14="AX=", r15="ACX=")

EXPECTED: Mapping[str, Allowed] = {
    **dict.fromkeys(["F1", "F2", "F3", "F5", "F6", "F22"], _KILLED),
    **dict.fromkeys(["F4", "F7"], _LATE),
    **dict.fromkeys(["F8", "F9", "F10", "F11"], _DAMAGED),
    "F12": _allowed(r1_7="ACX=", r8_12="CX=", r13="=", r14="A=", r19="="),
    "F13": _DAMAGED,
    "F14": _allowed(r1_6="AX=", r7_12="CX"),
    "F15": _allowed(r7_12="CX", r16="CX="),
    "F17": _allowed(r1_5="AX=", r18="X="),
    "F18": _allowed(r10="C="),
    "F19": _allowed(r1_7="ACX=", r8_12="CX=", r13="="),
    "F20": _allowed(r1_7="ACX=", r8_12="CX=", r13="=", r14="AX=", r20="ACX="),
}
"""What may come of a fault at a row. Never a lost or doubled record: every test looks for those by itself."""

DRAWN = ("tests/chaos/", "tests/faults/test_killed_anywhen.py")
"""Tests that draw their faults from a seed: what they saw is checked, and not listed, since it varies."""

_COUNT = re.compile(r":\d+")


class Cell(NamedTuple):
    """One observation: ``fault`` fired at ``step`` in ``test``, and ``outcome`` came of it."""

    fault: str
    step: int
    outcome: str
    test: str


def read_cells(folder: Path) -> set[Cell]:
    """All observations in the folder, each once."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return {Cell(**json.loads(line)) for line in lines}


def complaints(cells: Iterable[Cell]) -> Iterator[str]:
    """What is wrong with the results, one sentence each."""
    cells = sorted(cells)
    seen = {cell.fault for cell in cells}
    for fault, meaning in FAULTS.items():
        if fault not in seen and fault not in NOT_APPLICABLE:
            yield f"{fault} was never observed to fire: {meaning}."
        if fault in seen and fault in NOT_APPLICABLE:
            yield f"{fault} fired, though it is listed as one that does not apply: take it off that list."
    for cell in cells:
        if cell.fault not in FAULTS or cell.step not in STEPS or cell.outcome not in OUTCOMES:
            yield f"{cell.test} recorded {cell.fault!r}, row {cell.step!r}, {cell.outcome!r}: no such cell."
        elif cell.fault in EXPECTED and cell.outcome not in EXPECTED[cell.fault].get(cell.step, frozenset()):
            may = " or ".join(sorted(EXPECTED[cell.fault].get(cell.step, frozenset()))) or "nothing at all"
            yield f"{cell.fault} at row {cell.step} came to {cell.outcome!r} in {cell.test}; expected {may}."


def page(cells: Iterable[Cell]) -> str:
    """The whole of docs/faults.md."""
    listed = sorted(cell for cell in cells if not cell.test.startswith(DRAWN))
    return "\n".join([*_head(), *_table(listed), *_catalogue(listed), *_tests(listed)]) + "\n"


def _head() -> list[str]:
    return [
        "# Faults and their outcomes",
        "",
        "<!-- Written by scripts/fault_table.py from what the tests saw. Change that, not this. -->",
        "",
        "Each number counts the tests that *observed the fault* at that step, by its outcome.",
        "After a test with outcome A, C or =, every record is in every sink once; [testing](testing.md) says how this",
        "is checked. After an X, nothing is shown that was not shown before.",
        "",
        *(f"- **{code}**: {meaning}" for code, meaning in OUTCOMES.items()),
        "",
        "## Fault, step, outcome",
        "",
    ]


def _table(cells: list[Cell]) -> list[str]:
    faults = [fault for fault in FAULTS if any(cell.fault == fault for cell in cells)]
    lines = [
        f"| step | {' | '.join(f'[{fault}](#{fault.lower()})' for fault in faults)} |",
        f"|---|{'---|' * len(faults)}",
    ]
    for step, meaning in STEPS.items():
        if any(cell.step == step for cell in cells):
            columns = [_summary([c for c in cells if (c.fault, c.step) == (fault, step)]) for fault in faults]
            lines.append(f"| {step} {meaning} | {' | '.join(columns)} |")
    return lines


def _summary(cells: list[Cell]) -> str:
    counted = {code: len({c.test for c in cells if c.outcome == code}) for code in OUTCOMES}
    return " ".join(f"{code}:{count}" for code, count in counted.items() if count)


def _catalogue(cells: list[Cell]) -> list[str]:
    lines = ["", "## The catalogue", "", "| fault | what it is |", "|---|---|"]
    lines += [f"| {fault} | {meaning} |" for fault, meaning in FAULTS.items()]
    drawn = FAULTS.keys() - NOT_APPLICABLE.keys() - {cell.fault for cell in cells}
    if drawn:
        lines += [
            "",
            f"Only [chaos](chaos.md), which draws its faults, has seen {', '.join(sorted(drawn, key=_number))}.",
        ]
    lines += ["", "Not applicable:", ""]
    return [*lines, *(f"- **{fault}**, {FAULTS[fault]}: {why}." for fault, why in NOT_APPLICABLE.items())]


def _number(fault: str) -> int:
    return int(fault[1:])


def _tests(cells: list[Cell]) -> list[str]:
    lines = ["", "## The tests"]
    for fault in dict.fromkeys(cell.fault for cell in sorted(cells, key=lambda cell: _number(cell.fault))):
        lines += ["", f"### {fault}", ""]
        mine = [cell for cell in cells if cell.fault == fault]
        for step in sorted({cell.step for cell in mine}):
            tests = sorted({cell.test.partition("[")[0] for cell in mine if cell.step == step})
            lines.append(f"- {step}, {STEPS[step]}: {', '.join(f'`{test}`' for test in tests)}")
    return lines


def stale(written: str, wanted: str) -> bool:
    """Whether two pages differ in more than counts."""
    return _COUNT.sub(":n", written) != _COUNT.sub(":n", wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the results are wrong")
    options = parser.parse_args()
    cells = read_cells(CELLS)
    if not cells:
        print(f"{CELLS} has no results: run the tests first (make test).", file=sys.stderr)
        return 1
    found = list(complaints(cells))
    if not options.check:
        PAGE.write_text(page(cells))
    elif not PAGE.exists() or stale(PAGE.read_text(), page(cells)):
        # Said and no more: what comes of a race differs from run to run, and may.
        print(f"{PAGE.relative_to(ROOT)} is out of date: run scripts/fault_table.py after make test.", file=sys.stderr)
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
