"""What the participants of all kinds of sinks say alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_epochs.errors import Refused
from airflow_epochs.sinks.delta.sink import DeltaSink
from tests.support.delta_world import attempt_of, promised, rows, stage, transaction
from tests.support.environment import Environment


def test_a_commit_that_a_sink_refuses_is_not_one_of_unknown_outcome(
    sink: DeltaSink, table: str, world: Environment
) -> None:
    attempt = attempt_of(transaction(1))
    staged = promised(sink.vote(attempt, stage(sink, attempt, rows(1), world), world))
    elsewhere = replace(staged, place=staged.place.replace(table, f"{table}_of_others"))
    with pytest.raises(Refused, match="is not a staging place of sink 'bronze'"):
        sink.commit(attempt, elsewhere, world)
