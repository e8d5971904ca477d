"""All that an argument of a pipeline holds, so that two can be compared. A ``repr`` hides settings and defaults."""

from __future__ import annotations

import sys
from collections.abc import Mapping


def contents(value: object) -> str:
    """A text that is equal for equal arguments. An object of a user's own class is equal to itself only.

    Airflow renders templates in place, so an argument is to be told before that.
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {contents(value[key])}' for key in sorted(value, key=repr))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(contents, value))}]"
    kind, package = type(value), type(value).__module__.partition(".")[0]
    if package == "airflow_epochs" and hasattr(value, "__dict__"):
        return f"{kind.__qualname__}({contents(vars(value))})"
    return repr(value) if package in sys.stdlib_module_names else object.__repr__(value)
