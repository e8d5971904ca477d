"""Operators that a DAG maps, with ``.partial(…).expand(…)``: the instances must not share a pipeline's epochs.

A run has one epoch of a pipeline. Two instances of ``open`` would work on the same one, so what only the second one
reads would not be read. Commits are mapped by their sinks: each does its own part of the one epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, TypeGuard

from airflow.sdk.definitions.mappedoperator import MappedOperator, OperatorPartial

from airflow_epochs import codes
from airflow_epochs.errors import BadArgument

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from airflow_epochs.operators.base import EpochOperator

_TELL_APART = ("pipeline", "ledger_conn_id")
"""The arguments that say whose epochs an operator works on."""


class Partial(OperatorPartial):
    """What ``partial`` of an operator of ours returns. It checks what is mapped when the DAG file is read."""

    @classmethod
    def of(cls, made: OperatorPartial) -> Partial:
        made._expand_called = True  # else Airflow would warn that nobody has mapped it
        return cls(operator_class=made.operator_class, kwargs=made.kwargs, params=made.params)

    def expand(self, **mapped_kwargs: Any) -> MappedOperator:
        """As in Airflow's class. Raises BadArgument if instances may share a pipeline's epochs."""
        return _allowed(super().expand(**mapped_kwargs))

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedOperator:
        """As in Airflow's class. Raises BadArgument if instances may share a pipeline's epochs."""
        return _allowed(super().expand_kwargs(kwargs, strict=strict))


def of_pipelines(dag: DAG) -> Iterator[EpochOperator]:
    """The operators of pipelines in the DAG. For a mapped one, its instances, as far as they are known before a run."""
    from airflow_epochs.operators.base import EpochOperator

    for task in dag.tasks:
        if isinstance(task, EpochOperator):
            yield task
        elif _is_mapped(task):
            yield from (task.unmap(row) for row in _rows(task) or [])  # type: ignore[misc]  # of operator_class


def names_in(dag: DAG) -> frozenset[str] | None:
    """The names of all pipelines in the DAG; None if a task returns some of them, which only a run knows."""
    if any(_is_mapped(task) and _rows(task) is None for task in dag.tasks):
        return None
    return frozenset(task.pipeline for task in of_pipelines(dag))


def _is_mapped(task: object) -> TypeGuard[MappedOperator]:
    """Whether it is a mapped operator of a pipeline."""
    from airflow_epochs.operators.base import EpochOperator

    return isinstance(task, MappedOperator) and issubclass(task.operator_class, EpochOperator)


def _allowed(mapped: MappedOperator) -> MappedOperator:
    kind: Any = mapped.operator_class
    if kind.step != "commit" and _may_share(mapped):
        raise BadArgument(
            f"Instances of the mapped task {mapped.task_id!r} would share the epochs of one pipeline. A run has one "
            "epoch of a pipeline, so what only some of the instances read would be lost. Only commits can be mapped, "
            "by their `sink`. Make the pipelines in a loop, each with a name of its own; or map the name, too, in one "
            f'list: {kind.__name__}.partial(…).expand_kwargs([{{"pipeline": "a", …}}, {{"pipeline": "b", …}}]).',
            code=codes.PIPELINE_ARGUMENT,
        )
    for row in _rows(mapped) or []:
        mapped.unmap(row)  # checks its arguments, like any other operator's
    return mapped


def _may_share(mapped: MappedOperator) -> bool:
    """Whether two instances may have one pipeline and one ledger. Names that a task computes are not known yet."""
    rows, given = _rows(mapped), mapped.expand_input.value
    if rows is None:
        return not {*given} <= {*_TELL_APART} if isinstance(given, Mapping) else "pipeline" in mapped.partial_kwargs
    names = [tuple({**mapped.partial_kwargs, **row}.get(name) for name in _TELL_APART) for row in rows]
    return len({*names}) < len(names)


def _rows(mapped: MappedOperator) -> list[Mapping[str, Any]] | None:
    """What each instance gets; None if that depends on what another task returns."""
    given: Any = mapped.expand_input.value
    if isinstance(given, Mapping):  # of `expand`: all combinations
        if not all(isinstance(values, Sequence) for values in given.values()):
            return None
        return [dict(zip(given, values, strict=True)) for values in product(*given.values())]
    if isinstance(given, Sequence) and all(isinstance(row, Mapping) for row in given):
        return list(given)
    return None
