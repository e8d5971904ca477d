"""A pipeline in Airflow's own scheduling code. All around its tasks is in memory; a task of the user's is behind it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, TaskGroup

from airflow_epochs.ballot import Ballot
from airflow_epochs.contracts import SparkJob
from airflow_epochs.errors import NotApplied
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import JsonDict
from airflow_epochs.pipeline import EpochPipeline
from airflow_epochs.testing import MemorySink, MemorySource, MemorySpark, MemoryWorld
from tests.support.airflow_harness import Harness, Outcome

_numbers = itertools.count()
BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)
"""The ``start_date`` of the DAGs."""


class FakeSpark:
    """A Spark that fails as often as it is told to."""

    def __init__(self) -> None:
        self.failures = 0
        self.spark = MemorySpark()

    def runner(self, env: object) -> FakeSpark:
        return self

    def new_session(self) -> JsonDict:
        return self.spark.new_session()

    def stop(self, session: JsonDict) -> None:
        self.spark.stop(session)

    def cancel(self) -> None:
        pass

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        if self.failures:
            self.failures -= 1
            raise NotApplied("Spark fell over.", remedy="try again.")
        return self.spark.run(job, session)


class Lab:
    """A pipeline with two sinks, at first, and a task of the user's behind it."""

    harness: Harness

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **layout: Any) -> None:
        self.world = MemoryWorld()
        self.source = layout.pop("source", MemorySource)(world=self.world.name, topics=("orders",))
        self.spark = FakeSpark()
        self.sinks = ["orders", "audit"]
        self.after: list[int] = []
        self.mine_fails = False
        self.against: str | None = None
        root = folder / "ledger"
        root.mkdir()
        connection = {"conn_type": "epochs", "extra": {"ledger_root": str(root)}}
        monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(connection))
        self.ledger = Ledger(LocalStore(root), "orders")
        (folder / "orders.py").write_text("def orders(batch, epoch): ...\n")
        self.transform = f"{folder / 'orders.py'}:orders"
        self.behind = "complete"
        self.renamed(**layout)

    def laid_out(self, **layout: Any) -> None:
        """The DAG file is changed to another layout, perhaps also to another ``schedule``."""
        self.harness = Harness(self.dag(self.harness.dag.dag_id, **layout))

    def renamed(self, **layout: Any) -> None:
        """The DAG file has another DAG id."""
        self.harness = Harness(self.dag(f"lab_{next(_numbers)}", **layout))

    def dag(self, dag_id: str, **layout: Any) -> DAG:
        self.behind = "epochs" if layout.get("layout") == "single" else "complete"
        self.prefix = "orders." if layout.get("prefix_group_id", True) else ""
        scheduled = {"schedule": layout.pop("schedule", None), "start_date": BEGAN}
        with DAG(dag_id, max_active_runs=1, catchup=layout.pop("catchup", False), **scheduled) as dag:
            group = EpochPipeline(
                "orders",
                source=self.source,
                transform=self.transform,
                sinks=[MemorySink(name=name, world=self.world.name) for name in self.sinks],
                spark=self.spark,  # type: ignore[arg-type]  # the double has the runner's methods itself
                wait_for_others=0,
                vote=self._vote,
                operator_args={"retries": 0},
                **layout,
            )
            group >> PythonOperator(task_id="mine", python_callable=self._mine)
        return dag

    def _vote(self, ballot: Ballot) -> str | None:
        return self.against and f"{self.against}: {dict(ballot.rows)}"

    def _mine(self, ti: Any) -> None:
        """The user's task: notes of which epoch it was told."""
        if self.mine_fails:
            raise RuntimeError("the user's own task fails")
        self.after.append(ti.xcom_pull(task_ids=f"{self.prefix}{self.behind}")["epoch"])

    def produce(self, *values: object) -> None:
        self.world.produce("orders", 0, list(values))

    def run(self, run_id: str, conf: dict[str, Any] | None = None) -> Outcome:
        return short(self.harness.run(run_id, conf))

    def clear(self, run_id: str, *tasks: str, only_failed: bool = False) -> Outcome:
        return short(self.harness.clear(run_id, *(f"orders.{task}" for task in tasks), only_failed=only_failed))

    def shown(self) -> list[list[object]]:
        return [self.world.table(sink).values() for sink in self.sinks]


class TwoPipelines(Lab):
    """Its DAG has one more pipeline, in a group of the user's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, second: str, conn_id: str, **layout: Any) -> None:
        self.second, self.second_ledger = second, conn_id
        self.second_blocks = False
        (folder / conn_id).mkdir()
        connection = {"conn_type": "epochs", "extra": {"ledger_root": str(folder / conn_id)}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))
        super().__init__(folder, monkeypatch, **layout)

    def dag(self, dag_id: str, **layout: Any) -> DAG:
        with super().dag(dag_id, **layout) as dag, TaskGroup("second"):
            EpochPipeline(
                self.second,
                source=MemorySource(world=self.world.name, topics=("refunds",)),
                transform=self.transform,
                sinks=[MemorySink(name="refunds", world=self.world.name)],
                spark=self.spark,  # type: ignore[arg-type]  # the double has the runner's methods itself
                ledger_conn_id=self.second_ledger,
                layout="single",
                on_failed_epoch="block" if self.second_blocks else "take_over",
                operator_args={"retries": 0},
                prefix_group_id=layout.get("prefix_group_id", True) or self.second == "orders",
            )
        return dag


def short(outcome: Outcome) -> Outcome:
    def names(values: dict[str, Any]) -> dict[str, Any]:
        return {task.removeprefix("orders."): value for task, value in values.items()}

    return Outcome(outcome.state, names(outcome.tasks), names(outcome.xcoms))


def in_state(outcome: Outcome, state: str) -> set[str]:
    return {task for task, found in outcome.tasks.items() if found == state}


@contextmanager
def broken_commit(name: str) -> Iterator[None]:
    """The sink's table cannot be reached within the block."""
    works = MemorySink.commit

    def commit(sink: MemorySink, *args: Any, **kwargs: Any) -> Any:
        if sink.name == name:
            raise NotApplied("The table cannot be reached.", remedy="wait.")
        return works(sink, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MemorySink, "commit", commit)
        yield
