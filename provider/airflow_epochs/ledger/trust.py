"""Which records of a pipeline's ledger are believed.

With a key, a record is believed if it is signed. Two kinds of unsigned records are believed too, because a *signing
record* (``SigningRecord``), which itself is signed, says so:

* records that it names with their digests: all that the next epoch rests on, as they were when signing began;
* records of complete epochs before that: history, on which no decision rests.

A ``SchemaRecord`` is never signed: it is believed if its key is the digest of its content, and read only where a
believed open record names that digest.

A ledger begins to be signed with its first record. If its first record is older than its key, it begins with the first
``open`` that has the key, and until then is read without a check. Without a key no record is signed, and a signed
record is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from airflow_epochs.ledger.codec import decode, signature_of
from airflow_epochs.ledger.keys import PIPELINE_KEY, complete_key, is_dry_run_key, is_signing_key, signing_key
from airflow_epochs.ledger.signing import Keys, message
from airflow_epochs.model import FORMAT, FORMAT_UNSIGNED, PipelineRecord, RunIndex, SchemaRecord, SigningRecord

R = TypeVar("R")

_EPOCH = re.compile(r"epochs/([0-9]{20})/")


class NotBelieved(ValueError):
    """A record is not signed, or not signed with one of our keys."""


class KeyMissing(ValueError):
    """A record is signed, and we have no key to check the signature with."""

    def __init__(self) -> None:
        super().__init__("it is signed, but the ledger's connection has no password")


class Trust:
    """Decides which records of one pipeline's ledger are believed.

    Args:
        keys: The keys that sign and check; there may be none.
        required: Whether a ledger that was never signed is refused.
        pipeline: The pipeline's name.
        get: Key -> its stored bytes; None if there are none.
        last: Returns the last of the numbers 1, 2, 3 … whose key exists; 0 if there is none.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        required: bool,
        pipeline: str,
        get: Callable[[str], bytes | None],
        last: Callable[[Callable[[int], str]], int],
    ) -> None:
        self.keys = keys
        self._required = required
        self._pipeline = pipeline
        self._get = get
        self._last = last
        self._identity: bytes | None = None
        self._id: str | None = None
        self._from_the_start: bool | None = None
        self._signing: SigningRecord | None = None
        self._history: int | None = None

    # -- writing ----------------------------------------------------------------------------------------------

    def to_write(self, record: R) -> R:
        """The record with the format that it is written in: ``FORMAT`` once the ledger has begun to be signed."""
        if isinstance(record, SchemaRecord):
            return record
        begins = isinstance(record, PipelineRecord)  # if the ledger has one already, the put of this one loses
        return _as(record, FORMAT) if self.keys and (begins or self._has_begun()) else record

    def signature(self, key: str, record: Any, body: bytes) -> str | None:
        """The signature of a record that is about to be written; None if its format is the unsigned one."""
        return self.keys.sign(self._message(key, body)) if record.format == FORMAT else None

    def _has_begun(self) -> bool:
        """Whether new records are signed: the ledger is new, was signed from the start, or has a signing record."""
        return self._pipeline_record() is None or self._is_signed_from_the_start() or self.signing() is not None

    def is_current(self) -> bool:
        """Whether the newest key has signed the newest signing record; without one, the pipeline's record.

        True without keys, and for a ledger without a record.

        Raises:
            KeyMissing: There are no keys, and the ledger has begun to be signed.
        """
        if not self.keys:
            if self._get(signing_key(1)) is not None:
                raise KeyMissing
            return True
        number = self._last(signing_key)  # after a change of keys that was taken back, an old key signed the pipeline's
        key = signing_key(number) if number else PIPELINE_KEY
        value = self._get(key) if number else self._pipeline_record()
        return value is None or self._signed_with(self.keys.newest, key, value)

    # -- reading ----------------------------------------------------------------------------------------------

    def believed(self, key: str, value: bytes, record: R) -> R:
        """The record; its ``format`` is 2 only if its signature was checked.

        Raises:
            NotBelieved: The record is not signed with one of our keys, and no signing record names it.
            KeyMissing: The record is signed, and we have no key.
        """
        if isinstance(record, SchemaRecord):  # what names it vouches for it, and its key for what it says
            return record
        body, signature = signature_of(value)
        if self._fits(self.keys, key, body, signature):
            if getattr(record, "format", FORMAT) != FORMAT:
                raise NotBelieved("its signature is valid, but it has the format of records without a signature")
            self._require_beginning(key)
            return record
        if signature is None and getattr(record, "format", FORMAT_UNSIGNED) == FORMAT:
            raise NotBelieved("it has the format of signed records, but it has no signature")
        if signature and not self.keys:
            raise KeyMissing
        if self.keys and not self._is_exempt(key, value, record, signature):
            raise NotBelieved(
                "its signature does not match a key of the ledger's connection" if signature else "it is not signed"
            )
        return _as(record, FORMAT_UNSIGNED)

    def _signed_with(self, keys: Keys, key: str, value: bytes) -> bool:
        return self._fits(keys, key, *signature_of(value))

    def _fits(self, keys: Keys, key: str, body: bytes, signature: str | None) -> bool:
        return bool(keys and signature) and any(keys.fit(each, str(signature)) for each in self._messages(key, body))

    def _message(self, key: str, body: bytes) -> bytes:
        return message(self._ledger_id(key), self._named(key), body)

    def _messages(self, key: str, body: bytes) -> Iterator[bytes]:
        """What a signature of the record may cover: of a dry run's, until lately, also the id of the ledger."""
        yield self._message(key, body)
        if is_dry_run_key(key) and self._pipeline_record() is not None:
            yield message(self._id_of_ledger(), self._named(key), body)

    def _named(self, key: str) -> str:
        """The key as texts and signatures have it: with the pipeline's name."""
        return f"{self._pipeline}/{key}"

    def _ledger_id(self, key: str) -> str:
        """The id of the ledger that the record at ``key`` belongs to.

        Empty for the record that holds the id, and for signing records, which are checked before that one. Empty for
        the records of dry runs, too: a preview may come before the ledger. Such a record names an id of its own, and
        only a folder that names the same id is deleted.
        """
        if key == PIPELINE_KEY or is_signing_key(key) or is_dry_run_key(key):
            return ""
        return self._id_of_ledger()

    def _id_of_ledger(self) -> str:
        if self._id is None:
            self._id = self._read_ledger_id()
        return self._id

    def _read_ledger_id(self) -> str:
        identity = self._pipeline_record()
        if identity is None:
            raise NotBelieved(f"its signature cannot be checked, because {self._named(PIPELINE_KEY)} is missing")
        try:
            return decode(identity, PipelineRecord).ledger_id
        except ValueError as error:
            raise NotBelieved(
                f"its signature cannot be checked, because {self._named(PIPELINE_KEY)} is damaged: {error}"
            ) from error

    def _pipeline_record(self) -> bytes | None:
        self._identity = self._identity or self._get(PIPELINE_KEY)
        return self._identity

    def _is_signed_from_the_start(self) -> bool:
        if self._from_the_start is None and (identity := self._pipeline_record()) is not None:
            self._from_the_start = self._signed_with(self.keys, PIPELINE_KEY, identity)
        return bool(self._from_the_start)

    def _require_beginning(self, key: str) -> None:
        """Raise NotBelieved for a signed record in a ledger that has not begun to be signed.

        Its signing record was taken away, to make the ledger look as if it were read without a check. A preview may
        sign its record before the ledger begins, and no step of an epoch reads that.
        """
        if key == PIPELINE_KEY or is_signing_key(key) or is_dry_run_key(key):
            return
        if self._is_signed_from_the_start() or self.signing():
            return
        raise NotBelieved(
            f"it is signed, but {self._named(PIPELINE_KEY)} is not, and {self._named(signing_key(1))} is missing"
        )

    def _is_exempt(self, key: str, value: bytes, record: object, signature: str | None) -> bool:
        """Whether a record is believed although it is not signed with one of our keys."""
        signing = self.signing()
        if signing is None:
            never_signed = not signature and not self._is_signed_from_the_start()
            if never_signed and self._required:
                raise NotBelieved("the ledger was never signed, but its connection has require_signed")
            return never_signed
        if _vouches(signing, key, value, record):
            return True
        self._signing = None  # another task may have put a newer one since
        newer = self.signing()
        return newer is not None and newer != signing and _vouches(newer, key, value, record)

    def is_history(self, epoch: int) -> bool:
        """Whether the epoch's records are believed unsigned. Then nothing may be decided by them."""
        if self._history is None:  # asked often, and an epoch that was history stays history
            signing = self.signing() if self.keys else None
            self._history = signing.epoch if signing else 0
        return epoch <= self._history

    def signing(self) -> SigningRecord | None:
        """The newest signing record; None if the ledger was never signed, or was signed from the start.

        Raises:
            NotBelieved: The signing record is not signed with one of our keys.
        """
        if self._signing is None and (number := self._last(signing_key)):
            self._signing = self._read_signing(number)
        return self._signing

    def _read_signing(self, number: int) -> SigningRecord:
        key = signing_key(number)
        value = self._get(key)
        if value is None or not self._signed_with(self.keys, key, value):
            raise NotBelieved(f"{self._named(key)} is not signed with a key of the ledger's connection")
        return decode(value, SigningRecord)


def digest(value: bytes) -> str:
    """SHA-256 of a record's stored bytes, in hex."""
    return hashlib.sha256(value).hexdigest()


def _vouches(signing: SigningRecord, key: str, value: bytes, record: object) -> bool:
    if key in signing.trusted:
        return signing.trusted[key] == digest(value)
    found = _EPOCH.match(key)
    epoch = int(found[1]) if found else record.epoch if isinstance(record, RunIndex) else None
    return epoch is not None and epoch <= signing.epoch and key != complete_key(signing.epoch)


def _as(record: R, format: int) -> R:
    """The record with this ``format``; unchanged if it has no such field."""
    written = getattr(record, "format", format)
    return record if written == format else replace(record, format=format)  # type: ignore[type-var]
