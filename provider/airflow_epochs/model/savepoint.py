"""A complete epoch that has a name."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_epochs.model.completion import CompleteRecord
from airflow_epochs.model.record import FORMAT_UNSIGNED, JsonDict
from airflow_epochs.names import validated_name


@dataclass(frozen=True, kw_only=True)
class SavepointRecord:
    """``savepoints/<name>.json``: a name for a complete epoch, with a copy of what is known of it. Never pruned.

    Attributes:
        complete: The completion record: position, receipts with the versions of Delta tables, metrics.
        source, sinks, transform, code: The pipeline as it was then, as in ``OpenRecord``.
        who, host, login: As in ``TakeoverRecord``; ``who`` is empty if a run made it, by its DAG param.
    """

    pipeline: str
    name: str
    complete: CompleteRecord
    source: JsonDict
    sinks: dict[str, JsonDict]
    transform: str
    code: str | None
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        validated_name("savepoint", self.name)

    @property
    def epoch(self) -> int:
        """The epoch that has the name."""
        return self.complete.txn_id.epoch


@dataclass(frozen=True, kw_only=True)
class DisposedRecord:
    """``savepoints/<name>.disposed.json``: the savepoint does not count any more. Its name is not used again."""

    pipeline: str
    name: str
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        validated_name("savepoint", self.name)
