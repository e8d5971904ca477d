"""Gives names and locations one spelling. Every parse of a DAG file imports this module, so it imports little."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_CUTS = re.compile("[#?]")
_HEXADECIMAL = re.compile("%[0-9A-Fa-f]{2}")
_UNCLEAR = re.compile(rf"[#?\x00-\x1f]|{_HEXADECIMAL.pattern}")
CLEAR_RULE = "without '#', '?', control characters, and '%' before two hexadecimal digits"
DRY_RUN = "dry-"
"""How the name of a dry run begins. It stands in place of a ledger's id, and no ledger has such an id."""
PAGE = "/epochs"
"""Where the API server has the Epochs page."""
RUN_NOTE = "run_note"
"""The key in an asset event's ``extra`` under which a task says what its run has done."""
NAME_RULE = "1 to 63 letters, digits, '-' and '_', starting with a letter or digit"


def no_dag_of(pipeline: str) -> str:
    """The owner id of a pipeline that no DAG runs any more. It is meant to be the id of no DAG."""
    return f"{pipeline}_ended"


def is_name(text: str) -> bool:
    """Whether ``text`` can be part of a ledger key, of a table's folder and of an Airflow task id."""
    return _NAME.fullmatch(text) is not None


def validated_name(kind: str, name: str) -> str:
    """Return ``name``, which a record or a key holds. Raises ValueError if it is no name.

    For a name that a DAG gives, see ``config.require_name``.
    """
    if not is_name(name):
        raise ValueError(f"{kind} name {name!r} is not usable: {NAME_RULE}")
    return name


def call_of(kind: str, *values: object, **options: object) -> str:
    """A ``repr`` in the form of a call of ``kind``: these values, and the options that are set."""
    given = [repr(value) for value in values]
    given += [f"{name}={value!r}" for name, value in options.items() if value]
    return f"{kind}({', '.join(given)})"


def settings(given: Mapping[str, object] | None) -> dict[str, str]:
    """Settings as Spark and Delta spell them: ``true``, not ``True``."""
    return {
        str(key): str(value).lower() if isinstance(value, bool) else str(value) for key, value in (given or {}).items()
    }


def normalised(url: str) -> str:
    """Spell the location ``url``, a path or URL, in the one way that this package compares and records.

    A local one becomes a plain path, a scheme becomes lower case, ``s3a`` and ``s3n`` become ``s3``, and a slash at the
    end goes. ``..`` stays: behind a symbolic link, it does not lead to the folder that the text suggests.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        url = unquote(parts.path)
    elif url[len(parts.scheme) :].startswith("://"):
        url = ("s3" if parts.scheme in ("s3a", "s3n") else parts.scheme) + url[len(parts.scheme) :]
    if url.startswith("/"):
        return "/" + "/".join(part for part in url.split("/") if part not in ("", "."))
    return url.rstrip("/") or url[:1]


def unclear_in(location: str) -> str | None:
    """The first part of a URL that Spark reads in another way than obstore and deltalake do; None if there is none.

    They would look for files where Spark has not put them. A path has no such part.
    """
    return unclear_as_spelt(normalised(location))


def unclear_as_spelt(url: str) -> str | None:
    """As ``unclear_in``, for a location that Spark gets as it is spelt: then a ``file:`` URL is no plain path."""
    found = _UNCLEAR.search(url) if "://" in url else None
    return found and found[0]


def hexadecimal_in(path: str) -> str | None:
    """The first character that a path has in hexadecimal, as a URL has it: ``%20``; None if there is none."""
    found = _HEXADECIMAL.search(path)
    return found and found[0]


class FileFlaw(NamedTuple):
    """Why a ``file:`` URL does not mean what it seems to.

    ``flaw``: what an error says after 'names'. ``meant``: the path that it has meant so far, as a URL has it.
    ``wanted``: the URL that means what it seems to.
    """

    flaw: str
    meant: str
    wanted: str


def flaw_of_file(url: str) -> FileFlaw | None:
    """What is wrong with a ``file:`` URL: a host, as by two slashes in place of three, or a ``#`` or ``?``."""
    parts = urlsplit(url)
    if parts.scheme != "file":
        return None
    path = _whole(url[len("file:") :])
    if parts.netloc not in ("", "localhost"):
        wrong, wanted = f"the host {parts.netloc!r}: a URL of a file has three slashes", f"///{path.lstrip('/')}"
    elif found := _CUTS.search(url):
        wrong, wanted = f"a file with {found[0]!r}: a URL ends before it, unless it is written in hexadecimal", path
    else:
        return None
    meant = normalised(url)
    return FileFlaw(f"{wrong}. So far it meant {meant}", _whole(meant.replace("%", "%25")), f"file:{wanted}")


def _whole(path: str) -> str:
    """A path in a URL, which does not end before its last character."""
    return path.replace("#", "%23").replace("?", "%3F")


def resolved(location: str) -> str:
    """The real path of a local location, without links and ``..``. A location with a scheme stays as it is."""
    return os.path.realpath(location) if location.startswith("/") else location


def is_template(value: object) -> bool:
    """Whether the value, or a part of it, is a Jinja template that Airflow has not rendered yet."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(map(is_template, value.values()))
    return isinstance(value, Sequence) and any(map(is_template, value))
