"""Where a sink stages, and what else lies there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.contracts.sink import SinkAttempt
from airflow_epochs.model import JsonDict


@runtime_checkable
class Leftovers(Protocol):
    """A sink that can tell cheaply whether ``discard`` has work to do. On other sinks it is always called."""

    def has_leftovers(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> bool:
        """Whether ``discard`` would delete anything at this place."""
        ...


@runtime_checkable
class Recognising(Protocol):
    """A sink whose ``place`` is costly to compute. For others, ``place`` is computed again and compared."""

    def is_own_place(self, attempt: SinkAttempt, place: str, env: Environment) -> bool:
        """Whether a try of this attempt could have this place. Reads nothing."""
        ...


@runtime_checkable
class Planning(Protocol):
    """A sink whose ``place`` is costly. For other sinks, ``plan_stage`` computes the place again."""

    def plan_stage_at(self, attempt: SinkAttempt, place: str, env: Environment) -> JsonDict:
        """What ``plan_stage`` returns for the try that has this place, which ``place`` has just made."""
        ...


@runtime_checkable
class Located(Protocol):
    """A sink that can tell which table it writes to, however paths, catalogs and connections name that table."""

    def table_of(self, attempt: SinkAttempt, place: str, env: Environment) -> str:
        """The table of the sink that stages at ``place``: the same text for all sinks on it, another for other tables.

        Changes nothing. The text ends the sentence "both sinks are on …".
        """
        ...


@runtime_checkable
class InFolder(Protocol):
    """A sink whose table is a folder with its staging places. A ``VACUUM`` deletes what else lies there."""

    def folder_of(self, place: str) -> str:
        """The table's folder, by the place of a try. Asks nobody."""
        ...


@runtime_checkable
class Surrounded(Protocol):
    """A sink that can look whether its table lies in the folder of another one."""

    def tables_around(self, place: str, env: Environment) -> Iterable[tuple[str, str]]:
        """The tables whose ``VACUUM`` may delete this one, each with this one's folder as it lies in it.

        ``place``: a try's staging place. Called before the sink's first epoch only. A folder that cannot be read counts
        as no table.
        """
        ...
