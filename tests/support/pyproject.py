"""pyproject.toml, read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]


def pythons() -> list[str]:
    """The versions of Python that the classifiers name: 3.10 and so on, the oldest first."""
    names = (each.rpartition(" :: ")[2] for each in PROJECT["classifiers"] if each.startswith("Programming Language"))
    return [name for name in names if name.startswith("3.")]
