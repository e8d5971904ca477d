"""One try of staging: a fresh place per sink, on record before anything is written there, filled by one Spark job."""

from __future__ import annotations

from collections.abc import Collection

from airflow_epochs.actor import Actor
from airflow_epochs.environment import Environment, SparkJob
from airflow_epochs.errors import tolerated
from airflow_epochs.model import JsonDict, OpenRecord, StagedClaim, StageReport, TryRecord, Vote, VoteKind
from airflow_epochs.sinks import from_spec
from airflow_epochs.sinks.base import SinkAttempt


def stage_try(actor: Actor, opened: OpenRecord, only: Collection[str] | None = None) -> StageReport:
    """Fill fresh places, of all sinks or ``only`` of some.

    Raises:
        NotApplied: Spark failed. What it wrote is on record and will be swept.
        Corrupt: Some of the input is gone.
    """
    # Hours may have passed since open; Spark itself would not notice a topic that was recreated meanwhile.
    actor.pipeline.source.check(opened.ranges, opened.source_state, actor.env)
    nonce, session = actor.draw_nonce(), actor.env.spark.new_session()
    sinks = {
        name: (from_spec(plan.spec), SinkAttempt.of(opened, name))
        for name, plan in opened.sinks.items()
        if only is None or name in only
    }
    actor.ledger.put_try(  # before anything is written there: what is on record is cleared away
        TryRecord(
            txn_id=opened.txn_id,
            nonce=nonce,
            places={name: sink.place(attempt, nonce, actor.env) for name, (sink, attempt) in sinks.items()},
            session=session,
            started_at=actor.now(),
        )
    )
    plans = {name: sink.plan_stage(attempt, nonce, actor.env) for name, (sink, attempt) in sinks.items()}
    actor.env.reached("stage.start")
    report = actor.env.spark.run(_stage_job(actor, opened, plans), session)
    actor.env.reached("stage.done")
    return StageReport(
        txn_id=opened.txn_id,
        nonce=nonce,
        claims={name: StagedClaim(**claim) for name, claim in report["sinks"].items()},
        metrics=report.get("metrics", {}),
        warnings=tuple(report.get("warnings", ())),
    )


def _stage_job(actor: Actor, opened: OpenRecord, plans: dict[str, JsonDict]) -> SparkJob:
    read = actor.pipeline.source.spark_read(opened.ranges, actor.env)
    transform = actor.pipeline.transform
    return SparkJob(
        kind="stage",
        args={
            "txn_id": opened.txn_id,
            "pipeline": actor.pipeline.name,
            "epoch": opened.txn.epoch,
            "attempt": opened.txn.attempt,
            "now": opened.now,
            "seed": opened.seed,
            "read": read.options,
            "transform": {"path": transform.path, "function": transform.function},
            "outputs": sorted(opened.sinks),
            "measure_input": actor.pipeline.measure_input,
            "sinks": plans,
        },
        secrets=read.secrets,
        files=(transform.path,),
        description=f"stage {opened.txn_id}",
    )


def vote_of(opened: OpenRecord, sink: str, report: StageReport, env: Environment) -> Vote:
    """The sink's vote on what was staged for it, which is for the sink to find out."""
    claim = report.claims.get(sink)
    if claim is None or claim.problem:
        reason = claim.problem if claim else "Spark reported nothing for this sink"
        return Vote(vote=VoteKind.VOTE_ABORT, reason=reason)
    return from_spec(opened.sinks[sink].spec).vote(SinkAttempt.of(opened, sink), claim, env)


def stop_earlier_tries(actor: Actor, epoch: int, only: str | None = None) -> None:
    """End what killed tries of the epoch may still be running on Spark; ``only`` those of one sink alone."""
    for earlier in actor.ledger.tries(epoch):
        if only is None or set(earlier.places) == {only}:
            with tolerated(f"stopping the earlier try {earlier.nonce}"):
                actor.env.spark.stop(earlier.session)
