"""Checks that a ledger's store can be written, and that it honours put-if-absent.

A store that overwrites would replace a decision without an error.
"""

from __future__ import annotations

import errno
from contextlib import suppress

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.ledger.store import NotMounted, Store
from airflow_epochs.storage import answers
from airflow_epochs.storage.answers import told

log = secrecy.logger(__name__)

DISK_REMEDY = (
    "Free space on the ledger's disk, or make the disk writable again. Then let Airflow retry, or clear the failed "
    "task: it goes on where it stopped."
)


PLACE_REMEDY = (
    "Correct `ledger_root` of the ledger's connection: no folder can be created there, or there is no such bucket. "
    "Then clear the failed task."
)

_GOES_ON = "Then let Airflow retry, or clear the failed task: it goes on where it stopped."


def remedy_of_store(error: Exception | None, store: Store) -> str | None:
    """What to do about an answer of the ledger's store; None: what the error's code says."""
    if isinstance(error, NotMounted):
        return f"Mount the ledger's disk at its place again. {_GOES_ON}"
    conn_id = getattr(store, "conn_id", None)
    place = "`ledger_root` of the ledger's connection"
    return answers.remedy_of(error, conn_id, place, _GOES_ON)


def _remedy_of(error: Exception, store: Store) -> str | None:
    """What to do if the ledger cannot be written; None: what the error's code says."""
    if remedy := remedy_of_store(error, store):
        return remedy
    if isinstance(error, FileNotFoundError):
        return PLACE_REMEDY
    return DISK_REMEDY if disk_says_no(error) else None


def require_put_if_absent(store: Store, key: str, pipeline: str) -> None:
    """Put ``key``, which nobody else uses, twice, and delete it.

    Raises:
        NotApplied: The store does not accept a put.
        Refused: The store accepted the second put too.
    """
    try:
        honoured = _honours_put_if_absent(store, key)
    except Exception as error:
        raise NotApplied(
            f"The provider cannot write to the ledger at {getattr(store, 'root', '') or 'its store'}: {told(error)}.",
            code=codes.LEDGER_NOT_WRITTEN,
            remedy=_remedy_of(error, store),
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
        _put_first(store, key)
    except NotImplementedError:
        return False
    try:
        return not store.put_if_absent(key, b"second") and store.get(key) == b"first"
    finally:
        _forget(store, key)


def _put_first(store: Store, key: str) -> None:
    """Put the probe. If that fails, it may have landed: it is deleted, and a failure to delete it is not reported."""
    try:
        store.put_if_absent(key, b"first")
    except Exception:
        with suppress(Exception):
            store.delete(key)
        raise


def _forget(store: Store, key: str) -> None:
    try:
        store.delete(key)
    except Exception:  # a store that deletes nothing (object lock) is a good one for a ledger
        log.warning("cannot delete the probe key %s", key, exc_info=True)


def disk_says_no(error: Exception | None) -> str | None:
    """Why a disk refuses writes, to complete "The ledger's disk …"; None for every other error.

    For an error after which the file was looked for and not found: the write has certainly not happened.
    """
    match getattr(error, "errno", None):
        case errno.ENOSPC | errno.EDQUOT:
            return "is full"
        case errno.EROFS:
            return "is read-only"
    return None
