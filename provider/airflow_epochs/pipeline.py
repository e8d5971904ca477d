"""``EpochPipeline``: the tasks of one exactly-once pipeline as a TaskGroup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Asset, Param, TaskGroup, TriggerRule

from airflow_epochs.config import (
    SINGLE,
    TASKS,
    WAIT_FOR_OTHERS_S,
    WARN,
    lacks_of,
    possible_groups,
    require_allowed,
    require_backfill,
    require_dead_letters,
    require_distinct,
    require_expectations,
    require_keep_epochs,
    require_layout,
    require_name,
    require_no_loop,
    require_on_code_change,
    require_on_failed_epoch,
    require_one_run_at_a_time,
    require_types,
    require_vote,
    require_wait,
)
from airflow_epochs.operators.base import require_name_of_its_own
from airflow_epochs.operators.documentation import document, parts_of
from airflow_epochs.operators.epoch import (
    AbortEpochOperator,
    CommitSinkOperator,
    CompleteEpochOperator,
    OpenEpochOperator,
    StageEpochOperator,
    VoteEpochOperator,
)
from airflow_epochs.operators.single import EpochsOperator

if TYPE_CHECKING:
    from airflow_epochs.ballot import VoteFunction
    from airflow_epochs.contracts import Sink, Source
    from airflow_epochs.event_time import EventTime
    from airflow_epochs.expectations import Expectations
    from airflow_epochs.sinks.delta.state.table import StateTable
    from airflow_epochs.spark.runners import SparkConnect, SparkSubmit

_NUMBER_MAX = 2**53 - 1
"""Browsers and every JSON reader take a number up to it as it is. Airflow cannot hand one above 2**64 to a task."""
_OFFSET_MAX = 2**63 - 1
_WEEK_S = 7 * 24 * 3600

_PARAMS = {
    "max_records": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        maximum=_NUMBER_MAX,
        description="The largest number of records in this run's epoch. Empty: as the pipeline says.",
    ),
    "max_bytes": Param(
        None,
        type=["null", "integer", "string"],
        minimum=1,
        maximum=_NUMBER_MAX,
        description="About the largest number of bytes of the topics in this run's epoch, such as 256MiB. Empty: as "
        "the pipeline says.",
    ),
    "min_records": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        maximum=_NUMBER_MAX,
        description="The number of records to wait for; 1: take what is there now. Empty: as the pipeline says.",
    ),
    "max_delay": Param(
        None,
        type=["null", "number", "string"],
        minimum=0,
        maximum=_WEEK_S,
        description="The age of a record at which the run no longer waits for min_records: seconds, or a text such as "
        "10m. Empty: as the pipeline says.",
    ),
    "target_duration": Param(
        None,
        type=["null", "number", "string"],
        minimum=1,
        maximum=_WEEK_S,
        description="How long the work on this run's epoch should take, which decides its size: seconds, or a text "
        "such as 10m. Empty: as the pipeline says.",
    ),
    "starting": Param(
        None,
        type=["null", "string", "object"],
        additionalProperties={"additionalProperties": {"minimum": 0, "maximum": _OFFSET_MAX}},
        description="Where a topic or a table begins that no epoch has read yet: earliest, latest, an ISO timestamp, "
        'or offsets {"topic": {"0": 42}}. Empty: as the pipeline says. Without effect on an epoch that is open.',
    ),
    "savepoint": Param(
        None,
        type=["null", "string"],
        description="A name for this run's epoch, once it is complete, to go back to it later. Empty: no savepoint.",
    ),
}

_PARAMS_OF_SINGLE = {
    "for_seconds": Param(
        None,
        type=["null", "number"],
        exclusiveMinimum=0,
        maximum=_NUMBER_MAX,
        description="The number of seconds after which this run begins no further epoch. Empty: as the pipeline says.",
    ),
    "max_epochs": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        maximum=_NUMBER_MAX,
        description="The largest number of epochs that this run works on. Empty: as the pipeline says.",
    ),
}


class EpochPipeline(TaskGroup):
    """The tasks of an exactly-once pipeline. Each run takes one epoch: all sinks show it exactly once, or no sink does.

    ::

        open ──▶ stage ──▶ vote ──▶ commit.<sink> (one per sink) ──▶ complete
                   └────────┴────▶ abort ─────────────────────────────▶

    Sinks that commit in one transaction, as in one database, have their commit tasks one after the other. So do
    all sinks of databases if the connection of one is a template, which may lead to any of them.

    ``complete`` is the only leaf: a task downstream of the group runs only if the epoch is complete. The group adds
    the params ``max_records``, ``max_bytes``, ``min_records``, ``max_delay``, ``target_duration``, ``starting`` and
    ``savepoint`` to the DAG, except those that the DAG defines, and those that the source does not take. It also adds
    the tag ``epochs``, and a ``doc_md`` if the DAG has no text of its own.

    With ``layout="single"`` the group is one task, ``epochs``, which runs all these phases for one epoch after another:
    see ``EpochsOperator``. The group then adds the params ``for_seconds`` and ``max_epochs``, too.

    Args:
        name: The name of the pipeline and of the TaskGroup. Two pipelines of one DAG need different names, or different
            ledgers: an outer TaskGroup does not tell them apart. One pipeline may stand twice, in branches of a DAG, if
            ``source``, ``transform``, ``sinks`` and what else changes rows are the same.
        source, transform, sinks, spark, ledger_conn_id, keep_epochs, measure_input, backfill, wait_for_others,
            event_time, expectations, dead_letters, vote, on_code_change, on_failed_epoch: See ``EpochOperator``.
        state: Tables of keyed state, which the transform reads and changes. They are sinks of the same decision.
        layout: "tasks": a task per step, and an epoch per run. "single": one task, and several epochs per run.
        for_seconds, max_epochs: Of the layout "single": see ``EpochsOperator``.
        deferrable: Whether ``open`` waits for data, and ``stage`` for an application that YARN runs in cluster mode, in
            Airflow's triggerer, where no worker slot is held.
        operator_args: More arguments for every operator of the group (``pool``, ``queue``, ``retries`` …). A
            ``trigger_rule``, here or in ``default_args``, applies to the first task only.
        task_group_args: More arguments for the TaskGroup.

    Raises:
        BadArgument: A name is not valid; another pipeline of the DAG has the same name and ledger; two sinks have the
            same name or destination; ``backfill``, ``wait_for_others``, ``on_code_change``, ``on_failed_epoch``,
            ``keep_epochs``, ``layout``, ``for_seconds`` or ``max_epochs`` is not valid; an argument is of another type;
            the group is in a mapped task group; the source does not allow an
            option; or ``max_active_runs`` is not 1.
        Refused: A sink writes to what the source reads.
    """

    def __init__(
        self,
        name: str,
        *,
        source: Source,
        transform: str,
        sinks: Sequence[Sink],
        state: Sequence[StateTable] = (),
        event_time: EventTime | None = None,
        expectations: Expectations | None = None,
        dead_letters: str | None = None,
        vote: VoteFunction | None = None,
        spark: SparkConnect | SparkSubmit,
        ledger_conn_id: str = "epochs_default",
        keep_epochs: int = 1000,
        measure_input: bool = False,
        backfill: Mapping[str, int] | None = None,
        wait_for_others: float = WAIT_FOR_OTHERS_S,
        on_code_change: str = WARN,
        deferrable: bool = False,
        on_failed_epoch: str | None = None,
        layout: str = TASKS,
        for_seconds: float | None = None,
        max_epochs: int | None = None,
        operator_args: dict[str, Any] | None = None,
        **task_group_args: Any,
    ) -> None:
        require_name("pipeline", name)
        require_types(
            source=source,
            sinks=sinks,
            spark=spark,
            state=state,
            event_time=event_time,
            backfill=backfill,
            expectations=expectations,
            dead_letters=dead_letters,
            ledger_conn_id=ledger_conn_id,
            operator_args=operator_args,
        )
        require_expectations(expectations or {}, [*sinks, *state])
        require_dead_letters(dead_letters, sinks, backfill or {}, expectations or {}, state)
        sinks = [*sinks, *state]
        require_distinct(sinks)
        require_no_loop(source, sinks)
        require_allowed(source, event_time=event_time, deferrable=deferrable)
        require_backfill(backfill or {}, sinks)
        require_wait(wait_for_others)
        require_vote(vote)
        require_on_code_change(on_code_change)
        require_on_failed_epoch(on_failed_epoch)
        require_keep_epochs(keep_epochs)
        require_layout(layout, for_seconds=for_seconds, max_epochs=max_epochs, deferrable=deferrable)
        super().__init__(group_id=name, **task_group_args)
        require_one_run_at_a_time(self.dag.dag_id, self.dag.max_active_runs)
        document(self.dag, name, ledger_conn_id, parts_of(source, transform, sinks, spark))
        _add_params(self.dag, _params_of(source, layout))
        shared = {
            **(operator_args or {}),
            "pipeline": name,
            "source": source,
            "transform": transform,
            "sinks": sinks,
            "spark": spark,
            "ledger_conn_id": ledger_conn_id,
            "keep_epochs": keep_epochs,
            "measure_input": measure_input,
            "backfill": backfill,
            "wait_for_others": wait_for_others,
            "on_code_change": on_code_change,
            "on_failed_epoch": on_failed_epoch,
            "event_time": event_time,
            "expectations": expectations,
            "dead_letters": dead_letters,
            "vote": vote,
            **_start_of_continuous(self.dag),
        }
        with self:
            if layout == SINGLE:
                single = EpochsOperator(task_id="epochs", for_seconds=for_seconds, max_epochs=max_epochs, **shared)
                self.assets = single.assets
            else:
                self.assets = _build(shared, sinks, deferrable)
        require_name_of_its_own(self.dag, name)


def _build(shared: dict[str, Any], sinks: Sequence[Sink], deferrable: bool) -> dict[str, Asset]:
    opened = OpenEpochOperator(task_id="open", deferrable=deferrable, **shared)
    # The rules between the steps are the protocol's: neither `operator_args` nor `default_args` may change them.
    inner = {**shared, "trigger_rule": TriggerRule.ALL_SUCCESS}
    staged = StageEpochOperator(task_id="stage", deferrable=deferrable, checkpoint=opened.output, **inner)
    voted = VoteEpochOperator(task_id="vote", checkpoint=staged.output, **inner)
    commits = {
        sink.name: CommitSinkOperator(task_id=f"commit.{sink.name}", sink=sink.name, checkpoint=voted.output, **inner)
        for sink in sinks
    }
    # The first of a group commits all. Another one at the same time would only wait for its locks, and give up.
    for group in possible_groups({sink.name: sink for sink in sinks}):
        for first, second in pairwise(group):
            commits[first] >> commits[second]
    aborted = AbortEpochOperator(task_id="abort", **{**shared, "trigger_rule": TriggerRule.ONE_FAILED})
    closing = {**shared, "trigger_rule": TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS}
    complete = CompleteEpochOperator(
        task_id="complete", checkpoint=[commit.output for commit in commits.values()], **closing
    )
    [staged, voted] >> aborted >> complete
    return complete.assets


def _start_of_continuous(dag: DAG) -> dict[str, datetime]:
    """A start date for the tasks of an ``@continuous`` DAG without one; else nothing.

    Without a start date, Airflow 3.3 runs such a DAG once: its second run gets the logical date of the first and fails
    with "already exists". Any date in the past will do.
    """
    has_one = dag.start_date or dag.default_args.get("start_date")
    continuous = type(dag.timetable).__name__ == "ContinuousTimetable"
    return {"start_date": datetime(2020, 1, 1, tzinfo=timezone.utc)} if continuous and not has_one else {}


def _params_of(source: Source, layout: str) -> dict[str, Param]:
    """The params that a run of the pipeline can obey: what a source refuses, Airflow's form need not offer."""
    lacks = lacks_of(source)
    taken = {name: param for name, param in _PARAMS.items() if name not in lacks}
    return {**taken, **_PARAMS_OF_SINGLE} if layout == SINGLE else taken


def _add_params(dag: DAG, params: Mapping[str, Param]) -> None:
    for name, param in params.items():
        if name not in dag.params:
            dag.params[name] = param
