"""What a task has noted of its epochs, in OpenLineage's form. docs/lineage.md has an example."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_epochs.contracts import Dataset
from airflow_epochs.model import JsonDict, OffsetRange, Receipt
from airflow_epochs.operators.lineage_facts import LineageInput, Noted

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import BaseFacet

    Facet = TypeVar("Facet", bound=BaseFacet)

PACKAGE = "airflow-provider-epochs"
SCHEMA = f"urn:{PACKAGE}:facets:1"
"""The name of docs/lineage/facets.json. It is no address: the project has none."""


def reported(noted: Collection[Noted]) -> OperatorLineage[Any, Any]:
    """What was noted, in OpenLineage's form: one dataset for each topic and table, whatever the number of epochs."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.facet_v2 import RunFacet

    if not noted:
        return OperatorLineage()
    epochs = [{"epoch": each.txn.epoch, "transactionId": str(each.txn), "without": [*each.without]} for each in noted]
    pipeline = next(iter(noted)).txn.pipeline
    return OperatorLineage(
        inputs=list(_inputs(noted)),
        outputs=list(_outputs(noted)),
        run_facets={"epochs_run": _facet(RunFacet, "EpochsRunFacet", pipeline=pipeline, epochs=epochs)},
    )


def _inputs(noted: Iterable[Noted]) -> Iterator[InputDataset]:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import InputDatasetFacet

    reads: dict[Dataset, list[tuple[int, LineageInput]]] = defaultdict(list)
    for each in noted:
        for read in each.read:
            reads[read.dataset].append((each.txn.epoch, read))
    for dataset, of in reads.items():
        epochs, ranges = [epoch for epoch, _ in of], united(r for _, read in of for r in read.ranges)
        facet = _facet(
            InputDatasetFacet,
            "EpochsRangesInputDatasetFacet",
            firstEpoch=min(epochs),
            lastEpoch=max(epochs),
            ranges=[each._asdict() for each in ranges],
        )
        newest = max(each.end for each in ranges) - 1 if dataset.versioned else None
        yield InputDataset(
            dataset.namespace, dataset.name, facets=_version(newest), inputFacets={"epochs_ranges": facet}
        )


def _outputs(noted: Iterable[Noted]) -> Iterator[OutputDataset]:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import OutputDatasetFacet, output_statistics_output_dataset

    receipts: dict[Dataset, list[Receipt]] = defaultdict(list)
    for each in noted:
        for written in each.written:
            receipts[written.dataset].append(written.receipt)
    for dataset, of in receipts.items():
        commits = [_commit(receipt) for receipt in of]
        facet = _facet(OutputDatasetFacet, "EpochsCommitsOutputDatasetFacet", sink=of[-1].sink, commits=commits)
        rows = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=sum(receipt.rows for receipt in of), producer=_producer()
        )
        yield OutputDataset(
            dataset.namespace,
            dataset.name,
            facets=_version(of[-1].version),
            outputFacets={"outputStatistics": rows, "epochs_commits": facet},
        )


def _commit(receipt: Receipt) -> JsonDict:
    return {
        "epoch": receipt.txn_id.epoch,
        "transactionId": str(receipt.txn_id),
        "rows": receipt.rows,
        "version": receipt.version,
        "committedAt": receipt.committed_at,
    }


def _version(version: int | None) -> dict[str, Any]:
    from openlineage.client.facet_v2 import dataset_version_dataset

    if version is None:
        return {}
    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(str(version), producer=_producer())}


def _facet(kind: type[Facet], name: str, **told: object) -> Facet:
    """A facet of this package with these fields, and the name of its schema."""
    facet: Any = kind(producer=_producer()).with_additional_properties(**told)
    facet._schemaURL = f"{SCHEMA}#/$defs/{name}"
    made: Facet = facet
    return made


def _producer() -> str:
    return f"pkg:pypi/{PACKAGE}@{version(PACKAGE)}"


def united(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The same offsets, in as few ranges as possible, ascending. Ranges of no offset are left out."""
    found: list[OffsetRange] = []
    for each in sorted(ranges):
        last = found[-1] if found else None
        if last and last.partition == each.partition and each.start <= last.end:
            found[-1] = last._replace(end=max(last.end, each.end))
        elif each.start < each.end:
            found.append(each)
    return found
