"""What the participants of all kinds of sinks say alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_epochs import codes
from airflow_epochs.errors import NotApplied, OutcomeUnknown, Refused
from airflow_epochs.hooks.epochs import connection
from airflow_epochs.model import Staged, StagedClaim
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.participant import unknown_without_answer, vote_on
from tests.support.delta_world import attempt_of, promised, rows, stage, transaction
from tests.support.environment import Environment


def no_connection() -> Staged:
    """As a participant meets it while it makes its client."""
    connection("nowhere")
    raise AssertionError("there is such a connection")


def test_a_vote_that_gets_no_connection_is_not_one_against_the_rows_and_its_commit_is_tried_again() -> None:
    with pytest.raises(NotApplied, match=codes.CONNECTION_MISSING.name):
        vote_on(StagedClaim(place="/staging/1-1"), no_connection)
    with pytest.raises(OutcomeUnknown, match="no connection 'nowhere'"), unknown_without_answer("gold"):
        no_connection()


def test_a_commit_that_a_sink_refuses_is_not_one_of_unknown_outcome(
    sink: DeltaSink, table: str, world: Environment
) -> None:
    attempt = attempt_of(transaction(1))
    staged = promised(sink.vote(attempt, stage(sink, attempt, rows(1), world), world))
    elsewhere = replace(staged, place=staged.place.replace(table, f"{table}_of_others"))
    with pytest.raises(Refused, match="is not a staging place of sink 'bronze'"):
        sink.commit(attempt, elsewhere, world)
