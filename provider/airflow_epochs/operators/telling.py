"""What a task logs of its work: one line, for people who look for what has happened."""

from __future__ import annotations

import logging

from airflow_epochs.model import Checkpoint, Receipt, records_upper_bound

CHATTER = ("kafka", "py4j")
"""Loggers of clients that tell of every connection at INFO."""


def quiet_clients() -> list[logging.Logger]:
    """Let clients log warnings only, unless somebody has set their levels; returns the loggers that were not set."""
    unset = [client for client in map(logging.getLogger, CHATTER) if client.level == logging.NOTSET]
    for client in unset:
        client.setLevel(logging.WARNING)
    return unset


def told(step: str, done: Checkpoint, seconds: float) -> str:
    """What a step has done, such as ``epoch 7: 630 rows staged for users in 1.2 s``."""
    return f"epoch {done.epoch}: {_work(step, done)} in {seconds:.1f} s"


def in_brief(done: Checkpoint, first: int | None = None) -> str:
    """What a run has done, such as ``epoch 7: 630 rows, users@12, events 3 partitions``.

    ``first``: the run's first epoch. If it worked on several, their rows are not known here.
    """
    sinks = [_at(receipt) for _, receipt in sorted(done.receipts.items())]
    if first not in (None, done.epoch):
        return f"epochs {first} to {done.epoch}: {', '.join(sinks)}"
    rows = sum(receipt.rows for receipt in done.receipts.values())
    waived = [f"{sink} waived" for sink in sorted(done.waived)]
    return f"epoch {done.epoch}: {', '.join([f'{rows:,} rows', *sinks, *waived])}"


def _at(receipt: Receipt) -> str:
    """Where a sink stands: its version, or in how many partitions of its topic."""
    if receipt.version is not None:
        return f"{receipt.sink}@{receipt.version}"
    offsets = receipt.detail.get("offsets")
    return f"{receipt.sink} {_partitions(len(offsets))}" if offsets else receipt.sink


def _work(step: str, done: Checkpoint) -> str:
    if step == "stage" and done.stage:
        return f"{_staged(done)} staged"
    if step == "open" and done.state != "complete":
        return f"{_offsets(done)}, attempt {done.attempt}, opened"
    if step == "vote" and done.state != "complete" and done.decision:
        return f"{done.decision.value}: {_rows(done.metrics.get('rows_out') or {})}, decided"
    sink = step.removeprefix("commit.")
    if sink != step and sink in done.receipts:
        return f"{_shown(done.receipts[sink])} shown"
    if done.state == "complete":
        return _complete(step, done)
    if sink in done.waived:
        return f"{_given_up(done, sink)},"
    return f"{done.state}, and nothing was left to do for `{step}`,"


def _complete(step: str, done: Checkpoint) -> str:
    rows = _rows({sink: receipt.rows for sink, receipt in done.receipts.items()})
    waived = "".join(f"; {_given_up(done, sink)}" for sink in sorted(done.waived))
    no_more = "; so this run takes no new data" if step == "open" else ""
    return f"complete, with {rows}{waived}{no_more},"


def _given_up(done: Checkpoint, sink: str) -> str:
    """A clause that says: a sink was waived, by whom and why, and how many rows it does not get."""
    said, rows = done.waived[sink], (done.metrics.get("rows_out") or {}).get(sink)
    its = "its rows" if rows is None else f"its {rows:,} rows"
    return f"sink {sink} was waived by {said.who} ({said.why}), so it does not get {its}"


def _offsets(done: Checkpoint) -> str:
    partitions = sum(len(of) for of in done.ranges.values())
    return f"{records_upper_bound(done.ranges):,} offsets of {_partitions(partitions)}"


def _partitions(number: int) -> str:
    return f"{number} partition{'s' if number != 1 else ''}"


def _staged(done: Checkpoint) -> str:
    assert done.stage
    counted = {sink: (claim.content or {}).get("rows") for sink, claim in done.stage.claims.items()}
    known = {sink: rows for sink, rows in counted.items() if isinstance(rows, int)}
    return _rows(known) if known.keys() == counted.keys() else f"rows for {', '.join(sorted(counted))}"


def _rows(per_sink: dict[str, int]) -> str:
    return ", ".join(f"{rows:,} rows for {sink}" for sink, rows in sorted(per_sink.items())) or "no rows"


def _shown(receipt: Receipt) -> str:
    version = "" if receipt.version is None else f" as version {receipt.version}"
    return f"{_rows({receipt.sink: receipt.rows})}{version}"
