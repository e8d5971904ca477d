"""What breaks the system: one fault after the other, from a shuffled deck, the same for the same seed.

A fault *fires* if it hit something: a kill that found no process to kill is counted as missed and tried again later.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from confluent_kafka import KafkaException
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from grpc import RpcError
from pyspark.errors import PySparkException

from airflow_epochs.protocol import State
from tests.chaos.moments import Moment
from tests.chaos.reader import Reader
from tests.chaos.rest import nothing_runs, submit
from tests.chaos.surgery import SourceLogs, fill_up, restore, taken, truncated, vacuum
from tests.chaos.system import PIPELINES, STATE, TABLES, TRIGGERED, System, stopped, wait_for
from tests.chaos.transfers import Transfers, ends

REST_S = (0.5, 5.0)
STOPPED_S = (4.0, 12.0)
DOWN_S = (0.0, 2.0)
BETWEEN_VACUUMS_S = (0.0, 0.5)
"""Rests between faults, and how long a fault lasts: drawn from the seed, so there is no condition to wait for."""
DEATH_S = 10
SETTLED_S = 90
"""Within this, an attempt that was open is decided, a run has ended, a table is forward again."""
READ_ON_S = 180
"""Within this, each pipeline has ended the epoch that it is at and completed another one."""
KILLS = {
    "kill task": 6,
    "kill spark server": 2,
    "kill executor": 3,
    "kill submit driver": 1,
    "kill broker": 1,
    "kill database": 1,
}
OTHERS = {
    "stop task": 3,
    "stop spark server": 1,
    "stop broker": 1,
    "kill scheduler": 1,
    "kill api server": 1,
    "wipe metadata": 1,
    "clear tasks": 4,
    "same run by a second scheduler": 2,
    "VACUUM at 0 hours": 3,
    "truncate the source's log": 1,
    "RESTORE a table": 1,
}
GONE = (
    DeltaError,
    psutil.Error,
    ProcessLookupError,
    httpx.HTTPError,
    KafkaException,
    PySparkException,
    RpcError,
    TimeoutError,
)
"""What was to be hit was gone or down by then."""
DECK = {**KILLS, **OTHERS}


def _with_a_copy_first(kinds: list[str]) -> list[str]:
    """The same kinds; a log is truncated to the copy that a killed broker leaves, so a broker is killed before.

    Otherwise minutes pass until every pipeline has read beyond a copy that was made just then, and nothing else is
    broken meanwhile.
    """
    truncate, kill = kinds.index("truncate the source's log"), kinds.index("kill broker")
    if kill < truncate:
        return kinds
    swapped = {truncate: kinds[kill], kill: kinds[truncate]}
    return [swapped.get(at, kind) for at, kind in enumerate(kinds)]


@dataclass
class Nemesis:
    """Call ``fire`` from the thread that started the system's processes: Linux ends them together with it.

    Attributes:
        fired, missed: How often, per kind.
        times: When a fault fired (``time.monotonic``).
        moments: Where the pipeline was then.
        wrong: What a pipeline did that it must not do then.
    """

    system: System
    transfers: Transfers
    readers: dict[str, Reader]
    seed: int
    fired: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self._kinds: dict[str, Callable[[], bool]] = {
            "kill task": lambda: self._kill_one(self.system.task_processes()),
            "stop task": lambda: self._stop_one(self.system.task_processes()),
            "kill spark server": lambda: self._kill_part("connect"),
            "stop spark server": lambda: self._stop_part("connect"),
            "kill executor": lambda: self._kill_one(self.system.executors()),
            "kill submit driver": lambda: self._kill_one(self.system.submit_drivers()),
            "kill broker": self._kill_broker,
            "kill database": self._kill_database,
            "stop broker": lambda: self._stop_part("broker"),
            "kill scheduler": lambda: self._kill_part("scheduler"),
            "kill api server": lambda: self._kill_part("api-server"),
            "wipe metadata": self._wipe_metadata,
            "clear tasks": self._clear,
            "same run by a second scheduler": self._same_run,
            "VACUUM at 0 hours": self._vacuum,
            "truncate the source's log": self._truncate,
            "RESTORE a table": self._restore,
        }
        self._logs = SourceLogs(self.system, self.system.folder / "source-logs")
        self._copied: dict[int, int] = {}
        self._deck = self._shuffled()

    @property
    def complete(self) -> bool:
        """Whether every kind has fired."""
        return set(self.fired) == set(DECK)

    def fire(self) -> str:
        """One fault, what it takes to mend it, and a rest; says what it was."""
        kind = next(self._deck)
        at = time.monotonic()
        why, moment = "nothing to hit", Moment.of(self.system, kind)
        try:
            hit = self._kinds[kind]()
        except GONE as error:
            hit, why = False, repr(error)
        (self.fired if hit else self.missed)[kind] += 1
        if hit:
            self.times.append(at)
            self.moments += [moment] if moment else []
        self.system.mend()
        with contextlib.suppress(httpx.HTTPError):
            submit(self.system)
        time.sleep(self.dice.uniform(*REST_S) if hit else 0.2)
        return f"{kind} ({time.monotonic() - at:.1f} s)" if hit else f"{kind}: {why}"

    def _shuffled(self) -> Iterator[str]:
        """Every kind once, then the deck again and again. A kind that missed comes again until it has hit once."""
        kinds = list(DECK)
        while True:
            self.dice.shuffle(kinds)
            for kind in _with_a_copy_first(kinds):
                yield kind
                yield from [late for late in DECK if self.missed[late] and not self.fired[late]]
            kinds = [kind for kind, count in DECK.items() for _ in range(count)]

    # -- kinds ------------------------------------------------------------------------------------------------------

    def _kill_one(self, processes: list[psutil.Process]) -> bool:
        if processes:
            self.dice.choice(processes).kill()
        return bool(processes)

    def _stop_one(self, processes: list[psutil.Process]) -> bool:
        if processes:
            with stopped(self.dice.choice(processes)):
                time.sleep(self.dice.uniform(*STOPPED_S))
        return bool(processes)

    def _kill_part(self, name: str) -> bool:
        part = self.system.part(name)
        self.system.kill(part)
        if not wait_for(lambda: not part.running, DEATH_S):  # what seems to run is not started again
            raise TimeoutError(f"{name} does not die")
        time.sleep(self.dice.uniform(*DOWN_S))
        return True

    def _stop_part(self, name: str) -> bool:
        return self._stop_one([psutil.Process(self.system.part(name).pid)])

    def _wipe_metadata(self) -> bool:
        self.system.wipe_metadata()
        return True

    def _clear(self) -> bool:
        """Some tasks of one of the newest runs, as a user would who does not know what he does."""
        dag = self.dice.choice(PIPELINES)
        runs = self.system.api.runs(dag)[:8]
        if not runs:
            return False
        run_id = self.dice.choice(runs)["dag_run_id"]
        tasks = sorted(self.system.api.tasks(dag, run_id))
        self.system.api.clear(dag, run_id, self.dice.sample(tasks, self.dice.randint(1, len(tasks))))
        return True

    def _same_run(self) -> bool:
        """Both Airflows get a run of one name, and so take it for the same run of the same DAG."""
        dag, run_id = self.dice.choice(("bank", "bank_windows")), f"twin_{time.time_ns()}"
        self.system.api.trigger(dag, run_id)
        self.system.other_api.trigger(dag, run_id)
        return True

    def _kill_broker(self) -> bool:
        """Its disk is copied before it starts again, as a backup would be that is used one day."""
        self._copied = ends(self.system.broker.bootstrap)
        self._kill_part("broker")
        self._buried("broker")
        self._logs.keep("older")
        return True

    def _kill_database(self) -> bool:
        self.system.postgres.kill()
        return True

    def _vacuum(self) -> bool:
        """Of one table, beside whatever is going on, again and again: so one of them overlaps a commit now and then.

        Not of the state: files of an output that are lost as well are staged again from the state of the epoch before.
        """
        pipeline = self.dice.choice(PIPELINES)
        tables = [name for name in TABLES[pipeline] if name != STATE]
        table = self.system.table(pipeline, self.dice.choice(tables))
        end = time.monotonic() + self.dice.uniform(*STOPPED_S)
        while time.monotonic() < end:
            vacuum(table)
            time.sleep(self.dice.uniform(*BETWEEN_VACUUMS_S))
        return True

    def _truncate(self) -> bool:
        """An older copy of the source's log takes its place and is filled up by others, until it is put back.

        Nothing of it may get into a table: what was read of it would be seen at the end as rows that nobody produced.
        """
        if not self._has_older_copy():
            return False
        with self.transfers.paused():
            self._without_broker(lambda: self._logs.keep("newest"), lambda: self._logs.put_back("older"))
            try:
                if hit := truncated(self.system):
                    fill_up(self.system)
                    time.sleep(self.dice.uniform(*STOPPED_S))
                    self._nobody_reads()
            finally:
                self._without_broker(lambda: self._logs.put_back("newest"))
        return hit

    def _has_older_copy(self) -> bool:
        """Whether a copy of the log ends before what every pipeline has read; if there is none, one is made."""
        if not self._logs.has_copy:
            self._kill_broker()
            self.system.mend()
        return wait_for(self._is_read_beyond_the_copy, READ_ON_S)

    def _is_read_beyond_the_copy(self) -> bool:
        submit(self.system)
        read = taken(self.system)
        return all(min(read[partition]) > end for partition, end in self._copied.items())

    def _without_broker(self, *acts: Callable[[], None]) -> None:
        self._kill_part("broker")
        self._buried("broker")
        for act in acts:
            act()
        self.system.mend()

    def _buried(self, name: str) -> None:
        self.system.bury()
        if not wait_for(lambda: not self.system.part(name).running, DEATH_S):
            raise TimeoutError(f"{name} does not die")

    def _nobody_reads(self) -> None:
        """Wait until no attempt is open; kill what is still at it then."""
        if wait_for(lambda: not any(self._is_open(pipeline) for pipeline in PIPELINES), SETTLED_S):
            return
        for process in [*self.system.task_processes(), *self.system.submit_drivers()]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.system.kill(self.system.part("connect"))
        self.system.bury()

    def _is_open(self, pipeline: str) -> bool:
        ledger = self.system.ledger_of(pipeline)
        return ledger.view(ledger.newest_complete() + 1).state is State.OPEN

    def _restore(self) -> bool:
        """A table is taken back by an epoch, and forward again. In between no epoch may be completed."""
        pipeline = self._first_at_rest()
        if pipeline is None:
            return False
        ledger = self.system.ledger_of(pipeline)
        if (newest := ledger.newest_complete()) < 2:
            return False
        sink = self._changed_last(pipeline, newest)
        record = ledger.complete_record(newest - 1)
        back = record.receipts[sink].version if record and sink else None
        if back is None or sink is None:
            return False
        table = self.system.table(pipeline, sink)
        forward = DeltaTable(str(table)).version()
        with self.readers[pipeline].closed():
            restore(self.system, table, back)
            try:
                self._require_a_stop(pipeline, newest)
            finally:
                self._forward(table, forward)
        return True

    def _changed_last(self, pipeline: str, epoch: int) -> str | None:
        """A table to which the epoch has added rows. Nobody would miss an epoch that has none."""
        record = self.system.ledger_of(pipeline).complete_record(epoch)
        receipts = record.receipts if record else {}
        changed = [table for table in TABLES[pipeline] if table in receipts and receipts[table].rows]
        return self.dice.choice(changed) if changed else None

    def _require_a_stop(self, pipeline: str, newest: int) -> None:
        submit(self.system, pipeline)
        wait_for(lambda: nothing_runs(self.system, pipeline), SETTLED_S)
        ledger = self.system.ledger_of(pipeline)
        if ledger.newest_complete() > newest or ledger.view(newest + 1).open is not None:
            self.wrong.append(f"{pipeline} went on after RESTORE had taken epoch {newest} away")

    def _forward(self, table: Path, version: int) -> None:
        def forward() -> bool:
            self.system.mend()
            with contextlib.suppress(PySparkException, RpcError):
                restore(self.system, table, version)
                return True
            return False

        if not wait_for(forward, SETTLED_S):
            self.wrong.append(f"{table} could not be taken forward again to version {version}")

    def _first_at_rest(self) -> str | None:
        """Which pipeline without a schedule comes to rest first; None if neither does in time."""
        pipelines = self.dice.sample(TRIGGERED, len(TRIGGERED))
        resting: list[str] = []

        def one_rests() -> bool:
            resting[:] = [each for each in pipelines if self._comes_to_rest(each)]
            return bool(resting)

        return resting[0] if wait_for(one_rests, SETTLED_S) else None

    def _comes_to_rest(self, pipeline: str) -> bool:
        """Whether nothing runs, and no epoch is begun. One that is gets a run that finishes it."""
        ledger = self.system.ledger_of(pipeline)
        begun = ledger.view(ledger.newest_complete() + 1).open is not None
        if begun:
            submit(self.system, pipeline)
        return not begun and nothing_runs(self.system, pipeline)
