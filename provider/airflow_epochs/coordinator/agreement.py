"""Checks that the sinks show what the ledger says: before an attempt is opened, decided, aborted or completed.

A sink stores its marker in the same transaction as its rows, so the marker tells what the sink really shows. If it is
not what the ledger expects, one of the two was restored, replaced or lost, and the coordinator stops before it writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow_epochs import codes
from airflow_epochs.contracts import (
    Diagnosing,
    Disagreement,
    Environment,
    KnownByMarker,
    Sink,
    Stateful,
    backfill_from,
    rebuild_remedy,
    waive_command,
)
from airflow_epochs.coordinator import sink_calls
from airflow_epochs.coordinator.recorded_sinks import sink_of
from airflow_epochs.coordinator.state_tables import BEGIN_ANEW
from airflow_epochs.errors import Corrupt, tolerated
from airflow_epochs.ledger.keys import epoch_folder
from airflow_epochs.model import (
    CompleteRecord,
    Marker,
    OpenRecord,
    Receipt,
    Shown,
    TransactionId,
    agree,
    attempt_fields,
    compare,
)


def require_own_place(sink: Sink, before: CompleteRecord | None, today: Collection[Sink], env: Environment) -> None:
    """Raise Corrupt if a sink has the table or topic in which another sink of ``today`` committed its last epoch.

    For example, two sinks have swapped their names: both markers are as expected, and each sink has the other's rows.
    The place of a sink that is gone from the DAG is free.
    """
    own = before.receipts.get(sink.name) if before else None
    if before is None or own is None or not isinstance(sink, KnownByMarker):
        return
    others = {other.name for other in today} - {sink.name}
    if other := sink.in_place_of(own, [each for each in before.receipts.values() if each.sink in others], env):
        raise Corrupt(
            f"Sink {sink.name} points to the place where sink {other.sink} has committed epoch {before.txn_id.epoch}. "
            "Its own rows are in another place.",
            code=codes.TABLE_ELSEWHERE,
            remedy="Point each sink back to its own table or topic. But if the sinks are to change places on purpose, "
            "or if somebody renamed the tables so that each sink points to its own rows, give both sinks new names. "
            "Then clear the failed task.",
            sink=sink.name,
        )


def require_marker(
    sink: Sink,
    expected: TransactionId | None,
    pipeline: str,
    env: Environment,
    receipt: Receipt | None = None,
    in_doubt: TransactionId | None = None,
    undecided: TransactionId | None = None,
) -> None:
    """Raise Corrupt unless the sink shows exactly ``expected`` (None: no epoch of this pipeline).

    Args:
        sink: The sink to ask.
        expected: The transaction that it should show.
        pipeline: The pipeline's name.
        env: The environment to ask in.
        receipt: The receipt of ``expected``, if known. It tells the diagnosis which table or topic the sink wrote to.
        in_doubt: The transaction of an epoch that cannot be completed unless the sink shows ``expected``.
        undecided: The transaction of an attempt that is not aborted unless the sink shows ``expected``.
    """
    found = sink_calls.marker_of(sink, pipeline, env)
    if not agree(found, expected):
        seen = Disagreement(
            pipeline=pipeline,
            found=found,
            expected=expected,
            receipt=receipt,
            in_doubt=in_doubt,
            undecided=undecided,
        )
        raise _told(sink, seen, env)


def late_commit(sink: Sink, before: CompleteRecord | None, env: Environment) -> TransactionId | None:
    """The waived transaction that the sink shows all the same, or its fence; None if it shows neither.

    Asks only a sink that was waived. ``before``: the record of the newest complete epoch.
    """
    if before is None or sink.name not in before.waived:
        return None
    return waived_in(sink_calls.marker_of(sink, before.txn_id.pipeline, env), before.may_show(sink.name))


def waived_in(found: Marker | None, waived: Collection[TransactionId]) -> TransactionId | None:
    """What a sink shows since it was waived: one of these transactions, or the fence of one. None: neither.

    With a fence, it shows no row of them, and its next epoch goes on from there.
    """
    return late_in(found, waived) or fence_in(found, waived)


def fence_in(found: Marker | None, waived: Iterable[TransactionId]) -> TransactionId | None:
    """The fence of one of the waived transactions, if a sink shows it."""
    return late_in(found, (txn.fence for txn in waived))


def late_in(found: Marker | None, waived: Iterable[TransactionId]) -> TransactionId | None:
    """Which of the waived transactions a sink shows: a commit that hangs may land after an operator has waived it."""
    return next((txn for txn in waived if agree(found, txn)), None)


def require_adopted(sink: Sink, expected: TransactionId | None, pipeline: str, env: Environment) -> None:
    """Raise Corrupt unless the sink shows what ``adopt-sink`` found when it took it as it was, or was told of it."""
    found = sink_calls.marker_of(sink, pipeline, env)
    if agree(found, expected):
        return
    if compare(found, expected) is Shown.ANOTHER:
        error = _told(sink, Disagreement(pipeline=pipeline, found=found, expected=expected), env)  # no option takes it
        error.remedy = (
            "Correct the DAG if it should point the sink to another table, and clear the failed task. Otherwise: "
            f"{error.remedy}"
        )
        raise error
    raise Corrupt(
        f"The sink shows {_describe(found)}. But the command `adopt-sink`, which the next epoch obeys, expects it to "
        f"show {_describe(expected)}. Since the command, the sink's table was changed, or the DAG points the sink to "
        "another table. Nothing was read or written.",
        code=codes.ADOPTION_OUTDATED,
        remedy="Correct the DAG if it should point the sink to another table. Otherwise type "
        f"`airflow epochs adopt-sink {pipeline} {sink.name} --why …` again: it looks anew at the table of the sink's "
        f"last epoch. If that is not the table of the DAG, add `{_as_other_table(found)}`. Then clear the failed task.",
        pipeline=pipeline,
        sink=sink.name,
    )


def shows(
    sink: Sink, txn: TransactionId, previous: TransactionId | None, env: Environment, receipt: Receipt | None = None
) -> bool:
    """Whether the sink shows ``txn``, which is in doubt; False if it still shows ``previous``.

    ``receipt``: the receipt of ``previous``, if known.

    Raises:
        Corrupt: The sink shows neither of the two.
    """
    found = sink_calls.marker_of(sink, txn.pipeline, env)
    stands = compare(found, previous, txn)
    if stands in (Shown.ALREADY, Shown.NAMELESS, Shown.EXPECTED):
        return stands is not Shown.EXPECTED
    seen = Disagreement(pipeline=txn.pipeline, found=found, expected=previous, receipt=receipt, in_doubt=txn)
    raise _told(sink, seen, env)


def sinks_without(opened: OpenRecord, today: Collection[Sink], env: Environment) -> frozenset[str]:
    """The sinks of an attempt without GLOBAL_COMMIT that show the epoch before it.

    A sink that cannot be asked is left out.

    Raises:
        Corrupt: A sink shows this epoch or a later one. So this ledger is an old copy, or the pipeline has worked with
            another ledger meanwhile. Even the transaction does not tell which: the original may have tried again.
    """
    confirmed = set()
    for name, plan in opened.sinks.items():
        asked = False
        with tolerated(f"asking sink {name} for its marker"):
            found = sink_calls.marker_of(sink_of(opened, name, today), opened.txn_id.pipeline, env)
            asked = True
        if asked and found and compare(found, opened.txn_id) is not Shown.BEHIND:
            raise Corrupt(
                f"The sink shows {_describe(found)}, but this ledger has no decision for {opened.txn_id}: a "
                "newer copy of the ledger, or another ledger of this pipeline, went on without it. Nothing was read or "
                "written.",
                code=codes.ATTEMPT_UNDECIDED,
                remedy=f"{rebuild_remedy(opened.txn_id.pipeline)} But if you use this copy on purpose, with tables of "
                "its own, or if you restored other tables together with it, delete the folder "
                f"{opened.txn_id.pipeline}/{epoch_folder(opened.txn_id.epoch)} in it: the next run then reads the "
                "input of that epoch again, into the sinks of the DAG.",
                sink=name,
                **attempt_fields(opened.txn_id),
            )
        if asked and agree(found, plan.previous):
            confirmed.add(name)
    return frozenset(confirmed)


def _told(sink: Sink, seen: Disagreement, env: Environment) -> Corrupt:
    """The error for a disagreement: the sink's own diagnosis, or else what follows from the two markers."""
    diagnosis = sink.diagnose(seen, env) if isinstance(sink, Diagnosing) else None
    error = diagnosis or _by_the_markers(seen)
    error.pipeline, error.sink = seen.pipeline, sink.name
    if isinstance(sink, Stateful):
        error.remedy = _remedy_of_state(seen, sink.name, error.remedy)
    else:
        error.remedy += seen.while_in_doubt(sink.name) or _adopted(seen, sink.name, error)
    return error


def _adopted(seen: Disagreement, sink: str, error: Corrupt) -> str:
    """What to add to the remedy where the sink can be taken as it is: it lacks epochs that the ledger has."""
    if compare(seen.found, seen.expected) in (Shown.AHEAD, Shown.ANOTHER):
        return ""
    other, is_elsewhere = _as_other_table(seen.found), error.code is codes.TABLE_ELSEWHERE
    its_table = f" {other}" if is_elsewhere else ""
    perhaps = (
        "" if is_elsewhere else f" If the DAG has another place for the sink than before, add `{other}` to the command."
    )
    return (
        f" Or let the sink go on as it is now: {_aborted_first(seen)}`airflow epochs adopt-sink {seen.pipeline} {sink}"
        f"{its_table} --why …` prints which epochs it lacks, and asks.{perhaps} Then clear the failed task."
    )


def _as_other_table(found: Marker | None) -> str:
    """The option of ``adopt-sink`` for a table other than the one of the last epoch, which shows ``found``."""
    return f"--shows {found.epoch}" if found else "--new-table"


def _remedy_of_state(seen: Disagreement, state: str, remedy: str) -> str:
    """A remedy for a state table: under another name it would begin anew, and later results would lack rows."""
    if compare(seen.found, seen.expected) in (Shown.AHEAD, Shown.ANOTHER):
        return f"{remedy} But do not give the state another name: it would begin anew."
    return (
        "Put the newest copy of the table back: restore its whole folder, or point the state back to it. Then clear "
        "the failed task. Do not give the state another name: it would begin anew, and later results would lack rows. "
        f"If the table cannot come back, {_aborted_first(seen)}{_waived_first(seen, state)}{BEGIN_ANEW}"
    )


def _aborted_first(seen: Disagreement) -> str:
    """Commands that move a pipeline do not touch an attempt that is open."""
    return f"type `airflow epochs abort {seen.pipeline} --why …`. Then " if seen.undecided else ""


def _waived_first(seen: Disagreement, state: str) -> str:
    if seen.in_doubt is None:
        return ""
    return (
        f"first complete epoch {seen.in_doubt.epoch} without its rows: `{waive_command(seen.in_doubt, state)}`. Clear "
        "the failed task. Then "
    )


def _by_the_markers(seen: Disagreement) -> Corrupt:
    """The error that follows from what the sink shows and what the ledger expects."""
    stands = compare(seen.found, seen.expected)
    if stands is Shown.AHEAD:
        return _ledger_behind(seen)
    if seen.found is None:
        return _sink_empty(seen)
    if stands is Shown.ANOTHER:
        return _two_ledgers(seen)
    return _sink_behind(seen, seen.found.epoch)


def _ledger_behind(seen: Disagreement) -> Corrupt:
    return Corrupt(
        f"The ledger is behind the sink: the sink shows {_describe(seen.found)}, but the ledger expects "
        f"{_describe(seen.expected)}. The newest records of the ledger are lost, or the ledger was restored from an "
        "older copy, or it is a new ledger, or each worker has a ledger of its own. Nothing was read or written.",
        code=codes.LEDGER_BEHIND,
        remedy=rebuild_remedy(seen.pipeline),
    )


def _sink_empty(seen: Disagreement) -> Corrupt:
    return Corrupt(
        f"The sink shows no epoch of this pipeline, but the ledger expects {_describe(seen.expected)}: the target of "
        "the sink was dropped or replaced, or the sink points to another place now. Nothing was read or written.",
        code=codes.SINK_EMPTY,
        remedy="Restore the target of the sink from a backup, or point the sink back to the old place. If neither "
        f"is possible, give the sink another name, with {backfill_from('<epoch>')} with the first epoch that it lacks. "
        "See docs/failures.md#the-table-is-gone.",
    )


def _two_ledgers(seen: Disagreement) -> Corrupt:
    return Corrupt(
        f"The sink shows {_describe(seen.found)}, but the ledger expects {_describe(seen.expected)}. Two ledgers with "
        "this pipeline name wrote to the sink, or one ledger was restored and ran the epoch again. Nothing was read or "
        "written.",
        code=codes.TWO_LEDGERS,
        remedy="Find the ledger that has the sink's transaction, and let only that ledger go on. If both must go "
        "on, give this pipeline's sink another name. See docs/failures.md#the-ledger-is-behind.",
    )


def _sink_behind(seen: Disagreement, epoch: int) -> Corrupt:
    return Corrupt(
        f"The sink is behind the ledger: it shows {_describe(seen.found)}, but the ledger expects "
        f"{_describe(seen.expected)}. The sink was restored from an older copy. Nothing was read or written.",
        code=codes.SINK_BEHIND,
        remedy="Restore the newest copy of the sink. If there is none, give the sink another name, with "
        f"{backfill_from(epoch + 1)}: the sink then gets the missing epochs again. See "
        "docs/failures.md#the-table-is-behind.",
    )


def _describe(marker: Marker | TransactionId | None) -> str:
    match marker:
        case None:
            return "no epoch of this pipeline"
        case Marker(epoch, token):
            return f"epoch {epoch} (transaction token {token})"
        case TransactionId():
            return f"epoch {marker.epoch} ({marker}, token {marker.token})"
