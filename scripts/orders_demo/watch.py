"""What the demo reads of a running pipeline: its ledger, the topic's ends, Airflow's task instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import open_store
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import CompleteRecord, OpenRecord, TryRecord, ends_of
from orders_demo.feed import TOPIC
from orders_demo.lines import Line
from stack.airflow_api import AirflowApi

DAG, PIPELINE = "orders", "orders"


@dataclass
class Watch:
    """Looks at the pipeline ``orders``; changes nothing."""

    api: AirflowApi
    bootstrap: str
    ledger_root: str
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(open_store(self.ledger_root), PIPELINE, checked=False)

    def epochs(self) -> Iterator[EpochView]:
        """The epochs, oldest first; the last one may not be complete."""
        for number in range(1, self.ledger.newest_complete() + 2):
            view = self.ledger.view(number)
            if view.open or view.complete:
                yield view

    def another(self) -> Watch:
        """For another thread."""
        return Watch(self.api, self.bootstrap, self.ledger_root)

    def lines(self) -> list[Line]:
        """How far each epoch is, oldest first."""
        return [Line.of(view, staging=self._is_staging(view)) for view in self.epochs()]

    def _is_staging(self, view: EpochView) -> bool:
        return view.open is not None and any(t.txn_id == view.open.txn_id for t in self.ledger.tries(view.number))

    def consumed(self) -> bool:
        """Whether the newest complete epoch ends where the topic does."""
        record = self.ledger.complete_record(self.ledger.newest_complete())
        if record is None:
            return False
        ends = ends_of(record.ranges)
        return all(ends.get((TOPIC, partition)) == end for partition, end in self._topic_ends())

    def progress(self) -> object:
        """What differs once an epoch is complete, visible in a sink, or staged once more after a task has died.

        New attempts that fail are no progress.
        """
        number = self.ledger.newest_complete()
        tries = Counter(each.txn_id for each in self.ledger.tries(number + 1))
        return number, sorted(self.ledger.view(number + 1).receipts), max(tries.values(), default=0)

    def staging(self) -> tuple[OpenRecord, TryRecord] | None:
        """The undecided attempt on which Spark has been set to work, and its newest try."""
        view = self.ledger.view(self.ledger.newest_complete() + 1)
        if not view.open or view.decision or view.complete:
            return None
        tries = [t for t in self.ledger.tries(view.number) if t.txn_id == view.open.txn_id]
        return (view.open, max(tries, key=lambda t: t.started_at)) if tries else None

    def stage_task(self, run_id: str) -> dict[str, Any]:
        """Airflow's record of the run's stage task: state, try number, process id, and more."""
        return self.api.task(DAG, run_id, f"{PIPELINE}.stage")

    def seconds(self, record: CompleteRecord) -> dict[str, float]:
        """Seconds of each step; of ``complete``, which cannot measure itself, as Airflow measured them."""
        task = self.api.task(DAG, record.completed_by.run_id, f"{PIPELINE}.complete")
        last = {"complete": task["duration"]} if task["duration"] else {}  # none while it is still running
        return {**record.metrics.get("seconds", {}), **last}

    def _topic_ends(self) -> list[tuple[int, int]]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "demo-watch", "log_level": 0})
        try:
            partitions = consumer.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
            return [(p, consumer.get_watermark_offsets(TopicPartition(TOPIC, p), timeout=10)[1]) for p in partitions]
        finally:
            consumer.close()
