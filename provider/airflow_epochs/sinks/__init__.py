"""Sinks. ``from_spec`` rebuilds one from what the ledger says about it."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from airflow_epochs import secrecy
from airflow_epochs.errors import Refused

if TYPE_CHECKING:
    from airflow_epochs.model import JsonDict
    from airflow_epochs.sinks.base import Sink

log = secrecy.logger(__name__)

_KINDS = {
    "delta": "airflow_epochs.sinks.delta:DeltaSink",
    "kafka": "airflow_epochs.sinks.kafka:KafkaSink",
    "memory": "airflow_epochs.testing:MemorySink",
    "sql": "airflow_epochs.sinks.sql:SqlSink",
}
"""``kind`` of a specification: where its class is. Modules are imported only when a sink of the kind is built.

Any other kind with a colon is such a place itself, of a sink that is not one of ours: ``my_package.sinks:FolderSink``.
"""


def from_spec(spec: JsonDict) -> Sink:
    """The sink that ``spec`` describes; the inverse of ``Sink.spec``.

    What a newer version has added to the specification of one of our kinds, in the same format, is left out.

    Raises:
        Refused: This version does not know the kind, or it cannot be imported here.
    """
    kind: str = spec["kind"]
    module, colon, name = _KINDS.get(kind, kind).partition(":")
    if not colon:
        raise Refused(
            f"This version knows no sink of kind {kind!r}, only {', '.join(sorted(_KINDS))}.",
            remedy="upgrade airflow-provider-epochs to at least the version that wrote the ledger.",
        )
    found = _class(module, name)
    sink: Sink = found.from_spec(_understood(found, spec) if kind in _KINDS else spec)
    return sink


def _understood(sink: Any, spec: JsonDict) -> JsonDict:
    known = {"kind", *signature(sink).parameters, *getattr(sink, "recorded", ())}
    if unknown := sorted(spec.keys() - known):
        log.warning("sink %s: a newer version has written %s, which this one ignores", spec["name"], ", ".join(unknown))
    return {key: value for key, value in spec.items() if key in known}


def _class(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Refused(
            f"The sink class {module}:{name}, of which the ledger says that it takes part, is not there: {error}",
            remedy="install or put back the module that has it on every worker, until its last epoch is complete.",
        ) from error
