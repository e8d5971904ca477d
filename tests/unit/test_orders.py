"""Commands about the next epoch, at every moment at which a run and an operator can meet. No broker is needed."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from functools import partial
from typing import cast
from unittest.mock import Mock

import pytest
from airflow.sdk import Context

from airflow_epochs import codes
from airflow_epochs.contracts import Before, Environment, Limits, Movable, Move, PlannedEpoch, Position
from airflow_epochs.coordinator import state_tables
from airflow_epochs.coordinator.admin import admin
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.inspection.preview import preview
from airflow_epochs.coordinator.orders import earlier_ends, orders, rewinding, wording
from airflow_epochs.coordinator.orders.outlook import Outcome, Outlook, outlook
from airflow_epochs.coordinator.orders.read_before import read_in_rows
from airflow_epochs.errors import Corrupt, Fenced, NoNewData, Refused
from airflow_epochs.ledger import run_ids
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import EpochRow, position_of_next
from airflow_epochs.ledger.signing import Keys
from airflow_epochs.model import (
    CompleteRecord,
    DecisionKind,
    DecisionRecord,
    OffsetRange,
    OpenRecord,
    RestorePoint,
    Run,
    SinkPlan,
    StatePin,
    TransactionId,
    ends_of,
)
from airflow_epochs.operators.epoch import EpochOperator, StageEpochOperator, VoteEpochOperator
from airflow_epochs.protocol import State
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.kafka.sink import KafkaSink
from airflow_epochs.sinks.sql.sink import SqlSink
from airflow_epochs.testing import DictStore, MemoryEnvironment, MemorySource, Observed, memory_coordinator
from tests.support.records import rebuilt_to
from tests.support.scenario import BOTH, Scenario, abort, crashes, in_doubt, moments, observed_run, run
from tests.unit.test_operator_errors import operator

ME = Account(who="me", why="the cluster is too small", host="here")


@pytest.fixture
def scenario() -> Scenario:
    """One complete epoch of ten records; four more wait."""
    scenario = Scenario()
    scenario.airflow_run(run(1))
    scenario.produce(4)
    return scenario


class NoLongerRead(MemorySource):
    """A source whose topics the DAG does not name any more. Retention has deleted their records, or not."""

    def __init__(self, world: str, kept: bool) -> None:
        super().__init__(world=world, topics=("orders",))
        self.kept = kept

    def leaves_out(self, topic: str) -> bool:
        return True

    def to_offsets(self, position: Position, offsets: dict[str, dict[int, int]], env: object) -> Move:
        if not self.kept:
            raise Refused("Its records are gone.", code=codes.OFFSETS_UNUSABLE)
        ends = ends_of(position.ranges)
        again = {t: tuple(OffsetRange(p, to, ends[t, p]) for p, to in of.items()) for t, of in offsets.items()}
        there = {t: tuple(r._replace(end=r.start) for r in of) for t, of in again.items()}
        return Move(position=Position(ranges=there, state=position.state), again=again, ahead=again)


def standing(scenario: Scenario) -> orders.BetweenEpochs:
    return orders.standing(scenario.ledger, "orders")


def replanned(scenario: Scenario, at: orders.BetweenEpochs | None = None) -> OpenRecord:
    at, source = at or standing(scenario), scenario.pipeline.source
    assert isinstance(source, Before)
    return orders.put(scenario.ledger, at, "replan", ME, orders.replan(at, source))


def moved(scenario: Scenario, partition: int, offset: int) -> OpenRecord:
    """As ``skip --offsets`` puts it, for one partition."""
    at = standing(scenario)
    return orders.put(
        scenario.ledger, at, "skip", ME, looked(scenario, at, to_offset(scenario, partition, offset)).move
    )


def to_offset(scenario: Scenario, partition: int, offset: int) -> Move:
    """One partition goes on at an offset."""
    position = standing(scenario).position(before(scenario))
    there = OffsetRange(partition, offset, offset)
    ranges = tuple(there if r.partition == partition else r for r in position.ranges["orders"])
    again = tuple(OffsetRange(partition, offset, r.end) for r in position.ranges["orders"] if r.partition == partition)
    back = {"orders": again} if again[0].start < again[0].end else {}
    return Move(
        position=Position(ranges={"orders": ranges}, state=position.state), again=back, ahead={"orders": (there,)}
    )


def before(scenario: Scenario) -> Before:
    source = scenario.pipeline.source
    assert isinstance(source, Before)
    return source


def looked(scenario: Scenario, at: orders.BetweenEpochs, move: Move, back: orders.Restoration | None = None) -> Outlook:
    return outlook(scenario.ledger, at, before(scenario), move, restoration=back)


def aborted(scenario: Scenario, number: int) -> OpenRecord:
    """An attempt of run ``number`` that is aborted."""
    opened = scenario.coordinator().open(run(number))
    assert isinstance(opened, OpenRecord)
    abort(scenario.coordinator(), run(number))
    return opened


def decided(order: OpenRecord, kind: DecisionKind) -> DecisionRecord:
    """A decision on a command, which no task of this version makes."""
    return DecisionRecord(
        txn_id=order.txn_id,
        decision=kind,
        reason="found undecided",
        votes={},
        dag_id="dag",
        run_id="an old one",
        decided_at="now",
        writer="an old one",
    )


def test_a_command_is_an_attempt_that_counts_as_aborted_and_the_next_one_obeys_it(
    scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    aborted(scenario, 2)
    order = replanned(scenario)
    view = scenario.ledger.view(2)
    assert (view.state, view.opened, order.txn_id.attempt) == (State.ABORTED, order, 2)
    with caplog.at_level(logging.INFO):
        again = scenario.coordinator().open(run(3))
    assert "epoch 2 obeys `replan` of me: the cluster is too small" in caplog.messages
    assert isinstance(again, OpenRecord)
    assert (again.txn_id.attempt, again.obeys, again.command, again.moved) == (3, 2, None, False)
    assert scenario.airflow_run(run(3)) is None
    complete = scenario.ledger.complete_record(2)
    assert complete and [command.why for command in complete.commands] == ["the cluster is too small"]
    scenario.settle()


def test_airflow_knows_a_run_that_is_read_again_by_its_old_id(scenario: Scenario) -> None:
    ledger, first = scenario.ledger, run_ids.again(run(1), 2)
    assert run_ids.read_again(ledger, run(1)) == []
    moved(scenario, 0, 3)
    assert run_ids.read_again(ledger, run(1)) == [first], "while the command waits"
    assert scenario.airflow_run(first) is None
    moved(scenario, 0, 3)
    second = run_ids.again(run(1), 3)
    assert scenario.airflow_run(second) is None
    assert run_ids.read_again(ledger, run(1)) == [second, first]
    for known in (run(1), run_ids.nth(run(1), 2), first, second, run_ids.nth(second, 3)):
        assert run_ids.airflow_run(ledger, known) == run(1)


@pytest.mark.parametrize("users", [Run("dag", "by hand~2"), run_ids.again(run(1), 1)])
def test_a_run_id_of_the_user_s_that_ends_like_one_that_is_read_again_is_left_as_it_is(
    scenario: Scenario, users: Run
) -> None:
    moved(scenario, 0, 3)
    assert scenario.airflow_run(users) is None
    assert run_ids.airflow_run(scenario.ledger, users) == users


def test_a_command_that_moves_the_input_stays_in_force_when_its_attempt_is_aborted(scenario: Scenario) -> None:
    moved(scenario, 0, 6)
    first, second = aborted(scenario, 2), aborted(scenario, 3)
    assert first.ranges == second.ranges == {"orders": (OffsetRange(0, 6, 7), OffsetRange(1, 5, 7))}
    assert (second.obeys, second.moved) == (1, True)
    assert scenario.airflow_run(run(4)) is None
    complete = scenario.ledger.complete_record(2)
    assert complete and complete.moved_in == 2
    scenario.produce(2)
    assert scenario.airflow_run(run(5)) is None
    later = scenario.ledger.complete_record(3)
    assert later and (later.moved_in, later.commands) == (2, ())


def test_an_epoch_obeys_the_newest_of_two_moves_and_both_stay_on_record(scenario: Scenario) -> None:
    moved(scenario, 0, 6)
    moved(scenario, 1, 6)
    moved(scenario, 0, 5)
    assert scenario.airflow_run(run(2)) is None
    complete = scenario.ledger.complete_record(2)
    assert complete and complete.ranges == {"orders": (OffsetRange(0, 5, 7), OffsetRange(1, 6, 7))}
    assert len(complete.commands) == 3


def test_no_epoch_says_where_to_go_on_from_when_a_command_for_another_topic_is_on_record(scenario: Scenario) -> None:
    at, source = standing(scenario), scenario.pipeline.source
    assert isinstance(source, Before)
    position = at.position(source)
    assert earlier_ends.ends_after(scenario.ledger, at, 1) == {"orders": {0: 5, 1: 5}}
    orders.put(scenario.ledger, at, "reset-source", ME, Move(position=position, left=position.ranges))

    def require_refused() -> None:
        with pytest.raises(Refused, match=r"EPOCHS-OFFSETS-UNUSABLE: .* moves the pipeline to other topics in epoch 2"):
            earlier_ends.ends_after(scenario.ledger, standing(scenario), 1)

    require_refused()
    aborted(scenario, 2)
    require_refused()
    moved(scenario, 0, 6)
    require_refused()
    assert scenario.airflow_run(run(3)) is None
    assert earlier_ends.ends_after(scenario.ledger, standing(scenario), 2) == {"orders": {0: 7, 1: 7}}


@pytest.mark.parametrize(
    ("kept", "restored", "line"),
    [
        (True, False, "read again only once `topics` has them again, so their rows come twice then: {}"),
        (
            True,
            True,
            "read again only once `topics` has them again; until then, their rows of epochs 2 to 3 are gone from the "
            "tables: {}",
        ),
        (False, False, "orders stays where it is: the DAG no longer reads it, and its older records are gone."),
        (
            False,
            True,
            "orders stays where it is: the DAG no longer reads it, and its older records are gone. Its rows of epochs "
            "2 to 3 go from the tables, and cannot be read again.",
        ),
    ],
)
def test_a_rewind_tells_what_becomes_of_rows_of_a_topic_that_the_dag_no_longer_reads(
    scenario: Scenario, kept: bool, restored: bool, line: str
) -> None:
    assert scenario.airflow_run(run(2)) is None
    scenario.produce(2)
    assert scenario.airflow_run(run(3)) is None
    at, source = standing(scenario), NoLongerRead(scenario.world.name, kept)
    move = rewinding.to_epoch(scenario.ledger, at, cast(Movable, source), 1, MemoryEnvironment())
    tables = orders.Restoration(epoch=1, points={"orders": RestorePoint(epoch=1, version=0)})
    look = outlook(scenario.ledger, at, source, move, restoration=tables if restored else None)
    lines = wording.told(scenario.ledger, at, look)
    assert f"  {line.format('6 offsets, orders[0] [5, 8), orders[1] [5, 8)')}" in lines
    assert "  there to be read now: nothing" in lines
    assert not any(each.startswith(("  read again, ", "  read again: ")) for each in lines)


def told_of(scenario: Scenario, start: int) -> list[str]:
    """What a rewind of partition 0 to ``start`` tells of rows that come, and come twice."""
    at = standing(scenario)
    lines = wording.told(scenario.ledger, at, looked(scenario, at, to_offset(scenario, 0, start)))
    return [line.strip() for line in lines if "read again" in line or "not read" in line]


def test_a_rewind_tells_which_rows_any_complete_epoch_has_read_over_all_commands_before(scenario: Scenario) -> None:
    assert told_of(scenario, 3) == ["read again, so rows that are there come twice: 2 offsets, orders[0] [3, 5)"]
    moved(scenario, 0, 6)
    assert told_of(scenario, 3) == ["read again, so rows that are there come twice: 2 offsets, orders[0] [3, 5)"]
    assert scenario.airflow_run(run(2)) is None
    assert told_of(scenario, 3) == [
        "not read by any epoch yet: 1 offsets, orders[0] [5, 6)",
        "read again, so rows that are there come twice: 3 offsets, orders[0] [3, 5), orders[0] [6, 7)",
    ]
    moved(scenario, 0, 4)
    assert scenario.airflow_run(run(3)) is None
    assert told_of(scenario, 3) == ["read again, so rows that are there come twice: 4 offsets, orders[0] [3, 7)"]


def test_a_rewind_tells_that_rows_of_another_topic_of_the_same_name_were_not_read(scenario: Scenario) -> None:
    at, source = standing(scenario), scenario.pipeline.source
    assert isinstance(source, Before)
    position = at.position(source)
    orders.put(scenario.ledger, at, "reset-source", ME, Move(position=position, left=position.ranges))
    assert told_of(scenario, 3) == ["not read by any epoch yet: 2 offsets, orders[0] [3, 5)"]
    assert scenario.airflow_run(run(2)) is None
    assert told_of(scenario, 3) == [
        "not read by any epoch yet: 2 offsets, orders[0] [3, 5)",
        "read again, so rows that are there come twice: 2 offsets, orders[0] [5, 7)",
    ]


def test_a_rewind_tells_that_all_rows_come_twice_where_the_ledger_lost_what_was_read(scenario: Scenario) -> None:
    moved(scenario, 0, 6)
    assert scenario.airflow_run(run(2)) is None
    newest = scenario.ledger.complete_record(2)
    assert newest
    scenario.ledger.put(replace(rebuilt_to(newest), sinks={}))
    assert told_of(scenario, 3) == ["read again, so rows that are there come twice: 4 offsets, orders[0] [3, 7)"]


def test_a_rewind_tells_of_each_sink_that_stays_whether_its_rows_come_twice(scenario: Scenario) -> None:
    assert scenario.airflow_run(run(2)) is None
    at, source = standing(scenario), scenario.pipeline.source
    assert isinstance(source, Before)
    sinks = (
        SqlSink("appended", "db", "t", staging="/s"),
        SqlSink("upserted", "db", "t", staging="/s", mode="upsert", keys=["id"], sequence_by="lsn"),
        DeltaSink("latest", "/lake/l", mode="upsert", keys=["id"]),
        DeltaSink("counted", "/lake/c", mode="merge", keys=["id"], merge="WHEN NOT MATCHED THEN INSERT *"),
        DeltaSink("days", "/lake/d", mode="overwrite_partitions", partition_by=["day"]),
        KafkaSink("topic", "kafka", staging="/s"),
        DeltaSink("overwritten", "/lake/t", mode="overwrite"),
    )
    plans = {sink.name: SinkPlan(spec=sink.spec(), previous=None) for sink in sinks} | {
        "own": SinkPlan(spec={"kind": "my.Sink"}, previous=None)
    }
    at = replace(at, newest=replace(at.newest, sinks=plans))
    back = {"orders": tuple(OffsetRange(partition, 5, 7) for partition in (0, 1))}
    there = {"orders": tuple(OffsetRange(partition, 5, 5) for partition in (0, 1))}
    move = Move(position=Position(ranges=there, state=at.position(source).state), again=back)
    once = "nothing comes twice: the newer row of a key takes the place of the older one"
    latest = "nothing comes twice: a row takes the place of the row with its key. But without `sequence_by`, a key may "
    counted = "the clauses of `merge` work on these rows once more: what they count is counted again; a key may "
    days = "nothing comes twice: the rows of each epoch take the place of those in their partitions"
    overwritten = "nothing comes twice: the rows of each epoch take the place of all rows"
    points = {"orders": RestorePoint(epoch=1, version=0)}
    tables = orders.Restoration(epoch=1, points=points, stay=tuple(plans))
    lines = wording.told(scenario.ledger, at, looked(scenario, at, move, tables))
    cut = (
        "have one row in an epoch. If the next epoch reads more of it, it is aborted: then type `airflow epochs replan "
        "orders --why …`, and let epochs be smaller until they have read all of this (`max_records` of topics, also as "
        "a param of a run; `max_versions` of a table)"
    )
    assert [line for line in lines if "stays as it is" in line] == [
        "  sink appended stays as it is: its rows of epoch 2 come twice",
        f"  sink upserted stays as it is: {once}",
        f"  sink latest stays as it is: {latest}{cut}",
        f"  sink counted stays as it is: {counted}{cut}",
        f"  sink days stays as it is: {days}",
        "  sink topic stays as it is: its rows of epoch 2 come twice",
        f"  sink overwritten stays as it is: {overwritten}",
        "  sink own stays as it is: it gets the rows of epoch 2 once more",
    ]
    lines = wording.told(scenario.ledger, at, looked(scenario, at, move))
    assert [line for line in lines if "but in sink" in line] == [
        f"  but in sink counted, {counted}{cut}",
        f"  but in sink days, {days}",
        f"  but in sink latest, {latest}{cut}",
        f"  but in sink overwritten, {overwritten}",
        f"  but in sink upserted, {once}",
    ]


def test_a_rewind_tells_a_command_for_each_state_and_tells_of_none_once_the_commands_are_typed() -> None:
    scenario = Scenario(("orders", "days", "hours"))
    scenario.airflow_run(run(1))

    def told() -> list[str]:
        at, source = standing(scenario), scenario.pipeline.source
        assert isinstance(source, Before)
        at = replace(at, newest=replace(at.newest, state={name: StatePin(version=1) for name in ("days", "hours")}))
        lines = wording.told(scenario.ledger, at, looked(scenario, at, to_offset(scenario, 0, 3)))
        return [line for line in lines if "The state counts" in line or "epochs adopt-sink" in line]

    said, *commands = told()
    assert "a second time, too: days, hours. " in said and "point its `table` to a new table in the DAG" in said
    names = [re.fullmatch(r"    airflow epochs adopt-sink orders (\w+) --new-table --why …", line) for line in commands]
    for name in [found[1] for found in names if found]:
        at, source = standing(scenario), scenario.pipeline.source
        assert isinstance(source, Before)
        adoption = orders.adopt(scenario.ledger, at, name, MemoryEnvironment(), new_table=True)
        orders.put(scenario.ledger, at, "adopt-sink", ME, Move(position=at.position(source)), adoption=adoption)
    assert told() == []


def test_a_move_to_other_topics_tells_which_sinks_drop_what_is_older_than_their_tables(scenario: Scenario) -> None:
    at, source = standing(scenario), scenario.pipeline.source
    assert isinstance(source, Before)
    spec = {"kind": "sql", "table": "sales.customers", "sequence_by": "lsn"}
    upsert = replace(next(iter(at.newest.sinks.values())), spec=spec)
    at = replace(at, newest=replace(at.newest, sinks={**at.newest.sinks, "customers": upsert}))
    position = at.position(source)

    def told(move: Move) -> list[str]:
        lines = wording.told(scenario.ledger, at, looked(scenario, at, move))
        return [line for line in lines if "drops what is older" in line]

    (line,) = told(Move(position=position, left=position.ranges))
    assert line.startswith("  sink customers drops what is older by lsn than its table, sales.customers. ")
    assert "set lsn to NULL in the table, and empty its notes of deletions" in line
    assert told(Move(position=position, ahead=position.ranges)) == []


def test_the_row_of_an_epoch_has_all_its_commands_before_a_run_obeys_them_and_after(scenario: Scenario) -> None:
    def commands() -> tuple[str, ...]:
        return EpochRow.of(scenario.ledger, scenario.ledger.view(2)).commands

    aborted(scenario, 2)
    replanned(scenario)
    moved(scenario, 0, 6)
    assert commands() == ("replan", "skip")
    scenario.coordinator().open(run(3))
    assert commands() == ("replan", "skip"), "open"
    abort(scenario.coordinator(), run(3))
    assert commands() == ("replan", "skip"), "aborted"
    assert scenario.airflow_run(run(4)) is None
    assert commands() == ("replan", "skip"), "complete"


@pytest.mark.parametrize("after_an_abort", [False, True])
@pytest.mark.parametrize("offset", [3, 6])
def test_a_preview_shows_the_records_that_the_run_reads_after_a_command(
    scenario: Scenario, offset: int, after_an_abort: bool
) -> None:
    moved(scenario, 0, offset)
    if after_an_abort:
        aborted(scenario, 2)
    told = preview(scenario.coordinator().task, 100, 1)
    assert (told.epoch, told.ranges) == (2, {"orders": (OffsetRange(0, offset, 7), OffsetRange(1, 5, 7))})
    _, position = position_of_next(scenario.ledger)
    assert position and position.ranges["orders"][0].end == offset
    assert scenario.airflow_run(run(3)) is None
    complete = scenario.ledger.complete_record(2)
    assert complete and complete.ranges == told.ranges


def test_a_preview_says_that_the_next_epoch_only_brings_tables_back(scenario: Scenario) -> None:
    at, source = standing(scenario), scenario.pipeline.source
    assert isinstance(source, Before)
    orders.put(
        scenario.ledger,
        at,
        "rewind",
        ME,
        Move(position=at.position(source)),
        restoration=orders.Restoration(epoch=1, points={}),
    )
    with pytest.raises(
        Refused, match="The next epoch brings the tables of epoch 1 back, and reads no input"
    ) as refused:
        preview(scenario.coordinator().task, 100, 1)
    assert refused.value.code is codes.DRY_RUN_UNSUITABLE


def test_a_new_sink_that_a_command_lets_begin_lacks_no_rows_and_gets_none_twice(scenario: Scenario) -> None:
    at = standing(scenario)
    adoption = orders.Adoption(sink="audit", shown=None, expected=None, lacks=None, is_new=True)
    there = Move(position=at.position(before(scenario)))
    order = orders.put(scenario.ledger, at, "adopt-sink", ME, there, adoption=adoption)
    assert order.command and (order.command.lacks, order.adopted) == ({}, {"audit": None})
    at = standing(scenario)
    both = replace(at, newest=replace(at.newest, sinks={**at.newest.sinks, "audit": at.newest.sinks["orders"]}))
    look = looked(scenario, both, to_offset(scenario, 0, 9))
    assert look.sinks["audit"] == Outcome() and look.sinks["orders"].lost == look.move.lost != {}
    assert scenario.with_sinks(*BOTH).airflow_run(run(2)) is None
    complete = scenario.ledger.complete_record(2)
    assert complete and complete.adopted_in == {} and complete.receipts.keys() == set(BOTH)


def test_a_state_that_a_command_let_begin_has_no_rows_of_the_epochs_before(scenario: Scenario) -> None:
    assert scenario.airflow_run(run(2)) is None
    at, first = standing(scenario), scenario.ledger.complete_record(1)
    assert at.before
    began = replace(at.before, adopted_in={"hours": 2})
    at, told = replace(at, before=began), {1: first, 2: began}
    to = at.position(before(scenario))
    [spans] = read_in_rows(scenario.ledger, at, to, (), 2, "hours", complete=told.get)
    assert tuple(spans.values()) == began.ranges["orders"]


def test_a_preview_lets_a_state_begin_anew_that_a_command_takes_as_it_is(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, source = standing(scenario), scenario.pipeline.source
    assert isinstance(source, Before) and at.before
    adoption = orders.Adoption(sink="orders", shown=None, expected=at.before.txn_id, lacks=(1, 1))
    orders.put(scenario.ledger, at, "adopt-sink", ME, Move(position=at.position(source)), adoption=adoption)
    asked = Mock(wraps=state_tables.pins)
    monkeypatch.setattr(state_tables, "pins", asked)
    preview(scenario.coordinator().task, 100, 1)
    assert asked.call_args.args[2] == {"orders": None}


def test_a_sink_that_was_waived_in_its_first_epoch_and_left_the_dag_is_taken_as_it_is_in_a_new_table() -> None:
    scenario = Scenario(BOTH)
    ledger, task = scenario.ledger, in_doubt(scenario)
    admin.waive(ledger, 1, "audit", by=ME)
    task.commit(run(1), "orders")
    task.complete(run(1))
    narrow = scenario.with_sinks("orders")
    narrow.produce(2)
    assert narrow.airflow_run(run(2)) is None
    at, source = standing(narrow), narrow.pipeline.source
    adoption = orders.adopt(ledger, at, "audit", task.task.env, new_table=True)
    assert adoption and (adoption.shown, adoption.expected, adoption.lacks) == (None, None, (1, 2))
    assert isinstance(source, Before)
    orders.put(ledger, at, "adopt-sink", ME, Move(position=at.position(source)), adoption=adoption)
    assert orders.adopt(ledger, standing(narrow), "audit", task.task.env, new_table=True) is None, "it stands already"
    narrow.produce(2)
    assert narrow.with_sinks(*BOTH).airflow_run(run(3)) is None
    complete = ledger.complete_record(3)
    assert complete and (complete.adopted_in, complete.waived) == ({"audit": 3}, ())
    assert set(scenario.world.table("audit").values()) == {12, 13}


def test_commands_say_that_only_the_dag_has_the_class_of_a_sink(scenario: Scenario) -> None:
    """They do not load the DAG. A sink of that kind is one that stays when tables are brought back."""
    now = standing(scenario)
    plan = now.newest.sinks["orders"]
    own = replace(now.newest, sinks={"orders": replace(plan, spec={**plan.spec, "kind": "folders:FolderSink"})})
    at, env = replace(now, newest=own), scenario.coordinator().task.env
    with pytest.raises(Refused, match="'folders:FolderSink' is a class of your own, which no installed package") as no:
        orders.adopt(scenario.ledger, at, "orders", env)
    assert no.value.code is codes.SINK_NOT_ADOPTED and "entry point group airflow_epochs.sinks" in no.value.remedy
    with pytest.raises(Refused, match="No sink of the pipeline is a Delta table"):
        orders.restoration(scenario.ledger, at, 1, env)


def test_without_new_data_the_command_waits_for_the_next_run(scenario: Scenario) -> None:
    moved(scenario, 0, 7)
    moved(scenario, 1, 7)
    with pytest.raises(NoNewData):
        scenario.coordinator().open(run(2))
    assert scenario.ledger.view(2).state is State.ABORTED
    scenario.produce(1)
    assert scenario.airflow_run(run(3)) is None
    complete = scenario.ledger.complete_record(2)
    assert complete and complete.ranges == {"orders": (OffsetRange(0, 7, 8), OffsetRange(1, 7, 7))}


@pytest.mark.parametrize("cleared", ["stage", "vote"])
def test_a_run_whose_tasks_are_cleared_obeys_the_command(scenario: Scenario, cleared: str) -> None:
    aborted(scenario, 2)
    moved(scenario, 0, 6)
    task = scenario.coordinator()
    report = task.stage(run(2)).stage if cleared == "stage" else None
    task.vote(run(2), report)
    task.commit(run(2), "orders")
    assert task.complete(run(2)).ranges == {"orders": (OffsetRange(0, 6, 7), OffsetRange(1, 5, 7))}


def test_a_run_that_never_had_the_epoch_does_not_take_a_command_for_its_own(scenario: Scenario) -> None:
    moved(scenario, 0, 6)
    for task in ("stage", "complete"):
        with pytest.raises(Fenced, match="A command, `skip` by me, now waits"):
            getattr(scenario.coordinator(), task)(run(9))


def test_of_two_commands_that_are_typed_at_once_the_second_is_told_of_the_first(scenario: Scenario) -> None:
    at, move = standing(scenario), looked(scenario, standing(scenario), to_offset(scenario, 0, 6)).move
    orders.put(scenario.ledger, at, "skip", ME, move)
    with pytest.raises(Refused, match="Another command, `skip` by me, was recorded before this was") as refused:
        orders.put(scenario.ledger, at, "rewind", ME, move)
    assert refused.value.code is codes.COMMAND_RACE and refused.value.remedy.startswith("Type the command again")


def test_there_is_nothing_of_a_command_to_abort(scenario: Scenario) -> None:
    aborted(scenario, 2)
    moved(scenario, 0, 6)
    with pytest.raises(NoNewData):
        scenario.coordinator().abort(run(2), "a task failed")
    assert scenario.ledger.view(2).opened.command


@pytest.mark.proof
def test_a_run_dies_at_every_moment_beside_a_command_and_every_record_is_shown_once() -> None:
    """The command comes when the run is dead, unless the run has left the epoch undecided or in doubt."""
    obeyed = 0
    for at in range(len(moments(("orders",)))):
        scenario = Scenario()
        assert crashes(partial(observed_run, scenario, 1, Observed(at=at)))
        scenario.airflow_run(run(1)) if scenario.ledger.newest_complete() else None
        try:
            replanned(scenario)
            obeyed += 1
        except Refused as refused:
            assert refused.code in (codes.EPOCH_UNFINISHED, codes.NOTHING_TO_REPLAN, codes.POSITION_MISSING)
        scenario.settle()
        scenario.check_every_row()
    aborted_one = Scenario()
    aborted(aborted_one, 1)
    replanned(aborted_one)
    aborted_one.settle()
    aborted_one.check_every_row()


@pytest.mark.parametrize("kind", [StageEpochOperator, VoteEpochOperator])
def test_a_cleared_stage_or_vote_that_obeys_a_command_heeds_the_params_of_its_run_but_waits_for_no_more_data(
    scenario: Scenario, kind: type[EpochOperator], monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted(scenario, 2)
    replanned(scenario)
    asked: list[Limits] = []
    plan = MemorySource.plan

    def noted(source: MemorySource, position: Position | None, limits: Limits, env: Environment) -> PlannedEpoch | None:
        asked.append(limits)
        return plan(source, position, limits, env)

    monkeypatch.setattr(MemorySource, "plan", noted)
    step = operator(kind)
    monkeypatch.setattr(step, "_coordinator", lambda context: scenario.coordinator())
    params = {"max_records": 1, "min_records": 1000, "max_delay": 60, "other": "kept"}
    found = step.execute(cast(Context, {"run_id": run(2).run_id, "dag": Mock(dag_id="dag"), "params": params}))
    assert asked == [Limits(max_records=1)]
    assert (found["attempt"], found["ranges"]["orders"]) == (3, [[0, 5, 6], [1, 5, 6]])


@pytest.mark.parametrize("then", ["opened", "completed", "ordered"])
def test_a_command_is_refused_if_the_epoch_went_on_while_its_question_stood(scenario: Scenario, then: str) -> None:
    aborted(scenario, 2)
    shown = standing(scenario)
    if then == "ordered":
        replanned(scenario)
    else:
        scenario.coordinator().open(run(3)) if then == "opened" else scenario.airflow_run(run(3))
    with pytest.raises(Refused, match="EPOCHS-COMMAND-RACE"):
        replanned(scenario, shown)
    scenario.settle()
    scenario.check_every_row()


def test_a_command_on_an_epoch_that_was_completed_and_pruned_meanwhile_is_refused(scenario: Scenario) -> None:
    aborted(scenario, 2)
    shown = standing(scenario)
    scenario.airflow_run(run(3))
    scenario.ledger.pruning.prune(2)
    with pytest.raises(Refused, match="EPOCHS-COMMAND-RACE"):
        replanned(scenario, shown)


def test_a_run_of_an_older_version_that_aborts_a_command_does_no_harm(scenario: Scenario) -> None:
    """It takes the command for an attempt that was left undecided, and puts GLOBAL_ABORT."""
    order = moved(scenario, 0, 6)
    scenario.ledger.put(decided(order, DecisionKind.GLOBAL_ABORT))
    assert scenario.ledger.view(2).state is State.ABORTED
    assert scenario.airflow_run(run(2)) is None
    complete = scenario.ledger.complete_record(2)
    assert complete and complete.ranges == {"orders": (OffsetRange(0, 6, 7), OffsetRange(1, 5, 7))}


def test_a_command_that_somebody_decides_to_commit_stops_the_pipeline(scenario: Scenario) -> None:
    order = moved(scenario, 0, 6)
    scenario.ledger.put(decided(order, DecisionKind.GLOBAL_COMMIT))
    with pytest.raises(Corrupt, match="EPOCHS-LEDGER-CONTRADICTS"):
        scenario.coordinator().open(run(2))


def test_in_a_signed_ledger_a_command_without_a_signature_is_not_obeyed() -> None:
    scenario, store, keys = Scenario(), DictStore(), Keys.parse("k" * 32)

    def signed() -> Coordinator:
        task = memory_coordinator(scenario.world, scenario.pipeline, store=store).task
        return Coordinator(replace(task, ledger=Ledger(store, "orders", keys)))

    signed().open(run(1))
    abort(signed(), run(1))
    ledger, source = Ledger(store, "orders", keys), scenario.pipeline.source
    assert isinstance(source, Before)
    at = orders.standing(ledger, "orders")
    order = orders.put(ledger, at, "replan", ME, orders.replan(at, source))
    assert isinstance(signed().open(run(2)), OpenRecord)
    abort(signed(), run(2))
    txn = TransactionId("orders", 1, 4, order.txn_id.nonce)
    stranger = Ledger(store, "orders", checked=False)
    stranger.put(replace(order, txn_id=txn, obeys=4, format=1))
    with pytest.raises(Corrupt, match="EPOCHS-LEDGER-RECORD-FORGED"):
        signed().open(run(3))


@pytest.mark.parametrize(("shown", "first"), [(0, (0, 0, 40)), (7, (70, 70, 40)), (2_999, (29_990, 29_990, 90))])
def test_where_rows_ended_is_found_without_reading_the_records_of_all_epochs(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, shown: int, first: tuple[int, int, int]
) -> None:
    """3,000 epochs. A third partition is there from epoch 2,900 on; it has been read from 40 on."""
    at, read = standing(scenario), list[int]()
    assert at.before
    newest = at.before

    def complete(self: Ledger, number: int) -> CompleteRecord | None:
        read.append(number)
        old = tuple(OffsetRange(partition, 10 * number - 10, 10 * number) for partition in (0, 1))
        new = OffsetRange(2, max(40, number - 2_910), max(41, number - 2_909))
        return replace(newest, ranges={"orders": (*old, new) if number >= 2_900 else old})

    monkeypatch.setattr(Ledger, "complete_record", complete)
    last = Position(
        ranges={"orders": tuple(OffsetRange(partition, 30_000, 30_000) for partition in range(4))}, state={}
    )
    found = earlier_ends.ends_at(scenario.ledger, replace(at, epoch=3_001), shown, last)
    assert found == {("orders", partition): offset for partition, offset in enumerate(first)}
    assert len(read) <= 40


def test_where_rows_ended_is_found_in_a_topic_that_was_left_and_came_back(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs 2 and 3 have read it from 5 on, 4 and 5 in another cluster had none of it, and 6 goes on with it at 20."""
    at, starts = standing(scenario), {2: 5, 3: 6, 6: 20, 7: 30}
    assert at.before
    newest = at.before

    def complete(self: Ledger, number: int) -> CompleteRecord | None:
        start, moved = starts.get(number), max(each for each in (0, 4, 6) if each <= number)
        found = (OffsetRange(0, start, start + 1),) if start else ()
        return replace(newest, ranges={"orders": found}, moved_in=moved)

    monkeypatch.setattr(Ledger, "complete_record", complete)
    now, last = complete(scenario.ledger, 7), Position(ranges={"orders": (OffsetRange(0, 31, 31),)}, state={})
    for shown, ended in ((0, 5), (1, 5), (2, 6), (3, 7), (4, 20), (5, 20), (6, 21)):
        at = replace(at, epoch=8, before=now)
        assert earlier_ends.ends_at(scenario.ledger, at, shown, last) == {("orders", 0): ended}, shown
