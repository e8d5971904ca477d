"""Makes sinks and sources from ledger records, and limits what a forged record can do.

Anybody who can add a file to the ledger can write a record. So no record can
    - import code that neither this installation nor today's DAG names;
    - make one sink pass for another;
    - name a staging place that its attempt cannot have made.
An unsigned record, besides, can use only connections that today's DAG uses.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from airflow_epochs import codes
from airflow_epochs.contracts import Environment, Recognising, Sink, SinkAttempt, Source
from airflow_epochs.errors import RAISED_BY_USERS, Corrupt, EpochError, Refused
from airflow_epochs.ledger.keys import attempt_key
from airflow_epochs.model import FORMAT, JsonDict, OpenRecord, TryRecord, attempt_fields
from airflow_epochs.sinks import from_spec
from airflow_epochs.sources import on_record

_TRY_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


def sink_of(opened: OpenRecord, name: str, today: Collection[Sink]) -> Sink:
    """The sink ``name`` of an attempt, as its open record describes it. No other code makes a sink from a record.

    ``today``: the sinks of the DAG. Their classes may be used even if they are not registered.

    Raises:
        Refused: The sink's kind is not registered here, and no sink of the DAG has it; or the record is unsigned and
            uses a connection that no sink of the DAG uses.
        Corrupt: The record describes no sink, or a sink with another name.
    """
    try:
        _require_named_connections(opened, name, today)
        sink = from_spec(opened.sinks[name].spec, today)
        if sink.name == name:
            return sink
        why = f"the record gives it the name {sink.name!r}"
    except EpochError as error:
        error.pipeline, error.epoch, error.attempt = opened.txn_id.pipeline, opened.txn_id.epoch, opened.txn_id.attempt
        error.sink = name
        raise
    except RAISED_BY_USERS as error:  # a sink of the user's own may raise anything
        why = repr(error)
    raise untrusted(opened, attempt_key(opened.txn_id.epoch, opened.txn_id.attempt, "open"), name, why)


def built(spec: JsonDict) -> Sink | None:
    """The sink that ``spec`` describes; None if only the DAG has its class."""
    try:
        return from_spec(spec)
    except Refused as error:
        if error.code is not codes.SINK_KIND_UNKNOWN:
            raise
        return None


def source_of(opened: OpenRecord, today: Source) -> object:
    """The source that an attempt reads, as its open record describes it.

    It is ``today`` if the record is unsigned and names another connection, or if the source is of the user's own kind.
    """
    if opened.format == FORMAT or {*connections_in(opened.source)} <= {*connections_in(today.spec())}:
        try:
            return on_record(opened.source)
        except Refused as error:
            if error.code is not codes.SOURCE_NOT_MOVABLE:
                raise
    return today


def _require_named_connections(opened: OpenRecord, name: str, today: Collection[Sink]) -> None:
    if opened.format == FORMAT:
        return
    named = {conn_id for sink in today for conn_id in connections_in(sink.spec())}
    others = sorted(set(connections_in(opened.sinks[name].spec)) - named)
    if others:
        key = attempt_key(opened.txn_id.epoch, opened.txn_id.attempt, "open")
        raise Refused(
            f"In the ledger record {opened.txn_id.pipeline}/{key}, which is not signed, the sink uses connection "
            f"{', '.join(map(repr, others))}, which no sink of the DAG uses. Nothing was read or written.",
            code=codes.RECORD_CONNECTION_FOREIGN,
            remedy="Undo the change of the DAG until the epoch is complete, if you removed the sink or gave it another "
            "connection. If you did neither, somebody forged the record: restore it from a backup of the ledger. "
            "Signed records may use other connections: see SECURITY.md.",
        )


def connections_in(spec: object, name: str = "") -> Iterator[str]:
    """The ids of Airflow connections in a specification: the values of all fields whose names end in ``conn_id``."""
    if isinstance(spec, dict):
        for key, value in spec.items():
            yield from connections_in(value, str(key))
    elif isinstance(spec, list | tuple):
        for value in spec:
            yield from connections_in(value, name)
    elif spec is not None and name.endswith("conn_id"):
        yield str(spec)


def may_stop(earlier: TryRecord, today: JsonDict) -> bool:
    """Whether the Spark session of an earlier try may be stopped. ``today``: the identity of a session of today's DAG.

    An unsigned record may name only the connection of today's DAG.
    """
    return earlier.format == FORMAT or earlier.session.get("conn_id") == today.get("conn_id")


def is_own_place(sink: Sink, attempt: SinkAttempt, place: str, env: Environment) -> bool:
    """Whether the sink could make ``place`` for a try of this attempt. Reads nothing at ``place``."""
    if isinstance(sink, Recognising):
        return sink.is_own_place(attempt, place, env)
    return any(place == sink.place(attempt, try_id, env) for try_id in _TRY_ID.findall(place))


def untrusted(opened: OpenRecord, key: str, sink: str, why: str) -> Corrupt:
    """The error for a record under ``key`` that says something impossible about a sink. ``why`` is a clause."""
    txn = opened.txn_id
    return Corrupt(
        f"The provider does not trust what the ledger record {txn.pipeline}/{key} says about sink {sink}: {why}. "
        "Nothing was read, written or deleted there.",
        code=codes.RECORD_SINK_UNTRUSTED,
        **attempt_fields(txn),
        sink=sink,
    )
