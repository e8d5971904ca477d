"""A state table's log and the ledger beside it, as epochs leave them; written with deltalake, without Spark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from airflow_epochs.delta.log import actions_of, entry_of, remove_of
from airflow_epochs.event_time import micros
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.signing import NO_KEYS, Keys
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import JsonDict, OpenRecord, SinkPlan, StatePin, Watermarks
from airflow_epochs.sinks.delta.state.table import StateTable
from tests.support.records import complete, open_record, receipt, txn

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
LOG = pa.schema(
    [
        ("page", pa.string()),
        ("until", pa.timestamp("us", tz="UTC")),
        ("n", pa.int64()),
        ("__epoch", pa.int64()),
        ("__deleted", pa.bool_()),
    ]
)
SCHEMA = "page string, until timestamp, n bigint"
DELETED = True
Change = tuple[Any, ...]
"""Page, second at which it expires (None: never), n, and DELETED if it is."""


def at(second: float) -> datetime:
    """An instant, by the seconds since START."""
    return START + timedelta(seconds=second)


def mark(second: float | None) -> int | None:
    """The same as a watermark."""
    return None if second is None else micros(START) + round(second * 1_000_000)


@dataclass
class WrittenState:
    """State ``open`` of pipeline ``p``, with the key ``page``, which expires at ``until``."""

    folder: Path
    name: str = "open"
    expires: str | None = "until"
    spec: dict[str, Any] = field(default_factory=dict)
    """What the record says of the state besides, or instead."""
    keys: Keys = NO_KEYS
    """They sign the records."""
    url: str | None = None
    """Of the table; None: in the folder."""
    options: dict[str, str] | None = None
    """Of the table's store."""
    metrics: JsonDict = field(default_factory=dict)
    """Of the next epoch."""
    epochs: int = 0

    @property
    def table(self) -> Path:
        """Where the table is on the local disk."""
        return self.folder / "the table's place"

    @property
    def place(self) -> str:
        return self.url or str(self.table)

    def delta(self) -> DeltaTable:
        return DeltaTable(self.place, storage_options=self.options)

    @property
    def root(self) -> str:
        return str(self.folder / "ledger")

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalStore(Path(self.root)), "p", self.keys)

    def epoch(
        self,
        *changes: Change,
        watermarks: tuple[float | None, ...] = (),
        fold: bool = False,
        closed: float | None = None,
    ) -> int:
        """One more complete epoch with these changes; a fold takes the place of all rows. Its number."""
        self.epochs += 1
        mode: Literal["overwrite", "append"] = "overwrite" if fold else "append"
        write_deltalake(self.place, self._rows(changes), mode=mode, storage_options=self.options)
        self._record(len(changes), tuple(map(mark, watermarks)), fold, mark(closed))
        return self.epochs

    def drop_file_of(self, version: int) -> None:
        """Let the commit of the newest version also remove the file that the epoch before it added."""
        log = self.table / "_delta_log"
        [add] = [a["add"] for a in actions_of((log / f"{version - 1:020}.json").read_bytes()) if "add" in a]
        entry = log / f"{version:020}.json"
        entry.write_bytes(entry_of([*actions_of(entry.read_bytes()), {"remove": remove_of(add, 0)}]))

    def epoch_without_the_state(self) -> int:
        """One more complete epoch, of a DAG without the state."""
        self.epochs += 1
        before = self.ledger.complete_record(self.epochs - 1)
        assert before
        self.ledger.put(replace(open_record(self.epochs), sinks={}))
        self.ledger.put(replace(complete(self.epochs), markers=before.markers))
        return self.epochs

    def _rows(self, changes: tuple[Change, ...]) -> pa.Table:
        rows = [
            (page, None if second is None else at(second), n, self.epochs, DELETED in deleted)
            for page, second, n, *deleted in changes
        ]
        return pa.Table.from_pylist([dict(zip(LOG.names, row, strict=True)) for row in rows], schema=LOG)

    def _record(self, rows: int, watermarks: Watermarks, fold: bool, closed: int | None) -> None:
        table = self.delta()
        self.ledger.put(self._opened(StatePin(version=table.version() - 1, fold=fold), watermarks))
        detail: JsonDict = {"table": self.place, "table_id": str(table.metadata().id)}
        if closed is not None:
            detail["state"] = {"closed": [closed]}
        shown = replace(receipt(self.epochs), sink=self.name, rows=rows, version=table.version(), detail=detail)
        self.ledger.put(
            replace(
                complete(self.epochs),
                receipts={self.name: shown},
                markers={self.name: txn(self.epochs)},
                watermarks=watermarks,
                metrics=self.metrics,
            )
        )

    def _opened(self, pin: StatePin, watermarks: Watermarks) -> OpenRecord:
        spec = StateTable(self.name, self.place, schema=SCHEMA, keys=["page"], expires=self.expires).spec()
        identity = self.ledger.identity()
        return replace(
            open_record(self.epochs),
            ledger_id=identity.ledger_id if identity else "l",
            sinks={self.name: SinkPlan(spec=spec | self.spec, previous=None)},
            watermarks=watermarks,
            state={self.name: pin},
        )
