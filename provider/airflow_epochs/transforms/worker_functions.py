"""Functions of a column that Spark's Python workers run. The workers have libraries, but not this package."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from airflow_epochs import codes
from airflow_epochs.errors import Refused


def require(operator: str, libraries: dict[str, str]) -> None:
    """Refuse to go on where a library is missing. ``libraries``: what is imported -> what pip installs."""
    try:
        for name in libraries:
            import_module(name)
    except ImportError as error:
        raise Refused(
            f"{operator}: the Python that runs the transform lacks a library ({error}). Nothing was written.",
            code=codes.SPARK_INCOMPLETE,
            remedy="Install for this Python and for that of Spark's workers: pip install "
            f"{' '.join(libraries.values())}. Then clear the failed task.",
        ) from None


def of_a_column(function: Callable[[Any], Any], *modules: ModuleType) -> Callable[[Any], Any]:
    """The function as ``arrow_udf`` takes it.

    Args:
        function: From an array of pyarrow to one of the same length. It must be nested: so it travels by value.
        modules: Those of this package that the function uses. They travel by value, too.
    """
    import pyarrow as pa
    from pyspark.cloudpickle import register_pickle_by_value

    for module in modules:
        register_pickle_by_value(module)
    kinds = dict.fromkeys([*inspect.signature(function).parameters, "return"], pa.Array)
    function.__annotations__ = kinds  # Spark asks them what kind of function it is
    return function
