"""A transaction of the sink's own that hangs: no coordinator knows it, so no broker ends it (KIP-664).

It is in partitions of the rows' topic, and in the sink's partition of the marker topic. Ended in one of them, it still
hides in the others all that is committed behind it. The sink knows its own rows by their header, whatever the
producer was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import NotApplied
from airflow_epochs.kafka.open_transactions import OpenTransaction, Partition
from airflow_epochs.sinks.kafka.cluster import Cluster, TopicFacts
from airflow_epochs.sinks.kafka.rows import HEADER

if TYPE_CHECKING:
    from confluent_kafka import Message

log = secrecy.logger(__name__)

At = tuple[Partition, OpenTransaction]


class Own(NamedTuple):
    """What tells the sink's own transactions from others.

    Attributes:
        key: ``<pipeline>/<sink>``, with which the header of each row begins.
        owner: The transactional id.
        epoch: The epoch of the newest marker; 0 without a marker.
        committed: Per partition, the range of offsets in which that epoch has its rows.
    """

    key: str
    owner: str
    epoch: int
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
    headers = _first_headers(cluster, rows.name, hanging)
    if ours := {each: header for each, header in headers.items() if header.startswith(f"{own.key}/")}:
        raise _hides(cluster, ours, own, rows.servers)


def _first_headers(cluster: Cluster, topic: str, hanging: Sequence[At]) -> dict[At, str]:
    """The header of the first record of each transaction, as far as the brokers give it.

    All partitions are read at once: hundreds may have transactions of other programs that this user may not describe.
    """
    headers: dict[At, str] = {}
    while left := [each for each in hanging if each not in headers]:
        asked = {partition: ((name, partition), each) for (name, partition), each in left}  # one per partition
        ranges = {partition: (each.begin, each.begin + 1) for partition, (_, each) in asked.items()}
        told = {message.partition(): _header(message) for message in cluster.uncommitted(topic, ranges)}
        headers |= {each: told.get(partition, "") for partition, each in asked.items()}
    return headers


def _header(message: Message) -> str:
    return (dict(message.headers() or ()).get(HEADER) or b"").decode(errors="replace")


def _hides(cluster: Cluster, ours: Mapping[At, str], own: Own, servers: Sequence[str]) -> NotApplied:
    places = "; ".join(
        f"{each} is still open in {_named(at)}, with rows of epoch {header.removeprefix(own.key).split('/')[1]}"
        for (at, each), header in ours.items()
    )
    what = f"Readers of committed records do not see what the sink commits: {places}."
    committed = [each for each, header in ours.items() if _is_committed(cluster, each, header, own)]
    remedy = _how_to_commit(committed) if committed else how_to_end([*ours], servers)
    return NotApplied(what, code=codes.TRANSACTION_OPEN, remedy=remedy)


def _named(at: Partition) -> str:
    topic, partition = at
    return f"{topic}[{partition}]"


def _is_committed(cluster: Cluster, hanging: At, header: str, own: Own) -> bool:
    """Whether the newest marker promises its rows: its first row is of that epoch, and is nowhere else in its range.

    The offset alone does not tell. A late copy of a row may lie in the range, and a partition that has lost records
    gives their offsets to later epochs.
    """
    (topic, partition), transaction = hanging
    start, end = own.committed.get(str(partition), (0, 0))
    if not start <= transaction.begin < end or not header.startswith(f"{own.key}/{own.epoch}/"):
        return False
    found = (each for each in cluster.uncommitted(topic, {partition: (start, end)}) if _header(each) == header)
    return len([*islice(found, 2)]) < 2


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
    """The partitions of the rows' topic in which the same transaction hangs; None if the brokers do not tell."""
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
    """The remedy: a command for each partition. ``untold``: a topic whose transactions the brokers do not tell."""
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
