"""Names and places in their one spelling. Needed where a DAG file is parsed, so it imports next to nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote, urlsplit

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def validated_name(kind: str, name: str) -> str:
    """Return ``name`` if it can be part of a ledger key, a table folder and an Airflow task id alike.

    Raises:
        ValueError: It cannot.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{kind} name {name!r} is not usable: 1 to 63 letters, digits, '-' and '_', starting with a letter or digit"
        )
    return name


def normalised(url: str) -> str:
    """One spelling per place: local ones as plain paths, schemes in lower case, ``s3a`` as ``s3``, no slash at the end.

    ``..`` stays: where a path goes through a link, it leads elsewhere than its text says.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        url = unquote(parts.path)
    elif url[len(parts.scheme) :].startswith("://"):
        url = ("s3" if parts.scheme in ("s3a", "s3n") else parts.scheme) + url[len(parts.scheme) :]
    if url.startswith("/"):
        return "/" + "/".join(part for part in url.split("/") if part not in ("", "."))
    return url.rstrip("/") or url[:1]


def resolved(place: str) -> str:
    """Where a place in its one spelling really is, as far as this machine can tell: local links and ``..`` followed."""
    return os.path.realpath(place) if place.startswith("/") else place


def is_template(value: object) -> bool:
    """Whether Airflow has yet to render (a part of) the value."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(map(is_template, value.values()))
    return isinstance(value, Sequence) and any(map(is_template, value))
