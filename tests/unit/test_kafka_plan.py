"""Planning of Kafka ranges: pure, so every case is spelled out or drawn at random."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_epochs.contracts import Move, Position
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import Backlog, OffsetRange, Ranges, ends_of, records_upper_bound
from airflow_epochs.sources.kafka.logs import Batch, ClusterLog, Log, Partition, Tail, TopicLog
from airflow_epochs.sources.kafka.loss import (
    SHOWN_MAX,
    require_readable,
    require_same_records,
    require_was_readable,
    tails_of,
)
from airflow_epochs.sources.kafka.moves import before, past_losses, to_another, to_offsets, to_time
from airflow_epochs.sources.kafka.plan import (
    available,
    begun_again,
    begun_at_oldest,
    fair_shares,
    left_unread,
    limited,
    new_ends,
    pinned,
    state_of,
)
from airflow_epochs.sources.kafka.starting import AtOffsets, AtTime, Earliest, Latest, Starting

CLUSTER_ID = "cluster-1"


def cluster(
    cluster_id: str | None = CLUSTER_ID,
    epoch_ends: dict[Partition, int | None] | None = None,
    **topics: dict[int, tuple[int, ...]],
) -> ClusterLog:
    logs = {t: TopicLog(f"id-of-{t}", {p: Log(*log) for p, log in topics[t].items()}) for t in topics}
    return ClusterLog(cluster_id, logs, epoch_ends or {})


def position(**topics: dict[int, int]) -> Position:
    """Where a last epoch ended, having read ten records of each partition."""
    ranges = {t: tuple(OffsetRange(p, max(end - 10, 0), end) for p, end in topics[t].items()) for t in topics}
    return Position(ranges=ranges, state={"cluster_id": CLUSTER_ID, "topic_ids": {t: f"id-of-{t}" for t in topics}})


def plan(
    at: Position | None, log: ClusterLog, *, topics: tuple[str, ...] = ("orders",), starting: Starting | None = None
) -> Ranges:
    return available(at, topics, log, starting or Earliest(), {})


# --- where a topic begins -------------------------------------------------------------------------------------


def test_earliest_begins_at_the_oldest_record() -> None:
    assert plan(None, cluster(orders={0: (0, 5), 1: (7, 9)})) == {
        "orders": (OffsetRange(0, 0, 5), OffsetRange(1, 7, 9))
    }


def test_latest_begins_at_the_last_stable_offset() -> None:
    assert plan(None, cluster(orders={0: (0, 5)}), starting=Latest()) == {"orders": (OffsetRange(0, 5, 5),)}


def test_latest_stays_where_it_was_while_waiting_for_data() -> None:
    starting = pinned(Latest(), cluster(orders={0: (0, 5)}))
    later = cluster(orders={0: (0, 8), 1: (0, 2)})
    assert plan(None, later, starting=starting) == {"orders": (OffsetRange(0, 5, 8), OffsetRange(1, 0, 2))}


def test_what_is_not_latest_is_not_pinned() -> None:
    assert pinned(AtTime(5), cluster(orders={0: (0, 5)})) == AtTime(5)


def test_explicit_offsets_are_taken_and_other_partitions_begin_at_their_oldest_record() -> None:
    log = cluster(orders={0: (2, 5), 1: (3, 9)})
    assert plan(None, log, starting=AtOffsets({"orders": {1: 9}})) == {
        "orders": (OffsetRange(0, 2, 5), OffsetRange(1, 9, 9))
    }


@pytest.mark.parametrize("offset", [1, 6])
def test_an_explicit_offset_outside_of_the_log_is_refused_and_names_what_is_there(offset: int) -> None:
    with pytest.raises(Refused, match=rf"offset {offset} of orders\[0\].*\[2, 5\)"):
        plan(None, cluster(orders={0: (2, 5)}), starting=AtOffsets({"orders": {0: offset}}))


def test_an_explicit_offset_of_a_partition_that_is_not_there_is_refused() -> None:
    with pytest.raises(Refused, match=r"orders\[3\], but the topic has 1 partition"):
        plan(None, cluster(orders={0: (2, 5)}), starting=AtOffsets({"orders": {3: 0}}))


def test_a_time_begins_at_its_first_record_or_else_at_the_end() -> None:
    log = cluster(orders={0: (0, 5), 1: (0, 6), 2: (4, 7)})
    index = {("orders", 0): 3, ("orders", 1): None, ("orders", 2): 2}
    assert available(None, ["orders"], log, AtTime(1), index) == {
        "orders": (OffsetRange(0, 3, 5), OffsetRange(1, 6, 6), OffsetRange(2, 4, 7))
    }


def test_a_time_whose_first_record_came_after_the_look_begins_there_next_time() -> None:
    index = {("orders", 0): 9}
    ranges = available(None, ["orders"], cluster(orders={0: (0, 5)}), AtTime(1), index)
    assert ranges == {"orders": (OffsetRange(0, 9, 9),)}


def test_a_topic_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(Refused, match="does not have the topic nope"):
        plan(None, cluster(orders={0: (0, 5)}), topics=("orders", "nope"))


# --- going on from a position ---------------------------------------------------------------------------------


def test_an_epoch_goes_on_where_the_last_one_ended_whatever_starting_says() -> None:
    log = cluster(orders={0: (0, 50), 1: (0, 7)})
    assert plan(position(orders={0: 20, 1: 7}), log, starting=Latest()) == {
        "orders": (OffsetRange(0, 20, 50), OffsetRange(1, 7, 7))
    }


def test_a_partition_added_to_a_known_topic_begins_at_offset_0_whatever_starting_says() -> None:
    log = cluster(orders={0: (0, 50), 1: (0, 7)})
    ranges = plan(position(orders={0: 50}), log, starting=Latest())
    assert ranges == {"orders": (OffsetRange(0, 50, 50), OffsetRange(1, 0, 7))}


def test_a_topic_added_to_the_source_begins_where_starting_says() -> None:
    log = cluster(orders={0: (0, 50)}, refunds={0: (0, 7)})
    ranges = plan(position(orders={0: 20}), log, topics=("orders", "refunds"), starting=Latest())
    assert ranges == {"orders": (OffsetRange(0, 20, 50),), "refunds": (OffsetRange(0, 7, 7),)}


def test_a_topic_taken_out_of_the_source_keeps_its_position_and_its_id_and_can_come_back() -> None:
    at = position(orders={0: 20}, refunds={0: 5})
    without = cluster(orders={0: (0, 50)})
    ranges = plan(at, without)
    assert ranges == {"orders": (OffsetRange(0, 20, 50),), "refunds": (OffsetRange(0, 5, 5),)}
    later = Position(ranges=ranges, state=state_of(at, without, ranges, {}))
    both = cluster(orders={0: (0, 60)}, refunds={0: (0, 9)})
    assert plan(later, both, topics=("orders", "refunds")) == {
        "orders": (OffsetRange(0, 50, 60),),
        "refunds": (OffsetRange(0, 5, 9),),
    }
    assert later.state["topic_ids"] == {"orders": "id-of-orders", "refunds": "id-of-refunds"}


# --- what is lost stops the pipeline --------------------------------------------------------------------------


def test_offsets_that_retention_has_deleted_stop_the_pipeline_with_the_exact_range() -> None:
    log = cluster(orders={0: (0, 50), 3: (4711, 5000)})
    with pytest.raises(Corrupt) as stopped:
        plan(position(orders={0: 20, 3: 120}), log)
    assert "orders[3] offsets [120, 4711) (retention or kafka-delete-records deleted" in stopped.value.what
    assert "orders[0]" not in stopped.value.what
    assert starts(going_on(position(orders={0: 20, 3: 120}), log)) == {("orders", 0): 20, ("orders", 3): 4711}


def test_one_deleted_offset_is_enough() -> None:
    with pytest.raises(Corrupt, match=r"orders\[0\] offsets \[20, 21\) \(retention or kafka-delete-records deleted"):
        plan(position(orders={0: 20}), cluster(orders={0: (21, 50)}))


def test_retention_up_to_the_position_is_no_loss() -> None:
    assert plan(position(orders={0: 20}), cluster(orders={0: (20, 50)})) == {"orders": (OffsetRange(0, 20, 50),)}


def test_a_new_partition_whose_beginning_is_already_gone_stops_the_pipeline() -> None:
    with pytest.raises(Corrupt, match=r"orders\[1\] offsets \[0, 4\) \(retention or kafka-delete-records deleted"):
        plan(position(orders={0: 20}), cluster(orders={0: (0, 50), 1: (4, 6)}))


def test_a_log_that_ends_before_the_position_stops_the_pipeline() -> None:
    with pytest.raises(Corrupt, match=r"orders\[0\] offsets \[15, 20\) \(the log is shorter than before"):
        plan(position(orders={0: 20}), cluster(orders={0: (0, 15)}))


def commands_in(remedy: str) -> list[str]:
    """What the remedy says to type after ``airflow epochs``."""
    return re.findall(r"`airflow epochs ([^`]*) --why …`", remedy)


def going_on(at: Position, log: ClusterLog, batches: Mapping[Partition, Batch] | None = None) -> Move:
    """What `skip --to-available` makes of it."""
    return past_losses(at, sorted(at.ranges), log, batches or {})


def starts(move: Move) -> dict[Partition, int]:
    return ends_of(move.position.ranges)


def test_a_truncated_log_is_begun_at_its_oldest_record_so_that_no_new_record_is_left_out() -> None:
    at, log = position(orders={0: 20, 1: 7}), cluster(orders={0: (3, 15), 1: (0, 9)})
    with pytest.raises(Corrupt) as stopped:
        plan(at, log)
    assert commands_in(stopped.value.remedy) == ["skip PIPELINE --topic orders --to-available"]
    move = going_on(at, log)
    assert starts(move) == {("orders", 0): 3, ("orders", 1): 7}
    assert (move.lost, move.again) == ({}, {"orders": (OffsetRange(0, 3, 20),)})


def test_a_log_that_was_truncated_and_has_grown_past_the_position_stops_the_pipeline_with_the_exact_range() -> None:
    at = position(orders={0: 20})
    at.state["tails"] = {"orders": {"0": [3, 77]}}
    log = cluster(orders={0: (3, 500, 4)}, epoch_ends={("orders", 0): 15})
    with pytest.raises(Corrupt, match=r"orders\[0\] offsets \[15, 20\) \(the log was truncated") as stopped:
        plan(at, log)
    assert commands_in(stopped.value.remedy) == ["skip PIPELINE --topic orders --to-available"]
    move = going_on(at, log, {("orders", 0): Batch(78, whole=True)})
    assert starts(move) == {("orders", 0): 15}
    assert (move.lost, move.again) == ({}, {}), "by its leader epochs, the log was written anew from there"


def test_a_log_that_does_not_know_the_leader_epoch_of_the_position_stops_the_pipeline() -> None:
    at, log = position(orders={0: 20}), cluster(orders={0: (3, 500)}, epoch_ends={("orders", 0): None})
    with pytest.raises(Corrupt, match=r"orders\[0\] offsets \[3, 20\) \(the log was truncated"):
        plan(at, log)
    assert starts(going_on(at, log)) == {("orders", 0): 3}


def test_a_new_leader_that_lost_nothing_is_no_loss() -> None:
    log = cluster(orders={0: (0, 50)}, epoch_ends={("orders", 0): 20})
    assert plan(position(orders={0: 20}), log) == {"orders": (OffsetRange(0, 20, 50),)}


def test_where_a_log_was_cut_is_not_believed_to_a_leader_that_is_as_old_as_the_position() -> None:
    at = position(orders={0: 20})
    at.state["tails"] = {"orders": {"0": [3, 77]}}
    log = cluster(orders={0: (3, 15, 3)}, epoch_ends={("orders", 0): 15})
    with pytest.raises(Corrupt, match=r"orders\[0\] offsets \[15, 20\) \(the log is shorter than before"):
        plan(at, log)
    assert starts(going_on(at, log)) == {("orders", 0): 3}


READ = {("orders", 0): 20, ("orders", 1): 30}


@pytest.mark.parametrize("batch", [Batch(77, whole=True), Batch(78, whole=False), None])
def test_the_same_batch_one_that_was_compacted_and_none_are_not_suspected(batch: Batch | None) -> None:
    state = {"tails": {"orders": {"0": [3, 77]}}}
    batches = {("orders", 0): batch} if batch else {}
    require_same_records(READ, state, cluster(orders={0: (2, 50), 1: (0, 50)}), batches)


def test_another_batch_before_the_position_stops_the_pipeline() -> None:
    at = position(orders={0: 20, 1: 30})
    at.state["tails"] = {"orders": {"0": [3, 77]}}
    log, batches = cluster(orders={0: (2, 50), 1: (0, 50)}), {("orders", 0): Batch(78, whole=True)}
    with pytest.raises(Corrupt, match=r"orders\[0\] offsets \[2, 20\) \(the log was truncated"):
        require_same_records(READ, at.state, log, batches)
    assert starts(going_on(at, log, batches)) == {("orders", 0): 2, ("orders", 1): 30}


def test_a_plan_records_leader_epoch_and_batch_at_its_ends_and_keeps_those_of_partitions_that_stand_still() -> None:
    at = position(orders={0: 20, 1: 7})
    at.state["tails"] = {"orders": {"0": [1, 5], "1": [1, 6]}, "gone": {"0": [9, 9]}}
    log = cluster(orders={0: (0, 30, 4), 1: (0, 7, 4)})
    ranges = plan(at, log)
    assert new_ends(at, ranges) == {("orders", 0): 30}
    state = state_of(at, log, ranges, {("orders", 0): Batch(77, whole=True)})
    assert tails_of(state) == {("orders", 0): Tail(4, 77), ("orders", 1): Tail(1, 6), ("gone", 0): Tail(9, 9)}


def test_a_position_of_version_0_1_which_has_no_leader_epochs_gets_them_with_the_next_epoch() -> None:
    at, log = position(orders={0: 20}), cluster(orders={0: (0, 20, 4)})
    ranges = plan(at, log)
    assert new_ends(at, ranges) == {("orders", 0): 20}
    assert tails_of(state_of(at, log, ranges, {})) == {("orders", 0): Tail(4, None)}


def test_a_deleted_topic_stops_the_pipeline() -> None:
    with pytest.raises(Corrupt, match=r"orders\[0\] offset 20 and up \(the topic no longer exists\)"):
        plan(position(orders={0: 20}), cluster())


def test_a_recreated_topic_stops_the_pipeline_even_if_it_is_as_long_as_before() -> None:
    at = position(orders={0: 20})
    at.state["topic_ids"]["orders"] = "another"
    with pytest.raises(Corrupt, match=r"orders\[0\] offset 20 and up \(the topic was deleted and created again"):
        plan(at, cluster(orders={0: (0, 50)}))


def test_a_topic_that_was_created_again_is_begun_at_its_oldest_records_all_of_which_are_new() -> None:
    at = position(orders={0: 1500, 1: 20}, refunds={0: 5})
    at.state["topic_ids"]["orders"] = "another"
    log = cluster(orders={0: (0, 1500), 1: (4, 6), 2: (1, 3)}, refunds={0: (0, 9)})
    with pytest.raises(Corrupt) as stopped:
        plan(at, log, topics=("orders", "refunds"))
    assert commands_in(stopped.value.remedy) == ["reset-source PIPELINE --topic orders --starting earliest"]
    with pytest.raises(Refused, match="Nothing can be skipped in topic orders: the topic was deleted"):
        going_on(at, log)
    move = to_another(at, ["orders"], Earliest(), log, {})
    assert starts(move) == {("orders", 0): 0, ("orders", 1): 4, ("orders", 2): 1, ("refunds", 0): 5}
    assert move.left == {"orders": (OffsetRange(0, 1500, 1500), OffsetRange(1, 20, 20))}
    assert plan(move.position, log, topics=("orders", "refunds"))["orders"] == move.ahead["orders"]


def test_a_vanished_partition_stops_the_pipeline() -> None:
    with pytest.raises(Corrupt, match=r"orders\[1\] offset 9 and up \(the partition no longer exists\)"):
        plan(position(orders={0: 20, 1: 9}), cluster(orders={0: (0, 50)}))


def test_another_cluster_stops_the_pipeline() -> None:
    with pytest.raises(
        Corrupt, match="leads to the Kafka cluster other, but this pipeline has read from the cluster cluster-1"
    ):
        plan(position(orders={0: 20}), cluster("other", orders={0: (0, 50)}))


def test_brokers_without_ids_are_not_suspected() -> None:
    at = Position(ranges={"orders": (OffsetRange(0, 0, 20),)}, state={"cluster_id": None, "topic_ids": {}})
    assert plan(at, cluster(orders={0: (0, 50)})) == {"orders": (OffsetRange(0, 20, 50),)}


def test_a_topic_that_is_not_read_any_more_may_be_deleted() -> None:
    at = position(orders={0: 20}, refunds={0: 5})
    assert plan(at, cluster(orders={0: (0, 20)}))["refunds"] == (OffsetRange(0, 5, 5),)


def test_many_gaps_are_counted_and_not_all_listed() -> None:
    many = SHOWN_MAX + 5
    with pytest.raises(Corrupt) as stopped:
        plan(position(orders=dict.fromkeys(range(many), 1)), cluster(orders=dict.fromkeys(range(many), (3, 9))))
    assert stopped.value.what.count("orders[") == SHOWN_MAX
    assert "and in 5 more partitions" in stopped.value.what
    assert commands_in(stopped.value.remedy) == ["skip PIPELINE --topic orders --to-available"], "one for all"


# --- other places to go on at ---------------------------------------------------------------------------------


def test_deleted_records_are_left_behind_and_their_offsets_are_told() -> None:
    at, log = position(orders={0: 20, 1: 7}), cluster(orders={0: (25, 90), 1: (0, 9), 2: (4, 6)})
    move = going_on(at, log)
    assert starts(move) == {("orders", 0): 25, ("orders", 1): 7, ("orders", 2): 4}
    assert (move.lost, move.again) == ({"orders": (OffsetRange(0, 20, 25), OffsetRange(2, 0, 4))}, {})
    assert move.ahead == {"orders": (OffsetRange(0, 25, 90), OffsetRange(2, 4, 6))}
    assert plan(move.position, log) == {
        "orders": (OffsetRange(0, 25, 90), OffsetRange(1, 7, 9), OffsetRange(2, 4, 6))
    }, "the next epoch"


def test_without_a_loss_nothing_is_moved() -> None:
    at = position(orders={0: 20})
    move = going_on(at, cluster(orders={0: (20, 90)}))
    assert (starts(move), move.lost, move.again, move.ahead) == ({("orders", 0): 20}, {}, {}, {})


def test_a_move_forgets_what_was_known_of_the_records_before_the_position_and_keeps_the_rest() -> None:
    at = position(orders={0: 20, 1: 7})
    at.state["tails"] = {"orders": {"0": [1, 5], "1": [1, 6]}}
    move = to_offsets(at, {"orders": {0: 12}}, cluster(orders={0: (0, 30), 1: (0, 9)}))
    assert move.position.state == {**at.state, "tails": {"orders": {"1": [1, 6]}}}
    assert (move.lost, move.again) == ({}, {"orders": (OffsetRange(0, 12, 20),)})


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        (
            {"orders": {0: 31}},
            r"would go on at offset 31 of orders\[0\], but the brokers have the offsets \[5, 30\)",
        ),
        (
            {"orders": {0: 4}},
            r"would go on at offset 4 of orders\[0\], but the brokers have the offsets \[5, 30\)",
        ),
        ({"orders": {7: 0}}, r"The command would go on at orders\[7\], but the topic has 1 partition"),
        ({"ordres": {0: 9}}, "The pipeline does not read the topic 'ordres'. It reads: orders"),
    ],
)
def test_offsets_that_the_topics_do_not_have_are_refused(offsets: dict[str, dict[int, int]], why: str) -> None:
    with pytest.raises(Refused, match=why):
        to_offsets(position(orders={0: 20}), offsets, cluster(orders={0: (5, 30)}))


def test_a_rewind_to_a_time_goes_back_and_never_on_and_leaves_a_partition_that_nobody_has_read_as_it_is() -> None:
    at, log = position(orders={0: 20, 1: 7}), cluster(orders={0: (0, 30), 1: (0, 9), 2: (0, 50)})
    found = {("orders", 0): 12, ("orders", 1): 8, ("orders", 2): 40}
    move = to_time(at, 1_769_817_600_000, log, found)
    assert starts(move) == {("orders", 0): 12, ("orders", 1): 7}
    assert (move.lost, move.again) == ({}, {"orders": (OffsetRange(0, 12, 20),)})
    assert move.back_to == "2026-01-31T00:00:00+00:00"
    assert plan(move.position, log)["orders"][2] == OffsetRange(2, 0, 50), "the next epoch reads all of it"


def test_in_another_cluster_every_position_is_new_and_topics_that_are_not_named_are_forgotten() -> None:
    at = position(orders={0: 20}, refunds={0: 5})
    at.state["tails"] = {"orders": {"0": [1, 5]}, "refunds": {"0": [1, 5]}}
    log = cluster("other", orders={0: (0, 90)})
    move = to_another(at, ["orders"], AtOffsets({"orders": {0: 17}}), log, {})
    assert starts(move) == {("orders", 0): 17}
    assert set(move.left) == {"orders", "refunds"}
    assert move.position.state == {"cluster_id": "other", "topic_ids": {"orders": "id-of-orders"}, "tails": {}}
    assert plan(move.position, log) == {"orders": (OffsetRange(0, 17, 90),)}


def test_in_the_same_cluster_the_other_topics_stay_where_they_are() -> None:
    at = position(orders={0: 20}, refunds={0: 5})
    at.state["tails"] = {"orders": {"0": [1, 5]}, "refunds": {"0": [1, 5]}}
    at.state["topic_ids"]["orders"] = "another"
    move = to_another(at, ["orders"], Latest(), cluster(orders={0: (0, 90)}), {})
    assert starts(move) == {("orders", 0): 90, ("refunds", 0): 5}
    ids = {"orders": "id-of-orders", "refunds": "id-of-refunds"}
    assert move.position.state == {"cluster_id": CLUSTER_ID, "topic_ids": ids, "tails": {"refunds": {"0": [1, 5]}}}


def test_an_aborted_first_epoch_began_where_its_ranges_begin() -> None:
    planned: Ranges = {"orders": (OffsetRange(0, 50, 60), OffsetRange(1, 3, 3))}
    state = {"cluster_id": CLUSTER_ID, "topic_ids": {"orders": "id-of-orders"}, "tails": {"orders": {"0": [1, 5]}}}
    at = before(None, planned, state)
    assert ends_of(at.ranges) == {("orders", 0): 50, ("orders", 1): 3}
    assert at.state == {"cluster_id": CLUSTER_ID, "topic_ids": {"orders": "id-of-orders"}}


def test_an_aborted_epoch_began_where_the_one_before_ended_and_its_new_topic_where_its_ranges_begin() -> None:
    planned: Ranges = {"orders": (OffsetRange(0, 20, 60),), "refunds": (OffsetRange(0, 4, 9),)}
    at = before(position(orders={0: 20}), planned, {"topic_ids": {"orders": "x", "refunds": "id-of-refunds"}})
    assert ends_of(at.ranges) == {("orders", 0): 20, ("refunds", 0): 4}
    assert at.state["topic_ids"] == {"orders": "id-of-orders", "refunds": "id-of-refunds"}, "the older id counts"


# --- reading planned ranges again -----------------------------------------------------------------------------

PLANNED: Ranges = {"orders": (OffsetRange(0, 10, 20), OffsetRange(1, 5, 5))}
STATE = {"cluster_id": CLUSTER_ID, "topic_ids": {"orders": "id-of-orders"}}


def test_planned_ranges_that_are_still_there_can_be_read_again() -> None:
    require_readable(PLANNED, STATE, cluster(orders={0: (10, 20), 1: (9, 9)}))


@pytest.mark.parametrize(
    ("log", "missing"),
    [
        ((12, 30), r"orders\[0\] offsets \[10, 12\) \(retention or kafka-delete-records deleted"),
        ((25, 30), r"orders\[0\] offsets \[10, 20\) \(retention or kafka-delete-records deleted"),
        ((0, 17), r"orders\[0\] offsets \[17, 20\) \(the log is shorter than before"),
        ((0, 3), r"orders\[0\] offsets \[10, 20\) \(the log is shorter than before"),
    ],
)
def test_planned_ranges_of_which_a_part_is_gone_stop_the_rerun(log: tuple[int, int], missing: str) -> None:
    with pytest.raises(Corrupt, match=missing):
        require_readable(PLANNED, STATE, cluster(orders={0: log, 1: (0, 9)}))


def test_planned_ranges_of_a_recreated_topic_or_another_cluster_stop_the_rerun() -> None:
    log = cluster(orders={0: (0, 30), 1: (0, 9)})
    with pytest.raises(Corrupt, match="created again"):
        require_readable(PLANNED, {"topic_ids": {"orders": "another"}}, log)
    with pytest.raises(Corrupt, match="Kafka cluster"):
        require_readable(PLANNED, {**STATE, "cluster_id": "another"}, log)


def test_planned_ranges_whose_records_were_replaced_stop_the_rerun_also_in_a_log_that_has_grown_past_them() -> None:
    log = cluster(orders={0: (0, 30), 1: (0, 9)}, epoch_ends={("orders", 0): 12})
    with pytest.raises(Corrupt, match=r"orders\[0\] offsets \[12, 20\) \(the log was truncated"):
        require_readable(PLANNED, STATE, log)
    with pytest.raises(Corrupt, match=r"orders\[0\] offsets \[12, 20\) \(the log was truncated"):
        require_was_readable(PLANNED, STATE, log)


def test_what_retention_deletes_after_it_was_read_is_no_loss_but_another_topic_is() -> None:
    log = cluster(orders={0: (20, 30), 1: (0, 9)})
    require_was_readable(PLANNED, STATE, log)
    with pytest.raises(Corrupt, match="created again"):
        require_was_readable(PLANNED, {"topic_ids": {"orders": "another"}}, log)


# --- a first epoch whose oldest records are deleted before they are read ----------------------------------------

OLDEST = {**STATE, "oldest": {"orders": [0, 1]}, "tails": {"orders": {"0": [3, 77], "1": [3, 78]}}}


def test_only_partitions_that_begin_at_their_oldest_record_are_noted() -> None:
    ranges: Ranges = {"orders": (OffsetRange(0, 0, 5), OffsetRange(1, 0, 5)), "known": (OffsetRange(0, 7, 9),)}
    before = position(known={0: 7})
    assert begun_at_oldest(before, ["orders", "known"], ranges, Earliest()) == {"orders": [0, 1]}
    assert begun_at_oldest(before, ["orders", "known"], ranges, AtOffsets({"orders": {0: 0}})) == {"orders": [1]}
    assert begun_at_oldest(before, ["orders", "known"], ranges, Latest()) == {}
    assert begun_at_oldest(before, ["orders", "known"], ranges, AtTime(5)) == {}


def test_an_epoch_that_began_at_the_oldest_record_begins_at_the_oldest_that_is_left_and_ends_as_planned() -> None:
    ranges: Ranges = {"orders": (OffsetRange(0, 0, 20), OffsetRange(1, 0, 5))}
    log = cluster(orders={0: (12, 90, 4), 1: (8, 9, 4)})
    with pytest.raises(
        Corrupt, match=r"This epoch begins at the oldest records.*orders\[0\] offsets \[0, 12\), orders\[1\] offs"
    ) as stopped:
        require_readable(ranges, OLDEST, log)
    assert stopped.value.remedy.startswith("Type `airflow epochs retry ")
    again = begun_again(ranges, OLDEST, log)
    assert again.ranges == {"orders": (OffsetRange(0, 12, 20), OffsetRange(1, 8, 8))}
    assert tails_of(again.state) == {("orders", 0): Tail(3, 77), ("orders", 1): Tail(4, None)}
    require_readable(again.ranges, again.state, log)


class Counted(list[int]):
    """Counts how often somebody goes through it."""

    times = 0

    def __iter__(self) -> Iterator[int]:
        self.times += 1
        return super().__iter__()


def test_the_partitions_that_began_at_their_oldest_record_are_gone_through_once_per_check() -> None:
    oldest = Counted(range(1_000))
    ranges: Ranges = {"orders": tuple(OffsetRange(p, 0, 5) for p in oldest)}
    state, log = {**STATE, "oldest": {"orders": oldest}}, cluster(orders=dict.fromkeys(oldest, (0, 9)))
    oldest.times = 0
    require_readable(ranges, state, log)
    assert oldest.times == 1
    require_was_readable(ranges, state, log)
    assert oldest.times == 1, "what is deleted after the read is no loss"


def test_what_was_named_or_known_is_never_begun_later() -> None:
    ranges: Ranges = {"orders": (OffsetRange(0, 0, 20), OffsetRange(1, 0, 5))}
    log = cluster(orders={0: (12, 90), 1: (0, 9)})
    state = {**STATE, "oldest": {"orders": [1]}}
    assert begun_again(ranges, state, log).ranges == ranges
    with pytest.raises(Corrupt, match=r"orders\[0\] offsets \[0, 12\) \(retention or kafka-delete-records deleted"):
        require_readable(ranges, state, log)


def test_a_recreated_topic_is_not_begun_again() -> None:
    ranges: Ranges = {"orders": (OffsetRange(0, 0, 20), OffsetRange(1, 0, 5))}
    state = {**OLDEST, "topic_ids": {"orders": "another"}}
    assert begun_again(ranges, state, cluster(orders={0: (12, 90), 1: (0, 9)})).ranges == ranges


# --- max_records ----------------------------------------------------------------------------------------------


def test_small_partitions_keep_all_and_the_others_share_the_rest() -> None:
    assert fair_shares([3, 100, 0, 50], 63, [0, 0, 0, 0]) == [3, 30, 0, 30]


def test_without_a_limit_all_is_read() -> None:
    ranges: Ranges = {"orders": (OffsetRange(0, 1, 9),)}
    assert limited(ranges, None) is ranges


def test_a_limit_spans_topics_and_keeps_every_partition() -> None:
    ranges = {"a": (OffsetRange(0, 10, 30), OffsetRange(1, 7, 7)), "b": (OffsetRange(0, 0, 2),)}
    assert limited(ranges, 8) == {"a": (OffsetRange(0, 10, 16), OffsetRange(1, 7, 7)), "b": (OffsetRange(0, 0, 2),)}


sizes_st = st.lists(st.integers(0, 1000), max_size=30)


@pytest.mark.proof
@given(sizes=sizes_st, total=st.integers(1, 5000), data=st.data())
def test_shares_are_max_min_fair(sizes: list[int], total: int, data: st.DataObject) -> None:
    consumed = data.draw(st.lists(st.integers(0, 10**9), min_size=len(sizes), max_size=len(sizes)))
    shares = fair_shares(sizes, total, consumed)
    assert sum(shares) == min(total, sum(sizes))
    assert all(0 <= share <= size for share, size in zip(shares, sizes, strict=True))
    # Max-min fair: whoever got less than it has, got at most one less than anybody else.
    cut = [share for share, size in zip(shares, sizes, strict=True) if share < size]
    assert not cut or max(shares) - min(cut) <= 1
    assert fair_shares(sizes, total, consumed) == shares


@given(count=st.integers(1, 12), total=st.integers(1, 30), begin=st.integers(0, 10**6))
def test_partitions_that_always_have_data_take_turns_and_none_starves(count: int, total: int, begin: int) -> None:
    consumed = [begin] * count
    for _ in range(count):
        shares = fair_shares([10**6] * count, total, consumed)
        consumed = [had + share for had, share in zip(consumed, shares, strict=True)]
    assert {had - begin for had in consumed} == {total}


@pytest.mark.proof
@given(
    logs=st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1),
    max_records=st.integers(1, 40),
)
def test_epoch_after_epoch_reads_every_offset_once(logs: dict[int, tuple[int, int]], max_records: int) -> None:
    topic: dict[int, tuple[int, ...]] = {p: (start, start + size) for p, (start, size) in logs.items()}
    log = cluster(orders=topic)
    at: Position | None = None
    read: list[tuple[int, int]] = []
    for _ in range(1 + sum(size for _, size in logs.values())):
        ranges = limited(plan(at, log), max_records)
        assert records_upper_bound(ranges) <= max_records
        assert [r.partition for r in ranges["orders"]] == sorted(topic)
        read += [(r.partition, offset) for r in ranges["orders"] for offset in range(r.start, r.end)]
        at = Position(ranges=ranges, state=state_of(at, log, ranges, {}))
    assert sorted(read) == [(p, offset) for p in sorted(topic) for offset in range(*topic[p])]


# --- what an epoch leaves unread ------------------------------------------------------------------------------


def left(ends: dict[int, int], batches: dict[Partition, Batch]) -> Backlog:
    """Of three partitions with ten records each, at 60 s, if the epoch ends there."""
    ranges = {"gone": (OffsetRange(0, 5, 5),), "orders": tuple(OffsetRange(p, 0, end) for p, end in ends.items())}
    return left_unread(("orders",), ranges, cluster(orders=dict.fromkeys(ends, (0, 10))), batches, 60_000)


def batch(ms: int) -> Batch:
    return Batch(crc=1, whole=True, ms=ms)


def test_an_epoch_that_takes_everything_leaves_nothing_that_waits() -> None:
    assert left({0: 10, 1: 10}, {("orders", 0): batch(1)}) == Backlog(offsets=0, seconds=0)


def test_what_an_epoch_leaves_is_as_old_as_the_oldest_batch_before_it_at_most() -> None:
    told = {("orders", 0): batch(50_000), ("orders", 1): batch(48_500), ("orders", 2): batch(1)}
    assert left({0: 4, 1: 7, 2: 10}, told) == Backlog(offsets=9, seconds=11.5)


def test_nobody_knows_how_long_it_has_waited_if_a_batch_is_unknown_or_has_no_time() -> None:
    assert left({0: 4, 1: 7}, {("orders", 0): batch(50_000)}) == Backlog(offsets=9)
    assert left({0: 4}, {("orders", 0): batch(-1)}) == Backlog(offsets=6)


def test_a_batch_from_the_future_has_not_waited() -> None:
    assert left({0: 4}, {("orders", 0): batch(70_000)}) == Backlog(offsets=6, seconds=0)
