"""The one transaction that all sinks show. If they do not agree, an operator may leave sinks out: ``--without``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_epochs import codes
from airflow_epochs.config import Pipeline
from airflow_epochs.contracts import LastEpoch, Positioned, Sink, Stateful
from airflow_epochs.coordinator.rebuilding.evidence import (
    LastEpochs,
    in_words,
    is_fence,
    lacks_newest,
    listed,
    newest_epoch,
)
from airflow_epochs.errors import Refused
from airflow_epochs.model import TransactionId, agree, described_epochs


def require_can_be_left_out(pipeline: Pipeline, without: frozenset[str], shows: LastEpochs) -> None:
    """Raise Refused unless the sinks left out are sinks of the DAG, no state that has rows, and not all."""
    states = {name for name in _states(pipeline) if shows[name]}
    wrong = {
        "no sinks of the DAG": without - shows.keys(),
        "state tables with rows, without which later results would lack rows": without & states,
        "all sinks of the DAG": without if without >= shows.keys() else frozenset(),
    }
    for what, names in wrong.items():
        if names:
            leave_out = f"Leave them out of --without. The DAG's sinks are: {', '.join(shows)}."
            raise Refused(
                f"--without names {', '.join(sorted(names))}: {what}. Nothing was changed.",
                code=codes.SINKS_DISAGREE,
                remedy=_kept_states(shows) if names <= states else leave_out,
            )


def require_all_at_newest(pipeline: Pipeline, without: frozenset[str], shows: LastEpochs) -> None:
    """Raise Refused unless the sinks left out are just those that do not show the newest epoch."""
    newest, behind = newest_epoch(shows), lacks_newest(shows)
    if missing := sorted(behind - without):
        raise _disagree(missing[0], shows, is_state=missing[0] in _states(pipeline))
    if needless := sorted(without - behind):
        raise Refused(
            f"--without names {', '.join(needless)}, which shows epoch {newest}, the newest one. Left out, it would "
            "get rows of that epoch twice. Nothing was changed.",
            code=codes.SINKS_DISAGREE,
            remedy=f"Leave out the sinks that show an earlier epoch, or bring them to this epoch: {listed(shows)}.",
        )


def common_transaction(pipeline: Pipeline, shown: Mapping[str, LastEpoch]) -> TransactionId:
    """The transaction that all these sinks show, which show the same epoch.

    Raises:
        Refused: They show several; or no sink tells its whole id, and one needs that.
    """
    txn = _only_transaction(pipeline.name, shown)
    _require_whole_id(pipeline.sinks, shown)
    return txn


def _only_transaction(pipeline: str, shown: Mapping[str, LastEpoch]) -> TransactionId:
    known = {each.txn: name for name, each in shown.items() if each.txn} or _made_up(pipeline, shown)
    txn, *_ = known
    for name, each in shown.items():
        if not agree(each.marker, txn) or each.txn not in (None, txn):
            raise Refused(
                f"Two ledgers wrote to the sinks: of epoch {txn.epoch}, sink {known[txn]} shows transaction {txn}, and "
                f"sink {name} shows {each.txn or each.marker}. Nothing was changed.",
                code=codes.SINKS_DISAGREE,
                remedy="Find out which ledger wrote to which sink, and give each of the two pipelines a name and sinks "
                "of its own. Or restore the sinks of one of them to one epoch, and type the command again.",
                sink=name,
            )
    return txn


def _made_up(pipeline: str, shown: Mapping[str, LastEpoch]) -> dict[TransactionId, str]:
    """An id that agrees with a marker, where the logs no longer have the commits with the whole id.

    A marker has at most a token, the first bits of the nonce. The other bits are zeros, so every plan has the same id.
    """
    name = next((name for name, each in shown.items() if each.marker.token is not None), next(iter(shown)))
    marker = shown[name].marker
    nonce = f"{(marker.token or 0) << 1:016x}".ljust(32, "0")
    return {TransactionId(pipeline, marker.epoch, 1, nonce): name}


def _require_whole_id(sinks: Iterable[Sink], shown: Mapping[str, LastEpoch]) -> None:
    """Raise Refused if the id had to be made up, and a sink of somebody's own cannot have it: it compares whole ids."""
    if any(each.txn for each in shown.values()):
        return
    for sink in sinks:
        if sink.name in shown and not isinstance(sink, Positioned):
            raise Refused(
                f"No sink tells the whole id of its last transaction, and sink {sink.name} has no `last_epoch` to tell "
                "it. With another id, the sink would vote against each epoch. Nothing was changed.",
                code=codes.ENDS_UNKNOWN,
                remedy="Give the sink's class a `last_epoch` that returns `LastEpoch(marker=…, txn=…)` "
                "(docs/write-your-own-sink.md#optional-methods). Then type the command again.",
                sink=sink.name,
            )


def _states(pipeline: Pipeline) -> frozenset[str]:
    return frozenset(sink.name for sink in pipeline.sinks if isinstance(sink, Stateful))


# -- errors and remedies ----------------------------------------------------------------------------------------------


def _disagree(name: str, shows: LastEpochs, *, is_state: bool) -> Refused:
    last, newest = shows[name], newest_epoch(shows)
    return Refused(
        f"The sinks do not show the same epoch: {listed(shows)}. Sink {name} shows {_has(last, newest)}. The "
        "ledger was lost while the epoch was in doubt, or the sink was restored from an older copy. Nothing was "
        "changed.",
        code=codes.SINKS_DISAGREE,
        remedy=f"Restore a copy of sink {name} that shows epoch {newest}, and type the command again. If there is "
        f"none, {_without_state(name, last) if is_state else _without_sink(name)} "
        "See docs/operations.md#rebuild-a-lost-ledger.",
        sink=name,
    )


def _has(last: LastEpoch | None, newest: int) -> str:
    if last is not None and is_fence(last):
        return f"{in_words(last)}, which was waived, and has no row of that epoch"
    since = last.marker.epoch + 1 if last else 1
    shown = in_words(last) if last else "no epoch of this pipeline"
    return f"{shown}, and lacks {described_epochs(since, newest)}"


def _without_sink(name: str) -> str:
    return (
        f"type it with --without {name}; then give that sink another name in the DAG. The command prints from which "
        "epoch `backfill` can fill it, or that it lacks its earlier rows."
    )


def _without_state(name: str, last: LastEpoch | None) -> str:
    new_table = "point the state to a new table in the DAG, and " if last else ""
    return f"{new_table}type it with --without {name}: the state begins anew, in an empty table."


def _kept_states(shows: LastEpochs) -> str:
    newest = newest_epoch(shows)
    return (
        f"Take a state that shows epoch {newest} out of --without. Of one that shows an earlier epoch, restore a copy "
        f"that shows epoch {newest}. If there is none, point the state to a new table in the DAG, and type the command "
        f"again: the state begins anew there. The sinks show: {listed(shows)}."
    )
