"""What the parts of an epoch ask of one another: sinks, sources, Spark, and the world around them.

``Sink`` is what every sink does, ``Source`` what every source does. The protocols that follow each are what one may do
beside that: it needs the methods, no base class, and the caller asks ``isinstance(sink, Maintained)``.
A sink stages durably, then publishes atomically with a marker. A source plans ranges from the last position, and
describes the read to Spark. ``Environment`` is what both may use; Airflow's edge implements it, and so do tests.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from airflow_epochs.errors import Corrupt
from airflow_epochs.model import (
    JsonDict,
    Marker,
    OpenRecord,
    Ranges,
    Receipt,
    Staged,
    StagedClaim,
    TransactionId,
    Vote,
    starting_at_ends,
)

# -- the world around them ------------------------------------------------------------------------------------------


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
        kind: Which job, a key of ``airflow_epochs.spark.driver.jobs.JOBS``.
        args: JSON arguments; no secrets.
        secrets: Spark options that must not be logged nor lie in a readable file (Kafka credentials).
        secrets_of: The id of the connection that they come from.
        files: Local files the job needs: the user's transform and its siblings are named here by path.
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
        """Draw the identity of a Spark session before it exists; recorded, so that a later try can stop it."""
        ...

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        """Run ``job`` to its end and return its report. Raises NotApplied if the job failed."""
        ...

    def cancel(self) -> None:
        """Stop what this runner is running now, from a signal handler; ``run`` then raises. Idempotent."""
        ...

    def stop(self, session: JsonDict) -> None:
        """Interrupt what a session is doing and release it. Idempotent; an unknown or ended session is fine."""
        ...


class Environment(Protocol):
    """Connections, Spark, and named phases for tests."""

    @property
    def spark(self) -> SparkRunner: ...

    def connection(self, conn_id: str) -> Connection:
        """Raises Refused if there is no such connection."""
        ...

    def reached(self, phase: str) -> None:
        """A no-op in production; tests kill or stop the process here."""
        ...


# -- sources --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where the last complete epoch ended: its ranges (ends count) and the source's own state (topic ids, tails)."""

    ranges: Ranges
    state: JsonDict


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Per-run settings (DAG params) over the source's own; None: the source's own."""

    max_records: int | None = None
    starting: str | JsonDict | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedEpoch:
    """New input: ``ranges`` and the state to record with them.

    Without a record to read only where an empty epoch has to pin the position (a start at "latest").
    """

    ranges: Ranges
    state: JsonDict


@dataclass(frozen=True, kw_only=True)
class SparkRead:
    """How Spark reads exactly the planned ranges.

    ``secrets`` never reach a log or a readable file. ``secrets_of`` is the id of the connection that they come from.
    """

    options: dict[str, str]
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    secrets_of: str = ""


class Source(Protocol):
    """Where rows come from. Instances are configuration."""

    def spec(self) -> JsonDict:
        """The full specification; connection ids, no secrets."""
        ...

    def plan(self, position: Position | None, limits: Limits, env: Environment) -> PlannedEpoch | None:
        """Ranges for a new epoch, from ``position`` (None: the pipeline's first epoch); None if there is no new data.

        Reads only. May wait for data, bounded by the source's own configuration.

        Raises:
            Corrupt: Offsets between the position and now are gone; names the exact range.
            Refused: The configuration is wrong.
        """
        ...

    def check(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        """Raise Corrupt unless every record of already planned ranges can still be read (a rerun)."""
        ...

    def spark_read(self, ranges: Ranges, env: Environment) -> SparkRead: ...

    def acknowledge(self, pipeline: str, ranges: Ranges, env: Environment) -> None:
        """Tell lag monitors how far the pipeline is. Never read back; failures are logged by the caller."""
        ...


@runtime_checkable
class Confirming(Protocol):
    """A source whose records can be replaced by others between the check and the end of Spark's read."""

    def confirm(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        """Raise Corrupt if what has just been read of the ranges may be other records than those that were planned."""
        ...


@runtime_checkable
class Renewing(Protocol):
    """A source whose first epoch may begin at whatever is the oldest record."""

    def again(self, ranges: Ranges, state: JsonDict, env: Environment) -> PlannedEpoch:
        """What the next attempt of an aborted epoch reads: the planned ranges, as planned.

        One exception: where a partition was never read before and begins at its oldest record, and that has been
        deleted since, it begins at the oldest one that is left. Nobody has seen a row of it.

        Raises:
            Corrupt: Records that were planned cannot be read any more; names the exact range.
        """
        ...


@runtime_checkable
class Explaining(Protocol):
    """A source that can tell why there is nothing to read."""

    def why_nothing(self, env: Environment) -> str | None:
        """A sentence without its full stop; None if there is simply nothing new."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """A source with checks that need to know the pipeline."""

    def prepare(self, pipeline: str, writes: Collection[str], position: Position | None, env: Environment) -> None:
        """Raise Refused if the pipeline may not read this source. Before a new epoch is planned; changes nothing.

        ``writes``: the ``destination`` of every sink.
        """
        ...


# -- sinks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SinkAttempt:
    """One sink in one attempt: all that stage, vote, commit and abort need to know beside the sink itself.

    Attributes:
        txn: The attempt's transaction.
        ledger_id: Tells this pipeline's staging places in a table from those of others.
        previous: The sink's marker before this epoch, as the ledger records it; None for its first epoch.
        ledger: Where that ledger lies, for people to read; empty where it is not known.
        promised: Whether GLOBAL_COMMIT has been decided: a vote is then asked for rows that were staged again, and
            what it would have been wiser not to promise is no reason against them any more.
        ends: Topic -> partition -> first offset after the epoch, as ``starting`` takes it. A sink stores it with
            its commit, so that a lost ledger does not take the position with it.
    """

    txn: TransactionId
    ledger_id: str
    previous: TransactionId | None
    ends: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    ledger: str = ""
    promised: bool = False

    @classmethod
    def of(cls, opened: OpenRecord, sink: str) -> SinkAttempt:
        """The part of ``sink`` in an attempt."""
        previous = opened.sinks[sink].previous
        return cls(
            txn=opened.txn,
            ledger_id=opened.ledger_id,
            previous=TransactionId.parse(previous) if previous else None,
            ends=starting_at_ends(opened.ranges),
            ledger=opened.ledger,
        )


class Sink(Protocol):
    """One place rows go to. Instances are configuration; every operation takes its world as an argument.

    ``spec`` and ``from_spec`` (in ``sinks/__init__.py``) are inverse: commit and roll-forward rebuild the sink
    from the specification in the ledger, not from today's DAG.
    """

    @property
    def name(self) -> str: ...

    def asset_uri(self, pipeline: str) -> str:
        """The URI of the Airflow asset that stands for the sink's data; needs no connection."""
        ...

    def destination(self) -> str | None:
        """What no two sinks of a pipeline may share; None as long as it is a template of Airflow."""
        ...

    def spec(self) -> JsonDict:
        """The full specification, with ``kind``; connection ids, no secrets."""
        ...

    def place(self, attempt: SinkAttempt, nonce: str, env: Environment) -> str:
        """Where the try with this nonce stages: a place that no other try has or will have. Writes nothing.

        The nonce is in it as it is: so a record that names another place than a try can have made is noticed.
        """
        ...

    def plan_stage(self, attempt: SinkAttempt, nonce: str, env: Environment) -> JsonDict:
        """What Spark needs to fill ``place``, which is in it; passed to ``spark.driver.jobs`` as it is.

        May prepare the place, which is on record by then. Idempotent per nonce.
        """
        ...

    def vote(self, attempt: SinkAttempt, claim: StagedClaim, env: Environment) -> Vote:
        """Verify the staged rows independently of the claim and run every check that commit will run.

        VOTE_COMMIT is a promise: after it ``commit`` can always succeed in the end. Changes nothing that readers
        see, so it may be repeated. Durable: what VOTE_COMMIT describes survives a power cut.
        """
        ...

    def commit(self, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
        """Make the staged rows visible, once, together with the marker. A repeat returns the same receipt.

        Raises:
            OutcomeUnknown: The commit may have landed and the sink cannot be asked now. Call again.
            RowsGone: The sink still shows the previous epoch, and the staged rows are gone: they can be staged again.
            RowsLost: The sink shows this epoch, but rows of it have vanished. Called with rows that were staged again,
                it puts them in the place of those.
            Corrupt: The sink's marker is neither the previous nor this transaction.
        """
        ...

    def discard(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> None:
        """Delete one staging place; with ``published``, only what is not part of the sink's visible data.

        Called only after the decision that makes it safe has been read back. Idempotent. A ledger may be a copy, and
        then what it says is not so: what the sink shows, or has shown and can still be read, is kept all the same.
        """
        ...

    def last_committed(self, pipeline: str, env: Environment) -> Marker | None:
        """The marker in the sink now; None if it has never seen this pipeline and sink."""
        ...


@runtime_checkable
class Leftovers(Protocol):
    """A sink that can tell at little cost whether ``discard`` has anything to do. Without, it is always called."""

    def has_leftovers(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> bool:
        """Whether there is anything left at the place that ``discard`` would delete."""
        ...


@runtime_checkable
class Recognising(Protocol):
    """A sink whose ``place`` is costly. Without, a place is made again from the nonce in it, and compared."""

    def is_own_place(self, attempt: SinkAttempt, place: str, env: Environment) -> bool:
        """Whether a try of this attempt could have this place, found out without asking anybody."""
        ...


@runtime_checkable
class Planning(Protocol):
    """A sink whose ``place`` is costly. Without, ``plan_stage`` finds out again where the try stages."""

    def plan_stage_at(self, attempt: SinkAttempt, place: str, env: Environment) -> JsonDict:
        """What ``plan_stage`` returns for the try that has this place, which ``place`` has just made."""
        ...


@runtime_checkable
class Located(Protocol):
    """A sink that can tell which table it writes to, whatever paths, catalogs and connections call it."""

    def table_of(self, attempt: SinkAttempt, place: str, env: Environment) -> str:
        """The table of the sink that stages at ``place``: the same text for every sink on it, and for no other table.

        Changes nothing. People read it as "both sinks are on …".
        """
        ...


@runtime_checkable
class Perishable(Protocol):
    """A sink whose rows may vanish after its receipt, while its marker stays."""

    def has_lost_rows(self, receipt: Receipt, env: Environment) -> bool:
        """Whether rows of that commit are gone that readers should see. Reads little, changes nothing.

        If so, ``commit`` is called again before the epoch is complete.
        """
        ...


@runtime_checkable
class Watching(Protocol):
    """A sink that can tell what others have done to its rows since one of its commits."""

    def foreign_changes(self, since: Receipt, pipeline: str, told: Collection[str], env: Environment) -> list[str]:
        """What took whole epochs away while their markers stayed, without what was ``told`` before; a sentence each.

        Reads little, changes nothing.

        Raises:
            Corrupt: There is such a change, and the sink is to stop at one.
        """
        ...


@runtime_checkable
class Maintained(Protocol):
    """A sink that wants regular upkeep after an epoch is complete (compaction, log checkpoints)."""

    def maintain(self, pipeline: str, epoch: int, env: Environment) -> JsonDict:
        """Do what is due. Failures are logged by the caller and never fail the epoch."""
        ...


@runtime_checkable
class Adapting(Protocol):
    """A sink with options that change nothing of what is written: an epoch in doubt takes the DAG's of today."""

    def with_todays(self, today: Sink) -> Sink:
        """This sink, as the ledger describes it, with such options of ``today``, which has its name and class."""
        ...


@runtime_checkable
class Joint(Protocol):
    """A sink that votes and commits in one transaction with others: those with the same key, in the DAG's order.

    ``vote`` and ``commit`` are still there, and the same as for a group of one. A group has the sinks of an attempt
    that have neither receipt nor waiver, so it may shrink between a vote and a commit, or between two commits.
    """

    def joint(self) -> str | None:
        """What sinks of one transaction have in common; None if this one is always alone. Needs no connection."""
        ...

    def vote_together(self, those: Sequence[tuple[Any, SinkAttempt, StagedClaim]], env: Environment) -> dict[str, Vote]:
        """What ``Sink.vote`` does, for all sinks of a group; by name. A claim may have a ``problem``."""
        ...

    def commit_together(self, those: Sequence[tuple[Any, SinkAttempt, Staged]], env: Environment) -> dict[str, Receipt]:
        """What ``Sink.commit`` does, for all sinks of a group: each shows the epoch, or none does. Receipts by name.

        Raises:
            RowsGone: Names, as all its errors do, the sink that it is about.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A sink's marker is not the one that the ledger expects.

    Attributes:
        pipeline: The pipeline that asked.
        found: The marker in the sink now.
        expected: The transaction that the ledger expects; None: no epoch of this pipeline.
        receipt: The receipt of ``expected``, where the ledger still has it; its ``detail`` tells which table it was.
        in_doubt: The transaction that waits for the sink, or was acknowledged by it, of an epoch in doubt.
    """

    pipeline: str
    found: Marker | None
    expected: TransactionId | None
    receipt: Receipt | None = None
    in_doubt: TransactionId | None = None

    def while_in_doubt(self, sink: str) -> str:
        """What the remedy has to say beside: until the epoch is complete, today's DAG does not count."""
        if self.in_doubt is None:
            return ""
        return (
            f" Epoch {self.in_doubt.epoch} is in doubt: once this is mended, clear the failed task. Before another "
            "name of the sink can help, the epoch must be completed without this sink's rows: "
            f"`{waive_command(self.in_doubt, sink)}`, then clear the failed task."
        )


def waive_command(txn: TransactionId, sink: str) -> str:
    """What an operator types to complete the epoch without this sink's rows."""
    return f"airflow epochs waive {txn.pipeline} {txn.epoch} {sink} --why …"


@runtime_checkable
class Diagnosing(Protocol):
    """A sink that can tell why its marker is not the expected one: dropped, moved, restored, or the ledger was lost."""

    def diagnose(self, disagreement: Disagreement, env: Environment) -> Corrupt | None:
        """The error to raise, with cause and remedy; None if the sink shows no more than the marker says.

        Changes nothing.
        """
        ...
