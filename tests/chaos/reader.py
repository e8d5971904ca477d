"""Readers beside the running system: whatever epoch is complete, all books up to it must tell the same."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import CompleteRecord
from airflow_epochs.testing.history import Observation, SinkState, copy_of_ledger
from tests.chaos.books import Book, Sums
from tests.chaos.system import System

LOOK_S = 1.0
LOOK_CLOSELY_EVERY = 15


@dataclass
class Reader:
    """Looks at one pipeline, in a thread.

    Attributes:
        observations: What it saw: the balance, and now and then the sinks' epochs and the ledger.
        wrong: Books of a complete epoch that do not have its rows.
        failures: Looks that did not come about.
        completed: When an epoch was first seen complete (``time.monotonic``).
    """

    system: System
    pipeline: str
    observations: list[Observation] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    completed: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rows = {0: 0}
        self._stop = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"reader of {self.pipeline}", daemon=True)

    @property
    def ledger(self) -> Ledger:
        """Read anew at each look: a ledger that lives on would remember what it has read."""
        return self.system.ledger_of(self.pipeline)

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """The reader does not outlive the block: a thread in the middle of a look holds up the end of the process."""
        try:
            yield
        finally:
            self._end()

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Stop, after one last look."""
        self._end()
        self.look(closely=True)

    def _end(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(60)

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """While what a sink shows is wrong on purpose, nobody looks."""
        with self._looking:
            yield

    def look(self, *, closely: bool) -> None:
        with self._looking:
            self._look(closely=closely)

    def _look(self, *, closely: bool) -> None:
        newest = self.ledger.newest_complete()
        record = self.ledger.complete_record(newest)
        if record is None:
            return
        if not self.completed or self.completed[-1][1] < newest:
            self.completed.append((time.monotonic(), newest))
        balance = self._balance(record)
        if closely:
            told = {sink: book.commits() for sink, book in self._books.items()}
            sinks = {sink: SinkState(commits=commits) for sink, commits in told.items() if commits is not None}
            ledger = copy_of_ledger(self.ledger._store, self.pipeline)
            self.observations.append(Observation(complete=newest, sinks=sinks, ledger=ledger, balance=balance))
        else:
            self.observations.append(Observation(complete=newest, sinks={}, balance=balance))

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(LOOK_S):
            try:
                self.look(closely=number % LOOK_CLOSELY_EVERY == 0)
            except Exception as error:  # the reader must not end; that it failed goes into the verdict
                self.failures.append(repr(error))
            number += 1

    def _balance(self, record: CompleteRecord) -> int | None:
        """The sum of all books up to the epoch; None: they need not add up to nothing."""
        total, expected = 0, self._rows_up_to(record.txn_id.epoch)
        for sink, book in self._books.items():
            sums = book.sums(record.txn_id.epoch)
            if not sums.rows == sums.records == expected:
                self.wrong.append(
                    f"epoch {record.txn_id.epoch} of {self.pipeline}: {sink} has {sums.rows} rows of {sums.records} "
                    f"records, the ledger {expected}"
                )
            total += sums.amount
        return total

    @property
    def _books(self) -> dict[str, Book]:
        return self.system.books[self.pipeline]

    def _rows_up_to(self, epoch: int) -> int:
        """Records of all epochs up to this one, as the receipts say."""
        for number in range(max(self._rows) + 1, epoch + 1):
            record = self.ledger.complete_record(number)
            assert record is not None
            self._rows[number] = self._rows[number - 1] + record.receipts["debits"].rows
        return self._rows[epoch]


@dataclass
class ReaderOfWindows(Reader):
    """Notes what the books have together, which the judge compares with the input.

    Attributes:
        totals: Epoch -> the sums of closed windows, late transfers and open windows up to it, when it was first seen.
    """

    totals: dict[int, Sums] = field(default_factory=dict)

    def _balance(self, record: CompleteRecord) -> None:
        epoch = record.txn_id.epoch
        if epoch not in self.totals:
            each = [book.sums(epoch) for book in self._books.values()]
            self.totals[epoch] = Sums(*map(sum, zip(*each, strict=True)))


def reader_of(system: System, pipeline: str) -> Reader:
    return ReaderOfWindows(system, pipeline) if pipeline == "bank_windows" else Reader(system, pipeline)
