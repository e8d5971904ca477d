"""The whole stack with the example DAGs, and what a user does to it: produce, trigger, clear, look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from orders_demo.feed import Feed
from orders_demo.verify import Verdict, verify
from orders_demo.watch import DAG, Watch
from stack.airflow_api import AirflowApi
from stack.whole import Stack
from tests.support.lineage_file import LineageFile
from tests.support.statsd import StatsdServer
from tests.support.waiting import wait_until

ORDERS = 9_000
EPOCH_RECORDS_MAX = 4_000
ENOUGH = 100
"""So many orders start a run of ``orders_as_they_come`` and end the wait of ``waits``."""
STEPS = ("open", "stage", "vote", "commit.orders", "commit.rejected", "abort", "complete")
DEADLINE_S = 180.0


@dataclass
class RunningStack:
    """A running stack and all orders produced so far, as (partition, offset). ``own`` is for files of the tests.

    ``statsd`` gets our metrics from Airflow, ``lineage`` the events of the orders DAG.
    """

    stack: Stack
    watch: Watch
    own: Path
    statsd: StatsdServer
    lineage: LineageFile
    places: list[tuple[int, int]] = field(default_factory=list)

    @property
    def api(self) -> AirflowApi:
        return self.watch.api

    def produce(self, total: int, seed: int) -> None:
        feed = Feed(self.stack.broker.bootstrap, total=total, at_once=total, per_s=total, seed=seed)
        feed.start()
        feed.finish()
        self.places += feed.places

    def unpause(self, dag: str) -> None:
        wait_until(lambda: self.api.knows(dag), DEADLINE_S)
        self.api.unpause(dag)
        self.read_again(dag)

    def read_again(self, dag: str) -> None:
        """Let Airflow read the DAG's file. Before it does, it plans no run after what its API has changed."""
        (self.own / "project" / "dags" / f"{dag}.py").touch()

    @contextmanager
    def taking_orders(self) -> Iterator[None]:
        """The DAG ``orders`` takes new orders. Else it is paused: runs without any keep half a processor busy."""
        self.unpause(DAG)
        try:
            yield
        finally:
            self.api.pause(DAG)

    def verdict(self, lake: Path | None = None) -> Verdict:
        places = self.own / "produced.csv"
        places.write_text("partition,offset\n" + "".join(f"{p},{o}\n" for p, o in self.places))
        return verify(lake or self.stack.lake, places)

    def tasks(self, dag: str, run_id: str) -> dict[str, str]:
        """States of the tasks of the pipeline that has the DAG's name."""
        found = self.api.tasks(dag, run_id)
        return {step: found[f"{dag}.{step}"]["state"] for step in STEPS}

    def run_state(self, dag: str, run_id: str) -> str:
        return self.api.state(dag, run_id)

    def wait_state(self, dag: str, run_id: str, step: str, state: str) -> None:
        """Wait until a task of the pipeline that has the DAG's name is in a state."""
        wait_until(lambda: self.api.task(dag, run_id, f"{dag}.{step}")["state"] == state, DEADLINE_S)

    def wait_ended(self, dag: str, run_id: str) -> str:
        wait_until(lambda: self.run_state(dag, run_id) in ("success", "failed"), DEADLINE_S)
        return self.run_state(dag, run_id)

    def trigger(self, dag: str, run_id: str) -> str:
        """Start a run by hand, wait for its end, and return its state."""
        wait_until(lambda: self.api.knows(dag), DEADLINE_S)
        self.api.trigger(dag, run_id)
        return self.wait_ended(dag, run_id)

    def clear(self, dag: str, run_id: str, *steps: str) -> str:
        """Clear tasks as a user does, wait for the end of the run, and return its state."""
        assert self.api.clear(dag, run_id, [f"{dag}.{step}" for step in steps]) == len(steps)
        return self.wait_ended(dag, run_id)

    def clear_all(self, dag: str, run_id: str) -> str:
        """Clear the whole run."""
        assert self.api.clear(dag, run_id) > 0
        return self.wait_ended(dag, run_id)

    def clear_failed(self, dag: str, run_id: str) -> str:
        """ "Clear failed tasks"."""
        assert self.api.clear(dag, run_id, only_failed=True) > 0
        return self.wait_ended(dag, run_id)
