"""The schemas by which an epoch's input is decoded: asked for by ``open``, facts of the epoch from then on.

A later attempt uses the schemas of the first one, whatever the registry says by then. Only if the DAG names another
registry or other subjects, the registry is asked again: an aborted attempt has shown no rows.
"""

from __future__ import annotations

from airflow_epochs import codes
from airflow_epochs.contracts import WithSchemas
from airflow_epochs.coordinator.recorded_sinks import source_of
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, located
from airflow_epochs.model import JsonDict, OpenRecord, SchemaRecord, attempt_fields
from airflow_epochs.transforms.registries import NO_REGISTRY, Registry


def asked(task: TaskTry, *, on_record: bool = True) -> str | None:
    """Ask the source's registry, and put its answer on record; the digest. None if the source asks no registry.

    Call it once the input is planned: then the schema of each record is registered. ``on_record``: False for an attempt
    that belongs to no ledger: this task alone knows the answer.
    """
    source = task.pipeline.source
    if not isinstance(source, WithSchemas) or source.registry() is None:
        return None
    with located(task.pipeline.name):
        found = SchemaRecord(schemas=source.schemas(task.env))
    keep = task.ledger.put_schemas if on_record else task.ledger.hold_schemas
    return keep(found).digest


def again(task: TaskTry, last: OpenRecord, *, on_record: bool = True) -> str | None:
    """The digest for the attempt after ``last``, which has the same input. ``on_record``: as for ``asked``."""
    source = task.pipeline.source
    same = _registry(source_of(last, source)) == _registry(source)
    return last.schemas if last.schemas and same else asked(task, on_record=on_record)


def _registry(source: object) -> JsonDict | None:
    return source.registry() if isinstance(source, WithSchemas) else None


def read(task: TaskTry, opened: OpenRecord) -> Registry:
    """What the attempt's parsers know, under the name that the registry has in today's DAG.

    Raises:
        Corrupt: The record is lost.
    """
    if opened.schemas is None:
        return NO_REGISTRY
    record = task.ledger.schemas(opened.schemas)
    if record is None:
        raise Corrupt(
            f"The ledger has lost the file {task.pipeline.name}/schemas/{opened.schemas}.json: the schemas that the "
            "epoch is decoded with.",
            code=codes.SCHEMAS_LOST,
            **attempt_fields(opened.txn_id),
        )
    named = _registry(task.pipeline.source) or opened.source
    return Registry(conn_id=named.get("registry_conn_id") or "", schemas=record.schemas)
