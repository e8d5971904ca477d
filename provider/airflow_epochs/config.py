"""The pipeline as the DAG defines it today: source, transform and sinks.

The ledger keeps the definition with which an open epoch was opened, and that one wins. The next epoch uses this one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

from airflow_epochs import codes
from airflow_epochs.ballot import VoteFunction
from airflow_epochs.errors import BadArgument, Refused
from airflow_epochs.expectations import QUARANTINE, Expectations, require_list
from airflow_epochs.names import NAME_RULE, is_name, is_template

if TYPE_CHECKING:
    from airflow_epochs.contracts import Sink, Source
    from airflow_epochs.event_time import EventTime

WAIT_FOR_OTHERS_S = 60.0
WARN, STOP = "warn", "stop"
TAKE_OVER, BLOCK = "take_over", "block"
TASKS, SINGLE = "tasks", "single"
FOR_SECONDS = 600.0
"""For how long the one task of the layout "single" begins new epochs."""


@dataclass(frozen=True, kw_only=True)
class Transform:
    """The user's function. The ledger records ``digest``, a hash of the file and of the siblings it imports."""

    path: str
    function: str
    digest: str | None = None

    @classmethod
    def parse(cls, text: object) -> Transform:
        """Parse ``path/to/file.py:function``. Raises BadArgument, which shows the expected form."""
        path, separator, function = text.rpartition(":") if isinstance(text, str) else ("", "", "")
        if not separator or not path.endswith(".py") or not function.isidentifier():
            raise BadArgument(
                f"`transform` is {text!r}. It must have the form 'path/to/file.py:function'.",
                code=codes.PIPELINE_ARGUMENT,
            )
        return cls(path=path, function=function)

    def __str__(self) -> str:
        return f"{self.path}:{self.function}"


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """One source, one transform, one or more sinks.

    Attributes:
        dag_id: The owning DAG.
        keep_epochs: How many complete epochs keep all their ledger records.
        measure_input: Whether Spark counts the records that it reads and finds their newest timestamp.
        backfill: Sink name -> the epoch whose input the sink's first epoch begins with.
        wait_for_others: Seconds that ``open`` leaves another run's attempt alone before it aborts it.
        event_time: How the watermark follows the rows; None without event time.
        expectations: Sink -> what is expected of its rows.
        dead_letters: The sink that gets the rows that other sinks would not take; None: such a row aborts the epoch.
        vote: The user's own function, which is asked before the epoch is decided; None: no function.
        on_code_change: What ``open`` does when the transform's code differs from the epoch before: "warn" or "stop".
        on_failed_epoch: What ``open`` does with an unfinished epoch of another run: "take_over" or "block". None:
            "block" if epochs belong to data intervals, else "take_over".
        in_dag: The names of all pipelines in the DAG; None: they are not known.
    """

    name: str
    dag_id: str
    source: Source
    sinks: tuple[Sink, ...]
    transform: Transform
    keep_epochs: int = 1000
    measure_input: bool = False
    backfill: Mapping[str, int] = field(default_factory=dict)
    wait_for_others: float = WAIT_FOR_OTHERS_S
    event_time: EventTime | None = None
    expectations: Expectations = field(default_factory=dict)
    dead_letters: str | None = None
    vote: VoteFunction | None = None
    on_code_change: str = WARN
    on_failed_epoch: str | None = None
    in_dag: Collection[str] | None = None

    def __post_init__(self) -> None:
        require_name("pipeline", self.name)
        require_distinct(self.sinks)
        require_no_loop(self.source, self.sinks)
        require_allowed(self.source, event_time=self.event_time)
        require_backfill(self.backfill, self.sinks)
        require_wait(self.wait_for_others)
        require_expectations(self.expectations, self.sinks)
        require_dead_letters(self.dead_letters, self.sinks, self.backfill, self.expectations)
        require_vote(self.vote)
        require_on_code_change(self.on_code_change)
        require_on_failed_epoch(self.on_failed_epoch)

    def sink(self, name: str) -> Sink:
        """The sink of this name, which the pipeline has."""
        return next(sink for sink in self.sinks if sink.name == name)


@runtime_checkable
class Overlapping(Protocol):
    """A source that may read what a sink of the pipeline writes.

    It is not in ``contracts``, because every task parses its DAG file, and the DAG file needs only this protocol.
    """

    def reads(self) -> Collection[str]:
        """What no sink of the pipeline may write to, in the form of ``Sink.destination``. Needs no connection."""
        ...


@runtime_checkable
class Lacking(Protocol):
    """A source that forbids some options of a pipeline or params of a run. It is here as ``Overlapping`` is."""

    lacks: Mapping[str, str]
    """Option of the pipeline, or param of a run -> why the source does not allow it."""


def lacks_of(source: Source) -> Mapping[str, str]:
    """What the source does not allow, with the reasons."""
    return source.lacks if isinstance(source, Lacking) else {}


def require_allowed(source: Source, **options: object) -> None:
    """Raise BadArgument if the source does not allow an option of the pipeline that is set."""
    lacks = lacks_of(source)
    for option, value in options.items():
        if value and option in lacks:
            raise BadArgument(
                f"`{option}` cannot be set in a pipeline with a {type(source).__name__}: {lacks[option]}.",
                code=codes.PIPELINE_ARGUMENT,
            )


def require_types(
    *,
    source: object,
    sinks: object,
    spark: object,
    state: object = (),
    event_time: object = None,
    backfill: object = None,
    expectations: object = None,
    dead_letters: object = None,
    ledger_conn_id: object,
    operator_args: object = None,
) -> None:
    """Raise BadArgument, which names the argument, if one is of another kind than the pipeline takes.

    It looks at methods, not classes. Each task parses its DAG file, and to know the classes it would have to import
    ``contracts``, ``event_time`` and the rest.
    """
    is_source = _can(source, "plan", "spark_read")
    _require("source", source, "a KafkaSource(…), a DeltaSource(…) or a source of your own", is_source)
    _require_each("sinks", sinks, "a list of sinks", _A_SINK, "vote", "commit")
    _require_each("state", state, "a list of StateTable(…)", "a StateTable(…)", "vote", "commit", "pin")
    _require("spark", spark, "SparkConnect(…) or SparkSubmit(…)", _can(spark, "runner"))
    is_rule = event_time is None or _can(event_time, "newest_allowed")
    _require("event_time", event_time, "EventTime(…), or be left out", is_rule)
    _require("backfill", backfill, "a dict of sink names and epochs", _is_dict(backfill))
    _require("expectations", expectations, "a dict of sink names and lists", _is_dict(expectations))
    is_sink = dead_letters is None or isinstance(dead_letters, str)
    _require("dead_letters", dead_letters, "the name of a sink, or be left out", is_sink)
    _require("ledger_conn_id", ledger_conn_id, "the id of a connection", isinstance(ledger_conn_id, str))
    _require("operator_args", operator_args, "a dict of arguments of operators", _is_dict(operator_args))


_SINK_METHODS = (
    *("spec", "from_spec", "destination", "asset_uri"),
    *("place", "plan_stage", "vote", "commit", "discard", "last_committed"),
)
_A_SINK = "a DeltaSink(…), a KafkaSink(…), a SqlSink(…) or a sink of your own"


def _require_each(option: str, values: object, must: str, each_must: str, *methods: str) -> None:
    is_list = isinstance(values, Collection) and not isinstance(values, (str, Mapping))
    _require(option, values, must, is_list)
    for value in values if isinstance(values, Collection) else ():
        if not _can(value, *methods):
            raise BadArgument(f"`{option}` has {value!r}. Each one must be {each_must}.", code=codes.PIPELINE_ARGUMENT)
        if lacking := [method for method in _SINK_METHODS if not _can(value, method)]:
            raise BadArgument(
                f"`{option}` has a {type(value).__name__}, whose class lacks {', '.join(lacking)}. A sink has all the "
                "methods of docs/write-your-own-sink.md.",
                code=codes.PIPELINE_ARGUMENT,
            )


def _require(option: str, value: object, must: str, fits: bool) -> None:
    if not fits:
        raise BadArgument(f"`{option}` is {value!r}. It must be {must}.", code=codes.PIPELINE_ARGUMENT)


def _can(value: object, *methods: str) -> bool:
    """Whether ``value`` has these methods. False for a class: somebody has forgotten to call it."""
    return not isinstance(value, type) and all(callable(getattr(value, method, None)) for method in methods)


def _is_dict(value: object) -> bool:
    return value is None or isinstance(value, Mapping)


def groups(sinks: Mapping[str, Sink]) -> list[list[str]]:
    """The names of a pipeline's sinks: one list for each group that commits together, in the order of ``sinks``."""
    found: dict[str, list[str]] = {}
    for name, sink in sinks.items():
        found.setdefault(_joint(sink) or f"{name} alone", []).append(name)
    return list(found.values())


def possible_groups(sinks: Mapping[str, Sink]) -> list[list[str]]:
    """As ``groups``, before templates are rendered: a template may lead to the connection of any other sink."""
    found = groups(sinks)
    joint = [name for group in found if _joint(sinks[group[0]]) for name in group]
    if not is_template([_joint(sinks[name]) for name in joint]):
        return found
    return [[name for name in sinks if name in joint], *(group for group in found if group[0] not in joint)]


def _joint(sink: Sink) -> str | None:
    joint = getattr(sink, "joint", None)  # of a ``contracts.Joint``, which is not imported to parse a DAG
    return joint() if joint else None


def require_name(kind: str, name: object) -> str:
    """Return ``name``, which the DAG gives a ``kind`` of thing. Raises BadArgument if it is no name."""
    if not isinstance(name, str) or not is_name(name):
        raise BadArgument(f"The {kind} name {name!r} is not valid. A name has {NAME_RULE}.", code=codes.NAME)
    return name


def require_distinct(sinks: Sequence[Sink]) -> None:
    """Raise BadArgument unless there is a sink, and all sinks have different names and destinations."""
    names = [require_name("sink", sink.name) for sink in sinks]
    if not names or len(set(names)) != len(names):
        raise BadArgument(
            f"The names of the pipeline's sinks are {names}. A pipeline needs at least one sink, and each sink needs "
            "a name of its own.",
            code=codes.PIPELINE_ARGUMENT,
        )
    taken: dict[str, str] = {}
    for sink in sinks:
        destination = sink.destination()
        if destination is None:
            continue
        if destination in taken:
            raise BadArgument(
                f"The sinks {taken[destination]!r} and {sink.name!r} both write to {destination}. Each sink needs a "
                "destination of its own.",
                code=codes.PIPELINE_ARGUMENT,
            )
        taken[destination] = sink.name


def require_no_loop(source: Source, sinks: Sequence[Sink]) -> None:
    """Raise Refused if a sink writes to what the source reads, unless the source allows it.

    ``open`` raises the same error if only the connections show the loop, so one mistake has one code.
    """
    reads = source.reads() if isinstance(source, Overlapping) else ()
    for sink in sinks:
        if sink.destination() in reads:
            raise Refused(
                f"The sink {sink.name!r} writes to {sink.destination()}, which the pipeline reads. The pipeline would "
                "read its own rows again and again.",
                code=codes.LOOP,
                sink=sink.name,
            )


def require_backfill(backfill: Mapping[str, int], sinks: Sequence[Sink]) -> None:
    """Raise BadArgument unless ``backfill`` maps names of the pipeline's sinks, but no states, to epochs from 1."""
    _require_sinks_of_the_pipeline("backfill", backfill, sinks)
    _require_no_state("backfill", [sink for sink in sinks if sink.name in backfill])
    for sink, epoch in backfill.items():
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 1:
            raise BadArgument(
                f"`backfill` of sink {sink!r} is {epoch!r}. It must be the number of an epoch, 1 or larger.",
                code=codes.PIPELINE_ARGUMENT,
            )


def _require_no_state(option: str, sinks: Sequence[Sink]) -> None:
    if not sinks:
        return
    from airflow_epochs.contracts import Stateful  # which most DAG files do without

    if states := [sink.name for sink in sinks if isinstance(sink, Stateful)]:
        raise BadArgument(
            f"`{option}` names {states[0]!r}, which is a state table. A state takes each epoch by itself: it begins "
            "empty, or with the rows of the table that `initial` names. Remove it from `backfill`. A state "
            "that is lost keeps its name: see docs/state.md, 'A state that is lost'.",
            code=codes.PIPELINE_ARGUMENT,
        )


def require_expectations(expectations: Expectations, sinks: Sequence[Sink]) -> None:
    """Raise BadArgument unless ``expectations`` maps names of the pipeline's sinks to what is expected of them."""
    _require_sinks_of_the_pipeline("expectations", expectations, sinks)
    for sink, expected in expectations.items():
        require_list(sink, expected)


def _require_sinks_of_the_pipeline(option: str, names: Collection[str], sinks: Sequence[Sink]) -> None:
    if unknown := sorted(set(names) - {sink.name for sink in sinks}):
        raise BadArgument(
            f"`{option}` names {', '.join(unknown)}. The pipeline has no sink of this name; its sinks are "
            f"{', '.join(sink.name for sink in sinks)}.",
            code=codes.PIPELINE_ARGUMENT,
        )


def require_dead_letters(
    name: str | None,
    sinks: Sequence[Sink],
    backfill: Mapping[str, int],
    expectations: Expectations,
    state: Sequence[Sink] = (),
) -> None:
    """Raise BadArgument unless ``dead_letters`` names a sink that can get them, and each quarantine has one."""
    states = {sink.name for sink in state}
    for sink, expected in expectations.items():
        if any(each.otherwise == QUARANTINE for each in expected) and (name is None or sink in (name, *states)):
            raise BadArgument(
                f"An expectation of sink {sink!r} has otherwise='quarantine', "
                + ("and the pipeline has no `dead_letters`." if name is None else "which this sink cannot have.")
                + " Name the sink of these rows in `dead_letters`, or choose 'abort' or 'warn'.",
                code=codes.PIPELINE_ARGUMENT,
            )
    if name is None:
        return
    _require_sinks_of_the_pipeline("dead_letters", [name], sinks)
    wrong = {
        "the only sink": len(sinks) == 1,
        "in `backfill`": name in backfill,
    }
    for what, is_so in wrong.items():
        if is_so:
            raise BadArgument(
                f"`dead_letters` names {name!r}, which is {what}. It must be another sink, of a table or topic.",
                code=codes.PIPELINE_ARGUMENT,
            )


def require_vote(function: object) -> None:
    """Raise BadArgument unless ``vote`` is a function, or None."""
    if function is not None and not callable(function):
        raise BadArgument(
            f"`vote` is {function!r}. It must be a function that takes a Ballot, and returns None or why not.",
            code=codes.PIPELINE_ARGUMENT,
        )


def require_wait(seconds: object) -> None:
    """Raise BadArgument unless ``wait_for_others`` is a finite number of seconds, from 0."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
        raise BadArgument(
            f"`wait_for_others` is {seconds!r}. It must be a number of seconds, 0 or larger.",
            code=codes.PIPELINE_ARGUMENT,
        )


def require_layout(
    layout: object, *, for_seconds: object = None, max_epochs: object = None, deferrable: object = False
) -> None:
    """Raise BadArgument unless ``layout`` is "tasks" or "single", and the other arguments fit it."""
    if layout not in (TASKS, SINGLE):
        raise BadArgument(f"`layout` is {layout!r}. It must be {TASKS!r} or {SINGLE!r}.", code=codes.PIPELINE_ARGUMENT)
    if layout == SINGLE and deferrable:
        raise BadArgument(
            f"`deferrable` is {deferrable!r}, and `layout` is {SINGLE!r}, whose one task waits for data itself. Leave "
            "one of them out.",
            code=codes.PIPELINE_ARGUMENT,
        )
    given = {"for_seconds": for_seconds, "max_epochs": max_epochs}
    if layout == TASKS and (wrong := [name for name, value in given.items() if value is not None]):
        raise BadArgument(
            f"`{wrong[0]}` is {given[wrong[0]]!r}, and `layout` is {TASKS!r}, in which a run works on one epoch. "
            f"`{wrong[0]}` needs layout={SINGLE!r}.",
            code=codes.PIPELINE_ARGUMENT,
        )
    require_bounds(for_seconds, max_epochs)


def require_bounds(for_seconds: object, max_epochs: object) -> None:
    """Raise BadArgument unless ``for_seconds`` is more than 0 and finite, and ``max_epochs`` 1 or larger, or None."""
    if for_seconds is not None and not (_is_number(for_seconds, int, float) and 0 < for_seconds < float("inf")):
        raise BadArgument(
            f"`for_seconds` is {for_seconds!r}. It must be a number of seconds, larger than 0.",
            code=codes.PIPELINE_ARGUMENT,
        )
    if max_epochs is not None and not (_is_number(max_epochs, int) and max_epochs >= 1):
        raise BadArgument(
            f"`max_epochs` is {max_epochs!r}. It must be a number of epochs, 1 or larger.",
            code=codes.PIPELINE_ARGUMENT,
        )


def _is_number(value: object, *kinds: type) -> TypeGuard[float]:
    return isinstance(value, kinds) and not isinstance(value, bool)


def require_keep_epochs(epochs: object) -> None:
    """Raise BadArgument unless ``keep_epochs`` is a whole number from 1.

    The newest epoch's open record says what the pipeline reads and writes: commands and savepoints need it.
    """
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise BadArgument(
            f"`keep_epochs` is {epochs!r}. It must be a number of epochs, 1 or larger.", code=codes.PIPELINE_ARGUMENT
        )


def require_on_code_change(what: object) -> None:
    """Raise BadArgument unless ``on_code_change`` is "warn" or "stop"."""
    if what not in (WARN, STOP):
        raise BadArgument(
            f"`on_code_change` is {what!r}. It must be {WARN!r} or {STOP!r}.", code=codes.PIPELINE_ARGUMENT
        )


def require_on_failed_epoch(what: object) -> None:
    """Raise BadArgument unless ``on_failed_epoch`` is "take_over", "block" or None."""
    if what not in (TAKE_OVER, BLOCK, None):
        raise BadArgument(
            f"`on_failed_epoch` is {what!r}. It must be {TAKE_OVER!r} or {BLOCK!r}.", code=codes.PIPELINE_ARGUMENT
        )


def require_one_run_at_a_time(dag_id: str, max_active_runs: int) -> None:
    """Raise BadArgument unless the DAG runs one run at a time: a second one would only be fenced."""
    if max_active_runs != 1:
        raise BadArgument(
            f"DAG {dag_id!r} has max_active_runs={max_active_runs}. It must have max_active_runs=1, because a pipeline "
            "works on one epoch at a time.",
            code=codes.PIPELINE_ARGUMENT,
        )
