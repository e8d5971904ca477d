"""What stateful operators should give, row by row in plain Python, from the rows and the watermarks of a history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tests.support.state_world import Epoch, Event, nulls_of, without_nulls

Window = tuple[str, int]
Sums = tuple[int, int]


def windows(epochs: Sequence[Epoch], size: int, slide: int, lateness: int = 0) -> tuple[dict[Window, Sums], list[int]]:
    """Rows and sum of each window by its key and start, and the late rows."""
    sums: dict[Window, list[int]] = defaultdict(lambda: [0, 0])
    late = nulls_of(epochs)
    for epoch in without_nulls(epochs):
        for event in epoch.events:
            open_ = [start for start in starts(event, size, slide) if not epoch.late(start + size + lateness)]
            if not open_:
                late.append(event.o)
            for start in open_:
                window = sums[str(event.k), start]
                window[0], window[1] = window[0] + 1, window[1] + event.v
    return {window: (n, total) for window, (n, total) in sums.items()}, sorted(late)


def starts(event: Event, size: int, slide: int) -> list[int]:
    """The starts of the windows that have the row."""
    assert event.ts is not None
    zero = -(size // slide + 1) * slide
    return [start for start in range(zero, event.ts + 1, slide) if start <= event.ts < start + size]


def firsts(epochs: Sequence[Epoch], within: int) -> tuple[list[int], list[int]]:
    """The rows that pass, and those that are late or long before the one of their key that passed last."""
    passed: dict[str, int] = {}
    shown, late = [], nulls_of(epochs)
    for epoch in without_nulls(epochs):
        before = dict(passed)
        for event in sorted(epoch.events, key=lambda event: (event.ts, event.p, event.o)):
            assert event.k is not None and event.ts is not None
            if epoch.late(event.ts) or (event.k in before and event.ts <= before[event.k] - within):
                late.append(event.o)
            elif event.k not in passed or event.ts >= passed[event.k] + within:
                passed[event.k] = event.ts
                shown.append(event.o)
    return sorted(shown), sorted(late)


Session = tuple[str, int, int, int]


def sessions(epochs: Sequence[Epoch], gap: int) -> tuple[list[Session], list[int]]:
    """Key, start, end and rows of each session, and the late rows."""
    open_: list[tuple[str, int, int, list[int]]] = []
    shown, late = [], nulls_of(epochs)
    for epoch in without_nulls(epochs):
        shown += [(k, start, end, len(rows)) for k, start, end, rows in open_ if epoch.late(end)]
        parts = [session for session in open_ if not epoch.late(session[2])]
        parts += [(str(e.k), e.ts, e.ts + gap, [e.o]) for e in epoch.events if e.ts is not None]
        merged = _connected(parts)
        late += [number for _, _, end, rows in merged if epoch.late(end) for number in rows]
        open_ = [session for session in merged if not epoch.late(session[2])]
    return sorted(shown), sorted(late)


def _connected(parts: Iterable[tuple[str, int, int, list[int]]]) -> list[tuple[str, int, int, list[int]]]:
    merged: list[tuple[str, int, int, list[int]]] = []
    for k, start, end, rows in sorted(parts):
        if merged and merged[-1][0] == k and start <= merged[-1][2]:
            _, first, last, before = merged.pop()
            merged.append((k, first, max(last, end), before + rows))
        else:
            merged.append((k, start, end, rows))
    return merged


def pairs(epochs: Sequence[Epoch], before: int, after: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Numbers of left rows (partition 0) and right rows (partition 1) that are partners, and the late rows."""
    late, live = nulls_of(epochs), []
    for epoch in without_nulls(epochs):
        for event in epoch.events:
            assert event.ts is not None
            if epoch.late(event.ts):
                late.append(event.o)
            else:
                live.append((event.p, event.k, event.ts, event.o))
    found = [
        (left, right)
        for side, key, time, left in live
        for other, its_key, its_time, right in live
        if (side, other) == (0, 1) and key == its_key and -before <= its_time - time <= after
    ]
    return sorted(found), sorted(late)


def silences(epochs: Sequence[Epoch], seconds: int) -> list[tuple[str, int]]:
    """Each key with its number of rows, once it had none for so long."""
    counts: dict[str, tuple[int, int]] = {}
    shown = []
    for epoch in without_nulls(epochs):
        for key in {*counts, *(str(event.k) for event in epoch.events)}:
            times = [event.ts for event in epoch.events if event.k == key and event.ts is not None]
            count, last = counts.get(key, (0, 0))
            if count and epoch.late(last + seconds):
                shown.append((key, count))
                del counts[key]
                count, last = 0, 0
            if times:
                counts[key] = (count + len(times), max(last, *times))
    return sorted(shown)
