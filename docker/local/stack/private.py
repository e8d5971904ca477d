"""Files that only their owner can read, and secrets that are drawn once and kept in such a file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

UMASK = 0o077


def make_folder(path: Path) -> Path:
    """Make ``path`` a folder that only its owner can enter, also if it is there already; return it."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def opener(path: str, flags: int) -> int:
    """For ``open``: the file is its owner's only, also if it is there already."""
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def write(path: Path, text: str) -> None:
    """Write all of ``text``, or leave the file as it was."""
    temporary = path.with_name(f"{path.name}.new")
    with open(temporary, "w", opener=opener) as file:
        file.write(text)
    temporary.rename(path)


def new_secret() -> str:
    """256 random bits, as letters, digits, ``-`` and ``_``."""
    return secrets.token_urlsafe(32)


def kept(path: Path, new: Callable[[], str] = new_secret) -> str:
    """What is in the file; if there is none, write what ``new`` says, and return that."""
    if not path.exists():
        make_folder(path.parent)
        write(path, new())
    return path.read_text()
