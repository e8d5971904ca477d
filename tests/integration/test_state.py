"""State from epoch to epoch, with everything real but Airflow; the oracle is plain Python over what was produced."""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import DeltaSink, EventTime, KafkaSource, SparkConnect, StateTable
from airflow_epochs.contracts import Connection
from airflow_epochs.coordinator.admin import Account, waive
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, NoNewData, Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run
from airflow_epochs.operators.transform_file import find_transform
from airflow_epochs.sinks.delta.state_pin import FOLD_EPOCHS_MIN
from airflow_epochs.testing import Crash, run_epoch
from orders_demo.duck import duck
from stack.broker import Broker
from stack.connect import ConnectServer
from tests.support.environment import Environment
from tests.support.faults_world import crash
from tests.support.spark_world import APPS

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]
PARTITIONS = 3
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
SIZE, DELAY = 100, 30
"""Seconds: of a window, and how late a click may be."""
PHASES = (
    "open.landed",
    "stage.start",
    "stage.done",
    "decision.put",
    "decision.landed",
    "commit.open",
    "delta.commit.before",
    "delta.commit.after",
    "committed.hourly",
    "committed.open",
    "complete.put",
    "complete.landed",
)
_numbers = itertools.count()


@dataclass(frozen=True)
class Click:
    partition: int
    offset: int
    page: str
    n: int
    second: int
    """Since START."""


@dataclass
class Lab:
    """A topic of clicks, and pipelines over it."""

    folder: Path
    broker: Broker
    connect: ConnectServer
    sent: list[Click] = field(default_factory=list)
    runs: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.topic = f"clicks{next(_numbers)}"
        self.connections = {
            "kafka": Connection(conn_id="kafka", conn_type="kafka", extra={"bootstrap.servers": self.broker.bootstrap}),
            "spark": Connection(conn_id="spark", conn_type="spark_connect", **self.connect.where),
        }
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result()

    def produce(self, *clicks: tuple[int, str, int, int]) -> None:
        """Clicks as (partition, page, n, second)."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for partition, page, n, second in clicks:
            offset = sum(click.partition == partition for click in self.sent)
            self.sent.append(Click(partition, offset, page, n, second))
            at = (START + timedelta(seconds=second)).isoformat()
            producer.produce(self.topic, json.dumps({"page": page, "n": n, "ts": at}), partition=partition)
        assert producer.flush(30) == 0

    def windows(self, *, then: Mapping[str, Callable[[], None]] | None = None, **event_time: Any) -> Coordinator:
        """What one task process makes of the pipeline of windows."""
        schema = "page string, window_start timestamp, window_end timestamp, clicks bigint, total bigint"
        state = StateTable(
            "open",
            str(self.folder / "open"),
            schema=schema,
            keys=["page", "window_start"],
            expires="window_end",
        )
        outputs = [DeltaSink(name, str(self.folder / name)) for name in ("hourly", "late")]
        times = EventTime(timedelta(seconds=DELAY), max_ahead="100000 days", **event_time)
        return self.task("clicks", "windows", (*outputs, state), times, then)

    def task(
        self,
        name: str,
        function: str,
        sinks: tuple[Any, ...],
        event_time: EventTime | None,
        then: Mapping[str, Callable[[], None]] | None = None,
        app: Path = APPS / "clicks.py",
        backfill: Mapping[str, int] | None = None,
    ) -> Coordinator:
        env = Environment(self.connections, dict(then or {}))
        env.spark = SparkConnect("spark").runner(env)
        pipeline = Pipeline(
            wait_for_others=0,
            name=name,
            dag_id="dag",
            source=KafkaSource(topics=[self.topic], conn_id="kafka", max_wait=0),
            sinks=sinks,
            transform=find_transform(f"{app.name}:{function}", [app.parent]),
            event_time=event_time,
            backfill=backfill or {},
        )
        ledger = Ledger(LocalStore(self.folder / "ledger"), name)
        return Coordinator(TaskTry(pipeline=pipeline, ledger=ledger, env=env))

    def run(self, coordinator: Coordinator) -> None:
        run_epoch(coordinator, Run("dag", f"run{next(self.runs)}"))

    def run_all(self, make: Callable[[], Coordinator]) -> None:
        """Epochs until there is nothing left to do."""
        while True:
            try:
                self.run(make())
            except NoNewData:
                return

    # -- what is there ---------------------------------------------------------------------------------------------

    def rows(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        with duck() as db:
            return db.execute(f"select {columns} from delta_scan(?)", [str(self.folder / table)]).fetchall()

    def require_oracle(self) -> None:
        """Windows out, late clicks and the open rest are what plain Python makes of the clicks and the watermarks."""
        counts: dict[tuple[str, int], int] = defaultdict(int)
        totals: dict[tuple[str, int], int] = defaultdict(int)
        late = set()
        ledger = self.windows().task.ledger
        newest: dict[int, int] = {}
        mark = before = None
        for number in range(1, ledger.newest_complete() + 1):
            record = ledger.complete_record(number)
            assert record
            if newest:
                before = max((min(newest.values()) - DELAY) * 1_000_000 - 1, -(10**18) if mark is None else mark)
            mark = before
            assert _relative(record.watermarks[0]) == mark
            for r in record.ranges[self.topic]:
                for click in self.sent:
                    if click.partition == r.partition and r.start <= click.offset < r.end:
                        start = click.second // SIZE * SIZE
                        if mark is not None and (start + SIZE) * 1_000_000 <= mark:
                            late.add((click.partition, click.offset))
                        else:
                            counts[click.page, start] += 1
                            totals[click.page, start] += click.n
                        newest[click.partition] = max(newest.get(click.partition, -(10**9)), click.second)
        wanted = {key: (counts[key], totals[key]) for key in counts}
        over = {key: value for key, value in wanted.items() if mark is not None and (key[1] + SIZE) * 1_000_000 <= mark}
        hourly = self.rows("hourly", "page, epoch(window_start)::bigint, clicks, total")
        shown = {(page, start - _EPOCH): (clicks, total) for page, start, clicks, total in hourly}
        assert len(shown) == len(hourly), "a window was shown twice"
        assert shown == over
        assert sorted(self.rows("late", '"partition", "offset"')) == sorted(late)
        assert self.open_windows(mark) == {key: value for key, value in wanted.items() if key not in over}
        total = sum(clicks for clicks, _ in (*shown.values(), *self.open_windows(mark).values())) + len(late)
        assert total == len(self.sent)

    def open_windows(self, mark: int | None) -> dict[tuple[str, int], tuple[int, int]]:
        newest = (
            "select *, row_number() over (partition by page, window_start order by __epoch desc) r from delta_scan(?)"
        )
        with duck() as db:
            rows = db.execute(
                "select page, epoch(window_start)::bigint, epoch_us(window_end), clicks, total "
                f"from ({newest}) where r = 1 and not __deleted",
                [str(self.folder / "open")],
            ).fetchall()
        return {
            (page, start - _EPOCH): (clicks, total)
            for page, start, end, clicks, total in rows
            if mark is None or end - _EPOCH * 1_000_000 > mark
        }


_EPOCH = int(START.timestamp())


def _relative(mark: int | None) -> int | None:
    return None if mark is None else mark - _EPOCH * 1_000_000


@pytest.fixture
def lab(tmp_path: Path, broker: Broker, connect: ConnectServer) -> Lab:
    return Lab(tmp_path, broker, connect)


def some_clicks(dice: random.Random, epoch: int) -> list[tuple[int, str, int, int]]:
    return [
        (
            dice.choice([0, 0, 1, 1, 2]) if epoch % 5 else dice.randint(0, 1),
            dice.choice("abcdef"),
            dice.randint(1, 9),
            max(0, epoch * 60 + dice.randint(0, 60) - dice.choice([0, 0, 0, 20, 45, 400])),
        )
        for _ in range(dice.choice([5, 15, 40]))
    ]


def test_windows_close_once_and_late_clicks_are_told_apart(lab: Lab) -> None:
    lab.produce((0, "a", 1, 10), (1, "a", 2, 20), (0, "b", 3, 110))
    lab.run(lab.windows())
    lab.produce((0, "a", 4, 250), (1, "b", 5, 240), (0, "a", 6, 90))
    lab.run(lab.windows())
    lab.produce((1, "b", 7, 30), (0, "c", 8, 260))
    lab.run(lab.windows())
    lab.require_oracle()
    lab.run_all(lab.windows)
    lab.require_oracle()
    assert len(lab.rows("hourly", "*")) == 2
    assert lab.rows("late", '"partition", "offset"') == [(1, 2)]


@pytest.mark.parametrize("first", range(0, len(PHASES), 4))
def test_an_epoch_killed_at_any_phase_leaves_state_and_outputs_as_the_oracle_has_them(lab: Lab, first: int) -> None:
    dice = random.Random(first)
    for epoch, phase in enumerate(PHASES[first : first + 4]):
        lab.produce(*some_clicks(dice, epoch))
        with pytest.raises(Crash):
            lab.run(lab.windows(then={phase: crash}))
        lab.run_all(lab.windows)
    lab.produce(*((partition, "z", 1, 100_000) for partition in range(PARTITIONS)))
    lab.run_all(lab.windows)
    lab.require_oracle()
    assert folds(lab) >= 1, "no epoch has staged the whole state"


def folds(lab: Lab) -> int:
    """How many commits of the state, after the first one, have put all of it into new files."""
    entries = (lab.folder / "open/_delta_log").glob("*.json")
    return sum('\\"epochs\\":0' in path.read_text() for path in entries) - 1


# -- state that must survive ---------------------------------------------------------------------------------------


def seen_pages(lab: Lab, *more: DeltaSink, backfill: Mapping[str, int] | None = None, **options: Any) -> Coordinator:
    """What one task process makes of the pipeline of first clicks, whose outputs depend on what the epoch adds."""
    state = StateTable("seen", str(lab.folder / "seen"), schema="page string, n bigint", keys=["page", "n"], **options)
    sinks = (DeltaSink("firsts", str(lab.folder / "firsts")), state, *more)
    return lab.task("firsts", "unique", sinks, EventTime("0 s", tick=False), backfill=backfill)


def firsts(lab: Lab) -> list[tuple[Any, ...]]:
    return sorted(lab.rows("firsts", "page, n"))


def test_rows_lost_after_the_state_was_committed_are_staged_again_from_the_state_before(lab: Lab) -> None:
    lab.produce((0, "a", 1, 1), (1, "b", 1, 1))
    lab.run(seen_pages(lab))
    lab.produce((0, "a", 1, 2), (0, "c", 1, 2))
    run, task = Run("dag", "struck"), seen_pages(lab)
    task.open(run)
    task.vote(run, task.stage(run).stage)
    task.commit(run, "seen")
    (place,) = (found.places["firsts"] for found in task.task.ledger.tries(2))
    for file in Path(place).rglob("*.parquet"):
        file.unlink()
    task = seen_pages(lab)
    task.commit(run, "firsts")
    task.complete(run)
    assert len(task.task.ledger.restaged(2, "firsts")) == 1
    assert firsts(lab) == [("a", 1), ("b", 1), ("c", 1)]


def test_a_state_that_others_have_changed_stops_the_pipeline_until_the_change_is_undone(lab: Lab) -> None:
    lab.produce((0, "a", 1, 1))
    lab.run(seen_pages(lab))
    table = DeltaTable(str(lab.folder / "seen"))
    table.delete("page = 'a'")
    lab.produce((0, "a", 1, 2))
    with pytest.raises(Corrupt, match="EPOCHS-STATE-CHANGED"):
        lab.run(seen_pages(lab))
    table.restore(0)
    lab.run(seen_pages(lab))
    assert firsts(lab) == [("a", 1)]


def test_a_state_can_neither_be_waived_nor_come_back_after_epochs_without_it(lab: Lab) -> None:
    lab.produce((0, "a", 1, 1))
    run, task = Run("dag", "undone"), seen_pages(lab)
    task.open(run)
    task.vote(run, task.stage(run).stage)
    with pytest.raises(Refused, match="EPOCHS-STATE-NOT-WAIVED"):
        waive(task.task.ledger, 1, "seen", by=Account(who="me", why="why"))
    lab.run_all(lambda: seen_pages(lab))
    lab.produce((0, "b", 1, 2))
    lab.run(lab.task("firsts", "stateless", (DeltaSink("firsts", str(lab.folder / "firsts")),), None))
    lab.produce((0, "c", 1, 3))
    with pytest.raises(Refused, match="EPOCHS-BACKFILL-WITH-STATE"):
        lab.run(seen_pages(lab, DeltaSink("more", str(lab.folder / "more")), backfill={"more": 1}))
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SKIPPED.*'seen' is as of epoch 1, and epochs 2 to 2"):
        lab.run(seen_pages(lab))


def test_a_state_begins_with_the_rows_of_another_table_and_in_no_table_with_rows(lab: Lab) -> None:
    old = str(lab.folder / "old")
    write_deltalake(old, pa.table({"page": ["a", "z"], "n": [1, 1], "more": ["x", "y"]}))
    lab.produce((0, "a", 1, 1), (1, "b", 1, 1))
    lab.run(seen_pages(lab, initial=old))
    assert firsts(lab) == [("b", 1)]
    assert sorted(lab.rows("seen", "page, n, __epoch")) == [("a", 1, 1), ("b", 1, 1), ("z", 1, 1)]
    write_deltalake(old, pa.table({"page": ["c"], "n": [1], "more": ["x"]}), mode="append")
    lab.produce((0, "c", 1, 2))
    lab.run(seen_pages(lab, initial=old))
    assert firsts(lab) == [("b", 1), ("c", 1)], "the state begins once"
    there = StateTable("other", old, schema="page string, n bigint", keys=["page"])
    with pytest.raises(Refused, match="EPOCHS-STATE-NOT-EMPTY"):
        lab.run(lab.task("others", "unique", (DeltaSink("firsts", str(lab.folder / "x")), there), None))


CHANGES = """
def changes(batch, epoch, state):
    return batch.sparkSession.sql({sql!r})
"""
WRONG = {
    "select string(null) as page, bigint(1) as n": "rule of state that its key column page is not NULL",
    "select 'a' as page, explode(array(1L, 2L)) as n": "Some keys change more than once in this epoch: page='a'",
    "select 'a' as page, 1L as m": "they lack n; they have m, which the state does not have",
    "select 'a' as page, 1 as n": "n is int instead of bigint",
}


def changing(
    lab: Lab,
    sql: str,
    schema: str = "page string, n bigint",
    expires: str | None = None,
    keys: Sequence[str] = ("page",),
) -> Coordinator:
    """A pipeline whose only output is its state; the changes of an epoch are what the statement selects."""
    lab.produce((0, "a", 1, 1))
    (lab.folder / "changes.py").write_text(
        CHANGES.format(sql=sql if "__deleted" in sql else f"select *, false as __deleted from ({sql})")
    )
    state = StateTable("seen", str(lab.folder / "seen"), schema=schema, keys=list(keys), expires=expires)
    return lab.task("changes", "changes", (state,), None, app=lab.folder / "changes.py")


def test_changes_that_are_no_state_are_a_vote_to_abort_that_says_why(lab: Lab) -> None:
    for sql, told in WRONG.items():
        with pytest.raises(Refused, match="EPOCHS-GLOBAL-ABORT") as refused:
            lab.run(changing(lab, sql))
        assert told in str(refused.value)
    assert not (lab.folder / "seen/_delta_log").exists()


def test_a_new_column_is_added_and_is_null_in_older_rows_but_no_column_gets_another_type(lab: Lab) -> None:
    lab.run(changing(lab, "select 'a' as page, 1L as n"))
    wide = "page string, more string, n bigint"
    lab.run(changing(lab, "select 'b' as page, 'x' as more, 2L as n", wide))
    assert sorted(lab.rows("seen", "page, n, more")) == [("a", 1, None), ("b", 2, "x")]
    lab.run(changing(lab, "select 'b' as page, 'y' as more, 3L as n", wide))
    assert len(lab.rows("seen", "page, n, more")) == 3
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SCHEMA.*n is bigint there and string in `schema`"):
        lab.run(changing(lab, "select 'c' as page, 'z' as n", "page string, n string"))
    with pytest.raises(Refused, match=r"EPOCHS-STATE-SCHEMA.*`keys` of the state 'seen' is \['n'\], and its rows"):
        lab.run(changing(lab, "select 'c' as page, 'z' as more, 4L as n", wide, keys=["n"]))
    lab.run(changing(lab, "select 'c' as page, 'z' as more, 4L as n", wide))
    assert sorted(lab.rows("seen", "page, n"))[-1] == ("c", 4)


@pytest.mark.parametrize("earlier_epochs", [1, FOLD_EPOCHS_MIN + 1], ids=["among changes", "in a fold"])
def test_an_end_that_falls_is_a_vote_to_abort_since_an_older_row_would_come_back(lab: Lab, earlier_epochs: int) -> None:
    schema, until = "page string, until timestamp", "select 'a' as page, timestamp'2026-01-01 {}:00:00Z' as until"
    for _ in range(earlier_epochs):
        lab.run(changing(lab, until.format(12), schema, "until"))
    with pytest.raises(Refused, match=r"(For some keys until is earlier|rule of state that until never falls)"):
        lab.run(changing(lab, until.format(11), schema, "until"))
    lab.run(changing(lab, until.format(13), schema, "until"))
    assert len(lab.rows("seen", "page")) == (1 if earlier_epochs > 1 else 2)
    gone = "select 'a' as page, timestamp(null) as until, true as __deleted"
    lab.run(changing(lab, gone, schema, "until"))
    lab.run(changing(lab, until.format(11), schema, "until"))
