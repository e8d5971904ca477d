"""A transaction of the sink's own that hangs: no coordinator knows it, so no broker ends it (KIP-664).

It is in partitions of the rows' topic, and in the sink's partition of the marker topic. Ended in one of them, it still
hides in the others all that is committed behind it. The sink knows its own rows by their header, whatever the
producer was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import NotApplied
from airflow_epochs.kafka.open_transactions import OpenTransaction, Partition
from airflow_epochs.sinks.kafka.cluster import Cluster, TopicFacts
from airflow_epochs.sinks.kafka.rows import HEADER

log = secrecy.logger(__name__)

At = tuple[Partition, OpenTransaction]


class Own(NamedTuple):
    """Whose transaction it is.

    Attributes:
        key: ``<pipeline>/<sink>``, with which the header of each row begins.
        owner: The transactional id.
        committed: Per partition, the range of offsets in which the epoch of the newest marker has its rows.
    """

    key: str
    owner: str
    committed: Mapping[str, Sequence[int]]


def require_none(cluster: Cluster, rows: TopicFacts, own: Own) -> None:
    """Check that no transaction of the sink's own hangs in the rows' topic. Brokers may not tell: that is no error.

    Call it after the transactional id was taken over: a transaction that its coordinator knows has ended by then.

    Raises:
        NotApplied: There is one.
    """
    held = cluster.held_back(rows)
    if not held:
        return
    found = cluster.open_transactions(rows.name, held, own.owner)
    hanging = [(at, each) for at, of in sorted(found.items()) for each in of if each.hangs]
    if ours := [(at, each) for at, each in hanging if _is_own(cluster, at, each, own.key)]:
        raise _hides(ours, own, rows.servers)


def _is_own(cluster: Cluster, at: Partition, transaction: OpenTransaction, key: str) -> bool:
    record = cluster.record_at(*at, transaction.begin)
    headers = dict(record.headers() or ()) if record else {}
    return (headers.get(HEADER) or b"").startswith(f"{key}/".encode())


def _hides(ours: Sequence[At], own: Own, servers: Sequence[str]) -> NotApplied:
    places = "; ".join(f"{each} is still open in {_named(at)}" for at, each in ours)
    what = f"Readers of committed records do not see what the sink commits: {places}."
    committed = [(at, each) for at, each in ours if _is_committed(at, each, own.committed)]
    remedy = _how_to_commit(committed) if committed else how_to_end(ours, servers)
    return NotApplied(what, code=codes.TRANSACTION_OPEN, remedy=remedy)


def _named(at: Partition) -> str:
    topic, partition = at
    return f"{topic}[{partition}]"


def _is_committed(at: Partition, transaction: OpenTransaction, committed: Mapping[str, Sequence[int]]) -> bool:
    start, end = committed.get(str(at[1]), (0, 0))
    return start <= transaction.begin < end


def _how_to_commit(hanging: Sequence[At]) -> str:
    places = "; ".join(
        f"{_named(at)}, producer id {each.producer_id}, producer epoch {each.producer_epoch}, coordinator epoch "
        f"{each.coordinator_epoch}"
        for at, each in hanging
    )
    return (
        "Do not abort this transaction: the marker of its epoch is committed, so the rows would be lost. Commit it as "
        f"docs/kafka-sink.md shows in 'A transaction that hangs': {places}. Clear the failed task."
    )


def elsewhere(cluster: Cluster, topic: str, hanging: OpenTransaction, owner: str | None) -> list[At] | None:
    """Where the same producer's transaction hangs in the rows' topic; None if the brokers do not tell."""
    try:
        facts = cluster.topic(topic)
        held = cluster.held_back(facts) if facts else []
    except NotApplied as error:
        log.info("the brokers do not tell where else the transaction is open: %s", error)
        return None
    found = cluster.open_transactions(topic, held, owner) if held else {}
    if held and not found:
        return None
    everything = [(at, each) for at, of in sorted(found.items()) for each in of if each.hangs]
    return [(at, each) for at, each in everything if each.producer_id == hanging.producer_id]


def how_to_end(hanging: Sequence[At], servers: Sequence[str], untold: str | None = None) -> str:
    """The remedy: a command for each partition. ``untold``: a topic of which the brokers do not tell."""
    commands = ", ".join(f"`{each.abort_command(at, servers)}`" for at, each in hanging)
    where = "" if len(hanging) == 1 else ", in each of its partitions"
    also = (
        f" The brokers do not tell whether it is open in topic {untold}, too: look there, as docs/kafka-sink.md shows "
        "in 'A transaction that hangs'."
        if untold
        else ""
    )
    return (
        "Let Airflow retry the task, or clear the failed task later. If the error comes for longer than the "
        "brokers' transaction.max.timeout.ms (15 minutes by default), the transaction hangs: no coordinator knows "
        "it, so no broker ends it. If brokers lost records of __transaction_state, first read docs/kafka-sink.md, "
        "'A transaction that hangs': some rows may be committed, and would be sent again. "
        f"End it then{where}: {commands}.{also} Clear the failed task."
    )
