"""Puts signing records: when a ledger begins to be signed, and when it gets a new key.

``ledger.trust`` says what they mean to a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.ledger.codec import decode
from airflow_epochs.ledger.keys import (
    ACKNOWLEDGED_FOLDER,
    DRY_RUNS_FOLDER,
    PAUSES_FOLDER,
    PIPELINE_KEY,
    REBUILT_FOLDER,
    RETRIES_FOLDER,
    SAVEPOINTS_FOLDER,
    attempt_key,
    complete_key,
    epoch_folder,
    run_key,
    signing_key,
)
from airflow_epochs.ledger.records import Records
from airflow_epochs.ledger.trust import digest
from airflow_epochs.model import OpenRecord, Run, SigningRecord


class Signing:
    """Which records of one ledger are signed, and how the others come to be believed."""

    def __init__(self, records: Records, newest_complete: Callable[[], int]) -> None:
        self._records = records
        self._newest_complete = newest_complete

    @property
    def has_keys(self) -> bool:
        """Whether there is a key to sign records with."""
        return bool(self._records.trust.keys)

    def newest(self) -> SigningRecord | None:
        """The signing record that counts; None without keys, or if the ledger was signed from the start or never.

        Earlier ones may be signed with keys that the connection does not have any more.
        """
        with self._records.believing(PIPELINE_KEY):
            return self._records.trust.signing() if self.has_keys else None

    def unsigned(self) -> list[str]:
        """The keys of the records that today's signing keys do not confirm, though the next epoch rests on them.

        Also records of dry runs that were killed: the next dry run reads them.
        """
        needed = {**self._needed_next(), **self._dry_runs()}
        return [key for key, value in needed.items() if not self._is_believed(key, value)]

    def sign(self, *, why: str, at: str, writer: str, who: str = "", host: str = "", login: str = "") -> SigningRecord:
        """Put a signing record: today's records count, signed or not; later ones count only if they are signed.

        Raises:
            Refused: There is no key, or another signing record was put at the same moment. Nothing changed.
        """
        if not self.has_keys:
            raise self._records.lacks_key("The ledger cannot be signed without a key")
        needed = {**self._needed_next(), **self._dry_runs()}
        return self._put_signing(needed, why=why, at=at, writer=writer, who=who, host=host, login=login)

    def sign_from_here(self, at: str, writer: str) -> None:
        """Put a signing record with the newest key, unless that key confirms the ledger already. Idempotent.

        Raises:
            Corrupt, Refused: A record that the next epoch rests on is not believed. Nothing changed.
        """
        with self._records.believing(PIPELINE_KEY):
            if self._records.trust.is_current():
                return
        needed = self._needed_next()
        for key, value in needed.items():
            self._records.require_believed(key, value)
        # No epoch rests on the record of a dry run, so one that is not believed does not stop the pipeline.
        needed |= {key: value for key, value in self._dry_runs().items() if self._is_believed(key, value)}
        why = "the password of the ledger's connection was set, or changed"
        self._put_signing(needed, why=why, at=at, writer=writer)

    def _put_signing(
        self,
        needed: dict[str, bytes],
        *,
        why: str,
        at: str,
        writer: str,
        who: str = "",
        host: str = "",
        login: str = "",
    ) -> SigningRecord:
        number = self._records.last(signing_key) + 1
        record = SigningRecord(
            pipeline=self._records.pipeline,
            number=number,
            epoch=self._newest_complete(),
            trusted={key: digest(value) for key, value in needed.items()},
            why=why,
            at=at,
            writer=writer,
            who=who,
            host=host,
            login=login,
        )
        standing = self._records.put(record)
        if standing.writer != writer:
            raise Refused(
                f"Another process wrote {self._records.key(signing_key(number))} at the same moment.",
                code=codes.LEDGER_RECORD_RACE,
                pipeline=self._records.pipeline,
            )
        return standing

    def _needed_next(self) -> dict[str, bytes]:
        """Key -> stored bytes of the few records that the next epoch is opened or finished by."""
        newest = self._newest_complete()
        keys = [
            PIPELINE_KEY,
            *self._records.keys_in("takeovers"),
            *self._records.keys_in(REBUILT_FOLDER),
            *self._records.keys_in(ACKNOWLEDGED_FOLDER),
            *self._records.keys_in(PAUSES_FOLDER),
            *self._records.keys_in(RETRIES_FOLDER),
            *self._records.keys_in(SAVEPOINTS_FOLDER),
            complete_key(newest),
            *self._records.keys_in(epoch_folder(newest + 1)),
        ]
        keys += [run_key(run) for run in self._openers(newest + 1)]
        return self._stored(keys)

    def _dry_runs(self) -> dict[str, bytes]:
        """Key -> stored bytes of what dry runs have put that are at work, or were killed."""
        return self._stored(self._records.keys_in(DRY_RUNS_FOLDER))

    def _stored(self, keys: Iterable[str]) -> dict[str, bytes]:
        return {key: value for key in keys if (value := self._records.read(key)) is not None}

    def _openers(self, number: int) -> Iterator[Run]:
        """The runs of all attempts of an epoch. Their records need not be believed yet: they are about to be."""
        for attempt in range(1, self._records.last(lambda n: attempt_key(number, n, "open")) + 1):
            key = attempt_key(number, attempt, "open")
            try:
                yield decode(self._records.read(key) or b"", OpenRecord).run
            except ValueError as error:
                raise self._records.damaged(key, error) from error

    def _is_believed(self, key: str, value: bytes) -> bool:
        try:
            self._records.require_believed(key, value)
        except (Corrupt, Refused):
            return False
        return True
