"""A schema registry with Confluent's REST interface: Apicurio, in memory, up in about five seconds, 260 MB."""

from __future__ import annotations

import contextlib
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

from stack import private
from stack.jars import REGISTRY, Jars
from stack.ports import free_port
from stack.processes import Server


class SchemaRegistry(Server):
    """A registry at ``url``. What it has is gone at the end."""

    def __init__(self, folder: Path, jars: Jars) -> None:
        super().__init__(folder)
        self.jars, self.port = jars, free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def start(self) -> None:
        private.make_folder(self.folder)
        with tarfile.open(self.jars.archive(REGISTRY)) as archive:
            archive.extractall(self.folder / "program", filter="data")
        [program] = (self.folder / "program").glob("*-runner.jar")
        java = ["java", "-Xmx300m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
        java += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}"]
        # Otherwise a schema that differs in blanks is another one, unlike in Confluent's registry.
        java += ["-Dapicurio.ccompat.use-canonical-hash=true"]
        self.spawn("registry", [*java, "-jar", str(program)])

    def wait_ready(self) -> None:
        self.processes[-1].wait_ready(self._answers)

    def _answers(self) -> bool:
        with (
            contextlib.suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(f"{self.url}/subjects", timeout=2),
        ):
            return True
        return False
