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

import httpx
import psutil
from moments import Moment
from rest import submit
from system import PIPELINES, System, stopped

REST_S = (0.5, 5.0)
STOPPED_S = (4.0, 12.0)
KILLS = {"kill task": 6, "kill spark server": 2, "kill executor": 3, "kill submit driver": 1, "kill broker": 1}
OTHERS = {
    "stop task": 3,
    "stop spark server": 1,
    "stop broker": 1,
    "kill scheduler": 1,
    "kill api server": 1,
    "wipe metadata": 1,
    "clear tasks": 4,
    "same run by a second scheduler": 2,
}
DECK = {**KILLS, **OTHERS}


@dataclass
class Nemesis:
    """Call ``fire`` from the thread that started the system's processes: Linux ends them together with it.

    Attributes:
        fired, missed: How often, per kind.
        times: When a fault fired (``time.monotonic``).
        moments: Where the pipeline was then.
    """

    system: System
    seed: int
    fired: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self._kinds: dict[str, Callable[[], bool]] = {
            "kill task": lambda: self._kill_one(self.system.task_processes()),
            "stop task": lambda: self._stop_one(self.system.task_processes()),
            "kill spark server": lambda: self._kill_part("connect"),
            "stop spark server": lambda: self._stop_part("connect"),
            "kill executor": lambda: self._kill_one(self.system.executors()),
            "kill submit driver": lambda: self._kill_one(self.system.submit_drivers()),
            "kill broker": lambda: self._kill_part("broker"),
            "stop broker": lambda: self._stop_part("broker"),
            "kill scheduler": lambda: self._kill_part("scheduler"),
            "kill api server": lambda: self._kill_part("api-server"),
            "wipe metadata": self._wipe_metadata,
            "clear tasks": self._clear,
            "same run by a second scheduler": self._same_run,
        }
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
        except (psutil.Error, ProcessLookupError, httpx.HTTPError) as error:
            hit, why = False, repr(error)  # what was to be hit was gone or down by then
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
            for kind in kinds:
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
        self.system.kill(self.system.part(name))
        time.sleep(self.dice.uniform(0, 2))
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
        run_id = f"twin_{time.time_ns()}"
        self.system.api.trigger("bank", run_id)
        self.system.other_api.trigger("bank", run_id)
        return True
