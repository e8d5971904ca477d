"""DAGs of data intervals in Airflow's own code: backfills, partitions, runs without an interval; over a real broker."""

from __future__ import annotations

import itertools
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from airflow.sdk import DAG, CronDataIntervalTimetable, CronPartitionTimetable
from airflow.triggers.base import TriggerEvent
from confluent_kafka import Producer

from airflow_epochs import DeltaSink, KafkaSource
from airflow_epochs.contracts import Past
from airflow_epochs.coordinator import opening
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.errors import NotApplied
from airflow_epochs.hooks.retrying import Retry
from airflow_epochs.ledger.overview import pipeline_row
from airflow_epochs.page.airflow_runs import AirflowRuns
from airflow_epochs.pipeline import EpochPipeline
from stack.broker import Broker
from tests.support.airflow_harness import Harness
from tests.support.deferred_world import deferred, submit, trigger_of
from tests.support.faults_disk import PARTITIONS as PARTITION_NUMBERS
from tests.support.kafka_staging import TopicSpark
from tests.support.page_lab import Browser
from tests.support.remedies import in_the_environment, ordered
from tests.support.sql_world import new_sqlite
from tests.support.topic_world import TopicWorld

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.jvm, pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]
_numbers = itertools.count()

NINE = datetime.now(timezone.utc).replace(hour=9, minute=0, second=0, microsecond=0) - timedelta(days=1)
HOUR = timedelta(hours=1)
EVERY_HOUR = CronDataIntervalTimetable("@hourly", timezone="UTC")
PARTITIONS = CronPartitionTimetable("@hourly", timezone="UTC", run_offset=-1)


class FailingSpark:
    """Stages what lies in the topic, in this process; or does not."""

    fails = False

    def runner(self, env: Any) -> TopicSpark:
        if self.fails:
            raise NotApplied("Spark fell over.", remedy="try again.")
        return TopicSpark(env.reached)


class Lab:
    """A topic with the records a, b, c, d of four hours, and a DAG of a pipeline into a table."""

    def __init__(self, world: TopicWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.spark = world, FailingSpark()
        ledger = {"conn_type": "epochs", "extra": {"ledger_root": str(world.ledger_root)}}
        monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(ledger))
        for name, value in in_the_environment(world.kafka).items():
            monkeypatch.setenv(name, value)
        (world.folder / "orders.py").write_text("def orders(batch, epoch): ...\n")
        world.create_topic()
        for number, payload in enumerate("abcd"):
            world.produce(payload, at=NINE + number * HOUR)

    def dag(
        self,
        schedule: Any,
        *,
        dag_id: str = "",
        deferrable: bool = False,
        on_failed_epoch: str | None = None,
        **source: Any,
    ) -> Harness:
        options = {"conn_id": "kafka", "max_wait": 0, "bounds": "data_interval", **source}
        name = dag_id or f"intervals_{next(_numbers)}"
        with DAG(name, schedule=schedule, start_date=NINE, catchup=False, max_active_runs=1) as dag:
            EpochPipeline(
                self.world.name,
                source=KafkaSource([self.world.topic()], **options),
                transform=f"{self.world.folder / 'orders.py'}:orders",
                sinks=[DeltaSink("lake", str(self.world.folder / "lake"))],
                spark=self.spark,  # type: ignore[arg-type]  # the double has the runner's methods itself
                wait_for_others=0,
                deferrable=deferrable,
                on_failed_epoch=on_failed_epoch,
                operator_args={"retries": 0},
            )
        return Harness(dag)

    def shown(self) -> str:
        return self.world.shown("lake")


@pytest.fixture
def lab(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    name = f"{abs(hash(request.node.name)):x}"
    return Lab(TopicWorld(folder=tmp_path, broker=broker, db=new_sqlite(tmp_path), id=name), monkeypatch)


def test_a_backfill_makes_an_epoch_of_each_hour_and_again_after_a_rewind(lab: Lab) -> None:
    dag = lab.dag(EVERY_HOUR)
    runs = dag.backfill(NINE, NINE + 2 * HOUR)
    shown = []
    for run in runs:
        assert dag.drive(run).state == "success"
        shown.append(lab.shown())
    assert shown == ["a", "ab", "abc"]
    again = dag.backfill(NINE, NINE + 2 * HOUR, again=True)
    assert again == runs, "Airflow clears them"
    assert [dag.drive(run).tasks["orders.complete"] for run in again] == ["success"] * 3
    assert (lab.shown(), lab.world.ledger.newest_complete()) == ("abc", 3), "and each passes its own epoch on"
    words = ["--to-timestamp", (NINE + HOUR).isoformat(), "--why", "a mistake in the transform"]
    ordered(lab.world.ledger_root, "epochs", "rewind", lab.world.name, *words)
    shown = []
    for run in dag.backfill(NINE + HOUR, NINE + 3 * HOUR, again=True):
        assert dag.drive(run).state == "success"
        shown.append(lab.shown())
    assert shown == ["abbc", "abbcc", "abbccd"], "two of the runs are the old ones, with an epoch each"
    assert dag.clear(runs[1], "open", "complete").xcoms["orders.complete"]["epoch"] == 4
    assert dag.clear(runs[0]).xcoms["orders.complete"]["epoch"] == 1
    assert lab.shown() == "abbccd"


def test_a_run_waits_in_the_triggerer_for_the_end_of_the_grace_and_takes_what_came_late(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = lab.dag(EVERY_HOUR, deferrable=True, grace="100h")
    last = NINE + 3 * HOUR
    over = last + 101 * HOUR
    [run] = dag.backfill(last, last)
    waits = iter(["it is woken too early, by another machine's clock", "the time is over"])

    def triggerer() -> None:
        task = deferred(dag.dag.dag_id)
        assert task and task.task_id == "orders.open" and lab.world.ledger.newest_complete() == 0
        assert trigger_of(task.trigger_id).moment == over
        if next(waits) == "the time is over":
            lab.world.produce("e", at=last)
            monkeypatch.setattr(opening, "Past", lambda **past: Past(**{**past, "clock": lambda: over}))
        submit(task.trigger_id, TriggerEvent(over))

    assert dag.drive(run, triggerer).state == "success"
    assert not list(waits) and lab.shown() == "de"


@pytest.mark.long
def test_a_run_that_is_read_again_is_retried_shown_and_named_as_airflow_knows_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    dag, name = lab.dag(EVERY_HOUR), lab.world.name
    for run in dag.backfill(NINE, NINE + HOUR):
        assert dag.drive(run).state == "success"
    ordered(lab.world.ledger_root, "epochs", "rewind", name, "--to-timestamp", NINE.isoformat(), "--why", "x")
    first, second = dag.backfill(NINE, NINE + HOUR, again=True)
    conditions = seen_while_it_stages(lab, monkeypatch)
    lab.spark.fails = True
    assert dag.drive(first).state == "failed"
    assert conditions[0] == ("running", "")
    assert dag.drive(second).tasks["orders.open"] == "failed"
    assert f"it clears the tasks of run {first} of DAG" in capsys.readouterr().out
    retry = Retry.of(lab.world.ledger, name)
    assert retry.run_id == first
    retry.do(lab.world.ledger, Account(who="ana", why="Spark has room again"))
    lab.spark.fails = False
    assert dag.drive(first).state == "success"
    assert dag.clear(second).state == "success" and lab.shown() == "aabb"
    with (browser := Browser("VIEWER")).client:
        tab = browser.text(f"/epochs/dags/{dag.dag.dag_id}/runs/{quote(first)}")
    assert f"{name}, epoch 1" in tab and f"{name}, epoch 3" in tab


def seen_while_it_stages(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the page says of the pipeline each time that Spark is asked for."""
    seen: list[tuple[str, str]] = []
    stage = FailingSpark.runner

    def runner(spark: FailingSpark, env: Any) -> TopicSpark:
        row = pipeline_row(lab.world.name, lab.world.ledger)
        seen.append(AirflowRuns.of([row]).condition(row))
        return stage(spark, env)

    monkeypatch.setattr(FailingSpark, "runner", runner)
    return seen


@pytest.mark.long
def test_deleted_runs_and_a_failed_one_are_read_again_after_a_rewind_too(lab: Lab) -> None:
    dag = lab.dag(EVERY_HOUR, missed="refuse", starting=NINE.isoformat())
    assert [dag.drive(run).state for run in dag.backfill(NINE, NINE + HOUR)] == ["success"] * 2
    ordered(lab.world.ledger_root, "epochs", "rewind", lab.world.name, "--to-timestamp", NINE.isoformat(), "--why", "x")
    dag.forget()
    first, second = dag.backfill(NINE, NINE + HOUR)
    assert dag.drive(second).tasks["orders.open"] == "failed", "the hour before comes first"
    lab.spark.fails = True
    assert dag.drive(first).tasks["orders.stage"] == "failed"
    assert dag.clear(second, only_failed=True).tasks["orders.open"] == "failed", "its epoch is aborted, and its own"
    lab.spark.fails = False
    for run in (first, second):
        assert dag.clear(run, only_failed=True).state == "success"
    assert (lab.shown(), lab.world.ledger.newest_complete()) == ("aabb", 4)


@pytest.mark.long
def test_hours_without_records_have_their_place_in_history_that_is_read_again(lab: Lab) -> None:
    lab.world.produce("e", at=NINE + 5 * HOUR)
    three, five = NINE + 3 * HOUR, NINE + 5 * HOUR
    dag = lab.dag(EVERY_HOUR, missed="refuse", starting=three.isoformat())
    for again in (False, True):
        assert [dag.drive(run).state for run in dag.backfill(three, five, again=again)] == ["success"] * 3
        words = ["--to-timestamp", three.isoformat(), "--why", "once more"]
        ordered(lab.world.ledger_root, "epochs", "rewind", lab.world.name, *words)
    assert lab.shown() == "ddee"


@pytest.mark.few(1)
@pytest.mark.parametrize("command", [pytest.param("--to-timestamp", marks=pytest.mark.long), "--to-epoch"])
@pytest.mark.long
def test_after_a_rewind_to_a_later_hour_a_run_without_records_before_it_passes_its_epoch_on(
    lab: Lab, command: str
) -> None:
    lab.world.produce("e", at=NINE + 5 * HOUR)
    three, five = NINE + 3 * HOUR, NINE + 5 * HOUR
    dag = lab.dag(EVERY_HOUR, starting=three.isoformat())
    _, empty, _ = runs = dag.backfill(three, five)
    assert [dag.drive(run).state for run in runs] == ["success"] * 3
    to = five.isoformat() if command == "--to-timestamp" else "2"
    ordered(lab.world.ledger_root, "epochs", "rewind", lab.world.name, command, to, "--why", "once more")
    [again] = dag.backfill(five, five, again=True)
    assert (dag.drive(again).state, lab.shown()) == ("success", "dee")
    cleared = dag.clear(empty)
    assert (cleared.state, cleared.xcoms["orders.complete"]["epoch"]) == ("success", 2)
    assert (lab.shown(), lab.world.ledger.newest_complete()) == ("dee", 4)


@pytest.mark.long
def test_a_rewind_to_an_hour_does_not_begin_at_the_end_of_a_transaction_of_the_hour_before(lab: Lab) -> None:
    """A broker wrote that end today: brokers find it in place of the first record of the hour."""
    three, four, five = (NINE + number * HOUR for number in (3, 4, 5))
    in_a_transaction(lab, "x", three + HOUR / 3)
    lab.world.produce("y", at=three + HOUR / 2)
    lab.world.produce("e", at=five)
    dag = lab.dag(EVERY_HOUR, starting=three.isoformat())
    first, *later = dag.backfill(three, five)
    assert [dag.drive(run).state for run in (first, *later)] == ["success"] * 3
    words = ["--to-timestamp", four.isoformat(), "--why", "once more"]
    ordered(lab.world.ledger_root, "epochs", "rewind", lab.world.name, *words)
    assert [dag.drive(run).state for run in dag.backfill(four, five, again=True)] == ["success"] * 2
    assert lab.shown() == "deexy"
    cleared = dag.clear(first)
    assert (cleared.state, cleared.xcoms["orders.complete"]["epoch"]) == ("success", 1)
    assert (lab.shown(), lab.world.ledger.newest_complete()) == ("deexy", 5)


def in_a_transaction(lab: Lab, payload: str, of: datetime) -> None:
    producer = Producer({"bootstrap.servers": lab.world.broker.bootstrap, "transactional.id": lab.world.topic()})
    producer.init_transactions(20)
    producer.begin_transaction()
    value = json.dumps({"source": lab.world.topic(), "payload": payload})
    producer.produce(lab.world.topic(), value, partition=PARTITION_NUMBERS[0], timestamp=int(of.timestamp() * 1000))
    producer.commit_transaction(20)


def test_a_backfill_that_runs_backwards_loses_nothing_and_doubles_nothing(lab: Lab) -> None:
    dag = lab.dag(EVERY_HOUR, starting=NINE.isoformat())
    outcomes = [dag.drive(run) for run in dag.backfill(NINE, NINE + 2 * HOUR, backwards=True)]
    assert [outcome.tasks["orders.open"] for outcome in outcomes] == ["success", "skipped", "skipped"]
    assert [outcome.state for outcome in outcomes] == ["success"] * 3
    assert (lab.shown(), lab.world.ledger.newest_complete()) == ("abc", 1)


@pytest.mark.long
def test_a_backfill_that_runs_backwards_after_a_rewind_reads_once_more_and_its_other_runs_are_skipped(lab: Lab) -> None:
    dag = lab.dag(EVERY_HOUR, starting=NINE.isoformat())
    assert [dag.drive(run).state for run in dag.backfill(NINE, NINE + 3 * HOUR)] == ["success"] * 4
    words = ["--to-timestamp", (NINE + HOUR).isoformat(), "--why", "a mistake in the transform"]
    ordered(lab.world.ledger_root, "epochs", "rewind", lab.world.name, *words)
    again = dag.backfill(NINE + HOUR, NINE + 3 * HOUR, again=True, backwards=True)
    outcomes = [dag.drive(run) for run in again]
    assert [outcome.tasks["orders.open"] for outcome in outcomes] == ["success", "skipped", "skipped"]
    assert [outcome.state for outcome in outcomes] == ["success"] * 3
    assert (lab.shown(), lab.world.ledger.newest_complete()) == ("abbccdd", 5)


def test_the_asset_events_of_a_partition_carry_its_key_also_when_its_run_is_cleared(lab: Lab) -> None:
    dag = lab.dag(PARTITIONS)
    runs = dag.backfill(NINE, NINE + HOUR)
    keys = [(NINE + number * HOUR).strftime("%Y-%m-%dT%H:%M:%S") for number in (0, 1)]
    for run, key, shown in zip(runs, keys, ("a", "ab"), strict=True):
        assert dag.drive(run).state == "success"
        assert (dag.partition_keys(run), lab.shown()) == ([key], shown)
    assert dag.clear(runs[0]).state == "success"
    assert dag.partition_keys(runs[0]) == [keys[0]] * 2
    [*twice] = dag.backfill(NINE, NINE + HOUR, again=True)
    assert not {*twice} & {*runs}, "Airflow makes new runs"
    assert [dag.drive(run).tasks["orders.open"] for run in twice] == ["skipped"] * 2
    assert lab.shown() == "ab"


@pytest.mark.long
def test_after_a_run_took_a_failed_epoch_over_the_next_one_reads_both_intervals_as_the_page_says(lab: Lab) -> None:
    def dag(on_failed_epoch: str, missed: str) -> Harness:
        return lab.dag(
            EVERY_HOUR,
            dag_id="intervals_taken_over",
            on_failed_epoch=on_failed_epoch,
            missed=missed,
            starting=NINE.isoformat(),
        )

    first, second, third = dag("block", "refuse").backfill(NINE, NINE + 2 * HOUR)
    lab.spark.fails = True
    assert dag("block", "refuse").drive(first).state == "failed"
    lab.spark.fails = False
    assert (dag("take_over", "refuse").drive(second).state, lab.shown()) == ("success", "a")
    assert (dag("block", "refuse").drive(third).state, lab.shown()) == ("failed", "a")
    assert (dag("block", "read").clear(third).state, lab.shown()) == ("success", "abc")


@pytest.mark.parametrize("schedule", [None, "@hourly"], ids=["no schedule", "a cron text"])
def test_a_run_without_an_interval_is_red_and_changes_nothing(lab: Lab, schedule: str | None) -> None:
    dag = lab.dag(schedule)
    outcome = dag.run("by_hand", interval=(NINE, NINE) if schedule else None)
    assert (outcome.state, outcome.tasks["orders.open"]) == ("failed", "failed")
    assert lab.world.ledger.open_record(1, 1) is None


def test_a_run_by_hand_reads_the_hour_before(lab: Lab) -> None:
    from airflow.timetables.interval import CronDataIntervalTimetable as Scheduled
    from pendulum import instance

    interval = Scheduled("@hourly", timezone="UTC").infer_manual_data_interval(run_after=instance(NINE + 1.5 * HOUR))
    assert lab.dag(EVERY_HOUR).run("by_hand", interval=interval).state == "success"
    assert lab.shown() == "a"
