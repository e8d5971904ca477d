"""Sinks. ``from_spec`` rebuilds one from what the ledger says about it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from airflow_epochs.errors import Refused

if TYPE_CHECKING:
    from airflow_epochs.model import JsonDict
    from airflow_epochs.sinks.base import Sink

_KINDS = {
    "delta": "airflow_epochs.sinks.delta:DeltaSink",
    "kafka": "airflow_epochs.sinks.kafka:KafkaSink",
    "memory": "airflow_epochs.testing:MemorySink",
}
"""``kind`` of a specification: where its class is. Modules are imported only when a sink of the kind is built."""


def from_spec(spec: JsonDict) -> Sink:
    """The sink that ``spec`` describes; the inverse of ``Sink.spec``.

    Raises:
        Refused: This version does not know the kind.
    """
    where = _KINDS.get(spec["kind"])
    if where is None:
        raise Refused(
            f"This version knows no sink of kind {spec['kind']!r}, only {', '.join(sorted(_KINDS))}.",
            remedy="upgrade airflow-provider-epochs to at least the version that wrote the ledger.",
        )
    module, _, name = where.partition(":")
    sink: Sink = getattr(import_module(module), name).from_spec(spec)
    return sink
