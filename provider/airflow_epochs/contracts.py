"""The interfaces between the parts of an epoch: sinks, sources, Spark, and the environment they run in.

Every sink implements ``Sink``, every source ``Source``. The smaller protocols are optional abilities. A class gets one
by having its methods, without a base class; callers ask ``isinstance(sink, Maintained)``.
A sink stages durably, then publishes atomically with a marker. A source plans ranges from the last position and
describes how Spark reads them. Both work through an ``Environment``, which Airflow's edge and the tests implement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

from airflow_epochs.errors import Corrupt
from airflow_epochs.model import (
    Backlog,
    CompleteRecord,
    EventTimes,
    JsonDict,
    Marker,
    OpenRecord,
    Ranges,
    Receipt,
    RestorePoint,
    Shown,
    Staged,
    StagedClaim,
    StatePin,
    TransactionId,
    Vote,
    Watermarks,
    compare,
    starting_at_ends,
)
from airflow_epochs.names import normalised
from airflow_epochs.schemas import WriterSchema
from airflow_epochs.secrecy import shown

# -- environment ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Connection:
    """An Airflow connection as plain values. ``extra`` is the decoded JSON."""

    conn_id: str
    conn_type: str
    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    schema: str | None = None
    extra: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class SparkJob:
    """One call into ``airflow_epochs.spark.driver.jobs``: JSON in, JSON out.

    Attributes:
        kind: A key of ``airflow_epochs.spark.driver.jobs.JOBS``.
        args: The job's plan as JSON (``airflow_epochs.spark.driver.plans``). It holds no secrets.
        secrets: Spark options, such as Kafka credentials. They reach neither a log nor a file that others can read.
        secrets_of: The id of the connection that the secrets come from.
        files: The user's transform file. The runner also ships the files beside it that it imports.
        description: One line for Spark's UI.
    """

    kind: str
    args: JsonDict
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    secrets_of: str = ""
    files: tuple[str, ...] = ()
    description: str = ""


class SparkRunner(Protocol):
    """Runs jobs on Spark: through Connect or through spark-submit."""

    def new_session(self) -> JsonDict:
        """Choose a new session's identity. The ledger records it before Spark starts it, so a later try can stop it."""
        ...

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        """Run ``job`` to its end and return its report.

        Raises:
            NotApplied: The job failed. What it wrote is invisible.
        """
        ...

    def cancel(self) -> None:
        """Stop the running job; ``run`` then raises. Called from a signal handler. Idempotent."""
        ...

    def stop(self, session: JsonDict) -> None:
        """Interrupt a session's work and release it. Idempotent; an unknown or ended session is no error."""
        ...


@dataclass(frozen=True, kw_only=True)
class Following:
    """How a task waits for the end of a job that outlives it.

    Attributes:
        elsewhere: Whether the task waits elsewhere, so that ``RunsOn`` is raised in place of waiting.
        awaited: What the task has waited for elsewhere: ``RunsOn.job``. If that failed, the task fails.
    """

    elsewhere: bool = False
    awaited: str | None = None


class RunsOn(Exception):
    """A job runs on without its task, which now waits for its end elsewhere. Nothing has failed.

    Attributes:
        job: What the place where it runs calls it.
        addresses: Where to ask about it. No secrets.
    """

    def __init__(self, what: str, job: str, addresses: Sequence[str]) -> None:
        super().__init__(f"{what} runs")
        self.job, self.addresses = job, tuple(addresses)


@runtime_checkable
class Rejoining(Protocol):
    """A ``SparkRunner`` that may find the job of an earlier task again. ``run`` of a stage job may raise ``RunsOn``."""

    def follow(self, following: Following) -> None:
        """Say how this task waits for stage jobs from now on."""
        ...

    def outlives(self) -> bool:
        """Whether stage jobs outlive their task. Their sessions must then not be stopped before ``rejoin``."""
        ...

    def rejoin(self, session: JsonDict) -> JsonDict | None:
        """Go on with the stage job that an earlier try submitted under this session, and return its report.

        None: there is nothing to go on with, so that the job must be run anew. Idempotent.

        Raises:
            RunsOn: The job runs, and the task waits elsewhere.
            NotApplied: The job failed while this task waited for it.
        """
        ...

    def release(self, session: JsonDict) -> None:
        """Forget the report of a session that is staged, or whose attempt is aborted. Idempotent. Never raises."""
        ...

    def end(self, session: JsonDict) -> None:
        """Ask for the end of the stage job of a session that nobody goes on with, wherever it runs. Idempotent."""
        ...


@runtime_checkable
class Placing(Protocol):
    """A ``SparkRunner`` that may know which application ran its last job."""

    def ran_as(self) -> JsonDict:
        """Its ``id``, and the ``url`` where people read about it; empty if unknown. For people alone. Never raises."""
        ...


class Environment(Protocol):
    """What sinks and sources may use: connections, Spark, and named phases at which tests interfere."""

    @property
    def spark(self) -> SparkRunner:
        """The runner that the pipeline chose: Spark Connect or spark-submit."""
        ...

    def connection(self, conn_id: str) -> Connection:
        """The connection with this id.

        Raises:
            NotApplied: There is none, or nobody who could tell has answered.
        """
        ...

    def reached(self, phase: str) -> None:
        """Mark a phase by its name. In production it is only noted; tests kill or pause the process here."""
        ...


class Dataset(NamedTuple):
    """What OpenLineage calls a table or a topic: the place that has it, and its name there. No secrets.

    ``versioned``: whether the offsets of an input are versions of it.
    """

    namespace: str
    name: str
    versioned: bool = False

    @classmethod
    def at(cls, location: str) -> Dataset:
        """The data at a path or URL, without a login and without everything behind the path."""
        location = normalised(location)
        if location.startswith("/"):
            return cls("file", location)
        scheme, _, rest = shown(location).partition("://")
        authority, slash, path = rest.partition("/")
        return cls(f"{scheme}://{authority}", f"{slash if scheme == 'hdfs' else ''}{path}" or "/")


# -- sources --------------------------------------------------------------------------------------------------------

TOPIC_IDS = "topic_ids"
"""In the state of a position in topics: topic -> its id, which another topic of its name does not have."""

TABLE_ID = "table_id"
"""In the state of a position in a table: the table's identity, which it keeps where it is moved to."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where the last complete epoch ended.

    Attributes:
        ranges: That epoch's ranges. The next epoch starts at their ends.
        state: What the source recorded for itself, such as topic ids.
    """

    ranges: Ranges
    state: JsonDict

    @classmethod
    def after(cls, record: OpenRecord | CompleteRecord | None) -> Position | None:
        """The position that a completion record, or the record of a command, leaves behind; None: there is none."""
        return cls.of(record) if record else None

    @classmethod
    def of(cls, record: OpenRecord | CompleteRecord) -> Position:
        """As ``after``, of a record that is there."""
        return cls(ranges=record.ranges, state=record.source_state)

    def id_of(self, topic: str) -> str | None:
        """What tells the topic or table from another one of its name; None if the source does not say."""
        return self.state.get(TOPIC_IDS, {}).get(topic) or self.state.get(TABLE_ID)

    def named_as_in(self, now: Position) -> Ranges:
        """The ranges, by the name that their table has in ``now``, if it was moved since."""
        known = self.state.get(TABLE_ID)
        if not known or known != now.state.get(TABLE_ID) or not len(now.ranges) == len(self.ranges) == 1:
            return self.ranges
        (name,), (of,) = now.ranges, self.ranges.values()
        return {name: of}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A run's own settings (DAG params). They override the source's; None keeps the source's.

    With ``defers``, a source that can raises ``NotYet`` where it would wait for data: the task then waits elsewhere.
    ``wait_at_most`` is no setting of a source: it shortens its wait to what is left of the task's time, in seconds.
    """

    max_records: int | None = None
    starting: str | JsonDict | None = None
    max_bytes: int | str | None = None
    min_records: int | None = None
    max_delay: float | str | None = None
    target_duration: float | str | None = None
    max_wait: float | None = None
    defers: bool = False
    wait_at_most: float | None = None


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """What a source waits for, for somebody who looks from outside of the task.

    Attributes:
        conn_id: The connection of the Kafka cluster.
        begins: Topic -> partition -> the first offset that no epoch has read.
        min_records: So many are enough.
        max_delay_s: A record of this age is enough; None: age does not count.
        max_wait_s: For how long the task may wait in all.
    """

    conn_id: str
    begins: Mapping[str, Mapping[int, int]]
    min_records: int
    max_delay_s: float | None
    max_wait_s: float


class NotYet(Exception):
    """It is too early for an epoch: data is missing, or it cannot be complete before a moment. Nothing was opened."""

    def __init__(self, awaited: Awaited | datetime) -> None:
        super().__init__(f"waits for {awaited}")
        self.awaited = awaited


@dataclass(frozen=True, kw_only=True)
class PlannedEpoch:
    """The ranges of a new epoch, and the source's state to record with them.

    All ranges may be empty: a start at "latest" opens an empty epoch to record the position. ``backlog``: what it could
    have read besides; None if the source does not tell.
    """

    ranges: Ranges
    state: JsonDict
    backlog: Backlog | None = field(default=None, compare=False)  # it depends on when the source was asked


@dataclass(frozen=True, kw_only=True)
class Move:
    """Another place for the next epoch to begin at, by an operator's command.

    Attributes:
        position: Where the next epoch begins, as empty ranges.
        lost, again, left: As in ``model.Command``.
        ahead: What can be read now in the partitions that were moved.
        stay: The topics that stay where they are, because they are no longer read, and cannot go back.
        unread: The topics that go back, although they are no longer read: in case they are read again.
        back_to: As in ``model.Command``.
    """

    position: Position
    lost: Ranges = field(default_factory=dict)
    again: Ranges = field(default_factory=dict)
    left: Ranges = field(default_factory=dict)
    ahead: Ranges = field(default_factory=dict)
    stay: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    back_to: str = ""

    @property
    def moves(self) -> bool:
        """Whether the next epoch begins elsewhere than without the command."""
        return bool(self.ahead or self.left)


@dataclass(frozen=True, kw_only=True)
class SparkRead:
    """The Spark options that read exactly the planned ranges.

    ``secrets`` reach neither a log nor a file that others can read. ``secrets_of`` is the id of their connection.
    ``table``: the fields of a ``spark.driver.plans.TableRead``, where a Delta table is read in place of Kafka.
    """

    options: dict[str, str]
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    secrets_of: str = ""
    table: JsonDict | None = None


class Source(Protocol):
    """Where rows come from. An instance is configuration and holds no state."""

    def spec(self) -> JsonDict:
        """The full specification, as the ledger records it: connection ids, no secrets."""
        ...

    def plan(self, position: Position | None, limits: Limits, env: Environment) -> PlannedEpoch | None:
        """Plan a new epoch's ranges from ``position`` on; None if there is no new data.

        ``position`` is None for the pipeline's first epoch. Changes nothing. May wait for data, as long as the
        source's configuration allows.

        Raises:
            Corrupt: Offsets after the position were deleted before they were read; names the exact range.
            Refused: The configuration is wrong.
        """
        ...

    def check(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        """Raise Corrupt unless every record of these planned ranges can still be read. Called before each staging."""
        ...

    def spark_read(self, ranges: Ranges, env: Environment) -> SparkRead:
        """The options with which Spark reads exactly ``ranges``."""
        ...

    def acknowledge(self, pipeline: str, ranges: Ranges, env: Environment) -> None:
        """Tell lag monitors how far the pipeline is. Never read back; the caller logs failures and goes on."""
        ...


@dataclass(frozen=True)
class Interval:
    """The data interval of a run: the times from ``start`` on, and before ``end``. Both have a zone."""

    start: datetime
    end: datetime

    def __str__(self) -> str:
        start, end = (time.astimezone(timezone.utc).isoformat() for time in (self.start, self.end))
        return f"[{start}, {end})"


@dataclass(frozen=True, kw_only=True)
class Past:
    """What the ledger knows of earlier epochs, and the times of the run.

    Attributes:
        epochs: The completion records, newest first. Each one is read from the ledger when it is asked for.
        clock: The time now, with its zone.
        interval: The run's data interval; None if it has none.
    """

    epochs: Callable[[], Iterator[CompleteRecord]]
    clock: Callable[[], datetime]
    interval: Interval | None = None


@runtime_checkable
class Pacing(Protocol):
    """A source that may size an epoch by earlier ones, or wait for more data. Then ``plan`` is not called."""

    def plan_paced(
        self, position: Position | None, limits: Limits, past: Past, env: Environment
    ) -> PlannedEpoch | None:
        """As ``plan``. ``PlannedEpoch.state`` says what was decided, and from which figures.

        Raises:
            NoNewData: There is new data, and the source waits for more.
            NotYet: It would wait now, and ``limits`` say that the task waits elsewhere.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Unread:
    """The records of a partition that no epoch has read yet: offsets ``[start, end)``.

    ``ms``: the time of the first one, or of one that came with it, in ms since 1970; None if there is none, or if the
    source does not tell.
    """

    topic: str
    partition: int
    start: int
    end: int
    ms: int | None


@runtime_checkable
class Lagging(Protocol):
    """A source that can tell how far a position is behind."""

    def unread(self, position: Position, env: Environment) -> list[Unread]:
        """What can be read behind the position, per partition. Reads only.

        Raises:
            Corrupt: Records are gone that no epoch has read.
        """
        ...


@runtime_checkable
class ByInterval(Protocol):
    """A source whose epochs may belong to the data intervals of their runs."""

    def by_interval(self) -> bool:
        """Whether they do. Needs no connection."""
        ...

    def is_of(self, state: JsonDict, interval: Interval) -> bool:
        """Whether an epoch with this ``PlannedEpoch.state`` was planned for this interval."""
        ...

    def read_until(self, state: JsonDict) -> datetime | None:
        """The end of the interval that an epoch with this ``PlannedEpoch.state`` was planned for; None: it had none."""
        ...


def is_by_interval(source: object) -> TypeGuard[ByInterval]:
    """Whether the epochs of a source belong to the data intervals of their runs. Needs no connection."""
    return isinstance(source, ByInterval) and source.by_interval()


@runtime_checkable
class Confirming(Protocol):
    """A source whose records may be replaced by others between ``check`` and the end of Spark's read."""

    def confirm(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        """Raise Corrupt if Spark may have read other records than the planned ones. Called after Spark's read."""
        ...


@runtime_checkable
class Versioned(Protocol):
    """**For a source of versions**: to read epochs one by one, more of them must be there than to read all at once."""

    def check_each(self, epochs: Sequence[PlannedEpoch], env: Environment) -> None:
        """Raise Corrupt unless every row of each of these epochs can still be read, by itself. Reads only."""
        ...


@runtime_checkable
class Renewing(Protocol):
    """A source that may move the start of an aborted epoch whose oldest records have been deleted."""

    def again(self, ranges: Ranges, state: JsonDict, env: Environment) -> PlannedEpoch:
        """The ranges for the next attempt of an aborted epoch: the planned ones, with one exception.

        A partition that no epoch has read before may begin at its oldest record. If that record has been deleted
        since, the partition begins at the oldest one left. No sink has shown a row of it yet.

        Raises:
            Corrupt: Planned records can no longer be read; names the exact range.
        """
        ...


@runtime_checkable
class Explaining(Protocol):
    """A source that can explain why there is nothing to read."""

    def why_nothing(self, env: Environment) -> str | None:
        """The reason, without a full stop; None if there is simply no new data."""
        ...


@runtime_checkable
class LeavingOut(Protocol):
    """A source that keeps the position of topics that it no longer reads."""

    def leaves_out(self, topic: str) -> bool:
        """Whether it no longer reads a topic of the position. Needs no connection."""
        ...


@runtime_checkable
class TraceableSource(Protocol):
    """A source that can tell what OpenLineage calls its topics."""

    def dataset_of(self, topic: str, env: Environment) -> Dataset:
        """What a key of the ranges stands for. Reads connections, and asks no server."""
        ...


@runtime_checkable
class WithSchemas(Protocol):
    """A source whose records may name the schemas that they were written with, by ids of a schema registry."""

    def registry(self) -> JsonDict | None:
        """The registry's connection as ``registry_conn_id``, and what it is asked for; None: no registry is asked.

        Where this is equal, the answer may be taken from an earlier attempt.
        """
        ...

    def schemas(self, env: Environment) -> dict[str, WriterSchema]:
        """The schemas that records may have, by their ids. Called once their ranges are planned. Changes nothing.

        Raises:
            Refused: The registry does not let us in, or does not have what it is asked for.
            NotApplied: It does not answer.
        """
        ...


@runtime_checkable
class Preparing(Protocol):
    """A source whose checks need the pipeline's name, sinks or position."""

    def prepare(self, pipeline: str, writes: Collection[str], position: Position | None, env: Environment) -> None:
        """Raise Refused if the pipeline may not read this source. Called before each new epoch. Changes nothing.

        ``writes`` holds every sink's ``destination``.
        """
        ...


@runtime_checkable
class Before(Protocol):
    """A source that knows where an epoch began that was aborted."""

    def before(self, base: Position | None, ranges: Ranges, state: JsonDict) -> Position:
        """The position at which an aborted epoch began: ``base``, and what the epoch was the first to read.

        ``ranges`` and ``state``: those that were planned. Needs no connection.
        """
        ...


@runtime_checkable
class Movable(Before, Protocol):
    """A source whose position a command can move. Each method reads only.

    Raises:
        Refused: The pipeline cannot go on there.
        Corrupt: The source has been replaced.
    """

    def past_losses(self, position: Position, topics: Sequence[str], env: Environment) -> Move:
        """Go on with what the source has after losses in ``topics``; none: in all topics."""
        ...

    def to_offsets(self, position: Position, offsets: Mapping[str, Mapping[int, int]], env: Environment) -> Move:
        """Go on at these offsets."""
        ...

    def to_another(self, position: Position, topics: Sequence[str], starting: object, env: Environment) -> Move:
        """Go on in what has these names now; none: in all of them. ``starting``: as the source's option, or offsets."""
        ...


@runtime_checkable
class ByTime(Protocol):
    """A source that knows which of its records came at or after a time. It reads only."""

    def to_time(self, position: Position, time: str, env: Environment) -> Move:
        """Go back to the first records at or after a time with its zone. Raises as ``Movable``."""
        ...


# -- sinks ----------------------------------------------------------------------------------------------------------


Ends = Mapping[str, Mapping[str, int]]
"""Topic -> partition -> first offset after an epoch, in the form of ``starting``."""


@dataclass(frozen=True, kw_only=True)
class SinkAttempt:
    """One sink's part in one attempt: what stage, vote, commit and abort need besides the sink itself.

    Attributes:
        txn: The attempt's transaction.
        ledger_id: Keeps this pipeline's staging places in a table apart from those of other pipelines.
        previous: The sink's marker before this epoch, as the ledger records it; None for its first epoch.
        ends: Where the epoch ends. A sink stores it with its commit, so the position survives the loss of the ledger.
        ledger: Where the ledger is, for people to read; empty if unknown.
        promised: True if GLOBAL_COMMIT has been decided and lost rows are staged again. The vote then leaves out
            checks that only say that a promise would be unwise: the promise has been made.
        watermarks: As in ``OpenRecord``.
        event_times: As in ``CompleteRecord`` of this epoch; given to the commit alone.
        state: The version that a state table's changes rest on; None for other sinks.
        restore: The version of the sink's table that comes back with this epoch; else None.
        stored: As in ``SinkPlan``.
    """

    txn: TransactionId
    ledger_id: str
    previous: TransactionId | None
    ends: Ends = field(default_factory=dict)
    ledger: str = ""
    promised: bool = False
    watermarks: Watermarks = ()
    event_times: EventTimes = field(default_factory=dict)
    state: StatePin | None = None
    restore: RestorePoint | None = None
    stored: tuple[str, ...] = ()

    @classmethod
    def of(cls, opened: OpenRecord, sink: str) -> SinkAttempt:
        """The part of ``sink`` in the attempt that ``opened`` records."""
        previous = opened.sinks[sink].previous
        return cls(
            txn=opened.txn,
            ledger_id=opened.ledger_id,
            previous=TransactionId.parse(previous) if previous else None,
            ends=starting_at_ends(opened.ranges),
            ledger=opened.ledger,
            watermarks=opened.watermarks,
            state=opened.state.get(sink),
            restore=opened.restores.get(sink),
            stored=opened.sinks[sink].stored,
        )


class Sink(Protocol):
    """One destination of rows. An instance is configuration; each operation gets its environment as an argument.

    ``from_spec`` (in ``sinks/__init__.py``) is the inverse of ``spec``: commit and roll-forward rebuild the sink from
    the specification in the ledger, not from today's DAG.
    """

    @property
    def name(self) -> str:
        """The sink's name, unique in its pipeline. The sink's marker and receipts carry it."""
        ...

    def asset_uri(self, pipeline: str) -> str:
        """The URI of the Airflow asset for the sink's data. Needs no connection."""
        ...

    def destination(self) -> str | None:
        """What no other sink of the pipeline may write to; None while it still holds an Airflow template."""
        ...

    def spec(self) -> JsonDict:
        """The full specification, as the ledger records it, with ``kind``: connection ids, no secrets."""
        ...

    def place(self, attempt: SinkAttempt, try_id: str, env: Environment) -> str:
        """The staging place of the try ``try_id``. No other try ever has the same. Writes nothing.

        ``try_id`` is part of the place, unchanged, so the coordinator can detect a forged place in a record.
        """
        ...

    def plan_stage(self, attempt: SinkAttempt, try_id: str, env: Environment) -> JsonDict:
        """Spark's plan for filling ``place``, with ``place`` in it. The coordinator passes it on unchanged.

        May prepare the place: the ledger has recorded it before this call. Idempotent per try.
        """
        ...

    def vote(self, attempt: SinkAttempt, claim: StagedClaim, env: Environment) -> Vote:
        """Verify the staged rows, independently of Spark's claim, and run every check that commit will run.

        VOTE_COMMIT is a promise: from then on ``commit`` can always succeed in the end. The staged rows are durable
        before it is given: they survive a power cut. Changes nothing that readers see, so it may be repeated.
        """
        ...

    def commit(self, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
        """Make the staged rows visible, exactly once, together with the marker. A repeat returns the same receipt.

        Raises:
            OutcomeUnknown: The commit may have happened, and the sink cannot be asked now. Call again.
            RowsGone: The sink still shows the previous epoch, and the staged rows are gone. Stage them again.
            RowsLost: The sink shows this epoch, but some of its rows have vanished. Stage them again: commit then
                puts them back.
            Corrupt: The sink's marker names neither the previous nor this transaction. Nothing was written.
        """
        ...

    def discard(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> None:
        """Delete one staging place. With ``published``, keep the part of it that belongs to the sink's visible data.

        Called only after the decision that allows it has been read back. Idempotent. The ledger may be a stale copy,
        so a sink never deletes what it shows, nor what it once showed and readers can still read.
        """
        ...

    def last_committed(self, pipeline: str, env: Environment) -> Marker | None:
        """The sink's marker for this pipeline now; None if it has none."""
        ...


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Where the rows of a sink's last epoch went, which is not the sink's table or topic.

    Attributes:
        there, here: That place, and the sink's own, each as a phrase: ``topic orders``.
        renamed: What to do if both are the same place, which has another name now, as a sentence; empty: nothing helps.
    """

    there: str
    here: str
    renamed: str = ""


@dataclass(frozen=True, kw_only=True)
class LastEpoch:
    """What a sink's own last commit says of its epoch.

    Attributes:
        marker: As ``Sink.last_committed`` returns it.
        txn: The transaction; None if the sink no longer knows it.
        ends: As in ``SinkAttempt``; None if the commit does not say it, as those of version 0.1.
        receipt: The commit's receipt, as far as the sink knows; None if it no longer knows the commit.
        watermarks, event_times: As in ``CompleteRecord``; empty if the commit does not say it.
        elsewhere: Set if the commit says that its rows went to another place than the sink's.
    """

    marker: Marker
    txn: TransactionId | None = None
    ends: Ends | None = None
    receipt: Receipt | None = None
    watermarks: Watermarks = ()
    event_times: EventTimes = field(default_factory=dict)
    elsewhere: Elsewhere | None = None


@runtime_checkable
class Positioned(Protocol):
    """A sink that can tell where its last epoch ended: so a ledger that was lost can be rebuilt."""

    def last_epoch(self, pipeline: str, env: Environment) -> LastEpoch | None:
        """What the sink's last commit for this pipeline says; None if it has none. Changes nothing."""
        ...


@runtime_checkable
class Leftovers(Protocol):
    """A sink that can tell cheaply whether ``discard`` has work to do. On other sinks it is always called."""

    def has_leftovers(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> bool:
        """Whether ``discard`` would delete anything at this place."""
        ...


@runtime_checkable
class Recognising(Protocol):
    """A sink whose ``place`` is costly to compute. For others, ``place`` is computed again and compared."""

    def is_own_place(self, attempt: SinkAttempt, place: str, env: Environment) -> bool:
        """Whether a try of this attempt could have this place. Reads nothing."""
        ...


@runtime_checkable
class Planning(Protocol):
    """A sink whose ``place`` is costly. Without, ``plan_stage`` finds out again where the try stages."""

    def plan_stage_at(self, attempt: SinkAttempt, place: str, env: Environment) -> JsonDict:
        """What ``plan_stage`` returns for the try that has this place, which ``place`` has just made."""
        ...


@runtime_checkable
class Located(Protocol):
    """A sink that can tell which table it writes to, however paths, catalogs and connections name that table."""

    def table_of(self, attempt: SinkAttempt, place: str, env: Environment) -> str:
        """The table of the sink that stages at ``place``: the same text for all sinks on it, another for other tables.

        Changes nothing. The text ends the sentence "both sinks are on …".
        """
        ...


@runtime_checkable
class InFolder(Protocol):
    """A sink whose table is a folder with its staging places. A ``VACUUM`` deletes what else lies there."""

    def folder_of(self, place: str) -> str:
        """The table's folder, by the place of a try. Asks nobody."""
        ...


@runtime_checkable
class Surrounded(Protocol):
    """A sink that can look whether its table lies in the folder of another one."""

    def tables_around(self, place: str, env: Environment) -> Iterable[tuple[str, str]]:
        """The tables whose ``VACUUM`` may delete this one, each with this one's folder as it lies in it.

        ``place``: that of a try. Called before the sink's first epoch only. A folder that cannot be read is none.
        """
        ...


@runtime_checkable
class Traceable(Protocol):
    """A sink that can tell what OpenLineage calls its destination. Of others, it is the URI of the asset."""

    def dataset(self, receipt: Receipt, env: Environment) -> Dataset:
        """The destination that this receipt is for. Reads connections, and asks no server."""
        ...


@runtime_checkable
class Perishable(Protocol):
    """A sink whose rows may vanish after the receipt, while the marker stays."""

    def has_lost_rows(self, receipt: Receipt, env: Environment) -> bool:
        """Whether rows of that commit are missing that readers should see. Reads little, changes nothing.

        If True, the coordinator commits again before it completes the epoch.
        """
        ...


@runtime_checkable
class KnownByMarker(Protocol):
    """A sink whose marker stands beside its rows, and not among them: only receipts tell which rows are its own."""

    def in_place_of(self, own: Receipt, others: Sequence[Receipt], env: Environment) -> Receipt | None:
        """That of ``others``, of other sinks, which was committed where this sink points to now.

        None if it is still where it committed ``own``, or if no other sink was there. Each ``open`` asks. Nearly every
        sink answers by its configuration; one whose place depends on its server, as a table without a schema in
        PostgreSQL does, opens a connection.

        Raises:
            Corrupt: It is in another place now, and nobody has chosen that.
        """
        ...


@runtime_checkable
class Holding(Protocol):
    """A sink that can tell whether rows of another sink's commit may still be where it writes to itself.

    Of others, the marker tells if the ledger describes the other sink with the same ``destination``.
    """

    def may_hold(self, receipt: Receipt, env: Environment) -> bool:
        """Whether this receipt, of a sink of another name, is of the place of this sink, and rows may be there.

        A marker of the other sink need not be there. A receipt that does not tell the place by an id counts only if a
        marker is there, or if its name is enough. Changes nothing.
        """
        ...


@runtime_checkable
class Watching(Protocol):
    """A sink that notices what other writers have done to its rows since one of its commits."""

    def foreign_changes(self, since: Receipt, pipeline: str, told: Collection[str], env: Environment) -> list[str]:
        """Changes that removed whole epochs but left their markers: one sentence each, without those in ``told``.

        ``told``: what was reported before. Reads little, changes nothing.

        Raises:
            Corrupt: There is such a change, and the sink is configured to stop then.
        """
        ...


@runtime_checkable
class Maintained(Protocol):
    """A sink that needs regular upkeep, such as compaction. It runs after an epoch is complete."""

    def maintain(self, pipeline: str, epoch: int, env: Environment) -> JsonDict:
        """Do the upkeep that is due and report it. The caller logs failures; they never fail the epoch."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A sink whose rows the transform reads in the next epoch: state. It can neither be waived nor skip an epoch."""

    def pin(self, receipt: Receipt | None, pipeline: str, env: Environment) -> StatePin:
        """The version for a new epoch to read: the rows that ``receipt``, of the epoch before, is for.

        ``receipt`` is None for the first epoch of the state. Changes nothing.

        Raises:
            Corrupt: Others have changed rows since.
            Refused: The state cannot begin here.
        """
        ...

    def plan_read(self, pin: StatePin, watermarks: Watermarks, env: Environment) -> JsonDict:
        """Spark's plan for reading the state. Raises Corrupt if that version can no longer be read."""
        ...


@runtime_checkable
class Restorable(Protocol):
    """A sink that can bring back what it showed after an earlier epoch.

    An attempt with ``SinkAttempt.restore`` stages no rows: ``plan_stage`` writes all that ``vote`` and ``commit`` need.
    """

    def require_restorable(self, point: RestorePoint, pipeline: str, env: Environment) -> None:
        """Look whether the version can come back. Changes nothing.

        Raises:
            Refused: It cannot: files or log entries are gone, or others would lose rows.
        """
        ...


@runtime_checkable
class Preflight(Protocol):
    """A sink that can tell, before Spark runs, what its vote would refuse whatever the rows are."""

    def require_ready(self, pipeline: str, previous: TransactionId | None, env: Environment) -> None:
        """Look whether the destination exists and can take an epoch. Changes nothing.

        A check that could refuse rows which the vote accepts does not belong here.

        Args:
            pipeline: The pipeline's name.
            previous: The sink's last transaction; None before its first epoch.
            env: The environment to ask in.

        Raises:
            Refused: It cannot: a table, a column, a topic or a right is missing, or a setting is wrong.
            NotApplied: The destination does not answer.
        """
        ...


@runtime_checkable
class Probing(Protocol):
    """A sink that can find out whether it can write where its rows are staged."""

    def require_writable(self, env: Environment) -> None:
        """Write a probe there, and remove it. ``open`` asks before the sink's first epoch, ``check`` at any time.

        Raises:
            Refused: A right is missing, or something is in the way.
            NotApplied, OutcomeUnknown: The store does not answer.
        """
        ...


@runtime_checkable
class Fitting(Protocol):
    """A sink that can tell which values its destination takes, so that other rows become dead letters."""

    def fit(self, pipeline: str, env: Environment) -> JsonDict:
        """What a row must be (``spark.driver.plans.Fit``), as the destination is now. Changes nothing."""
        ...


Row = Mapping[str, object]
"""Column -> value. A column that is left out is NULL."""


@runtime_checkable
class Telling(Protocol):
    """A sink that can tell the rows of one commit from all others. ``coordinator.dry_run`` compares them with new ones.

    Both methods give a row the same form. They read as they go, and change nothing.
    """

    def rows_of(self, receipt: Receipt, pipeline: str, env: Environment) -> Iterator[Row]:
        """The rows that this commit made visible.

        Raises:
            Refused: They cannot be told, or not any more; says why. With the first row, or instead of a later one.
        """
        ...

    def rows_staged(self, attempt: SinkAttempt, place: str, env: Environment) -> Iterator[Row]:
        """The rows that a commit would make of what is staged at ``place``.

        Raises:
            Refused: The sink would not take them. As ``rows_of``.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class StagedSample:
    """What lies at a staging place, for somebody who looks.

    Attributes:
        columns: (name, type) of each column of the staged rows; types as SQL users know them.
        count: How many rows lie there.
        rows: The first of them.
        creates: A statement that creates the destination, if it does not exist and the sink never creates it.
        problem: Why the sink, or the destination that is there, would not take the rows; None if nothing was found.
    """

    columns: tuple[tuple[str, str], ...]
    count: int
    rows: tuple[Row, ...]
    creates: str | None = None
    problem: str | None = None


@runtime_checkable
class Sampling(Protocol):
    """A sink that can show the rows at a staging place, for ``airflow epochs preview``."""

    def sample(self, attempt: SinkAttempt, place: str, most: int, env: Environment) -> StagedSample:
        """At most ``most`` of the staged rows. Changes nothing.

        Raises:
            Refused: What lies there is not a finished staging of this transaction.
        """
        ...


@runtime_checkable
class Replacing(Protocol):
    """A sink in which rows of a later epoch take the place of earlier rows. In other sinks all rows stay."""

    def replaces_by(self) -> tuple[str, ...] | None:
        """The columns whose values a row shares with the earlier rows that it replaces.

        Empty: it replaces none. None: the rows of several epochs cannot be written at once.
        """
        ...


def replaces_by(sink: object) -> tuple[str, ...] | None:
    """As ``Replacing``. In a sink that is none, all rows stay."""
    return sink.replaces_by() if isinstance(sink, Replacing) else ()


@runtime_checkable
class Noting(Protocol):
    """A sink whose commit notes something before its transaction. It stays if the transaction never comes."""

    def left_if_waived(self) -> str | None:
        """What may stay of a commit that was under way, and what to do, in sentences; None if nothing does."""
        ...


@runtime_checkable
class Adapting(Protocol):
    """A sink with options that do not affect what is written. In an epoch in doubt, today's DAG sets them."""

    def with_todays(self, today: Sink) -> Sink:
        """This sink, as the ledger describes it, with those options of ``today``, which has the same name and class."""
        ...


@runtime_checkable
class Joint(Protocol):
    """A sink that votes and commits in one transaction with others: with all that return the same key.

    ``vote`` and ``commit`` remain, and do the same for a group of one. A group holds the attempt's sinks that have
    neither a receipt nor a waiver, in the DAG's order, so it may shrink from one call to the next.
    """

    def joint(self) -> str | None:
        """The key that sinks of one transaction share; None if this sink is always alone. Needs no connection."""
        ...

    def vote_together(self, those: Sequence[tuple[Any, SinkAttempt, StagedClaim]], env: Environment) -> dict[str, Vote]:
        """``Sink.vote`` for all sinks of a group; votes by sink name.

        A claim may have a ``problem``, or be ``unmet``: the provider itself votes against that sink. Vote for the
        others as far as you can without its rows.
        """
        ...

    def commit_together(self, those: Sequence[tuple[Any, SinkAttempt, Staged]], env: Environment) -> dict[str, Receipt]:
        """``Sink.commit`` for a group: all of them show the epoch, or none does. Receipts by sink name.

        Raises:
            RowsGone: A sink's staged rows are gone. Every error raised here names the sink that it concerns.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A sink's marker is not the one that the ledger expects.

    Attributes:
        pipeline: The pipeline that asked.
        found: The sink's marker now.
        expected: The transaction that the ledger expects; None if it expects no epoch of this pipeline.
        receipt: The receipt of ``expected``, if the ledger still has it. Its ``detail`` names the table.
        in_doubt: The transaction of the epoch in doubt that this sink must show or has acknowledged; else None.
        undecided: The transaction of an attempt that is open and not decided; else None.
    """

    pipeline: str
    found: Marker | None
    expected: TransactionId | None
    receipt: Receipt | None = None
    in_doubt: TransactionId | None = None
    undecided: TransactionId | None = None

    def while_in_doubt(self, sink: str) -> str:
        """What to add to the remedy while an epoch is in doubt: today's DAG has no effect before it is complete."""
        if self.in_doubt is None or compare(self.found, self.expected, self.in_doubt) is Shown.AHEAD:
            return ""  # a ledger that is behind is rebuilt: then the epoch is over
        return (
            f" Epoch {self.in_doubt.epoch} is in doubt, so clear the failed task after that. If you give the sink "
            "another name, first complete the epoch without this sink's rows: "
            f"`{waive_command(self.in_doubt, sink)}`. Then clear the failed task."
        )


FIRST_AGAIN = "<the first epoch to read again>"


def backfill_from(first: int | str) -> str:
    """What the DAG says if a sink with a new name is to get the input from this epoch on."""
    return f'EpochPipeline(…, backfill={{"<the new name>": {first}}})'


def waive_command(txn: TransactionId, sink: str) -> str:
    """The command with which an operator completes the epoch without this sink's rows."""
    return f"airflow epochs waive {txn.pipeline} {txn.epoch} {sink} --why …"


def rename_in_doubt(txn: TransactionId, sink: str) -> str:
    """How a sink gets another name while an epoch is in doubt: today's DAG has no effect before it is complete.

    Under its old name, with another place for its marker, it would lack the rows of that epoch.
    """
    return (
        f"complete epoch {txn.epoch}, which is in doubt, without this sink's rows: `{waive_command(txn, sink)}`. Clear "
        f"the failed task. Then give this sink another name, with {backfill_from(txn.epoch)}"
    )


def rebuild_remedy(pipeline: str, see: str = "docs/failures.md#the-ledger-is-behind") -> str:
    """What to do where a ledger is behind its sinks. ``see``: the chapter to read."""
    return (
        "Set `ledger_conn_id` of the DAG, or `ledger_root` of its connection, to the ledger that has the newest "
        "records if it was changed, and clear the failed task. Otherwise restore the newest copy of the ledger. If "
        "another worker has it, in a folder of its own, see EPOCHS-LEDGER-NOT-SHARED. If there is none, pause the DAG "
        f"and run `airflow epochs rebuild {pipeline} --why …`: the pipeline goes on where its sinks end, in the same "
        f"tables and topics. See {see}."
    )


@runtime_checkable
class Vacating(Protocol):
    """A sink that an operator can make empty again after its first epoch, without loss of what others wrote."""

    def how_to_vacate(self, first: TransactionId, env: Environment) -> str | None:
        """What the operator does, whole sentences; the commit task is then cleared. None if more came than ``first``.

        Changes nothing.
        """
        ...


@runtime_checkable
class Undoable(Protocol):
    """A sink whose last commit somebody may undo, while its marker stays."""

    def is_taken_back(self, pipeline: str, env: Environment) -> bool:
        """Whether the rows of the last commit for this pipeline are not in the sink any more. False in doubt.

        Changes nothing.
        """
        ...


@runtime_checkable
class Diagnosing(Protocol):
    """A sink that can explain an unexpected marker: a table dropped, moved or restored, or a lost ledger."""

    def diagnose(self, disagreement: Disagreement, env: Environment) -> Corrupt | None:
        """The error to raise, with cause and remedy; None if the sink knows no more than its marker says.

        Changes nothing.
        """
        ...
