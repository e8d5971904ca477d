"""Whether the transform's code has changed since the last epoch, and who has acknowledged that.

Code is compared by ``Transform.digest``, the digest of the files, and by the function. If one of two digests is
unknown, the code counts as unchanged: records of an older version and a rebuilt ledger have no digest. The
function is compared only where both are known: the open record that has it may be pruned.
"""

from __future__ import annotations

from typing import NamedTuple

from airflow_epochs import codes, secrecy
from airflow_epochs.config import STOP, Transform
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.task import TaskTry, new_writer
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import (
    ACKNOWLEDGE_CODE,
    SHORT_CODE,
    AcknowledgedRecord,
    Command,
    CompleteRecord,
    OpenRecord,
    TryRecord,
)

log = secrecy.logger(__name__)


class TransformCode(NamedTuple):
    """What makes rows: the digest of the files, and the function in them; each None if unknown."""

    digest: str | None
    function: str | None

    def __str__(self) -> str:
        return f"{self.digest or 'unknown'}{f':{self.function}' if self.function else ''}"

    @classmethod
    def of(cls, transform: Transform) -> TransformCode:
        """The code of today's pipeline."""
        return cls(transform.digest, transform.function)


def code_of(ledger: Ledger, record: CompleteRecord | None) -> str | None:
    """The code of a complete epoch; None if unknown. Version 0.1 kept it in the open record alone."""
    if record is None:
        return None
    if record.code:
        return record.code
    opened = ledger.open_record(record.txn_id.epoch, record.txn_id.attempt)
    return opened.code if opened else None


def of_attempt(task: TaskTry, epoch: int, before: CompleteRecord | None, restored_to: int) -> str | None:
    """The code of an attempt that is about to be opened: today's. Warns if it differs from the epoch before.

    An attempt that brings tables back runs no transform. Its code is the code that made the rows that come back.

    Raises:
        Refused: The pipeline stops at changed code, and nobody has acknowledged this one. Nothing was opened.
    """
    if restored_to:
        return code_of(task.ledger, task.ledger.complete_record(restored_to))
    _require_known(task, epoch, before)
    return task.pipeline.transform.digest


def _require_known(task: TaskTry, epoch: int, before: CompleteRecord | None) -> None:
    if before is None or not has_changed(task, before):
        return
    then, now = of_epoch(task.ledger, before), TransformCode.of(task.pipeline.transform)
    what = _changed(f"epoch {before.txn_id.epoch}", then, now)
    if _must_ask(task, then, now):
        raise _not_acknowledged(task, f"{what} No epoch was opened.", epoch)
    log.warning("epoch %s: %s", epoch, what)


def warning_of(task: TaskTry, opened: OpenRecord) -> tuple[str, ...]:
    """A sentence if the code has changed since the attempt was opened, else nothing. Call it before a try is staged.

    Raises:
        Refused: The pipeline stops at changed code, and nobody has acknowledged this one. Nothing was staged.
    """
    then, now = code_in(opened), TransformCode.of(task.pipeline.transform)
    if opened.restored_to or not differ(then, now):
        return ()
    what = _changed("the epoch was opened", then, now)
    if _must_ask(task, then, now):
        raise _not_acknowledged(task, f"{what} Nothing was staged.", opened.txn_id.epoch, opened.txn_id.attempt)
    return (f"{what} These rows are of the new code.",)


def has_changed(task: TaskTry, before: CompleteRecord | None) -> bool:
    """Whether today's code differs from the code of a complete epoch, as far as both are known."""
    now = TransformCode.of(task.pipeline.transform)
    return now.digest is not None and differ(of_epoch(task.ledger, before), now)


def of_epoch(ledger: Ledger, record: CompleteRecord | None) -> TransformCode:
    """As ``code_of``, with the function."""
    return TransformCode(code_of(ledger, record), _function_of(ledger, record))


def _function_of(ledger: Ledger, record: CompleteRecord | None) -> str | None:
    opened = ledger.open_record(record.txn_id.epoch, record.txn_id.attempt) if record else None
    if opened and opened.restored_to:
        return _function_of(ledger, ledger.complete_record(opened.restored_to))
    return _function_in(opened) if opened else None


def code_in(opened: OpenRecord) -> TransformCode:
    """The code of an attempt."""
    return TransformCode(opened.code, _function_in(opened))


def _function_in(opened: OpenRecord) -> str | None:
    return opened.transform.rpartition(":")[2] or None


def is_of_today(task: TaskTry, opened: OpenRecord, tried: TryRecord) -> bool:
    """Whether an earlier try of this attempt ran the same code as a try of today."""
    return _of_tried(opened, tried) == of_try(task, opened)


def of_try(task: TaskTry, opened: OpenRecord) -> TransformCode:
    """The code that a try of this attempt runs. An attempt that brings tables back has the code of their rows."""
    return TransformCode(opened.code, None) if opened.restored_to else TransformCode.of(task.pipeline.transform)


def _of_tried(opened: OpenRecord, tried: TryRecord) -> TransformCode:
    return TransformCode(tried.code, None if opened.restored_to else tried.function or _function_in(opened))


def of_rows(ledger: Ledger, opened: OpenRecord, sink: str, place: str, decided: str | None) -> TransformCode:
    """The code that staged a sink's rows at this place. Other code than at ``open`` may have been deployed before.

    ``decided``: the files, as the decision on these rows has them.
    """
    found = (_of_tried(opened, tried) for tried in ledger.tries_of(opened) if tried.places.get(sink) == place)
    return next(found, TransformCode(None, _function_in(opened)))._replace(digest=decided or opened.code)


def told(then: TransformCode, now: TransformCode) -> str:
    """How two codes differ, in a few words."""
    was, is_now = _short(then.digest), _short(now.digest)
    if then.digest == now.digest:
        was, is_now = f"the function {then.function}", f"{now.function}"
    return f"{was} then, {is_now} now"


def obeyed(ledger: Ledger, opened: OpenRecord, code: str | None, before: CompleteRecord | None) -> tuple[Command, ...]:
    """The acknowledgement of an epoch's code, for its completion record; empty if its files are unchanged.

    It looks at no function: an open record that cannot be read must not keep a decided epoch from its completion.
    """
    then = code_of(ledger, before) if code else None
    if opened.restored_to or None in (then, code) or then == code:
        return ()
    found = [record for record in ledger.acknowledgements() if record.code == code]
    return tuple(
        Command(name=ACKNOWLEDGE_CODE, who=each.who, why=each.why, at=each.at, host=each.host, login=each.login)
        for each in found[-1:]
    )


def acknowledge(
    ledger: Ledger, pipeline: str, code: str, *, by: Account, function: str | None = None
) -> AcknowledgedRecord:
    """Let runs open epochs with this code, until the next acknowledgement. ``function``: as in ``AcknowledgedRecord``.

    Raises:
        Refused: Other code was acknowledged at the same moment. This acknowledgement was not recorded.
    """
    record = AcknowledgedRecord(
        pipeline=pipeline,
        number=len(ledger.acknowledgements()) + 1,
        code=code,
        function=function,
        before=newest_code(ledger).digest,
        writer=new_writer(),
        **by.fields,
    )
    standing = ledger.put(record)
    if standing.writer != record.writer and (standing.code, standing.function) != (code, function):
        raise Refused(
            f"{standing.who} acknowledged the code {_short(standing.code)} at the same moment. This command changed "
            "nothing.",
            code=codes.COMMAND_RACE,
            pipeline=pipeline,
        )
    return standing


def newest_code(ledger: Ledger) -> TransformCode:
    """The code of the newest complete epoch."""
    return of_epoch(ledger, ledger.complete_record(ledger.newest_complete()))


def is_known(ledger: Ledger, code: TransformCode) -> bool:
    """Whether the newest complete epoch has this code. ``code.function``: None if only the files are meant."""
    then = newest_code(ledger)
    return then.digest == code.digest and not differ(then, code)


def differ(then: TransformCode, now: TransformCode) -> bool:
    """Whether these are two codes, as far as both are known: other files, or another function of the same files."""
    if None in (then.digest, now.digest):
        return False
    return then.digest != now.digest or (None not in (then.function, now.function) and then.function != now.function)


def _changed(since: str, then: TransformCode, now: TransformCode) -> str:
    return f"The code of the transform has changed since {since}: {told(then, now)}."


def _short(code: str | None) -> str:
    return (code or "")[:SHORT_CODE]


def _must_ask(task: TaskTry, then: TransformCode, now: TransformCode) -> bool:
    if task.pipeline.on_code_change != STOP:
        return False
    known = task.ledger.acknowledgements()
    if not known or known[-1].code != now.digest:
        return True
    if known[-1].function is None:  # only changed files were acknowledged
        return then.digest == now.digest
    return known[-1].function != now.function


def _not_acknowledged(task: TaskTry, what: str, epoch: int, attempt: int | None = None) -> Refused:
    name, now = task.pipeline.name, TransformCode.of(task.pipeline.transform)
    return Refused(
        f"{what} The pipeline has on_code_change='stop', and nobody has acknowledged the new code.",
        code=codes.CODE_NOT_ACKNOWLEDGED,
        remedy="Compare the transform's file, and the files that it imports, with their earlier state. Then type "
        f"`airflow epochs acknowledge-code {name} --code {now} --why …`, and after it `airflow epochs retry {name} "
        "--why …`. To go on with the old code, put the files, and the function that `transform` of the DAG names, back "
        "instead.",
        pipeline=name,
        epoch=epoch,
        attempt=attempt,
    )
