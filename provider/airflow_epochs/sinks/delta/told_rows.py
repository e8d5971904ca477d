"""Lists the rows that one commit has added to a Delta table, and the rows at a staging place, in one form.

Both are the Parquet files that a log entry adds. A file's rows stay what they are, so an old version need not be read:
only its own entry, and its own files, as long as no clean-up has taken them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.contracts import Row, SinkAttempt, StagedSample
from airflow_epochs.delta.log import StagedFile, actions_of, log_entry, user_metadata_of
from airflow_epochs.delta.shape import PHYSICAL_NAME
from airflow_epochs.delta.table import TableLocation
from airflow_epochs.errors import NotApplied, Refused, first_line
from airflow_epochs.model import JsonDict, Receipt
from airflow_epochs.sinks.delta.modes import MERGE, UPSERT
from airflow_epochs.sinks.delta.whereabouts import Whereabouts
from airflow_epochs.spark.driver.delta.schema import GENERATED
from airflow_epochs.staged import footers, parquet_batches
from airflow_epochs.staged.sampling import sample_of, values_of
from airflow_epochs.staged.staging import Staging, read_staging

if TYPE_CHECKING:
    import pyarrow as pa

_IDENTITY = "delta.identity.start"


def of_commit(at: Whereabouts, receipt: Receipt) -> Iterator[Row]:
    """``Telling.rows_of``."""
    if at.sink.how.mode in (UPSERT, MERGE):
        raise _untold(at, f"its mode is {at.sink.how.mode!r}, so a commit also writes rows of earlier epochs again")
    location = at.location()
    actions = _actions(at, location, receipt)
    adds = [action["add"] for action in actions if "add" in action]
    if any(add.get("deletionVector") for add in adds):
        raise _untold(at, "the commit's files have deletion vectors")
    files = [StagedFile.of(add) for add in adds]
    if missing := location.files.missing(file.path for file in files):
        raise _untold(at, f"{len(missing)} of the {len(files)} files of its commit are gone: a VACUUM deleted them")
    made = _made_by_the_table(at, location, receipt.txn_id.pipeline)
    yield from _rows(at, location, files, without=made)


def of_place(at: Whereabouts, attempt: SinkAttempt, place: str) -> Iterator[Row]:
    """``Telling.rows_staged``."""
    location, staging = _staging(at, attempt, place)
    made = _made_by_the_table(at, location, attempt.txn.pipeline)
    yield from _rows(at, location, staging.files, f"{staging.place}/", without=made)


def sample(at: Whereabouts, attempt: SinkAttempt, place: str, most: int) -> StagedSample:
    """``Sampling.sample``."""
    location, staging = _staging(at, attempt, place)
    rows = _rows(at, location, staging.files, f"{staging.place}/", without=set())
    return sample_of(footers.completed(location.files, staging), rows, most)


def _staging(at: Whereabouts, attempt: SinkAttempt, place: str) -> tuple[TableLocation, Staging]:
    location = at.location_of(place, attempt)
    staging = read_staging(location.files, location.relative(place))
    if staging is None:
        raise _untold(at, f"what was staged at {place} is gone")
    return location, staging


def _actions(at: Whereabouts, location: TableLocation, receipt: Receipt) -> list[JsonDict]:
    """The log entry of the commit."""
    if receipt.version is None:
        raise _untold(at, "the receipt does not name the version of its commit")
    entry = location.files.read(log_entry(receipt.version))
    if entry is None:
        raise _untold(at, f"the table's log has no entry of version {receipt.version} any more")
    actions = list(actions_of(entry))
    if not any((user_metadata_of(action) or {}).get("txn") == receipt.txn_id for action in actions):
        raise _untold(at, f"version {receipt.version} of the table is another commit: the table was replaced")
    return actions


def _made_by_the_table(at: Whereabouts, location: TableLocation, pipeline: str) -> set[str]:
    """The columns whose values the table makes itself when rows are added: no staged row has them."""
    shape = at.look(location, pipeline).shape
    fields = shape.schema["fields"] if shape else []
    known: dict[str, Mapping[str, Any]] = {field["name"]: field.get("metadata") or {} for field in fields}
    if any(PHYSICAL_NAME in metadata for metadata in known.values()):
        raise _untold(at, "its files call columns otherwise than the table does (column mapping)")
    return {name for name, metadata in known.items() if GENERATED in metadata or _IDENTITY in metadata}


def _untold(at: Whereabouts, why: str) -> Refused:
    return Refused(
        f"The rows of one commit to {at.sink.target} cannot be listed: {why}.",
        code=codes.DRY_RUN_UNTOLD,
        sink=at.sink.name,
    )


def _rows(
    at: Whereabouts, location: TableLocation, files: Sequence[StagedFile], folder: str = "", *, without: set[str]
) -> Iterator[Row]:
    for file in files:
        for batch in _batches(at, location, folder + file.path):
            fixed = dict(file.partition_values)
            names = [name for name in batch.schema.names if name not in without]
            columns = [values_of(batch.column(name)) for name in names]
            for values in zip(*columns, strict=True) if names else [()] * batch.num_rows:
                yield fixed | dict(zip(names, values, strict=True))


def _batches(at: Whereabouts, location: TableLocation, path: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    try:
        with location.files.open(path) as opened:
            yield from parquet_batches.batches(opened)
    except (pa.ArrowException, OSError, NotApplied) as error:
        raise _untold(at, f"the file {path} cannot be read ({first_line(error)})") from error
