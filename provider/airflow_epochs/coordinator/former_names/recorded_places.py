"""Whether a sink on record writes to the place of a sink of today."""

from __future__ import annotations

from collections.abc import Collection

from airflow_epochs import secrecy
from airflow_epochs.contracts import Sink
from airflow_epochs.errors import RAISED_BY_USERS
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks import from_spec

log = secrecy.logger(__name__)


def is_at(sink: Sink, spec: JsonDict, today: Collection[Sink]) -> bool:
    """Whether a recorded sink writes to the place of ``sink``. False if its kind is not installed any more."""
    try:
        return from_spec(spec, today).destination() == sink.destination()
    except RAISED_BY_USERS as error:  # a sink of the user's own, or a damaged record, may raise anything
        log.warning("A sink on record cannot be compared with sink %s of today: %r", sink.name, error)
        return False


def is_surely_at(sink: Sink, spec: JsonDict, today: Collection[Sink]) -> bool:
    """As ``is_at``, of a recorded sink of the same kind: so the two are alike but for their options."""
    return spec["kind"] == sink.spec()["kind"] and sink.destination() is not None and is_at(sink, spec, today)


def is_at_through(sink: Sink, spec: JsonDict, today: Collection[Sink]) -> bool:
    """As ``is_at``, if the recorded sink had the connections of ``sink``: several may lead to one server."""
    own = sink.spec()
    return is_at(sink, {**spec, **{name: own[name] for name in spec.keys() & own if name.endswith("conn_id")}}, today)
