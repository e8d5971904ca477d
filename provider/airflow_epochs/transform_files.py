"""Finding the user's transform on the worker, and the sibling modules it imports. Reads files; runs nothing."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from airflow_epochs.coordinator import Transform
from airflow_epochs.errors import Refused


def parse_transform(text: str) -> tuple[str, str]:
    """``path/to/file.py:function`` as (path, function). Raises ValueError with the expected form."""
    path, separator, function = text.rpartition(":")
    if not separator or not path.endswith(".py") or not function.isidentifier():
        raise ValueError(f"transform must be 'path/to/file.py:function', not {text!r}")
    return path, function


def find_transform(text: str, folders: Iterable[Path]) -> Transform:
    """The transform with its absolute path, sibling files and a digest of all of them.

    Args:
        text: ``path/to/file.py:function``; an absolute path, or relative to one of the folders.
        folders: Where to look, in order.

    Raises:
        Refused: There is no such file, or it is not Python.
    """
    relative, function = parse_transform(text)
    looked = [folder / relative for folder in folders]
    found = next((path for path in looked if path.is_file()), None)
    if found is None:
        raise Refused(
            f"There is no transform file {relative!r}. Looked at: {', '.join(map(str, looked))}.",
            remedy="give an absolute path, or a path relative to the DAG file or to the DAGs folder.",
        )
    path = found.resolve()
    siblings = tuple(sorted(_siblings(path)))
    return Transform(
        path=str(path), function=function, files=tuple(map(str, siblings)), digest=_digest(path, *siblings)
    )


def _siblings(path: Path) -> set[Path]:
    """Modules beside ``path`` that it imports, and those that they import."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        for sibling in _imported_siblings(waiting.pop()):
            if sibling != path and sibling not in found:
                found.add(sibling)
                waiting.append(sibling)
    return found


def _imported_siblings(path: Path) -> Iterator[Path]:
    for module in _imported_modules(path):
        candidate = path.parent / f"{module.partition('.')[0]}.py"
        if candidate.is_file():
            yield candidate.resolve()


def _imported_modules(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except SyntaxError as error:
        raise Refused(f"{path} is not valid Python: {error}.", remedy="mend the file.") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


def _digest(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
