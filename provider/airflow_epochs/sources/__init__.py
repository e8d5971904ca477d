"""Sources. ``from_spec`` rebuilds one from its specification, ``on_record`` from that in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import RAISED_BY_USERS, EpochError, Refused, without_code

if TYPE_CHECKING:
    from airflow_epochs.contracts import Movable
    from airflow_epochs.model import JsonDict


def on_record(spec: JsonDict, conn_id: str | None = None) -> Movable:
    """The source that the ledger describes, perhaps with another connection.

    Raises:
        Refused: As ``from_spec``. Or this version cannot make it: a newer one described it, or the record is damaged.
        Exception: The source does not take the other connection.
    """
    try:
        described = from_spec(spec)
    except EpochError:
        raise
    except RAISED_BY_USERS as error:  # a damaged record may raise anything
        raise Refused(
            f"The ledger describes a source that this version of the provider cannot make: {without_code(error)}",
            code=codes.LEDGER_TOO_NEW,
            remedy=f"{codes.LEDGER_TOO_NEW.remedy} If no newer version wrote it, restore its file from a backup.",
        ) from error
    return from_spec(spec, conn_id) if conn_id else described


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
