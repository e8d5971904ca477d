"""Finds out what a run of a pipeline would find out, before it runs: ``airflow epochs check``.

It opens no epoch, stages nothing and keeps nothing. Each check asks what a step of a run asks, by the same code: so it
ends with the error that the step would end with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from airflow_epochs import secrecy
from airflow_epochs.config import Pipeline, Transform
from airflow_epochs.contracts import (
    Environment,
    Lagging,
    Limits,
    PlannedEpoch,
    Position,
    Preparing,
    Probing,
    Sink,
    SparkJob,
    Stateful,
    WithSchemas,
    is_by_interval,
)
from airflow_epochs.coordinator import code_changes, opening, preflight, state_tables
from airflow_epochs.coordinator.backfills import backfill
from airflow_epochs.coordinator.former_names import renamed_pipeline, renamed_sink
from airflow_epochs.coordinator.inspection import verifying
from airflow_epochs.coordinator.looks import CheckKey, NotChecked, PlannedCheck
from airflow_epochs.coordinator.recorded_sinks import connections_in
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import NoNewData, located
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import in_words
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import (
    CompleteRecord,
    OffsetRange,
    Ranges,
    SinkPlan,
    TransactionId,
    records_upper_bound,
)
from airflow_epochs.protocol import State
from airflow_epochs.spark import reports
from airflow_epochs.spark.driver import failures, readiness
from airflow_epochs.spark.driver.plans import TableRead, TransformFile
from airflow_epochs.spark.driver.readiness import CheckOutcome, CheckPlan, ReadOutcome, ReadPlan
from airflow_epochs.spark.driver.user_files import siblings_of
from airflow_epochs.spark.driver.wire import as_json, from_json

LEDGER, SOURCE, TRANSFORM, SPARK = "ledger", "source", "transform", "spark"
CONNECTION = "connection"
NOWHERE = Position(ranges={}, state={})


@dataclass(frozen=True, kw_only=True)
class CheckedPipeline:
    """What is checked, and how to get at what may be missing.

    Attributes:
        pipeline: As the DAG defines it; the file of its transform has not been looked for.
        ledger_conn_id: The connection of its ledger.
        ledger: Opens the ledger.
        probe: Writes a probe to the ledger's store, and removes it. Says what that has shown.
        keys: Says whether the ledger is signed.
        transform: Finds the file of the transform.
    """

    pipeline: Pipeline
    env: Environment
    ledger_conn_id: str
    ledger: Callable[[], Ledger]
    probe: Callable[[], str]
    keys: Callable[[], str]
    transform: Callable[[], Transform]


def looks_at(subject: CheckedPipeline) -> list[PlannedCheck]:
    """All checks of a pipeline, in an order in which each one comes after those that it rests on."""
    state = _State(subject)
    sinks = subject.pipeline.sinks
    return [
        *_of_ledger(state),
        *_of_transform(state),
        *_of_source(state),
        *_of_spark(state),
        *(look for sink in sinks for look in _of_sink(state, sink)),
        *_of_state(state),
    ]


# -- what the checks have found, for those that come after them -------------------------------------------------------


@dataclass
class _State:
    """What earlier checks have found."""

    subject: CheckedPipeline
    transform: Transform | None = None
    planned: PlannedEpoch | None = None
    plans: dict[str, SinkPlan] = field(default_factory=dict)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline, with the file of its transform if that was found."""
        return replace(self.subject.pipeline, transform=self.transform or self.subject.pipeline.transform)

    @property
    def env(self) -> Environment:
        """Where to ask."""
        return self.subject.env

    @cached_property
    def ledger(self) -> Ledger:
        """The pipeline's ledger."""
        return self.subject.ledger()

    @property
    def task(self) -> TaskTry:
        """A task as a run would have it."""
        return TaskTry(pipeline=self.pipeline, ledger=self.ledger, env=self.env)

    @cached_property
    def view(self) -> EpochView:
        """The epoch after the newest complete one."""
        return self.ledger.view_of_next()

    @cached_property
    def before(self) -> CompleteRecord | None:
        """The newest complete epoch."""
        return self.ledger.complete_record(self.view.number - 1)

    @cached_property
    def outcome(self) -> CheckOutcome:
        """What Spark says of itself."""
        where = self.transform
        plan = CheckPlan(
            transform=TransformFile(path=where.path, function=where.function) if where else None,
            formats=_formats(self.pipeline),
        )
        job = SparkJob(
            kind=CheckPlan.JOB,
            args=as_json(plan),
            files=(where.path,) if where else (),
            description=f"check {self.pipeline.name}",
        )
        return reports.understood(CheckOutcome, self.env.spark.run(job), CheckPlan.JOB)


def _formats(pipeline: Pipeline) -> tuple[str, ...]:
    """The data sources of Spark that a stage job uses: rows are staged as Delta tables."""
    kafka = pipeline.source.spec().get("kind") == readiness.KAFKA
    return (readiness.DELTA, readiness.KAFKA) if kafka else (readiness.DELTA,)


# -- connections ------------------------------------------------------------------------------------------------------


def _of_connections(state: _State, about: str, spec: object) -> list[PlannedCheck]:
    """A check for each connection that a part of the pipeline names."""
    return [
        PlannedCheck(
            about=about,
            check=f"{CONNECTION} {conn_id}",
            where=conn_id,
            ask=partial(_connection, state, conn_id),
        )
        for conn_id in dict.fromkeys(connections_in(spec))
    ]


def _connection(state: _State, conn_id: str) -> str:
    return f"of type {state.env.connection(conn_id).conn_type}"


def _keys(looks: Collection[PlannedCheck]) -> tuple[CheckKey, ...]:
    return tuple(look.key for look in looks)


# -- the ledger -------------------------------------------------------------------------------------------------------

_OPENED, _EPOCHS = (LEDGER, CONNECTION), (LEDGER, "epochs")


def _of_ledger(state: _State) -> Iterator[PlannedCheck]:
    subject = state.subject
    look = partial(PlannedCheck, about=LEDGER, where=subject.ledger_conn_id)
    yield look(check=CONNECTION, ask=lambda: f"The ledger is at {secrecy.shown(state.ledger.root)}.")
    yield look(check="store", ask=subject.probe, after=(_OPENED,))
    yield look(check="signatures", ask=subject.keys, after=(_OPENED,))
    yield look(check="owner", ask=partial(_owner, state), after=(_OPENED,))
    yield look(check="epochs", ask=partial(_epochs, state), after=(_OPENED,))


def _owner(state: _State) -> str:
    if (identity := state.ledger.identity()) is None:
        return "No DAG has run the pipeline yet."
    state.ledger.require_owned_by(state.pipeline.dag_id, identity)
    return f"The pipeline belongs to DAG {state.pipeline.dag_id}."


def _epochs(state: _State) -> str:
    """What the next run finds: an unfinished epoch is no fault, since it goes on with that."""
    view = state.view
    state.ledger.require_no_gap(view.number)
    return in_words(view) if view.open else f"No epoch is unfinished; the newest complete one is {view.number - 1}."


# -- the transform ----------------------------------------------------------------------------------------------------

_FILE, _SERVER = (TRANSFORM, "file"), (SPARK, "session")


def _of_transform(state: _State) -> Iterator[PlannedCheck]:
    look = partial(PlannedCheck, about=TRANSFORM, where=str(state.pipeline.transform))
    yield look(check="file", ask=partial(_file, state))
    yield look(check="code", ask=partial(_code, state), after=(_FILE, _EPOCHS))


def _file(state: _State) -> str:
    state.transform = state.subject.transform()
    return state.transform.path


def _code(state: _State) -> str:
    """The code, checked as by ``open`` and ``stage``. Changed code is a fault only if the pipeline stops at it."""
    code_changes.of_attempt(state.task, state.view.number, state.before, 0)
    changed = code_changes.has_changed(state.task, state.before)
    return "The code has changed since the newest complete epoch." if changed else ""


# -- the source -------------------------------------------------------------------------------------------------------

_INPUT = (SOURCE, "input")


def _of_source(state: _State) -> Iterator[PlannedCheck]:
    spec = state.pipeline.source.spec()
    connections = _of_connections(state, SOURCE, spec)
    yield from connections
    where = ", ".join(_names(spec))
    yield PlannedCheck(
        about=SOURCE, check="input", where=where, ask=partial(_input, state), after=(*_keys(connections), _EPOCHS)
    )
    source = state.pipeline.source
    if isinstance(source, WithSchemas) and source.registry():
        yield PlannedCheck(
            about=SOURCE, check="schemas", where=where, ask=partial(_schemas, state, source), after=_keys(connections)
        )


def _names(spec: Mapping[str, object]) -> list[str]:
    named = spec.get("topics") or spec.get("table") or spec.get("kind")
    return [str(each) for each in named] if isinstance(named, list | tuple) else [secrecy.shown(str(named))]


def _input(state: _State) -> str:
    """The input of the next epoch, as ``open`` plans it. An epoch without new input is no fault."""
    view, task = state.view, state.task
    with task.unless_overtaken(view):
        if view.state in (State.OPEN, State.ABORTED) and not view.opened.command:
            state.planned = opening.planned_again(task, view.opened)
            renamed_pipeline.require_new_input(task, view.number, state.planned, view.open)
            return f"All records of epoch {view.number} can be read."
        position = _position(state)
        if is_by_interval(task.pipeline.source):
            return _input_of_intervals(state, position)
        try:
            state.planned, *_ = opening.next_input(task, state.before, position, Limits(wait_at_most=0))
            if view.state is not State.IN_DOUBT:
                renamed_pipeline.require_new_input(task, view.number, state.planned, view.open)
        except NoNewData as nothing:
            return nothing.what
    return f"The next epoch can read {records_upper_bound(state.planned.ranges)} offsets."


def _schemas(state: _State, source: WithSchemas) -> str:
    """What the registry says now, as the next ``open`` asks it. A schema with a flaw makes its records corrupt."""
    found = source.schemas(state.env)
    flaws = [f" Schema {number} {schema.flaw}." for number, schema in found.items() if schema.flaw]
    return f"The registry has {len(found)} schemas that records may have.{''.join(flaws)}"


def _position(state: _State) -> Position | None:
    """Where the next epoch begins: as a command says, or after an epoch in doubt, which the next run completes."""
    return Position.after(state.view.open or state.before)


def _input_of_intervals(state: _State, position: Position | None) -> str:
    """The input of data intervals, as far as it is known without a run, which has the interval."""
    source, name = state.pipeline.source, state.pipeline.name
    if isinstance(source, Preparing):
        source.prepare(name, _destinations(state.pipeline), position, state.env)
    if not isinstance(source, Lagging):
        raise NotChecked("The input depends on the data interval of a run.")
    unread = source.unread(position or NOWHERE, state.env)
    return f"The topics have {sum(each.end - each.start for each in unread)} offsets that no epoch has read."


def _destinations(pipeline: Pipeline) -> set[str]:
    return {destination for sink in pipeline.sinks if (destination := sink.destination())}


# -- Spark ------------------------------------------------------------------------------------------------------------


def _of_spark(state: _State) -> Iterator[PlannedCheck]:
    conn_id = str(state.env.spark.new_session().get("conn_id", ""))
    connections = _of_connections(state, SPARK, {"conn_id": conn_id} if conn_id else {})
    yield from connections
    look = partial(PlannedCheck, about=SPARK, where=conn_id)
    yield look(check="session", ask=partial(_session, state), after=_keys(connections))
    for name in _formats(state.pipeline):
        yield look(check=f"{name} jars", ask=partial(_without_flaw, state, name), after=(_SERVER,))
    yield look(check="python", ask=partial(_workers, state), after=(_SERVER,))
    function = str(state.pipeline.transform)
    load = partial(_without_flaw, state, readiness.TRANSFORM)
    yield PlannedCheck(about=TRANSFORM, check="import", where=function, ask=load, after=(_FILE, _SERVER))
    yield look(check="input", ask=partial(_read, state), after=(_SERVER, _INPUT))


def _session(state: _State) -> str:
    told = state.outcome
    return f"Spark {told.spark}; pyspark {told.pyspark} with Python {told.python} asks it."


def _without_flaw(state: _State, name: str) -> str:
    if flaw := state.outcome.flaws.get(name):
        raise failures.error_from_json(as_json(flaw))
    return ""


def _workers(state: _State) -> str:
    """Spark's workers run Python only for a transform that has functions for them."""
    told = state.outcome
    if told.workers:
        return f"Spark's workers run Python {told.workers}."
    if state.transform is None or _calls_python(state.transform):
        return _without_flaw(state, readiness.WORKERS)
    why = failures.error_from_json(as_json(told.flaws[readiness.WORKERS])).cause
    return f"The transform seems to have no Python function for Spark's workers. They could not run one: {why}"


def _calls_python(transform: Transform) -> bool:
    return readiness.calls_python([Path(transform.path), *siblings_of(transform.path).values()])


def _read(state: _State) -> str:
    """Spark reads one record, as the stage job would read all."""
    ranges = _to_read(state)
    source = state.pipeline.source.spark_read(ranges, state.env)
    table = from_json(TableRead, source.table) if source.table else None
    plan = ReadPlan(read=source.options, table=table, connection=source.secrets_of)
    job = SparkJob(
        kind=ReadPlan.JOB,
        args=as_json(plan),
        secrets=source.secrets,
        secrets_of=source.secrets_of,
        description=f"check {state.pipeline.name}",
    )
    told = reports.understood(ReadOutcome, state.env.spark.run(job), ReadPlan.JOB)
    return "Spark has read a record." if told.records else "Spark can read; there is no record."


def _to_read(state: _State) -> Ranges:
    """The planned ranges; without a plan, all that no epoch has read, even if that is nothing."""
    if state.planned:
        return state.planned.ranges
    source, ranges = state.pipeline.source, dict[str, tuple[OffsetRange, ...]]()
    if not isinstance(source, Lagging):
        raise NotChecked("The source has no new data that Spark could read.")
    for each in source.unread(_position(state) or NOWHERE, state.env):
        ranges[each.topic] = (*ranges.get(each.topic, ()), OffsetRange(each.partition, each.start, each.end))
    return ranges


# -- sinks ------------------------------------------------------------------------------------------------------------


def _of_sink(state: _State, sink: Sink) -> Iterator[PlannedCheck]:
    connections = _of_connections(state, about := f"sink {sink.name}", sink.spec())
    yield from connections
    look = partial(PlannedCheck, about=about, where=secrecy.shown(sink.destination() or ""))
    after = (*_keys(connections), _EPOCHS)
    yield look(check="marker", ask=partial(_marker, state, sink), after=after)
    yield look(check="ready", ask=partial(_ready, state, sink), after=after)
    if isinstance(sink, Probing):
        yield look(check="write", ask=partial(_write, state, sink), after=_keys(connections))


def _adopted(state: _State) -> dict[str, TransactionId | None]:
    """The sinks that a command has let go on as they are."""
    return dict(state.view.open.adopted) if state.view.open else {}


def _marker(state: _State, sink: Sink) -> str:
    """Whether the sink shows the epoch that the ledger expects."""
    view, task = state.view, state.task
    with located(state.pipeline.name, sink=sink.name), task.unless_overtaken(view):
        if view.state is State.IN_DOUBT:
            verifying.require_marker(task, sink.name, sink, view)
            return f"The epoch before epoch {view.number}, or this one."
        plan = opening.sink_plan(task, sink, state.before, _adopted(state))
    return f"It shows {plan.previous}." if plan.previous else "It shows no epoch of this pipeline yet."


def _ready(state: _State, sink: Sink) -> str:
    """Whether the sink can take an epoch, whatever the rows are."""
    previous = opening.previous_of(state.task, sink, state.before)
    is_known = sink.name in opening.known(state.before, _adopted(state))
    if not is_known and backfill.shows_no_epoch(state.task, sink.name, previous, state.view.number):
        renamed_sink.require_new_rows(state.task, sink, state.view.number)
    if refused := preflight.refusal(state.task, sink.name, SinkPlan(spec=sink.spec(), previous=previous)):
        raise refused
    return ""


def _write(state: _State, sink: Sink) -> str:
    """Whether rows can be staged. ``open`` asks this before the sink's first epoch alone."""
    if refused := preflight.unwritable(sink, state.pipeline.name, state.env):
        raise refused
    return "A probe was written and removed."


def _of_state(state: _State) -> Iterator[PlannedCheck]:
    names = [sink.name for sink in state.pipeline.sinks if isinstance(sink, Stateful)]
    after = (_EPOCHS, *((f"sink {name}", "marker") for name in names))
    if names:
        yield PlannedCheck(
            about="state", check="versions", where=", ".join(names), ask=partial(_pinned, state), after=after
        )


def _pinned(state: _State) -> str:
    """Which versions of its state tables the next epoch would read."""
    found = state_tables.pins(state.task, state.before, _adopted(state))
    return ", ".join(f"{name}: {pin.version}" for name, pin in found.items())
