"""Sinks that vote and commit together, in one transaction of the place that they share; all others each by itself.

A commit task is still one sink's: the first one that comes commits all sinks of its group that have no receipt yet, and
each of the others finds that its own has been committed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from airflow_epochs.environment import Environment
from airflow_epochs.model import OpenRecord, Receipt, Staged, StagedClaim, StageReport, Vote, VoteKind
from airflow_epochs.sinks import from_spec
from airflow_epochs.sinks.base import Joint, Sink, SinkAttempt


def groups(opened: OpenRecord, names: Collection[str]) -> list[list[str]]:
    """These sinks of an attempt: those that belong together in one list, in the order of the DAG."""
    found: dict[str, list[str]] = {}
    for name in opened.sinks:
        if name in names:
            found.setdefault(_key(_sink(opened, name)) or f"{name} alone", []).append(name)
    return list(found.values())


def group_of(opened: OpenRecord, sink: str, names: Collection[str]) -> list[str]:
    """The sinks among ``names`` that commit together with this one, which is one of them."""
    return next(group for group in groups(opened, {*names, sink}) if sink in group)


def votes_of(
    opened: OpenRecord, names: Collection[str], report: StageReport, env: Environment, *, promised: bool = False
) -> dict[str, Vote]:
    """Each sink's vote on what was staged for it, which is for the sink to find out.

    ``promised``: as ``SinkAttempt`` has it.
    """
    found: dict[str, Vote] = {}
    for group in groups(opened, names):
        attempts = {name: replace(SinkAttempt.of(opened, name), promised=promised) for name in group}
        found |= _votes(opened, attempts, report, env)
    return {name: found[name] for name in opened.sinks if name in found}


def _votes(
    opened: OpenRecord, attempts: Mapping[str, SinkAttempt], report: StageReport, env: Environment
) -> dict[str, Vote]:
    missing = StagedClaim(place="", problem="Spark reported nothing for this sink")
    claims = {name: report.claims.get(name, missing) for name in attempts}
    first = _sink(opened, next(iter(attempts)))
    if len(attempts) > 1 and isinstance(first, Joint):
        those = [(_sink(opened, name), attempt, claims[name]) for name, attempt in attempts.items()]
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


def _sink(opened: OpenRecord, name: str) -> Sink:
    return from_spec(opened.sinks[name].spec)
