"""Settings that spark-submit takes from a file of the site, as ``java.util.Properties`` reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_FILE = "spark-defaults.conf"
_HOME_S = 30.0
"""How many seconds the program that finds Spark's folder may run."""
_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def file_of_site(properties_file: str | None, environment: Mapping[str, str], binary: str) -> Path | None:
    """The file that the program ``binary`` takes settings from, which may not exist; None: it is not known which.

    It is found as Spark's own scripts find it. Another script may lead to a Spark anywhere.
    """
    if properties_file:
        return Path(properties_file)
    if folder := environment.get("SPARK_CONF_DIR"):
        return Path(folder, _FILE)
    if home := environment.get("SPARK_HOME"):
        return Path(home, "conf", _FILE)
    found = _home_of(shutil.which(binary, path=environment.get("PATH")), environment)
    file = Path(found, "conf", _FILE) if found else None
    return file if found and file and (file.is_file() or _is_home(found)) else None


def value_in(file: Path, key: str) -> str | None:
    """The value of ``key`` in the file; None if the file does not exist, or has no such key.

    Raises:
        OSError: The file cannot be read.
    """
    return _value(key, file.read_text(encoding="utf-8", errors="replace")) if file.is_file() else None


def _home_of(program: str | None, environment: Mapping[str, str]) -> Path | None:
    if program is None:
        return None
    asked = Path(program).parent / "find_spark_home.py"
    return _home_of_pip(asked, environment) if asked.is_file() else Path(program).resolve().parent.parent


def _home_of_pip(asked: Path, environment: Mapping[str, str]) -> Path | None:
    """Spark's folder, as pip's spark-submit learns it from the program beside it."""
    python = environment.get("PYSPARK_DRIVER_PYTHON") or environment.get("PYSPARK_PYTHON") or "python3"
    try:
        said = subprocess.run(
            [*python.split(), str(asked)], env=environment, capture_output=True, check=True, text=True, timeout=_HOME_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return Path(said.stdout.strip()) if said.stdout.strip() else None


def _is_home(folder: Path) -> bool:
    return (folder / "jars").is_dir() and (folder / "bin" / "spark-class").is_file()


def _value(key: str, text: str) -> str | None:
    line = re.compile(rf"[ \t\f]*{re.escape(key)}(?:[ \t\f]*[=:]|[ \t\f])[ \t\f]*(.*)")
    found = [match[1] for each in _CONTINUED.sub(r"\1", text).splitlines() if (match := line.fullmatch(each))]
    return _ESCAPE.sub(_unescaped, found[-1]).strip() if found else None


def _unescaped(found: re.Match[str]) -> str:
    letter = found[1]
    return chr(int(letter[1:], 16)) if len(letter) > 1 else _LETTERS.get(letter, letter)
