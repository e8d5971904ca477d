"""Metrics of each step, through Airflow's own stats: StatsD, Datadog or OpenTelemetry, as Airflow is configured.

The pipeline, the sink and so on are tags. Plain StatsD has no tags: there they are parts of the name, in the same
order. If Airflow sends no metrics, nothing here is computed. A metric that cannot be sent never fails a task.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_epochs.errors import EpochError, Fenced, NoNewData, tolerated

if TYPE_CHECKING:
    from airflow_epochs.coordinator.task import TaskTry

PREFIX = "epochs"
_ALL = "all"
_CODE = re.compile(r"EPOCHS-[A-Z0-9-]*[A-Z0-9]")


def is_on() -> bool:
    """Whether Airflow sends metrics anywhere."""
    return _set("statsd_on") or _set("statsd_datadog_enabled") or _set("otel_on")


def _has_tags() -> bool:
    if _set("statsd_datadog_enabled"):
        return True
    return _set("statsd_influxdb_enabled") if _set("statsd_on") else _set("otel_on")


def _set(option: str) -> bool:
    return bool(conf.getboolean("metrics", option, fallback=False))


@contextmanager
def measured(task: TaskTry, step: str, phases: Sequence[str], try_number: int = 1) -> Iterator[None]:
    """Send the metrics of what is done in this block.

    Args:
        task: The try of the task.
        step: As in ``EpochOperator.step``.
        phases: The phases that the task has reached. Grows during the block.
        try_number: Airflow's, from 1.
    """
    if not is_on():
        yield
        return
    begun, before = time.monotonic(), len(phases)

    def send_all(error: BaseException | None) -> None:
        with tolerated("sending metrics"):
            _Step(task, step, frozenset(phases[before:]), try_number, error).send(time.monotonic() - begun)

    try:
        yield
    except (Exception, AirflowTaskTimeout) as error:  # not TaskDeferred, which lets a task wait: the step is not over
        send_all(error)
        raise
    send_all(None)


@dataclass(frozen=True)
class _Step:
    """A step that is over. ``reached``: the phases that this step came by."""

    task: TaskTry
    name: str
    reached: frozenset[str]
    try_number: int
    error: BaseException | None
    now: float = field(default_factory=time.time)

    def send(self, seconds: float) -> None:
        phase, _, sink = self.name.partition(".")
        if self.error is None:
            self._send("timing", "phase.duration", seconds * 1000, phase=phase, sink=sink or _ALL)
        for shown, outcome in self._outcomes(phase, sink):
            self._send("incr", "commits", 1, sink=shown, outcome=outcome)
        if reason := self._abort_reason(phase):
            self._send("incr", "aborts", 1, reason=reason)
        if "complete.landed" in self.reached:
            self._completed()
        elif self.error or phase in ("open", "complete"):
            self._in_doubt()
        if phase == "open":
            self._age()
        if "complete.landed" in self.reached or isinstance(self.error, NoNewData):
            self._lag()

    def _outcomes(self, phase: str, sink: str) -> Iterator[tuple[str, str]]:
        shown = {name.removeprefix("committed.") for name in self.reached if name.startswith("committed.")}
        late = self.try_number > 1 or phase != "commit"  # a later run finishes an epoch in `open`
        yield from ((name, "retried" if late else "committed") for name in sorted(shown))
        if phase == "commit" and sink not in shown:
            yield sink, self._not_shown(sink)

    def _not_shown(self, sink: str) -> str:
        """What came of a commit task that has not committed."""
        if self.error is not None:
            return "fenced" if isinstance(self.error, Fenced) else "failed"
        return "left_out" if f"left_out.{sink}" in self.reached else "already"

    def _abort_reason(self, phase: str) -> str | None:
        """Why an attempt was aborted in this step; None if no attempt was aborted."""
        if phase == "open" and "abort.put" in self.reached:
            return "taken_over"
        if phase == "vote" and self.error and "decision.landed" in self.reached:
            return "vote"
        return _code_in(self.error) if phase == "abort" and "abort.put" in self.reached else None

    def _completed(self) -> None:
        record = self.task.ledger.complete_record(self.task.ledger.newest_complete())
        assert record
        self._send("incr", "completed", 1)
        for sink, receipt in sorted(record.receipts.items()):
            self._send("incr", "rows", receipt.rows, sink=sink)
        self._send("gauge", "last_complete.epoch", record.txn_id.epoch)
        self._send("gauge", "last_complete.time", _seconds(record.completed_at))
        self._send("gauge", "last_complete.age", 0)
        self._no_doubt()

    def _no_doubt(self) -> None:
        self._send("gauge", "in_doubt.count", 0)
        self._send("gauge", "in_doubt.age", 0)

    def _age(self) -> None:
        record = self.task.ledger.complete_record(self.task.ledger.newest_complete())
        if record:
            self._send("gauge", "last_complete.age", max(0.0, self.now - _seconds(record.completed_at)))

    def _in_doubt(self) -> None:
        from airflow_epochs.ledger.queries import in_doubt

        found = in_doubt(self.task.ledger)
        if found is None:
            self._no_doubt()  # the task that ended an earlier doubt may have died before it said so
        elif self.error and not isinstance(self.error, NoNewData):
            _, decided = found
            self._send("gauge", "in_doubt.count", 1)
            self._send("gauge", "in_doubt.age", max(0.0, self.now - decided.timestamp()))

    def _lag(self) -> None:
        from airflow_epochs.coordinator.inspection.lag import lag_of

        if lag := lag_of(self.task.ledger, self.task.env):
            self._send("gauge", "lag.records", lag.records)
            self._send("gauge", "lag.seconds", lag.seconds(int(self.now * 1000)))

    def _send(self, kind: Literal["incr", "gauge", "timing"], name: str, value: float, **labels: str) -> None:
        send(kind, name, value, self.task.pipeline.name, **labels)


def count_abort(pipeline: str, error: BaseException) -> None:
    """Count an attempt that was aborted because of the error."""
    if is_on():
        with tolerated("sending metrics"):
            send("incr", "aborts", 1, pipeline, reason=_code_in(error))


def send(kind: Literal["incr", "gauge", "timing"], name: str, value: float, pipeline: str, **labels: str) -> None:
    """Send one metric. ``labels``: in the order in which they stand in a name without tags."""
    from airflow.sdk.observability import stats

    tags = {"pipeline": pipeline, **labels}
    stat = f"{PREFIX}.{name}" if _has_tags() else ".".join([PREFIX, pipeline, name, *labels.values()])
    getattr(stats, kind)(stat, value, tags=tags)


def _code_in(error: BaseException | None) -> str:
    """The code of the error that led to an abort, without its prefix."""
    text = error.what if isinstance(error, EpochError) else str(error)
    found = _CODE.search(text) or _CODE.search(str(error))
    return found[0].removeprefix("EPOCHS-") if found else "other"


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
