"""Sinks that vote and commit together, in one transaction of the place that they share; all others each by itself.

A commit task is still one sink's: the first one that comes commits all sinks of its group that have no receipt yet, and
each of the others finds that its own has been committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_epochs.contracts import Environment, Joint, Sink, SinkAttempt
from airflow_epochs.model import OpenRecord, Receipt, Staged, StagedClaim, StageReport, Vote, VoteKind


def groups(sinks: Mapping[str, Sink]) -> list[list[str]]:
    """The names of these sinks of an attempt: those that belong together in one list, in the same order."""
    found: dict[str, list[str]] = {}
    for name, sink in sinks.items():
        found.setdefault(_key(sink) or f"{name} alone", []).append(name)
    return list(found.values())


def group_of(sink: str, sinks: Mapping[str, Sink]) -> list[str]:
    """Those of ``sinks`` that commit together with this one, which is one of them."""
    return next(group for group in groups(sinks) if sink in group)


def votes_of(
    opened: OpenRecord, sinks: Mapping[str, Sink], report: StageReport, env: Environment, *, promised: bool = False
) -> dict[str, Vote]:
    """Each sink's vote on what was staged for it, which is for the sink to find out.

    ``promised``: as ``SinkAttempt`` has it.
    """
    found: dict[str, Vote] = {}
    for group in groups(sinks):
        attempts = {name: replace(SinkAttempt.of(opened, name), promised=promised) for name in group}
        found |= _votes(sinks, attempts, report, env)
    return {name: found[name] for name in sinks}


def _votes(
    sinks: Mapping[str, Sink], attempts: Mapping[str, SinkAttempt], report: StageReport, env: Environment
) -> dict[str, Vote]:
    missing = StagedClaim(place="", problem="Spark reported nothing for this sink")
    claims = {name: report.claims.get(name, missing) for name in attempts}
    first = sinks[next(iter(attempts))]
    if len(attempts) > 1 and isinstance(first, Joint):
        those = [(sinks[name], attempt, claims[name]) for name, attempt in attempts.items()]
        return first.vote_together(those, env)
    ((name, claim),) = claims.items()
    if claim.problem:
        return {name: Vote(vote=VoteKind.VOTE_ABORT, reason=claim.problem)}
    return {name: first.vote(attempts[name], claim, env)}


def commit(those: Sequence[tuple[Sink, SinkAttempt, Staged]], env: Environment) -> dict[str, Receipt]:
    """Make all sinks of a group show the epoch. Raises as ``Sink.commit`` does; the error names the sink."""
    first = those[0][0]
    if len(those) > 1 and isinstance(first, Joint):
        return first.commit_together(those, env)
    ((sink, attempt, staged),) = those
    return {sink.name: sink.commit(attempt, staged, env)}


def _key(sink: Sink) -> str | None:
    return sink.joint() if isinstance(sink, Joint) else None
