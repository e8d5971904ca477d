"""What a command about the next epoch changes, in sentences: on the command line and on the page."""

from __future__ import annotations

from airflow_epochs.contracts import Move, replaces_by
from airflow_epochs.coordinator import orders
from airflow_epochs.coordinator.orders import Restoration, Standing
from airflow_epochs.coordinator.read_before import never_read
from airflow_epochs.event_time import instant_text
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import Ranges, described_epochs, records_upper_bound

PARTITIONS_SHOWN_MAX = 20
"""The ledger's record has all of them."""

_ONE_ROW = "nothing comes twice: the newer row of a key takes the place of the older one"
_KEY_ONCE = (
    "a key may have one row in an epoch. If the next epoch reads more of it, it is aborted: then type `airflow epochs "
    "replan {pipeline} --why …`, and let epochs be smaller until they have read all of this (`max_records` of topics, "
    "also as a param of a run; `max_versions` of a table)"
)
_IN_MODE = {
    "upsert": "nothing comes twice: a row takes the place of the row with its key. But without `sequence_by`, "
    f"{_KEY_ONCE}",
    "merge": f"the clauses of `merge` work on these rows once more: what they count is counted again; {_KEY_ONCE}",
    "overwrite": "nothing comes twice: the rows of each epoch take the place of all rows",
    "overwrite_partitions": "nothing comes twice: the rows of each epoch take the place of those in their partitions",
}
"""What a sink shows of rows that it gets once more, where it does not add them."""


def told(ledger: Ledger, at: Standing, move: Move, restoration: Restoration) -> list[str]:
    """Where the next epoch begins, what comes twice, what is lost, and which tables come back."""
    return [
        f"Epoch {at.epoch} of pipeline {at.newest.txn.pipeline} will begin elsewhere:",
        *_input(ledger, at, move, restoration),
        *_order_anew(at, move),
        *_unread(at, move, restoration),
        f"  there to be read now: {shown(_read(move.ahead, move))}",
        *_brought_back(at, move, restoration),
        *_counted_again(at, move, restoration),
        *_late(at, move, restoration),
    ]


def planned_anew(at: Standing) -> list[str]:
    """That an aborted epoch begins where it began, and that its input is planned once more."""
    return [
        f"Epoch {at.epoch} of pipeline {at.newest.txn.pipeline} was aborted. Its input was {shown(at.newest.ranges)}.",
        "The next run plans it anew from the same beginning: no record is left out, and none is read twice.",
    ]


def _input(ledger: Ledger, at: Standing, move: Move, restoration: Restoration) -> list[str]:
    lines = []
    if move.left:
        lines.append(f"  left for good: the old topics, from these offsets on: {partitions(move.left)}")
        lines.append("  If the new topics have records that the pipeline has read in the old ones, they come twice.")
    if move.lost:
        lines.append(f"  lost for good: {shown(move.lost)}")
    new, again = never_read(ledger, at, _read(move.again, move), move.position)
    if new:
        lines.append(f"  not read by any epoch yet: {shown(new)}")
        lines.append("  Their rows come for the first time.")
    if again:
        twice = "" if restoration.points else ", so their rows come twice"
        lines.append(f"  read again{twice}: {shown(again)}")
        lines += [] if restoration.points else _replaced(at)
    return lines


def _order_anew(at: Standing, move: Move) -> list[str]:
    """What sinks do that ask which row is the newest: they cannot know that offsets of another topic begin anew."""
    if not move.left:
        return []
    lines = []
    for name, plan in sorted(at.newest.sinks.items()):
        if sequence := plan.spec.get("sequence_by"):
            lines.append(
                f"  sink {name} drops what is older by {sequence} than its table, {plan.spec.get('table')}. If "
                f"{sequence} begins anew with the new topics, then before the next run set {sequence} to NULL in the "
                "table, and empty its notes of deletions: see docs/operations.md, 'The order begins anew'."
            )
    return lines


def _read(ranges: Ranges, move: Move) -> Ranges:
    """``ranges`` without the topics that are no longer read."""
    return {topic: of for topic, of in ranges.items() if topic not in move.unread}


def _unread(at: Standing, move: Move, restoration: Restoration) -> list[str]:
    """What becomes of the topics that are no longer read. With tables that go back, their later rows go."""
    back = {topic: of for topic, of in move.again.items() if topic in move.unread}
    since = described_epochs(restoration.epoch + 1, at.epoch - 1)
    then, lost = ", so their rows come twice then", ""
    if restoration.points:
        then = f"; until then, their rows of {since} are gone from the tables"
        lost = f" Its rows of {since} go from the tables, and cannot be read again."
    lines = [f"  read again only once `topics` has them again{then}: {shown(back)}"] if back else []
    stay = "stays where it is: the DAG no longer reads it, and its older records are gone."
    return [*lines, *(f"  {topic} {stay}{lost}" for topic in move.stay)]


def _brought_back(at: Standing, move: Move, restoration: Restoration) -> list[str]:
    """What happens to each sink; nothing if no table comes back."""
    if not restoration.points:
        return []
    since = described_epochs(restoration.epoch + 1, at.epoch - 1)
    lines = [
        f"  sink {name}: its table goes back to version {point.version}, which it had after epoch {point.epoch}. All "
        "later changes of its rows go, those by others too; nothing comes twice there."
        for name, point in sorted(restoration.points.items())
    ]
    stay = restoration.stay if move.again else ()
    return [*lines, *(f"  sink {name} stays as it is: {_comes_again(at, name, since)}" for name in stay)]


def _comes_again(at: Standing, name: str, since: str) -> str:
    """What a sink shows that gets rows once more, beside those that it has of the epochs ``since``."""
    replaced = _replaces_by(at, name)
    if told := _once_more(at, name, replaced):
        return told
    return f"it gets the rows of {since} once more" if replaced is None else f"its rows of {since} come twice"


def _replaced(at: Standing) -> list[str]:
    """The sinks in which it is not so that rows come twice."""
    told = {name: _once_more(at, name, _replaces_by(at, name)) for name in sorted(at.newest.sinks)}
    return [f"  but in sink {name}, {what}" for name, what in told.items() if what]


def _once_more(at: Standing, name: str, replaced: tuple[str, ...] | None) -> str | None:
    """What a sink shows of rows that it gets once more; None if it adds them, or nobody can tell."""
    spec = at.newest.sinks[name].spec
    if replaced == () or (replaced and (spec.get("sequence_by") or spec.get("mode") not in _IN_MODE)):
        return _ONE_ROW if replaced else None
    told = _IN_MODE.get(str(spec.get("mode")))
    return told and told.format(pipeline=at.newest.txn.pipeline)


def _replaces_by(at: Standing, name: str) -> tuple[str, ...] | None:
    """As in ``Replacing``. None: nobody can tell here, or not in general."""
    sink = orders.built(at.newest.sinks[name].spec)
    return None if sink is None else replaces_by(sink)


def _counted_again(at: Standing, move: Move, restoration: Restoration) -> list[str]:
    """The state tables that have seen the records, with a command for each. One that begins anew has seen none."""
    states = sorted(name for name in at.newest.state.keys() - restoration.points.keys() if at.awaited(name))
    if not (move.again and states):
        return []
    return [
        f"  The state counts these records a second time, too: {', '.join(states)}. If a state must not, answer no, "
        "point its `table` to a new table in the DAG, and type its command before you rewind:",
        *(f"    airflow epochs adopt-sink {at.newest.txn.pipeline} {name} --new-table --why …" for name in states),
    ]


def _late(at: Standing, move: Move, restoration: Restoration) -> list[str]:
    """The watermark does not go back with the input, so operators drop what they are to see again."""
    watermark = at.before.watermarks[0] if at.before and at.before.watermarks else None
    if not move.again or restoration.points or watermark is None:
        return []
    return [
        f"  The watermark does not go back. Rows up to it, at least to {instant_text(watermark)}, are late when they "
        "are read again: deduplication, joins, sessions and functions do not see them."
    ]


def shown(ranges: Ranges) -> str:
    """Offsets, for people: how many, and where."""
    return f"{records_upper_bound(ranges)} offsets, {partitions(ranges)}" if ranges else "nothing"


def partitions(ranges: Ranges) -> str:
    """The partitions with their offsets, for people; of an empty range, where it is."""
    every = [
        f"{topic}[{r.partition}] {r.start}" if r.start == r.end else f"{topic}[{r.partition}] [{r.start}, {r.end})"
        for topic, of in ranges.items()
        for r in of
    ]
    more = len(every) - PARTITIONS_SHOWN_MAX
    return ", ".join(every[:PARTITIONS_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
