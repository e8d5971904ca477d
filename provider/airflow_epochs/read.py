"""Reads several tables at one complete epoch: a barrier for readers.

While an epoch is being committed, some of its tables show it and others do not yet. Its completion record has the
version of each table that shows it. Tables that are read at these versions agree, whatever is committed meanwhile.

``state`` reads a state table as of any complete epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import Refused, located
from airflow_epochs.model import FORMAT, CompleteRecord, OffsetRange, Ranges

if TYPE_CHECKING:
    from airflow_epochs.ledger.ledger import Ledger
    from airflow_epochs.sinks.delta.state.recorded_states import StateRecords
    from airflow_epochs.sinks.delta.state.view import ReadableState


@dataclass(frozen=True, kw_only=True)
class ReadableSink:
    """What a sink showed when an epoch was complete.

    Attributes:
        table: The path, URL or name of the sink's table; None if the sink writes to no table.
        version: The Delta version to read the table at. None if the sink has no versions, if the table's log no longer
            had this one when the sink was asked, or if `airflow epochs adopt-sink` has taken another table for the sink
            since.
        epoch: The last epoch that the sink showed then; an earlier one if the sink was removed or waived.
        topic: The sink's Kafka topic; None if the sink writes to no topic.
        offsets: Half-open: the offsets that contain the rows of ``epoch``, perhaps mixed with rows of other producers.
            Only partitions that got rows.
    """

    table: str | None
    version: int | None
    epoch: int
    topic: str | None = None
    offsets: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CompleteEpoch:
    """A complete epoch.

    Attributes:
        ranges: The epoch's input: topic -> half-open offset ranges.
        completed_at: ISO 8601, by the clock of the task that completed the epoch.
        sinks: Sink name -> what it showed; every sink that ever took part in the pipeline.
    """

    pipeline: str
    number: int
    ranges: Ranges
    completed_at: str
    sinks: dict[str, ReadableSink]

    def version(self, sink: str) -> int:
        """The Delta version to read the table of ``sink`` at.

        Raises:
            Refused: There is no such sink, or its version is not known.
        """
        found = self.sinks.get(sink)
        if found is None or found.version is None:
            raise Refused(
                f"The epoch has no version of sink {sink!r}. Sinks with a version: "
                f"{', '.join(self._versioned) or 'none'}.",
                code=codes.VERSION_MISSING,
                pipeline=self.pipeline,
                epoch=self.number,
                sink=sink,
            )
        return found.version

    @property
    def _versioned(self) -> list[str]:
        return sorted(name for name, sink in self.sinks.items() if sink.version is not None)


def complete_epoch(
    pipeline: str,
    number: int | None = None,
    *,
    ledger_conn_id: str = "epochs_default",
    ledger_root: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> CompleteEpoch | None:
    """The newest complete epoch of a pipeline, or epoch ``number``; None if it does not exist or is not complete.

    Reads only. Inside Airflow, name the ledger by ``ledger_conn_id``, a connection of type ``epochs``: records are
    checked with its password. Without Airflow, give ``ledger_root``, a path or URL, and ``storage_options``, as the
    ``object_store`` crate names them: such a reader has no key, so it believes every record.

    Raises:
        Corrupt: A record is damaged or not believed.
        OutcomeUnknown: The ledger does not answer.
    """
    ledger = _ledger(pipeline, ledger_conn_id, ledger_root, storage_options)
    newest = ledger.complete_record(ledger.newest_complete())
    record = newest if number is None else ledger.complete_record(number)
    return _readable(ledger, pipeline, record, newest or record) if record else None


def state(
    pipeline: str,
    name: str,
    epoch: int | None = None,
    *,
    ledger_conn_id: str = "epochs_default",
    ledger_root: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ReadableState:
    """The state table ``name`` of a pipeline as of the newest complete epoch, or as of epoch ``epoch``.

    Reads only, and needs no Spark. The ledger is found as by ``complete_epoch``.

    Args:
        pipeline: The pipeline's name.
        name: The name of the ``StateTable``.
        epoch: A complete epoch; None: the newest one.
        ledger_conn_id: The ledger's connection, inside Airflow.
        ledger_root: The ledger's path or URL, without Airflow.
        storage_options: As the ``object_store`` crate names them. With ``ledger_root``: for the ledger's store and
            the table's. Inside Airflow: for the table's store; if None, the connection of the ``StateTable`` is used.

    Raises:
        Refused: There is no such state or no such epoch, or its version cannot be read any more.
        Corrupt: A record is damaged or not believed.
        NotApplied: The table's store does not answer.
        OutcomeUnknown: The ledger does not answer.
    """
    from airflow_epochs.sinks.delta.state import recorded_states, view

    ledger = _ledger(pipeline, ledger_conn_id, ledger_root, storage_options)
    with located(pipeline, epoch, sink=name):
        found = recorded_states.find(ledger, name, epoch)
        options = dict(storage_options or {})
        if ledger_root is None and storage_options is None:
            options = options_of(found)
        return view.readable(name, found.shown, found.spec, options)


def options_of(records: StateRecords) -> dict[str, str]:
    """The ``object_store`` options of a state table, from the Airflow connection that its record names.

    Raises:
        Refused: The record is not signed. Whoever forged it could have chosen the connection.
    """
    from airflow_epochs.hooks.epochs import connection
    from airflow_epochs.storage.options import storage_options

    conn_id = records.spec.get("storage_conn_id")
    if conn_id is None:
        return {}
    if records.opened.format != FORMAT:
        raise Refused(
            f"A ledger record that is not signed says that the state table uses connection {conn_id!r}. Nothing was "
            "read.",
            code=codes.RECORD_CONNECTION_FOREIGN,
            remedy="Set a key that signs the ledger's records (docs/operations.md, 'The signing key'). Or name the "
            "store yourself: `storage_options` of read.state, `--storage-conn-id` of `airflow epochs state`.",
        )
    return storage_options(connection(conn_id))


def _ledger(pipeline: str, conn_id: str, root: str | None, options: Mapping[str, str] | None) -> Ledger:
    if root is None:
        from airflow_epochs.hooks.epochs import EpochsHook

        return EpochsHook(conn_id).ledger(pipeline)
    from airflow_epochs.ledger.ledger import Ledger
    from airflow_epochs.ledger.store import open_store

    return Ledger(open_store(root, dict(options or {})), pipeline, checked=False)


def _readable(ledger: Ledger, pipeline: str, record: CompleteRecord, newest: CompleteRecord) -> CompleteEpoch:
    return CompleteEpoch(
        pipeline=pipeline,
        number=record.txn_id.epoch,
        ranges=record.ranges,
        completed_at=record.completed_at,
        sinks={name: _sink(ledger, record, name, newest.adopted_in.get(name, 0)) for name in sorted(record.markers)},
    )


def _sink(ledger: Ledger, record: CompleteRecord, name: str, adopted_in: int) -> ReadableSink:
    epoch = record.markers[name].epoch
    shown = record if epoch == record.txn_id.epoch else ledger.complete_record(epoch)
    receipt = shown.receipts.get(name) if shown else None
    detail = receipt.detail if receipt else {}
    return ReadableSink(
        table=detail.get("table"),
        version=receipt.version if receipt and epoch >= adopted_in else None,
        epoch=epoch,
        topic=detail.get("topic"),
        offsets=tuple(sorted(OffsetRange(int(number), *ends) for number, ends in detail.get("offsets", {}).items())),
    )
