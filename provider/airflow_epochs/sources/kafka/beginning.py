"""Where a new pipeline begins that takes over from another reader: at offsets per partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_epochs import codes
from airflow_epochs.contracts import TOPIC_IDS, Environment, Move, Position
from airflow_epochs.errors import Refused
from airflow_epochs.kafka.connection import read_connection
from airflow_epochs.model import OffsetRange, Ranges
from airflow_epochs.sources.kafka.brokers import Brokers
from airflow_epochs.sources.kafka.config import DEFAULTS, read_config
from airflow_epochs.sources.kafka.logs import ClusterLog, Offsets, offsets_at_ends
from airflow_epochs.sources.kafka.plan import TimeIndex, misplaced, require_topics, started
from airflow_epochs.sources.kafka.source import KafkaSource
from airflow_epochs.sources.kafka.starting import AtTime, Starting


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """Where a new pipeline begins.

    Attributes:
        move: The position, and what is there to be read.
        without: Per topic, the partitions that the other reader has no offset of.
        unread: What the other reader read and the pipeline does not, from these offsets on.
    """

    move: Move
    without: Mapping[str, list[int]]
    unread: Offsets


def brokers_of(source: KafkaSource, env: Environment) -> Brokers:
    """A client of the source's cluster. Raises Refused if its connection cannot be used."""
    return Brokers(read_connection(env.connection(source.conn_id)))


def topics_of(source: KafkaSource) -> tuple[str, ...]:
    """The topics that the source reads."""
    return read_config(source.spec()).topics


def begin_at(source: KafkaSource, offsets: Offsets, otherwise: Starting, env: Environment) -> Beginning:
    """Begin at ``offsets``; partitions that they do not name begin as ``otherwise`` says. Reads only.

    If ``offsets`` does not name a topic of the source, this topic begins as the source's ``starting`` says.

    Raises:
        Refused: ``offsets`` has no topic of the source, or an offset that the brokers do not have.
    """
    topics = [topic for topic in topics_of(source) if topic in offsets]
    unread = {topic: of for topic, of in offsets.items() if topic not in topics}
    if not topics:
        raise Refused(
            f"The other reader has read {', '.join(sorted(unread)) or 'no topic'}, and the pipeline reads "
            f"{', '.join(topics_of(source))}. Nothing was changed.",
            code=codes.TOPIC_UNKNOWN,
            remedy="Name the folder or the group of the reader that the pipeline takes over from. If this is it, write "
            "its topics into `topics` in the DAG.",
        )
    with brokers_of(source, env) as brokers:
        cluster = brokers.look(topics)
        require_topics(topics, cluster)
        index = _index(brokers, cluster, otherwise)
    named = {topic: offsets[topic] for topic in topics}
    without = {t: sorted(cluster.topics[t].partitions.keys() - of.keys()) for t, of in named.items()}
    return Beginning(move=begun(named, otherwise, cluster, index), without=without, unread=unread)


def going_on(source: KafkaSource, position: Position, env: Environment) -> tuple[Offsets, Offsets]:
    """Where the next epoch would begin in the topics of the position that are read. Reads only.

    Returns:
        The offsets of the position, and the offsets of partitions that no epoch has read yet.

    Raises:
        Corrupt: The next epoch could not begin there: records are gone.
    """
    known = {topic: of for topic, of in offsets_at_ends(position.ranges).items() if topic in topics_of(source) and of}
    new: dict[str, dict[int, int]] = {}
    if known:
        for each in replace(source, topics=[*known], starting=DEFAULTS["starting"]).unread(position, env):
            if each.partition not in known[each.topic]:
                new.setdefault(each.topic, {})[each.partition] = each.start
    return known, new


def _index(brokers: Brokers, cluster: ClusterLog, otherwise: Starting) -> TimeIndex:
    if not isinstance(otherwise, AtTime):
        return {}
    return brokers.offsets_at(otherwise.ms, cluster.ends())


def begun(offsets: Offsets, otherwise: Starting, cluster: ClusterLog, index: TimeIndex) -> Move:
    """The position at ``offsets``, without facts of the records before them, which the pipeline has not read. No I/O.

    Raises Refused: The brokers do not have one of the offsets.
    """
    ranges: Ranges = {}
    for topic, of in sorted(offsets.items()):
        log = cluster.topics[topic]
        if wrong := misplaced(topic, of, log):
            raise _unreadable(wrong)
        starts = {r.partition: r.start for r in started(topic, log, otherwise, index)} | dict(of)
        ranges[topic] = tuple(
            OffsetRange(p, start, max(start, log.partitions[p].end)) for p, start in sorted(starts.items())
        )
    ids = {topic: cluster.topics[topic].topic_id for topic in ranges if cluster.topics[topic].topic_id}
    state = {"cluster_id": cluster.cluster_id, TOPIC_IDS: ids, "tails": {}}
    empty = {topic: tuple(r._replace(end=r.start) for r in of) for topic, of in ranges.items()}
    return Move(position=Position(ranges=empty, state=state), ahead=ranges)


def _unreadable(wrong: str) -> Refused:
    return Refused(
        f"The pipeline would begin at {wrong}. Nothing was changed.",
        code=codes.OFFSETS_UNUSABLE,
        remedy="Compare the two. If the offset is before them, retention has deleted records that the other reader had "
        "not read: they are lost, and `starting` in the DAG says where the pipeline begins without this command. If it "
        "is behind them, a transaction may be open: let it end, and type the command again. If the topic was created "
        "again, the offset means nothing.",
    )
