"""The plans and the reports of Delta's jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_epochs.spark.driver.delta.layout import FileLayout
from airflow_epochs.spark.driver.plans import JobPlan
from airflow_epochs.spark.driver.wire import JsonDict

EPOCH = "__epoch"
"""The column of a state table for the epoch that wrote the row. The only other one besides the state is DELETED."""

# -- stage -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class How:
    """A sink's mode with its options. ``DeltaSink`` documents them."""

    mode: str
    keys: tuple[str, ...]
    sequence_by: str | None
    delete_when: str | None
    merge: str | None = None
    on: str | None = None
    schema_evolution: str | None = None
    empty: str = "keep"


@dataclass(frozen=True, kw_only=True)
class DeltaStaging:
    """The private table of one try, for rows that are appended or copied.

    Attributes:
        kind: The kind of plan, in ``stage.STAGERS``.
        committer: Who commits the rows: ``deltalake``, ``spark``, or ``copy``, a sink that copies them.
        place: Where the table is made.
        target: What the rows are for.
        epoch: The epoch.
        has_version_0: Whether the task has created the table.
        schema: The target's, in Spark's JSON, as its log has it; None if there is no target, or Spark is to look.
        partition_by: The table's partitioning.
        properties: The table's properties.
        optimize_write: Whether rows are shuffled before a write, by the target's owner; None: the owner does not say.
        layout: The files; None: as the server writes them, because nobody keeps them.
        user_metadata: The note on the table's commit.
    """

    kind: str = "delta"
    committer: str
    place: str
    target: str
    epoch: int
    has_version_0: bool
    schema: JsonDict | None
    partition_by: tuple[str, ...]
    properties: dict[str, str]
    optimize_write: bool | None
    layout: FileLayout | None
    user_metadata: str

    @property
    def wants_known_dates(self) -> bool:
        """Whether no column may have a date that only Spark knows. Rows that are copied elsewhere are judged there."""
        return self.committer != "copy"


@dataclass(frozen=True, kw_only=True)
class DeltaChangeStaging(DeltaStaging):
    """The private table of one try, for rows that will change the target."""

    kind: str = "delta_change"
    how: How

    @classmethod
    def of(cls, staging: DeltaStaging, how: How) -> DeltaChangeStaging:
        """The plan ``staging`` of a plain append, changed for another mode."""
        return cls(**{**vars(staging), "kind": cls.kind}, how=how)


@dataclass(frozen=True, kw_only=True)
class NewestStaging(DeltaChangeStaging):
    """The private table of one try, for the newest row of each key, which an upsert copies.

    A column says whether the row deletes the key.
    """

    kind: str = "newest"


@dataclass(frozen=True, kw_only=True)
class StateStaging(DeltaStaging):
    """The private table of one try, for the changes of a state table.

    The changes rest on the state that the transform reads: ``StagePlan.state`` has it.

    Attributes:
        fold: Whether the whole state is staged instead of its changes.
        expired_to: A fold leaves out rows that have expired by then; None: it keeps all rows.
    """

    kind: str = "state"
    fold: bool
    expired_to: int | None

    @property
    def wants_known_dates(self) -> bool:
        """False: the commits of a state have no statistics of dates. And a fold must take the dates that are there."""
        return False

    @classmethod
    def of(cls, staging: DeltaStaging, *, fold: bool, expired_to: int | None) -> StateStaging:
        """The plan ``staging`` of a plain append, changed for a state table."""
        return cls(**{**vars(staging), "kind": cls.kind}, fold=fold, expired_to=expired_to)


# -- commit ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CommitPlan(JobPlan):
    """Append the rows staged at ``place`` to ``target``, once.

    Attributes:
        target: The table.
        place: Where the rows are staged.
        app: Who signs the commit, together with ``epoch``.
        epoch: The epoch.
        previous: The transaction of the epoch before, as the ledger knows it; None for the first.
        previous_epoch: The epoch of that transaction.
        table_id: The id of the table that the sink voted for; None if the table did not exist then.
        partition_by: The partitioning of a table that is created.
        properties: The properties of a table that is created.
        layout: The files, where the table's properties say nothing else.
        user_metadata: The note on the commit.
    """

    JOB = "delta_commit"

    target: str
    place: str
    app: str
    epoch: int
    previous: str | None
    previous_epoch: int | None
    table_id: str | None
    partition_by: tuple[str, ...]
    properties: dict[str, str]
    layout: FileLayout
    user_metadata: str


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a commit does in a mode other than append.

    Attributes:
        how: The mode.
        rows: How many rows are staged.
        notes: The folder beside the table for the sink's notes about deleted keys, which later epochs need.
        all_notes: The notes in this folder, and in the folders of sinks with other names.
    """

    how: How
    rows: int
    notes: str
    all_notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ChangePlan(CommitPlan):
    """Bring the rows staged at ``place`` into ``target`` as ``change`` says, once."""

    JOB = "delta_change"

    change: Change

    @classmethod
    def of(cls, append: CommitPlan, change: Change) -> ChangePlan:
        """The plan ``append`` of a plain append, changed for another mode."""
        return cls(**vars(append), change=change)


@dataclass(frozen=True, kw_only=True)
class ForgetPlan(JobPlan):
    """Delete from ``target`` rows that an upsert has brought, and that are older than a deletion by another sink.

    Attributes:
        target: The table.
        place: Where the rows were staged.
        how: The upsert.
        notes: Where the other sinks have noted their deletions.
        layout: The files, where the table's properties say nothing else.
    """

    JOB = "delta_forget"

    target: str
    place: str
    how: How
    notes: tuple[str, ...]
    layout: FileLayout


@dataclass(frozen=True, kw_only=True)
class FencePlan(JobPlan):
    """Sign a commit to ``target`` that has no rows, if the marker there is one of ``over``.

    Attributes:
        target: The table.
        app: Who signs the commit, together with ``epoch``.
        epoch: The epoch.
        over: The transactions that the marker may have; None among them: the table may have no marker.
        user_metadata: The note on the commit.
    """

    JOB = "delta_fence"

    target: str
    app: str
    epoch: int
    over: tuple[str | None, ...]
    user_metadata: str


# -- look, and keep up -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DescribePlan(JobPlan):
    """Describe the table ``target``."""

    JOB = "delta_describe"

    target: str


@dataclass(frozen=True, kw_only=True)
class MarkerPlan(JobPlan):
    """Describe the table ``target``, and find the newest epoch of ``app`` in it."""

    JOB = "delta_marker"

    target: str
    app: str


@dataclass(frozen=True, kw_only=True)
class OptimizePlan(JobPlan):
    """Compact small files of the table ``target``.

    Attributes:
        target: The table.
        layout: The files, where the table's properties say nothing else.
    """

    JOB = "delta_optimize"

    target: str
    layout: FileLayout


@dataclass(frozen=True, kw_only=True)
class ThinNotesPlan(JobPlan):
    """Thin out the notes at ``places``."""

    JOB = "delta_thin_notes"

    places: tuple[str, ...]


# -- reports -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DescribedTable:
    """A Delta table as Spark describes it. ``schema`` is in Spark's JSON."""

    location: str
    id: str
    schema: JsonDict
    partition_by: tuple[str, ...]
    properties: dict[str, str]
    min_reader: int
    min_writer: int
    features: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Described:
    """What Spark knows of a table.

    ``table``: None if it does not exist, or is not a Delta table. ``format``: its format, if that is not Delta.
    """

    table: DescribedTable | None = None
    format: str | None = None


@dataclass(frozen=True, kw_only=True)
class FoundMarker:
    """The newest epoch of a sink in a table, and what its commit says; None where it is unknown.

    Attributes:
        epoch: None if there is no marker.
        txn: The transaction.
        committer: Who committed it.
        place: Where its rows were staged.
        deletions: The name of the notes about deleted keys.
        version: The table's version.
        timestamp_ms: The commit's time.
        ends: Topic -> partition -> first offset after the epoch.
        event_time: What the next epoch must know of the watermark.
    """

    epoch: int | None = None
    txn: str | None = None
    committer: str | None = None
    place: str | None = None
    deletions: str | None = None
    version: int | None = None
    timestamp_ms: int | None = None
    ends: dict[str, dict[str, int]] | None = None
    event_time: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class SeenTable:
    """A table, and the marker of a sink in it."""

    about: Described
    marker: FoundMarker


@dataclass(frozen=True, kw_only=True)
class Committed(SeenTable):
    """The table and the marker after a commit. ``refused``: why nothing was written; then they are from before it."""

    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """How many rows were deleted."""

    rows_deleted: int


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """How many files a compaction added and removed."""

    files_added: int
    files_removed: int


@dataclass(frozen=True, kw_only=True)
class ThinnedNotes:
    """How many notes were removed."""

    notes_removed: int
