"""Settings that spark-submit takes from a file of the site, as ``java.util.Properties`` reads it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def of_site(key: str, properties_file: str | None, environment: Mapping[str, str]) -> str | None:
    """The value of ``key`` in the file that spark-submit reads; None if there is no file, or no value in it.

    Raises:
        OSError: The file cannot be read.
    """
    path = Path(properties_file) if properties_file else _defaults(environment)
    if path is None or not path.is_file():
        return None
    return _value(key, path.read_text(encoding="utf-8", errors="replace"))


def _defaults(environment: Mapping[str, str]) -> Path | None:
    """Spark's scripts find it so."""
    if folder := environment.get("SPARK_CONF_DIR"):
        return Path(folder, "spark-defaults.conf")
    home = environment.get("SPARK_HOME") or _home_of(shutil.which("spark-submit", path=environment.get("PATH")))
    return Path(home, "conf", "spark-defaults.conf") if home else None


def _home_of(program: str | None) -> Path | None:
    return Path(program).resolve().parents[1] if program else None


def _value(key: str, text: str) -> str | None:
    line = re.compile(rf"[ \t\f]*{re.escape(key)}(?:[ \t\f]*[=:]|[ \t\f])[ \t\f]*(.*)")
    found = [match[1] for each in _CONTINUED.sub(r"\1", text).splitlines() if (match := line.fullmatch(each))]
    return _ESCAPE.sub(_unescaped, found[-1]).strip() if found else None


def _unescaped(found: re.Match[str]) -> str:
    letter = found[1]
    return chr(int(letter[1:], 16)) if len(letter) > 1 else _LETTERS.get(letter, letter)
