"""What a benchmark reports: medians of at least five, each with its target, as a table and as JSON."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RUNS = 5
JIT_RUNS = 4
"""After about so many runs of some seconds, Java has compiled what runs often."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line. ``samples`` are in run order; ``target`` is said in words and as a check of the median."""

    name: str
    unit: str
    samples: tuple[float, ...]
    target: str
    met: bool
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


def figure(name: str, unit: str, samples: list[float], *, most: float | None = None, least: float | None = None,
           note: str = "") -> Figure:  # fmt: skip
    """A figure whose median should be at most ``most`` or at least ``least``; without either, for information."""
    median = statistics.median(samples)
    if most is not None:
        target, met = f"≤ {most:g}", median <= most
    elif least is not None:
        target, met = f"≥ {least:g}", median >= least
    else:
        target, met = "—", True
    return Figure(name=name, unit=unit, samples=tuple(samples), target=target, met=met, note=note)


def ratios(ours: list[float], theirs: list[float]) -> list[float]:
    """``theirs / ours`` pair by pair: how many times faster we are. Pairs share the machine's mood."""
    return [their / our for our, their in zip(ours, theirs, strict=True)]


@contextmanager
def stopwatch() -> Iterator[Callable[[], float]]:
    """Yields a function that tells the seconds since the block began; after its end, those of the block."""
    started = time.perf_counter()
    ended: list[float] = []
    yield lambda: (ended[0] if ended else time.perf_counter()) - started
    ended.append(time.perf_counter())


def timed(work: Callable[[], object], runs: int = RUNS, warm_up: int = 1) -> list[float]:
    """Seconds of each run, after warm-up runs that do not count."""
    for _ in range(warm_up):
        work()
    samples = []
    for _ in range(runs):
        with stopwatch() as seconds:
            work()
        samples.append(seconds())
    return samples


def timed_in_turn(runs: Mapping[str, Callable[[], object]], warm_up: int = 1) -> dict[str, list[float]]:
    """Seconds of each of them, after so many runs of each. In turn: what slows the machine down slows all of them."""
    for work in [*runs.values()] * warm_up:
        work()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(RUNS):
        for name, work in runs.items():
            seconds[name] += timed(work, runs=1, warm_up=0)
    return seconds


def peak_mb() -> float:
    """The most memory that this process ever had. Not ru_maxrss, which it inherits from the one that started it."""
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) / 1024
