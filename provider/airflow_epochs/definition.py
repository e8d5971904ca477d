"""What the DAG says today: a pipeline's source, transform and sinks. The ledger says what was promised yesterday.

Where they differ, the ledger wins for every epoch that is open; the next epoch takes what stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_epochs.names import validated_name

if TYPE_CHECKING:
    from airflow_epochs.sinks.base import Sink
    from airflow_epochs.sources.base import Source


@dataclass(frozen=True, kw_only=True)
class Transform:
    """The user's function. ``digest``, of the file and its siblings, goes into the ledger."""

    path: str
    function: str
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Transform:
        """From ``path/to/file.py:function``. Raises ValueError with the expected form."""
        path, separator, function = text.rpartition(":")
        if not separator or not path.endswith(".py") or not function.isidentifier():
            raise ValueError(f"transform must be 'path/to/file.py:function', not {text!r}")
        return cls(path=path, function=function)

    def __str__(self) -> str:
        return f"{self.path}:{self.function}"


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """One source, one transform, one or more sinks; ``dag_id`` is the owning DAG's."""

    name: str
    dag_id: str
    source: Source
    sinks: tuple[Sink, ...]
    transform: Transform
    keep_epochs: int = 1000

    def __post_init__(self) -> None:
        validated_name("pipeline", self.name)
        names = [validated_name("sink", sink.name) for sink in self.sinks]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a pipeline needs sinks with distinct names, not {names}")
