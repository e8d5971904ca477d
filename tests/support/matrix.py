"""The rows of the matrix of faults and steps, for a run of two sinks in memory, and what came of a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from airflow_epochs.errors import EpochError
from airflow_epochs.testing import Crash, Repeat, Rest, check
from airflow_epochs.testing.history import copy_of_ledger
from airflow_epochs.testing.ledger_facts import LedgerFacts
from tests.support.cells import Outcome
from tests.support.recorded import PIPELINE, Recorder
from tests.support.scenario import Scenario, run

SINKS = ("orders", "audit")

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13)
"""Of a run that commits. Row 10 belongs to a broker's transactions, row 14 to a run that aborts."""

_BEGINNINGS: list[tuple[int, Callable[[str], bool]]] = [
    (2, lambda moment: moment.startswith("after put") and ".open." in moment),
    (3, lambda moment: moment == "stage.start"),
    (4, lambda moment: moment.startswith("after stage audit")),
    (5, lambda moment: moment == "stage.done"),
    (6, lambda moment: moment == "decision.put"),
    (7, lambda moment: moment.startswith("after put") and ".decision." in moment),
    (8, lambda moment: moment == "commit.orders"),
    (9, lambda moment: moment.startswith("after publish orders")),
    (11, lambda moment: moment.startswith("after put") and "orders.receipt" in moment),
    (12, lambda moment: moment.startswith("after put") and "audit.receipt" in moment),
    (13, lambda moment: moment.startswith("after put") and "complete.json" in moment),
]


@dataclass
class RowTracker:
    """Follows a run through the rows and acts once: at the moment ``at``, counted from 0 within ``row`` (None: any)."""

    row: int | None
    at: int = 0
    then: Callable[[], None] | None = None
    now: int = 1
    acted: bool = False
    seen: int = 0

    def __call__(self, moment: str) -> None:
        self.now = next((row for row, begins in reversed(_BEGINNINGS) if row > self.now and begins(moment)), self.now)
        if self.row not in (None, self.now) or self.acted:
            return
        self.seen += 1
        if self.seen - 1 == self.at:
            self.acted = True
            if self.then is None:
                raise Crash(moment)
            self.then()


@dataclass
class Watched:
    """A scenario of which every effect is recorded, for the checkers."""

    scenario: Scenario = field(default_factory=lambda: Scenario(SINKS))
    zombies: list[Repeat] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.scenario.world)
        self.scenario.world.observe(self.recorder)

    @property
    def facts(self) -> LedgerFacts:
        return LedgerFacts.of(copy_of_ledger(self.scenario.world.store, PIPELINE))

    @contextmanager
    def observed(self, observer: Callable[[str], None]) -> Iterator[None]:
        """``observer`` sees what the recorder sees, after it."""

        def both(moment: str) -> None:
            self.recorder(moment)
            observer(moment)

        self.scenario.world.observe(both)
        try:
            yield
        finally:
            self.scenario.world.observe(self.recorder)

    def observed_run(self, number: int, tracker: RowTracker) -> EpochError | None:
        with self.observed(tracker):
            return self.scenario.airflow_run(run(number), self.scenario.coordinator(observer=tracker))

    def nested(self, act: Callable[[], object]) -> None:
        """``act`` in the midst of somebody else's step, out of sight of that one's tracker."""
        world = self.scenario.world
        observer = world.observer
        world.observe(self.recorder)
        try:
            act()
        finally:
            world.observe(observer)

    def fingerprint(self) -> dict[str, object]:
        """What is decided and shown. Tries may be noted late, and places filled that nobody looks at."""
        records = copy_of_ledger(self.scenario.world.store, PIPELINE)
        decided = {key: value for key, value in records.items() if key.startswith("epochs/") and ".try." not in key}
        return {**decided, **self.scenario.world.tables}

    def settle_and_check(self) -> None:
        """New runs until there is nothing to do, one epoch more, a rerun of them all; then every checker."""
        for number in (101, 102):
            self.scenario.airflow_run(run(number))
        self.scenario.produce(2)
        assert self.scenario.airflow_run(run(103)) is None
        before = self.fingerprint()
        for number in (1, 2, 103):
            self.scenario.airflow_run(run(number))
        repeat = Repeat(what="every run", before=before, after=self.fingerprint())
        history = self.recorder.history(rest=Rest(recoveries=3), repeats=[repeat], zombies=self.zombies)
        check(history).require(unknown={"I13"})


def came_of(before: LedgerFacts, after: LedgerFacts) -> Outcome:
    """What became of epoch 1, which stood at ``before`` when the fault fired."""
    if 1 in before.complete or (1, 1) not in before.opens:
        return "="
    return "C" if after.complete[1].txn_id.attempt == 1 else "A"
