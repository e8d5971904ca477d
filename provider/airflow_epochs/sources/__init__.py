"""Sources. ``from_spec`` rebuilds one from its specification in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import Refused

if TYPE_CHECKING:
    from airflow_epochs.contracts import Movable
    from airflow_epochs.model import JsonDict


def from_spec(spec: JsonDict, conn_id: str | None = None) -> Movable:
    """The source that ``spec`` describes, perhaps with another connection. The inverse of ``Source.spec``.

    Raises:
        Refused: It is of a kind that no command can move.
    """
    # Imported late: a DAG file imports one kind of source, and this package with it.
    from airflow_epochs.sources.delta import source as delta
    from airflow_epochs.sources.kafka import source as kafka

    if spec.get("kind") == kafka.KIND:
        return kafka.KafkaSource.from_spec({**spec, **({"conn_id": conn_id} if conn_id else {})})
    if spec.get("kind") == delta.KIND:
        return delta.DeltaSource.from_spec({**spec, **({"storage_conn_id": conn_id} if conn_id else {})})
    raise Refused(
        f"The source of the pipeline is of kind {spec.get('kind')!r}. Its position cannot be moved.",
        code=codes.SOURCE_NOT_MOVABLE,
    )
