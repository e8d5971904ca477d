"""What the ledger says of sinks, and how far it is believed.

Whoever can add a file to the ledger can write a record. No record has code imported that neither this installation nor
today's DAG names, none lets a sink pass for another, and none leads to a place that its attempt cannot have made.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from airflow_epochs.environment import Environment
from airflow_epochs.errors import Corrupt, EpochError
from airflow_epochs.layout import attempt_key
from airflow_epochs.model import OpenRecord
from airflow_epochs.sinks import from_spec
from airflow_epochs.sinks.base import Recognising, Sink, SinkAttempt

_NONCE = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


def sink_of(opened: OpenRecord, name: str, today: Collection[Sink]) -> Sink:
    """The sink ``name`` of an attempt, as its record describes it: the one place where a record becomes a sink.

    ``today``: the sinks of the DAG, whose classes may be used whatever is registered.

    Raises:
        Refused: Its kind is not registered here, and no sink of the DAG has it.
        Corrupt: The record describes no sink, or another one.
    """
    try:
        sink = from_spec(opened.sinks[name].spec, today)
        if sink.name == name:
            return sink
        why = f"it is named {sink.name!r} there"
    except EpochError as error:
        error.pipeline, error.epoch, error.attempt = opened.txn.pipeline, opened.txn.epoch, opened.txn.attempt
        error.sink = name
        raise
    except Exception as error:  # a sink of the user's own may raise anything
        why = repr(error)
    raise untrusted(opened, attempt_key(opened.txn.epoch, opened.txn.attempt, "open"), name, why)


def is_own_place(sink: Sink, attempt: SinkAttempt, place: str, env: Environment) -> bool:
    """Whether ``place`` is what the sink makes for some try of this attempt; nothing is read there before."""
    if isinstance(sink, Recognising):
        return sink.is_own_place(attempt, place, env)
    return any(place == sink.place(attempt, nonce, env) for nonce in _NONCE.findall(place))


def untrusted(opened: OpenRecord, key: str, sink: str, why: str) -> Corrupt:
    """The error for a record of an epoch that says of a sink what cannot be."""
    txn = opened.txn
    return Corrupt(
        f"What the ledger record {txn.pipeline}/{key} says of sink {sink} cannot be trusted: {why}.",
        remedy="find out who wrote that file. Restore it from a backup of the ledger; if an earlier version or another "
        "class of the sink wrote it, finish the epoch with that one. Nothing was read, written or deleted there.",
        pipeline=txn.pipeline,
        epoch=txn.epoch,
        attempt=txn.attempt,
        sink=sink,
    )
