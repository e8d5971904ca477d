"""Sinks. ``from_spec`` rebuilds a sink from its specification in the ledger."""

from __future__ import annotations

import sys
from collections.abc import Collection
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from inspect import signature
from os.path import realpath
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import RAISED_BY_USERS, Refused

if TYPE_CHECKING:
    from airflow_epochs.contracts import Sink
    from airflow_epochs.model import JsonDict

log = secrecy.logger(__name__)

_KINDS = {
    "delta": "airflow_epochs.sinks.delta.sink:DeltaSink",
    "kafka": "airflow_epochs.sinks.kafka.sink:KafkaSink",
    "memory": "airflow_epochs.testing:MemorySink",
    "sql": "airflow_epochs.sinks.sql.sink:SqlSink",
    "state": "airflow_epochs.sinks.delta.state.table:StateTable",
}
"""Kind -> module and class. A module is imported only when a sink of its kind is built."""

GROUP = "airflow_epochs.sinks"
"""The entry point group in which packages register sinks of their own. The kind is an entry's name or its value."""


def from_spec(spec: JsonDict, today: Collection[Sink] = ()) -> Sink:
    """The sink that ``spec`` describes. The inverse of ``Sink.spec``.

    Nothing is imported merely because ``spec`` names it. The kind must be built in, registered in the entry point group
    ``airflow_epochs.sinks``, or the kind of a sink in ``today``. Fields that a newer version has added to a built-in
    kind, within the same format, are left out with a warning.

    Raises:
        Refused: The kind is unknown, or its class cannot be imported here.
    """
    kind = str(spec["kind"])
    if kind in _KINDS:
        ours = _class(*_KINDS[kind].split(":"))
        built: Sink = ours.from_spec(_understood(ours, spec))
    else:
        built = _of_others(kind, today).from_spec(spec)
    return built


def is_built_in(spec: JsonDict) -> bool:
    """Whether the kind is one of this package. A subclass of the user's own may have it, too."""
    return spec["kind"] in _KINDS


def names_its_class(kind: str, sink: type) -> bool:
    """Whether a process that has not loaded the DAG could find the class by its kind. Imports no more than packages."""
    if any(kind in (entry.name, entry.value) for entry in entry_points(group=GROUP)):
        return True
    module, _, name = kind.partition(":")
    file = _file_of(module)
    loaded = getattr(sys.modules.get(module), name, None)
    if file and loaded is not None:
        return getattr(loaded, "__qualname__", "") == sink.__qualname__
    # Airflow loads a DAG file under a name of its own: then the module is not there by its own name.
    defined_in = getattr(sys.modules.get(sink.__module__), "__file__", None)
    return bool(name == sink.__qualname__ and file and defined_in and realpath(file) == realpath(defined_in))


def _file_of(module: str) -> str | None:
    """The file that an import of the module would run, if Python finds one. Only packages around it are imported."""
    package = module.rpartition(".")[0]
    try:
        path = import_module(package).__path__ if package else None
    except RAISED_BY_USERS:  # a package of the user's may raise anything
        return None
    finders = (finder for finder in sys.meta_path if module and hasattr(finder, "find_spec"))
    return next((spec.origin for finder in finders if (spec := finder.find_spec(module, path))), None)


def is_own(sink: object) -> bool:
    """Whether the class of a sink is the user's own, and not in this package."""
    return not type(sink).__module__.startswith("airflow_epochs.")


def _of_others(kind: str, today: Collection[Sink]) -> Any:
    """The class of a kind that is not built in."""
    for sink in today:
        if is_own(sink) and sink.spec()["kind"] == kind:
            return type(sink)
    for entry in entry_points(group=GROUP):
        if kind in (entry.name, entry.value):
            return _class(entry.module, entry.attr)
    raise Refused(
        f"A record of the ledger names a sink of kind {kind!r}. No sink of the DAG has this kind, and no package on "
        "this worker registers it. Nothing was imported.",
        code=codes.SINK_KIND_UNKNOWN,
        remedy="Upgrade airflow-provider-epochs to the version that wrote the ledger, if the kind belongs to it. If "
        "the kind is a class of your own, put the sink back into the DAG, or register the class in the entry point "
        f"group {GROUP} of a package on every worker, until the last epoch of the sink is complete. If it is neither, "
        "somebody else wrote to the ledger: restore the record from a backup.",
    )


def _understood(sink: Any, spec: JsonDict) -> JsonDict:
    """The fields that the class knows. Raises TypeError if one is of another type than its constructor takes."""
    known = _fields_of(sink)
    if unknown := sorted(spec.keys() - known):
        log.warning("sink %s: a newer version has written %s, which this one ignores", spec["name"], ", ".join(unknown))
    types = _types_of(sink)
    for key in sorted(spec.keys() & types.keys()):
        try:
            msgspec.convert(spec[key], types[key])
        except msgspec.ValidationError as error:
            raise TypeError(f"{key}: {error}") from error
    return {key: value for key, value in spec.items() if key in known}


@cache
def _fields_of(sink: Any) -> frozenset[str]:
    """What a specification may hold. To look at a constructor takes longer than to call it."""
    return frozenset({"kind", *signature(sink).parameters, *getattr(sink, "recorded", ())})


@cache
def _types_of(sink: Any) -> dict[str, Any]:
    """The types of a constructor's arguments. To evaluate them takes longer than to build the sink."""
    return get_type_hints(sink.__init__)


def _class(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Refused(
            f"The ledger names the sink class {module}:{name}, and this worker cannot import it: {error}.",
            code=codes.SINK_KIND_UNKNOWN,
            remedy="Install the module of this class on every worker, until the last epoch of the sink is complete.",
        ) from error
