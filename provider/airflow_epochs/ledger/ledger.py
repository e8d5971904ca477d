"""The decision ledger: the authority on the pipeline's owner, on the state of each epoch, and on every decision.

It is a set of immutable records, each put once under its own key, so a fact that was read can never change. XCom,
Airflow's database and a sink's marker only repeat what the ledger says. ``ledger.records`` reads and puts single
records. ``ledger.signed`` puts the records by which a ledger begins to be signed. ``ledger.pruning`` deletes old ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.ledger.keys import (
    DRY_RUNS_FOLDER,
    EPOCHS_FOLDER,
    SAVEPOINTS_FOLDER,
    LedgerRecord,
    acknowledged_key,
    attempt_key,
    attempt_tried,
    complete_key,
    disposed_key,
    epoch_completed_by,
    epoch_folder,
    epoch_of,
    key_of,
    pause_key,
    rebuilt_key,
    restaged_key,
    retried_key,
    run_key,
    savepoint_key,
    savepoint_of,
    schemas_key,
    sink_key,
    takeover_key,
)
from airflow_epochs.ledger.pruning import Pruning
from airflow_epochs.ledger.records import Records, last_of
from airflow_epochs.ledger.signed import Signing
from airflow_epochs.ledger.signing import NO_KEYS, Keys
from airflow_epochs.ledger.store import BlobStore, Store
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.ledger.writable import require_put_if_absent
from airflow_epochs.model import (
    FORMAT_UNSIGNED,
    AcknowledgedRecord,
    CompleteRecord,
    DecisionKind,
    DecisionRecord,
    DisposedRecord,
    DryRunRecord,
    OpenRecord,
    PauseRecord,
    PipelineRecord,
    RebuiltRecord,
    Receipt,
    RestagedRecord,
    RetriedRecord,
    Run,
    RunIndex,
    SavepointRecord,
    SchemaRecord,
    TakeoverRecord,
    TryRecord,
    WaivedRecord,
)
from airflow_epochs.names import is_name, no_dag_of
from airflow_epochs.protocol import IllegalTransition, State

R = TypeVar("R")
P = TypeVar("P", bound=LedgerRecord)

log = secrecy.logger(__name__)


class Ledger:
    """One pipeline's ledger, as one task sees it: it keeps in memory the records that it has read.

    Args:
        store: The store that holds the records.
        pipeline: The pipeline's name.
        keys: The keys that sign and check records; empty: records are not signed.
        require_signed: Whether a ledger that was never signed is refused.
        checked: False: every record is believed without a check. Only for readers without keys, which must not write.
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
        self._store = store
        self.pipeline = pipeline
        self._believes = partial(Ledger, store, keys=keys, require_signed=require_signed, checked=checked)
        self._records = Records(store, pipeline, keys, require_signed=require_signed, checked=checked)
        # Signing checks all that it vouches for, or lists it to an operator. So it believes where the ledger ends.
        self.signing = Signing(self._records, lambda: Ledger(store, pipeline, checked=False).newest_complete())
        self.pruning = Pruning(self._records, self.complete_record)
        self._probed = False
        self._known_complete = 0
        self._rebuilt: list[RebuiltRecord] | None = None
        self._held_schemas: dict[str, SchemaRecord] = {}

    @property
    def root(self) -> str:
        """The ledger's path or URL; empty if its store does not know it."""
        return str(getattr(self._store, "root", ""))

    def tables_around(self) -> Iterable[tuple[str, str]]:
        """The Delta tables around the records, each with the records' folder as it lies there; as far as is known."""
        return self._store.tables_around(self.pipeline) if isinstance(self._store, BlobStore) else ()

    def others(self) -> list[str]:
        """The names of the other pipelines that have a folder in the store, sorted. One call."""
        return [name for name in self._records.folders() if name != self.pipeline and is_name(name)]

    def of(self, pipeline: str) -> Ledger:
        """The ledger of another pipeline in the same store, as a new task sees it."""
        return self._believes(pipeline)

    def unchecked(self) -> Ledger:
        """The same ledger for a reader without its keys, who believes every record and must write nothing."""
        return Ledger(self._store, self.pipeline, checked=False)

    # -- pipeline and owner ---------------------------------------------------------------------------------

    def probe(self) -> None:
        """Check once per ledger that its store honours put-if-absent. Raises as ``require_put_if_absent``."""
        if not self._probed:
            key = self._records.key(f"probe/{uuid.uuid4().hex}")
            require_put_if_absent(self._store, key, self._records.pipeline)
            self._probed = True

    def identity(self) -> PipelineRecord | None:
        """The pipeline's record; None if no DAG has registered the pipeline yet."""
        return self._records.identity()

    def register(self, dag_id: str, *, at: str, writer: str) -> PipelineRecord:
        """The pipeline's record, created by the first call. Idempotent. Begins to sign the ledger if it has a new key.

        Raises:
            Refused: Another DAG owns the pipeline, or the store does not honour put-if-absent. No epoch was touched.
        """
        self.probe()
        identity = self.identity()
        if identity or not self.signing.has_keys:
            self.signing.sign_from_here(at, writer)
        identity = identity or self._records.put(
            PipelineRecord(
                pipeline=self.pipeline,
                ledger_id=uuid.uuid4().hex,
                dag_id=dag_id,
                created_at=at,
                writer=writer,
            ),
        )
        self.require_owned_by(dag_id, identity)
        return identity

    def require_owned_by(self, dag_id: str, identity: PipelineRecord) -> None:
        """Raise Refused unless the DAG owns the pipeline."""
        owner = self.owner(identity)
        if owner == no_dag_of(self.pipeline) != dag_id:
            raise self._ended(dag_id, self.takeovers()[-1])
        if owner != dag_id:
            raise Refused(
                f"The pipeline belongs to DAG {owner!r}. DAG {dag_id!r} may not run it.",
                code=codes.PIPELINE_OF_OTHER_DAG,
                remedy=f"Type `airflow epochs takeover {self.pipeline} --dag-id {dag_id} --why …` if you renamed or "
                "moved the DAG: the pipeline goes on where it is. Then clear the failed task. Only if this is another "
                "pipeline, give it another name, and sinks of its own: it begins at `starting`, and would write the "
                "other's rows once more.",
                pipeline=self.pipeline,
            )

    def _ended(self, dag_id: str, by: TakeoverRecord) -> Refused:
        """The error for a pipeline that was ended on purpose: since then, another one may have read its input."""
        return Refused(
            f"The pipeline was ended: {by.who} handed it to {by.dag_id!r}, which is no DAG, at {by.at}, because: "
            f"{by.why}. Another pipeline may have gone on after its rows since then. DAG {dag_id!r} may not run it.",
            code=codes.PIPELINE_OF_OTHER_DAG,
            remedy="Give the pipeline the name of the one that goes on after its rows, if there is one. Only if it is "
            f"to go on under this name, type `airflow epochs takeover {self.pipeline} --dag-id {dag_id} --why …`. Then "
            "clear the failed task: `open` refuses to read again what a pipeline that left the DAG has read since, and "
            "says how to go on after that.",
            pipeline=self.pipeline,
        )

    def owner(self, identity: PipelineRecord) -> str:
        """The id of the DAG that owns the pipeline: by the newest takeover, else by the registration."""
        return self.owners(identity)[-1]

    def owners(self, identity: PipelineRecord) -> tuple[str, ...]:
        """The ids of all DAGs that have owned the pipeline, oldest first."""
        return (identity.dag_id, *(takeover.dag_id for takeover in self.takeovers()))

    def take_over(
        self, dag_id: str, *, who: str, why: str, at: str, writer: str, host: str = "", login: str = ""
    ) -> TakeoverRecord:
        """Record a new owning DAG.

        Raises:
            Refused: Another takeover was recorded at the same moment, and counts. This one was not recorded.
        """
        record = TakeoverRecord(
            dag_id=dag_id,
            who=who,
            host=host,
            login=login,
            why=why,
            at=at,
            writer=writer,
            epoch=self._newest_at_work(),
        )
        standing = self._records.put_at(takeover_key(len(self.takeovers()) + 1), record)
        if replace(standing, format=record.format) != record:
            raise Refused(
                f"{standing.who} handed the pipeline to DAG {standing.dag_id!r} at the same moment. This takeover "
                "changed nothing.",
                code=codes.TAKEOVER_RACE,
                pipeline=self.pipeline,
            )
        return standing

    def takeovers(self) -> list[TakeoverRecord]:
        """All takeovers, oldest first."""
        return self._records.numbered(takeover_key, TakeoverRecord)

    # -- reading --------------------------------------------------------------------------------------------

    def newest_complete(self) -> int:
        """The newest complete epoch; 0 if there is none.

        Epochs are dense, so it is found by doubling, then halving, from the newest one that this task knows of, or that
        the ledger was rebuilt to. This asks the store a few times; a listing would take longer with every epoch.

        A task that knows of an epoch does not ask whether the ledger was rebuilt. It may be a late task of an epoch
        before that; then the answer may be too old, and such a task uses it for hints only.
        """
        asked = not self._known_complete
        known = self._known_complete = self._known_complete or self.rebuilt_to
        first = 2 if asked and not known else 1  # to ask for rebuilding costs a call; to leave out epoch 1 saves it
        self._known_complete += last_of(lambda more: self._records.exists(complete_key(known + more)), first)
        return self._known_complete

    @property
    def rebuilt_to(self) -> int:
        """The epoch up to which records may be missing, because the ledger was rebuilt; 0 if it never was."""
        return standing.epoch if (standing := self.rebuilt()) else 0

    def rebuilt(self) -> RebuiltRecord | None:
        """The newest rebuilding that is in force; None if there is none.

        One without a completion record of its epoch was begun and not finished.
        """
        return max(self.rebuildings_in_force(), key=lambda each: (each.epoch, each.number), default=None)

    def rebuildings_in_force(self) -> list[RebuiltRecord]:
        """The rebuildings that were finished, oldest first. Read once per task."""
        if self._rebuilt is None:
            found = self._records.numbered(rebuilt_key, RebuiltRecord)
            self._rebuilt = [each for each in found if self._records.exists(complete_key(each.epoch))]
        return self._rebuilt

    def rebuildings(self) -> int:
        """The number of rebuildings on record, also of those that were not finished."""
        return self._records.last(rebuilt_key)

    def epochs_completed(self) -> frozenset[int]:
        """All epochs that have a completion record. Lists them all, which takes long if they are many."""
        found = map(epoch_completed_by, self._records.keys_in(EPOCHS_FOLDER))
        return frozenset(epoch for epoch in found if epoch is not None)

    def epochs_known(self) -> frozenset[int]:
        """All epochs that have any record. Lists them all, which takes long if they are many."""
        return frozenset(epoch for key in self._records.keys_in(EPOCHS_FOLDER) if (epoch := epoch_of(key)))

    def require_no_gap(self, number: int, *, thoroughly: bool = False) -> None:
        """Raise Corrupt if epoch ``number`` has lost its completion record.

        It has if a later epoch is complete, or if signing began after it. Else the epoch would be read and committed
        a second time. Asks only for the next epoch; ``thoroughly`` lists all epochs, which takes long if they are many.
        Before the first epoch it does not ask: ``newest_complete`` has just found no epoch 2.
        """
        self._require_no_history(number)
        if not thoroughly and (number == 1 or not self._records.exists(complete_key(number + 1))):
            return
        later = {epoch for epoch in self.epochs_completed() if epoch > number}
        if not later or self._records.exists(complete_key(number)):
            return
        newest = max(later)
        raise self._lost(
            number,
            f"epoch {newest}, which is later, has a completion record, and epoch {number} has none",
            remedy="Restore this file from a backup of the ledger, and every other file that is then missing. If there "
            f"is no backup, run `airflow epochs rebuild {self.pipeline} --why …`: the pipeline goes on after the "
            "newest epoch that its sinks show.",
        )

    def _lost(self, number: int, why: str, remedy: str | None = None) -> Corrupt:
        return Corrupt(
            f"The ledger has lost the file {self._records.key(complete_key(number))}: {why}.",
            code=codes.LEDGER_RECORD_LOST,
            remedy=remedy,
            pipeline=self.pipeline,
            epoch=number,
        )

    def view(self, number: int, of: Collection[str] | None = None) -> EpochView:
        """What the ledger says about an epoch. ``complete.json`` is read first: it closes the epoch for every task.

        A task reads what other tasks can have put: receipts only after GLOBAL_COMMIT, a waiver only if there is no
        receipt. ``open`` reads more: see ``view_of_next``.

        Args:
            number: The epoch.
            of: The sinks whose receipts a committing task needs; None: all. With ``of``, the attempts after one that
                was committed are not looked for either: no task puts them, and ``complete`` notices forged ones.
        """
        complete = self.complete_record(number)
        if complete:
            return EpochView(number=number, complete=complete)
        view = self._not_complete(number, of, only_possible=True)
        return view if view.open else replace(view, complete=self.complete_record(number))  # pruned since, perhaps

    def _newest_at_work(self) -> int:
        """The epoch that is open or in doubt; the newest complete one if there is none."""
        view = self.view_of_next()
        return view.number if view.state in (State.OPEN, State.IN_DOUBT) else view.number - 1

    def view_of_next(self) -> EpochView:
        """What the ledger says about the epoch after the newest complete one.

        The search for that one has just seen that it is not complete. All records of its newest attempt are read, also
        those that cannot be there yet: a run does not build on an attempt to which somebody has added forged records.
        """
        return self._not_complete(self.newest_complete() + 1)

    def _not_complete(
        self, number: int, of: Collection[str] | None = None, *, only_possible: bool = False
    ) -> EpochView:
        """The newest attempt of an epoch that had no completion record a moment ago.

        ``only_possible``: leave out receipts and waivers that no task can have put yet.
        """
        attempt, decision = self._newest_attempt(number, past_commit=of is None)
        opened = self.open_record(number, attempt) if attempt else None
        if attempt and opened is None:  # pruned since: complete by now
            return EpochView(number=number, complete=self.complete_record(number))
        view = self._consistent(EpochView(number=number, open=opened, decision=decision))
        if view.state is State.IN_DOUBT or (view.open and not only_possible):
            view = self._consistent(self._acknowledged(view, of))
        if not view.is_signed:
            self._require_no_history(number)
        return view

    def _newest_attempt(self, number: int, *, past_commit: bool) -> tuple[int, DecisionRecord | None]:
        """The newest attempt, 0 if there is none, and its decision.

        No task puts an attempt after a committed one. ``past_commit``: look for one all the same.
        """
        if not self._records.has(attempt_key(number, 1, "open")):
            return 0, None
        decision = self.decision_record(number, 1)
        if decision and decision.decision is DecisionKind.GLOBAL_COMMIT and not past_commit:
            return 1, decision
        attempt = last_of(lambda n: self._records.exists(attempt_key(number, n, "open")))
        return attempt, decision if attempt == 1 else self.decision_record(number, attempt)

    def _acknowledged(self, view: EpochView, of: Collection[str] | None) -> EpochView:
        """``view`` with receipts of the sinks ``of`` (None: all), and with waivers of those that have no receipt."""
        sinks = [sink for sink in view.opened.sinks if of is None or sink in of]
        # A committing task mostly finds neither, and one listing says so. ``complete`` finds all receipts.
        put = None if of is None else self._records.keys_in(epoch_folder(view.number))

        def found(sink: str, word: str, kind: type[R]) -> R | None:
            key = sink_key(view.number, sink, word)
            return self._records.get(key, kind) if put is None or key in put else None

        receipts = {sink: found(sink, "receipt", Receipt) for sink in sinks}
        waived = {sink: found(sink, "waived", WaivedRecord) for sink, receipt in receipts.items() if not receipt}
        return replace(view, receipts=_present(receipts), waived=_present(waived))

    def waiver(self, number: int, sink: str) -> WaivedRecord | None:
        """The sink's waiver in the epoch; None if there is none. Beside a receipt it counts if the commit was lost."""
        return self._records.get(sink_key(number, sink, "waived"), WaivedRecord)

    def _require_no_history(self, number: int) -> None:
        """Raise Corrupt if the epoch was complete when signing began, and has no completion record now.

        Its other records need no signature, so anybody who can write to the store may have forged them.
        """
        with self._records.believing(complete_key(number)):
            if not self._records.trust.is_history(number) or self._records.exists(complete_key(number)):
                return
            if number > self.rebuilt_to:
                raise self._lost(number, f"epoch {number} was complete when the ledger was signed")

    def _consistent(self, view: EpochView) -> EpochView:
        try:
            _ = view.epoch  # replays the messages that the records stand for
        except (IllegalTransition, ValueError) as error:
            raise Corrupt(
                f"The ledger's records of this epoch contradict each other: {error}. Somebody mixed files of two "
                "backups, or changed a file.",
                code=codes.LEDGER_CONTRADICTS,
                pipeline=self.pipeline,
                epoch=view.number,
            ) from error
        return view

    def complete_record(self, number: int) -> CompleteRecord | None:
        """An epoch's completion record; None if the epoch is not complete, also for epoch 0."""
        record = self._records.get(complete_key(number), CompleteRecord) if number >= 1 else None
        if record:
            self._known_complete = max(self._known_complete, number)
        return record

    def open_record(self, number: int, attempt: int) -> OpenRecord | None:
        """An attempt's open record; None if the attempt was never opened, or was pruned."""
        return self._records.get(attempt_key(number, attempt, "open"), OpenRecord)

    def decision_record(self, number: int, attempt: int) -> DecisionRecord | None:
        """An attempt's decision; None if it is undecided, or was pruned."""
        return self._records.get(attempt_key(number, attempt, "decision"), DecisionRecord)

    def epoch_of(self, run: Run) -> int | None:
        """The epoch that the run opened or rolled forward, by its index; None if it has no index.

        A run that died early has not written its index. The index of a run from before the ledger was signed, or
        before its key changed, is ignored unless one of today's keys has signed it: it may be forged, and would let a
        run pass on an old epoch. The run then counts as a new one.
        """
        index = self._records.get(run_key(run), RunIndex)
        if index and index.format == FORMAT_UNSIGNED and self._records.trust.is_history(index.epoch):
            key = self._records.key(run_key(run))
            log.warning("index %s is ignored, since no key of today has signed it: %s counts as a new run", key, run)
            return None
        return index.epoch if index else None

    def has_index(self, run: Run) -> bool:
        """Whether the run has an index, also one that ``epoch_of`` ignores or does not believe."""
        return self._records.has(run_key(run))

    def tries(self, number: int, *, newest: int | None = None) -> list[TryRecord]:
        """The records of all tries of ``stage`` in the epoch, sorted by key.

        Each record takes a request, and an epoch that keeps failing gets more with every attempt. So a task of one
        attempt should not ask for all. ``newest``: only the tries of so many attempts, the newest ones that have tries.
        """
        keys = self._keys_of_tries(number)
        if newest is not None:
            wanted = sorted({attempt for key in keys if (attempt := attempt_tried(key)) is not None})[-newest:]
            keys = [key for key in keys if attempt_tried(key) in wanted]
        return self._tries_at(keys)

    def tries_of(self, opened: OpenRecord) -> list[TryRecord]:
        """The records of this attempt's tries, sorted by key; no try of another attempt or ledger."""
        keys = [key for key in self._keys_of_tries(opened.txn_id.epoch) if attempt_tried(key) == opened.txn_id.attempt]
        return [record for record in self._tries_at(keys) if record.txn_id == opened.txn_id]

    def _keys_of_tries(self, number: int) -> list[str]:
        return [key for key in self._records.keys_in(epoch_folder(number)) if ".try." in key]

    def _tries_at(self, keys: list[str]) -> list[TryRecord]:
        return [record for key in keys if (record := self._records.get(key, TryRecord))]

    def restaged(self, number: int, sink: str) -> list[RestagedRecord]:
        """The records of what was staged again for a decided epoch, oldest first. A commit takes the newest."""
        return self._records.numbered(lambda n: restaged_key(number, sink, n), RestagedRecord)

    # -- writing: each put returns the record that stands -----------------------------------------------------

    def put(self, record: P) -> P:
        """Put a record; the one under its key that stands, perhaps another writer's. Raises as ``Records.put``.

        The first put wins, and the caller must obey it: so no attempt ever has two decisions. No precondition is
        checked here. The caller has read it from a record, and no record ever changes:

        - Before an open record: the epoch before is complete, or the attempt before was aborted.
        - Before anything is staged: the record of the try, or of the dry run, that names the places.
        - Before a receipt: its sink has committed.
        - Before a completion record: every sink of the attempt has a receipt or a waiver.
        - A rebuilding means nothing until the completion record of its epoch is put after it. After a crash between the
          two, the command puts another one.
        """
        return self._records.put(record)

    def acknowledgements(self) -> list[AcknowledgedRecord]:
        """The acknowledgements of changed code, oldest first. Only the last one lets a run open an epoch."""
        return self._records.numbered(acknowledged_key, AcknowledgedRecord)

    def pauses(self) -> list[PauseRecord]:
        """All pauses and their ends, oldest first."""
        return self._records.numbered(pause_key, PauseRecord)

    def newest_pause(self) -> PauseRecord | None:
        """The record that says whether new epochs are taken; None if nobody ever paused the pipeline."""
        number = self._records.last(pause_key)
        return self._records.get(pause_key(number), PauseRecord) if number else None

    def pause_in_force(self) -> PauseRecord | None:
        """The pause that counts now; None if the pipeline takes new epochs."""
        newest = self.newest_pause()
        return newest if newest and newest.paused else None

    def retries(self) -> list[RetriedRecord]:
        """What operators let Airflow run once more, oldest first."""
        return self._records.numbered(retried_key, RetriedRecord)

    def newest_retry(self) -> int:
        """The number of the newest of ``retries``; 0 if there is none."""
        return self._records.last(retried_key)

    def savepoints(self, *, also_disposed: bool = False) -> list[SavepointRecord]:
        """The savepoints that count, by name; ``also_disposed``: and those that were disposed of."""
        names = filter(None, map(savepoint_of, self._records.keys_in(SAVEPOINTS_FOLDER)))
        found = (self._made(name) if also_disposed else self.savepoint(name) for name in names)
        return [each for each in found if each]

    def savepoint(self, name: str) -> SavepointRecord | None:
        """The savepoint with this name; None if there is none, or if it was disposed of."""
        found = self._made(name)
        return None if found is None or self.disposed(name) else found

    def _made(self, name: str) -> SavepointRecord | None:
        return self._records.get(savepoint_key(name), SavepointRecord)

    def disposed(self, name: str) -> DisposedRecord | None:
        """The record that disposes of the savepoint; None if it counts, or if there is no such savepoint."""
        return self._records.get(disposed_key(name), DisposedRecord)

    def dry_runs(self) -> list[DryRunRecord]:
        """The dry runs that have not cleared their places away."""
        found = (self._records.get(key, DryRunRecord) for key in self._records.keys_in(DRY_RUNS_FOLDER))
        return [_of_one_format(each) for each in found if each]

    def forget_dry_run(self, record: DryRunRecord) -> None:
        """Delete the record of a dry run whose places are cleared away. Idempotent."""
        self._records.delete(key_of(record))

    def put_schemas(self, record: SchemaRecord) -> SchemaRecord:
        """Put schemas by which an epoch's input is decoded. Idempotent. Raises as ``Records.put``."""
        return self.schemas(record.digest) or self._records.put(record)

    def hold_schemas(self, record: SchemaRecord) -> SchemaRecord:
        """Keep schemas that no record of an epoch will name: for this task, in memory."""
        return self._held_schemas.setdefault(record.digest, record)

    def schemas(self, digest: str) -> SchemaRecord | None:
        """The schemas that an open record names; None if they are lost."""
        return self._held_schemas.get(digest) or self._records.get(schemas_key(digest), SchemaRecord)

    def put_run(self, run: Run, epoch: int) -> RunIndex:
        """Put the index from a run to its one epoch; the index that stands. Raises as ``Records.put``."""
        return self._records.put(RunIndex(dag_id=run.dag_id, run_id=run.run_id, epoch=epoch))


def _of_one_format(record: DryRunRecord) -> DryRunRecord:
    """The record, with its own format in the records inside it: its signature, or the lack of one, holds for them."""
    format = record.format
    return replace(record, opened=replace(record.opened, format=format), tried=replace(record.tried, format=format))


def _present(found: Mapping[str, R | None]) -> dict[str, R]:
    return {sink: record for sink, record in found.items() if record is not None}
