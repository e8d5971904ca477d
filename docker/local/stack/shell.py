"""The settings of the stack's processes, as a file for a shell to read: so that `airflow epochs …` can be typed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from stack import private

ENV = "env"
"""The file's name in the stack's folder. It has secrets."""


def write_env(folder: Path, env: Mapping[str, str], *, programs: Path) -> None:
    """Write ``env`` as lines of ``export``. ``programs`` goes before the shell's own PATH, which stays."""
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(env.items()) if name != "PATH"]
    path = f'export PATH={shlex.quote(str(programs))}:"$PATH"\n'
    private.write(folder / ENV, "".join([*lines, path]))


def hint(folder: Path) -> str:
    """What to type in a shell to use the file."""
    return f". {shlex.quote(str(folder / ENV))}"
