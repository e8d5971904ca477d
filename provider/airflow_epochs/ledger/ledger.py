"""The decision ledger: the authority, and the only place with put-if-absent.

Every record is immutable, so every precondition, once read, stays true. A put returns the record that *stands*:
the caller's own, or the winner's, which the caller must obey. A put whose answer was lost is read back.
Which records are believed: ``ledger.trust``.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from airflow_epochs import secrecy
from airflow_epochs.errors import Corrupt, NotApplied, OutcomeUnknown, Refused
from airflow_epochs.ledger.codec import NewerFormat, decode, encode, require_readable
from airflow_epochs.ledger.keys import (
    EPOCHS_FOLDER,
    PIPELINE_KEY,
    Record,
    attempt_key,
    complete_key,
    epoch_completed_by,
    epoch_folder,
    key_of,
    pipeline_of,
    restaged_key,
    run_key,
    signing_key,
    sink_key,
    takeover_key,
)
from airflow_epochs.ledger.remembered import Remembered
from airflow_epochs.ledger.signing import NO_KEYS, Keys
from airflow_epochs.ledger.store import Store, TooLarge
from airflow_epochs.ledger.trust import KeyMissing, NotBelieved, Trust, digest
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import (
    FORMAT,
    FORMAT_UNSIGNED,
    CompleteRecord,
    DecisionRecord,
    OpenRecord,
    PipelineRecord,
    Receipt,
    RestagedRecord,
    Run,
    RunIndex,
    SigningRecord,
    TakeoverRecord,
    TryRecord,
    WaivedRecord,
)
from airflow_epochs.names import validated_name
from airflow_epochs.protocol import IllegalTransition

R = TypeVar("R")
P = TypeVar("P", bound=Record)

log = secrecy.logger(__name__)

PUT_TRIES = 3
"""How often a put without an answer is read back and sent again before its outcome is called unknown."""


class Ledger:
    """One pipeline's ledger, for one task: it remembers the records that it has read, which can never change.

    Args:
        store: Where it lies.
        pipeline: The pipeline's name.
        keys: What records are signed with; none: unsigned.
        require_signed: Whether a ledger that was never signed is refused.
        checked: False for readers without keys: they believe every record. They must not write.
    """

    def __init__(
        self,
        store: Store,
        pipeline: str,
        keys: Keys = NO_KEYS,
        *,
        require_signed: bool = False,
        checked: bool = True,
    ) -> None:
        self._untouched = store
        self._store = Remembered(store)
        self._pipeline = validated_name("pipeline", pipeline)
        self._checked = checked
        self._trust = Trust(
            keys, required=require_signed, pipeline=self._pipeline, get=self._bytes, last=self._last_written
        )
        self._probed = False
        self._known_complete = 0
        self._identity: PipelineRecord | None = None

    @property
    def root(self) -> str:
        """Where the ledger lies; empty if its store does not say."""
        return str(getattr(self._untouched, "root", ""))

    # -- pipeline and owner ---------------------------------------------------------------------------------

    def identity(self) -> PipelineRecord | None:
        """The pipeline's record, or None if it has not been registered yet."""
        self._identity = self._identity or self._get(PIPELINE_KEY, PipelineRecord)
        return self._identity

    def register(self, dag_id: str, *, at: str, writer: str) -> PipelineRecord:
        """The pipeline's identity, created by its first caller.

        Raises:
            Refused: Another DAG owns the pipeline, or the store does not honour put-if-absent.
        """
        self.probe()
        identity = self.identity()
        if identity or not self.has_keys:
            self._sign_from_here(at, writer)
        identity = identity or self._put(
            PipelineRecord(
                pipeline=self._pipeline,
                ledger_id=uuid.uuid4().hex,
                dag_id=dag_id,
                created_at=at,
                writer=writer,
            ),
        )
        owner = self.owner(identity)
        if owner != dag_id:
            raise Refused(
                f"The pipeline belongs to DAG {owner!r}; DAG {dag_id!r} may not run it.",
                remedy=f"give this pipeline another name, or hand it over with "
                f"`airflow epochs takeover {self._pipeline} --dag-id {dag_id} --why …`.",
                pipeline=self._pipeline,
            )
        return identity

    def owner(self, identity: PipelineRecord) -> str:
        takeovers = self._takeovers()
        return takeovers[-1].dag_id if takeovers else identity.dag_id

    def take_over(
        self, dag_id: str, *, who: str, why: str, at: str, writer: str, host: str = "", login: str = ""
    ) -> TakeoverRecord:
        """Record a new owning DAG. Raises Fenced-like Refused if somebody else took over at the same moment."""
        record = TakeoverRecord(dag_id=dag_id, who=who, host=host, login=login, why=why, at=at, writer=writer)
        standing = self._put_at(takeover_key(len(self._takeovers()) + 1), record)
        if replace(standing, format=record.format) != record:
            raise Refused(
                f"{standing.who} handed the pipeline to DAG {standing.dag_id!r} at the same moment.",
                remedy="look at the pipeline again, and repeat the takeover if it is still wanted.",
                pipeline=self._pipeline,
            )
        return standing

    def _takeovers(self) -> list[TakeoverRecord]:
        return self._numbered(takeover_key, TakeoverRecord)

    # -- signatures -----------------------------------------------------------------------------------------

    @property
    def has_keys(self) -> bool:
        return bool(self._trust.keys)

    def unsigned(self) -> list[str]:
        """The keys of all records that the next epoch rests on and that today's keys do not vouch for."""
        return [key for key, value in self._needed_next().items() if not self._is_believed(key, value)]

    def sign_as_it_stands(
        self, *, why: str, at: str, writer: str, who: str = "", host: str = "", login: str = ""
    ) -> SigningRecord:
        """Let everything count that stands now, whoever wrote it; from here on, only what is signed with today's keys.

        Raises:
            Refused: There is no key, no such pipeline, or somebody else did the same at this moment.
        """
        if not self.has_keys:
            raise self._lacks_key("is to be signed")
        return self._put_signing(self._needed_next(), why=why, at=at, writer=writer, who=who, host=host, login=login)

    def _sign_from_here(self, at: str, writer: str) -> None:
        """Let the newest key vouch for what was believed so far, should it not yet."""
        with self._believing(PIPELINE_KEY):
            if self._trust.is_current():
                return
        needed = self._needed_next()
        for key, value in needed.items():
            self._require_believed(key, value)
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
        number = self._last_written(signing_key) + 1
        record = SigningRecord(
            pipeline=self._pipeline,
            number=number,
            epoch=self.newest_complete(),
            trusted={key: digest(value) for key, value in needed.items()},
            why=why,
            at=at,
            writer=writer,
            who=who,
            host=host,
            login=login,
        )
        standing = self._put(record)
        if standing.writer != writer:
            raise Refused(
                f"Somebody else has put {self._key(signing_key(number))} at the same moment.",
                remedy="clear the task, or type the command again.",
                pipeline=self._pipeline,
            )
        return standing

    def _needed_next(self) -> dict[str, bytes]:
        """The stored bytes of what an epoch after the newest complete one is opened, or finished, by: a few records."""
        newest = self.newest_complete()
        keys = [PIPELINE_KEY, *self._list("takeovers"), complete_key(newest), *self._list(epoch_folder(newest + 1))]
        keys += [run_key(run) for run in self._openers(newest + 1)]
        return {key: value for key in keys if (value := self._bytes(key)) is not None}

    def _openers(self, number: int) -> Iterator[Run]:
        """The runs of all attempts of an epoch, whether or not their records are believed."""
        for attempt in range(1, self._last_written(lambda n: attempt_key(number, n, "open")) + 1):
            key = attempt_key(number, attempt, "open")
            try:
                yield decode(self._bytes(key) or b"", OpenRecord).run
            except ValueError as error:
                raise self._untrusted(key, error) from error

    def _is_believed(self, key: str, value: bytes) -> bool:
        try:
            self._require_believed(key, value)
        except (Corrupt, Refused):
            return False
        return True

    def _require_believed(self, key: str, value: bytes) -> None:
        with self._believing(key):
            self._trust.believed(key, value, None)

    @contextmanager
    def _believing(self, key: str) -> Iterator[None]:
        """What ``trust`` raises, as errors that name the record and the remedy."""
        try:
            yield
        except KeyMissing as error:
            raise self._lacks_key(f"has signed records, such as {self._key(key)}") from error
        except NotBelieved as error:
            raise Corrupt(
                f"The ledger record {self._key(key)} is not believed: {error}.",
                remedy="find out who wrote that file. If the password of the ledger's connection was changed, put "
                "the old one behind the new one, with a comma between them. If a task of yours wrote it before the "
                f"password was set, `airflow epochs sign {self._pipeline} --why …` lists what is not signed, and lets "
                "it count. If nobody of yours wrote it, it is forged: put back what a backup of the ledger has there, "
                "or move the file away if the backup has nothing there. Nothing was written.",
                pipeline=self._pipeline,
            ) from error

    def _lacks_key(self, why: str) -> Refused:
        return Refused(
            f"The ledger of pipeline {self._pipeline} {why}, and its connection has no password.",
            remedy="set the password of the connection of type epochs to the key that the ledger is signed with. If "
            "that is lost, set a new one (`python -c 'import secrets; print(secrets.token_urlsafe(32))'`), and let "
            f"what stands count by `airflow epochs sign {self._pipeline} --why …`.",
            pipeline=self._pipeline,
        )

    # -- reading --------------------------------------------------------------------------------------------

    def newest_complete(self) -> int:
        """The newest complete epoch, 0 if none. Epochs are dense, so it is found by doubling, then halving."""
        known = self._known_complete
        self._known_complete += _last_of(lambda further: self._exists(complete_key(known + further)))
        return self._known_complete

    def require_no_gap(self, number: int, *, thoroughly: bool = False) -> None:
        """Raise Corrupt if an epoch after ``number``, which seems not to be complete, is: a record was lost.

        One look, at the next epoch; ``thoroughly`` at all keys, which takes as long as there are many epochs.
        """
        if not thoroughly and not self._exists(complete_key(number + 1)):
            return
        later = {epoch for epoch in map(epoch_completed_by, self._list(EPOCHS_FOLDER)) if epoch and epoch > number}
        if not later or self._exists(complete_key(number)):
            return
        raise self._lost(number, max(later))

    def _lost(self, number: int, newest: int) -> Corrupt:
        return Corrupt(
            f"The ledger has lost {self._key(complete_key(number))}: epoch {number} lacks its completion record, and "
            f"epoch {newest} has one.",
            remedy="restore that file from a backup of the ledger, and any other one that is then missed. If there is "
            "none, give the pipeline a new name, and `starting` offsets: the ends of the ranges in complete.json of "
            f"epoch {newest}.",
            pipeline=self._pipeline,
            epoch=number,
        )

    def view(self, number: int) -> EpochView:
        """All that stands about an epoch. ``complete.json`` is read first: it closes the epoch for every task."""
        complete = self.complete_record(number)
        if complete:
            return EpochView(number=number, complete=complete)
        view = self._unfinished(number)
        if not view.complete and not view.is_signed:
            self._require_no_history(number)
        return view

    def _unfinished(self, number: int) -> EpochView:
        """The newest attempt of an epoch that had no completion record a moment ago."""
        there = frozenset(self._list(epoch_folder(number)))
        attempt = _last_of(lambda n: attempt_key(number, n, "open") in there)
        if attempt == 0:
            return EpochView(number=number)
        opened = self.open_record(number, attempt)
        if opened is None:  # pruned since: complete by now
            return EpochView(number=number, complete=self.complete_record(number))
        decided = attempt_key(number, attempt, "decision") in there
        return self._consistent(
            EpochView(
                number=number,
                open=opened,
                decision=self.decision_record(number, attempt) if decided else None,
                receipts=self._per_sink(there, number, opened, "receipt", Receipt),
                waived=self._per_sink(there, number, opened, "waived", WaivedRecord),
            )
        )

    def _require_no_history(self, number: int) -> None:
        """Raise Corrupt for an epoch that was complete when signing began: what is left of it may be anybody's."""
        with self._believing(complete_key(number)):
            if self._trust.is_history(number):
                raise self._lost(number, self.newest_complete())

    def _consistent(self, view: EpochView) -> EpochView:
        try:
            _ = view.epoch  # replays the messages that the records stand for
        except (IllegalTransition, ValueError) as error:
            raise Corrupt(
                f"The ledger's records contradict each other: {error}.",
                remedy="two backups were mixed, or a file was changed: restore the epoch's folder as a whole.",
                pipeline=self._pipeline,
                epoch=view.number,
            ) from error
        return view

    def complete_record(self, number: int) -> CompleteRecord | None:
        record = self._get(complete_key(number), CompleteRecord) if number >= 1 else None
        if record:
            self._known_complete = max(self._known_complete, number)
        return record

    def open_record(self, number: int, attempt: int) -> OpenRecord | None:
        return self._get(attempt_key(number, attempt, "open"), OpenRecord)

    def decision_record(self, number: int, attempt: int) -> DecisionRecord | None:
        return self._get(attempt_key(number, attempt, "decision"), DecisionRecord)

    def epoch_of(self, run: Run) -> int | None:
        """The epoch that the run opened, by its index; None also if the run died before it wrote the index.

        And of a run from before the ledger was signed: it is then taken for a new one, which harms nothing, whereas a
        forged index could have a run pass an old epoch on.
        """
        index = self._get(run_key(run), RunIndex)
        if index and index.format == FORMAT_UNSIGNED and self._trust.is_history(index.epoch):
            log.warning("%s is not signed, and is ignored: %s counts as a new one", self._key(run_key(run)), run)
            return None
        return index.epoch if index else None

    def tries(self, number: int) -> list[TryRecord]:
        """All tries of ``stage``, of every attempt of the epoch."""
        keys = [key for key in self._list(epoch_folder(number)) if ".try." in key]
        return [record for key in keys if (record := self._get(key, TryRecord))]

    def restaged(self, number: int, sink: str) -> list[RestagedRecord]:
        """What was staged again for a decided epoch, oldest first. The newest is what a committer must commit."""
        return self._numbered(lambda n: restaged_key(number, sink, n), RestagedRecord)

    # -- writing: each put returns the record that stands -----------------------------------------------------

    def put_open(self, record: OpenRecord) -> OpenRecord:
        return self._put(record)

    def put_try(self, record: TryRecord) -> TryRecord:
        return self._put(record)

    def put_decision(self, record: DecisionRecord) -> DecisionRecord:
        return self._put(record)

    def put_restaged(self, record: RestagedRecord) -> RestagedRecord:
        return self._put(record)

    def put_receipt(self, record: Receipt) -> Receipt:
        return self._put(record)

    def put_waived(self, record: WaivedRecord) -> WaivedRecord:
        return self._put(record)

    def put_complete(self, record: CompleteRecord) -> CompleteRecord:
        return self._put(record)

    def put_run(self, run: Run, epoch: int) -> RunIndex:
        return self._put(RunIndex(dag_id=run.dag_id, run_id=run.run_id, epoch=epoch))

    def prune(self, number: int) -> int:
        """Delete a complete epoch's records but ``complete.json`` and waivers; the number of records deleted."""
        if not self.complete_record(number):
            return 0
        kept = (complete_key(number), ".waived.json")  # who waived a sink, and why, is to be known for ever
        keys = [key for key in self._list(epoch_folder(number)) if not key.endswith(kept)]
        for key in keys:
            self._store.delete(self._key(key))
        return len(keys)

    # -- the store --------------------------------------------------------------------------------------------

    def _key(self, key: str) -> str:
        return f"{self._pipeline}/{key}"

    def _exists(self, key: str) -> bool:
        with self._reading(key):
            return self._store.exists(self._key(key))

    def _list(self, folder: str) -> list[str]:
        with self._reading(folder):
            return [key.removeprefix(f"{self._pipeline}/") for key in self._store.list(self._key(folder))]

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        """Whatever a store raises while it is read. Not NotApplied: what the caller did before this read may stand."""
        try:
            yield
        except TooLarge as error:
            raise self._untrusted(key, error) from error
        except Exception as error:
            raise OutcomeUnknown(
                f"The ledger cannot be read ({self._key(key)}): {error!r}.",
                remedy="see that the ledger's store can be reached and that its connection is right; "
                "Airflow's retry, or a clear of the task, goes on from there.",
                pipeline=self._pipeline,
            ) from error

    def _per_sink(
        self, there: Collection[str], number: int, opened: OpenRecord, what: str, kind: type[R]
    ) -> dict[str, R]:
        keys = {sink: sink_key(number, sink, what) for sink in opened.sinks}
        found = {sink: self._get(key, kind) for sink, key in keys.items() if key in there}
        return {sink: record for sink, record in found.items() if record is not None}

    def _numbered(self, key_of_number: Callable[[int], str], kind: type[R]) -> list[R]:
        """The records 1, 2, 3 …, which are dense and few."""
        records: list[R] = []
        while record := self._get(key_of_number(len(records) + 1), kind):
            records.append(record)
        return records

    def _bytes(self, key: str) -> bytes | None:
        with self._reading(key):
            return self._store.get(self._key(key))

    def _last_written(self, key_of_number: Callable[[int], str]) -> int:
        return _last_of(lambda number: self._exists(key_of_number(number)))

    def _get(self, key: str, kind: type[R]) -> R | None:
        value = self._bytes(key)
        return None if value is None else self._decoded(key, value, kind)

    def _decoded(self, key: str, value: bytes, kind: type[R]) -> R:
        try:
            record = decode(value, kind)
            self._require_home(key, record)
        except NewerFormat as newer:
            raise Refused(
                f"{self._key(key)} has format {newer.format}; this version reads up to {FORMAT}.",
                remedy="upgrade airflow-provider-epochs to at least the version that wrote it.",
                pipeline=self._pipeline,
            ) from newer
        except ValueError as error:
            raise self._untrusted(key, error) from error
        with self._believing(key):
            return self._trust.believed(key, value, record) if self._checked else record

    def _untrusted(self, key: str, why: ValueError) -> Corrupt:
        return Corrupt(
            f"The ledger record {self._key(key)} cannot be trusted: {why}.",
            remedy="restore this one file from a backup of the ledger; do not delete it.",
            pipeline=self._pipeline,
        )

    def _require_home(self, key: str, record: R) -> None:
        """A copied or renamed file is as bad as a damaged one."""
        if pipeline_of(record) not in (None, self._pipeline):
            raise ValueError(f"it belongs to pipeline {pipeline_of(record)!r}")
        if isinstance(record, Record) and key_of(record) != key:
            raise ValueError(f"it belongs to {key_of(record)}")
        if isinstance(record, OpenRecord) and (mine := self.identity()) and record.ledger_id != mine.ledger_id:
            raise ValueError(f"it belongs to ledger {record.ledger_id}, and {PIPELINE_KEY} says {mine.ledger_id}")

    def _put(self, record: P) -> P:
        return self._put_at(key_of(record), record)

    def _put_at(self, key: str, record: R) -> R:
        with self._believing(key):
            record = self._trust.to_write(record)
            value = self._encoded(key, record)
        error: Exception | None = None
        for _ in range(PUT_TRIES):
            try:
                if self._store.put_if_absent(self._key(key), value):
                    return record
                if standing := self._get(key, type(record)):
                    return standing
            except (Corrupt, Refused):
                raise
            except Exception as failed:
                error = failed
                # The put may have landed all the same. Repeating it is safe: the key has one winner.
                if standing := self._read_back(key, type(record)):
                    return standing
        if disk := _disk_says_no(error):
            raise NotApplied(
                f"The ledger's disk {disk}: {self._key(key)} was not written: {error!r}.",
                remedy="make room there, or make it writable again; Airflow's retry, or a clear of the task, then goes "
                "on where this one stopped.",
                pipeline=self._pipeline,
            ) from error
        raise OutcomeUnknown(
            f"The ledger did not answer when {self._key(key)} was written: {error!r}.",
            remedy="let Airflow retry the task, or clear it: it reads the record back before it does anything.",
            pipeline=self._pipeline,
        ) from error

    def _encoded(self, key: str, record: object) -> bytes:
        """What nobody could read again is not written."""
        value = encode(record, lambda body: self._trust.signature(key, record, body))
        try:
            require_readable(value)
        except ValueError as error:
            raise Refused(
                f"{self._key(key)} would be a record that nobody can read: {error}.",
                remedy="let a run take less: fewer topics, partitions or sinks, or smaller options of theirs.",
                pipeline=self._pipeline,
            ) from error
        return value

    def _read_back(self, key: str, kind: type[R]) -> R | None:
        try:
            return self._get(key, kind)
        except (Corrupt, Refused):
            raise
        except Exception:
            return None  # still unknown; the caller tries again, a bounded number of times, and then says so

    def probe(self) -> None:
        """Refuse a store that overwrites where it should not: it would lose decisions in silence."""
        if self._probed:
            return
        key = self._key(f"probe/{uuid.uuid4().hex}")
        try:
            honoured = self._honours_put_if_absent(key)
        except Exception as error:
            raise NotApplied(
                f"The ledger cannot be written: {error!r}.",
                remedy="see that the ledger's store can be reached and that its connection may write there."
                if _disk_says_no(error) is None
                else "make room on the ledger's disk, or make it writable again, and clear the task.",
                pipeline=self._pipeline,
            ) from error
        if not honoured:
            raise Refused(
                "The ledger's store does not honour put-if-absent: a second put of the same key was accepted.",
                remedy="put the ledger on a local disk, or on an object store with conditional writes (If-None-Match).",
                pipeline=self._pipeline,
            )
        self._probed = True

    def _honours_put_if_absent(self, key: str) -> bool:
        store = self._untouched
        try:
            store.put_if_absent(key, b"first")
            return not store.put_if_absent(key, b"second") and store.get(key) == b"first"
        except NotImplementedError:
            return False
        finally:
            self._forget(key)

    def _forget(self, key: str) -> None:
        try:
            self._untouched.delete(key)
        except Exception:  # a store that keeps everything (object lock) is a good home for a ledger
            log.warning("the probe key %s cannot be deleted", key, exc_info=True)


def _disk_says_no(error: Exception | None) -> str | None:
    """Why a disk takes no more, if it said so; the file was not there when it was looked for afterwards."""
    match getattr(error, "errno", None):
        case errno.ENOSPC | errno.EDQUOT:
            return "is full"
        case errno.EROFS:
            return "is read-only"
    return None


def _last_of(exists: Callable[[int], bool]) -> int:
    """The last of the dense numbers 1, 2, 3 … for which ``exists`` holds; 0 if none."""
    low, high = 0, 1
    while exists(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exists(middle) else (low, middle)
    return low
