"""Whether a ledger's store takes records, and each of them once.

A store that overwrites would lose decisions in silence.
"""

from __future__ import annotations

import errno

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.ledger.store import Store

log = secrecy.logger(__name__)

DISK_REMEDY = (
    "Free space on the ledger's disk, or make the disk writable again. Then let Airflow retry, or clear the failed "
    "task: it goes on where it stopped."
)


def require_put_if_absent(store: Store, key: str, pipeline: str) -> None:
    """Put a key twice, which nobody else uses, and delete it.

    Raises:
        NotApplied: The store takes nothing.
        Refused: It took the second put, too.
    """
    try:
        honoured = _honours_put_if_absent(store, key)
    except Exception as error:
        raise NotApplied(
            f"The provider cannot write to the ledger: {error!r}.",
            code=codes.LEDGER_NOT_WRITTEN,
            remedy=DISK_REMEDY if disk_says_no(error) else None,
            pipeline=pipeline,
        ) from error
    if not honoured:
        raise Refused(
            "The ledger's store does not support put-if-absent: it overwrote a key that existed, or it has no "
            "conditional writes.",
            code=codes.STORE_UNCONDITIONAL,
            pipeline=pipeline,
        )


def _honours_put_if_absent(store: Store, key: str) -> bool:
    try:
        store.put_if_absent(key, b"first")
        return not store.put_if_absent(key, b"second") and store.get(key) == b"first"
    except NotImplementedError:
        return False
    finally:
        _forget(store, key)


def _forget(store: Store, key: str) -> None:
    try:
        store.delete(key)
    except Exception:  # a store that keeps everything (object lock) is a good home for a ledger
        log.warning("the probe key %s cannot be deleted", key, exc_info=True)


def disk_says_no(error: Exception | None) -> str | None:
    """Why a disk takes no more, if it said so; the file was not there when it was looked for afterwards."""
    match getattr(error, "errno", None):
        case errno.ENOSPC | errno.EDQUOT:
            return "is full"
        case errno.EROFS:
            return "is read-only"
    return None
