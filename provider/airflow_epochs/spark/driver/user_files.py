"""Finds the modules beside the user's transform file that it needs, and packs them for Spark.

A transform file may import its siblings: ``helpers.py`` or a package folder beside it. Only the siblings that it
imports, directly or through other siblings, are shipped, because the folder may be a whole DAG folder. This module
finds imports in the source, inside functions too, and executes nothing. A package is shipped with all its files, except
hidden files, files that look like keys, and links that lead out of the folder. A Python file that is such a link is an
error.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import io
import os
import re
import sys
import zipfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE_MAX = 64 * 1024 * 1024
_PRIVATE = re.compile(r"\..*|id_(rsa|dsa|ecdsa|ed25519).*|.*\.(pem|key|jks|p12|pfx|ppk|keytab|keystore|kdbx)", re.I)
_EPOCH_OF_ZIP = (1980, 1, 1, 0, 0, 0)


def read_source(path: str) -> str:
    """The text of the user's file. Raises Refused if it cannot be read."""
    try:
        _require_size({path: Path(path)})
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(
            f"The transform file {path} cannot be read: {error}",
            code=codes.TRANSFORM_MISSING,
            remedy="Put the file there, on the machine that runs the task, in UTF-8, so that the task's user can read "
            "it. Or correct `transform=` in the DAG. Then clear the failed task.",
        ) from error


def siblings_of(path: str, extra: Iterable[str] = ()) -> dict[str, Path]:
    """The files to ship with the file at ``path``: name inside the archive -> local file.

    Args:
        path: The user's transform file.
        extra: More files to ship, for imports that the source does not show (by a computed name).

    Raises:
        Refused: An imported file is not valid Python or is a link out of the folder, an imported folder has no
            ``__init__.py``, or the files have more than ``SIZE_MAX`` bytes in all.
    """
    folder = Path(path).resolve().parent
    found: dict[str, Path] = {}
    todo = [Path(path).resolve(), *(Path(name).resolve() for name in extra)]
    seen: set[Path] = set()
    for name in todo[1:]:
        found[_name_in_archive(name, folder)] = name
    while todo:
        file = todo.pop()
        if file in seen or file.suffix != ".py":
            continue
        seen.add(file)
        for module, names in _imported_modules(file).items():
            added = _files_of_module(folder, module, names)
            found.update(added)
            todo.extend(added.values())
    found.pop(Path(path).name, None)
    _require_size(found)
    return found


def _name_in_archive(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder)) if file.is_relative_to(folder) else file.name


def _imported_modules(file: Path) -> dict[str, set[str]]:
    """The dotted names that absolute imports in a file may mean, by their top-level names."""
    try:
        tree = ast.parse(read_source(str(file)))
    except SyntaxError as error:
        raise Refused(
            f"{file} is not valid Python: line {error.lineno}: {error.msg}. Nothing was read or written.",
            code=codes.TRANSFORM_BROKEN,
        ) from error
    found: dict[str, set[str]] = {}
    for name in (name for node in ast.walk(tree) for name in _names_in(node)):
        found.setdefault(name.partition(".")[0], set()).add(name)
    return found


def _names_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files_of_module(folder: Path, module: str, names: Collection[str]) -> dict[str, Path]:
    package, single = folder / module, folder / f"{module}.py"
    if (package / "__init__.py").is_file():
        _require_inside(package, folder)
        return {str(file.relative_to(folder)): file for file in _below(package) if _may_travel(file, folder)}
    if not single.is_file():
        _refuse_a_package_without_init(package, names)
        return {}
    _require_inside(single, folder)
    return {single.name: single}


def _refuse_a_package_without_init(package: Path, names: Collection[str]) -> None:
    """Refuse a folder that Python would take for the imported module although it has no ``__init__.py``."""
    if any(file.suffix == ".py" for file in _below(package)) and not _is_installed(package, names):
        raise Refused(
            f"The transform imports the folder {package}, which has no __init__.py, so the provider does not send it "
            "to Spark.",
            code=codes.TRANSFORM_NOT_SENT,
            remedy="Put an empty __init__.py into the folder. If the transform means another module, give the folder "
            "another name. Then clear the failed task.",
        )


def _is_installed(package: Path, names: Collection[str]) -> bool:
    """Whether this Python has what is imported elsewhere than in the folder ``package``.

    A module of that name comes before any folder without ``__init__.py``. Several such folders are one package, as
    ``google`` is, and each has its own part of it.
    """
    spec = importlib.util.find_spec(package.name)
    if spec is None or spec.origin is not None:
        return spec is not None
    folders = (Path(each).resolve() for each in spec.submodule_search_locations or ())
    has_others = any(not each.is_relative_to(package.parent) for each in folders)
    return has_others and not any(_is_module(package.parent.joinpath(*name.split("."))) for name in names)


def _is_module(place: Path) -> bool:
    return place.with_name(f"{place.name}.py").is_file() or (place / "__init__.py").is_file()


def _below(package: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(package):
        folders[:] = [name for name in folders if name != "__pycache__" and not _PRIVATE.fullmatch(name)]
        yield from (Path(place, name) for name in files)


def _may_travel(file: Path, folder: Path) -> bool:
    if _PRIVATE.fullmatch(file.name) or not file.is_file():
        return False
    if file.suffix == ".py":
        _require_inside(file, folder)
    return _is_inside(file, folder)


def _is_inside(file: Path, folder: Path) -> bool:
    """Whether the file itself lies in the folder: it is no link that leads out of it or to a private file."""
    real = file.resolve()
    return real.is_relative_to(folder) and not any(map(_PRIVATE.fullmatch, real.relative_to(folder).parts))


def _require_inside(file: Path, folder: Path) -> None:
    if not _is_inside(file, folder):
        raise Refused(
            f"The transform imports {file}. This is a link that leads out of the transform's folder, or to a hidden "
            "file or a key, so the provider does not send it to Spark.",
            code=codes.TRANSFORM_NOT_SENT,
            remedy="Put the file itself beside the transform, or install the module on Spark's machines under another "
            "name. Then clear the failed task.",
        )


def _require_size(files: dict[str, Path]) -> None:
    """Refuse files that are too large, before any of them is read into memory."""
    sizes = {name: file.stat().st_size for name, file in files.items()}
    if sum(sizes.values()) > SIZE_MAX:
        largest = max(sizes, key=sizes.__getitem__)
        raise Refused(
            f"The transform file and the modules that it imports have {sum(sizes.values()):,} bytes, more than "
            f"{SIZE_MAX:,}; the largest file is {largest}.",
            code=codes.TRANSFORM_NOT_SENT,
            remedy="Keep data out of the packages that the transform imports: put it on a disk or a store that Spark "
            "reads, or install it on Spark's machines. Then clear the failed task.",
        )


def archive(files: dict[str, Path]) -> bytes:
    """A zip of the files; the same files give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, file in sorted(files.items()):
            packed.writestr(zipfile.ZipInfo(name, _EPOCH_OF_ZIP), file.read_bytes())
    return buffer.getvalue()


def archive_name(content: bytes) -> str:
    """A name with the content's digest: Spark refuses a second file of the same name and other content."""
    return f"epoch_modules_{hashlib.sha256(content).hexdigest()[:16]}.zip"


def ship(spark: SparkSession, files: dict[str, Path], folder: Path) -> None:
    """Make the files importable in the Python workers of this session.

    ``folder`` gets the archive. A server has its copy afterwards; Spark in this process reads it when a job begins.
    """
    if not files:
        return
    content = archive(files)
    packed = folder / archive_name(content)
    packed.write_bytes(content)
    with _unchanged_path():
        spark.addArtifacts(str(packed), pyfile=True)


@contextmanager
def _unchanged_path() -> Iterator[None]:
    """Restore ``sys.path``: ``addArtifacts`` puts the zip on it too, and the zip is deleted a moment later."""
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let code import modules from ``folder``, as a script there could. Forget these modules afterwards.

    One process may run several pipelines, and each may have a ``helpers.py`` of its own.
    """
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        # First all names: the place of a folder without __init__.py depends on sys.path and on the module above it.
        names = [name for name in set(sys.modules) - before if _lies_in(sys.modules[name], folder)]
        sys.path.remove(str(folder))
        for name in names:
            del sys.modules[name]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    places = [file] if file else getattr(module, "__path__", None) or ()
    return any(Path(place).is_relative_to(folder) for place in places)
