"""Names the extra of this provider to install, where a Python package of it is missing."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_epochs import codes
from airflow_epochs.errors import Refused

_EXTRAS = {
    "kafka": "kafka",
    "confluent_kafka": "kafka-sink",
    "deltalake": "delta",
    "pyarrow": "delta",
    "pyspark": "spark",
    "pandas": "spark",
    "airflow.providers.apache.spark": "spark",
}
"""Package -> an extra that installs it, as in pyproject.toml; without packages that have an error of their own."""
_PARENT = "airflow.providers.apache"
"""What Python misses in place of the Spark provider, if no provider of Apache is installed."""
_OURS = {"airflow_epochs", "airflow", *(package.partition(".")[0] for package in _EXTRAS)}
"""Packages whose imports the extras serve. Another module is the user's, who may need another package."""
_IMPORTING = ("importlib", "_frozen_importlib", "_frozen_importlib_external")


@contextmanager
def missing_named() -> Iterator[None]:
    """Raise Refused for a package that an extra installs. What the user's own code misses passes as it is."""
    try:
        yield
    except ModuleNotFoundError as missing:
        extra = _extra_of(missing.name or "") if _importer(missing) in _OURS else None
        if extra is None:
            raise
        raise Refused(
            f"The Python package {missing.name} is not installed here.",
            code=codes.PACKAGE_MISSING,
            remedy=f"Install the provider's extra `{extra}` where Airflow's tasks and commands run: `pip install "
            f"'airflow-provider-epochs[{extra}]'`. Then clear the failed task.",
        ) from missing


def _extra_of(module: str) -> str | None:
    wanted = "airflow.providers.apache.spark" if module == _PARENT else module
    found = (extra for package, extra in _EXTRAS.items() if f"{wanted}.".startswith(f"{package}."))
    return next(found, None)


def _importer(missing: ModuleNotFoundError) -> str:
    """The package with the import that failed; empty if that is not known."""
    frames = [frame for frame, _ in traceback.walk_tb(missing.__traceback__)]
    packages = (str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame in reversed(frames))
    return next((package for package in packages if package not in _IMPORTING), "")
