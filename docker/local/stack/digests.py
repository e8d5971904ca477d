"""Which jars the project knows: ``jars.sha256``, in the format of ``sha256sum``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from stack.processes import StackError

RECORDED = Path(__file__).parents[1] / "jars.sha256"
ARCHIVES = "*.tar.gz"


def require_recorded(root: Path, confs: Sequence[str]) -> None:
    """Compare every jar below ``root`` with the record. Raises StackError if one is another, unknown or missing."""
    recorded = {name: digest for name, digest in _recorded().items() if name.split("/")[0] in confs}
    found = digests(root, confs)
    wrong = sorted(name for name in {*found, *recorded} if found.get(name) != recorded.get(name))
    if wrong:
        differences = "; ".join(_difference(name, found, recorded) for name in wrong)
        raise StackError(
            f"The jars are not the recorded ones, and are not used: {differences}.\n"
            f"Folder {root}, compared with {RECORDED.name} beside ivy.xml.\n"
            "What to do: delete that folder and fetch again. If the same comes again, the repository that Ivy reads "
            "has other files: find out why before you use them. If you have changed ivy.xml or pyspark, run "
            "`python docker/local digests` and look at what it changes in the record."
        )


def record(root: Path, confs: Sequence[str]) -> None:
    """Write the record anew, from the jars below ``root``."""
    lines = [f"{digest}  {name}\n" for name, digest in sorted(digests(root, confs).items())]
    RECORDED.write_text("".join(lines), encoding="utf-8")


def digests(root: Path, confs: Sequence[str]) -> dict[str, str]:
    """The SHA-256 of every jar, by ``<conf>/<file>``."""
    jars = [jar for conf in confs for jar in files_in(root / conf)]
    return {jar.relative_to(root).as_posix(): hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars}


def files_in(folder: Path) -> list[Path]:
    """The jars and archives of a folder."""
    return [*folder.glob("*.jar"), *folder.glob(ARCHIVES)]


def _recorded() -> dict[str, str]:
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def _difference(name: str, found: dict[str, str], recorded: dict[str, str]) -> str:
    if name not in found:
        return f"{name} is missing"
    if name not in recorded:
        return f"{name} is not in the record"
    return f"{name} has the SHA-256 {found[name]}, recorded is {recorded[name]}"
