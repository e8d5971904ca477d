"""Checks of the rows that the sinks show: I1, I2, I3, I7 and I12. The public names are in ``checkers``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from airflow_epochs.model import CompleteRecord, OpenRecord, Ranges
from airflow_epochs.testing._violations import Violation, some
from airflow_epochs.testing.history import History, Observation, Origin, SinkState, VisibleRow

PerEpoch = Mapping[int | None, set[Origin]]


def _finals(history: History) -> Mapping[str, SinkState]:
    """What the sinks show at the end. Sinks that rewrite rows are without their rows here."""
    states = history.sinks or {}
    return {name: replace(s, rows=None) if name in history.rewritten else s for name, s in states.items()}


def _observed(seen: Observation, history: History) -> dict[str, SinkState]:
    return {
        name: state for name, state in seen.sinks.items() if state.rows is not None and name not in history.rewritten
    }


def _of_epoch(history: History) -> dict[str, PerEpoch]:
    """Per sink, the records that it shows at the end, by epoch."""
    return {sink: history.epochs.split(state.origins) for sink, state in _finals(history).items()}


def _union(parts: Mapping[str, PerEpoch], sinks: Iterable[str], epoch: int) -> set[Origin]:
    return set().union(*(parts.get(sink, {}).get(epoch, set()) for sink in sinks))


def _before_the_start(history: History, origin: Origin) -> bool:
    return origin.offset < history.starts.get((origin.topic, origin.partition), 0)


# -- I1 ---------------------------------------------------------------------------------------------------------


def lost(history: History) -> Iterator[Violation]:
    """I1: no loss."""
    wanted = history.epochs.split({*(history.produced or {})} - {*history.filtered})
    left = {origin for origin in wanted.pop(None, set()) if not _before_the_start(history, origin)}
    if left and history.rest is not None:
        yield Violation(f"{len(left)} acknowledged records are in no complete epoch.", some(left))
    parts = _of_epoch(history)
    for epoch, origins in wanted.items():
        assert epoch is not None
        for group in history.groups_of(epoch):
            missing = origins - _union(parts, group, epoch)
            if missing:
                yield Violation(
                    f"{len(missing)} records of epoch {epoch} are not in {_named(group)}.",
                    some(missing),
                )


def _named(group: Iterable[str]) -> str:
    return " or ".join(f"sink {sink}" for sink in sorted(group))


# -- I2 ---------------------------------------------------------------------------------------------------------


def duplicated(history: History) -> Iterator[Violation]:
    """I2: no duplicates."""
    for sink, state in _finals(history).items():
        yield from _twice(f"Sink {sink} shows", state.rows or ())
        epochs = Counter(_epoch_of_commit(shown) for shown in state.commits or ())
        for epoch, times in epochs.items():
            if times > 1:
                yield Violation(f"Sink {sink} committed epoch {epoch} {times} times.", list(state.commits or ()))
    for number, seen in enumerate(history.observations):
        for sink, state in _observed(seen, history).items():
            yield from _twice(f"Reader {number} saw in sink {sink}", state.rows or ())
    for group in history.groups:
        yield from _in_two_sinks(history, sorted(group))


def _twice(who: str, rows: Iterable[VisibleRow]) -> Iterator[Violation]:
    again = {origin for origin, times in Counter(row.origin for row in rows).items() if times > 1}
    if again:
        yield Violation(f"{who} {len(again)} records more than once.", some(again))


def _in_two_sinks(history: History, group: list[str]) -> Iterator[Violation]:
    finals = _finals(history)
    for index, one in enumerate(group):
        for other in group[index + 1 :]:
            both = finals[one].origins & finals[other].origins if {one, other} <= set(finals) else frozenset[Origin]()
            if both:
                yield Violation(f"{len(both)} records are in sink {one} and in sink {other}.", some(both))


def _epoch_of_commit(shown: object) -> int:
    return int(shown.split("/")[1]) if isinstance(shown, str) else int(getattr(shown, "epoch", 0))


# -- I3 ---------------------------------------------------------------------------------------------------------


def torn(history: History) -> Iterator[Violation]:
    """I3: atomic across sinks."""
    parts = _of_epoch(history)
    for epoch in sorted(history.facts.complete):
        yield from _differ(f"Epoch {epoch} is complete, but", history, parts, epoch)
        yield from _without_marker(history, epoch)
    if history.rest is not None:
        yield from _half_epochs(history, parts)
    for number, seen in enumerate(history.observations):
        yield from _torn_reading(number, seen, history, parts)


def _differ(when: str, history: History, parts: Mapping[str, PerEpoch], epoch: int) -> Iterator[Violation]:
    """Groups of sinks that show different records of an epoch."""
    shown = [(group, _union(parts, group, epoch)) for group in history.groups_of(epoch)]
    for (one, first), (other, second) in pairwise(shown):
        if first != second:
            yield Violation(
                f"{when} {_named(one)} shows {len(first)} and {_named(other)} {len(second)} of its records.",
                some(first ^ second),
            )


def _without_marker(history: History, epoch: int) -> Iterator[Violation]:
    complete = history.facts.complete[epoch]
    for sink in complete.receipts:  # a sink without one, after a rebuilding, need not know its commit any more
        state = _finals(history).get(sink)
        if state and state.commits is not None:
            if not any(history.transaction(shown) == complete.txn_id for shown in state.commits):
                yield Violation(f"Sink {sink} has a receipt for epoch {epoch}, but did not commit it.", complete.txn_id)


def _half_epochs(history: History, parts: Mapping[str, PerEpoch]) -> Iterator[Violation]:
    for sink, per_epoch in parts.items():
        beyond = per_epoch.get(None, set())
        if beyond:
            yield Violation(
                f"At rest sink {sink} shows {len(beyond)} records that belong to no complete epoch.",
                some(beyond),
            )


def _torn_reading(
    number: int, seen: Observation, history: History, finals: Mapping[str, PerEpoch]
) -> Iterator[Violation]:
    if history.balance is not None and seen.balance not in (None, history.balance):
        yield Violation(
            f"Reader {number} got the total {seen.balance} at epoch {seen.complete} instead of {history.balance}.",
            seen.balance,
        )
    looked = _observed(seen, history)
    parts = {sink: history.epochs.split(state.origins) for sink, state in looked.items()}
    for epoch in sorted(n for n in history.facts.complete if n <= seen.complete):
        for sink in sorted(history.facts.sinks_of(epoch) & set(looked)):
            then, now = parts[sink].get(epoch, set()), finals.get(sink, {}).get(epoch, set())
            if then != now:
                yield Violation(
                    f"Reader {number} saw epoch {seen.complete} complete, and {len(then)} of the {len(now)} "
                    f"records of epoch {epoch} in sink {sink}.",
                    some(then ^ now),
                )


# -- I7 ---------------------------------------------------------------------------------------------------------


def has_payloads(history: History) -> bool:
    """Whether rows can be compared by content. True also if there are no rows."""
    rows = [row for state in _finals(history).values() for row in state.rows or ()]
    return not rows or any(row.payload for row in rows)


def foreign_content(history: History) -> Iterator[Violation]:
    """I7: the content of the sinks comes from the epoch's ranges."""
    yield from _changed_input(history)
    known = {origin: payload for origin, payload in (history.produced or {}).items() if payload}
    observed = [state for seen in history.observations for state in _observed(seen, history).values()]
    for state in [*_finals(history).values(), *observed]:
        for row in state.rows or ():
            if row.payload and known.setdefault(row.origin, row.payload) != row.payload:
                yield Violation("A record has another content than elsewhere.", (row, known[row.origin]))
    if history.produced is not None:
        for sink, state in _finals(history).items():
            invented = state.origins - set(history.produced) - set(history.withdrawn)
            if invented:
                yield Violation(f"Sink {sink} shows {len(invented)} records that nobody produced.", some(invented))


def _changed_input(history: History) -> Iterator[Violation]:
    opens = {at: record for at, record in sorted(history.facts.opens.items()) if not record.command}
    first = {(epoch, record.obeys): record for (epoch, _), record in reversed(opens.items())}
    newest = {epoch: record for (epoch, _), record in opens.items()}
    for (epoch, attempt), record in opens.items():
        same = first[epoch, record.obeys]  # the first attempt after the same command, if there was one
        if not _same_or_begun_later(same.ranges, record.ranges, _known_before(history, epoch)):
            yield Violation(
                f"Attempt {attempt} of epoch {epoch} has other ranges than the first.", (same.ranges, record.ranges)
            )
        for what in ("now", "seed", "watermarks", "state", "backlog"):
            if _shared(record, what) != _shared(same, what):
                yield Violation(
                    f"Attempt {attempt} of epoch {epoch} has other {what} than the first.",
                    (getattr(same, what), getattr(record, what)),
                )
    for epoch, complete in history.facts.complete.items():
        if epoch in history.facts.rebuilt_epochs:
            continue
        for what in ("ranges", "watermarks", "backlog"):
            if epoch in newest and getattr(newest[epoch], what) != getattr(complete, what):
                yield Violation(
                    f"Epoch {epoch} was completed with other {what} than it was opened with.",
                    (getattr(newest[epoch], what), getattr(complete, what)),
                )


def _shared(record: OpenRecord, what: str) -> object:
    """The field ``what``, as far as all attempts of an epoch share it. A state that begins has no version to share."""
    if what == "state":
        return {name: pin for name, pin in record.state.items() if pin.version is not None}
    return getattr(record, what)


def _known_before(history: History, epoch: int) -> set[tuple[str, int]]:
    """Partitions for which an earlier epoch has ranges."""
    earlier = (record.ranges for number, record in history.facts.complete.items() if number < epoch)
    return {(topic, r.partition) for ranges in earlier for topic in ranges for r in ranges[topic]}


def _same_or_begun_later(first: Ranges, later: Ranges, known: set[tuple[str, int]]) -> bool:
    """Whether the ranges are equal. A partition never read before may begin later, if its oldest records are gone."""
    if first == later:
        return True
    pairs = [(topic, *pair) for topic in first for pair in zip(first[topic], later.get(topic, ()), strict=False)]
    return {topic: len(of) for topic, of in first.items()} == {topic: len(of) for topic, of in later.items()} and all(
        a == b
        or (
            (topic, a.partition) not in known and a.start < b.start and b == (a.partition, b.start, max(a.end, b.start))
        )
        for topic, a, b in pairs
    )


# -- I12 --------------------------------------------------------------------------------------------------------


def has_counts(history: History) -> bool:
    """Whether the number of records read is known for every complete epoch."""
    return history.produced is not None or all(
        record.metrics.get("rows_in") is not None for record in history.facts.complete.values()
    )


def miscounted(history: History) -> Iterator[Violation]:
    """I12: accounting."""
    produced = history.epochs.split(set(history.produced or {}))
    filtered = history.epochs.split(set(history.filtered))
    rows = {
        sink: Counter(history.epochs.of(row.origin) for row in state.rows or ())
        for sink, state in _finals(history).items()
        if state.rows is not None
    }
    for epoch, complete in history.facts.complete.items():
        there = len(produced.get(epoch, set())) if history.produced is not None else None
        # the epoch of a rebuilding stands for the epochs whose records were lost, too; its own figures do not
        is_whole = epoch not in history.facts.rebuilt_epochs
        claimed = complete.metrics.get("rows_in") if is_whole else None
        if there is not None and claimed not in (None, there):
            yield Violation(
                f"The record of epoch {epoch} says {claimed} records; the input has {there}.", (claimed, there)
            )
        read = claimed if there is None else there
        if read is None:
            continue
        left_out = len(filtered.get(epoch, set()))
        for group in history.groups_of(epoch):
            written = sum(rows.get(sink, Counter())[epoch] for sink in group)
            if written + left_out != read:
                yield Violation(
                    f"Epoch {epoch} read {read} records; {_named(group)} shows {written} and {left_out} were filtered.",
                    (epoch, read, written, left_out),
                )
        if is_whole:
            yield from _false_receipts(complete, rows)


def _false_receipts(complete: CompleteRecord, rows: Mapping[str, Counter[int | None]]) -> Iterator[Violation]:
    epoch = complete.txn_id.epoch
    for sink, receipt in complete.receipts.items():
        shown = rows[sink][epoch] if sink in rows else receipt.rows
        if shown != receipt.rows:
            yield Violation(
                f"The receipt of sink {sink} for epoch {epoch} says {receipt.rows} rows; the sink shows {shown}.",
                (receipt.rows, shown),
            )
