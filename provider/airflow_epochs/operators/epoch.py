"""One operator per step of an epoch. Thin: each asks the coordinator and turns its answer into Airflow's terms.

Every operator returns the checkpoint record (its XCom), and reads the ledger before it has an effect. The heart is
imported where it is used: every task parses its DAG file, and needs only one step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from airflow.sdk import Asset, BaseOperator, TriggerRule, conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_epochs import secrecy
from airflow_epochs.config import WAIT_FOR_OTHERS_S, Pipeline, Transform, require_one_run_at_a_time
from airflow_epochs.errors import Corrupt, Fenced, NoNewData, Refused
from airflow_epochs.hooks.epochs import AirflowEnvironment, EpochsHook

if TYPE_CHECKING:
    from airflow.sdk import DAG, Context

    from airflow_epochs.contracts import Sink, Source
    from airflow_epochs.coordinator.coordinator import Coordinator
    from airflow_epochs.model import Checkpoint, JsonDict, Run
    from airflow_epochs.spark.runners import SparkConnect, SparkSubmit


class EpochOperator(BaseOperator):
    """What the six operators share: the pipeline's definition and the translation of errors.

    Args:
        pipeline: The pipeline's name: 1 to 63 letters, digits, ``-`` and ``_``. The ledger is found by it.
        source: Where rows come from.
        transform: ``path/to/file.py:function``; relative paths are looked for beside the DAG file, in the folder
            above it, in the DAGs folder and in the folder above that.
        sinks: Where rows go; names must differ.
        spark: How staging runs.
        ledger_conn_id: A connection of type ``epochs``.
        keep_epochs: How many complete epochs keep all their records in the ledger. Positions and transaction
            ids are kept for ever.
        measure_input: Whether the checkpoint record's metrics get ``rows_in`` and ``max_timestamp`` (of the records
            read, UTC). Spark counts as it reads, which takes about 3 % longer.
        backfill: For a sink that the pipeline has not had before, the number of the epoch with whose input it begins,
            e.g. ``{"gold": 12}``. Its first epoch then takes the input of the epochs from there on too, in one batch.
            Without effect once the sink shows an epoch.
        wait_for_others: For how many seconds ``open`` lets another run's young attempt be before it aborts it: two
            installations, or runs that somebody started by hand, would else abort each other for ever. 0: not at all.
        checkpoint: The XCom of the step before, or a list of them (``previous.output``). Carries measurements
            and, into ``vote``, what was staged; the ledger wins wherever they disagree.
    """

    template_fields: Sequence[str] = ("source", "transform", "sinks", "spark", "ledger_conn_id", "checkpoint")
    ui_color = "#e6f2ed"
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
        checkpoint: Any = None,
        **kwargs: Any,
    ) -> None:
        for key, value in self.retry_defaults.items():
            kwargs.setdefault(key, value)
        super().__init__(**kwargs)
        Transform.parse(transform)
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
        self.checkpoint = checkpoint

    def execute(self, context: Context) -> JsonDict:
        """Run the step. Skips where there is nothing to do; fails without retry where a retry cannot help."""
        try:
            return self._executed(context)
        except Exception as error:
            failure = secrecy.cleaned(error)  # Airflow logs the causes too
        raise failure

    def _executed(self, context: Context) -> JsonDict:
        started = time.monotonic()
        try:
            checkpoint = self.work(self._coordinator(context), _run_of(context), context)
        except NoNewData as nothing:
            raise AirflowSkipException(str(nothing)) from nothing
        except (Refused, Fenced, Corrupt) as final:
            raise AirflowFailException(str(final)) from final
        return to_xcom(self._measured(checkpoint, time.monotonic() - started))

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        raise NotImplementedError

    def on_kill(self) -> None:
        """Stop what Spark does for this task. What it wrote is invisible, whenever it stops."""
        self.environment.spark.cancel()

    @cached_property
    def environment(self) -> AirflowEnvironment:
        return AirflowEnvironment(self.spark)

    def _coordinator(self, context: Context) -> Coordinator:
        from airflow_epochs.coordinator.coordinator import Coordinator
        from airflow_epochs.coordinator.task import TaskTry

        return Coordinator(
            TaskTry(
                pipeline=self._definition(context["dag"]),
                ledger=EpochsHook(self.ledger_conn_id).ledger(self.pipeline),
                env=self.environment,
            )
        )

    def _definition(self, dag: DAG) -> Pipeline:
        """What the DAG file says, as rendered. The checks that ``EpochPipeline`` could not make, or did not."""
        transform = self._transform(Path(dag.fileloc).parent)
        try:
            require_one_run_at_a_time(dag.dag_id, dag.max_active_runs)
            return Pipeline(
                name=self.pipeline,
                dag_id=dag.dag_id,
                source=self.source,
                sinks=tuple(self.sinks),
                transform=transform,
                keep_epochs=self.keep_epochs,
                measure_input=self.measure_input,
                backfill=self.backfill,
                wait_for_others=self.wait_for_others,
            )
        except ValueError as error:
            raise Refused(f"The pipeline is not defined right: {error}.", remedy="correct the DAG file.") from error

    def _transform(self, beside_dag: Path) -> Transform:
        """The transform's name; the steps that run or record the file look for it, and only they need it."""
        return Transform.parse(self.transform)

    def _checkpoints(self) -> list[Checkpoint]:
        from airflow_epochs.model import Checkpoint

        values = self.checkpoint if isinstance(self.checkpoint, (list, tuple)) else [self.checkpoint]
        return [msgspec.convert(value, Checkpoint, strict=False) for value in values if value]

    def _measured(self, checkpoint: Checkpoint, seconds: float) -> Checkpoint:
        """The checkpoint with what this and the earlier steps measured."""
        carried, metrics = self._measurements()
        if checkpoint.stage:
            metrics |= checkpoint.stage.metrics
        return replace(
            checkpoint, seconds={**carried, self.step: round(seconds, 3)}, metrics={**metrics, **checkpoint.metrics}
        )

    def _measurements(self) -> tuple[dict[str, float], JsonDict]:
        """Seconds per step and Spark's metrics, as the steps before carried them here."""
        seconds: dict[str, float] = {}
        metrics: JsonDict = {}
        for checkpoint in self._checkpoints():
            seconds |= checkpoint.seconds
            metrics |= checkpoint.metrics
        return seconds, metrics


class _NeedsTransform(EpochOperator):
    def _transform(self, beside_dag: Path) -> Transform:
        from airflow_epochs.operators.transform_file import find_transform

        dags = Path(conf.get("core", "dags_folder"))
        return find_transform(self.transform, [beside_dag, beside_dag.parent, dags, dags.parent])


class OpenEpochOperator(_NeedsTransform):
    """Finishes what earlier runs left, or opens an epoch for this run; skips if there is no new data.

    A run works through one epoch. One that is complete by then passes through the tasks that follow, which do nothing.

    Reads the DAG params ``max_records`` and ``starting``, where they are set, over the source's own.
    """

    step = "open"

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        from airflow_epochs.contracts import Limits

        params = context["params"]
        limits = Limits(max_records=params.get("max_records"), starting=params.get("starting"))
        return coordinator.checkpoint(coordinator.open_epoch(run, limits))


class StageEpochOperator(_NeedsTransform):
    """Runs the Spark micro-batch: every sink's rows become durable where no reader sees them."""

    step = "stage"
    retry_defaults = {"retries": 2, "retry_delay": timedelta(seconds=5)}

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        checkpoint = coordinator.stage(run)
        for warning in checkpoint.stage.warnings if checkpoint.stage else ():
            self.log.warning("%s", warning)
        return checkpoint


class VoteEpochOperator(_NeedsTransform):
    """Verifies what was staged, sink by sink, and writes the decision. Fails on GLOBAL_ABORT, with the reasons.

    ``checkpoint`` must be the output of the stage operator. Cleared without it after a GLOBAL_ABORT, it stages
    the next attempt itself.
    """

    step = "vote"

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        staged = [checkpoint.stage for checkpoint in self._checkpoints() if checkpoint.stage]
        return coordinator.vote(run, staged[-1] if staged else None)


class CommitSinkOperator(_NeedsTransform):
    """Makes one sink show the epoch. After GLOBAL_COMMIT the only way is forward, hence the many retries."""

    step = "commit"
    retry_defaults = {
        "retries": 20,
        "retry_delay": timedelta(seconds=2),
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(minutes=5),
    }
    template_fields = (*EpochOperator.template_fields, "sink")

    def __init__(self, *, sink: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sink = sink
        self.step = f"commit.{sink}"  # type: ignore[misc]  # the measurement's name, one per sink

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        return coordinator.commit(run, self.sink)

    def _transform(self, beside_dag: Path) -> Transform:
        """Looked for, but not insisted on: only rows that are gone are staged again."""
        try:
            return super()._transform(beside_dag)
        except Refused as missing:
            self.log.warning("%s", missing)
            return Transform.parse(self.transform)


class CompleteEpochOperator(EpochOperator):
    """Closes the epoch and emits an asset event per sink. ``checkpoint`` should be the commit operators' outputs."""

    step = "complete"
    retry_defaults = CommitSinkOperator.retry_defaults

    def __init__(self, *, trigger_rule: str = TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS, **kwargs: Any) -> None:
        assets = {sink.name: Asset(sink.asset_uri(kwargs["pipeline"])) for sink in kwargs["sinks"]}
        kwargs.setdefault("outlets", []).extend(assets.values())
        super().__init__(trigger_rule=trigger_rule, **kwargs)
        self.assets = assets

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        seconds, metrics = self._measurements()  # a stale XCom does no harm here
        checkpoint = coordinator.complete(run, {**metrics, "seconds": seconds})
        newest = coordinator.newest_complete()
        for sink, asset in self.assets.items():
            if receipt := newest.receipts.get(sink):
                context["outlet_events"][asset].extra.update(
                    pipeline=self.pipeline,
                    epoch=newest.txn.epoch,
                    sink=sink,
                    rows=receipt.rows,
                    version=receipt.version,
                    transaction_id=receipt.txn_id,
                )
        return checkpoint


class AbortEpochOperator(EpochOperator):
    """Aborts what this run left undecided, and then fails on purpose.

    The run is thereby red, and "clear failed tasks" clears this task too. Skips where there is nothing to abort.
    Where ``stage`` and ``vote`` did not fail, the scheduler skips it without a process: a task that skips itself
    is heard of up to 5 s late in Airflow 3.3, and ``complete`` waits for it.
    """

    step = "abort"

    def __init__(self, *, trigger_rule: str = TriggerRule.ONE_FAILED, **kwargs: Any) -> None:
        super().__init__(trigger_rule=trigger_rule, **kwargs)

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        reason = coordinator.abort(run, f"{run} failed before a decision")
        raise AirflowFailException(
            f"The attempt is aborted: {reason}. Nothing is visible. Mend the cause and clear the failed tasks, or "
            f"let the next run take the same offsets again."
        )


def to_xcom(checkpoint: Checkpoint) -> JsonDict:
    """Plain JSON types only: Airflow's own serialisation would wrap every tuple. At most 48 KB."""
    from airflow_epochs.operators.xcom import fitted

    value: JsonDict = json.loads(msgspec.json.encode(fitted(checkpoint)))
    return value


def _run_of(context: Context) -> Run:
    from airflow_epochs.model import Run

    return Run(dag_id=context["dag"].dag_id, run_id=str(context["run_id"]))
