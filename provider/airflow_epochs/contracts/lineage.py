"""What OpenLineage calls the data that a pipeline reads and writes."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.model import Receipt
from airflow_epochs.names import normalised
from airflow_epochs.secrecy import shown


class Dataset(NamedTuple):
    """What OpenLineage calls a table or a topic: the place that has it, and its name there. No secrets.

    ``versioned``: whether the offsets of an input are versions of it.
    """

    namespace: str
    name: str
    versioned: bool = False

    @classmethod
    def at(cls, location: str) -> Dataset:
        """The data at a path or URL, without a login and without everything behind the path."""
        location = normalised(location)
        if location.startswith("/"):
            return cls("file", location)
        scheme, _, rest = shown(location).partition("://")
        authority, slash, path = rest.partition("/")
        return cls(f"{scheme}://{authority}", f"{slash if scheme == 'hdfs' else ''}{path}" or "/")


@runtime_checkable
class TraceableSource(Protocol):
    """A source that can tell what OpenLineage calls its topics."""

    def dataset_of(self, topic: str, env: Environment) -> Dataset:
        """What a key of the ranges stands for. Reads connections, and asks no server."""
        ...


@runtime_checkable
class Traceable(Protocol):
    """A sink that can tell what OpenLineage calls its destination. For other sinks, it is the URI of the asset."""

    def dataset(self, receipt: Receipt, env: Environment) -> Dataset:
        """The destination that this receipt is for. Reads connections, and asks no server."""
        ...
