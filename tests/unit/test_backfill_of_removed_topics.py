"""A backfill whose epochs read a topic that was taken out of the source since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from airflow_epochs import EventTime, codes
from airflow_epochs.config import Pipeline
from airflow_epochs.contracts import Environment
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import JsonDict, OffsetRange, OpenRecord, Ranges, Run
from airflow_epochs.testing import MemorySink, MemoryWorld, memory_coordinator, memory_pipeline, run_epoch
from airflow_epochs.testing.sources import MemorySource


@dataclass(frozen=True, kw_only=True)
class Upsert(MemorySink):
    """Says that its later rows replace earlier ones."""

    def replaces_by(self) -> tuple[str, ...]:
        return ("id",)


@dataclass(frozen=True, kw_only=True)
class Deleting(MemorySource):
    """Says of some topics that they are gone, or may not be read."""

    errors: tuple[tuple[str, type[Corrupt] | type[Refused]], ...] = ()

    def check(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        for topic, error in self.errors:
            if topic in ranges:
                assert topic in state["topics"], "a topic is checked with the state of an epoch that read it"
                raise error(f"{topic} is not there: {ranges[topic]}", code=codes.RECORDS_GONE)
        super().check(ranges, state, env)


class Lab:
    """Three epochs: `a` is in all of them, `b` in the first two. Then `gold` begins with the first."""

    def __init__(self) -> None:
        self.world = MemoryWorld()
        for number, topics in enumerate((("a", "b"), ("a", "b"), ("a",)), start=1):
            for topic in topics:
                self.world.produce(topic, 0, [f"{topic}{number}"])
            run_epoch(self.coordinator(("orders",), topics), Run("dag", f"r{number}"))
        self.world.produce("a", 0, ["a4"])

    def coordinator(self, sinks: tuple[str, ...], topics: tuple[str, ...] = ("a",), **given: Any) -> Coordinator:
        pipeline: Pipeline = replace(
            memory_pipeline(self.world, sinks),
            sinks=tuple(Upsert(name=name, world=self.world.name) for name in sinks),
            source=MemorySource(world=self.world.name, topics=topics),
        )
        return memory_coordinator(self.world, replace(pipeline, **given))

    def with_gold(self, errors: Mapping[str, type[Corrupt] | type[Refused]], **given: Any) -> Coordinator:
        source = Deleting(world=self.world.name, topics=("a",), errors=tuple(errors.items()))
        return self.coordinator(("orders", "gold"), source=source, **{"backfill": {"gold": 1}, **given})


def test_an_upsert_gets_the_rows_of_a_topic_that_was_taken_out_and_is_still_there() -> None:
    lab = Lab()
    run_epoch(lab.with_gold({}), Run("dag", "r4"))
    assert sorted(map(str, lab.world.table("gold").values())) == ["a1", "a2", "a3", "a4", "b1", "b2"]


@pytest.mark.parametrize("error", [Corrupt, Refused])
def test_an_upsert_takes_its_epochs_as_one_without_a_topic_that_was_taken_out_and_is_gone(
    error: type[Corrupt] | type[Refused], caplog: pytest.LogCaptureFixture
) -> None:
    lab = Lab()
    opened = lab.with_gold({"b": error}).open(Run("dag", "r4"))
    assert isinstance(opened, OpenRecord) and opened.sinks["gold"].replayed_from is None
    assert opened.ranges_of("gold") == {"a": (OffsetRange(0, 0, 4),)}
    assert "takes epochs 1 to 4 as one" in caplog.text
    assert f"b is not there: {(OffsetRange(0, 0, 2),)}" in caplog.text


def test_with_event_time_a_backfill_of_a_topic_that_is_gone_opens_nothing_and_its_remedy_is_a_later_epoch() -> None:
    lab, timed = Lab(), EventTime("10 s")
    with pytest.raises(Corrupt, match="b is not there") as error:
        lab.with_gold({"b": Corrupt}, event_time=timed).open(Run("dag", "r4"))
    assert error.value.code is codes.BACKFILL_GONE and "Let `backfill` name a later epoch" in error.value.remedy
    run_epoch(lab.with_gold({"b": Corrupt}, event_time=timed, backfill={"gold": 3}), Run("dag", "r4"))
    assert lab.world.table("gold").values() == ["a3", "a4"]
