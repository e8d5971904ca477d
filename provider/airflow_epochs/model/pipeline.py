"""The records of a pipeline besides its epochs: its owner, which records are believed, and what operators did."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_epochs.model.record import FORMAT, FORMAT_UNSIGNED, JsonDict
from airflow_epochs.model.transaction import TransactionId
from airflow_epochs.names import validated_name


@dataclass(frozen=True, kw_only=True)
class PipelineRecord:
    """``pipeline.json``. ``ledger_id`` is drawn once; no other ledger has the same, so no staging places collide."""

    pipeline: str
    ledger_id: str
    dag_id: str
    created_at: str
    writer: str
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        validated_name("ledger", self.ledger_id)


@dataclass(frozen=True, kw_only=True)
class TakeoverRecord:
    """``takeovers/<n>.json``: from now on ``dag_id`` owns the pipeline.

    Attributes:
        who: The effective user on ``host``. In a record of version 0.1, which has no ``host``: the user that the
            environment named.
        login: The user that the environment named, if it was another one.
        epoch: The epoch that was open or in doubt then, else the newest complete one; None in a record of an earlier
            version.
    """

    dag_id: str
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    epoch: int | None = None
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class SigningRecord:
    """``signing/<n>.json``: from now on an unsigned record is believed only if this record says so.

    Put when a ledger gets its first key, when the key changes, and by ``airflow epochs sign``. The highest n counts.

    Attributes:
        epoch: The newest complete epoch at that time. The records of this epoch and of earlier ones are history and
            need no signature, except the completion record of this one, because the next epoch rests on it.
        trusted: The records of that time that are still needed: key within the pipeline's ledger -> SHA-256 of the
            stored bytes.
        who, host, login: As in ``TakeoverRecord``; empty if a task put the record without being asked.
    """

    pipeline: str
    number: int
    epoch: int
    trusted: dict[str, str]
    why: str
    at: str
    writer: str
    who: str = ""
    host: str = ""
    login: str = ""
    format: int = FORMAT


@dataclass(frozen=True, kw_only=True)
class RebuiltRecord:
    """``rebuilt/<n>.json``: all epochs up to ``epoch`` are complete, whatever the ledger lacks of their records.

    In force once ``epoch`` has a completion record. Put by ``airflow epochs rebuild``, which learned from the sinks
    what a ledger that was lost, or restored from an older copy, did not know.

    Attributes:
        backfill_from: The first epoch whose input the ledger knows. No sink can begin with an earlier one.
        txn_id: The transaction that all of ``sinks`` show.
        source, transform: The pipeline as it was then, as in ``OpenRecord``.
        sinks: Sink -> its specification.
        without: The sinks that do not show ``epoch`` and were left out -> the epoch that they show, 0 for no epoch.
        who, host, login: As in ``TakeoverRecord``.
    """

    pipeline: str
    number: int
    txn_id: TransactionId
    backfill_from: int
    dag_id: str
    source: JsonDict
    transform: str
    sinks: dict[str, JsonDict]
    without: dict[str, int]
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    format: int = FORMAT_UNSIGNED

    @property
    def epoch(self) -> int:
        """The newest epoch that the sinks showed."""
        return self.txn_id.epoch


@dataclass(frozen=True, kw_only=True)
class AcknowledgedRecord:
    """``acknowledged/<n>.json``: an operator knows that the transform's code has changed. Only the highest n counts.

    Attributes:
        code: The new code, as in ``OpenRecord``.
        before: The code of the newest complete epoch at that time; None if unknown.
        function: The transform's function; None: the operator named no function, so that only changed files are meant.
        who, host, login: As in ``TakeoverRecord``.
    """

    pipeline: str
    number: int
    code: str
    before: str | None
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    function: str | None = None
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class PauseRecord:
    """``pauses/<n>.json``: from now on the pipeline takes no new epoch, or takes them again. Only the highest n counts.

    Attributes:
        paused: True: it takes no new epoch. False: it takes new ones again.
        who, host, login: As in ``TakeoverRecord``.
    """

    pipeline: str
    number: int
    paused: bool
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class RetriedRecord:
    """``retries/<n>.json``: an operator let Airflow run the pipeline once more. For people: no step reads it.

    Attributes:
        dag_id, run_id: The run of Airflow.
        cleared: Whether its tasks were cleared; else it was started.
        epoch: The epoch that was unfinished then; 0: no epoch was.
        who, host, login: As in ``TakeoverRecord``.
    """

    pipeline: str
    number: int
    dag_id: str
    run_id: str
    cleared: bool
    epoch: int
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    format: int = FORMAT_UNSIGNED
