"""What the command will record, and what it costs, in sentences: shown before the question."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_epochs.contracts import backfill_from
from airflow_epochs.coordinator.rebuilding.evidence import in_words
from airflow_epochs.coordinator.rebuilding.planning import Plan
from airflow_epochs.model import Ranges, described_epochs
from airflow_epochs.spark.driver.event_times import instant

PRINTED_MAX = 20
"""How many partitions a plan prints."""


def announced(plan: Plan) -> Iterator[str]:
    """What the command will record, and what it costs, for people."""
    has = f"ends with epoch {plan.newest}" if plan.newest else "has no epoch of it"
    yield f"Pipeline {plan.pipeline} of DAG {plan.dag_id}: the ledger {has}, and the sinks show epoch {plan.txn.epoch}:"
    for name, each in plan.shown.items():
        yield f"  sink {name}: {in_words(each)}, transaction {each.txn or plan.txn}"
    for name, left in plan.without.items():
        yield f"  left out: sink {name}: {in_words(left) if left else 'no epoch'}"
    if plan.txn.is_fence:
        yield (
            f"Epoch {plan.txn.epoch} was waived, and has no rows. The next epoch reads its input again, and goes on "
            "from the end of the epoch before."
        )
    yield f"The next epoch is {plan.txn.epoch + 1}. It goes on from these offsets:"
    yield from _positions(plan.input.ranges)
    if plan.told.ends:
        yield "They are the offsets of the file. If they are too early, rows come twice; if too late, rows are missing."
        yield (
            "The file must name every topic and partition that the pipeline has read. A partition that it does not "
            "name is read from offset 0 on, and a topic from where `starting` says: their rows would come twice."
        )
    yield from _watermark(plan)
    yield from _lost(plan)
    yield from _consequences(plan)


def _watermark(plan: Plan) -> Iterator[str]:
    stored = next((each.watermarks[0] for each in plan.shown.values() if each.watermarks), None)
    if stored is not None:
        yield f"The watermark of epoch {plan.txn.epoch}: {instant(stored).isoformat()}."
    if plan.told.watermark is not None:
        yield (
            f"The watermark of epoch {plan.txn.epoch}, as typed: {instant(plan.told.watermark).isoformat()}. If it is "
            "too early, late rows open windows again, and their results take the place of right ones; if too late, "
            "rows in time count as late."
        )


def _positions(ranges: Ranges) -> Iterator[str]:
    flat = [(topic, r) for topic, per_topic in ranges.items() for r in per_topic]
    for topic, r in flat[:PRINTED_MAX]:
        yield f"  {topic}[{r.partition}]: {r.end}"
    if len(flat) > PRINTED_MAX:
        yield f"  … and {len(flat) - PRINTED_MAX} more partitions"


def _lost(plan: Plan) -> Iterator[str]:
    epochs = described_epochs(plan.newest + 1, plan.txn.epoch)
    yield f"Lost for good: what the ledger recorded of {epochs} (receipts, votes, who opened them). XComs stay."
    first = plan.input.backfill_from
    yield f"No sink can `backfill` from an epoch before {first}: the ledger lacks records that this needs."
    if plan.is_new:
        yield f"The ledger will be begun anew, and will belong to DAG {plan.dag_id}."


def _consequences(plan: Plan) -> Iterator[str]:
    first = plan.input.backfill_from
    for name in sorted(plan.anew):
        yield (
            f"The state {name} begins anew, in an empty table: it has seen no record before epoch "
            f"{plan.txn.epoch + 1}. To let it see them again, see docs/state.md, 'A state that is lost'."
        )
    for name in (name for name in plan.without if name not in plan.anew):
        if first > plan.txn.epoch:
            begins = f"It begins with epoch {plan.txn.epoch + 1}, and lacks earlier rows."
            yield f"Give sink {name} another name in the DAG. {begins}"
        else:
            yield (
                f"Give sink {name} another name in the DAG, with {backfill_from(first)}: it then gets the rows that it "
                "lacks."
            )
