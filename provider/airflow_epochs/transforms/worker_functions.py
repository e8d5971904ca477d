"""Functions that Spark's Python workers run. The workers have libraries, but not this package."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require(operator: str, libraries: Mapping[str, str]) -> None:
    """Refuse to go on if this Python lacks a library. ``libraries``: what is imported -> what pip installs."""
    if error := _importing(libraries)():
        raise Refused(
            f"{operator}: the Python that runs the transform lacks a library ({error}). Nothing was written.",
            code=codes.SPARK_INCOMPLETE,
            remedy="Install for this Python, and for the Python of Spark's workers: pip install "
            f"{' '.join(libraries.values())}. Then clear the failed task.",
        )


def missing(session: SparkSession, libraries: Iterable[str]) -> str | None:
    """Which Python lacks a library, as a clause: this one, or the workers' one; None if neither does. Runs a job."""
    from pyspark.sql import functions as F

    error_of = _importing(libraries)
    if error := error_of():
        return f"the Python that runs the transform lacks a library ({error})"
    in_a_worker = F.udf(lambda _: error_of(), "string", useArrow=False)
    ((error,),) = session.range(1).select(in_a_worker("id")).collect()
    return f"the Python of Spark's workers lacks a library ({error})" if error else None


def _importing(libraries: Iterable[str]) -> Callable[[], str | None]:
    """A function that imports them, and gives the error. It is nested, and so travels by value."""
    names = list(libraries)

    def error() -> str | None:
        try:
            for name in names:
                import_module(name)
        except ImportError as error:
            return str(error)
        return None

    return error


def of_a_column(function: Callable[[Any], Any], *modules: ModuleType) -> Callable[[Any], Any]:
    """The function as ``arrow_udf`` takes it.

    Args:
        function: Takes an array of pyarrow, and returns one of the same length. It must be nested: so it travels by
            value.
        modules: Modules of this package that the function uses. They travel by value, too.
    """
    import pyarrow as pa
    from pyspark.cloudpickle import register_pickle_by_value

    for module in modules:
        register_pickle_by_value(module)
    kinds = dict.fromkeys([*inspect.signature(function).parameters, "return"], pa.Array)
    function.__annotations__ = kinds  # Spark asks them what kind of function it is
    return function
