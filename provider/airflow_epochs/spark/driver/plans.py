"""The plan and the report of a stage job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from airflow_epochs.expectations import ExpectedRowCount, ExpectedRows
from airflow_epochs.spark.driver.wire import JsonDict
from airflow_epochs.transforms.registries import NO_REGISTRY, Registry


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """The plan of a job. ``JOB`` is the job's name, a key of ``jobs.JOBS``."""

    JOB: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class TransformFile:
    """The user's function. ``source`` is the file's text where the file is not on the driver's machine."""

    path: str
    function: str
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class EventTimePlan:
    """How the event times of rows are observed.

    Attributes:
        partitions: Topic -> its partitions.
        newest_allowed: The newest instant that may move the watermark, in microseconds since 1970 (UTC).
        depth: How many stateful operators may stand one behind another.
    """

    partitions: dict[str, tuple[int, ...]]
    newest_allowed: int
    depth: int


@dataclass(frozen=True, kw_only=True)
class TableRead:
    """The versions ``[start, end)`` of a Delta table that an epoch reads.

    From version 0 on, it reads the rows that the table has at its last version, instead of what the versions change.

    Attributes:
        location: Where the table is.
        feed: Whether the change data feed is read.
        schema: The table's schema at the last version, in Spark's JSON.
        partition_by: The table's partition columns.
        files: Where neither the feed nor the whole table is read: the files that the versions add, relative to the
            table or absolute, each with the values of its partition.
        records: About how many rows there are.
        at_ms: When the last version was committed, in milliseconds since 1970; None if nobody knows.
    """

    location: str
    start: int
    end: int
    feed: bool
    schema: JsonDict
    partition_by: tuple[str, ...] = ()
    files: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    records: int = 0
    at_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class StateRead:
    """The state that an epoch reads.

    Attributes:
        location: Where the table is.
        files: The files of the version to read, as its log names them, each with the first and the last epoch of its
            rows, or with nothing if its statistics lack them. None: there is no table yet.
        stored: The schema of that version, in Spark's JSON.
        schema: The columns, as SQL.
        declared: The same in Spark's JSON, once Spark has read them.
        keys: The columns that identify a row.
        expires: The column up to which a row matters; None if every row matters for ever.
        hidden_to: Rows that expired up to this instant are hidden; None: all rows are shown.
        folded_in: The epoch of the last fold: its rows have each key once, and older rows do not count. None: no fold.
        initial: Where the table is that the state begins as; None if the state does not begin so in this epoch.
        initial_version: The version of that table.
        closed: Up to where the operator had closed the state in the epoch before: an instant in microseconds since 1970
            (UTC), or None, if there was no watermark yet. Empty: nobody knows.
        closed_then: The same of this epoch, if it is replayed.
        closed_now: The same of this epoch, once the transform has run.
    """

    location: str
    files: dict[str, tuple[int, ...]] | None
    stored: JsonDict | None
    schema: str
    keys: tuple[str, ...]
    expires: str | None
    hidden_to: int | None
    folded_in: int | None = None
    initial: str | None = None
    initial_version: int | None = None
    declared: JsonDict | None = None
    closed: tuple[int | None, ...] = ()
    closed_then: tuple[int | None, ...] = ()
    closed_now: tuple[int | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All expectations of one sink."""

    rows: tuple[ExpectedRows, ...] = ()
    counts: tuple[ExpectedRowCount, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What a destination takes of a row, besides its columns' types. A row that does not fit becomes a dead letter.

    Attributes:
        utf8: Whether texts must be UTF-8.
        nul: Whether a text may contain the character NUL.
        calendar: Whether dates and times must be in the years 1 to 9999.
        dates: Whether dates, but not those inside of another value, must be in the years 1 to 9999.
        longest: Column -> the most characters of a text.
        required: Columns that must not be NULL.
        conditions: What the table demands of every row: what to call it, and a condition in SQL.
        expected: What the pipeline expects of every row.
        is_topic: Whether the destination is a topic: a column ``partition`` is then the record's to be.
        record_bytes: The most bytes of a Kafka record; None: there is no limit.
        packed: Whether the sink makes the record's value as Avro or Protobuf. Its size is known only when it is made.
        keyed: Whether the column ``key`` must not be NULL.
        partitions: How many partitions a topic has; None: that is not known.
        json: Whether structs, arrays and maps become JSON, in which no two keys of a map may be equal.
        partition_by: Columns by which a Delta table is partitioned: it keeps their values as texts.
        folders: Whether each of their values becomes the name of a folder on a disk.
        unless: Rows that meet this condition in SQL bring no values, as they delete a key: only ``keys`` are looked at.
        keys: Columns that are looked at in every row.
    """

    utf8: bool = True
    nul: bool = True
    calendar: bool = False
    dates: bool = False
    longest: dict[str, int] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    conditions: tuple[tuple[str, str], ...] = ()
    expected: tuple[ExpectedRows, ...] = ()
    is_topic: bool = False
    record_bytes: int | None = None
    packed: bool = False
    keyed: bool = False
    partitions: int | None = None
    json: bool = False
    partition_by: tuple[str, ...] = ()
    folders: bool = False
    unless: str | None = None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LettersPlan:
    """Where dead letters go, and which rows are dead letters.

    Attributes:
        sink: The sink that gets them.
        as_records: Whether that is a topic: a letter is then the record as it was read, with the rest in headers.
        fits: Sink -> what its destination takes. Rows of other sinks are not looked at.
    """

    sink: str
    as_records: bool
    fits: dict[str, Fit] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StagePlan(JobPlan):
    """One try to stage an epoch's rows in some sinks.

    Attributes:
        txn_id: The attempt's transaction id.
        pipeline: The pipeline's name.
        epoch: The epoch, from 1.
        attempt: The attempt, from 1.
        now: When the epoch was first opened, in ISO 8601 with its zone.
        seed: For the transform's random numbers.
        read: The Spark options that read exactly the planned ranges, without secrets.
        connection: The id of the connection that they come from, for errors.
        transform: The user's function.
        outputs: The sinks that may get a DataFrame.
        again: Whether rows are staged again after the vote, so that other sinks' DataFrames are no mistake.
        files_of_0_1: Whether version 0.1 promised these rows by a digest of their files.
        statistics: Whether Spark collects statistics of what it stages: a vote of another version counts on them.
        variants_by_json: Whether variants count in the digest by their JSON alone: a vote of another version did so.
        measure_input: Whether the records read are counted.
        sinks: The plan of each sink that is staged. Its ``kind`` names its class (``stage.STAGERS``).
        watermarks: The watermarks of the epoch and of the epochs before, newest first, in microseconds since 1970
            (UTC). None: there was no watermark yet.
        event_time: What is observed of event times; None if the pipeline has none.
        state: State table -> what the transform reads of it.
        earlier: Epochs that the sinks take together with this one, oldest first. Their own ``sinks`` are empty.
        replaces_by: Sink -> the columns by which its rows of a later epoch replace those of an earlier one.
        expectations: Sink -> what is expected of its rows.
        nothing: Whether the sinks get no rows, whatever the transform returns: tables go back to an earlier epoch.
        letters: Where dead letters go; None: the pipeline has no dead letters, and a row that does not fit aborts the
            epoch.
        table: What is read of a Delta table; None: ``read`` says what is read of Kafka.
        registry: The schemas that records were written with.
    """

    JOB = "stage"

    txn_id: str
    pipeline: str
    epoch: int
    attempt: int
    now: str
    seed: int
    read: dict[str, str]
    transform: TransformFile
    outputs: tuple[str, ...]
    again: bool = False
    files_of_0_1: bool = False
    statistics: bool = False
    variants_by_json: bool = False
    measure_input: bool = True
    sinks: dict[str, JsonDict]
    watermarks: tuple[int | None, ...] = ()
    event_time: EventTimePlan | None = None
    state: dict[str, StateRead] = field(default_factory=dict)
    earlier: tuple[StagePlan, ...] = ()
    replaces_by: dict[str, tuple[str, ...]] = field(default_factory=dict)
    expectations: dict[str, Rules] = field(default_factory=dict)
    nothing: bool = False
    letters: LettersPlan | None = None
    table: TableRead | None = None
    registry: Registry = NO_REGISTRY
    connection: str = ""


@dataclass(frozen=True, kw_only=True)
class RowDigest:
    """The parts of a digest of rows (``row_digest``). ``columns`` is a digest of the columns' names and types.

    ``typed``: whether there are variants, and they count with their types.
    """

    rows: int
    sums: tuple[int, ...]
    columns: str
    typed: bool = False


@dataclass(frozen=True, kw_only=True)
class SinkOutcome:
    """What was staged for one sink. ``problem``: why the rows or their schema do not fit; then nothing need be staged.

    ``unmet``: which expectations the rows do not meet, in sentences; None if they meet all that may abort the epoch.
    """

    place: str
    problem: str | None = None
    unmet: str | None = None
    content: RowDigest | None = None


@dataclass(frozen=True, kw_only=True)
class InputMetrics:
    """Measurements of the input; None if not measured.

    Attributes:
        rows_in: How many records were read.
        max_timestamp: The newest record's timestamp (UTC).
        rows_late: How many rows sinks got that the operators of ``transforms`` call late.
    """

    rows_in: int | None = None
    max_timestamp: str | None = None
    rows_late: int | None = None


@dataclass(frozen=True, kw_only=True)
class StageOutcome:
    """What a stage job did for each sink, and what it noticed.

    Attributes:
        event_times: Topic -> partition -> the newest event time that may move the watermark.
        broken: Sink -> condition of an expectation -> how many rows break it.
        letters: Sink -> how many of its rows became dead letters.
    """

    sinks: dict[str, SinkOutcome]
    metrics: InputMetrics = InputMetrics()
    warnings: tuple[str, ...] = ()
    event_times: dict[str, dict[str, int]] = field(default_factory=dict)
    broken: dict[str, dict[str, int]] = field(default_factory=dict)
    letters: dict[str, int] = field(default_factory=dict)
