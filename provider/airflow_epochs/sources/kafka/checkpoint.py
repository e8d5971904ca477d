"""Checkpoint folders of Spark Structured Streaming queries with one Kafka source: read, and written.

A query writes ``offsets/N`` before it runs batch N, and ``commits/N`` after the sink has taken the batch. So the newest
batch of ``commits`` says how far the query is. A batch that is in ``offsets`` alone may be in the sink, in part or as a
whole: Spark would run it again.

Both are text files. ``offsets/N``: ``v1``, a line of settings, and a line for each source, which is ``-`` if the source
had nothing yet. A Kafka source's line is JSON: topic -> partition -> the first offset that is not read. In ``v2``, for
which Spark 4.2 can be set, the source's name and a colon come before it.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.model import OffsetRange, Ranges
from airflow_epochs.sources.kafka.logs import Offsets
from airflow_epochs.storage.files import Files

OFFSETS, COMMITS, METADATA = "offsets", "commits", "metadata"
WRITTEN_VERSION = "v1"
_NAMED = "v2"
_VERSIONS = {OFFSETS: ("v1", _NAMED), COMMITS: ("v1", "v2", "v3")}
"""All that Spark 4.2 can write. What ``commits`` say from ``v2`` on is about state and sinks."""
OFFSET_MAX = 2**63 - 1
_COMPACTED = re.compile(r"\d+\.(compact|delta|snapshot)")
_SETTINGS = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}, separators=(",", ":"))
_COMMITTED = json.dumps({"nextBatchWatermarkMs": 0}, separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class StreamCheckpoint:
    """How far a query is.

    Attributes:
        query: The query's id, by which Delta tables know it; None if the folder does not say it.
        batch: The newest batch that is committed, or that the sink is known to have.
        offsets: Where ``batch`` ends.
        planned: The newest batch that is planned; ``batch`` if no later one is planned.
        planned_ends: Where the planned batch ends.
        has_state: Whether the query keeps state.
    """

    query: str | None = None
    batch: int
    offsets: Offsets
    planned: int
    planned_ends: Offsets = field(default_factory=dict)
    has_state: bool = False

    @property
    def uncommitted(self) -> Ranges:
        """What the planned batches read that are not committed. A partition that is new in them began at 0 or later."""
        starts = {(topic, partition): at for topic, partition, at in _flat(self.offsets)}
        found: dict[str, tuple[OffsetRange, ...]] = {}
        for topic, partition, end in _flat(self.planned_ends):
            if end > (start := starts.get((topic, partition), 0)):
                found[topic] = (*found.get(topic, ()), OffsetRange(partition, start, end))
        return found


# -- read ---------------------------------------------------------------------------------------------------------


def read_checkpoint(files: Files, place: str, taken: int | None = None) -> StreamCheckpoint:
    """How far the query is whose checkpoint folder ``files`` has. Reads only.

    Args:
        files: The folder.
        place: Where it is, for texts.
        taken: The newest batch that the query's sink has; None: nobody knows.

    Raises:
        Refused: It is no checkpoint of a query with one Kafka source; a file is missing or cannot be read; no batch is
            committed; or ``taken`` is no batch with which this query can be.
    """
    folder = _Folder(files, place)
    committed, planned = folder.batches(COMMITS), folder.batches(OFFSETS)
    if not committed:
        raise folder.unusable(
            "no batch of the query is committed" if planned else "it has neither batches in offsets nor in commits",
            "Let the old query finish its first batch, and type the command again. If it never ran, start the pipeline "
            "without this command: set `starting` in the DAG to what the query had."
            if planned
            else "Name the folder that the query has as `checkpointLocation`: it has offsets and commits in it.",
        )
    newest, last = max(committed), max([*planned, max(committed)])
    folder.lines(COMMITS, newest)
    if taken is not None:
        _require_between(folder, newest, taken, last)
        newest = taken
    offsets = folder.offsets(newest)
    ends = folder.offsets(last) if last > newest else offsets
    _require_forward(folder, last, offsets, ends)
    return StreamCheckpoint(
        query=folder.query(),
        batch=newest,
        offsets=offsets,
        planned=last,
        planned_ends=ends,
        has_state="state" in files.names(""),
    )


def _require_between(folder: _Folder, committed: int, taken: int, planned: int) -> None:
    if taken > planned:
        raise folder.unusable(
            f"the table has batch {taken} of the query, and the newest batch in {OFFSETS} is {planned}: the folder is "
            "an older copy",
            "Name the folder that the query used last. If it is lost, `starting` in the DAG says where to begin.",
        )
    if taken < committed:
        raise folder.unusable(
            f"batch {committed} is committed, and the table has batch {taken} of the query: the table is an older "
            f"copy, or the batches after {taken} had no rows for it",
            "Restore the newest copy of the table, and type the command again. If it lacks no row, type the command "
            "without --sink-table.",
        )


def _require_forward(folder: _Folder, batch: int, offsets: Offsets, ends: Offsets) -> None:
    for topic, partition, at in _flat(ends):
        if at < offsets.get(topic, {}).get(partition, 0):
            raise folder.unusable(f"batch {batch}, in {OFFSETS}/{batch}, goes back in {topic}[{partition}]")


def _flat(offsets: Offsets) -> list[tuple[str, int, int]]:
    return [(topic, partition, at) for topic, of in offsets.items() for partition, at in of.items()]


@dataclass(frozen=True)
class _Folder:
    files: Files
    place: str

    def batches(self, name: str) -> set[int]:
        """The batches in ``offsets`` or ``commits``. Other names are Spark's temporary files, which it skips, too."""
        names = self.files.names(name)
        if compacted := sorted(each for each in names if _COMPACTED.fullmatch(each)):
            raise self.unusable(
                f"{name}/{compacted[0]} is a compacted log, which Spark does not write there: this is a folder of "
                "another kind"
            )
        return {int(each) for each in names if _is_number(each)}

    def query(self) -> str | None:
        """The query's id; None if the folder does not say it."""
        found = _json((self.files.read(METADATA) or b"").decode(errors="replace"))
        query = found.get("id") if isinstance(found, dict) else None
        return query if isinstance(query, str) else None

    def offsets(self, batch: int) -> Offsets:
        """Where a batch ends."""
        path = f"{OFFSETS}/{batch}"
        version, settings, *sources = self.lines(OFFSETS, batch)
        if settings and not isinstance(_json(settings), dict):
            raise self.unusable(f"the second line of {path} has no settings of a query")
        if len(sources) != 1:
            raise self.unusable(
                f"{path} has {len(sources)} sources, and a pipeline has one",
                "Make a pipeline with `starting=` for each topic: their offsets are in this file, a line for each "
                "source, in the form of `starting`. Two sources that a transform joins cannot be taken over.",
            )
        source = sources[0].partition(":")[2] if version == _NAMED else sources[0]
        if source == "-":
            raise self.unusable(f"in {path}, the source has no offsets yet (`-`)")
        offsets = kafka_offsets(source)
        if offsets is None:
            raise self.unusable(f"the source in {path} is not Kafka: {source[:200]}")
        return offsets

    def lines(self, log: str, batch: int) -> list[str]:
        """The lines of a batch's file: its version, which is known, and at least one more, which may be empty."""
        path = f"{log}/{batch}"
        content = self.files.read(path)
        if content is None:
            raise self.unusable(f"the file {path} is missing, and the batch is committed")
        try:
            version, *lines = content.decode().rstrip("\n").split("\n")
        except UnicodeDecodeError:
            raise self.unusable(f"{path} is not a text") from None
        if version not in _VERSIONS[log]:
            raise self.unusable(
                f"{path} begins with {version[:50]!r}, and this version of the provider knows "
                f"{', '.join(_VERSIONS[log])}",
                "If the file is empty or torn, restore it. If a later Spark has written it, begin where the offsets in "
                f"{OFFSETS}/{batch} say: write them into `starting` in the DAG.",
            )
        return [version, *(lines or [""])]

    def unusable(self, why: str, remedy: str | None = None) -> Refused:
        """The error for a folder that cannot be taken over."""
        return Refused(
            f"The checkpoint {self.place} cannot be used: {why}. Nothing was changed.",
            code=codes.CHECKPOINT_UNUSABLE,
            remedy=remedy,
        )


def kafka_offsets(line: str) -> dict[str, dict[int, int]] | None:
    """The offsets in a line of a Kafka source; None if it is something else."""
    found = _json(line)
    if not isinstance(found, dict) or not found:
        return None
    parsed = {topic: _of_topic(of) for topic, of in found.items()}
    return {topic: of for topic, of in parsed.items() if of} if all(parsed.values()) else None


def _of_topic(of: object) -> dict[int, int] | None:
    if not isinstance(of, dict) or not all(map(_is_number, of)) or not all(map(_is_offset, of.values())):
        return None
    return {int(partition): at for partition, at in sorted(of.items(), key=lambda each: int(each[0]))}


def _is_number(text: str) -> bool:
    """Whether the text is a whole number as Java writes it: without zeros in front."""
    return re.fullmatch(r"0|[1-9][0-9]{0,17}", text) is not None


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= OFFSET_MAX


def _json(text: str) -> Any:
    """The value of the JSON text; None if it is not JSON, or if an object has a key twice."""
    try:
        return json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError):
        return None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


# -- written ------------------------------------------------------------------------------------------------------


def checkpoint_of(offsets: Offsets) -> Mapping[str, bytes]:
    """A checkpoint folder whose batch 0 is committed and ended at ``offsets``: path -> content, in the order to put.

    ``metadata`` comes last: without it, Spark 4 refuses the folder.
    """
    line = json.dumps(
        {topic: {str(p): at for p, at in sorted(of.items())} for topic, of in sorted(offsets.items())},
        separators=(",", ":"),
    )
    texts = {
        f"{OFFSETS}/0": f"{WRITTEN_VERSION}\n{_SETTINGS}\n{line}",
        f"{COMMITS}/0": f"{WRITTEN_VERSION}\n{_COMMITTED}",
        METADATA: json.dumps({"id": str(uuid.uuid4())}),
    }
    return {path: text.encode() for path, text in texts.items()}


def write_checkpoint(files: Files, place: str, offsets: Offsets) -> None:
    """Put a checkpoint folder that a query continues from at ``offsets``. ``place``: the folder, for texts.

    Raises:
        Refused: The folder is not empty. Nothing was written, or other files than another writer's.
    """
    require_empty(files, place)
    for path, content in checkpoint_of(offsets).items():
        if not files.write_new(path, content):
            raise _occupied(place, path)


def require_empty(files: Files, place: str) -> None:
    """Raise Refused if there is anything in the folder."""
    if found := sorted(files.names("")):
        raise _occupied(place, found[0])


def _occupied(place: str, name: str) -> Refused:
    return Refused(f"The folder {place} is not empty: it has {name}.", code=codes.EXPORT_OCCUPIED)
