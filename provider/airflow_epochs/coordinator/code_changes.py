"""Whether the transform's code has changed since the last epoch, and who has acknowledged that.

Code is compared by ``Transform.digest``. Where one of two digests is unknown, nothing is said to have changed: a record
of an older version has none, and neither has a rebuilt ledger.
"""

from __future__ import annotations

from airflow_epochs import codes, secrecy
from airflow_epochs.config import STOP
from airflow_epochs.coordinator.admin import Account
from airflow_epochs.coordinator.task import TaskTry, new_writer
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import ACKNOWLEDGE_CODE, SHORT_CODE, AcknowledgedRecord, Command, CompleteRecord, OpenRecord

log = secrecy.logger(__name__)


def code_of(ledger: Ledger, record: CompleteRecord | None) -> str | None:
    """The code of a complete epoch; None if unknown. Version 0.1 kept it in the open record alone."""
    if record is None:
        return None
    if record.code:
        return record.code
    opened = ledger.open_record(record.txn.epoch, record.txn.attempt)
    return opened.code if opened else None


def of_attempt(task: TaskTry, epoch: int, before: CompleteRecord | None, restored_to: int) -> str | None:
    """The code of an attempt that is about to be opened: today's. Warns if it is not that of the epoch before.

    An attempt that brings tables back runs no transform. Its code is that of the rows that come back.

    Raises:
        Refused: The pipeline stops at changed code, and nobody has acknowledged this one. Nothing was opened.
    """
    if restored_to:
        return code_of(task.ledger, task.ledger.complete_record(restored_to))
    _require_known(task, epoch, before)
    return task.pipeline.transform.digest


def _require_known(task: TaskTry, epoch: int, before: CompleteRecord | None) -> None:
    now = task.pipeline.transform.digest
    then = code_of(task.ledger, before) if now else None
    if before is None or not _differ(then, now):
        return
    what = _changed(f"epoch {before.txn.epoch}", then, now)
    if _must_ask(task, now):
        raise _not_acknowledged(task, f"{what} No epoch was opened.", epoch)
    log.warning("epoch %s: %s", epoch, what)


def warning_of(task: TaskTry, opened: OpenRecord) -> tuple[str, ...]:
    """A sentence if the code has changed since the attempt was opened, else nothing. Call it before a try is staged.

    Raises:
        Refused: The pipeline stops at changed code, and nobody has acknowledged this one. Nothing was staged.
    """
    then, now = opened.code, of_try(task, opened)
    if not _differ(then, now):
        return ()
    what = _changed("the epoch was opened", then, now)
    if _must_ask(task, now):
        raise _not_acknowledged(task, f"{what} Nothing was staged.", opened.txn.epoch, opened.txn.attempt)
    return (f"{what} These rows are of the new code.",)


def of_try(task: TaskTry, opened: OpenRecord) -> str | None:
    """The code that a try of this attempt runs."""
    return opened.code if opened.restored_to else task.pipeline.transform.digest


def obeyed(ledger: Ledger, opened: OpenRecord, code: str | None, before: CompleteRecord | None) -> tuple[Command, ...]:
    """The acknowledgement of an epoch's code, for its completion record; none if it is the code of the epoch before."""
    if opened.restored_to or not _differ(code_of(ledger, before) if code else None, code):
        return ()
    found = [record for record in ledger.acknowledgements() if record.code == code]
    return tuple(
        Command(name=ACKNOWLEDGE_CODE, who=each.who, why=each.why, at=each.at, host=each.host, login=each.login)
        for each in found[-1:]
    )


def acknowledge(ledger: Ledger, pipeline: str, code: str, *, by: Account) -> AcknowledgedRecord:
    """Let runs open epochs with this code, until the next acknowledgement.

    Raises:
        Refused: Other code was acknowledged at the same moment. This acknowledgement was not recorded.
    """
    record = AcknowledgedRecord(
        pipeline=pipeline,
        number=len(ledger.acknowledgements()) + 1,
        code=code,
        before=newest_code(ledger),
        writer=new_writer(),
        **by.fields,
    )
    standing = ledger.put_acknowledged(record)
    if standing.writer != record.writer and standing.code != code:
        raise Refused(
            f"{standing.who} acknowledged the code {_short(standing.code)} at the same moment. This command changed "
            "nothing.",
            code=codes.COMMAND_RACE,
            pipeline=pipeline,
        )
    return standing


def newest_code(ledger: Ledger) -> str | None:
    """The code of the newest complete epoch; None if unknown."""
    return code_of(ledger, ledger.complete_record(ledger.newest_complete()))


def _differ(then: str | None, now: str | None) -> bool:
    return None not in (then, now) and then != now


def _changed(since: str, then: str | None, now: str | None) -> str:
    return f"The code of the transform has changed since {since}: {_short(then)} then, {_short(now)} now."


def _short(code: str | None) -> str:
    return (code or "")[:SHORT_CODE]


def _must_ask(task: TaskTry, now: str | None) -> bool:
    if task.pipeline.on_code_change != STOP:
        return False
    known = task.ledger.acknowledgements()
    return not known or known[-1].code != now


def _not_acknowledged(task: TaskTry, what: str, epoch: int, attempt: int | None = None) -> Refused:
    name, now = task.pipeline.name, task.pipeline.transform.digest
    return Refused(
        f"{what} The pipeline has on_code_change='stop', and nobody has acknowledged the new code.",
        code=codes.CODE_NOT_ACKNOWLEDGED,
        remedy="Compare the transform's file, and the files that it imports, with those of before. Then type "
        f"`airflow epochs acknowledge-code {name} --code {now} --why …`, and clear the failed tasks. To go on with the "
        "old code, put the files back instead.",
        pipeline=name,
        epoch=epoch,
        attempt=attempt,
    )
