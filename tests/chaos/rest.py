"""After the last fault: the system comes to rest by itself, and doing again what was done changes nothing."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from airflow_epochs.model import ends_of
from airflow_epochs.testing.history import Repeat, Rest
from tests.chaos.system import LOOK_S, PIPELINES, TRIGGERED, System, wait_for
from tests.chaos.transfers import Transfers, ends

STUCK_S = 300
"""Without a complete epoch for so long, with records left to take, a pipeline has not come to rest by itself."""
REPEAT_S = 120
SWEEPS = 2
"""Epochs after the last one under faults: what a late process left is swept with the next epochs."""


@dataclass(frozen=True)
class Rested:
    """``in_time``: whether everything was taken; ``runs``: per pipeline, failed runs since the last fault."""

    in_time: bool
    runs: dict[str, int]

    def rest(self, system: System, pipeline: str) -> Rest:
        ledger = system.ledger_of(pipeline)
        view = ledger.view(ledger.newest_complete() + 1)
        hanging = [f"epoch {view.number} is {view.state.value}"] if view.open else []
        return Rest(recoveries=self.runs[pipeline], hanging=hanging)


def come_to_rest(system: System, transfers: Transfers) -> Rested:
    system.mend()
    transfers.finish()
    since, in_time = time.time(), True
    for _ in range(SWEEPS):
        in_time = in_time and _wait_all_taken(system)
        transfers.one_more()
    in_time = in_time and _wait_all_taken(system) and wait_for(partial(_nothing_triggered_runs, system), STUCK_S)
    return Rested(in_time, {pipeline: _failed_runs(system, pipeline, since) for pipeline in PIPELINES})


def complete_epochs(system: System) -> dict[str, int]:
    return {pipeline: system.ledger_of(pipeline).newest_complete() for pipeline in PIPELINES}


def _wait_all_taken(system: System) -> bool:
    """Wait while epochs are completed: how many it takes depends on what the faults have left over."""
    while wait_for(partial(_further, system, complete_epochs(system)), STUCK_S):
        if wait_for(partial(_all_taken, system), LOOK_S):
            return True
    return False


def _further(system: System, before: dict[str, int]) -> bool:
    return _all_taken(system) or complete_epochs(system) != before


def _all_taken(system: System) -> bool:
    """Whether all pipelines are complete up to the end of the topic; sets those without a schedule to work."""
    taken = {pipeline: _taken(system, pipeline) for pipeline in PIPELINES}  # each, as looking sets to work
    return all(taken.values())


def _taken(system: System, pipeline: str) -> bool:
    ledger = system.ledger_of(pipeline)
    record = ledger.complete_record(ledger.newest_complete())
    at = {p: end for (_, p), end in ends_of(record.ranges).items()} if record else {}
    taken = at == ends(system.broker.bootstrap)
    if not taken and pipeline in TRIGGERED:
        submit(system, pipeline)
    return taken


def submit(system: System, *pipelines: str) -> None:
    """Start a run of each pipeline that has no schedule, or of those that are named, unless there is one."""
    for pipeline in pipelines or TRIGGERED:
        if not system.api.runs(pipeline, "running", "queued"):
            system.api.trigger(pipeline, f"submit_{time.time_ns()}")


def nothing_runs(system: System, pipeline: str) -> bool:
    """In neither Airflow."""
    return not any(api.runs(pipeline, "running", "queued") for api in (system.api, system.other_api))


def _nothing_triggered_runs(system: System) -> bool:
    """Not even a run that finds no new data: it may take an empty epoch, to close windows."""
    return all(nothing_runs(system, pipeline) for pipeline in TRIGGERED)


def _failed_runs(system: System, pipeline: str, since: float) -> int:
    runs = system.api.runs(pipeline, "failed")
    return sum(_seconds(run["start_date"]) > since for run in runs)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def repeat_the_newest_run(system: System, pipeline: str) -> Repeat:
    """Clear the whole run of the newest complete epoch, if Airflow still knows it, and wait for its end."""
    ledger, api = system.ledger_of(pipeline), system.api
    record = ledger.complete_record(ledger.newest_complete())
    assert record is not None
    run_id = record.opened_by.run_id
    wait_for(lambda: api.state(pipeline, run_id) == "success", REPEAT_S)
    before = snapshot(system, pipeline)
    api.clear(pipeline, run_id)
    ended = wait_for(lambda: api.state(pipeline, run_id) in ("success", "failed"), REPEAT_S)
    after = snapshot(system, pipeline)
    return Repeat(
        what=f"run {run_id} was cleared", before=before, after=after if ended else {"the run": "has not ended"}
    )


def snapshot(system: System, pipeline: str) -> dict[str, str]:
    """Every file of the pipeline's ledger by its digest, and what each sink shows."""
    files = [path for path in sorted((system.ledger / pipeline / "epochs").rglob("*")) if path.is_file()]
    ledger = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    for book in system.books[pipeline].values():
        ledger |= book.fingerprint()
    return ledger
