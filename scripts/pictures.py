"""Makes the README's pictures of the Epochs page: ``make pictures``.

A history is played in memory, with its ledger on disk, and Airflow's API server shows it to a headless Chromium.
``--all`` also makes pictures in the dark theme and of a narrow window, in ``build/screenshots``, for people to look at.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import ClassVar

from airflow_epochs.contracts import Environment, Limits, SinkAttempt
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import JsonDict, Receipt, Run, Staged
from airflow_epochs.testing import (
    MemoryEnvironment,
    MemorySink,
    MemorySpark,
    MemoryWorld,
    Row,
    memory_coordinator,
    memory_pipeline,
)
from airflow_epochs.testing.environment import MemoryEpoch
from stack import proxy
from stack.airflow import USER, AirflowStack, connection, password_in
from tests.support.browser import SCREENSHOTS, Browser, browser

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
SIZES = {"pipeline": (1280, 1000), "epoch": (1280, 1226)}
PIPELINE = "/epochs/pipelines/epochs_default/orders"
EPOCHS, REFUSED = 60, 58
EVERY = timedelta(minutes=5)
PARTITIONS, MOST, USUAL = 2, 3750, 2550
BURST = range(20, 29)
REJECTED = 50
SINKS = ("orders", "rejected")
REASON = "column amount is a STRING, and the table has a DECIMAL(12,2)"


@dataclass
class Clock:
    """The time of the history that is played."""

    now: datetime

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class TimedSink(MemorySink):
    """Its commits have the time of the clock."""

    clock: ClassVar[Clock]

    def spec(self) -> JsonDict:
        return {**super().spec(), "kind": "timed"}

    def commit(self, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
        return replace(super().commit(attempt, staged, env), committed_at=self.clock().isoformat())


def split(batch: list[Row], epoch: MemoryEpoch) -> dict[str, list[Row] | str]:
    """The transform of the history: some orders are rejected."""
    return {
        "orders": [row for row in batch if row.offset % REJECTED],
        "rejected": [row for row in batch if row.offset % REJECTED == 0],
    }


class History:
    """The epochs of a pipeline: a burst that takes a while to be read, and an epoch that a sink refuses at first."""

    def __init__(self, root: Path) -> None:
        self.world, self.dice = MemoryWorld(), random.Random(7)
        self.clock = Clock(datetime.now(timezone.utc) - EPOCHS * EVERY)
        TimedSink.clock = self.clock
        self.env, self.store = MemoryEnvironment(MemorySpark(split)), LocalStore(root)
        sinks = tuple(TimedSink(name=name, world=self.world.name) for name in SINKS)
        self.pipeline = replace(memory_pipeline(self.world, dag_id="orders"), sinks=sinks, dead_letters="rejected")

    def play(self) -> None:
        for number in range(1, EPOCHS + 1):
            self._produce(USUAL * (3 if number in BURST else 1))
            began, run = self.clock.now, Run("orders", f"orders-{self.clock.now:%d-%H%M}")
            if number == REFUSED:
                self._refused(run)
            self._epoch(run)
            self.clock.now = began + EVERY

    def _refused(self, run: Run) -> None:
        """An attempt that a sink votes down. Somebody clears the run a minute later."""
        self.world.refusals["orders"] = REASON
        with suppress(Refused):
            self._epoch(run)
        self.world.refusals.clear()
        self.clock.forward(60)

    def _produce(self, about: int) -> None:
        for partition in range(PARTITIONS):
            self.world.produce("orders", partition, list(range(round(about * self.dice.uniform(0.7, 1.3)))))

    def _epoch(self, run: Run) -> None:
        """All tasks of a run, each of which takes its time."""
        task, seconds = self._coordinator(), dict[str, float]()
        with self._takes("open", 0.4, seconds):
            opened = task.open(run, Limits(max_records=MOST))
        records = sum(r.end - r.start for of in opened.ranges.values() for r in of)
        with self._takes("stage", 1.2 + records / 2500, seconds):
            report = task.stage(run).stage
        with self._takes("vote", 0.3, seconds):
            task.vote(run, report)
        for sink in self.pipeline.sinks:
            with self._takes(f"commit.{sink.name}", 0.6, seconds):
                task.commit(run, sink.name)
        self.clock.forward(0.2)
        task.complete(run, {"seconds": {**seconds, "complete": 0.2}})

    def _coordinator(self) -> Coordinator:
        made = memory_coordinator(self.world, self.pipeline, env=self.env, store=self.store)
        made.task.clock = self.clock
        return made

    @contextmanager
    def _takes(self, step: str, about: float, seconds: dict[str, float]) -> Iterator[None]:
        seconds[step] = about * self.dice.uniform(0.8, 1.3)
        self.clock.forward(seconds[step])
        yield


def main() -> int:
    os.environ.update(proxy.bypass())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for empty in ("ledger", "dags"):
            (root / empty).mkdir()
        History(root / "ledger").play()
        connections = {"epochs_default": connection("epochs", extra={"ledger_root": str(root / "ledger")})}
        with (
            AirflowStack(root / "airflow", root / "dags", connections=connections) as airflow,
            browser(airflow.url) as page,
        ):
            page.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
            page.log_in(USER, password_in(root / "airflow"))
            take(page, PICTURES)
            if "--all" in sys.argv:
                take_others(page)
    return 0


def take(page: Browser, folder: Path, suffix: str = "") -> None:
    """The two pictures, in the theme that the browser has."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in {"pipeline": PIPELINE, "epoch": f"{PIPELINE}/epochs/{REFUSED}"}.items():
        page.resize(*SIZES[name])
        page.open(path)
        page.wait("document.querySelectorAll('figure canvas').length === document.querySelectorAll('figure').length")
        page.wait("[...document.querySelectorAll('[data-lag]')].every((cell) => cell.textContent !== '…')")
        page.driver.save_screenshot(str(folder / f"{name}{suffix}.png"))


def take_others(page: Browser) -> None:
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        take(page, SCREENSHOTS, f"-{scheme}")
    SIZES.update(dict.fromkeys(SIZES, (500, 1400)))
    take(page, SCREENSHOTS, "-narrow")


if __name__ == "__main__":
    sys.exit(main())
