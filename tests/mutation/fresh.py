"""pytest in a process of its own that has the big libraries already, and nothing of the package.

``python -m tests.mutation.fresh`` reads requests from its standard input, one per line. For each it forks, and writes
the exit code of the fork to a line of its standard output. It is not ``multiprocessing``'s fork server: a process has
one of those, and other tests have the package in theirs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

# Not the package, nor what imports it: each mutant imports its own.
LIBRARIES = ["pytest", "hypothesis", "pyarrow.parquet", "deltalake", "duckdb", "confluent_kafka", "sqlalchemy", "httpx"]
PACKAGE = "airflow_epochs"


class Pytests:
    """The process that forks, seen from the tests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, arguments: list[str], *, folder: Path, env: dict[str, str], output: Path) -> int:
        """Run pytest with ``folder`` first on the path; what it prints goes to ``output``. Returns its exit code."""
        request = {"arguments": arguments, "folder": str(folder), "env": env, "output": str(output)}
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            return int(self._process.stdout.readline())
        except BaseException:  # of a time limit, too: the next test must not read this one's answer
            self._process.kill()
            raise


@contextmanager
def pytests(root: Path) -> Iterator[Pytests]:
    """Start the process in ``root``; it ends with the block."""
    command = [sys.executable, "-m", "tests.mutation.fresh"]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Pytests(process)


def _serve() -> None:
    for library in LIBRARIES:
        import_module(library)
    assert PACKAGE not in sys.modules
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _pytest(**json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _pytest(arguments: list[str], folder: str, env: dict[str, str], output: str) -> None:
    import pytest

    null = os.open(os.devnull, os.O_RDONLY)
    printed = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor, target in ((null, 0), (printed, 1), (printed, 2)):
        os.dup2(descriptor, target)
    os.environ.clear()
    os.environ.update(env)
    sys.dont_write_bytecode = True
    sys.path.insert(0, folder)
    code = pytest.main(arguments)
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
