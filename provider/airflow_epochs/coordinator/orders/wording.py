"""What a command about the next epoch changes, in sentences: on the command line and on the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_epochs.contracts import replaces_by
from airflow_epochs.coordinator.orders.orders import BetweenEpochs, Restoration
from airflow_epochs.coordinator.orders.outlook import Outcome, Outlook
from airflow_epochs.coordinator.recorded_sinks import built
from airflow_epochs.event_time import instant_text
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import commands_obeyed
from airflow_epochs.model import REWIND, Command, Ranges, described_epochs, records_upper_bound
from airflow_epochs.model.command import ADOPT_CHECKPOINT, ADOPT_GROUP

PARTITIONS_SHOWN_MAX = 20
"""How many partitions a text lists. The ledger's record has all of them."""

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


def told(ledger: Ledger, at: BetweenEpochs, look: Outlook) -> list[str]:
    """Where the next epoch begins, what comes twice, what is lost, and which tables come back."""
    where = "elsewhere" if look.elsewhere else f"where epoch {at.epoch - 1} ended"
    where_now = ", where this command moves" if at.order else ""
    return [
        f"Epoch {at.epoch} of pipeline {at.newest.txn_id.pipeline} will begin {where}:",
        *earlier(ledger, at, look),
        *_input(at, look),
        *_order_anew(at, look),
        *_unread(at, look),
        f"  there to be read now{where_now}: {shown(look.read(look.move.ahead))}",
        *_of_sinks(at, look),
    ]


def planned_anew(ledger: Ledger, at: BetweenEpochs, look: Outlook) -> list[str]:
    """The lines for an aborted epoch: it begins where it began, and its input is planned once more."""
    twice = "" if at.order else ": no record that is there is left out, and none is read twice"
    return [
        f"Epoch {at.epoch} of pipeline {at.newest.txn_id.pipeline} was aborted. Its input was "
        f"{shown(at.newest.ranges)}.",
        f"The next run plans it anew from the same beginning{twice}.",
        *(outcome(ledger, at, look) if at.order else _lost(look)),
    ]


def outcome(ledger: Ledger, at: BetweenEpochs, look: Outlook) -> list[str]:
    """What earlier commands of the epoch do to rows and tables, if a command comes that moves nothing."""
    if at.order is None:
        return []
    return [*earlier(ledger, at, look), *_input(at, look), *_unread(at, look), *_of_sinks(at, look)]


def earlier(ledger: Ledger, at: BetweenEpochs, look: Outlook) -> list[str]:
    """The commands that wait already, and what becomes of tables that one of them lets go back."""
    waiting = _in_force(commands_obeyed(ledger, at.order)) if at.order else ()
    restores = next((each for each in reversed(waiting) if each.restores and each.name == REWIND), None)
    others = [each for each in waiting if each is not restores]
    lines = [f"  counted together with an earlier command: {_named(each)}" for each in others]
    return [*lines, *([_of_restore(at, look.restoration, restores)] if restores else [])]


def _in_force(waiting: Sequence[Command]) -> Sequence[Command]:
    """Without commands whose place another one has taken as a whole."""
    adopting = [number for number, each in enumerate(waiting) if each.name in (ADOPT_CHECKPOINT, ADOPT_GROUP)]
    return waiting[max(adopting, default=0) :]


def _of_restore(at: BetweenEpochs, now: Restoration, by: Command) -> str:
    assert at.order, "the command stands in it"
    then, tables = at.order.restored_to, sorted(at.order.restores)
    if not now.points:
        return (
            f"  no table goes back to epoch {then} any more ({', '.join(tables)}): this takes the place of {_named(by)}"
        )
    if now.epoch != then:
        return f"  the tables go back to epoch {now.epoch}, not to epoch {then}: this takes the place of {_named(by)}"
    without = [name for name in tables if name not in now.points]
    but = f", but no longer the table of sink {', '.join(without)}" if without else ""
    return f"  the tables still go back to epoch {then}{but}, by {_named(by)}"


def _named(command: Command) -> str:
    return f"`{command.name}` by {command.who}, because: {command.why}"


def _input(at: BetweenEpochs, look: Outlook) -> list[str]:
    lines = []
    if look.move.left:
        for of, left in _by_sinks(look, lambda each: each.left):
            lines.append(f"  left for good{of}: the old topics, from these offsets on: {partitions(left)}")
        lines.append("  If the new topics have records that the pipeline has read in the old ones, they come twice.")
    lines += _lost(look)
    for of, new in _by_sinks(look, lambda each: look.read(each.new)):
        lines += _new(of, new, look)
    again = look.read(look.again)
    if look.restoration.points:
        return [*lines, *([f"  read again: {shown(again)}"] if again else [])]
    for of, twice in _by_sinks(look, lambda each: look.read(each.again)):
        lines.append(f"  read again, so rows that are there come twice{of}: {shown(twice)}")
    return [*lines, *_replaced(at, look)]


def _lost(look: Outlook) -> list[str]:
    lines = [f"  lost for good{of}: {shown(lost)}" for of, lost in _by_sinks(look, lambda each: each.lost)]
    if look.move.cut:
        lines.append("  Where a log was cut, new records may have the offsets of lost ones: they are read.")
    return lines


def _new(of: str, new: Ranges, look: Outlook) -> list[str]:
    if new == look.read(look.fresh):
        return [f"  not read by any epoch yet: {shown(new)}", "  Their rows come for the first time."]
    return [f"  read again, and not there any more{of}: {shown(new)}", "  Their rows come once."]


def _by_sinks(look: Outlook, of: Callable[[Outcome], Ranges]) -> list[tuple[str, Ranges]]:
    """What is the same for some sinks, with their names, as a clause; without names if it is the same for all."""
    found = {name: of(each) for name, each in look.sinks.items()}
    names: dict[str, list[str]] = {}
    for name, ranges in found.items():
        if ranges:
            names.setdefault(repr(ranges), []).append(name)
    return [
        (f" in sink {', '.join(those)}" if len(those) < len(found) else "", found[those[0]]) for those in names.values()
    ]


def _order_anew(at: BetweenEpochs, look: Outlook) -> list[str]:
    """What sinks do that ask which row is the newest: they cannot know that offsets of another topic begin anew."""
    if not look.move.left:
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


def _unread(at: BetweenEpochs, look: Outlook) -> list[str]:
    """What becomes of the topics that are no longer read. With tables that go back, their later rows go."""
    back = {topic: of for topic, of in look.again.items() if topic in look.unread}
    since = _since(at, look.restoration)
    then, lost = ", so their rows come twice then", ""
    if look.restoration.points:
        then = f"; until then, their rows of {since} are gone from the tables"
        lost = f" Its rows of {since} go from the tables, and cannot be read again."
    lines = [f"  read again only once `topics` has them again{then}: {shown(back)}"] if back else []
    stay = "stays where it is: the DAG no longer reads it, and its older records are gone."
    return [*lines, *(f"  {topic} {stay}{lost}" for topic in look.move.stay)]


def _of_sinks(at: BetweenEpochs, look: Outlook) -> list[str]:
    return [*_brought_back(at, look), *_counted_again(at, look), *_late(at, look)]


def _brought_back(at: BetweenEpochs, look: Outlook) -> list[str]:
    """What happens to each sink; nothing if no table comes back."""
    points = look.restoration.points
    lines = [
        f"  sink {name}: its table goes back to version {point.version}, which it had after epoch {point.epoch}. All "
        f"later changes of its rows go, those by others too; {_twice_there(look, name)}."
        for name, point in sorted(points.items())
    ]
    stay = [name for name in look.restoration.stay if points and look.read(look.sinks[name].again)]
    return [*lines, *(f"  sink {name} stays as it is: {_comes_again(at, look, name)}" for name in stay)]


def _twice_there(look: Outlook, name: str) -> str:
    again = look.read(look.sinks[name].again)
    return f"then its rows of these come twice: {shown(again)}" if again else "nothing comes twice there"


def _comes_again(at: BetweenEpochs, look: Outlook, name: str) -> str:
    """What a sink shows that keeps its rows of the epochs after the restored one, and gets rows once more."""
    replaced = _replaces_by(at, name)
    if told := _once_more(at, name, replaced):
        return told
    verb = "it gets {} once more" if replaced is None else "{} come twice"
    of = "the rows of" if replaced is None else "its rows of"
    if _is_one_row(at, look) and not look.read(look.sinks[name].new):
        return verb.format(f"{of} {_since(at, look.restoration)}")
    return f"{verb.format(f'{of} these')}: {shown(look.read(look.sinks[name].again))}"


def _is_one_row(at: BetweenEpochs, look: Outlook) -> bool:
    """Whether the next epochs read exactly what the epochs after the restored one have read."""
    moved_in = at.before.moved_in if at.before else 0
    goes_on = all(look.sinks[each] == Outcome() for each in look.restoration.points)
    return goes_on and moved_in <= look.restoration.epoch


def _since(at: BetweenEpochs, restoration: Restoration) -> str:
    return described_epochs(restoration.epoch + 1, at.epoch - 1)


def _replaced(at: BetweenEpochs, look: Outlook) -> list[str]:
    """The lines for sinks in which rows do not come twice."""
    twice = [name for name, each in look.sinks.items() if look.read(each.again)]
    told = {name: _once_more(at, name, _replaces_by(at, name)) for name in twice}
    return [f"  but in sink {name}, {what}" for name, what in told.items() if what]


def _once_more(at: BetweenEpochs, name: str, replaced: tuple[str, ...] | None) -> str | None:
    """What a sink shows of rows that it gets once more; None if it adds them, or if that is not known."""
    spec = at.newest.sinks[name].spec
    if replaced == () or (replaced and (spec.get("sequence_by") or spec.get("mode") not in _IN_MODE)):
        return _ONE_ROW if replaced else None
    told = _IN_MODE.get(str(spec.get("mode")))
    return told and told.format(pipeline=at.newest.txn_id.pipeline)


def _replaces_by(at: BetweenEpochs, name: str) -> tuple[str, ...] | None:
    """As in ``Replacing``. None: it is not known here, or not in general."""
    sink = built(at.newest.sinks[name].spec)
    return None if sink is None else replaces_by(sink)


def _counted_again(at: BetweenEpochs, look: Outlook) -> list[str]:
    """The state tables that have seen the records, with a command for each. One that begins anew is left out."""
    counted = {name for name, each in look.sinks.items() if each.again}
    states = sorted(name for name in at.newest.state.keys() & counted - look.restoration.points.keys())
    if not states:
        return []
    return [
        f"  The state counts these records a second time, too: {', '.join(states)}. Where it drops what it has seen, "
        "as deduplication does, the other sinks do not get these rows again. If a state must not count them, answer "
        "no, point its `table` to a new table in the DAG, and type its command before you rewind:",
        *(f"    airflow epochs adopt-sink {at.newest.txn_id.pipeline} {name} --new-table --why …" for name in states),
    ]


def _late(at: BetweenEpochs, look: Outlook) -> list[str]:
    """The watermark does not go back with the input, so operators drop what they are to see again."""
    watermark = at.before.watermarks[0] if at.before and at.before.watermarks else None
    if not look.again or look.restoration.points or watermark is None:
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
