"""Validates the options of a DeltaSource. No I/O."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import BadArgument
from airflow_epochs.names import CLEAR_RULE, flaw_of_file, is_template, normalised, unclear_in
from airflow_epochs.sources.delta.bounds import Bounds
from airflow_epochs.sources.sizes import FORMS, bytes_in

APPENDS, FEED = "appends", "feed"
EARLIEST, LATEST = "earliest", "latest"
DEFAULTS: Mapping[str, Any] = {
    "storage_conn_id": None,
    "changes": APPENDS,
    "starting": EARLIEST,
    "max_versions": 1000,
    "max_wait": 60.0,
    "max_files": None,
    "max_bytes": None,
}
_CATALOG_NAME = re.compile(r"[A-Za-z0-9_]\w*(\.\w+){0,2}")
_WAIT_S_MAX = 86_400
_DIGITS_MAX = 18
"""The longest number of a version, in digits: Delta counts versions in 64 bits."""


@dataclass(frozen=True, kw_only=True)
class DeltaConfig:
    """A DeltaSource's options, checked and typed. ``starting``: a version, or one of the two words."""

    table: str
    storage_conn_id: str | None
    feed: bool
    starting: str | int
    max_versions: int
    max_wait_s: float
    bounds: Bounds


def read_config(raw: Mapping[str, Any]) -> DeltaConfig:
    """Validate options by name. A missing option gets its default; ``table`` may be missing while it is a template.

    Raises:
        BadArgument: An option is not valid. The text names it and the accepted values.
    """
    given = {**DEFAULTS, **raw}
    table = _table(given["table"]) if "table" in given else ""
    return DeltaConfig(
        table=table,
        storage_conn_id=None if _none(given["storage_conn_id"]) else _text("storage_conn_id", given["storage_conn_id"]),
        feed=_changes(given["changes"]) == FEED,
        starting=parse_starting(given["starting"], table),
        max_versions=_count("max_versions", given["max_versions"]),
        max_wait_s=_seconds("max_wait", given["max_wait"]),
        bounds=Bounds(
            max_files=None if _none(given["max_files"]) else _count("max_files", given["max_files"]),
            max_bytes=None if _none(given["max_bytes"]) else _bytes("max_bytes", given["max_bytes"]),
        ),
    )


def bad(what: str) -> BadArgument:
    """The error for an argument of DeltaSource."""
    return BadArgument(what, code=codes.DELTA_SOURCE_ARGUMENT)


def parse_starting(value: object, table: str = "") -> str | int:
    """The version, or one of the two words, that the user's value means. Raises BadArgument.

    A savepoint of another pipeline names its version as offsets: ``{table: {"0": version}}``.
    """
    found = _in_offsets(value, table)
    text = str(found).strip().lower()
    if text in (EARLIEST, LATEST):
        return text
    if not isinstance(found, bool) and text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text)
    raise bad(
        f"`starting` is {value!r}. It must be {EARLIEST!r}, {LATEST!r}, a version of the table, from 0, or offsets "
        f"such as {{{table or '/lake/orders'!r}: {{'0': 57}}}}, whose 57 is a version."
    )


def _in_offsets(value: object, table: str) -> object:
    """The version if the value is offsets of this table; any other value unchanged."""
    offsets = _from_json(value) if isinstance(value, str) and value.strip().startswith("{") else value
    if not isinstance(offsets, Mapping) or len(offsets) != 1:
        return value
    ((name, of),) = offsets.items()
    if table and normalised(str(name)) != table:
        raise bad(
            f"`starting` has a version of {name!r}, and `table` is {table!r}. Versions of one table mean nothing "
            "in another."
        )
    is_ours = isinstance(of, Mapping) and [*map(str, of)] == ["0"]
    return next(iter(of.values())) if is_ours else value


def _from_json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def require_file(table: object) -> None:
    """Raise BadArgument if a URL of a file names a host, or has ``#`` or ``?``.

    The path in a ledger record is normalised and needs no such check. A template is checked once it is rendered.
    """
    if not isinstance(table, str) or is_template(table):
        return
    written = secrecy.shown(table) if secrecy.has_login(table) else table
    if file := flaw_of_file(written.strip()):
        raise bad(
            f"`table` is {written!r}, which names {file.flaw}. To go on there, write "
            f"file://{file.meant}. If the source is new, write {file.wanted}."
        )


def _table(value: object) -> str:
    table = normalised(_text("table", value))
    if _CATALOG_NAME.fullmatch(table):
        raise bad(
            f"`table` is {value!r}, a name in a catalog. It must be an absolute path, or a URL such as "
            "s3://bucket/folder: DESCRIBE DETAIL in Spark shows where the table is."
        )
    if not table.startswith("/") and "://" not in table:
        raise bad(f"`table` is {value!r}. It must be an absolute path, or a URL such as s3://bucket/folder.")
    if secrecy.has_login(table):
        raise bad("`table` is a URL with a login. Put the login into the connection that `storage_conn_id` names.")
    if unclear := unclear_in(table):
        raise bad(f"`table` contains {unclear!r}, which Spark and deltalake read differently. Give a URL {CLEAR_RULE}.")
    return table


def _changes(value: object) -> str:
    if value in (APPENDS, FEED):
        return str(value)
    raise bad(f"`changes` is {value!r}. It must be {APPENDS!r} or {FEED!r}.")


def _none(value: object) -> bool:
    # an empty DAG param renders to "" or "None"
    return value is None or (isinstance(value, str) and value.strip() in ("", "None"))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise bad(f"`{name}` is {value!r}. It must be a text that is not empty.")
    return value.strip()


def _count(name: str, value: object) -> int:
    number = _number(value)
    if number < 1 or not number.is_integer():
        raise bad(f"`{name}` is {value!r}. It must be a whole number, 1 or larger.")
    return int(number)


def _bytes(name: str, value: object) -> int:
    if (size := bytes_in(value)) is None:
        raise bad(f"`{name}` is {value!r}. It must be {FORMS}.")
    return size


def _seconds(name: str, value: object) -> float:
    seconds = _number(value)
    if not 0 <= seconds <= _WAIT_S_MAX:
        raise bad(f"`{name}` is {value!r}. It must be a number of seconds from 0 to {_WAIT_S_MAX} (a day).")
    return seconds


def _number(value: object) -> float:
    """The value as a number; -1, which no option accepts, if it is not one."""
    try:
        number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        return -1.0
    return number if math.isfinite(number) else -1.0
