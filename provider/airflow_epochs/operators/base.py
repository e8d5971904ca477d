"""What the operators have in common: the pipeline's definition, and the way from an outcome to Airflow's terms.

Every operator returns the checkpoint record as its XCom and reads the ledger before it has an effect. The coordinator
is imported inside methods: every task parses its whole DAG file, but runs only one step.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_epochs import codes, secrecy
from airflow_epochs.config import (
    WAIT_FOR_OTHERS_S,
    WARN,
    Pipeline,
    Transform,
    require_keep_epochs,
    require_one_run_at_a_time,
    require_types,
)
from airflow_epochs.errors import BadArgument, Corrupt, EpochError, Fenced, NoNewData, Refused, without_code
from airflow_epochs.hooks.epochs import AirflowEnvironment, EpochsHook
from airflow_epochs.hooks.intervals import interval_of
from airflow_epochs.hooks.packages import missing_named
from airflow_epochs.operators import documentation
from airflow_epochs.operators.arguments import contents
from airflow_epochs.operators.deferral import GRACE_S, REST_S, TRIGGER_FAILED
from airflow_epochs.operators.links import EpochLink, RecordsLink, SinksLink
from airflow_epochs.operators.mapped import Partial, names_in, of_pipelines
from airflow_epochs.operators.rendered import require_texts
from airflow_epochs.operators.wording import with_downstream

if TYPE_CHECKING:
    from airflow.sdk import DAG, Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_epochs.ballot import VoteFunction
    from airflow_epochs.contracts import Sink, Source
    from airflow_epochs.coordinator.coordinator import Coordinator
    from airflow_epochs.event_time import EventTime
    from airflow_epochs.expectations import Expectations
    from airflow_epochs.ledger.ledger import Ledger
    from airflow_epochs.model import Checkpoint, JsonDict, Run
    from airflow_epochs.spark.runners import SparkConnect, SparkSubmit

log = secrecy.logger(__name__)

_OPENING = ("open", "epochs")
"""The steps that open epochs: each pipeline of a DAG has one task of these."""


class EpochOperator(BaseOperator):
    """Base of the six operators: holds the pipeline's definition and translates errors.

    Args:
        pipeline: The pipeline's name: 1 to 63 letters, digits, ``-`` and ``_``. It identifies the ledger.
        source: Where rows come from.
        transform: ``path/to/file.py:function``. A relative path is looked up beside the DAG file, in the folder above
            it, in the DAGs folder, and in the folder above that.
        sinks: Where rows go, and tables of state (``StateTable``). Their names must differ.
        spark: How Spark runs: ``SparkConnect`` or ``SparkSubmit``.
        ledger_conn_id: A connection of type ``epochs``.
        keep_epochs: How many complete epochs keep all their ledger records. Positions and transaction ids are kept
            for ever.
        measure_input: Whether the metrics get ``rows_in`` and ``max_timestamp`` (UTC) of the records read. Spark counts
            while it reads, which takes about 3 % longer.
        backfill: For a sink that is new to the pipeline, the number of the epoch whose input it begins with, e.g.
            ``{"gold": 12}``. The sink's first epoch then also takes the input of the epochs from there on, in one
            batch. Has no effect once the sink shows an epoch.
        wait_for_others: Seconds that ``open`` leaves another run's young attempt alone before it aborts it. Without
            this, two installations, or runs started by hand, could abort each other's attempts for ever. 0: no wait.
        event_time: How the watermark follows the rows; None without event time.
        expectations: Sink -> what must be true of its rows, made by ``expect`` and ``expect_row_count``. Spark counts
            the rows that break it while it stages them. Then the sink votes against the epoch, or the task warns.
        dead_letters: The sink that gets rows that other sinks would not take, and what the transform could not parse.
            Without it, such a row aborts its epoch.
        vote: A function of your own, which the vote task calls with a ``Ballot`` when every sink has voted VOTE_COMMIT.
            It returns None, or a text that says why the epoch must not be shown.
        on_code_change: What ``open`` does when the code of the transform, or of a file that it imports, differs from
            the epoch before. "warn": it says so in its log. "stop": it fails, until somebody types
            ``airflow epochs acknowledge-code``.
        on_failed_epoch: What ``open`` does with an epoch that another run has opened and not completed. "take_over": it
            finishes that epoch, with the same input, in place of one of its own. "block": it fails, and names the run
            to clear. None: "block" if the source reads data intervals, else "take_over".
        checkpoint: The previous step's XCom (``previous.output``, also of a mapped task), or a list of them. It carries
            measurements and, for ``vote``, what was staged. If it disagrees with the ledger, the ledger wins. What is
            no checkpoint is left out, with a warning.
    """

    template_fields: Sequence[str] = ("source", "transform", "sinks", "spark", "ledger_conn_id", "checkpoint")
    ui_color = "#e6f2ed"
    operator_extra_links = (EpochLink(), RecordsLink(), SinksLink())
    step: ClassVar[str]
    retry_defaults: ClassVar[dict[str, Any]] = {"retries": 3, "retry_delay": timedelta(seconds=5)}

    def __init__(
        self,
        *,
        pipeline: str,
        source: Source,
        transform: str,
        sinks: Sequence[Sink],
        spark: SparkConnect | SparkSubmit,
        ledger_conn_id: str = EpochsHook.default_conn_name,
        keep_epochs: int = 1000,
        measure_input: bool = False,
        backfill: Mapping[str, int] | None = None,
        wait_for_others: float = WAIT_FOR_OTHERS_S,
        event_time: EventTime | None = None,
        expectations: Expectations | None = None,
        dead_letters: str | None = None,
        vote: VoteFunction | None = None,
        on_code_change: str = WARN,
        on_failed_epoch: str | None = None,
        checkpoint: Any = None,
        **kwargs: Any,
    ) -> None:
        require_types(
            source=source,
            sinks=sinks,
            spark=spark,
            event_time=event_time,
            backfill=backfill,
            expectations=expectations,
            dead_letters=dead_letters,
            ledger_conn_id=ledger_conn_id,
        )
        for key, value in self.retry_defaults.items():
            kwargs.setdefault(key, value)
        parts = documentation.parts_of(source, transform, sinks, spark)
        kwargs.setdefault("doc_md", documentation.of_task(type(self), pipeline, parts))
        kwargs["do_xcom_push"] = True  # `vote` needs what `stage` pushes, whatever the DAG's default_args say
        super().__init__(**kwargs)
        self._require_no_wait_for_last_run()
        self._require_no_mapped_group(pipeline)
        Transform.parse(transform)
        self.epoch: int | None = None  # the one that this process has worked on
        self._rested = False
        self.pipeline = pipeline
        self.source = source
        self.transform = transform
        self.sinks = list(sinks)
        self.spark = spark
        self.ledger_conn_id = ledger_conn_id
        self.keep_epochs = keep_epochs
        self.measure_input = measure_input
        self.backfill = dict(backfill or {})
        self.wait_for_others = wait_for_others
        self.event_time = event_time
        self.expectations = dict(expectations or {})
        self.dead_letters = dead_letters
        self.vote = vote
        self.on_code_change = on_code_change
        self.on_failed_epoch = on_failed_epoch
        self.checkpoint = checkpoint
        self.told_apart_by = self._told_apart_by() if self.step in _OPENING else ""

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Called by DAG files that map the operator, which ``operators.mapped`` checks."""
        return Partial.of(super().partial(**kwargs))

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """Called by Airflow. The DAG in its database has these of each task, which `retry` reads."""
        fields: frozenset[str] = super().get_serialized_fields()  # type: ignore[no-untyped-call]  # of Airflow
        return fields | {"pipeline", "on_failed_epoch"}

    def resolve_template_files(self) -> None:
        """Called by Airflow when it has read the whole DAG file, which may have changed the DAG after this task."""
        super().resolve_template_files()
        if self.has_dag():  # type: ignore[no-untyped-call]  # of Airflow
            require_one_run_at_a_time(self.dag.dag_id, self.dag.max_active_runs)

    def _require_no_wait_for_last_run(self) -> None:
        if self.depends_on_past or self.wait_for_downstream:
            raise BadArgument(
                "`depends_on_past` or `wait_for_downstream` is set for a task of the pipeline. The DAG has one active "
                "run. If a run fails, the next one would wait for it for ever, and could not be finished either.",
                code=codes.PIPELINE_ARGUMENT,
            )

    def _require_no_mapped_group(self, pipeline: str) -> None:
        if mapped := next(self.iter_mapped_task_groups(), None):
            raise BadArgument(
                f"The pipeline {pipeline!r} is in the mapped task group {mapped.group_id!r}. All its instances would "
                "work on the one epoch that a run of the pipeline has. Take it out of the group. Or give each "
                "instance a pipeline of its own: make the groups in a loop, each with a pipeline of another name.",
                code=codes.PIPELINE_ARGUMENT,
            )

    def _told_apart_by(self) -> str:
        """What tells this pipeline from others. Two openers of a DAG for which it is equal run the same pipeline.

        Asked for before Airflow renders templates, which it does in place.
        """
        parts = (self.source, self.transform, self.sinks, self.backfill, self.event_time)
        return contents((*parts, self.expectations, self.dead_letters, self.vote))

    def execute(self, context: Context) -> JsonDict:
        """Run the step. Skip if there is nothing to do; fail without retry if a retry cannot help."""
        return self._told(context)

    def _told(self, context: Context) -> JsonDict:
        """The step, whose errors tell no secret."""
        try:
            return self._executed(context)
        except Exception as error:
            failure = secrecy.cleaned(error)  # Airflow also logs the causes of an exception
        raise _alone(failure)

    def _executed(self, context: Context) -> JsonDict:
        from airflow_epochs.operators.telling import quiet_clients, told
        from airflow_epochs.operators.xcom import to_xcom

        quiet_clients()
        started = time.monotonic()
        try:
            with self._located(), self._noting(context), missing_named():
                coordinator = self._coordinator(context)
                with self._measuring(coordinator, context):
                    checkpoint = self._worked(coordinator, context)
        except NoNewData as nothing:
            if nothing.code is codes.PIPELINE_PAUSED:
                self._rest(context)
            raise AirflowSkipException(str(nothing)) from nothing
        except (Refused, Fenced, Corrupt) as final:
            raise AirflowFailException(str(final)) from final
        self.epoch = checkpoint.epoch
        seconds = time.monotonic() - started
        self.log.info("step %s has ended: %s", self.step, told(self.step, checkpoint, seconds))
        return to_xcom(self._measured(checkpoint, seconds))

    def _worked(self, coordinator: Coordinator, context: Context) -> Checkpoint:
        """Run the step. The error says so if the ledger lacks what an earlier task wrote, perhaps on another worker."""
        try:
            return self.work(coordinator, self._known_run(coordinator, context), context)
        except Refused as error:
            if error.code is codes.EPOCH_NOT_OPENED:
                self._require_shared(coordinator.task.ledger)
            raise

    def _require_shared(self, ledger: Ledger) -> None:
        """Raise Refused if a task before has worked on an epoch that the ledger does not have, and never had."""
        following = ledger.view_of_next().number
        if unknown := [checkpoint for checkpoint in self._checkpoints if checkpoint.epoch >= following]:
            epoch, txn = unknown[-1].epoch, unknown[-1].txn_id
            raise Refused(
                f"A task before this one has worked on epoch {epoch} ({txn}). The ledger at "
                f"{secrecy.shown(ledger.root)} (connection {self.ledger_conn_id!r}), seen from host "
                f"{socket.gethostname()}, has no record of it: since then `ledger_conn_id` of the DAG or `ledger_root` "
                "of the connection was changed, or this worker sees another folder, or the ledger was lost or restored "
                "from an older copy.",
                code=codes.LEDGER_NOT_SHARED,
                pipeline=self.pipeline,
            )

    def _known_run(self, coordinator: Coordinator, context: Context) -> Run:
        """The run, as the ledger knows it by the one epoch that it works on: the same in all its tasks.

        In the other layout, a run may have had several epochs, and works on the newest one. A task that opens epochs
        looks for that one in ``work``. For another task, there is only one if the tasks before tell of the run's first
        epoch: then the ledger is not asked for others.
        """
        from airflow_epochs.coordinator.runs import rereading, series

        task, opens = coordinator.task, self.step in _OPENING
        known = rereading.as_known(task, run_of(context), begins=opens)
        if opens or task.ledger.epoch_of(known) in {checkpoint.epoch for checkpoint in self._checkpoints}:
            return known
        return series.as_known(task, known)

    def _rest(self, context: Context) -> None:
        """During a pause, let a run of an ``@continuous`` DAG wait a while in the triggerer before it is skipped.

        Airflow begins the next run as soon as this one has ended, so skipped runs would follow each other without end.
        """
        from airflow_epochs.operators.backing_off import is_continuous, within_run

        if self._rested or not is_continuous(context):
            return
        from airflow.providers.standard.triggers.temporal import DateTimeTrigger

        rest_s = within_run(context, REST_S)
        self.defer(
            trigger=DateTimeTrigger(datetime.now(timezone.utc) + timedelta(seconds=rest_s)),
            method_name=self.after_rest.__name__,
            timeout=timedelta(seconds=rest_s + GRACE_S),
        )

    def after_rest(self, context: Context, event: object = None) -> JsonDict:
        """Run the step anew, after a while of a pause. If the pipeline is still paused, the run is skipped."""
        self._rested = True
        return self._told(context)

    def resume_execution(self, next_method: str, next_kwargs: JsonDict | None, context: Context) -> Any:
        """Go on after a wait. If its trigger failed, or nothing woke this task, the wait is over all the same."""
        if next_method != TRIGGER_FAILED:
            return super().resume_execution(next_method, next_kwargs, context)
        return self.after_rest(context)

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Every error of ours says at least which pipeline it is about."""
        try:
            yield
        except EpochError as error:
            self._locate(error)
            raise

    def _locate(self, error: EpochError) -> None:
        error.pipeline = error.pipeline or self.pipeline
        self.epoch = error.epoch or self.epoch
        if self.downstream_task_ids:
            error.remedy = with_downstream(error.remedy)

    def _noting(self, context: Context) -> AbstractContextManager[None]:
        """A block that notes errors, if this step does. The steps before the decision tell ``abort`` of it."""
        return nullcontext()

    def _measuring(self, coordinator: Coordinator, context: Context) -> AbstractContextManager[None]:
        """Send the metrics of the step."""
        from airflow_epochs.operators import metrics

        return metrics.measured(coordinator.task, self.step, self.environment.phases, try_number(context))

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        """The step itself. Safe to call again."""
        raise NotImplementedError

    def on_kill(self) -> None:
        """Stop this task's Spark job. What the job has written stays invisible."""
        self.environment.spark.cancel()

    @cached_property
    def environment(self) -> AirflowEnvironment:
        """Airflow's connections, and Spark as ``spark`` configures it."""
        return AirflowEnvironment(self.spark)

    def _coordinator(self, context: Context) -> Coordinator:
        from airflow_epochs.coordinator.coordinator import Coordinator
        from airflow_epochs.coordinator.task import TaskTry

        return Coordinator(
            TaskTry(
                pipeline=self.definition(context["dag"]),
                ledger=EpochsHook(self.ledger_conn_id).ledger(self.pipeline),
                env=self.environment,
                interval=lambda: interval_of(context),
            )
        )

    def definition(self, dag: DAG, transform: Transform | None = None) -> Pipeline:
        """The pipeline as the rendered DAG defines it.

        Checks it again: templates are rendered only now, and not every DAG uses ``EpochPipeline``. ``transform``: the
        transform, if its file must not be looked for.
        """
        try:
            require_one_run_at_a_time(dag.dag_id, dag.max_active_runs)
            require_name_of_its_own(dag, self.pipeline)
            if dag.render_template_as_native_obj:
                require_texts([self, self.source, *self.sinks, self.spark])
            require_keep_epochs(self.keep_epochs)
            return Pipeline(
                name=self.pipeline,
                dag_id=dag.dag_id,
                source=self.source,
                sinks=tuple(self.sinks),
                transform=transform or self.transform_in(dag),
                keep_epochs=self.keep_epochs,
                measure_input=self.measure_input,
                backfill=self.backfill,
                wait_for_others=self.wait_for_others,
                event_time=self.event_time,
                expectations=self.expectations,
                dead_letters=self.dead_letters,
                vote=self.vote,
                on_code_change=self.on_code_change,
                on_failed_epoch=self.on_failed_epoch,
                in_dag=names_in(dag),
            )
        except ValueError as error:
            raise Refused(
                f"An argument of the pipeline is not valid. {without_code(error)}",
                code=codes.PIPELINE_MISCONFIGURED,
                pipeline=self.pipeline,
            ) from error

    def transform_in(self, dag: DAG) -> Transform:
        """The transform, with its file if the step needs that. Raises Refused if there is no such file."""
        return self._transform(Path(dag.fileloc).parent)

    def _transform(self, beside_dag: Path) -> Transform:
        """The transform by its name alone. Steps that run the file or record its digest override this."""
        return Transform.parse(self.transform)

    @cached_property
    def _checkpoints(self) -> list[Checkpoint]:
        """The checkpoint records of the upstream tasks. Use it only after Airflow has rendered ``checkpoint``."""
        from airflow_epochs.operators.xcom import checkpoints_in

        return list(checkpoints_in(self.checkpoint))

    def _measured(self, checkpoint: Checkpoint, seconds: float) -> Checkpoint:
        """``checkpoint`` with the measurements of this step and of the steps before.

        A cleared ``stage`` that finds the epoch decided measures nothing: by its time, the next epoch would be too
        large.
        """
        carried, metrics = self._measurements()
        if checkpoint.stage:
            metrics |= checkpoint.stage.metrics
        own = {self.step: round(seconds, 3)} if checkpoint.stage or self.step != "stage" else {}
        return replace(
            checkpoint,
            seconds={**carried, **checkpoint.seconds, **own},
            metrics={**metrics, **checkpoint.metrics},
        )

    def _measurements(self) -> tuple[dict[str, float], JsonDict]:
        """Seconds per step, and Spark's metrics, from the checkpoints of the steps before."""
        seconds: dict[str, float] = {}
        metrics: JsonDict = {}
        for checkpoint in self._checkpoints:
            seconds |= checkpoint.seconds
            metrics |= checkpoint.metrics
        return seconds, metrics


class NeedsTransform(EpochOperator):
    """A step that finds the transform's file, to run it or to record its digest."""

    def _transform(self, beside_dag: Path) -> Transform:
        from airflow_epochs.operators.transform_file import find_transform

        dags = Path(conf.get("core", "dags_folder"))
        return find_transform(self.transform, [beside_dag, beside_dag.parent, dags, dags.parent])


def _alone(failure: BaseException) -> BaseException:
    """``failure``, if it is ours, without its causes and the frames so far: Airflow would print them all.

    Its text is enough; with the log level DEBUG, the task's log has the rest.
    """
    if not isinstance(failure, (EpochError, AirflowFailException, AirflowSkipException)):
        return failure
    log.debug("the traceback of the error that ends this task", exc_info=failure)
    failure.__cause__ = None  # also suppresses the context
    return failure.with_traceback(None)


def try_number(context: Context) -> int:
    """Which try of its task this is, from 1."""
    return getattr(context.get("ti"), "try_number", 1)  # a step that is called by hand has no task instance


def run_of(context: Context) -> Run:
    from airflow_epochs.model import Run

    return Run(dag_id=context["dag"].dag_id, run_id=str(context["run_id"]))


def require_name_of_its_own(dag: DAG, pipeline: str) -> None:
    """Raise BadArgument if several pipelines of the DAG have this name and one ledger: a run has one epoch there.

    The same pipeline may be there twice, as in the branches of a DAG: the second one finds the epoch of the first.
    """
    openers = [task for task in of_pipelines(dag) if task.step in _OPENING]
    mine = [task for task in openers if task.pipeline == pipeline]
    if len({(task.ledger_conn_id, task.told_apart_by) for task in mine}) > len({task.ledger_conn_id for task in mine}):
        raise BadArgument(
            f"DAG {dag.dag_id!r} has {len(mine)} pipelines {pipeline!r} with the same ledger, which differ in their "
            "source, transform, sinks or rules for rows. A TaskGroup around them does not tell them apart: they "
            "would share their epochs, and mix up their rows. If they are one pipeline, give them the same arguments; "
            "only `spark` and what does not change rows may differ. Else let the one whose "
            f"epochs the ledger has keep its name (`airflow epochs show {pipeline}` tells). Give only the other one "
            "a new name, and a `starting` after the rows that its tables already have. See "
            "docs/operations.md#a-renamed-pipeline-is-a-new-pipeline.",
            code=codes.PIPELINE_ARGUMENT,
        )
