"""pytest in a process of its own that has the big libraries already, and nothing of the package."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

# Not the package, nor what imports it: each mutant imports its own.
LIBRARIES = ["pytest", "hypothesis", "pyarrow.parquet", "deltalake", "duckdb", "confluent_kafka", "sqlalchemy", "httpx"]
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(LIBRARIES)


def run(arguments: list[str], *, folder: Path, env: dict[str, str], output: Path) -> int:
    """Run pytest with ``folder`` first on the path; what it prints goes to ``output``. Returns its exit code."""
    process = FORKED.Process(target=_pytest, args=(arguments, folder, env, output))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _pytest(arguments: list[str], folder: Path, env: dict[str, str], output: Path) -> None:
    import pytest

    with output.open("w") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(env)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    sys.exit(pytest.main(arguments))
