"""The schemas that the task ``open`` found in a schema registry, for the parsers that a transform calls.

They are facts of the epoch, as its offsets are. So the registry is not asked while the transform runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.schemas import WriterSchema


@dataclass(frozen=True, kw_only=True)
class Registry:
    """What an epoch knows of a schema registry.

    Attributes:
        conn_id: The registry's connection, as the source names it. Empty: the source names no registry.
        schemas: The schemas of the source's subjects, by their ids.
    """

    conn_id: str = ""
    schemas: dict[str, WriterSchema] = field(default_factory=dict)


NO_REGISTRY = Registry()
_KNOWN: ContextVar[Registry] = ContextVar("airflow_epochs_registry", default=NO_REGISTRY)


@contextmanager
def known(registry: Registry) -> Iterator[None]:
    """Let the parsers find these schemas until the block ends."""
    token = _KNOWN.set(registry)
    try:
        yield
    finally:
        _KNOWN.reset(token)


def schemas_of(conn_id: str, kind: str, parser: str) -> tuple[Mapping[int, str], Mapping[int, str]]:
    """The schemas of one kind by their ids, and why the others cannot be used.

    Raises:
        Refused: The source of the epoch did not ask this registry.
    """
    registry = _KNOWN.get()
    if registry.conn_id != conn_id:
        raise _not_asked(registry.conn_id, conn_id, parser)
    usable: dict[int, str] = {}
    problems: dict[int, str] = {}
    for number, found in registry.schemas.items():
        if found.flaw or found.kind != kind:
            problems[int(number)] = f"schema {number} {found.flaw or f'is of kind {found.kind}, not {kind}'}"
        else:
            usable[int(number)] = found.text
    return usable, problems


def _not_asked(asked: str, wanted: str, parser: str) -> Refused:
    of = f"asked the registry of connection {asked!r}" if asked else "asked no schema registry"
    return Refused(
        f"{parser}: `registry` is {wanted!r}, but the epoch {of} when it was opened. Nothing was written.",
        code=codes.REGISTRY_NOT_ASKED,
        remedy=f"Give the source `registry_conn_id={wanted!r}`, or the parser the connection that the source has. Then "
        "clear the failed task.",
    )
