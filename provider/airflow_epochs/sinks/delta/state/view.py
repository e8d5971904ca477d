"""A state table as of a complete epoch, for readers: SQL for their engine, or the rows themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.delta.table import TableLocation, store_failed, unreachable
from airflow_epochs.errors import Refused, first_line
from airflow_epochs.sinks.delta.state import sql
from airflow_epochs.sinks.delta.state.columns import columns_of
from airflow_epochs.sinks.delta.state.pinning import expired_to
from airflow_epochs.sinks.delta.state.sql import DATAFUSION, DUCKDB, SPARK, StateQuery
from airflow_epochs.spark.driver.delta.plans import EPOCH
from airflow_epochs.transforms.changes import DELETED

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from deltalake import DeltaTable

    from airflow_epochs.model import CompleteRecord, JsonDict, Receipt

_LOG = "log"


@dataclass(frozen=True, kw_only=True)
class ReadableState:
    """A state table as of a complete epoch: one row per key.

    Attributes:
        name: The state's name in its pipeline.
        table: The path or URL of the state table.
        version: The Delta version that shows the epoch.
        epoch: The epoch. If the state was removed from the pipeline: the last one that it took part in.
        columns: The columns of the state.
        keys: The columns that identify a row.
        expires: The column up to which a row is state; None if rows never expire.
        hidden_to: Rows whose ``expires`` is at or before this instant are no longer state: microseconds since 1970
            (UTC). None: no row has expired.
        files, bytes: What the version consists of, with the rows that are no longer state.
        options: The ``object_store`` options of the table's store, with credentials.
    """

    name: str
    table: str
    version: int
    epoch: int
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    expires: str | None
    hidden_to: int | None
    files: int
    bytes: int
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def sql_duckdb(self) -> str:
        """A SELECT of the state for DuckDB with its extension ``delta``."""
        return self._query.select(DUCKDB, sql.duckdb_log(self.table, self.version))

    def sql_spark(self) -> str:
        """A SELECT of the state for Spark with Delta."""
        return self._query.select(SPARK, sql.spark_log(self.table, self.version))

    def view_duckdb(self) -> str:
        """A statement that makes a view of the state, under its name, in DuckDB."""
        return f"CREATE OR REPLACE VIEW {DUCKDB.name(self.name)} AS\n{self.sql_duckdb()};"

    def view_spark(self) -> str:
        """A statement that makes a view of the state, under its name, in a Spark session."""
        return f"CREATE OR REPLACE TEMPORARY VIEW {SPARK.name(self.name)} AS\n{self.sql_spark()};"

    def to_arrow(self) -> pyarrow.Table:
        """The rows, with the types of the Delta table. deltalake reads them; all of them are in memory then.

        Raises:
            Refused: The version cannot be read any more.
        """
        import pyarrow

        with _readable(self.table, self.version):
            table = _table(self.location, self.version)
            kinds = pyarrow.schema(table.schema().to_arrow())
            found = _asked(table, self._select_by_us(table))
        return found.cast(pyarrow.schema([kinds.field(name) for name in self.columns]))

    def to_pandas(self) -> pandas.DataFrame:
        """``to_arrow`` as a DataFrame. pandas must be installed."""
        return self.to_arrow().to_pandas()

    def count(self) -> tuple[int, int | None]:
        """The number of keys, and the instant at which the next of them expires (microseconds), if one ever does."""
        soonest = f"min({DATAFUSION.name(self.expires)})" if self.expires else "NULL"
        with _readable(self.table, self.version):
            table = _table(self.location, self.version)
            sql = f"SELECT count(*) AS found, {soonest} AS soonest FROM ({self._select_by_us(table)}) AS state"
            [row] = _asked(table, sql).to_pylist()
        return row["found"], _micros(row["soonest"])

    @property
    def location(self) -> TableLocation:
        """Where the table is."""
        return TableLocation(self.table, self.table, self.options)

    def _select_by_us(self, table: DeltaTable) -> str:
        """A SELECT of the state for deltalake's own engine."""
        kinds = {column.name: str(column.type.to_json()).strip('"') for column in table.schema().fields}
        floating = tuple(key for key in self.keys if kinds[key] in ("float", "double"))
        return replace(self._query, floating=floating).select(DATAFUSION, _LOG)

    @property
    def _query(self) -> StateQuery:
        return StateQuery(columns=self.columns, keys=self.keys, expires=self.expires, hidden_to=self.hidden_to)


def readable(name: str, shown: CompleteRecord, spec: JsonDict, options: dict[str, str]) -> ReadableState:
    """The state ``name`` as of a complete epoch.

    Args:
        name: The state, which took part in the epoch.
        shown: The epoch.
        spec: What a record says of the state: ``StateTable.spec``.
        options: The ``object_store`` options of the table's store.

    Raises:
        Refused: The version cannot be read any more.
    """
    receipt = shown.receipts[name]
    url = str(receipt.detail["table"])
    location = TableLocation(url, url, options)
    version, files = _opened(location, receipt)
    has = {column.name for column in version.schema().fields}
    if missing := sorted({*spec["keys"], *filter(None, [spec["expires"]]), EPOCH, DELETED} - has):
        raise _gone(location.name, version.version(), f"the table there has no column {', '.join(missing)}")
    return ReadableState(
        name=name,
        table=url,
        version=version.version(),
        epoch=shown.txn_id.epoch,
        columns=tuple(column for column in columns_of(spec["schema"]) if column in has),
        keys=tuple(spec["keys"]),
        expires=spec["expires"],
        hidden_to=expired_to(shown.watermarks, receipt.detail.get("state", {}).get("closed", ())),
        files=len(files),
        bytes=sum(file["size_bytes"] for file in files),
        options=options,
    )


def _opened(location: TableLocation, receipt: Receipt) -> tuple[DeltaTable, list[JsonDict]]:
    """The version that a receipt names, and its files, which are all there."""
    version = receipt.version
    if version is None:
        raise _gone(location.name, None, "the table's log did not have it when the ledger asked")
    with _readable(location.name, version):
        table = _table(location, version)
        files = table.get_add_actions(flatten=True).to_struct_array().to_pylist()
    if table.metadata().id != receipt.detail.get("table_id", table.metadata().id):
        raise _gone(location.name, version, "another table has taken the place of the pipeline's")
    missing = sorted(location.files.missing(file["path"] for file in files if ":/" not in file["path"]))
    if missing:
        raise _gone(location.name, version, f"{len(missing)} of its files are gone, for example {missing[0]}")
    return table, files


def _table(location: TableLocation, version: int) -> DeltaTable:
    from deltalake import DeltaTable

    return DeltaTable(location.url, version=version, storage_options=location.options or None)


def _asked(table: DeltaTable, sql: str) -> pyarrow.Table:
    """What deltalake's own engine answers. ``sql`` calls the table ``log``."""
    import pyarrow
    from deltalake import QueryBuilder

    return pyarrow.table(QueryBuilder().register(_LOG, table).execute(sql))


@contextmanager
def _readable(table: str, version: int) -> Iterator[None]:
    """Turn deltalake's error for a version that it cannot read into the provider's own."""
    from deltalake.exceptions import DeltaError
    from pyarrow import ArrowException

    try:
        yield
    except (DeltaError, ArrowException, OSError) as error:
        if "non utf-8 data" in str(error).lower():
            raise _not_utf8(table, version, first_line(error)) from error
        broken = isinstance(error, DeltaError) and not store_failed(error)
        if broken or "not found" in str(error).lower():
            raise _gone(table, version, first_line(error)) from error
        raise unreachable(table, error) from error


def _not_utf8(table: str, version: int, why: str) -> Refused:
    return Refused(
        f"Version {version} of the state table {table} has a text that is not UTF-8, and only Spark reads that: {why}.",
        code=codes.STATE_TEXT_UNREADABLE,
    )


def _gone(table: str, version: int | None, why: str) -> Refused:
    which = "The version" if version is None else f"Version {version}"
    return Refused(f"{which} of the state table {table} cannot be read any more: {why}.", code=codes.STATE_EPOCH_GONE)


def _micros(at: Any) -> int | None:
    from airflow_epochs.event_time import micros

    return None if at is None else micros(at)
