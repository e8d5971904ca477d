"""``make chaos MINUTES=n SEED=s``: breaks the whole system for a while, lets it come to rest, and judges.

Exit code 0 only for PASS. ``--markdown FILE`` leaves what is printed there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from airflow_epochs.testing.checkers import Verdict
from stack import proxy
from stack.jars import fetch
from stack.whole import PROJECT
from tests.chaos.canaries import Canaries
from tests.chaos.evidence import judged, judged_windows, producers_view
from tests.chaos.nemesis import Nemesis
from tests.chaos.reader import Reader, ReaderOfWindows, reader_of
from tests.chaos.rest import STUCK_S, come_to_rest, complete_epochs, repeat_the_newest_run, submit
from tests.chaos.system import PIPELINES, System, wait_for
from tests.chaos.transfers import Transfers, committed
from tests.chaos.verdict import Outcome, as_markdown, recoveries

FIRST_EPOCHS_S = 240
FAULTS_AT_A_STRETCH = 25
PAUSE_S = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--folder", type=Path, help="leave data and logs there")
    options = parser.parse_args()
    os.environ.update(proxy.bypass())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    print(f"chaos: {options.minutes:g} minutes, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        outcome = run(options.folder or Path(temporary), options.minutes, options.seed)
    text = as_markdown(outcome)
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    return 0 if outcome.verdict is Verdict.PASS else 1


def run(folder: Path, minutes: float, seed: int) -> Outcome:
    """One run; all it starts has ended when it returns."""
    with contextlib.ExitStack() as ending:
        system = ending.enter_context(System(folder, fetch()))
        canaries = system.canaries()
        ending.enter_context(canaries.watching(system.descendants))
        transfers = Transfers(system.broker.bootstrap, seed)
        readers = [reader_of(system, pipeline) for pipeline in PIPELINES]
        for reader in readers:
            ending.enter_context(reader.ended())
        nemesis = Nemesis(system, transfers, {reader.pipeline: reader for reader in readers}, seed)
        transfers.start()
        say("everything is up")
        unclear = [] if _all_work(system, FIRST_EPOCHS_S) else ["no epoch was complete before the first fault"]
        for reader in readers:
            reader.start()
        say("all pipelines have worked once" if not unclear else unclear[0])
        _break(nemesis, minutes)
        return _judge(system, transfers, readers, nemesis, minutes, unclear, canaries)


def _all_work(system: System, seconds: float) -> bool:
    """Whether all pipelines complete an epoch more in that time."""
    before = complete_epochs(system)

    def worked() -> bool:
        submit(system)
        return all(now > before[pipeline] for pipeline, now in complete_epochs(system).items())

    return wait_for(worked, seconds)


def _break(nemesis: Nemesis, minutes: float) -> None:
    """For so long; on a slow machine longer, until every kind of fault has fired.

    Now and then faults pause until all pipelines have completed an epoch: so it is seen that they can, and where
    the next faults strike is not always the same epoch.
    """
    began = time.monotonic()
    while (passed := (time.monotonic() - began) / 60) < minutes or (not nemesis.complete and passed < 5 * minutes):
        before = len(nemesis.times)
        say(nemesis.fire())
        if len(nemesis.times) > before and len(nemesis.times) % FAULTS_AT_A_STRETCH == 0:
            say("all have worked again" if _all_work(nemesis.system, PAUSE_S) else "no time to work")
    say("no more faults")


def _judge(
    system: System,
    transfers: Transfers,
    readers: list[Reader],
    nemesis: Nemesis,
    minutes: float,
    unclear: list[str],
    canaries: Canaries,
) -> Outcome:
    rested = come_to_rest(system, transfers)
    say("at rest" if rested.in_time else "not at rest in time")
    for moment in nemesis.moments:
        moment.record()
    for reader in readers:
        reader.finish()
    produced = committed(system.broker.bootstrap)
    reports = {
        reader.pipeline: judged(
            system,
            reader,
            transfers,
            produced,
            rested.rest(system, reader.pipeline),
            repeat_the_newest_run(system, reader.pipeline),
        )
        for reader in readers
    }
    [of_windows] = [judged_windows(system, each, produced) for each in readers if isinstance(each, ReaderOfWindows)]
    wrong = nemesis.wrong + [each for reader in readers for each in reader.wrong] + of_windows.wrong
    wrong += [f"a secret has come out into {where}" for where in canaries.found(system.folder)]
    return Outcome(
        seed=nemesis.seed,
        minutes=minutes,
        commit=_commit(),
        fired=dict(nemesis.fired),
        missed=dict(nemesis.missed),
        recoveries_s=recoveries(nemesis.times, [at for at, _ in readers[0].completed]),
        epochs=complete_epochs(system),
        attempts={p: len(list((system.ledger / p / "epochs").glob("*/*.open.json"))) for p in PIPELINES},
        records={"in": len(produced), "withdrawn": len(transfers.withdrawn)},
        transactions=transfers.transactions,
        looks=sum(len(reader.observations) for reader in readers),
        reports=reports,
        windows={**of_windows.judged, **of_windows.upkeep},
        wrong=wrong + ([] if rested.in_time else [f"not at rest: no epoch was complete for {STUCK_S} s"]),
        unclear=unclear + of_windows.unclear + producers_view(transfers, produced),
    )


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(PROJECT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "no commit"


if __name__ == "__main__":
    sys.exit(main())
