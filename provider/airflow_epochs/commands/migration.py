"""``airflow epochs adopt-checkpoint``, ``adopt-group``, ``export-checkpoint``, ``export-group``: to move in, and out.

A new pipeline takes over where another reader of its topics has ended; another reader goes on where a pipeline has
ended. Each command prints what will be read, what may come twice and what may be missing, and asks.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from airflow.cli.cli_config import ARG_YES, ActionCommand, Arg

from airflow_epochs import codes
from airflow_epochs.commands.asking import CONN, PIPELINE, WHY, account_of, confirm, ledger_of, tells_refusals
from airflow_epochs.commands.orders import environment, wrong_options
from airflow_epochs.commands.printing import answer_alone
from airflow_epochs.contracts import Move
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.orders import adopting, orders
from airflow_epochs.coordinator.orders.wording import partitions, shown
from airflow_epochs.delta.table import CannotOpen, TableLocation, open_table
from airflow_epochs.errors import NotApplied, OutcomeUnknown, Refused, located
from airflow_epochs.hooks.audit import caller, logged
from airflow_epochs.hooks.epochs import connection
from airflow_epochs.model import JsonDict, OffsetRange, Ranges
from airflow_epochs.model.command import ADOPT_CHECKPOINT, ADOPT_GROUP
from airflow_epochs.operators import definitions
from airflow_epochs.operators.definitions import RenderedPipeline
from airflow_epochs.sources import on_record
from airflow_epochs.sources.kafka.beginning import Beginning, begin_at, brokers_of, going_on, topics_of
from airflow_epochs.sources.kafka.brokers import Brokers
from airflow_epochs.sources.kafka.checkpoint import StreamCheckpoint, read_checkpoint, require_empty, write_checkpoint
from airflow_epochs.sources.kafka.group_requests import in_transaction
from airflow_epochs.sources.kafka.logs import Offsets, Partition
from airflow_epochs.sources.kafka.source import KIND as KAFKA
from airflow_epochs.sources.kafka.source import KafkaSource
from airflow_epochs.sources.kafka.starting import AtOffsets, Earliest, Starting, parse_starting
from airflow_epochs.storage.files import Files, open_files
from airflow_epochs.storage.options import storage_options

_PATH = Arg(("path",), help="The checkpoint folder: a path, or a URL such as s3://bucket/checkpoint")
_STORAGE = Arg(("--storage-conn-id",), help="Connection with the login of the folder's object store")
_TABLE = Arg(
    ("--sink-table",),
    metavar="TABLE",
    help="The Delta table that the query writes, a path or a URL in the same store: its log names the newest batch",
)
_GROUP = Arg(("--group",), required=True, help="The consumer group")
_OF_A_DAG = (
    Arg(("--dag-id",), help="The pipeline's DAG; needed only if several DAGs have a pipeline of this name"),
    WHY,
    ARG_YES,
    Arg(("--ledger-conn-id",), help="Connection of type epochs, instead of the one that the DAG names"),
)
_NEXT = "The first run obeys. Unpause the DAG, or start a run."
_NEXT_INTERVAL = "The first run of a data interval obeys. Unpause the DAG, or create a backfill of it."


def migration_commands() -> list[ActionCommand]:
    """The commands of this module."""
    return [*_moving_in(), *_moving_out()]


def _moving_in() -> list[ActionCommand]:
    return [
        ActionCommand(
            name=ADOPT_CHECKPOINT,
            help="Let a new pipeline begin where a query of Spark Structured Streaming ended",
            func=adopt_checkpoint,
            args=(PIPELINE, _PATH, _STORAGE, _TABLE, *_OF_A_DAG),
        ),
        ActionCommand(
            name=ADOPT_GROUP,
            help="Let a new pipeline begin at the committed offsets of a consumer group, also of a Flink job",
            func=adopt_group,
            args=(
                PIPELINE,
                _GROUP,
                Arg(
                    ("--starting",),
                    help="Where to begin in partitions without a committed offset: earliest, latest, or a time",
                ),
                *_OF_A_DAG,
            ),
        ),
    ]


def _moving_out() -> list[ActionCommand]:
    return [
        ActionCommand(
            name="export-checkpoint",
            help="Write a checkpoint folder from which a query of Spark Structured Streaming goes on",
            func=export_checkpoint,
            args=(PIPELINE, _PATH, _STORAGE, WHY, ARG_YES, CONN),
        ),
        ActionCommand(
            name="export-group",
            help="Commit the pipeline's position as the offsets of a consumer group",
            func=export_group,
            args=(PIPELINE, _GROUP, WHY, ARG_YES, CONN),
        ),
    ]


# -- in -----------------------------------------------------------------------------------------------------------


@tells_refusals
def adopt_checkpoint(args: Namespace) -> None:
    """``airflow epochs adopt-checkpoint``: begin where a Spark query ended, after a look at its folder and a yes."""
    by, files, place = account_of(args), _files(args), _place(args)
    with answer_alone():
        found = definitions.find(args.pipeline, args.dag_id, args.ledger_conn_id)
    source = _kafka(found)
    attempt = adopting.require_new(found.task())
    with located(args.pipeline):
        checkpoint = _read(args, files, place)
        beginning = begin_at(source, checkpoint.offsets, Earliest(), environment())
    newest = f"the newest one that {args.sink_table} has" if args.sink_table else "the newest one that is committed"
    confirm(
        args,
        f"Pipeline {args.pipeline} will begin where the Spark query of {place} ended: with batch {checkpoint.batch}, "
        f"{newest}.",
        *_begins(beginning, source),
        *_partitions_without(beginning, "its oldest record, as in Spark"),
        *_planned(checkpoint, known=bool(args.sink_table)),
        *_unseen(known=bool(args.sink_table)),
        *_state_stays(checkpoint, place),
        "  Stop the query for good before you say yes: what it reads from now on comes twice.",
        f"Will be recorded: {caller()}, because: {by.why}",
    )
    if _read(args, files, place) != checkpoint:
        raise _moved_on(f"The checkpoint {place}")
    _adopt(found, attempt, ADOPT_CHECKPOINT, by, beginning.move)


def _read(args: Namespace, files: Files, place: str) -> StreamCheckpoint:
    """The checkpoint; with --sink-table, up to the newest batch that the table has."""
    checkpoint = read_checkpoint(files, place)
    if not args.sink_table:
        return checkpoint
    return read_checkpoint(files, place, _newest_batch_in(args, checkpoint.query))


def _newest_batch_in(args: Namespace, query: str | None) -> int:
    """The newest batch of the query in the table: Spark's Delta sink commits each batch under the query's id."""
    try:
        table = open_table(TableLocation(args.sink_table, _absolute(args.sink_table), _storage(args)))
    except CannotOpen as error:
        raise Refused(f"{args.sink_table}: {error}. Nothing was changed.", code=codes.SINK_TABLE_UNKNOWN) from error
    batch: int | None = table.transaction_version(query) if table and query else None
    if batch is None:
        raise Refused(
            f"{args.sink_table} is no Delta table that has a batch of the query {query}. Nothing was changed.",
            code=codes.SINK_TABLE_UNKNOWN,
        )
    return batch


def _planned(checkpoint: StreamCheckpoint, *, known: bool) -> list[str]:
    again = checkpoint.uncommitted
    if checkpoint.planned == checkpoint.batch:
        return ["  The query has planned no batch after it: the pipeline reads no record of its batches."]
    if not again:
        return [f"  Batch {checkpoint.planned} is planned but not committed, and reads nothing."]
    if known:
        return [f"  The table does not have batch {checkpoint.planned}, so the pipeline reads it: {shown(again)}."]
    batches = (
        f"Batch {checkpoint.planned} is"
        if checkpoint.planned == checkpoint.batch + 1
        else f"Batches {checkpoint.batch + 1} to {checkpoint.planned} are"
    )
    return [
        f"  {batches} planned but not committed: the pipeline reads it again, {shown(again)}.",
        "  Rows of these offsets come twice if the query's sink took some of them before it stopped. If it writes a "
        "Delta table, answer no and add --sink-table TABLE: the table knows. Otherwise let the query finish first: it "
        "runs the same offsets again.",
    ]


def _unseen(*, known: bool) -> Iterator[str]:
    """Warnings about what folder and table do not show: rows may come twice, or be missing.

    ``known``: whether a table shows if the folder is an older copy.
    """
    yield "  The command cannot see these; look yourself before you say yes:"
    if not known:
        yield "    if the folder is an older copy, rows of the batches since then come twice;"
    yield "    if the sink was taken back (a backup, RESTORE, DELETE), rows of the batches that it lost are missing;"
    yield "    if a topic was deleted and created again since, the offsets stand for other records: some are missing."


def _state_stays(checkpoint: StreamCheckpoint, place: str) -> list[str]:
    if not checkpoint.has_state:
        return []
    return [
        f"  The query has state, in {place}/state. It is not taken over: windows, joins and duplicates that are open "
        "there begin anew, and their results lack the records before these offsets."
    ]


@tells_refusals
def adopt_group(args: Namespace) -> None:
    """``airflow epochs adopt-group``: begin at a group's committed offsets, after a look at the group and a yes."""
    by, otherwise = account_of(args), _otherwise(args.starting)
    with answer_alone():
        found = definitions.find(args.pipeline, args.dag_id, args.ledger_conn_id)
    source, attempt = _kafka(found), adopting.require_new(found.task())
    with located(args.pipeline):
        offsets = _offsets_of_group(source, args.group)
        _require_any(args.group, offsets, source)
        named = {topic: offsets.get(topic, {}) for topic in {*offsets, *topics_of(source)}}
        beginning = begin_at(source, named, otherwise or Earliest(), environment())
        if otherwise is None:
            _require_all(args.group, beginning)
    confirm(
        args,
        f"Pipeline {args.pipeline} will begin where the consumer group {args.group} has committed.",
        *_begins(beginning, source),
        *_partitions_without(beginning, f"{args.starting}, as --starting says"),
        "  Records that the group's consumers have worked on after their last commit come twice.",
        "  The group has no members now. A Flink job is never a member: stop it with a savepoint before you say yes. "
        "It commits with its checkpoints, so what it wrote since the last one comes twice.",
        f"Will be recorded: {caller()}, because: {by.why}",
    )
    with located(args.pipeline):
        if _offsets_of_group(source, args.group) != offsets:
            raise _moved_on(f"The consumer group {args.group}")
    _adopt(found, attempt, ADOPT_GROUP, by, beginning.move)


def _otherwise(starting: str | None) -> Starting | None:
    parsed = parse_starting(starting) if starting is not None else None
    if isinstance(parsed, AtOffsets):
        raise wrong_options("Give earliest, latest or a time to --starting.")
    return parsed


def _offsets_of_group(source: KafkaSource, group: str) -> Offsets:
    """What the group has committed. Raises Refused if it has members."""
    with brokers_of(source, environment()) as brokers:
        _require_no_members(group, brokers.members(group))
        return _committed(brokers, group, topics_of(source))


def _committed(brokers: Brokers, group: str, topics: Sequence[str]) -> Offsets:
    try:
        return _by_topic(brokers.group(group, brokers.partitions(topics)))
    except NotApplied as error:
        if not in_transaction(error):
            raise
        raise Refused(
            f"A transaction has offsets of the consumer group {group}, and is not ended yet. Nothing was changed.",
            code=codes.GROUP_ACTIVE,
            remedy="Stop the program that commits the group's offsets in its transactions. If it has crashed, wait "
            "until Kafka has ended its transaction (transaction.timeout.ms). Then type the command again.",
        ) from error


def _by_topic(committed: dict[Partition, tuple[int, str]]) -> Offsets:
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), (at, _) in sorted(committed.items()):
        found.setdefault(topic, {})[partition] = at
    return found


def _require_no_members(group: str, members: list[str]) -> None:
    if members:
        raise Refused(
            f"The consumer group {group} has members: {', '.join(members[:20])}. Nothing was changed.",
            code=codes.GROUP_ACTIVE,
        )


def _require_any(group: str, offsets: Offsets, source: KafkaSource) -> None:
    """With ``--starting`` too: a name that is spelled wrong must not begin a pipeline."""
    if not offsets.keys() & set(topics_of(source)):
        of = f"only of {', '.join(sorted(offsets))}" if offsets else "none at all"
        raise Refused(
            f"The consumer group {group} has no committed offset of {', '.join(topics_of(source))}: {of}. Nothing was "
            "changed.",
            code=codes.GROUP_OFFSETS_MISSING,
            remedy="Check the group's name, the source's connection, and `topics` in the DAG. To begin without the "
            "group, set `starting` in the DAG, and type no command.",
        )


def _require_all(group: str, beginning: Beginning) -> None:
    without = [f"{topic}[{p}]" for topic, of in beginning.without.items() for p in of]
    if without:
        more = f" and {len(without) - 20} more" if len(without) > 20 else ""
        raise Refused(
            f"The consumer group {group} has no committed offset of {', '.join(without[:20])}{more}. Nothing was "
            "changed.",
            code=codes.GROUP_OFFSETS_MISSING,
        )


def _begins(beginning: Beginning, source: KafkaSource) -> Iterator[str]:
    yield f"  begins at: {partitions(beginning.move.position.ranges)}"
    yield f"  there to be read now: {shown(beginning.move.ahead)}"
    if other := [topic for topic in topics_of(source) if topic not in beginning.move.ahead]:
        yield f"  not read before: {', '.join(other)}. There, `starting` of the DAG says where the pipeline begins."
    if beginning.unread:
        yield (
            f"  read by nobody from now on, since the DAG does not name these topics: "
            f"{partitions(_as_ranges(beginning.unread))}"
        )


def _partitions_without(beginning: Beginning, where: str) -> list[str]:
    without = [f"{topic}[{p}]" for topic, of in beginning.without.items() for p in of]
    return [f"  has no offset there, and begins at {where}: {', '.join(without)}"] if without else []


def _as_ranges(offsets: Offsets) -> Ranges:
    return {topic: tuple(OffsetRange(p, at, at) for p, at in sorted(of.items())) for topic, of in offsets.items()}


def _kafka(found: RenderedPipeline) -> KafkaSource:
    """The source of the DAG. Raises Refused if it is not Kafka."""
    return _of_kafka(found.pipeline.source.spec())


def _of_kafka(spec: JsonDict) -> KafkaSource:
    if spec.get("kind") != KAFKA:
        raise Refused(
            f"The source of the pipeline is of kind {spec.get('kind')!r}. The command is about the offsets of topics, "
            "for pipelines that read from Kafka only. Nothing was changed.",
            code=codes.SOURCE_NOT_MOVABLE,
        )
    source = on_record(spec)
    assert isinstance(source, KafkaSource), "its kind says so"
    return source


def _adopt(found: RenderedPipeline, attempt: int, name: str, by: Account, move: Move) -> None:
    with logged(name, dag_id=found.pipeline.dag_id, by=caller()):
        adopting.adopt(found.task(), attempt, name, by, move)
    print(_NEXT_INTERVAL if _kafka(found).by_interval() else _NEXT)


def _moved_on(what: str) -> Refused:
    return Refused(
        f"{what} has moved on while this command waited for a confirmation. Nothing was changed.",
        code=codes.OTHER_READER_WORKS,
    )


# -- out ----------------------------------------------------------------------------------------------------------


@tells_refusals
def export_checkpoint(args: Namespace) -> None:
    """``airflow epochs export-checkpoint``: write a folder from which a Spark query goes on, after a yes."""
    by, files, place = account_of(args), _files(args), _place(args)
    at = _standing(args)
    require_empty(files, place)
    confirm(
        args,
        *_ends(args, at),
        f"A query with `checkpointLocation` {place} goes on there. It must read these topics with one Kafka source, "
        "and have no state (no windows, joins or dropDuplicates). Its options startingOffsets and startingTimestamp "
        "have no effect. To skip records of aborted transactions, as the pipeline does, it needs the option "
        "kafka.isolation.level=read_committed.",
        f"To be written: {place}/offsets/0, commits/0, metadata",
        *_leaves(args, by),
    )
    _require_same(args, at)
    with logged("export-checkpoint", dag_id=at.dag_id, by=caller()):
        write_checkpoint(files, place, at.offsets)
    print(f"{place} is a checkpoint whose batch 0 is committed. The query begins with batch 1.")


@tells_refusals
def export_group(args: Namespace) -> None:
    """``airflow epochs export-group``: commit where the pipeline ends to a group that has no offsets, after a yes."""
    by = account_of(args)
    at = _standing(args)
    with located(args.pipeline):
        _require_unused(at.source, args.group, at.offsets)
    confirm(
        args,
        *_ends(args, at),
        *_begins_anew(at.new),
        f"Consumers of the group {args.group} go on there, and so does a Flink job that starts from committed offsets.",
        *_leaves(args, by),
    )
    _require_same(args, at)
    with logged("export-group", dag_id=at.dag_id, by=caller()):
        _commit(at.source, args.group, {topic: {**at.new.get(topic, {}), **of} for topic, of in at.offsets.items()})
    print(f"The consumer group {args.group} has these offsets.")


def _begins_anew(new: Offsets) -> list[str]:
    """A consumer would begin in these partitions where its own ``auto.offset.reset`` says, perhaps at their end."""
    return [f"  no epoch has read these partitions yet: {partitions(_as_ranges(new))}"] if new else []


@dataclass(frozen=True, kw_only=True)
class _Standing:
    """The DAG of the newest epoch, its source, and where the next epoch begins, in the topics that are read today.

    ``new``: in partitions that no epoch has read yet.
    """

    dag_id: str
    source: KafkaSource
    offsets: Offsets
    new: Offsets


def _standing(args: Namespace) -> _Standing:
    """Raises Corrupt if the next epoch could not be read from there. Other readers would miss records unseen."""
    at = orders.standing(ledger_of(args), args.pipeline)
    source = _of_kafka(at.newest.source)
    with located(args.pipeline):
        offsets, new = going_on(source, at.position(source), environment())
        if at.is_aborted:
            source.again(at.newest.ranges, at.newest.source_state, environment())
    return _Standing(dag_id=at.newest.dag_id, source=source, offsets=offsets, new=new)


def _ends(args: Namespace, at: _Standing) -> Iterator[str]:
    yield f"The next epoch of pipeline {args.pipeline} would begin at: {partitions(_as_ranges(at.offsets))}"
    if unread := sorted(set(topics_of(at.source)) - at.offsets.keys()):
        yield f"  no epoch has read these topics yet, so they are not exported: {', '.join(unread)}"


def _leaves(args: Namespace, by: Account) -> Iterable[str]:
    return (
        f"Nothing changes in pipeline {args.pipeline}. Pause its DAG before you say yes, and leave it paused: what "
        "both read comes twice.",
        f"Recorded in Airflow's audit log: {caller()}, because: {by.why}",
    )


def _require_same(args: Namespace, at: _Standing) -> None:
    if _standing(args).offsets != at.offsets:
        raise _moved_on(f"The pipeline {args.pipeline}")


def _require_unused(source: KafkaSource, group: str, offsets: Offsets) -> None:
    with brokers_of(source, environment()) as brokers:
        _require_no_members(group, brokers.members(group))
        taken = sorted(_committed(brokers, group, [*offsets]).keys() & offsets.keys())
    if taken:
        raise Refused(
            f"The consumer group {group} has committed offsets of {', '.join(taken)}. Nothing was changed.",
            code=codes.EXPORT_OCCUPIED,
        )


def _commit(source: KafkaSource, group: str, offsets: Offsets) -> None:
    with brokers_of(source, environment()) as brokers:
        if failed := brokers.rejected(group, offsets, ""):
            more = f" and {len(failed) - 20} more" if len(failed) > 20 else ""
            raise OutcomeUnknown(
                f"Kafka has not taken these offsets of the consumer group {group}: {', '.join(failed[:20])}{more}. It "
                "may have taken the others.",
                code=codes.EXPORT_INCOMPLETE,
            )


# -- folders ------------------------------------------------------------------------------------------------------


def _place(args: Namespace) -> str:
    return _absolute(args.path)


def _absolute(place: str) -> str:
    """A place as it was typed; a path becomes absolute."""
    return place if urlsplit(place).scheme else os.path.abspath(place)


def _files(args: Namespace) -> Files:
    return open_files(_place(args), _storage(args))


def _storage(args: Namespace) -> dict[str, str]:
    chosen = args.storage_conn_id
    return storage_options(connection(chosen) if chosen else None)
