"""Two pipelines on one table, one of which overwrites it: what each of them is told, on a real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_epochs.errors import Corrupt
from airflow_epochs.model import VoteKind
from airflow_epochs.sinks.delta.sink import DeltaSink
from tests.support.delta_modes_world import Epochs, create, shown, shown_by_others, table_in_catalog, values, vote_on
from tests.support.delta_world import attempt_of, transaction
from tests.support.environment import Environment

pytestmark = pytest.mark.jvm

CORRECTIONS = "corrections"


@pytest.fixture
def table(session: Any, tmp_path: Path) -> str:
    table = str(tmp_path / "stock")
    create(session, table, "id BIGINT, p STRING", "PARTITIONED BY (p)")
    return table


def frame(session: Any, *rows: str) -> Any:
    return values(session, "id, p", *rows)


def reason_against(ours: Epochs, rows: Any) -> str:
    """Why the next epoch is not to be."""
    assert ours.previous
    attempt = attempt_of(transaction(ours.previous.epoch + 1), ours.previous)
    vote = vote_on(ours.sink, attempt, rows, ours.world)
    assert vote.vote is VoteKind.VOTE_ABORT
    return vote.reason or ""


@pytest.mark.long
def test_an_overwrite_waits_until_the_rows_of_another_pipeline_are_gone(
    session: Any, world: Environment, table: str
) -> None:
    ours = Epochs(DeltaSink("stock", table, mode="overwrite"), world)
    theirs = Epochs(DeltaSink("fixes", table, commit="spark"), world, CORRECTIONS)
    ours.run(frame(session, "(1L, 'a')"))
    theirs.run(frame(session, "(2L, 'ü b%')"))
    reason = reason_against(ours, frame(session, "(3L, 'a')"))
    assert "Pipeline 'corrections' has put rows of its epoch 1 into" in reason
    assert "delete them first" in reason
    assert shown(session, table) == [(1, "a"), (2, "ü b%")]
    session.sql(f"DELETE FROM delta.`file://{table}`").collect()
    ours.run(frame(session, "(3L, 'a')"))
    ours.run(frame(session, "(4L, 'a')"))
    assert shown(session, table) == shown_by_others(table) == [(4, "a")]


@pytest.mark.long
def test_an_overwrite_in_the_catalog_sees_other_pipelines_too(session: Any, world: Environment) -> None:
    with table_in_catalog(session) as named:
        ours = Epochs(DeltaSink("stock", named, mode="overwrite"), world)
        ours.run(frame(session, "(1L, 'a')"))
        Epochs(DeltaSink("fixes", named), world, CORRECTIONS).run(frame(session, "(2L, 'b')"))
        assert f"into {named} (version" in reason_against(ours, frame(session, "(3L, 'a')"))


@pytest.mark.long
@pytest.mark.parametrize("mode", ["overwrite", pytest.param("overwrite_partitions", marks=pytest.mark.long)])
def test_a_pipeline_whose_rows_another_one_has_overwritten_is_told_by_whom(
    session: Any, world: Environment, table: str, mode: str
) -> None:
    ours = Epochs(DeltaSink("stock", table, mode=mode, replaces_others=True), world)
    theirs = Epochs(DeltaSink("fixes", table, commit="spark"), world, CORRECTIONS)
    _, _, since = theirs.run(frame(session, "(2L, 'b')", "(3L, 'c')"))
    ours.run(frame(session, "(1L, 'b')"))
    told = theirs.sink.foreign_changes(since, CORRECTIONS, (), world)
    if mode == "overwrite":
        assert told == [
            f"sink fixes: {table} may have lost rows of complete epochs in version 2 "
            "(WRITE, overwrite by pipeline 'orders')"
        ]
        strict = DeltaSink("fixes", table, commit="spark", on_foreign_change="stop")
        with pytest.raises(Corrupt, match="overwrite by pipeline 'orders'"):
            strict.foreign_changes(since, CORRECTIONS, (), world)
        assert shown(session, table) == [(1, "b")]
    else:
        assert told == []
        assert shown(session, table) == [(1, "b"), (3, "c")]
    theirs.run(frame(session, "(5L, 'd')"))


@pytest.mark.long
def test_partitions_that_each_pipeline_has_for_itself_can_be_overwritten(
    session: Any, world: Environment, table: str
) -> None:
    ours = Epochs(DeltaSink("stock", table, mode="overwrite_partitions"), world)
    theirs = Epochs(DeltaSink("fixes", table, mode="overwrite_partitions"), world, CORRECTIONS)
    for epoch in ("1L", "2L"):
        ours.run(frame(session, f"({epoch}, 'a')"))
        theirs.run(frame(session, f"({epoch}, 'b')"))
    assert shown(session, table) == shown_by_others(table) == [(2, "a"), (2, "b")]
    assert "Mode 'overwrite_partitions' would delete these rows" in reason_against(ours, frame(session, "(3L, 'b')"))
