"""Reads and puts single records of one pipeline.

Every record is immutable, so a precondition that was read stays true. A put returns the record that *stands*: the
caller's own, or the winner's, which the caller must obey. If a put gets no answer, the key is read back: the record
says whose it is. ``ledger.trust`` decides which records are believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt, EpochError, NotApplied, OutcomeUnknown, Refused
from airflow_epochs.ledger.codec import NewerFormat, decode, encode, require_readable
from airflow_epochs.ledger.keys import PIPELINE_KEY, LedgerRecord, key_of, pipeline_of
from airflow_epochs.ledger.remembered import Remembered
from airflow_epochs.ledger.signing import RANDOM_KEY, Keys
from airflow_epochs.ledger.store import Store
from airflow_epochs.ledger.trust import KeyMissing, NotBelieved, Trust
from airflow_epochs.ledger.writable import DISK_REMEDY, disk_says_no, remedy_of_store
from airflow_epochs.model import FORMAT, OpenRecord, PipelineRecord
from airflow_epochs.names import validated_name
from airflow_epochs.storage.answers import told
from airflow_epochs.storage.blobs import TooLarge

R = TypeVar("R")
P = TypeVar("P", bound=LedgerRecord)

PUT_TRIES = 3
"""How often a put is sent and its key read back, before a put without an answer raises OutcomeUnknown."""


class Records:
    """The records in one pipeline's folder of a store, for one task. It takes the arguments of ``Ledger``.

    Keys are relative to the pipeline's folder. Reading methods raise OutcomeUnknown if the store does not answer.
    """

    def __init__(self, store: Store, pipeline: str, keys: Keys, *, require_signed: bool, checked: bool) -> None:
        self.pipeline = validated_name("pipeline", pipeline)
        self.trust = Trust(keys, required=require_signed, pipeline=pipeline, get=self.read, last=self.last)
        self._asked, self._store = store, Remembered(store)
        self._checked = checked
        self._identity: PipelineRecord | None = None

    # -- reading --------------------------------------------------------------------------------------------

    def identity(self) -> PipelineRecord | None:
        """The pipeline's record; None if no DAG has registered the pipeline yet."""
        self._identity = self._identity or self.get(PIPELINE_KEY, PipelineRecord)
        return self._identity

    def key(self, key: str) -> str:
        """The key as the store has it: within the ledger's root."""
        return f"{self.pipeline}/{key}"

    def exists(self, key: str) -> bool:
        """Whether there is a record under this key, believed or not."""
        with self._reading(key):
            return self._store.exists(self.key(key))

    def has(self, key: str) -> bool:
        """As ``exists``, for a record that is about to be read."""
        return self.read(key) is not None

    def folders(self) -> list[str]:
        """The folders in the store, sorted: one for each pipeline."""
        with self._reading(""):
            return self._store.folders()

    def keys_in(self, folder: str) -> list[str]:
        """The keys below a folder, recursively, sorted."""
        with self._reading(folder):
            return [key.removeprefix(f"{self.pipeline}/") for key in self._store.list(self.key(folder))]

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        """Turn every error of the store while it is read into ours.

        It is OutcomeUnknown, not NotApplied: an effect that the caller had before this read may stand.
        """
        try:
            yield
        except TooLarge as error:
            raise self.damaged(key, error) from error
        except Exception as error:
            raise OutcomeUnknown(
                f"The provider cannot read {self.key(key)} in the ledger: {told(error)}.",
                code=codes.LEDGER_UNREADABLE,
                remedy=remedy_of_store(error, self._asked),
                pipeline=self.pipeline,
            ) from error

    def numbered(self, key_of_number: Callable[[int], str], kind: type[R]) -> list[R]:
        """The records 1, 2, 3 … in order. They are dense, and few enough to read them one by one."""
        records: list[R] = []
        while record := self.get(key_of_number(len(records) + 1), kind):
            records.append(record)
        return records

    def read(self, key: str) -> bytes | None:
        """The stored bytes, unchecked; None if there is no record. Raises Corrupt if they are too many."""
        with self._reading(key):
            return self._store.get(self.key(key))

    def last(self, key_of_number: Callable[[int], str]) -> int:
        """The last of the dense numbers 1, 2, 3 … whose key exists; 0 if there is none."""
        return last_of(lambda number: self.exists(key_of_number(number)))

    def get(self, key: str, kind: type[R]) -> R | None:
        """The record under a key; None if there is none.

        Raises:
            Corrupt: The record is damaged, belongs to another key, or is not believed.
            Refused: A newer version wrote it, or the keys that it takes to check it are missing.
        """
        value = self.read(key)
        return None if value is None else self._decoded(key, value, kind)

    def _decoded(self, key: str, value: bytes, kind: type[R]) -> R:
        try:
            record = decode(value, kind)
            self._require_home(key, record)
        except NewerFormat as newer:
            raise Refused(
                f"The ledger record {self.key(key)} has format {newer.format}. This version of the provider reads "
                f"formats up to {FORMAT}.",
                code=codes.LEDGER_TOO_NEW,
                pipeline=self.pipeline,
            ) from newer
        except ValueError as error:
            raise self.damaged(key, error) from error
        with self.believing(key):
            return self.trust.believed(key, value, record) if self._checked else record

    def _require_home(self, key: str, record: R) -> None:
        """Raise ValueError for a record that was copied from another key, pipeline or ledger: it would be obeyed."""
        if pipeline_of(record) not in (None, self.pipeline):
            raise ValueError(f"it belongs to pipeline {pipeline_of(record)!r}")
        if isinstance(record, LedgerRecord) and key_of(record) != key:
            raise ValueError(f"it belongs to {key_of(record)}")
        if isinstance(record, OpenRecord) and (mine := self.identity()) and record.ledger_id != mine.ledger_id:
            raise ValueError(f"it belongs to ledger {record.ledger_id}, and {PIPELINE_KEY} says {mine.ledger_id}")

    # -- writing --------------------------------------------------------------------------------------------

    def put(self, record: P) -> P:
        """Put a record under its own key, durably; the record that stands. Raises as ``put_at``."""
        return self.put_at(key_of(record), record)

    def put_at(self, key: str, record: R) -> R:
        """Put-if-absent, durably. Idempotent: a repeat returns the record that stands, perhaps another writer's.

        Raises:
            NotApplied: The ledger's disk is full or read-only; the record is not there.
            OutcomeUnknown: No put was answered; the record may be there. The next task reads it back.
            Corrupt, Refused: As ``get``, for the record that stands.
            Refused: No reader would accept the record: it is too large or nested too deeply. Nothing was put.
        """
        with self.believing(key):
            record = self.trust.to_write(record)
            value = self._encoded(key, record)
        error: Exception | None = None
        for _ in range(PUT_TRIES):
            try:
                if self._store.put_if_absent(self.key(key), value):
                    return record
                if standing := self.get(key, type(record)):
                    return standing
            except (Corrupt, Refused):
                raise
            except Exception as failed:
                error = failed
                # The put may have landed although its answer was lost. To repeat it is safe: a key has one winner.
                if standing := self._read_back(key, type(record)):
                    return standing
        raise self._not_put(key, error) from error

    def _not_put(self, key: str, error: Exception | None) -> EpochError:
        """The error for a record that is not known to be stored. ``error``: what the last put raised, if it raised."""
        why = told(error) if error else "it says that the key exists, and has no value for it"
        if disk := disk_says_no(error):
            return NotApplied(
                f"The ledger's disk {disk}. The provider cannot write {self.key(key)}: {why}.",
                code=codes.LEDGER_NOT_WRITTEN,
                remedy=DISK_REMEDY,
                pipeline=self.pipeline,
            )
        return OutcomeUnknown(
            f"The ledger's store did not confirm that it wrote {self.key(key)}: {why}.",
            code=codes.LEDGER_WRITE_UNKNOWN,
            remedy=remedy_of_store(error, self._asked),
            pipeline=self.pipeline,
        )

    def _encoded(self, key: str, record: object) -> bytes:
        """The bytes of a record. Raises Refused if no reader would accept them: such a record could not be replaced."""
        value = encode(record, lambda body: self.trust.signature(key, record, body))
        try:
            require_readable(value)
        except ValueError as error:
            raise Refused(
                f"The provider did not write the ledger record {self.key(key)}, because it could not read it again: "
                f"{error}.",
                code=codes.LEDGER_RECORD_TOO_LARGE,
                pipeline=self.pipeline,
            ) from error
        return value

    def _read_back(self, key: str, kind: type[R]) -> R | None:
        try:
            return self.get(key, kind)
        except (Corrupt, Refused):
            raise
        except Exception:
            return None  # still unknown: the caller tries again, PUT_TRIES times in all, and then says so

    def delete(self, key: str) -> None:
        """Delete a record. Idempotent. Only for records of a complete epoch."""
        self._store.delete(self.key(key))

    # -- what is believed -------------------------------------------------------------------------------------

    def require_believed(self, key: str, value: bytes) -> None:
        """Raise Corrupt or Refused unless the stored bytes are believed as a record under this key."""
        with self.believing(key):
            self.trust.believed(key, value, None)

    @contextmanager
    def believing(self, key: str) -> Iterator[None]:
        """Turn what ``trust`` raises into errors that name the record and the remedy."""
        try:
            yield
        except KeyMissing as error:
            raise self.lacks_key(f"The ledger has signed records, such as {self.key(key)}") from error
        except NotBelieved as error:
            raise Corrupt(
                f"The provider does not trust the ledger record {self.key(key)}: {error}. Nothing was written.",
                code=codes.LEDGER_RECORD_FORGED,
                remedy="Find out who wrote this file. If you changed the password of the ledger's connection, set it "
                "to the new password, a comma and the old password. If one of your tasks wrote the file before the "
                f"password was set, run `airflow epochs sign {self.pipeline} --why …`: it lists the records that are "
                "not signed, and accepts them. If no task of yours wrote the file, it is forged: restore it from a "
                "backup of the ledger, or move it away if the backup does not have it.",
                pipeline=self.pipeline,
            ) from error

    def lacks_key(self, why: str) -> Refused:
        """The error for a signed ledger whose connection has no password. ``why`` completes "The ledger …"."""
        return Refused(
            f"{why}, but the ledger's connection has no password.",
            code=codes.SIGNING_PASSWORD_MISSING,
            remedy="Set the password of the connection of type epochs to the key that the ledger is signed with. If "
            f"that key is lost, make a new one (`{RANDOM_KEY}`), set it as the password, and accept the present "
            f"records with `airflow epochs sign {self.pipeline} --why …`.",
            pipeline=self.pipeline,
        )

    def damaged(self, key: str, why: ValueError) -> Corrupt:
        """The error for a record that cannot be decoded, or is under a wrong key."""
        return Corrupt(
            f"The ledger record {self.key(key)} is damaged, or in the wrong place: {why}.",
            code=codes.LEDGER_RECORD_DAMAGED,
            pipeline=self.pipeline,
        )


def last_of(exists: Callable[[int], bool], first: int = 1) -> int:
    """The last of the dense numbers 1, 2, 3 … for which ``exists`` holds; 0 if there is none.

    Doubles from ``first``, then halves: about ``2 log2(n)`` calls.
    """
    low, high = 0, first
    while exists(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exists(middle) else (low, middle)
    return low
