"""Write ``constraints.hashed.txt``: the packages of ``constraints.txt`` for this Python and machine, with their hashes.

``python scripts/hashes.py``. The hashes are those of the files that pip would install now, from whatever index it uses;
the address of the index is not written.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
CONSTRAINTS, HASHED = ROOT / "constraints.txt", ROOT / "constraints.hashed.txt"
HEAD = """\
# The packages of constraints.txt for {where}, with the hashes of their files.
# `make venv HASHES=1` installs no others.
# `python scripts/hashes.py` writes this file anew.
"""


def where() -> str:
    """For whom the hashes are: files differ between machines."""
    return f"CPython {sys.version_info.major}.{sys.version_info.minor} on {platform.system()} {platform.machine()}"


def main() -> None:
    """Ask pip which files it would take, and write down their hashes."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    done = subprocess.run([*command, "--report", "-", "-r", CONSTRAINTS], check=True, stdout=subprocess.PIPE)
    lines = sorted(_line(each) for each in json.loads(done.stdout)["install"])
    HASHED.write_text(HEAD.format(where=where()) + "".join(lines))


def _line(file: dict[str, Any]) -> str:
    about = file["metadata"]
    digest = file["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"{canonicalize_name(about['name'])}=={about['version']} --hash=sha256:{digest}\n"


if __name__ == "__main__":
    main()
