"""The decision ledger: the authority, and the only place with put-if-absent.

Layout, below ``<root>/<pipeline>/``::

    pipeline.json                        PipelineRecord
    takeovers/<n, 10 digits>.json        TakeoverRecord: the highest one names the owning DAG
    epochs/<epoch, 20 digits>/
        <attempt, 10 digits>.open.json       OpenRecord
        <attempt>.try.<nonce>.json           TryRecord
        <attempt>.decision.json              DecisionRecord
        <sink>.receipt.json                  Receipt
        <sink>.waived.json                   WaivedRecord
        complete.json                        CompleteRecord: closes its epoch, never deleted
    runs/<hash of dag_id + run_id>.json  RunIndex

Every record is immutable, so every precondition, once read, stays true. A put returns the record that *stands*:
the caller's own, or the winner's, which the caller must obey. A put whose answer was lost is read back.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from airflow_epochs import protocol
from airflow_epochs.errors import Corrupt, OutcomeUnknown, Refused
from airflow_epochs.model import (
    FORMAT,
    CompleteRecord,
    DecisionKind,
    DecisionRecord,
    OpenRecord,
    PipelineRecord,
    Receipt,
    Run,
    RunIndex,
    TakeoverRecord,
    TransactionId,
    TryRecord,
    VoteKind,
    WaivedRecord,
    validated_name,
)
from airflow_epochs.protocol import Epoch, State
from airflow_epochs.store import Store

R = TypeVar("R")

PUT_TRIES = 3
"""How often a put without an answer is read back and sent again before its outcome is called unknown."""


@dataclass(frozen=True, kw_only=True)
class EpochView:
    """The records of an epoch: of its newest attempt, or, once complete, the completion record alone."""

    number: int
    open: OpenRecord | None = None
    decision: DecisionRecord | None = None
    receipts: dict[str, Receipt] = field(default_factory=dict)
    waived: dict[str, WaivedRecord] = field(default_factory=dict)
    complete: CompleteRecord | None = None

    @property
    def epoch(self) -> Epoch:
        """The protocol's view of these records. Raises IllegalTransition if they contradict each other."""
        if self.complete:
            return Epoch(self.number, State.COMPLETE, self.complete.txn.attempt, self.complete.txn)
        if not self.open:
            return Epoch(self.number)
        before = Epoch(
            self.number, State.NEW if self.open.txn.attempt == 1 else State.ABORTED, self.open.txn.attempt - 1
        )
        return protocol.replay(before, self._messages(self.open))

    @property
    def state(self) -> State:
        return self.epoch.state

    def _messages(self, opened: OpenRecord) -> list[protocol.Message]:
        txn = opened.txn
        messages: list[protocol.Message] = [protocol.VoteRequest(txn, frozenset(opened.sinks))]
        if not self.decision:
            return messages
        decided = TransactionId.parse(self.decision.txn_id)
        for sink, vote in self.decision.votes.items():
            kind = protocol.VoteCommit if vote.vote is VoteKind.VOTE_COMMIT else protocol.VoteAbort
            messages.append(kind(decided, sink))
        if self.decision.decision is DecisionKind.GLOBAL_ABORT:
            return [*messages, protocol.GlobalAbort(decided)]
        messages.append(protocol.GlobalCommit(decided))
        messages += [protocol.Acknowledge(TransactionId.parse(r.txn_id), sink) for sink, r in self.receipts.items()]
        return messages + [protocol.Acknowledge(TransactionId.parse(w.txn_id), sink) for sink, w in self.waived.items()]


class Ledger:
    """One pipeline's ledger. Stateless but for the store; safe to share between processes."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._pipeline = validated_name("pipeline", pipeline)
        self._probed = False

    # -- pipeline and owner ---------------------------------------------------------------------------------

    def identity(self) -> PipelineRecord | None:
        return self._get("pipeline.json", PipelineRecord)

    def claim(self, dag_id: str, *, at: str, writer: str) -> PipelineRecord:
        """The pipeline's identity, created by its first caller.

        Raises:
            Refused: Another DAG owns the pipeline, or the store does not honour put-if-absent.
        """
        self.probe()
        identity = self.identity() or self._put(
            "pipeline.json",
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

    def take_over(self, dag_id: str, *, who: str, why: str, at: str, writer: str) -> TakeoverRecord:
        """Record a new owning DAG. Raises Fenced-like Refused if somebody else took over at the same moment."""
        record = TakeoverRecord(dag_id=dag_id, who=who, why=why, at=at, writer=writer)
        standing = self._put(f"takeovers/{len(self._takeovers()) + 1:010d}.json", record)
        if standing != record:
            raise Refused(
                f"{standing.who} handed the pipeline to DAG {standing.dag_id!r} at the same moment.",
                remedy="look at the pipeline again, and repeat the takeover if it is still wanted.",
                pipeline=self._pipeline,
            )
        return record

    def _takeovers(self) -> list[TakeoverRecord]:
        records: list[TakeoverRecord] = []
        while record := self._get(f"takeovers/{len(records) + 1:010d}.json", TakeoverRecord):
            records.append(record)
        return records

    # -- reading --------------------------------------------------------------------------------------------

    def newest_complete(self) -> int:
        """The newest complete epoch, 0 if none. Epochs are dense, so it is found by doubling, then halving."""
        return _last_of(lambda epoch: self._store.exists(self._key(_complete_key(epoch))))

    def view(self, number: int) -> EpochView:
        """All that stands about an epoch. ``complete.json`` is read first: it closes the epoch for every actor."""
        complete = self.complete_record(number)
        if complete:
            return EpochView(number=number, complete=complete)
        attempt = _last_of(lambda n: self._store.exists(self._key(_attempt_key(number, n, "open"))))
        if attempt == 0:
            return EpochView(number=number)
        opened = self._get(_attempt_key(number, attempt, "open"), OpenRecord)
        assert opened is not None, "open records are immutable"
        return EpochView(
            number=number,
            open=opened,
            decision=self._get(_attempt_key(number, attempt, "decision"), DecisionRecord),
            receipts=self._per_sink(number, opened, "receipt", Receipt),
            waived=self._per_sink(number, opened, "waived", WaivedRecord),
        )

    def complete_record(self, number: int) -> CompleteRecord | None:
        return self._get(_complete_key(number), CompleteRecord)

    def open_record(self, number: int, attempt: int) -> OpenRecord | None:
        return self._get(_attempt_key(number, attempt, "open"), OpenRecord)

    def decision_record(self, number: int, attempt: int) -> DecisionRecord | None:
        return self._get(_attempt_key(number, attempt, "decision"), DecisionRecord)

    def epoch_of(self, run: Run) -> int | None:
        """The epoch that the run opened, by its index; None also if the run died before it wrote the index."""
        index = self._get(f"runs/{RunIndex.key_of(run)}.json", RunIndex)
        return index.epoch if index else None

    def tries(self, number: int) -> list[TryRecord]:
        """All tries of ``stage``, of every attempt of the epoch."""
        keys = [key for key in self._list(_folder(number)) if ".try." in key]
        return [record for key in keys if (record := self._get(key, TryRecord))]

    # -- writing: each put returns the record that stands -----------------------------------------------------

    def put_open(self, record: OpenRecord) -> OpenRecord:
        return self._put(_attempt_key(record.txn.epoch, record.txn.attempt, "open"), record)

    def put_try(self, record: TryRecord) -> TryRecord:
        txn = TransactionId.parse(record.txn_id)
        return self._put(_attempt_key(txn.epoch, txn.attempt, f"try.{record.nonce}"), record)

    def put_decision(self, record: DecisionRecord) -> DecisionRecord:
        txn = TransactionId.parse(record.txn_id)
        return self._put(_attempt_key(txn.epoch, txn.attempt, "decision"), record)

    def put_receipt(self, record: Receipt) -> Receipt:
        return self._put(_sink_key(TransactionId.parse(record.txn_id).epoch, record.sink, "receipt"), record)

    def put_waived(self, record: WaivedRecord) -> WaivedRecord:
        return self._put(_sink_key(TransactionId.parse(record.txn_id).epoch, record.sink, "waived"), record)

    def put_complete(self, record: CompleteRecord) -> CompleteRecord:
        return self._put(_complete_key(record.txn.epoch), record)

    def put_run(self, run: Run, epoch: int) -> None:
        self._put(f"runs/{RunIndex.key_of(run)}.json", RunIndex(dag_id=run.dag_id, run_id=run.run_id, epoch=epoch))

    def prune(self, number: int) -> int:
        """Delete a complete epoch's records but ``complete.json``; the number of records deleted."""
        if not self.complete_record(number):
            return 0
        keys = [key for key in self._list(_folder(number)) if key != _complete_key(number)]
        for key in keys:
            self._store.delete(self._key(key))
        return len(keys)

    # -- the store --------------------------------------------------------------------------------------------

    def _key(self, key: str) -> str:
        return f"{self._pipeline}/{key}"

    def _list(self, folder: str) -> list[str]:
        return [key.removeprefix(f"{self._pipeline}/") for key in self._store.list(self._key(folder))]

    def _per_sink(self, number: int, opened: OpenRecord, what: str, kind: type[R]) -> dict[str, R]:
        found = ((sink, self._get(_sink_key(number, sink, what), kind)) for sink in opened.sinks)
        return {sink: record for sink, record in found if record is not None}

    def _get(self, key: str, kind: type[R]) -> R | None:
        value = self._store.get(self._key(key))
        return None if value is None else self._decoded(key, value, kind)

    def _decoded(self, key: str, value: bytes, kind: type[R]) -> R:
        try:
            return decode(value, kind)
        except NewerFormat as newer:
            raise Refused(
                f"{self._key(key)} has format {newer.format}; this version reads up to {FORMAT}.",
                remedy="upgrade airflow-provider-epochs to at least the version that wrote it.",
                pipeline=self._pipeline,
            ) from newer
        except (msgspec.DecodeError, ValueError) as error:
            raise Corrupt(
                f"The ledger record {self._key(key)} is damaged: {error}.",
                remedy="restore this one file from a backup of the ledger; do not delete it.",
                pipeline=self._pipeline,
            ) from error

    def _put(self, key: str, record: R) -> R:
        value = encode(record)
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
        raise OutcomeUnknown(
            f"The ledger did not answer when {self._key(key)} was written: {error!r}.",
            remedy="let Airflow retry the task, or clear it: it reads the record back before it does anything.",
            pipeline=self._pipeline,
        ) from error

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
        honoured = False
        try:
            self._store.put_if_absent(key, b"first")
            honoured = not self._store.put_if_absent(key, b"second") and self._store.get(key) == b"first"
        except NotImplementedError:
            honoured = False
        finally:
            self._store.delete(key)
        if not honoured:
            raise Refused(
                "The ledger's store does not honour put-if-absent: a second put of the same key was accepted.",
                remedy="put the ledger on a local disk, or on an object store with conditional writes (If-None-Match).",
                pipeline=self._pipeline,
            )
        self._probed = True


def _folder(epoch: int) -> str:
    return f"epochs/{epoch:020d}"


def _complete_key(epoch: int) -> str:
    return f"{_folder(epoch)}/complete.json"


def _attempt_key(epoch: int, attempt: int, what: str) -> str:
    return f"{_folder(epoch)}/{attempt:010d}.{what}.json"


def _sink_key(epoch: int, sink: str, what: str) -> str:
    return f"{_folder(epoch)}/{validated_name('sink', sink)}.{what}.json"


def _last_of(exists: Callable[[int], bool]) -> int:
    """The last of the dense numbers 1, 2, 3 … for which ``exists`` holds; 0 if none."""
    low, high = 0, 1
    while exists(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exists(middle) else (low, middle)
    return low


# -- the codec: JSON with a checksum as its first member ------------------------------------------------------

_DIGEST = 16
_HEAD = b'{"sha256":"'
_HEAD_END = len(_HEAD) + _DIGEST + len(b'",')


class NewerFormat(ValueError):
    """The record was written by a newer version of this package."""

    def __init__(self, format: int) -> None:
        self.format = format
        super().__init__(f"format {format}")


class _Format(msgspec.Struct):
    format: int


def encode(record: object) -> bytes:
    """JSON of a record, with 64 bits of the SHA-256 of the rest in front: a flipped bit must not become a decision."""
    body = msgspec.json.encode(record)
    return _HEAD + _digest(body) + b'",' + body[1:]


def decode(value: bytes, kind: type[R]) -> R:
    """The record in ``value``.

    Raises:
        NewerFormat: ``format`` is higher than this version's.
        ValueError: Truncated, altered, or not a record of this kind.
    """
    body = b"{" + value[_HEAD_END:]
    if not value.startswith(_HEAD) or value[len(_HEAD) : len(_HEAD) + _DIGEST] != _digest(body):
        raise ValueError("its checksum does not match its content")
    written = msgspec.json.decode(body, type=_Format).format
    if written > FORMAT:
        raise NewerFormat(written)
    return msgspec.json.decode(body, type=kind)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_DIGEST].encode()
