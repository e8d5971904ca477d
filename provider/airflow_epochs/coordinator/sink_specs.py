"""Checks what a sink says of itself before the ledger records it: tasks make the sink from that record."""

from __future__ import annotations

import msgspec

from airflow_epochs import codes, secrecy
from airflow_epochs.config import Pipeline
from airflow_epochs.contracts import Sink
from airflow_epochs.coordinator.sink_calls import asked, faulty
from airflow_epochs.errors import RAISED_BY_USERS, EpochError, Refused, located, without_code
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks import GROUP, from_spec, is_built_in, is_own, names_its_class

_MISTAKES_IN_CODE = KeyError, AttributeError, SystemExit
"""Errors that say: ``from_spec`` reads what ``spec`` does not write, or ends the process.

Other errors are about an argument.
"""

log = secrecy.logger(__name__)


def readable_spec(sink: Sink, pipeline: Pipeline, *, is_new: bool = False) -> JsonDict:
    """The sink's options for the open record. Raises Refused if no task could make a sink from it.

    The constructor has not seen what templates have come to. Nothing is asked but the class.

    Args:
        sink: Of the DAG.
        pipeline: Its pipeline.
        is_new: Also raise Refused if that is not the same sink. One that has shown an epoch goes on, with a warning: it
            may only spell a value in another way.
    """
    with located(pipeline.name, sink=sink.name), asked(sink, "spec"):
        spec = sink.spec()
        _require_json(sink, spec)
        if unlike := _unlike_rebuilt(sink, spec, _rebuilt(sink, spec, pipeline)):
            if is_new:
                raise unlike
            log.warning("sink %s may differ when it is made from its record: %s", sink.name, unlike.what)
    return spec


def require_kind(sink: Sink) -> None:
    """Raise Refused if the class of a sink of the user's own cannot be found by its ``kind`` without the DAG.

    Asked before the sink's first epoch alone: it matters when the sink leaves the DAG with an epoch in doubt.
    """
    spec = sink.spec()
    if is_own(sink) and not is_built_in(spec) and not names_its_class(spec["kind"], type(sink)):
        raise faulty(
            sink,
            "spec",
            f"returned the kind {spec['kind']!r}, and a new process does not find the class by that name",
            "`module:Class`, by which Python finds it if the folder of the DAG files is in its path, or a name that "
            f"the entry point group {GROUP} has for the class",
        )


def _require_json(sink: Sink, spec: object) -> None:
    if not isinstance(spec, dict) or not isinstance(spec.get("kind"), str):
        kind = f"`kind` {spec.get('kind')!r}" if isinstance(spec, dict) else type(spec).__name__
        raise faulty(sink, "spec", f"returned {kind}", "a dict with the `kind` of the class, a text")
    if wrong := [key for key, value in spec.items() if is_own(sink) and not _is_json(value)]:
        types = ", ".join(f"{key} (a {type(spec[key]).__name__})" for key in wrong)
        does = f"returned values that JSON does not have: {types}"
        raise faulty(sink, "spec", does, "texts, numbers, lists and dicts")


def _is_json(value: object) -> bool:
    """Whether a record can hold it. What comes back otherwise, such as a time, shows in ``_unlike_rebuilt``."""
    try:
        msgspec.json.encode(value)
    except Exception:
        return False
    return True


def _rebuilt(sink: Sink, spec: JsonDict, pipeline: Pipeline) -> Sink:
    """The sink as tasks make it from the record."""
    try:
        return from_spec(_recorded(spec), pipeline.sinks)
    except EpochError:
        raise
    except RAISED_BY_USERS as error:  # a sink of the user's own may raise anything
        if is_own(sink) and isinstance(error, _MISTAKES_IN_CODE):
            raise _unlike(sink, f"raised {type(error).__name__}: {error}") from error
        raise Refused(
            f"An argument of sink {sink.name!r} has a value or type that the sink does not take: {without_code(error)}",
            code=codes.SINK_MISCONFIGURED,
        ) from error


def _unlike_rebuilt(sink: Sink, spec: JsonDict, rebuilt: Sink) -> Refused | None:
    """The error if the sink that was made from the record may write elsewhere, or by another class."""
    if not is_built_in(spec) and type(rebuilt) is not type(sink):
        return _unlike(sink, f"makes a {type(rebuilt).__qualname__}: another sink of the DAG has the same `kind`")
    was, now = _recorded(spec), _recorded(rebuilt.spec())
    if fields := sorted(key for key in was.keys() | now.keys() if was.get(key) != now.get(key)):
        return _unlike(sink, f"makes a sink with another value of {', '.join(fields)} than the sink of the DAG")
    return None


def _recorded(spec: JsonDict) -> JsonDict:
    """The specification as a task reads it from the ledger."""
    read: JsonDict = msgspec.json.decode(msgspec.json.encode(spec))
    return read


def _unlike(sink: Sink, does: str) -> Refused:
    return faulty(sink, "from_spec", does, "the sink whose `spec` it gets: tasks vote and commit with that one")
