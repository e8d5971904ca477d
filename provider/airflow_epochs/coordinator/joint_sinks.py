"""Sinks that vote and commit together, in one transaction of the database that they share. All others do so alone.

Each sink still has its own commit task. The first one to run commits all sinks of the group that have no receipt yet.
Each later one finds that its sink has committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_epochs import codes
from airflow_epochs.config import groups
from airflow_epochs.contracts import Environment, Joint, Sink, SinkAttempt
from airflow_epochs.coordinator import sink_calls
from airflow_epochs.errors import Refused
from airflow_epochs.model import OpenRecord, Receipt, Staged, StageReport, Vote
from airflow_epochs.sinks.participant import vote_against, vote_against_rows


def group_of(sink: str, sinks: Mapping[str, Sink]) -> list[str]:
    """The names of the ``sinks`` that commit together with ``sink``, which is one of them; itself included."""
    return next(group for group in groups(sinks) if sink in group)


def votes_of(
    opened: OpenRecord, sinks: Mapping[str, Sink], report: StageReport, env: Environment, *, promised: bool = False
) -> dict[str, Vote]:
    """Each sink's vote on its staged rows, by sink name. Each sink checks the rows itself; ``report`` proves nothing.

    ``promised``: as in ``SinkAttempt``.
    """
    found = {name: _against_unreported() for name in sinks.keys() - report.claims.keys()}
    for group in groups({name: sink for name, sink in sinks.items() if name in report.claims}):
        attempts = {name: replace(SinkAttempt.of(opened, name), promised=promised) for name in group}
        found |= _votes(sinks, attempts, report, env)
    return {name: found[name] for name in sinks}


def _votes(
    sinks: Mapping[str, Sink], attempts: Mapping[str, SinkAttempt], report: StageReport, env: Environment
) -> dict[str, Vote]:
    claims = {name: report.claims[name] for name in attempts}
    first = sinks[next(iter(attempts))]
    if len(attempts) > 1 and isinstance(first, Joint):
        those = [(sinks[name], attempt, claims[name]) for name, attempt in attempts.items()]
        votes = sink_calls.votes_of(first, those, env)
        return {name: vote_against_rows(claim) or votes[name] for name, claim in claims.items()}
    ((name, claim),) = claims.items()
    return {name: vote_against_rows(claim) or sink_calls.vote_of(first, attempts[name], claim, env)}


def _against_unreported() -> Vote:
    return vote_against(
        Refused(
            "Spark reported nothing for this sink. The sink did not vote for the rows, and no sink shows them.",
            code=codes.SPARK_SINK_UNREPORTED,
        )
    )


def commit(those: Sequence[tuple[Sink, SinkAttempt, Staged]], env: Environment) -> dict[str, Receipt]:
    """Commit all sinks of a group; receipts by sink name. Idempotent. Raises as ``Sink.commit``, naming the sink."""
    first = those[0][0]
    if len(those) > 1 and isinstance(first, Joint):
        return sink_calls.committed_together(first, those, env)
    ((sink, attempt, staged),) = those
    return {sink.name: sink_calls.committed(sink, attempt, staged, env)}
