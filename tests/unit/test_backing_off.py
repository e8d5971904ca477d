"""How long a run of an ``@continuous`` DAG waits after runs that failed. On a real scheduler: tests/e2e."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred

from airflow_epochs.operators.backing_off import pause_after, pause_of
from airflow_epochs.operators.epoch import OpenEpochOperator
from airflow_epochs.operators.single import EpochsOperator
from tests.unit.test_operator_errors import operator

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


class TaskInstance:
    """What Airflow answers about the runs before: ``states``, the newest first, a minute apart."""

    def __init__(self, states: list[str], try_number: int = 1) -> None:
        self.runs = [(NOW - timedelta(minutes=n + 1), f"run_{n}", state) for n, state in enumerate(states)]
        self.try_number, self.asked = try_number, 0

    def get_previous_ti(self, *, logical_date: datetime) -> Any:
        self.asked += 1
        found = [(at, name) for at, name, _ in self.runs if at < logical_date]
        return SimpleNamespace(logical_date=found[0][0], dag_id="d", run_id=found[0][1]) if found else None

    def get_dagrun_state(self, dag_id: str, run_id: str) -> str:
        return next(state for _, name, state in self.runs if name == run_id)


def context_of(
    ti: Any,
    schedule: str = "@continuous",
    run_type: str = "scheduled",
    at: datetime | None = NOW,
    *,
    timeout: timedelta | None = None,
    since: timedelta = timedelta(0),
) -> Any:
    """What Airflow gives the task of a run that has begun ``since`` ago, and may last for ``timeout``."""
    with DAG("d", schedule=schedule, max_active_runs=1, dagrun_timeout=timeout) as dag:
        run = SimpleNamespace(run_type=run_type, logical_date=at, start_date=datetime.now(timezone.utc) - since)
    return {"dag": dag, "dag_run": run, "ti": ti, "logical_date": at, "params": {}}


def test_the_pause_doubles_and_has_a_bound() -> None:
    assert [pause_after(failed) for failed in range(9)] == [0, 5, 10, 20, 40, 80, 160, 300, 300]


@pytest.mark.parametrize(
    ("states", "seconds"),
    [
        ([], 0),
        (["success", "failed", "failed"], 0),
        (["failed"], 5),
        (["failed", "failed", "failed", "success", "failed"], 20),
        (["failed"] * 50, 300),
    ],
    ids=str,
)
def test_only_the_failed_runs_since_the_last_good_one_count(
    states: list[str], seconds: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert pause_of(context_of(TaskInstance(states))) == seconds
    assert [f"This run waits {seconds} s" in line for line in caplog.messages] == ([True] if seconds else [])


def test_no_more_runs_are_asked_for_than_the_longest_pause_needs(caplog: pytest.LogCaptureFixture) -> None:
    ti = TaskInstance(["failed"] * 50)
    pause_of(context_of(ti))
    assert ti.asked == 8
    assert "at least 8 runs of this DAG failed one after another" in caplog.text


@pytest.mark.parametrize(
    ("failed", "words"), [(1, "the last run of this DAG failed."), (2, "2 runs of this DAG failed one after another.")]
)
def test_the_log_says_how_many_runs_failed(failed: int, words: str, caplog: pytest.LogCaptureFixture) -> None:
    pause_of(context_of(TaskInstance(["failed"] * failed)))
    assert words in caplog.text


@pytest.mark.parametrize(
    ("minutes", "since", "most_s"), [(10, 0, 60), (30, 20, 60), (10, 11, 0), (1, 0, 6), (600, 0, 300)], ids=str
)
def test_the_pause_takes_a_tenth_of_what_is_left_of_the_dagrun_timeout_at_most(
    minutes: int, since: int, most_s: int, caplog: pytest.LogCaptureFixture
) -> None:
    timeout, begun = timedelta(minutes=minutes), timedelta(minutes=since)
    pause_s = pause_of(context_of(TaskInstance(["failed"] * 8), timeout=timeout, since=begun))
    assert most_s * 0.8 <= pause_s <= most_s
    assert (f"This run waits {pause_s} s" in caplog.text) == bool(pause_s)
    assert ("dagrun_timeout" in caplog.text) == (0 < most_s < 300)


@pytest.mark.parametrize("timeout", [timedelta(minutes=4), None], ids=str)
@pytest.mark.parametrize("kind", [OpenEpochOperator, EpochsOperator])
def test_a_run_has_begun_its_work_long_before_its_dagrun_timeout_ends_it(
    kind: Any, timeout: timedelta | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    step = operator(kind)
    monkeypatch.setattr(step, "_told", lambda context: {"at work after": sum(waited)})
    worked = step.execute(context_of(TaskInstance(["failed"] * 8), timeout=timeout))
    assert worked["at work after"] <= (24 if timeout else 300) and waited


def test_the_triggerer_wakes_a_run_long_before_its_dagrun_timeout_ends_it() -> None:
    step = operator(OpenEpochOperator, deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        step.execute(context_of(TaskInstance(["failed"] * 8), timeout=timedelta(minutes=4)))
    assert cast(Any, deferred.value.trigger).moment - datetime.now(timezone.utc) <= timedelta(seconds=24)


@pytest.mark.parametrize(
    ("how", "tries"),
    [
        ({"schedule": "@hourly"}, 1),
        ({"run_type": "manual"}, 1),
        ({"run_type": "manual", "at": None}, 1),
        ({}, 2),
    ],
    ids=["by the clock", "by hand", "without a date", "cleared or retried"],
)
def test_a_run_that_somebody_waits_for_does_not_wait(how: dict[str, Any], tries: int) -> None:
    ti = TaskInstance(["failed"] * 5, tries)
    assert (pause_of(context_of(ti, **how)), ti.asked) == (0, 0)


def test_an_answer_that_never_gets_older_ends_the_count() -> None:
    ti = TaskInstance(["failed"])
    ti.get_previous_ti = lambda **_: SimpleNamespace(logical_date=NOW, dag_id="d", run_id="run_0")  # type: ignore[method-assign]
    assert pause_of(context_of(ti)) == 0


def test_a_run_does_not_wait_where_airflow_cannot_be_asked(caplog: pytest.LogCaptureFixture) -> None:
    ti = TaskInstance(["failed"])

    def no_answer(**_: object) -> Any:
        raise ConnectionError("no answer")

    ti.get_previous_ti = no_answer  # type: ignore[method-assign]
    assert pause_of(context_of(ti)) == 0
    assert "counting the runs that failed before this one failed" in caplog.text
