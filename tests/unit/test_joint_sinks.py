"""Sinks of one's own that vote together: what Spark found out about their rows holds as for a sink that votes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_epochs.contracts import Environment, SinkAttempt
from airflow_epochs.coordinator.joint_sinks import votes_of
from airflow_epochs.model import SinkPlan, Staged, StagedClaim, StageReport, Vote, VoteKind
from airflow_epochs.testing import MemoryEnvironment
from tests.support.records import open_record


class Paired:
    """A sink of one's own. It looks at nothing but where its rows are."""

    def __init__(self, name: str) -> None:
        self.name = name

    def joint(self) -> str:
        return "one database"

    def vote(self, attempt: SinkAttempt, claim: StagedClaim, env: Environment) -> Vote:
        staged = Staged(place=claim.place, version=0, rows=1, files=1, bytes=1, digest="d")
        return Vote(vote=VoteKind.VOTE_COMMIT, staged=staged)

    def vote_together(
        self, those: Sequence[tuple[Paired, SinkAttempt, StagedClaim]], env: Environment
    ) -> dict[str, Vote]:
        return {sink.name: sink.vote(attempt, claim, env) for sink, attempt, claim in those}

    def commit_together(self, those: Sequence[Any], env: Environment) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("problem", [{"unmet": "1 row breaks amount >= 0."}, {"problem": "Column n is no number."}])
@pytest.mark.parametrize("names", ["a", "ab"])
def test_rows_that_spark_found_unfit_are_voted_against_also_in_a_group(names: str, problem: dict[str, Any]) -> None:
    sinks: dict[str, Any] = {name: Paired(name) for name in names}
    claims = {name: StagedClaim(place=name) for name in names} | {"a": StagedClaim(place="a", **problem)}
    opened = replace(open_record(), sinks={name: SinkPlan(spec={}, previous=None) for name in names})
    report = StageReport(txn_id=opened.txn_id, try_id="x", claims=claims)
    votes = votes_of(opened, sinks, report, MemoryEnvironment())
    assert {name: said.vote for name, said in votes.items()} == {
        name: VoteKind.VOTE_ABORT if name == "a" else VoteKind.VOTE_COMMIT for name in names
    }
    assert next(iter(problem.values())) in str(votes["a"].reason)
