"""How a ledger begins to be signed, and how a new key comes to vouch for what stands: signing records are put.

What they mean to a reader: ``ledger.trust``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.ledger.codec import decode
from airflow_epochs.ledger.keys import PIPELINE_KEY, attempt_key, complete_key, epoch_folder, run_key, signing_key
from airflow_epochs.ledger.records import Records
from airflow_epochs.ledger.trust import digest
from airflow_epochs.model import OpenRecord, Run, SigningRecord


class Signing:
    """The signatures of one ledger as a whole."""

    def __init__(self, records: Records, newest_complete: Callable[[], int]) -> None:
        self._records = records
        self._newest_complete = newest_complete

    @property
    def has_keys(self) -> bool:
        return bool(self._records.trust.keys)

    def unsigned(self) -> list[str]:
        """The keys of all records that the next epoch rests on and that today's keys do not vouch for."""
        return [key for key, value in self._needed_next().items() if not self._is_believed(key, value)]

    def sign(self, *, why: str, at: str, writer: str, who: str = "", host: str = "", login: str = "") -> SigningRecord:
        """Let everything count that stands now, whoever wrote it; from here on, only what is signed with today's keys.

        Raises:
            Refused: There is no key, no such pipeline, or somebody else did the same at this moment.
        """
        if not self.has_keys:
            raise self._records.lacks_key("The ledger cannot be signed without a key")
        return self._put_signing(self._needed_next(), why=why, at=at, writer=writer, who=who, host=host, login=login)

    def sign_from_here(self, at: str, writer: str) -> None:
        """Let the newest key vouch for what was believed so far, should it not yet."""
        with self._records.believing(PIPELINE_KEY):
            if self._records.trust.is_current():
                return
        needed = self._needed_next()
        for key, value in needed.items():
            self._records.require_believed(key, value)
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
        """The stored bytes of what an epoch after the newest complete one is opened, or finished, by: a few records."""
        newest = self._newest_complete()
        keys = [
            PIPELINE_KEY,
            *self._records.keys_in("takeovers"),
            complete_key(newest),
            *self._records.keys_in(epoch_folder(newest + 1)),
        ]
        keys += [run_key(run) for run in self._openers(newest + 1)]
        return {key: value for key in keys if (value := self._records.read(key)) is not None}

    def _openers(self, number: int) -> Iterator[Run]:
        """The runs of all attempts of an epoch, whether or not their records are believed."""
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
