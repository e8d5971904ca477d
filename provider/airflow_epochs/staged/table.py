"""Rows staged for a sink that copies them when it commits: Kafka, a database. A private Delta table per try.

Delta's log makes "staged" atomic, and Spark's own writer records what it wrote: files, sizes, numbers of rows. So
what the vote promises is found out in the same way as for a Delta sink, and commit reads exactly that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol

from airflow_epochs import codes
from airflow_epochs.contracts import Environment, SinkAttempt
from airflow_epochs.delta.log import USER_METADATA_KEY
from airflow_epochs.delta.table import App, TableLocation
from airflow_epochs.errors import NotApplied, Refused, RowsGone
from airflow_epochs.model import JsonDict, Staged, StagedClaim, attempt_fields
from airflow_epochs.names import normalised
from airflow_epochs.spark.driver.delta.jobs import compact_json
from airflow_epochs.spark.driver.delta.plans import DeltaStaging, How, NewestStaging
from airflow_epochs.spark.driver.delta.schema import maps_columns
from airflow_epochs.spark.driver.wire import as_json
from airflow_epochs.staged import checks, own_names, owner, parquet_batches
from airflow_epochs.staged.digest import staged_of
from airflow_epochs.staged.parquet_calendar import misread
from airflow_epochs.staged.promised import require_promised, staging_left
from airflow_epochs.staged.staging import Staging, read_staging
from airflow_epochs.storage.options import storage_options

if TYPE_CHECKING:
    import pyarrow as pa

_OF_TIME = re.compile(r'"(date|timestamp|timestamp_ntz)"')
_OF_TASK = re.compile(r"part-(\d+)-.*[-.]c(\d+)\.")
"""A file's name: the number of Spark's task; an id, which tells nothing; and the number of the file in the task."""


def _written(path: str) -> tuple[int, int, str]:
    """A file's place in the order of the rows. A task writes several files if ``maxRecordsPerFile`` says so."""
    name = PurePosixPath(path).name
    found = _OF_TASK.match(name)
    return (int(found[1]), int(found[2]), name) if found else (0, 0, name)


def staging_root(path: str, sink: str) -> str:
    """``path`` in its normal spelling.

    Raises:
        Refused: It is neither an absolute path nor a URL.
    """
    root = normalised(path.strip())
    if root.startswith("/") or "://" in root:
        return root
    raise Refused(
        f"`staging` of the sink is {path!r}, which is neither an absolute path nor a URL.",
        code=codes.STAGING_PATH,
        sink=sink,
    )


class Copying(Protocol):
    """A sink of ours whose commit copies rows from where they were staged."""

    name: str
    staging: str
    storage_conn_id: str | None


@dataclass(frozen=True, kw_only=True)
class StagedTable:
    """The staging places of one sink.

    Attributes:
        root: As ``staging_root`` returns it; may be shared by all sinks of all pipelines.
        sink: The sink's name.
        target: The name of the rows' target in messages and plans.
        options: ``object_store`` options of the root's store.
    """

    root: str
    sink: str
    target: str
    options: dict[str, str] = field(repr=False)
    conn_id: str | None = None

    @classmethod
    def of(cls, sink: Copying, target: str, env: Environment) -> StagedTable:
        """The staging places of ``sink``. Raises Refused as ``staging_root`` does, or if there is no connection."""
        conn_id = sink.storage_conn_id
        return cls(
            root=staging_root(sink.staging, sink.name),
            sink=sink.name,
            target=target,
            options=storage_options(env.connection(conn_id) if conn_id else None),
            conn_id=conn_id,
        )

    def place(self, attempt: SinkAttempt, try_id: str) -> str:
        txn = attempt.txn
        return f"{self.root}/{self._folder(attempt)}/{txn.epoch}-{txn.attempt}-{try_id}"

    def require_writable(self) -> None:
        """Raise Refused if no rows can be staged below the root. Leaves nothing behind."""
        self._where.files.probe("")

    def plan(self, attempt: SinkAttempt, try_id: str, newest: How | None = None) -> JsonDict:
        """What Spark needs to fill the place of this try. Signs the sink's folder.

        ``newest``: the upsert that wants only the newest row of each key; None: all rows are wanted.
        """
        ours: JsonDict = {
            "app": self._app(attempt),
            "txn": str(attempt.txn),
            "committer": "copy",
            "table_id": None,
            "anchor": None,
        }
        owner.sign(self._where.files, self._folder(attempt), attempt, self.sink)
        plan = DeltaStaging(
            committer="copy",
            place=self.place(attempt, try_id),
            target=self.target,
            epoch=attempt.txn.epoch,
            has_version_0=False,
            schema=None,
            partition_by=(),
            properties={},
            optimize_write=None,
            layout=None,
            user_metadata=compact_json({USER_METADATA_KEY: ours}),
        )
        return as_json(NewestStaging.of(plan, newest) if newest else plan)

    def checked(self, attempt: SinkAttempt, claim: StagedClaim) -> tuple[Staging, Staged]:
        """The staging table at the claimed place, whole and made durable, and what a vote promises of it.

        Raises:
            Refused: The place holds no finished staging of this transaction, or a damaged one.
            NotApplied: The store does not answer.
        """
        self._require_own_place(attempt, claim.place)
        files = self._where.files
        relative = self._where.relative(claim.place)
        staging = checks.require_own(read_staging(files, relative), attempt, self._app(attempt), claim.place)
        staging = checks.require_files(files, staging)
        checks.require_sound_actions(staging)
        checks.require_rows(staging)
        self._require_dates_of_today(staging)
        files.sync([*staging.log_files, *(f"{staging.place}/{file.path}" for file in staging.files)])
        return staging, staged_of(claim, staging)

    def rows(self, attempt: SinkAttempt, staged: Staged) -> Iterator[pa.RecordBatch]:
        """The rows that the sink voted for, in a fixed order: by the number of Spark's task, then as it wrote them.

        The batches have a bounded size, however many and however large the rows are.

        Raises:
            RowsGone: The rows are gone or damaged; before the first row if a file is missing or has another size.
            Corrupt: Other rows are there.
        """
        yield from self.batches(self.promised(attempt, staged))

    def batches(self, staging: Staging) -> Iterator[pa.RecordBatch]:
        """The rows of a staging table that ``promised`` or ``checked`` has returned, as ``rows`` yields them.

        Does not read the log again.

        Raises:
            RowsGone: A file has vanished since, or is damaged.
        """
        maps, fields = maps_columns(staging.shape.properties), staging.shape.schema["fields"]
        for file in sorted(staging.files, key=lambda file: _written(file.path)):
            stored = self._batches(f"{staging.place}/{file.path}")
            yield from (own_names.named(batch, fields) for batch in stored) if maps else stored

    def _batches(self, path: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        try:
            with self._where.files.open(path) as opened:
                yield from parquet_batches.batches(opened)
        except (pa.ArrowException, OSError) as error:
            raise self._rows_gone(path, f"is damaged: {error}.") from error
        except NotApplied as error:
            if not self._where.files.missing([path]):
                raise
            raise self._rows_gone(path, "is gone.") from error

    def _rows_gone(self, path: str, why: str) -> RowsGone:
        return RowsGone(
            f"The staged file {path} {why} Its rows were promised to {self.target}. Nothing was committed.",
            code=codes.PROMISED_ROWS_GONE,
            sink=self.sink,
        )

    def _require_dates_of_today(self, staging: Staging) -> None:
        """Require that pyarrow reads every staged date and instant as Spark wrote it."""
        if not _OF_TIME.search(json.dumps(staging.shape.schema)):
            return
        for file in staging.files:
            with (
                self._where.files.open(f"{staging.place}/{file.path}") as opened,
                parquet_batches.reader(opened) as parquet,
            ):
                columns = misread(parquet.metadata)
            if columns:
                raise Refused(
                    f"Spark staged {', '.join(columns)} in the Julian calendar, which was in use before 1582. The "
                    f"commit would write other dates to {self.target}.",
                    code=codes.STAGED_CALENDAR,
                    sink=self.sink,
                )

    def promised(self, attempt: SinkAttempt, staged: Staged) -> Staging:
        """The staging table that the decision names: one replay of its log. Raises as ``rows`` does."""
        self._require_own_place(attempt, staged.place)
        return require_promised(self._where, staging_left(self._where, staged), staged, attempt.txn, self.sink)

    def has_leftovers(self, attempt: SinkAttempt, place: str) -> bool:
        """Whether anything is left at a try's place."""
        self._require_own_place(attempt, place)
        return bool(self._where.files.names(self._where.relative(place)))

    def discard(self, attempt: SinkAttempt, place: str) -> None:
        """Delete a try's place. Idempotent.

        Raises:
            Refused: The place, or the folder that it is in, belongs to another owner.
        """
        if self.has_leftovers(attempt, place):
            owner.require_owner(self._where.files, self._folder(attempt), attempt, self.sink)
            self._where.files.delete(self._where.relative(place))
        owner.leave(self._where.files, self._folder(attempt), attempt)

    # -- where ---------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> TableLocation:
        return TableLocation(self.target, self.root, self.options, self.conn_id)

    def _app(self, attempt: SinkAttempt) -> str:
        return App.of(attempt.txn.pipeline, self.sink).epoch

    def _folder(self, attempt: SinkAttempt) -> str:
        return f"{attempt.ledger_id}.{self.sink}"

    def _require_own_place(self, attempt: SinkAttempt, place: str) -> None:
        txn = attempt.txn
        stem, _, try_id = place.rpartition("-")
        if stem != f"{self.root}/{self._folder(attempt)}/{txn.epoch}-{txn.attempt}" or not try_id.isalnum():
            raise Refused(
                f"{place!r} is not a staging place of sink {self.sink!r} in {self.root}.",
                code=codes.STAGING_PLACE,
                remedy="Set `staging` of the sink back to the folder that it had when the epoch was opened. Change it "
                "after the epoch is complete.",
                **attempt_fields(txn),
                sink=self.sink,
            )
