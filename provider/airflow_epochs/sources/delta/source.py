"""The Delta source: a table, read in epochs of exact versions. Its position comes from the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_epochs import codes
from airflow_epochs.errors import Refused, without_code
from airflow_epochs.names import is_template, normalised, resolved
from airflow_epochs.sources.delta.config import DEFAULTS, DeltaConfig, read_config, require_file

if TYPE_CHECKING:
    from airflow_epochs.contracts import Dataset, Environment, Limits, Move, PlannedEpoch, Position, SparkRead
    from airflow_epochs.model import JsonDict, Ranges
    from airflow_epochs.sources.delta.reader import DeltaReader

KIND = "delta"
_NO_RECORDS = "it counts versions, not records"


@dataclass
class DeltaSource:
    """A Delta table, read in epochs of whole versions. The transform gets the table's columns.

    Every option may be a Jinja template.

    Attributes:
        table: An absolute path, or a URL (``file://``, ``s3://`` or another object store).
        storage_conn_id: The connection with the credentials of the table's store. By default the worker's environment
            provides them. Spark has credentials of its own.
        changes: ``"appends"``: the rows that each version adds; a version that updates or deletes rows stops the
            pipeline. ``"feed"``: Delta's change data feed, with the columns ``_change_type``, ``_commit_version`` and
            ``_commit_timestamp``; the table must have ``delta.enableChangeDataFeed``.
        starting: Where the first epoch begins; it has no effect later. ``"earliest"``: with all rows that the table has
            at its newest version. ``"latest"``: with the next version. A number: with this version;
            offsets, as a savepoint has them, name a version too.
        max_versions: The largest number of versions per epoch.
        max_wait: For how many seconds ``open`` waits for a new version. Then the run is skipped.
        max_files: The largest number of files that an epoch reads. One version is read, however many it has.
        max_bytes: The largest number of bytes of these files, as they are stored: a number, or a text such as
            ``"10 GiB"``. One version is read, however large it is.

    Raises:
        BadArgument: An option is not valid.
    """

    table: str
    storage_conn_id: str | None = DEFAULTS["storage_conn_id"]
    changes: str = DEFAULTS["changes"]
    starting: str | int | JsonDict = DEFAULTS["starting"]
    max_versions: int | str = DEFAULTS["max_versions"]
    max_wait: float | str = DEFAULTS["max_wait"]
    max_files: int | str | None = DEFAULTS["max_files"]
    max_bytes: int | str | None = DEFAULTS["max_bytes"]

    template_fields: ClassVar[Sequence[str]] = (
        "table",
        "storage_conn_id",
        "changes",
        "starting",
        "max_versions",
        "max_wait",
        "max_files",
        "max_bytes",
    )
    lacks: ClassVar[Mapping[str, str]] = {
        "event_time": "its rows have no partitions, whose newest event times a watermark needs",
        "deferrable": "nothing watches a table in the triggerer; schedule the DAG on the table's asset instead",
        **dict.fromkeys(("max_records", "min_records", "max_delay", "target_duration"), _NO_RECORDS),
    }

    def __post_init__(self) -> None:
        read_config(self._raw_given())
        require_file(self.table)

    def spec(self) -> JsonDict:
        """The source as JSON, for the ledger: connection ids, no secrets."""
        return {"kind": KIND, **self._raw(), "table": normalised(self.table.strip())}

    @classmethod
    def from_spec(cls, spec: JsonDict) -> DeltaSource:
        """Rebuild the source from its ``spec``. Ignores fields that this version does not know."""
        known = {field.name: spec[field.name] for field in fields(cls) if field.name in spec}
        table = known.get("table")
        return cls(**(known | {"table": normalised(table)} if isinstance(table, str) else known))

    def reads(self) -> set[str]:
        """The table, spelled like ``Sink.destination``; nothing while it is a template."""
        return set() if is_template(self.table) else {resolved(read_config(self._raw_given()).table)}

    def leaves_out(self, topic: str) -> bool:
        """Whether it reads another table than ``topic``."""
        return topic != read_config(self._raw_given()).table

    def prepare(self, pipeline: str, writes: Collection[str], position: Position | None, env: Environment) -> None:
        """Raise Refused if `table` names a host, or a sink writes to it: the DAG file cannot check a template."""
        from airflow_epochs.sources.delta.reader import require_no_loop

        with _told():
            require_file(self.table)
        require_no_loop(self._config().table, writes)

    def plan(self, position: Position | None, limits: Limits, env: Environment) -> PlannedEpoch | None:
        """Plan the versions of a new epoch; None if ``max_wait`` seconds bring no new version."""
        return self._reader(env, limits).plan(position)

    def check(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        """Raise Corrupt unless every row of the planned versions can still be read. Reads only."""
        self._reader(env).check(ranges, state)

    def check_each(self, epochs: Sequence[PlannedEpoch], env: Environment) -> None:
        """Raise Corrupt unless every row of each of these epochs can still be read, by itself. Reads only."""
        for each in epochs:
            self.check(each.ranges, each.state, env)

    def confirm(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        """After Spark's read: raise Corrupt if the table has been replaced meanwhile."""
        self._reader(env).confirm(ranges, state)

    def before(self, base: Position | None, ranges: Ranges, state: JsonDict) -> Position:
        """The position at which an aborted epoch with these planned versions began."""
        from airflow_epochs.sources.delta import moves

        return moves.before(base, ranges, state)

    def past_losses(self, position: Position, topics: Sequence[str], env: Environment) -> Move:
        """Go on with the first version that can be read. Reads only."""
        return self._reader(env).past_losses(position, topics)

    def to_offsets(self, position: Position, offsets: Mapping[str, Mapping[int, int]], env: Environment) -> Move:
        """Go on with the version that ``offsets`` name. Reads only."""
        return self._reader(env).to_offsets(position, offsets)

    def to_another(self, position: Position, topics: Sequence[str], starting: object, env: Environment) -> Move:
        """Go on in the table that is there now. ``starting``: as the option, or offsets. Reads only."""
        return self._reader(env).to_another(position, starting)

    def spark_read(self, ranges: Ranges, env: Environment) -> SparkRead:
        """Describe a Spark read of exactly these versions."""
        return self._reader(env).spark_read(ranges)

    def dataset_of(self, topic: str, env: Environment) -> Dataset:
        """The table; offsets are its versions."""
        from airflow_epochs.contracts import Dataset

        return Dataset.at(topic)._replace(versioned=True)

    def acknowledge(self, pipeline: str, ranges: Ranges, env: Environment) -> None:
        """Do nothing: a table has no consumer groups."""

    def _reader(self, env: Environment, limits: Limits | None = None) -> DeltaReader:
        # Imported late: every task parses the DAG file, and that needs only the source's description.
        from airflow_epochs.sources.delta.reader import DeltaReader

        return DeltaReader(self._config(limits), env)

    def _raw(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _raw_given(self) -> dict[str, Any]:
        return {name: value for name, value in self._raw().items() if not is_template(value)}

    def _config(self, limits: Limits | None = None) -> DeltaConfig:
        """Today's rendered options, with a run's own limits in place of theirs."""
        with _told():
            config = read_config({**self._raw(), **(_own(limits) if limits else {})})
        if limits and limits.wait_at_most is not None:
            return replace(config, max_wait_s=min(config.max_wait_s, limits.wait_at_most))
        return config


@contextmanager
def _told() -> Iterator[None]:
    """Raise Refused in place of ValueError: an argument is wrong once a task has rendered it."""
    try:
        yield
    except ValueError as error:
        raise Refused(
            f"An argument of the DeltaSource is not valid. {without_code(error)}",
            code=codes.SOURCE_MISCONFIGURED,
        ) from error


_OF_THE_TASK = ("defers", "wait_at_most")
"""The fields of ``Limits`` that the task sets, and no user."""


def _own(limits: Limits) -> dict[str, Any]:
    given = {name: value for name, value in vars(limits).items() if value is not None and name not in _OF_THE_TASK}
    if strange := sorted(given.keys() - DEFAULTS.keys()):
        raise Refused(
            f"The run has the param {strange[0]}, which a DeltaSource does not have: {_NO_RECORDS}.",
            code=codes.SOURCE_MISCONFIGURED,
            remedy="Start a run without it. `max_versions`, `max_files` and `max_bytes` of the DeltaSource say how "
            "large an epoch is.",
        )
    return given
