"""What some sinks show of an epoch and where its rows come from, as the ledger's records say it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from airflow_epochs import secrecy
from airflow_epochs.contracts import Dataset, Traceable, TraceableSource
from airflow_epochs.coordinator.recorded_sinks import source_of
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.model import Checkpoint, OffsetRange, OpenRecord, Receipt, TransactionId


@dataclass(frozen=True, kw_only=True)
class LineageInput:
    """The offsets of a topic that some sink's rows come from."""

    dataset: Dataset
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, kw_only=True)
class LineageOutput:
    """What a sink shows of an epoch."""

    dataset: Dataset
    receipt: Receipt


@dataclass(frozen=True, kw_only=True)
class Noted:
    """What some sinks show of an epoch, as the ledger says.

    Attributes:
        without: The sinks among them that show nothing of it: waived ones, and new ones that begin with a later epoch.
    """

    txn: TransactionId
    read: tuple[LineageInput, ...]
    written: tuple[LineageOutput, ...]
    without: tuple[str, ...]


def noted(task: TaskTry, done: Checkpoint, sinks: Collection[str]) -> Iterator[Noted]:
    """What the sinks show of the epoch; nothing if its open record was pruned, which says where it is."""
    opened = task.ledger.open_record(done.epoch, done.attempt)
    if opened is None:
        return
    shown = [done.receipts[sink] for sink in sorted(sinks) if sink in done.receipts and sink in opened.sinks]
    yield Noted(
        txn=opened.txn_id,
        read=tuple(_read(task, opened, [receipt.sink for receipt in shown])),
        written=tuple(_written(task, opened, receipt) for receipt in shown),
        without=tuple(sorted({*sinks} - {receipt.sink for receipt in shown})),
    )


def _read(task: TaskTry, opened: OpenRecord, sinks: Collection[str]) -> Iterator[LineageInput]:
    """The input of these sinks. A topic is left out if no offset of it was read."""
    source = source_of(opened, task.pipeline.source)
    if not isinstance(source, TraceableSource):
        return
    ranges: dict[str, list[OffsetRange]] = defaultdict(list)
    for sink in sinks:
        for topic, of_topic in opened.ranges_of(sink).items():
            ranges[topic] += of_topic
    for topic, found in sorted(ranges.items()):
        if any(each.start < each.end for each in found):
            yield LineageInput(dataset=_scrubbed(source.dataset_of(topic, task.env)), ranges=tuple(found))


def _written(task: TaskTry, opened: OpenRecord, receipt: Receipt) -> LineageOutput:
    sink = task.sink_of(opened, receipt.sink)
    if isinstance(sink, Traceable):
        dataset = sink.dataset(receipt, task.env)
    else:
        dataset = Dataset.at(sink.asset_uri(opened.txn_id.pipeline))
    return LineageOutput(dataset=_scrubbed(dataset), receipt=receipt)


def _scrubbed(dataset: Dataset) -> Dataset:
    return dataset._replace(namespace=secrecy.scrubbed(dataset.namespace), name=secrecy.scrubbed(dataset.name))
