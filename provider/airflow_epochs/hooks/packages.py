"""Names the extra of this provider to install, where a Python package of it is missing."""

from __future__ import annotations

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
    "airflow.providers.apache": "spark",
}
"""Package -> an extra that installs it: those of pyproject.toml, but for packages with an error of their own."""


@contextmanager
def missing_named() -> Iterator[None]:
    """Raise Refused for a package that an extra installs. A module of the user's own passes as it is."""
    try:
        yield
    except ModuleNotFoundError as missing:
        extra = _extra_of(missing.name or "")
        if extra is None:
            raise
        raise Refused(
            f"The Python package {missing.name} is not installed here.",
            code=codes.PACKAGE_MISSING,
            remedy=f"Install the provider's extra `{extra}` where Airflow's tasks and commands run: `pip install "
            f"'airflow-provider-epochs[{extra}]'`. Then clear the failed task.",
        ) from missing


def _extra_of(module: str) -> str | None:
    found = (extra for package, extra in _EXTRAS.items() if f"{module}.".startswith(f"{package}."))
    return next(found, None)
